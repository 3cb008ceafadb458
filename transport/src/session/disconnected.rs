//! The end of a channel, as reported at either end: its cause, the channel's progress, and what to
//! do next.
//!
//! The error carries counters. At a sender, `sent` is exact and the others are lower bounds. The
//! fate of the messages in between is unknown, and an application that cannot send twice has to ask
//! its peer. The advice depends on whether the session lives, and on whether the end is a sender.
#![forbid(unsafe_code)]

use std::{error::Error, fmt};

use ibex_base::Escaped;
use ibex_protocol::format::control::{CloseReason, Role};

use super::interface::Interface;

/// A channel's progress, as one of its ends knows it.
///
/// The fields describe a sending end. At a receiving end, *received* is exactly the number of
/// messages that were handed out. *sent* is then the number that has arrived so far, and 0 in an
/// error that ended the channel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Messages sent. Exact.
    pub sent: u64,
    /// Messages that the receiver's engine holds, as a lower bound.
    pub received: u64,
    /// Messages that the receiver released, as a lower bound.
    pub released: u64,
    /// Messages that the receiving application acknowledged, as a lower bound.
    pub acknowledged: u64,
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            sent,
            received,
            released,
            acknowledged,
        } = self;
        write!(
            f,
            "{sent} sent, at least {received} received, {released} released and {acknowledged} \
             acknowledged"
        )
    }
}

/// The reason why a channel ended, or why a session is suspended.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum EndCause {
    /// The peer closed its end of the channel.
    PeerClosed(CloseReason),
    /// The peer closed its whole node, in order.
    Goodbye,
    /// The peer's program ended this session, in order and for certain; its node goes on.
    EndedByPeer {
        /// The reason that the peer's program gave, with unprintable characters escaped; it may be
        /// empty.
        reason: String,
    },
    /// This program ended this session, in order; its node goes on.
    EndedHere {
        /// The reason that the program gave; it may be empty.
        reason: String,
    },
    /// The peer's process has ended, the peer broke the protocol, or the connection broke and no
    /// other came in time. In a `Suspended` event: the connection broke.
    PeerGone {
        /// The reason in words: the kernel's, or the finding in the peer's bytes.
        why: String,
        /// True if the peer is known to have ended, or to have no such session any more. Otherwise
        /// the peer may live, out of reach, and consider this end gone.
        certain: bool,
    },
    /// The local device or its driver failed, and the session could not continue without it. In a
    /// `Suspended` event, the session may still continue.
    DeviceLost {
        /// The device's error.
        why: String,
    },
    /// The system refused this process a descriptor or memory that the session needed.
    Refused {
        /// The refused resource, and the remedy.
        why: String,
    },
    /// The node was closed.
    NodeClosed,
    /// The tokio runtime whose tasks drove this node
    /// ([`Driver::Tasks`](crate::runtime::Driver::Tasks)) was shut down before the node was closed,
    /// which closed the node.
    RuntimeEnded,
    /// A reservation of this end was leaked, so no later message can be sent.
    SlotLeaked,
    /// Memory for the channel was refused.
    Memory(String),
}

impl fmt::Display for EndCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            EndCause::PeerClosed(reason) => write!(f, "the peer {reason}"),
            EndCause::Goodbye => f.write_str("the peer closed its node"),
            EndCause::EndedByPeer { reason } if reason.is_empty() => {
                f.write_str("the peer ended the session, and gave no reason")
            }
            EndCause::EndedByPeer { reason } => {
                write!(f, "the peer ended the session: \"{reason}\"")
            }
            EndCause::EndedHere { reason } if reason.is_empty() => {
                f.write_str("this program ended the session")
            }
            EndCause::EndedHere { reason } => {
                write!(f, "this program ended the session: \"{reason}\"")
            }
            EndCause::PeerGone { why, certain: true } => write!(f, "the peer is gone: {why}"),
            EndCause::PeerGone {
                why,
                certain: false,
            } => write!(f, "the connection to the peer was lost: {why}"),
            EndCause::DeviceLost { why } => write!(f, "this end lost its RDMA device: {why}"),
            EndCause::Refused { why } => {
                write!(f, "this process was refused what the session needs: {why}")
            }
            EndCause::NodeClosed => f.write_str("this node was closed"),
            EndCause::RuntimeEnded => {
                f.write_str("the tokio runtime in which this node was made has been shut down")
            }
            EndCause::SlotLeaked => f.write_str(
                "a reservation was leaked (mem::forget), so nothing behind it can be sent",
            ),
            EndCause::Memory(why) => f.write_str(why),
        }
    }
}

