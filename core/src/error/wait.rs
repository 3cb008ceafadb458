//! The error of waiting for delivery and acknowledgements.

use std::{fmt, sync::Arc};

use ibex_base::fork::UsedAfterFork;
use ibex_transport::channel::{ChannelError, FailureReason, InTheWay, QuorumFailure, Votes};

use super::{ChannelFault, NotOpened, Suspensions};
use crate::{Counts, EndCause, PeerAt, Suspension};

/// The error of a call that waits until sent messages are delivered or acknowledged.
///
/// `flush`, `wait_acked` and `close` of a [`Sender`](crate::Sender) return it, and those of a
/// [`Group`](crate::group::Group). Sent messages stay sent. The text names the channel, the peer and their
/// state, and says what happened, what follows and what to do. [`kind`](Self::kind) is for programs
/// that decide by it.
///
/// ```
/// use std::time::Duration;
/// use ibex::{Raw, Sender, WaitError, WaitErrorKind};
///
/// /// Waits for a second, and returns whether the receiver is done with the message.
/// fn is_done(bytes: &mut Sender<[u8], Raw>, sequence: u64) -> Result<bool, WaitError> {
///     match bytes.wait_acked_timeout(sequence, Duration::from_secs(1)) {
///         Ok(()) => Ok(true),
///         Err(error) if error.kind() == WaitErrorKind::Timeout => Ok(false),
///         Err(error) => Err(error),
///     }
/// }
/// ```
///
/// | kind | a later call |
/// |---|---|
/// | [`Timeout`](WaitErrorKind::Timeout) | may succeed |
/// | [`Unacknowledged`](WaitErrorKind::Unacknowledged) | returns the same |
/// | [`NoQuorum`](WaitErrorKind::NoQuorum) | may succeed for a message that is sent once enough have joined |
/// | [`NotSent`](WaitErrorKind::NotSent) | may succeed once the message was sent |
/// | [`NotOpened`](WaitErrorKind::NotOpened) | may succeed |
/// | [`Mismatch`](WaitErrorKind::Mismatch) | returns the same |
/// | [`Disconnected`](WaitErrorKind::Disconnected) | returns the same |
/// | [`UsedAfterFork`](WaitErrorKind::UsedAfterFork) | returns the same |
pub struct WaitError(WaitFailure);

/// The kinds of a [`WaitError`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum WaitErrorKind {
    /// The caller's time was up: a receiver is not that far, or has not opened its end.
    Timeout,
    /// The receiver dropped a message without acknowledging it, so nothing from there on will ever
    /// be acknowledged.
    Unacknowledged,
    /// A message of a group will never be acknowledged by as many members as the quorum requires.
    NoQuorum,
    /// There is no such message of the group yet, and no other thread sends to it.
    NotSent,
    /// The peer did not open its end within `open_timeout`.
    NotOpened,
    /// The peer's end has another message type.
    Mismatch,
    /// The channel ended before the answer came.
    Disconnected,
    /// The process is a fork of the one that opened the channel or made the group.
    UsedAfterFork,
}

enum WaitFailure {
    Channel(ChannelFault),
    /// A group's messages did not reach the engine of this member in time, or of several.
    Flush(InTheWay<Arc<PeerAt>>),
    Quorum(Box<Quorum>),
    /// A group that was made before a fork of the process.
    UsedAfterFork(Box<UsedAfterFork>),
}

/// A message of a group that is not acknowledged by a quorum.
struct Quorum {
    channel: String,
    sequence: u64,
    needed: usize,
    reason: Reason,
}

enum Reason {
    TimedOut(Votes<PeerAt>),
    Lost(Votes<PeerAt>),
    /// The sequence of the group's last message.
    NotSent(u64),
}

