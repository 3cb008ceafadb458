//! The watch over exchanges: their median time, or their rate.

use std::{
    future::Future,
    time::{Duration, Instant},
};

use crate::session::Failure;

/// Work that is repeated and timed: a round trip, a request, a block that arrives.
pub(crate) trait Exchange: Send {
    /// Does the work for the `sequence`th time, and checks the payload that came.
    fn exchange(&mut self, sequence: u64) -> impl Future<Output = Result<(), Failure>> + Send;
}

/// Returns the median time of `count` exchanges after a warm-up, in nanoseconds.
pub(crate) async fn p50(mut work: impl Exchange, count: u64) -> Result<f64, Failure> {
    warm_up(&mut work, count).await?;
    let mut times = Vec::with_capacity(count as usize);
    let mut start = Instant::now();
    for sequence in 0..count {
        work.exchange(sequence).await?;
        let end = Instant::now();
        times.push(end - start);
        start = end;
    }
    let middle = times.len() / 2;
    let (_, median, _) = times.select_nth_unstable(middle);
    Ok(median.as_nanos() as f64)
}

/// Returns the bytes per second of `count` exchanges after a warm-up, of `bytes` each.
pub(crate) async fn rate(
    mut work: impl Exchange,
    count: u64,
    bytes: usize,
) -> Result<f64, Failure> {
    warm_up(&mut work, count).await?;
    let start = Instant::now();
    for sequence in 0..count {
        work.exchange(sequence).await?;
    }
    let elapsed = start.elapsed().max(Duration::from_nanos(1));
    Ok(count as f64 * bytes as f64 / elapsed.as_secs_f64())
}

/// Returns the number of exchanges before `count` timed ones.
pub(crate) fn warm_up_count(count: u64) -> u64 {
    (count / 10).max(1)
}

async fn warm_up(work: &mut impl Exchange, count: u64) -> Result<(), Failure> {
    for sequence in 0..warm_up_count(count) {
        work.exchange(sequence).await?;
    }
    Ok(())
}
