//! The facts of a session: its peer, its fabric, the path of its frames, its counters, the reason
//! for its end, and the failures of its channels.

pub(crate) mod coarse_time;
mod counters;
mod end_cause;
mod engine_id;
mod failover_policy;
mod failure;
pub(crate) mod frame_path;
mod held_place;
mod label;
mod peer;
mod suspension;

pub(crate) use counters::SessionCounters;
pub use counters::SessionStats;
pub use end_cause::{Counts, EndCause};
pub use engine_id::{EngineId, MOST_ENGINES};
pub use failover_policy::FailoverPolicy;
pub use failure::{ChannelError, ChannelFailure, FailureReason, Full};
pub use held_place::HeldPlace;
pub use ibex_base::Fabric;
pub use label::EndLabel;
pub use peer::{PeerDescription, PeerNames};
pub use suspension::Suspension;
pub(crate) use suspension::SuspensionCell;
