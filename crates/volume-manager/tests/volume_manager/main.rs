//! The volume manager with its fakes, and on the real kernel.

#![expect(clippy::unwrap_used, reason = "helpers of tests may panic as tests do")]

mod contents;
mod contract;
mod fake_content;
mod fake_mounts;
mod in_memory;
mod on_the_kernel;
mod persistent;
mod support;
