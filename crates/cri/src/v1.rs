//! The protocol: messages, enums, clients and (feature `server`) server traits of `runtime.v1`.
//!
//! Generated from `proto/runtime/v1/runtime.proto`.

use std::fmt;

#[allow(
    missing_docs,
    missing_debug_implementations,
    unreachable_pub,
    unused_qualifications,
    clippy::all,
    clippy::pedantic,
    clippy::restriction
)]
mod generated {
    tonic::include_proto!("runtime.v1");
}

pub use generated::*;

impl fmt::Debug for AuthConfig {
    /// Shows for whom and where, never the secrets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AuthConfig")
            .field("username", &self.username)
            .field("server_address", &self.server_address)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for KeyValue {
    /// Shows the name of an environment variable, never its value: it may come from a Secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeyValue").field("key", &self.key).finish_non_exhaustive()
    }
}
