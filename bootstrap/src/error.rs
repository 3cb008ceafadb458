//! Errors of the meeting of two nodes, as diagnoses: the peer, the step, the finding, its
//! consequence, and what to do.
//!
//! The text includes the cause, so `source()` does not return it again. A field whose name would
//! make it the source is written `r#source`.
#![forbid(unsafe_code)]

mod handshake_error;

pub use handshake_error::{Garbling, HandshakeError};

use std::io;
use std::time::Duration;

use ibex_base::{Address, Counted, Rounded};
use rustix::io::Errno;

use crate::handshake_step::HandshakeStep;
use crate::identity::{Incarnation, NodeIdentity};
use crate::message::ResumeRefusal;

/// The reason why [`DialDesk::dial`](crate::DialDesk::dial) made no connection.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DialError {
    /// The address cannot be read as `host:port` or `vsock:CID:PORT`.
    #[error(
        "\"{address}\" is not an address ({source}); {}",
        form(address, "replica")
    )]
    InvalidAddress {
        /// The address as the caller gave it.
        address: String,
        /// The resolver's error.
        r#source: io::Error,
    },
    /// The host name was not found in all the time given.
    #[error(
        "{address}: the host name was not found for {} ({}; {source}); \
         check the name and the resolver",
        Rounded(*waited), Counted(u64::from(*attempts), "attempt")
    )]
    Unresolved {
        /// The address as the caller gave it.
        address: String,
        /// Time spent.
        waited: Duration,
        /// The number of attempts.
        attempts: u32,
        /// The resolver's last error.
        r#source: io::Error,
    },
    /// The host was there in all the time given, but no process listened on the port: the last
    /// attempt was refused at each address.
    #[error(
        "{address}: nobody listens there, {} ({}); start the peer, or check host, port and \
         firewall",
        refused(*attempts, *waited), tries(*attempts, last)
    )]
    Refused {
        /// The address as the caller gave it.
        address: String,
        /// Time spent.
        waited: Duration,
        /// How often it was tried.
        attempts: u32,
        /// The last attempt and its result.
        last: String,
    },
    /// No process answered in all the time given.
    #[error(
        "{address}: no ibex node answered for {} ({}); \
         start the peer, or check the address and the firewall",
        Rounded(*waited), tries(*attempts, last)
    )]
    Nobody {
        /// The address as the caller gave it.
        address: String,
        /// Time spent.
        waited: Duration,
        /// How often it was tried.
        attempts: u32,
        /// The last attempt and its result.
        last: String,
    },
    /// A host answered, and the conversation failed.
    #[error("{address}{}: {source}", elsewhere(address, *peer))]
    Handshake {
        /// The address as the caller gave it.
        address: String,
        /// The address that answered.
        peer: Address,
        /// The handshake's error.
        r#source: HandshakeError,
    },
    /// The caller asked to stop.
    #[error(
        "{address}: connecting was cancelled after {}, as this node is closing",
        Rounded(*waited)
    )]
    Cancelled {
        /// The address as the caller gave it.
        address: String,
        /// Time spent.
        waited: Duration,
    },
    /// This machine could not do its part.
    #[error(
        "{address}: this process could not {action}: {source}{}",
        shortage_step(source)
    )]
    Environment {
        /// The address as the caller gave it.
        address: String,
        /// The step that failed.
        action: &'static str,
        /// The system's error.
        r#source: io::Error,
    },
}

/// The reason why [`DialDesk::resume`](crate::DialDesk::resume) made no connection.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ResumeError {
    /// No answer came, or none in time; another attempt may succeed.
    #[error("{address}: the peer does not answer: {why}")]
    NotYet {
        /// The address that was tried.
        address: Address,
        /// The finding at that address.
        why: String,
        /// True if the host refused the connection, so that no process listens there.
        is_refused: bool,
    },
    /// The peer refuses to resume the session.
    #[error("{address}: the session is not resumed: {refusal}")]
    Refused {
        /// The peer's address.
        address: Address,
        /// The reason.
        refusal: ResumeRefusal,
    },
    /// The peer has been restarted, so the run that had the session is gone.
    #[error("{address}: the peer was restarted; the session ended with the run before")]
    Restarted {
        /// The peer's address.
        address: Address,
        /// The run that is there now.
        incarnation: Incarnation,
    },
    /// Another node is where the peer was. The peer may come back.
    #[error("{address}: another node, {identity}, answers where the peer was")]
    OtherNode {
        /// The address where the peer was.
        address: Address,
        /// The node that is there now.
        identity: NodeIdentity,
    },
    /// A host answered, and the conversation failed.
    #[error("{address}: {source}")]
    Handshake {
        /// The address that answered.
        address: Address,
        /// The handshake's error.
        r#source: HandshakeError,
    },
    /// The caller asked to stop.
    #[error("{address}: resuming was cancelled, as this node is closing")]
    Cancelled {
        /// The address where the peer was.
        address: Address,
    },
    /// This machine could not do its part.
    #[error(
        "{address}: this process could not {action}: {source}{}",
        shortage_step(source)
    )]
    Environment {
        /// The address where the peer was.
        address: Address,
        /// The step that failed.
        action: &'static str,
        /// The system's error.
        r#source: io::Error,
    },
}

