//! The error of sending.

use std::{error::Error, fmt, io, sync::Arc, time::Duration};

use ibex_base::fork::UsedAfterFork;
use ibex_transport::channel::{ChannelError, FailureReason, GroupFailure, LossReason};

use super::{
    failure::{ChannelErrorKind, Failure, error_of_channel, kinds},
    wording::{self, Wording},
};
use crate::{EndCause, PeerAt};

/// The error of a call that sends: nothing was sent. The value stays with the caller, as sending
/// only borrows it.
///
/// Calls of [`Sender`](crate::Sender), [`Group`](crate::group::Group), [`Loan`](crate::Loan)
/// and [`Permit`](crate::Permit) return it, and so does a handler's answer to a
/// call. The text names the channel, the peer and their state, and
/// says what happened, what follows and what to do. [`kind`](Self::kind) is for programs that
/// decide by it.
///
/// ```
/// use ibex::{Raw, SendError, SendErrorKind, Sender};
///
/// /// Sends a sample, or leaves it out: because there is no room now, or because it is too long.
/// fn sample(bytes: &mut Sender<[u8], Raw>, sample: &[u8]) -> Result<(), SendError> {
///     match bytes.try_send(sample) {
///         Ok(_sequence) => Ok(()),
///         Err(error) if error.is_transient() => Ok(()),
///         Err(error) if error.kind() == SendErrorKind::TooLong => Ok(()),
///         Err(error) => Err(error),
///     }
/// }
/// ```
///
/// | kind | returned by | later calls |
/// |---|---|---|
/// | [`Full`](SendErrorKind::Full) | `try_` calls; calls of a group | may succeed |
/// | [`Timeout`](SendErrorKind::Timeout) | calls with a time-out | may succeed |
/// | [`NotOpened`](SendErrorKind::NotOpened) | all, until the peer has opened its end | succeed once it has |
/// | [`TooLong`](SendErrorKind::TooLong) | all | go on with other messages |
/// | [`Encode`](SendErrorKind::Encode) | all | go on with other messages |
/// | [`Unreadable`](SendErrorKind::Unreadable) | calls that send from a region | go on with other messages |
/// | [`Memory`](SendErrorKind::Memory) | all | go on once there is memory |
/// | [`Nested`](SendErrorKind::Nested) | all | go on behind the other message |
/// | [`NoMembers`](SendErrorKind::NoMembers) | calls of a group | go on once a peer has joined |
/// | [`Cancelled`](SendErrorKind::Cancelled), [`NotAStream`](SendErrorKind::NotAStream) | answers to a call | return the same |
/// | [`Mismatch`](SendErrorKind::Mismatch) | all | return the same; build both programs with one type |
/// | [`Disconnected`](SendErrorKind::Disconnected) | all | return the same; [`cause`](SendError::cause) says what to do: open the channel again if the receiver was dropped, connect again if the peer is gone, make a node if this one was closed |
/// | [`UsedAfterFork`](SendErrorKind::UsedAfterFork) | all, in a child of `fork` | return the same |
///
/// `Full` and `NotOpened` of a `try_` call are answers of the hot path: they allocate nothing and
/// name neither the channel nor the peer. Those of [`send_timeout`](crate::Sender::send_timeout)
/// name both.
pub struct SendError(pub(super) Failure<SendErrorKind>);

kinds! {
    /// The kinds of a [`SendError`].
    pub enum SendErrorKind {
        /// There is no room, or another clone of the sender has the turn, and the call does not wait.
        /// In a group, a member's window is full, and the call does not wait, or not that long.
        Full => WouldBlock,
        /// The channel stayed full until the caller's time was up, or another clone of the sender had
        /// the turn.
        Timeout => TimedOut,
        /// The peer has not opened its end. `is_transient()` is true if the call did not wait for all of
        /// `open_timeout`. It is false if the call did: probably the peer never opens this name, but a
        /// later call succeeds if it does.
        NotOpened => TimedOut,
        /// The peer's end has another message type.
        Mismatch => InvalidData,
        /// The message is above the channel's limit, or its
        /// [header](crate::RegionMessage) above 256 bytes. The channel goes on.
        TooLong => InvalidInput,
        /// The codec refused the value. The channel goes on.
        Encode => InvalidInput,
        /// The bytes of a region's message cannot be read: they are of a mapped file that was cut short,
        /// or whose medium fails. The channel goes on.
        Unreadable => InvalidData,
        /// There is no memory for the ring or the message. The channel goes on.
        Memory => OutOfMemory,
        /// The calling thread is in the middle of a message of the same channel: it holds a loan or permit
        /// of another clone, or this call comes out of a value's serializer. If the thread waited for
        /// its own turn, it would wait for ever.
        Nested => Other,
        /// The channel has ended.
        Disconnected => ConnectionAborted,
        /// The group has no members: no peer has joined, or all are gone.
        NoMembers => NotConnected,
        /// The caller does not wait for the answer any more: it cancelled the call or is gone, or the
        /// deadline has passed.
        Cancelled => Other,
        /// More than one reply was to be sent to a call that takes one.
        NotAStream => Other,
        /// The process is a fork of the one that opened the channel or made the group.
        UsedAfterFork => Other,
    }
}

