//! The memory that an RDMA port's sessions send from, and that large messages are read or written
//! to.

use std::sync::{Arc, atomic::Ordering};

use ibex_protocol::transfer::rendezvous::RemoteMemory;
use ibex_ring::memory::{LargeLease, MappedBytes, MemoryError, MemoryUse, RingLease};
use ibex_verbs::{MemoryWindow, RegionAccess, VerbsError, provider::WindowKind};

use super::{
    super::registered_memory::{GrantedMemory, RefusedRegion, RegisteredMessage, RegisteredRing},
    RdmaPort,
};

impl RdmaPort {
    /// Registers a ring on the handle's thread, before the handle sends from it.
    pub(crate) fn register_ring(&self, lease: &mut RingLease) -> Result<(), MemoryError> {
        let bytes = lease.capacity();
        self.opened()
            .and_then(|opened| RegisteredRing::ensure(self.number, &opened.domain, lease))
            .map(drop)
            .map_err(|error| unregistered(MemoryUse::Ring, bytes, error))
    }

    /// Registers the memory of a large message of up to `bytes`, to send from, and to read a peer's
    /// message into.
    pub(crate) fn register_message(
        &self,
        lease: &mut LargeLease,
        bytes: usize,
    ) -> Result<(), MemoryError> {
        let (number, access) = (self.number, self.message_access());
        self.opened()
            .and_then(|opened| {
                RegisteredMessage::ensure(number, &opened.domain, lease, bytes, access)
            })
            .map(drop)
            .map_err(|error| unregistered(MemoryUse::LargeMessage, bytes, error))
    }

    /// Registers the memory of a large message that a peer will write.
    pub(crate) fn register_grant(
        &self,
        lease: &mut LargeLease,
        bytes: usize,
    ) -> Result<(), MemoryError> {
        let (number, access) = (self.number, RegionAccess::REMOTE_WRITE);
        self.opened()
            .and_then(|opened| GrantedMemory::ensure(number, &opened.domain, lease, bytes, access))
            .map(drop)
            .map_err(|error| unregistered(MemoryUse::LargeMessage, bytes, error))
    }

    /// Returns the address and key by which a peer writes `bytes` to the memory; `None` if the
    /// memory is not registered for that.
    pub(crate) fn granted_memory(&self, lease: &LargeLease, bytes: usize) -> Option<RemoteMemory> {
        GrantedMemory::of(self.number, lease.attachments())?.remote(bytes)
    }

    /// Returns whether another eager block may be granted at present.
    pub(crate) fn has_eager_block_places(&self) -> bool {
        self.eager_blocks.load(Ordering::Relaxed) < self.settings.eager_blocks
    }

    /// Returns the number of blocks that peers were granted or that are being read.
    #[cfg(test)]
    pub(in crate::rdma) fn eager_blocks(&self) -> u32 {
        self.eager_blocks.load(Ordering::Relaxed)
    }

    /// Returns whether a write can carry immediate data.
    pub(in crate::rdma) fn has_immediate(&self) -> bool {
        self.has_immediate
    }

    /// Returns the registration that [`register_ring`](Self::register_ring) made.
    pub(crate) fn registered_ring(&self, lease: &RingLease) -> Option<Arc<RegisteredRing>> {
        RegisteredRing::of(self.number, lease.attachments())
    }

    /// Registers mapped memory, once, to send from and to read a peer's messages into; `None` if that
    /// was refused before.
    ///
    /// A file has no windows: to the kernel the right to bind some is one to write
    /// (`ib_access_writable`), and the file is mapped for reading alone.
    pub(crate) fn register_mapped(
        &self,
        mapped: &MappedBytes,
    ) -> Result<Option<Arc<RegisteredMessage>>, MemoryError> {
        let (number, bytes) = (self.number, mapped.memory().bytes());
        let access = match mapped.is_own() {
            true => self.message_access(),
            false => RegionAccess::SEND,
        };
        self.opened()
            .and_then(|opened| RegisteredMessage::of_mapped(number, &opened.domain, mapped, access))
            .map_err(|error| unregistered(MemoryUse::LargeMessage, bytes, error))
    }

    /// Registers the beginning of mapped memory for one message that a peer will write; `None` if a
    /// registration was refused before.
    pub(crate) fn grant_mapped(
        &self,
        mapped: &MappedBytes,
        bytes: usize,
    ) -> Result<Option<GrantedMemory>, MemoryError> {
        let (number, access) = (self.number, RegionAccess::REMOTE_WRITE);
        self.opened()
            .and_then(|opened| {
                GrantedMemory::of_mapped_once(number, &opened.domain, mapped, bytes, access)
            })
            .map_err(|error| unregistered(MemoryUse::LargeMessage, bytes, error))
    }

