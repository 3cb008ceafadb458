//! The fields of a completion beyond those that every queue tells.
//!
//! A device tells only the fields that an extended queue was made with
//! ([`ibv_create_cq_ex(3)`](https://man7.org/linux/man-pages/man3/ibv_create_cq_ex.3.html)), so a
//! caller names them in [`CompletionFields`]. [`CompletionQueue::poll`](crate::CompletionQueue::poll)
//! reads none of them; [`CompletionQueue::poll_details`](crate::CompletionQueue::poll_details)
//! reads those that the queue was made with.
#![forbid(unsafe_code)]

use super::work_completion::WorkCompletion;

/// The fields that an extended completion queue tells beyond the usual ones. Default: none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CompletionFields {
    /// The sender's queue pair (`IBV_WC_EX_WITH_SRC_QP`).
    pub source_queue_pair: bool,
    /// The sender's LID (`IBV_WC_EX_WITH_SLID`).
    pub source_lid: bool,
    /// The service level (`IBV_WC_EX_WITH_SL`).
    pub service_level: bool,
    /// The path bits of the port's LID (`IBV_WC_EX_WITH_DLID_PATH_BITS`).
    pub path_bits: bool,
    /// The customer's VLAN (`IBV_WC_EX_WITH_CVLAN`).
    pub vlan: bool,
    /// The tag of the flow rule (`IBV_WC_EX_WITH_FLOW_TAG`).
    pub flow_tag: bool,
    /// The time by the system's clock (`IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK`).
    pub wall_clock: bool,
}

impl CompletionFields {
    /// Every field.
    pub const ALL: Self = Self {
        source_queue_pair: true,
        source_lid: true,
        service_level: true,
        path_bits: true,
        vlan: true,
        flow_tag: true,
        wall_clock: true,
    };

    /// Returns whether completions of datagrams tell where the datagram came from.
    pub(crate) fn name_senders(self) -> bool {
        self.source_queue_pair && self.source_lid && self.service_level && self.path_bits
    }
}

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
