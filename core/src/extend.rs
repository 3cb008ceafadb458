//! What a crate needs that stands on channels, beside what programs use: the untyped ends under
//! [`Sender`] and [`Receiver`], waiting, timers, and the ends of sessions and of nodes.
//!
//! Calls, kept peers, logs, byte streams and inspection are such crates. They know nothing of the
//! core but what is public here, so anybody can write another one. Programs need none of this.
//!
//! | for | there is |
//! |---|---|
//! | frames of one's own in a channel | [`SendHandle`], [`ReceiveHandle`], [`RawMessage`], opened by [`open_sender`], [`open_receiver`] |
//! | channels with several peers from one set of settings | [`ChannelTemplate`], [`Gathered`] |
//! | a wait of a thread, and a future's poll | [`parking`], [`Runtime`], [`WakeUps`] |
//! | a timer, the end of a session, a peer that drains | [`session`] |
//! | a part that starts with its node, and sees what the node counts | [`NodePart`], [`NodeView`] |
//! | what an end is in errors | [`EndLabel`] |

pub use ibex_base::{
    Address, BackOff, Escaped, debug_as_display, debug_fields, fork, random, sync::lock, threads,
    warn_limited,
};
pub use ibex_bootstrap::user_of_peer;
pub use ibex_protocol::format::message_version::MessageVersion;
pub use ibex_ring::{memory::readable_bytes, parking};
pub use ibex_transport::{
    channel::{
        Abort, Awaited, AwaitedEnd, ChannelError, EndLabel, RawMessage, ReceiveHandle, SendHandle,
        SliceMessage,
    },
    engine::Admission,
    histogram::Recorder,
    node::{
        CallTime, CallTimes, DrainParticipant, NodeState, SessionShared, TakenName,
        has_more_rights_than_its_user,
    },
    runtime::{EventLoop, PollTarget, Runtime, WakeUps},
};
#[cfg(feature = "verbs")]
pub use ibex_verbs::LockedMemory;

pub use crate::{
    error::OpenFailure,
    handles::{message::DefaultCodec, selectable::AwaitedSource},
    many::fan_in::{Gathered, Opener},
    meeting::{connector::Connector, dialing::Connecting},
    node::part::{NodePart, NodeView},
    peer::{
        channel_builder::{MessageVersions, message_version},
        template::ChannelTemplate,
    },
};

use std::{any::Any, sync::Arc};

use ibex_base::fork::UsedAfterFork;
use ibex_protocol::format::control::Role;

use crate::{
    ChannelBuilder, Codec, Node, OpenError, Peer, PeerAt, Receiver, Sender, many::group::MemberId,
};

/// Returns what turns the node's engines. It does not keep the node open.
#[must_use]
pub fn runtime(node: &Node) -> &Arc<Runtime> {
    node.runtime()
}

/// Returns an error if the calling process is a fork of the one that made the node.
///
/// # Errors
///
/// [`UsedAfterFork`].
pub fn check_fork(node: &Node) -> Result<(), UsedAfterFork> {
    node.check_fork()
}

/// Returns the node's part of this type, if it has one: see [`NodePart`].
#[must_use]
pub fn part<T: Any>(node: &Node) -> Option<&T> {
    let mut added = node.parts.added.iter();
    added.find_map(|part| part.downcast_ref())
}

/// Returns the means to make single attempts to connect.
#[must_use]
pub fn connector(node: &Node) -> Connector {
    node.connector()
}

/// Returns the session with a peer: its timer, its end, and whether the peer drains.
#[must_use]
pub fn session(peer: &Peer) -> &Arc<SessionShared> {
    peer.session()
}

/// Returns whether the close of the session with a peer has begun, here or there. New work finds
/// another session.
#[must_use]
pub fn is_ending(peer: &Peer) -> bool {
    session(peer).ending.has_begun()
}

/// Takes the untyped end from under a handle, or lends it.
pub trait Untyped {
    /// The untyped end.
    type Handle;

    /// Lends the untyped end.
    fn untyped(&self) -> &Self::Handle;

    /// Lends the untyped end for a call that changes it.
    fn untyped_mut(&mut self) -> &mut Self::Handle;

    /// Takes the untyped end.
    fn into_untyped(self) -> Self::Handle;
}

impl<T: ?Sized, C> Untyped for Sender<T, C> {
    type Handle = SendHandle;

    fn untyped(&self) -> &SendHandle {
        &self.handle
    }

    fn untyped_mut(&mut self) -> &mut SendHandle {
        &mut self.handle
    }

    fn into_untyped(self) -> SendHandle {
        self.handle
    }
}

impl<T: ?Sized, C> Untyped for Receiver<T, C> {
    type Handle = ReceiveHandle;

    fn untyped(&self) -> &ReceiveHandle {
        &self.handle
    }

