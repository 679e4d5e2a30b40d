//! HTTP, TCP and gRPC requests to a container, for probes and lifecycle hooks.
