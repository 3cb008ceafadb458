//! The calls for memory that has no address in this process.

use std::os::fd::BorrowedFd;

use rustix::io::Errno;

use super::{BufferHandle, ContextHandle, DomainHandle, RegisteredRegion};

/// The part of [`Provider`](super::Provider) that is about memory of other drivers and of the device.
///
/// # Safety
/// The contract of [`Provider`](super::Provider).
pub trait ForeignProvider {
    /// `ibv_reg_dmabuf_mr`, on the page of
    /// [`ibv_reg_mr(3)`](https://man7.org/linux/man-pages/man3/ibv_reg_mr.3.html). The region's
    /// addresses begin at `offset`.
    unsafe fn register_dmabuf(
        &self,
        domain: DomainHandle,
        buffer: BorrowedFd<'_>,
        offset: u64,
        bytes: usize,
        access: u32,
    ) -> Result<RegisteredRegion, Errno>;
    /// [`ibv_alloc_dm(3)`](https://man7.org/linux/man-pages/man3/ibv_alloc_dm.3.html), aligned to
    /// this power of two.
    unsafe fn create_buffer(
        &self,
        context: ContextHandle,
        bytes: usize,
        align_log: u32,
    ) -> Result<BufferHandle, Errno>;
    /// `ibv_memcpy_to_dm`. The bytes are within the buffer.
    unsafe fn write_buffer(
        &self,
        buffer: BufferHandle,
        offset: u64,
        from: &[u8],
    ) -> Result<(), Errno>;
    /// `ibv_memcpy_from_dm`. The bytes are within the buffer.
    unsafe fn read_buffer(
        &self,
        buffer: BufferHandle,
        offset: u64,
        into: &mut [u8],
    ) -> Result<(), Errno>;
    /// `ibv_reg_dm_mr`. The region's addresses begin at 0.
    unsafe fn register_buffer(
        &self,
        domain: DomainHandle,
        buffer: BufferHandle,
        offset: u64,
        bytes: usize,
        access: u32,
    ) -> Result<RegisteredRegion, Errno>;
}
