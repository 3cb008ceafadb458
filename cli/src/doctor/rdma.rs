//! What RDMA needs: a driver, modules, device files, a provider, ports, GIDs, MTU, partitions.

use super::Diagnosis;
use crate::devices::{Device, Port};
use crate::root::Root;

pub(super) fn check(root: &Root, devices: &[Device], diagnosis: &mut Diagnosis) {
    let found = cards(root, diagnosis);
    if devices.is_empty() {
        let text = match found {
            0 => {
                "no RDMA card on the PCI bus and no software device: sessions with other hosts take tcp"
            }
            _ => "the kernel has no RDMA device yet",
        };
        diagnosis.fine("rdma-devices", text);
        return;
    }
    let names: Vec<_> = devices.iter().map(|device| device.name.as_str()).collect();
    diagnosis.fine(
        "rdma-devices",
        format!("the kernel has {}", names.join(", ")),
    );
    modules(root, devices, diagnosis);
    provider(root, devices, diagnosis);
    // The library would only repeat a problem that is known.
    if root.is_machine() && !diagnosis.has_problem() {
        library(diagnosis);
    }
    firmware(devices, diagnosis);
    for device in devices {
        for port in &device.ports {
            let name = format!("{} port {}", device.name, port.number);
            state(&name, port, diagnosis);
            gid_table(&name, port, diagnosis);
            mtu(&name, port, diagnosis);
            partitions(&name, port, diagnosis);
        }
    }
    diagnosis.fine("port-state", "every port is ACTIVE");
    diagnosis.fine("gid-table", "every port has a GID that sessions can use");
    diagnosis.fine(
        "mtu",
        "no RoCE port is known to carry less than 4096 bytes in a packet",
    );
    diagnosis.fine("p-key", "every port is a full member of a partition");
}

/// Compares the firmware of cards of one board, which are meant to be alike.
fn firmware(devices: &[Device], diagnosis: &mut Diagnosis) {
    let known = |device: &&Device| device.is_hardware && device.firmware.is_some();
    for device in devices.iter().filter(known) {
        let other = devices.iter().filter(known).find(|other| {
            other.board.is_some()
                && other.board == device.board
                && other.firmware != device.firmware
        });
        let (Some(other), Some(firmware)) = (other, &device.firmware) else {
            continue;
        };
        let theirs = other.firmware.as_deref().unwrap_or_default();
        if device.name < other.name {
            diagnosis.warning(
                "firmware",
                format!(
                    "{} has firmware {firmware}, and {} of the same board {theirs}.",
                    device.name, other.name
                ),
                "Limits and faults differ by firmware, so sessions behave differently by device.",
                "update both by the vendor's tool (mlxfwmanager, niccli, devlink dev flash)",
            );
        }
    }
    let all = devices.iter().filter_map(|device| {
        let firmware = device.firmware.as_ref()?;
        Some(format!("{} {firmware}", device.name))
    });
    let all: Vec<_> = all.collect();
    diagnosis.fine(
        "firmware",
        match all.is_empty() {
            true => "no device tells it".to_owned(),
            false => all.join(", "),
        },
    );
}

