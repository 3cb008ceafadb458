//! The calls for shared receive queues.

use rustix::io::Errno;

use super::{CompletionHandle, DomainHandle, SharedReceiveHandle, XrcDomainHandle};

/// `ibv_srq_attr`: a shared receive queue as its device describes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SharedReceiveAttributes {
    /// Requests that it holds.
    pub requests: u32,
    /// Scatter entries of one request.
    pub entries: u32,
    /// The number of receives below which the event is raised; 0 when it is not armed.
    pub limit: u32,
}

/// The description of a shared receive queue.
#[derive(Clone, Copy, Debug)]
pub struct SharedReceiveInit {
    /// Receives wanted.
    pub requests: u32,
    /// Scatter entries of a receive.
    pub entries: u32,
    /// The tag by which events name the queue.
    pub tag: u64,
    /// Of a queue for extended connections: their domain, and the queue for completions of receives.
    pub xrc: Option<(XrcDomainHandle, CompletionHandle)>,
}

/// A new shared receive queue, with the sizes that it got.
#[derive(Clone, Copy, Debug)]
pub struct CreatedSharedReceive {
    /// The queue.
    pub handle: SharedReceiveHandle,
    /// The number by which senders of extended connections name it; 0 of another queue.
    pub number: u32,
    /// Receives that it holds.
    pub requests: u32,
    /// Scatter entries of a receive.
    pub entries: u32,
}

/// The part of [`Provider`](super::Provider) that is about shared receive queues.
///
/// # Safety
/// The contract of [`Provider`](super::Provider).
pub trait SharedReceiveProvider {
    /// `ibv_create_srq`; for extended connections
    /// [`ibv_create_srq_ex(3)`](https://man7.org/linux/man-pages/man3/ibv_create_srq_ex.3.html) of the
    /// type `IBV_SRQT_XRC`, and `ibv_get_srq_num`.
    unsafe fn create_shared_receive(
        &self,
        domain: DomainHandle,
        init: &SharedReceiveInit,
    ) -> Result<CreatedSharedReceive, Errno>;
    /// `ibv_modify_srq` with `IBV_SRQ_LIMIT`.
    unsafe fn arm_shared_receive_limit(
        &self,
        queue: SharedReceiveHandle,
        limit: u32,
    ) -> Result<(), Errno>;
    /// [`ibv_query_srq(3)`](https://man7.org/linux/man-pages/man3/ibv_query_srq.3.html).
    unsafe fn query_shared_receive(
        &self,
        queue: SharedReceiveHandle,
    ) -> Result<SharedReceiveAttributes, Errno>;
}
