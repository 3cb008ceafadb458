//! RDMA devices as the kernel's files describe them, which are there without libibverbs.

use std::net::Ipv6Addr;

use serde::Serialize;

use crate::root::Root;

/// A device in `/sys/class/infiniband`.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Device {
    pub(crate) name: String,
    /// Set for a device on a bus; others are drivers in software.
    pub(crate) is_hardware: bool,
    pub(crate) node_guid: Option<String>,
    pub(crate) system_image_guid: Option<String>,
    pub(crate) firmware: Option<String>,
    pub(crate) board: Option<String>,
    /// The kernel's driver on the bus, such as `mlx5_core`.
    pub(crate) driver: Option<String>,
    /// The place on the bus.
    pub(crate) bus_address: Option<String>,
    pub(crate) numa_node: Option<u32>,
    /// The file in `/dev/infiniband` by which a process opens the device.
    pub(crate) device_file: Option<String>,
    /// Set if that file can be opened here.
    pub(crate) is_openable: bool,
    pub(crate) ports: Vec<Port>,
}

/// A port of a device.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Port {
    pub(crate) number: u8,
    /// `ACTIVE`, `DOWN`, `INIT`, `ARMED`, or `unknown`.
    pub(crate) state: String,
    pub(crate) physical_state: Option<String>,
    /// `Ethernet` (RoCE) or `InfiniBand`.
    pub(crate) link_layer: String,
    /// The speed and width, in the kernel's words.
    pub(crate) speed: Option<String>,
    pub(crate) lid: Option<String>,
    pub(crate) netdevs: Vec<String>,
    /// The MTU of the first network interface, in bytes.
    pub(crate) netdev_mtu_bytes: Option<u32>,
    /// The MTU that queue pairs have over it, in bytes; `None` where only the device knows.
    pub(crate) mtu_bytes: Option<u32>,
    pub(crate) partition_keys: Vec<String>,
    pub(crate) gids: Vec<Gid>,
}

/// A used entry of a port's GID table.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Gid {
    pub(crate) index: u32,
    pub(crate) gid: Ipv6Addr,
    /// `RoCE v2` or `IB/RoCE v1`.
    #[serde(rename = "type")]
    pub(crate) kind: Option<String>,
    pub(crate) netdev: Option<String>,
}

impl Gid {
    pub(crate) fn is_link_local(&self) -> bool {
        self.gid.segments()[0] & 0xffc0 == 0xfe80
    }

    pub(crate) fn is_roce_v2(&self) -> bool {
        self.kind.as_deref() == Some("RoCE v2")
    }
}

impl Port {
    pub(crate) fn is_active(&self) -> bool {
        self.state == "ACTIVE"
    }

    pub(crate) fn is_ethernet(&self) -> bool {
        self.link_layer == "Ethernet"
    }
}

/// Reads all devices.
pub(crate) fn devices(root: &Root) -> Vec<Device> {
    let sysfs = root.sysfs();
    let device = |name: String| {
        let folder = format!("/sys/class/infiniband/{name}");
        let read = |file: &str| root.read(&format!("{folder}/{file}"));
        let device_file = device_file(root, &name);
        let numbers = root.names(&format!("{folder}/ports"));
        let mut numbers: Vec<u8> = numbers
            .iter()
            .filter_map(|name| name.parse().ok())
            .collect();
        numbers.sort_unstable();
        Device {
            is_hardware: root.exists(&format!("{folder}/device")),
            node_guid: read("node_guid"),
            system_image_guid: read("sys_image_guid"),
            firmware: read("fw_ver"),
            board: read("board_id"),
            driver: root.link_name(&format!("{folder}/device/driver")),
            bus_address: root.link_name(&format!("{folder}/device")),
            numa_node: sysfs.numa_node(&name),
            is_openable: device_file
                .as_deref()
                .is_some_and(|file| is_openable(root, file)),
            device_file,
            ports: numbers
                .into_iter()
                .map(|number| port(root, &name, number))
                .collect(),
            name,
        }
    };
    sysfs.devices().into_iter().map(device).collect()
}

