//! Observable instruments of OpenTelemetry.

use std::sync::{Arc, Mutex, PoisonError};

use opentelemetry::{
    KeyValue,
    metrics::{AsyncInstrument, Histogram, Meter},
};

use crate::{
    buckets::{bounds, middle},
    collected::{Family, Labels, Value},
    deltas::Deltas,
    metrics::Metrics,
    table::{Kind, Metric, TABLE, Unit},
};

/// The families of the present collection.
struct Collection {
    metrics: Metrics,
    families: Vec<Family>,
    /// Counts the readings of the nodes.
    reading: u64,
    histograms: Vec<(&'static str, Histogram<f64>)>,
    recorded: Deltas,
}

impl Metrics {
    /// Makes an instrument of the meter for each metric. The nodes are read once for each
    /// collection, by its first callback.
    ///
    /// Names are those of the [table](crate::TABLE) without `_total`; the durations of calls have
    /// the names of the [semantic conventions](https://opentelemetry.io/docs/specs/semconv/rpc/rpc-metrics/),
    /// `rpc.client.call.duration` and `rpc.server.call.duration`.
    ///
    /// OpenTelemetry has no observable histograms: a collection records each duration since the one
    /// before, as the middle of a bucket that is at most 1/16 wide, which takes the collecting
    /// thread some 100 ns for each. The instruments have explicit buckets at the powers of two of
    /// nanoseconds from 1 µs to 69 s. A view of the program asks for base-2 exponential histograms
    /// instead, whose buckets are as fine everywhere:
    ///
    /// ```
    /// use opentelemetry_sdk::metrics::{Aggregation, Instrument, SdkMeterProvider, Stream};
    ///
    /// let exponential = |instrument: &Instrument| {
    ///     let is_duration = instrument.name().starts_with("rpc.");
    ///     let aggregation = Aggregation::Base2ExponentialHistogram {
    ///         max_size: 160,
    ///         max_scale: 20,
    ///         record_min_max: false,
    ///     };
    ///     let stream = Stream::builder().with_aggregation(aggregation).build();
    ///     stream.ok().filter(|_| is_duration)
    /// };
    /// let provider = SdkMeterProvider::builder().with_view(exponential).build();
    /// ```
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use ibex::Node;
    /// use ibex_metrics::Metrics;
    /// use opentelemetry::global;
    ///
    /// let node = Node::builder().histograms(true).build()?;
    /// Metrics::new().watch(&node).observe(&global::meter("ibex"));
    /// # Ok(())
    /// # }
    /// ```
    pub fn observe(&self, meter: &Meter) {
        let histograms = TABLE.iter().filter(|metric| metric.kind == Kind::Histogram);
        let histograms = histograms.map(|metric| {
            let instrument = meter
                .f64_histogram(name(metric))
                .with_description(metric.help)
                .with_unit("s")
                .with_boundaries(bounds().collect());
            (metric.name, instrument.build())
        });
        let collection = Arc::new(Mutex::new(Collection {
            metrics: self.clone(),
            families: Vec::new(),
            reading: 0,
            histograms: histograms.collect(),
            recorded: Deltas::default(),
        }));
        for metric in TABLE {
            instrument(meter, metric, &collection);
        }
    }
}

/// Makes the instrument of a metric. A histogram is recorded with the reading of the nodes, which
/// any instrument may begin.
fn instrument(meter: &Meter, metric: &'static Metric, collection: &Arc<Mutex<Collection>>) {
    let collection = collection.clone();
    let last = Mutex::new(0);
    let samples = move || {
        let mut collection = collection.lock().unwrap_or_else(PoisonError::into_inner);
        let mut last = last.lock().unwrap_or_else(PoisonError::into_inner);
        if *last == collection.reading {
            collection.read();
        }
        *last = collection.reading;
        let family = collection.families.iter();
        let mut family = family.filter(|family| family.metric.name == metric.name);
        family
            .next()
            .map_or_else(Vec::new, |family| family.samples.clone())
    };
    let (name, help) = (name(metric), metric.help);
    match (metric.kind, metric.unit) {
        (Kind::Histogram, _) => {}
        (Kind::Counter, Unit::Seconds) => {
            let builder = meter.f64_observable_counter(name).with_description(help);
            let builder = builder.with_unit("s");
            let _instrument = builder
                .with_callback(move |to| {
                    observe(to, samples(), |number| metric.unit.scaled(number));
                })
                .build();
        }
        (Kind::Counter, unit) => {
            let builder = meter.u64_observable_counter(name).with_description(help);
            let builder = builder.with_unit(symbol(unit));
            let _instrument = builder
                .with_callback(move |to| {
                    observe(to, samples(), |number| number);
                })
                .build();
        }
        (Kind::Gauge, unit) => {
            let builder = meter.f64_observable_gauge(name).with_description(help);
            let builder = builder.with_unit(symbol(unit));
            let _instrument = builder
                .with_callback(move |to| {
                    observe(to, samples(), |number| unit.scaled(number));
                })
                .build();
        }
    }
}

fn observe<T>(
    to: &dyn AsyncInstrument<T>,
    samples: Vec<(Labels, Value)>,
    value_of: impl Fn(u64) -> T,
) {
    for (labels, value) in samples {
        if let Value::Number(number) = value {
            to.observe(value_of(number), &attributes(&labels));
        }
    }
}

impl Collection {
    /// Reads the nodes, and records what histograms have gained.
    fn read(&mut self) {
        self.reading += 1;
        self.families = self.metrics.read();
        for family in &self.families {
            let instrument = self.histograms.iter();
            let mut instrument = instrument.filter(|(name, _)| *name == family.metric.name);
            let Some((_, instrument)) = instrument.next() else {
                continue;
            };
            for (labels, value) in &family.samples {
                let Value::Histogram(histogram) = value else {
                    continue;
                };
                let attributes = attributes(labels);
                for (durations, count) in self.recorded.take(family.metric, labels, histogram) {
                    let middle = middle(&durations);
                    (0..count).for_each(|_| instrument.record(middle, &attributes));
                }
            }
        }
    }
}

/// Returns the name in OpenTelemetry.
fn name(metric: &'static Metric) -> String {
    let name = metric.name;
    match name.strip_prefix("rpc_") {
        Some(_) => dotted(name.strip_suffix("_seconds").unwrap_or(name)),
        None => name.strip_suffix("_total").unwrap_or(name).to_owned(),
    }
}

fn attributes(labels: &Labels) -> Vec<KeyValue> {
    let key = |label: &'static str| match label {
        "rpc_system_name" => "rpc.system.name",
        "rpc_method" => "rpc.method",
        "error_type" => "error.type",
        label => label,
    };
    let labels = labels.0.iter();
    labels
        .map(|(label, value)| KeyValue::new(key(label), value.clone()))
        .collect()
}

/// Returns a name of the semantic conventions, as it is before Prometheus replaces the dots.
fn dotted(name: &str) -> String {
    name.replace('_', ".")
}

/// Returns the unit's symbol in UCUM.
fn symbol(unit: Unit) -> &'static str {
    match unit {
        Unit::Count => "",
        Unit::Bytes => "By",
        Unit::Seconds => "s",
    }
}
