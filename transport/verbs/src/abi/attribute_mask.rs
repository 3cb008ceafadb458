//! The attributes that a change of a queue pair's state sets, as bits.
#![forbid(unsafe_code)]

use std::fmt::{self, Write as _};
use std::ops::BitOr;

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

    pub(super) const NAMES: [(Self, &'static str); 20] = [
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
