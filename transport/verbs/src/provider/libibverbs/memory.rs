//! Protection domains and registrations.

use std::ffi::{c_int, c_void};
use std::ptr::{self, NonNull};

use rustix::io::Errno;

use super::{Libibverbs, clear_errno, last_errno, status, sys};
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

    unsafe fn register(
        &self,
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
            // SAFETY: the trait's contract.
            raw = unsafe { sys::ibv_reg_mr_iova2(domain.as_ptr(), base, bytes, address, access) };
        }
        // The plain call serves without optional rights, and if the library does not know the call
        // for them (before rdma-core 28).
        if raw.is_null() && (access == required || last_errno() == Errno::OPNOTSUPP) {
            clear_errno();
            // SAFETY: the trait's contract.
            raw = unsafe { sys::ibv_reg_mr(domain.as_ptr(), base, bytes, required as c_int) };
        }
        // SAFETY: as the library has returned it.
        unsafe { registered(raw) }
    }

    unsafe fn create_window(
        &self,
        domain: DomainHandle,
        kind: WindowKind,
    ) -> Result<(WindowHandle, u32), Errno> {
        let kind = match kind {
            WindowKind::One => sys::constants::IBV_MW_TYPE_1,
            WindowKind::Two => sys::constants::IBV_MW_TYPE_2,
        };
        clear_errno();
        // SAFETY: the trait's contract.
        let raw = unsafe { sys::ibv_alloc_mw(domain.as_ptr(), kind) };
        let handle = WindowHandle::new(raw).ok_or_else(last_errno)?;
        // SAFETY: the window exists.
        Ok((handle, unsafe { (*raw).rkey }))
    }

    unsafe fn bind_window(
        &self,
        pair: PairHandle,
        window: WindowHandle,
        wr_id: u64,
        flags: u32,
        info: &BindInfo,
    ) -> Result<u32, Errno> {
        let mut request = sys::ibv_mw_bind {
            wr_id,
            send_flags: flags,
            bind_info: *info,
        };
        let window: *mut sys::ibv_mw = window.as_ptr();
        // SAFETY: the trait's contract.
        unsafe {
            status(sys::ibv_bind_mw(pair.as_ptr(), window, &raw mut request))?;
            Ok((*window).rkey)
        }
    }

    unsafe fn set_window_key(&self, window: WindowHandle, key: u32) {
        // SAFETY: the trait's contract; the field is the caller's to write (ibv_post_send(3), of a
        // binding), and its window's owner alone makes calls for it.
        unsafe { (*window.as_ptr::<sys::ibv_mw>()).rkey = key };
    }
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
