//! A queue pair could not be brought to another state, with all known facts.
#![forbid(unsafe_code)]

use std::fmt;

use rustix::io::Errno;

use super::{
    abi::{
        attribute_mask::AttributeMask, queue_pair_attributes::QueuePairAttributes,
        queue_pair_state::QueuePairState,
    },
    endpoint::{LocalPort, RemoteEndpoint},
};

/// A queue pair could not be brought to another state, with all known facts.
#[derive(Debug)]
pub struct StateChangeError {
    /// The device's name.
    pub device: String,
    /// Our queue pair.
    pub queue_pair: u32,
    /// The state before the change.
    pub from: QueuePairState,
    /// The attributes that were to be set.
    pub attributes: QueuePairAttributes,
    /// The mask of the attributes that were to be set.
    pub mask: AttributeMask,
    /// Our port and GID, as soon as they are known.
    pub local: Option<LocalPort>,
    /// The peer's endpoint.
    pub remote: Option<RemoteEndpoint>,
    /// The cause of the failure.
    pub cause: ConnectCause,
}

/// The reason why a queue pair could not be brought to another state.
#[derive(Debug)]
pub enum ConnectCause {
    /// The change is illegal on every device; the device was not asked.
    Illegal,
    /// The device refused.
    Refused(Errno),
}

impl fmt::Display for StateChangeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "queue pair {:#x} of {}: {} -> {} failed: ",
            self.queue_pair, self.device, self.from, self.attributes.state
        )?;
        match &self.cause {
            ConnectCause::Illegal => f.write_str("it is no legal change of state")?,
            ConnectCause::Refused(errno) => write!(f, "{errno}")?,
        }
        write!(f, "; set were {}", self.mask)?;
        if let Some(local) = &self.local {
            write!(
                f,
                "; port {} with MTU {} and GID {}",
                local.number, local.attributes.active_mtu, local.gid
            )?;
        }
        if let Some(remote) = &self.remote {
            write!(
                f,
                "; peer's queue pair {:#x} at {} ({}, LID {}) with MTU {}",
                remote.queue_pair, remote.gid, remote.gid_type, remote.lid, remote.mtu
            )?;
        }
        write!(f, "; {}", self.next_step())
    }
}

impl StateChangeError {
    fn next_step(&self) -> &'static str {
        match &self.cause {
            ConnectCause::Illegal => "this is a mistake of the program",
            ConnectCause::Refused(Errno::NODATA) => {
                "the GID index has moved: addresses changed meanwhile; connect again"
            }
            ConnectCause::Refused(Errno::TIMEDOUT | Errno::HOSTUNREACH | Errno::NETUNREACH) => {
                "the peer's address was not resolved: check `ip route get` and `ip neigh`"
            }
            ConnectCause::Refused(Errno::INVAL) => {
                "the device takes one of these for wrong; MTU and GID type are the usual ones"
            }
            ConnectCause::Refused(_) => "the queue pair has to be made anew",
        }
    }
}

impl std::error::Error for StateChangeError {}