impl EndCause {
    /// Returns the cause for a peer that is out of reach and may live.
    pub(crate) fn lost(why: impl Into<String>) -> Self {
        EndCause::PeerGone {
            why: why.into(),
            certain: false,
        }
    }

    /// Returns the cause for a peer that said goodbye, of its whole node or with the `reason` for
    /// which its program ended this session.
    pub(crate) fn of_goodbye(reason: Option<&str>) -> Self {
        match reason {
            Some(reason) => EndCause::EndedByPeer {
                reason: Escaped(reason).to_string(),
            },
            None => EndCause::Goodbye,
        }
    }

    /// Returns the cause for what this program closes: its whole node, or one session, for `reason`.
    pub(crate) fn of_close(reason: Option<&str>) -> Self {
        match reason {
            Some(reason) => EndCause::EndedHere {
                reason: Escaped(reason).to_string(),
            },
            None => EndCause::NodeClosed,
        }
    }

    /// Returns the reason in words, without the statement that the peer is gone. The reason of a
    /// [suspension](super::Suspension) reads so, because its session has not ended.
    #[must_use]
    pub fn why(&self) -> &dyn fmt::Display {
        match self {
            EndCause::PeerGone { why, .. } => why,
            cause => cause,
        }
    }

    /// Returns whether other channels of the session stay usable.
    pub(crate) fn spares_session(&self) -> bool {
        matches!(
            self,
            EndCause::PeerClosed(_) | EndCause::SlotLeaked | EndCause::Memory(_)
        )
    }

    /// Returns advice for the holder of `end`.
    fn advice(&self, end: Role) -> &'static str {
        match (self, end) {
            (EndCause::NodeClosed, Role::Sender) => {
                "to go on, make a new node, connect, and send what was not acknowledged"
            }
            (EndCause::NodeClosed, Role::Receiver) => "to go on, make a new node and connect",
            (EndCause::RuntimeEnded, _) => {
                "close the node before its runtime is shut down, or make it in a runtime that \
                 lives longer"
            }
            (EndCause::SlotLeaked, _) => {
                "send or drop every reservation; then drop this sender, open the channel again, \
                 and send what was not acknowledged"
            }
            (EndCause::PeerClosed(CloseReason::Corrupt), Role::Sender) => {
                "see that both programs agree on the message type before sending again; the \
                 session and its other channels go on"
            }
            (EndCause::PeerClosed(CloseReason::SlotLeaked), Role::Receiver) => {
                "the fault is in the sending program; once it opens the channel again, drop this \
                 receiver and do the same"
            }
            (cause, Role::Sender) if cause.spares_session() => {
                "the session and its other channels go on: drop this sender, and once the peer \
                 opens the channel again, do the same and send what was not acknowledged"
            }
            (cause, Role::Receiver) if cause.spares_session() => {
                "the session and its other channels go on: drop this receiver and open the \
                 channel again; the sender may send again what was not acknowledged"
            }
            (_, Role::Sender) => "connect again and send what was not acknowledged",
            (_, Role::Receiver) => {
                "connect or accept again; the sender may send again what was not acknowledged"
            }
        }
    }
}

/// A channel that cannot go on: the peer, the cause, and the counters.
#[derive(Clone)]
#[non_exhaustive]
pub struct Disconnected {
    /// The channel's name.
    pub channel: String,
    /// The peer, as an address.
    pub peer: String,
    /// The end that got this error.
    pub end: Role,
    /// The reason.
    pub cause: EndCause,
    /// The channel's counters. At a receiving end `sent` is 0, because that end does not know it.
    pub counts: Counts,
    pub(crate) interface: Interface,
}

