//! The kinds of queue pairs, and the changes of state that each of them takes.
//!
//! The tables are those of
//! [`ibv_modify_qp(3)`](https://man7.org/linux/man-pages/man3/ibv_modify_qp.3.html), and for XRC
//! that of the kernel (`qp_state_table`,
//! [drivers/infiniband/core/verbs.c](https://github.com/torvalds/linux/blob/master/drivers/infiniband/core/verbs.c)).
//! The table of reliable connections is [`TRANSITIONS`](super::queue_pair_state::TRANSITIONS).
#![forbid(unsafe_code)]

use std::fmt;

use super::{
    attribute_mask::AttributeMask,
    queue_pair_state::{IllegalTransition, QueuePairState, Transition, check_in, check_transition},
    wr_opcode,
};

/// `enum ibv_qp_type`, as far as it is used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum QueuePairKind {
    /// A reliable connection.
    #[default]
    Reliable,
    /// An unreliable connection.
    Unreliable,
    /// Unreliable datagrams.
    Datagram,
    /// The sending end of an extended reliable connection.
    XrcSend,
    /// The receiving end of an extended reliable connection.
    XrcReceive,
}

impl QueuePairKind {
    /// Returns the value of the C enumeration.
    #[must_use]
    pub fn to_raw(self) -> u32 {
        match self {
            Self::Reliable => 2,
            Self::Unreliable => 3,
            Self::Datagram => 4,
            Self::XrcSend => 9,
            Self::XrcReceive => 10,
        }
    }

    /// Checks a change of state against the table of this kind.
    ///
    /// # Errors
    /// [`IllegalTransition`], with the attributes that are missing and those that do not belong
    /// there.
    pub fn check_transition(
        self,
        from: QueuePairState,
        to: QueuePairState,
        given: AttributeMask,
    ) -> Result<(), IllegalTransition> {
        match self {
            Self::Reliable => check_transition(from, to, given),
            Self::Unreliable => check_in(&UNRELIABLE, from, to, given),
            Self::Datagram => check_in(&DATAGRAM, from, to, given),
            Self::XrcSend => check_in(&XRC_SEND, from, to, given),
            Self::XrcReceive => check_in(&XRC_RECEIVE, from, to, given),
        }
    }

    /// Returns whether the kind does an operation
    /// ([`ibv_post_send(3)`](https://man7.org/linux/man-pages/man3/ibv_post_send.3.html) has the
    /// table).
    #[must_use]
    pub fn does(self, opcode: u32) -> bool {
        let sends = matches!(opcode, wr_opcode::SEND | wr_opcode::SEND_WITH_IMM);
        let writes = matches!(
            opcode,
            wr_opcode::RDMA_WRITE | wr_opcode::RDMA_WRITE_WITH_IMM
        );
        match self {
            Self::Reliable | Self::XrcSend => true,
            Self::Unreliable => sends || writes,
            Self::Datagram => sends,
            Self::XrcReceive => false,
        }
    }

    /// Returns those attributes of a reliable connection's change that this kind has too.
    pub(crate) fn attributes_of(self, reliable: AttributeMask) -> AttributeMask {
        let responds = AttributeMask::RESPONDER_RESOURCES | AttributeMask::MIN_RNR_TIMER;
        let requests =
            AttributeMask::RETRY_COUNT | AttributeMask::RNR_RETRY | AttributeMask::INITIATOR_DEPTH;
        match self {
            Self::Reliable => reliable,
            Self::Unreliable | Self::Datagram => {
                reliable.without(responds | requests | AttributeMask::TIMEOUT)
            }
            Self::XrcSend => reliable.without(responds),
            Self::XrcReceive => reliable.without(requests),
        }
    }
}

impl fmt::Display for QueuePairKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Reliable => "reliable connection (RC)",
            Self::Unreliable => "unreliable connection (UC)",
            Self::Datagram => "unreliable datagram (UD)",
            Self::XrcSend => "sending end of an extended reliable connection (XRC_SEND)",
            Self::XrcReceive => "receiving end of an extended reliable connection (XRC_RECV)",
        })
    }
}

const CONNECTED_INIT: AttributeMask = AttributeMask::PKEY_INDEX
    .and(AttributeMask::PORT)
    .and(AttributeMask::ACCESS_FLAGS);

const CONNECTED_RTR: AttributeMask = AttributeMask::ADDRESS
    .and(AttributeMask::PATH_MTU)
    .and(AttributeMask::DESTINATION)
    .and(AttributeMask::RECEIVE_SEQUENCE);

