//! Real faults on real processes. One process listens; others connect, exchange messages with it,
//! and are killed, stopped, starved and cut off meanwhile. The checker, a process of its own,
//! learns through a pipe of every message that is sent and received.
//!
//! `cargo xtask soak --seconds 30 --fabric tcp` builds and runs it; `supervisor.rs` is the run,
//! `fault.rs` lists the faults, `checker/ledger.rs` states what must hold.

mod checker;
mod fact;
mod fault;
mod hub;
mod news;
mod node;
mod options;
mod payload;
mod processes;
mod report;
mod sender;
mod stream;
mod supervisor;

use std::{io, process::ExitCode};

use clap::Parser;
use ibex_harness::network;

use options::{Options, Role, RunOptions};

fn main() -> ExitCode {
    let Options { role, run } = Options::parse();
    let done = match role {
        None => soak(&run),
        Some(Role::Checker) => checker::run().map(|()| ExitCode::SUCCESS),
        Some(Role::Hub(options)) => hub::run(&options).map(|()| ExitCode::SUCCESS),
        Some(Role::Sender(options)) => sender::run(&options).map(|()| ExitCode::SUCCESS),
    };
    done.unwrap_or_else(|error| {
        eprintln!("soak: {error}");
        ExitCode::FAILURE
    })
}

fn soak(options: &RunOptions) -> io::Result<ExitCode> {
    network::move_away(options.fabric.medium());
    let report = supervisor::run(options)?;
    if options.json {
        println!(
            "{}",
            serde_json::to_string(&report).map_err(io::Error::other)?
        );
    } else {
        print!("{report}");
    }
    Ok(match report.failures.is_empty() {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    })
}
