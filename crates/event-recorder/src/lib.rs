//! Kubernetes events on their way out: to the log, and in a cluster to the API server.
//!
//! What: [`event_recorder`] gives an [`rubelet_types::EventRecorder`] that anybody may call from
//! anywhere, and the [`EventSender`] that carries what is recorded to an [`EventPort`].
//! [`Correlator`] is the pure part: identical events become one object that counts, similar ones are
//! combined, and an object that is in trouble without end is cut short. [`log_events`] is the
//! recorder of a kubelet that has no API server.
//!
//! Guarantees: recording never blocks and never fails; what finds no room in the queue is counted
//! and logged. No two events of one kubelet have one name. Every event stands in the log, whatever
//! becomes of it after.
//!
//! Assumptions: the port has a deadline of its own for each call, and answers honestly whether a
//! failure may pass.
//!
//! Not here: which events there are, and the API client.

mod api_event;
mod correlator;
mod log;
mod lru;
mod recorder;
mod sender;
mod token_bucket;

pub use correlator::{Correlated, Correlator};
pub use log::log_events;
pub use recorder::{EventCounters, EventCounts, EventRecorderSettings, event_recorder};
pub use sender::{EventPort, EventSender, SendEventError};