fn port(root: &Root, device: &str, number: u8) -> Port {
    let folder = format!("/sys/class/infiniband/{device}/ports/{number}");
    let read = |file: &str| root.read(&format!("{folder}/{file}"));
    // The kernel writes "4: ACTIVE".
    let word = |text: String| match text.split_once(": ") {
        Some((_, word)) => word.to_owned(),
        None => text,
    };
    let gids = gids(root, device, number);
    let mut netdevs = root.sysfs().port_netdevs(device, number);
    netdevs.extend(gids.iter().filter_map(|gid| gid.netdev.clone()));
    let mut unique = Vec::new();
    netdevs.retain(|netdev| {
        let is_new = !unique.contains(netdev);
        unique.push(netdev.clone());
        is_new
    });
    let link_layer = read("link_layer").unwrap_or_else(|| "unknown".to_owned());
    let mtu = netdevs.first().and_then(|netdev| netdev_mtu(root, netdev));
    let pkeys = root.names(&format!("{folder}/pkeys"));
    let mut pkeys: Vec<u32> = pkeys.iter().filter_map(|name| name.parse().ok()).collect();
    pkeys.sort_unstable();
    let pkeys = pkeys
        .iter()
        .filter_map(|index| read(&format!("pkeys/{index}")));
    Port {
        number,
        state: read("state").map_or_else(|| "unknown".to_owned(), word),
        physical_state: read("phys_state").map(word),
        speed: read("rate"),
        lid: read("lid").filter(|lid| lid != "0x0"),
        mtu_bytes: mtu.filter(|_| link_layer == "Ethernet").and_then(rdma_mtu),
        netdev_mtu_bytes: mtu,
        netdevs,
        link_layer,
        partition_keys: pkeys.filter(|key| key != "0x0000").collect(),
        gids,
    }
}

fn gids(root: &Root, device: &str, port: u8) -> Vec<Gid> {
    let folder = format!("/sys/class/infiniband/{device}/ports/{port}");
    let indices = root.names(&format!("{folder}/gids"));
    let mut indices: Vec<u32> = indices
        .iter()
        .filter_map(|name| name.parse().ok())
        .collect();
    indices.sort_unstable();
    let gid = |index| {
        let gid: Ipv6Addr = root.read(&format!("{folder}/gids/{index}"))?.parse().ok()?;
        // The kernel fills unused entries with zeros.
        (!gid.is_unspecified()).then(|| Gid {
            index,
            gid,
            kind: root.read(&format!("{folder}/gid_attrs/types/{index}")),
            netdev: root.sysfs().gid_netdev(device, port, index),
        })
    };
    indices.into_iter().filter_map(gid).collect()
}

pub(crate) fn netdev_mtu(root: &Root, netdev: &str) -> Option<u32> {
    root.read(&format!("/sys/class/net/{netdev}/mtu"))?
        .parse()
        .ok()
}

/// Returns the MTU of queue pairs over a RoCE interface, as the kernel computes it (`iboe_get_mtu`,
/// [include/rdma/ib_addr.h](https://github.com/torvalds/linux/blob/master/include/rdma/ib_addr.h)).
fn rdma_mtu(netdev_mtu_bytes: u32) -> Option<u32> {
    // GRH, UDP, BTH, the extended headers of XRC and atomics, and the checksum.
    let payload = netdev_mtu_bytes.checked_sub(40 + 8 + 12 + 4 + 28 + 4)?;
    [4096, 2048, 1024, 512, 256]
        .into_iter()
        .find(|mtu| *mtu <= payload)
}

fn device_file(root: &Root, device: &str) -> Option<String> {
    let files = root.names("/sys/class/infiniband_verbs");
    let mut files = files.into_iter().filter(|name| name.starts_with("uverbs"));
    let is_of_device = |name: &String| {
        root.read(&format!("/sys/class/infiniband_verbs/{name}/ibdev"))
            .as_deref()
            == Some(device)
    };
    files
        .find(is_of_device)
        .map(|name| format!("/dev/infiniband/{name}"))
}

fn is_openable(root: &Root, file: &str) -> bool {
    let access = rustix::fs::Access::READ_OK | rustix::fs::Access::WRITE_OK;
    rustix::fs::access(root.path(file), access).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_queue_pair_has_what_is_left_of_the_interface_s_mtu() {
        assert_eq!(rdma_mtu(1500), Some(1024));
        assert_eq!(rdma_mtu(4192), Some(4096));
        assert_eq!(rdma_mtu(4191), Some(2048));
        assert_eq!(rdma_mtu(351), None);
        assert_eq!(rdma_mtu(40), None);
    }
}
