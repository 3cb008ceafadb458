//! A port of a device: its state, its MTU and what kind of link it has.
#![forbid(unsafe_code)]

use std::fmt;

/// `ibv_port_attr`, as far as it is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortAttributes {
    /// The port's state.
    pub state: PortState,
    /// The longest packets that it could carry.
    pub max_mtu: Mtu,
    /// The longest packets that it carries now. Soft-RoCE follows the network
    /// interface without an event, so it is read for every connection.
    pub active_mtu: Mtu,
    /// Slots of the GID table.
    pub gid_table_len: u32,
    /// Slots of the P_Key table.
    pub pkey_table_len: u16,
    /// The local identifier that the subnet manager gave; on Ethernet, where there is none, 0 by
    /// most drivers and 1 by irdma.
    pub lid: u16,
    /// The longest message.
    pub max_message_bytes: u32,
    /// The network that the port is plugged into.
    pub link_layer: LinkLayer,
    /// Packets need a global route header (`IBV_QPF_GRH_REQUIRED`, and always on Ethernet).
    pub needs_global_route: bool,
}

/// `enum ibv_port_state`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PortState {
    /// The port has no state.
    Nop,
    /// The port has no link.
    Down,
    /// The port has a link, and no address yet: on InfiniBand the subnet manager is missing.
    Initializing,
    /// Addressed, not yet released for traffic.
    Armed,
    /// The port carries traffic.
    Active,
    /// The port carries traffic, and the link is being restored.
    ActiveDeferred,
    /// A number that this version does not know.
    Unknown(u32),
}

impl PortState {
    /// Translates the C enumeration.
    #[must_use]
    pub fn from_raw(raw: u32) -> Self {
        match raw {
            0 => Self::Nop,
            1 => Self::Down,
            2 => Self::Initializing,
            3 => Self::Armed,
            4 => Self::Active,
            5 => Self::ActiveDeferred,
            other => Self::Unknown(other),
        }
    }

    /// Returns what an operator can do about a port in this state.
    pub(crate) fn next_step(self) -> &'static str {
        match self {
            Self::Down => {
                "check the cable and `ip link set <netdev> up`; `rdma link` shows the state"
            }
            Self::Initializing | Self::Armed => {
                "on InfiniBand start a subnet manager (opensm) in the fabric, or wait for it"
            }
            _ => "see `rdma link` and the kernel's log",
        }
    }
}

impl fmt::Display for PortState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Nop => f.write_str("NOP"),
            Self::Down => f.write_str("DOWN"),
            Self::Initializing => f.write_str("INIT"),
            Self::Armed => f.write_str("ARMED"),
            Self::Active => f.write_str("ACTIVE"),
            Self::ActiveDeferred => f.write_str("ACTIVE_DEFER"),
            Self::Unknown(raw) => write!(f, "unknown state {raw}"),
        }
    }
}

/// The network that a port is plugged into.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkLayer {
    /// An InfiniBand fabric.
    InfiniBand,
    /// An Ethernet, that is RoCE.
    Ethernet,
    /// A number that this version does not know.
    Unknown(u8),
}

impl LinkLayer {
    /// Translates `IBV_LINK_LAYER_*`; providers that say nothing mean InfiniBand.
    #[must_use]
    pub fn from_raw(raw: u8) -> Self {
        match raw {
            0 | 1 => Self::InfiniBand,
            2 => Self::Ethernet,
            other => Self::Unknown(other),
        }
    }
}

impl fmt::Display for LinkLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::InfiniBand => f.write_str("InfiniBand"),
            Self::Ethernet => f.write_str("Ethernet"),
            Self::Unknown(raw) => write!(f, "unknown link layer {raw}"),
        }
    }
}

/// The payload of one packet, in one of the lengths of `enum ibv_mtu`
/// ([ibv_query_port(3)](https://man7.org/linux/man-pages/man3/ibv_query_port.3.html)). Both ends of
/// a connection use the same value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Mtu {
    /// 256 bytes.
    Bytes256 = 1,
    /// 512 bytes.
    Bytes512 = 2,
    /// 1024 bytes: what fits into an Ethernet MTU of 1500.
    Bytes1024 = 3,
    /// 2048 bytes.
    Bytes2048 = 4,
    /// 4096 bytes: what fits into jumbo frames.
    Bytes4096 = 5,
}

impl Mtu {
    /// Translates `enum ibv_mtu`.
    #[must_use]
    pub fn from_raw(raw: u32) -> Option<Self> {
        [
            Self::Bytes256,
            Self::Bytes512,
            Self::Bytes1024,
            Self::Bytes2048,
            Self::Bytes4096,
        ]
        .into_iter()
        .find(|mtu| mtu.to_raw() == raw)
    }

    /// Returns the MTU of exactly this many bytes.
    #[must_use]
    pub fn from_bytes(bytes: u32) -> Option<Self> {
        match bytes {
            256 | 512 | 1024 | 2048 | 4096 => Self::from_raw(bytes.ilog2() - 7),
            _ => None,
        }
    }

    /// Returns the value of `enum ibv_mtu`.
    #[must_use]
    pub fn to_raw(self) -> u32 {
        self as u32
    }

    /// Returns the MTU in bytes.
    #[must_use]
    pub fn bytes(self) -> u32 {
        128 << self.to_raw()
    }
}

impl fmt::Display for Mtu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_mtu_comes_back_from_its_number_and_its_bytes() {
        for bytes in [256, 512, 1024, 2048, 4096] {
            let mtu = Mtu::from_bytes(bytes).unwrap();
            assert_eq!(mtu.bytes(), bytes);
            assert_eq!(Mtu::from_raw(mtu.to_raw()), Some(mtu));
        }
        assert_eq!(Mtu::from_bytes(1500), None);
        assert_eq!(Mtu::from_raw(0), None);
        assert_eq!(Mtu::from_raw(6), None);
    }

    #[test]
    fn numbers_from_later_kernels_are_kept_and_not_a_panic() {
        assert_eq!(PortState::from_raw(77), PortState::Unknown(77));
        assert_eq!(PortState::from_raw(77).to_string(), "unknown state 77");
        assert_eq!(LinkLayer::from_raw(9), LinkLayer::Unknown(9));
    }
}