impl ChannelErrorKind for SendErrorKind {
    const WOULD_BLOCK: &'static str =
        "the channel is full, or another clone of this sender has the turn";
    const ENDED_BY_PEER: io::ErrorKind = io::ErrorKind::BrokenPipe;

    #[inline]
    fn of(error: &ChannelError) -> Self {
        match error {
            ChannelError::NotOpenYet => Self::NotOpened,
            ChannelError::WouldBlock => Self::Full,
            ChannelError::Ended => Self::Disconnected,
            ChannelError::Failed(failure) => match &failure.reason {
                FailureReason::NotOpened { .. } => Self::NotOpened,
                FailureReason::NoRoom { .. } => Self::Timeout,
                FailureReason::Mismatch { .. } => Self::Mismatch,
                FailureReason::TooLong { .. } | FailureReason::HeaderTooLong { .. } => {
                    Self::TooLong
                }
                FailureReason::Encode(_) => Self::Encode,
                FailureReason::Unreadable(_) => Self::Unreadable,
                FailureReason::Memory(_) => Self::Memory,
                FailureReason::Nested => Self::Nested,
                FailureReason::UsedAfterFork => Self::UsedAfterFork,
                _ => Self::Disconnected,
            },
        }
    }

    fn of_member(self) -> [&'static str; 4] {
        match self {
            Self::NotOpened => [
                "sent to nobody: ",
                " has not opened its end yet",
                ", as far as is known: ",
                "",
            ],
            _ => [
                "sent to nobody: the window of ",
                " is full, ",
                "",
                "its receiver falls behind",
            ],
        }
    }
}

error_of_channel!(SendError, SendErrorKind);

impl SendError {
    /// Returns whether a later attempt with the same value may succeed: there was no room, or the
    /// peer has not opened its end yet.
    #[must_use]
    #[inline]
    pub fn is_transient(&self) -> bool {
        match &self.0 {
            Failure::Channel(error) => error.is_transient(),
            Failure::Member(..) => true,
            Failure::Plain(..) | Failure::Other(..) => false,
        }
    }

    /// Returns whether the channel goes on: it was this message, or a lack that may pass.
    #[must_use]
    pub fn spares_channel(&self) -> bool {
        use SendErrorKind::{Cancelled, Encode, Memory, Nested, NotAStream, TooLong, Unreadable};
        let kind = self.kind();
        self.is_transient()
            || matches!(
                kind,
                TooLong | Encode | Unreadable | Memory | Nested | Cancelled | NotAStream
            )
    }

    /// Returns the member of a group that stands in the way, or the first of several.
    #[must_use]
    pub fn member(&self) -> Option<PeerAt> {
        self.0.member()
    }

