//! The way to a host, and the RDMA device on it.

use std::net::{IpAddr, Ipv6Addr};

use ibex_verbs::discovery::{address_towards, local_addresses};
use serde::Serialize;

use crate::devices::{Device, Gid, Port};
use crate::root::Root;

/// A way, and what RDMA has on it.
#[derive(Debug, Serialize)]
pub(crate) struct Route {
    /// The host or the network interface that was asked for.
    pub(crate) asked_for: String,
    /// This machine's address on the way; `None` if a network interface was asked for.
    pub(crate) local_address: Option<IpAddr>,
    /// The network interface of the way, and those that it stands on, nearest first.
    pub(crate) netdevs: Vec<String>,
    #[serde(flatten, serialize_with = "choice_or_reason")]
    pub(crate) choice: Result<Choice, String>,
    /// Set if the host is this one.
    pub(crate) is_this_host: bool,
}

/// A port and GID of a device.
#[derive(Debug, Serialize)]
pub(crate) struct Choice {
    pub(crate) device: String,
    pub(crate) is_hardware: bool,
    pub(crate) port: u8,
    pub(crate) gid_index: u32,
    pub(crate) gid: Ipv6Addr,
    /// In bytes; `None` where only the device knows, and this build cannot ask it.
    pub(crate) mtu_bytes: Option<u32>,
    pub(crate) reason: String,
}

impl Choice {
    /// Returns the number of the MTU in `enum ibv_mtu`.
    pub(crate) fn mtu_index(&self) -> Option<u32> {
        self.mtu_bytes.map(|bytes| bytes.ilog2() - 7)
    }
}

/// Finds the way to a host.
///
/// # Errors
/// The name is not known, or no route leads there.
pub(crate) fn to_host(root: &Root, devices: &[Device], host: &str) -> Result<Route, String> {
    let towards =
        address_towards(host).map_err(|error| format!("there is no way to {host}: {error}"))?;
    let addresses = local_addresses().unwrap_or_default();
    let netdev = addresses.iter().find(|local| local.address == towards);
    let netdev = netdev.map(|local| local.netdev.clone());
    let peers = std::net::ToSocketAddrs::to_socket_addrs(&(host, 0));
    let is_this_host = peers.is_ok_and(|mut peers| {
        peers.any(|peer| {
            peer.ip().is_loopback() || addresses.iter().any(|local| local.address == peer.ip())
        })
    });
    let chain = netdev.map_or_else(Vec::new, |netdev| chain(root, netdev));
    let choice = match wished(root, &Wish::Address(towards)) {
        Some(choice) => choice,
        None => choose(devices, &chain, Some(towards)),
    };
    Ok(Route {
        asked_for: host.to_owned(),
        local_address: Some(towards),
        netdevs: chain,
        choice,
        is_this_host,
    })
}

/// Finds the device of a network interface.
///
/// # Errors
/// There is no such interface.
pub(crate) fn over_netdev(root: &Root, devices: &[Device], netdev: &str) -> Result<Route, String> {
    if !root.sysfs().has_netdev(netdev) {
        let present = root.names("/sys/class/net").join(", ");
        return Err(format!(
            "there is no network interface {netdev}; this machine has {present}"
        ));
    }
    let chain = chain(root, netdev.to_owned());
    let choice = match wished(root, &Wish::Netdev(netdev)) {
        Some(choice) => choice,
        None => choose(devices, &chain, None),
    };
    Ok(Route {
        asked_for: netdev.to_owned(),
        local_address: None,
        netdevs: chain,
        choice,
        is_this_host: false,
    })
}

fn chain(root: &Root, netdev: String) -> Vec<String> {
    let below = root.sysfs().below(&netdev);
    std::iter::once(netdev).chain(below).collect()
}

/// What a device is chosen by.
#[cfg_attr(
    not(feature = "verbs"),
    expect(dead_code, reason = "for the library alone")
)]
enum Wish<'a> {
    Address(IpAddr),
    Netdev(&'a str),
}

