//! A histogram of durations: a log-linear one, of fixed size, that any number of threads record
//! into without a lock.
//!
//! Each power of two of nanoseconds is cut into 16 equal buckets, so a bucket's bounds differ by at
//! most one part in 16. Crates such as `hdrhistogram`, which the benchmarks use, record through
//! `&mut` or through queues of batches, and would be a dependency of every program.
#![forbid(unsafe_code)]

use std::{fmt, ops::RangeInclusive, sync::atomic::Ordering, time::Duration};

use ibex_base::sync::AtomicU64;

/// A histogram that is being recorded. It takes 4.3 KiB.
pub struct Recorder {
    counts: Box<[AtomicU64; BUCKETS]>,
    /// Total of the durations, in nanoseconds.
    sum: AtomicU64,
}

/// How often calls or waits took how long: a snapshot, which
/// `NodeStats::histograms` has.
///
/// A duration is known to within 1/16 of itself. Durations above 137 s count as 137 s in the
/// buckets, and fully in the [`sum`](Self::sum).
///
/// ```
/// use std::time::Duration;
///
/// # use ibex_transport::histogram::{Histogram, Recorder};
/// # let recorder = Recorder::default();
/// # (1..=100).for_each(|us| recorder.record(Duration::from_micros(us)));
/// # let (calls, others): (Histogram, Histogram) = (recorder.snapshot(), recorder.snapshot());
/// fn report(mut calls: Histogram, others: &Histogram) {
///     calls.merge(others);
///     if let Some(time) = calls.quantile(0.99) {
///         println!("99 of 100 calls took at most {time:?}");
///     }
/// }
/// # assert!(calls.quantile(0.5) >= Some(Duration::from_micros(50)));
/// # report(calls, &others);
/// ```
#[derive(Clone, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Histogram {
    /// Counts by bucket, up to the last bucket that is not empty.
    counts: Vec<u64>,
    sum: Duration,
}

impl Recorder {
    /// Counts one duration: two relaxed additions. Counts and sum are read one by one, and nothing
    /// else is published by them.
    pub fn record(&self, duration: Duration) {
        let nanoseconds = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        self.counts[bucket_of(nanoseconds)].fetch_add(1, Ordering::Relaxed);
        self.sum.fetch_add(nanoseconds, Ordering::Relaxed);
    }

    /// Returns what was recorded so far. Durations that other threads record meanwhile are in it or
    /// not.
    #[must_use]
    pub fn snapshot(&self) -> Histogram {
        self.read_by(|count| count.load(Ordering::Relaxed))
    }

    /// Takes out what was recorded so far. Durations that other threads record meanwhile are in it,
    /// or stay.
    #[must_use]
    pub fn take(&self) -> Histogram {
        self.read_by(|count| count.swap(0, Ordering::Relaxed))
    }

    fn read_by(&self, read: impl Fn(&AtomicU64) -> u64) -> Histogram {
        let mut counts: Vec<_> = self.counts.iter().map(&read).collect();
        let used = counts.iter().rposition(|&count| count > 0);
        counts.truncate(used.map_or(0, |last| last + 1));
        Histogram {
            counts,
            sum: Duration::from_nanos(read(&self.sum)),
        }
    }
}

impl Default for Recorder {
    fn default() -> Self {
        Self {
            counts: Box::new([const { AtomicU64::new(0) }; BUCKETS]),
            sum: AtomicU64::new(0),
        }
    }
}

impl fmt::Debug for Recorder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.snapshot().fmt(f)
    }
}

impl Histogram {
    /// Returns the number of durations.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// Returns the total of the durations.
    #[must_use]
    pub fn sum(&self) -> Duration {
        self.sum
    }

    /// Returns a duration that at least this share of all, from 0 to 1, did not exceed: the upper
    /// bound of a bucket, up to 1/16 too long. `None` if there are no durations.
    ///
    /// # Panics
    ///
    /// If `share` is not between 0 and 1.
    #[must_use]
    pub fn quantile(&self, share: f64) -> Option<Duration> {
        assert!((0.0..=1.0).contains(&share), "{share} is no share of 1");
        let count = self.count();
        let rank = ((share * count as f64).ceil() as u64).clamp(1, count.max(1));
        let mut seen = 0;
        self.buckets()
            .find(|(_, in_bucket)| {
                seen += in_bucket;
                seen >= rank
            })
            .map(|(durations, _)| *durations.end())
    }

    /// Returns the buckets that are not empty, in ascending order: the durations that fall into the
    /// bucket, and the number of those that did. Every power of two of nanoseconds is the end of a
    /// bucket.
    pub fn buckets(&self) -> impl Iterator<Item = (RangeInclusive<Duration>, u64)> + '_ {
        let counts = self.counts.iter().copied().enumerate();
        counts
            .filter(|(_, count)| *count > 0)
            .map(|(bucket, count)| (range_of(bucket), count))
    }

    /// Adds the durations of another histogram.
    pub fn merge(&mut self, other: &Histogram) {
        let used = self.counts.len().max(other.counts.len());
        self.counts.resize(used, 0);
        for (count, more) in self.counts.iter_mut().zip(&other.counts) {
            *count += more;
        }
        self.sum += other.sum;
    }
}

