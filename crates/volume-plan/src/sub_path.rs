use std::path::{Component, Path};

/// Why a `subPath` (as written, or expanded from `subPathExpr`) is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SubPathError {
    /// It starts at the root of the node.
    #[error("error SubPath `{sub_path}` must not be an absolute path")]
    Absolute {
        /// The path.
        sub_path: String,
    },
    /// It climbs.
    #[error("unable to provision SubPath `{sub_path}`: must not contain '..'")]
    Backsteps {
        /// The path.
        sub_path: String,
    },
}

/// Checks that a `subPath` is relative and does not climb. Links inside the volume are not seen
/// here: whoever opens the path must not be led out of the volume by them.
///
/// # Errors
/// When it is absolute or has a `..` element.
pub fn check_sub_path(sub_path: &str) -> Result<(), SubPathError> {
    if sub_path.starts_with('/') {
        return Err(SubPathError::Absolute { sub_path: sub_path.to_owned() });
    }
    if has_backsteps(sub_path) {
        return Err(SubPathError::Backsteps { sub_path: sub_path.to_owned() });
    }
    Ok(())
}

/// Some element of the path is `..`.
pub(crate) fn has_backsteps(path: &str) -> bool {
    Path::new(path).components().any(|component| component == Component::ParentDir)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn only_relative_paths_without_backsteps_pass() {
        for (sub_path, expected) in [
            ("a/b", None),
            ("a..b/..c", None),
            (".", None),
            ("/a", Some("error SubPath `/a` must not be an absolute path")),
            ("..", Some("unable to provision SubPath `..`: must not contain '..'")),
            ("a/../b", Some("unable to provision SubPath `a/../b`: must not contain '..'")),
        ] {
            let error = check_sub_path(sub_path).err().map(|error| error.to_string());
            assert_eq!(error.as_deref(), expected, "{sub_path}");
        }
    }

    proptest! {
        #[test]
        fn what_passes_stays_beneath(sub_path in "[./a]{0,12}") {
            if check_sub_path(&sub_path).is_ok() {
                let mut depth = 0_i32;
                for element in sub_path.split('/').filter(|e| !e.is_empty() && *e != ".") {
                    depth += if element == ".." { -1 } else { 1 };
                    prop_assert!(depth >= 0);
                }
            }
        }
    }
}
