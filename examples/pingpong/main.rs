//! How fast is ibex here, and how close to what the hardware can do?
//!
//! `cargo run --release --example pingpong` starts its own peer process, measures
//! every fabric of this machine beside the raw limit, and prints a table, each row as
//! soon as it is measured. See `--help` for the rest.

mod measurement;
mod options;
mod other_host;
mod progress;

use std::process::ExitCode;

use clap::Parser;
use ibex::Fabric;
use ibex_harness::{
    Error,
    cores::{self, Cores},
    interleave,
    job::{Job, Mode},
    limit::Limit,
    pair,
    row::{FOOTING, HEADING, Row, Subject},
};

use crate::{
    measurement::session::{self, FabricName, Order, Setup},
    options::{Options, Plan, VerbsOnly},
    progress::Progress,
};

fn main() -> ExitCode {
    if let Some(code) = pair::run_if_peer(session::answer_here) {
        return code;
    }
    match run(&Options::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("pingpong: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Does what was asked for; whether everything came as it was sent.
fn run(options: &Options) -> Result<bool, Error> {
    let cores = cores::choose(options.cores)?;
    if let Some(address) = &options.listen {
        let setup = Setup {
            driver: options.driver,
            fabric: options.required_fabric(),
        };
        return other_host::serve(address, cores[1], setup).map(|()| true);
    }
    let Plan {
        fabrics,
        verbs,
        shapes,
    } = options.plan();
    let measuring = Measuring {
        options,
        cores,
        progress: Progress::new(fabrics.len() * shapes.len() * PAIRS, !options.json),
    };
    let has_table = !options.json && !fabrics.is_empty();
    if has_table {
        measuring.progress.print(&HEADING)?;
    }
    let mut all_sound = true;
    for fabric in fabrics {
        let setup = Setup {
            driver: options.driver,
            fabric,
        };
        for &(mode, size) in &shapes {
            let row = match &options.connect {
                Some(address) => measuring.with_another_host(address, setup, mode, size)?,
                None => measuring.here(setup, mode, size)?,
            };
            all_sound &= row.is_sound();
            if options.json {
                measuring.progress.print(&row.to_json())?;
            } else {
                measuring.progress.print(&row)?;
            }
        }
    }
    measuring.progress.finish();
    if has_table {
        measuring.progress.print(&FOOTING)?;
    }
    if verbs.is_some() {
        let note = format!("verbs: {WITHOUT_VERBS}");
        if options.json {
            measuring.progress.note(&note);
        } else {
            measuring.progress.print(&note)?;
        }
    }
    let all_asked_for = !matches!(verbs, Some(VerbsOnly(true)));
    Ok(all_asked_for && all_sound)
}

/// What all rows of a run have in common.
struct Measuring<'a> {
    options: &'a Options,
    cores: Cores,
    progress: Progress,
}

impl Measuring<'_> {
    /// A row between this process and its own peer, with its limit.
    fn here(&self, setup: Setup, mode: Mode, size: usize) -> Result<Row, Error> {
        let codec = self.options.codec;
        let fabric = match setup.fabric {
            Some(fabric) => fabric,
            None => self.automatic(setup)?,
        };
        let job = self.options.job(fabric, mode, size);
        let title = format!("{} {} {size} B", Fabric::from(fabric), mode.name());
        let limit = Limit::from(fabric);
        let run = interleave::run(
            self.cores,
            PAIRS,
            || {
                self.progress.step(&title, "the limit");
                limit.measure(self.cores, Job { flip: false, ..job })
            },
            || {
                self.progress.step(&title, "ibex");
                session::with_peer(self.cores, setup, |peer| {
                    session::measure(peer, self.cores[0], Order { job, codec })
                })
            },
        )?;
        let chosen = run
            .damaged
            .as_ref()
            .unwrap_or_else(|| run.series[0].median());
        let limit = (&chosen.limit, chosen.crossing.regime());
        Ok(Row::new(
            self.subject(fabric.into()),
            &self.cores,
            &chosen.subject,
            Some(limit),
        ))
    }

    /// A row with a listener on another host.
    fn with_another_host(
        &self,
        address: &str,
        setup: Setup,
        mode: Mode,
        size: usize,
    ) -> Result<Row, Error> {
        let job = self
            .options
            .job(setup.fabric.unwrap_or(FabricName::Tcp), mode, size);
        self.progress
            .step(&format!("{} {size} B", mode.name()), address);
        let order = Order {
            job,
            codec: self.options.codec,
        };
        let (figures, fabric) = other_host::measure(address, self.cores, setup, order)?;
        Ok(Row::new(
            self.subject(fabric),
            &self.cores[..1],
            &figures,
            None,
        ))
    }

    /// The fabric that ibex chooses by itself, found out by a very short session.
    fn automatic(&self, setup: Setup) -> Result<FabricName, Error> {
        let job = Job {
            mode: Mode::Latency,
            size: 0,
            iters: 1,
            flip: false,
        };
        let order = Order {
            job,
            codec: self.options.codec,
        };
        let (fabric, reason) = session::with_peer(self.cores, setup, |peer| {
            session::measure(peer, self.cores[0], order)?;
            Ok((peer.fabric(), peer.fabric_reason().to_owned()))
        })?;
        self.progress.note(&format!("auto: {fabric} ({reason})"));
        match fabric {
            Fabric::Shm => Ok(FabricName::Shm),
            Fabric::Tcp => Ok(FabricName::Tcp),
            other => Err(Error::subject(format!(
                "there is no raw limit for {other} yet"
            ))),
        }
    }

    fn subject(&self, fabric: Fabric) -> Subject {
        Subject {
            fabric: fabric.to_string(),
            driver: self.options.driver.name().to_owned(),
            codec: self.options.codec.name().to_owned(),
        }
    }
}

/// Pairs of limit and ibex from which the median is shown.
const PAIRS: usize = 3;

const WITHOUT_VERBS: &str = if cfg!(feature = "verbs") {
    "compiled in, but this version cannot use a device yet"
} else {
    "not compiled in: --features verbs"
};
