//! What is built for tests and demo, and kept in the cache outside of the checkout.

use std::path::PathBuf;

use anyhow::Context;
use rubelet_e2e::{Cache, RuntimeKind, Tools};

use crate::go::{GoModule, build, ensure_go, is_built, program, tests};
use crate::packages::{self, Need};
use crate::report;

const CONTAINERD: GoModule = GoModule {
    dir: "containerd",
    set: "containerd",
    tags: None,
    cgo: false,
    tools: &[
        program(
            "containerd",
            "github.com/containerd/containerd/v2/cmd/containerd",
            "about 2 minutes",
        ),
        program(
            "containerd-shim-runc-v2",
            "github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2",
            "some seconds",
        ),
        program("ctr", "github.com/containerd/containerd/v2/cmd/ctr", "some seconds"),
    ],
};

const RUNC: GoModule = GoModule {
    dir: "runc",
    set: "runc",
    tags: Some("seccomp"),
    cgo: true,
    tools: &[program("runc", "github.com/opencontainers/runc", "half a minute")],
};

const CRICTL: GoModule = GoModule {
    dir: "crictl",
    set: "crictl",
    tags: None,
    cgo: false,
    tools: &[program("crictl", "sigs.k8s.io/cri-tools/cmd/crictl", "half a minute")],
};

const CNI: GoModule = GoModule {
    dir: "cni",
    set: "cni",
    tags: None,
    cgo: false,
    tools: &[
        program(
            "bridge",
            "github.com/containernetworking/plugins/plugins/main/bridge",
            "some seconds",
        ),
        program(
            "loopback",
            "github.com/containernetworking/plugins/plugins/main/loopback",
            "some seconds",
        ),
        program(
            "host-local",
            "github.com/containernetworking/plugins/plugins/ipam/host-local",
            "some seconds",
        ),
        program(
            "portmap",
            "github.com/containernetworking/plugins/plugins/meta/portmap",
            "some seconds",
        ),
    ],
};

const PEER: GoModule = GoModule {
    dir: "kubernetes",
    set: "kubernetes",
    tags: None,
    cgo: false,
    tools: &[program("kubelet-go", "k8s.io/kubernetes/cmd/kubelet", "about 3 minutes")],
};

const ETCD: GoModule = GoModule {
    dir: "etcd",
    set: "etcd",
    tags: None,
    cgo: false,
    tools: &[program("etcd", "go.etcd.io/etcd/server/v3", "about a minute")],
};

const CONTROL_PLANE: GoModule = GoModule {
    dir: "kubernetes",
    set: "control-plane",
    tags: None,
    cgo: false,
    tools: &[
        program("kube-apiserver", "k8s.io/kubernetes/cmd/kube-apiserver", "about 6 minutes"),
        program("kube-scheduler", "k8s.io/kubernetes/cmd/kube-scheduler", "half a minute"),
        program(
            "kube-controller-manager",
            "k8s.io/kubernetes/cmd/kube-controller-manager",
            "about a minute",
        ),
        program("kubectl", "k8s.io/kubernetes/cmd/kubectl", "half a minute"),
    ],
};

/// Kubernetes' own end-to-end tests, what runs them, and the program that most of their pods run.
const SUITE: GoModule = GoModule {
    dir: "e2e",
    set: "e2e",
    tags: None,
    cgo: false,
    tools: &[
        program("agnhost", "k8s.io/kubernetes/test/images/agnhost", "about a minute"),
        program("ginkgo", "github.com/onsi/ginkgo/v2/ginkgo", "some seconds"),
        tests("e2e.test", "k8s.io/kubernetes/test/e2e", "about 5 minutes"),
    ],
};

/// What makes Services work on a node.
const PROXY: GoModule = GoModule {
    dir: "kubernetes",
    set: "kube-proxy",
    tags: None,
    cgo: false,
    tools: &[program("kube-proxy", "k8s.io/kubernetes/cmd/kube-proxy", "about a minute")],
};

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

/// Kubernetes' own end-to-end tests, and what they need besides a cluster.
#[derive(Debug, Clone)]
pub(crate) struct Suite {
    /// What runs the tests in parallel.
    pub(crate) ginkgo: PathBuf,
    /// The tests.
    pub(crate) tests: PathBuf,
    /// What makes Services work on a node.
    pub(crate) kube_proxy: PathBuf,
    /// The images that their pods run.
    pub(crate) images: Vec<PathBuf>,
}

/// Builds Kubernetes' own end-to-end tests, of the version that our kubelet stands in for, and makes
/// their images.
pub(crate) fn ensure_suite(cache: &Cache) -> anyhow::Result<Suite> {
    packages::ensure(&[Need::Images, Need::SuiteImages])?;
    let bin = cache.bin();
    if !is_built(&SUITE, &bin) || !is_built(&PROXY, &bin) {
        packages::ensure(&[Need::ModuleProxy])?;
        let go = ensure_go(cache)?;
        build(&go, &SUITE, &bin)?;
        build(&go, &PROXY, &bin)?;
    }
    let busybox = packages::busybox().context("busybox is not to be found")?;
    let made = rubelet_test_images::suite::ensure(
        &cache.images().join("suite"),
        busybox,
        &bin.join("agnhost"),
    )?;
    if made.made {
        report::say(format_args!("{} images of the official tests made", made.archives.len()));
    }
    Ok(Suite {
        ginkgo: bin.join("ginkgo"),
        tests: bin.join("e2e.test"),
        kube_proxy: bin.join("kube-proxy"),
        images: made.archives,
    })
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

#[cfg(test)]
mod tests {
    use std::path::Path;

    use crate::go::inputs;

    use super::*;

    #[test]
    fn every_module_pins_the_tools_that_are_built_from_it() {
        for module in
            [&CONTAINERD, &RUNC, &CRICTL, &CNI, &PEER, &ETCD, &CONTROL_PLANE, &SUITE, &PROXY]
        {
            let pinned = inputs(module).expect("go.mod and go.sum are there");
            for tool in module.tools {
                let is_pinned = Path::new(tool.package)
                    .ancestors()
                    .any(|path| pinned.contains(&format!("{} v", path.display())));
                assert!(is_pinned, "{} in {}", tool.package, module.dir);
            }
        }
    }
}
