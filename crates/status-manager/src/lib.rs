//! The statuses of all pods, versioned, and who has to be told.
