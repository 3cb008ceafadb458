//! Open RDMA devices, and the choice among them.

use std::net::Ipv6Addr;

use ibex_verbs::{
    GidType, LinkLayer, PortState, VerbsError,
    provider::{Libibverbs, OpenedContext, Provider, Transport},
};

use crate::{
    Error,
    verbs_port::{DEVICE_VARIABLE, GidEntry, ROCE_V2, VerbsPort},
};

/// Chooses the device with the wanted name, or the first, and its first usable port.
pub(crate) fn choose(wanted: Option<&str>) -> Result<VerbsPort, Error> {
    let library = Libibverbs::load().map_err(absent)?;
    let devices = library.devices().map_err(absent)?;
    let names: Vec<_> = devices.into_iter().map(|device| device.name).collect();
    if let Some(wanted) = wanted {
        if !names.iter().any(|name| name == wanted) {
            return Err(Error::NoRdma(format!(
                "there is no device {wanted}, which {DEVICE_VARIABLE} names, among {names:?}"
            )));
        }
        return port_of(wanted);
    }
    let mut obstacles = Vec::new();
    for name in &names {
        match port_of(name) {
            Err(Error::NoRdma(why)) => obstacles.push(why),
            other => return other,
        }
    }
    Err(Error::NoRdma(if obstacles.is_empty() {
        "there is no device".to_owned()
    } else {
        obstacles.join("; ")
    }))
}

/// Returns the first usable port of a device.
fn port_of(device: &str) -> Result<VerbsPort, Error> {
    let context = Context::open(device)?;
    let (library, handle) = (&context.library, context.opened.handle);
    // SAFETY: the context is open.
    let attributes = unsafe { library.query_device(handle) };
    let attributes =
        attributes.map_err(|_| Error::NoRdma(format!("{device} cannot be queried")))?;
    let mut obstacles = Vec::new();
    for number in 1..=attributes.ports {
        // SAFETY: as above.
        let port = unsafe { library.query_port(handle, number) };
        let Some(port) = port.ok().filter(|port| port.state == PortState::Active) else {
            obstacles.push(format!("{device} port {number} is not active"));
            continue;
        };
        let is_ethernet = port.link_layer == LinkLayer::Ethernet;
        let gid = context
            .gids(number, port.gid_table_len)
            .into_iter()
            .filter_map(|gid| Some((gid.preference(is_ethernet)?, gid)))
            .min_by_key(|(preference, gid)| (*preference, gid.index));
        match gid {
            Some((_, gid)) => {
                return Ok(VerbsPort {
                    device: device.to_owned(),
                    number,
                    gid,
                    lid: port.lid,
                    is_global: is_ethernet || port.needs_global_route,
                    mtu: port.active_mtu.to_raw(),
                });
            }
            None => obstacles.push(format!("{device} port {number} has no usable GID")),
        }
    }
    Err(Error::NoRdma(obstacles.join("; ")))
}

/// Makes the error of a machine that has no verbs.
fn absent(error: VerbsError) -> Error {
    let text = error.to_string();
    let why = text.strip_prefix("RDMA cannot be used: ").unwrap_or(&text);
    Error::NoRdma(why.to_owned())
}

impl GidEntry {
    /// Ranks a GID: lower is better, `None` is unusable. On InfiniBand the first entry is the
    /// port's own. On Ethernet routable addresses come first, then readable ones.
    fn preference(&self, is_ethernet: bool) -> Option<u8> {
        let address = Ipv6Addr::from(self.value);
        let is_link_local = address.is_unicast_link_local();
        match (is_ethernet, self.kind) {
            _ if address.is_unspecified() => None,
            (false, IB) => (self.index == 0).then_some(0),
            (true, ROCE_V2) if address.to_ipv4_mapped().is_some() => Some(0),
            (true, ROCE_V2) if !is_link_local => Some(1),
            (true, ROCE_V2) => Some(2),
            (true, ROCE_V1) => Some(3 + u8::from(is_link_local)),
            _ => None,
        }
    }
}

/// An open device.
pub(crate) struct Context {
    pub(crate) library: Libibverbs,
    pub(crate) opened: OpenedContext,
}

impl Context {
    pub(crate) fn open(device: &str) -> Result<Context, Error> {
        let library = Libibverbs::load().map_err(absent)?;
        let devices = library.devices().map_err(absent)?;
        let found = devices.iter().find(|entry| entry.name == device);
        if found.is_some_and(|entry| entry.transport != Transport::InfiniBand) {
            return Err(Error::NoRdma(format!(
                "{device} speaks neither InfiniBand nor RoCE"
            )));
        }
        let opened = library.open(device).map_err(absent)?;
        Ok(Context { library, opened })
    }

    fn gids(&self, port: u8, table_len: u32) -> Vec<GidEntry> {
        // An address handle has no room for a larger index.
        let indices = 0..=u8::MAX;
        let ours = indices.take_while(|index| u32::from(*index) < table_len);
        ours.filter_map(|index| {
            // SAFETY: the context is open.
            let entry = unsafe {
                let handle = self.opened.handle;
                self.library.query_gid(handle, port, index.into())
            };
            let entry = entry.ok()??;
            Some(GidEntry {
                index,
                value: entry.gid.0,
                kind: match entry.gid_type {
                    GidType::InfiniBand => IB,
                    GidType::RoceV1 => ROCE_V1,
                    GidType::RoceV2 => ROCE_V2,
                    GidType::Unknown(kind) => kind,
                },
            })
        })
        .collect()
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: it is open, and everything made from it is gone, since each such object keeps the
        // context longer.
        let _ = unsafe { self.library.destroy(self.opened.handle.into()) };
    }
}

/// `IBV_GID_TYPE_IB`.
const IB: u32 = 0;
/// `IBV_GID_TYPE_ROCE_V1`.
const ROCE_V1: u32 = 1;

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(index: u8, kind: u32, address: &str) -> GidEntry {
        let address: Ipv6Addr = address.parse().unwrap();
        GidEntry {
            index,
            kind,
            value: address.octets(),
        }
    }

    fn best(is_ethernet: bool, table: &[GidEntry]) -> Option<u8> {
        let usable = table
            .iter()
            .filter(|gid| gid.preference(is_ethernet).is_some());
        let best = usable.min_by_key(|gid| (gid.preference(is_ethernet), gid.index));
        best.map(|gid| gid.index)
    }

    #[test]
    fn routers_before_people_before_links() {
        let mut table = vec![
            entry(0, ROCE_V1, "fe80::1"),
            entry(1, ROCE_V2, "fe80::1"),
            entry(2, ROCE_V1, "::ffff:192.0.2.1"),
            entry(3, ROCE_V2, "2001:db8::1"),
            entry(4, ROCE_V2, "::ffff:192.0.2.1"),
            entry(5, ROCE_V2, "::ffff:192.0.2.9"),
        ];
        for left in [4, 3, 1, 2, 0] {
            assert_eq!(best(true, &table), Some(left));
            table.retain(|gid| gid.index < 5 && gid.index != left);
        }
        assert_eq!(best(true, &[entry(0, ROCE_V2, "::")]), None);
    }

    #[test]
    fn infiniband_has_one() {
        let table = [entry(1, IB, "fe80::2"), entry(0, IB, "fe80::1")];
        assert_eq!(best(false, &table), Some(0));
        assert_eq!(best(true, &table), None);
    }
}
