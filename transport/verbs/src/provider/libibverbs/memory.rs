//! Protection domains and registrations.

use std::ffi::{c_int, c_void};
use std::ptr::{self, NonNull};

use rustix::io::Errno;

use super::{Libibverbs, clear_errno, last_errno, status, sys, window};
use crate::{
    abi::BindInfo,
    provider::{
        ContextHandle, DomainHandle, MemoryProvider, PairHandle, RegionHandle, RegisteredRegion,
        WindowHandle, WindowKind,
    },
};

impl MemoryProvider for Libibverbs {
    unsafe fn create_domain(&self, context: ContextHandle) -> Result<DomainHandle, Errno> {
        clear_errno();
        // SAFETY: the trait's contract.
        DomainHandle::new(unsafe { sys::ibv_alloc_pd(context.as_ptr()) }).ok_or_else(last_errno)
    }

    unsafe fn destroy_domain(&self, domain: DomainHandle) -> Result<(), Errno> {
        // SAFETY: the trait's contract.
        status(unsafe { sys::ibv_dealloc_pd(domain.as_ptr()) })
    }

    unsafe fn register(
        &self,
        domain: DomainHandle,
        base: NonNull<u8>,
        bytes: usize,
        access: u32,
    ) -> Result<RegisteredRegion, Errno> {
        // SAFETY: the trait's contract.
        unsafe { register(domain, base, bytes, access) }
    }

    unsafe fn deregister(&self, region: RegionHandle) -> Result<(), Errno> {
        // SAFETY: the trait's contract.
        status(unsafe { sys::ibv_dereg_mr(region.as_ptr()) })
    }

    unsafe fn create_window(
        &self,
        domain: DomainHandle,
        kind: WindowKind,
    ) -> Result<(WindowHandle, u32), Errno> {
        // SAFETY: the trait's contract.
        unsafe { window::create(domain, kind) }
    }

    unsafe fn destroy_window(&self, window: WindowHandle) -> Result<(), Errno> {
        // SAFETY: the trait's contract.
        status(unsafe { sys::ibv_dealloc_mw(window.as_ptr()) })
    }

    unsafe fn bind_window(
        &self,
        pair: PairHandle,
        window: WindowHandle,
        wr_id: u64,
        flags: u32,
        info: &BindInfo,
    ) -> Result<u32, Errno> {
        // SAFETY: the trait's contract.
        unsafe { window::bind(pair, window, wr_id, flags, info) }
    }

    unsafe fn set_window_key(&self, window: WindowHandle, key: u32) {
        // SAFETY: the trait's contract; the field is the caller's to write (ibv_post_send(3), of a
        // binding), and its window's owner alone makes calls for it.
        unsafe { (*window.as_ptr::<sys::ibv_mw>()).rkey = key };
    }
}

/// # Safety
/// The contract of [`MemoryProvider::register`](crate::provider::MemoryProvider::register).
pub(super) unsafe fn register(
    domain: DomainHandle,
    base: NonNull<u8>,
    bytes: usize,
    access: u32,
) -> Result<RegisteredRegion, Errno> {
    let base: *mut c_void = base.as_ptr().cast();
    clear_errno();
    // As in the header's macro, only the call with an I/O address passes the optional flags on.
    let required = access & !OPTIONAL_ACCESS;
    let mut raw = ptr::null_mut();
    if access != required {
        let address = base.addr() as u64;
        // SAFETY: the caller's contract.
        raw = unsafe { sys::ibv_reg_mr_iova2(domain.as_ptr(), base, bytes, address, access) };
    }
    // The plain call serves without optional rights, and if the library does not know the call
    // for them (before rdma-core 28).
    if raw.is_null() && (access == required || last_errno() == Errno::OPNOTSUPP) {
        clear_errno();
        // SAFETY: the caller's contract.
        raw = unsafe { sys::ibv_reg_mr(domain.as_ptr(), base, bytes, required as c_int) };
    }
    // SAFETY: as the library has returned it.
    unsafe { registered(raw) }
}

/// # Safety
/// A region of the library, or null.
pub(super) unsafe fn registered(raw: *mut sys::ibv_mr) -> Result<RegisteredRegion, Errno> {
    let handle = RegionHandle::new(raw).ok_or_else(last_errno)?;
    // SAFETY: the region exists.
    let (lkey, rkey) = unsafe { ((*raw).lkey, (*raw).rkey) };
    Ok(RegisteredRegion { handle, lkey, rkey })
}

/// From `IBV_ACCESS_OPTIONAL_FIRST` to the last bit reserved for optional rights.
const OPTIONAL_ACCESS: u32 = 0x3ff0_0000;
