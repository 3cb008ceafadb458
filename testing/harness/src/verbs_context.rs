//! Open RDMA devices, and the choice among them.

use std::{
    ffi::{CStr, c_int},
    mem::zeroed,
    net::Ipv6Addr,
};

use rdma_sys as sys;

use crate::{
    Error,
    verbs_port::{DEVICE_VARIABLE, GidEntry, ROCE_V2, VerbsPort},
};

/// Chooses the device with the wanted name, or the first, and its first usable port.
pub(crate) fn choose(wanted: Option<&str>) -> Result<VerbsPort, Error> {
    let devices = Devices::list()?;
    let names: Vec<_> = devices
        .all()
        .iter()
        .map(|device| device_name(*device))
        .collect();
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
    // SAFETY: integers and byte arrays, for which zeros are a value.
    let mut attributes: sys::ibv_device_attr = unsafe { zeroed() };
    // SAFETY: the context is open, the attributes are written to.
    let status = unsafe { sys::ibv_query_device(context.0, &raw mut attributes) };
    if status != 0 {
        return Err(Error::NoRdma(format!("{device} cannot be queried")));
    }
    let mut obstacles = Vec::new();
    for number in 1..=attributes.phys_port_cnt {
        // SAFETY: integers, for which zeros are a value.
        let mut port: sys::ibv_port_attr = unsafe { zeroed() };
        // SAFETY: as above.
        let status = unsafe { sys::ibv_query_port(context.0, number, &raw mut port) };
        if status != 0 || port.state != sys::ibv_port_state::IBV_PORT_ACTIVE {
            obstacles.push(format!("{device} port {number} is not active"));
            continue;
        }
        let is_ethernet = port.link_layer == ETHERNET;
        let gid = context
            .gids(number, port.gid_tbl_len)
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
                    is_global: is_ethernet || port.flags & GRH_REQUIRED != 0,
                    mtu: port.active_mtu,
                });
            }
            None => obstacles.push(format!("{device} port {number} has no usable GID")),
        }
    }
    Err(Error::NoRdma(obstacles.join("; ")))
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

/// The list of devices, freed when it is dropped.
struct Devices {
    list: *mut *mut sys::ibv_device,
    count: usize,
}

impl Devices {
    fn list() -> Result<Devices, Error> {
        // SAFETY: takes a number and gives a static string; null if the bindings found no
        // library to ask.
        if unsafe { sys::ibv_node_type_str(sys::ibv_node_type::IBV_NODE_CA) }.is_null() {
            return Err(Error::NoRdma(
                "libibverbs.so.1 cannot be loaded; it comes with rdma-core".to_owned(),
            ));
        }
        let mut count: c_int = 0;
        // SAFETY: the count is written to; the list is freed when it is dropped.
        let list = unsafe { sys::ibv_get_device_list(&raw mut count) };
        if list.is_null() {
            let why = std::io::Error::last_os_error();
            return Err(Error::NoRdma(format!(
                "the kernel lists no devices ({why}); is its module ib_uverbs loaded?"
            )));
        }
        Ok(Devices {
            list,
            count: usize::try_from(count).unwrap_or(0),
        })
    }

    fn all(&self) -> &[*mut sys::ibv_device] {
        // SAFETY: the library says that the list has this many entries; it lives as long as we do.
        unsafe { std::slice::from_raw_parts(self.list, self.count) }
    }
}

impl Drop for Devices {
    fn drop(&mut self) {
        // SAFETY: it came from `ibv_get_device_list`, and contexts outlive it.
        unsafe { sys::ibv_free_device_list(self.list) };
    }
}

/// An open device.
pub(crate) struct Context(pub(crate) *mut sys::ibv_context);

impl Context {
    pub(crate) fn open(device: &str) -> Result<Context, Error> {
        let devices = Devices::list()?;
        let found = devices
            .all()
            .iter()
            .find(|entry| device_name(**entry) == device);
        let Some(&found) = found else {
            return Err(Error::NoRdma(format!("there is no device {device}")));
        };
        // SAFETY: an entry of the list, which is still there.
        let transport = unsafe { (*found).transport_type };
        if transport != sys::ibv_transport_type::IBV_TRANSPORT_IB {
            return Err(Error::NoRdma(format!(
                "{device} speaks neither InfiniBand nor RoCE"
            )));
        }
        // SAFETY: as above.
        let context = unsafe { sys::ibv_open_device(found) };
        if context.is_null() {
            let why = std::io::Error::last_os_error();
            return Err(Error::NoRdma(format!("{device} cannot be opened: {why}")));
        }
        Ok(Context(context))
    }

    fn gids(&self, port: u8, table_len: c_int) -> Vec<GidEntry> {
        let table_len = usize::try_from(table_len).unwrap_or(0);
        // SAFETY: integers, for which zeros are a value.
        let mut table: Vec<sys::ibv_gid_entry> = vec![unsafe { zeroed() }; table_len];
        // SAFETY: the context is open, and the table has as many slots as we say.
        let count = unsafe { sys::ibv_query_gid_table(self.0, table.as_mut_ptr(), table.len(), 0) };
        table.truncate(usize::try_from(count).unwrap_or(0));
        let ours = table
            .iter()
            .filter(|entry| entry.port_num == u32::from(port));
        ours.filter_map(|entry| {
            Some(GidEntry {
                // An address handle has no room for a larger index.
                index: u8::try_from(entry.gid_index).ok()?,
                // SAFETY: every bit pattern is a value of both fields of the union.
                value: unsafe { entry.gid.raw },
                kind: entry.gid_type,
            })
        })
        .collect()
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: it is open, and everything made from it is gone, since each such object keeps the
        // context longer.
        unsafe { sys::ibv_close_device(self.0) };
    }
}

fn device_name(device: *mut sys::ibv_device) -> String {
    // SAFETY: an entry of a list that exists; its name is a C string inside of it.
    let name = unsafe { CStr::from_ptr(sys::ibv_get_device_name(device)) };
    name.to_string_lossy().into_owned()
}

/// `IBV_LINK_LAYER_ETHERNET`.
const ETHERNET: u8 = 2;
/// `IBV_QPF_GRH_REQUIRED`.
const GRH_REQUIRED: u8 = 1;
const IB: u32 = sys::IBV_GID_TYPE_IB;
const ROCE_V1: u32 = sys::IBV_GID_TYPE_ROCE_V1;
const _: () = assert!(ROCE_V2 == sys::IBV_GID_TYPE_ROCE_V2);

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
