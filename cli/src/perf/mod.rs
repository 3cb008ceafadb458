//! `ibex perf`: how fast ibex is between two processes, of this machine or of two, beside the raw
//! limits, plain TCP and TLS.
//!
//! Without HOST it starts its own peer process. Each row is printed as soon as it is measured.

mod busy;
mod options;
mod other_host;
mod place;
mod progress;
mod save;
mod table;

use ibex::Fabric;
use ibex_harness::Error;
use ibex_harness::cores;
use ibex_harness::histogram::Distribution;
use ibex_harness::interleave::{self, Measured};
use ibex_harness::job::{Figures, Job, Mode};
use ibex_harness::limit::Limit;
use ibex_harness::regime::Regime;
use ibex_harness::row::{Row, Subject, bytes};
use ibex_harness::run_keys::RunKeys;
use ibex_harness::verbs_port::VerbsPort;
use ibex_measurement::session::{self, FEWEST_ITERS, FabricName, Order, Setup};

pub(crate) use options::PerfOptions;
use options::Plan;
use place::Place;
use progress::Progress;
use table::Table;

use crate::Failure;

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::said(error.to_string())
    }
}

/// Runs the subcommand.
pub(crate) fn run(options: &PerfOptions) -> Result<u8, Failure> {
    let protection = options.protection()?;
    let done = measure(options, protection);
    if let Some(protection) = protection {
        protection.remove();
    }
    done
}

fn measure(options: &PerfOptions, protection: Option<RunKeys>) -> Result<u8, Failure> {
    let allowed = cores::allowed()?;
    if let Some(address) = &options.listen {
        let core = *allowed.last().expect("this thread runs somewhere");
        let setup = options.setup(None, protection);
        return Ok(other_host::serve(address, core, &allowed, setup)?);
    }
    let place = match &options.to {
        // One core is enough here, since the other end is on another host.
        Some(to) => Place::there(to, allowed[0], &allowed)?,
        None => Place::here(cores::choose(options.cores)?, &allowed),
    };
    let Plan { fabrics, shapes } = options.plan();
    let has_baselines = fabrics.contains(&Some(FabricName::Tcp)) && options.pairs() == 1;
    let baselines = if has_baselines { BASELINES } else { &[] };
    let rows = (fabrics.len() + baselines.len()) * shapes.len();
    let mut run = Run {
        options,
        place,
        progress: Progress::new(rows, !options.json, options.interval(), &allowed),
        table: Table::default(),
        kept: Vec::new(),
        is_all_sound: true,
        has_limits: true,
    };
    let opening = table::opening(options, &run.place);
    if !options.json {
        run.progress.print(&opening)?;
    }
    if cfg!(debug_assertions) {
        run.progress.note(
            "note: this build is not optimized, so its figures say little; cargo run --release",
        );
    }
    if let Some(percent) = busy::percent(&allowed).filter(|percent| *percent >= busy::TOLD) {
        run.progress.note(&format!(
            "note: other programs use {percent} % of this machine's processors, so its figures are \
             lower than on a machine at rest, and scatter"
        ));
    }
    if run.place.is_there() {
        run.try_limits(options.setup(None, protection));
    }
    let setups = fabrics
        .into_iter()
        .filter_map(|fabric| run.resolve(options.setup(fabric, protection)));
    let setups: Vec<_> = setups.collect();
    let baselines = if run.has_limits { baselines } else { &[] };
    // All rows of a mode stand in one table.
    for shapes in shapes.chunk_by(|a, b| a.0 == b.0) {
        for &(setup, fabric) in &setups {
            run.fabric(setup, fabric, shapes)?;
        }
        for &(name, limit) in baselines {
            run.baseline(name, limit, options.setup(None, protection), shapes)?;
        }
    }
    run.progress.finish();
    if run.kept.is_empty() {
        return Ok(3);
    }
    if !options.json {
        run.progress.print(&table::FOOTING)?;
    }
    if let Some(folder) = &options.save {
        save::write(folder, &run.kept, &opening)?;
        run.progress
            .note(&format!("{}: rows and plots", folder.display()));
    }
    Ok(if run.is_all_sound { 0 } else { 3 })
}

/// A row that was measured, with all its times.
pub(crate) struct Kept {
    pub(crate) row: Row,
    pub(crate) distribution: Option<Distribution>,
}

