//! The RDMA device that the cells of verbs are played on.
//!
//! The supervisor chooses it once, by `IBEX_TEST_DEVICE` or as the first with an active
//! port, and hands it on to the players. Its port counts for itself what it carries, so one
//! such cell is played at a time: a cell in which nothing was sent has gone another way,
//! and one in which somebody found no receive posted has overdrawn its credit.

use std::{
    env,
    net::IpAddr,
    sync::{
        Mutex, OnceLock, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

use ibex_harness::verbs_port::{DEVICE_VARIABLE, VerbsPort};

/// A device with an active port, as the supervisor has it.
#[derive(Debug)]
pub(crate) struct Device {
    port: VerbsPort,
    /// Taken for as long as a cell is played on it.
    turn: Mutex<()>,
    /// What all cells together have sent.
    sends: AtomicU64,
}

impl Device {
    /// The device of this run, or why there is none.
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

    /// Whether a device has to be there because somebody names one.
    pub(crate) fn is_wanted() -> bool {
        cfg!(feature = "verbs") && env::var_os(DEVICE_VARIABLE).is_some()
    }

    pub(crate) fn port(&self) -> &VerbsPort {
        &self.port
    }

    /// What the port has sent in the cells that were played so far.
    pub(crate) fn sends(&self) -> u64 {
        self.sends.load(Ordering::Relaxed)
    }

    /// Plays a cell. Its error, or that it did not go over this device as it should.
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

    /// What a player finds in its environment: a variable and its value.
    pub(crate) fn for_a_player(&self) -> (&'static str, String) {
        let port = serde_json::to_string(&self.port);
        (PORT, port.expect("names and numbers can be written"))
    }
}

/// In a player of a verbs cell: the port; in others there is none.
pub(crate) fn port() -> Option<VerbsPort> {
    let port = env::var(PORT).ok()?;
    Some(serde_json::from_str(&port).expect("the supervisor wrote it"))
}

/// The GID of the device that this process plays a cell of verbs on.
pub(crate) fn gid() -> [u8; 16] {
    let port = port().map(|port| port.gid());
    #[cfg(feature = "fake-device")]
    let port = port.or(Some(super::fake::GID));
    port.expect("a cell of verbs has a device")
}

/// Where nodes on this port meet, so that their connection's route leads over it; loopback
/// leads to every device. The kernel's table of connections is read for IPv4 only.
pub(crate) fn address(port: &VerbsPort) -> Option<IpAddr> {
    port.address().filter(IpAddr::is_ipv4)
}

const PORT: &str = "IBEX_CONFORMANCE_PORT";
