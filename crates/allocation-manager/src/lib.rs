//! What each pod was granted of the node's resources, and what of it is in force.
//!
//! ```text
//!  wanted ──granted by admission──▶ granted ──set step by step──▶ in force
//!  (spec)                           (allocated_pods_state)        (actuated_pods_state)
//! ```
//!
//! What: a pod that is resized is granted other resources than it has; until they are in force, the
//! difference is a deviation, and the pod's worker does what is due. Both are kept on disk, in the
//! files of the Go kubelet, so that whoever comes next on the node, this kubelet or that one, knows
//! what a pod was promised and starts no container again without need.
//!
//! Guarantees: a grant is on the disk before anybody acts on it, and what was in force before it was
//! on the disk before that: killed at any moment, the next life finishes the resize or never knew of
//! it. Pods at rest cost nothing here: nothing is held of them, their entries in the files are made
//! from their specs when something is written. That is begun when they are let in, and done when
//! their sandbox is made: nobody waits for it.
//!
//! Not here: whether a resize is granted, how it is carried out, and what is told about it.

mod files;
mod manager;

pub use files::{ACTUATED_FILE, ALLOCATED_FILE};
pub use manager::{AllocationError, AllocationManager, Deviation, GrantedPods};
