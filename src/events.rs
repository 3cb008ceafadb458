//! A stream of the events of a node's sessions and channels.
#![forbid(unsafe_code)]

use std::{
    fmt,
    net::SocketAddr,
    sync::Arc,
    time::{Duration, Instant},
};

use ibex_ring::parking::Patience;
use ibex_transport::{
    node::{self, What},
    runtime::Runtime,
};

use crate::{EndCause, Fabric, NotOpened, PeerId, Role, peer::fabric_of, stats::rounded};

/// The events of a node: [`Node::events`](crate::Node::events).
///
/// As an iterator it waits for the next one, and ends when the node was closed and all were
/// taken. It may be moved to another thread, and does not keep the node from being closed.
///
/// ```
/// use ibex::{Event, Node};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let node = Node::client()?;
/// let events = node.events();
/// let watching = std::thread::spawn(move || {
///     for event in events {
///         eprintln!("{event}");
///         if let Event::Stalled { channel, .. } = event {
///             // Somebody holds the messages of `channel`.
/// #           let _ = channel;
///         }
///     }
/// });
/// drop(node);
/// watching.join().unwrap();
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Events {
    runtime: Arc<Runtime>,
}

/// Something that happened to a session or to a channel.
///
/// The events of a session come in this order: [`Connected`](Event::Connected); any number of
/// suspensions, each a [`Suspended`](Event::Suspended) that is followed by its
/// [`Resumed`](Event::Resumed) or by the end of the session; and at last
/// [`Gone`](Event::Gone), once. Events of its channels come in between.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event {
    /// A session is up, whoever connected.
    #[non_exhaustive]
    Connected {
        /// The peer.
        peer: PeerId,
        /// The peer's address.
        address: SocketAddr,
        /// The fabric of the session's data.
        fabric: Fabric,
        /// Why, in words.
        reason: String,
    },
    /// A session has lost its connection. Told 50 ms after the connection broke, or together
    /// with [`Resumed`](Self::Resumed) if it goes on sooner. Its handles go on as far as they
    /// can: senders until their windows are full, receivers with what has arrived; then they
    /// wait.
    ///
    /// It says nothing of the peer's process, which may have ended: the connection of a process
    /// that is killed breaks first, and its kernel tells of the end later, by more than 50 ms
    /// on a busy machine. Then [`Gone`](Event::Gone) with
    /// [`certain: true`](EndCause::PeerGone) follows. `Gone` may also come without a suspension.
    #[non_exhaustive]
    Suspended {
        /// The peer.
        peer: PeerId,
        /// The peer's address.
        address: SocketAddr,
        /// Why the connection broke.
        cause: EndCause,
        /// Since when.
        since: Instant,
    },
    /// A session goes on over another connection: nothing was lost, and nothing comes twice.
    #[non_exhaustive]
    Resumed {
        /// The peer.
        peer: PeerId,
        /// The peer's address.
        address: SocketAddr,
        /// How long it had none.
        suspended: Duration,
        /// Messages of ours that were sent again, as they had not arrived.
        replayed: u64,
    },
    /// A session goes on over another fabric than before, told behind
    /// [`Resumed`](Event::Resumed): one over verbs whose device, port or path has failed and is
    /// not back in time, over tcp; one that [goes back](crate::NodeBuilder::fail_back), over
    /// verbs.
    #[non_exhaustive]
    FabricChanged {
        /// The peer.
        peer: PeerId,
        /// The peer's address.
        address: SocketAddr,
        /// The fabric that the session's data left.
        from: Fabric,
        /// The fabric that it goes over now.
        to: Fabric,
        /// Why the previous fabric was left, in words. At the end that connected, also the result
        /// of the last attempt to have it again.
        reason: String,
    },
    /// The peer [drains](crate::Node::drain): it begins no call any more that comes to its
    /// services, and ends soon. Calls to it end as
    /// [not executed](crate::calls::Execution::NotExecuted) from now on; send them to another node, or to
    /// the one that comes in its place. Told once for each session, which goes on until
    /// [`Gone`](Event::Gone).
    #[non_exhaustive]
    Draining {
        /// The peer.
        peer: PeerId,
        /// The peer's address.
        address: SocketAddr,
    },
    /// A session is over. What had arrived is still handed out. Told once for each session that
    /// was told as [`Connected`](Event::Connected), and nothing is told of that session
    /// afterwards. A suspension that it ends has no [`Resumed`](Event::Resumed).
    #[non_exhaustive]
    Gone {
        /// The peer.
        peer: PeerId,
        /// The peer's address.
        address: SocketAddr,
        /// Why.
        cause: EndCause,
    },
    /// A peer has not opened its end of a channel that a call without `open_timeout` waits for,
    /// for as long as that: one of [`Select`](crate::Select) that waits, or a future. Told once
    /// for each end, and logged as a warning, with what the peer has opened instead. The call
    /// goes on.
    #[non_exhaustive]
    NotOpened {
        /// The peer.
        peer: PeerId,
        /// The peer's address.
        address: SocketAddr,
        /// The error that another call would have returned.
        missing: Box<NotOpened>,
    },
    /// A sender has waited for 1 s for its window and nothing of it was released: told once
    /// for each such wait, at both ends, and logged as a warning. The receiving end tells as well
    /// of a message that waits for room within its node's
    /// [`memory_limit`](crate::NodeBuilder::memory_limit), be its sender waiting or not. Under
    /// [`Driver::Caller`](crate::Driver::Caller) it is noticed in turns.
    #[non_exhaustive]
    Stalled {
        /// The peer.
        peer: PeerId,
        /// The peer's address.
        address: SocketAddr,
        /// The channel's name.
        channel: String,
        /// Which end this node has: the one that waits, or the one that is waited for.
        end: Role,
        /// Since when.
        since: Instant,
        /// The first message that is not released: what all others wait for.
        oldest: u64,
        /// Messages that the application here has taken and not released; if there are none,
        /// it does not take the next one. `None` at the sending end, which cannot know.
        held: Option<u64>,
        /// The next message has come, or begun to, and waits for room within `memory_limit` here.
        lacks_room: bool,
    },
    /// A channel that was stalled goes on. One that ends instead says so by its session's or
    /// its handles' errors. The receiving end tells nothing of a wait that its sender gave up.
    #[non_exhaustive]
    Recovered {
        /// The peer.
        peer: PeerId,
        /// The peer's address.
        address: SocketAddr,
        /// The channel's name.
        channel: String,
        /// Which end this node has.
        end: Role,
        /// How long it had waited.
        stalled: Duration,
    },
}

