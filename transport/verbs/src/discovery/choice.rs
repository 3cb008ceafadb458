//! Chooses one port, GID and partition of an inventory, and says why.
#![forbid(unsafe_code)]

use std::net::IpAddr;
use std::{fmt, io};

use super::local_address::{LocalAddress, address_towards, local_addresses};
use super::{DeviceInfo, DeviceKind, GidInfo, Inventory, PortInfo};
use crate::{
    Gid, GidEntry, GidScope, GidType, LinkLayer, Mtu, PartitionKey, VerbsError, device::guid::Guid,
};

/// The wish by which a device is chosen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Wish {
    /// A device for connections from this local address, such as that of the bootstrap connection.
    Address(IpAddr),
    /// The device of this network interface, or of an interface that it stands on.
    Netdev(String),
    /// A device by its name, or by its node's identifier in the form `guid:0002:c903:0000:0001`, with
    /// its first active port and best GID, unless they are named too.
    Device {
        /// The name or the GUID of the device.
        name: String,
        /// The number of the port.
        port: Option<u8>,
        /// The place of the GID in the port's table.
        gid_index: Option<u32>,
    },
}

impl Wish {
    /// Makes the wish for a device on the way to a host, by the kernel's routes. Sends nothing.
    ///
    /// # Errors
    /// If the name is not known, or no route leads there.
    pub fn towards(host: &str) -> io::Result<Self> {
        address_towards(host).map(Self::Address)
    }
}

/// A port, a GID and a partition, with the reason for them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choice {
    /// The name of the device.
    pub device: String,
    /// The kind of the device: hardware or software.
    pub kind: DeviceKind,
    /// The number of the port.
    pub port: u8,
    /// The GID of this end. The GID's index is looked up again, by its value, for each connection.
    pub gid: GidEntry,
    /// The network interface of the GID.
    pub netdev: Option<String>,
    /// The partition of the route's interface, or of an interface that it stands on; IPoIB
    /// interfaces have one. The partition's place in the port's table is looked up for each
    /// connection. `None` stands for the partition of the table's first key.
    pub partition_key: Option<PartitionKey>,
    /// The MTU of the port now. A connection takes the smaller one of both ends.
    pub mtu: Mtu,
    /// The reason for this choice, for people.
    pub reason: String,
}

impl fmt::Display for Choice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} port {} with GID {} and MTU {}",
            self.device, self.port, self.gid, self.mtu
        )?;
        if let Some(key) = self.partition_key {
            write!(f, " in partition {key}")?;
        }
        write!(f, ": {}", self.reason)
    }
}

/// A GID of a port that may be chosen.
#[derive(Clone, Copy)]
struct Candidate<'inventory> {
    device: &'inventory DeviceInfo,
    port: &'inventory PortInfo,
    gid: &'inventory GidInfo,
}

impl Inventory {
    /// Chooses a port, GID and partition, with the reason.
    ///
    /// # Errors
    /// [`VerbsError`] if nothing fits, with the devices, interfaces or GIDs that there are.
    pub fn choose(&self, wish: &Wish) -> Result<Choice, VerbsError> {
        // If the kernel does not list addresses, the error says that no interface has the address.
        self.choose_among(wish, &local_addresses().unwrap_or_default())
    }

    /// Chooses as [`choose`](Self::choose) does, where `addresses` are those of this machine. The
    /// addresses are needed for [`Wish::Address`], and for a network interface that `/sys` does not
    /// show.
    ///
    /// # Errors
    /// The errors of [`choose`](Self::choose).
    pub fn choose_among(
        &self,
        wish: &Wish,
        addresses: &[LocalAddress],
    ) -> Result<Choice, VerbsError> {
        match wish {
            Wish::Address(address) => self.by_address(*address, addresses),
            Wish::Netdev(netdev) => {
                let why = format!("{netdev} was asked for");
                match self.by_netdev(netdev, None, &why) {
                    Err(VerbsError::NoDeviceForNetdev { present, .. })
                        if self.lacks_netdev(netdev, addresses) =>
                    {
                        Err(VerbsError::NoSuchNetdev {
                            netdev: netdev.clone(),
                            present: self.sysfs.all_netdevs(),
                            devices: present,
                        })
                    }
                    found => found,
                }
            }
            Wish::Device {
                name,
                port,
                gid_index,
            } => self.by_name(name, *port, *gid_index),
        }
    }

