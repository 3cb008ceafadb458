//! The port of an RDMA device that a measurement runs over, and what tells that it did.
//!
//! Both processes of a pair use the same port, so the one that measures chooses it and
//! passes it on. The device is the one that `IBEX_TEST_DEVICE` names, or the first with an
//! active port and a GID that serves.

use std::{
    ffi::{CStr, c_int},
    fmt, fs,
    mem::zeroed,
    net::{IpAddr, Ipv6Addr},
    thread,
    time::Duration,
};

use rdma_sys as sys;
use serde::{Deserialize, Serialize};

use crate::Error;

/// An active port, and the GID that its connections come from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VerbsPort {
    pub(crate) device: String,
    pub(crate) number: u8,
    pub(crate) gid: GidEntry,
    /// The LID; 0 on Ethernet.
    pub(crate) lid: u16,
    /// Whether packets need the global header: always on Ethernet.
    pub(crate) is_global: bool,
    /// Payload of a packet, as an `ibv_mtu`.
    pub(crate) mtu: u32,
}

/// One slot of a port's GID table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct GidEntry {
    pub(crate) index: u8,
    pub(crate) value: [u8; 16],
    kind: u32,
}

impl VerbsPort {
    /// Chooses the port.
    ///
    /// # Errors
    /// [`Error::NoRdma`], with what is missing.
    pub fn choose() -> Result<VerbsPort, Error> {
        let wanted = std::env::var(DEVICE_VARIABLE).ok();
        let devices = Devices::list()?;
        let mut obstacles = Vec::new();
        for device in devices.all() {
            let name = device_name(*device);
            if wanted.as_ref().is_some_and(|wanted| *wanted != name) {
                obstacles.push(format!("{name} is not what {DEVICE_VARIABLE} names"));
                continue;
            }
            match VerbsPort::of(&name) {
                Ok(port) => return Ok(port),
                Err(Error::NoRdma(why)) => obstacles.push(why),
                Err(other) => return Err(other),
            }
        }
        Err(Error::NoRdma(match (&wanted, obstacles.is_empty()) {
            (Some(name), true) => format!("there is no device at all, and not {name}"),
            (None, true) => "there is no device".to_owned(),
            (_, false) => obstacles.join("; "),
        }))
    }

    /// The first port of a device that serves.
    fn of(device: &str) -> Result<VerbsPort, Error> {
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

    /// The IP address that its GID stands for, if it stands for one: connections from
    /// there are on this port's network.
    #[must_use]
    pub fn address(&self) -> Option<IpAddr> {
        let address = Ipv6Addr::from(self.gid.value);
        let mapped = address.to_ipv4_mapped().map(IpAddr::V4);
        // A link-local one means nothing without its interface.
        let is_routed = self.gid.kind == ROCE_V2 && !address.is_unicast_link_local();
        mapped.or(is_routed.then_some(IpAddr::V6(address)))
    }

    /// How many sends and writes the port has carried out, or `None` if the device does
    /// not count them. The kernel hands out values up to 12 ms old, hence the wait.
    #[must_use]
    pub fn sends(&self) -> Option<u64> {
        let VerbsPort { device, number, .. } = self;
        let path = format!("/sys/class/infiniband/{device}/ports/{number}/hw_counters/rdma_sends");
        thread::sleep(COUNTERS_LAG);
        fs::read_to_string(path).ok()?.trim().parse().ok()
    }

    /// The GID's place in the port's table.
    #[must_use]
    pub fn gid_index(&self) -> u8 {
        self.gid.index
    }

    /// The device's name.
    #[must_use]
    pub fn device(&self) -> &str {
        &self.device
    }
}

/// The device, port and GID, with the kernel and library that drive it.
impl fmt::Display for VerbsPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let VerbsPort {
            device,
            number,
            gid,
            ..
        } = self;
        let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
        let maps = fs::read_to_string("/proc/self/maps").unwrap_or_default();
        write!(
            f,
            "{device} port {number} with GID [{}] {}, Linux {}, rdma-core {}",
            gid.index,
            Ipv6Addr::from(gid.value),
            kernel.trim(),
            library_version(&maps).unwrap_or("of unknown version"),
        )
    }
}

impl GidEntry {
    /// Lower is better; `None` is of no use. On InfiniBand the first entry is the port's
    /// own; on Ethernet what routers understand comes first, then what people can read.
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

/// The list of devices, until it is dropped.
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
        // SAFETY: the library says that the list has so many entries; it lives as long
        // as we do.
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
                // An address has no room for more.
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
        // SAFETY: it is open, and whatever was made from it is gone: who makes something
        // keeps the context longer.
        unsafe { sys::ibv_close_device(self.0) };
    }
}

fn device_name(device: *mut sys::ibv_device) -> String {
    // SAFETY: an entry of a list that exists; its name is a C string inside of it.
    let name = unsafe { CStr::from_ptr(sys::ibv_get_device_name(device)) };
    name.to_string_lossy().into_owned()
}

/// The release of rdma-core, which is in the name of its library's file:
/// `libibverbs.so.1.14.44.0` is of 44.0.
fn library_version(maps: &str) -> Option<&str> {
    let file = maps.split_once("/libibverbs.so.1.")?.1.lines().next()?;
    Some(file.split_once('.')?.1)
}

/// Names the device to use.
pub const DEVICE_VARIABLE: &str = "IBEX_TEST_DEVICE";

const IB: u32 = sys::IBV_GID_TYPE_IB;
const ROCE_V1: u32 = sys::IBV_GID_TYPE_ROCE_V1;
const ROCE_V2: u32 = sys::IBV_GID_TYPE_ROCE_V2;
/// `IBV_LINK_LAYER_ETHERNET`.
const ETHERNET: u8 = 2;
/// `IBV_QPF_GRH_REQUIRED`.
const GRH_REQUIRED: u8 = 1;
/// `RDMA_HW_STATS_DEFAULT_LIFESPAN` of the kernel is 10 ms; on a clock of 4 ms that is 12.
const COUNTERS_LAG: Duration = Duration::from_millis(20);

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

    #[test]
    fn a_file_name_tells_the_release() {
        let maps = "7f00-7f01 r--p 00000000 08:01 1 /usr/lib/libc.so.6\n\
                    7f02-7f03 r-xp 00000000 08:01 2 /usr/lib/libibverbs.so.1.14.44.0\n\
                    7f04-7f05 r-xp 00000000 08:01 2 /usr/lib/librxe-rdmav34.so\n";
        assert_eq!(library_version(maps), Some("44.0"));
        assert_eq!(library_version("7f00 /usr/lib/libc.so.6\n"), None);
    }

    /// Where there is a device and where there is none: nothing else than the two.
    #[test]
    fn this_machine_is_told_as_it_is() {
        match VerbsPort::choose() {
            Ok(port) => assert!(port.to_string().starts_with(port.device())),
            Err(error) => assert!(error.to_string().starts_with("RDMA cannot be used: ")),
        }
    }
}
