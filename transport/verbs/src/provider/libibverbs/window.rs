//! Memory windows.

use rustix::io::Errno;

use super::sys::{self, constants};
use super::{clear_errno, last_errno, status};
use crate::{
    abi::BindInfo,
    provider::{DomainHandle, PairHandle, WindowHandle, WindowKind},
};

/// # Safety
/// The contract of [`MemoryProvider::create_window`](crate::provider::MemoryProvider::create_window).
pub(super) unsafe fn create(
    domain: DomainHandle,
    kind: WindowKind,
) -> Result<(WindowHandle, u32), Errno> {
    let kind = match kind {
        WindowKind::One => constants::IBV_MW_TYPE_1,
        WindowKind::Two => constants::IBV_MW_TYPE_2,
    };
    clear_errno();
    // SAFETY: the caller's contract.
    let raw = unsafe { sys::ibv_alloc_mw(domain.as_ptr(), kind) };
    let handle = WindowHandle::new(raw).ok_or_else(last_errno)?;
    // SAFETY: the window exists.
    Ok((handle, unsafe { (*raw).rkey }))
}

/// # Safety
/// The contract of [`MemoryProvider::bind_window`](crate::provider::MemoryProvider::bind_window).
pub(super) unsafe fn bind(
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
    // SAFETY: the caller's contract.
    unsafe {
        status(sys::ibv_bind_mw(pair.as_ptr(), window, &raw mut request))?;
        Ok((*window).rkey)
    }
}
