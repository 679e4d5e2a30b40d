//! A small working container runtime behind CRI, with fault knobs, for tests.
//!
//! What: [`FakeRuntime`] keeps sandboxes, containers and images by containerd's rules, runs
//! simulated processes ([`Script`]), and speaks CRI v1 over a unix socket or within the process.
//! Tests look at what it holds ([`Inventory`]) rather than at the calls they made.
//!
//! Guarantees: all its time is Tokio's, so it works under paused time; everything random comes from
//! one seed; what must never be (two running instances of one container) is noticed when it
//! happens, not when somebody looks. Like the real thing it passes [`contract::run`].
//!
//! Not here: real processes, namespaces, cgroups and networks.

pub mod contract;
mod faults;
mod happening;
mod image_service;
mod images;
mod inspect;
mod operations;
mod options;
mod process;
mod runtime;
mod runtime_service;
mod script;
mod server;
mod state;
mod stats;

pub use faults::{Fault, FaultAction, Moment};
pub use happening::{ContainerChange, Happening, Observer, SandboxChange};
pub use images::Pull;
pub use inspect::{ContainerView, Inventory, SandboxView, Violation};
pub use options::{FakeOptions, tokio_clock};
pub use runtime::{FakeRuntime, ScriptMatch};
pub use script::{ExecAnswer, OnStopSignal, Script, Step};
