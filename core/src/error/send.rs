//! The error of sending.

use std::{error::Error, fmt, sync::Arc, time::Duration};

use ibex_base::fork::UsedAfterFork;
use ibex_transport::channel::{ChannelError, FailureReason, GroupFailure, InTheWay, LossReason};

use super::{ChannelFault, NotOpened, wording};
use crate::{Counts, EndCause, PeerAt, Suspension};

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
pub struct SendError(SendFailure);

/// The kinds of a [`SendError`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum SendErrorKind {
    /// There is no room, or another clone of the sender has the turn, and the call does not wait.
    /// In a group, a member's window is full, and the call does not wait, or not that long.
    Full,
    /// The channel stayed full until the caller's time was up, or another clone of the sender had
    /// the turn.
    Timeout,
    /// The peer has not opened its end. `is_transient()` is true if the call did not wait for all of
    /// `open_timeout`. It is false if the call did: probably the peer never opens this name, but a
    /// later call succeeds if it does.
    NotOpened,
    /// The peer's end has another message type.
    Mismatch,
    /// The message is above the channel's limit, or its
    /// [header](crate::RegionMessage) above 256 bytes. The channel goes on.
    TooLong,
    /// The codec refused the value. The channel goes on.
    Encode,
    /// There is no memory for the ring or the message. The channel goes on.
    Memory,
    /// The calling thread is in the middle of a message of the same channel: it holds a loan or permit
    /// of another clone, or this call comes out of a value's serializer. If the thread waited for
    /// its own turn, it would wait for ever.
    Nested,
    /// The channel has ended.
    Disconnected,
    /// The group has no members: no peer has joined, or all are gone.
    NoMembers,
    /// The caller does not wait for the answer any more: it cancelled the call or is gone, or the
    /// deadline has passed.
    Cancelled,
    /// More than one reply was to be sent to a call that takes one.
    NotAStream,
    /// The process is a fork of the one that opened the channel or made the group.
    UsedAfterFork,
}

enum SendFailure {
    Channel(ChannelFault),
    Group(Box<OfGroup>),
    Answer(Box<OfAnswer>),
    /// The member of a group that has no room, or the first of several.
    Full(InTheWay<Arc<PeerAt>>),
    /// The member of a group that has not opened its end, or the first of several.
    NotOpen(InTheWay<Arc<PeerAt>>),
}

/// Failures of groups that no poll meets again and again.
enum OfGroup {
    NoMembers {
        channel: String,
    },
    /// A publisher outlived its node.
    NodeClosed {
        channel: String,
    },
    /// The member for which sending was tried.
    Member(Arc<PeerAt>, ChannelFault),
    /// A member was dropped, because its window was full for this long.
    Slow(Duration, Option<Arc<Suspension>>),
    UsedAfterFork(UsedAfterFork),
}

/// Failures of answers to a call.
enum OfAnswer {
    Cancelled,
    NotAStream,
    /// The channel of replies did not take the answer. The caller is told that there is no answer.
    NotSent(ChannelFault),
}

/// Returns the kind of a failure of a channel, to which a message was to be sent.
#[inline]
pub(super) fn kind_of(fault: &ChannelFault) -> SendErrorKind {
    match fault {
        ChannelFault::NotOpened(_) | ChannelFault::Other(ChannelError::NotOpenYet) => {
            SendErrorKind::NotOpened
        }
        ChannelFault::Other(ChannelError::WouldBlock) => SendErrorKind::Full,
        ChannelFault::Other(ChannelError::Ended) => SendErrorKind::Disconnected,
        ChannelFault::Other(ChannelError::Failed(failure)) => match &failure.reason {
            FailureReason::NoRoom { .. } => SendErrorKind::Timeout,
            FailureReason::Mismatch { .. } => SendErrorKind::Mismatch,
            FailureReason::TooLong { .. } | FailureReason::HeaderTooLong { .. } => {
                SendErrorKind::TooLong
            }
            FailureReason::Encode(_) => SendErrorKind::Encode,
            FailureReason::Memory(_) => SendErrorKind::Memory,
            FailureReason::Nested => SendErrorKind::Nested,
            FailureReason::UsedAfterFork => SendErrorKind::UsedAfterFork,
            _ => SendErrorKind::Disconnected,
        },
    }
}

