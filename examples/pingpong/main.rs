//! ibex beside the raw limits of this machine: how fast it is, and how close to what the hardware
//! can do.
//!
//! `cargo run --release --example pingpong` starts its own peer process, measures every fabric of
//! this machine beside the raw limit, and prints a table, each row as soon as it is measured. See
//! `--help` for the rest.

mod measurement;
mod options;
mod other_host;
mod progress;

use std::{process::ExitCode, time::Duration};

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
    run_keys::RunKeys,
    verbs_port::VerbsPort,
};

use crate::{
    measurement::{
        pairs,
        session::{self, FEWEST_ITERS, FabricName, Order, Setup},
    },
    options::{Options, Plan},
    progress::Progress,
};

fn main() -> ExitCode {
    if let Some(code) = pair::run_if_peer(session::answer_here) {
        return code;
    }
    let options = Options::parse();
    let protection = match options.protection() {
        Ok(protection) => protection,
        Err(error) => {
            eprintln!("pingpong: {error}");
            return ExitCode::FAILURE;
        }
    };
    let outcome = run(&options, protection);
    if let Some(protection) = protection {
        protection.remove();
    }
    match outcome {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("pingpong: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Runs what the options ask for. Returns whether every row was measured and every payload arrived
/// intact.
fn run(options: &Options, protection: Option<RunKeys>) -> Result<bool, Error> {
    let allowed = cores::allowed()?;
    let cores = cores::choose(options.cores)?;
    if let Some(address) = &options.listen {
        let setup = options.setup(options.required_fabric(), protection);
        return other_host::serve(address, cores[1], setup).map(|()| true);
    }
    let Plan {
        mut fabrics,
        shapes,
    } = options.plan();
    let verbs = fabrics
        .iter()
        .position(|fabric| *fabric == Some(FabricName::Verbs));
    let no_verbs = verbs.and_then(|place| {
        let reason = VerbsPort::choose().err().map(why_no_verbs)?;
        fabrics.remove(place);
        Some(reason)
    });
    let measuring = Measuring {
        options,
        cores,
        allowed,
        progress: Progress::new(fabrics.len() * shapes.len() * PAIRS, !options.json),
    };
    let has_rows = !fabrics.is_empty();
    let has_table = !options.json && has_rows;
    if has_table {
        measuring.progress.print(&HEADING)?;
    }
    let mut all_sound = true;
    for fabric in fabrics {
        let setup = options.setup(fabric, protection);
        for &(mode, size) in &shapes {
            let row = match &options.connect {
                Some(address) => measuring.with_another_host(address, setup, mode, size)?,
                None => match measuring.on_this_host(setup, mode, size) {
                    Ok(row) => row,
                    Err(error) => {
                        // A row that fails does not keep the others from being measured.
                        all_sound = false;
                        measuring.failed(setup, mode, size, &error);
                        continue;
                    }
                },
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
    if let Some(reason) = no_verbs {
        let note = format!("verbs: {reason}");
        if options.json {
            measuring.progress.note(&note);
        } else {
            measuring.progress.print(&note)?;
        }
    }
    // Only verbs was asked for and there is no device, so nothing was measured.
    Ok(all_sound && has_rows)
}

/// Values that all rows of a run share.
struct Measuring<'a> {
    options: &'a Options,
    /// The cores for rows of one session.
    cores: Cores,
    /// The cores for rows of several sessions.
    allowed: Vec<usize>,
    progress: Progress,
}

impl Measuring<'_> {
    /// Measures a row between this process and a peer process that it starts.
    fn on_this_host(&self, setup: Setup, mode: Mode, size: usize) -> Result<Row, Error> {
        let fabric = match setup.fabric {
            Some(fabric) => fabric,
            None => self.automatic(setup)?,
        };
        match setup.sessions {
            1 => self.beside_limit(setup, fabric, mode, size),
            _ => self.of_pairs(setup, fabric, mode, size),
        }
    }

    /// Measures a row of one session beside the raw limit.
    fn beside_limit(
        &self,
        setup: Setup,
        fabric: FabricName,
        mode: Mode,
        size: usize,
    ) -> Result<Row, Error> {
        let codec = self.options.codec;
        let title = format!("{} {} {size} B", Fabric::from(fabric), mode.name());
        let limit = Limit::from(fabric);
        let mut job = self.options.job(fabric, mode, size);
        if self.options.leaves_iters_to_us() {
            job.iters = self.bearable_iters(limit, job)?;
        }
        let port = match fabric {
            FabricName::Verbs => Some(VerbsPort::choose()?),
            _ => None,
        };
        // Messages that the device sent, over all measurements of this row; `None` if the device
        // does not count them.
        let mut sends = Some(0);
        let run = interleave::run(
            self.cores,
            PAIRS,
            || {
                self.progress.step(&title, "the limit");
                limit.measure(self.cores, Job { flip: false, ..job })
            },
            || {
                self.progress.step(&title, "ibex");
                let measure = || {
                    session::with_peer(self.cores, setup, |peer| {
                        session::measure(peer, self.cores[0], Order::checked(job, codec))
                    })
                };
                let Some(port) = &port else {
                    return measure();
                };
                let (figures, more) = port.during(measure)?;
                sends = sends.zip(more).map(|(sends, more)| sends + more);
                Ok(figures)
            },
        )?;
        if let Some(port) = port {
            let sends = sends.map_or("not counted".to_owned(), |sends| format!("+{sends}"));
            self.progress
                .note(&format!("{title}: {port}, rdma_sends {sends}"));
        }
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

    /// Measures a row of several sessions at once.
    fn of_pairs(
        &self,
        setup: Setup,
        fabric: FabricName,
        mode: Mode,
        size: usize,
    ) -> Result<Row, Error> {
        let title = format!("{} {} {size} B", Fabric::from(fabric), mode.name());
        self.progress
            .step(&title, &format!("{} pairs", setup.sessions));
        let mut job = self.options.job(fabric, mode, size);
        if self.options.leaves_iters_to_us() {
            let sessions = setup.sessions as u64;
            job.iters = (job.iters / sessions).max(FEWEST_ITERS);
        }
        let order = Order::checked(job, self.options.codec);
        let figures = session::with_sessions(self.cores, &self.allowed, setup, |peers| {
            pairs::measure(peers, &self.allowed, order)
        })?;
        let subject = self.subject(fabric.into());
        Ok(Row::of_pairs(
            subject,
            &self.allowed,
            &figures,
            setup.io_threads,
        ))
    }

    /// Reports why a row is missing.
    fn failed(&self, setup: Setup, mode: Mode, size: usize, error: &Error) {
        let fabric = match setup.fabric {
            Some(fabric) => Fabric::from(fabric).to_string(),
            None => "automatic".to_owned(),
        };
        let mode = mode.name();
        self.progress
            .note(&format!("pingpong: {fabric} {mode} {size} B: {error}"));
    }

    /// Returns the iterations of `job`, or fewer if the limit would need longer than [`USUAL_TIME`]
    /// for them. An emulated machine may be fifty times slower than a usual one.
    fn bearable_iters(&self, limit: Limit, job: Job) -> Result<u64, Error> {
        let trial = Job {
            iters: (job.iters / TRIAL).max(FEWEST_ITERS),
            flip: false,
            ..job
        };
        // The faster of two trials counts: a disturbance makes a trial slower, never faster.
        let mut rate = 0.0_f64;
        for _ in 0..2 {
            rate = rate.max(limit.measure(self.cores, trial)?.messages_per_second());
        }
        let iters = (rate * USUAL_TIME.as_secs_f64()) as u64;
        Ok(iters.clamp(FEWEST_ITERS, job.iters))
    }

    /// Measures a row with a listener on another host.
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
        let order = Order::checked(job, self.options.codec);
        let (figures, fabric) = other_host::measure(address, self.cores, setup, order)?;
        Ok(Row::new(
            self.subject(fabric),
            &self.cores[..1],
            &figures,
            None,
        ))
    }

    /// Returns the fabric that ibex chooses by itself, learned from a very short session.
    fn automatic(&self, setup: Setup) -> Result<FabricName, Error> {
        let job = Job {
            mode: Mode::Latency,
            size: 0,
            iters: 1,
            flip: false,
        };
        let order = Order::checked(job, self.options.codec);
        let one = Setup {
            sessions: 1,
            ..setup
        };
        let (fabric, reason) = session::with_peer(self.cores, one, |peer| {
            session::measure(peer, self.cores[0], order)?;
            Ok((peer.fabric(), peer.fabric_reason().to_owned()))
        })?;
        self.progress.note(&format!("auto: {fabric} ({reason})"));
        Ok(match fabric {
            Fabric::Shm => FabricName::Shm,
            Fabric::Tcp => FabricName::Tcp,
            Fabric::Verbs => FabricName::Verbs,
        })
    }

    fn subject(&self, fabric: Fabric) -> Subject {
        Subject {
            fabric: fabric.to_string(),
            driver: self.options.driver().name().to_owned(),
            codec: self.options.codec.name().to_owned(),
        }
    }
}

/// Pairs of limit and ibex per row; the pair with the median ratio is shown.
const PAIRS: usize = 3;
/// Divisor of a measurement's iterations that gives those of the trial which precedes it.
const TRIAL: u64 = 50;
/// Time that the usual numbers of iterations are meant to take.
const USUAL_TIME: Duration = Duration::from_millis(500);

/// Says why there is no row for verbs, in the library's words if discovery fails there.
fn why_no_verbs(error: Error) -> String {
    #[cfg(feature = "verbs")]
    if let Err(error) = ibex::rdma::discover() {
        return error.to_string();
    }
    match error {
        Error::NoRdma(reason) => reason,
        other => other.to_string(),
    }
}
