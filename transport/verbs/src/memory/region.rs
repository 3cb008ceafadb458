//! Registered memory: bytes that the device may read and write.
//!
//! Rules:
//! 1. A region owns its memory and gives it up only after it has been deregistered. So a request
//!    that is still on its way when a region is dropped fails at the device, and never touches
//!    memory that has another owner by then. If deregistering fails, the memory is leaked. When a
//!    device is removed, its registrations end while their owners still exist (`RegionRegistration`): the
//!    owners keep the memory, and requests fail as before.
//! 2. No code holds a reference into registered memory unless it knows that the device
//!    does not write there: the device writes a receive from its posting until its
//!    completion, and a granted block whenever the peer likes. Hence [`DeviceMemory`]
//!    hands out an address.
//! 3. Registered memory is kept from children of a fork. libibverbs lets children have it again
//!    when the last registration of a page ends, or is refused (`ibv_dofork_range`, with
//!    `RDMAV_FORK_SAFE` before Linux 5.12 and with `RDMAV_USE_MADVISE` on every kernel), so the
//!    advice is repeated then.
//! 4. A [`ScatterEntry`] borrows what it points to, so it is mapped when it is posted;
//!    what happens afterwards is rule 1.

use std::ffi::c_void;
use std::mem::ManuallyDrop;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard};

use ibex_base::{fork, sync::lock, turn};
use rustix::io::Errno;

use super::protection_domain::Domain;
use crate::abi::{Sge, access_flags};
use crate::device::{DeviceContext, new_tag};
use crate::provider::{RegionHandle, RegisteredRegion};
use crate::{LockedMemory, ProtectionDomain, RemoteAddress, ScatterEntry, TargetEntry, VerbsError};

/// Memory that can be registered.
///
/// # Safety
/// `base()..base() + bytes()` is mapped, at the same place and with the same length, from
/// now until the value is dropped, also when the value moves. Code that makes references
/// into it keeps rule 2 of this module. A child of a fork touches none of its pages (rule 3).
pub unsafe trait DeviceMemory: Send + Sync {
    /// Returns the address of its first byte.
    fn base(&self) -> NonNull<u8>;
    /// Returns its length.
    fn bytes(&self) -> usize;
}

// SAFETY: the value behind the `Arc` does not move and lives as long as the `Arc`.
unsafe impl<M: DeviceMemory> DeviceMemory for Arc<M> {
    fn base(&self) -> NonNull<u8> {
        (**self).base()
    }

    fn bytes(&self) -> usize {
        (**self).bytes()
    }
}

/// The rights to a region
/// ([`ibv_reg_mr(3)`](https://man7.org/linux/man-pages/man3/ibv_reg_mr.3.html)).
///
/// Memory that is only sent from carries no rights of the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RegionAccess(u32);

impl RegionAccess {
    /// This end sends from the memory.
    pub const SEND: Self = Self(0);
    /// The device writes arriving messages into the memory.
    pub const RECEIVE: Self = Self(access_flags::LOCAL_WRITE);
    /// A peer that has the key writes into the memory by RDMA.
    pub const REMOTE_WRITE: Self = Self(access_flags::LOCAL_WRITE | access_flags::REMOTE_WRITE);
    /// A peer that has the key reads the memory by RDMA.
    pub const REMOTE_READ: Self = Self(access_flags::REMOTE_READ);
    /// A peer that has the key does atomics in the memory.
    pub const REMOTE_ATOMIC: Self = Self(access_flags::LOCAL_WRITE | access_flags::REMOTE_ATOMIC);

    /// Lets the device's writes overtake each other on the PCIe bus. A completion still makes all
    /// bytes before it visible
    /// ([ibv_reg_mr(3)](https://man7.org/linux/man-pages/man3/ibv_reg_mr.3.html)), so it is for
    /// memory that is read behind a completion, never for memory that is polled. Libraries and
    /// kernels that do not know this right ignore it.
    const fn relaxed_ordering(self) -> Self {
        Self(self.0 | access_flags::RELAXED_ORDERING)
    }

    /// Memory windows can be bound to the memory.
    pub const WINDOWS: Self = Self(access_flags::WINDOW_BIND);

    /// The device asks for the memory's pages when it needs them, in place of pinning all at once:
    /// registering takes no time and no locked memory, and the first access of each page takes long.
    pub const ON_DEMAND: Self = Self(access_flags::ON_DEMAND);

    /// Returns whether these rights contain all of `other`.
    #[must_use]
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// Combines the rights of both.
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Refuses rights that the device does not have.
    fn check(self, context: &DeviceContext) -> Result<(), VerbsError> {
        match self.contains(Self::ON_DEMAND) && !context.attributes.on_demand_paging {
            false => Ok(()),
            true => Err(context.lacks(
                "ibv_reg_mr",
                Errno::OPNOTSUPP,
                "on-demand paging",
                "register the memory without `RegionAccess::ON_DEMAND`, which pins it",
            )),
        }
    }

