//! The attributes that a change of a queue pair's state sets, as bits.
#![forbid(unsafe_code)]

use std::fmt;
use std::ops::BitOr;

/// Bits of `enum ibv_qp_attr_mask`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AttributeMask(u32);

/// Declares the bits with their names in the header.
macro_rules! attributes {
    ($($(#[$doc:meta])* $name:ident = $bit:literal, $text:literal;)*) => {
        impl AttributeMask {
            $($(#[$doc])* pub const $name: Self = Self(1 << $bit);)*
            const NAMES: &[(Self, &str)] = &[$((Self::$name, $text)),*];
        }
    };
}

attributes! {
    /// The state to go to: in every change.
    STATE = 0, "STATE";
    /// The remote operations that are let in.
    ACCESS_FLAGS = 3, "ACCESS_FLAGS";
    /// The index of the partition's key.
    PKEY_INDEX = 4, "PKEY_INDEX";
    /// The number of the port.
    PORT = 5, "PORT";
    /// The key that datagrams for the queue pair have to carry.
    Q_KEY = 6, "QKEY";
    /// The way to the peer.
    ADDRESS = 7, "AV";
    /// Payload per packet.
    PATH_MTU = 8, "PATH_MTU";
    /// The time to wait for an acknowledgement.
    TIMEOUT = 9, "TIMEOUT";
    /// The number of retries.
    RETRY_COUNT = 10, "RETRY_CNT";
    /// The number of retries when the peer has no receive.
    RNR_RETRY = 11, "RNR_RETRY";
    /// The peer's first sequence number.
    RECEIVE_SEQUENCE = 12, "RQ_PSN";
    /// Reads and atomics of this end that may be outstanding.
    INITIATOR_DEPTH = 13, "MAX_QP_RD_ATOMIC";
    /// The time that the peer is asked to wait when we have no receive.
    MIN_RNR_TIMER = 15, "MIN_RNR_TIMER";
    /// Our first sequence number.
    SEND_SEQUENCE = 16, "SQ_PSN";
    /// Reads and atomics of the peer that we serve at a time.
    RESPONDER_RESOURCES = 17, "MAX_DEST_RD_ATOMIC";
    /// The peer's queue pair.
    DESTINATION = 20, "DEST_QPN";
}

impl AttributeMask {
    /// All that a queue pair can be asked for.
    #[cfg(feature = "libibverbs")]
    pub(crate) const ALL: Self = Self(0x0017_ffff);

    /// The bits, as `ibv_modify_qp` takes them.
    #[must_use]
    pub fn bits(self) -> u32 {
        self.0
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
}

impl BitOr for AttributeMask {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

impl fmt::Display for AttributeMask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let set = Self::NAMES.iter().filter(|(bit, _)| self.contains(*bit));
        let names: Vec<_> = set.map(|(_, name)| *name).collect();
        match names.is_empty() {
            true => f.write_str("none"),
            false => f.write_str(&names.join("|")),
        }
    }
}
