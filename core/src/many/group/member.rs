//! Members of a group, and the description of them that it returns.

use std::{fmt, sync::Arc, time::Instant};

use ibex_transport::{
    channel::{LossReason, MemberCounts, Parted},
    session::Counts,
};

use crate::{PeerAt, SendError};

/// The name of a member of a [`Group`](crate::group::Group) or a `LogGroup`. No
/// other member of that group ever gets the same name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct MemberId(pub(crate) u64);

/// A member of a [`Group`](crate::group::Group), or a subscriber of a [`Publisher`](crate::Publisher), and
/// its progress. Sequences are the group's or the publisher's.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct GroupMember {
    /// The member's name.
    pub id: MemberId,
    /// The member's peer.
    pub peer: PeerAt,
    /// The group's last message when the member joined. The first message that the member gets is
    /// the next.
    pub joined_after: u64,
    /// Counters of the messages that were sent to the member, received, released and acknowledged,
    /// as far as this end knows. Before its first message, all of them are at the position
    /// where it joined.
    pub counts: Counts,
    /// Messages for which its window has room, if they are not too many bytes; `None` until its
    /// peer has opened its end.
    pub room_messages: Option<u64>,
    /// The time since when sends find no room at it; `None` if the last one did.
    pub full_since: Option<Instant>,
}

/// A member that a [`Group`](crate::group::Group) has dropped, or a subscriber that a
/// [`Publisher`](crate::Publisher) has lost.
#[derive(Debug)]
#[non_exhaustive]
pub struct MemberLost {
    /// The member's name.
    pub id: MemberId,
    /// The member's peer.
    pub peer: PeerAt,
    /// The group's last message when the member joined.
    pub joined_after: u64,
    /// The member's counters, as in [`GroupMember::counts`].
    pub counts: Counts,
    /// The reason: its [kind](SendError::kind) is [`Full`](crate::SendErrorKind::Full) if its
    /// window was full for too long. Counters in the error are those of the member's channel.
    pub reason: SendError,
}

impl GroupMember {
    pub(crate) fn of(member: MemberCounts<Arc<PeerAt>>) -> Self {
        Self {
            id: MemberId(member.number),
            peer: *member.peer,
            joined_after: member.joined,
            counts: member.counts,
            room_messages: member.room_messages,
            full_since: member.full_since,
        }
    }
}

impl MemberLost {
    pub(crate) fn of(parted: Parted<Arc<PeerAt>>, reason: LossReason) -> Self {
        Self {
            id: MemberId(parted.number),
            peer: *parted.peer,
            joined_after: parted.joined,
            counts: parted.counts,
            reason: SendError::of_loss(reason),
        }
    }
}

impl fmt::Display for MemberLost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (peer, counts) = (&self.peer, &self.counts);
        write!(
            f,
            "{peer} is no member any more; it joined with message {} and acknowledged up to {} of \
             {}: {}",
            self.joined_after + 1,
            counts.acknowledged,
            counts.sent,
            self.reason
        )
    }
}