/// What all rows of a run share.
struct Run<'a> {
    options: &'a PerfOptions,
    place: Place,
    progress: Progress,
    table: Table,
    kept: Vec<Kept>,
    is_all_sound: bool,
    /// Cleared if bare sockets do not reach the other host.
    has_limits: bool,
}

impl Run<'_> {
    /// Tries whether bare sockets reach the other host, which take other ports than sessions do.
    fn try_limits(&mut self, setup: Setup) {
        let one = Job {
            iters: 1,
            rate: None,
            flip: false,
            mode: Mode::Latency,
            size: 0,
        };
        if let Err(error) = self.place.limit(Limit::Tcp, setup, one) {
            self.has_limits = false;
            self.progress.note(&format!(
                "no limits, plain TCP and TLS: {error} (each measurement of them takes a free port \
                 of the other host, which a firewall must let through)"
            ));
        }
    }

    /// Returns the setup of a fabric that sessions can take, and the fabric.
    fn resolve(&self, setup: Setup) -> Option<(Setup, FabricName)> {
        let fabric = match setup.fabric {
            Some(fabric) if fabric != FabricName::Verbs && !self.place.is_there() => Ok(fabric),
            _ => self.look(setup),
        };
        match fabric {
            Ok(fabric) => {
                let setup = Setup {
                    fabric: Some(fabric),
                    ..setup
                };
                Some((setup, fabric))
            }
            Err(why) => {
                let name = setup.fabric.map_or("auto".to_owned(), name_of);
                self.progress.note(&format!("{name}: none: {why}"));
                None
            }
        }
    }

    /// Measures rows of a fabric.
    fn fabric(
        &mut self,
        setup: Setup,
        fabric: FabricName,
        shapes: &[(Mode, usize)],
    ) -> Result<(), Error> {
        for &(mode, size) in shapes {
            let title = format!("{} {} {}", name_of(fabric), mode.name(), bytes(size as f64));
            let row = self.row(setup, fabric, mode, size, &title);
            self.keep(&title, row)?;
        }
        Ok(())
    }

    /// Returns the fabric of a very short session, or why there is none.
    fn look(&self, setup: Setup) -> Result<FabricName, Error> {
        if let Place::Here { .. } = self.place
            && setup.fabric == Some(FabricName::Verbs)
        {
            let address = VerbsPort::choose().map(|_| ());
            return match address.or_else(|error| session::own_choice().ok_or(error).map(|_| ())) {
                Ok(()) => Ok(FabricName::Verbs),
                Err(error) => Err(why_no_verbs(error)),
            };
        }
        let mut order = self.order(Job {
            mode: Mode::Latency,
            size: 0,
            iters: 1,
            flip: false,
            rate: None,
        });
        order.sessions = 1;
        let one = Setup {
            sessions: 1,
            ..setup
        };
        let (_, fabric, reason) = self.place.subject(one, order)?;
        if setup.fabric.is_none() {
            self.progress.note(&format!("auto: {reason}"));
        }
        Ok(match fabric {
            Fabric::Shm => FabricName::Shm,
            Fabric::Tcp => FabricName::Tcp,
            Fabric::Verbs => FabricName::Verbs,
        })
    }

    /// Measures a row beside its limit, if it has one.
    fn row(
        &self,
        setup: Setup,
        fabric: FabricName,
        mode: Mode,
        size: usize,
        title: &str,
    ) -> Result<Kept, Error> {
        let port = match fabric {
            FabricName::Verbs => VerbsPort::choose().ok(),
            _ => None,
        };
        let limit = match fabric {
            _ if setup.sessions > 1 || !self.has_limits => None,
            FabricName::Verbs if port.is_none() => None,
            FabricName::Shm if self.place.is_there() => None,
            fabric => Some(Limit::from(fabric)),
        };
        // Messages that the device sent, over all measurements of this row; `None` if the device
        // does not count them.
        let sends = std::cell::Cell::new(Some(0));
        let ibex = |job: Job| {
            let order = self.order(job);
            let measure = || {
                self.progress.during(title, "ibex", size, || {
                    self.place
                        .subject(setup, order)
                        .map(|(figures, ..)| figures)
                })
            };
            let Some(port) = &port else {
                return measure();
            };
            let (figures, more) = port.during(measure)?;
            sends.set(sends.get().zip(more).map(|(sends, more)| sends + more));
            Ok(figures)
        };
        let bare = |limit: Limit, job: Job| {
            let honest = Job { flip: false, ..job };
            self.progress.during(title, "the limit", size, || {
                self.place.limit(limit, setup, honest)
            })
        };
        let mut job = self.options.job(fabric, mode, size);
        job.iters = self.iters(job, setup.sessions as u64, |trial| {
            let ours = slowest(&ibex(trial)?);
            Ok(match limit {
                Some(limit) => ours.min(bare(limit, trial)?.messages_per_second()),
                None => ours,
            })
        })?;
        let subject = self.subject(name_of(fabric));
        let cores = self.place.cores(setup.sessions);
        let kept = match limit {
            Some(limit) => {
                let ibex = || Ok(ibex(job)?.remove(0));
                let (measured, regime) = self.beside(|| bare(limit, job), ibex)?;
                let limit = (&measured.limit, regime);
                Kept {
                    row: Row::new(subject, cores, &measured.subject, Some(limit)),
                    distribution: measured.subject.distribution,
                }
            }
            None if setup.sessions > 1 => {
                let figures = ibex(job)?;
                Kept {
                    row: Row::of_pairs(subject, cores, &figures, setup.io_threads),
                    distribution: None,
                }
            }
            None => self.alone(subject, cores, || Ok(ibex(job)?.remove(0)))?,
        };
        if let Some(port) = &port {
            let sends = sends.get();
            let sends = sends.map_or("not counted".to_owned(), |sends| format!("+{sends}"));
            self.progress
                .note(&format!("{title}: {port}, rdma_sends {sends}"));
        }
        Ok(kept)
    }

    /// Measures pairs of limit and ibex, and returns the one with the median ratio.
    fn beside(
        &self,
        mut limit: impl FnMut() -> Result<Figures, Error>,
        mut ibex: impl FnMut() -> Result<Figures, Error>,
    ) -> Result<(Measured, Option<Regime>), Error> {
        if let Place::Here { cores, .. } = &self.place {
            let run = interleave::run(*cores, PAIRS, limit, ibex)?;
            let median = run.series[0].median();
            let chosen = run.damaged.as_ref().unwrap_or(median);
            return Ok((chosen.clone(), Some(chosen.crossing.regime())));
        }
        let mut pairs = Vec::new();
        for _ in 0..PAIRS {
            pairs.push(Measured::of(limit()?, ibex()?));
        }
        pairs.sort_by(|a, b| a.ratio().total_cmp(&b.ratio()));
        let damaged = pairs.iter().position(|pair| !pair.is_sound());
        Ok((pairs.swap_remove(damaged.unwrap_or(PAIRS / 2)), None))
    }

    /// Measures a row that has no limit, and returns the measurement of the median rate.
    fn alone(
        &self,
        subject: Subject,
        cores: &[usize],
        mut measure: impl FnMut() -> Result<Figures, Error>,
    ) -> Result<Kept, Error> {
        let mut all = Vec::new();
        for _ in 0..PAIRS {
            all.push(measure()?);
        }
        all.sort_by(|a, b| a.messages_per_second().total_cmp(&b.messages_per_second()));
        let damaged = all.iter().position(|one| one.tally.faults > 0);
        let figures = all.swap_remove(damaged.unwrap_or(PAIRS / 2));
        Ok(Kept {
            row: Row::new(subject, cores, &figures, None),
            distribution: figures.distribution,
        })
    }

    /// Measures what programs use without ibex.
    fn baseline(
        &mut self,
        name: &str,
        limit: Limit,
        setup: Setup,
        shapes: &[(Mode, usize)],
    ) -> Result<(), Error> {
        for &(mode, size) in shapes {
            let title = format!("{name} {} {}", mode.name(), bytes(size as f64));
            let job = Job {
                flip: false,
                ..self.options.job(FabricName::Tcp, mode, size)
            };
            let measure = |job| {
                self.progress.during(&title, "sockets", size, || {
                    self.place.limit(limit, setup, job)
                })
            };
            let iters = self.iters(job, 1, |trial| Ok(measure(trial)?.messages_per_second()));
            let row = iters.and_then(|iters| {
                let subject = Subject {
                    driver: "blocking".to_owned(),
                    codec: "raw".to_owned(),
                    fabric: name.to_owned(),
                };
                let job = Job { iters, ..job };
                self.alone(subject, self.place.cores(1), || measure(job))
            });
            self.keep(&title, row)?;
        }
        Ok(())
    }

    /// Prints a row that was measured, or why there is none. A row that fails does not keep the
    /// others from being measured.
    fn keep(&mut self, title: &str, row: Result<Kept, Error>) -> Result<(), Error> {
        self.progress.row_is_over();
        let kept = match row {
            Ok(kept) => kept,
            Err(error) => {
                self.is_all_sound = false;
                self.progress.note(&format!("{title}: {error}"));
                return Ok(());
            }
        };
        self.is_all_sound &= kept.row.is_sound();
        match self.options.json {
            true => self.progress.print(&kept.row.to_json())?,
            false => self.progress.print(&self.table.lines(&kept.row))?,
        }
        self.kept.push(kept);
        Ok(())
    }

    /// Returns the iterations of a measurement, as the options say, or as many as fit into its
    /// time at the rate of short trials. An emulated machine may be fifty times slower than a usual
    /// one.
    fn iters(
        &self,
        job: Job,
        sessions: u64,
        mut rate: impl FnMut(Job) -> Result<f64, Error>,
    ) -> Result<u64, Error> {
        if let Some(iters) = self.options.iters {
            return Ok(iters);
        }
        let seconds = self.options.seconds.unwrap_or(USUAL_SECONDS);
        if let Some(rate) = job.rate {
            let iters = (rate as f64 * seconds) as u64;
            return Ok(iters.clamp(FEWEST_ITERS, Job::MAX_ITERS));
        }
        let usual = (job.iters / sessions).max(FEWEST_ITERS);
        let mut trial = Job {
            iters: FIRST_TRIAL.min(usual),
            flip: false,
            ..job
        };
        let mut first = rate(trial)?;
        while trial.iters < usual / TRIAL && (trial.iters as f64) < first * TRIAL_SECONDS {
            trial.iters *= 10;
            first = rate(trial)?;
        }
        // The faster of two trials counts: a disturbance makes a trial slower, never faster.
        let fastest = first.max(rate(trial)?);
        let most = match self.options.seconds {
            Some(_) => Job::MAX_ITERS,
            None => usual,
        };
        Ok(((fastest * seconds) as u64).clamp(FEWEST_ITERS, most))
    }

    fn order(&self, job: Job) -> Order {
        Order {
            sessions: self.options.pairs(),
            ..Order::checked(job, self.options.codec)
        }
    }

    fn subject(&self, fabric: String) -> Subject {
        Subject {
            fabric,
            driver: self.options.driver().name().to_owned(),
            codec: self.options.codec.name().to_owned(),
        }
    }
}