impl fmt::Display for Disconnected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            channel,
            peer,
            end,
            cause,
            counts,
            interface,
        } = self;
        if *interface != Interface::Channel {
            return interface.disconnected(self, f);
        }
        write!(f, "channel \"{channel}\" with {peer} has ended: {cause} (")?;
        match end {
            Role::Sender => write!(f, "{counts}")?,
            // A receiver does not know how many messages were sent, and knows the other counts
            // exactly.
            Role::Receiver => write!(
                f,
                "{} received, {} released, {} acknowledged",
                counts.received, counts.released, counts.acknowledged
            )?,
        }
        write!(f, "); {}", cause.advice(*end))
    }
}

impl Error for Disconnected {}

ibex_base::debug_as_display!(Disconnected);

#[cfg(test)]
mod tests {
    use super::*;

    fn disconnected(end: Role, cause: EndCause) -> String {
        let (channel, peer) = ("wal".to_owned(), "10.0.0.2:7000".to_owned());
        let counts = Counts {
            sent: if end == Role::Sender { 9 } else { 0 },
            received: 7,
            released: 5,
            acknowledged: 4,
        };
        let error = Disconnected {
            channel,
            peer,
            end,
            cause,
            counts,
            interface: Interface::Channel,
        };
        error.to_string()
    }

    #[test]
    fn each_ends_error_of_a_lost_session_has_its_counts_and_a_next_step() {
        let gone = || EndCause::lost("connection reset");
        assert_eq!(
            disconnected(Role::Sender, gone()),
            "channel \"wal\" with 10.0.0.2:7000 has ended: the connection to the peer was lost: \
             connection reset (9 sent, at least 7 received, 5 released and 4 acknowledged); \
             connect again and send what was not acknowledged"
        );
        assert_eq!(
            disconnected(Role::Receiver, gone()),
            "channel \"wal\" with 10.0.0.2:7000 has ended: the connection to the peer was lost: \
             connection reset (7 received, 5 released, 4 acknowledged); \
             connect or accept again; the sender may send again what was not acknowledged"
        );
    }

    /// The cause in a `Suspended` event is one of these.
    #[test]
    fn only_a_peer_that_is_known_to_have_ended_is_called_gone() {
        let cause = |certain| EndCause::PeerGone {
            why: "connection reset".to_owned(),
            certain,
        };
        assert_eq!(
            cause(false).to_string(),
            "the connection to the peer was lost: connection reset"
        );
        assert_eq!(
            cause(true).to_string(),
            "the peer is gone: connection reset"
        );
    }

    #[test]
    fn nobody_is_told_to_connect_again_while_the_session_lives() {
        let reasons = CloseReason::ALL;
        let mut causes = reasons.map(EndCause::PeerClosed).to_vec();
        causes.extend([
            EndCause::SlotLeaked,
            EndCause::Memory("no memory".to_owned()),
        ]);
        for cause in causes {
            for end in [Role::Sender, Role::Receiver] {
                let text = disconnected(end, cause.clone());
                assert!(!text.contains("connect"), "{text}");
            }
        }
    }

    #[test]
    fn a_program_that_closed_its_own_node_is_told_to_make_another() {
        for end in [Role::Sender, Role::Receiver] {
            let text = disconnected(end, EndCause::NodeClosed);
            assert!(text.contains("to go on, make a new node"), "{text}");
        }
    }

    #[test]
    fn no_receiver_is_told_to_send() {
        let causes = [
            EndCause::PeerClosed(CloseReason::NoRoom),
            EndCause::PeerClosed(CloseReason::SlotLeaked),
            EndCause::PeerClosed(CloseReason::Aborted),
            EndCause::Goodbye,
            EndCause::EndedByPeer {
                reason: "done".to_owned(),
            },
            EndCause::EndedHere {
                reason: String::new(),
            },
            EndCause::NodeClosed,
            EndCause::Memory("no memory".to_owned()),
        ];
        for cause in causes {
            let text = disconnected(Role::Receiver, cause);
            assert!(!text.contains("and send"), "{text}");
            assert!(!text.contains(" sent,"), "{text}");
        }
    }
}
