//! The collector of the crate prometheus-client.

mod buckets;

use std::fmt;

use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, MetricEncoder, NativeHistogram, NativeHistogramBuckets},
    metrics::{MetricType, exemplar::Exemplar},
    registry,
};

use crate::{
    buckets::seconds,
    collected::{Labels, Value},
    metrics::Metrics,
    table::{Kind, Metric, Unit},
};
use buckets::{Native, classic};

/// Reads the nodes when the registry is encoded.
///
/// Histograms have classic buckets at the powers of two of nanoseconds from 1 µs to 69 s, and native
/// buckets where the registry is encoded as protobuf.
impl Collector for Metrics {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        for family in self.read() {
            let metric = family.metric;
            let (unit, kind) = (unit(metric.unit), kind(metric.kind));
            let name = stem(metric);
            let mut samples = encoder.encode_descriptor(name, metric.help, unit.as_ref(), kind)?;
            for (labels, value) in &family.samples {
                let Labels(labels) = labels;
                encode(samples.encode_family(labels)?, metric, value)?;
            }
        }
        Ok(())
    }
}

fn encode(mut encoder: MetricEncoder<'_>, metric: &Metric, value: &Value) -> fmt::Result {
    let no_exemplar = None::<&Exemplar<Vec<(String, String)>, f64>>;
    match (value, metric.kind) {
        (Value::Histogram(histogram), _) => {
            let native = Native::of(histogram);
            encoder.encode_histogram_with_native::<Vec<(String, String)>>(
                seconds(histogram.sum()),
                histogram.count(),
                &classic(histogram),
                None,
                NativeHistogram {
                    schema: Native::SCHEMA,
                    zero_threshold: 0.0,
                    zero_count: 0,
                    negative: NativeHistogramBuckets {
                        spans: &[],
                        deltas: &[],
                    },
                    positive: NativeHistogramBuckets {
                        spans: &native.spans,
                        deltas: &native.deltas,
                    },
                    created: None,
                },
            )
        }
        (Value::Number(number), Kind::Gauge) => match metric.unit {
            Unit::Seconds => encoder.encode_gauge(&metric.unit.scaled(*number)),
            _ => encoder.encode_gauge(number),
        },
        (Value::Number(number), _) => match metric.unit {
            Unit::Seconds => encoder.encode_counter(&metric.unit.scaled(*number), no_exemplar),
            _ => encoder.encode_counter(number, no_exemplar),
        },
    }
}

/// Returns the name without unit and `_total`, which the encoder appends.
fn stem(metric: &Metric) -> &'static str {
    let name = metric.name;
    let name = name.strip_suffix("_total").unwrap_or(name);
    let suffix = match metric.unit {
        Unit::Count => "",
        Unit::Bytes => "_bytes",
        Unit::Seconds => "_seconds",
    };
    name.strip_suffix(suffix).unwrap_or(name)
}

fn unit(unit: Unit) -> Option<registry::Unit> {
    match unit {
        Unit::Count => None,
        Unit::Bytes => Some(registry::Unit::Bytes),
        Unit::Seconds => Some(registry::Unit::Seconds),
    }
}

fn kind(kind: Kind) -> MetricType {
    match kind {
        Kind::Counter => MetricType::Counter,
        Kind::Gauge => MetricType::Gauge,
        Kind::Histogram => MetricType::Histogram,
    }
}
