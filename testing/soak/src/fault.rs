//! What befalls the processes, and where.
#![forbid(unsafe_code)]

use ibex_harness::network::Network;

use crate::options::Carrier;

/// A kind of fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Fault {
    /// `kill -9` of a process that connects, ten times, one in 100 ms.
    KillSenders,
    /// `kill -9` of the process that all connect to.
    KillHub,
    /// SIGSTOP of one that connects, and SIGCONT.
    StopSender,
    /// The same of the one that all connect to.
    StopHub,
    /// The link is cut and comes back.
    CutLink,
    /// The link loses, delays, doubles, reorders or garbles packets.
    DisturbLink,
    /// The proxy resets a connection that carries a session.
    ResetConnection,
    /// The proxy ends one.
    CutConnection,
    /// The proxy passes nothing on for a while.
    StallConnection,
    /// The one that all connect to can open no more descriptors.
    Descriptors,
    /// Memory files cannot grow at one of the processes.
    MemoryFiles,
    /// A process connects that may not lock memory.
    LockedMemory,
    /// A thousand connects at once.
    Crowd,
    /// The same, and their process is killed meanwhile.
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

    /// Whether sessions go on behind it, over other wires, if nothing else happens.
    pub(crate) fn is_survived(self) -> bool {
        matches!(self, Fault::ResetConnection | Fault::CutConnection)
    }

    /// Whether it can befall processes here, or why not.
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
