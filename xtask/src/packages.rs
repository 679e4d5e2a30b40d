//! The system packages, by name: what each is for, how to see that it is there, how to get it.

use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, bail};

use crate::report;

/// A Debian package.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Package {
    name: &'static str,
    /// Files of it, any of which shows that it (or something that does the same) is there. None:
    /// only the package database can tell.
    files: &'static [&'static str],
    why: &'static str,
}

const fn package(name: &'static str, files: &'static [&'static str], why: &'static str) -> Package {
    Package { name, files, why }
}

/// What every private runtime needs.
const COMMON: &[Package] = &[
    package("util-linux", &["/usr/bin/unshare", "/bin/unshare"], "namespaces"),
    package("iproute2", &["/usr/sbin/ip", "/sbin/ip", "/bin/ip", "/usr/bin/ip"], "network"),
    package("iptables", &["/usr/sbin/iptables", "/sbin/iptables"], "pods' addresses and ports"),
    package("mount", &["/usr/bin/mount", "/bin/mount"], "private directories"),
    package("e2fsprogs", &["/usr/sbin/mkfs.ext4", "/sbin/mkfs.ext4"], "file systems of volumes"),
];

/// Debian's own runtime.
const DEBIAN_RUNTIME: &[Package] = &[
    package("containerd", &["/usr/bin/containerd", "/usr/sbin/containerd"], "container runtime"),
    package("runc", &["/usr/sbin/runc", "/usr/bin/runc"], "starts the containers"),
    package("containernetworking-plugins", &["/usr/lib/cni/bridge"], "pod network (CNI)"),
];

/// What images are made of. `busybox` that is not static has the same files.
const IMAGES: &[Package] = &[
    package("busybox-static", &[], "the programs in the images"),
    package("gcc", &["/usr/bin/cc"], "links the programs in the images"),
    package("libc6-dev", &["/usr/include/stdio.h"], "links the programs in the images"),
];

/// What the stand-ins for the images of Kubernetes' own tests are made of.
const SUITE_IMAGES: &[Package] = &[
    package("bash-static", &["/bin/bash-static", "/usr/bin/bash-static"], "their shell"),
    package("curl", &["/usr/bin/curl"], "asks servers in pods"),
    package("netcat-openbsd", &["/bin/nc.openbsd", "/usr/bin/nc.openbsd"], "asks servers in pods"),
    package("hostname", &["/bin/hostname", "/usr/bin/hostname"], "tells a pod its name"),
    package("libc-bin", &["/usr/bin/ldd"], "finds the libraries of these"),
    package("util-linux", &["/usr/bin/ipcmk"], "looks at the IPC namespace of pods"),
];

/// What building the current runtime needs besides Go.
const BUILD_RUNTIME: &[Package] = &[
    package("gcc", &["/usr/bin/cc"], "builds runc"),
    package("libc6-dev", &["/usr/include/stdio.h"], "builds runc"),
    package("libseccomp-dev", &["/usr/include/seccomp.h"], "builds runc"),
    package("pkg-config", &["/usr/bin/pkg-config"], "builds runc"),
];

/// What fetching Go modules needs besides Go.
const MODULE_PROXY: &[Package] =
    &[package("ca-certificates", &["/etc/ssl/certs/ca-certificates.crt"], "the module proxy")];

/// What fetching a tool from the Python package index needs.
const PIP: &[Package] = &[package("python3-pip", &[], "fetches a tool from its index")];

/// What the end-to-end tests pull images from.
const REGISTRY: &[Package] =
    &[package("docker-registry", &["/usr/bin/docker-registry"], "a registry to pull from")];

/// What the virtual machine is made with and runs on.
const VIRTUAL_MACHINE: &[Package] = &[
    package("qemu-system-x86", &["/usr/bin/qemu-system-x86_64"], "emulates the virtual machine"),
    package("debootstrap", &["/usr/sbin/debootstrap"], "fills the virtual machine's disk"),
    package("kmod", &["/usr/sbin/depmod", "/sbin/depmod"], "prepares its kernel modules"),
    package("cpio", &["/usr/bin/cpio", "/bin/cpio"], "packs what its kernel starts"),
    package("e2fsprogs", &["/usr/sbin/mke2fs", "/sbin/mke2fs"], "makes its file systems"),
    package("busybox-static", &[], "the first program in it"),
    package("util-linux", &["/usr/bin/setpriv"], "ends it with its maker"),
];

/// What a command asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Need {
    DebianRuntime,
    Images,
    SuiteImages,
    BuildRuntime,
    ModuleProxy,
    Pip,
    Registry,
    VirtualMachine,
}

