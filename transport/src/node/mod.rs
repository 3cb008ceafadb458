//! A node as its program hears of it: events, warnings, services, and the report of its end.

mod close_report;
mod draining;
mod events;
pub mod log_limit;
mod service_names;
mod warnings;

pub use close_report::{CloseReport, Undelivered};
pub use draining::Serves;
pub(crate) use draining::{Draining, PeerDraining};
pub(crate) use events::EventQueue;
pub use events::{Event, Stalled, What};
pub use service_names::ServiceName;
pub(crate) use service_names::ServiceNames;
pub(crate) use warnings::{Warning, Warnings, warn_of};