/// Returns the three changes from RESET to RTS, and the one back from SQE. All but the first may have
/// the `optional` attributes. Extended connections are never in SQE.
const fn way_up(
    init: AttributeMask,
    receive: AttributeMask,
    send: AttributeMask,
    optional: AttributeMask,
) -> [Transition; 4] {
    [
        Transition {
            from: QueuePairState::Reset,
            to: QueuePairState::Init,
            required: init,
            optional: AttributeMask::NONE,
        },
        Transition {
            from: QueuePairState::Init,
            to: QueuePairState::ReadyToReceive,
            required: receive,
            optional,
        },
        Transition {
            from: QueuePairState::ReadyToReceive,
            to: QueuePairState::ReadyToSend,
            required: send,
            optional,
        },
        Transition {
            from: QueuePairState::SendQueueError,
            to: QueuePairState::ReadyToSend,
            required: AttributeMask::NONE,
            optional,
        },
    ]
}

const UNRELIABLE: [Transition; 4] = way_up(
    CONNECTED_INIT,
    CONNECTED_RTR,
    AttributeMask::SEND_SEQUENCE,
    AttributeMask::ACCESS_FLAGS,
);

const DATAGRAM: [Transition; 4] = way_up(
    AttributeMask::PKEY_INDEX
        .and(AttributeMask::PORT)
        .and(AttributeMask::Q_KEY),
    AttributeMask::NONE,
    AttributeMask::SEND_SEQUENCE,
    AttributeMask::Q_KEY,
);

const XRC_SEND: [Transition; 4] = way_up(
    CONNECTED_INIT,
    CONNECTED_RTR,
    AttributeMask::SEND_SEQUENCE
        .and(AttributeMask::TIMEOUT)
        .and(AttributeMask::RETRY_COUNT)
        .and(AttributeMask::RNR_RETRY)
        .and(AttributeMask::INITIATOR_DEPTH),
    AttributeMask::ACCESS_FLAGS,
);

const XRC_RECEIVE: [Transition; 4] = way_up(
    CONNECTED_INIT,
    CONNECTED_RTR
        .and(AttributeMask::RESPONDER_RESOURCES)
        .and(AttributeMask::MIN_RNR_TIMER),
    AttributeMask::SEND_SEQUENCE.and(AttributeMask::TIMEOUT),
    AttributeMask::ACCESS_FLAGS,
);

#[cfg(test)]
mod tests {
    use super::*;
    use QueuePairState::{Init, ReadyToReceive, ReadyToSend, Reset};

    /// Prints what each kind requires on its way up; the diff shows a change of the machine.
    #[test]
    fn modify_qp_of_each_kind_has_the_attributes_of_the_manual() {
        let kinds = [
            QueuePairKind::Unreliable,
            QueuePairKind::Datagram,
            QueuePairKind::XrcSend,
            QueuePairKind::XrcReceive,
        ];
        let mut text = String::new();
        for kind in kinds {
            for (from, to) in [
                (Reset, Init),
                (Init, ReadyToReceive),
                (ReadyToReceive, ReadyToSend),
            ] {
                let none = AttributeMask::default();
                let missing = match kind.check_transition(from, to, none) {
                    Ok(()) => none,
                    Err(refused) => refused.missing,
                };
                text += &format!("{kind:?} {to}: {missing}\n");
            }
            let skipped = kind.check_transition(Reset, ReadyToSend, AttributeMask::default());
            assert!(!skipped.unwrap_err().in_table);
        }
        assert_eq!(
            text,
            "Unreliable INIT: ACCESS_FLAGS|PKEY_INDEX|PORT\n\
             Unreliable RTR: AV|PATH_MTU|RQ_PSN|DEST_QPN\n\
             Unreliable RTS: SQ_PSN\n\
             Datagram INIT: PKEY_INDEX|PORT|QKEY\n\
             Datagram RTR: none\n\
             Datagram RTS: SQ_PSN\n\
             XrcSend INIT: ACCESS_FLAGS|PKEY_INDEX|PORT\n\
             XrcSend RTR: AV|PATH_MTU|RQ_PSN|DEST_QPN\n\
             XrcSend RTS: TIMEOUT|RETRY_CNT|RNR_RETRY|MAX_QP_RD_ATOMIC|SQ_PSN\n\
             XrcReceive INIT: ACCESS_FLAGS|PKEY_INDEX|PORT\n\
             XrcReceive RTR: AV|PATH_MTU|RQ_PSN|MIN_RNR_TIMER|MAX_DEST_RD_ATOMIC|DEST_QPN\n\
             XrcReceive RTS: TIMEOUT|SQ_PSN\n"
        );
    }
}