impl ResumeError {
    /// Returns whether the peer's host refused the connection: no process listens there now.
    #[must_use]
    pub fn is_refused(&self) -> bool {
        matches!(
            self,
            ResumeError::NotYet {
                is_refused: true,
                ..
            }
        )
    }

    /// Returns whether the session has ended at the peer, so that no further attempt can succeed.
    #[must_use]
    pub fn is_gone(&self) -> bool {
        matches!(
            self,
            ResumeError::Restarted { .. }
                | ResumeError::Refused {
                    refusal: ResumeRefusal::NoSuchSession,
                    ..
                }
        )
    }
}

/// The reason why [`Acceptor::bind`](crate::Acceptor::bind) or
/// [`Acceptor::listen_on`](crate::Acceptor::listen_on) made no listener.
#[derive(Debug, thiserror::Error)]
#[error(
    "cannot listen on {address}: {action} failed: {source}; {}",
    BindError::next_step(&address.to_string(), source)
)]
#[non_exhaustive]
pub struct BindError {
    /// The address to listen on.
    pub address: Address,
    /// The purpose of the system call that failed.
    pub action: &'static str,
    /// The system's error.
    pub r#source: io::Error,
}

/// An incoming connection that became no session.
#[derive(Debug, thiserror::Error)]
#[error("incoming connection{}: {problem}", address.map(|a| format!(" from {a}")).unwrap_or_default())]
#[non_exhaustive]
pub struct HandshakeFailure {
    /// The peer's address; `None` if the connection could not even be accepted.
    pub address: Option<Address>,
    /// The reason.
    pub problem: Problem,
}

/// The reason why an incoming connection became no session.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Problem {
    /// The other end closed the connection before its first byte.
    #[error("it closed before its first byte, as health probes and port scans do")]
    Unreceived,
    /// The conversation failed.
    #[error(transparent)]
    Handshake(#[from] HandshakeError),
    /// The handshake was dropped in favour of a newer one.
    #[error(
        "dropped while waiting for {step}: {max_pending} handshakes were pending, \
         and this was the oldest of the least advanced"
    )]
    Crowded {
        /// The step that was waited for.
        step: HandshakeStep,
        /// The limit that was reached.
        max_pending: usize,
    },
    /// This machine could not do its part.
    #[error("this process could not {action}: {source}{}", shortage_step(source))]
    Environment {
        /// The step that failed.
        action: &'static str,
        /// The system's error.
        r#source: io::Error,
    },
}

/// Returns the address that a name led to, or an empty text where the caller gave the address
/// itself.
fn elsewhere(given: &str, peer: Address) -> String {
    let peer = peer.to_string();
    match given == peer {
        true => String::new(),
        false => format!(" (at {peer})"),
    }
}

impl BindError {
    /// Returns advice on the error of an address to listen at, as the program gave it.
    #[must_use]
    pub fn next_step(address: &str, source: &io::Error) -> String {
        let step = match source.kind() {
            io::ErrorKind::AddrInUse => {
                "somebody listens there already, perhaps this process: choose another port"
            }
            io::ErrorKind::AddrNotAvailable if Address::is_vsock_text(address) => {
                "this machine does not have that CID, or for CID 1 not the module vsock_loopback: listen \
                 at vsock:any:PORT"
            }
            io::ErrorKind::AddrNotAvailable => "no interface of this host has that address",
            io::ErrorKind::PermissionDenied => "ports below 1024 need a privilege",
            // An error of the kernel has a number. An error without one means that the text was no
            // address.
            io::ErrorKind::InvalidInput if source.raw_os_error().is_none() => {
                return form(address, "127.0.0.1");
            }
            _ if is_short_of_descriptors(source) => MORE_DESCRIPTORS,
            _ => "choose another address or port",
        };
        step.to_owned()
    }
}

/// Returns the form of the address that is meant by a text, with an example of a host.
fn form(address: &str, host: &str) -> String {
    match Address::is_vsock_text(address) {
        true => "give vsock:CID:PORT, such as vsock:3:7000".to_owned(),
        false => format!("give host:port, such as {host}:7000"),
    }
}

/// Returns advice to append to a system error's text, if this process lacks something.
#[must_use]
pub fn shortage_step(source: &io::Error) -> String {
    match Errno::from_io_error(source) {
        _ if is_short_of_descriptors(source) => format!("; {MORE_DESCRIPTORS}"),
        Some(Errno::ADDRNOTAVAIL) => format!("; {MORE_PORTS}"),
        _ => String::new(),
    }
}

fn is_short_of_descriptors(error: &io::Error) -> bool {
    matches!(
        Errno::from_io_error(error),
        Some(Errno::MFILE | Errno::NFILE)
    )
}

const MORE_DESCRIPTORS: &str = "raise the limit of open files (ulimit -n)";

const MORE_PORTS: &str = "all local ports for that address are in use: close connections, or widen \
                          net.ipv4.ip_local_port_range";

/// Tells how often it was tried, and what came of the last attempt.
fn tries(attempts: u32, last: &str) -> String {
    match attempts {
        1 => last.to_owned(),
        _ => format!("{}; the last: {last}", Counted(attempts.into(), "attempt")),
    }
}

/// Tells for how long connections were refused.
fn refused(attempts: u32, waited: Duration) -> String {
    match attempts {
        1 => "the connection was refused".to_owned(),
        _ => format!("connections were refused for {}", Rounded(waited)),
    }
}

#[cfg(test)]
mod tests;
