use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::process::{Resource, Rlimit};

use crate::host::write_existing;

/// A property of a process could not be read or changed.
#[derive(Debug, thiserror::Error)]
pub enum ProcessError {
    /// `oom_score_adj` cannot be set. Lowering it needs CAP_SYS_RESOURCE: worth a warning, not the
    /// end.
    #[error("cannot set {path} to {score}")]
    WriteOomScoreAdj {
        /// The file.
        path: PathBuf,
        /// The wanted value.
        score: i32,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// `oom_score_adj` cannot be read.
    #[error("cannot read {path}")]
    ReadOomScoreAdj {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// What the process has used cannot be read.
    #[error("cannot read {path}")]
    ReadUsage {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// The limit of open files cannot be raised, for instance without CAP_SYS_RESOURCE.
    #[error("cannot raise the limit of open files to {wanted} (it is {current})")]
    RaiseOpenFileLimit {
        /// The wanted limit.
        wanted: u64,
        /// The soft limit in force.
        current: u64,
        /// Why.
        #[source]
        source: io::Error,
    },
}

/// Sets `oom_score_adj` of this process, -1000..=1000.
///
/// # Errors
/// When the kernel refuses; the process goes on as before.
pub fn write_own_oom_score_adj(score: i32) -> Result<(), ProcessError> {
    write_score(PathBuf::from("/proc/self/oom_score_adj"), score)
}

/// Sets `oom_score_adj` of another process.
///
/// # Errors
/// When the process does not exist or the kernel refuses.
pub fn write_oom_score_adj(pid: u32, score: i32) -> Result<(), ProcessError> {
    write_score(score_path(pid), score)
}

/// Reads `oom_score_adj` of a process.
///
/// # Errors
/// When the process does not exist.
pub fn read_oom_score_adj(pid: u32) -> Result<i32, ProcessError> {
    let path = score_path(pid);
    std::fs::read_to_string(&path)
        .and_then(|content| content.trim().parse().map_err(io::Error::other))
        .map_err(|source| ProcessError::ReadOomScoreAdj { path, source })
}

fn score_path(pid: u32) -> PathBuf {
    PathBuf::from(format!("/proc/{pid}/oom_score_adj"))
}

fn write_score(path: PathBuf, score: i32) -> Result<(), ProcessError> {
    write_existing(&path, &score.to_string()).map_err(|source| ProcessError::WriteOomScoreAdj {
        path,
        score,
        source,
    })
}

/// Ticks of the clock in which the kernel tells times to processes, a second; the same on all
/// machines that run Kubernetes.
const TICKS_PER_SECOND: u64 = 100;

/// What this process has used, and may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProcessUsage {
    /// Time on a CPU, in user and kernel mode, of all its threads.
    pub cpu: Duration,
    /// When it was started, counted from the boot of the machine.
    pub started_after_boot: Duration,
    /// Size of its address space in bytes.
    pub virtual_bytes: u64,
    /// How large that may become; none without a limit.
    pub max_virtual_bytes: Option<u64>,
    /// How much of it is in memory.
    pub resident_bytes: u64,
    /// Open file descriptors.
    pub open_files: u64,
    /// How many there may be; none without a limit.
    pub max_open_files: Option<u64>,
}

impl ProcessUsage {
    /// As it is now. Reads procfs, which does not block.
    ///
    /// # Errors
    /// When procfs does not tell.
    pub fn read_own() -> Result<Self, ProcessError> {
        let path = Path::new("/proc/self/stat");
        let failed =
            |path: &Path, source| ProcessError::ReadUsage { path: path.to_owned(), source };
        let malformed = |path| failed(path, io::ErrorKind::InvalidData.into());
        let stat = std::fs::read_to_string(path).map_err(|error| failed(path, error))?;
        // The second field is a name in parentheses that may hold anything.
        let (_, rest) = stat.rsplit_once(')').ok_or_else(|| malformed(path))?;
        let fields: Vec<&str> = rest.split_whitespace().collect();
        let number = |field: usize| -> Result<u64, ProcessError> {
            // `rest` begins with the third.
            let text = fields.get(field - 3).ok_or_else(|| malformed(path))?;
            text.parse().map_err(|_| malformed(path))
        };
        let ticks = |count: u64| Duration::from_millis(count * (1000 / TICKS_PER_SECOND));
        let cpu = ticks(number(14)?.saturating_add(number(15)?));
        let (started_after_boot, virtual_bytes) = (ticks(number(22)?), number(23)?);

        let path = Path::new("/proc/self/status");
        let status = std::fs::read_to_string(path).map_err(|error| failed(path, error))?;
        let resident = status
            .lines()
            .find_map(|line| line.strip_prefix("VmRSS:")?.trim().strip_suffix("kB"))
            .and_then(|kib| kib.trim().parse::<u64>().ok())
            .ok_or_else(|| malformed(path))?;

        let path = Path::new("/proc/self/fd");
        let open = std::fs::read_dir(path).map_err(|error| failed(path, error))?.count();
        Ok(Self {
            cpu,
            started_after_boot,
            virtual_bytes,
            max_virtual_bytes: rustix::process::getrlimit(Resource::As).current,
            resident_bytes: resident.saturating_mul(1024),
            // One of them was open for counting.
            open_files: u64::try_from(open).unwrap_or(u64::MAX).saturating_sub(1),
            max_open_files: rustix::process::getrlimit(Resource::Nofile).current,
        })
    }
}

/// Raises the soft limit of open files of this process to `wanted`, and the hard limit where that
/// is lower; never lowers either.
///
/// # Errors
/// When the kernel refuses; then the soft limit is as high as the hard limit allows.
pub fn raise_open_file_limit(wanted: u64) -> Result<(), ProcessError> {
    let now = rustix::process::getrlimit(Resource::Nofile);
    let reaches = |limit: Option<u64>| limit.is_none_or(|limit| limit >= wanted);
    if reaches(now.current) {
        return Ok(());
    }
    let set = |current, maximum| {
        rustix::process::setrlimit(Resource::Nofile, Rlimit { current, maximum })
    };
    if reaches(now.maximum) {
        return set(Some(wanted), now.maximum).map_err(|errno| limit_error(wanted, errno));
    }
    set(Some(wanted), Some(wanted)).map_err(|errno| {
        // As far as it goes; the error below says that it was not enough.
        let _ = set(now.maximum, now.maximum);
        limit_error(wanted, errno)
    })
}

fn limit_error(wanted: u64, errno: rustix::io::Errno) -> ProcessError {
    let current = rustix::process::getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    ProcessError::RaiseOpenFileLimit { wanted, current, source: errno.into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_own_score_can_be_set_to_what_it_is() {
        let score = read_oom_score_adj(std::process::id()).unwrap();
        write_own_oom_score_adj(score).unwrap();
        assert!(write_own_oom_score_adj(2000).is_err());
        assert!(read_oom_score_adj(0).is_err());
        assert!(write_oom_score_adj(0, 0).is_err());
    }

    #[test]
    fn the_kernel_tells_what_this_process_uses() {
        let before = ProcessUsage::read_own().unwrap();
        let files: Vec<_> = (0..100).map(|_| std::fs::File::open("/dev/null").unwrap()).collect();
        let mut memory = vec![1_u8; 32 << 20];
        // Long enough for a tick, whatever else the machine does.
        while ProcessUsage::read_own().unwrap().cpu <= before.cpu {
            memory.iter_mut().for_each(|byte| *byte = byte.wrapping_mul(3));
        }
        let after = ProcessUsage::read_own().unwrap();
        assert_eq!(after.started_after_boot, before.started_after_boot);
        // Other tests open and close theirs meanwhile.
        assert!(after.open_files >= before.open_files + 50, "{before:?} {after:?}");
        assert!(after.resident_bytes > before.resident_bytes + (16 << 20), "{before:?} {after:?}");
        assert!(after.virtual_bytes > after.resident_bytes);
        assert!(after.max_open_files.is_none_or(|most| most >= after.open_files));
        drop((files, memory));
    }

    #[test]
    fn the_open_file_limit_is_only_raised() {
        let before = rustix::process::getrlimit(Resource::Nofile);
        raise_open_file_limit(16).unwrap();
        assert_eq!(rustix::process::getrlimit(Resource::Nofile), before);
        let hard = before.maximum.unwrap_or(1 << 20);
        raise_open_file_limit(hard).unwrap();
        assert_eq!(rustix::process::getrlimit(Resource::Nofile).current, Some(hard));
        // The kernel never allows this many.
        let error = raise_open_file_limit(1 << 40).unwrap_err();
        assert!(error.to_string().contains("1099511627776"), "{error}");
        assert_eq!(rustix::process::getrlimit(Resource::Nofile).current, Some(hard));
    }
}
