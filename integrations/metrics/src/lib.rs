//! What the nodes of [ibex] count, for the monitoring that a program already has:
//!
//! | feature | what it has |
//! |---|---|
//! | `prometheus-client` | [`Metrics`] is a [`Collector`](prometheus_client::collector::Collector) of the crate [prometheus-client](prometheus_client), which reads the nodes when it is scraped |
//! | `metrics` | [`Metrics::publish`] sets the metrics of the facade crate [metrics](::metrics) |
//! | `opentelemetry` | [`Metrics::observe`] makes observable instruments of a [`Meter`](opentelemetry::metrics::Meter) |
//! | `verbs` | the counters of RDMA devices, with the feature `verbs` of ibex |
//!
//! Nothing is measured on the path of a message: whoever collects reads
//! [`Node::stats`](ibex::Node::stats), some 100 ns for each channel. Histograms of calls and of
//! waits for acknowledgements are there if a node was made with
//! [`histograms`](ibex::NodeBuilder::histograms).
//!
//! [`TABLE`] has every metric: its name, kind, unit and meaning. The page [`ibex::guide::metrics`]
//! says what to do when one moves, and `grafana.json` beside this crate is a dashboard of them.
//!
//! ```
//! use std::error::Error;
//!
//! use ibex::Node;
//! use ibex_metrics::Metrics;
//! use prometheus_client::{encoding::text, registry::Registry};
//!
//! fn main() -> Result<(), Box<dyn Error>> {
//!     let node = Node::builder().name("store").histograms(true).build()?;
//!     let mut registry = Registry::default();
//!     registry.register_collector(Box::new(Metrics::new().watch(&node)));
//!
//!     let mut page = String::new(); // the answer to GET /metrics
//!     text::encode(&mut page, &registry)?;
//!     assert!(page.contains("ibex_begun_sessions_total{node=\"store\"} 0"));
//!     Ok(())
//! }
//! ```
#![forbid(unsafe_code)]

#[cfg(any(
    feature = "metrics",
    feature = "opentelemetry",
    feature = "prometheus-client"
))]
mod buckets;
mod collected;
#[cfg(any(feature = "metrics", feature = "opentelemetry"))]
mod deltas;
#[cfg(feature = "metrics")]
mod facade;
mod ledger;
mod metrics;
#[cfg(feature = "opentelemetry")]
mod otel;
#[cfg(feature = "prometheus-client")]
mod prometheus;
mod table;

pub use crate::{
    collected::{Family, Labels, Value},
    metrics::Metrics,
    table::{Kind, Metric, TABLE, Unit},
};

/// The README, whose code is compiled.
#[cfg(all(
    doctest,
    feature = "metrics",
    feature = "opentelemetry",
    feature = "prometheus-client"
))]
#[doc = include_str!("../README.md")]
struct Readme;
