//! The choice of the fields that an extended completion queue tells.
#![forbid(unsafe_code)]

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
    #[cfg(feature = "all")]
    pub(crate) fn name_senders(self) -> bool {
        self.source_queue_pair && self.source_lid && self.service_level && self.path_bits
    }
}
