//! Failures of calls at a channel's end, as facts.
//!
//! The texts here are short, for logs. What a program says to its user depends on the handle that
//! failed, and is worded above this crate.
#![forbid(unsafe_code)]

use std::{cmp::Ordering, error::Error, fmt, sync::Arc, time::Duration};

use ibex_protocol::format::control::{ChannelSpec, Role};
use ibex_ring::memory::{MemoryError, RegionUnfit};

use super::{Counts, EndCause, EndLabel, Suspension};

/// Why a call at a channel's end did not do what it was asked for.
///
/// The variants without facts are answers of the hot path, and allocate nothing.
#[derive(Debug, thiserror::Error)]
pub enum ChannelError {
    /// There is no room or no message, or another clone has the turn, and the caller did not ask to
    /// wait.
    #[error("it would block")]
    WouldBlock,
    /// The peer has not opened its end, and the caller did not ask to wait.
    #[error("the peer has not opened its end")]
    NotOpenYet,
    /// The last sender closed, and every message that it sent was handed out.
    #[error("the channel has ended in order")]
    Ended,
    /// Any other failure.
    #[error("{0}")]
    Failed(Box<ChannelFailure>),
}

/// The facts of a failure at a channel's end.
#[derive(Debug)]
pub struct ChannelFailure {
    /// The channel's name.
    pub channel: Arc<str>,
    /// The peer, as an address.
    pub peer: String,
    /// The end at which the call failed.
    pub end: Role,
    /// What the end is in errors; `None` for a channel of messages.
    pub label: Option<&'static EndLabel>,
    /// The channel's progress. At a receiving end `sent` is 0, because that end does not know it.
    pub counts: Counts,
    /// The suspension of the session, if a wait failed and there is no connection, or one over which
    /// the peer's host is silent.
    pub suspended: Option<Arc<Suspension>>,
    /// The reason.
    pub reason: FailureReason,
}

/// The reason for a failure at a channel's end.
#[derive(Debug, thiserror::Error)]
pub enum FailureReason {
    /// The caller's deadline passed before there was room to send.
    #[error("no room in time, for lack of {full:?}")]
    NoRoom {
        /// The limit that was reached; `None` if another clone of the sender had the turn.
        full: Option<Full>,
        /// Messages that the receiver released while the call waited.
        released_meanwhile: u64,
        /// The time for which the channel had been full without a release when the call gave up.
        stalled_for: Option<Duration>,
    },
    /// The caller's deadline passed before a message came.
    #[error("no message in time (lacks room: {lacks_room})")]
    NoMessage {
        /// A message has arrived, or begun to, and waits for room within this node's
        /// `memory_limit`.
        lacks_room: bool,
    },
    /// The caller's deadline passed before the receiver had, or had acknowledged, a message.
    #[error("the receiver is not done with message {sequence} in time")]
    NotDone {
        /// The message that the call waited for.
        sequence: u64,
        /// Messages that the receiver came on by while the call waited.
        meanwhile: u64,
    },
    /// The receiver dropped this message without acknowledging it, so neither this nor a later one
    /// will ever be acknowledged.
    #[error("message {0} was dropped unacknowledged")]
    Unacknowledged(u64),
    /// The peer did not open its end in the time that the call waited.
    #[error(
        "the peer did not open its end within {waited:?}; the same end there: {is_same_there}, \
         others: {other_names:?}"
    )]
    NotOpened {
        /// The peer opened the same kind of end under this name as this node.
        is_same_there: bool,
        /// Other names under which the peer has opened the missing kind of end and this node has
        /// opened none.
        other_names: Vec<String>,
        /// The time for which the call waited.
        waited: Duration,
        /// The time for which the call would have waited without a deadline of the caller.
        open_timeout: Duration,
    },
    /// The ends have no version of the message type in common.
    #[error("message types differ: here {}, there {}", ours.newest, theirs.newest)]
    Mismatch {
        /// This end's message type, with all of its versions.
        ours: ChannelSpec,
        /// The message type of the peer's end, with all of its versions.
        theirs: ChannelSpec,
    },
    /// The message is longer than the channel's limit. The channel stays usable.
    #[error("a message is above {limit} bytes")]
    TooLong {
        /// Length of the message in bytes, if it is known.
        length: Option<u64>,
        /// The limit: the smaller of the two ends' limits.
        limit: u64,
        /// This end's limit compared to the peer's.
        here_to_there: Ordering,
    },
    /// The header is longer than a message can have. Nothing was sent, and the channel stays usable.
    #[error("a header of {length} bytes is above {limit}")]
    HeaderTooLong {
        /// Length of the header in bytes.
        length: usize,
        /// The longest header.
        limit: usize,
    },
    /// The codec refused the value. Nothing was sent, and the channel stays usable.
    #[error("a value cannot be encoded: {0}")]
    Encode(Box<dyn Error + Send + Sync>),
    /// The bytes of a region's message cannot be read, as those of a mapped file that was cut short.
    /// Nothing was sent, and the channel stays usable.
    #[error("{0}")]
    Unreadable(String),
    /// The bytes of a message are not a valid value. The message was released, and the next call
    /// continues after it.
    #[error("message {sequence} is not valid: {why}")]
    Corrupt {
        /// The message.
        sequence: u64,
        /// The codec's finding.
        why: String,
    },
    /// There is no memory for the ring or a message. Nothing was sent; or what has arrived stays
    /// where it is, and later calls wait for memory, which this node asks for every 20 ms.
    #[error("{0}")]
    Memory(MemoryError),
    /// No message can arrive in a region that the program provides.
    #[error("{0}")]
    RegionUnfit(RegionUnfit),
    /// The calling thread is in the middle of a message of the same channel: it holds a reservation
    /// of another clone, or a value's serializer made this call. The thread would wait for itself,
    /// without end.
    #[error("this thread is building a message of it")]
    Nested,
    /// The channel broke. Every message that had arrived was handed out before.
    #[error("it has ended: {0}")]
    Broken(EndCause),
    /// The calling process is a fork of the one that opened the channel.
    #[error("this process is a fork of the one that opened it")]
    UsedAfterFork,
}

