//! Rails: further queue pairs of a session, on other device ports, which carry nothing but reads of
//! large messages.
//!
//! A rail has no frames and posts no receives, so it may come, fail and go while the session's frames
//! stay with the session's queue pair. Both ends number their rails alike: they
//! [pair](RailEndpoint::pair) the same two lists by the same rule.

use std::{
    cmp::Reverse,
    hash::{BuildHasher, RandomState},
    sync::Arc,
};

use ibex_ring::memory::{Mapping, MemoryUse};
use ibex_verbs::{
    FirstSequence, GidType, LocalPort, MemoryRegion, ProtectionDomain, QueuePair, ReadLimits,
    RegionAccess, RemoteAddress, RemoteEndpoint, VerbsError,
};

use super::{
    device_memory::DeviceMapping,
    offer_windows::OfferWindows,
    rdma_port::{RdmaPort, SessionPermit},
};

/// Most rails of a session.
pub const MOST_RAILS: usize = ibex_protocol::transfer::rendezvous::MOST_RAILS;

/// The queue pair of one end of a rail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RailEndpoint {
    /// The address of the queue pair.
    pub pair: RemoteEndpoint,
    /// The reads that the end makes and serves at a time.
    pub reads: ReadLimits,
    /// Eight bytes that the other end may read, to test the rail.
    pub probe: RemoteAddress,
}

/// A rail of a session that has not begun.
#[derive(Debug)]
pub struct PreparedRail {
    // Fields in drop order.
    pub(crate) pair: QueuePair,
    /// The windows through which the peer may read large messages.
    pub(crate) windows: OfferWindows,
    pub(crate) probe: Arc<ProbeMemory>,
    pub(crate) permit: SessionPermit,

    // The connection.
    first: FirstSequence,
    local: LocalPort,
    theirs: Option<RailEndpoint>,
}

/// Memory by which rails are tested: a page of zeros that any peer may read, and one that the results
/// go to, which nobody looks at.
#[derive(Debug)]
pub(crate) struct ProbeMemory {
    from: MemoryRegion<DeviceMapping>,
    to: MemoryRegion<DeviceMapping>,
}

impl ProbeMemory {
    pub(super) fn register(domain: &ProtectionDomain) -> Result<Self, VerbsError> {
        let register = |access| {
            let page = Mapping::anonymous(MemoryUse::FrameHeads, PAGE)
                .map_err(|error| VerbsError::Other(error.into()))?;
            MemoryRegion::register(domain, DeviceMapping(page), access)
        };
        Ok(Self {
            from: register(RegionAccess::REMOTE_READ)?,
            to: register(RegionAccess::RECEIVE)?,
        })
    }

    /// Returns where results go.
    pub(crate) fn target(&self) -> ibex_verbs::TargetEntry<'_> {
        self.to.target(0..PROBE_BYTES)
    }
}

impl PreparedRail {
    pub(super) fn new(
        permit: SessionPermit,
        probe: Arc<ProbeMemory>,
        pair: QueuePair,
        local: LocalPort,
    ) -> Self {
        let random = RandomState::new().hash_one(pair.number());
        Self {
            first: FirstSequence::from_random(random as u32),
            pair,
            windows: OfferWindows::default(),
            probe,
            permit,
            local,
            theirs: None,
        }
    }

    /// Returns the description to send to the peer.
    #[must_use]
    pub fn endpoint(&self) -> RailEndpoint {
        RailEndpoint {
            pair: self.pair.endpoint(self.first, &self.local),
            reads: self.pair.read_limits(),
            probe: self.probe.from.remote(0),
        }
    }

    /// Connects the queue pair to the peer's.
    pub(super) fn connect(&mut self, theirs: &RailEndpoint) -> Result<(), VerbsError> {
        self.pair.set_peer_read_limits(theirs.reads);
        self.pair.connect(self.first, self.local, theirs.pair)?;
        self.theirs = Some(*theirs);
        self.windows = OfferWindows::make(&self.permit.rdma_port);
        Ok(())
    }

    /// Returns the rail's RDMA port.
    pub(crate) fn rdma_port(&self) -> &Arc<RdmaPort> {
        &self.permit.rdma_port
    }

    /// Returns the number of reads that this end makes at a time.
    pub(crate) fn read_depth(&self) -> u32 {
        let theirs = self.theirs.map(|theirs| theirs.reads);
        let limits = theirs.map(|theirs| self.pair.read_limits().with_peer(theirs));
        limits.map_or(0, |limits| limits.depth.into())
    }

    /// Returns the eight bytes of the peer's that this end may read, once the rail is connected.
    pub(crate) fn their_probe(&self) -> Option<RemoteAddress> {
        self.theirs.map(|theirs| theirs.probe)
    }
}

impl RailEndpoint {
    /// Pairs the rails that the two ends have, those first that have most of their GIDs in common:
    /// these are probably in one network. Returns the indices of each pair. Rails of different kinds,
    /// and of different InfiniBand subnets, cannot be paired.
    #[must_use]
    pub fn pair(dialer: &[Self], acceptor: &[Self]) -> Vec<(usize, usize)> {
        let mut candidates = Vec::new();
        for (ours, one) in dialer.iter().enumerate() {
            for (theirs, other) in acceptor.iter().enumerate() {
                if let Some(bits) = one.common_bits(other) {
                    candidates.push((Reverse(bits), ours, theirs));
                }
            }
        }
        candidates.sort_unstable();
        let mut pairs: Vec<(usize, usize)> = Vec::new();
        for (_, ours, theirs) in candidates {
            if pairs.iter().all(|one| one.0 != ours && one.1 != theirs) {
                pairs.push((ours, theirs));
            }
        }
        pairs
    }

    /// Returns how many leading bits of the GIDs are equal; `None` if packets cannot get from one to
    /// the other.
    fn common_bits(&self, other: &Self) -> Option<u32> {
        let (one, other) = (&self.pair, &other.pair);
        let bits = |gid: ibex_verbs::Gid| u128::from_be_bytes(gid.0);
        let common = (bits(one.gid) ^ bits(other.gid)).leading_zeros();
        let has_lids = [one.lid, other.lid].map(|lid| lid != 0);
        let can = match has_lids {
            [true, true] => common >= SUBNET_BITS,
            [false, false] => one.gid_type == other.gid_type && one.gid_type != GidType::InfiniBand,
            _ => false,
        };
        can.then_some(common)
    }
}

const PAGE: usize = 4096;
/// Length of a read that tests a rail.
const PROBE_BYTES: usize = 8;
/// The bits of an InfiniBand GID that name the subnet (InfiniBand Architecture Specification volume
/// 1, section 4.1.1).
const SUBNET_BITS: u32 = 64;
