//! The calls for shared receive queues.

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
    /// The protection domain.
    pub domain: DomainHandle,
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
