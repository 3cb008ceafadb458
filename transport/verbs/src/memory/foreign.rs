//! Registered memory that has no address in this process: a dma-buf of another driver, such as a
//! graphics card's, and memory of the RDMA device itself.
//!
//! Requests name pieces of it like pieces of a [`MemoryRegion`](crate::MemoryRegion), and peers reach
//! it by its key. The processor reads and writes it, if at all, by calls.

use std::any::Any;
use std::fmt;
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use ibex_base::fork;
use rustix::io::Errno;

use super::{
    protection_domain::ProtectionDomain,
    region::{RegionAccess, RegionRegistration},
    scatter_entry::{ScatterEntry, TargetEntry},
};
use crate::{
    abi::{Sge, remote_address::RemoteAddress},
    device::{Device, DeviceContext, requested_size::RequestedSize},
    error::VerbsError,
    locked_memory::LockedMemory,
    provider::{BufferHandle, RegisteredRegion},
};

/// Registered memory without an address in this process.
pub struct ForeignRegion {
    registration: Arc<RegionRegistration>,
    /// The address that requests have for the first byte.
    start: u64,
    bytes: usize,
    keys: (u32, u32),
    access: RegionAccess,
    /// The memory, which goes after its registration.
    _kept: Arc<dyn Any + Send + Sync>,
}

impl fmt::Debug for ForeignRegion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ForeignRegion of {} bytes", self.bytes)
    }
}

impl ForeignRegion {
    /// Registers `range` of a dma-buf (`ibv_reg_dmabuf_mr`, on the page of
    /// [`ibv_reg_mr(3)`](https://man7.org/linux/man-pages/man3/ibv_reg_mr.3.html)), whose driver
    /// exports it as a descriptor. Some devices take only ranges that begin at a page.
    ///
    /// # Errors
    /// [`VerbsError::Unsupported`] if library, kernel or device have no such registration, and their
    /// refusal of this one. [`VerbsError::Setting`] for an empty range.
    pub fn of_dmabuf(
        domain: &ProtectionDomain,
        buffer: OwnedFd,
        range: Range<u64>,
        access: RegionAccess,
    ) -> Result<Self, VerbsError> {
        let bytes = length("the range of a dma-buf", &range)?;
        let inner = domain.inner();
        // SAFETY: the domain is alive.
        let registered = unsafe {
            let provider = inner.context.provider();
            let (fd, access) = (buffer.as_fd(), access.bits());
            provider.register_dmabuf(inner.handle, fd, range.start, bytes, access)
        };
        let registered = registered.map_err(|errno| {
            let instead = "copy the bytes into a memory region";
            inner.context.lacks(
                "ibv_reg_dmabuf_mr",
                errno,
                "registration of dma-bufs",
                instead,
            )
        })?;
        Self::new(
            domain,
            registered,
            range.start,
            bytes,
            access,
            Arc::new(buffer),
        )
    }

    fn new(
        domain: &ProtectionDomain,
        registered: RegisteredRegion,
        start: u64,
        bytes: usize,
        access: RegionAccess,
        kept: Arc<dyn Any + Send + Sync>,
    ) -> Result<Self, VerbsError> {
        let domain = domain.inner();
        let (registration, is_noted) = RegionRegistration::new(registered.handle, domain, 0..0);
        let region = Self {
            registration,
            start,
            bytes,
            keys: (registered.lkey, registered.rkey),
            access,
            _kept: kept,
        };
        match is_noted {
            true => Ok(region),
            false => Err(VerbsError::Closed {
                device: domain.context.name().to_owned(),
            }),
        }
    }

    /// Returns the region's length.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns whether the device still knows the region.
    #[must_use]
    pub fn is_registered(&self) -> bool {
        self.registration.is_held()
    }

    /// Runs `act` with the domain and the provider's region, while the device knows the region;
    /// `None` if it no longer does.
    #[cfg(feature = "rdma-sys")]
    pub(crate) fn while_registered<T>(
        &self,
        act: impl FnOnce(&super::protection_domain::Domain, *mut std::ffi::c_void) -> T,
    ) -> Option<T> {
        self.registration
            .while_held(|held| act(&held.domain, held.handle.as_ptr()))
    }

