//! A replicated log: a primary and replica processes, over ibex or over sockets.
//!
//! `cargo run --release -p ibex-replication -- --replicas 2` starts its replicas itself. See
//! `--help` and the README beside this file for the rest.
//!
//! Reading order: [`log`] is the storage; [`replica`] and [`primary`] are the two programs;
//! [`catch_up`] and [`quorum`] are the primary's view of its replicas; [`transport`] is the
//! interface to the carriers of the log; and [`fire`] tests it all while everything breaks.

mod catch_up;
mod compare;
mod fire;
mod load;
mod log;
mod options;
mod plot;
mod primary;
mod processes;
mod progress;
mod quorum;
mod raw_copy;
mod replica;
mod report;
mod run;
mod transport;

use std::{fs, process::ExitCode};

use clap::{CommandFactory, Parser, error::ErrorKind};
use ibex_harness::Error;

use crate::{
    options::{Options, TransportName},
    plot::Curve,
    progress::Progress,
    report::{HEADING, Line, Logs},
};

fn main() -> ExitCode {
    if let Some(code) = processes::run_if_started() {
        return code;
    }
    let mut options = Options::parse();
    if let Err(refusal) = options.check() {
        Options::command()
            .error(ErrorKind::ValueValidation, refusal)
            .exit();
    }
    match run_with_keys(&mut options) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("replication: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Runs, with keys made for this run if nodes authenticate each other.
fn run_with_keys(options: &mut Options) -> Result<bool, Error> {
    let keys = options.make_keys()?;
    let outcome = run(options);
    if let Some(keys) = keys {
        keys.remove();
    }
    outcome
}

/// Does what the options ask for. Returns whether all logs were equal at the end.
fn run(options: &Options) -> Result<bool, Error> {
    if let Some(seconds) = options.fire {
        return fire::run(options, seconds);
    }
    let records = options.source().records(options.record_bytes());
    let progress = Progress::new(records, !options.json);
    let (curves, all_equal) = if options.compare {
        compare::compare(options, &progress)?
    } else {
        run_once(options, &progress)?
    };
    progress.finish();
    if let Some(path) = &options.plot {
        let title = format!(
            "{} replicas, records of {} bytes, {} outstanding",
            options.replicas,
            options.record_bytes(),
            options.pace().outstanding
        );
        fs::write(path, plot::svg(&title, &curves)).map_err(Error::io("writing the plot"))?;
    }
    Ok(all_equal)
}

fn run_once<'a>(options: &Options, progress: &Progress) -> Result<(Vec<Curve<'a>>, bool), Error> {
    let (transport, name) = match options.transport() {
        TransportName::Ibex => (TransportName::Ibex, "ibex"),
        TransportName::Sockets => (TransportName::Sockets, "sockets"),
    };
    progress.begin(name);
    let outcome = run::run(options, transport, progress)?;
    if options.json {
        progress.print(&report::to_json(options, &outcome))?;
    } else {
        progress.print(&HEADING)?;
        progress.print(&Line(&outcome))?;
        progress.print(&Logs(&outcome))?;
    }
    let is_equal = outcome.differing().is_empty();
    let latency_ns = outcome.latency_ns;
    Ok((vec![Curve { name, latency_ns }], is_equal))
}
