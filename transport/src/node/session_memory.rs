//! The memory that a session sends from, and that it lends the peer for messages to come.

use std::{iter, sync::Arc};

use ibex_protocol::transfer::{
    eager_write::{EAGER_BLOCK_BYTES, EAGER_BLOCKS_PER_CHANNEL},
    rendezvous::RemoteMemory,
};
use ibex_ring::memory::{
    LargeLease, MappedBytes, MemoryError, RegionFile, RegionSlice, RingLease, mapped_bytes,
};

use super::{SessionShared, Warning, warn_of};
use crate::{
    rdma::{EagerBlockPlace, RdmaPort, RegisteredMessage},
    shared_memory::MessageSegment,
    wire::{ArrivalMemory, EagerBlockRegion, GrantedBlock, LargeWanted, MessageBytes},
};

impl SessionShared {
    /// Leases a ring that the session can send from. This takes long, so it runs on a handle's
    /// thread.
    pub(crate) fn lease_ring(&self, min_bytes: usize) -> Result<RingLease, MemoryError> {
        let mut lease = self.node.ring_arena.lease(min_bytes)?;
        if let Some(rdma_port) = self.frame_path.rdma_port() {
            let registered = rdma_port.register_ring(&mut lease);
            self.unless_lost(&rdma_port, registered)?;
        }
        Ok(lease)
    }

    /// Leases memory for a large message that the session can send from, in the same way.
    pub(crate) fn lease_large(&self, bytes: usize) -> Result<LargeLease, MemoryError> {
        let mut lease = self.node.large_pool.take(bytes)?;
        if let Some(rdma_port) = self.frame_path.rdma_port() {
            let registered = rdma_port.register_message(&mut lease, bytes);
            self.unless_lost(&rdma_port, registered)?;
            self.register_with_rails(&mut lease, bytes);
        }
        Ok(lease)
    }

    /// Registers memory of a large message with the ports of the session's rails too. A rail that
    /// refuses is not asked again: its messages go without it.
    fn register_with_rails(&self, lease: &mut LargeLease, bytes: usize) {
        for rail in self.frame_path.rails(bytes) {
            let registered = rail.register_message(lease, bytes);
            if let Err(error) = registered {
                let (peer, device) = (self.peer_in_log(), rail.device());
                tracing::info!(%peer, device, %error, "messages are not read over a rail");
                self.frame_path.forget_rail(&rail);
            }
        }
    }

    /// Registers mapped memory, of which a message has `bytes`, with the ports of the session's rails
    /// too. Memory that a rail refuses is not tried there again.
    fn register_mapped_with_rails(&self, mapped: &MappedBytes, bytes: usize) {
        for rail in self.frame_path.rails(bytes) {
            if let Err(error) = rail.register_mapped(mapped) {
                let (peer, device) = (self.peer_in_log(), rail.device());
                tracing::info!(%peer, device, %error, "a region is not read over a rail");
            }
        }
    }

    /// Returns a message in the program's own memory, if the session can send it from there: over a
    /// connection always, over RDMA from mapped memory that can be registered. All of it is, once for
    /// each port. That takes long, so it runs on a handle's thread.
    pub(crate) fn in_place(&self, slice: &RegionSlice) -> Option<MessageBytes> {
        let Some(rdma_port) = self.frame_path.rdma_port() else {
            return Some(MessageBytes::Slice(slice.clone(), None));
        };
        let (mapped, _) = mapped_bytes(slice)?;
        let registered = rdma_port.register_mapped(mapped).unwrap_or_else(|error| {
            let peer = self.peer_in_log();
            warn_of!(
                self.node.warnings, Warning::RegionNotRegistered, error,
                %peer, %error,
                "messages from a region are copied: the device cannot register it"
            );
            None
        })?;
        self.register_mapped_with_rails(mapped, slice.len());
        Some(MessageBytes::Slice(slice.clone(), Some(registered)))
    }

    /// Returns the region of a slice as a segment that the peer maps, and where the slice begins there;
    /// `None` if it has no pages of its own, or the kernel refuses to move them to a file. That takes
    /// long for the first message, so it runs on a handle's thread.
    pub(crate) fn as_segment(&self, slice: &RegionSlice) -> Option<(Arc<RegionFile>, usize)> {
        MessageSegment::of_region(slice).unwrap_or_else(|error| {
            let peer = self.peer_in_log();
            warn_of!(
                self.node.warnings, Warning::RegionNotShared, error,
                %peer, %error,
                "messages from a region are copied: the peer cannot map it"
            );
            None
        })
    }

