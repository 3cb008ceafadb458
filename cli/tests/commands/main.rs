//! The command, run as its users run it.

mod config;
mod doctor;
mod info;
mod keygen;
mod machine;
#[path = "../../../tests/namespace/mod.rs"]
mod namespace;
mod perf;
mod ping;
mod top;
mod watch;
