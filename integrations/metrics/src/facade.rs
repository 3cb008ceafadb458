//! Publishing by the facade crate metrics.

use metrics::{Key, Label, Level, Metadata, SharedString};

use crate::{
    buckets::middle,
    collected::Value,
    metrics::Metrics,
    table::{Kind, Metric, Unit},
};

impl Metrics {
    /// Reads the nodes, and sets the metrics of the [recorder](metrics::Recorder) that the program
    /// has installed. Call it at intervals, such as the exporter's.
    ///
    /// Counters are set by [`absolute`](metrics::Counter::absolute). Those in seconds are gauges
    /// here, since counters of the facade are whole numbers. A histogram gets the durations since
    /// the last call, each as the middle of a bucket that is at most 1/16 wide.
    ///
    /// ```
    /// use std::{thread, time::Duration};
    ///
    /// use ibex_metrics::Metrics;
    ///
    /// /// Runs in a thread of the program.
    /// fn publish(metrics: &Metrics) {
    ///     loop {
    ///         metrics.publish();
    ///         thread::sleep(Duration::from_secs(10));
    ///     }
    /// }
    /// ```
    pub fn publish(&self) {
        let mut state = self.state();
        for family in state.read() {
            describe(family.metric);
            for (labels, value) in family.samples {
                let pairs = labels.0.iter();
                let pairs = pairs.map(|(name, value)| Label::new(*name, value.clone()));
                let key = Key::from_parts(family.metric.name, pairs.collect::<Vec<_>>());
                match value {
                    Value::Number(number) => set(family.metric, &key, number),
                    Value::Histogram(histogram) => {
                        let new = state.published.take(family.metric, &labels, &histogram);
                        let recorder = metrics::with_recorder(|recorder| {
                            recorder.register_histogram(&key, &METADATA)
                        });
                        for (durations, count) in new {
                            let count = usize::try_from(count).unwrap_or(usize::MAX);
                            recorder.record_many(middle(&durations), count);
                        }
                    }
                }
            }
        }
    }
}

fn set(metric: &Metric, key: &Key, number: u64) {
    metrics::with_recorder(|recorder| match (metric.kind, metric.unit) {
        (Kind::Counter, Unit::Count | Unit::Bytes) => {
            recorder.register_counter(key, &METADATA).absolute(number);
        }
        _ => {
            let value = metric.unit.scaled(number);
            recorder.register_gauge(key, &METADATA).set(value);
        }
    });
}

fn describe(metric: &Metric) {
    let unit = Some(match metric.unit {
        Unit::Count => metrics::Unit::Count,
        Unit::Bytes => metrics::Unit::Bytes,
        Unit::Seconds => metrics::Unit::Seconds,
    });
    let (name, help) = (metric.name.into(), SharedString::const_str(metric.help));
    metrics::with_recorder(|recorder| match (metric.kind, metric.unit) {
        (Kind::Histogram, _) => recorder.describe_histogram(name, unit, help),
        (Kind::Counter, Unit::Count | Unit::Bytes) => recorder.describe_counter(name, unit, help),
        _ => recorder.describe_gauge(name, unit, help),
    });
}

const METADATA: Metadata<'static> = Metadata::new("ibex", Level::INFO, Some("ibex"));
