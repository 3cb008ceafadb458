//! Inventories and choices, over fake devices and a `/sys` made of files.

use std::fs;
use std::net::IpAddr;

use rustix::io::Errno;

use super::{sysfs_tree::SysfsTree, *};
use crate::{
    Gid, GidEntry, GidScope, GidType, PartitionKey, PortState,
    discovery::{Choice, DeviceKind, Inventory, LocalAddress, Wish, discover},
    provider::fake::Call,
};

pub(super) fn address(text: &str) -> IpAddr {
    text.parse().unwrap()
}

/// A machine with an adapter on `eth0`, with a VLAN of its own, and soft-RoCE on `v0`.
pub(super) fn machine() -> (FakeProvider, SysfsTree) {
    let mut adapter = FakeDevice::soft_roce("mlx5_0", 2, [198, 51, 100, 1]);
    adapter.attributes.vendor_id = 0x02c9;
    adapter.ports[0].gids.push(GidEntry {
        index: 2,
        gid: Gid::of(address("198.51.100.1")),
        gid_type: GidType::RoceV1,
        interface_index: 2,
    });
    adapter.ports[0].gids.push(GidEntry {
        index: 3,
        gid: Gid::of(address("203.0.113.9")),
        gid_type: GidType::RoceV2,
        interface_index: 4,
    });
    let fake = FakeProvider::new(vec![
        adapter,
        FakeDevice::soft_roce("rxe0", 7, [192, 0, 2, 1]),
    ]);
    let tree = SysfsTree::new();
    tree.netdev("lo", 1, &[]);
    tree.netdev("eth0", 2, &[]);
    tree.netdev("eth0.100", 4, &["eth0"]);
    tree.netdev("v0", 7, &[]);
    tree.hardware("mlx5_0", "1", &["eth0"]);
    // The kernel's file is asked first. Without that file, the index of the interface decides.
    tree.gid_netdev("mlx5_0", 0, "eth0");
    tree.gid_netdev("mlx5_0", 1, "eth0");
    tree.file("sys/class/infiniband/rxe0/parent", "v0");
    (fake, tree)
}

pub(super) fn inventory(fake: &FakeProvider, tree: &SysfsTree) -> Inventory {
    discover(&fake.provider(), &tree.sysfs()).unwrap()
}

pub(super) fn netdev(name: &str) -> Wish {
    Wish::Netdev(name.to_owned())
}

pub(super) fn place(choice: &Choice) -> (&str, u8, u32) {
    (&choice.device, choice.port, choice.gid.index)
}

#[test]
fn an_inventory_shows_everything_and_leaves_no_device_open() {
    let (fake, tree) = machine();
    let inventory = inventory(&fake, &tree);
    assert!(fake.alive().is_empty());
    assert_eq!(
        inventory.to_string(),
        "mlx5_0: hardware, InfiniBand/RoCE, GUID 0002:c903:0000:0001, NUMA node 1, firmware 0.0.0, vendor 0x02c9 part 0
  up to 1024 queue pairs of 4096 requests, 32 scatter entries; 32767 completions per queue, 2 completion vectors
  up to 1024 shared receive queues of 4096 requests
  up to 4096 memory windows, 128 reads or atomics at once from a queue pair, atomics among the device's own
  port 1: ACTIVE, Ethernet, MTU 1024 of 4096, 2.5 Gbps, on eth0, P_Keys 0xffff
    GID [0] fe80::1 (RoCE v2) on eth0
    GID [1] ::ffff:198.51.100.1 (RoCE v2) on eth0
    GID [2] ::ffff:198.51.100.1 (RoCE v1) on eth0
    GID [3] ::ffff:203.0.113.9 (RoCE v2) on eth0.100
rxe0: software, InfiniBand/RoCE, GUID 0002:c903:0000:0001, firmware 0.0.0, vendor 0xffffff part 0
  up to 1024 queue pairs of 4096 requests, 32 scatter entries; 32767 completions per queue, 2 completion vectors
  up to 1024 shared receive queues of 4096 requests
  up to 4096 memory windows, 128 reads or atomics at once from a queue pair, atomics among the device's own
  port 1: ACTIVE, Ethernet, MTU 1024 of 4096, 2.5 Gbps, on v0, P_Keys 0xffff
    GID [0] fe80::1 (RoCE v2) on v0
    GID [1] ::ffff:192.0.2.1 (RoCE v2) on v0
"
    );
}

