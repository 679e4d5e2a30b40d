use std::io;
use std::path::PathBuf;

use jiff::civil::DateTime;
use rubelet_cri::CriError;
use rubelet_linux::path::PathError;
use rubelet_types::ContainerId;

/// A log cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    /// The runtime does not tell where the log is: it forgot the container, or does not answer.
    #[error("the runtime does not tell where the log of container {id} is")]
    Unknown {
        /// The container.
        id: ContainerId,
        /// What it said.
        #[source]
        source: CriError,
    },
    /// The runtime writes it outside of the directory of logs, where nothing is read.
    #[error("the log {path:?} of container {id} is not in {root:?}")]
    Outside {
        /// The container.
        id: ContainerId,
        /// Where the log is.
        path: PathBuf,
        /// `podLogsDir`.
        root: PathBuf,
    },
    /// The file or its directory cannot be opened.
    #[error("failed to open log file {path:?}")]
    Open {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: PathError,
    },
    /// The file cannot be read.
    #[error("failed to read log file {path:?}")]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
}

/// A log cannot be rotated now. The next round tries again.
#[derive(Debug, thiserror::Error)]
pub enum RotateError {
    /// An entry of its directory cannot be read, renamed or removed.
    #[error("failed to rotate log {path:?}")]
    Directory {
        /// The log.
        path: PathBuf,
        /// Why.
        #[source]
        source: PathError,
    },
    /// A rotated file cannot be compressed. It stays as it is.
    #[error("failed to compress log {path:?}")]
    Compress {
        /// The rotated file.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// The time is too far off for a name.
    #[error("failed to rotate log {path:?}: {time} makes no name")]
    NoName {
        /// The log.
        path: PathBuf,
        /// The node's time, or the one that follows the last rotation.
        time: DateTime,
    },
    /// The runtime did not open the log anew.
    #[error("failed to reopen container log {id}")]
    Reopen {
        /// The container.
        id: ContainerId,
        /// What it said.
        #[source]
        source: CriError,
    },
}
