//! The port of an RDMA device that a measurement runs over, and what tells that it did.
//!
//! Both processes of a pair use the same port, so the one that measures chooses it and
//! passes it on. The device is the one that `IBEX_TEST_DEVICE` names, or the first with an
//! active port and a GID that serves.

#![forbid(unsafe_code)]

use std::{
    fmt, fs,
    net::{IpAddr, Ipv6Addr},
    path::Path,
    thread,
    time::Duration,
};

use serde::{Deserialize, Serialize};

use crate::{Error, port_counters::PortCounters};

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
    pub(crate) kind: u32,
}

impl VerbsPort {
    /// Chooses the port.
    ///
    /// # Errors
    /// [`Error::NoRdma`], with what is missing.
    #[cfg(feature = "verbs")]
    pub fn choose() -> Result<VerbsPort, Error> {
        crate::verbs_context::choose(std::env::var(DEVICE_VARIABLE).ok().as_deref())
    }

    /// Chooses the port.
    ///
    /// # Errors
    /// [`Error::NoRdma`]: verbs are not compiled in.
    #[cfg(not(feature = "verbs"))]
    pub fn choose() -> Result<VerbsPort, Error> {
        Err(Error::NoRdma(NOT_COMPILED_IN.to_owned()))
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

    /// Does some work, and tells how many sends the port carried out during it, if it
    /// counts them.
    ///
    /// # Errors
    /// Those of the work; and [`Error::NotCarried`] if there were no sends.
    pub fn during<R>(
        &self,
        work: impl FnOnce() -> Result<R, Error>,
    ) -> Result<(R, Option<u64>), Error> {
        let before = self.counters();
        let result = work()?;
        let sends = self.counters().since(before).sends;
        if sends == Some(0) {
            let device = self.device.clone();
            return Err(Error::NotCarried { device });
        }
        Ok((result, sends))
    }

    /// What the port has counted so far. The kernel hands out values up to 12 ms old,
    /// hence a wait.
    #[must_use]
    pub fn counters(&self) -> PortCounters {
        thread::sleep(COUNTERS_LAG);
        let VerbsPort { device, number, .. } = self;
        let folder = format!("/sys/class/infiniband/{device}/ports/{number}/hw_counters");
        PortCounters::read(Path::new(&folder))
    }

    /// The GID's place in the port's table.
    #[must_use]
    pub fn gid_index(&self) -> u8 {
        self.gid.index
    }

    /// Whether the kernel does the device's work, since no other device stands behind it.
    #[must_use]
    pub fn is_software(&self) -> bool {
        let behind = format!("/sys/class/infiniband/{}/device", self.device);
        !Path::new(&behind).exists()
    }

    /// The GID itself.
    #[must_use]
    pub fn gid(&self) -> [u8; 16] {
        self.gid.value
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

/// The release of rdma-core, which is in the name of its library's file:
/// `libibverbs.so.1.14.44.0` is of 44.0.
fn library_version(maps: &str) -> Option<&str> {
    let file = maps.split_once("/libibverbs.so.1.")?.1.lines().next()?;
    Some(file.split_once('.')?.1)
}

/// Names the device to use.
pub const DEVICE_VARIABLE: &str = "IBEX_TEST_DEVICE";

/// Why there is no port, and no limit, without the feature `verbs`.
#[cfg(not(feature = "verbs"))]
pub(crate) const NOT_COMPILED_IN: &str = "not compiled in: --features verbs";

/// `IBV_GID_TYPE_ROCE_V2` of rdma-core's infiniband/verbs.h.
pub(crate) const ROCE_V2: u32 = 2;
/// `RDMA_HW_STATS_DEFAULT_LIFESPAN` of the kernel is 10 ms; on a clock of 4 ms that is 12.
const COUNTERS_LAG: Duration = Duration::from_millis(20);

#[cfg(test)]
mod tests {
    use super::*;

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
