//! A session as handles, engine and connection know it: its peer, its fabric, its counters and its
//! end.

pub(crate) mod coarse_time;
mod counters;
pub mod disconnected;
mod ending;
mod engine_id;
mod fabric;
mod interface;
mod not_opened;
mod peer;
pub(crate) mod route;
pub(crate) mod state;
mod stats;

pub(crate) use counters::SessionCounters;
pub use disconnected::{Counts, Disconnected, EndCause};
pub(crate) use ending::Ending;
pub use engine_id::{EngineId, MOST_ENGINES};
pub use fabric::Fabric;
pub use interface::Interface;
pub use not_opened::NotOpened;
pub use peer::PeerDescription;
pub use state::SessionShared;
pub use stats::SessionStats;
