//! A histogram of ibex in the buckets of Prometheus.

use std::collections::BTreeMap;

use ibex::stats::Histogram;

use crate::buckets::{bounds, middle, seconds};

/// Returns the classic buckets, each with its own count and its bound in seconds.
pub(crate) fn classic(histogram: &Histogram) -> Vec<(f64, u64)> {
    let bounds = bounds().chain([f64::INFINITY]);
    let mut buckets: Vec<_> = bounds.map(|bound| (bound, 0)).collect();
    for (durations, count) in histogram.buckets() {
        let end = seconds(*durations.end());
        let within = buckets.iter_mut().find(|(bound, _)| end <= *bound);
        within.expect("the last one has no bound").1 += count;
    }
    buckets
}

/// The buckets of a native histogram of Prometheus, by spans and the differences of their counts.
#[derive(Debug, Default)]
pub(crate) struct Native {
    /// The empty buckets before each run of buckets, and the length of the run.
    pub(crate) spans: Vec<(i32, u32)>,
    /// The first count, and by how much each is more than the one before.
    pub(crate) deltas: Vec<i64>,
}

impl Native {
    /// Each power of two of seconds has 2^3 buckets, each 9 % longer than the one before.
    pub(crate) const SCHEMA: i32 = 3;

    pub(crate) fn of(histogram: &Histogram) -> Self {
        let mut counts = BTreeMap::<i32, u64>::new();
        for (durations, count) in histogram.buckets() {
            let steps = middle(&durations).log2() * f64::from(1 << Self::SCHEMA);
            #[expect(clippy::cast_possible_truncation, reason = "from 2^-31 to 2^8 seconds")]
            let index = steps.ceil() as i32;
            *counts.entry(index).or_default() += count;
        }
        let mut native = Self::default();
        let (mut next, mut before) = (0, 0);
        for (index, count) in counts {
            match native.spans.last_mut() {
                Some((_, length)) if index == next => *length += 1,
                _ => native.spans.push((index - next, 1)),
            }
            let count = i64::try_from(count).unwrap_or(i64::MAX);
            native.deltas.push(count - before);
            (next, before) = (index + 1, count);
        }
        native
    }
}

#[cfg(test)]
mod tests {
    use std::{thread, time::Duration};

    use ibex::{Node, Pod, prelude::*};

    use super::*;

    /// Returns the durations of calls of which each takes longer than the one before.
    fn durations() -> Histogram {
        let node = || Node::builder().histograms(true);
        let store = node().listen("127.0.0.1:0").build().expect("a node");
        let prices = store.channel("prices").codec::<Pod>();
        let mut prices = prices.service::<u64, u64>().expect("a service");
        let client = node().build().expect("a node");
        let address = store.local_addr().expect("it listens");
        let peer = client.connect(address).expect("a session");
        let serving = thread::spawn(move || {
            while let Ok(Some(request)) = prices.next() {
                thread::sleep(Duration::from_micros(1 << *request));
                let _too_late = request.reply(&0);
            }
        });
        let caller = peer.channel("prices").codec::<Pod>();
        let caller = caller.caller::<u64, u64>().expect("a caller");
        for length in (0..14).chain(0..10) {
            caller.call(&length).expect("a reply");
        }
        let stats = client.stats();
        let _report = store.close(Duration::ZERO);
        serving.join().expect("it ends in order");
        stats.histograms[0].durations.clone()
    }

    #[test]
    fn classic_and_native_buckets_have_every_duration_in_its_place() {
        let durations = durations();
        assert_eq!(durations.count(), 24);
        let classic = classic(&durations);
        assert_eq!(classic.iter().map(|(_, count)| count).sum::<u64>(), 24);
        for (bound, _) in &classic {
            let in_classic = classic.iter().filter(|(below, _)| below <= bound);
            let exact = durations.buckets();
            let exact = exact.filter(|(durations, _)| seconds(*durations.end()) <= *bound);
            assert_eq!(
                in_classic.map(|(_, count)| count).sum::<u64>(),
                exact.map(|(_, count)| count).sum::<u64>(),
                "up to {bound} s"
            );
        }

        // The counts of the buckets by their indices, as a reader of the format restores them.
        let native = Native::of(&durations);
        let (mut counts, mut index, mut count) = (Vec::new(), 0, 0);
        let mut deltas = native.deltas.iter();
        for (empty, length) in &native.spans {
            index += empty;
            for _ in 0..*length {
                count += deltas.next().expect("one for each bucket");
                counts.push((index, count));
                index += 1;
            }
        }
        assert_eq!(deltas.next(), None);
        assert_eq!(counts.iter().map(|(_, count)| count).sum::<i64>(), 24);
        for (index, count) in counts {
            assert!(count > 0, "spans have no empty buckets");
            let bound = |index: i32| (f64::from(index) / 8.0).exp2();
            let within = durations.buckets().filter(|(durations, _)| {
                let middle = middle(durations);
                bound(index - 1) < middle && middle <= bound(index)
            });
            let within: u64 = within.map(|(_, count)| count).sum();
            assert_eq!(i64::try_from(within), Ok(count), "bucket {index}");
        }
    }
}