    /// Returns the setting that bounded the call until its time was up, of which a higher value
    /// lets more be under way; `None` if there is none, as when a clone had the turn. The setting
    /// is one of the channel, at both ends, or, if it is `memory_limit`, of the receiving node.
    #[must_use]
    pub fn setting(&self) -> Option<&'static str> {
        match self.reason()? {
            FailureReason::NoRoom { full, .. } => wording::setting_of((*full)?),
            _ => None,
        }
    }

    /// Returns whether the time was up because another clone of this sender had the turn: it holds
    /// a loan or permit, or is in a call that sends. There may have been room.
    #[must_use]
    pub fn is_behind_clone(&self) -> bool {
        matches!(
            self.reason(),
            Some(FailureReason::NoRoom { full: None, .. })
        )
    }

    /// Returns how long the window of a group's member was full that was dropped for that.
    #[must_use]
    pub fn full_for(&self) -> Option<Duration> {
        self.0.facts()?.full_for
    }

    /// Returns how many messages the receiver released while the call waited until its time was up.
    /// A receiver that released some works, and is slower than this sender. One that released none
    /// takes no messages, or keeps those that it took.
    #[must_use]
    pub fn released_meanwhile(&self) -> Option<u64> {
        match self.reason()? {
            FailureReason::NoRoom {
                released_meanwhile, ..
            } => Some(*released_meanwhile),
            _ => None,
        }
    }

    /// Returns the most bytes that a message may have, the smaller of both ends' limits, if this
    /// one was too long; or the most of a header, if that was.
    #[must_use]
    pub fn limit(&self) -> Option<u64> {
        match self.reason()? {
            FailureReason::TooLong { limit, .. } => Some(*limit),
            FailureReason::HeaderTooLong { limit, .. } => Some(*limit as u64),
            _ => None,
        }
    }

    /// Returns the bytes of a message or header that was too long, where they are known.
    #[must_use]
    pub fn length(&self) -> Option<u64> {
        match self.reason()? {
            FailureReason::TooLong { length, .. } => *length,
            FailureReason::HeaderTooLong { length, .. } => Some(*length as u64),
            _ => None,
        }
    }

    /// Returns the error of the codec, if it refused the value.
    #[must_use]
    pub fn encode_error(&self) -> Option<&(dyn Error + Send + Sync + 'static)> {
        match self.reason()? {
            FailureReason::Encode(error) => Some(&**error),
            _ => None,
        }
    }

    /// Makes the error of a message that was not sent.
    pub(crate) fn of(kind: SendErrorKind, text: impl fmt::Display) -> Self {
        Self(Failure::other(kind, text, |_| ()))
    }

    /// Makes the error of a message that was not sent, with a text that is always the same.
    pub(crate) fn plain(kind: SendErrorKind, text: &'static str) -> Self {
        Self(Failure::Plain(kind, text))
    }

    /// Makes the error of a message that a channel did not take. `what` comes before the channel's
    /// failure.
    pub(crate) fn of_channel(what: &str, error: ChannelError, member: Option<PeerAt>) -> Self {
        let (kind, text) = (
            SendErrorKind::of(&error),
            format!("{what}: {}", Wording(&error)),
        );
        Self(Failure::other(kind, text, |facts| {
            facts.fault = Some(error);
            facts.member = member;
        }))
    }

    /// The error of a group's call.
    pub(crate) fn of_group(channel: &str, failure: GroupFailure<Arc<PeerAt>>) -> Self {
        match failure {
            GroupFailure::Full(member) => Self(Failure::Member(SendErrorKind::Full, member)),
            GroupFailure::NotOpen(member) => {
                Self(Failure::Member(SendErrorKind::NotOpened, member))
            }
            GroupFailure::NoMembers => Self(Failure::other(
                SendErrorKind::NoMembers,
                format_args!(
                    "group \"{channel}\": nothing was sent, as it has no members; let peers join \
                     it, `next_lost` says who was dropped"
                ),
                |facts| facts.channel = Some(channel.to_owned()),
            )),
            GroupFailure::Failed(peer, error) => {
                let what = format!("sent to nobody, because of {peer}");
                Self::of_channel(&what, error, Some(*peer))
            }
            GroupFailure::UsedAfterFork(error) => Self::of_fork(error),
        }
    }

    /// The error of a call in a fork of the process.
    #[cold]
    pub(crate) fn of_fork(error: UsedAfterFork) -> Self {
        Self::of(SendErrorKind::UsedAfterFork, error)
    }

    /// The error of a publisher's call.
    pub(crate) fn of_publisher(channel: &str, failure: GroupFailure<Arc<PeerAt>>) -> Self {
        let GroupFailure::NoMembers = failure else {
            return Self::of_group(channel, failure);
        };
        // A publisher without subscribers sends to nobody while its node is open.
        Self(Failure::other(
            SendErrorKind::Disconnected,
            format_args!(
                "publisher \"{channel}\": nothing was sent, as its node was closed; make another \
                 node"
            ),
            |facts| {
                facts.channel = Some(channel.to_owned());
                facts.cause = Some(EndCause::NodeClosed);
            },
        ))
    }

    /// The reason for which a group dropped a member.
    pub(crate) fn of_loss(reason: LossReason) -> Self {
        // The words that the transport logs.
        let text = reason.to_string();
        match reason {
            LossReason::Full(time, suspended) => {
                Self(Failure::other(SendErrorKind::Full, text, |facts| {
                    facts.full_for = Some(time);
                    facts.suspended.extend(suspended);
                }))
            }
            LossReason::Failed(error) => error.into(),
        }
    }

    pub(crate) fn io_kind(&self) -> io::ErrorKind {
        self.0.io_kind(self.kind().io())
    }

    /// Returns the reason of the channel's failure, where the error has it.
    pub(crate) fn reason(&self) -> Option<&FailureReason> {
        self.0.reason()
    }
}

#[cfg(test)]
mod tests;
