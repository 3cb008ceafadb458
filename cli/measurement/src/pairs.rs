//! Several ping-pongs at once, each over its own session between the same two nodes.
//!
//! If there are more threads than cores, no thread has a core to itself: all may run on all cores.

use std::{sync::Barrier, thread};

use ibex::Peer;
use ibex_harness::{Error, check::Tally, job::Figures};

use crate::session::{self, Order};

/// Measures over all sessions at the same time, with a thread for each.
pub fn measure(peers: &[Peer], cores: &[usize], order: Order) -> Result<Vec<Figures>, Error> {
    let start = Barrier::new(peers.len());
    let figures = on_threads(peers, |_, peer| {
        start.wait();
        session::measure_on(peer, cores, order)
    })?;
    Ok(figures.into_iter().map(|(figures, _)| figures).collect())
}

/// Answers over all sessions, with a thread for each. Returns the checks of all of them. The first
/// session's order may have been received already.
pub(crate) fn answer(
    peers: &[Peer],
    first: Option<Order>,
    cores: &[usize],
) -> Result<Tally, Error> {
    let checked = on_threads(peers, |place, peer| match first {
        Some(order) if place == 0 => session::carry_out(peer, cores, order),
        _ => session::answer_on(peer, cores),
    })?;
    let mut tally = Tally::default();
    checked.iter().for_each(|one| tally.merge(one));
    Ok(tally)
}

fn on_threads<T: Send>(
    peers: &[Peer],
    work: impl Fn(usize, &Peer) -> Result<T, Error> + Sync,
) -> Result<Vec<T>, Error> {
    let work = &work;
    thread::scope(|scope| {
        let threads = peers.iter().enumerate();
        let threads = threads.map(|(place, peer)| scope.spawn(move || work(place, peer)));
        let threads: Vec<_> = threads.collect();
        let results = threads.into_iter().map(thread::ScopedJoinHandle::join);
        results
            .map(|result| result.expect("a pair's thread ran to its end"))
            .collect()
    })
}
