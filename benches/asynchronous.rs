//! Starts the benchmark in `integrations/comparison` and passes the arguments on.
//!
//! hyper, tonic and openraft are dependencies of that package alone, so that other benchmarks neither
//! build them nor enable the features of ibex that they need.

use std::{env, os::unix::process::CommandExt, process::Command};

fn main() {
    let arguments: Vec<_> = env::args_os().skip(1).collect();
    // `cargo test --benches` omits `--bench`; then a short run shows that the program works.
    let is_test = !arguments.iter().any(|argument| argument == "--bench");
    let mut cargo = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .args("bench --package ibex-comparison --bench asynchronous --".split(' '))
        .args(is_test.then_some("--quick"))
        .args(arguments.iter().filter(|argument| *argument != "--bench"));
    let error = cargo.exec();
    eprintln!("asynchronous: starting {cargo:?}: {error}");
    std::process::exit(1);
}
