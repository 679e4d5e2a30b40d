use std::collections::BTreeMap;

/// The longest path of a file in a volume.
const MAX_PATH: usize = 4096;
/// The longest name of a file or directory.
const MAX_NAME: usize = 255;

/// A path that no file in a volume may have.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PathError {
    /// It names nothing.
    #[error("invalid path: must not be empty: {path:?}")]
    Empty {
        /// The path.
        path: String,
    },
    /// It starts at the root.
    #[error("invalid path: must be relative path: {path}")]
    Absolute {
        /// The path.
        path: String,
    },
    /// It is too long.
    #[error("invalid path: must be less than or equal to {MAX_PATH} characters")]
    TooLong,
    /// It climbs.
    #[error("invalid path: must not contain '..': {path}")]
    Backsteps {
        /// The path.
        path: String,
    },
    /// A name in it is too long.
    #[error("invalid path: filenames must be less than or equal to {MAX_NAME} characters")]
    NameTooLong,
    /// Names that begin so belong to the volume's own workings.
    #[error("invalid path: must not start with '..': {path}")]
    Reserved {
        /// The path.
        path: String,
    },
    /// It has a character that no file name can have.
    #[error("invalid path: must not contain NUL: {path:?}")]
    Nul {
        /// The path.
        path: String,
    },
    /// One file's path is a directory of another file's.
    #[error("invalid path: {path} cannot be both a file and the directory of {below}")]
    FileAndDirectory {
        /// The file.
        path: String,
        /// The file beneath it.
        below: String,
    },
}

/// The path without empty and `.` elements, if a file of a volume may have it.
pub(super) fn check(path: &str) -> Result<String, PathError> {
    let owned = || path.to_owned();
    if path.starts_with('/') {
        return Err(PathError::Absolute { path: owned() });
    }
    if path.len() > MAX_PATH {
        return Err(PathError::TooLong);
    }
    if path.contains('\0') {
        return Err(PathError::Nul { path: owned() });
    }
    let mut clean: Vec<&str> = Vec::new();
    for element in path.split('/') {
        match element {
            ".." => return Err(PathError::Backsteps { path: owned() }),
            "" | "." => {}
            element if element.len() > MAX_NAME => return Err(PathError::NameTooLong),
            element => clean.push(element),
        }
    }
    let Some(first) = clean.first() else { return Err(PathError::Empty { path: owned() }) };
    if first.starts_with("..") {
        return Err(PathError::Reserved { path: owned() });
    }
    Ok(clean.join("/"))
}

/// A path that is another one's directory is no file's.
pub(super) fn check_set<T>(files: &BTreeMap<String, T>) -> Result<(), PathError> {
    for below in files.keys() {
        let mut rest = below.as_str();
        while let Some((directory, _)) = rest.rsplit_once('/') {
            if files.contains_key(directory) {
                let path = directory.to_owned();
                return Err(PathError::FileAndDirectory { path, below: below.clone() });
            }
            rest = directory;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn paths_stay_within_the_volume_and_out_of_its_workings() {
        let long = "x".repeat(256);
        let very_long = "x/".repeat(2049);
        for (path, expected) in [
            ("a", Ok("a")),
            ("a/b", Ok("a/b")),
            ("./a//b/./c/", Ok("a/b/c")),
            ("a..b", Ok("a..b")),
            (".hidden", Ok(".hidden")),
            ("a/..b", Ok("a/..b")),
            ("...", Err("invalid path: must not start with '..': ...")),
            ("..data", Err("invalid path: must not start with '..': ..data")),
            ("./..data/x", Err("invalid path: must not start with '..': ./..data/x")),
            ("", Err("invalid path: must not be empty: \"\"")),
            (".", Err("invalid path: must not be empty: \".\"")),
            ("/a", Err("invalid path: must be relative path: /a")),
            ("..", Err("invalid path: must not contain '..': ..")),
            ("a/../b", Err("invalid path: must not contain '..': a/../b")),
            ("a\0b", Err("invalid path: must not contain NUL: \"a\\0b\"")),
            (&long, Err("invalid path: filenames must be less than or equal to 255 characters")),
            (&very_long, Err("invalid path: must be less than or equal to 4096 characters")),
        ] {
            let expected = expected.map(str::to_owned).map_err(str::to_owned);
            assert_eq!(check(path).map_err(|error| error.to_string()), expected, "{path:?}");
        }
    }

    #[test]
    fn no_file_is_a_directory() {
        let set = |paths: &[&str]| {
            check_set(&paths.iter().map(|path| ((*path).to_owned(), ())).collect())
                .map_err(|error| error.to_string())
        };
        assert_eq!(set(&["a/b", "a/c", "ab", "a-b/c"]), Ok(()));
        assert_eq!(
            set(&["a", "a-b", "a/b/c"]),
            Err("invalid path: a cannot be both a file and the directory of a/b/c".to_owned())
        );
    }

    proptest! {
        #[test]
        fn what_passes_is_clean_and_beneath(path in "[./a]{0,12}") {
            if let Ok(clean) = check(&path) {
                prop_assert_eq!(check(&clean), Ok(clean.clone()));
                prop_assert!(!clean.starts_with(['/', '.']) || !clean.starts_with(".."));
                prop_assert!(clean.split('/').all(|e| !matches!(e, "" | "." | "..")));
            }
        }
    }
}