#[test]
fn by_interface_the_best_gid_of_that_interface() {
    let (fake, tree) = machine();
    let inventory = inventory(&fake, &tree);
    let choice = inventory.choose_among(&netdev("eth0"), &[]).unwrap();
    assert_eq!(place(&choice), ("mlx5_0", 1, 1));
    assert_eq!(choice.kind, DeviceKind::Hardware);
    let vlan = inventory.choose_among(&netdev("eth0.100"), &[]).unwrap();
    assert_eq!(place(&vlan), ("mlx5_0", 1, 3));
    let soft = inventory.choose_among(&netdev("v0"), &[]).unwrap();
    assert_eq!(place(&soft), ("rxe0", 1, 1));
    assert_eq!(soft.kind, DeviceKind::Software);
    assert_eq!(
        soft.to_string(),
        "rxe0 port 1 with GID [1] ::ffff:192.0.2.1 (RoCE v2) and MTU 1024: v0 was asked for"
    );
}

#[test]
fn by_address_its_own_gid_and_why() {
    let (fake, tree) = machine();
    let inventory = inventory(&fake, &tree);
    let at = |netdev: &str, text: &str| LocalAddress {
        netdev: netdev.to_owned(),
        address: address(text),
    };
    let addresses = [at("eth0", "fe80::1"), at("eth0", "198.51.100.1")];
    // The GID of the address in use is chosen, although it is not of the preferred kind.
    let wish = Wish::Address(address("fe80::1"));
    let choice = inventory.choose_among(&wish, &addresses).unwrap();
    assert_eq!(place(&choice), ("mlx5_0", 1, 0));
    assert_eq!(choice.reason, "the address fe80::1 is on eth0");
    let wish = Wish::Address(address("198.51.100.1"));
    let choice = inventory.choose_among(&wish, &addresses).unwrap();
    assert_eq!(place(&choice), ("mlx5_0", 1, 1));

    let wish = Wish::Address(address("10.9.8.7"));
    assert_eq!(
        inventory
            .choose_among(&wish, &addresses)
            .unwrap_err()
            .to_string(),
        "no network interface of this machine has the address 10.9.8.7"
    );
}

#[test]
fn virtual_interfaces_lead_to_the_device_they_stand_on() {
    let (fake, tree) = machine();
    tree.netdev("eth1", 3, &[]);
    tree.netdev("bond0", 10, &["eth1", "eth0"]);
    tree.netdev("bond0.5", 11, &["bond0"]);
    tree.netdev("macvlan0", 12, &["bond0.5"]);
    let inventory = inventory(&fake, &tree);
    for name in ["bond0", "bond0.5", "macvlan0"] {
        let choice = inventory.choose_among(&netdev(name), &[]).unwrap();
        assert_eq!(place(&choice), ("mlx5_0", 1, 1), "{name}");
        assert_eq!(
            choice.reason,
            format!("{name} was asked for, which stands on eth0")
        );
    }
}

#[test]
fn a_bond_prefers_its_active_member() {
    let (fake, tree) = machine();
    tree.netdev("bond0", 10, &["eth0", "v0"]);
    tree.file("sys/class/net/bond0/bonding/active_slave", "v0");
    let inventory = inventory(&fake, &tree);
    let choice = inventory.choose_among(&netdev("bond0"), &[]).unwrap();
    assert_eq!(choice.device, "rxe0");
}

#[test]
fn interfaces_that_stand_on_each_other_are_no_endless_way() {
    let tree = SysfsTree::new();
    tree.netdev("a", 1, &["b"]);
    tree.netdev("b", 2, &["a", "c"]);
    tree.netdev("c", 3, &[]);
    assert_eq!(tree.sysfs().below("a"), ["b", "c"]);
}