/// Checks the cards on the PCI bus, and returns how many there are.
fn cards(root: &Root, diagnosis: &mut Diagnosis) -> usize {
    let mut found = 0;
    for address in root.names("/sys/bus/pci/devices") {
        let folder = format!("/sys/bus/pci/devices/{address}");
        let id = |file: &str| root.read(&format!("{folder}/{file}")).unwrap_or_default();
        let (class, vendor, device) = (id("class"), id("vendor"), id("device"));
        let Some(modules) = modules_of(&class, &vendor, &device) else {
            continue;
        };
        found += 1;
        let card = format!(
            "the PCI device {address} ({}:{})",
            vendor.trim_start_matches("0x"),
            device.trim_start_matches("0x")
        );
        match root.link_name(&format!("{folder}/driver")) {
            None => diagnosis.problem(
                "pci-driver",
                format!("{card} can do RDMA and has no driver."),
                "Without its driver the kernel has no RDMA device, and sessions take tcp.",
                format!("modprobe -a {modules} (then `dmesg | grep -i {address}` says why it failed)"),
            ),
            // Virtual machines and user-space drivers hold a card by these.
            Some(driver) if driver.starts_with("vfio") || driver.starts_with("uio") => diagnosis.problem(
                "pci-driver",
                format!("{card} can do RDMA and is held by {driver}."),
                "A card that a virtual machine or a user-space driver holds is none for the kernel.",
                format!("echo {address} > /sys/bus/pci/drivers/{driver}/unbind && modprobe -a {modules}"),
            ),
            Some(driver) if root.names(&format!("{folder}/infiniband")).is_empty() => diagnosis.problem(
                "rdma-driver",
                format!("{card} has the driver {driver}, and no RDMA device."),
                "The driver of the network card is loaded, and that of its RDMA part is not.",
                format!("modprobe -a {modules}"),
            ),
            Some(_) => {}
        }
    }
    if found > 0 {
        diagnosis.fine("pci-driver", "every RDMA card has its driver");
    }
    found
}

/// Returns the modules of a card that can do RDMA; `None` for other devices.
fn modules_of(class: &str, vendor: &str, device: &str) -> Option<&'static str> {
    let is_infiniband = class.starts_with("0x0207");
    let is_network = class.starts_with("0x02");
    // NVIDIA's cards up to ConnectX-3 are of these numbers (drivers/net/ethernet/mellanox/mlx4).
    let is_mlx4 = device.starts_with("0x100") || device.starts_with("0x67");
    match vendor {
        "0x15b3" if is_network && is_mlx4 => Some("mlx4_core mlx4_ib ib_uverbs"),
        "0x15b3" if is_network => Some("mlx5_core mlx5_ib ib_uverbs"),
        "0x1d0f" if device.starts_with("0xefa") => Some("efa ib_uverbs"),
        "0x8086" if is_infiniband => Some("hfi1 ib_uverbs"),
        "0x1425" if is_infiniband => Some("iw_cxgb4 ib_uverbs"),
        _ if is_infiniband => Some("ib_core ib_uverbs"),
        _ => None,
    }
}

/// Checks the module that gives devices to processes, and its files.
fn modules(root: &Root, devices: &[Device], diagnosis: &mut Diagnosis) {
    if !root.exists("/sys/class/infiniband_verbs") {
        diagnosis.problem(
            "ib-uverbs",
            "The kernel has RDMA devices, and the module ib_uverbs is not loaded.",
            "Programs open a device through ib_uverbs; without it libibverbs finds none.",
            "modprobe ib_uverbs (for a container, on the host)",
        );
        return;
    }
    diagnosis.fine("ib-uverbs", "the module is loaded");
    for device in devices {
        let Some(file) = &device.device_file else {
            continue;
        };
        if !root.exists(file) {
            diagnosis.problem(
                "device-files",
                format!("{} has no file here: {file} is missing.", device.name),
                "A container or PrivateDevices= of systemd hides it, and nobody can open the device.",
                "docker run --device=/dev/infiniband ...; in a systemd unit PrivateDevices=no",
            );
        } else if !device.is_openable {
            diagnosis.problem(
                "device-files",
                format!("{file} of {} cannot be opened by this user.", device.name),
                "A program of this user gets no queue pairs on it.",
                "usermod -aG rdma $USER and a new login; or chmod 0666 /dev/infiniband/uverbs*",
            );
        }
    }
    diagnosis.fine("device-files", "this user can open every device");
}

