//! A node as its program hears of it: events, warnings, and the report of its end.

mod close_report;
mod events;
pub mod log_limit;
mod warnings;

pub use close_report::{CloseReport, Undelivered};
pub(crate) use events::EventQueue;
pub use events::{Event, Stalled, What};
pub(crate) use warnings::{Warning, Warnings, warn_of};