#[test]
fn infiniband_interfaces_belong_to_ports_and_their_children_to_them() {
    let fake = FakeProvider::new(vec![FakeDevice::infiniband("mlx5_0", 3)]);
    let tree = SysfsTree::new();
    tree.netdev("ib0", 5, &[]);
    tree.netdev("ib1", 6, &[]);
    tree.netdev("ib0.8001", 8, &[]);
    tree.netdev("macvlan0", 9, &["ib0.8001"]);
    tree.file("sys/class/net/ib0.8001/parent", "ib0");
    tree.file("sys/class/net/ib0.8001/pkey", "0x8001");
    tree.file("sys/class/net/ib0/pkey", "0xffff");
    tree.file("sys/class/net/ib0/dev_port", "0");
    tree.file("sys/class/net/ib1/dev_id", "0x1");
    tree.hardware("mlx5_0", "-1", &["ib0", "ib1"]);
    let inventory = inventory(&fake, &tree);
    let choice = inventory.choose_among(&netdev("ib0.8001"), &[]).unwrap();
    assert_eq!(place(&choice), ("mlx5_0", 1, 0));
    assert!(choice.reason.ends_with("which stands on ib0"));
    // The interfaces, and all that stand on them, are in partitions of their own.
    let key_of = |name: &str| {
        let choice = inventory.choose_among(&netdev(name), &[]).unwrap();
        choice.partition_key.map(PartitionKey::get)
    };
    assert_eq!(key_of("ib0.8001"), Some(0x8001));
    assert_eq!(key_of("macvlan0"), Some(0x8001));
    assert_eq!(key_of("ib0"), Some(0xffff));
    assert!(
        choice
            .to_string()
            .contains(" in partition 0x8001: ib0.8001 was asked for"),
        "{choice}"
    );
    // The other port's interface is not this port's.
    assert_eq!(
        inventory
            .choose_among(&netdev("ib1"), &[])
            .unwrap_err()
            .to_string(),
        "no RDMA device belongs to the network interface ib1; devices are at: mlx5_0 at ib0"
    );
    assert_eq!(inventory.devices[0].numa_node, None);
}

#[test]
fn by_name_with_port_and_gid_or_the_best_of_them() {
    let (fake, tree) = machine();
    let inventory = inventory(&fake, &tree);
    let wish = |port, gid_index| Wish::Device {
        name: "mlx5_0".to_owned(),
        port,
        gid_index,
    };
    let best = inventory.choose_among(&wish(None, None), &[]).unwrap();
    assert_eq!(place(&best), ("mlx5_0", 1, 1));
    let named = inventory
        .choose_among(&wish(Some(1), Some(2)), &[])
        .unwrap();
    assert_eq!(named.gid.gid_type, GidType::RoceV1);
    let text = |wish: &Wish| inventory.choose_among(wish, &[]).unwrap_err().to_string();
    assert_eq!(
        text(&wish(Some(2), None)),
        "RDMA device mlx5_0 has no port 2: it has ports 1 to 1"
    );
    let missing = text(&wish(None, Some(9)));
    assert!(
        missing.starts_with("RDMA device mlx5_0 port 1 has no usable GID at index 9"),
        "{missing}"
    );
    let wish = Wish::Device {
        name: "mlx4_0".to_owned(),
        port: None,
        gid_index: None,
    };
    assert_eq!(
        text(&wish),
        "there is no RDMA device \"mlx4_0\"; there are: mlx5_0, rxe0"
    );
    fake.change("mlx5_0", |device| device.guid = 0x0011_aabb_2233_0004);
    let inventory = discover(&fake.provider(), &tree.sysfs()).unwrap();
    let by_guid = |name: &str| {
        let wish = Wish::Device {
            name: name.to_owned(),
            port: None,
            gid_index: None,
        };
        inventory.choose_among(&wish, &[])
    };
    for name in ["guid:0011:aabb:2233:0004", "guid:0011:AABB:2233:0004"] {
        assert_eq!(by_guid(name).unwrap().device, "mlx5_0");
    }
    assert_eq!(
        by_guid("guid:0:0:0:1").unwrap_err().to_string(),
        "there is no RDMA device \"guid:0:0:0:1\"; there are: mlx5_0, rxe0"
    );
    assert_eq!(
        by_guid("guid:0000:0000:0000:0001").unwrap_err().to_string(),
        "there is no RDMA device \"guid:0000:0000:0000:0001\"; there are: mlx5_0 with \
         guid:0011:aabb:2233:0004, rxe0 with guid:0002:c903:0000:0001"
    );
}

