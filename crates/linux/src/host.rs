use std::io;
use std::path::{Path, PathBuf};

use rubelet_types::CpuSet;

/// A fact about the machine could not be read.
#[derive(Debug, thiserror::Error)]
pub enum HostError {
    /// A file of procfs, sysfs or `/etc` cannot be read.
    #[error("cannot read {path}")]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// A file cannot be written.
    #[error("cannot write {value:?} to {path}")]
    Write {
        /// The file.
        path: PathBuf,
        /// What was to be written.
        value: String,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// A file has an unknown form.
    #[error("{path} does not have the expected form")]
    Malformed {
        /// The file.
        path: PathBuf,
    },
    /// A name that is no sysctl.
    #[error("{0:?} is not the name of a sysctl")]
    InvalidSysctl(String),
}

/// The kernel's version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelVersion {
    /// As `uname -r` shows it.
    pub release: String,
    /// First number.
    pub major: u32,
    /// Second number.
    pub minor: u32,
}

/// Huge pages of one size that are set aside.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct HugePagePool {
    /// Bytes of a page.
    pub page_size: u64,
    /// How many pages there are.
    pub pages: u64,
}

/// A swap area in use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Swap {
    /// Device or file.
    pub path: String,
    /// Bytes.
    pub size: u64,
}

/// Facts about the machine from procfs, sysfs and `/etc` beneath a root directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Host {
    root: PathBuf,
}

impl Host {
    /// The machine itself.
    pub fn system() -> Self {
        Self::at("/")
    }

    /// A machine whose files lie beneath `root`.
    pub fn at(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }

    /// Where the absolute `path` of the machine lies.
    pub fn path(&self, path: &str) -> PathBuf {
        self.root.join(path.trim_start_matches('/'))
    }

    /// The root directory.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Memory in bytes.
    ///
    /// # Errors
    /// When `/proc/meminfo` cannot be read.
    pub fn memory_bytes(&self) -> Result<u64, HostError> {
        self.meminfo("MemTotal")
    }

    /// Swap in bytes, used or not.
    ///
    /// # Errors
    /// When `/proc/meminfo` cannot be read.
    pub fn swap_bytes(&self) -> Result<u64, HostError> {
        self.meminfo("SwapTotal")
    }

    fn meminfo(&self, key: &str) -> Result<u64, HostError> {
        let path = self.path("/proc/meminfo");
        let content = read(&path)?;
        content
            .lines()
            .find_map(|line| line.strip_prefix(key)?.strip_prefix(':'))
            .and_then(|value| value.trim().strip_suffix("kB")?.trim().parse::<u64>().ok())
            .map(|kib| kib.saturating_mul(1024))
            .ok_or(HostError::Malformed { path })
    }

    /// CPUs that are online.
    ///
    /// # Errors
    /// When sysfs does not tell.
    pub fn online_cpus(&self) -> Result<CpuSet, HostError> {
        let path = self.path("/sys/devices/system/cpu/online");
        read(&path)?.parse().map_err(|_| HostError::Malformed { path })
    }

    /// The id of this boot.
    ///
    /// # Errors
    /// When procfs does not tell.
    pub fn boot_id(&self) -> Result<String, HostError> {
        self.read_trimmed("/proc/sys/kernel/random/boot_id")
    }

    /// The id of this installation, from `/etc/machine-id` or D-Bus's copy of it.
    ///
    /// # Errors
    /// When neither file can be read; names the first.
    pub fn machine_id(&self) -> Result<String, HostError> {
        self.read_trimmed("/etc/machine-id")
            .or_else(|error| self.read_trimmed("/var/lib/dbus/machine-id").map_err(|_| error))
    }

    /// The id that the firmware gives the machine (DMI, or the device tree of machines without it);
    /// the id of the installation where there is none.
    pub fn system_uuid(&self) -> Option<String> {
        const PLACES: [&str; 4] = [
            "/sys/class/dmi/id/product_uuid",
            "/proc/device-tree/system-id",
            "/proc/device-tree/vm,uuid",
            "/etc/machine-id",
        ];
        let uuid = PLACES.iter().find_map(|place| self.read_trimmed(place).ok())?;
        // The device tree ends its texts with a zero.
        let uuid = uuid.trim_end_matches('\0').trim();
        (!uuid.is_empty()).then(|| uuid.to_owned())
    }

