//! The calls for extended reliable connections (XRC).

use std::os::fd::RawFd;

use rustix::io::Errno;

use super::{
    CompletionHandle, ContextHandle, DomainHandle, PairHandle, SharedReceiveHandle, XrcDomainHandle,
};

/// The description of a shared receive queue for extended connections.
#[derive(Clone, Copy, Debug)]
pub struct XrcReceivesInit {
    /// The domain of the connections that it serves.
    pub xrc_domain: XrcDomainHandle,
    /// The queue for completions of its receives.
    pub completions: CompletionHandle,
    /// Receives wanted.
    pub requests: u32,
    /// Scatter entries of a receive.
    pub entries: u32,
    /// The tag by which events name the queue.
    pub tag: u64,
}

/// A shared receive queue for extended connections.
#[derive(Clone, Copy, Debug)]
pub struct CreatedXrcReceives {
    /// The queue.
    pub handle: SharedReceiveHandle,
    /// The number by which senders name it.
    pub number: u32,
    /// Receives that it holds.
    pub requests: u32,
    /// Scatter entries of a receive.
    pub entries: u32,
}

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
    /// [`ibv_create_srq_ex(3)`](https://man7.org/linux/man-pages/man3/ibv_create_srq_ex.3.html) of the
    /// type `IBV_SRQT_XRC`, and `ibv_get_srq_num`.
    unsafe fn create_xrc_receives(
        &self,
        domain: DomainHandle,
        init: &XrcReceivesInit,
    ) -> Result<CreatedXrcReceives, Errno>;
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
