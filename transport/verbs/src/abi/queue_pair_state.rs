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

use std::fmt::{self, Write as _};
use std::ops::BitOr;

use super::{gid::Gid, port::Mtu};

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

/// Bits of `enum ibv_qp_attr_mask`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AttributeMask(u32);

impl AttributeMask {
    /// The state to go to: in every change.
    pub const STATE: Self = Self(1 << 0);
    /// The state that the queue pair is taken to be in.
    pub const CURRENT_STATE: Self = Self(1 << 1);
    /// An event is wanted when the send queue is drained.
    pub const DRAIN_EVENT: Self = Self(1 << 2);
    /// The remote operations that are let in.
    pub const ACCESS_FLAGS: Self = Self(1 << 3);
    /// The index of the partition's key.
    pub const PKEY_INDEX: Self = Self(1 << 4);
    /// The number of the port.
    pub const PORT: Self = Self(1 << 5);
    /// The key that datagrams for the queue pair have to carry.
    pub const Q_KEY: Self = Self(1 << 6);
    /// The way to the peer.
    pub const ADDRESS: Self = Self(1 << 7);
    /// Payload per packet.
    pub const PATH_MTU: Self = Self(1 << 8);
    /// The time to wait for an acknowledgement.
    pub const TIMEOUT: Self = Self(1 << 9);
    /// The number of retries.
    pub const RETRY_COUNT: Self = Self(1 << 10);
    /// The number of retries when the peer has no receive.
    pub const RNR_RETRY: Self = Self(1 << 11);
    /// The peer's first sequence number.
    pub const RECEIVE_SEQUENCE: Self = Self(1 << 12);
    /// Reads and atomics of this end that may be outstanding.
    pub const INITIATOR_DEPTH: Self = Self(1 << 13);
    /// Another way to the peer.
    pub const ALTERNATE_PATH: Self = Self(1 << 14);
    /// The time that the peer is asked to wait when we have no receive.
    pub const MIN_RNR_TIMER: Self = Self(1 << 15);
    /// Our first sequence number.
    pub const SEND_SEQUENCE: Self = Self(1 << 16);
    /// Reads and atomics of the peer that we serve at a time.
    pub const RESPONDER_RESOURCES: Self = Self(1 << 17);
    /// The state of the migration to the alternate path.
    pub const MIGRATION: Self = Self(1 << 18);
    /// The peer's queue pair.
    pub const DESTINATION: Self = Self(1 << 20);

    /// All of them.
    #[cfg(feature = "libibverbs")]
    pub(crate) const ALL: Self = {
        let (mut all, mut next) = (Self::NONE, 0);
        while next < Self::NAMES.len() {
            all = all.and(Self::NAMES[next].0);
            next += 1;
        }
        all
    };
    pub(crate) const NONE: Self = Self(0);

    const NAMES: [(Self, &'static str); 20] = [
        (Self::STATE, "STATE"),
        (Self::CURRENT_STATE, "CUR_STATE"),
        (Self::DRAIN_EVENT, "EN_SQD_ASYNC_NOTIFY"),
        (Self::ACCESS_FLAGS, "ACCESS_FLAGS"),
        (Self::PKEY_INDEX, "PKEY_INDEX"),
        (Self::PORT, "PORT"),
        (Self::Q_KEY, "QKEY"),
        (Self::ADDRESS, "AV"),
        (Self::PATH_MTU, "PATH_MTU"),
        (Self::TIMEOUT, "TIMEOUT"),
        (Self::RETRY_COUNT, "RETRY_CNT"),
        (Self::RNR_RETRY, "RNR_RETRY"),
        (Self::RECEIVE_SEQUENCE, "RQ_PSN"),
        (Self::INITIATOR_DEPTH, "MAX_QP_RD_ATOMIC"),
        (Self::ALTERNATE_PATH, "ALT_PATH"),
        (Self::MIN_RNR_TIMER, "MIN_RNR_TIMER"),
        (Self::SEND_SEQUENCE, "SQ_PSN"),
        (Self::RESPONDER_RESOURCES, "MAX_DEST_RD_ATOMIC"),
        (Self::MIGRATION, "PATH_MIG_STATE"),
        (Self::DESTINATION, "DEST_QPN"),
    ];

    /// The bits, as `ibv_modify_qp` takes them.
    #[must_use]
    pub fn bits(self) -> u32 {
        self.0
    }

    /// Returns whether the set is empty.
    #[must_use]
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Returns whether the set contains all of `other`.
    #[must_use]
    pub fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// Returns the attributes that are in this set and not in `other`.
    #[must_use]
    pub const fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    pub(crate) const fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

impl BitOr for AttributeMask {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        self.and(other)
    }
}

impl fmt::Display for AttributeMask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut first = true;
        for (bit, name) in Self::NAMES {
            if self.contains(bit) {
                if !first {
                    f.write_char('|')?;
                }
                first = false;
                f.write_str(name)?;
            }
        }
        if first {
            f.write_str("none")?;
        }
        Ok(())
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

/// The way to a peer: `ibv_ah_attr`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AddressVector {
    /// The peer's local identifier; 0 on RoCE.
    pub lid: u16,
    /// The global route; always on RoCE.
    pub route: Option<GlobalRoute>,
    /// Service level, 0 to 15.
    pub service_level: u8,
    /// The lowest bits of the LID of our port that packets come from, where it has several.
    pub path_bits: u8,
    /// The number of our port.
    pub port: u8,
}

