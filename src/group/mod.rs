//! One sender for several peers: what a primary tells its replicas.

use std::{fmt, marker::PhantomData, sync::Arc, time::Duration};

use ibex_codec::Codec;
use ibex_ring::parking::Patience;
use ibex_transport::channel::{SendGroup, WhenFull};

pub use self::member::{GroupMember, MemberId, MemberLost};
use crate::{
    ChannelBuilder, CloseReason, Node, OpenError, Peer, PeerAt, Sequence, WaitError,
    channel_builder::{Offer, message_version},
    message::DefaultCodec,
    template::ChannelTemplate,
};

mod encoding;
mod futures;
mod member;
mod sending;

/// Sends the same messages to several peers, on a channel with each.
///
/// A message is encoded once and copied to the other members' windows; each member has a window
/// and acknowledgements of its own, on whatever fabric its peer is reached. All or nothing: a
/// message is sent to every member or to none, so members that are there from the beginning
/// receive the same messages in the same order. One that joins later gets what is sent from
/// then on; what it needs of before is sent to it alone, by the sender that then
/// [joins](Self::join_sender) or on another channel.
///
/// Messages are counted by the group: [`send`](Self::send) returns a [`Sequence`] that is the
/// same for all members, the first is 1. A receiver's own count begins with the first message
/// that it got.
///
/// # Slow members, and those that are gone
///
/// A member can be behind by its window and no more. Once that is full, sending waits for it,
/// or drops it: [`when_full`](Self::when_full). A member whose channel has ended, whose type is
/// another, or that has not opened its end within
/// [`open_timeout`](crate::ChannelBuilder::open_timeout) is always dropped, by the call that notices,
/// and the group goes on. [`next_lost`](Self::next_lost) tells of each member that was dropped.
/// Its receiver, if it lives, gets what was sent to it, and then, if it was too slow or opened
/// its end too late, no orderly end but [`RecvErrorKind::Disconnected`](crate::RecvErrorKind::Disconnected) with
/// [`CloseReason::NoRoom`](crate::CloseReason): what it has is not all that there is.
///
/// A member whose session is *suspended*, as its [connection](Node#when-a-connection-breaks)
/// was lost, is a member still. Its window fills, and then it is full as a slow one is: by
/// [`WhenFull::DropAfter`] it is dropped when its time is up, and hears of it if its session
/// goes on; by [`WhenFull::Wait`] sending waits until that does or is over, so for up to
/// [`notice_timeout`](crate::NodeBuilder::notice_timeout) (19 s where nothing was under way to
/// it) and [`session_timeout`](crate::NodeBuilder::session_timeout) behind that.
///
/// # Quorums
///
/// [`wait_acked`](Self::wait_acked) waits until so many have acknowledged a message, whoever
/// they are. An acknowledgement counts also when the member is gone that gave it, as far as
/// this end had heard and for the last 64 that are gone: it said that an application was done
/// with the message. A member has acknowledged only what it was sent.
///
/// ```
/// use ibex::{Group, Raw, Sequence};
///
/// type Error = Box<dyn std::error::Error>;
///
/// /// Sends an entry to the replicas and waits until two have it.
/// fn commit(log: &mut Group<[u8], Raw>, entry: &[u8]) -> Result<Sequence, Error> {
///     let sequence = log.send(entry)?;
///     log.wait_acked(sequence, 2)?; // the third may be slow
///     while let Some(lost) = log.next_lost() {
///         println!("{lost}");
///     }
///     Ok(sequence)
/// }
/// ```
///
/// Dropping it ends all channels in order: each receiver gets everything that was sent to it,
/// then `None`; or an error, if a panic drops it, or [`abort`](Self::abort).
pub struct Group<T: ?Sized, C = DefaultCodec> {
    /// A peer is shared with the errors that name it, which so cost no allocation.
    group: SendGroup<Arc<PeerAt>>,
    template: ChannelTemplate,
    _message: PhantomData<fn(&T)>,
    _codec: PhantomData<fn() -> C>,
}

impl Node {
    /// Makes a sender of the channel `name` for several peers of this node, which
    /// [`join`](Group::join) it one by one, with the default settings and codec.
    ///
    /// ```
    /// # #[ibex::message]
    /// # struct Entry { offset: u64 }
    /// use ibex::{Group, Node, Peer};
    ///
    /// type Error = Box<dyn std::error::Error>;
    ///
    /// fn open(node: &Node, replicas: &[Peer]) -> Result<Group<Entry>, Error> {
    ///     let mut log = node.group::<Entry>("wal")?;
    ///     for replica in replicas {
    ///         log.join(replica)?;
    ///     }
    ///     Ok(log)
    /// }
    /// ```
    ///
    /// # Errors
    ///
    /// None: the settings are the node's, which were checked when it was made. A name or type
    /// that cannot be had is told by [`join`](Group::join).
    #[cfg(feature = "rkyv")]
    pub fn group<T: ?Sized>(&self, name: &str) -> Result<Group<T>, OpenError>
    where
        crate::Rkyv: Codec<T>,
    {
        self.channel(name).group()
    }
}

impl<C> ChannelBuilder<C, &Node> {
    /// Makes a group that nobody has joined.
    ///
    /// # Errors
    ///
    /// [`OpenErrorKind::Setting`](crate::OpenErrorKind::Setting): a setting is out of its range. A name or type that cannot be had is
    /// told by [`join`](Group::join).
    pub fn group<T: ?Sized>(self) -> Result<Group<T, C>, OpenError>
    where
        C: Codec<T>,
    {
        Ok(Group {
            template: self.template.checked()?,
            group: SendGroup::new(&self.at.runtime),
            _message: PhantomData,
            _codec: PhantomData,
        })
    }
}

