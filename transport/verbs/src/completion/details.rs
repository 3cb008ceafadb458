//! The fields of a completion beyond those that every queue tells.
//!
//! A device tells only the fields that an extended queue was made with
//! ([`ibv_create_cq_ex(3)`](https://man7.org/linux/man-pages/man3/ibv_create_cq_ex.3.html)), so a
//! caller names them in [`CompletionFields`](crate::CompletionFields).
//! [`CompletionQueue::poll`](crate::CompletionQueue::poll) reads none of them;
//! [`CompletionQueue::poll_details`](crate::CompletionQueue::poll_details) reads those that the queue
//! was made with.
#![forbid(unsafe_code)]

use super::work_completion::WorkCompletion;

/// A completion with the fields that its queue was made with.
///
/// A field is `None` if the queue was made without it or the request failed. All but
/// `wall_clock` are also `None` for requests that are no receives.
#[derive(Clone, Copy, Debug, Default)]
pub struct CompletionDetails {
    /// The usual fields.
    pub completion: WorkCompletion,
    /// The sender's queue pair; devices tell it for datagrams.
    pub source_queue_pair: Option<u32>,
    /// The sender's LID; devices tell it for datagrams on InfiniBand.
    pub source_lid: Option<u32>,
    /// The service level of the message; devices tell it for datagrams.
    pub service_level: Option<u8>,
    /// The lower bits of the LID that the message was sent to; devices tell them for datagrams on
    /// InfiniBand.
    pub path_bits: Option<u8>,
    /// The VLAN tag that the message came with.
    pub vlan: Option<u16>,
    /// The tag of the flow rule that led the message here; 0 if no rule has a tag.
    pub flow_tag: Option<u32>,
    /// The time of the completion in nanoseconds since 1970, as the library converts it.
    pub wall_clock: Option<u64>,
}
