//! Memory in which a large message arrives: the node's, or a region that the program has provided.
//!
//! A region belongs to its receiving end until a message begins to arrive in it, then to the message.
//! If the message does not arrive, the region goes back to the end, and serves the next message. It
//! goes back to its place in the order in which the program has provided regions.

use std::{
    collections::VecDeque,
    mem,
    ptr::NonNull,
    sync::{Arc, Mutex},
};

use ibex_base::{fork, sync::lock};
use ibex_ring::memory::{LargeLease, MappedBytes, ProvidedRegion, RegionUnfit};

use crate::rdma::{GrantedMemory, RdmaPort, RegisteredMessage};

/// Memory in which a large message arrives.
#[derive(Debug)]
pub(crate) enum ArrivalMemory {
    /// Memory of the node.
    Lease(LargeLease),
    /// Memory of the program.
    Region(EagerBlockRegion),
}

impl ArrivalMemory {
    /// Returns the registration with this port of memory into which a message of `bytes` can be read.
    pub(crate) fn target(
        &self,
        rdma_port: &RdmaPort,
        bytes: usize,
    ) -> Option<Arc<RegisteredMessage>> {
        match self {
            Self::Lease(lease) => rdma_port.message_target(lease, bytes),
            Self::Region(region) => rdma_port.registered_mapped(region.mapped()?, None),
        }
    }

    /// Returns the address of the message's first byte.
    pub(crate) fn base(&self) -> NonNull<u8> {
        match self {
            Self::Lease(lease) => lease.base(),
            Self::Region(region) => region.base(),
        }
    }

    /// Returns whether all of the memory has its pages and is charged, as far as it is charged at all.
    pub(crate) fn is_whole(&mut self) -> bool {
        self.lease_mut()
            .is_none_or(|lease| lease.claim_mut().is_some())
    }

    /// Returns the memory, if it is the node's.
    pub(crate) fn into_lease(self) -> Option<LargeLease> {
        match self {
            Self::Lease(lease) => Some(lease),
            Self::Region(_) => None,
        }
    }

    /// Returns the memory, if it is a region.
    pub(crate) fn into_region(self) -> Option<EagerBlockRegion> {
        match self {
            Self::Lease(_) => None,
            Self::Region(region) => Some(region),
        }
    }

    /// Returns the node's memory, which is charged to its limit.
    pub(crate) fn lease_mut(&mut self) -> Option<&mut LargeLease> {
        match self {
            Self::Lease(lease) => Some(lease),
            Self::Region(_) => None,
        }
    }
}

/// A large message for which memory is requested.
pub(crate) struct LargeWanted {
    pub(crate) sequence: u64,
    pub(crate) length: u64,
    /// It may be read in the peer's memory.
    pub(crate) is_offered: bool,
    /// The region that it is to arrive in, if there is one for it.
    pub(crate) region: Option<EagerBlockRegion>,
}

/// The regions that wait at a receiving end for messages, the first one first.
#[derive(Debug, Default)]
pub(crate) struct ProvidedRegions(Mutex<WaitingRegions>);

#[derive(Debug, Default)]
struct WaitingRegions {
    /// The regions with their numbers, which ascend.
    regions: VecDeque<(u64, ProvidedRegion)>,
    /// The number of the next region.
    next: u64,
    /// The end's handle is gone, so nobody wants the regions any more.
    is_closed: bool,
}

impl ProvidedRegions {
    /// Adds a region behind the others. If there are as many as an end takes, gives it back.
    pub(crate) fn add(&self, region: ProvidedRegion) -> Result<(), (ProvidedRegion, RegionUnfit)> {
        let mut waiting = lock(&self.0);
        if waiting.regions.len() >= MAX_REGIONS {
            return Err((region, RegionUnfit::TooMany { limit: MAX_REGIONS }));
        }
        let number = waiting.next;
        waiting.next += 1;
        waiting.regions.push_back((number, region));
        Ok(())
    }

