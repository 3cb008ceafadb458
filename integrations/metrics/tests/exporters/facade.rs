//! The facade's recorder against the table.

use std::collections::BTreeMap;

use ibex_metrics::{Kind, TABLE, Unit};
use metrics_util::debugging::{DebugValue, DebuggingRecorder, Snapshotter};

use crate::store::Store;

/// Takes what was published, by name; the values of one name in the order of their labels.
fn taken(snapshotter: &Snapshotter) -> BTreeMap<String, Vec<DebugValue>> {
    let mut samples: Vec<_> = snapshotter.snapshot().into_vec();
    samples.sort_by_key(|(key, ..)| format!("{:?}", key.key()));
    let mut taken = BTreeMap::<_, Vec<_>>::new();
    for (key, unit, help, value) in samples {
        let name = key.key().name().to_owned();
        assert!(unit.is_some() && help.is_some(), "{name} is described");
        taken.entry(name).or_default().push(value);
    }
    taken
}

#[test]
fn the_facade_is_told_of_every_metric() {
    let mut store = Store::open();
    let ibex = store.metrics();
    store.call(20);
    store.send_acknowledged(5);

    let recorder = DebuggingRecorder::new();
    let snapshotter = recorder.snapshotter();
    metrics::with_local_recorder(&recorder, || ibex.publish());
    let first = taken(&snapshotter);
    for family in ibex.read() {
        let name = family.metric.name;
        assert!(first.contains_key(name), "{name} was not published");
    }
    for (name, values) in &first {
        let metric = TABLE.iter().find(|metric| metric.name == name);
        let metric = metric.unwrap_or_else(|| panic!("{name} is no metric"));
        for value in values {
            let is_right = match value {
                DebugValue::Counter(_) => {
                    metric.kind == Kind::Counter && metric.unit != Unit::Seconds
                }
                DebugValue::Gauge(_) => metric.kind == Kind::Gauge || metric.unit == Unit::Seconds,
                DebugValue::Histogram(_) => metric.kind == Kind::Histogram,
            };
            assert!(is_right, "{name}: {value:?}");
        }
    }
    let sum = |values: &[DebugValue]| -> u64 {
        let counts = values.iter().map(|value| match value {
            DebugValue::Counter(count) => *count,
            other => panic!("{other:?}"),
        });
        counts.sum()
    };
    // The calls are messages too: requests and replies.
    assert_eq!(sum(&first["ibex_sent_messages_total"]), 5 + 2 * 20);

    // Histograms get what is new.
    let count = |published: &BTreeMap<String, Vec<DebugValue>>| -> usize {
        let values = published.get("rpc_client_call_duration_seconds");
        let counts = values.into_iter().flatten().map(|value| match value {
            DebugValue::Histogram(values) => values.len(),
            other => panic!("{other:?}"),
        });
        counts.sum()
    };
    assert_eq!(count(&first), 20);
    store.call(3);
    metrics::with_local_recorder(&recorder, || ibex.publish());
    let second = taken(&snapshotter);
    assert_eq!(count(&second), 3);
    assert_eq!(sum(&second["ibex_sent_messages_total"]), 5 + 2 * 23);
}