impl Need {
    fn packages(self) -> Vec<Package> {
        match self {
            Self::DebianRuntime => [COMMON, DEBIAN_RUNTIME].concat(),
            Self::Images => IMAGES.to_vec(),
            Self::SuiteImages => SUITE_IMAGES.to_vec(),
            Self::BuildRuntime => [COMMON, BUILD_RUNTIME, MODULE_PROXY].concat(),
            Self::ModuleProxy => MODULE_PROXY.to_vec(),
            Self::Pip => PIP.to_vec(),
            Self::Registry => REGISTRY.to_vec(),
            Self::VirtualMachine => VIRTUAL_MACHINE.to_vec(),
        }
    }
}

/// What of it is not there.
fn missing(needs: &[Need]) -> Vec<Package> {
    let mut missing: Vec<Package> = Vec::new();
    for package in needs.iter().flat_map(|need| need.packages()) {
        if !is_there(&package) && !missing.iter().any(|known| known.name == package.name) {
            missing.push(package);
        }
    }
    missing
}

/// An error unless we are root, which says what else will be needed.
pub(crate) fn ensure_root(needs: &[Need]) -> anyhow::Result<()> {
    if rustix::process::geteuid().is_root() {
        return Ok(());
    }
    let missing = missing(needs);
    if missing.is_empty() {
        bail!("containers need root: run it again as root (nothing else is missing)");
    }
    bail!("containers need root: run it again as root. Then it also installs\n{}", list(&missing));
}

/// Installs what is missing.
///
/// # Errors
/// When something is missing and cannot be installed; the text says what, and how to get it.
pub(crate) fn ensure(needs: &[Need]) -> anyhow::Result<()> {
    let missing = missing(needs);
    if missing.is_empty() {
        return Ok(());
    }
    let names: Vec<&str> = missing.iter().map(|package| package.name).collect();
    if !Path::new("/usr/bin/apt-get").exists() {
        bail!("{}this machine has no apt: install what does the same", describe(&missing));
    }
    if !rustix::process::geteuid().is_root() {
        bail!("{}as root: apt-get install {}", describe(&missing), names.join(" "));
    }
    report::begin(format_args!("installing {}", names.join(", ")));
    apt(&["update"])?;
    let mut install = vec!["install", "--yes", "--no-install-recommends"];
    install.extend(&names);
    apt(&install)?;
    report::end("done");
    match missing.iter().find(|package| !is_there(package)) {
        Some(package) => bail!("{} was installed, and is still not to be found", package.name),
        None => Ok(()),
    }
}

fn describe(missing: &[Package]) -> String {
    format!("these system packages are missing:\n{}  ", list(missing))
}

fn list(packages: &[Package]) -> String {
    packages.iter().map(|package| format!("    {} ({})\n", package.name, package.why)).collect()
}

fn is_there(package: &Package) -> bool {
    package.files.iter().any(|file| Path::new(file).exists()) || is_installed(package.name)
}

fn is_installed(name: &str) -> bool {
    if name == "python3-pip" {
        // However it came.
        let pip = Command::new("python3").args(["-m", "pip", "--version"]).output();
        return pip.is_ok_and(|output| output.status.success());
    }
    let output = Command::new("dpkg-query").args(["-W", "-f=${db:Status-Status}", name]).output();
    match output {
        Ok(output) => output.stdout == b"installed",
        // No dpkg: a busybox of somebody else's has to do.
        Err(_) => name == "busybox-static" && busybox().is_some(),
    }
}

/// Busybox, wherever it is.
pub(crate) fn busybox() -> Option<&'static Path> {
    ["/usr/bin/busybox", "/bin/busybox"].into_iter().map(Path::new).find(|path| path.exists())
}

fn apt(args: &[&str]) -> anyhow::Result<()> {
    let output = Command::new("apt-get")
        .arg("--quiet=2")
        .args(args)
        .env("DEBIAN_FRONTEND", "noninteractive")
        .stdin(Stdio::null())
        .output()
        .context("cannot run apt-get")?;
    if !output.status.success() {
        report::end("failed");
        bail!(
            "apt-get {} ended with {}:\n{}",
            args.join(" "),
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
    fn what_is_missing_is_named_with_its_use() {
        let missing = [package("containerd", &[], "container runtime")];
        let text = describe(&missing);
        assert!(text.contains("containerd (container runtime)"), "{text}");
    }

    #[test]
    fn a_package_is_there_when_one_of_its_files_is() {
        assert!(is_there(&package("no-such-package-rubelet", &["/nowhere", "/proc"], "")));
        assert!(!is_there(&package("no-such-package-rubelet", &["/nowhere"], "")));
    }
}