    fn by_address(
        &self,
        address: IpAddr,
        addresses: &[LocalAddress],
    ) -> Result<Choice, VerbsError> {
        let owner = addresses.iter().find(|entry| entry.address == address);
        match owner {
            Some(owner) => {
                let why = format!("the address {address} is on {}", owner.netdev);
                match self.by_netdev(&owner.netdev, Some(address), &why) {
                    // Only /sys tells which device an interface belongs to, but the GIDs are known
                    // without it.
                    Err(error @ VerbsError::NoDeviceForNetdev { .. }) => {
                        self.by_gid(address).ok_or(error)
                    }
                    found => found,
                }
            }
            None => Err(VerbsError::NoSuchAddress { address }),
        }
    }

    /// Chooses by an interface, then by the interfaces that it stands on; `from` is the address
    /// of the connection, whose GID is taken before all others.
    fn by_netdev(
        &self,
        netdev: &str,
        from: Option<IpAddr>,
        why: &str,
    ) -> Result<Choice, VerbsError> {
        let preferred = from.map(Gid::of);
        // A peer at a link-local address is on the same link.
        let routed = from.filter(|_| preferred.map(Gid::scope) != Some(GidScope::LinkLocal));
        let below = self.sysfs.below(netdev);
        let interfaces = || std::iter::once(netdev).chain(below.iter().map(String::as_str));
        let partition_key = interfaces().find_map(|one| self.sysfs.partition_key(one));
        let mut inactive = None;
        let mut confined = None;
        for interface in interfaces() {
            let mut found = self.candidates_on(interface);
            found.sort_by_key(|one| {
                let is_other = preferred != Some(one.gid.entry.gid);
                let is_soft = one.device.kind != DeviceKind::Hardware;
                let entry = &one.gid.entry;
                (is_other, is_soft, entry.preference(), entry.index)
            });
            let active = found.iter().find(|one| one.port.is_active());
            inactive = inactive.or(found.first().copied());
            if let (Some(one), Some(address)) = (active, routed)
                && one.reaches_only_its_link()
            {
                confined = confined.or(Some((*one, interface.to_owned(), address)));
                continue;
            }
            if let Some(one) = active {
                let choice = one.choice(match interface == netdev {
                    true => why.to_owned(),
                    false => format!("{why}, which stands on {interface}"),
                });
                return Ok(Choice {
                    partition_key,
                    ..choice
                });
            }
        }
        if let Some((one, netdev, address)) = confined {
            return Err(VerbsError::OnlyLinkLocal {
                device: one.device.name.clone(),
                port: one.port.number,
                netdev,
                address,
                present: entries(one.port),
            });
        }
        if let Some(one) = inactive {
            return Err(not_active(one.device, one.port));
        }
        // A port may belong there and have no GID that serves, or not be usable at all.
        let named = |name: &String| name == netdev || below.contains(name);
        for device in &self.devices {
            for port in device.ports() {
                if port.netdevs.iter().any(named) {
                    return Err(no_usable_gid(device, port, Some(netdev)));
                }
            }
            if let Err(obstacle) = &device.details
                && self.sysfs.netdevs(&device.name).iter().any(named)
            {
                return Err(obstacle.error());
            }
        }
        Err(VerbsError::NoDeviceForNetdev {
            netdev: netdev.to_owned(),
            parents: below,
            present: self.places(),
        })
    }

    /// Returns whether no such network interface exists, as far as can be known: `/sys` may be
    /// hidden, or show those of another network namespace.
    fn lacks_netdev(&self, netdev: &str, addresses: &[LocalAddress]) -> bool {
        !self.sysfs.all_netdevs().is_empty()
            && !self.sysfs.has_netdev(netdev)
            && addresses.iter().all(|entry| entry.netdev != netdev)
    }

    /// Chooses the GID of an active port that is this address.
    fn by_gid(&self, address: IpAddr) -> Option<Choice> {
        let mut found = self.candidates(|_, gid| gid.entry.gid == Gid::of(address));
        found.retain(|one| one.port.is_active());
        let best = found.iter().min_by_key(|one| one.gid.entry.preference())?;
        Some(best.choice(format!("{address} is one of its GIDs")))
    }

