//! What happens to sessions and channels.
#![forbid(unsafe_code)]

use std::{
    fmt,
    sync::Arc,
    time::{Duration, Instant},
};

use ibex_base::{Address, Counted, Rounded};
use ibex_transport::node::{self, What};

use crate::{EndCause, Fabric, NotOpened, PeerId, PeerNames, Role, Suspension, peer_id::fabric_of};

/// Something that happened to a session or to a channel.
///
/// The events of a session come in this order: [`Connected`](Event::Connected); any number of
/// suspensions, each a [`Suspended`](Event::Suspended) that is followed by its
/// [`Resumed`](Event::Resumed) or by the end of the session; and at last
/// [`Gone`](Event::Gone), once. Events of its channels come in between.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event {
    /// A session is up, whichever node connected.
    #[non_exhaustive]
    Connected {
        /// The peer.
        peer: PeerId,
        /// The peer's address.
        address: Address,
        /// The peer's names.
        names: PeerNames,
        /// The fabric of the session's data.
        fabric: Fabric,
        /// The reason for the fabric, in words.
        reason: String,
    },
    /// A session has lost its connection. The event comes 50 ms after the break, or together with
    /// [`Resumed`](Self::Resumed) if the session goes on sooner. Its handles go on as far as they
    /// can, and then wait: senders until their windows are full, receivers until they have
    /// everything that arrived.
    ///
    /// The event does not say whether the peer's process lives. When a process is killed, its
    /// connection breaks first, and the kernel reports the end later, by more than 50 ms on a busy
    /// machine. Then [`Gone`](Event::Gone) with [`certain: true`](EndCause::PeerGone) follows.
    /// `Gone` may also come without a suspension.
    #[non_exhaustive]
    Suspended {
        /// The peer.
        peer: PeerId,
        /// The peer's address.
        address: Address,
        /// The peer's names.
        names: PeerNames,
        /// Why the connection broke.
        cause: EndCause,
        /// The time of the break.
        since: Instant,
    },
    /// A session goes on over another connection: nothing was lost, and nothing comes twice.
    #[non_exhaustive]
    Resumed {
        /// The peer.
        peer: PeerId,
        /// The peer's address.
        address: Address,
        /// The peer's names.
        names: PeerNames,
        /// The time that it had none.
        suspended: Duration,
        /// Messages of this node that were sent again because they had not arrived.
        replayed: u64,
    },
    /// A session goes on over another fabric than before. The event follows
    /// [`Resumed`](Event::Resumed). A session over verbs goes on over TCP when its device, port or
    /// path has failed and is not back in time.
    #[non_exhaustive]
    FabricChanged {
        /// The peer.
        peer: PeerId,
        /// The peer's address.
        address: Address,
        /// The peer's names.
        names: PeerNames,
        /// The fabric that the session's data left.
        from: Fabric,
        /// The fabric that it goes over now.
        to: Fabric,
        /// Why the previous fabric was left, in words. At the end that connected, also the result
        /// of the last attempt to have it again.
        reason: String,
    },
    /// The peer [drains](crate::Node::drain): it begins no more calls that come to its services,
    /// and ends soon. Calls to it end as not executed from
    /// now on, so send them to another node, or to the one that takes its place. The event comes
    /// once for each session, which goes on until [`Gone`](Event::Gone).
    #[non_exhaustive]
    Draining {
        /// The peer.
        peer: PeerId,
        /// The peer's address.
        address: Address,
        /// The peer's names.
        names: PeerNames,
    },
    /// A session is over. Messages that arrived are still handed out. The event comes once for each
    /// session that had [`Connected`](Event::Connected), and is its last. A suspension that it ends
    /// has no [`Resumed`](Event::Resumed).
    #[non_exhaustive]
    Gone {
        /// The peer.
        peer: PeerId,
        /// The peer's address.
        address: Address,
        /// The peer's names.
        names: PeerNames,
        /// The cause.
        cause: EndCause,
    },
    /// A peer has not opened its end of a channel, and a call without `open_timeout` has waited for
    /// as long as that. Such a call is a waiting [`Select`](crate::Select) or a future. The event
    /// comes once for each end, and is logged as a warning, with the names that the peer has opened
    /// instead. The call goes on.
    #[non_exhaustive]
    NotOpened {
        /// The peer.
        peer: PeerId,
        /// The peer's address.
        address: Address,
        /// The peer's names.
        names: PeerNames,
        /// The error that another call would have returned.
        missing: Box<NotOpened>,
    },
    /// A sender has waited for its window for 1 s, and nothing of it was released. The event comes
    /// once for each such wait, at both ends, and is logged as a warning. The receiving end also
    /// reports a message that waits for room within its node's
    /// [`memory_limit`](crate::NodeBuilder::memory_limit), whether its sender waits or not. Under
    /// [`Driver::Caller`](crate::Driver::Caller) it is noticed in turns.
    #[non_exhaustive]
    Stalled {
        /// The peer.
        peer: PeerId,
        /// The peer's address.
        address: Address,
        /// The peer's names.
        names: PeerNames,
        /// The channel's name.
        channel: String,
        /// The end that this node has: the one that waits, or the one that is waited for.
        end: Role,
        /// The time since when nothing was released.
        since: Instant,
        /// The first message that is not released, which all later ones wait for.
        oldest: u64,
        /// Messages that the application here has taken and not released. If there are none, the
        /// application does not take the next one. `None` at the sending end, which cannot know.
        held: Option<u64>,
        /// True if the next message has come, or begun to, and waits for room within `memory_limit`
        /// here.
        lacks_room: bool,
        /// At the sending end, the suspension of the session, if it has no connection. The receiver
        /// is not to blame then.
        suspended: Option<Arc<Suspension>>,
    },
    /// A channel that was stalled goes on. If it ends instead, errors of its session or its handles
    /// say so. The receiving end does not report the end of a wait that its sender gave up.
    #[non_exhaustive]
    Recovered {
        /// The peer.
        peer: PeerId,
        /// The peer's address.
        address: Address,
        /// The peer's names.
        names: PeerNames,
        /// The channel's name.
        channel: String,
        /// The end that this node has.
        end: Role,
        /// The time that it had waited.
        stalled: Duration,
    },
}

