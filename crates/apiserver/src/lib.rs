//! The Kubernetes API server.
//!
//! What: [`KubeConfig`] says where it is and who we are; [`ApiServer`] holds connections and
//! credentials and sends what it is told to; [`Objects`] are the calls on one kind of object;
//! [`Watch`] follows objects, and a [`Store`] keeps them at hand.
//!
//! Guarantees: every request ends, with an answer or an [`ApiError`], within a bounded time. A
//! connection whose other end is gone is noticed in less than half a minute, whatever is going on
//! over it. A watch misses nothing and never ends. An object that cannot be understood is reported,
//! and keeps no other from being seen. New credentials come into use within ten seconds.
//!
//! Not here: what to do with an object, which errors to retry, bootstrapping and rotating
//! certificates.
//!
//! # Why HTTP is done here and not by `kube`
//!
//! `kube` gives the model of kubeconfigs, the building of requests, and `Status`. Its client speaks
//! HTTP/1.1 without signs of life: each watch would be a connection of its own, and a peer that
//! stops answering would be noticed after the kernel's quarter of an hour. It also decodes a list as
//! a whole, and does not tell what `Retry-After` says.

mod client;
mod connection;
mod credentials;
mod decode;
mod error;
mod kubeconfig;
mod metrics;
mod objects;
mod options;
mod outage;
mod rate_limit;
mod store;
mod transport;
mod watch;

pub use client::ApiServer;
pub use connection::{ByteStream, Connect, ProxyEnvironment};
pub use decode::{FullSet, ObjectKey, Undecodable};
pub use error::{ApiError, ApiErrorKind, Verb};
pub use kubeconfig::{
    ClientCertificate, InitialCertificate, InlineCertificate, KubeConfig, KubeConfigError,
};
pub use metrics::RestClientMetrics;
pub use objects::{ApiObject, Delete, Objects, Patch, Selector};
pub use options::ApiServerOptions;
pub use rate_limit::RateLimit;
pub use store::Store;
pub use watch::{Event, Watch};
