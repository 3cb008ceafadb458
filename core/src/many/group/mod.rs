//! Groups: one sender for several peers, as from a primary to its replicas.

use std::{marker::PhantomData, sync::Arc, time::Duration};

use ibex_codec::Codec;
use ibex_ring::parking::Patience;
use ibex_transport::{
    channel::SendGroup,
    histogram::Recorder,
    node::{Measured, Stopwatch},
};

pub use self::member::{GroupMember, MemberId, MemberLost};
use crate::{
    ChannelBuilder, CloseReason, Node, OpenError, Peer, PeerAt, WaitError,
    handles::message::DefaultCodec,
    peer::{
        channel_builder::{MessageVersions, message_version},
        template::ChannelTemplate,
    },
};
pub use ibex_transport::channel::WhenFull;

mod futures;
mod member;
mod sending;

/// Sends each message to several peers, and waits for a quorum of their acknowledgements.
///
/// ```
/// use ibex::{Raw, group::Group};
///
/// type Error = Box<dyn std::error::Error>;
///
/// /// Sends an entry to the replicas and waits until two have it.
/// fn commit(log: &mut Group<[u8], Raw>, entry: &[u8]) -> Result<u64, Error> {
///     let sequence = log.send(entry)?;
///     log.wait_acked(sequence, 2)?; // the third may be slow
///     while let Some(lost) = log.next_lost() {
///         println!("{lost}");
///     }
///     Ok(sequence)
/// }
/// ```
///
/// [`Node::group`] makes a group, which peers [join](Self::join) one by one. Each member has a
/// channel, a window and acknowledgements of its own, on the fabric that reaches its peer. A
/// message is encoded once, and copied to the other members' windows.
///
/// A message is sent to every member or to none, so members that joined at the beginning receive the
/// same messages in the same order. A member that joins later receives what is sent from then on.
/// Anything earlier is sent to it alone, by a sender that [joins](Self::join_sender) afterwards, or on
/// another channel.
///
/// A [`Publisher`](crate::Publisher) is a group that peers join by themselves.
///
/// The group counts its messages: [`send`](Self::send) returns a number that is the same for all
/// members, and the first is 1. A receiver's own count begins with the first message that it got.
///
/// # Quorums
///
/// [`wait_acked`](Self::wait_acked) waits until enough members have acknowledged a message, whichever
/// they are. The acknowledgement of a member that has left still counts, as far as this end knew of it,
/// for the last 64 members that left: a program did say that it was done with the message. A member has
/// acknowledged only messages that it was sent.
///
/// # Slow members
///
/// A member can be behind by its window and no more. When the window is full, sending waits for the
/// member or drops it, as [`when_full`](Self::when_full) says. The receiver of a dropped member gets what
/// was sent to it, and then an error instead of an orderly end:
/// [`Disconnected`](crate::RecvErrorKind::Disconnected) with [`CloseReason::NoRoom`](crate::CloseReason).
///
/// A member whose session is *suspended*, because its [connection](Node#when-a-connection-breaks) broke,
/// stays a member. When its window is full it counts as slow:
///
/// - [`WhenFull::DropAfter`] drops it when its time is up. It learns of that if its session goes on.
/// - [`WhenFull::Wait`] waits until the session goes on or is over. That takes up to
///   [`notice_timeout`](crate::NodeBuilder::notice_timeout) (19 s if nothing was being sent to it) and
///   then [`session_timeout`](crate::NodeBuilder::session_timeout).
///
/// # Lost members
///
/// The group drops a member whose channel has ended, whose type differs, or which did not open its end
/// within [`open_timeout`](crate::ChannelBuilder::open_timeout). The call that notices drops it, and the
/// group goes on. [`next_lost`](Self::next_lost) tells of each member that was dropped. The receiver of
/// a member that opened its end too late gets the same error as that of a slow one.
///
/// # The end
///
/// Dropping the group ends all channels in order: each receiver gets everything that was sent to it,
/// then `None`. After [`abort`](Self::abort), or if a panic drops the group, each gets an error instead.
///
/// # Errors
///
/// A lost member is no error of [`send`](Self::send). It is one of [`wait_acked`](Self::wait_acked) as
/// soon as too few members are left for the quorum.
pub struct Group<T: ?Sized, C = DefaultCodec> {
    /// A peer is shared with the errors that name it, which so cost no allocation.
    group: SendGroup<Arc<PeerAt>>,
    template: ChannelTemplate,
    /// Measures waits for a quorum, if the node keeps histograms.
    ack_waits: Option<Arc<Recorder>>,
    _types: PhantomData<fn(&T) -> C>,
}

impl Node {
    /// Makes a group on the channel `name`, which peers of this node [`join`](Group::join) one by
    /// one, with the default settings and codec.
    ///
    /// ```
    /// # #[ibex::message]
    /// # struct Entry { offset: u64 }
    /// use ibex::{Node, Peer, group::Group};
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
    /// that is not valid is an error of [`join`](Group::join).
    #[cfg(feature = "rkyv")]
    pub fn group<T: ?Sized>(&self, name: &str) -> Result<Group<T>, OpenError>
    where
        crate::Rkyv: Codec<T>,
    {
        self.channel(name).group()
    }
}

