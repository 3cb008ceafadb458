//! Async programs over ibex beside the same programs over tokio's sockets.
//!
//! `cargo bench --bench asynchronous` takes some minutes; words behind `--` (`-- hyper shm`) choose
//! rows by their names, and `-- --help` lists the options. Each end is a process with its own
//! runtime of tokio. Every figure of a round is measured between two new processes, in turn with
//! the others, and a ratio compares figures of the same round.

#![forbid(unsafe_code)]

mod calls;
mod end;
mod http;
mod idle;
mod laps;
mod options;
mod order;
mod pattern;
mod ping_pong;
mod raft;
mod rows;
mod session;
mod streams;
mod table;
mod tonic_calls;

use std::process::ExitCode;

use clap::Parser;
use ibex_harness::{
    Error,
    cores::{self, Cores},
    pair,
    regime::{self, Regime},
};

use crate::{
    options::Options,
    order::Order,
    rows::Row,
    table::{HEADING, LEGEND, Line, Round},
};

fn main() -> ExitCode {
    if let Some(code) = pair::run_if_peer(session::answer) {
        return code;
    }
    let options = Options::parse();
    match run(&options) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("asynchronous: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Measures and prints the chosen rows. Returns false if one of them could not be measured.
fn run(options: &Options) -> Result<bool, Error> {
    let mut groups = rows::groups(options.quick);
    for group in &mut groups {
        group.retain(|row| row.is_chosen(&options.words));
    }
    if groups.iter().all(Vec::is_empty) {
        return Err(no_such_row(&options.words));
    }
    if options.list {
        for row in groups.iter().flatten() {
            println!("{}", row.name());
        }
        return Ok(true);
    }
    let cores = cores::choose(None)?;
    if !options.json {
        println!("{LEGEND}\n\n{HEADING}");
    }
    let (mut is_whole, mut rounds, mut far_rounds) = (true, 0, 0);
    for group in groups.iter().filter(|group| !group.is_empty()) {
        let measured = Measured::new(cores, options.rounds(), group)?;
        rounds += u32::from(options.rounds());
        far_rounds += measured.far_rounds;
        for row in group {
            match measured.line(row) {
                Some(line) if options.json => println!("{}", line.to_json()),
                Some(line) => println!("{line}"),
                None => is_whole = false,
            }
        }
    }
    eprintln!(
        "cores {cores:?} were far apart ({} ns or more for a cache line) in {far_rounds} of \
         {rounds} rounds",
        regime::BOUNDARY.as_nanos()
    );
    Ok(is_whole)
}

/// The figures of the orders that a group of rows needs, each measured once in a round.
struct Measured {
    figures: Vec<(Order, Vec<Option<f64>>)>,
    /// Rounds that began with the two cores far apart.
    far_rounds: u32,
}

impl Measured {
    fn new(cores: Cores, rounds: u16, group: &[Row]) -> Result<Measured, Error> {
        let mut far_rounds = 0;
        let mut figures: Vec<(Order, Vec<Option<f64>>)> = Vec::new();
        for order in group
            .iter()
            .flat_map(|row| [row.baseline, Some(row.subject)])
        {
            match order {
                Some(order) if !figures.iter().any(|(known, _)| *known == order) => {
                    figures.push((order, Vec::new()));
                }
                _ => {}
            }
        }
        for _ in 0..rounds {
            far_rounds += u32::from(are_far(cores)?);
            for (order, of_rounds) in &mut figures {
                let figure = session::measure(cores, *order);
                // The error is printed at once, since the rounds after it take a while.
                let figure = figure.inspect_err(|error| eprintln!("{}: {error}", order.name()));
                of_rounds.push(figure.ok());
            }
        }
        Ok(Measured {
            figures,
            far_rounds,
        })
    }

    /// Returns the line of a row, from the rounds that have all its figures.
    fn line(&self, row: &Row) -> Option<Line> {
        let subject = self.of(row.subject);
        let rounds = match row.baseline {
            None => subject
                .iter()
                .flatten()
                .map(|&subject| Round {
                    subject,
                    baseline: None,
                })
                .collect(),
            Some(baseline) => subject
                .iter()
                .zip(self.of(baseline))
                .filter_map(|(subject, baseline)| {
                    Some(Round {
                        subject: (*subject)?,
                        baseline: Some((*baseline)?),
                    })
                })
                .collect(),
        };
        Line::of(row, rounds)
    }

    fn of(&self, order: Order) -> &[Option<f64>] {
        let known = self.figures.iter().find(|(known, _)| *known == order);
        known.map_or(&[], |(_, figures)| figures)
    }
}

/// Returns whether the two cores are far apart now. Those of a virtual machine may become so at any
/// time, and figures of shared memory are higher then.
fn are_far(cores: Cores) -> Result<bool, Error> {
    Ok(regime::measure(cores)?.regime() == Regime::Far)
}

/// Names the rows that exist.
fn no_such_row(words: &[String]) -> Error {
    let rows = rows::groups(false);
    let names: Vec<_> = rows.iter().flatten().map(Row::name).collect();
    Error::subject(format!(
        "there is no row whose name holds {words:?}, but:\n  {}",
        names.join("\n  ")
    ))
}
