//! Which lines are written.
//!
//! A pattern of `--vmodule` with a `/` is matched against the source path without its extension,
//! one with `::` against the module path, any other against the file name without its extension
//! and against the last part of the module path (so that `lib.rs` and `mod.rs` can be told apart).
//! `*` and `?` match anything.

use std::sync::atomic::{AtomicU32, Ordering};

use tracing::level_filters::LevelFilter;
use tracing::{Level, Metadata};

/// Levels of our own crates: debug and trace.
const DEBUG: u32 = 4;
const TRACE: u32 = 6;

/// The log level and the levels of some files.
#[derive(Debug)]
pub(super) struct Thresholds {
    verbosity: AtomicU32,
    files: Vec<(String, u32)>,
}

impl Thresholds {
    pub(super) fn new(verbosity: u32, files: Vec<(String, u32)>) -> Self {
        Self { verbosity: AtomicU32::new(verbosity), files }
    }

    pub(super) fn verbosity(&self) -> u32 {
        // A level guards no other memory.
        self.verbosity.load(Ordering::Relaxed)
    }

    pub(super) fn set_verbosity(&self, verbosity: u32) {
        self.verbosity.store(verbosity, Ordering::Relaxed);
    }

    pub(super) fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        let required = required_verbosity(metadata);
        required <= self.verbosity()
            || self.files.iter().any(|(pattern, level)| {
                required <= *level && matches_source(pattern, metadata.file(), metadata.target())
            })
    }

    /// Nothing beyond this level is ever written, as long as the level stays.
    pub(super) fn most_detailed(&self) -> LevelFilter {
        let files = self.files.iter().map(|(_, level)| *level).max().unwrap_or(0);
        match self.verbosity().max(files) {
            0..DEBUG => LevelFilter::INFO,
            DEBUG..TRACE => LevelFilter::DEBUG,
            TRACE.. => LevelFilter::TRACE,
        }
    }
}

/// The level from which on a line is written.
pub(super) fn required_verbosity(metadata: &Metadata<'_>) -> u32 {
    let target = metadata.target();
    let ours =
        target == "kubelet" || target.starts_with("kubelet::") || target.starts_with("rubelet_");
    match (*metadata.level(), ours) {
        (Level::ERROR | Level::WARN, _) | (Level::INFO, true) => 0,
        (Level::DEBUG, true) | (Level::INFO, false) => DEBUG,
        (_, true) => TRACE,
        (Level::DEBUG, false) => 8,
        (_, false) => 10,
    }
}

fn matches_source(pattern: &str, file: Option<&str>, module: &str) -> bool {
    if pattern.contains("::") {
        return matches(pattern, module);
    }
    let path = file.map(|file| file.strip_suffix(".rs").unwrap_or(file));
    if pattern.contains('/') {
        return path.is_some_and(|path| matches(pattern, path));
    }
    path.is_some_and(|path| matches(pattern, last_part(path, "/")))
        || matches(pattern, last_part(module, "::"))
}

fn last_part<'a>(path: &'a str, separator: &str) -> &'a str {
    path.rsplit_once(separator).map_or(path, |(_, last)| last)
}

/// `*` is any text, `?` any character.
fn matches(pattern: &str, text: &str) -> bool {
    let (pattern, text): (Vec<char>, Vec<char>) =
        (pattern.chars().collect(), text.chars().collect());
    let (mut p, mut t) = (0, 0);
    // Where to go on if the text since the last star does not fit.
    let mut retry: Option<(usize, usize)> = None;
    while t < text.len() {
        match pattern.get(p) {
            Some('*') => {
                retry = Some((p + 1, t));
                p += 1;
            }
            Some(c) if *c == '?' || *c == text[t] => {
                p += 1;
                t += 1;
            }
            _ => match retry {
                Some((after_star, from)) => {
                    retry = Some((after_star, from + 1));
                    (p, t) = (after_star, from + 1);
                }
                None => return false,
            },
        }
    }
    pattern[p..].iter().all(|c| *c == '*')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns() {
        let (file, module) =
            (Some("crates/pod-workers/src/worker.rs"), "rubelet_pod_workers::worker");
        for pattern in [
            "worker",
            "work*",
            "?orker",
            "*",
            "crates/pod-workers/*",
            "*/worker",
            "rubelet_pod_workers::*",
        ] {
            assert!(matches_source(pattern, file, module), "{pattern}");
        }
        for pattern in ["worker.rs", "orker", "workers", "work", "pod-workers/worker", "x::*", ""] {
            assert!(!matches_source(pattern, file, module), "{pattern}");
        }
        assert!(matches_source("rubelet_cri", Some("crates/cri/src/lib.rs"), "rubelet_cri"));
    }

    #[test]
    fn stars_backtrack() {
        assert!(matches("a*b*c", "aXbXbXc"));
        assert!(!matches("a*b*c", "aXbXbX"));
        assert!(matches("**", ""));
        assert!(!matches("?", ""));
    }
}