impl WaitError {
    /// Returns the kind of failure.
    #[must_use]
    pub fn kind(&self) -> WaitErrorKind {
        match &self.0 {
            WaitFailure::Channel(ChannelFault::NotOpened(_)) => WaitErrorKind::NotOpened,
            WaitFailure::Channel(fault) => match fault.reason() {
                Some(FailureReason::Unacknowledged(_)) => WaitErrorKind::Unacknowledged,
                Some(FailureReason::NotDone { .. }) => WaitErrorKind::Timeout,
                Some(FailureReason::Mismatch { .. }) => WaitErrorKind::Mismatch,
                Some(FailureReason::UsedAfterFork) => WaitErrorKind::UsedAfterFork,
                // No other kind can answer a caller that sends nothing.
                _ => WaitErrorKind::Disconnected,
            },
            WaitFailure::Flush(_) => WaitErrorKind::Timeout,
            WaitFailure::UsedAfterFork(_) => WaitErrorKind::UsedAfterFork,
            WaitFailure::Quorum(quorum) => match quorum.reason {
                Reason::TimedOut(_) => WaitErrorKind::Timeout,
                Reason::Lost(_) => WaitErrorKind::NoQuorum,
                Reason::NotSent(_) => WaitErrorKind::NotSent,
            },
        }
    }

    /// Returns whether the same call may succeed later: the time was up.
    #[must_use]
    pub fn is_transient(&self) -> bool {
        self.kind() == WaitErrorKind::Timeout
    }

    /// Returns the channel's name, where the error has it.
    #[must_use]
    pub fn channel(&self) -> Option<&str> {
        match &self.0 {
            WaitFailure::Quorum(quorum) => Some(&quorum.channel),
            _ => self.fault()?.channel(),
        }
    }

    /// Returns the peer as an address, where the error has one.
    #[must_use]
    pub fn peer(&self) -> Option<&str> {
        self.fault()?.peer()
    }

    /// Returns the member of a group that does not hold everything, or the first of several.
    #[must_use]
    pub fn member(&self) -> Option<PeerAt> {
        match &self.0 {
            WaitFailure::Flush(member) => Some(*member.peer),
            _ => None,
        }
    }

