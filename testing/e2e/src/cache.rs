//! Where built tools and images are kept, and which of them a runtime needs.

use std::fmt;
use std::path::{Path, PathBuf};

use anyhow::Context;

/// The directory outside the checkout that keeps what is expensive to make.
#[derive(Debug, Clone)]
pub struct Cache {
    root: PathBuf,
}

impl Cache {
    /// `$RUBELET_CACHE`, else `rubelet` in the user's cache directory.
    ///
    /// # Errors
    /// When neither the variable nor a home directory is set, or the path is not absolute.
    pub fn from_environment() -> anyhow::Result<Self> {
        let root = match std::env::var_os("RUBELET_CACHE") {
            Some(root) => PathBuf::from(root),
            None => match std::env::var_os("XDG_CACHE_HOME") {
                Some(caches) => PathBuf::from(caches).join("rubelet"),
                None => PathBuf::from(
                    std::env::var_os("HOME").context("neither RUBELET_CACHE nor HOME is set")?,
                )
                .join(".cache/rubelet"),
            },
        };
        anyhow::ensure!(root.is_absolute(), "the cache {} is no absolute path", root.display());
        Ok(Self { root })
    }

    /// The cache itself.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Tools built by us: containerd, its shim, ctr, runc, crictl.
    pub fn bin(&self) -> PathBuf {
        self.root.join("bin")
    }

    /// CNI plugins built by us.
    pub fn cni(&self) -> PathBuf {
        self.root.join("cni")
    }

    /// Image archives.
    pub fn images(&self) -> PathBuf {
        self.root.join("images")
    }

    /// One directory for each runtime that runs now: state, sockets, logs.
    pub fn run(&self) -> PathBuf {
        self.root.join("run")
    }
}

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

/// Files that are not there, and how to get them.
#[derive(Debug, Clone)]
pub struct Missing {
    /// What was looked for.
    pub files: Vec<PathBuf>,
    /// What to do about it.
    pub remedy: &'static str,
}

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let files: Vec<String> = self.files.iter().map(|file| file.display().to_string()).collect();
        write!(f, "missing: {}; {}", files.join(", "), self.remedy)
    }
}

impl std::error::Error for Missing {}

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
        let cache = Cache { root: PathBuf::from("/nowhere/rubelet") };
        let missing = Tools::find(RuntimeKind::Built, &cache).expect_err("nothing is there");
        assert_eq!(missing.files.len(), 4 + 4 + 4);
        let text = missing.to_string();
        assert!(text.contains("/nowhere/rubelet/bin/containerd-shim-runc-v2"), "{text}");
        assert!(text.ends_with("run `cargo xtask setup` as root"), "{text}");
    }
}
