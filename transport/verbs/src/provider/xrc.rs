//! The calls for extended reliable connections (XRC).

use std::os::fd::RawFd;

use rustix::io::Errno;

use super::{ContextHandle, PairHandle, XrcDomainHandle};

/// The part of [`Provider`](super::Provider) that is about extended reliable connections.
///
/// # Safety
/// The contract of [`Provider`](super::Provider).
pub trait XrcProvider {
    /// [`ibv_open_xrcd(3)`](https://man7.org/linux/man-pages/man3/ibv_open_xrcd.3.html): the domain of
    /// a file, or one without a file. `flags` are `O_CREAT` and `O_EXCL`.
    unsafe fn open_xrc_domain(
        &self,
        context: ContextHandle,
        file: Option<RawFd>,
        flags: i32,
    ) -> Result<XrcDomainHandle, Errno>;
    /// [`ibv_create_qp_ex(3)`](https://man7.org/linux/man-pages/man3/ibv_create_qp_ex.3.html) of the
    /// type `IBV_QPT_XRC_RECV`; returns its number too.
    unsafe fn create_xrc_receiver(
        &self,
        context: ContextHandle,
        domain: XrcDomainHandle,
    ) -> Result<(PairHandle, u32), Errno>;
    /// [`ibv_open_qp(3)`](https://man7.org/linux/man-pages/man3/ibv_open_qp.3.html).
    unsafe fn open_xrc_receiver(
        &self,
        context: ContextHandle,
        domain: XrcDomainHandle,
        number: u32,
    ) -> Result<PairHandle, Errno>;
}
