use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use futures_util::future::BoxFuture;
use k8s_openapi::api::core::v1::{
    ConfigMap, NodeSelector, PersistentVolume, PersistentVolumeClaim, Pod, Secret,
};
use rubelet_types::Fetched;
use rubelet_volume_plan::{TokenOutcome, TokenSpec, TrustBundleSpec};

/// One entry of the mount table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MountPoint {
    /// Where it is mounted: an absolute path without links.
    pub path: PathBuf,
    /// Type of its file system, such as `tmpfs`.
    pub fs_type: String,
    /// Page size in bytes of a hugetlbfs.
    pub page_size_bytes: Option<u64>,
    /// Nobody can write through it.
    pub read_only: bool,
}

/// What the volume manager needs from the kernel's mounts. All calls block.
pub trait MountPort: fmt::Debug + Send + Sync + 'static {
    /// All mounts at or beneath `directory`, which must be free of links, in the order in which they
    /// were made: of two at the same path, the later one hides the earlier.
    ///
    /// # Errors
    /// When the mount table cannot be read in full: a part of it proves nothing.
    fn mounts_beneath(&self, directory: &Path) -> io::Result<Vec<MountPoint>>;

    /// What is mounted at `directory` itself, the last of several. It is asked itself, which must not
    /// be done to what may not answer, and is cheap: the mount table has lines for all pods.
    ///
    /// # Errors
    /// When it cannot be found out.
    fn mounted_at(&self, directory: &Path) -> io::Result<Option<MountPoint>> {
        let mounts = self.mounts_beneath(directory)?;
        Ok(mounts.into_iter().rfind(|mount| mount.path == directory))
    }

    /// Mounts a tmpfs on a directory, kept from swap where the kernel can. Without a size the
    /// kernel's default holds.
    ///
    /// # Errors
    /// What the kernel says.
    fn mount_tmpfs(&self, target: &Path, size_bytes: Option<u64>) -> io::Result<()>;

    /// Mounts a hugetlbfs on a directory.
    ///
    /// # Errors
    /// What the kernel says.
    fn mount_huge_pages(&self, target: &Path, page_size_bytes: u64) -> io::Result<()>;

    /// Makes the directory `source` appear at the directory `target`. If it is there already, only what
    /// is missing of `read_only` is done.
    ///
    /// # Errors
    /// What the kernel says.
    fn bind(&self, source: &Path, target: &Path, read_only: bool) -> io::Result<()>;

    /// Mounts a file system that has a helper of its own, such as NFS.
    ///
    /// # Errors
    /// What the helper says, or that it is missing.
    fn mount_file_system(
        &self,
        source: &str,
        target: &Path,
        fs_type: &str,
        options: &[String],
    ) -> io::Result<()>;

    /// Mounts a device of the node, formatted with `fs_type` if there is nothing on it.
    ///
    /// # Errors
    /// What the programs of the file system say, or that one of them is missing.
    fn format_and_mount(
        &self,
        device: &Path,
        target: &Path,
        fs_type: &str,
        options: &[String],
    ) -> io::Result<()>;

    /// Detaches all loop devices that show what is at `backing`: another kubelet holds devices so.
    ///
    /// # Errors
    /// When they cannot be found, or one of them stays.
    fn detach_loop_devices(&self, backing: &Path) -> io::Result<()>;

    /// Where the directory `path` is mounted beside its own place.
    ///
    /// # Errors
    /// When the mount table cannot be read, or `path` is not there.
    fn other_mounts_of(&self, path: &Path) -> io::Result<Vec<PathBuf>>;

    /// Makes `sub_path` of the volume at `volume` appear at `target` beneath `pod_directory`; what is
    /// missing of `sub_path` is made with the mode of the volume. Links in the volume are followed
    /// within it and never out of it, whoever swaps them meanwhile. What is bound at `target`
    /// already stays if it is the same, and is replaced otherwise.
    ///
    /// # Errors
    /// When the sub-path leads out of the volume, or what the kernel says.
    fn prepare_sub_path(
        &self,
        volume: &Path,
        sub_path: &Path,
        pod_directory: &Path,
        target: &Path,
    ) -> io::Result<()>;

    /// Unmounts the topmost mount at `target`. Never lazily: success means that nobody uses it.
    ///
    /// # Errors
    /// What the kernel says; a busy mount stays.
    fn unmount(&self, target: &Path) -> io::Result<()>;

    /// Deletes `path` with everything in it. Links are deleted, not followed, and a mount
    /// point anywhere beneath makes it fail without anything behind it being touched.
    ///
    /// # Errors
    /// What the kernel says, or that a mount stands in the way. What is gone is success.
    fn remove_tree(&self, path: &Path) -> io::Result<()>;

    /// Deletes `path` if there is nothing in it but directories and empty files; mounts stop it
    /// alike.
    ///
    /// # Errors
    /// What the kernel says, or that there is content. What is gone is success.
    fn remove_empty_tree(&self, path: &Path) -> io::Result<()>;
}

/// What the volume manager needs from the API server. An answer that is late is as good as none, so
/// each should come within seconds.
pub trait ContentPort: fmt::Debug + Send + Sync + 'static {
    /// The ConfigMap `name` of `namespace`, not older than the pod that asks for it.
    fn config_map<'a>(
        &'a self,
        namespace: &'a str,
        name: &'a str,
    ) -> BoxFuture<'a, Fetched<Arc<ConfigMap>>>;

    /// The Secret `name` of `namespace`, not older than the pod that asks for it.
    fn secret<'a>(
        &'a self,
        namespace: &'a str,
        name: &'a str,
    ) -> BoxFuture<'a, Fetched<Arc<Secret>>>;

    /// A token of the pod's service account that is bound to the pod. It is asked for again and
    /// again, and should be the same until it has to be renewed.
    fn token<'a>(&'a self, pod: &'a Pod, token: &'a TokenSpec) -> BoxFuture<'a, TokenOutcome>;

    /// The bundles that are meant, as they are in the cluster; not found if there is none.
    fn trust_bundles<'a>(
        &'a self,
        bundle: &'a TrustBundleSpec,
    ) -> BoxFuture<'a, Fetched<Vec<String>>>;
}

/// What the volume manager needs from the API server to find the volumes behind claims.
pub trait ClaimPort: fmt::Debug + Send + Sync + 'static {
    /// The claim `name` of `namespace` as it is now.
    fn claim<'a>(
        &'a self,
        namespace: &'a str,
        name: &'a str,
    ) -> BoxFuture<'a, Fetched<Arc<PersistentVolumeClaim>>>;

    /// The persistent volume `name` as it is now.
    fn volume<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Fetched<Arc<PersistentVolume>>>;

    /// Whether a volume that is only for these nodes may be used on this one. What is not known of the
    /// node is no reason against it: the scheduler has looked before.
    fn is_this_node(&self, selector: &NodeSelector) -> bool;
}
