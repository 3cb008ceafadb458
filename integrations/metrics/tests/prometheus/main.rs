//! The example's page, scraped by a real Prometheus, which is then asked every question of the
//! dashboard.
//!
//! It needs the package `prometheus` of Debian and Ubuntu.

mod dashboard;
#[path = "../../examples/metrics_page.rs"]
mod metrics_page;
mod nodes;
mod server;

use std::{
    io::Write,
    net::TcpListener,
    process::{Command, Stdio},
    thread,
};

use ibex_metrics::{Kind, TABLE};

use dashboard::Dashboard;
use nodes::Nodes;
use server::{Prometheus, get};

#[test]
fn prometheus_scrapes_the_page_and_answers_the_dashboard() {
    if !is_installed() {
        eprintln!("left out: needs the package prometheus");
        return;
    }
    let nodes = Nodes::busy();
    let page = TcpListener::bind("127.0.0.1:0").expect("an address");
    let address = page.local_addr().expect("it is bound");
    let metrics = nodes.metrics();
    thread::spawn(move || metrics_page::serve_page(&page, metrics));

    let (status, text) = get(address, "/metrics");
    assert_eq!(status, 200);
    check_text(&text);
    assert_eq!(get(address, "/").0, 404);

    let prometheus = Prometheus::scraping(address);
    prometheus.await_scrapes("ibex_begun_sessions_total", 4);
    let help = prometheus.metadata();
    for metric in TABLE {
        let name = metric.name;
        // A device of this machine has counters; the one made of memory has none.
        if is_absent(name) {
            continue;
        }
        let kind = match metric.kind {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
            Kind::Histogram => "histogram",
            _ => unreachable!("there are no others"),
        };
        let described = &help[name][0];
        assert_eq!(described["type"], kind, "{name}");
        assert_eq!(described["help"], metric.help, "{name}");
    }

    let dashboard = Dashboard::load();
    for question in dashboard.questions() {
        let expression = dashboard::asked(&question);
        let answer = prometheus.ask(&expression);
        let may_be_empty = TABLE
            .iter()
            .any(|metric| is_absent(metric.name) && question.contains(metric.name));
        assert!(
            may_be_empty || !answer.is_empty(),
            "no data for {expression}"
        );
    }
    // Every call is in the histogram that Prometheus has.
    let calls = prometheus.ask("sum(rpc_client_call_duration_seconds_count) > 0");
    assert_eq!(calls.len(), 1);
    let within = "sum(rpc_client_call_duration_seconds_bucket{le=\"+Inf\"}) == \
                  sum(rpc_client_call_duration_seconds_count)";
    assert_eq!(prometheus.ask(within).len(), 1);
    nodes.rest();
}

/// Whether no node of this test has the metric.
fn is_absent(name: &str) -> bool {
    let of_port = [
        "ibex_completion_polls_total",
        "ibex_empty_completion_polls_total",
        "ibex_device_events_total",
        "ibex_ignored_device_events_total",
        "ibex_stray_completions_total",
    ];
    let of_security = [
        "ibex_handshakes_total",
        "ibex_certificate_expiry_timestamp_seconds",
    ];
    name == "ibex_port_counter_total"
        || of_security.contains(&name)
        || (cfg!(not(feature = "fake-device")) && of_port.contains(&name))
}

fn is_installed() -> bool {
    let version = Command::new("promtool").arg("--version").output();
    version.is_ok_and(|version| version.status.success())
}

/// Has promtool read the page, which also looks for names that break the conventions.
fn check_text(text: &str) {
    let mut promtool = Command::new("promtool")
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("promtool is there");
    let mut input = promtool.stdin.take().expect("a pipe");
    input.write_all(text.as_bytes()).expect("it reads");
    drop(input);
    let checked = promtool.wait_with_output().expect("it ends");
    let findings = String::from_utf8_lossy(&checked.stderr);
    assert!(checked.status.success(), "{findings}\n{text}");
    assert_eq!(findings, "");
}
