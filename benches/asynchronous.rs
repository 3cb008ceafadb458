//! Starts the benchmark in `integrations/comparison` and hands it the arguments.
//!
//! hyper, tonic and openraft are dependencies of the workspace `integrations/` alone, so that
//! commands at the repository's root neither build them nor build ibex with the features that
//! they need.

use std::{env, os::unix::process::CommandExt, process::Command};

fn main() {
    let arguments: Vec<_> = env::args_os().skip(1).collect();
    // Cargo's `test --benches` comes without this word, to see that the program runs.
    let is_test = !arguments.iter().any(|argument| argument == "--bench");
    let mut cargo = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo
        .args(["bench", "--manifest-path", MANIFEST])
        .args([
            "--package",
            "ibex-comparison",
            "--bench",
            "asynchronous",
            "--",
        ])
        .args(is_test.then_some("--quick"))
        .args(arguments.iter().filter(|argument| *argument != "--bench"));
    let error = cargo.exec();
    eprintln!("asynchronous: starting {cargo:?}: {error}");
    std::process::exit(1);
}

const MANIFEST: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/integrations/Cargo.toml");
