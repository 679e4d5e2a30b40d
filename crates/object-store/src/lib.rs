//! ConfigMaps and Secrets that pods refer to.
//!
//! What: [`ObjectStore`] gives whoever needs one an object that some pod of this node refers to, in
//! the way that `configMapAndSecretChangeDetectionStrategy` asks for: from a watch of its own, which
//! lasts while it is referred to and read; from a cache; or from the API server each time. It tells
//! which pods are affected by a change ([`ChangedPods`]).
//! Not here: what objects are used for.
//!
//! Guarantees: one object is held once, whoever reads it, and without what nobody here reads. Each
//! read ends within seconds. That an object does not exist is never confused with not knowing.

mod api_server;
mod cached;
mod changed_pods;
mod error;
mod kind;
mod port;
mod references;
mod settings;
mod store;
mod watched;

pub use changed_pods::ChangedPods;
pub use error::ReadObjectError;
pub use kind::ReferredObject;
pub use port::{Freshness, ObjectApi, Observation, ReadFailure};
pub use references::{PodReferences, pod_references};
pub use settings::{ChangeDetection, ObjectStoreSettings};
pub use store::ObjectStore;