    fn untyped_mut(&mut self) -> &mut ReceiveHandle {
        &mut self.handle
    }

    fn into_untyped(self) -> ReceiveHandle {
        self.handle
    }
}

/// Begins a channel from a template. `at` says with whom it is: a peer, a node, or what another
/// crate has of several peers.
pub fn channel<C, At>(at: At, template: ChannelTemplate) -> ChannelBuilder<C, At> {
    ChannelBuilder::new(at, template).codec()
}

/// Returns with whom a channel is, and its name and settings.
#[must_use]
pub fn parts<C, At>(channel: &ChannelBuilder<C, At>) -> (&At, &ChannelTemplate) {
    (&channel.at, &channel.template)
}

/// Says what the end of a channel is in errors.
pub fn with_label<C, At>(
    channel: ChannelBuilder<C, At>,
    label: &'static EndLabel,
) -> ChannelBuilder<C, At> {
    channel.labeled(label)
}

/// Opens the sending end of a channel for messages of these versions.
///
/// # Errors
///
/// [`OpenError`], as [`ChannelBuilder::sender`].
pub fn open_sender<C>(
    channel: &ChannelBuilder<C>,
    offer: Result<MessageVersions, OpenFailure>,
) -> Result<SendHandle, OpenError> {
    channel.open_sender(offer)
}

/// Opens the receiving end of a channel for messages of these versions.
///
/// # Errors
///
/// [`OpenError`], as [`ChannelBuilder::receiver`].
pub fn open_receiver<C>(
    channel: &ChannelBuilder<C>,
    offer: Result<MessageVersions, OpenFailure>,
) -> Result<ReceiveHandle, OpenError> {
    channel.open_receiver(offer)
}

/// Returns a handle of the shared sending end of this name, which stays open as long as the session.
///
/// # Errors
///
/// [`OpenError`], as [`ChannelBuilder::sender`].
pub fn shared_sender<T: ?Sized, C: Codec<T>>(
    channel: &ChannelBuilder<C>,
) -> Result<Sender<T, C>, OpenError> {
    channel.shared_sender()
}

/// Makes the error of an end of a channel that cannot be opened.
#[must_use]
pub fn refused<C>(channel: &ChannelBuilder<C>, end: Role, reason: OpenFailure) -> OpenError {
    channel.refused(end, reason)
}

/// Returns the name and address of the peer at the other end of a session.
#[must_use]
pub fn peer_at(session: &SessionShared) -> PeerAt {
    PeerAt::of(session.peer())
}

/// Names the member of a group by a number, which the group gives to no other member.
#[must_use]
pub fn member_id(number: u64) -> MemberId {
    MemberId(number)
}

/// Errors of the core that crates above it return.
pub mod errors {
    use std::{fmt::Display, io};

    use crate::{
        ConnectError, ListenError, OpenError, OpenErrorKind, SendError, SendErrorKind,
        error::ListenFailure,
    };
    use ibex_transport::channel::{ChannelError, SendHandle};

    /// Returns the kind that a socket's error would have.
    #[must_use]
    pub fn io_kind(error: &SendError) -> io::ErrorKind {
        error.io_kind()
    }

    /// Returns whether an end refused a message since its peer takes shorter ones only.
    #[must_use]
    pub fn is_narrow_for(end: &SendHandle, error: &SendError) -> bool {
        error
            .reason()
            .is_some_and(|reason| end.is_narrow_for(reason))
    }

    /// Makes the error of a node whose part cannot start, with this text and kind.
    #[must_use]
    pub fn no_part(why: io::Error) -> ListenError {
        ListenFailure::Part(why).into()
    }

    /// Makes the error of a call that waits for a peer when the node is closed.
    #[must_use]
    pub fn not_accepted() -> ConnectError {
        ConnectError::accepts_no_more(true)
    }

    /// Makes the error of a call that needs a thread that the process cannot have.
    #[must_use]
    pub fn no_thread(error: io::Error) -> ConnectError {
        ConnectError::no_thread(&error)
    }

    /// Makes the error of an end with all peers that cannot have its name.
    #[must_use]
    pub fn unopened(name: &str, kind: OpenErrorKind, text: impl Display) -> OpenError {
        OpenError::of_name(name, kind, text)
    }

    /// Makes the error of a message that was not sent, for a reason that is not its channel's.
    #[must_use]
    pub fn unsent(kind: SendErrorKind, text: &'static str) -> SendError {
        SendError::plain(kind, text)
    }

    /// Makes the error of a message that a channel did not take. `what` comes before the channel's
    /// failure.
    #[must_use]
    pub fn unsent_by_channel(what: &str, error: ChannelError) -> SendError {
        SendError::of_channel(what, error, None)
    }
}
