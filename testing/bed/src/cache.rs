//! Where built tools and images are kept.

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
        Self::at(root)
    }

    /// A cache at a place of its own.
    ///
    /// # Errors
    /// When the path is not absolute.
    pub fn at(root: PathBuf) -> anyhow::Result<Self> {
        anyhow::ensure!(root.is_absolute(), "the cache {} is no absolute path", root.display());
        Ok(Self { root })
    }

    /// The cache itself.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Tools built by us: containerd, its shim, ctr, runc, crictl, the control plane, kubectl.
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

    /// One directory for each runtime or control plane that runs now: state, sockets, logs.
    pub fn run(&self) -> PathBuf {
        self.root.join("run")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cache_is_where_it_is_whatever_the_working_directory() {
        assert!(Cache::at(PathBuf::from("cache")).is_err());
        let cache = Cache::at(PathBuf::from("/var/cache/rubelet")).expect("absolute");
        assert_eq!(cache.bin(), Path::new("/var/cache/rubelet/bin"));
    }
}
