use std::path::{Path, PathBuf};

use crate::{PodRef, PodUid};

/// A name from outside that must not become a path element: empty, `.`, `..`, or with `/` or NUL.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} cannot be used as a path element")]
pub struct UnsafePathElement(pub String);

/// Where everything of the kubelet lives on this node: `--root-dir`, `podLogsDir` and the legacy
/// container log directory. The layout is contract (upstream documentation "Local Files And Paths
/// Used By The Kubelet").
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodePaths {
    root: PathBuf,
    pod_logs: PathBuf,
    container_logs: PathBuf,
}

impl NodePaths {
    /// `root` is `--root-dir`, `pod_logs` is `podLogsDir`, `container_logs` usually
    /// `/var/log/containers`.
    pub fn new(
        root: impl Into<PathBuf>,
        pod_logs: impl Into<PathBuf>,
        container_logs: impl Into<PathBuf>,
    ) -> Self {
        Self { root: root.into(), pod_logs: pod_logs.into(), container_logs: container_logs.into() }
    }

    /// The root directory.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// `podLogsDir`.
    pub fn pod_logs(&self) -> &Path {
        &self.pod_logs
    }

    /// Directory of the legacy log symlinks.
    pub fn container_logs(&self) -> &Path {
        &self.container_logs
    }

    /// `<root>/pods`.
    pub fn pods_dir(&self) -> PathBuf {
        self.root.join("pods")
    }

    /// `<root>/pods/<uid>`.
    pub fn pod_dir(&self, uid: &PodUid) -> PathBuf {
        self.pods_dir().join(uid.as_str())
    }

    /// `<root>/pods/<uid>/volumes`.
    pub fn pod_volumes_dir(&self, uid: &PodUid) -> PathBuf {
        self.pod_dir(uid).join("volumes")
    }

    /// `<root>/pods/<uid>/volumes/<plugin with ~>/<volume>`; `plugin` as in `kubernetes.io/empty-dir`.
    pub fn pod_volume_dir(&self, uid: &PodUid, plugin: &str, volume: &str) -> PathBuf {
        self.pod_volumes_dir(uid).join(plugin.replace('/', "~")).join(volume)
    }

    /// `<root>/pods/<uid>/volumeDevices/<plugin with ~>/<volume>`.
    pub fn pod_device(&self, uid: &PodUid, plugin: &str, volume: &str) -> PathBuf {
        self.pod_dir(uid).join("volumeDevices").join(plugin.replace('/', "~")).join(volume)
    }

    /// `<root>/pods/<uid>/volume-subpaths`.
    pub fn pod_subpaths_dir(&self, uid: &PodUid) -> PathBuf {
        self.pod_dir(uid).join("volume-subpaths")
    }

    /// `<root>/pods/<uid>/plugins`.
    pub fn pod_plugins_dir(&self, uid: &PodUid) -> PathBuf {
        self.pod_dir(uid).join("plugins")
    }

    /// `<root>/pods/<uid>/containers/<container>`.
    pub fn container_dir(&self, uid: &PodUid, container: &str) -> PathBuf {
        self.pod_dir(uid).join("containers").join(container)
    }

    /// `<root>/pods/<uid>/etc-hosts`.
    pub fn etc_hosts(&self, uid: &PodUid) -> PathBuf {
        self.pod_dir(uid).join("etc-hosts")
    }

    /// `<root>/pod_statuses`: the last published statuses of pods without an API server behind
    /// them. Our own addition to the layout; a Go kubelet does not look there.
    pub fn pod_statuses_dir(&self) -> PathBuf {
        self.root.join("pod_statuses")
    }

    /// `<root>/seccomp`.
    pub fn seccomp_dir(&self) -> PathBuf {
        self.root.join("seccomp")
    }

    /// `<podLogsDir>/<namespace>_<name>_<uid>`.
    pub fn pod_log_dir(&self, pod: &PodRef) -> PathBuf {
        self.pod_logs.join(format!("{}_{}_{}", pod.namespace, pod.name, pod.uid))
    }

    /// `<podLogsDir>/<namespace>_<name>_<uid>/<container>`.
    pub fn container_log_dir(&self, pod: &PodRef, container: &str) -> PathBuf {
        self.pod_log_dir(pod).join(container)
    }

    /// Checks a name from outside before it becomes part of a path.
    ///
    /// # Errors
    /// When the name is empty, `.`, `..`, or contains `/` or NUL.
    pub fn check_element(name: &str) -> Result<(), UnsafePathElement> {
        if name.is_empty() || name == "." || name == ".." || name.contains(['/', '\0']) {
            return Err(UnsafePathElement(name.to_owned()));
        }
        Ok(())
    }
}