impl SendError {
    /// Returns the kind of failure.
    #[must_use]
    #[inline]
    pub fn kind(&self) -> SendErrorKind {
        match &self.0 {
            SendFailure::Channel(fault) => kind_of(fault),
            SendFailure::Full(_) => SendErrorKind::Full,
            SendFailure::NotOpen(_) => SendErrorKind::NotOpened,
            SendFailure::Group(group) => match &**group {
                OfGroup::NoMembers { .. } => SendErrorKind::NoMembers,
                OfGroup::NodeClosed { .. } => SendErrorKind::Disconnected,
                OfGroup::Member(_, fault) => kind_of(fault),
                OfGroup::Slow(..) => SendErrorKind::Full,
                OfGroup::UsedAfterFork(_) => SendErrorKind::UsedAfterFork,
            },
            SendFailure::Answer(answer) => match &**answer {
                OfAnswer::Cancelled => SendErrorKind::Cancelled,
                OfAnswer::NotAStream => SendErrorKind::NotAStream,
                OfAnswer::NotSent(fault) => kind_of(fault),
            },
        }
    }

    /// Returns whether a later attempt with the same value may succeed: there was no room, or the
    /// peer has not opened its end yet.
    #[must_use]
    #[inline]
    pub fn is_transient(&self) -> bool {
        match &self.0 {
            SendFailure::Channel(fault) => fault.is_transient(),
            SendFailure::Full(_) | SendFailure::NotOpen(_) => true,
            SendFailure::Group(_) | SendFailure::Answer(_) => false,
        }
    }

    /// Returns whether the channel goes on: it was this message, or a lack that may pass.
    #[must_use]
    pub fn spares_channel(&self) -> bool {
        self.is_transient()
            || matches!(
                self.kind(),
                SendErrorKind::TooLong
                    | SendErrorKind::Encode
                    | SendErrorKind::Memory
                    | SendErrorKind::Nested
                    | SendErrorKind::Cancelled
                    | SendErrorKind::NotAStream
            )
    }

    /// Returns the channel's name, where the error has it.
    #[must_use]
    pub fn channel(&self) -> Option<&str> {
        if let SendFailure::Group(group) = &self.0
            && let OfGroup::NoMembers { channel } | OfGroup::NodeClosed { channel } = &**group
        {
            return Some(channel);
        }
        self.fault()?.channel()
    }

    /// Returns the peer as an address, where the error has it.
    #[must_use]
    pub fn peer(&self) -> Option<&str> {
        self.fault()?.peer()
    }

    /// Returns the member of a group that stands in the way, or the first of several.
    #[must_use]
    pub fn member(&self) -> Option<PeerAt> {
        match &self.0 {
            SendFailure::Full(member) | SendFailure::NotOpen(member) => Some(*member.peer),
            SendFailure::Group(group) => match &**group {
                OfGroup::Member(peer, _) => Some(**peer),
                _ => None,
            },
            SendFailure::Channel(_) | SendFailure::Answer(_) => None,
        }
    }

    /// Returns how far the channel is, or came, where the error has it.
    #[must_use]
    pub fn counts(&self) -> Option<Counts> {
        self.fault()?.counts()
    }

    /// Returns what ended the channel, if it broke.
    #[must_use]
    pub fn cause(&self) -> Option<&EndCause> {
        if let SendFailure::Group(group) = &self.0
            && let OfGroup::NodeClosed { .. } = &**group
        {
            return Some(&EndCause::NodeClosed);
        }
        self.fault()?.cause()
    }

    /// Returns what is known of an end that the peer has not opened in time.
    #[must_use]
    pub fn not_opened(&self) -> Option<&NotOpened> {
        self.fault()?.not_opened()
    }

