//! Channels with several peers, ends that know several message types, and the wait for several ends.

pub(crate) mod fan_in;
pub mod group;
mod publisher;
mod select;
mod versions;

pub use self::{
    fan_in::{FanIn, FanInEvent},
    publisher::Publisher,
    select::Select,
    versions::{VersionedReceiver, VersionedSender, Versions},
};
