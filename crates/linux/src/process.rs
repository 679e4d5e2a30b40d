use std::io;
use std::path::PathBuf;

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