    /// Takes the first region that has room for a message of `length`.
    pub(crate) fn take(self: &Arc<Self>, length: u64) -> Option<EagerBlockRegion> {
        let mut waiting = lock(&self.0);
        let fits = |(_, region): &(u64, ProvidedRegion)| region.length() as u64 >= length;
        let index = waiting.regions.iter().position(fits)?;
        let (number, region) = waiting.regions.remove(index)?;
        Some(EagerBlockRegion {
            granted: None,
            region: Some(region),
            number,
            home: self.clone(),
        })
    }

    /// Takes all regions that wait.
    pub(crate) fn take_all(&self) -> impl Iterator<Item = ProvidedRegion> + use<> {
        let regions = mem::take(&mut lock(&self.0).regions);
        regions.into_iter().map(|(_, region)| region)
    }

    /// Frees the regions, also those that come back later, because the end's handle is gone.
    pub(crate) fn close(&self) {
        lock(&self.0).is_closed = true;
        drop(self.take_all());
    }

    /// Puts a region back before those that were provided after it. The regions of messages that end
    /// together come back in any order.
    fn put_back(&self, number: u64, region: ProvidedRegion) {
        let mut waiting = lock(&self.0);
        if waiting.is_closed {
            // Freeing it takes long, so it happens outside the lock.
            drop(waiting);
            drop(region);
        } else {
            let regions = &mut waiting.regions;
            let index = regions.partition_point(|(before, _)| *before < number);
            regions.insert(index, (number, region));
        }
    }
}

/// A region in which a message arrives. Dropping it ends the peer's right to write there, and gives the
/// region back to the receiving end.
#[derive(Debug)]
pub(crate) struct EagerBlockRegion {
    /// The right of the peer's device to write this one message. The peer keeps its key, so the right
    /// ends before the region is anyone else's.
    granted: Option<GrantedMemory>,
    /// Taken by `arrived` and the end alone.
    region: Option<ProvidedRegion>,
    /// The region's number at its end.
    number: u64,
    home: Arc<ProvidedRegions>,
}

impl EagerBlockRegion {
    fn region(&self) -> &ProvidedRegion {
        let region = self.region.as_ref();
        region.expect("only the end takes the region")
    }

    /// Returns the address of the message's first byte.
    pub(crate) fn base(&self) -> NonNull<u8> {
        self.region().base()
    }

    /// Returns the memory that a device may know.
    pub(crate) fn mapped(&self) -> Option<&MappedBytes> {
        self.region().mapped()
    }

    /// Notes the registration by which the peer writes the message.
    pub(crate) fn grant(&mut self, granted: GrantedMemory) {
        self.granted = Some(granted);
    }

    /// Returns the region for the message to come there again, over another wire; `None` if the device
    /// keeps the memory. Ends the registration, as [`arrived`](Self::arrived) does.
    pub(crate) fn again(mut self) -> Option<Self> {
        match self.end_grant() {
            true => Some(self),
            false => {
                // Nobody may use the memory any more.
                mem::forget(self.region.take());
                None
            }
        }
    }

    /// Returns the registration by which the peer writes the message.
    pub(crate) fn granted(&self) -> Option<&GrantedMemory> {
        self.granted.as_ref()
    }

    /// Returns the region with its message, to which nobody writes any more. Ends the registration, if
    /// there is one, which takes long: call it outside turns.
    pub(crate) fn arrived(mut self) -> ProvidedRegion {
        let is_ours = self.end_grant();
        let region = self.region.take().expect("only the end takes the region");
        match is_ours {
            true => region,
            false => region.copied(),
        }
    }

    /// Ends the peer's right to write there. Returns false if the device refuses: then nobody may use the
    /// memory any more.
    fn end_grant(&mut self) -> bool {
        self.granted.take().is_none_or(|granted| granted.end())
    }
}

impl Drop for EagerBlockRegion {
    fn drop(&mut self) {
        if fork::is_child() {
            // In a forked child, the lock may be locked for ever.
            mem::forget(self.region.take());
            return;
        }
        let is_ours = self.end_grant();
        match self.region.take() {
            Some(region) if is_ours => self.home.put_back(self.number, region),
            region => mem::forget(region),
        }
    }
}

/// The number of regions that may wait at one end.
const MAX_REGIONS: usize = 64;
