//! Pod lifecycle event generator: relist as truth, runtime events as hints.
