//! The Linux edge: cgroups, mounts, paths opened beneath a directory, procfs, rlimits.
