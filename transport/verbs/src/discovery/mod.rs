//! Lists the RDMA devices of a machine and chooses one of them.
//!
//! [`discover`] makes an [`Inventory`] of everything at one moment: devices, ports, GIDs
//! with their type and network interface, partitions, limits. [`Inventory::choose`] takes
//! one port and GID of it, by the address that a connection runs from, by a network
//! interface, or by name, and records why. GID indices move when addresses change, so an
//! inventory is for choosing, and the index is looked up again for each connection.

mod choice;
mod local_address;
mod sysfs;

use std::fmt;
use std::sync::Arc;

use crate::provider::{Provider, Transport};
use crate::{
    AtomicSupport, Device, DeviceAttributes, GidEntry, PortAttributes, PortState, VerbsError,
    device::guid::Guid,
};

pub use choice::{Choice, Wish};
pub use local_address::local_addresses;
pub use local_address::{LocalAddress, address_towards};
pub use sysfs::{DeviceKind, Sysfs};

/// The devices of a machine, at one moment.
#[derive(Clone, Debug)]
pub struct Inventory {
    /// The devices that libibverbs lists.
    pub devices: Vec<DeviceInfo>,
    sysfs: Sysfs,
}

/// A device of an inventory.
#[derive(Clone, Debug)]
pub struct DeviceInfo {
    /// The device's name, as in `/sys/class/infiniband`.
    pub name: String,
    /// The node's 64-bit identifier, which stays when the device is renamed; 0 if it has none.
    pub guid: u64,
    /// The kind of network that the device speaks.
    pub transport: Transport,
    /// The kind of the device: hardware or software.
    pub kind: DeviceKind,
    /// The NUMA node that the device is nearest to.
    pub numa_node: Option<u32>,
    /// The cores of that node. Empty where it is unknown, or where all cores are on one node.
    pub near_cores: Vec<usize>,
    /// The limits and ports of the device, or the reason why it cannot be used.
    pub details: Result<DeviceDetails, Obstacle>,
}

/// The reason why a device cannot be used. The error is shared, since inventories are cloned and
/// errors are not.
#[derive(Clone, Debug)]
pub struct Obstacle(pub Arc<VerbsError>);

/// The properties that only an open device tells.
#[derive(Clone, Debug)]
pub struct DeviceDetails {
    /// The limits of the device.
    pub attributes: DeviceAttributes,
    /// The ports, from number 1.
    pub ports: Vec<PortInfo>,
}

/// A port of a device.
#[derive(Clone, Debug)]
pub struct PortInfo {
    /// The port's number, from 1.
    pub number: u8,
    /// The port's state and limits.
    pub attributes: PortAttributes,
    /// The port's GIDs, by index.
    pub gids: Vec<GidInfo>,
    /// The port's table of partition keys; empty where it cannot be read.
    pub pkeys: Vec<u16>,
    /// Network interfaces that belong to the port, with GIDs or without.
    pub netdevs: Vec<String>,
}

/// A GID of a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GidInfo {
    /// The slot of the port's GID table.
    pub entry: GidEntry,
    /// The network interface that the GID belongs to.
    pub netdev: Option<String>,
}

/// Takes the inventory of all devices. A device that cannot be used is in it, with the reason.
///
/// # Errors
/// [`VerbsError`] if there is no library, no kernel support or no device at all.
pub fn discover(provider: &Arc<dyn Provider>, sysfs: &Sysfs) -> Result<Inventory, VerbsError> {
    let entries = provider.devices().map_err(|error| match error {
        // The library reports the same if it merely cannot see the kernel's files.
        VerbsError::NoKernelSupport { source, .. } => VerbsError::NoKernelSupport {
            source,
            hidden: sysfs.why_hidden(),
        },
        error => error,
    })?;
    if entries.is_empty() {
        return Err(VerbsError::NoDevice {
            hidden: sysfs.why_hidden(),
        });
    }
    let devices = entries
        .into_iter()
        .map(|entry| {
            let details =
                details(provider, sysfs, &entry.name).map_err(|error| Obstacle(Arc::new(error)));
            DeviceInfo {
                kind: match (sysfs.kind(&entry.name), &details) {
                    (DeviceKind::Unknown, Ok(details)) => kind_by_vendor(&details.attributes),
                    (kind, _) => kind,
                },
                numa_node: sysfs.numa_node(&entry.name),
                near_cores: sysfs.near_cores(&entry.name),
                details,
                guid: entry.guid,
                transport: entry.transport,
                name: entry.name,
            }
        })
        .collect();
    Ok(Inventory {
        devices,
        sysfs: sysfs.clone(),
    })
}

/// Returns the kind of a device if `/sys` does not tell. Among the drivers without hardware, only
/// soft-RoCE has reliable connections of RoCE, and 0xffffff is its vendor (`RXE_VENDOR_ID`,
/// [drivers/infiniband/sw/rxe/rxe_param.h](https://github.com/torvalds/linux/blob/master/drivers/infiniband/sw/rxe/rxe_param.h)).
fn kind_by_vendor(attributes: &DeviceAttributes) -> DeviceKind {
    match attributes.vendor_id {
        0 => DeviceKind::Unknown,
        0xff_ffff => DeviceKind::Software,
        _ => DeviceKind::Hardware,
    }
}