/// A limit that keeps a message from being sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Full {
    /// The window has no message left.
    Messages,
    /// The window has too few bytes left for this message.
    Window,
    /// The window has too few bytes left for this message, and `max_unreleased_bytes` does not
    /// allow a larger window.
    WindowOfAll,
    /// Unreleased messages with memory of their own have reached their limit.
    Unreleased,
    /// Earlier messages have not been transmitted yet.
    Memory,
    /// All slots for messages in shared memory segments are in use.
    Slots,
}

impl ChannelError {
    /// Returns the facts, where there are any.
    #[must_use]
    pub fn failure(&self) -> Option<&ChannelFailure> {
        match self {
            Self::Failed(failure) => Some(failure),
            Self::WouldBlock | Self::NotOpenYet | Self::Ended => None,
        }
    }

    /// Returns the reason, where there are facts.
    #[must_use]
    pub fn reason(&self) -> Option<&FailureReason> {
        self.failure().map(|failure| &failure.reason)
    }

    /// Returns what ended the channel, if it broke.
    #[must_use]
    pub fn cause(&self) -> Option<&EndCause> {
        match self.reason()? {
            FailureReason::Broken(cause) => Some(cause),
            _ => None,
        }
    }

    /// Returns whether the peer has not opened its end.
    #[must_use]
    pub fn is_not_opened(&self) -> bool {
        let reason = self.reason();
        matches!(self, Self::NotOpenYet) || matches!(reason, Some(FailureReason::NotOpened { .. }))
    }

    /// Returns whether the same call may succeed later: it did not wait, or the caller's deadline
    /// passed.
    #[must_use]
    #[inline]
    pub fn is_transient(&self) -> bool {
        match self {
            Self::WouldBlock | Self::NotOpenYet => true,
            Self::Ended => false,
            Self::Failed(failure) => match &failure.reason {
                FailureReason::NoRoom { .. }
                | FailureReason::NoMessage { .. }
                | FailureReason::NotDone { .. } => true,
                FailureReason::NotOpened {
                    waited,
                    open_timeout,
                    ..
                } => waited < open_timeout,
                _ => false,
            },
        }
    }

    /// Returns whether the channel stays usable: the failure may pass, or concerns one message
    /// alone.
    #[must_use]
    pub fn spares_channel(&self) -> bool {
        let is_of_one = |reason: &FailureReason| {
            matches!(
                reason,
                FailureReason::TooLong { .. }
                    | FailureReason::HeaderTooLong { .. }
                    | FailureReason::Encode(_)
                    | FailureReason::Unreadable(_)
                    | FailureReason::Corrupt { .. }
                    | FailureReason::Memory(_)
                    | FailureReason::RegionUnfit(_)
                    | FailureReason::Nested
            )
        };
        self.is_transient() || self.reason().is_some_and(is_of_one)
    }

    /// Sets the time for which the caller waited for the peer's open, by calls before the one that
    /// failed.
    #[must_use]
    pub fn waited_for(mut self, time: Duration) -> Self {
        if let Self::Failed(failure) = &mut self
            && let FailureReason::NotOpened { waited, .. } = &mut failure.reason
        {
            *waited = time;
        }
        self
    }
}

impl From<Box<ChannelFailure>> for ChannelError {
    fn from(failure: Box<ChannelFailure>) -> Self {
        Self::Failed(failure)
    }
}

impl fmt::Display for ChannelFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            channel,
            peer,
            end,
            counts,
            suspended,
            reason,
            ..
        } = self;
        write!(f, "{end} of channel \"{channel}\" with {peer}: {reason}")?;
        if *end == Role::Sender && *counts != Counts::default() {
            write!(f, " ({counts})")?;
        }
        match suspended {
            Some(suspended) => write!(f, "; {suspended}"),
            None => Ok(()),
        }
    }
}