    /// Returns a piece of the region, to post.
    ///
    /// # Panics
    /// If the range leaves the region, or is longer than 4 GiB.
    #[must_use]
    pub fn entry(&self, range: Range<usize>) -> ScatterEntry<'_> {
        assert!(
            range.start <= range.end && range.end <= self.bytes,
            "{range:?} leaves a region of {} bytes",
            self.bytes
        );
        ScatterEntry::registered(Sge {
            addr: self.start + range.start as u64,
            length: u32::try_from(range.len()).expect("a piece below 4 GiB"),
            lkey: self.keys.0,
        })
    }

    /// Returns a piece of the region that the device may write.
    ///
    /// # Panics
    /// Like [`entry`](Self::entry), and if the region was registered without
    /// [`RegionAccess::RECEIVE`].
    #[must_use]
    pub fn target(&self, range: Range<usize>) -> TargetEntry<'_> {
        assert!(
            self.access.contains(RegionAccess::RECEIVE),
            "the device may not write to this region: register it with `RegionAccess::RECEIVE`"
        );
        TargetEntry(self.entry(range))
    }

    /// Returns the address at which a peer finds the byte at `offset`, to be sent to it.
    ///
    /// # Panics
    /// If the region has no such byte.
    #[must_use]
    pub fn remote(&self, offset: usize) -> RemoteAddress {
        assert!(offset < self.bytes, "byte {offset} of {}", self.bytes);
        RemoteAddress {
            address: self.start + offset as u64,
            rkey: self.keys.1,
        }
    }
}

impl Drop for ForeignRegion {
    fn drop(&mut self) {
        if !fork::is_child() {
            // If it cannot be ended, the kernel keeps the memory: this process has no address of it.
            self.registration.end();
        }
    }
}

/// Memory of a device ([`ibv_alloc_dm(3)`](https://man7.org/linux/man-pages/man3/ibv_alloc_dm.3.html)),
/// which requests reach without the PCIe bus. Clones are the same memory.
#[derive(Clone, Debug)]
pub struct OnDeviceMemory {
    buffer: Arc<DeviceBuffer>,
}

#[derive(Debug)]
struct DeviceBuffer {
    handle: BufferHandle,
    bytes: usize,
    context: Arc<DeviceContext>,
}

impl OnDeviceMemory {
    /// Takes `bytes` of the device's memory, at an address that is a multiple of two to the power of
    /// `align_log`: 3 for atomics.
    ///
    /// # Errors
    /// [`VerbsError::Unsupported`] if the device has none, [`VerbsError::Limit`] if it has less, and
    /// [`VerbsError::QueueMemory`] or [`VerbsError::Call`] if the rest of it is taken.
    pub fn new(device: &Device, bytes: usize, align_log: u32) -> Result<Self, VerbsError> {
        const CALL: &str = "ibv_alloc_dm";
        let context = Arc::clone(device.context());
        let limit = context.attributes().device_memory_bytes;
        let lacks = |errno| {
            let instead = "register memory of this process";
            context.lacks(CALL, errno, "memory of its own", instead)
        };
        if limit == 0 {
            return Err(lacks(Errno::OPNOTSUPP));
        }
        context.check_limit(&RequestedSize {
            what: "memory of the device",
            asked: bytes as u64,
            limit,
            setting: "its length",
        })?;
        // SAFETY: the context is open.
        let made = unsafe {
            let provider = context.provider();
            provider.create_buffer(context.handle(), bytes, align_log)
        };
        let handle = made.map_err(|errno| match errno {
            Errno::NOMEM => VerbsError::creation(context.name(), CALL, LockedMemory::now(), errno),
            _ => lacks(errno),
        })?;
        Ok(Self {
            buffer: Arc::new(DeviceBuffer {
                handle,
                bytes,
                context,
            }),
        })
    }