/// `ibv_global_route`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GlobalRoute {
    /// The peer's GID.
    pub destination: Gid,
    /// Our GID's place in the table of our port.
    pub source_index: u8,
    /// The number of routers that a packet may pass.
    pub hop_limit: u8,
    /// Traffic class: on RoCE v2 the DSCP, two bits up.
    pub traffic_class: u8,
    /// The flow that packets are of, 20 bits; 0 leaves it to the device.
    pub flow_label: u32,
}

/// The fields of `ibv_qp_attr` that are used. Fields that are not in the mask are not looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueuePairAttributes {
    /// The state to go to.
    pub state: QueuePairState,
    /// The number of our port.
    pub port: u8,
    /// Our place in the table of partitions.
    pub pkey_index: u16,
    /// `enum ibv_access_flags` that the peer may use.
    pub access_flags: u32,
    /// The key that datagrams for the queue pair have to carry.
    pub q_key: u32,
    /// The way to the peer.
    pub address: AddressVector,
    /// Payload per packet.
    pub path_mtu: Mtu,
    /// The peer's queue pair.
    pub destination: u32,
    /// The peer's first sequence number.
    pub receive_sequence: u32,
    /// Our first sequence number.
    pub send_sequence: u32,
    /// Reads and atomics of the peer that we serve at a time.
    pub responder_resources: u8,
    /// Reads and atomics of this end that may be outstanding.
    pub initiator_depth: u8,
    /// Code of the RNR timer.
    pub min_rnr_timer: u8,
    /// Code of the time-out.
    pub timeout: u8,
    /// Tries after the first.
    pub retry_count: u8,
    /// Tries after the first, when the peer has no receive.
    pub rnr_retry: u8,
    /// Another way to the peer, to which the device moves by itself when the first fails.
    pub alternate: AlternatePath,
    /// The state of that move.
    pub migration: MigrationState,
    /// The state that the queue pair is taken to be in.
    pub current_state: QueuePairState,
    /// An event is wanted when the send queue is drained.
    pub drain_event: bool,
}

#[cfg(any(test, feature = "fake"))]
impl QueuePairAttributes {
    /// Takes over those attributes of `given` that the mask has, as a device does.
    pub(crate) fn set(&mut self, given: &Self, mask: AttributeMask) {
        macro_rules! take {
            ($($bit:ident: $($field:ident),+;)*) => {
                $(if mask.contains(AttributeMask::$bit) {
                    $(self.$field = given.$field;)+
                })*
            };
        }
        take! {
            STATE: state, current_state;
            DRAIN_EVENT: drain_event;
            ACCESS_FLAGS: access_flags;
            PKEY_INDEX: pkey_index;
            PORT: port;
            Q_KEY: q_key;
            ADDRESS: address;
            PATH_MTU: path_mtu;
            TIMEOUT: timeout;
            RETRY_COUNT: retry_count;
            RNR_RETRY: rnr_retry;
            RECEIVE_SEQUENCE: receive_sequence;
            INITIATOR_DEPTH: initiator_depth;
            ALTERNATE_PATH: alternate;
            MIN_RNR_TIMER: min_rnr_timer;
            SEND_SEQUENCE: send_sequence;
            RESPONDER_RESOURCES: responder_resources;
            MIGRATION: migration;
            DESTINATION: destination;
        }
    }
}

/// Another way to the peer (`alt_ah_attr` and its like).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AlternatePath {
    /// The way, by a port of this end.
    pub address: AddressVector,
    /// Our place in the table of partitions of that port.
    pub pkey_index: u16,
    /// Code of the time-out on that way.
    pub timeout: u8,
}

/// `enum ibv_mig_state`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MigrationState {
    /// The connection runs by its path, and has no other one to move to.
    #[default]
    Migrated,
    /// The two ends are to agree on the alternate path.
    Rearm,
    /// The connection moves to the alternate path when the first fails.
    Armed,
    /// A number that this version does not know.
    Unknown(u32),
}

impl MigrationState {
    /// Translates the C enumeration.
    #[must_use]
    pub fn from_raw(raw: u32) -> Self {
        match raw {
            0 => Self::Migrated,
            1 => Self::Rearm,
            2 => Self::Armed,
            other => Self::Unknown(other),
        }
    }

    /// Returns the value of the C enumeration.
    #[must_use]
    pub fn to_raw(self) -> u32 {
        match self {
            Self::Migrated => 0,
            Self::Rearm => 1,
            Self::Armed => 2,
            Self::Unknown(raw) => raw,
        }
    }
}

impl QueuePairAttributes {
    /// Attributes of a change to `state`, all others at zero.
    #[must_use]
    pub fn to(state: QueuePairState) -> Self {
        Self {
            state,
            port: 0,
            pkey_index: 0,
            access_flags: 0,
            q_key: 0,
            address: AddressVector::default(),
            path_mtu: Mtu::Bytes256,
            destination: 0,
            receive_sequence: 0,
            send_sequence: 0,
            responder_resources: 0,
            initiator_depth: 0,
            min_rnr_timer: 0,
            timeout: 0,
            retry_count: 0,
            rnr_retry: 0,
            alternate: AlternatePath::default(),
            migration: MigrationState::Migrated,
            current_state: state,
            drain_event: false,
        }
    }
}

#[cfg(test)]
mod tests {
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
            assert_eq!(MigrationState::from_raw(raw).to_raw(), raw);
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