#[test]
fn a_port_that_is_down_is_reported_as_down() {
    let (fake, tree) = machine();
    fake.change("rxe0", |device| {
        device.ports[0].attributes.state = PortState::Down;
    });
    let inventory = inventory(&fake, &tree);
    let named = Wish::Device {
        name: "rxe0".to_owned(),
        port: None,
        gid_index: None,
    };
    for wish in [netdev("v0"), named] {
        assert_eq!(
            inventory.choose_among(&wish, &[]).unwrap_err().to_string(),
            "RDMA device rxe0 port 1 is DOWN, not ACTIVE; check the cable and `ip link set \
             <netdev> up`; `rdma link` shows the state"
        );
    }
}

#[test]
fn a_port_without_addresses_is_reported_to_have_none() {
    let (fake, tree) = machine();
    fake.change("rxe0", |device| device.ports[0].gids.clear());
    let inventory = inventory(&fake, &tree);
    assert_eq!(
        inventory
            .choose_among(&netdev("v0"), &[])
            .unwrap_err()
            .to_string(),
        "RDMA device rxe0 port 1 has no GID that can be used on v0: its table has none; give its \
         network interface an address (`ip addr add`)"
    );
}

#[test]
fn a_routed_connection_is_not_given_a_gid_that_no_router_passes_on() {
    let (fake, tree) = machine();
    fake.change("rxe0", |device| device.ports[0].gids.truncate(1));
    tree.netdev("br0", 9, &["v0"]);
    let inventory = inventory(&fake, &tree);
    let at = |text: &str| LocalAddress {
        netdev: "br0".to_owned(),
        address: address(text),
    };
    let addresses = [at("192.0.2.1"), at("fe80::7")];
    let routed = Wish::Address(address("192.0.2.1"));
    assert_eq!(
        inventory
            .choose_among(&routed, &addresses)
            .unwrap_err()
            .to_string(),
        "RDMA device rxe0 port 1 has only link-local GIDs on v0 ([0] fe80::1 (RoCE v2)), which no \
         router passes on, and the connection runs from 192.0.2.1; give v0 an address (`ip addr \
         add`), or, where all peers are on its link, name the device in the settings"
    );
    // A wish for the link itself, or for the device by name, may get a link-local GID.
    let named = Wish::Device {
        name: "rxe0".to_owned(),
        port: None,
        gid_index: None,
    };
    for wish in [Wish::Address(address("fe80::7")), netdev("v0"), named] {
        let choice = inventory.choose_among(&wish, &addresses).unwrap();
        assert_eq!(place(&choice), ("rxe0", 1, 0), "{wish:?}");
    }
}

#[test]
fn on_infiniband_the_usual_gid_is_link_local_and_reaches_the_subnet() {
    let mut adapter = FakeDevice::infiniband("mlx5_0", 3);
    // Older kernels report InfiniBand's GIDs as RoCE v1's.
    for entry in &mut adapter.ports[0].gids {
        entry.gid_type = GidType::RoceV1;
        assert_eq!(entry.gid.scope(), GidScope::LinkLocal);
    }
    let fake = FakeProvider::new(vec![adapter]);
    let tree = SysfsTree::new();
    tree.netdev("ib0", 5, &[]);
    tree.hardware("mlx5_0", "-1", &["ib0"]);
    let addresses = [LocalAddress {
        netdev: "ib0".to_owned(),
        address: address("192.0.2.1"),
    }];
    let choice =
        inventory(&fake, &tree).choose_among(&Wish::Address(address("192.0.2.1")), &addresses);
    assert_eq!(place(&choice.unwrap()), ("mlx5_0", 1, 0));
}

