//! Sessions over RDMA verbs: the layer between the objects of [`ibex_verbs`] and the connections.
//!
//! An [`RdmaPort`] holds a node's objects on one device port. It makes a [`PreparedPair`] for each
//! session, and registers the memory that sessions send from and are written to. The session's
//! connection moves frames over the pair.

mod arrival_buffers;
mod device_memory;
mod eager_block_place;
#[cfg(any(test, feature = "fake-device"))]
mod mask_settings;
mod offer_windows;
mod overdue;
mod pair_endpoint;
mod pending_pairs;
mod port_counters;
mod port_error;
mod port_queues;
mod port_settings;
mod prepared_pair;
mod prepared_rail;
mod rdma_port;
mod registered_memory;
mod send_slots;

pub(crate) use arrival_buffers::{ArrivalBuffers, ArrivedBuffer};
pub(crate) use device_memory::DeviceMapping;
pub(crate) use eager_block_place::EagerBlockPlace;
#[cfg(any(test, feature = "fake-device"))]
pub use mask_settings::settings_of;
pub(crate) use offer_windows::OfferWindows;
pub use pair_endpoint::PairEndpoint;
pub(crate) use port_counters::PortCounts;
pub use port_error::PortError;
pub(crate) use port_queues::{PortQueues, SharedReceives};
pub use port_settings::PortSettings;
pub use prepared_pair::PreparedPair;
pub(crate) use prepared_rail::ProbeMemory;
pub use prepared_rail::{MOST_RAILS, PreparedRail, RailEndpoint};
pub(crate) use rdma_port::{
    DrainGuard, PortStanding, RAIL_REQUESTS, SEND_BATCH, SEND_ENTRIES, SessionPermit,
};
pub use rdma_port::{PortOpening, RdmaPort};
pub(crate) use registered_memory::GrantedMemory;
pub use registered_memory::{RegisteredMessage, RegisteredRing};
pub(crate) use send_slots::SendSlots;

#[cfg(test)]
mod tests;