impl Event {
    pub(crate) fn of(event: node::NodeEvent) -> Self {
        let node::NodeEvent {
            address,
            identity,
            incarnation,
            names,
            what,
        } = event;
        let peer = PeerId::new(identity, incarnation);
        match what {
            What::Connected { fabric, reason } => Event::Connected {
                peer,
                address,
                names,
                fabric: fabric_of(fabric),
                reason,
            },
            What::Suspended { cause, since } => Event::Suspended {
                peer,
                address,
                names,
                cause,
                since,
            },
            What::Resumed {
                suspended,
                replayed,
            } => Event::Resumed {
                peer,
                address,
                names,
                suspended,
                replayed,
            },
            What::FabricChanged { from, to, reason } => Event::FabricChanged {
                peer,
                address,
                names,
                from: fabric_of(from),
                to: fabric_of(to),
                reason,
            },
            What::Draining => Event::Draining {
                peer,
                address,
                names,
            },
            What::Gone { cause } => Event::Gone {
                peer,
                address,
                names,
                cause,
            },
            What::NotOpened(failure) => Event::NotOpened {
                peer,
                address,
                names,
                missing: match NotOpened::of(failure) {
                    Ok(missing) => missing,
                    Err(other) => unreachable!("no missing end: {other}"),
                },
            },
            What::Stalled(stalled) => Event::Stalled {
                peer,
                address,
                names,
                channel: stalled.channel,
                end: stalled.end,
                since: stalled.since,
                oldest: stalled.oldest,
                held: stalled.held,
                lacks_room: stalled.lacks_room,
                suspended: stalled.suspended,
            },
            What::Recovered {
                channel,
                end,
                stalled,
            } => Event::Recovered {
                peer,
                address,
                names,
                channel,
                end,
                stalled,
            },
        }
    }

    /// Returns the names of the event's peer: the one that it gives itself, and the one that it has
    /// proven.
    #[must_use]
    pub fn names(&self) -> &PeerNames {
        match self {
            Event::Connected { names, .. }
            | Event::Suspended { names, .. }
            | Event::Resumed { names, .. }
            | Event::FabricChanged { names, .. }
            | Event::Draining { names, .. }
            | Event::Gone { names, .. }
            | Event::NotOpened { names, .. }
            | Event::Stalled { names, .. }
            | Event::Recovered { names, .. } => names,
        }
    }

    /// Returns the peer of the event.
    #[must_use]
    pub fn peer(&self) -> PeerId {
        match *self {
            Event::Connected { peer, .. }
            | Event::Suspended { peer, .. }
            | Event::Resumed { peer, .. }
            | Event::FabricChanged { peer, .. }
            | Event::Draining { peer, .. }
            | Event::Gone { peer, .. }
            | Event::NotOpened { peer, .. }
            | Event::Stalled { peer, .. }
            | Event::Recovered { peer, .. } => peer,
        }
    }
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = self.names();
        match self {
            Event::Connected {
                peer,
                address,
                reason,
                ..
            } => write!(f, "connected to {peer} at {address}{names} over {reason}"),
            Event::Suspended {
                peer,
                address,
                cause,
                since,
                ..
            } => write!(
                f,
                "session with {peer} at {address}{names} lost its connection {} ago: {}",
                Rounded(since.elapsed()),
                cause.why()
            ),
            Event::Resumed {
                peer,
                address,
                suspended,
                replayed,
                ..
            } => write!(
                f,
                "session with {peer} at {address}{names} goes on after {}; sent again: {}",
                Rounded(*suspended),
                Counted(*replayed, "message")
            ),
            Event::FabricChanged {
                peer,
                address,
                from,
                to,
                reason,
                ..
            } => write!(
                f,
                "session with {peer} at {address}{names} goes over {to} and not {from}: {reason}"
            ),
            Event::Draining { peer, address, .. } => {
                write!(
                    f,
                    "{peer} at {address}{names} drains: it begins no call any more"
                )
            }
            Event::Gone {
                peer,
                address,
                cause,
                ..
            } => write!(
                f,
                "session with {peer} at {address}{names} is over: {cause}"
            ),
            Event::NotOpened { missing, .. } => missing.fmt(f),
            Event::Stalled {
                peer,
                channel,
                end,
                since,
                oldest,
                held,
                lacks_room,
                suspended,
                ..
            } => {
                let stalled = node::Stalled {
                    channel: channel.clone(),
                    end: *end,
                    since: *since,
                    oldest: *oldest,
                    held: *held,
                    lacks_room: *lacks_room,
                    suspended: suspended.clone(),
                };
                write!(f, "channel \"{channel}\" with {peer}{names}: {stalled}")
            }
            Event::Recovered {
                peer,
                channel,
                stalled,
                ..
            } => write!(
                f,
                "channel \"{channel}\" with {peer}{names} goes on after {}",
                Rounded(*stalled)
            ),
        }
    }
}
