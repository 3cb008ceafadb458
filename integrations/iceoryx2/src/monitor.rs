//! The peers and figures that a carrier reports.

use std::sync::{Arc, atomic::Ordering::Relaxed};

use ibex::{Fabric, PeerAt};
use iceoryx2_link_backend::service_description::ServiceDescriptor;
use iceoryx2_link_carrier::PeerId;

use crate::{ends::Ends, shared::Shared};

/// Reports the peers connected to a carrier, and what was carried. Made by
/// [`IbexCarrier::monitor`](crate::IbexCarrier::monitor).
///
/// The monitor may be kept on any thread and outlives the carrier.
#[derive(Clone, Debug)]
pub struct Monitor {
    shared: Arc<Shared>,
}

/// A snapshot of a carrier: [`Monitor::stats`].
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct CarrierStats {
    /// The peers whose offers are known.
    pub peers: Vec<PeerStats>,
    /// The services whose channels are open here.
    pub services: Vec<ServiceStats>,
}

/// A peer in a [`CarrierStats`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PeerStats {
    /// The peer, as offers name it.
    pub id: PeerId,
    /// The peer and its address, as the node's events and logs name it.
    pub at: PeerAt,
    /// The fabric that carries its frames.
    pub fabric: Fabric,
    /// The number of services that it offers.
    pub offers: usize,
    /// The number of channels that it has open.
    pub channels: usize,
}

/// A service in a [`CarrierStats`]. Frames count once for each peer.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ServiceStats {
    /// The service that the channel carries.
    pub descriptor: ServiceDescriptor,
    /// The peers that have it open, and get its frames.
    pub peers: Vec<PeerId>,
    /// The number of frames that were sent.
    pub sent: u64,
    /// The number of frames that a peer did not get, since its window was full or the frames were
    /// too long for it.
    pub dropped: u64,
    /// The number of frames that were received.
    pub received: u64,
}

impl Monitor {
    pub(crate) fn new(shared: Arc<Shared>) -> Self {
        Self { shared }
    }

    /// Returns the present peers and services. It takes each channel's lock for a moment.
    #[must_use]
    pub fn stats(&self) -> CarrierStats {
        let channels = self.shared.channels();
        let services = channels.iter().map(|ends| ServiceStats::of(ends));
        let services = services.collect();
        let peers = self.shared.peers();
        let peers = peers.iter().map(|(id, known)| PeerStats {
            id: PeerId::new(id.node_id()),
            at: known.at,
            fabric: known.fabric,
            offers: known.offers.len(),
            channels: known.channels,
        });
        CarrierStats {
            peers: peers.collect(),
            services,
        }
    }
}

impl ServiceStats {
    fn of(ends: &Ends) -> Self {
        let peers = ends.peers().into_iter();
        Self {
            descriptor: ends.descriptor.clone(),
            peers: peers.map(|id| PeerId::new(id.node_id())).collect(),
            sent: ends.counters.sent.load(Relaxed),
            dropped: ends.counters.dropped.load(Relaxed),
            received: ends.counters.received.load(Relaxed),
        }
    }
}
