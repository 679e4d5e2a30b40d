//! The project's sources, to be searched.

use std::fs;
use std::path::{Path, PathBuf};

/// A file of the project.
pub(crate) fn read(path: &str) -> String {
    let path = root().join(path);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Some of the project's files, each with its path in it.
pub(crate) struct Sources(pub(crate) Vec<(String, String)>);

impl Sources {
    /// What is in the product: no tests.
    pub(crate) fn of_crates() -> Self {
        let mut files = Vec::new();
        collect(&root(), "crates", &mut files);
        files.retain(|(path, _)| {
            let is_test = path.contains("/tests") || path.ends_with("/testing.rs");
            path.contains("/src/") && !is_test
        });
        for (_, text) in &mut files {
            if let Some(tests) = text.find("\n#[cfg(test)]\nmod tests {") {
                text.truncate(tests);
            }
        }
        Self(files)
    }

    /// Everything in which tests may be.
    pub(crate) fn of_tests() -> Self {
        let mut files = Vec::new();
        collect(&root(), "crates", &mut files);
        collect(&root(), "testing", &mut files);
        files.retain(|(path, text)| path.contains("/tests") || text.contains("#[cfg(test)]"));
        Self(files)
    }

    /// There is a test, a scenario or a trial of that name.
    pub(crate) fn has_test(&self, name: &str) -> bool {
        let signature = format!("fn {name}(");
        self.0.iter().any(|(_, text)| text.contains(&signature))
    }
}

fn collect(root: &Path, directory: &str, files: &mut Vec<(String, String)>) {
    for entry in fs::read_dir(root.join(directory)).unwrap() {
        let entry = entry.unwrap();
        let path = format!("{directory}/{}", entry.file_name().to_str().unwrap());
        if entry.file_type().unwrap().is_dir() {
            collect(root, &path, files);
        } else if path.ends_with(".rs") {
            let text = read(&path);
            files.push((path, text));
        }
    }
}
