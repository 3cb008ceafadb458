//! The state of a node and of its sessions, which engines and handles share. It includes the
//! reports for the program: events, warnings, and the report of the node's end.

mod call_times;
mod close_report;
mod config;
mod draining;
mod events;
mod held_tasks;
mod histograms;
mod placement;
mod requests;
mod rights;
pub(crate) mod session;
mod session_end;
mod session_memory;
mod session_path;
mod slow;
mod state;
mod taken_names;
mod unopened;
mod wait;
mod warnings;

pub use call_times::{CallTime, CallTimes};
pub use close_report::{CloseReport, Undelivered};
pub(crate) use config::Driving;
pub use config::{Driver, RuntimeConfig};
pub use draining::DrainParticipant;
pub(crate) use events::EventQueue;
pub use events::{NodeEvent, Stalled, What};
pub use histograms::{Measured, NodeHistogram, Stopwatch};
pub(crate) use placement::Sessions;
pub use requests::EngineRequests;
pub(crate) use requests::Mark;
pub use rights::has_more_rights_than_its_user;
pub use session::SessionShared;
pub use session_end::Ending;
pub use session_path::PollTarget;
pub(crate) use session_path::SessionPath;
pub(crate) use slow::SlowMessages;
pub use slow::{MessageStages, SlowMessageFacts};
pub use state::NodeState;
pub(crate) use state::push_live;
pub use taken_names::TakenName;
pub(crate) use unopened::Unopened;
pub use wait::Wait;
pub(crate) use warnings::{Warning, Warnings, warn_of};
