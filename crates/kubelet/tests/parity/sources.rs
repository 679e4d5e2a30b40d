//! The project's sources, to be searched.

use std::collections::{BTreeMap, BTreeSet};
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
    fn of_tests() -> Self {
        let mut files = Vec::new();
        collect(&root(), "crates", &mut files);
        collect(&root(), "testing", &mut files);
        Self(files)
    }
}

/// The tests, scenarios and trials of the project: of each name, the crates that have one of it.
pub(crate) struct Tests(BTreeMap<String, Vec<String>>);

impl Tests {
    pub(crate) fn read() -> Self {
        let sources = Sources::of_tests();
        let (real, own): (Vec<_>, Vec<_>) =
            sources.0.iter().partition(|(path, _)| path.starts_with("testing/e2e/tests/"));
        let mut tests = Self(BTreeMap::new());
        for (path, text) in own {
            let of_crate = path.split('/').nth(1).unwrap_or_default();
            attributed(text).for_each(|name| tests.add(name, of_crate));
        }
        // Scenarios and trials are functions that are listed.
        let is_function =
            |name: &str| real.iter().any(|(_, text)| text.contains(&format!("fn {name}(")));
        for (_, text) in &real {
            let listed: BTreeSet<&str> = listed(text).collect();
            listed.into_iter().filter(|name| is_function(name)).for_each(|name| {
                tests.add(name, "e2e");
            });
        }
        tests
    }

    fn add(&mut self, name: &str, of_crate: &str) {
        self.0.entry(name.to_owned()).or_default().push(of_crate.to_owned());
    }

    /// Whether `name`, or `crate::name`, is that of one test; says why not.
    pub(crate) fn find(&self, name: &str) -> Result<(), String> {
        let (of_crate, bare) =
            name.split_once("::").map_or((None, name), |(of_crate, bare)| (Some(of_crate), bare));
        let found = self.0.get(bare).into_iter().flatten();
        match found.filter(|found| of_crate.is_none_or(|of_crate| of_crate == *found)).count() {
            1 => Ok(()),
            0 => Err(format!("there is no test {name}")),
            more => Err(format!("there are {more} tests {name}: say of which crate")),
        }
    }
}

/// The functions below an attribute that makes them tests.
fn attributed(text: &str) -> impl Iterator<Item = &str> {
    let starts = |line: &str| {
        let line = line.trim_start();
        line.starts_with("#[test]") || line.starts_with("#[tokio::test")
    };
    let mut lines = text.lines();
    std::iter::from_fn(move || {
        lines.by_ref().find(|line| starts(line))?;
        lines.by_ref().find_map(|line| line.split_once("fn ")?.1.split('(').next())
    })
}

/// The words in lists of scenarios and trials.
fn listed(text: &str) -> impl Iterator<Item = &str> {
    let lists =
        [": &[Scenario]", ": &[Trial<"].into_iter().flat_map(|kind| text.split(kind).skip(1));
    lists
        .filter_map(|list| list.split_once(';'))
        .flat_map(|(list, _)| list.split(|c: char| !c.is_ascii_alphanumeric() && c != '_'))
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