    fn by_name(
        &self,
        name: &str,
        port: Option<u8>,
        gid_index: Option<u32>,
    ) -> Result<Choice, VerbsError> {
        let guid = Guid::of_name(name);
        let is_meant = |device: &&DeviceInfo| match &guid {
            Some(guid) => device.guid == guid.0,
            None => device.name == name,
        };
        let named = |device: &DeviceInfo| match guid {
            Some(_) => format!("{} with guid:{}", device.name, Guid(device.guid)),
            None => device.name.clone(),
        };
        let device = self.devices.iter().find(is_meant);
        let device = device.ok_or_else(|| VerbsError::NoSuchDevice {
            name: name.to_owned(),
            present: self.devices.iter().map(named).collect(),
        })?;
        if let Err(obstacle) = &device.details {
            return Err(obstacle.error());
        }
        let is_found =
            |one: &&PortInfo| port.map_or(one.is_active(), |number| one.number == number);
        // If no port is active, the first port is taken, so that the error is about a port.
        let first = device.ports().next().filter(|_| port.is_none());
        let found = device.ports().find(is_found).or(first);
        let found = found.ok_or_else(|| VerbsError::NoSuchPort {
            device: device.name.clone(),
            port: port.unwrap_or(1),
            ports: device.ports().count() as u8,
        })?;
        if !found.is_active() {
            return Err(not_active(device, found));
        }
        let usable = found.gids.iter().filter(|gid| {
            let is_meant = gid_index.is_none_or(|index| gid.entry.index == index);
            is_meant && gid.entry.preference().is_some()
        });
        let gid = usable.min_by_key(|gid| (gid.entry.preference(), gid.entry.index));
        match (gid, gid_index) {
            (Some(gid), _) => {
                let port = found;
                let one = Candidate { device, port, gid };
                Ok(one.choice(format!("{name} was asked for")))
            }
            (None, Some(index)) => Err(VerbsError::NoSuchGid {
                device: device.name.clone(),
                port: found.number,
                index,
                present: entries(found),
            }),
            (None, None) => Err(no_usable_gid(device, found, None)),
        }
    }

    /// Returns the usable GIDs of one interface; where GIDs name no interface, as on InfiniBand,
    /// all GIDs of the port that the interface belongs to.
    fn candidates_on(&self, interface: &str) -> Vec<Candidate<'_>> {
        self.candidates(|port, gid| match &gid.netdev {
            Some(netdev) => netdev == interface,
            None => port.netdevs.iter().any(|netdev| netdev == interface),
        })
    }

    /// Returns the usable GIDs that are `wanted`.
    fn candidates(&self, wanted: impl Fn(&PortInfo, &GidInfo) -> bool) -> Vec<Candidate<'_>> {
        let mut found = Vec::new();
        for device in &self.devices {
            for port in device.ports() {
                for gid in &port.gids {
                    if gid.entry.preference().is_some() && wanted(port, gid) {
                        found.push(Candidate { device, port, gid });
                    }
                }
            }
        }
        found
    }

    /// Lists the devices with their interfaces, for an error.
    fn places(&self) -> Vec<String> {
        let mut places = Vec::new();
        for device in &self.devices {
            let mut netdevs: Vec<&str> = Vec::new();
            for port in device.ports() {
                netdevs.extend(port.netdevs.iter().map(String::as_str));
                netdevs.extend(port.gids.iter().filter_map(|gid| gid.netdev.as_deref()));
            }
            netdevs.sort_unstable();
            netdevs.dedup();
            let place = match netdevs.as_slice() {
                [] if self.sysfs.is_hidden() => "an interface that only /sys tells".to_owned(),
                [] => "no interface".to_owned(),
                netdevs => netdevs.join(" and "),
            };
            places.push(match &device.details {
                Ok(_) => format!("{} at {place}", device.name),
                Err(obstacle) => format!("{}, but {}", device.name, obstacle.0),
            });
        }
        places
    }
}

impl Candidate<'_> {
    /// Returns whether no packet with this GID gets past a router. On InfiniBand, GIDs with the
    /// default prefix are the usual ones, and a subnet is more than a link.
    fn reaches_only_its_link(&self) -> bool {
        self.gid.entry.gid.scope() == GidScope::LinkLocal
            && self.gid.entry.gid_type != GidType::InfiniBand
            && self.port.attributes.link_layer != LinkLayer::InfiniBand
    }

    fn choice(&self, reason: String) -> Choice {
        Choice {
            device: self.device.name.clone(),
            kind: self.device.kind,
            port: self.port.number,
            gid: self.gid.entry,
            netdev: self.gid.netdev.clone(),
            partition_key: None,
            mtu: self.port.attributes.active_mtu,
            reason,
        }
    }
}

fn not_active(device: &DeviceInfo, port: &PortInfo) -> VerbsError {
    VerbsError::PortNotActive {
        device: device.name.clone(),
        port: port.number,
        state: port.attributes.state,
    }
}

fn no_usable_gid(device: &DeviceInfo, port: &PortInfo, netdev: Option<&str>) -> VerbsError {
    VerbsError::NoUsableGid {
        device: device.name.clone(),
        port: port.number,
        netdev: netdev.map(str::to_owned),
        present: entries(port),
    }
}

fn entries(port: &PortInfo) -> Vec<GidEntry> {
    port.gids.iter().map(|gid| gid.entry).collect()
}
