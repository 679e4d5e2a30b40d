//! Texts of errors, as users of the kubelet know them.

use std::io;
use std::path::Path;

/// A failed operation on a path in the form that events have carried for years, such as `open
/// /etc/resolv.conf: no such file or directory`.
pub(crate) fn path_error(operation: &str, path: &Path, error: &io::Error) -> String {
    let mut text = error.to_string();
    if error.raw_os_error().is_some() {
        if let Some((cause, _)) = text.split_once(" (os error ") {
            text = cause.to_owned();
        }
        if let Some(first) = text.get_mut(..1) {
            first.make_ascii_lowercase();
        }
    }
    format!("{operation} {}: {text}", path.display())
}

/// The last bytes of a text, at most `max`.
pub(crate) fn tail(text: &str, max: usize) -> &str {
    &text[text.ceil_char_boundary(text.len().saturating_sub(max))..]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_of_the_system_read_as_they_always_did() {
        let error = io::Error::from_raw_os_error(2);
        assert_eq!(
            path_error("open", Path::new("/etc/resolv.conf"), &error),
            "open /etc/resolv.conf: no such file or directory"
        );
    }

    #[test]
    fn a_tail_never_splits_a_character() {
        assert_eq!(tail("aü", 1), "");
        assert_eq!(tail("aü", 2), "ü");
        assert_eq!(tail("aü", 9), "aü");
    }
}
