//! The logs of containers on the disk: read, followed and rotated.
//!
//! What: the log file of one container instance as a stream of bytes under the options of
//! `kubectl logs` ([`LogReader`]); and one loop that keeps the logs of running containers small
//! ([`LogRotation`]).
//!
//! Not here: which instance of which pod somebody asks for, and HTTP.
//!
//! # On the disk
//!
//! ```text
//! <podLogsDir>/<namespace>_<pod>_<uid>/<container>/
//!     0.log                          the runtime writes it
//!     0.log.20261130-144031          rotated last: whoever reads it can finish in peace
//!     0.log.20261130-143012.gz       rotated earlier
//!     0.log.20261130-143012.tmp      being compressed, or left behind by a crash
//! ```
//!
//! # Invariants
//!
//! - Files are opened beneath the handle of their directory, and no link is followed.
//! - Memory does not depend on the length of a log, of a line, or of what is waiting: a reader has one
//!   input buffer, gives it up while it waits, and reads only when its client takes more.
//! - A follower sees every line of the instance once, in order, however often the log is rotated, as
//!   long as the rotated files are there.
//! - A log is at every moment under one of its names, complete: whatever a rotation is interrupted by,
//!   the next one goes on, and nothing is lost. Nothing is compressed that the runtime may write to.
//! - At rest there is one timer for all containers, and no call of the runtime.

mod directory;
mod error;
mod follow;
mod generation;
mod head;
mod options;
mod read;
mod render;
mod rotate;
mod rotation;
mod runtime;
mod tail;
mod watch;

pub use error::{LogError, RotateError};
pub use follow::LogReader;
pub use options::{LogOptions, Streams};
pub use rotation::{LogRotation, RotationPolicy, RunningContainer};
pub use runtime::LogRuntime;
