//! Environment variables from files that another container of the pod wrote (`fileKeyRef`).

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use k8s_openapi::api::core::v1::{Container, FileKeySelector};
use rubelet_linux::path::{Directory, PathError};
use rustix::fs::{Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

/// Bytes of an environment file. The kernel takes no larger environment in any case, and the file
/// is the containers' to fill.
const MAX_FILE: u64 = 1024 * 1024;

/// What the environment files of a container say about the keys it asks for.
#[derive(Clone, Default)]
pub struct EnvironmentFiles(BTreeMap<(String, String, String), FileValue>);

/// Names only: values may be secret.
impl std::fmt::Debug for EnvironmentFiles {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum FileValue {
    /// The key has a value.
    Value(String),
    /// The file has no such key, or nothing in it.
    NoKey {
        /// Where the file is on the node.
        file: PathBuf,
    },
    /// There is no such file.
    NoFile,
    /// The file cannot be read, or is malformed.
    Unreadable,
}

impl EnvironmentFiles {
    /// None if the volume is not there.
    pub(super) fn get(&self, selector: &FileKeySelector) -> Option<&FileValue> {
        self.0.get(&place(selector))
    }
}

fn place(selector: &FileKeySelector) -> (String, String, String) {
    (selector.volume_name.clone(), selector.path.clone(), selector.key.clone())
}

/// The file is not of the form `KEY='value'`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {problem}")]
struct Malformed {
    line: usize,
    problem: &'static str,
}

#[derive(Debug, thiserror::Error)]
enum ReadFileError {
    #[error(transparent)]
    Path(#[from] PathError),
    #[error("cannot open it")]
    Open(#[source] io::Error),
    #[error("it is no regular file of at most {MAX_FILE} bytes")]
    Unsuitable,
    #[error("cannot read it")]
    Read(#[source] io::Error),
    #[error("it is not UTF-8")]
    NotText,
    #[error(transparent)]
    Malformed(#[from] Malformed),
}

impl ReadFileError {
    fn is_not_found(&self) -> bool {
        match self {
            Self::Path(error) => error.is_not_found(),
            Self::Open(error) => error.kind() == io::ErrorKind::NotFound,
            _ => false,
        }
    }
}

/// Reads every `fileKeyRef` of `container` from the volumes, whose places on the node are
/// `volume_paths`, by name. Links in a volume are followed as the pod sees them: never out of the
/// volume. Does file I/O.
pub fn read_environment_files(
    container: &Container,
    volume_paths: &BTreeMap<String, PathBuf>,
) -> EnvironmentFiles {
    let selectors = container
        .env
        .iter()
        .flatten()
        .filter_map(|variable| variable.value_from.as_ref()?.file_key_ref.as_ref());
    let mut found = EnvironmentFiles::default();
    for selector in selectors {
        let Some(volume) = volume_paths.get(&selector.volume_name) else { continue };
        let value = read_value(volume, selector).unwrap_or_else(|error| {
            if error.is_not_found() {
                return FileValue::NoFile;
            }
            // The file's content is the pod's own; what is wrong with it goes to the log only.
            tracing::error!(container = container.name, volume = selector.volume_name,
                path = selector.path, error = %rubelet_types::error_chain(&error),
                "Failed to parse an environment file");
            FileValue::Unreadable
        });
        found.0.insert(place(selector), value);
    }
    found
}

fn read_value(volume: &Path, selector: &FileKeySelector) -> Result<FileValue, ReadFileError> {
    let file = open_in_volume(volume, Path::new(&selector.path))?;
    let metadata = file.metadata().map_err(ReadFileError::Read)?;
    if !metadata.is_file() || metadata.len() > MAX_FILE {
        return Err(ReadFileError::Unsuitable);
    }
    let mut content = Vec::new();
    // It may grow while it is read.
    file.take(MAX_FILE).read_to_end(&mut content).map_err(ReadFileError::Read)?;
    let text = String::from_utf8(content).map_err(|_| ReadFileError::NotText)?;
    Ok(match find_value(&text, &selector.key)? {
        Some(value) => FileValue::Value(value),
        None => FileValue::NoKey { file: volume.join(&selector.path) },
    })
}

fn open_in_volume(volume: &Path, path: &Path) -> Result<File, ReadFileError> {
    let root = Directory::open(volume)?;
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
    match rustix::fs::openat2(&root, path, flags, Mode::empty(), resolve) {
        Ok(fd) => Ok(File::from(fd)),
        // Before Linux 5.6 no link is followed at all.
        Err(Errno::NOSYS) => Ok(root.open_file(path)?),
        Err(errno) => Err(ReadFileError::Open(errno.into())),
    }
}

const BLANKS: [char; 2] = [' ', '\t'];

/// The value of `key`: of the first assignment to it, none if that is empty. What comes after it is
/// not looked at.
///
/// The form is a part of what shells read: one `KEY='value'` after the other, the value literal up
/// to the next quote, over as many lines as it takes; blank lines and `#` comments. `KEY= 'value'`
/// assigns nothing, as in a shell.
fn find_value(text: &str, key: &str) -> Result<Option<String>, Malformed> {
    let mut lines = text.lines().zip(1..);
    while let Some((line, number)) = lines.next() {
        let malformed = |problem| Malformed { line: number, problem };
        let line = line.trim_start_matches(BLANKS);
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let (name, assigned) = line.split_once('=').ok_or_else(|| malformed("there is no '='"))?;
        if name.is_empty() {
            return Err(malformed("there is no name before '='"));
        }
        if name.ends_with(BLANKS) {
            return Err(malformed("there is a blank before '='"));
        }
        if assigned.starts_with(BLANKS) {
            if name == key {
                return Ok(None);
            }
            continue;
        }
        let mut rest = assigned
            .strip_prefix('\'')
            .ok_or_else(|| malformed("the value is not in single quotes"))?;
        let mut value = String::new();
        let behind = loop {
            if let Some((last, behind)) = rest.split_once('\'') {
                value.push_str(last);
                break behind;
            }
            value.push_str(rest);
            value.push('\n');
            (rest, _) = lines.next().ok_or_else(|| malformed("the quote is never closed"))?;
        };
        let behind = behind.trim_start_matches(BLANKS);
        if !behind.is_empty() && !behind.starts_with('#') {
            return Err(malformed("something follows the closing quote"));
        }
        if name == key {
            return Ok(Some(value).filter(|value| !value.is_empty()));
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use proptest::prelude::*;

    use super::*;

    fn found(text: &str, key: &str) -> String {
        match find_value(text, key) {
            Ok(Some(value)) => format!("={value}"),
            Ok(None) => "none".to_owned(),
            Err(error) => error.to_string(),
        }
    }

    #[test]
    fn only_quoted_assignments_count() {
        for (text, key, expected) in [
            ("A='1'\nB='2'\n", "B", "=2"),
            ("A='1'", "A", "=1"),
            ("A='1'\r\nB='2'\r\n", "B", "=2"),
            ("  \t A='x y'\t # comment\n", "A", "=x y"),
            ("# A='0'\n\n   \nA='$B \\n \"q\"'\n", "A", "=$B \\n \"q\""),
            ("A='one\n  two\n# three'\nB='b'", "A", "=one\n  two\n# three"),
            ("A='one\n  two\n# three'\nB='b'", "B", "=b"),
            ("A='a=b'", "A", "=a=b"),
            ("A='1'\nA='2'", "A", "=1"),
            ("A=''\n", "A", "none"),
            ("A= '1'\nB='2'", "A", "none"),
            ("A= '1'\nB='2'", "B", "=2"),
            ("A='1'\n", "B", "none"),
            ("", "A", "none"),
            ("A='1'\nnonsense", "A", "=1"),
            ("nonsense\nA='1'", "A", "line 1: there is no '='"),
            ("A = '1'", "A", "line 1: there is a blank before '='"),
            ("='1'", "A", "line 1: there is no name before '='"),
            ("A=1", "A", "line 1: the value is not in single quotes"),
            ("A=\"1\"", "A", "line 1: the value is not in single quotes"),
            ("A=", "A", "line 1: the value is not in single quotes"),
            ("\nA='1", "A", "line 2: the quote is never closed"),
            ("A='1'x", "A", "line 1: something follows the closing quote"),
            ("A='1''2'", "A", "line 1: something follows the closing quote"),
        ] {
            assert_eq!(found(text, key), expected, "{text:?} {key}");
        }
    }

    proptest! {
        #[test]
        fn nothing_written_by_a_container_panics(text in "[A-Z='#\\n\\r \\t\\PC]{0,80}") {
            let _ = find_value(&text, "A");
        }

        #[test]
        fn any_value_without_a_quote_comes_back(value in "[^'\\r]{1,40}") {
            let text = format!("X='y'\nA='{value}'\n");
            prop_assert_eq!(find_value(&text, "A"), Ok(Some(value)));
        }
    }

    fn selector(path: &str) -> FileKeySelector {
        FileKeySelector {
            volume_name: "v".to_owned(),
            path: path.to_owned(),
            key: "A".to_owned(),
            optional: None,
        }
    }

    #[test]
    fn links_never_lead_out_of_the_volume() {
        let root = tempfile::tempdir().unwrap();
        let volume = root.path().join("volume");
        std::fs::create_dir_all(volume.join("dir")).unwrap();
        std::fs::write(root.path().join("secret"), "A='secret'").unwrap();
        std::fs::write(volume.join("dir/inside"), "A='inside'").unwrap();
        symlink("dir/inside", volume.join("good")).unwrap();
        symlink("../secret", volume.join("up")).unwrap();
        symlink(root.path().join("secret"), volume.join("absolute")).unwrap();
        symlink("/dir/inside", volume.join("rooted")).unwrap();
        for (path, expected) in [
            ("dir/inside", Some("inside")),
            ("good", Some("inside")),
            ("rooted", Some("inside")),
            ("up", None),
            ("absolute", None),
            ("../secret", None),
            ("dir", None),
        ] {
            let value = match read_value(&volume, &selector(path)) {
                Ok(FileValue::Value(value)) => Some(value),
                Ok(_) | Err(_) => None,
            };
            assert_eq!(value.as_deref(), expected, "{path}");
        }
    }

    #[test]
    fn a_fifo_does_not_block_and_a_huge_file_is_not_read() {
        let volume = tempfile::tempdir().unwrap();
        let fifo = volume.path().join("fifo");
        rustix::fs::mknodat(
            rustix::fs::CWD,
            &fifo,
            rustix::fs::FileType::Fifo,
            Mode::RUSR | Mode::WUSR,
            0,
        )
        .unwrap();
        File::create(volume.path().join("huge")).unwrap().set_len(MAX_FILE + 1).unwrap();
        for path in ["fifo", "huge"] {
            let result = read_value(volume.path(), &selector(path));
            assert!(matches!(result, Err(ReadFileError::Unsuitable)), "{path}: {result:?}");
        }
    }
}
