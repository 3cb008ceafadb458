//! The buckets of ibex's histograms in those of others.

use std::{ops::RangeInclusive, time::Duration};

/// Returns the upper bounds of classic buckets in seconds, without the infinite one: the powers of
/// two of nanoseconds from 1 µs to 69 s. There a histogram of ibex ends a bucket, so that counts up
/// to them are exact.
#[cfg(any(feature = "opentelemetry", feature = "prometheus-client"))]
pub(crate) fn bounds() -> impl Iterator<Item = f64> {
    (10..=36).map(|power| seconds(Duration::from_nanos(1 << power)))
}

/// Returns the middle of a bucket, in seconds.
pub(crate) fn middle(durations: &RangeInclusive<Duration>) -> f64 {
    (seconds(*durations.start()) + seconds(*durations.end())) / 2.0
}

pub(crate) fn seconds(duration: Duration) -> f64 {
    duration.as_secs_f64()
}
