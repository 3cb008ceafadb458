//! The kind of network that a device is of.

use super::enumeration::enumeration;

enumeration! {
    /// `enum ibv_transport_type`.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    Transport(i32), "unknown ({})", {
        /// InfiniBand and RoCE.
        InfiniBand = 0, "InfiniBand/RoCE";
        /// RDMA over tcp.
        Iwarp = 1, "iWARP";
        /// Cisco's usNIC, over Ethernet or UDP.
        UsNic = 2 | 3, "usNIC";
        /// A network of the vendor's own, such as EFA.
        Unspecified = 4, "vendor-specific (EFA and the like)";
    }
}
