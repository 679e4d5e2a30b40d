//! The front door: demo, test, lint, bench.
fn main() {}
