//! Which tools and images of the cache a runtime needs.

use std::fmt;
use std::path::{Path, PathBuf};

pub use rubelet_test_bed::{Cache, Missing};

/// Which containerd.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RuntimeKind {
    /// The one Debian packages: 1.6 or 1.7, without container events.
    Debian,
    /// A current one, built from the Go module proxy: container events, image volumes, user
    /// namespaces.
    Built,
}

impl RuntimeKind {
    /// All kinds.
    pub const ALL: [Self; 2] = [Self::Debian, Self::Built];

    /// The name that commands and reports use.
    pub fn name(self) -> &'static str {
        match self {
            Self::Debian => "debian",
            Self::Built => "built",
        }
    }
}

impl fmt::Display for RuntimeKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The executables of one runtime.
#[derive(Debug, Clone)]
pub struct Tools {
    /// Which runtime they are.
    pub kind: RuntimeKind,
    /// The daemon.
    pub containerd: PathBuf,
    /// Its command-line client, of the same version.
    pub ctr: PathBuf,
    /// The low-level runtime.
    pub runc: PathBuf,
    /// The directory with the CNI plugins.
    pub cni_plugins: PathBuf,
    /// The image archives to import.
    pub images: Vec<PathBuf>,
}

impl Tools {
    /// Finds everything that a runtime of `kind` needs.
    ///
    /// # Errors
    /// [`Missing`], with all that is missing at once.
    pub fn find(kind: RuntimeKind, cache: &Cache) -> Result<Self, Missing> {
        let (bin, cni_plugins) = match kind {
            RuntimeKind::Debian => (None, PathBuf::from("/usr/lib/cni")),
            RuntimeKind::Built => (Some(cache.bin()), cache.cni()),
        };
        let mut missing = Vec::new();
        let mut executable = |name: &str| {
            let found = match &bin {
                Some(bin) => Some(bin.join(name)).filter(|path| path.is_file()),
                None => find_in_system(name),
            };
            found.unwrap_or_else(|| {
                let wanted = bin.as_deref().unwrap_or(Path::new("/usr/bin")).join(name);
                missing.push(wanted.clone());
                wanted
            })
        };
        let containerd = executable("containerd");
        let ctr = executable("ctr");
        let runc = executable("runc");
        executable("containerd-shim-runc-v2");
        let images: Vec<PathBuf> = ["pause", "busybox", "nonroot", "probe-target"]
            .iter()
            .map(|name| cache.images().join(name).with_extension("tar"))
            .collect();
        missing.extend(
            ["bridge", "host-local", "portmap", "loopback"]
                .iter()
                .map(|plugin| cni_plugins.join(plugin))
                .chain(images.iter().cloned())
                .filter(|path| !path.is_file()),
        );
        if missing.is_empty() {
            Ok(Self { kind, containerd, ctr, runc, cni_plugins, images })
        } else {
            Err(Missing { files: missing, remedy: "run `cargo xtask setup` as root" })
        }
    }
}

/// The Go kubelet of the version that ours stands in for, to compare and to change places with.
///
/// # Errors
/// [`Missing`], or there is no place for a cache.
pub fn find_go_kubelet() -> anyhow::Result<PathBuf> {
    let path = Cache::from_environment()?.bin().join("kubelet-go");
    if path.is_file() {
        return Ok(path);
    }
    Err(Missing { files: vec![path], remedy: "run `cargo xtask setup peer`" }.into())
}

/// Debian's directories for executables: `PATH` may name something else first.
fn find_in_system(name: &str) -> Option<PathBuf> {
    ["/usr/bin", "/usr/sbin", "/bin", "/sbin"]
        .iter()
        .map(|dir| Path::new(dir).join(name))
        .find(|path| path.is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_that_is_missing_is_said_at_once() {
        let cache = Cache::at(PathBuf::from("/nowhere/rubelet")).expect("absolute");
        let missing = Tools::find(RuntimeKind::Built, &cache).expect_err("nothing is there");
        assert_eq!(missing.files.len(), 4 + 4 + 4);
        let text = missing.to_string();
        assert!(text.contains("/nowhere/rubelet/bin/containerd-shim-runc-v2"), "{text}");
        assert!(text.ends_with("run `cargo xtask setup` as root"), "{text}");
    }
}