#[test]
fn a_machine_with_its_files_hidden_still_has_its_devices() {
    let (fake, _) = machine();
    fake.change("rxe0", |device| device.attributes.vendor_id = 0xff_ffff);
    let tree = SysfsTree::new();
    fs::remove_dir_all(tree.path("sys")).unwrap();
    fake.refuse(Call::QueryPkey, Errno::NOENT);
    let inventory = inventory(&fake, &tree);
    let text = inventory.to_string();
    assert!(
        text.contains("P_Keys unknown\n    GID [0] fe80::1 (RoCE v2)\n"),
        "{text}"
    );
    // The vendor tells whether the device is hardware.
    let kinds = [DeviceKind::Hardware, DeviceKind::Software];
    assert_eq!(
        inventory
            .devices
            .iter()
            .map(|one| one.kind)
            .collect::<Vec<_>>(),
        kinds
    );
    // No file tells which device the interface belongs to, but an address is a GID.
    let at = |netdev: &str, text: &str| LocalAddress {
        netdev: netdev.to_owned(),
        address: address(text),
    };
    let addresses = [at("v0", "192.0.2.1"), at("eth9", "192.0.2.9")];
    let wish = Wish::Address(address("192.0.2.1"));
    let choice = inventory.choose_among(&wish, &addresses).unwrap();
    assert_eq!(place(&choice), ("rxe0", 1, 1));
    assert_eq!(choice.reason, "192.0.2.1 is one of its GIDs");
    let wish = Wish::Address(address("192.0.2.9"));
    assert_eq!(
        inventory
            .choose_among(&wish, &addresses)
            .unwrap_err()
            .to_string(),
        "no RDMA device belongs to the network interface eth9; devices are at: mlx5_0 at an \
         interface that only /sys tells, rxe0 at an interface that only /sys tells"
    );
}

#[test]
fn a_devices_near_cores_are_those_of_its_node_where_there_is_another() {
    let tree = SysfsTree::new();
    let node = |number: u32, cores: &str| {
        tree.file(
            &format!("sys/devices/system/node/node{number}/cpulist"),
            cores,
        );
    };
    let near = |numa_node: &str| {
        tree.hardware("mlx5_0", numa_node, &[]);
        tree.sysfs().near_cores("mlx5_0")
    };
    assert!(near("1").is_empty(), "the kernel has no nodes");
    // A node with memory and no processors does not count.
    node(1, "4-6,12");
    node(2, "");
    tree.file("sys/devices/system/node/online", "0-2");
    assert!(near("1").is_empty(), "all cores are on one node");
    node(0, "0-3,8-11");
    assert_eq!(near("1"), [4, 5, 6, 12]);
    assert_eq!(near("0"), [0, 1, 2, 3, 8, 9, 10, 11]);
    for elsewhere in ["-1", "", "one", "2", "7", "4294967296"] {
        assert!(near(elsewhere).is_empty(), "{elsewhere:?}");
    }
    assert!(tree.sysfs().near_cores("mlx5_1").is_empty());
    for malformed in [
        "6-4",
        "4-",
        "-4",
        "4,,5",
        "x",
        "0-8192",
        "0-18446744073709551616",
    ] {
        node(1, malformed);
        assert!(near("1").is_empty(), "{malformed:?}");
    }
    node(1, "8191");
    assert_eq!(near("1"), [8191]);
}

#[test]
fn counters_of_a_port_are_the_numbers_in_its_files() {
    let tree = SysfsTree::new();
    let port = "sys/class/infiniband/mlx5_0/ports/1";
    tree.file(&format!("{port}/hw_counters/out_of_sequence"), "3");
    tree.file(&format!("{port}/hw_counters/lifespan"), "10");
    tree.file(&format!("{port}/counters/port_rcv_data"), "12345678901");
    tree.file(&format!("{port}/counters/VL15_dropped"), "N/A");
    let sysfs = tree.sysfs();
    let expected = [("out_of_sequence", 3), ("port_rcv_data", 12_345_678_901)];
    let expected = expected.map(|(name, value)| (name.to_owned(), value));
    assert_eq!(sysfs.port_counters("mlx5_0", 1), expected);
    assert_eq!(sysfs.port_counters("mlx5_0", 2), []);
    assert_eq!(sysfs.port_counters("rxe0", 1), []);
}