impl<C> ChannelBuilder<C, &Node> {
    /// Makes a group without members.
    ///
    /// # Errors
    ///
    /// [`OpenErrorKind::Setting`](crate::OpenErrorKind::Setting): a setting is out of its range. A name or type that is not valid is
    /// an error of [`join`](Group::join).
    pub fn group<T: ?Sized>(self) -> Result<Group<T, C>, OpenError>
    where
        C: Codec<T>,
    {
        let template = self.template.check()?;
        let runtime = self.at.runtime();
        let node = runtime.state();
        Ok(Group {
            ack_waits: node.recorder(Measured::AckWaits, template.name()),
            template,
            group: SendGroup::new(runtime),
            _types: PhantomData,
        })
    }
}

impl<T: ?Sized, C> Group<T, C> {
    /// Sets the fate of a member whose window is full. Default: [`WhenFull::Wait`], so the
    /// slowest member sets the pace of all.
    ///
    /// [`WhenFull::DropAfter`] counts from the first send that finds no room at the member. No
    /// timer runs between calls: the member is dropped by the next send that finds it full for so
    /// long, or while a send waits.
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
    /// This announces the end and returns; the next send waits until the peer has opened its end. A
    /// peer with several sessions may join once for each.
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
        let handle = channel.open_sender(message_version::<T, C>().map(MessageVersions::of_one))?;
        let Ok(member) = self.group.join(Arc::new(peer.at()), handle) else {
            unreachable!("a new end has no clone")
        };
        Ok(MemberId(member))
    }
}

impl<T: ?Sized, C> Group<T, C> {
    /// Returns the present members, in the order of joining. A member that is gone is listed until
    /// a call has noticed.
    #[must_use]
    pub fn members(&self) -> Vec<GroupMember> {
        self.group.members().map(GroupMember::of).collect()
    }

    /// Returns the earliest member that was dropped and not yet returned here, and why. Never
    /// waits. Only the last 64 are kept.
    pub fn next_lost(&mut self) -> Option<MemberLost> {
        let (parted, reason) = self.group.next_lost()?;
        Some(MemberLost::of(parted, reason))
    }

    // ---- Progress --------------------------------------------------------------------

    /// Returns the last message's sequence; 0 before the first.
    #[must_use]
    pub fn sent(&self) -> u64 {
        self.group.last_sequence()
    }

    /// Waits until every member's engine holds everything that was sent. Members that end before
    /// that are dropped.
    pub fn flush(&mut self) {
        let flushed = self.group.flush(Patience::FOREVER);
        debug_assert!(flushed.is_ok(), "it waits for as long as it takes");
    }

    /// Like [`flush`](Self::flush), for up to `timeout`.
    ///
    /// # Errors
    ///
    /// [`WaitErrorKind::Timeout`](crate::WaitErrorKind::Timeout) with a [member](WaitError::member) that is not that far.
    pub fn flush_timeout(&mut self, timeout: Duration) -> Result<(), WaitError> {
        let flushed = self.group.flush(Patience::at_most(timeout));
        flushed.map_err(WaitError::of_flush)
    }

    /// Delivers everything that was sent to every member's engine, then ends all channels. Returns
    /// the members that were lost and not yet returned by [`next_lost`](Self::next_lost).
    pub fn close(mut self) -> Vec<MemberLost> {
        self.group.close();
        self.flush();
        std::iter::from_fn(|| self.next_lost()).collect()
    }

    /// Breaks off, so that no member's channel ends in order, as
    /// [`Sender::abort`](crate::Sender::abort) does.
    pub fn abort(mut self) {
        self.group.break_off(CloseReason::Aborted);
    }

    // ---- Acknowledgements ------------------------------------------------------------

    /// Returns the last message that at least `quorum` members have acknowledged, as far as this
    /// end knows; 0 if there is none.
    #[must_use]
    pub fn acked(&self, quorum: usize) -> u64 {
        self.group.acknowledged(quorum)
    }

    /// Waits until at least `quorum` members have acknowledged message `sequence`, whichever they
    /// are. All members are asked, and each can wake the call, so a slow one delays nothing.
    ///
    /// With a sequence or a quorum of 0 it returns at once.
    ///
    /// # Errors
    ///
    /// [`WaitErrorKind::NoQuorum`](crate::WaitErrorKind::NoQuorum) as soon as too few members are left that may acknowledge it;
    /// [`WaitErrorKind::NotSent`](crate::WaitErrorKind::NotSent) if there is no such message yet.
    pub fn wait_acked(&mut self, sequence: u64, quorum: usize) -> Result<(), WaitError> {
        self.wait_with(sequence, quorum, Patience::FOREVER)
    }

    /// Like [`wait_acked`](Self::wait_acked), for up to `timeout`.
    ///
    /// # Errors
    ///
    /// The errors of [`wait_acked`](Self::wait_acked), and
    /// [`WaitErrorKind::Timeout`](crate::WaitErrorKind::Timeout).
    pub fn wait_acked_timeout(
        &mut self,
        sequence: u64,
        quorum: usize,
        timeout: Duration,
    ) -> Result<(), WaitError> {
        self.wait_with(sequence, quorum, Patience::at_most(timeout))
    }

    fn wait_with(
        &mut self,
        sequence: u64,
        quorum: usize,
        patience: Patience,
    ) -> Result<(), WaitError> {
        let stopwatch = Stopwatch::start(self.ack_waits.as_ref());
        let answer = self.group.wait_acknowledged(sequence, quorum, patience);
        if let (Ok(_), Some(stopwatch)) = (&answer, stopwatch) {
            stopwatch.record();
        }
        let channel = self.template.name();
        answer.map_err(|failure| WaitError::of_quorum(channel, sequence, quorum, failure))
    }
}

ibex_base::debug_fields! {
    [T: ?Sized, C] Group<T, C>: |group|
        channel = group.template.name(),
        members = group.group.members().count(),
        sent = group.sent(),
}