    /// The operating system's name for people: `PRETTY_NAME` of os-release, or `Linux` where that
    /// says nothing.
    ///
    /// # Errors
    /// When there is no os-release; names the first place.
    pub fn operating_system(&self) -> Result<String, HostError> {
        let release = self
            .read_trimmed("/etc/os-release")
            .or_else(|error| self.read_trimmed("/usr/lib/os-release").map_err(|_| error))?;
        let name = release.lines().find_map(|line| line.trim().strip_prefix("PRETTY_NAME="));
        Ok(name.map_or("Linux", |name| name.trim_matches(['"', '\''])).to_owned())
    }

    /// The kernel's version.
    ///
    /// # Errors
    /// When procfs does not tell, or it does not begin with two numbers.
    pub fn kernel_version(&self) -> Result<KernelVersion, HostError> {
        let path = self.path("/proc/sys/kernel/osrelease");
        let release = read(&path)?.trim().to_owned();
        let mut numbers =
            release.split(|c: char| !c.is_ascii_digit()).map(|digits| digits.parse::<u32>().ok());
        match (numbers.next().flatten(), numbers.next().flatten()) {
            (Some(major), Some(minor)) => Ok(KernelVersion { major, minor, release }),
            _ => Err(HostError::Malformed { path }),
        }
    }

    /// Pools of huge pages by size, smallest first; none on kernels without huge pages.
    ///
    /// # Errors
    /// When sysfs has an unknown form.
    pub fn huge_pages(&self) -> Result<Vec<HugePagePool>, HostError> {
        let directory = self.path("/sys/kernel/mm/hugepages");
        let entries = match std::fs::read_dir(&directory) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(source) => return Err(HostError::Read { path: directory, source }),
        };
        let mut pools = Vec::new();
        for entry in entries {
            let entry =
                entry.map_err(|source| HostError::Read { path: directory.clone(), source })?;
            let name = entry.file_name();
            let size = name
                .to_str()
                .and_then(|name| name.strip_prefix("hugepages-")?.strip_suffix("kB"))
                .and_then(|kib| kib.parse::<u64>().ok());
            let Some(kib) = size else { continue };
            let path = entry.path().join("nr_hugepages");
            let pages = read(&path)?.trim().parse().map_err(|_| HostError::Malformed { path })?;
            pools.push(HugePagePool { page_size: kib.saturating_mul(1024), pages });
        }
        pools.sort_unstable();
        Ok(pools)
    }

    /// Swap areas in use; none on kernels without swap.
    ///
    /// # Errors
    /// When `/proc/swaps` cannot be read.
    pub fn swaps(&self) -> Result<Vec<Swap>, HostError> {
        let path = self.path("/proc/swaps");
        let content = match std::fs::read_to_string(&path) {
            Ok(content) => content,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(source) => return Err(HostError::Read { path, source }),
        };
        Ok(content
            .lines()
            .skip(1)
            .filter_map(|line| {
                let mut fields = line.split_whitespace();
                let path = fields.next()?.to_owned();
                let kib: u64 = fields.nth(1).and_then(|size| size.parse().ok()).unwrap_or(0);
                Some(Swap { path, size: kib.saturating_mul(1024) })
            })
            .collect())
    }

    /// Seconds since boot.
    ///
    /// # Errors
    /// When procfs does not tell.
    pub fn uptime_seconds(&self) -> Result<f64, HostError> {
        let path = self.path("/proc/uptime");
        let content = read(&path)?;
        content
            .split_whitespace()
            .next()
            .and_then(|seconds| seconds.parse().ok())
            .ok_or(HostError::Malformed { path })
    }

    /// When the machine was booted, in whole seconds of Unix time.
    ///
    /// # Errors
    /// When procfs does not tell.
    pub fn boot_time_seconds(&self) -> Result<u64, HostError> {
        let path = self.path("/proc/stat");
        read(&path)?
            .lines()
            .find_map(|line| line.strip_prefix("btime "))
            .and_then(|seconds| seconds.trim().parse().ok())
            .ok_or(HostError::Malformed { path })
    }

    /// Most processes and threads at a time: the smaller of the kernel's two limits.
    ///
    /// # Errors
    /// When procfs does not tell.
    pub fn max_pids(&self) -> Result<i64, HostError> {
        let limit = |name: &str| -> Result<i64, HostError> {
            let path = self.path(name);
            read(&path)?.trim().parse().map_err(|_| HostError::Malformed { path })
        };
        let pid_max = limit("/proc/sys/kernel/pid_max")?;
        let threads_max = limit("/proc/sys/kernel/threads-max")?;
        Ok(pid_max.min(threads_max))
    }

    /// Bytes that the file system of `path`, as this process sees it, can hold.
    ///
    /// # Errors
    /// When the file system does not tell.
    pub fn file_system_bytes(&self, path: &Path) -> Result<u64, HostError> {
        let stat = rustix::fs::statvfs(path)
            .map_err(|errno| HostError::Read { path: path.to_owned(), source: errno.into() })?;
        Ok(stat.f_blocks.saturating_mul(stat.f_frsize))
    }

    /// The value of a sysctl such as `vm.overcommit_memory`.
    ///
    /// # Errors
    /// When the name is none, or there is no such sysctl.
    pub fn read_sysctl(&self, name: &str) -> Result<String, HostError> {
        Ok(read(&self.sysctl_path(name)?)?.trim().to_owned())
    }

    /// Sets a sysctl.
    ///
    /// # Errors
    /// When the name is none, there is no such sysctl, or the kernel refuses the value.
    pub fn write_sysctl(&self, name: &str, value: &str) -> Result<(), HostError> {
        let path = self.sysctl_path(name)?;
        write_existing(&path, value).map_err(|source| HostError::Write {
            path,
            value: value.to_owned(),
            source,
        })
    }

    fn sysctl_path(&self, name: &str) -> Result<PathBuf, HostError> {
        let relative = name.replace('.', "/");
        if relative.split('/').any(str::is_empty) || name.contains('\0') {
            return Err(HostError::InvalidSysctl(name.to_owned()));
        }
        Ok(self.path("/proc/sys").join(relative))
    }

    fn read_trimmed(&self, path: &str) -> Result<String, HostError> {
        Ok(read(&self.path(path))?.trim().to_owned())
    }
}

