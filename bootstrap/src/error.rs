//! Errors of the meeting of two nodes, as diagnoses: the peer, the step, the finding, its
//! consequence, and what to do.
//!
//! The text includes the cause, so `source()` does not return it again. A field whose name would
//! make it the source is written `r#source`.
#![forbid(unsafe_code)]

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use ibex_base::{Counted, Rounded};
use ibex_tls::{AuthenticationError, TlsError};
use rustix::io::Errno;

use crate::handshake::{CHECKSUM, HandshakeStep};
use crate::identity::{Incarnation, NodeIdentity};
use crate::message::{MessageError, MessageKind, ResumeRefusal, SecurityMode, Text, VersionRange};
use crate::negotiate::{End, FabricConflict};
use crate::places::SessionLimit;

/// The reason why one conversation failed. Both state machines end in it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum HandshakeError {
    /// The other end speaks something else.
    #[error(
        "the other end does not speak the ibex protocol: it sent \"{seen}\"{}; \
         check the address and the port",
        guess(seen)
    )]
    NotIbex {
        /// The first bytes that came, escaped.
        seen: String,
    },
    /// No version is common to both ends.
    #[error(
        "the peer speaks ibex protocol {theirs}, this node speaks {ours}; \
         update the older of the two"
    )]
    Version {
        /// The versions that this end speaks.
        ours: VersionRange,
        /// The versions that the peer speaks.
        theirs: VersionRange,
    },
    /// The ends disagree about how the connection is protected.
    #[error(
        "the peer's security mode is {theirs}, this node's is {ours}; \
         configure the same on both"
    )]
    Security {
        /// The security mode of this end.
        ours: SecurityMode,
        /// The security mode of the peer.
        theirs: SecurityMode,
    },
    /// One end did not accept the other's proof of its identity.
    #[error("{0}; the connection was given up")]
    Authentication(#[from] AuthenticationError),
    /// TLS failed.
    #[error("{problem}, before {step}; the connection was given up")]
    Tls {
        /// The step that was waited for.
        step: HandshakeStep,
        /// The error of TLS.
        problem: TlsError,
    },
    /// The other end is this node itself. Among authenticated nodes, a third party may have passed
    /// a node's connection back to it.
    #[error(
        "the node there is this node itself; an authenticated node has no session with itself: \
         check the address, and use a channel of the standard library within one process"
    )]
    Oneself,
    /// The peer is connected and sends nothing.
    #[error(
        "the peer fell silent: waited {} in this handshake, the last wait for {step}; \
         the connection was given up; see whether the peer's process runs",
        Rounded(*waited)
    )]
    Silent {
        /// The step that was waited for.
        step: HandshakeStep,
        /// Time since the handshake began.
        waited: Duration,
    },
    /// This node could not do its part in time.
    #[error(
        "waited {} in this handshake, the last wait for {step}, which gave no answer; the \
         connection was given up; see the kernel's log, or allow more by handshake_timeout",
        Rounded(*waited)
    )]
    Slow {
        /// The step that was waited for.
        step: HandshakeStep,
        /// Time since the handshake began.
        waited: Duration,
    },
    /// The peer ended the connection.
    #[error(
        "the peer closed the connection before {step}{}; its log may say why",
        detail.as_ref().map(|detail| format!(" ({detail})")).unwrap_or_default()
    )]
    Closed {
        /// The step that was waited for.
        step: HandshakeStep,
        /// The error of the socket; `None` for an orderly end of the stream.
        detail: Option<String>,
    },
    /// The peer sent bytes that are no message.
    #[error("the peer broke the protocol before {step}: {problem}; the connection was given up")]
    Malformed {
        /// The step that was waited for.
        step: HandshakeStep,
        /// The error in the bytes.
        problem: MessageError,
    },
    /// Bytes of the handshake changed, went missing or were doubled on their way.
    #[error(
        "{how} before {step}; the connection was given up, and another attempt may succeed; \
         where this happens again, look at what carries the connection: proxies, network cards, \
         and the memory of both hosts"
    )]
    Garbled {
        /// The next message that this end waited for.
        step: HandshakeStep,
        /// The end that noticed the damage, and how.
        how: Garbling,
    },
    /// The peer sent a message out of turn.
    #[error(
        "the peer broke the protocol: it sent {kind} where this node waited for {step}; \
         the connection was given up"
    )]
    OutOfTurn {
        /// The step that was waited for.
        step: HandshakeStep,
        /// The kind of message that came.
        kind: MessageKind,
    },
    /// The two nodes' fabrics and policies are incompatible.
    #[error(transparent)]
    Fabric(#[from] FabricConflict),
    /// An end has as many sessions as its limit allows.
    #[error(
        "the {end} has {limit} that its {} allows; end one, or raise that limit there",
        limit.setting()
    )]
    TooManySessions {
        /// The end that has the limit.
        end: End,
        /// The limit, and the number of sessions that it allows.
        limit: SessionLimit,
    },
    /// The process of an end may open no more files, and a session takes some.
    #[error(
        "the process of the {end} may open {limit} files, too few for one more session, which is \
         refused; the sessions it has go on; close files there, or raise its limit of open files \
         (ulimit -n, or LimitNOFILE= of its systemd unit)"
    )]
    Descriptors {
        /// The end that is at its limit.
        end: End,
        /// The number of files that its process may open (`RLIMIT_NOFILE`).
        limit: u32,
    },
    /// The acceptor is being closed: its sessions continue to their ends, and no new one begins.
    #[error("the node there is being closed and begins no session")]
    Closing,
    /// A session does not resume over this connection, and both ends know why.
    #[error("the session is not resumed: {refusal}")]
    NotResumed {
        /// The reason.
        refusal: ResumeRefusal,
    },
    /// A session does not resume over the requested fabric.
    #[error("the session is not resumed {why}")]
    NotOverFabric {
        /// The fabric, and the reason.
        why: Text,
    },
    /// The address of the session's peer now belongs to another node, or to another run of it.
    #[error(
        "the node there is {identity} in run {incarnation:016x}, which is not the one that has \
         the session"
    )]
    OtherNode {
        /// The node that answers there.
        identity: NodeIdentity,
        /// The run of that node.
        incarnation: Incarnation,
    },
    /// The peer gave up and said why.
    #[error("the peer refused before {step}: {reason}")]
    Refused {
        /// The step that was waited for.
        step: HandshakeStep,
        /// The peer's reason.
        reason: Text,
    },
}

