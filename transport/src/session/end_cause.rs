//! The progress of a channel, and the reason for which a channel or a session ended.
//!
//! At a sender, `sent` is exact and the other counters are lower bounds. The fate of the messages in
//! between is unknown, and an application that cannot send twice has to ask its peer.
#![forbid(unsafe_code)]

use std::fmt;

use ibex_base::Escaped;
use ibex_protocol::format::{control::CloseReason, counters::Counters};
use ibex_ring::memory::blamed;

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

/// The counts of a receiving end; none of them is *sent*.
impl From<Counters> for Counts {
    fn from(counters: Counters) -> Self {
        Self {
            sent: 0,
            received: counters.received,
            released: counters.released,
            acknowledged: counters.acknowledged,
        }
    }
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
    /// The kernel could not read the memory of a message of this sending end, as of a mapped file
    /// that was cut short or whose medium fails. Nothing of the message and behind it can be sent.
    Unreadable {
        /// The message.
        sequence: u64,
        /// The bytes of the message that were read.
        read: u64,
        /// The length of the message.
        length: u64,
        /// The file that the memory is mapped from, as the kernel names it, if it is one's.
        file: Option<String>,
    },
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
            EndCause::Unreadable {
                sequence,
                read,
                length,
                file,
            } => write!(
                f,
                "the kernel could not read the memory of message {sequence} behind {read} of its \
                 {length} bytes (EFAULT): {}",
                blamed(file.as_deref())
            ),
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

    /// Returns the cause for a peer that sent its goodbye, of its whole node or with the `reason` for
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
    #[must_use]
    pub fn spares_session(&self) -> bool {
        matches!(
            self,
            EndCause::PeerClosed(_)
                | EndCause::SlotLeaked
                | EndCause::Memory(_)
                | EndCause::Unreadable { .. }
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
}
