//! A small working container runtime behind CRI, with fault knobs, for tests.
