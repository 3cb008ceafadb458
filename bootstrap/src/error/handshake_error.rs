//! The error in which a conversation ends.
#![forbid(unsafe_code)]

use std::time::Duration;

use ibex_base::Rounded;
use ibex_base::tls::{AuthenticationError, TlsError};

use crate::handshake_step::HandshakeStep;
use crate::identity::{Incarnation, NodeIdentity};
use crate::message::{
    CHECKSUM, FieldError, HandshakeRefusal, MessageError, MessageKind, RefusalCause, ResumeRefusal,
    SecurityMode, Text, VersionRange,
};
use crate::negotiate::FabricConflict;
use crate::party::Party;
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
         configure the same on both{}", missing_tls(*ours)
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
        end: Party,
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
        end: Party,
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
    /// to this error. If not, the checksums show that both ends received each other's bytes correctly.
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
                        | MessageError::Field(FieldError::Truncated {
                            field: CHECKSUM,
                            ..
                        })
                );
                *step == HandshakeStep::Hello || is_unchecked
            }
            // A Hello has no checksum of its own, and its peer says nothing else before it.
            HandshakeError::OutOfTurn { step, .. } | HandshakeError::Refused { step, .. } => {
                *step == HandshakeStep::Hello
            }
            HandshakeError::NotIbex { seen } => is_nearly_magic(seen),
            _ => false,
        }
    }

    /// Returns the words for the peer.
    pub(crate) fn refusal(&self) -> HandshakeRefusal {
        let cause = match self {
            HandshakeError::TooManySessions { end, limit } => {
                Some(RefusalCause::Limit(*end, *limit))
            }
            HandshakeError::Descriptors { end, limit } => {
                Some(RefusalCause::Descriptors(*end, *limit))
            }
            HandshakeError::NotResumed { refusal } => Some(RefusalCause::Resume(*refusal)),
            HandshakeError::Closing => Some(RefusalCause::Closing),
            HandshakeError::NotOverFabric { why } => {
                return HandshakeRefusal {
                    reason: why.clone(),
                    cause: Some(RefusalCause::NotOverFabric),
                };
            }
            _ if self.may_be_garbling() => Some(RefusalCause::Garbled),
            _ => None,
        };
        let words = self.to_string();
        // A stranger is not told how this end was built.
        let words = match self {
            HandshakeError::Security { ours, .. } => words.trim_end_matches(missing_tls(*ours)),
            _ => &words,
        };
        HandshakeRefusal {
            reason: Text::new(words),
            cause,
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

/// Returns what to do at an end that authenticates nobody, in a build that cannot.
fn missing_tls(ours: SecurityMode) -> &'static str {
    match ours {
        SecurityMode::None if !cfg!(feature = "tls") => {
            "; TLS is not compiled into this node: enable the feature `tls` of ibex"
        }
        _ => "",
    }
}