    /// Ignores a failed registration if the session resumes over another wire. This is so where it
    /// has no queue pair any more, or where the RDMA port is lost. That wire sends from memory that
    /// is not registered.
    fn unless_lost(
        &self,
        rdma_port: &RdmaPort,
        registered: Result<(), MemoryError>,
    ) -> Result<(), MemoryError> {
        match registered {
            Err(_) if self.resumes && self.frame_path.has_left(rdma_port) => Ok(()),
            result => result,
        }
    }

    /// Returns memory for a large message to come, if that costs no system call: its region, if there is
    /// nothing to register, or memory that a pool keeps. That of the pool is charged within the budget,
    /// and registered if the peer may be granted it, or the message is offered and is to be read.
    pub(crate) fn kept_for_arrival(
        &self,
        wanted: LargeWanted,
    ) -> Result<ArrivalMemory, LargeWanted> {
        let (bytes, is_offered) = (wanted.length as usize, wanted.is_offered);
        if let Some(region) = &wanted.region {
            let registers = self.registers(region, is_offered);
            return match wanted {
                LargeWanted {
                    region: Some(region),
                    ..
                } if !registers => Ok(ArrivalMemory::Region(region)),
                wanted => Err(wanted),
            };
        }
        let kept = self.kept_of_node(bytes, is_offered);
        kept.map(ArrivalMemory::Lease).ok_or(wanted)
    }

    /// Returns the RDMA port with which memory is registered that the peer is to write. What is offered
    /// is read, even if the peer is granted memory.
    fn granting_port(&self, is_offered: bool) -> Option<Arc<RdmaPort>> {
        self.frame_path.granting_port().filter(|_| !is_offered)
    }

    fn kept_of_node(&self, bytes: usize, is_offered: bool) -> Option<LargeLease> {
        let rdma_port = self.granting_port(is_offered);
        let pool = match &rdma_port {
            Some(_) => &self.node.granted_pool,
            None => &self.node.large_pool,
        };
        let mut lease = pool.take_kept(bytes)?;
        if let Some(rdma_port) = rdma_port {
            rdma_port.granted_memory(&lease, bytes)?;
        } else if is_offered {
            self.frame_path.live_port()?.message_target(&lease, bytes)?;
            for rail in self.frame_path.rails(bytes) {
                rail.message_target(&lease, bytes)?;
            }
        }
        lease.charge_to(self.node.memory.claim(bytes as u64)?);
        Some(lease)
    }

    /// Returns memory for a large message to come: its region, registered if that is possible, or memory
    /// of the node. This takes long, so it runs outside the turn.
    pub(crate) fn memory_for_arrival(
        &self,
        wanted: LargeWanted,
    ) -> Result<ArrivalMemory, MemoryError> {
        let LargeWanted {
            length, is_offered, ..
        } = wanted;
        match wanted.region.and_then(EagerBlockRegion::again) {
            Some(mut region) => {
                if self.registers(&region, is_offered) {
                    self.register_region(&mut region, length as usize, is_offered);
                }
                Ok(ArrivalMemory::Region(region))
            }
            None => {
                let lease = self.lease_for_arrival(length as usize, is_offered);
                lease.map(ArrivalMemory::Lease)
            }
        }
    }

    /// Returns whether a region is to be registered before a message arrives there: each time if the
    /// peer writes the message, and once if this node's device reads it.
    fn registers(&self, region: &EagerBlockRegion, is_offered: bool) -> bool {
        let Some(mapped) = region.mapped() else {
            return false;
        };
        match self.granting_port(is_offered) {
            Some(port) => port.registers_mapped(mapped, true),
            None => {
                let reading = self.frame_path.live_port().filter(|_| is_offered);
                reading.is_some_and(|port| port.registers_mapped(mapped, false))
            }
        }
    }