    /// Returns whether mapped memory is still to be registered: it is not for good, and was not
    /// refused before.
    pub(crate) fn registers_mapped(&self, mapped: &MappedBytes, is_granted: bool) -> bool {
        !RefusedRegion::is_known(self.number, mapped)
            && (is_granted || self.registered_mapped(mapped, None).is_none())
    }

    /// Returns the registration of mapped memory from which this RDMA port's queue pairs send, and into
    /// which they read: `before`, if it belongs to this RDMA port, otherwise that of
    /// [`register_mapped`](Self::register_mapped), if there is one.
    pub(crate) fn registered_mapped(
        &self,
        mapped: &MappedBytes,
        before: Option<&Arc<RegisteredMessage>>,
    ) -> Option<Arc<RegisteredMessage>> {
        let bytes = mapped.memory().bytes();
        let is_of = |kept: &RegisteredMessage| kept.is_of(self.number, bytes);
        let before = before.filter(|before| is_of(before)).cloned();
        before.or_else(|| mapped.attachments().find(is_of))
    }

    /// Returns the rights to memory that messages are sent from.
    fn sent_access(&self) -> RegionAccess {
        match self.windows {
            0 => RegionAccess::SEND,
            _ => RegionAccess::SEND.and(RegionAccess::WINDOWS),
        }
    }

    /// Returns the rights to memory of messages, sent and read.
    fn message_access(&self) -> RegionAccess {
        match self.reads_large {
            false => self.sent_access(),
            true => self.sent_access().and(RegionAccess::RECEIVE),
        }
    }

    /// Makes a window through which a peer may read a message; `None` if the device has no more.
    pub(in crate::rdma) fn window(&self) -> Option<MemoryWindow> {
        let opened = self.opened().ok()?;
        MemoryWindow::new(&opened.domain, WindowKind::Two).ok()
    }

    /// Returns the registration of memory that `bytes` of a peer's message may be read into.
    pub(crate) fn message_target(
        &self,
        lease: &LargeLease,
        bytes: usize,
    ) -> Option<Arc<RegisteredMessage>> {
        let registered = self.registered_message(lease)?;
        registered.is_of(self.number, bytes).then_some(registered)
    }

    /// Returns the registration that [`register_message`](Self::register_message) made.
    pub(crate) fn registered_message(&self, lease: &LargeLease) -> Option<Arc<RegisteredMessage>> {
        RegisteredMessage::of(self.number, lease.attachments())
    }

    /// Returns the registration from which this RDMA port's queue pairs send a ring: `before`, if
    /// it belongs to this RDMA port, otherwise that of [`register_ring`](Self::register_ring),
    /// which is made if there is none.
    pub(crate) fn ring_to_send(
        &self,
        lease: &RingLease,
        before: Option<&Arc<RegisteredRing>>,
    ) -> Result<Arc<RegisteredRing>, MemoryError> {
        let before = before.filter(|ring| ring.is_of(self.number)).cloned();
        if let Some(ring) = before.or_else(|| self.registered_ring(lease)) {
            return Ok(ring);
        }
        self.opened()
            .and_then(|opened| RegisteredRing::register(self.number, &opened.domain, lease))
            .map(Arc::new)
            .map_err(|error| unregistered(MemoryUse::Ring, lease.capacity(), error))
    }

    /// Returns the registration from which this RDMA port's queue pairs send a large message of
    /// `bytes`.
    pub(crate) fn message_to_send(
        &self,
        lease: &LargeLease,
        bytes: usize,
        before: Option<&Arc<RegisteredMessage>>,
    ) -> Result<Arc<RegisteredMessage>, MemoryError> {
        let is_of = |message: &Arc<RegisteredMessage>| message.is_of(self.number, bytes);
        let before = before.filter(|before| is_of(before)).cloned();
        let kept = || self.registered_message(lease).filter(is_of);
        if let Some(message) = before.or_else(kept) {
            return Ok(message);
        }
        let (number, access) = (self.number, self.message_access());
        self.opened()
            .and_then(|opened| {
                RegisteredMessage::register(number, &opened.domain, lease.memory(), bytes, access)
            })
            .map(Arc::new)
            .map_err(|error| unregistered(MemoryUse::LargeMessage, bytes, error))
    }
}

impl GrantedMemory {
    /// Returns the address and key by which a peer of `rdma_port` writes the first `bytes`; `None` if
    /// they were granted at another RDMA port.
    pub(crate) fn granted_at(&self, rdma_port: &RdmaPort, bytes: usize) -> Option<RemoteMemory> {
        let is_of_port = self.is_of(rdma_port.number, bytes);
        is_of_port.then(|| self.remote(bytes))?
    }
}

fn unregistered(what: MemoryUse, bytes: usize, error: VerbsError) -> MemoryError {
    MemoryError::new(what, bytes, "ibv_reg_mr", std::io::Error::other(error))
}
