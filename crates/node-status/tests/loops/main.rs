//! Registration, heartbeats and lease against a small API server with faults, in paused time.

#![allow(clippy::unwrap_used)] // Functions that tests share are not seen as tests.

mod api_server;
mod bed;
mod fake_api;
mod heartbeat;
mod lease;
mod machine;
mod patches;
mod registration;
mod runtime;