/// Checks for libibverbs and for the provider library of each driver.
fn provider(root: &Root, devices: &[Device], diagnosis: &mut Diagnosis) {
    let folders = [
        "/usr/lib64",
        "/usr/lib",
        "/lib64",
        "/lib",
        "/usr/local/lib",
        "/usr/local/lib64",
    ];
    let machine = ["x86_64-linux-gnu", "aarch64-linux-gnu"];
    let below = folders
        .iter()
        .flat_map(|folder| machine.map(|name| format!("{folder}/{name}")));
    let mut all = folders
        .iter()
        .map(|folder| (*folder).to_owned())
        .chain(below);
    if !all.any(|folder| root.exists(&format!("{folder}/libibverbs.so.1"))) {
        diagnosis.problem(
            "libibverbs",
            "There is no libibverbs.so.1 where libraries usually are.",
            "ibex looks for it when a program starts, and has no verbs without it.",
            "apt install libibverbs1 ibverbs-providers (Fedora: dnf install libibverbs)",
        );
        return;
    }
    diagnosis.fine("libibverbs", "libibverbs.so.1 is there");
    let known = root.names("/etc/libibverbs.d");
    for device in devices {
        let Some(wanted) = provider_of(root, device) else {
            continue;
        };
        if !known.contains(&format!("{wanted}.driver")) {
            diagnosis.problem(
                "provider",
                format!(
                    "/etc/libibverbs.d names no provider library {wanted}, which {} needs.",
                    device.name
                ),
                "libibverbs leaves out a device whose provider it does not find.",
                "apt install ibverbs-providers, of the same release as libibverbs1",
            );
        }
    }
    diagnosis.fine("provider", "every device has its provider library");
}

/// Asks libibverbs for the devices, as a node does.
#[cfg(feature = "verbs")]
fn library(diagnosis: &mut Diagnosis) {
    const WHY: &str =
        "A node asks libibverbs in the same way, and takes no verbs where it gets none.";
    const MEND: &str =
        "what the text says; the table of `ibex::rdma` has each obstacle with its remedy";
    match ibex::rdma::discover() {
        Err(error) => diagnosis.problem("device-list", error.to_string(), WHY, MEND),
        Ok(inventory) => {
            for device in &inventory.devices {
                if let Err(obstacle) = &device.details {
                    let seen = format!("{} cannot be used: {}", device.name, obstacle.0);
                    diagnosis.problem("device-list", seen, WHY, MEND);
                }
            }
        }
    }
    diagnosis.fine(
        "device-list",
        "libibverbs lists every device, and each can be opened",
    );
}

#[cfg(not(feature = "verbs"))]
fn library(diagnosis: &mut Diagnosis) {
    diagnosis.fine(
        "device-list",
        "libibverbs not asked: this build lacks the feature `verbs`",
    );
}

/// Returns the name of the provider library in rdma-core.
fn provider_of(root: &Root, device: &Device) -> Option<String> {
    let parent = format!("/sys/class/infiniband/{}/parent", device.name);
    let name = match &device.driver {
        Some(driver) => match driver.as_str() {
            "mlx5_core" => "mlx5",
            "mlx4_core" => "mlx4",
            "ice" | "i40e" | "irdma" | "idpf" => "irdma",
            "bnxt_en" | "bnxt_re" => "bnxt_re",
            "cxgb4" => "cxgb4",
            "qede" | "qed" | "qedr" => "qedr",
            "hns3" => "hns",
            "efa" => "efa",
            "mana" => "mana",
            _ => return None,
        },
        None if root.exists(&parent) && device.name.starts_with("siw") => "siw",
        None if root.exists(&parent) => "rxe",
        None => return None,
    };
    Some(name.to_owned())
}

