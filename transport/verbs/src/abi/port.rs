//! A port of a device: its state, its MTU and what kind of link it has.
#![forbid(unsafe_code)]

use std::fmt;

use super::enumeration::enumeration;

/// `ibv_port_attr`
/// ([`ibv_query_port(3)`](https://man7.org/linux/man-pages/man3/ibv_query_port.3.html)).
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
    /// The state of the link below the port's own.
    pub physical_state: PhysicalState,
    /// The number of lanes of the link.
    pub width: LinkWidth,
    /// The speed of one lane.
    pub speed: LinkSpeed,
    /// The number of low bits of a LID that count as paths to the same port (LMC).
    pub lid_mask_bits: u8,
    /// The LID of the subnet manager.
    pub manager_lid: u16,
    /// The service level by which the subnet manager is reached.
    pub manager_service_level: u8,
    /// The code of the time that a packet takes through the subnet, at most.
    pub subnet_timeout_code: u8,
    /// The initialization that the subnet manager did when the port came up.
    pub init_type_reply: u8,
    /// The code of the largest number of virtual lanes (1, 2, 4, 8 and 15 as 1 to 5).
    pub virtual_lanes_code: u8,
    /// Bits of `enum ibv_port_cap_flags`.
    pub capabilities: u32,
    /// Bits of `enum ibv_port_cap_flags2`.
    pub capabilities2: u16,
    /// Packets that were dropped for a partition key that the port does not have.
    pub bad_pkeys: u32,
    /// Datagrams that were dropped for a wrong queue key.
    pub qkey_violations: u32,
    /// Bits of `IBV_QPF_*`.
    pub flags: u8,
}

enumeration! {
    /// The state of a link below the port's own.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    PhysicalState(u8), "invalid physical state", {
        /// The link does nothing.
        Sleep = 1, "SLEEP";
        /// The link looks for another end.
        Polling = 2, "POLLING";
        /// The link is switched off.
        Disabled = 3, "DISABLED";
        /// The two ends set up the link.
        Training = 4, "PORT_CONFIGURATION TRAINNING";
        /// The link is there.
        LinkUp = 5, "LINK_UP";
        /// The link recovers from errors.
        Recovery = 6, "LINK_ERROR_RECOVERY";
        /// The link is under test.
        Test = 7, "PHYTEST";
    }
}

/// The number of lanes of a link, as the code of `active_width`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkWidth(pub u8);

impl LinkWidth {
    /// Returns the number of lanes, if the code is known.
    #[must_use]
    pub fn lanes(self) -> Option<u32> {
        match self.0 {
            1 => Some(1),
            2 => Some(4),
            4 => Some(8),
            8 => Some(12),
            16 => Some(2),
            _ => None,
        }
    }
}

impl fmt::Display for LinkWidth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.lanes() {
            Some(lanes) => write!(f, "{lanes}X"),
            None => f.write_str("invalid width"),
        }
    }
}

/// The speed of one lane, as the code of `active_speed`, or of `active_speed_ex` where the link is
/// faster than that can say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkSpeed(pub u32);

impl LinkSpeed {
    /// Returns the speed in megabits a second, if the code is known.
    #[must_use]
    pub fn megabits(self) -> Option<u32> {
        match self.0 {
            1 => Some(2_500),
            2 => Some(5_000),
            4 | 8 => Some(10_000),
            16 => Some(14_000),
            32 => Some(25_000),
            64 => Some(50_000),
            128 => Some(100_000),
            256 => Some(200_000),
            _ => None,
        }
    }
}

impl fmt::Display for LinkSpeed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.megabits() {
            Some(megabits) => write!(f, "{:.1} Gbps", f64::from(megabits) / 1000.0),
            None => f.write_str("invalid speed"),
        }
    }
}

enumeration! {
    /// `enum ibv_port_state`.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    PortState(u32), "unknown state {}", {
        /// The port has no state.
        Nop = 0, "NOP";
        /// The port has no link.
        Down = 1, "DOWN";
        /// The port has a link, and no address yet: on InfiniBand the subnet manager is missing.
        Initializing = 2, "INIT";
        /// Addressed, not yet released for traffic.
        Armed = 3, "ARMED";
        /// The port carries traffic.
        Active = 4, "ACTIVE";
        /// The port carries traffic, and the link is being restored.
        ActiveDeferred = 5, "ACTIVE_DEFER";
    }
}

impl PortState {
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

enumeration! {
    /// The network that a port is plugged into.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    LinkLayer(u8), "unknown link layer {}", {
        /// An InfiniBand fabric, also where a provider says nothing.
        InfiniBand = 1 | 0, "InfiniBand";
        /// An Ethernet, that is RoCE.
        Ethernet = 2, "Ethernet";
    }
}

/// The payload of one packet, in one of the lengths of `enum ibv_mtu`
/// ([ibv_query_port(3)](https://man7.org/linux/man-pages/man3/ibv_query_port.3.html)). Both ends of
/// a connection use the same value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Mtu {
    /// 256 bytes.
    #[default]
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
        assert_eq!(PhysicalState::from_raw(0), PhysicalState::Unknown(0));
        assert_eq!(
            (LinkWidth(3).lanes(), LinkSpeed(3).megabits()),
            (None, None)
        );
        assert_eq!(LinkSpeed(u32::MAX).to_string(), "invalid speed");
    }

    #[test]
    fn a_link_is_told_as_devinfo_tells_it() {
        let texts = [LinkWidth(1), LinkWidth(2), LinkWidth(16)].map(|width| width.to_string());
        assert_eq!(texts, ["1X", "4X", "2X"]);
        assert_eq!(LinkSpeed(1).to_string(), "2.5 Gbps");
        assert_eq!(LinkSpeed(128).to_string(), "100.0 Gbps");
        assert_eq!(PhysicalState::from_raw(5).to_string(), "LINK_UP");
    }
}