    /// Returns the setting that bounded the call until its time was up, of which a higher value
    /// lets more be under way; `None` if there is none, as when a clone had the turn. The setting
    /// is one of the channel, at both ends, or, if it is `memory_limit`, of the receiving node.
    #[must_use]
    pub fn setting(&self) -> Option<&'static str> {
        match self.fault()?.reason()? {
            FailureReason::NoRoom { full, .. } => wording::setting_of((*full)?),
            _ => None,
        }
    }

    /// Returns whether the time was up because another clone of this sender had the turn: it holds
    /// a loan or permit, or is in a call that sends. There may have been room.
    #[must_use]
    pub fn is_behind_clone(&self) -> bool {
        let reason = self.fault().and_then(ChannelFault::reason);
        matches!(reason, Some(FailureReason::NoRoom { full: None, .. }))
    }

    /// Returns how long the window of a group's member was full that was dropped for that.
    #[must_use]
    pub fn full_for(&self) -> Option<Duration> {
        match &self.0 {
            SendFailure::Group(group) => match &**group {
                OfGroup::Slow(time, _) => Some(*time),
                _ => None,
            },
            _ => None,
        }
    }

    /// Returns the suspension of the session, if the call had no chance because the session has no
    /// connection, or one over which the peer's host is silent: since when, why, and what this node
    /// does about it. The program at the other end is not to blame then.
    #[must_use]
    pub fn suspended(&self) -> Option<&Suspension> {
        match &self.0 {
            SendFailure::Full(member) | SendFailure::NotOpen(member) => member.suspended.as_deref(),
            SendFailure::Group(group) => match &**group {
                OfGroup::Slow(_, suspended) => suspended.as_deref(),
                _ => self.fault()?.suspended(),
            },
            _ => self.fault()?.suspended(),
        }
    }

    /// Returns how many messages the receiver released while the call waited until its time was up.
    /// A receiver that released some works, and is slower than this sender. One that released none
    /// takes no messages, or keeps those that it took.
    #[must_use]
    pub fn released_meanwhile(&self) -> Option<u64> {
        match self.fault()?.reason()? {
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
        match self.fault()?.reason()? {
            FailureReason::TooLong { limit, .. } => Some(*limit),
            FailureReason::HeaderTooLong { limit, .. } => Some(*limit as u64),
            _ => None,
        }
    }

    /// Returns the bytes of a message or header that was too long, where they are known.
    #[must_use]
    pub fn length(&self) -> Option<u64> {
        match self.fault()?.reason()? {
            FailureReason::TooLong { length, .. } => *length,
            FailureReason::HeaderTooLong { length, .. } => Some(*length as u64),
            _ => None,
        }
    }

    /// Returns the error of the codec, if it refused the value.
    #[must_use]
    pub fn encode_error(&self) -> Option<&(dyn Error + Send + Sync + 'static)> {
        match self.fault()?.reason()? {
            FailureReason::Encode(error) => Some(&**error),
            _ => None,
        }
    }

    /// The error of a group's call.
    pub(crate) fn of_group(channel: &str, failure: GroupFailure<Arc<PeerAt>>) -> Self {
        let of_group = match failure {
            GroupFailure::Full(member) => return Self(SendFailure::Full(member)),
            GroupFailure::NotOpen(member) => return Self(SendFailure::NotOpen(member)),
            GroupFailure::NoMembers => OfGroup::NoMembers {
                channel: channel.to_owned(),
            },
            GroupFailure::Failed(peer, error) => OfGroup::Member(peer, error.into()),
            GroupFailure::UsedAfterFork(error) => OfGroup::UsedAfterFork(error),
        };
        Self(SendFailure::Group(Box::new(of_group)))
    }

    /// The error of a call in a fork of the process.
    #[cold]
    pub(crate) fn of_fork(error: UsedAfterFork) -> Self {
        Self(SendFailure::Group(Box::new(OfGroup::UsedAfterFork(error))))
    }

    /// The error of a publisher's call.
    pub(crate) fn of_publisher(channel: &str, failure: GroupFailure<Arc<PeerAt>>) -> Self {
        match failure {
            // A publisher without subscribers sends to nobody while its node is open.
            GroupFailure::NoMembers => {
                let channel = channel.to_owned();
                Self(SendFailure::Group(Box::new(OfGroup::NodeClosed {
                    channel,
                })))
            }
            failure => Self::of_group(channel, failure),
        }
    }

    /// The reason for which a group dropped a member.
    pub(crate) fn of_loss(reason: LossReason) -> Self {
        match reason {
            LossReason::Full(time, suspended) => {
                Self(SendFailure::Group(Box::new(OfGroup::Slow(time, suspended))))
            }
            LossReason::Failed(error) => error.into(),
        }
    }

    /// Makes the error of an answer that no caller waits for.
    pub(crate) fn cancelled() -> Self {
        Self(SendFailure::Answer(Box::new(OfAnswer::Cancelled)))
    }

    /// Makes the error of a further reply to a call that takes one.
    pub(crate) fn not_a_stream() -> Self {
        Self(SendFailure::Answer(Box::new(OfAnswer::NotAStream)))
    }

    /// Makes the error of an answer that the channel of replies did not take.
    pub(crate) fn of_answer(error: ChannelError) -> Self {
        Self(SendFailure::Answer(Box::new(OfAnswer::NotSent(
            error.into(),
        ))))
    }

    /// Returns the reason of the channel's failure, where the error has it.
    pub(crate) fn reason(&self) -> Option<&FailureReason> {
        self.fault()?.reason()
    }

    fn fault(&self) -> Option<&ChannelFault> {
        match &self.0 {
            SendFailure::Channel(fault) => Some(fault),
            SendFailure::Group(group) => match &**group {
                OfGroup::Member(_, fault) => Some(fault),
                _ => None,
            },
            SendFailure::Answer(answer) => match &**answer {
                OfAnswer::NotSent(fault) => Some(fault),
                OfAnswer::Cancelled | OfAnswer::NotAStream => None,
            },
            SendFailure::Full(_) | SendFailure::NotOpen(_) => None,
        }
    }
}

