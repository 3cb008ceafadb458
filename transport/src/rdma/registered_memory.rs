//! Memory that senders encode into, or that peers write large messages to, registered for an RDMA
//! port. The registration is attached to the memory, so that repeated leases need only one.
//!
//! The registration of memory to send from gives peers no rights. A peer reads a large message there
//! through a [window](super::offer_windows), which is bound to that message alone. A peer keeps the
//! key to memory that it was granted once, so such memory is leased only to be granted again.
//!
//! Only one of a ring's two windows is registered. Locked memory is counted for each registration,
//! so registering both would cost twice the ring. A device that can send a record over the seam as
//! two pieces needs only one.

use std::marker::PhantomData;
use std::ops::Range;
use std::sync::Arc;

use ibex_protocol::transfer::rendezvous::RemoteMemory;
use ibex_ring::memory::{Attachments, LargeLease, MappedBytes, Mapping, RingLease};
use ibex_verbs::{
    DeviceMemory, MemoryRegion, ProtectionDomain, RegionAccess, ScatterEntry, TargetEntry,
    VerbsError,
};

use super::device_memory::DeviceRing;

/// A ring that an RDMA port's queue pairs send from.
#[derive(Debug)]
pub struct RegisteredRing {
    rdma_port: u64,
    region: MemoryRegion<DeviceRing>,
}

impl RegisteredRing {
    /// Registers a leased ring, unless it is registered already. This takes long and is done on a
    /// handle's thread.
    pub(super) fn ensure(
        rdma_port: u64,
        domain: &ProtectionDomain,
        lease: &mut RingLease,
    ) -> Result<Arc<Self>, VerbsError> {
        if let Some(ring) = Self::of(rdma_port, lease.attachments()) {
            return Ok(ring);
        }
        lease
            .attachments_mut()
            .detach(|ring: &Self| !ring.region.is_registered());
        let ring = Self::register(rdma_port, domain, lease)?;
        Ok(lease.attachments_mut().attach(ring))
    }

    /// Registers a ring for the life of the returned value.
    pub(super) fn register(
        rdma_port: u64,
        domain: &ProtectionDomain,
        lease: &RingLease,
    ) -> Result<Self, VerbsError> {
        let memory = DeviceRing(lease.memory().clone());
        let region = MemoryRegion::register(domain, memory, RegionAccess::SEND)?;
        Ok(Self { rdma_port, region })
    }

    /// Returns whether the RDMA port with this number can send from the ring.
    pub(super) fn is_of(&self, rdma_port: u64) -> bool {
        self.rdma_port == rdma_port && self.region.is_registered()
    }

    /// Returns the registration that [`ensure`](Self::ensure) has attached.
    pub(super) fn of(rdma_port: u64, attachments: &Attachments) -> Option<Arc<Self>> {
        attachments.find(|ring: &Self| ring.rdma_port == rdma_port)
    }

    /// Returns the `bytes` from ring position `position` on: one piece, or two over the seam.
    #[inline]
    #[must_use]
    pub fn pieces(&self, position: u64, bytes: usize) -> [Option<ScatterEntry<'_>>; 2] {
        let capacity = self.region.bytes();
        let start = position as usize & (capacity - 1);
        let first = bytes.min(capacity - start);
        let rest = bytes - first;
        [
            Some(self.region.entry(start..start + first)),
            (rest > 0).then(|| self.region.entry(0..rest)),
        ]
    }
}

/// The beginning of a large buffer, registered at an RDMA port for one use.
#[derive(Debug)]
pub struct LargeRegion<U> {
    rdma_port: u64,
    /// Windows that are bound to it keep it.
    region: Arc<MemoryRegion<Beginning>>,
    used: PhantomData<U>,
}

/// Use for memory that the RDMA port's queue pairs send from, or read the peer's messages into.
#[derive(Debug)]
pub enum Sent {}

/// Use for memory that peers write to once it is granted to them.
#[derive(Debug)]
pub enum Granted {}

/// A large message that an RDMA port's queue pairs send from.
pub type RegisteredMessage = LargeRegion<Sent>;
/// Memory that peers of an RDMA port may write large messages to.
pub(crate) type GrantedMemory = LargeRegion<Granted>;

/// Attached to mapped memory that an RDMA port could not register, so that not each message tries.
#[derive(Debug)]
pub(super) struct RefusedRegion {
    rdma_port: u64,
}

impl RefusedRegion {
    /// Returns whether the RDMA port with this number has refused the memory.
    pub(super) fn is_known(rdma_port: u64, mapped: &MappedBytes) -> bool {
        let is_of = |refused: &Self| refused.rdma_port == rdma_port;
        mapped.attachments().find(is_of).is_some()
    }
}

/// The part of a large buffer that messages have used. The rest has no pages.
#[derive(Debug)]
pub(crate) struct Beginning {
    memory: Arc<Mapping>,
    bytes: usize,
}

// SAFETY: these are the first bytes of a mapping that its `Arc` keeps in place, and `bytes` is at
// most its length (`Beginning::register`).
unsafe impl DeviceMemory for Beginning {
    fn base(&self) -> std::ptr::NonNull<u8> {
        self.memory.base()
    }

    fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Beginning {
    fn register(
        domain: &ProtectionDomain,
        memory: &Arc<Mapping>,
        bytes: usize,
        access: RegionAccess,
    ) -> Result<MemoryRegion<Self>, VerbsError> {
        let memory = memory.clone();
        let bytes = bytes.min(memory.bytes());
        MemoryRegion::register(domain, Self { memory, bytes }, access)
    }
}

impl<U: Send + Sync + 'static> LargeRegion<U> {
    /// Registers the first `bytes` of a leased buffer, unless they are registered already. This
    /// takes long and is done outside the turn.
    pub(super) fn ensure(
        rdma_port: u64,
        domain: &ProtectionDomain,
        lease: &mut LargeLease,
        bytes: usize,
        access: RegionAccess,
    ) -> Result<Arc<Self>, VerbsError> {
        if let Some(registered) = Self::of(rdma_port, lease.attachments())
            && registered.region.bytes() >= bytes
        {
            return Ok(registered);
        }
        let attachments = lease.attachments_mut();
        attachments.detach(|registered: &Self| {
            registered.rdma_port == rdma_port || !registered.region.is_registered()
        });
        let registered = Self::register(rdma_port, domain, lease.memory(), bytes, access)?;
        Ok(lease.attachments_mut().attach(registered))
    }

    /// Registers the buffer's first `bytes` for the life of the returned value.
    pub(super) fn register(
        rdma_port: u64,
        domain: &ProtectionDomain,
        memory: &Arc<Mapping>,
        bytes: usize,
        access: RegionAccess,
    ) -> Result<Self, VerbsError> {
        Ok(Self {
            rdma_port,
            region: Arc::new(Beginning::register(domain, memory, bytes, access)?),
            used: PhantomData,
        })
    }

    /// Registers the first `bytes` of mapped memory for the life of the returned value; `None` if a
    /// registration was refused before. This takes long and is done outside the turn, without the lock
    /// of the memory's attachments, which turns take.
    pub(super) fn of_mapped_once(
        rdma_port: u64,
        domain: &ProtectionDomain,
        mapped: &MappedBytes,
        bytes: usize,
        access: RegionAccess,
    ) -> Result<Option<Self>, VerbsError> {
        if RefusedRegion::is_known(rdma_port, mapped) {
            return Ok(None);
        }
        mapped.memory().keep_from_children();
        let registered = Self::register(rdma_port, domain, mapped.memory(), bytes, access);
        let registered = registered.inspect_err(|_| {
            mapped.attachments().attach(RefusedRegion { rdma_port });
        })?;
        Ok(Some(registered))
    }

    /// Returns whether the RDMA port with this number can use `bytes` bytes of the buffer.
    pub(super) fn is_of(&self, rdma_port: u64, bytes: usize) -> bool {
        self.rdma_port == rdma_port && self.region.is_registered() && self.region.bytes() >= bytes
    }

    /// Returns the registration that [`ensure`](Self::ensure) has attached.
    pub(super) fn of(rdma_port: u64, attachments: &Attachments) -> Option<Arc<Self>> {
        attachments.find(|registered: &Self| registered.rdma_port == rdma_port)
    }
}

impl RegisteredMessage {
    /// Registers mapped memory, unless it is registered already, as
    /// [`of_mapped_once`](Self::of_mapped_once) does.
    pub(super) fn of_mapped(
        rdma_port: u64,
        domain: &ProtectionDomain,
        mapped: &MappedBytes,
        access: RegionAccess,
    ) -> Result<Option<Arc<Self>>, VerbsError> {
        let bytes = mapped.memory().bytes();
        let is_of = |kept: &Self| kept.is_of(rdma_port, bytes);
        // Registered pages that are replaced before the registration is attached would stay attached.
        let _held = mapped.hold_pages();
        let kept = mapped.attachments().find(is_of);
        if kept.is_some() {
            return Ok(kept);
        }
        let registered = Self::of_mapped_once(rdma_port, domain, mapped, bytes, access)?;
        let Some(registered) = registered else {
            return Ok(None);
        };
        let mut attachments = mapped.attachments();
        attachments
            .detach(|stale: &Self| stale.rdma_port == rdma_port || !stale.region.is_registered());
        Ok(Some(attachments.attach(registered)))
    }

    /// Returns a part of the buffer as a piece for the device.
    #[inline]
    #[must_use]
    pub fn piece(&self, range: Range<usize>) -> ScatterEntry<'_> {
        self.region.entry(range)
    }

    /// Returns a part of the buffer as the target of a read.
    pub(crate) fn target(&self, range: Range<usize>) -> TargetEntry<'_> {
        self.region.target(range)
    }

    /// Returns the registration, to bind a window to.
    pub(super) fn region(&self) -> &Arc<MemoryRegion<Beginning>> {
        &self.region
    }
}

impl GrantedMemory {
    /// Ends the peer's right to write there. Returns false if the device refuses.
    pub(crate) fn end(&self) -> bool {
        self.region.end()
    }

    /// Returns the first `bytes` as a peer addresses them, if that many are registered.
    pub(super) fn remote(&self, bytes: usize) -> Option<RemoteMemory> {
        let start = (bytes <= self.region.bytes()).then(|| self.region.remote(0))?;
        RemoteMemory::new(start.address, start.rkey, bytes as u64)
    }
}
