//! What to do next for one pod: sandbox, containers, restarts, back-off, hooks, termination.