impl From<ChannelFault> for SendError {
    fn from(fault: ChannelFault) -> Self {
        Self(SendFailure::Channel(fault))
    }
}

impl From<ChannelError> for SendError {
    #[inline]
    fn from(error: ChannelError) -> Self {
        Self(SendFailure::Channel(error.into()))
    }
}

impl fmt::Display for SendError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            SendFailure::Channel(fault) => fault.fmt(f),
            SendFailure::Full(InTheWay { peer, suspended }) => {
                write!(f, "sent to nobody: the window of {peer} is full, ")?;
                match suspended {
                    Some(suspended) => suspended.fmt(f),
                    None => f.write_str("its receiver falls behind"),
                }
            }
            SendFailure::NotOpen(InTheWay { peer, suspended }) => {
                write!(f, "sent to nobody: {peer} has not opened its end yet")?;
                match suspended {
                    Some(suspended) => write!(f, ", as far as is known: {suspended}"),
                    None => Ok(()),
                }
            }
            SendFailure::Group(group) => match &**group {
                OfGroup::NoMembers { channel } => write!(
                    f,
                    "group \"{channel}\": nothing was sent, as it has no members; let peers join \
                     it, `next_lost` says who was dropped"
                ),
                OfGroup::NodeClosed { channel } => write!(
                    f,
                    "publisher \"{channel}\": nothing was sent, as its node was closed; make another \
                     node"
                ),
                OfGroup::Member(peer, fault) => {
                    write!(f, "sent to nobody, because of {peer}: {fault}")
                }
                // The words that the transport logs.
                OfGroup::Slow(time, suspended) => LossReason::Full(*time, suspended.clone()).fmt(f),
                OfGroup::UsedAfterFork(error) => error.fmt(f),
            },
            SendFailure::Answer(answer) => match &**answer {
                OfAnswer::Cancelled => f.write_str(
                    "the caller does not wait any more: it cancelled the call, its deadline \
                     passed, or it is gone",
                ),
                OfAnswer::NotAStream => {
                    f.write_str("the call takes one reply and no stream; answer it with `reply`")
                }
                OfAnswer::NotSent(fault) => write!(f, "the answer was not sent: {fault}"),
            },
        }
    }
}

impl Error for SendError {}

ibex_base::debug_as_display!(SendError);

#[cfg(test)]
mod tests;
