//! Cgroups by their names, under either driver.

use std::collections::BTreeSet;
use std::sync::Arc;

use rubelet_linux::cgroup::{CgroupError, CgroupFs, SystemdError, SystemdUnits};
use rubelet_node_resources::{CgroupName, CgroupValues};

use crate::metrics::CgroupMetrics;

/// Who makes cgroups (`cgroupDriver`, or what the runtime says).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CgroupDriver {
    /// The kubelet itself.
    Cgroupfs,
    /// systemd, as slices.
    Systemd,
}

/// A cgroup could not be read or changed.
#[derive(Debug, thiserror::Error)]
pub enum TreeError {
    /// The cgroup file system's error.
    #[error(transparent)]
    FileSystem(#[from] CgroupError),
    /// systemd's error.
    #[error(transparent)]
    Systemd(#[from] SystemdError),
    /// The work was thrown away because the runtime shuts down.
    #[error("the work on cgroup {0} was cancelled")]
    Cancelled(String),
}

/// The cgroup tree of the machine. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct CgroupTree {
    file_system: Arc<CgroupFs>,
    systemd: Option<Arc<SystemdUnits>>,
    metrics: Arc<CgroupMetrics>,
}

impl CgroupTree {
    pub(crate) fn new(
        file_system: CgroupFs,
        driver: CgroupDriver,
        metrics: Arc<CgroupMetrics>,
    ) -> Self {
        let systemd = match driver {
            CgroupDriver::Cgroupfs => None,
            CgroupDriver::Systemd => Some(Arc::new(SystemdUnits::new(file_system.is_v2()))),
        };
        Self { file_system: Arc::new(file_system), systemd, metrics }
    }

    pub(crate) fn file_system(&self) -> &CgroupFs {
        &self.file_system
    }

    pub(crate) fn uses_systemd(&self) -> bool {
        self.systemd.is_some()
    }

    /// The cgroup's path in the file system.
    pub(crate) fn path(&self, name: &CgroupName) -> String {
        if self.uses_systemd() { name.to_slice_path() } else { name.to_cgroupfs() }
    }

    /// How the runtime is told to put something into the cgroup.
    pub(crate) fn cgroup_parent(&self, name: &CgroupName) -> String {
        if self.uses_systemd() { name.to_slice() } else { name.to_cgroupfs() }
    }

    /// The name behind a path in the file system, or behind a directory's name.
    pub(crate) fn name_of(&self, path: &str) -> CgroupName {
        if self.uses_systemd() {
            CgroupName::from_slice(path)
        } else {
            CgroupName::from_cgroupfs(path)
        }
    }

    pub(crate) async fn exists(&self, name: &CgroupName) -> Result<bool, TreeError> {
        self.blocking(name, |file_system, path| file_system.exists(path)).await
    }

    pub(crate) async fn exists_partly(&self, name: &CgroupName) -> Result<bool, TreeError> {
        self.blocking(name, |file_system, path| file_system.exists_partly(path)).await
    }

    /// Makes sure that the cgroup exists and gives it these values.
    pub(crate) async fn ensure(
        &self,
        name: &CgroupName,
        values: &CgroupValues,
    ) -> Result<(), TreeError> {
        let work = async {
            let values = match &self.systemd {
                Some(systemd) => {
                    systemd.ensure_slice(&name.to_slice(), values).await?;
                    SystemdUnits::representable(values)
                }
                None => values.clone(),
            };
            // systemd makes only what it knows: not every hierarchy, nor every controller.
            self.blocking(name, move |file_system, path| {
                file_system.ensure(path)?;
                file_system.apply(path, &values)
            })
            .await
        };
        self.metrics.time("create", work).await
    }

    /// Gives the existing cgroup these values.
    pub(crate) async fn update(
        &self,
        name: &CgroupName,
        values: &CgroupValues,
    ) -> Result<(), TreeError> {
        let work = async {
            let values = match &self.systemd {
                Some(systemd) => {
                    systemd.set_values(&name.to_slice(), values).await?;
                    SystemdUnits::representable(values)
                }
                None => values.clone(),
            };
            self.blocking(name, move |file_system, path| file_system.apply(path, &values)).await
        };
        self.metrics.time("update", work).await
    }

    /// Kills what runs in the cgroup; returns how many processes were seen.
    pub(crate) async fn kill(&self, name: &CgroupName) -> Result<usize, TreeError> {
        self.blocking(name, |file_system, path| Ok(file_system.kill(path)?.killed)).await
    }

    /// Removes the cgroup. Fails with [`CgroupError::Busy`] while processes are left.
    pub(crate) async fn destroy(&self, name: &CgroupName) -> Result<(), TreeError> {
        let work = async {
            let stopped = match &self.systemd {
                Some(systemd) => systemd.stop(&name.to_slice()).await,
                None => Ok(()),
            };
            // Also when systemd fails: what it does not know of is ours to remove.
            self.blocking(name, |file_system, path| file_system.destroy(path)).await?;
            Ok(stopped?)
        };
        self.metrics.time("destroy", work).await
    }

    /// Names of the directories directly below.
    pub(crate) async fn children(&self, name: &CgroupName) -> Result<BTreeSet<String>, TreeError> {
        self.blocking(name, |file_system, path| file_system.children(path)).await
    }

    pub(crate) async fn memory_usage(&self, name: &CgroupName) -> Result<u64, TreeError> {
        self.blocking(name, |file_system, path| file_system.memory_usage(path)).await
    }

    /// Runs `work` where it may block: the kernel takes a lock of the whole cgroup tree for most of
    /// it, and removal waits for memory to be given back.
    async fn blocking<T: Send + 'static>(
        &self,
        name: &CgroupName,
        work: impl FnOnce(&CgroupFs, &str) -> Result<T, CgroupError> + Send + 'static,
    ) -> Result<T, TreeError> {
        let (file_system, path) = (Arc::clone(&self.file_system), self.path(name));
        let result = tokio::task::spawn_blocking(move || work(&file_system, &path)).await;
        match result {
            Ok(result) => Ok(result?),
            Err(error) => match error.try_into_panic() {
                Ok(panic) => std::panic::resume_unwind(panic),
                Err(_cancelled) => Err(TreeError::Cancelled(name.to_string())),
            },
        }
    }
}
