use std::collections::BTreeSet;
use std::io;
use std::path::{Component, Path, PathBuf};

use rubelet_node_resources::{CgroupValues, PageSize};

use super::processes::{self, KillReport};
use super::{v1, v2};
use crate::host::write_existing;
use crate::mount::{MountTable, MountTableError};
use crate::{Host, HostError};

/// An operation on cgroups failed.
#[derive(Debug, thiserror::Error)]
pub enum CgroupError {
    /// No cgroup file system is mounted.
    #[error("no cgroup file system is mounted")]
    NotMounted,
    /// A cgroup path or file name that leads elsewhere.
    #[error("{0:?} is not the name of a cgroup or of a file in it")]
    InvalidName(String),
    /// The directory cannot be created. `no space left on device` means that the kernel's own number
    /// of cgroups is used up.
    #[error("cannot create cgroup {path}")]
    Create {
        /// The directory.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// A file cannot be read.
    #[error("cannot read {path}")]
    Read {
        /// The file or directory.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// The kernel refuses a value.
    #[error("cannot write {value:?} to {path}")]
    Write {
        /// The file.
        path: PathBuf,
        /// The value.
        value: String,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// It still has processes: end them and try again.
    #[error("cgroup {path} is busy")]
    Busy {
        /// The directory.
        path: PathBuf,
    },
    /// The directory cannot be removed.
    #[error("cannot remove cgroup {path}")]
    Remove {
        /// The directory.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// A process cannot be signalled.
    #[error("cannot kill process {pid} of cgroup {cgroup}")]
    Kill {
        /// The process.
        pid: u32,
        /// Path of the cgroup.
        cgroup: String,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// What is mounted cannot be told.
    #[error(transparent)]
    Mounts(#[from] MountTableError),
    /// The machine's huge page sizes cannot be told.
    #[error(transparent)]
    Host(#[from] HostError),
}

/// Which version of cgroups the node uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CgroupMode {
    /// One hierarchy per controller.
    V1,
    /// Like [`Self::V1`], with a hierarchy of version 2 without controllers beside them.
    Hybrid,
    /// One hierarchy.
    V2,
}

/// The cgroup file system. Paths are those beneath the root of the hierarchies, such as
/// `/kubepods/burstable`. It keeps no state: every call looks at the kernel's.
#[derive(Clone, Debug)]
pub struct CgroupFs {
    layout: Layout,
    page_sizes: Vec<PageSize>,
}

#[derive(Clone, Debug)]
enum Layout {
    V1 { hierarchies: Vec<v1::Hierarchy>, unified: Option<PathBuf> },
    V2 { root: PathBuf },
}

impl CgroupFs {
    /// Finds the hierarchies in the mount table of `host`.
    ///
    /// # Errors
    /// When none is mounted, or `host` cannot be read.
    pub fn detect(host: &Host) -> Result<Self, CgroupError> {
        let table = MountTable::read_from(&host.path("/proc/self/mountinfo"))?;
        let place = |path: &Path| host.root().join(path.strip_prefix("/").unwrap_or(path));
        let unified = table
            .mounts()
            .iter()
            .find(|mount| mount.file_system == "cgroup2")
            .map(|mount| place(&mount.mount_point));
        let mut hierarchies: Vec<v1::Hierarchy> = Vec::new();
        for mount in table.mounts().iter().filter(|mount| mount.file_system == "cgroup") {
            let controllers = v1::controllers_of(&mount.super_options);
            // The same hierarchy may be mounted again elsewhere.
            if !hierarchies.iter().any(|known| known.controllers == controllers) {
                hierarchies.push(v1::Hierarchy { controllers, root: place(&mount.mount_point) });
            }
        }
        let layout = match (hierarchies.is_empty(), unified) {
            (false, unified) => Layout::V1 { hierarchies, unified },
            (true, Some(root)) => Layout::V2 { root },
            (true, None) => return Err(CgroupError::NotMounted),
        };
        let page_sizes = host.huge_pages()?.iter().map(|pool| PageSize(pool.page_size)).collect();
        Ok(Self { layout, page_sizes })
    }

    /// Which version the node uses.
    pub fn mode(&self) -> CgroupMode {
        match &self.layout {
            Layout::V1 { unified: None, .. } => CgroupMode::V1,
            Layout::V1 { unified: Some(_), .. } => CgroupMode::Hybrid,
            Layout::V2 { .. } => CgroupMode::V2,
        }
    }

    /// The node uses version 2 for its controllers.
    pub fn is_v2(&self) -> bool {
        self.mode() == CgroupMode::V2
    }

    /// Huge page sizes of the machine.
    pub fn page_sizes(&self) -> &[PageSize] {
        &self.page_sizes
    }

    /// Controllers that can be used.
    ///
    /// # Errors
    /// When the root of the hierarchy cannot be read.
    pub fn controllers(&self) -> Result<BTreeSet<String>, CgroupError> {
        match &self.layout {
            Layout::V1 { hierarchies, .. } => {
                Ok(hierarchies.iter().flat_map(|h| h.controllers.iter().cloned()).collect())
            }
            Layout::V2 { root } => v2::controllers(root),
        }
    }

    /// The kernel accounts swap per cgroup. `own_cgroup` is the cgroup of some process: the root of
    /// the hierarchy has no such file.
    pub fn swap_accounting(&self, own_cgroup: &str) -> bool {
        match &self.layout {
            Layout::V1 { hierarchies, .. } => hierarchies
                .iter()
                .filter(|hierarchy| hierarchy.controls("memory"))
                .any(|hierarchy| hierarchy.root.join("memory.memsw.limit_in_bytes").exists()),
            Layout::V2 { root } => {
                directory(root, own_cgroup).is_ok_and(|d| d.join("memory.swap.max").exists())
            }
        }
    }

    /// The cgroup exists, in every hierarchy that matters to Kubernetes and with every controller
    /// that it needs.
    ///
    /// # Errors
    /// When the path leads elsewhere or the hierarchy cannot be read.
    pub fn exists(&self, path: &str) -> Result<bool, CgroupError> {
        match &self.layout {
            Layout::V1 { hierarchies, .. } => {
                for hierarchy in hierarchies.iter().filter(|h| h.matters()) {
                    if !directory(&hierarchy.root, path)?.is_dir() {
                        return Ok(false);
                    }
                }
                Ok(true)
            }
            Layout::V2 { root } => v2::exists(root, &directory(root, path)?),
        }
    }

    /// Some part of the cgroup exists, in whatever hierarchy.
    ///
    /// # Errors
    /// When the path leads elsewhere.
    pub fn exists_partly(&self, path: &str) -> Result<bool, CgroupError> {
        Ok(self.directories(path)?.iter().any(|directory| directory.is_dir()))
    }

    /// Makes sure that the cgroup and those above it exist, in every hierarchy and with every
    /// controller that the kernel offers.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn ensure(&self, path: &str) -> Result<(), CgroupError> {
        match &self.layout {
            Layout::V1 { hierarchies, .. } => {
                for hierarchy in hierarchies {
                    v1::ensure(hierarchy, &elements(path)?)?;
                }
                Ok(())
            }
            Layout::V2 { root } => v2::ensure(root, &elements(path)?),
        }
    }

    /// Writes `values` to an existing cgroup.
    ///
    /// # Errors
    /// When the kernel refuses a value; those before it are in force.
    pub fn apply(&self, path: &str, values: &CgroupValues) -> Result<(), CgroupError> {
        match &self.layout {
            Layout::V1 { hierarchies, .. } => {
                for hierarchy in hierarchies {
                    let directory = directory(&hierarchy.root, path)?;
                    v1::apply(hierarchy, &directory, values, &self.page_sizes)?;
                }
                Ok(())
            }
            Layout::V2 { root } => {
                v2::apply(root, &directory(root, path)?, values, &self.page_sizes)
            }
        }
    }

    /// Removes the cgroup with all its children from every hierarchy; what is not there is removed
    /// already. Can block while the kernel gives memory back.
    ///
    /// # Errors
    /// [`CgroupError::Busy`] when processes are left; whatever could be removed is gone.
    pub fn destroy(&self, path: &str) -> Result<(), CgroupError> {
        let mut first_error = Ok(());
        if elements(path)?.is_empty() {
            return Err(CgroupError::InvalidName(path.to_owned()));
        }
        for directory in self.directories(path)? {
            let result = remove_directory(&directory);
            if first_error.is_ok() {
                first_error = result;
            }
        }
        first_error
    }

    /// Names of the cgroups directly below this one, in any hierarchy.
    ///
    /// # Errors
    /// When a directory cannot be read.
    pub fn children(&self, path: &str) -> Result<BTreeSet<String>, CgroupError> {
        let mut names = BTreeSet::new();
        for directory in self.directories(path)? {
            for child in child_directories(&directory)? {
                if let Some(name) = child.file_name().and_then(|name| name.to_str()) {
                    names.insert(name.to_owned());
                }
            }
        }
        Ok(names)
    }

    /// Ids of all processes in the cgroup and below, in any hierarchy.
    ///
    /// # Errors
    /// When a directory cannot be read.
    pub fn processes(&self, path: &str) -> Result<BTreeSet<u32>, CgroupError> {
        processes::list(&self.directories(path)?)
    }

    /// Kills every process in the cgroup and below. They end after this returns.
    ///
    /// # Errors
    /// When a process cannot be signalled although it is still there.
    pub fn kill(&self, path: &str) -> Result<KillReport, CgroupError> {
        let elements = elements(path)?;
        if elements.is_empty() {
            return Err(CgroupError::InvalidName(path.to_owned()));
        }
        let directories = self.directories(path)?;
        let report = processes::kill(&directories, path)?;
        if let Layout::V1 { hierarchies, .. } = &self.layout
            && report.killed > 0
        {
            // A frozen process of version 1 ends only once it is thawed.
            for hierarchy in hierarchies.iter().filter(|h| h.controls("freezer")) {
                v1::thaw(&directory(&hierarchy.root, path)?);
            }
        }
        Ok(report)
    }

    /// Moves a process into an existing cgroup, in every hierarchy.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn add_process(&self, path: &str, pid: u32) -> Result<(), CgroupError> {
        let roots: Vec<&PathBuf> = match &self.layout {
            Layout::V1 { hierarchies, .. } => hierarchies.iter().map(|h| &h.root).collect(),
            Layout::V2 { root } => vec![root],
        };
        for root in roots {
            write(&directory(root, path)?, "cgroup.procs", &pid.to_string())?;
        }
        Ok(())
    }

    /// Memory in use by the cgroup, bytes.
    ///
    /// # Errors
    /// When it does not exist or has no memory controller.
    pub fn memory_usage(&self, path: &str) -> Result<u64, CgroupError> {
        let file = match &self.layout {
            Layout::V1 { hierarchies, .. } => {
                let memory = hierarchies.iter().find(|hierarchy| hierarchy.controls("memory"));
                let root = &memory.ok_or(CgroupError::NotMounted)?.root;
                directory(root, path)?.join("memory.usage_in_bytes")
            }
            Layout::V2 { root } => directory(root, path)?.join("memory.current"),
        };
        let content = read(&file)?;
        content.trim().parse().map_err(|error| CgroupError::Read {
            path: file,
            source: io::Error::new(io::ErrorKind::InvalidData, error),
        })
    }

    /// The cgroup's directories in all hierarchies, existing or not.
    fn directories(&self, path: &str) -> Result<Vec<PathBuf>, CgroupError> {
        match &self.layout {
            Layout::V1 { hierarchies, unified } => hierarchies
                .iter()
                .map(|hierarchy| &hierarchy.root)
                .chain(unified)
                .map(|root| directory(root, path))
                .collect(),
            Layout::V2 { root } => Ok(vec![directory(root, path)?]),
        }
    }
}

/// The elements of a cgroup path.
fn elements(path: &str) -> Result<Vec<&str>, CgroupError> {
    let invalid = || CgroupError::InvalidName(path.to_owned());
    Path::new(path)
        .components()
        .filter(|component| *component != Component::RootDir)
        .map(|component| match component {
            Component::Normal(name) => name.to_str().ok_or_else(invalid),
            _ => Err(invalid()),
        })
        .collect()
}

fn directory(root: &Path, path: &str) -> Result<PathBuf, CgroupError> {
    Ok(elements(path)?.iter().fold(root.to_owned(), |directory, element| directory.join(element)))
}

/// Directories directly in `directory`; none when it does not exist.
pub(super) fn child_directories(directory: &Path) -> Result<Vec<PathBuf>, CgroupError> {
    let error = |source| CgroupError::Read { path: directory.to_owned(), source };
    let entries = match std::fs::read_dir(directory) {
        Ok(entries) => entries,
        Err(source) if is_gone(&source) => return Ok(Vec::new()),
        Err(source) => return Err(error(source)),
    };
    let mut children = Vec::new();
    for entry in entries {
        let entry = match entry {
            Ok(entry) => entry,
            Err(source) if is_gone(&source) => continue,
            Err(source) => return Err(error(source)),
        };
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            children.push(entry.path());
        }
    }
    Ok(children)
}

/// The cgroup was removed, before or while it was looked at.
pub(super) fn is_gone(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound
        || error.raw_os_error() == Some(rustix::io::Errno::NODEV.raw_os_error())
}

fn remove_directory(directory: &Path) -> Result<(), CgroupError> {
    for child in child_directories(directory)? {
        remove_directory(&child)?;
    }
    match std::fs::remove_dir(directory) {
        Ok(()) => Ok(()),
        Err(error) if is_gone(&error) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::ResourceBusy => {
            Err(CgroupError::Busy { path: directory.to_owned() })
        }
        Err(source) => Err(CgroupError::Remove { path: directory.to_owned(), source }),
    }
}

pub(super) fn create_directory(path: &Path) -> Result<(), CgroupError> {
    match std::fs::create_dir(path) {
        Ok(()) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        Err(source) => Err(CgroupError::Create { path: path.to_owned(), source }),
    }
}

pub(super) fn read(path: &Path) -> Result<String, CgroupError> {
    std::fs::read_to_string(path)
        .map_err(|source| CgroupError::Read { path: path.to_owned(), source })
}

pub(super) fn write(directory: &Path, file: &str, value: &str) -> Result<(), CgroupError> {
    let path = directory.join(file);
    write_existing(&path, value).map_err(|source| CgroupError::Write {
        path,
        value: value.to_owned(),
        source,
    })
}

/// Limits of all huge page sizes of the machine: those that `values` names, and 0 for the others.
pub(super) fn hugepage_limits(values: &CgroupValues, sizes: &[PageSize]) -> Vec<(PageSize, u64)> {
    let Some(limits) = &values.hugepage_limits else { return Vec::new() };
    sizes.iter().map(|size| (*size, limits.get(size).copied().unwrap_or(0))).collect()
}

/// As `pids.max` has it: none below zero, and at least one, since systemd knows no zero.
pub(super) fn pids_max(limit: i64) -> String {
    if limit < 0 { "max".to_owned() } else { limit.max(1).to_string() }
}
