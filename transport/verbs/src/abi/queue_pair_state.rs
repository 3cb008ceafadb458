//! The states of a reliable queue pair, and the attributes that each change requires.
//!
//! The table is that of
//! [`ibv_modify_qp(3)`](https://man7.org/linux/man-pages/man3/ibv_modify_qp.3.html) for
//! `IBV_QPT_RC`, and that of the kernel (`qp_state_table`,
//! [drivers/infiniband/core/verbs.c](https://github.com/torvalds/linux/blob/master/drivers/infiniband/core/verbs.c)).
//! A change that is not in the table, or whose attributes are not exactly right, is refused before it
//! reaches the device: a device answers `EINVAL` to all of these, and does not say which attribute
//! is wrong.
#![forbid(unsafe_code)]

use std::fmt;

use super::attribute_mask::AttributeMask;

/// `enum ibv_qp_state`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueuePairState {
    /// The queue pair was made, and nothing else.
    Reset,
    /// The queue pair takes receives; nothing arrives.
    Init,
    /// The queue pair receives, and answers the peer.
    ReadyToReceive,
    /// The queue pair receives and sends.
    ReadyToSend,
    /// The send queue takes requests and begins none; those that were begun are finished.
    SendQueueDrained,
    /// A send failed, and the queue pair still receives. Reliable connections are never in it.
    SendQueueError,
    /// Dead: every request comes back flushed.
    Error,
    /// A number that this version does not know.
    Unknown(u32),
}

impl QueuePairState {
    /// Returns the value of the C enumeration.
    #[must_use]
    pub fn to_raw(self) -> u32 {
        match self {
            Self::Reset => 0,
            Self::Init => 1,
            Self::ReadyToReceive => 2,
            Self::ReadyToSend => 3,
            Self::SendQueueDrained => 4,
            Self::SendQueueError => 5,
            Self::Error => 6,
            Self::Unknown(raw) => raw,
        }
    }

    /// Translates the C enumeration.
    #[must_use]
    pub fn from_raw(raw: u32) -> Self {
        match raw {
            0 => Self::Reset,
            1 => Self::Init,
            2 => Self::ReadyToReceive,
            3 => Self::ReadyToSend,
            4 => Self::SendQueueDrained,
            5 => Self::SendQueueError,
            6 => Self::Error,
            other => Self::Unknown(other),
        }
    }
}

impl fmt::Display for QueuePairState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Reset => "RESET",
            Self::Init => "INIT",
            Self::ReadyToReceive => "RTR",
            Self::ReadyToSend => "RTS",
            Self::SendQueueDrained => "SQD",
            Self::SendQueueError => "SQE",
            Self::Error => "ERR",
            Self::Unknown(raw) => return write!(f, "unknown state {raw}"),
        })
    }
}

/// A legal change of state
/// ([`ibv_modify_qp(3)`](https://man7.org/linux/man-pages/man3/ibv_modify_qp.3.html) lists its
/// attributes).
#[derive(Clone, Copy, Debug)]
pub struct Transition {
    /// The state before it.
    pub from: QueuePairState,
    /// The state after it.
    pub to: QueuePairState,
    /// Attributes that the change must have.
    pub required: AttributeMask,
    /// Attributes that the change may have.
    pub optional: AttributeMask,
}

/// The attributes of a connection that may change while it sends.
const WHILE_SENDING: AttributeMask = AttributeMask::CURRENT_STATE
    .and(AttributeMask::ACCESS_FLAGS)
    .and(AttributeMask::MIN_RNR_TIMER)
    .and(AttributeMask::ALTERNATE_PATH)
    .and(AttributeMask::MIGRATION);

