//! Tokens of pods' service accounts.
//!
//! What: [`TokenManager`] gets a token that is bound to a pod, keeps it, and renews it in good time.
//! Not here: where tokens are shown.
//!
//! Guarantees: one request at a time per token; a token that still holds is given while the API
//! server does not answer; no token outlives its pod here, nor is it ever shown in a log.

mod api_server;
mod manager;
mod port;
mod token;

pub use manager::{TokenError, TokenManager};
pub use port::{TokenApi, TokenFailure};
pub use token::{IssuedToken, WantedToken};
