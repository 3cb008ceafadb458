//! The calls for shared receive queues.

use rustix::io::Errno;

use super::{DomainHandle, SharedReceiveHandle};

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

/// The part of [`Provider`](super::Provider) that is about shared receive queues.
///
/// # Safety
/// The contract of [`Provider`](super::Provider).
pub trait SharedReceiveProvider {
    /// `ibv_create_srq`; returns the numbers of requests and entries that the queue has.
    unsafe fn create_shared_receive(
        &self,
        domain: DomainHandle,
        requests: u32,
        entries: u32,
        tag: u64,
    ) -> Result<(SharedReceiveHandle, u32, u32), Errno>;
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
