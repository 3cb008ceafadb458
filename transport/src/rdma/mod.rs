//! Sessions over RDMA verbs: the layer between the objects of [`ibex_verbs`] and the connections.
//!
//! A [`Site`] holds a node's objects on one device port. It makes a [`PreparedPair`] for each
//! session, and registers the memory that sessions send from and are written to. The session's
//! connection moves frames over the pair.

mod arrival_buffers;
mod device_memory;
mod landing_place;
#[cfg(any(test, feature = "fake-device"))]
mod mask_settings;
mod overdue;
mod pair_endpoint;
mod prepared_pair;
mod registered_memory;
mod send_slots;
mod site;
mod site_counters;
mod site_error;
mod site_queues;
mod site_settings;
mod unjoined;

pub(crate) use arrival_buffers::{ArrivalBuffers, ArrivedBuffer};
pub(crate) use device_memory::DeviceMapping;
pub(crate) use landing_place::LandingPlace;
#[cfg(any(test, feature = "fake-device"))]
pub use mask_settings::settings_of;
pub use pair_endpoint::PairEndpoint;
pub use prepared_pair::PreparedPair;
pub use registered_memory::{RegisteredMessage, RegisteredRing};
pub(crate) use send_slots::SendSlots;
pub(crate) use site::{Leaver, PortNews, SEND_BATCH, SEND_ENTRIES, Seat};
pub use site::{Site, SiteOpening};
pub(crate) use site_counters::SiteCounts;
pub use site_error::SiteError;
pub(crate) use site_queues::{SharedReceives, SiteQueues};
pub use site_settings::SiteSettings;

#[cfg(test)]
mod tests;
