//! The command runner.
fn main() {}
