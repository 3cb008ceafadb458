//! The attributes of a queue pair (`ibv_qp_attr`) and the ways to its peer.
#![forbid(unsafe_code)]

#[cfg(any(test, feature = "fake"))]
use super::attribute_mask::AttributeMask;
use crate::{Gid, Mtu, QueuePairState};

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
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
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
}

impl QueuePairAttributes {
    /// Attributes of a change to `state`, all others at zero.
    #[must_use]
    pub fn to(state: QueuePairState) -> Self {
        Self {
            state,
            ..Self::default()
        }
    }
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
            STATE: state;
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
            MIN_RNR_TIMER: min_rnr_timer;
            SEND_SEQUENCE: send_sequence;
            RESPONDER_RESOURCES: responder_resources;
            DESTINATION: destination;
        }
    }
}