impl Events {
    pub(crate) fn new(runtime: Arc<Runtime>) -> Self {
        Self { runtime }
    }

    /// The next event, if there is one. Under [`Driver::Caller`](crate::Driver::Caller) it
    /// runs a turn first.
    pub fn try_next(&mut self) -> Option<Event> {
        self.next_within(Patience::None)
    }

    /// The next event; `None` if none came within `timeout`, or none will.
    pub fn next_timeout(&mut self, timeout: Duration) -> Option<Event> {
        self.next_within(Patience::at_most(timeout))
    }

    /// Events that were dropped because nobody took them. Of those that nobody has taken yet
    /// the latest 1024 are kept; what happens never waits for whoever reads of it.
    #[must_use]
    pub fn dropped(&self) -> u64 {
        self.runtime.events_dropped()
    }

    fn next_within(&self, patience: Patience) -> Option<Event> {
        self.runtime.next_event(patience).map(Event::of)
    }
}

impl Iterator for Events {
    type Item = Event;

    fn next(&mut self) -> Option<Event> {
        self.next_within(Patience::FOREVER)
    }
}

impl fmt::Debug for Events {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let dropped = self.dropped();
        f.debug_struct("Events")
            .field("dropped", &dropped)
            .finish_non_exhaustive()
    }
}

impl Event {
    fn of(event: node::Event) -> Self {
        let node::Event {
            address,
            identity,
            incarnation,
            what,
        } = event;
        let peer = PeerId::new(identity, incarnation);
        match what {
            What::Connected { fabric, reason } => Event::Connected {
                peer,
                address,
                fabric: fabric_of(fabric),
                reason,
            },
            What::Suspended { cause, since } => Event::Suspended {
                peer,
                address,
                cause,
                since,
            },
            What::Resumed {
                suspended,
                replayed,
            } => Event::Resumed {
                peer,
                address,
                suspended,
                replayed,
            },
            What::FabricChanged { from, to, reason } => Event::FabricChanged {
                peer,
                address,
                from: fabric_of(from),
                to: fabric_of(to),
                reason,
            },
            What::Draining => Event::Draining { peer, address },
            What::Gone { cause } => Event::Gone {
                peer,
                address,
                cause,
            },
            What::NotOpened(missing) => Event::NotOpened {
                peer,
                address,
                missing,
            },
            What::Stalled(stalled) => Event::Stalled {
                peer,
                address,
                channel: stalled.channel,
                end: stalled.end,
                since: stalled.since,
                oldest: stalled.oldest,
                held: stalled.held,
                lacks_room: stalled.lacks_room,
            },
            What::Recovered {
                channel,
                end,
                stalled,
            } => Event::Recovered {
                peer,
                address,
                channel,
                end,
                stalled,
            },
        }
    }

    /// The peer that it happened with.
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
        match self {
            Event::Connected {
                peer,
                address,
                reason,
                ..
            } => write!(f, "connected to {peer} at {address} over {reason}"),
            Event::Suspended {
                peer,
                address,
                cause,
                since,
            } => {
                // Nobody is gone yet.
                let why: &dyn fmt::Display = match cause {
                    EndCause::PeerGone { why, .. } => why,
                    cause => cause,
                };
                write!(
                    f,
                    "session with {peer} at {address} lost its connection {:?} ago: {why}",
                    rounded(since.elapsed())
                )
            }
            Event::Resumed {
                peer,
                address,
                suspended,
                replayed,
            } => write!(
                f,
                "session with {peer} at {address} goes on after {:?}, {replayed} \
                 messages are sent again",
                rounded(*suspended)
            ),
            Event::FabricChanged {
                peer,
                address,
                from,
                to,
                reason,
            } => write!(
                f,
                "session with {peer} at {address} goes over {to} and not {from}: {reason}"
            ),
            Event::Draining { peer, address } => {
                write!(f, "{peer} at {address} drains: it begins no call any more")
            }
            Event::Gone {
                peer,
                address,
                cause,
            } => write!(f, "session with {peer} at {address} is over: {cause}"),
            Event::NotOpened { missing, .. } => missing.fmt(f),
            Event::Stalled {
                peer,
                channel,
                end,
                since,
                oldest,
                held,
                lacks_room,
                ..
            } => {
                let stalled = node::Stalled {
                    channel: channel.clone(),
                    end: *end,
                    since: *since,
                    oldest: *oldest,
                    held: *held,
                    lacks_room: *lacks_room,
                };
                write!(f, "channel \"{channel}\" with {peer}: {stalled}")
            }
            Event::Recovered {
                peer,
                channel,
                stalled,
                ..
            } => write!(
                f,
                "channel \"{channel}\" with {peer} goes on after {:?}",
                rounded(*stalled)
            ),
        }
    }
}
