//! The error of waiting for delivery and acknowledgements.

use std::{fmt, io, sync::Arc};

use ibex_transport::channel::{ChannelError, FailureReason, InTheWay, QuorumFailure, Votes};

use super::{
    Suspensions,
    failure::{ChannelErrorKind, Failure, error_of_channel, kinds},
    send::SendError,
};
use crate::PeerAt;

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
pub struct WaitError(Failure<WaitErrorKind>);

kinds! {
    /// The kinds of a [`WaitError`].
    pub enum WaitErrorKind {
        /// The caller's time was up: a receiver is not that far, or has not opened its end.
        Timeout => TimedOut,
        /// The receiver dropped a message without acknowledging it, so nothing from there on will ever
        /// be acknowledged.
        Unacknowledged => Other,
        /// A message of a group will never be acknowledged by as many members as the quorum requires.
        NoQuorum => Other,
        /// There is no such message of the group yet, and no other thread sends to it.
        NotSent => InvalidInput,
        /// The peer did not open its end within `open_timeout`.
        NotOpened => TimedOut,
        /// The peer's end has another message type.
        Mismatch => InvalidData,
        /// The channel ended before the answer came.
        Disconnected => ConnectionAborted,
        /// The process is a fork of the one that opened the channel or made the group.
        UsedAfterFork => Other,
    }
}

impl ChannelErrorKind for WaitErrorKind {
    // No call that waits for this sends anything.
    const WOULD_BLOCK: &'static str = "it would block";
    const ENDED_BY_PEER: io::ErrorKind = io::ErrorKind::BrokenPipe;

    fn of(error: &ChannelError) -> Self {
        match error.reason() {
            Some(FailureReason::NotOpened { .. }) => Self::NotOpened,
            Some(FailureReason::Unacknowledged(_)) => Self::Unacknowledged,
            Some(FailureReason::NotDone { .. }) => Self::Timeout,
            Some(FailureReason::Mismatch { .. }) => Self::Mismatch,
            Some(FailureReason::UsedAfterFork) => Self::UsedAfterFork,
            // No other kind can answer a caller that sends nothing.
            _ => Self::Disconnected,
        }
    }

    fn of_member(self) -> [&'static str; 4] {
        [
            "",
            " does not hold everything within the time-out; what was sent stays sent",
            ": ",
            "",
        ]
    }
}

error_of_channel!(WaitError, WaitErrorKind);

impl WaitError {
    /// Returns whether the same call may succeed later: the time was up.
    #[must_use]
    pub fn is_transient(&self) -> bool {
        self.kind() == WaitErrorKind::Timeout
    }

    /// Returns the member of a group that does not hold everything, or the first of several.
    #[must_use]
    pub fn member(&self) -> Option<PeerAt> {
        self.0.member()
    }

    /// Returns the message that was waited for, or the first that will not be acknowledged.
    #[must_use]
    pub fn sequence(&self) -> Option<u64> {
        if let Some((sequence, _)) = self.quorum() {
            return Some(sequence);
        }
        match self.0.reason()? {
            FailureReason::NotDone { sequence, .. } | FailureReason::Unacknowledged(sequence) => {
                Some(*sequence)
            }
            _ => None,
        }
    }

    /// Returns how many acknowledgements of a group's message were asked for.
    #[must_use]
    pub fn needed(&self) -> Option<usize> {
        self.quorum().map(|(_, needed)| needed)
    }

    fn quorum(&self) -> Option<(u64, usize)> {
        self.0.facts()?.quorum
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

    fn votes(&self) -> Option<&Votes<PeerAt>> {
        self.0.facts()?.votes.as_ref()
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
    pub fn into_send_error(self) -> Result<SendError, Self> {
        match (self.kind(), self.0) {
            (WaitErrorKind::Timeout | WaitErrorKind::Unacknowledged, other) => Err(Self(other)),
            (_, Failure::Channel(error)) => Ok(SendError(Failure::Channel(error))),
            (_, other) => Err(Self(other)),
        }
    }

    /// The error of a group whose member does not hold everything.
    pub(crate) fn of_flush(member: InTheWay<Arc<PeerAt>>) -> Self {
        Self(Failure::Member(WaitErrorKind::Timeout, member))
    }

    /// The error of a group's wait for a quorum.
    pub(crate) fn of_quorum(
        channel: &str,
        sequence: u64,
        needed: usize,
        failure: QuorumFailure<Arc<PeerAt>>,
    ) -> Self {
        let (kind, text, votes) = match failure {
            QuorumFailure::UsedAfterFork(error) => {
                return Self(Failure::other(WaitErrorKind::UsedAfterFork, error, |_| ()));
            }
            QuorumFailure::NotSent(last) => {
                let text = format!(
                    "was not sent yet, the last one is {last}; wait for what `send` returned"
                );
                (WaitErrorKind::NotSent, text, None)
            }
            QuorumFailure::Lost(votes) => {
                let votes = named(votes);
                let text = format!(
                    "{} and cannot be by enough; send it again once enough have joined",
                    Tally(&votes, needed)
                );
                (WaitErrorKind::NoQuorum, text, Some(votes))
            }
            QuorumFailure::TimedOut(votes) => {
                let votes = named(votes);
                let advice = match votes.suspended.len() < votes.able.len() {
                    true => {
                        "; see that the programs from which it may come take messages and \
                         acknowledge them"
                    }
                    false => "",
                };
                let text = format!(
                    "{} within the time-out; what was sent stays sent, and a later call may \
                     succeed{}{advice}",
                    Tally(&votes, needed),
                    Suspensions(&votes.suspended)
                );
                (WaitErrorKind::Timeout, text, Some(votes))
            }
        };
        let text = format!("group \"{channel}\": message {sequence} {text}");
        Self(Failure::other(kind, text, |facts| {
            facts.channel = Some(channel.to_owned());
            facts.quorum = Some((sequence, needed));
            if let Some(votes) = &votes {
                facts.suspended.clone_from(&votes.suspended);
            }
            facts.votes = votes;
        }))
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

/// The votes on a message that needs so many acknowledgements.
struct Tally<'a>(&'a Votes<PeerAt>, usize);

impl fmt::Display for Tally<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Votes {
            acknowledged,
            able,
            unable,
            gone,
            suspended: _,
        } = self.0;
        write!(
            f,
            "is acknowledged by {} of the {} needed ({}",
            acknowledged.len(),
            self.1,
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