/// The way in which an end found that bytes of a handshake are not those that were sent.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Garbling {
    /// This end received damaged bytes.
    #[error(
        "the peer's message was damaged on its way: its checksum is {sent:08x}, and that of \
         what arrived {computed:08x}"
    )]
    Here {
        /// The checksum at the end of the message.
        sent: u32,
        /// The checksum of the message, and of both Hellos if it is the peer's first behind
        /// its Hello.
        computed: u32,
    },
    /// The two ends saw different Hellos, as the peer's *Binding* over TLS shows.
    #[error("a Hello was changed on its way: the two ends saw different ones")]
    Hellos,
    /// The peer received damaged bytes, and reports that.
    #[error("the peer did not receive what this node sent (it says: {0})")]
    AtPeer(Text),
}

impl HandshakeError {
    /// Returns whether bytes that changed, went missing or were doubled on their way may have led
    /// to this error. If not, the checksums show that both ends heard each other correctly.
    pub(crate) fn may_be_garbling(&self) -> bool {
        match self {
            HandshakeError::Garbled { .. }
            | HandshakeError::Tls {
                problem: TlsError::Broken(_) | TlsError::BrokenAtPeer(_) | TlsError::Truncated,
                ..
            }
            | HandshakeError::Closed { .. }
            | HandshakeError::Silent { .. } => true,
            HandshakeError::Malformed { step, problem } => {
                let is_unchecked = matches!(
                    problem,
                    MessageError::Empty
                        | MessageError::Oversize { .. }
                        | MessageError::Truncated {
                            field: CHECKSUM,
                            ..
                        }
                );
                *step == HandshakeStep::Hello || is_unchecked
            }
            HandshakeError::OutOfTurn { step, .. } => *step == HandshakeStep::Hello,
            HandshakeError::NotIbex { seen } => is_nearly_magic(seen),
            _ => false,
        }
    }

    /// Makes the error for a peer that takes no more bytes, so that the last message cannot be
    /// sent.
    pub(crate) fn takes_no_more() -> HandshakeError {
        HandshakeError::Closed {
            step: HandshakeStep::Finished,
            detail: Some("it takes no more bytes".to_string()),
        }
    }

