//! A small working Kubernetes API server, with fault knobs, for tests.
//!
//! What: [`FakeApiServer`] keeps objects of the kinds that a kubelet deals with by the rules of the
//! real server: versions and uids, lists in pages, watches with bookmarks, merge and strategic merge
//! patches, status apart from the rest, preconditions, the slow deletion of pods, tokens, reviews,
//! certificate requests. It is reached within the process ([`FakeApiServer::client`]) or over
//! loopback, with TLS or without. Tests look at what it keeps rather than at the calls they made.
//!
//! Guarantees: within the process all its time is Tokio's, so that it works under paused time;
//! everything random comes from one seed. Like the real thing it passes [`contract::run`].
//!
//! Not here: authorization beyond "known or not", admission, controllers, validation beyond what a
//! kubelet can run into.

mod authority;
pub mod contract;
mod faults;
mod inspect;
mod kinds;
mod merge;
mod operations;
mod pods;
mod refusal;
mod reviews;
mod route;
mod selector;
mod server;
mod serving;
mod storage;
mod watching;

pub use authority::{Authority, Pair};
pub use faults::{Fault, FaultAction};
pub use reviews::User;
pub use server::{FakeApiServer, FakeOptions};
pub use serving::Listening;
