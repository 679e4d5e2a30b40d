//! The managers against a cluster that signs, in simulated time.

mod bootstrap;
mod client;
mod cluster;
mod serving;