    /// Returns the message that was waited for, or the first that will not be acknowledged.
    #[must_use]
    pub fn sequence(&self) -> Option<u64> {
        match &self.0 {
            WaitFailure::Quorum(quorum) => Some(quorum.sequence),
            _ => match self.fault()?.reason()? {
                FailureReason::NotDone { sequence, .. }
                | FailureReason::Unacknowledged(sequence) => Some(*sequence),
                _ => None,
            },
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
        self.fault()?.cause()
    }

    /// Returns the suspension of the session, if the call had no chance because the session has no
    /// connection, or one over which the peer's host is silent: since when, why, and what this node
    /// does about it. Of a group, it is that of a member that might have answered.
    #[must_use]
    pub fn suspended(&self) -> Option<&Suspension> {
        match &self.0 {
            WaitFailure::Flush(member) => member.suspended.as_deref(),
            WaitFailure::Quorum(_) => self.votes()?.suspended.first().map(|first| &**first),
            _ => self.fault()?.suspended(),
        }
    }

    /// Returns what is known of an end that the peer has not opened in time.
    #[must_use]
    pub fn not_opened(&self) -> Option<&NotOpened> {
        self.fault()?.not_opened()
    }

    /// Returns how many acknowledgements of a group's message were asked for.
    #[must_use]
    pub fn needed(&self) -> Option<usize> {
        match &self.0 {
            WaitFailure::Quorum(quorum) => Some(quorum.needed),
            _ => None,
        }
    }

    /// Returns the peers that have acknowledged a group's message, members or gone.
    #[must_use]
    pub fn acknowledged(&self) -> &[PeerAt] {
        self.votes().map_or(&[], |votes| &votes.acknowledged)
    }

    /// Returns the members of a group that have not acknowledged its message, and may.
    #[must_use]
    pub fn able(&self) -> &[PeerAt] {
        self.votes().map_or(&[], |votes| &votes.able)
    }

    /// Returns the members of a group that never will acknowledge its message: they joined later,
    /// or dropped it or a message before it without acknowledgement.
    #[must_use]
    pub fn unable(&self) -> &[PeerAt] {
        self.votes().map_or(&[], |votes| &votes.unable)
    }

    /// Returns the former members of a group that were sent its message and are gone without an
    /// acknowledgement, of the last 64 that are.
    #[must_use]
    pub fn gone(&self) -> &[PeerAt] {
        self.votes().map_or(&[], |votes| &votes.gone)
    }

    /// Turns the error into that of the channel's later sends, for a program that sends and waits
    /// and has one error for both.
    ///
    /// ```
    /// use ibex::{Raw, SendError, Sender, WaitError};
    ///
    /// /// Sends a page and waits until the receiver has it; `false` if the receiver dropped it.
    /// fn send(bytes: &mut Sender<[u8], Raw>, page: &[u8]) -> Result<bool, SendError> {
    ///     let sequence = bytes.send(page)?;
    ///     match bytes.wait_acked(sequence).map_err(WaitError::into_send_error) {
    ///         Ok(()) => Ok(true),
    ///         Err(Ok(over)) => Err(over),
    ///         Err(Err(_dropped)) => Ok(false),
    ///     }
    /// }
    /// ```
    ///
    /// # Errors
    ///
    /// This error again, if it is not the channel's end: of the kinds
    /// [`Timeout`](WaitErrorKind::Timeout), [`Unacknowledged`](WaitErrorKind::Unacknowledged),
    /// [`NoQuorum`](WaitErrorKind::NoQuorum) and [`NotSent`](WaitErrorKind::NotSent), or a
    /// group's [`UsedAfterFork`](WaitErrorKind::UsedAfterFork).
    pub fn into_send_error(self) -> Result<crate::SendError, Self> {
        match (self.kind(), self.0) {
            (WaitErrorKind::Timeout | WaitErrorKind::Unacknowledged, other) => Err(Self(other)),
            (_, WaitFailure::Channel(fault)) => Ok(fault.into()),
            (_, other) => Err(Self(other)),
        }
    }

    /// The error of a group whose member does not hold everything.
    pub(crate) fn of_flush(member: InTheWay<Arc<PeerAt>>) -> Self {
        Self(WaitFailure::Flush(member))
    }

    /// The error of a group's wait for a quorum.
    pub(crate) fn of_quorum(
        channel: &str,
        sequence: u64,
        needed: usize,
        failure: QuorumFailure<Arc<PeerAt>>,
    ) -> Self {
        let reason = match failure {
            QuorumFailure::TimedOut(votes) => Reason::TimedOut(named(votes)),
            QuorumFailure::Lost(votes) => Reason::Lost(named(votes)),
            QuorumFailure::NotSent(last) => Reason::NotSent(last),
            QuorumFailure::UsedAfterFork(error) => {
                return Self(WaitFailure::UsedAfterFork(Box::new(error)));
            }
        };
        Self(WaitFailure::Quorum(Box::new(Quorum {
            channel: channel.to_owned(),
            sequence,
            needed,
            reason,
        })))
    }

    fn votes(&self) -> Option<&Votes<PeerAt>> {
        match &self.0 {
            WaitFailure::Quorum(quorum) => match &quorum.reason {
                Reason::TimedOut(votes) | Reason::Lost(votes) => Some(votes),
                Reason::NotSent(_) => None,
            },
            _ => None,
        }
    }

    fn fault(&self) -> Option<&ChannelFault> {
        match &self.0 {
            WaitFailure::Channel(fault) => Some(fault),
            _ => None,
        }
    }
}

/// The votes with the peers themselves.
fn named(votes: Votes<Arc<PeerAt>>) -> Votes<PeerAt> {
    let peers = |shared: Vec<Arc<PeerAt>>| shared.iter().map(|peer| **peer).collect();
    Votes {
        acknowledged: peers(votes.acknowledged),
        able: peers(votes.able),
        unable: peers(votes.unable),
        gone: peers(votes.gone),
        suspended: votes.suspended,
    }
}

impl From<ChannelError> for WaitError {
    #[inline]
    fn from(error: ChannelError) -> Self {
        Self(WaitFailure::Channel(error.into()))
    }
}

impl fmt::Display for WaitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            WaitFailure::Channel(fault) => fault.fmt(f),
            WaitFailure::UsedAfterFork(error) => error.fmt(f),
            WaitFailure::Flush(InTheWay { peer, suspended }) => {
                write!(
                    f,
                    "{peer} does not hold everything within the time-out; what was sent stays sent"
                )?;
                match suspended {
                    Some(suspended) => write!(f, ": {suspended}"),
                    None => Ok(()),
                }
            }
            WaitFailure::Quorum(quorum) => quorum.fmt(f),
        }
    }
}