    /// Returns the length in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.buffer.bytes
    }

    #[cfg(feature = "rdma-sys")]
    pub(crate) fn handle(&self) -> BufferHandle {
        self.buffer.handle
    }

    #[cfg(feature = "rdma-sys")]
    pub(crate) fn context(&self) -> &DeviceContext {
        &self.buffer.context
    }

    /// Writes bytes of this process to the device's memory. Which of several bytes a request sees
    /// that reads them meanwhile is open.
    ///
    /// # Errors
    /// [`VerbsError::Call`] if the device refuses.
    ///
    /// # Panics
    /// If they leave the memory.
    pub fn write(&self, offset: usize, from: &[u8]) -> Result<(), VerbsError> {
        self.check(offset, from.len());
        let DeviceBuffer {
            handle, context, ..
        } = &*self.buffer;
        // SAFETY: the buffer is alive, and the bytes are within it.
        let written = unsafe {
            let provider = context.provider();
            provider.write_buffer(*handle, offset as u64, from)
        };
        written.map_err(context.failed("ibv_memcpy_to_dm", "nothing is certain of it"))
    }

    /// Reads bytes of the device's memory.
    ///
    /// # Errors
    /// [`VerbsError::Call`] if the device refuses.
    ///
    /// # Panics
    /// If they leave the memory.
    pub fn read(&self, offset: usize, into: &mut [u8]) -> Result<(), VerbsError> {
        self.check(offset, into.len());
        let DeviceBuffer {
            handle, context, ..
        } = &*self.buffer;
        // SAFETY: the buffer is alive, and the bytes are within it.
        let read = unsafe {
            let provider = context.provider();
            provider.read_buffer(*handle, offset as u64, into)
        };
        read.map_err(context.failed("ibv_memcpy_from_dm", "no byte is certain"))
    }

    /// Registers a part of the memory, for requests of this end and of peers.
    ///
    /// # Errors
    /// [`VerbsError::OtherDevice`] if the domain is of another open device, and the device's refusal.
    ///
    /// # Panics
    /// If the range leaves the memory.
    pub fn register(
        &self,
        domain: &ProtectionDomain,
        range: Range<usize>,
        access: RegionAccess,
    ) -> Result<ForeignRegion, VerbsError> {
        let wide = range.start as u64..range.end as u64;
        let bytes = length("the range of a device's memory", &wide)?;
        self.check(range.start, bytes);
        let inner = domain.inner();
        let DeviceBuffer {
            handle, context, ..
        } = &*self.buffer;
        inner.context.check_same("device's memory", context)?;
        // SAFETY: domain and buffer are alive, and of one context.
        let registered = unsafe {
            let provider = context.provider();
            provider.register_buffer(inner.handle, *handle, wide.start, bytes, access.bits())
        };
        let registered = registered.map_err(|errno| {
            let instead = "register memory of this process";
            context.lacks(
                "ibv_reg_dm_mr",
                errno,
                "registration of its memory",
                instead,
            )
        })?;
        ForeignRegion::new(
            domain,
            registered,
            0,
            bytes,
            access,
            Arc::clone(&self.buffer) as _,
        )
    }

    fn check(&self, offset: usize, bytes: usize) {
        let end = offset.checked_add(bytes);
        assert!(
            end.is_some_and(|end| end <= self.bytes()),
            "{bytes} bytes at {offset} leave memory of {} bytes",
            self.bytes()
        );
    }
}

impl Drop for DeviceBuffer {
    fn drop(&mut self) {
        // SAFETY: regions of it held an `Arc` of it, so all are deregistered.
        unsafe { self.context.destroy(self.handle) };
    }
}

fn length(setting: &'static str, range: &Range<u64>) -> Result<usize, VerbsError> {
    let bytes = range
        .end
        .checked_sub(range.start)
        .filter(|bytes| *bytes > 0);
    let bytes = bytes.and_then(|bytes| usize::try_from(bytes).ok());
    bytes.ok_or_else(|| VerbsError::setting(setting, format!("{range:?}"), "one byte or more"))
}
