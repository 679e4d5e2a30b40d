//! The container runtime interface (CRI v1): protocol, client, errors, deadlines.
//!
//! What: [`CriClient`] has one method for each call, with the deadline upstream gives it; [`v1`] is
//! the protocol itself; [`observe`] turns its messages into the kubelet's words.
//!
//! Guarantees: a call ends by its deadline, whatever the runtime does; one slow call delays no
//! other; a lost connection is made again; stopping or removing what is gone succeeds; nothing a
//! runtime answers makes this crate panic.
//!
//! Not here: retries (the caller knows whether repeating makes sense: [`CriError::disposition`]),
//! caching, and any decision about pods.

mod client;
mod connection;
mod error;
mod events;
mod image_calls;
mod metrics;
pub mod observe;
mod rpc;
mod runtime_calls;
mod stats_calls;
pub mod v1;

pub use client::{CriClient, CriOptions};
pub use connection::InvalidEndpoint;
pub use error::{CriError, CriErrorKind, Disposition};
pub use events::{ContainerEvent, ContainerEventKind, ContainerEvents};
pub use metrics::RuntimeMetrics;
pub use rpc::Rpc;
pub use runtime_calls::RuntimeVersion;
