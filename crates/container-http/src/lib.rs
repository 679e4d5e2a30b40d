//! Requests to a container: `httpGet`, `tcpSocket` and `grpc` of probes, `httpGet` of lifecycle
//! hooks.
//!
//! What: one [`ContainerClient`], whose every call opens one connection, makes one attempt and
//! reports what happened in the words that Kubernetes users know from the Go kubelet's events
//! (`Get "http://10.0.0.1:80/": dial tcp 10.0.0.1:80: connect: connection refused`).
//!
//! Not here: thresholds, periods, events, retries. Nothing of the node leaks into a request: no
//! proxy, no cookies, no keep-alive, no content negotiation beyond what the pod's author wrote.
//!
//! Every call is cancel-safe: dropping its future closes its connection, and no task outlives it.
//!
//! # Why there is no `SO_LINGER`
//!
//! The Go kubelet sets `SO_LINGER` to one second on these sockets, meant to keep the node from
//! filling up with connections in `TIME_WAIT` (kubernetes#89898). On Linux that option does not
//! shorten `TIME_WAIT`; it makes `close` block the calling thread until the peer acknowledges,
//! which here would be a thread of the executor. The aim is met in another way: a request asks for
//! `Connection: close` and, once the response is complete, waits a moment for the server to close
//! first, so that `TIME_WAIT` stays with the container and not with the node.

mod dial;
mod grpc;
mod http_get;
mod outcome;
mod port;
mod record;
mod target;
mod tls;
mod url;

pub use dial::DialError;
pub use http_get::{ContainerClient, HookResponse, HttpFailure, HttpGetError, HttpResponse};
pub use outcome::{ErroredAs, ProbeOutcome};
pub use port::{PortError, resolve_port};
pub use target::{HttpTarget, Purpose, Scheme};
