//! The kinds of queue pairs, and the changes of state that each of them takes.
//!
//! The changes are those of
//! [`ibv_modify_qp(3)`](https://man7.org/linux/man-pages/man3/ibv_modify_qp.3.html), and for XRC
//! those of the kernel (`qp_state_table`,
//! [drivers/infiniband/core/verbs.c](https://github.com/torvalds/linux/blob/master/drivers/infiniband/core/verbs.c)).
//! An attribute that a device may take and need not is left out.
#![forbid(unsafe_code)]

use std::fmt;

use super::{attribute_mask::AttributeMask, wr_opcode};
use crate::QueuePairState;

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

    /// Returns the attributes that a change of state takes, beside the state; `None` for a change that
    /// is not made. A device answers `EINVAL` to one attribute more or less, and does not say which.
    #[must_use]
    pub fn attributes_of(self, from: QueuePairState, to: QueuePairState) -> Option<AttributeMask> {
        use {AttributeMask as Set, QueuePairState as State};
        let responds = matches!(self, Self::Reliable | Self::XrcReceive);
        let requests = matches!(self, Self::Reliable | Self::XrcSend);
        let set_if = |is_taken, set| if is_taken { set } else { Set::default() };
        Some(match (from, to) {
            (_, State::Reset | State::Error) => Set::default(),
            (State::Reset, State::Init) => {
                let rights = match self {
                    Self::Datagram => Set::Q_KEY,
                    _ => Set::ACCESS_FLAGS,
                };
                Set::PKEY_INDEX | Set::PORT | rights
            }
            (State::Init, State::ReadyToReceive) if self == Self::Datagram => Set::default(),
            (State::Init, State::ReadyToReceive) => {
                let peer = Set::ADDRESS | Set::PATH_MTU | Set::DESTINATION | Set::RECEIVE_SEQUENCE;
                peer | set_if(responds, Set::RESPONDER_RESOURCES | Set::MIN_RNR_TIMER)
            }
            (State::ReadyToReceive, State::ReadyToSend) => {
                let tries = Set::RETRY_COUNT | Set::RNR_RETRY | Set::INITIATOR_DEPTH;
                let acknowledged = set_if(responds || requests, Set::TIMEOUT);
                Set::SEND_SEQUENCE | acknowledged | set_if(requests, tries)
            }
            (State::SendQueueError, State::ReadyToSend) if !(responds || requests) => {
                Set::default()
            }
            _ => return None,
        })
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

#[cfg(test)]
mod tests {
    use super::*;
    use QueuePairState::{Init, ReadyToReceive, ReadyToSend, Reset, SendQueueError};

    /// Prints what each kind requires on its way up; the diff shows a change of the machine.
    #[test]
    fn modify_qp_of_each_kind_has_the_attributes_of_the_manual() {
        let kinds = [
            QueuePairKind::Reliable,
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
                let taken = kind.attributes_of(from, to).unwrap();
                text += &format!("{kind:?} {to}: {taken}\n");
            }
            assert_eq!(kind.attributes_of(Reset, ReadyToSend), None);
            let recovers = kind.attributes_of(SendQueueError, ReadyToSend).is_some();
            let is_acknowledged = kind.attributes_of(ReadyToReceive, ReadyToSend).unwrap();
            assert_eq!(recovers, !is_acknowledged.contains(AttributeMask::TIMEOUT));
        }
        assert_eq!(
            text,
            "Reliable INIT: ACCESS_FLAGS|PKEY_INDEX|PORT\n\
             Reliable RTR: AV|PATH_MTU|RQ_PSN|MIN_RNR_TIMER|MAX_DEST_RD_ATOMIC|DEST_QPN\n\
             Reliable RTS: TIMEOUT|RETRY_CNT|RNR_RETRY|MAX_QP_RD_ATOMIC|SQ_PSN\n\
             Unreliable INIT: ACCESS_FLAGS|PKEY_INDEX|PORT\n\
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
