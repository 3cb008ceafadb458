//! The RDMA device on which the cells of verbs run.
//!
//! The supervisor chooses it once, by `IBEX_TEST_DEVICE` or as the first with an active port, and
//! passes it to the players. The port itself counts what it carries, so one such cell runs at a
//! time. A cell in which nothing was sent took another route; a cell in which a peer found no
//! receive posted has overdrawn its credit.

use std::{
    env,
    net::IpAddr,
    sync::{
        Mutex, OnceLock, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

use ibex_harness::verbs_port::{DEVICE_VARIABLE, VerbsPort};

/// A device with an active port, as the supervisor uses it.
#[derive(Debug)]
pub(crate) struct Device {
    port: VerbsPort,
    /// The lock that a cell holds while it runs on the device.
    turn: Mutex<()>,
    /// The sends of all cells so far.
    sends: AtomicU64,
}

impl Device {
    /// Returns the device of this run, or the reason why there is none.
    pub(crate) fn of_this_run() -> Result<&'static Self, &'static str> {
        static DEVICE: OnceLock<Result<Device, String>> = OnceLock::new();
        let choose = || match VerbsPort::choose() {
            Ok(port) => Ok(Device {
                port,
                turn: Mutex::default(),
                sends: AtomicU64::default(),
            }),
            Err(error) => Err(error.to_string()),
        };
        DEVICE.get_or_init(choose).as_ref().map_err(String::as_str)
    }

    /// Returns whether a device is required because the environment names one.
    pub(crate) fn is_wanted() -> bool {
        cfg!(feature = "verbs") && env::var_os(DEVICE_VARIABLE).is_some()
    }

    pub(crate) fn port(&self) -> &VerbsPort {
        &self.port
    }

    /// Returns the number of sends in the cells so far.
    pub(crate) fn sends(&self) -> u64 {
        self.sends.load(Ordering::Relaxed)
    }

    /// Runs a cell. Returns its error, or an error if it did not use this device properly.
    pub(crate) fn carries(&self, play: impl FnOnce() -> Result<(), String>) -> Result<(), String> {
        let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        let before = self.port.counters();
        play()?;
        let rise = self.port.counters().since(before);
        let name = self.port.device();
        if rise.sends == Some(0) {
            return Err(format!(
                "{name} sent nothing (its rdma_sends did not rise)\n"
            ));
        }
        if rise.was_not_ready() {
            return Err(format!(
                "{name}: a message found no receive posted: {rise:?}\n"
            ));
        }
        self.sends
            .fetch_add(rise.sends.unwrap_or(0), Ordering::Relaxed);
        Ok(())
    }

    /// Returns the variable and value by which a player learns the port.
    pub(crate) fn for_a_player(&self) -> (&'static str, String) {
        let port = serde_json::to_string(&self.port);
        (PORT, port.expect("names and numbers can be written"))
    }
}

/// Returns the port in a player of a verbs cell; other players have none.
pub(crate) fn port() -> Option<VerbsPort> {
    let port = env::var(PORT).ok()?;
    Some(serde_json::from_str(&port).expect("the supervisor wrote it"))
}

/// Returns the GID of the device on which this process plays a cell of verbs.
pub(crate) fn gid() -> [u8; 16] {
    let port = port().map(|port| port.gid());
    #[cfg(feature = "fake-device")]
    let port = port.or(Some(super::fake::GID));
    port.expect("a cell of verbs has a device")
}

/// Returns the address at which nodes on this port meet, so that their connection's route leads
/// over it; loopback leads to every device. The test reads the kernel's table of IPv4 connections
/// only.
pub(crate) fn address(port: &VerbsPort) -> Option<IpAddr> {
    port.address().filter(IpAddr::is_ipv4)
}

const PORT: &str = "IBEX_CONFORMANCE_PORT";