    /// Returns the rights as `ibv_reg_mr` takes them.
    #[must_use]
    pub const fn bits(self) -> u32 {
        self.0
    }
}

/// Memory that is registered.
#[derive(Debug)]
pub struct MemoryRegion<M> {
    memory: ManuallyDrop<M>,
    pub(crate) registration: Arc<RegionRegistration>,
    /// The address of the first byte in this process; dangling for memory without one.
    base: NonNull<u8>,
    /// The address that requests have for the first byte.
    start: u64,
    bytes: usize,
    lkey: u32,
    rkey: u32,
    access: RegionAccess,
}

/// The device's knowledge of a region, until it is ended: by the region, or before that by the
/// close of the device.
#[derive(Debug)]
pub(crate) struct RegionRegistration {
    /// The number of the registration in its domain.
    number: u64,
    state: Mutex<RegistrationState>,
}

#[derive(Debug)]
enum RegistrationState {
    Held(LiveRegistration),
    /// The device is done with the memory.
    Ended,
    /// The registration could not be ended, so the memory belongs to the device for ever.
    Stuck,
}

/// A registration that the device knows.
#[derive(Debug)]
pub(crate) struct LiveRegistration {
    pub(crate) handle: RegionHandle,
    pub(super) domain: Arc<Domain>,
    /// The addresses of this process that are registered, which are mapped while this value exists;
    /// empty for memory without such.
    pub(super) range: Range<usize>,
}

// SAFETY: `base` is an address of `memory`, which is Send; the rest is Send by itself.
unsafe impl<M: Send> Send for MemoryRegion<M> {}
// SAFETY: `&self` gives out addresses, keys and `&M`, and `M` is Sync.
unsafe impl<M: Sync> Sync for MemoryRegion<M> {}

impl<M: DeviceMemory> MemoryRegion<M> {
    /// Registers memory: pins all of it. Takes long (faults in every page), so it is
    /// for set-up and for a caller's thread, not for the data path.
    ///
    /// # Errors
    /// [`VerbsError::MemoryLock`] if the limit on locked memory is too small, otherwise the
    /// device's error. The memory is dropped.
    pub fn register(
        domain: &ProtectionDomain,
        memory: M,
        access: RegionAccess,
    ) -> Result<Self, VerbsError> {
        let domain = &domain.inner;
        let context = &domain.context;
        let (base, bytes) = (memory.base(), memory.bytes());
        access.check(context)?;
        let access = match domain.relaxed_ordering {
            true => access.relaxed_ordering(),
            false => access,
        };
        let range = base.addr().get()..base.addr().get() + bytes;
        // SAFETY: the domain is alive; the range is mapped while `memory` lives (`DeviceMemory`),
        // and `drop` deregisters before it drops the memory.
        let registered = unsafe {
            context
                .provider()
                .register(domain.handle, base, bytes, access.bits())
        }
        .map_err(|errno| {
            // SAFETY: `memory` lives, and is kept from children (`DeviceMemory`).
            unsafe { fork::keep_from_children(range.clone()) };
            VerbsError::registration(&context.name, bytes as u64, LockedMemory::now(), errno)
        })?;
        let start = base.addr().get() as u64;
        Self::new(domain, registered, memory, access, start, bytes, Some(base))
    }

    /// Ends the registration ahead of the drop. Returns whether the device is done with the memory: where
    /// it refuses, the memory stays mapped for ever, and nobody may use it any more. No request that is
    /// under way may use the region.
    #[must_use]
    pub fn end(&self) -> bool {
        self.registration.end()
    }

    /// The memory itself.
    #[inline]
    #[must_use]
    pub fn memory(&self) -> &M {
        &self.memory
    }

    /// Returns the address of the region's first byte. Rule 2 of this module says how it may be
    /// used.
    #[inline]
    #[must_use]
    pub fn base(&self) -> NonNull<u8> {
        self.base
    }
}

impl<M> MemoryRegion<M> {
    /// Keeps a registration, of memory that has the address `base` in this process if it has one, and
    /// `start` in requests.
    pub(super) fn new(
        domain: &Arc<Domain>,
        registered: RegisteredRegion,
        memory: M,
        access: RegionAccess,
        start: u64,
        bytes: usize,
        base: Option<NonNull<u8>>,
    ) -> Result<Self, VerbsError> {
        let range = base.map_or(0..0, |base| base.addr().get()..base.addr().get() + bytes);
        let (registration, is_noted) = RegionRegistration::new(registered.handle, domain, range);
        let region = Self {
            memory: ManuallyDrop::new(memory),
            registration,
            base: base.unwrap_or(NonNull::dangling()),
            start,
            bytes,
            lkey: registered.lkey,
            rkey: registered.rkey,
            access,
        };
        match is_noted {
            true => Ok(region),
            false => Err(VerbsError::Closed {
                device: domain.context.name.to_owned(),
            }),
        }
    }

    /// Returns whether the device still knows the region.
    #[must_use]
    pub fn is_registered(&self) -> bool {
        self.registration.is_held()
    }

