//! OpenTelemetry's instruments, as OTLP carries them.

use std::{
    collections::BTreeMap,
    sync::{Arc, Weak},
    time::Duration,
};

use ibex_metrics::{Kind, TABLE};
use opentelemetry::metrics::MeterProvider;
use opentelemetry_proto::tonic::{
    collector::metrics::v1::ExportMetricsServiceRequest,
    common::v1::any_value::Value as AnyValue,
    metrics::v1::{Metric, metric::Data, number_data_point},
};
use opentelemetry_sdk::{
    error::OTelSdkResult,
    metrics::{
        Aggregation, Instrument, InstrumentKind, ManualReader, Pipeline, SdkMeterProvider, Stream,
        Temporality, data::ResourceMetrics, reader::MetricReader,
    },
};
use prost::Message;

use crate::store::Store;

/// A reader that the test keeps.
#[derive(Clone, Debug, Default)]
struct Reader(Arc<ManualReader>);

impl MetricReader for Reader {
    fn register_pipeline(&self, pipeline: Weak<Pipeline>) {
        self.0.register_pipeline(pipeline);
    }

    fn collect(&self, metrics: &mut ResourceMetrics) -> OTelSdkResult {
        self.0.collect(metrics)
    }

    fn force_flush(&self) -> OTelSdkResult {
        self.0.force_flush()
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.0.shutdown_with_timeout(timeout)
    }

    fn temporality(&self, kind: InstrumentKind) -> Temporality {
        self.0.temporality(kind)
    }
}

impl Reader {
    /// Collects, and returns the metrics as a receiver of OTLP gets them.
    fn collected(&self) -> BTreeMap<String, Metric> {
        let mut metrics = ResourceMetrics::default();
        self.collect(&mut metrics).expect("it collects");
        let request = ExportMetricsServiceRequest::from(&metrics);
        let bytes = request.encode_to_vec();
        let received = ExportMetricsServiceRequest::decode(&*bytes).expect("it is OTLP");
        let scopes = received
            .resource_metrics
            .into_iter()
            .flat_map(|one| one.scope_metrics);
        let metrics = scopes.flat_map(|scope| scope.metrics);
        metrics
            .map(|metric| (metric.name.clone(), metric))
            .collect()
    }
}

/// Returns the sum of a counter's samples.
fn sum(metric: &Metric) -> u64 {
    let Some(Data::Sum(sum)) = &metric.data else {
        panic!("{} is no counter", metric.name);
    };
    assert!(sum.is_monotonic, "{}", metric.name);
    let numbers = sum.data_points.iter().map(|point| match point.value {
        Some(number_data_point::Value::AsInt(number)) => u64::try_from(number).expect("it counts"),
        other => panic!("{}: {other:?}", metric.name),
    });
    numbers.sum()
}

/// Returns the number of durations of a histogram with one set of labels, and its labels.
fn count(metric: &Metric) -> (u64, Vec<(String, String)>) {
    let Some(Data::Histogram(histogram)) = &metric.data else {
        panic!("{} is no histogram", metric.name);
    };
    let [point] = &histogram.data_points[..] else {
        panic!("{}: {:?}", metric.name, histogram.data_points);
    };
    let microsecond = point.explicit_bounds.iter().filter(|bound| **bound < 1e-4);
    assert!(microsecond.count() > 5, "buckets begin at microseconds");
    assert_eq!(point.count, point.bucket_counts.iter().sum::<u64>());
    let labels = point.attributes.iter().map(|pair| {
        let value = pair.value.as_ref().and_then(|value| value.value.as_ref());
        match value {
            Some(AnyValue::StringValue(value)) => (pair.key.clone(), value.clone()),
            other => panic!("{}: {other:?}", pair.key),
        }
    });
    let mut labels: Vec<_> = labels.collect();
    labels.sort();
    (point.count, labels)
}

#[test]
fn otlp_has_every_metric_and_the_conventions_names() {
    let mut store = Store::open();
    let metrics = store.metrics();
    let reader = Reader::default();
    let provider = SdkMeterProvider::builder()
        .with_reader(reader.clone())
        .build();
    metrics.observe(&provider.meter("ibex"));
    store.call(20);
    store.send_acknowledged(5);

    let collected = reader.collected();
    for family in metrics.read() {
        let (name, kind) = (family.metric.name, family.metric.kind);
        let otel = match kind {
            Kind::Histogram if name.starts_with("rpc_") => {
                name.trim_end_matches("_seconds").replace('_', ".")
            }
            _ => name.trim_end_matches("_total").to_owned(),
        };
        let metric = collected.get(&otel).unwrap_or_else(|| panic!("no {otel}"));
        assert_eq!(metric.description, family.metric.help);
        match (&metric.data, kind) {
            (Some(Data::Sum(_)), Kind::Counter)
            | (Some(Data::Gauge(_)), Kind::Gauge)
            | (Some(Data::Histogram(_)), Kind::Histogram) => {}
            (data, kind) => panic!("{otel}: {kind:?} as {data:?}"),
        }
    }
    assert!(collected.len() <= TABLE.len());
    assert_eq!(collected["ibex_sent_bytes"].unit, "By");
    assert_eq!(collected["ibex_stalled_seconds"].unit, "s");
    assert_eq!(sum(&collected["ibex_sent_messages"]), 5 + 2 * 20);

    let calls = &collected["rpc.client.call.duration"];
    assert_eq!(calls.unit, "s");
    let labels = [
        ("node", "client"),
        ("rpc.method", "prices"),
        ("rpc.system.name", "ibex"),
    ];
    let labels = labels.map(|(name, value)| (name.to_owned(), value.to_owned()));
    assert_eq!(count(calls), (20, labels.to_vec()));

    // A later collection has what has happened since, and repeats nothing.
    store.call(3);
    let collected = reader.collected();
    assert_eq!(count(&collected["rpc.client.call.duration"]).0, 23);
    assert_eq!(count(&collected["rpc.server.call.duration"]).0, 23);
    assert_eq!(sum(&collected["ibex_sent_messages"]), 5 + 2 * 23);
}

#[test]
fn a_view_makes_exponential_histograms_of_durations() {
    let store = Store::open();
    let reader = Reader::default();
    let view = |instrument: &Instrument| {
        let exponential = Aggregation::Base2ExponentialHistogram {
            max_size: 160,
            max_scale: 3,
            record_min_max: true,
        };
        let is_it = instrument.name() == "rpc.client.call.duration";
        is_it.then(|| Stream::builder().with_aggregation(exponential).build().ok())?
    };
    let provider = SdkMeterProvider::builder();
    let provider = provider.with_reader(reader.clone()).with_view(view).build();
    store.metrics().observe(&provider.meter("ibex"));
    store.call(20);

    let collected = reader.collected();
    let Some(Data::ExponentialHistogram(calls)) = &collected["rpc.client.call.duration"].data
    else {
        panic!("{:?}", collected["rpc.client.call.duration"]);
    };
    assert_eq!(calls.data_points[0].count, 20);
    assert!(calls.data_points[0].sum > Some(0.0));
    let buckets = calls.data_points[0].positive.as_ref().expect("buckets");
    assert_eq!(buckets.bucket_counts.iter().sum::<u64>(), 20);
}
