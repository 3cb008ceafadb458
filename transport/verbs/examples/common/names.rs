//! The names that `ibv_devinfo` has for bits, and its forms of identifiers.

use std::net::Ipv6Addr;

use ibex_verbs::{GidEntry, GidType};

/// Returns a 64-bit identifier in four groups.
pub(crate) fn guid(guid: u64) -> String {
    let group = |shift: u32| format!("{:04x}", guid >> shift & 0xffff);
    [48, 32, 16, 0].map(group).join(":")
}

/// Returns a GID, with its type if the link is an Ethernet.
pub(crate) fn gid(entry: &GidEntry, is_ethernet: bool) -> String {
    if entry.gid_type == GidType::RoceV2 {
        return format!("{}, RoCE v2", Ipv6Addr::from(entry.gid.0));
    }
    let groups = entry.gid.0.chunks(2);
    let groups: Vec<_> = groups
        .map(|two| format!("{:02x}{:02x}", two[0], two[1]))
        .collect();
    let suffix = if is_ethernet { ", RoCE v1" } else { "" };
    groups.join(":") + suffix
}

/// `enum ibv_device_cap_flags`.
pub(crate) const CAPABILITIES: &[(u32, &str)] = &[
    (0, "RESIZE_MAX_WR"),
    (1, "BAD_PKEY_CNTR"),
    (2, "BAD_QKEY_CNTR"),
    (3, "RAW_MULTI"),
    (4, "AUTO_PATH_MIG"),
    (5, "CHANGE_PHY_PORT"),
    (6, "UD_AV_PORT_ENFORCE"),
    (7, "CURR_QP_STATE_MOD"),
    (8, "SHUTDOWN_PORT"),
    (9, "INIT_TYPE"),
    (10, "PORT_ACTIVE_EVENT"),
    (11, "SYS_IMAGE_GUID"),
    (12, "RC_RNR_NAK_GEN"),
    (13, "SRQ_RESIZE"),
    (14, "N_NOTIFY_CQ"),
    (17, "MEM_WINDOW"),
    (18, "UD_IP_CSUM"),
    (20, "XRC"),
    (21, "MEM_MGT_EXTENSIONS"),
    (23, "MEM_WINDOW_TYPE_2A"),
    (24, "MEM_WINDOW_TYPE_2B"),
    (25, "RC_IP_CSUM"),
    (26, "RAW_IP_CSUM"),
    (29, "MANAGED_FLOW_STEERING"),
];
