//! Memory that senders encode into, or that peers write large messages to, registered for a site.
//! The registration is attached to the memory, so that repeated leases need only one.
//!
//! Peers have no rights to memory to send from. A peer keeps the key to memory that it was granted
//! once, so such memory is leased only to be granted again.
//!
//! Only one of a ring's two windows is registered. Locked memory is counted for each registration,
//! so registering both would cost twice the ring. A device that can send a record over the seam as
//! two pieces needs only one.

use std::fmt;
use std::marker::PhantomData;
use std::ops::Range;
use std::sync::Arc;

use ibex_protocol::transfer::rendezvous::RemoteMemory;
use ibex_ring::memory::{Attachments, LargeLease, Mapping, RingLease};
use ibex_verbs::{
    DeviceMemory, MemoryRegion, ProtectionDomain, RegionAccess, ScatterEntry, VerbsError,
};

use super::device_memory::DeviceRing;

/// A ring that a site's queue pairs send from.
#[derive(Debug)]
pub struct RegisteredRing {
    site: u64,
    region: MemoryRegion<DeviceRing>,
}

impl RegisteredRing {
    /// Registers a leased ring, unless it is registered already. This takes long and is done on a
    /// handle's thread.
    pub(super) fn ensure(
        site: u64,
        domain: &ProtectionDomain,
        lease: &mut RingLease,
    ) -> Result<Arc<Self>, VerbsError> {
        if let Some(ring) = Self::of(site, lease.attachments()) {
            return Ok(ring);
        }
        lease
            .attachments_mut()
            .detach(|ring: &Self| !ring.region.is_registered());
        let ring = Self::register(site, domain, lease)?;
        Ok(lease.attachments_mut().attach(ring))
    }

    /// Registers a ring for the life of the returned value.
    pub(super) fn register(
        site: u64,
        domain: &ProtectionDomain,
        lease: &RingLease,
    ) -> Result<Self, VerbsError> {
        let memory = DeviceRing(lease.memory().clone());
        let region = MemoryRegion::register(domain, memory, RegionAccess::SEND)?;
        Ok(Self { site, region })
    }

    /// Returns whether the site with this number can send from the ring.
    pub(super) fn is_of(&self, site: u64) -> bool {
        self.site == site && self.region.is_registered()
    }

    /// Returns the registration that [`ensure`](Self::ensure) has attached.
    pub(super) fn of(site: u64, attachments: &Attachments) -> Option<Arc<Self>> {
        attachments.find(|ring: &Self| ring.site == site)
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

/// The beginning of a large buffer, registered at a site for one use.
#[derive(Debug)]
pub struct LargeRegion<U> {
    site: u64,
    region: MemoryRegion<Beginning>,
    used: PhantomData<U>,
}

/// The purpose of a large buffer's registration.
pub trait LargeUse: fmt::Debug + Send + Sync + 'static {
    /// The rights of the device and of peers to the memory.
    const ACCESS: RegionAccess;
}

/// Use for memory that the site's queue pairs send from.
#[derive(Debug)]
pub enum Sent {}

impl LargeUse for Sent {
    const ACCESS: RegionAccess = RegionAccess::SEND;
}

/// Use for memory that peers write to once it is granted to them.
#[derive(Debug)]
pub enum Granted {}

impl LargeUse for Granted {
    const ACCESS: RegionAccess = RegionAccess::REMOTE_WRITE;
}

/// A large message that a site's queue pairs send from.
pub type RegisteredMessage = LargeRegion<Sent>;
/// Memory that peers of a site may write large messages to.
pub(crate) type GrantedMemory = LargeRegion<Granted>;

/// The part of a large buffer that messages have used. The rest has no pages.
#[derive(Debug)]
struct Beginning {
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
        lease: &LargeLease,
        bytes: usize,
        access: RegionAccess,
    ) -> Result<MemoryRegion<Self>, VerbsError> {
        let memory = lease.memory().clone();
        let bytes = bytes.min(memory.bytes());
        MemoryRegion::register(domain, Self { memory, bytes }, access)
    }
}

impl<U: LargeUse> LargeRegion<U> {
    /// Registers the first `bytes` of a leased buffer, unless they are registered already. This
    /// takes long and is done outside the turn.
    pub(super) fn ensure(
        site: u64,
        domain: &ProtectionDomain,
        lease: &mut LargeLease,
        bytes: usize,
    ) -> Result<Arc<Self>, VerbsError> {
        if let Some(registered) = Self::of(site, lease.attachments())
            && registered.region.bytes() >= bytes
        {
            return Ok(registered);
        }
        let attachments = lease.attachments_mut();
        attachments.detach(|registered: &Self| {
            registered.site == site || !registered.region.is_registered()
        });
        let registered = Self::register(site, domain, lease, bytes)?;
        Ok(lease.attachments_mut().attach(registered))
    }

    /// Registers the buffer's first `bytes` for the life of the returned value.
    pub(super) fn register(
        site: u64,
        domain: &ProtectionDomain,
        lease: &LargeLease,
        bytes: usize,
    ) -> Result<Self, VerbsError> {
        Ok(Self {
            site,
            region: Beginning::register(domain, lease, bytes, U::ACCESS)?,
            used: PhantomData,
        })
    }

    /// Returns whether the site with this number can use `bytes` bytes of the buffer.
    pub(super) fn is_of(&self, site: u64, bytes: usize) -> bool {
        self.site == site && self.region.is_registered() && self.region.bytes() >= bytes
    }

    /// Returns the registration that [`ensure`](Self::ensure) has attached.
    pub(super) fn of(site: u64, attachments: &Attachments) -> Option<Arc<Self>> {
        attachments.find(|registered: &Self| registered.site == site)
    }
}

impl RegisteredMessage {
    /// Returns a part of the buffer as a piece for the device.
    #[inline]
    #[must_use]
    pub fn piece(&self, range: Range<usize>) -> ScatterEntry<'_> {
        self.region.entry(range)
    }
}

impl GrantedMemory {
    /// Returns the first `bytes` as a peer addresses them, if that many are registered.
    pub(super) fn remote(&self, bytes: usize) -> Option<RemoteMemory> {
        let start = (bytes <= self.region.bytes()).then(|| self.region.remote(0))?;
        RemoteMemory::new(start.address, start.rkey, bytes as u64)
    }
}
