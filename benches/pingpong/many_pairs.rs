//! The throughput of eight pairs of processes on two cores, beside the same over blocking sockets.
//! Each process waits for its partner most of the time; more waiting threads than cores must not
//! keep each other from working.

use std::{sync::Barrier, thread};

use crate::table::{Line, Table, Unit};
use ibex_harness::{
    Error,
    cores::Cores,
    job::{Figures, Job, Mode},
    limit::Limit,
};
use ibex_measurement::{
    channels::CodecName,
    pairs,
    session::{self, DriverName, FabricName, Order, Setup},
};

/// Measures the row `name` and prints its line.
pub(crate) fn throughput(name: &str, table: Table, cores: Cores) -> Result<(), Error> {
    let mut rounds = Vec::new();
    for _ in 0..ROUNDS {
        let sockets = at_once(cores, |cores| Limit::BlockingTcp.measure(cores, JOB))?;
        let ibex = at_once(cores, |cores| {
            let setup = Setup::new(DriverName::Threads, Some(FabricName::Tcp));
            let order = Order::checked(JOB, CodecName::Raw);
            session::with_peer(cores, setup, |peer| session::measure(peer, cores[0], order))
        })?;
        rounds.push([sockets, ibex]);
    }
    if let Some(line) = Line::of(name, (Unit::MessagesPerSecond, Mode::Stream), rounds) {
        let aim = Some(1.0);
        table.print(&Line { aim, ..line });
    }
    Ok(())
}

/// A row of eight sessions between two nodes with two engines each, beside nodes with one.
#[derive(Clone, Copy)]
pub(crate) struct EngineRow {
    pub(crate) name: &'static str,
    fabric: FabricName,
}

pub(crate) const ENGINE_ROWS: [EngineRow; 2] = [
    EngineRow {
        name: "tcp 8 sessions 64 B 2 engines (1 engine)",
        fabric: FabricName::Tcp,
    },
    EngineRow {
        name: "shm 8 sessions 64 B 2 engines (1 engine)",
        fabric: FabricName::Shm,
    },
];

impl EngineRow {
    /// Measures the row and prints its line.
    pub(crate) fn measure(self, table: Table, cores: Cores) -> Result<(), Error> {
        let mut rounds = Vec::new();
        let mut fairness = 1.0_f64;
        for _ in 0..ROUNDS {
            let mut round = [0.0; 2];
            for (rate, io_threads) in round.iter_mut().zip([1, 2]) {
                let setup = Setup {
                    sessions: PAIRS,
                    io_threads,
                    ..Setup::new(DriverName::Threads, Some(self.fabric))
                };
                let order = Order::checked(JOB, CodecName::Raw);
                let figures = session::with_sessions(cores, &cores, setup, |peers| {
                    pairs::measure(peers, &cores, order)
                })?;
                let rates = figures.iter().map(Figures::messages_per_second);
                *rate = rates.clone().sum();
                if io_threads > 1 {
                    let slowest = rates.clone().fold(f64::INFINITY, f64::min);
                    fairness = fairness.max(rates.fold(0.0, f64::max) / slowest);
                }
            }
            rounds.push(round);
        }
        if let Some(line) = Line::of(self.name, (Unit::MessagesPerSecond, Mode::Stream), rounds) {
            table.print(&line);
        }
        table.note(format_args!(
            "  of two engines' sessions the fastest had up to {fairness:.2} times as much as the slowest"
        ));
        Ok(())
    }
}

/// Returns the round trips per second of all pairs together. Every other pair has its ends on
/// swapped cores.
fn at_once(
    cores: Cores,
    measure: impl Fn(Cores) -> Result<Figures, Error> + Sync,
) -> Result<f64, Error> {
    let (start, measure) = (Barrier::new(PAIRS), &measure);
    let figures = thread::scope(|scope| {
        let pairs: Vec<_> = (0..PAIRS)
            .map(|pair| {
                let [one, other] = cores;
                let cores = [[one, other], [other, one]][pair % 2];
                let start = &start;
                scope.spawn(move || {
                    start.wait();
                    measure(cores)
                })
            })
            .collect();
        let figures = pairs.into_iter().map(thread::ScopedJoinHandle::join);
        figures
            .map(|pair| pair.expect("a pair's thread ran to its end"))
            .collect::<Result<Vec<_>, _>>()
    })?;
    Ok(figures.iter().map(Figures::messages_per_second).sum())
}

const PAIRS: usize = 8;
const ROUNDS: usize = 5;
const JOB: Job = Job {
    mode: Mode::Latency,
    size: 64,
    iters: 20_000,
    flip: false,
    rate: None,
};
