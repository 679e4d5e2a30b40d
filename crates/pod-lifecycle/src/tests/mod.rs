//! Ring 1: decision tables in a small language. Ring 2: random histories in a model world.
//! `agreement`: the end of a pod is the same to the brain and to its status.

mod agreement;
mod cases;
mod language;
mod properties;
mod world;