fn read(path: &Path) -> Result<String, HostError> {
    std::fs::read_to_string(path)
        .map_err(|source| HostError::Read { path: path.to_owned(), source })
}

/// Writes a file of the kernel's, which must exist: such a file is never created by writing to it.
pub(crate) fn write_existing(path: &Path, value: &str) -> io::Result<()> {
    use std::io::Write as _;
    std::fs::OpenOptions::new().write(true).truncate(true).open(path)?.write_all(value.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_machine::machine;

    #[test]
    fn facts_of_a_made_up_machine() {
        let (_temp, host) = machine(&[
            ("proc/meminfo", "MemTotal:       16 kB\nMemFree:  1 kB\nSwapTotal:     8 kB\n"),
            ("proc/swaps", "Filename Type Size Used Priority\n/dev/sda2 partition 8 0 -2\n"),
            ("proc/sys/kernel/osrelease", "6.4.0-rc1+\n"),
            ("proc/sys/kernel/pid_max", "4194304\n"),
            ("proc/sys/kernel/threads-max", "1000\n"),
            ("proc/uptime", "12.5 20.0\n"),
            ("sys/devices/system/cpu/online", "0-3,8,10-11\n"),
            ("sys/kernel/mm/hugepages/hugepages-1048576kB/nr_hugepages", "1\n"),
            ("sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages", "20\n"),
            ("var/lib/dbus/machine-id", "abc\n"),
        ]);
        assert_eq!(host.memory_bytes().unwrap(), 16 << 10);
        assert_eq!(host.swap_bytes().unwrap(), 8 << 10);
        assert_eq!(host.swaps().unwrap(), [Swap { path: "/dev/sda2".into(), size: 8 << 10 }]);
        let kernel = host.kernel_version().unwrap();
        assert_eq!((kernel.major, kernel.minor, kernel.release.as_str()), (6, 4, "6.4.0-rc1+"));
        assert_eq!(host.max_pids().unwrap(), 1000);
        assert_eq!(host.uptime_seconds().unwrap(), 12.5);
        let cpus = host.online_cpus().unwrap();
        assert_eq!((cpus.to_string().as_str(), cpus.len()), ("0-3,8,10-11", 7));
        assert_eq!(
            host.huge_pages().unwrap(),
            [
                HugePagePool { page_size: 2 << 20, pages: 20 },
                HugePagePool { page_size: 1 << 30, pages: 1 }
            ]
        );
        assert_eq!(host.machine_id().unwrap(), "abc");
        assert_eq!(host.system_uuid(), None);
        assert!(host.operating_system().is_err());
    }

    #[test]
    fn ids_and_names_by_the_first_place_that_has_them() {
        let (_temp, host) = machine(&[
            ("etc/machine-id", "abc\n"),
            ("proc/device-tree/vm,uuid", "def\0"),
            ("usr/lib/os-release", "NAME=x\nPRETTY_NAME=\"Debian GNU/Linux 13 (trixie)\"\n"),
        ]);
        assert_eq!(host.machine_id().unwrap(), "abc");
        assert_eq!(host.system_uuid().as_deref(), Some("def"));
        assert_eq!(host.operating_system().unwrap(), "Debian GNU/Linux 13 (trixie)");
        let (_temp, host) =
            machine(&[("etc/machine-id", "abc\n"), ("etc/os-release", "ID=mine\n")]);
        assert_eq!(host.system_uuid().as_deref(), Some("abc"));
        assert_eq!(host.operating_system().unwrap(), "Linux");
    }

    #[test]
    fn what_is_missing_or_malformed_is_named() {
        let (_temp, host) = machine(&[
            ("proc/meminfo", "MemTotal: lots\n"),
            ("proc/sys/kernel/osrelease", "next\n"),
            ("sys/devices/system/cpu/online", "3-1\n"),
        ]);
        assert!(matches!(host.memory_bytes(), Err(HostError::Malformed { .. })));
        assert!(matches!(host.kernel_version(), Err(HostError::Malformed { .. })));
        assert!(matches!(host.online_cpus(), Err(HostError::Malformed { .. })));
        let error = host.machine_id().unwrap_err();
        assert!(error.to_string().ends_with("/etc/machine-id"), "{error}");
        assert!(host.swaps().unwrap().is_empty());
        assert!(host.huge_pages().unwrap().is_empty());
    }

    #[test]
    fn sysctls_are_read_and_set() {
        let (_temp, host) = machine(&[("proc/sys/vm/overcommit_memory", "0\n")]);
        assert_eq!(host.read_sysctl("vm.overcommit_memory").unwrap(), "0");
        host.write_sysctl("vm.overcommit_memory", "1").unwrap();
        assert_eq!(host.read_sysctl("vm.overcommit_memory").unwrap(), "1");
        assert!(matches!(host.write_sysctl("vm.none", "1"), Err(HostError::Write { .. })));
        for name in ["", "vm..x", "../etc/passwd", "vm.", ".vm"] {
            assert!(matches!(host.read_sysctl(name), Err(HostError::InvalidSysctl(_))), "{name:?}");
        }
    }

    #[test]
    fn this_machine_has_facts() {
        let host = Host::system();
        assert!(host.memory_bytes().unwrap() > 1 << 20);
        assert!(!host.online_cpus().unwrap().is_empty());
        assert_eq!(host.boot_id().unwrap().len(), 36);
        assert!(host.kernel_version().unwrap().major >= 4);
        assert!(host.uptime_seconds().unwrap() > 0.0);
        assert!(host.max_pids().unwrap() > 0);
        assert!(host.file_system_bytes(Path::new("/")).unwrap() > 1 << 20);
        assert!(host.file_system_bytes(Path::new("/no/such/path")).is_err());
        assert!(!host.read_sysctl("vm.overcommit_memory").unwrap().is_empty());
    }
}