    /// Makes the error for a session that gets no queue pair.
    pub(crate) fn not_over_verbs(why: &str) -> HandshakeError {
        let why = Text::new(&format!("over verbs: {why}"));
        HandshakeError::NotOverFabric { why }
    }
}

/// The reason why [`dial`](crate::dial) made no connection.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DialError {
    /// The address cannot be read as `host:port`.
    #[error("\"{address}\" is not an address ({source}); give host:port, such as replica:7000")]
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
        "{address}: nobody answered for {} ({}); \
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
        peer: SocketAddr,
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

/// The reason why [`resume`](crate::resume) made no connection.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ResumeError {
    /// No answer came, or none in time; another attempt may succeed.
    #[error("{address}: the peer does not answer: {why}")]
    NotYet {
        /// The address that was tried.
        address: SocketAddr,
        /// The finding at that address.
        why: String,
        /// True if the host refused the connection, so that no process listens there.
        is_refused: bool,
    },
    /// The peer refuses to resume the session.
    #[error("{address}: the session is not resumed: {refusal}")]
    Refused {
        /// The peer's address.
        address: SocketAddr,
        /// The reason.
        refusal: ResumeRefusal,
    },
    /// The peer has been restarted, so the run that had the session is gone.
    #[error("{address}: the peer was restarted; the session ended with the run before")]
    Restarted {
        /// The peer's address.
        address: SocketAddr,
        /// The run that is there now.
        incarnation: Incarnation,
    },
    /// Another node is where the peer was. The peer may come back.
    #[error("{address}: another node, {identity}, answers where the peer was")]
    OtherNode {
        /// The address where the peer was.
        address: SocketAddr,
        /// The node that is there now.
        identity: NodeIdentity,
    },
    /// A host answered, and the conversation failed.
    #[error("{address}: {source}")]
    Handshake {
        /// The address that answered.
        address: SocketAddr,
        /// The handshake's error.
        r#source: HandshakeError,
    },
    /// The caller asked to stop.
    #[error("{address}: resuming was cancelled, as this node is closing")]
    Cancelled {
        /// The address where the peer was.
        address: SocketAddr,
    },
    /// This machine could not do its part.
    #[error(
        "{address}: this process could not {action}: {source}{}",
        shortage_step(source)
    )]
    Environment {
        /// The address where the peer was.
        address: SocketAddr,
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
    ListenError::next_step(source)
)]
#[non_exhaustive]
pub struct ListenError {
    /// The address to listen on.
    pub address: SocketAddr,
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
    pub address: Option<SocketAddr>,
    /// The reason.
    pub problem: Problem,
}

/// The reason why an incoming connection became no session.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Problem {
    /// The other end closed the connection before its first byte.
    #[error("it closed before its first byte, as health probes and port scans do")]
    Unheard,
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
fn elsewhere(given: &str, peer: SocketAddr) -> String {
    let peer = peer.to_string();
    match given == peer {
        true => String::new(),
        false => format!(" (at {peer})"),
    }
}

/// Returns whether the start of a stream may be the magic with a byte changed, missing or doubled:
/// a part of the magic is left, or too few bytes have come to tell.
fn is_nearly_magic(seen: &str) -> bool {
    let parts = ["ibex", "\\r\\n\\x1a"];
    let is_short = seen.len() < 8;
    is_short || seen.starts_with("\\x89") || parts.iter().any(|part| seen.contains(part))
}

/// Names the protocols that are met most often on a wrong port.
fn guess(seen: &str) -> &'static str {
    if seen.starts_with("HTTP/") {
        ", an HTTP server's answer"
    } else if seen.starts_with("SSH-") {
        ", an SSH server's greeting"
    } else if seen.starts_with("\\x15\\x03") {
        ", a TLS alert"
    } else {
        ""
    }
}

impl ListenError {
    /// Returns advice on a system error.
    #[must_use]
    pub fn next_step(source: &io::Error) -> &'static str {
        match source.kind() {
            io::ErrorKind::AddrInUse => {
                "somebody listens there already, perhaps this process: choose another port"
            }
            io::ErrorKind::AddrNotAvailable => "no interface of this host has that address",
            io::ErrorKind::PermissionDenied => "ports below 1024 need a privilege",
            // An error of the kernel has a number. An error without one means that the text was no
            // address.
            io::ErrorKind::InvalidInput if source.raw_os_error().is_none() => {
                "give host:port, such as 127.0.0.1:7000"
            }
            _ if is_short_of_descriptors(source) => MORE_DESCRIPTORS,
            _ => "choose another address or port",
        }
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
mod tests {
    use super::*;