impl<T: ?Sized, C> Group<T, C> {
    /// Sets the fate of a member whose window is full. Default: [`WhenFull::Wait`], so the
    /// slowest member sets the pace of all.
    ///
    /// [`WhenFull::DropAfter`] is measured from the first send that finds no room at the
    /// member. Nobody keeps time between calls: it is dropped by the first send, or while one
    /// waits, that finds it full for so long.
    #[must_use]
    pub fn when_full(mut self, when_full: WhenFull) -> Self {
        self.group.set_when_full(when_full);
        self
    }
}

impl<T: ?Sized, C: Codec<T>> Group<T, C> {
    // ---- Members ---------------------------------------------------------------------

    /// Opens the sending end with a peer, which gets every message from the next one on.
    ///
    /// Announces it and returns; the next send waits until the peer has opened its end. A peer
    /// with several sessions may join once for each.
    ///
    /// # Errors
    ///
    /// [`OpenError`], as [`ChannelBuilder::sender`](crate::ChannelBuilder::sender). The group
    /// goes on without it.
    ///
    /// # Panics
    ///
    /// If it is a peer of another node.
    pub fn join(&mut self, peer: &Peer) -> Result<MemberId, OpenError> {
        let channel = self.template.over(peer.session());
        let handle = channel.open_sender(message_version::<T, C>().map(Offer::of_one))?;
        let Ok(member) = self.group.join(Arc::new(peer.at()), handle) else {
            unreachable!("a new end has no clone")
        };
        Ok(MemberId(member))
    }
}

impl<T: ?Sized, C> Group<T, C> {
    /// The members as they are now, in the order of joining. One that is gone is listed until
    /// a call has noticed.
    #[must_use]
    pub fn members(&self) -> Vec<GroupMember> {
        self.group.members().map(GroupMember::of).collect()
    }

    /// A member that was dropped, and why, which nobody was told of yet; the earliest first.
    /// Never waits. Of more than 64 the first are forgotten.
    pub fn next_lost(&mut self) -> Option<MemberLost> {
        let (parted, reason) = self.group.next_lost()?;
        Some(MemberLost::of(parted, reason))
    }

    // ---- Progress --------------------------------------------------------------------

    /// The last message's sequence; 0 before the first.
    #[must_use]
    pub fn sent(&self) -> Sequence {
        self.group.last_sequence()
    }

    /// Waits until every member's engine holds everything that was sent. Those that end before
    /// are dropped.
    pub fn flush(&mut self) {
        let flushed = self.group.flush(Patience::FOREVER);
        debug_assert!(flushed.is_ok(), "it waits for as long as it takes");
    }

    /// The same for up to `timeout`.
    ///
    /// # Errors
    ///
    /// [`WaitErrorKind::Timeout`](crate::WaitErrorKind::Timeout) with a [member](WaitError::member) that is not that far.
    pub fn flush_timeout(&mut self, timeout: Duration) -> Result<(), WaitError> {
        let flushed = self.group.flush(Patience::at_most(timeout));
        flushed.map_err(|peer| WaitError::of_flush(*peer))
    }

    /// Delivers what was sent to every member's engine, then ends all channels. Returns those
    /// that were lost and that nobody was told of.
    pub fn close(mut self) -> Vec<MemberLost> {
        self.group.close();
        self.flush();
        std::iter::from_fn(|| self.next_lost()).collect()
    }

    /// Gives up: no member's channel ends in order. As [`Sender::abort`](crate::Sender::abort).
    pub fn abort(mut self) {
        self.group.break_off(CloseReason::Aborted);
    }

    // ---- Acknowledgements ------------------------------------------------------------

    /// The last message that at least `quorum` members have acknowledged, as far as this end
    /// has heard; 0 if there is none.
    #[must_use]
    pub fn acked(&self, quorum: usize) -> Sequence {
        self.group.acknowledged(quorum)
    }

    /// Waits until at least `quorum` members have acknowledged message `sequence`, whoever is
    /// first. It asks all of them and is woken by each, so a slow one delays nobody else's
    /// answer.
    ///
    /// A sequence or a quorum of 0 is there at once.
    ///
    /// # Errors
    ///
    /// [`WaitErrorKind::NoQuorum`](crate::WaitErrorKind::NoQuorum) as soon as too few members are left that may acknowledge it;
    /// [`WaitErrorKind::NotSent`](crate::WaitErrorKind::NotSent) if there is no such message yet.
    pub fn wait_acked(&mut self, sequence: Sequence, quorum: usize) -> Result<(), WaitError> {
        self.wait_with(sequence, quorum, Patience::FOREVER)
    }

    /// The same for up to `timeout`.
    ///
    /// # Errors
    ///
    /// As [`wait_acked`](Self::wait_acked), and [`WaitErrorKind::Timeout`](crate::WaitErrorKind::Timeout).
    pub fn wait_acked_timeout(
        &mut self,
        sequence: Sequence,
        quorum: usize,
        timeout: Duration,
    ) -> Result<(), WaitError> {
        self.wait_with(sequence, quorum, Patience::at_most(timeout))
    }

    fn wait_with(
        &mut self,
        sequence: Sequence,
        quorum: usize,
        patience: Patience,
    ) -> Result<(), WaitError> {
        let answer = self.group.wait_acknowledged(sequence, quorum, patience);
        let channel = self.template.name();
        answer.map_err(|failure| WaitError::of_quorum(channel, sequence, quorum, failure))
    }
}

impl<T: ?Sized, C> fmt::Debug for Group<T, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Group")
            .field("channel", &self.template.name())
            .field("members", &self.group.members().count())
            .field("sent", &self.sent())
            .finish_non_exhaustive()
    }
}
