//! The calls for protection domains, and for the memory that belongs to them.

use std::ptr::NonNull;

use rustix::io::Errno;

use super::{ContextHandle, DomainHandle, PairHandle, RegionHandle, WindowHandle, WindowKind};
use crate::abi::BindInfo;

/// A registered region's keys.
#[derive(Clone, Copy, Debug)]
pub struct RegisteredRegion {
    /// The region.
    pub handle: RegionHandle,
    /// The key for our own requests.
    pub lkey: u32,
    /// The key for the peer's requests.
    pub rkey: u32,
}

/// The part of [`Provider`](super::Provider) that is about protection domains and memory.
///
/// # Safety
/// The contract of [`Provider`](super::Provider).
pub trait MemoryProvider {
    /// [`ibv_alloc_pd(3)`](https://man7.org/linux/man-pages/man3/ibv_alloc_pd.3.html).
    unsafe fn create_domain(&self, context: ContextHandle) -> Result<DomainHandle, Errno>;
    /// [`ibv_reg_mr(3)`](https://man7.org/linux/man-pages/man3/ibv_reg_mr.3.html). The range is
    /// mapped, and stays so until the region is destroyed.
    unsafe fn register(
        &self,
        domain: DomainHandle,
        base: NonNull<u8>,
        bytes: usize,
        access: u32,
    ) -> Result<RegisteredRegion, Errno>;

    /// [`ibv_alloc_mw(3)`](https://man7.org/linux/man-pages/man3/ibv_alloc_mw.3.html); returns the
    /// window's key too.
    unsafe fn create_window(
        &self,
        domain: DomainHandle,
        kind: WindowKind,
    ) -> Result<(WindowHandle, u32), Errno>;
    /// [`ibv_bind_mw(3)`](https://man7.org/linux/man-pages/man3/ibv_bind_mw.3.html), for a window of
    /// type 1; returns the key that it gets. The region in `info` exists, or is null.
    unsafe fn bind_window(
        &self,
        pair: PairHandle,
        window: WindowHandle,
        wr_id: u64,
        flags: u32,
        info: &BindInfo,
    ) -> Result<u32, Errno>;
    /// Notes the key that a window of type 2 has got, from which the driver knows its next one.
    unsafe fn set_window_key(&self, window: WindowHandle, key: u32);
}
