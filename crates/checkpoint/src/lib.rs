//! State that outlives the process, as files that are either whole or known to be damaged.
//!
//! * [`CheckpointFile`]: one value in one file, in the envelope `{"data":"<json>","checksum":N}` of
//!   the Go kubelet's `allocated_pods_state` and `actuated_pods_state`. Each save is one atomic
//!   record; a file that cannot be trusted is set aside, never silently used or lost.
//! * [`write_atomic`] and [`set_aside`]: the same two steps for owners whose file has a format of
//!   its own (`cpu_manager_state`, `memory_manager_state`, `dra_manager_state`, the device manager's).
//! * [`PodStatusStore`]: the last published status of each pod that has no API server behind it.
//!
//! | file | durability | when it is damaged |
//! |---|---|---|
//! | checkpoints: allocations, assignments | [`Durability::Synced`]: survives a power loss | set aside, typed result for the owner |
//! | `<root>/pod_statuses/<uid>` | [`Durability::Unsynced`]: survives the end of the process | logged, ignored, overwritten by the next save |
//!
//! Not here: what the values mean, and how lost state is rebuilt. That is their owners' work.
//!
//! Everything but [`PodStatusStore`] does blocking I/O: call it off the executor.

mod atomic;
mod envelope;
mod file;
mod pod_status;

pub use atomic::{Durability, WriteError, WriteStep, write_atomic};
pub use envelope::{Damage, MAX_FILE_BYTES, go_string_checksum};
pub use file::{CheckpointError, CheckpointFile, DamagedFile, Loaded, set_aside};
pub use pod_status::PodStatusStore;
