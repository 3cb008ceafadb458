//! The table against what ibex counts and its guide says, and each exporter against the table.

mod facade;
mod otel;
mod store;

use std::collections::BTreeSet;

use ibex_metrics::{Kind, Metrics, TABLE, Unit, Value};

use store::Store;

#[test]
fn names_say_kind_and_unit() {
    let mut names = BTreeSet::new();
    for metric in TABLE {
        let name = metric.name;
        assert!(names.insert(name), "{name} is there twice");
        let is_ours = name.starts_with("ibex_") || name.starts_with("rpc_");
        assert!(is_ours, "{name}");
        assert_eq!(
            name.ends_with("_total"),
            metric.kind == Kind::Counter,
            "{name}"
        );
        let stem = name.strip_suffix("_total").unwrap_or(name);
        assert_eq!(
            stem.ends_with("_bytes"),
            metric.unit == Unit::Bytes,
            "{name}"
        );
        assert_eq!(
            stem.ends_with("_seconds"),
            metric.unit == Unit::Seconds,
            "{name}"
        );
        assert!(!metric.help.ends_with('.'), "{name}");
    }
}

#[test]
fn the_guide_says_of_every_metric_what_to_do() {
    let page = include_str!("../../../../src/guide/metrics.md");
    let rows = page
        .lines()
        .filter(|line| line.starts_with("| `ibex_") || line.starts_with("| `rpc_"));
    let rows: Vec<_> = rows.collect();
    for metric in TABLE {
        let begin = format!("| `{}` | {} | ", metric.name, metric.help);
        let row = rows.iter().find_map(|row| row.strip_prefix(&begin));
        let advice = row.unwrap_or_else(|| panic!("the guide has no row `{begin}`"));
        assert!(advice.len() > " |".len(), "{}: no advice", metric.name);
    }
    assert_eq!(
        rows.len(),
        TABLE.len(),
        "the guide has metrics that are none"
    );
}

#[test]
fn each_call_and_each_wait_is_counted_once() {
    let mut store = Store::open();
    let metrics = store.metrics();
    store.call(100);
    store.send_acknowledged(10);
    assert_eq!(
        store
            .durations(&metrics, "rpc_client_call_duration_seconds")
            .count(),
        100
    );
    assert_eq!(
        store
            .durations(&metrics, "rpc_server_call_duration_seconds")
            .count(),
        100
    );
    let waits = store.durations(&metrics, "ibex_ack_wait_seconds");
    assert_eq!(waits.count(), 10);
    assert!(waits.quantile(1.0) > Some(std::time::Duration::ZERO));
    assert!(waits.sum() > std::time::Duration::ZERO);

    store.send_to_group(4);
    let waits = store.durations(&metrics, "ibex_ack_wait_seconds");
    assert_eq!(waits.count(), 10 + 4);
}

#[test]
fn a_call_that_fails_has_the_kind_of_its_error() {
    let store = Store::open();
    let metrics = store.metrics();
    store.call(1);
    store.fail();
    let of = |service: &str, error: &str| (service.to_owned(), error.to_owned(), 1);
    assert_eq!(
        store.failures(&metrics, "rpc_client_call_duration_seconds"),
        [
            of("absent", "DeadlineExceeded"),
            of("failing", "Failed"),
            of("failing", "Unanswered")
        ]
    );
    assert_eq!(
        store.failures(&metrics, "rpc_server_call_duration_seconds"),
        [of("failing", "Failed"), of("failing", "Unanswered")]
    );
}

#[test]
fn a_node_without_histograms_has_none() {
    let mut store = Store::open_with(|builder| builder);
    let metrics = store.metrics();
    store.call(1);
    store.send_acknowledged(1);
    let families = metrics.read();
    let histograms = families
        .iter()
        .filter(|family| family.metric.kind == Kind::Histogram);
    assert_eq!(histograms.count(), 0);
}

#[test]
fn a_node_that_is_gone_has_no_samples_and_is_not_kept() {
    let store = Store::open();
    let metrics: Metrics = store.metrics();
    assert!(!metrics.read().is_empty());
    drop(store);
    assert!(metrics.read().is_empty());
}

#[test]
fn messages_are_counted_by_channel_and_fabric() {
    let mut store = Store::open();
    let metrics = store.metrics();
    store.send_acknowledged(7);
    let families = metrics.read();
    let sample = |name: &str| {
        let family = families.iter().find(|family| family.metric.name == name);
        let samples = &family.unwrap_or_else(|| panic!("no {name}")).samples;
        let of_log = samples
            .iter()
            .filter(|(labels, _)| labels.get("channel") == Some("log"));
        let of_log: Vec<_> = of_log.collect();
        let [(labels, value)] = of_log[..] else {
            panic!("{name}: {of_log:?}");
        };
        assert_eq!(labels.get("fabric"), Some("tcp"));
        value.clone()
    };
    assert_eq!(sample("ibex_sent_messages_total"), Value::Number(7));
    assert_eq!(sample("ibex_received_messages_total"), Value::Number(7));
    assert_eq!(sample("ibex_acknowledged_messages_total"), Value::Number(7));
    assert_eq!(sample("ibex_unreleased_messages"), Value::Number(0));
}

/// As the guide's row of the metric says.
#[test]
fn calls_are_answered_and_not_acknowledged() {
    let store = Store::open();
    let metrics = store.metrics();
    let _caller = store.call(3);
    let families = metrics.read();
    let of_prices = |name: &str| {
        let family = families.iter().find(|family| family.metric.name == name);
        let samples = &family.unwrap_or_else(|| panic!("no {name}")).samples;
        ["prices", "prices/replies"].map(|channel| {
            let of_channel = samples.iter();
            let mut of_channel =
                of_channel.filter(|(labels, _)| labels.get("channel") == Some(channel));
            let (_, value) = of_channel.next().expect("the channel");
            value.clone()
        })
    };
    assert_eq!(
        of_prices("ibex_sent_messages_total"),
        [3, 3].map(Value::Number)
    );
    assert_eq!(
        of_prices("ibex_acknowledged_messages_total"),
        [0, 0].map(Value::Number)
    );
}
