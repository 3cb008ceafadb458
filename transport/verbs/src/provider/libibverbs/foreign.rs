//! Memory of other drivers, and memory of devices.

use std::ffi::c_int;
use std::os::fd::{AsRawFd, BorrowedFd};

use rustix::io::Errno;

use super::{Libibverbs, clear_errno, last_errno, memory::registered, status, sys};
use crate::{
    abi::access_flags,
    provider::{
        BufferHandle, ContextHandle, DomainHandle, RegisteredRegion, foreign::ForeignProvider,
    },
};

impl ForeignProvider for Libibverbs {
    unsafe fn register_dmabuf(
        &self,
        domain: DomainHandle,
        buffer: BorrowedFd<'_>,
        offset: u64,
        bytes: usize,
        access: u32,
    ) -> Result<RegisteredRegion, Errno> {
        clear_errno();
        let (fd, access) = (buffer.as_raw_fd(), access as c_int);
        // SAFETY: the trait's contract.
        unsafe {
            registered(sys::ibv_reg_dmabuf_mr(
                domain.as_ptr(),
                offset,
                bytes,
                offset,
                fd,
                access,
            ))
        }
    }

    unsafe fn create_buffer(
        &self,
        context: ContextHandle,
        bytes: usize,
        align_log: u32,
    ) -> Result<BufferHandle, Errno> {
        let mut attributes = sys::ibv_alloc_dm_attr {
            length: bytes,
            log_align_req: align_log,
            comp_mask: 0,
        };
        clear_errno();
        // SAFETY: the trait's contract.
        let raw = unsafe { sys::ibv_alloc_dm(context.as_ptr(), &raw mut attributes) };
        BufferHandle::new(raw).ok_or_else(last_errno)
    }

    unsafe fn write_buffer(
        &self,
        buffer: BufferHandle,
        offset: u64,
        from: &[u8],
    ) -> Result<(), Errno> {
        let raw: *mut sys::ibv_dm = buffer.as_ptr();
        // SAFETY: the trait's contract.
        unsafe {
            let call = (*raw).memcpy_to_dm.ok_or(Errno::OPNOTSUPP)?;
            status(call(raw, offset, from.as_ptr().cast(), from.len()))
        }
    }

    unsafe fn read_buffer(
        &self,
        buffer: BufferHandle,
        offset: u64,
        into: &mut [u8],
    ) -> Result<(), Errno> {
        let raw: *mut sys::ibv_dm = buffer.as_ptr();
        // SAFETY: the trait's contract.
        unsafe {
            let call = (*raw).memcpy_from_dm.ok_or(Errno::OPNOTSUPP)?;
            status(call(into.as_mut_ptr().cast(), raw, offset, into.len()))
        }
    }

    unsafe fn register_buffer(
        &self,
        domain: DomainHandle,
        buffer: BufferHandle,
        offset: u64,
        bytes: usize,
        access: u32,
    ) -> Result<RegisteredRegion, Errno> {
        let access = access | access_flags::ZERO_BASED;
        clear_errno();
        // SAFETY: the trait's contract.
        unsafe {
            registered(sys::ibv_reg_dm_mr(
                domain.as_ptr(),
                buffer.as_ptr(),
                offset,
                bytes,
                access,
            ))
        }
    }
}
