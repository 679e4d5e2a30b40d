//! Carries out the life of a pod on the container runtime.
//!
//! What: pure functions make the runtime's configuration of a sandbox ([`compute_sandbox_config`])
//! and of a container ([`compute_container_config`]) from a pod; [`PodRuntime`] makes, starts,
//! stops and removes them, runs lifecycle hooks, and keeps the files around them: logs, hosts file,
//! termination messages.
//!
//! Guarantees: once its cancellation token fires, an operation creates and starts nothing more (I2),
//! and removes the container that it had created and not started. Stopping or removing what is gone
//! succeeds. Nothing that a container can write to leads a read or write out of its own directory.
//!
//! Not here: when any of this is due, pulling images, mounting volumes, cgroups of pods, reading
//! objects from the API server.

mod annotations;
mod container_config;
mod dns;
mod environment;
mod executor;
mod failure;
mod files;
mod hooks;
mod hostname;
mod hosts_file;
mod metrics;
mod mounts;
mod node_security;
mod sandbox_config;
mod security;
mod settings;
mod termination_message;
mod text;
mod turns;
mod user_namespace;
mod user_namespaces;

pub use annotations::orphan_pod;
pub use container_config::{
    ContainerAllocation, ContainerConfigError, ContainerInputs, Device, ImageUser,
    compute_container_config,
};
pub use dns::{DnsSettings, DnsWarning, ResolvConf, compute_dns, resolv_conf_problem};
pub use environment::{
    ApiObjects, EnvironmentError, EnvironmentFacts, EnvironmentFiles, ReferencedObjects,
    compute_environment, read_environment_files, referenced_objects,
};
pub use executor::{ContainerToStart, PodRuntime, SandboxToCreate};
pub use failure::RuntimeFailure;
pub use hostname::HostnameError;
pub use hosts_file::render_hosts_file;
pub use metrics::HookMetrics;
pub use mounts::{ImageMount, MountError, PreparedMount, prepare_mount};
pub use sandbox_config::{SandboxConfigError, SandboxInputs, compute_sandbox_config};
pub use security::{SecurityError, check_run_as_non_root};
pub use settings::PodRuntimeSettings;
pub use termination_message::TerminationMessages;
pub use user_namespace::{IdMapping, UserNamespace};
pub use user_namespaces::{UserNamespaceError, UserNamespaceSettings, UserNamespaces};