    /// Registers a region for a message of `bytes`. If the device refuses, the message comes in chunks.
    fn register_region(&self, region: &mut EagerBlockRegion, bytes: usize, is_offered: bool) {
        let Some(mapped) = region.mapped() else {
            return;
        };
        let registered = if let Some(rdma_port) = self.granting_port(is_offered) {
            rdma_port.grant_mapped(mapped, bytes)
        } else if let Some(rdma_port) = self.frame_path.live_port() {
            self.register_mapped_with_rails(mapped, bytes);
            rdma_port.register_mapped(mapped).map(|_| None)
        } else {
            return;
        };
        match registered {
            Ok(Some(granted)) => region.grant(granted),
            Ok(None) => {}
            Err(error) => {
                let peer = self.peer_in_log();
                warn_of!(
                    self.node.warnings, Warning::RegionNotRegistered, error,
                    %peer, %error,
                    "messages are copied into a region: the device cannot register it"
                );
            }
        }
    }

    /// Leases memory for a message that is to arrive. Memory that a device writes to, the peer's, or
    /// this node's if the message `is_offered`, is mapped, registered and charged as a whole, within
    /// half of the budget. Otherwise the lease consists of addresses only, which get memory as the
    /// message comes. This takes long, so it runs outside the turn.
    fn lease_for_arrival(&self, bytes: usize, is_offered: bool) -> Result<LargeLease, MemoryError> {
        let granting = self.granting_port(is_offered);
        let reading = self.frame_path.live_port().filter(|_| is_offered);
        if let Some(rdma_port) = granting.as_ref().or(reading.as_ref())
            && let Some(claim) = self.node.memory.half().claim(bytes as u64)
        {
            let (pool, register): (_, fn(&RdmaPort, &mut LargeLease, usize) -> _) = match granting {
                Some(_) => (&self.node.granted_pool, RdmaPort::register_grant),
                None => (&self.node.large_pool, RdmaPort::register_message),
            };
            let mut lease = pool.take(bytes)?;
            match register(rdma_port, &mut lease, bytes) {
                Ok(()) => {
                    if is_offered {
                        self.register_with_rails(&mut lease, bytes);
                    }
                    lease.charge_to(claim);
                    return Ok(lease);
                }
                Err(error) => tracing::debug!(
                    peer = %self.peer_in_log(),
                    %error,
                    "a large message comes in chunks: its memory cannot be registered"
                ),
            }
        }
        self.node.large_pool.reserve(bytes)
    }

    /// Returns whether the peer is granted blocks.
    pub(crate) fn grants_eager_blocks(&self) -> bool {
        self.frame_path
            .granting_port()
            .is_some_and(|rdma_port| rdma_port.has_eager_block_places())
    }

    /// Leases blocks for a channel's messages of medium size, as many as are available. This takes
    /// long, so it runs outside the turn.
    pub(crate) fn lease_eager_blocks(&self) -> Vec<(GrantedBlock, RemoteMemory)> {
        let lease = |rdma_port: &Arc<RdmaPort>| {
            let place = EagerBlockPlace::take(rdma_port)?;
            let lease = self.node.granted_pool.take(EAGER_BLOCK_BYTES);
            match lease.and_then(|lease| GrantedBlock::register(place, lease)) {
                Ok(block) => Some(block),
                Err(error) => {
                    let peer = self.peer().address;
                    tracing::debug!(%peer, %error, "messages wait for their memory to be granted");
                    None
                }
            }
        };
        let Some(rdma_port) = self.frame_path.granting_port() else {
            return Vec::new();
        };
        iter::repeat_with(|| lease(&rdma_port))
            .map_while(|block| block)
            .take(EAGER_BLOCKS_PER_CHANNEL)
            .collect()
    }

    /// Returns the address and key of memory that the peer may write a message of `bytes` to;
    /// `None` if the peer may not write to it.
    pub(crate) fn granted_memory(
        &self,
        memory: &ArrivalMemory,
        bytes: usize,
    ) -> Option<RemoteMemory> {
        let rdma_port = self.frame_path.granting_port()?;
        match memory {
            ArrivalMemory::Lease(lease) => rdma_port.granted_memory(lease, bytes),
            ArrivalMemory::Region(region) => region.granted()?.granted_at(&rdma_port, bytes),
        }
    }

    /// Returns the registration of memory into which a message of `bytes` can be read; `None` if it
    /// cannot.
    pub(crate) fn message_target(
        &self,
        memory: &ArrivalMemory,
        bytes: usize,
    ) -> Option<Arc<RegisteredMessage>> {
        memory.target(&*self.frame_path.live_port()?, bytes)
    }
}
