//! Which crate may depend on which: arrows point down only.

use std::fmt;
use std::fs;

use anyhow::Context;
use serde_json::Value;

/// The layers, from the lowest up. `docs/architecture.md` says what each is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Layer {
    /// The words that every crate shares.
    Types,
    /// Configuration.
    Config,
    /// Pure decisions: no I/O, no executor, no clock.
    Brain,
    /// One outside system each.
    Adapter,
    /// Asynchronous shells, none of which knows another.
    Manager,
    /// The binary, where all are wired.
    Binary,
    /// Fakes, test beds and tools: may use anything.
    Testing,
}

impl fmt::Display for Layer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Types => "types",
            Self::Config => "config",
            Self::Brain => "brain",
            Self::Adapter => "adapters",
            Self::Manager => "managers",
            Self::Binary => "the binary",
            Self::Testing => "testing",
        })
    }
}

/// The crate that may have `unsafe`, which the workspace's lints forbid: it repeats the others.
const LINTS_OF_THEIR_OWN: &[&str] = &["rubelet-memory"];

/// The crates of `crates/`. A new one has to be put in its place here.
const PLACES: &[(Layer, &[&str])] = &[
    (Layer::Types, &["rubelet-types", "rubelet-unverified-tls", "rubelet-metrics"]),
    (Layer::Config, &["rubelet-config"]),
    (
        Layer::Brain,
        &[
            "rubelet-pod-lifecycle",
            "rubelet-pod-status",
            "rubelet-volume-plan",
            "rubelet-node-resources",
            "rubelet-node-pressure",
        ],
    ),
    (
        Layer::Adapter,
        &[
            "rubelet-apiserver",
            "rubelet-checkpoint",
            "rubelet-container-http",
            "rubelet-cri",
            "rubelet-linux",
            "rubelet-memory",
            "rubelet-plugins",
        ],
    ),
    (
        Layer::Manager,
        &[
            "rubelet-allocation-manager",
            "rubelet-certificate-manager",
            "rubelet-container-logs",
            "rubelet-container-manager",
            "rubelet-event-recorder",
            "rubelet-eviction-manager",
            "rubelet-image-manager",
            "rubelet-node-status",
            "rubelet-object-store",
            "rubelet-pleg",
            "rubelet-pod-runtime",
            "rubelet-pod-sources",
            "rubelet-pod-workers",
            "rubelet-probe-manager",
            "rubelet-server",
            "rubelet-stats",
            "rubelet-status-manager",
            "rubelet-sync-loop",
            "rubelet-token-manager",
            "rubelet-volume-manager",
        ],
    ),
    (Layer::Binary, &["kubelet"]),
];

/// What brings an executor, a socket or the kernel with it: nothing for a crate that only decides.
const NOT_IN_THE_BRAIN: &[&str] = &[
    "axum",
    "futures-util",
    "hyper",
    "hyper-util",
    "inotify",
    "kube",
    "reqwest",
    "rustix",
    "rustls",
    "sd-notify",
    "socket2",
    "tempfile",
    "tokio",
    "tokio-rustls",
    "tokio-stream",
    "tokio-util",
    "tonic",
    "tower",
    "zbus",
];

/// A dependency as `cargo metadata` has it.
struct Edge<'a> {
    to: &'a str,
    is_ours: bool,
    is_dev: bool,
}

/// Every rule that the workspace breaks, in words.
pub(super) fn check(metadata: &Value) -> anyhow::Result<Vec<String>> {
    let mut problems = Vec::new();
    let packages = metadata["packages"].as_array().context("cargo metadata has no packages")?;
    for package in packages {
        let name = package["name"].as_str().context("a package without a name")?;
        let manifest = package["manifest_path"].as_str().context("a package without a manifest")?;
        let in_crates = manifest.contains("/crates/");
        let Some(layer) = place(name, in_crates) else {
            problems.push(format!("{name} has no layer: give it one in xtask/src/lint/layers.rs"));
            continue;
        };
        let edges: Vec<Edge<'_>> = package["dependencies"]
            .as_array()
            .into_iter()
            .flatten()
            .map(|dependency| Edge {
                to: dependency["name"].as_str().unwrap_or_default(),
                is_ours: dependency["path"].is_string(),
                is_dev: dependency["kind"] == "dev",
            })
            .collect();
        problems.extend(edges.iter().filter_map(|edge| check_edge(name, layer, edge)));
        if in_crates {
            let text =
                fs::read_to_string(manifest).with_context(|| format!("cannot read {manifest}"))?;
            if !has_workspace_lints(&text) && !LINTS_OF_THEIR_OWN.contains(&name) {
                problems.push(format!("{name} does not take the workspace's lints"));
            }
        }
    }
    Ok(problems)
}