ibex_base::debug_fields! {
    [] Histogram: |histogram|
        count = histogram.count(),
        median = histogram.quantile(0.5),
        p99 = histogram.quantile(0.99),
        longest = histogram.quantile(1.0),
}

/// Returns the bucket of a duration. Bounds belong to the bucket below them, as in Prometheus.
fn bucket_of(nanoseconds: u64) -> usize {
    let below = nanoseconds.saturating_sub(1);
    if below < PARTS {
        return below as usize;
    }
    let exponent = below.ilog2();
    let part = (below >> (exponent - PART_BITS)) & (PARTS - 1);
    let octave = u64::from(exponent - PART_BITS + 1);
    ((octave * PARTS + part) as usize).min(BUCKETS - 1)
}

/// Returns the durations that fall into a bucket.
fn range_of(bucket: usize) -> RangeInclusive<Duration> {
    let below = bucket.checked_sub(1);
    let first = below.map_or(0, |below| upper_bound(below) + 1);
    Duration::from_nanos(first)..=Duration::from_nanos(upper_bound(bucket))
}

/// Returns the longest duration that falls into a bucket, in nanoseconds.
fn upper_bound(bucket: usize) -> u64 {
    let (octave, part) = (bucket as u64 / PARTS, bucket as u64 % PARTS);
    match octave {
        0 => part + 1,
        _ => (PARTS + part + 1) << (octave - 1),
    }
}

/// Each power of two is cut into this many parts.
const PARTS: u64 = 1 << PART_BITS;
const PART_BITS: u32 = 4;
/// The last bucket ends at 2^37 ns.
const BUCKETS: usize = (37 - PART_BITS as usize + 1) * PARTS as usize;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn buckets_follow_on_each_other_without_gaps() {
        for bucket in 0..BUCKETS {
            let upper = upper_bound(bucket);
            assert_eq!(bucket_of(upper), bucket);
            assert_eq!(bucket_of(upper + 1), (bucket + 1).min(BUCKETS - 1));
        }
        assert_eq!(upper_bound(BUCKETS - 1), 1 << 37);
        assert_eq!(bucket_of(0), 0);
        assert_eq!(bucket_of(u64::MAX), BUCKETS - 1);
    }

    #[test]
    fn powers_of_two_are_bounds() {
        let bounds: Vec<_> = (0..BUCKETS).map(upper_bound).collect();
        assert!((0..=37).all(|power| bounds.contains(&(1 << power))));
    }

    #[test]
    fn nothing_has_no_quantile() {
        let empty = Recorder::default().snapshot();
        assert_eq!((empty.count(), empty.sum()), (0, Duration::ZERO));
        assert_eq!(empty.quantile(0.5), None);
        assert_eq!(empty.buckets().count(), 0);
    }

    #[test]
    fn what_is_taken_out_does_not_stay() {
        let recorder = Recorder::default();
        recorder.record(Duration::from_micros(3));
        let all = recorder.snapshot();
        assert_eq!(recorder.take(), all);
        assert_eq!(recorder.take(), Recorder::default().snapshot());
    }

    proptest! {
        #[test]
        fn quantiles_are_those_of_the_sorted_durations(
            mut durations in prop::collection::vec(1_u64..1 << 37, 1..200),
            share in 0.0_f64..=1.0,
        ) {
            let recorder = Recorder::default();
            durations.iter().for_each(|&one| recorder.record(Duration::from_nanos(one)));
            durations.sort_unstable();
            let rank = ((share * durations.len() as f64).ceil() as usize).max(1);
            let exact = durations[rank - 1];
            let snapshot = recorder.snapshot();
            let found = snapshot.quantile(share).expect("some durations").as_nanos() as u64;
            prop_assert!(exact <= found && found <= exact + exact / PARTS + 1, "{exact} {found}");
            prop_assert_eq!(snapshot.sum().as_nanos() as u64, durations.iter().sum::<u64>());
        }

        #[test]
        fn merged_histograms_are_one_of_all_durations(
            one in prop::collection::vec(any::<u32>(), 0..50),
            other in prop::collection::vec(any::<u64>().prop_map(|n| n >> 20), 0..50),
        ) {
            let [first, second, all] = [(); 3].map(|()| Recorder::default());
            for nanoseconds in one.into_iter().map(u64::from) {
                first.record(Duration::from_nanos(nanoseconds));
                all.record(Duration::from_nanos(nanoseconds));
            }
            for nanoseconds in other {
                second.record(Duration::from_nanos(nanoseconds));
                all.record(Duration::from_nanos(nanoseconds));
            }
            let mut merged = first.snapshot();
            merged.merge(&second.snapshot());
            prop_assert_eq!(merged, all.snapshot());
        }
    }
}