impl std::error::Error for WaitError {}

impl fmt::Display for Quorum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            channel, sequence, ..
        } = self;
        write!(f, "group \"{channel}\": message {sequence} ")?;
        match &self.reason {
            Reason::NotSent(last) => write!(
                f,
                "was not sent yet, the last one is {last}; wait for what `send` returned"
            ),
            Reason::Lost(votes) => {
                self.write_votes(votes, f)?;
                f.write_str(" and cannot be by enough; send it again once enough have joined")
            }
            Reason::TimedOut(votes) => {
                self.write_votes(votes, f)?;
                f.write_str(
                    " within the time-out; what was sent stays sent, and a later call may succeed",
                )?;
                Suspensions(&votes.suspended).fmt(f)?;
                match votes.suspended.len() < votes.able.len() {
                    true => f.write_str(
                        "; see that the programs from which it may come take messages and \
                         acknowledge them",
                    ),
                    false => Ok(()),
                }
            }
        }
    }
}

impl Quorum {
    fn write_votes(&self, votes: &Votes<PeerAt>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Votes {
            acknowledged,
            able,
            unable,
            gone,
            suspended: _,
        } = votes;
        write!(
            f,
            "is acknowledged by {} of the {} needed ({}",
            acknowledged.len(),
            self.needed,
            PeerList(acknowledged)
        )?;
        let others = [
            ("may come from", able),
            ("never from", unable),
            ("gone without:", gone),
        ];
        for (what, peers) in others {
            if !peers.is_empty() {
                write!(f, "; {what} {}", PeerList(peers))?;
            }
        }
        f.write_str(")")
    }
}

/// Peers as they are listed.
struct PeerList<'a>(&'a [PeerAt]);

impl fmt::Display for PeerList<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some((first, others)) = self.0.split_first() else {
            return f.write_str("nobody");
        };
        first.fmt(f)?;
        others.iter().try_for_each(|peer| write!(f, ", {peer}"))
    }
}

ibex_base::debug_as_display!(WaitError);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::PeerId;

    #[test]
    fn an_error_of_a_missing_quorum_lists_the_peers() {
        let peer = |number: u8| {
            Arc::new(PeerAt {
                id: PeerId::new([number; 16], 0),
                address: format!("10.0.0.{number}:7000").parse().expect("an address"),
            })
        };
        let mut votes = Votes {
            acknowledged: Vec::new(),
            able: Vec::new(),
            unable: Vec::new(),
            gone: Vec::new(),
            suspended: Vec::new(),
        };
        let of = |failure| WaitError::of_quorum("wal", 7, 2, failure).to_string();
        assert_eq!(
            of(QuorumFailure::Lost(votes.clone())),
            "group \"wal\": message 7 is acknowledged by 0 of the 2 needed (nobody) and cannot be by \
             enough; send it again once enough have joined"
        );
        votes.acknowledged.push(peer(1));
        votes.unable.extend([peer(2), peer(3)]);
        votes.gone.push(peer(4));
        let [one, two, three, four] = [1, 2, 3, 4].map(peer);
        assert_eq!(one.to_string(), "010101010101/00000000 at 10.0.0.1:7000");
        assert_eq!(
            of(QuorumFailure::Lost(votes.clone())),
            format!(
                "group \"wal\": message 7 is acknowledged by 1 of the 2 needed ({one}; never from \
                 {two}, {three}; gone without: {four}) and cannot be by enough; send it again once \
                 enough have joined"
            )
        );
        votes.able.push(peer(5));
        assert_eq!(
            of(QuorumFailure::TimedOut(votes)),
            format!(
                "group \"wal\": message 7 is acknowledged by 1 of the 2 needed ({one}; may come \
                 from {}; never from {two}, {three}; gone without: {four}) within the time-out; what \
                 was sent stays sent, and a later call may succeed; see that the programs from which \
                 it may come take messages and acknowledge them",
                peer(5)
            )
        );
        assert_eq!(
            of(QuorumFailure::NotSent(6)),
            "group \"wal\": message 7 was not sent yet, the last one is 6; wait for what `send` \
             returned"
        );
    }
}