fn place(name: &str, in_crates: bool) -> Option<Layer> {
    if !in_crates {
        return Some(Layer::Testing);
    }
    PLACES.iter().find(|(_, crates)| crates.contains(&name)).map(|(layer, _)| *layer)
}

fn check_edge(from: &str, layer: Layer, edge: &Edge<'_>) -> Option<String> {
    let to = edge.to;
    if !edge.is_ours {
        let is_impure = layer == Layer::Brain && !edge.is_dev && NOT_IN_THE_BRAIN.contains(&to);
        return is_impure.then(|| format!("{from} is a brain crate and depends on {to}"));
    }
    let target = PLACES
        .iter()
        .find(|(_, crates)| crates.contains(&to))
        .map_or(Layer::Testing, |(layer, _)| *layer);
    let allowed = match (layer, target) {
        (Layer::Testing, _) => true,
        // Fakes serve tests, wherever these are.
        (_, Layer::Testing) => edge.is_dev,
        // Decisions may build on each other; cargo itself forbids a circle.
        (Layer::Brain, Layer::Brain) => true,
        (layer, target) => target < layer,
    };
    (!allowed).then(|| format!("{from} ({layer}) must not depend on {to} ({target})"))
}

/// Whether a manifest says `[lints] workspace = true`.
fn has_workspace_lints(manifest: &str) -> bool {
    let mut in_lints = false;
    manifest.lines().map(str::trim).any(|line| {
        if line.starts_with('[') {
            in_lints = line == "[lints]";
        }
        in_lints && line.replace(' ', "") == "workspace=true"
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ours<'a>(to: &'a str, is_dev: bool) -> Edge<'a> {
        Edge { to, is_ours: true, is_dev }
    }

    #[test]
    fn arrows_point_down() {
        let check = |from: &str, to: &str| {
            check_edge(from, place(from, true).expect("a layer"), &ours(to, false))
        };
        assert_eq!(check("rubelet-pleg", "rubelet-cri"), None);
        assert_eq!(check("rubelet-pod-workers", "rubelet-pod-lifecycle"), None);
        assert_eq!(check("rubelet-pod-status", "rubelet-pod-lifecycle"), None);
        assert_eq!(check("rubelet-config", "rubelet-types"), None);
        assert!(check("rubelet-types", "rubelet-config").is_some());
        assert!(check("rubelet-pleg", "rubelet-pod-workers").is_some());
        assert!(check("rubelet-cri", "rubelet-linux").is_some());
        assert!(check("rubelet-pod-status", "rubelet-cri").is_some());
        assert!(check("rubelet-pleg", "rubelet-fake-cri").is_some());
    }

    #[test]
    fn fakes_are_for_tests() {
        assert_eq!(
            check_edge("rubelet-pleg", Layer::Manager, &ours("rubelet-fake-cri", true)),
            None
        );
    }

    #[test]
    fn the_brain_has_no_executor() {
        let tokio = |is_dev| Edge { to: "tokio", is_ours: false, is_dev };
        assert!(check_edge("rubelet-pod-status", Layer::Brain, &tokio(false)).is_some());
        assert!(check_edge("rubelet-pod-status", Layer::Brain, &tokio(true)).is_none());
        assert!(check_edge("rubelet-pleg", Layer::Manager, &tokio(false)).is_none());
    }

    #[test]
    fn a_new_crate_has_to_be_placed() {
        assert_eq!(place("rubelet-something-new", true), None);
    }

    #[test]
    fn lints_are_read_from_their_own_table_only() {
        assert!(has_workspace_lints("[package]\nname = \"a\"\n\n[lints]\nworkspace = true\n"));
        assert!(!has_workspace_lints("[package]\nedition.workspace = true\n"));
        assert!(!has_workspace_lints("[lints]\n[dependencies]\nworkspace = true\n"));
    }
}