    #[test]
    fn one_attempt_is_told_as_one() {
        let refused = |attempts, waited| {
            let error = DialError::Refused {
                address: "replica:7000".to_owned(),
                waited,
                attempts,
                last: "10.0.0.2:7000: connection refused".to_owned(),
            };
            error.to_string()
        };
        assert_eq!(
            refused(1, Duration::ZERO),
            "replica:7000: nobody listens there, the connection was refused (10.0.0.2:7000: \
             connection refused); start the peer, or check host, port and firewall"
        );
        assert_eq!(
            refused(12, Duration::new(3, 1_815_137)),
            "replica:7000: nobody listens there, connections were refused for 3.002s (12 attempts; \
             the last: 10.0.0.2:7000: connection refused); start the peer, or check host, port and \
             firewall"
        );
        let unresolved = DialError::Unresolved {
            address: "replica:7000".to_owned(),
            waited: Duration::from_millis(20),
            attempts: 1,
            source: io::ErrorKind::NotFound.into(),
        };
        assert_eq!(
            unresolved.to_string(),
            "replica:7000: the host name was not found for 20ms (1 attempt; entity not found); \
             check the name and the resolver"
        );
        let cancelled = DialError::Cancelled {
            address: "replica:7000".to_owned(),
            waited: Duration::new(1, 1_815_137),
        };
        assert_eq!(
            cancelled.to_string(),
            "replica:7000: connecting was cancelled after 1.002s, as this node is closing"
        );
    }

    #[test]
    fn an_address_that_is_taken_is_named_once() {
        let address = SocketAddr::from(([127, 0, 0, 1], 7000));
        let error = ListenError {
            address,
            action: "binding",
            source: io::ErrorKind::AddrInUse.into(),
        };
        assert_eq!(
            error.to_string(),
            "cannot listen on 127.0.0.1:7000: binding failed: address in use; somebody \
             listens there already, perhaps this process: choose another port"
        );
    }

    #[test]
    fn where_a_name_led_is_told_and_an_address_is_named_once() {
        let text = |address: &str| {
            DialError::Handshake {
                address: address.to_string(),
                peer: SocketAddr::from(([127, 0, 0, 1], 7000)),
                source: HandshakeError::Closing,
            }
            .to_string()
        };
        let why = "the node there is being closed and begins no session";
        assert_eq!(text("127.0.0.1:7000"), format!("127.0.0.1:7000: {why}"));
        assert_eq!(
            text("replica:7000"),
            format!("replica:7000 (at 127.0.0.1:7000): {why}")
        );
    }

    #[test]
    fn a_cause_that_the_text_tells_is_not_told_again_as_the_source() {
        use std::error::Error;

        let address = || "replica:7000".to_string();
        let refused = || io::Error::from(io::ErrorKind::PermissionDenied);
        let socket = SocketAddr::from(([127, 0, 0, 1], 7000));
        let problem = || Problem::Environment {
            action: "accept",
            source: refused(),
        };
        let errors: [Box<dyn Error>; 6] = [
            Box::new(DialError::InvalidAddress {
                address: address(),
                source: refused(),
            }),
            Box::new(DialError::Handshake {
                address: address(),
                peer: socket,
                source: HandshakeError::Closing,
            }),
            Box::new(DialError::Environment {
                address: address(),
                action: "connect",
                source: refused(),
            }),
            Box::new(ListenError {
                address: socket,
                action: "binding",
                source: refused(),
            }),
            Box::new(problem()),
            Box::new(HandshakeFailure {
                address: Some(socket),
                problem: problem(),
            }),
        ];
        for error in errors {
            assert!(error.source().is_none(), "{error}");
        }
    }

    #[test]
    fn an_invalid_address_error_shows_how_an_address_looks() {
        use std::net::ToSocketAddrs;

        let error = "replica".to_socket_addrs().unwrap_err();
        let form = "give host:port, such as 127.0.0.1:7000";
        assert_eq!(ListenError::next_step(&error), form);
        let refused = io::Error::from_raw_os_error(22); // EINVAL
        assert_ne!(ListenError::next_step(&refused), form);
        let short = io::Error::from_raw_os_error(24); // EMFILE
        assert_eq!(ListenError::next_step(&short), MORE_DESCRIPTORS);
    }
}