/// Every legal change, but those to RESET and to ERR, which any state allows and which take no
/// attributes.
pub const TRANSITIONS: [Transition; 8] = [
    Transition {
        from: QueuePairState::Reset,
        to: QueuePairState::Init,
        required: AttributeMask::PKEY_INDEX
            .and(AttributeMask::PORT)
            .and(AttributeMask::ACCESS_FLAGS),
        optional: AttributeMask::NONE,
    },
    Transition {
        from: QueuePairState::Init,
        to: QueuePairState::ReadyToReceive,
        required: AttributeMask::ADDRESS
            .and(AttributeMask::PATH_MTU)
            .and(AttributeMask::DESTINATION)
            .and(AttributeMask::RECEIVE_SEQUENCE)
            .and(AttributeMask::RESPONDER_RESOURCES)
            .and(AttributeMask::MIN_RNR_TIMER),
        optional: AttributeMask::ACCESS_FLAGS
            .and(AttributeMask::PKEY_INDEX)
            .and(AttributeMask::ALTERNATE_PATH),
    },
    Transition {
        from: QueuePairState::ReadyToReceive,
        to: QueuePairState::ReadyToSend,
        required: AttributeMask::SEND_SEQUENCE
            .and(AttributeMask::TIMEOUT)
            .and(AttributeMask::RETRY_COUNT)
            .and(AttributeMask::RNR_RETRY)
            .and(AttributeMask::INITIATOR_DEPTH),
        optional: WHILE_SENDING,
    },
    Transition {
        from: QueuePairState::Init,
        to: QueuePairState::Init,
        required: AttributeMask::NONE,
        optional: AttributeMask::PKEY_INDEX
            .and(AttributeMask::PORT)
            .and(AttributeMask::ACCESS_FLAGS),
    },
    Transition {
        from: QueuePairState::ReadyToSend,
        to: QueuePairState::ReadyToSend,
        required: AttributeMask::NONE,
        optional: WHILE_SENDING,
    },
    Transition {
        from: QueuePairState::ReadyToSend,
        to: QueuePairState::SendQueueDrained,
        required: AttributeMask::NONE,
        optional: AttributeMask::DRAIN_EVENT,
    },
    Transition {
        from: QueuePairState::SendQueueDrained,
        to: QueuePairState::ReadyToSend,
        required: AttributeMask::NONE,
        optional: WHILE_SENDING,
    },
    Transition {
        from: QueuePairState::SendQueueDrained,
        to: QueuePairState::SendQueueDrained,
        required: AttributeMask::NONE,
        optional: AttributeMask::PORT
            .and(AttributeMask::ADDRESS)
            .and(AttributeMask::TIMEOUT)
            .and(AttributeMask::RETRY_COUNT)
            .and(AttributeMask::RNR_RETRY)
            .and(AttributeMask::INITIATOR_DEPTH)
            .and(AttributeMask::RESPONDER_RESOURCES)
            .and(AttributeMask::ALTERNATE_PATH)
            .and(AttributeMask::ACCESS_FLAGS)
            .and(AttributeMask::PKEY_INDEX)
            .and(AttributeMask::MIN_RNR_TIMER)
            .and(AttributeMask::MIGRATION),
    },
];

/// Checks a change of state against the table.
///
/// # Errors
/// [`IllegalTransition`], with the attributes that are missing and those that do not belong there.
pub fn check_transition(
    from: QueuePairState,
    to: QueuePairState,
    given: AttributeMask,
) -> Result<(), IllegalTransition> {
    check_in(&TRANSITIONS, from, to, given)
}

/// Checks a change of state against a table.
pub(crate) fn check_in(
    table: &[Transition],
    from: QueuePairState,
    to: QueuePairState,
    given: AttributeMask,
) -> Result<(), IllegalTransition> {
    let given = given.without(AttributeMask::STATE);
    let (legal, required, optional) = match to {
        QueuePairState::Reset | QueuePairState::Error => {
            (true, AttributeMask::NONE, AttributeMask::NONE)
        }
        _ => table
            .iter()
            .find(|row| row.from == from && row.to == to)
            .map_or((false, AttributeMask::NONE, AttributeMask::NONE), |row| {
                (true, row.required, row.optional)
            }),
    };
    let refused = IllegalTransition {
        from,
        to,
        in_table: legal,
        missing: required.without(given),
        unexpected: given.without(required | optional),
    };
    if legal && refused.missing.is_empty() && refused.unexpected.is_empty() {
        Ok(())
    } else {
        Err(refused)
    }
}

/// A change of state that no device would take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IllegalTransition {
    /// The state before the change.
    pub from: QueuePairState,
    /// The state after the change.
    pub to: QueuePairState,
    /// Set if the table has a change between these two states.
    pub in_table: bool,
    /// Required attributes that the change lacks.
    pub missing: AttributeMask,
    /// Attributes that the change has and must not have.
    pub unexpected: AttributeMask,
}

