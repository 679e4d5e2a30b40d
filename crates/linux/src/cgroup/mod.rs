//! Control groups: the file systems of both versions, and systemd's view of them.

mod file_system;
mod processes;
mod systemd;
#[cfg(test)]
mod tests;
mod v1;
mod v2;

pub use file_system::{CgroupError, CgroupFs, CgroupMode};
pub use processes::KillReport;
pub use systemd::{SystemdError, SystemdUnits};
