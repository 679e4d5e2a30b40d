//! Liveness, readiness and startup probes of running containers.
