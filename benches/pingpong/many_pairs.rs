//! What eight pairs of processes get done on two cores, each of which waits for the other
//! most of the time, beside the same over sockets that sleep: more threads that wait than
//! cores must not keep each other from working.

use std::{sync::Barrier, thread};

use crate::{
    measurement::{
        channels::CodecName,
        session::{self, DriverName, FabricName, Order, Setup},
    },
    table::{Line, Table, Unit},
};
use ibex_harness::{
    Error,
    cores::Cores,
    job::{Figures, Job, Mode},
    limit::Limit,
};

/// Measures and prints the line of the row `name`.
pub(crate) fn throughput(name: &str, table: Table, cores: Cores) -> Result<(), Error> {
    let mut rounds = Vec::new();
    for _ in 0..ROUNDS {
        let sockets = at_once(cores, |cores| Limit::BlockingTcp.measure(cores, JOB))?;
        let ibex = at_once(cores, |cores| {
            let setup = Setup {
                protection: None,
                driver: DriverName::Threads,
                fabric: Some(FabricName::Tcp),
                trusts: true,
                sleeps: false,
            };
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

/// Round trips in a second of all pairs together, of which every other one has its ends the
/// other way round.
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
};