fn details(
    provider: &Arc<dyn Provider>,
    sysfs: &Sysfs,
    name: &str,
) -> Result<DeviceDetails, VerbsError> {
    let device = Device::open(provider, name)?;
    let ports = (1..=device.attributes().ports)
        .map(|number| {
            let gids = device.gids(number)?.into_iter().map(|entry| GidInfo {
                netdev: sysfs
                    .gid_netdev(name, number, entry.index)
                    .or_else(|| sysfs.interface_name(entry.interface_index)),
                entry,
            });
            Ok(PortInfo {
                number,
                attributes: device.query_port(number)?,
                gids: gids.collect(),
                // Older libraries read partition keys from /sys, which may be hidden. The keys are
                // only shown.
                pkeys: device.pkeys(number).unwrap_or_default(),
                netdevs: sysfs.port_netdevs(name, number),
            })
        })
        .collect::<Result<_, VerbsError>>()?;
    Ok(DeviceDetails {
        attributes: device.attributes().clone(),
        ports,
    })
}

impl DeviceInfo {
    /// Returns the device's ports; none if it cannot be used.
    pub fn ports(&self) -> impl Iterator<Item = &PortInfo> {
        self.details.iter().flat_map(|details| &details.ports)
    }
}

impl Obstacle {
    /// Makes the error for a caller that wanted the device.
    fn error(&self) -> VerbsError {
        VerbsError::Unusable {
            source: Arc::clone(&self.0),
        }
    }
}

impl PortInfo {
    /// Returns whether the port carries traffic.
    #[must_use]
    pub fn is_active(&self) -> bool {
        self.attributes.state == PortState::Active
    }
}

impl fmt::Display for Inventory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for device in &self.devices {
            write!(f, "{device}")?;
        }
        Ok(())
    }
}

impl fmt::Display for DeviceInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self.kind {
            DeviceKind::Hardware => "hardware",
            DeviceKind::Software => "software",
            DeviceKind::Unknown => "unknown whether hardware (/sys is hidden)",
        };
        write!(f, "{}: {kind}, {}", self.name, self.transport)?;
        if self.guid != 0 {
            write!(f, ", GUID {}", Guid(self.guid))?;
        }
        if let Some(node) = self.numa_node {
            write!(f, ", NUMA node {node}")?;
        }
        let details = match &self.details {
            Ok(details) => details,
            Err(obstacle) => return writeln!(f, "\n  cannot be used: {}", obstacle.0),
        };
        let can = &details.attributes;
        writeln!(
            f,
            ", firmware {}, vendor {:#06x} part {}",
            can.firmware, can.vendor_id, can.vendor_part_id
        )?;
        writeln!(
            f,
            "  up to {} queue pairs of {} requests, {} scatter entries; {} completions per queue, {} \
             completion vectors",
            can.max_queue_pairs,
            can.max_queue_pair_requests,
            can.max_entries,
            can.max_completions,
            can.completion_vectors
        )?;
        match can.max_shared_receive_queues {
            0 => writeln!(f, "  no shared receive queues")?,
            queues => writeln!(
                f,
                "  up to {queues} shared receive queues of {} requests",
                can.max_shared_receive_requests
            )?,
        }
        writeln!(
            f,
            "  up to {} memory windows, {} reads or atomics at once from a queue pair, {}",
            can.max_windows,
            can.max_initiator_depth,
            match can.atomics {
                AtomicSupport::None => "no atomics",
                AtomicSupport::Device => "atomics among the device's own",
                AtomicSupport::Global => "atomics also with the processor's",
                AtomicSupport::Unknown(_) => "atomics of an unknown kind",
            }
        )?;
        details
            .ports
            .iter()
            .try_for_each(|port| write!(f, "{port}"))
    }
}

impl fmt::Display for PortInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let port = &self.attributes;
        write!(
            f,
            "  port {}: {}, {}, MTU {} of {}",
            self.number, port.state, port.link_layer, port.active_mtu, port.max_mtu
        )?;
        if port.lid != 0 {
            write!(f, ", LID {}", port.lid)?;
        }
        if let (Some(lanes), Some(megabits)) = (port.width.lanes(), port.speed.megabits()) {
            write!(f, ", {} Gbps", f64::from(lanes * megabits) / 1000.0)?;
        }
        if !self.netdevs.is_empty() {
            write!(f, ", on {}", self.netdevs.join(", "))?;
        }
        let pkeys: Vec<_> = self.pkeys.iter().map(|key| format!("{key:#06x}")).collect();
        match pkeys.as_slice() {
            [] => writeln!(f, ", P_Keys unknown")?,
            pkeys => writeln!(f, ", P_Keys {}", pkeys.join(" "))?,
        }
        for gid in &self.gids {
            write!(f, "    GID {}", gid.entry)?;
            match &gid.netdev {
                Some(netdev) => writeln!(f, " on {netdev}")?,
                None => writeln!(f)?,
            }
        }
        Ok(())
    }
}
