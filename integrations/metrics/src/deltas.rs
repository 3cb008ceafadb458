//! What histograms have gained since they were published last, for exporters that record single
//! values.

use std::{collections::HashMap, ops::RangeInclusive, time::Duration};

use ibex::stats::Histogram;

use crate::{collected::Labels, table::Metric};

/// The histograms as they were published last.
#[derive(Debug, Default)]
pub(crate) struct Deltas(HashMap<(&'static str, Labels), Buckets>);

type Buckets = HashMap<RangeInclusive<Duration>, u64>;

impl Deltas {
    /// Returns the durations that are new, by buckets, and notes that they are published.
    pub(crate) fn take(
        &mut self,
        metric: &Metric,
        labels: &Labels,
        histogram: &Histogram,
    ) -> Vec<(RangeInclusive<Duration>, u64)> {
        let key = (metric.name, labels.clone());
        let published = self.0.entry(key).or_default();
        let new = histogram.buckets().map(|(durations, count)| {
            let before = published.insert(durations.clone(), count);
            (durations, count.saturating_sub(before.unwrap_or(0)))
        });
        new.filter(|(_, count)| *count > 0).collect()
    }
}
