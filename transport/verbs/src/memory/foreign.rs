//! Registered memory that has no address in this process: a dma-buf of another driver, such as a
//! graphics card's, and memory of the RDMA device itself.
//!
//! Requests name pieces of it like pieces of a [`MemoryRegion`] of this process, and peers reach it by
//! its key. The processor reads and writes it, if at all, by calls.

use std::any::Any;
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use rustix::io::Errno;

use crate::provider::{BufferHandle, RegisteredRegion};
use crate::{
    Device, LockedMemory, MemoryRegion, ProtectionDomain, RegionAccess, VerbsError,
    device::DeviceContext, device::requested_size::RequestedSize,
};

/// Registered memory without an address in this process.
pub type ForeignRegion = MemoryRegion<ForeignMemory>;

/// Memory without an address in this process, which goes after its registration.
#[derive(Debug)]
pub struct ForeignMemory {
    _kept: Arc<dyn Any + Send + Sync>,
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
        let inner = &domain.inner;
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
        Self::of(
            domain,
            registered,
            range.start,
            bytes,
            access,
            Arc::new(buffer),
        )
    }

    fn of(
        domain: &ProtectionDomain,
        registered: RegisteredRegion,
        start: u64,
        bytes: usize,
        access: RegionAccess,
        kept: Arc<dyn Any + Send + Sync>,
    ) -> Result<Self, VerbsError> {
        let memory = ForeignMemory { _kept: kept };
        Self::new(
            &domain.inner,
            registered,
            memory,
            access,
            start,
            bytes,
            None,
        )
    }
}

/// Memory of a device ([`ibv_alloc_dm(3)`](https://man7.org/linux/man-pages/man3/ibv_alloc_dm.3.html)),
/// which requests reach without the PCIe bus. Clones are the same memory.
#[derive(Clone, Debug)]
pub struct OnDeviceMemory {
    pub(crate) buffer: Arc<DeviceBuffer>,
}

#[derive(Debug)]
pub(crate) struct DeviceBuffer {
    pub(crate) handle: BufferHandle,
    bytes: usize,
    pub(crate) context: Arc<DeviceContext>,
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
        let limit = context.attributes.device_memory_bytes;
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
        let provider = context.provider();
        // SAFETY: the context is open.
        let made = unsafe { provider.create_buffer(context.opened.handle, bytes, align_log) };
        let handle = made.map_err(|errno| match errno {
            Errno::NOMEM => VerbsError::creation(&context.name, CALL, LockedMemory::now(), errno),
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
        let (handle, context) = (self.buffer.handle, &self.buffer.context);
        let provider = context.provider();
        // SAFETY: the buffer is alive, and the bytes are within it.
        let written = unsafe { provider.write_buffer(handle, offset as u64, from) };
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
        let (handle, context) = (self.buffer.handle, &self.buffer.context);
        let provider = context.provider();
        // SAFETY: the buffer is alive, and the bytes are within it.
        let read = unsafe { provider.read_buffer(handle, offset as u64, into) };
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
        let inner = &domain.inner;
        let (handle, context) = (self.buffer.handle, &self.buffer.context);
        inner.context.check_same("device's memory", context)?;
        // SAFETY: domain and buffer are alive, and of one context.
        let registered = unsafe {
            let provider = context.provider();
            provider.register_buffer(inner.handle, handle, wide.start, bytes, access.bits())
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
        let kept = Arc::clone(&self.buffer) as _;
        ForeignRegion::of(domain, registered, 0, bytes, access, kept)
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
