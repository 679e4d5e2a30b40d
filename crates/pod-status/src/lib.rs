//! What to report for one pod: phase, conditions, container statuses.