fn state(name: &str, port: &Port, diagnosis: &mut Diagnosis) {
    if port.is_active() {
        return;
    }
    let physical = port.physical_state.as_ref();
    let physical = physical.map_or_else(String::new, |state| format!(" (physically {state})"));
    let netdev = port.netdevs.first().map_or("NETDEV", String::as_str);
    let mend = match (port.is_ethernet(), port.state.as_str()) {
        (true, _) => format!("ip link set {netdev} up; then the cable and the switch's port"),
        (false, "INIT") => "start a subnet manager: systemctl start opensm on one host".to_owned(),
        (false, _) => {
            format!("ip link set {netdev} up; then the cable, the switch and the subnet manager")
        }
    };
    diagnosis.problem(
        "port-state",
        format!("{name} is {}, not ACTIVE{physical}.", port.state),
        "A port that is not ACTIVE carries no traffic, so no session takes it.",
        mend,
    );
}

fn gid_table(name: &str, port: &Port, diagnosis: &mut Diagnosis) {
    if !port.is_active() || !port.is_ethernet() {
        return;
    }
    let netdev = port.netdevs.first().map_or("NETDEV", String::as_str);
    let mut routable = port
        .gids
        .iter()
        .filter(|gid| !gid.is_link_local())
        .peekable();
    if routable.peek().is_none() {
        let seen = match port.gids.len() {
            0 => format!("The GID table of {name} is empty."),
            _ => format!("{name} has only link-local GIDs."),
        };
        diagnosis.problem(
            "gid-table",
            seen,
            "RoCE takes its addresses from the network interface; without one no peer can be reached.",
            format!("ip address add ADDRESS/LENGTH dev {netdev}"),
        );
    } else if !routable.any(|gid| gid.is_roce_v2() || gid.kind.is_none()) {
        diagnosis.warning(
            "gid-table",
            format!("{name} has only GIDs of RoCE v1."),
            "RoCE v1 crosses no router, and a peer with RoCE v2 cannot be reached by it.",
            format!(
                "cma_roce_mode -d {} -p {} -m 2, or newer firmware",
                name.split(' ').next().unwrap_or(name),
                port.number
            ),
        );
    }
}

fn mtu(name: &str, port: &Port, diagnosis: &mut Diagnosis) {
    let (Some(mtu), Some(netdev)) = (port.netdev_mtu_bytes, port.netdevs.first()) else {
        return;
    };
    if !port.is_ethernet() || port.mtu_bytes == Some(4096) {
        return;
    }
    let carried = match port.mtu_bytes {
        Some(mtu) => format!("{mtu} bytes"),
        None => "nothing".to_owned(),
    };
    let why = "A packet of RDMA is 256 to 4096 bytes, as many as fit into the interface's MTU; large \
               messages are faster in large packets. A connection has the smaller MTU of both ends.";
    let mend =
        format!("ip link set {netdev} mtu 4200, there and on the switch and the other hosts");
    let seen =
        format!("{netdev} of {name} has MTU {mtu}, so a packet of RDMA carries {carried} of 4096.");
    match port.mtu_bytes {
        Some(_) => diagnosis.warning("mtu", seen, why, mend),
        None => diagnosis.problem("mtu", seen, why, mend),
    }
}

fn partitions(name: &str, port: &Port, diagnosis: &mut Diagnosis) {
    if !port.is_active() {
        return;
    }
    let keys = port.partition_keys.iter();
    let mut keys =
        keys.filter_map(|key| u16::from_str_radix(key.trim_start_matches("0x"), 16).ok());
    let mend = "make the port a full member in the subnet manager's partitions (opensm: partitions.conf, \
                `Default=0x7fff, ALL=full;`)";
    if port.partition_keys.is_empty() {
        diagnosis.problem(
            "p-key",
            format!("The table of partition keys of {name} is empty or hidden."),
            "A queue pair has to be in a partition, so none can be connected.",
            mend,
        );
    } else if !keys.any(|key| key & 0x8000 != 0) {
        diagnosis.warning(
            "p-key",
            format!(
                "{name} has only limited membership: P_Keys {}.",
                port.partition_keys.join(" ")
            ),
            "Two limited members of a partition cannot talk to each other, only to full members.",
            mend,
        );
    }
}