fn name_of(fabric: FabricName) -> String {
    Fabric::from(fabric).to_string()
}

/// Returns the messages per second of the slowest session.
fn slowest(figures: &[Figures]) -> f64 {
    let rates = figures.iter().map(Figures::messages_per_second);
    rates.fold(f64::INFINITY, f64::min)
}

/// Says why there is no row for verbs, in the library's words if discovery fails there.
fn why_no_verbs(error: Error) -> Error {
    #[cfg(feature = "verbs")]
    if let Err(error) = ibex::rdma::discover() {
        return Error::subject(error.to_string());
    }
    error
}

/// What programs use without ibex, and its name in rows.
const BASELINES: &[(&str, Limit)] = &[("plain TCP", Limit::BlockingTcp), ("TLS", Limit::Tls)];
/// Measurements per row; that with the median ratio is shown.
const PAIRS: usize = 3;
/// Iterations of the first of the trials that precede a measurement. Further ones have ten times as
/// many, until they take long enough to tell the rate.
const FIRST_TRIAL: u64 = 100;
const TRIAL_SECONDS: f64 = 0.02;
/// Divisor of a measurement's usual iterations that gives the most of a trial, about.
const TRIAL: u64 = 50;
/// Time that the usual numbers of iterations are meant to take.
const USUAL_SECONDS: f64 = 0.5;
