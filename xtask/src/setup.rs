//! `cargo xtask setup`: everything that the other commands need, ahead of time.

use std::process::ExitCode;

use rubelet_e2e::{Cache, RuntimeKind};

use crate::packages::{self, Need};
use crate::{lint, report, testbed};

pub(crate) fn run(mut parts: Vec<&str>) -> anyhow::Result<ExitCode> {
    let cache = Cache::from_environment()?;
    if parts.is_empty() {
        parts = vec!["debian", "images", "built", "lint", "cluster", "suite"];
    }
    report::heading("Setting up");
    report::say(format_args!("built tools and images are kept in {}", cache.root().display()));
    let mut failed = false;
    for part in parts {
        let result = match part {
            "debian" => testbed::ensure_runtime(RuntimeKind::Debian, &cache).map(|_| ()),
            "built" => testbed::ensure_runtime(RuntimeKind::Built, &cache).map(|_| ()),
            "images" => {
                testbed::ensure_images(&cache).and_then(|()| packages::ensure(&[Need::Registry]))
            }
            "cluster" => testbed::ensure_control_plane(&cache).map(|_| ()),
            "suite" => testbed::ensure_suite(&cache).map(|_| ()),
            "lint" => lint::ensure_cargo_deny(&cache).map(|_| ()),
            _ => testbed::ensure_peer(&cache).map(|_| ()),
        };
        match result {
            Ok(()) => report::say(format_args!("{part}: ready")),
            Err(error) => {
                failed = true;
                report::say(format_args!("{part}: {error:#}"));
            }
        }
    }
    Ok(if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}
