//! Carries out the life of a pod on the container runtime.
//!
//! What: pure functions make the runtime's configuration of a sandbox ([`compute_sandbox_config`])
//! and of a container ([`compute_container_config`]) from a pod; [`PodRuntime`] makes, starts,
//! stops and removes them, runs lifecycle hooks, and keeps the files around them: logs, hosts file,
//! termination messages.
//!
//! Guarantees: once its cancellation token fires, an operation creates and starts nothing more (I2),
//! and removes the container that it had created and not started. Stopping or removing what is gone
//! succeeds.
//!
//! Not here: when any of this is due, pulling images, mounting volumes, cgroups of pods.

mod annotations;
mod container_config;
mod dns;
mod environment;
mod executor;
mod files;
mod hooks;
mod hostname;
mod hosts_file;
mod sandbox_config;
mod security;
mod settings;
mod termination_message;

pub use annotations::orphan_pod;
pub use container_config::{ContainerInputs, ImageUser, PreparedMount, compute_container_config};
pub use dns::{DnsSettings, DnsWarning, ResolvConf, compute_dns};
pub use environment::{EnvironmentError, EnvironmentFacts, compute_environment};
pub use executor::{ContainerToStart, PodRuntime, RuntimeFailure, SandboxToCreate};
pub use hosts_file::render_hosts_file;
pub use sandbox_config::{SandboxInputs, compute_sandbox_config};
pub use security::{SecurityError, check_run_as_non_root};
pub use settings::PodRuntimeSettings;
pub use termination_message::TerminationMessages;
