//! What discovery says of devices that are missing or cannot be used, over fake devices and a
//! `/sys` made of files.

use std::fs;

use rustix::io::Errno;

use super::{
    discovery::{address, inventory, machine, netdev},
    sysfs_tree::SysfsTree,
    *,
};
use crate::{
    VerbsError,
    discovery::{LocalAddress, Wish, discover},
    provider::{Transport, fake::Call},
};

#[test]
fn an_interface_without_a_device_is_told_where_devices_are() {
    let (fake, tree) = machine();
    tree.netdev("br0", 20, &["lo"]);
    let inventory = inventory(&fake, &tree);
    assert_eq!(
        inventory
            .choose_among(&netdev("br0"), &[])
            .unwrap_err()
            .to_string(),
        "no RDMA device belongs to the network interface br0 or what is below it (lo); devices \
         are at: mlx5_0 at eth0 and eth0.100, rxe0 at v0"
    );
}

#[test]
fn an_interface_that_is_not_there_is_told_from_one_without_a_device() {
    let (fake, tree) = machine();
    tree.file("sys/class/net/bonding_masters", "");
    let inventory = inventory(&fake, &tree);
    let error = |name: &str, addresses: &[LocalAddress]| {
        let error = inventory
            .choose_among(&netdev(name), addresses)
            .unwrap_err();
        error.to_string()
    };
    assert_eq!(
        error("mlx5_0", &[]),
        "this machine has no network interface mlx5_0; there are: eth0, eth0.100, lo, v0; RDMA \
         devices are at: mlx5_0 at eth0 and eth0.100, rxe0 at v0"
    );
    // An interface with an address exists, even if `/sys` does not show it.
    let seen = LocalAddress {
        netdev: "eth7".to_owned(),
        address: address("203.0.113.7"),
    };
    assert!(error("eth7", &[seen]).starts_with("no RDMA device belongs to"));
    assert!(error("lo", &[]).starts_with("no RDMA device belongs to"));
}

#[test]
fn a_device_that_cannot_be_used_is_listed_with_its_reason() {
    let (fake, tree) = machine();
    fake.change("rxe0", |device| device.transport = Transport::Iwarp);
    fake.refuse(Call::Open, Errno::ACCESS);
    let text = inventory(&fake, &tree).to_string();
    assert!(
        text.contains("mlx5_0: hardware, InfiniBand/RoCE, GUID 0002:c903:0000:0001, NUMA node 1\n  cannot be used: RDMA"),
        "{text}"
    );
    assert!(
        text.contains("rxe0: software, iWARP, GUID 0002:c903:0000:0001\n  cannot be used: RDMA"),
        "{text}"
    );
}

/// Returns the message about a machine where the library finds nothing.
fn nothing_found(tree: &SysfsTree) -> String {
    let fake = FakeProvider::new(Vec::new());
    let error = discover(&fake.provider(), &tree.sysfs()).unwrap_err();
    assert!(error.is_absence());
    error.to_string()
}

#[test]
fn a_missing_device_is_explained_by_what_hides_it() {
    let none = "RDMA cannot be used: this machine has no RDMA device; ";
    let tree = SysfsTree::new();
    assert_eq!(
        nothing_found(&tree),
        format!(
            "{none}ib_uverbs is not loaded: if there is hardware, `modprobe ib_uverbs` and its \
             driver (inside a container, have the host do so)"
        )
    );
    fs::create_dir_all(tree.path("sys/class/infiniband_verbs")).unwrap();
    assert_eq!(
        nothing_found(&tree),
        format!(
            "{none}`rdma link` lists them; without hardware, `rdma link add rxe0 type rxe netdev \
             <netdev>` makes a software device"
        )
    );
    tree.hardware("mlx5_0", "0", &[]);
    let files_hidden = format!(
        "{none}the kernel has mlx5_0, but its files in /dev/infiniband are not here: give a \
         container --device=/dev/infiniband, or a systemd service PrivateDevices=no"
    );
    assert_eq!(nothing_found(&tree), files_hidden);
    // A sandbox may leave the directory.
    tree.file("dev/infiniband/rdma_cm", "");
    assert_eq!(nothing_found(&tree), files_hidden);
    tree.file("dev/infiniband/uverbs0", "");
    assert_eq!(
        nothing_found(&tree),
        format!(
            "{none}the kernel has mlx5_0, but no provider library knows them: install \
             ibverbs-providers"
        )
    );
    fs::remove_dir_all(tree.path("sys/class/infiniband_verbs")).unwrap();
    assert_eq!(
        nothing_found(&tree),
        format!(
            "{none}the kernel has mlx5_0, but ib_uverbs is not loaded: `modprobe ib_uverbs` \
             (inside a container, have the host do so)"
        )
    );
    fs::remove_dir_all(tree.path("sys")).unwrap();
    assert_eq!(
        nothing_found(&tree),
        format!("{none}/sys is not mounted here, and without it none may be found: mount it")
    );
}

#[test]
fn missing_verbs_in_the_kernel_are_explained_by_what_hides_them() {
    let text = |tree: &SysfsTree| {
        let fake = one_device();
        fake.refuse(Call::Devices, Errno::NOSYS);
        let error = discover(&fake.provider(), &tree.sysfs()).unwrap_err();
        assert!(error.is_absence());
        error.to_string()
    };
    let none = "RDMA cannot be used: the kernel offers no verbs (Function not implemented (os \
                error 38)); ";
    let tree = SysfsTree::new();
    assert_eq!(
        text(&tree),
        format!(
            "{none}ib_uverbs is not loaded: if there is hardware, `modprobe ib_uverbs` and its \
             driver (inside a container, have the host do so)"
        )
    );
    fs::remove_dir_all(tree.path("sys")).unwrap();
    assert_eq!(
        text(&tree),
        format!("{none}/sys is not mounted here, and without it none may be found: mount it")
    );
}

#[test]
fn a_wish_for_an_unusable_device_is_refused_with_the_reason() {
    let (fake, tree) = machine();
    tree.netdev("eth1", 3, &[]);
    fake.refuse(Call::Open, Errno::ACCESS);
    let inventory = inventory(&fake, &tree);
    let named = Wish::Device {
        name: "mlx5_0".to_owned(),
        port: None,
        gid_index: None,
    };
    let obstacle = "RDMA device mlx5_0 cannot be opened: Permission denied (os error 13); let \
                    this user read and write /dev/infiniband/uverbs* (group rdma; systemd: \
                    PrivateDevices=no or DeviceAllow=)";
    for wish in [named, netdev("eth0"), netdev("eth0.100")] {
        let error = inventory.choose_among(&wish, &[]).unwrap_err();
        assert!(
            matches!(&error, VerbsError::Unusable { source }
                if matches!(&**source, VerbsError::Open { .. })),
            "{error:?}"
        );
        assert_eq!(error.to_string(), obstacle);
    }
    assert_eq!(
        inventory
            .choose_among(&netdev("eth1"), &[])
            .unwrap_err()
            .to_string(),
        format!(
            "no RDMA device belongs to the network interface eth1; devices are at: mlx5_0, but \
             {obstacle}, rxe0 at v0"
        )
    );
}
