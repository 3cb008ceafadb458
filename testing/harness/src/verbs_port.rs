//! The port of an RDMA device that a measurement runs over, and evidence that it did.
//!
//! Both processes of a pair use the same port, so the measuring one chooses it and passes it on.
//! The device is the one that `IBEX_TEST_DEVICE` names, or the first with an active port and a
//! usable GID.

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

/// An active port, and the GID from which its connections come.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VerbsPort {
    pub(crate) device: String,
    pub(crate) number: u8,
    pub(crate) gid: GidEntry,
    /// The LID; 0 on Ethernet.
    pub(crate) lid: u16,
    /// Set if packets need the global header, as they always do on Ethernet.
    pub(crate) is_global: bool,
    /// Payload of a packet, as an `ibv_mtu`.
    pub(crate) mtu: u32,
}

/// A slot of a port's GID table.
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

    /// Returns the IP address that the GID encodes, if it does. Connections from it are on this
    /// port's network.
    #[must_use]
    pub fn address(&self) -> Option<IpAddr> {
        let address = Ipv6Addr::from(self.gid.value);
        let mapped = address.to_ipv4_mapped().map(IpAddr::V4);
        // A link-local address means nothing without its interface.
        let is_routed = self.gid.kind == ROCE_V2 && !address.is_unicast_link_local();
        mapped.or(is_routed.then_some(IpAddr::V6(address)))
    }

    /// Runs `work`. Returns also the number of sends that the port executed during it, if the port
    /// counts them.
    ///
    /// # Errors
    /// The errors of the work; and [`Error::NotCarried`] if there were no sends.
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

    /// Reads the port's counters. The kernel reports values up to 12 ms old, hence the wait.
    #[must_use]
    pub fn counters(&self) -> PortCounters {
        thread::sleep(COUNTERS_LAG);
        let VerbsPort { device, number, .. } = self;
        let folder = format!("/sys/class/infiniband/{device}/ports/{number}/hw_counters");
        PortCounters::read(Path::new(&folder))
    }

    /// Returns the GID's index in the port's table.
    #[must_use]
    pub fn gid_index(&self) -> u8 {
        self.gid.index
    }

    /// Returns whether the device is software in the kernel, with no other device behind it.
    #[must_use]
    pub fn is_software(&self) -> bool {
        let behind = format!("/sys/class/infiniband/{}/device", self.device);
        !Path::new(&behind).exists()
    }

    /// Returns the GID.
    #[must_use]
    pub fn gid(&self) -> [u8; 16] {
        self.gid.value
    }

    /// Returns the device's name.
    #[must_use]
    pub fn device(&self) -> &str {
        &self.device
    }
}

/// Formats device, port and GID, with the kernel and library that drive them.
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

/// Returns the release of rdma-core, from the name of its library's file: `libibverbs.so.1.14.44.0`
/// is of 44.0.
fn library_version(maps: &str) -> Option<&str> {
    let file = maps.split_once("/libibverbs.so.1.")?.1.lines().next()?;
    Some(file.split_once('.')?.1)
}

/// The environment variable that names the device to use.
pub const DEVICE_VARIABLE: &str = "IBEX_TEST_DEVICE";

/// The reason why there is no port, and no limit, without the feature `verbs`.
#[cfg(not(feature = "verbs"))]
pub(crate) const NOT_COMPILED_IN: &str = "not compiled in: --features verbs";

/// `IBV_GID_TYPE_ROCE_V2` of rdma-core's infiniband/verbs.h.
pub(crate) const ROCE_V2: u32 = 2;
/// `RDMA_HW_STATS_DEFAULT_LIFESPAN` of the kernel is 10 ms, which is 12 on a clock of 4 ms.
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

    /// Holds with and without a device; there are only these two outcomes.
    #[test]
    fn this_machine_is_told_as_it_is() {
        match VerbsPort::choose() {
            Ok(port) => assert!(port.to_string().starts_with(port.device())),
            Err(error) => assert!(error.to_string().starts_with("RDMA cannot be used: ")),
        }
    }
}