/// Returns the library's choice, if this build can ask for it, and the files are this machine's.
#[cfg(feature = "verbs")]
fn wished(root: &Root, wish: &Wish<'_>) -> Option<Result<Choice, String>> {
    use ibex_verbs::discovery::DeviceKind;

    if !root.is_machine() {
        return None;
    }
    let wish = match wish {
        Wish::Address(address) => ibex::rdma::Wish::Address(*address),
        Wish::Netdev(netdev) => ibex::rdma::Wish::Netdev((*netdev).to_owned()),
    };
    let choice = ibex::rdma::discover().and_then(|inventory| inventory.choose(&wish));
    Some(
        choice
            .map_err(|error| error.to_string())
            .map(|choice| Choice {
                is_hardware: choice.kind != DeviceKind::Software,
                port: choice.port,
                gid_index: choice.gid.index,
                gid: Ipv6Addr::from(choice.gid.gid.0),
                mtu_bytes: Some(choice.mtu.bytes()),
                reason: choice.reason,
                device: choice.device,
            }),
    )
}

#[cfg(not(feature = "verbs"))]
fn wished(_: &Root, _: &Wish<'_>) -> Option<Result<Choice, String>> {
    None
}

/// Chooses by the kernel's files alone: the first active port whose network interface the way has,
/// and its best GID.
fn choose(devices: &[Device], chain: &[String], address: Option<IpAddr>) -> Result<Choice, String> {
    if devices.is_empty() {
        return Err("this machine has no RDMA device".to_owned());
    }
    let way = match chain {
        [] => return Err("no network interface has the address of the way".to_owned()),
        [netdev] => netdev.clone(),
        [netdev, below @ ..] => format!("{netdev} (which stands on {})", below.join(", ")),
    };
    let mut obstacle = None;
    let ports = devices
        .iter()
        .flat_map(|device| device.ports.iter().map(move |port| (device, port)));
    for (device, port) in
        ports.filter(|(_, port)| port.netdevs.iter().any(|netdev| chain.contains(netdev)))
    {
        let name = format!("{} port {}", device.name, port.number);
        if !port.is_active() {
            obstacle = Some(format!(
                "{name} belongs to {way} and is {}, not ACTIVE",
                port.state
            ));
            continue;
        }
        let Some(gid) = best_gid(port, chain, address) else {
            obstacle = Some(format!(
                "{name} belongs to {way} and has no GID that can be used"
            ));
            continue;
        };
        return Ok(Choice {
            device: device.name.clone(),
            is_hardware: device.is_hardware,
            port: port.number,
            gid_index: gid.index,
            gid: gid.gid,
            mtu_bytes: port.mtu_bytes,
            reason: format!("it belongs to {way}"),
        });
    }
    Err(obstacle.unwrap_or_else(|| {
        let names: Vec<_> = devices.iter().map(|device| device.name.as_str()).collect();
        format!(
            "no RDMA device belongs to {way}; this machine has {}",
            names.join(", ")
        )
    }))
}

fn best_gid<'a>(port: &'a Port, chain: &[String], address: Option<IpAddr>) -> Option<&'a Gid> {
    let address = address.map(|address| match address {
        IpAddr::V4(address) => address.to_ipv6_mapped(),
        IpAddr::V6(address) => address,
    });
    let rank = |gid: &&Gid| {
        let is_of_way = gid
            .netdev
            .as_ref()
            .is_some_and(|netdev| chain.first() == Some(netdev));
        (
            Some(gid.gid) == address,
            is_of_way,
            !gid.is_link_local(),
            gid.is_roce_v2(),
            std::cmp::Reverse(gid.index),
        )
    };
    let usable = port
        .gids
        .iter()
        .filter(|gid| !port.is_ethernet() || !gid.is_link_local());
    usable.max_by_key(rank)
}

/// Writes a choice as `choice`, or the reason why there is none as `no_choice`.
fn choice_or_reason<S: serde::Serializer>(
    choice: &Result<Choice, String>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    use serde::ser::SerializeMap;

    let mut map = serializer.serialize_map(Some(1))?;
    match choice {
        Ok(choice) => map.serialize_entry("choice", choice)?,
        Err(why) => map.serialize_entry("no_choice", why)?,
    }
    map.end()
}