impl fmt::Display for IllegalTransition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} -> {} ", self.from, self.to)?;
        if !self.in_table {
            return f.write_str("is no legal change of state");
        }
        write!(
            f,
            "lacks {}, and {} does not belong there",
            self.missing, self.unexpected
        )
    }
}

impl std::error::Error for IllegalTransition {}

#[cfg(test)]
mod tests {
    use std::fmt::Write as _;

    use super::*;
    use QueuePairState::{Error, Init, ReadyToReceive, ReadyToSend, Reset, SendQueueDrained};

    const STATES: [QueuePairState; 6] = [
        Reset,
        Init,
        ReadyToReceive,
        ReadyToSend,
        SendQueueDrained,
        Error,
    ];

    /// Prints every pair of states with the attributes that it requires; the diff shows a change of
    /// the machine.
    #[test]
    fn the_whole_table() {
        let mut text = String::new();
        for from in STATES {
            for to in STATES {
                match check_transition(from, to, AttributeMask::NONE) {
                    Ok(()) => writeln!(text, "{from} -> {to}: free").unwrap(),
                    Err(refused) if refused.in_table => {
                        writeln!(text, "{from} -> {to}: {}", refused.missing).unwrap();
                    }
                    Err(_) => {}
                }
            }
        }
        assert_eq!(
            text,
            "RESET -> RESET: free\n\
             RESET -> INIT: ACCESS_FLAGS|PKEY_INDEX|PORT\n\
             RESET -> ERR: free\n\
             INIT -> RESET: free\n\
             INIT -> INIT: free\n\
             INIT -> RTR: AV|PATH_MTU|RQ_PSN|MIN_RNR_TIMER|MAX_DEST_RD_ATOMIC|DEST_QPN\n\
             INIT -> ERR: free\n\
             RTR -> RESET: free\n\
             RTR -> RTS: TIMEOUT|RETRY_CNT|RNR_RETRY|MAX_QP_RD_ATOMIC|SQ_PSN\n\
             RTR -> ERR: free\n\
             RTS -> RESET: free\n\
             RTS -> RTS: free\n\
             RTS -> SQD: free\n\
             RTS -> ERR: free\n\
             SQD -> RESET: free\n\
             SQD -> RTS: free\n\
             SQD -> SQD: free\n\
             SQD -> ERR: free\n\
             ERR -> RESET: free\n\
             ERR -> ERR: free\n"
        );
    }

    #[test]
    fn each_required_attribute_is_missed_and_each_foreign_one_refused() {
        for row in TRANSITIONS {
            assert_eq!(check_transition(row.from, row.to, row.required), Ok(()));
            assert_eq!(
                check_transition(row.from, row.to, row.required | row.optional),
                Ok(())
            );
            for (bit, name) in AttributeMask::NAMES {
                if row.required.contains(bit) {
                    let refused = check_transition(row.from, row.to, row.required.without(bit));
                    assert_eq!(refused.unwrap_err().missing, bit, "{name}");
                } else if bit != AttributeMask::STATE && !row.optional.contains(bit) {
                    let refused = check_transition(row.from, row.to, row.required | bit);
                    assert_eq!(refused.unwrap_err().unexpected, bit, "{name}");
                }
            }
        }
    }

    #[test]
    fn every_state_keeps_its_number() {
        for raw in 0..9 {
            let state = QueuePairState::from_raw(raw);
            assert_eq!(state.to_raw(), raw);
            assert_eq!(matches!(state, QueuePairState::Unknown(_)), raw > 6);
        }
        assert_eq!(QueuePairState::from_raw(9).to_string(), "unknown state 9");
    }

    #[test]
    fn a_refusal_says_what_is_wrong() {
        let given = AttributeMask::PORT | AttributeMask::TIMEOUT;
        assert_eq!(
            check_transition(Reset, Init, given)
                .unwrap_err()
                .to_string(),
            "RESET -> INIT lacks ACCESS_FLAGS|PKEY_INDEX, and TIMEOUT does not belong there"
        );
        assert_eq!(
            check_transition(Reset, ReadyToSend, given)
                .unwrap_err()
                .to_string(),
            "RESET -> RTS is no legal change of state"
        );
    }
}
