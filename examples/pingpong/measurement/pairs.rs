//! Several ping-pongs at once, each over its own session between the same two nodes.
//!
//! If there are more threads than cores, no thread has a core to itself: all may run on all cores.

use std::{sync::Barrier, thread};

use ibex::Peer;
use ibex_harness::{Error, check::Tally, job::Figures};

use super::session::{self, Order};

/// Measures over all sessions at the same time, with a thread for each.
pub(crate) fn measure(
    peers: &[Peer],
    cores: &[usize],
    order: Order,
) -> Result<Vec<Figures>, Error> {
    let start = Barrier::new(peers.len());
    let figures = on_threads(peers, |peer| {
        start.wait();
        session::measure_on(peer, cores, order)
    })?;
    Ok(figures.into_iter().map(|(figures, _)| figures).collect())
}

/// Answers over all sessions, with a thread for each. Returns the checks of all of them.
pub(super) fn answer(peers: &[Peer], cores: &[usize]) -> Result<Tally, Error> {
    let checked = on_threads(peers, |peer| session::answer_on(peer, cores))?;
    let mut tally = Tally::default();
    checked.iter().for_each(|one| tally.merge(one));
    Ok(tally)
}

fn on_threads<T: Send>(
    peers: &[Peer],
    work: impl Fn(&Peer) -> Result<T, Error> + Sync,
) -> Result<Vec<T>, Error> {
    let work = &work;
    thread::scope(|scope| {
        let threads = peers.iter().map(|peer| scope.spawn(move || work(peer)));
        let threads: Vec<_> = threads.collect();
        let results = threads.into_iter().map(thread::ScopedJoinHandle::join);
        results
            .map(|result| result.expect("a pair's thread ran to its end"))
            .collect()
    })
}
