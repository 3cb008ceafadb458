//! What can go wrong with a group.

use std::fmt;

use ibex_base::fork::UsedAfterFork;
use ibex_transport::channel::{GroupFailure, QuorumFailure, SendError, Votes};

use crate::{PeerAt, Sequence};

/// A group did not send a message, to anyone. The value stays with the caller.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum GroupSendError {
    /// Nobody has joined, or everybody is gone.
    #[error(
        "group \"{channel}\": nothing was sent, as it has no members; let peers join it, `next_lost` \
         says who was dropped"
    )]
    #[non_exhaustive]
    NoMembers {
        /// The name of the group's channels.
        channel: String,
    },
    /// A member's window is full, and the call does not wait, or not that long.
    #[error("sent to nobody: the window of {peer} is full, its receiver falls behind")]
    Full {
        /// The member, or the first of several.
        peer: PeerAt,
    },
    /// A member has not opened its end, and the call does not wait, or not that long.
    #[error("sent to nobody: {peer} has not opened its end yet")]
    NotOpen {
        /// The member, or the first of several.
        peer: PeerAt,
    },
    /// The message cannot be encoded, is too long for a member, or there is no memory for it.
    /// The group goes on.
    #[error("sent to nobody, because of {peer}: {error}")]
    Failed {
        /// The member for which it was tried.
        peer: PeerAt,
        /// Why.
        error: SendError,
    },
    /// This process is a fork of the one that made the group.
    #[error(transparent)]
    UsedAfterFork(#[from] UsedAfterFork),
}

impl GroupSendError {
    /// Whether a later attempt may succeed.
    #[must_use]
    pub fn is_transient(&self) -> bool {
        matches!(
            self,
            GroupSendError::Full { .. } | GroupSendError::NotOpen { .. }
        )
    }

    pub(super) fn of(channel: &str, failure: GroupFailure<PeerAt>) -> Self {
        match failure {
            GroupFailure::NoMembers => GroupSendError::NoMembers {
                channel: channel.to_owned(),
            },
            GroupFailure::Full(peer) => GroupSendError::Full { peer },
            GroupFailure::NotOpen(peer) => GroupSendError::NotOpen { peer },
            GroupFailure::Failed(peer, error) => GroupSendError::Failed { peer, error },
            GroupFailure::UsedAfterFork(error) => GroupSendError::UsedAfterFork(error),
        }
    }
}

/// A group's messages did not reach all engines in time.
#[derive(Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{peer} does not hold everything within the time-out; what was sent stays sent")]
#[non_exhaustive]
pub struct FlushTimeout {
    /// The member, or the first of several.
    pub peer: PeerAt,
}

/// A message of a group is not acknowledged by a quorum.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum QuorumError {
    /// It never will be.
    #[error("{0}, and cannot be; send it again once enough have joined")]
    Lost(Box<QuorumLack>),
    /// The caller's time was up.
    #[error(
        "{0} within the time-out; what was sent stays sent, and a later call may succeed; see \
         that the programs from which it may come take messages and acknowledge them"
    )]
    Timeout(Box<QuorumLack>),
    /// There is no such message yet, and nobody else sends to the group.
    #[error(
        "group \"{channel}\": message {sequence} was not sent yet, the last one is {last}; wait \
         for what `send` returned"
    )]
    #[non_exhaustive]
    NotSent {
        /// The name of the group's channels.
        channel: String,
        /// The message that was asked for.
        sequence: Sequence,
        /// The last message.
        last: Sequence,
    },
    /// This process is a fork of the one that made the group.
    #[error(transparent)]
    UsedAfterFork(#[from] UsedAfterFork),
}

