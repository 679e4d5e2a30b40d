//! The container runtime interface (CRI v1): protocol, client, errors, deadlines.
