//! Files that a test bed needs and did not find.

use std::fmt;
use std::path::PathBuf;

/// Files that are not there, and how to get them.
#[derive(Debug, Clone)]
pub struct Missing {
    /// What was looked for.
    pub files: Vec<PathBuf>,
    /// What to do about it.
    pub remedy: &'static str,
}

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let files: Vec<String> = self.files.iter().map(|file| file.display().to_string()).collect();
        write!(f, "missing: {}; {}", files.join(", "), self.remedy)
    }
}

impl std::error::Error for Missing {}