impl QuorumError {
    pub(super) fn of(
        channel: &str,
        sequence: Sequence,
        needed: usize,
        failure: QuorumFailure<PeerAt>,
    ) -> Self {
        let channel = channel.to_owned();
        let lack = |channel, votes| {
            let Votes {
                acknowledged,
                able,
                unable,
                gone,
            } = votes;
            Box::new(QuorumLack {
                channel,
                sequence,
                needed,
                acknowledged,
                able,
                unable,
                gone,
            })
        };
        match failure {
            QuorumFailure::NotSent(last) => QuorumError::NotSent {
                channel,
                sequence,
                last,
            },
            QuorumFailure::UsedAfterFork(error) => QuorumError::UsedAfterFork(error),
            QuorumFailure::TimedOut(votes) => QuorumError::Timeout(lack(channel, votes)),
            QuorumFailure::Lost(votes) => QuorumError::Lost(lack(channel, votes)),
        }
    }
}

/// What a message lacks for a quorum: who has acknowledged it, and who has not.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct QuorumLack {
    /// The name of the group's channels.
    pub channel: String,
    /// The message.
    pub sequence: Sequence,
    /// Acknowledgements that were asked for.
    pub needed: usize,
    /// Who has acknowledged it, members or gone.
    pub acknowledged: Vec<PeerAt>,
    /// Members that have not, and may.
    pub able: Vec<PeerAt>,
    /// Members that never will: they joined later, or dropped it or a message before it
    /// without acknowledgement.
    pub unable: Vec<PeerAt>,
    /// Who was sent it and is gone, of the last 64 that are.
    pub gone: Vec<PeerAt>,
}

impl fmt::Display for QuorumLack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            channel,
            sequence,
            needed,
            ..
        } = self;
        write!(
            f,
            "group \"{channel}\": message {sequence} is not acknowledged by {needed} (by {}",
            Peers(&self.acknowledged)
        )?;
        let others = [
            ("may come from", &self.able),
            ("never from", &self.unable),
            ("gone without:", &self.gone),
        ];
        for (what, peers) in others {
            if !peers.is_empty() {
                write!(f, "; {what} {}", Peers(peers))?;
            }
        }
        f.write_str(")")
    }
}

/// Peers as they are listed.
struct Peers<'a>(&'a [PeerAt]);

impl fmt::Display for Peers<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some((first, others)) = self.0.split_first() else {
            return f.write_str("nobody");
        };
        first.fmt(f)?;
        others.iter().try_for_each(|peer| write!(f, ", {peer}"))
    }
}

ibex_base::debug_as_display!(GroupSendError, FlushTimeout, QuorumError);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::PeerId;

    #[test]
    fn a_quorum_that_is_not_there_lists_whom_there_is() {
        let peer = |number: u8| PeerAt {
            id: PeerId::new([number; 16], 0),
            address: ([10, 0, 0, number], 7000).into(),
        };
        let mut votes = Votes {
            acknowledged: Vec::new(),
            able: Vec::new(),
            unable: Vec::new(),
            gone: Vec::new(),
        };
        let of = |failure| QuorumError::of("wal", 7, 2, failure).to_string();
        assert_eq!(
            of(QuorumFailure::Lost(votes.clone())),
            "group \"wal\": message 7 is not acknowledged by 2 (by nobody), and cannot be; send \
             it again once enough have joined"
        );
        votes.acknowledged.push(peer(1));
        votes.unable.extend([peer(2), peer(3)]);
        votes.gone.push(peer(4));
        let [one, two, three, four] = [1, 2, 3, 4].map(peer);
        assert_eq!(one.to_string(), "010101010101/00000000 at 10.0.0.1:7000");
        assert_eq!(
            of(QuorumFailure::Lost(votes.clone())),
            format!(
                "group \"wal\": message 7 is not acknowledged by 2 (by {one}; never from {two}, \
                 {three}; gone without: {four}), and cannot be; send it again once enough have \
                 joined"
            )
        );
        votes.able.push(peer(5));
        assert_eq!(
            of(QuorumFailure::TimedOut(votes)),
            format!(
                "group \"wal\": message 7 is not acknowledged by 2 (by {one}; may come from {}; \
                 never from {two}, {three}; gone without: {four}) within the time-out; what was \
                 sent stays sent, and a later call may succeed; see that the programs from which \
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