    /// Runs `act` with the domain and the provider's region, while the device knows the region;
    /// `None` if it no longer does.
    pub(crate) fn while_registered<T>(
        &self,
        act: impl FnOnce(&Arc<Domain>, *mut c_void) -> T,
    ) -> Option<T> {
        self.registration
            .while_held(|held| act(&held.domain, held.handle.as_ptr()))
    }

    /// Returns the region's length.
    #[inline]
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns the address at which a peer finds the byte at `offset`, to be sent to it together
    /// with the key.
    ///
    /// # Panics
    /// If the region has no such byte.
    #[inline]
    #[must_use]
    pub fn remote(&self, offset: usize) -> RemoteAddress {
        assert!(offset < self.bytes, "byte {offset} of {}", self.bytes);
        RemoteAddress {
            address: self.start + offset as u64,
            rkey: self.rkey,
        }
    }

    /// Returns the rights that the region was registered with.
    #[inline]
    #[must_use]
    pub fn access(&self) -> RegionAccess {
        self.access
    }

    /// Returns a piece of the region that the device may write, for a [read](crate::ReadRequest).
    ///
    /// # Panics
    /// If the range leaves the region, is longer than 4 GiB, or the region was registered without
    /// [`RegionAccess::RECEIVE`], so that the device would refuse the write.
    #[must_use]
    pub fn target(&self, range: Range<usize>) -> TargetEntry<'_> {
        assert!(
            self.access.contains(RegionAccess::RECEIVE),
            "the device may not write to this region: register it with `RegionAccess::RECEIVE`"
        );
        TargetEntry(self.entry(range))
    }

    /// Returns a piece of the region, to post.
    ///
    /// # Panics
    /// If the range leaves the region, or is longer than 4 GiB.
    #[inline]
    #[must_use]
    pub fn entry(&self, range: Range<usize>) -> ScatterEntry<'_> {
        assert!(
            range.start <= range.end && range.end <= self.bytes,
            "{range:?} leaves a region of {} bytes",
            self.bytes
        );
        let length = u32::try_from(range.end - range.start).expect("a piece below 4 GiB");
        ScatterEntry::registered(Sge {
            addr: self.start + range.start as u64,
            length,
            lkey: self.lkey,
        })
    }
}

impl<M> Drop for MemoryRegion<M> {
    fn drop(&mut self) {
        if fork::is_child() {
            return;
        }
        turn::assert_none("ending a registration");
        if self.registration.end() {
            // SAFETY: the device is done with the memory (rule 3 of `Provider`), and
            // neither value is touched after this.
            unsafe {
                ManuallyDrop::drop(&mut self.memory);
            }
        }
    }
}

impl RegionRegistration {
    /// Keeps the registration of a range of this process, or of other memory if it is empty. Returns
    /// whether the domain takes it.
    pub(super) fn new(
        handle: RegionHandle,
        domain: &Arc<Domain>,
        range: Range<usize>,
    ) -> (Arc<Self>, bool) {
        let number = new_tag();
        let held = LiveRegistration {
            handle,
            domain: Arc::clone(domain),
            range,
        };
        let registration = Arc::new(Self {
            number,
            state: Mutex::new(RegistrationState::Held(held)),
        });
        let is_noted = domain.note(number, &registration);
        (registration, is_noted)
    }

    pub(super) fn is_held(&self) -> bool {
        matches!(*self.state(), RegistrationState::Held(_))
    }

    /// Runs `act` while the device knows the region; `None` if it no longer does. The lock keeps the
    /// registration from being ended meanwhile.
    pub(crate) fn while_held<T>(&self, act: impl FnOnce(&mut LiveRegistration) -> T) -> Option<T> {
        match &mut *self.state() {
            RegistrationState::Held(held) => Some(act(held)),
            _ => None,
        }
    }

    /// Ends the registration, if that was not done before. Returns whether the device is done with
    /// the memory.
    pub(crate) fn end(&self) -> bool {
        let mut state = self.state();
        if let RegistrationState::Held(held) = &*state {
            let LiveRegistration {
                handle,
                domain,
                range,
            } = held;
            domain.forget(self.number);
            let context = &domain.context;
            // SAFETY: the region is registered, and `state`, which is locked, no longer has its
            // handle after this.
            let ended = unsafe { context.provider().destroy((*handle).into()) };
            *state = match ended {
                Ok(()) if range.is_empty() => RegistrationState::Ended,
                Ok(()) => {
                    // SAFETY: the region's memory is mapped: the region drops it after it has
                    // called this method, and finds `state` locked until then. The memory is kept
                    // from children (`DeviceMemory`).
                    unsafe { fork::keep_from_children(range.clone()) };
                    RegistrationState::Ended
                }
                Err(errno) => {
                    context.undestroyed("ibv_dereg_mr", errno);
                    RegistrationState::Stuck
                }
            };
        }
        matches!(*state, RegistrationState::Ended)
    }

    fn state(&self) -> MutexGuard<'_, RegistrationState> {
        lock(&self.state)
    }
}
