//! The memory that a session sends from, and that it lends the peer for messages to come.

use std::{iter, sync::Arc};

use ibex_protocol::transfer::{
    eager_write::{LANDING_BYTES, LANDINGS_PER_CHANNEL},
    rendezvous::RemoteMemory,
};
use ibex_ring::memory::{
    LargeLease, LargePool, MemoryError, RegionSlice, RingArena, RingLease, mapped_bytes,
};

use super::{SessionShared, Warning, warn_of};
use crate::{
    rdma::{LandingPlace, RdmaPort, RegisteredMessage},
    wire::GrantedBlock,
    wire::MessageBytes,
};

impl SessionShared {
    /// Leases a ring that the session can send from. This takes long, so it runs on a handle's
    /// thread.
    pub(crate) fn lease_ring(&self, min_bytes: usize) -> Result<RingLease, MemoryError> {
        let mut lease = self.ring_arena().lease(min_bytes)?;
        if let Some(rdma_port) = self.frame_path.rdma_port() {
            let registered = rdma_port.register_ring(&mut lease);
            self.unless_lost(&rdma_port, registered)?;
        }
        Ok(lease)
    }

    /// Leases memory for a large message that the session can send from, in the same way.
    pub(crate) fn lease_large(&self, bytes: usize) -> Result<LargeLease, MemoryError> {
        let mut lease = self.large_pool().take(bytes)?;
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
            self.unless_refused(&rail, registered);
        }
    }

    fn unless_refused(&self, rail: &Arc<RdmaPort>, registered: Result<(), MemoryError>) {
        if let Err(error) = registered {
            let (peer, device) = (self.peer_in_log(), rail.device());
            tracing::info!(%peer, device, %error, "messages are not read over a rail");
            self.frame_path.forget_rail(rail);
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
        for rail in self.frame_path.rails(slice.len()) {
            self.unless_refused(&rail, rail.register_mapped(mapped).map(drop));
        }
        Some(MessageBytes::Slice(slice.clone(), Some(registered)))
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

    /// Returns memory for a large message of `bytes` to come, if a pool keeps some and the budget
    /// has room. The memory is charged, and registered if the peer may be granted it, or the message
    /// `is_offered` and is to be read. This costs no system call.
    pub(crate) fn kept_for_arrival(&self, bytes: usize, is_offered: bool) -> Option<LargeLease> {
        // What is offered is read, even if the peer is granted memory.
        let rdma_port = self.frame_path.granting_port().filter(|_| !is_offered);
        let pool = match &rdma_port {
            Some(_) => &self.node.granted_pool,
            None => self.large_pool(),
        };
        let mut lease = pool.take_kept(bytes)?;
        if let Some(rdma_port) = rdma_port {
            rdma_port.granted_memory(&lease, bytes)?;
        } else if is_offered {
            self.message_target(&lease, bytes)?;
            for rail in self.frame_path.rails(bytes) {
                rail.message_target(&lease, bytes)?;
            }
        }
        lease.charge_to(self.node.memory.claim(bytes as u64)?);
        Some(lease)
    }

    /// Leases memory for a message that is to arrive. Memory that a device writes to, the peer's, or
    /// this node's if the message `is_offered`, is mapped, registered and charged as a whole, within
    /// half of the budget. Otherwise the lease consists of addresses only, which get memory as the
    /// message comes. This takes long, so it runs outside the turn.
    pub(crate) fn lease_for_arrival(
        &self,
        bytes: usize,
        is_offered: bool,
    ) -> Result<LargeLease, MemoryError> {
        let granting = self.frame_path.granting_port().filter(|_| !is_offered);
        let reading = self.frame_path.live_port().filter(|_| is_offered);
        if let Some(rdma_port) = granting.as_ref().or(reading.as_ref())
            && let Some(claim) = self.node.memory.half().claim(bytes as u64)
        {
            let (pool, register): (_, fn(&RdmaPort, &mut LargeLease, usize) -> _) = match granting {
                Some(_) => (&self.node.granted_pool, RdmaPort::register_grant),
                None => (self.large_pool(), RdmaPort::register_message),
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
        self.large_pool().reserve(bytes)
    }

    /// Returns whether the peer is granted blocks.
    pub(crate) fn grants_landings(&self) -> bool {
        self.frame_path
            .granting_port()
            .is_some_and(|rdma_port| rdma_port.has_landing_places())
    }

    /// Leases blocks for a channel's messages of medium size, as many as are available. This takes
    /// long, so it runs outside the turn.
    pub(crate) fn lease_landings(&self) -> Vec<(GrantedBlock, RemoteMemory)> {
        let lease = |rdma_port: &Arc<RdmaPort>| {
            let place = LandingPlace::take(rdma_port)?;
            let lease = self.node.granted_pool.take(LANDING_BYTES);
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
            .take(LANDINGS_PER_CHANNEL)
            .collect()
    }

    /// Returns the address and key of memory that the peer may write a message of `bytes` to;
    /// `None` if the peer may not write to it.
    pub(crate) fn granted_memory(&self, lease: &LargeLease, bytes: usize) -> Option<RemoteMemory> {
        self.frame_path
            .granting_port()?
            .granted_memory(lease, bytes)
    }

    /// Returns the registration of memory into which a message of `bytes` can be read; `None` if it
    /// cannot.
    pub(crate) fn message_target(
        &self,
        lease: &LargeLease,
        bytes: usize,
    ) -> Option<Arc<RegisteredMessage>> {
        self.frame_path.live_port()?.message_target(lease, bytes)
    }

    pub(crate) fn ring_arena(&self) -> &RingArena {
        &self.node.ring_arena
    }

    pub(crate) fn large_pool(&self) -> &LargePool {
        &self.node.large_pool
    }
}
