//! The faults that are injected, and where.
#![forbid(unsafe_code)]

use ibex_harness::network::Network;

use crate::options::Carrier;

/// A kind of fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Fault {
    /// Kills ten connecting processes with SIGKILL, one every 100 ms.
    KillSenders,
    /// Kills the hub, to which all connect, with SIGKILL.
    KillHub,
    /// Stops a connecting process with SIGSTOP, and continues it.
    StopSender,
    /// Stops the hub with SIGSTOP, and continues it.
    StopHub,
    /// Cuts the link and restores it.
    CutLink,
    /// Makes the link lose, delay, duplicate, reorder or corrupt packets.
    DisturbLink,
    /// Lets the proxy reset a connection that carries a session.
    ResetConnection,
    /// Lets the proxy end such a connection.
    CutConnection,
    /// Lets the proxy hold everything up for a while.
    StallConnection,
    /// Denies the hub further descriptors.
    Descriptors,
    /// Keeps memory files of one process from growing.
    MemoryFiles,
    /// Starts a connecting process that may not lock memory.
    LockedMemory,
    /// Opens a thousand connections at once.
    Crowd,
    /// Opens a thousand connections, and kills their process meanwhile.
    CrowdKilled,
}

pub(crate) const ALL: [Fault; 14] = [
    Fault::KillSenders,
    Fault::KillHub,
    Fault::StopSender,
    Fault::StopHub,
    Fault::CutLink,
    Fault::DisturbLink,
    Fault::ResetConnection,
    Fault::CutConnection,
    Fault::StallConnection,
    Fault::Descriptors,
    Fault::MemoryFiles,
    Fault::LockedMemory,
    Fault::Crowd,
    Fault::CrowdKilled,
];

impl Fault {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Fault::KillSenders => "kill_senders",
            Fault::KillHub => "kill_hub",
            Fault::StopSender => "stop_sender",
            Fault::StopHub => "stop_hub",
            Fault::CutLink => "cut_link",
            Fault::DisturbLink => "disturb_link",
            Fault::ResetConnection => "reset_connection",
            Fault::CutConnection => "cut_connection",
            Fault::StallConnection => "stall_connection",
            Fault::Descriptors => "descriptors",
            Fault::MemoryFiles => "memory_files",
            Fault::LockedMemory => "locked_memory",
            Fault::Crowd => "crowd",
            Fault::CrowdKilled => "crowd_killed",
        }
    }

    /// Returns whether sessions survive the fault by resuming, if nothing else happens.
    pub(crate) fn is_survived(self) -> bool {
        matches!(self, Fault::ResetConnection | Fault::CutConnection)
    }

    /// Returns the reason why this fault cannot be injected in this run, if there is one.
    pub(crate) fn applies(self, carrier: Carrier, network: &Network) -> Result<(), String> {
        match self {
            Fault::CutLink => network.has_link(),
            Fault::DisturbLink => network.has_netem(),
            Fault::LockedMemory if carrier == Carrier::Shm => {
                Err("shared memory is not locked".to_owned())
            }
            Fault::LockedMemory if !rustix::process::geteuid().is_root() => {
                Err("only root may start a process as nobody".to_owned())
            }
            _ => Ok(()),
        }
    }
}
