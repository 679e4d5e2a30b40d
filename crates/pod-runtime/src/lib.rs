//! Carries out the life of a pod on the runtime: sandbox and container configuration, start, stop, hooks, logs.
