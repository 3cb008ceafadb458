//! What happens to sessions and channels.
#![forbid(unsafe_code)]

use std::{
    fmt,
    sync::Arc,
    time::{Duration, Instant},
};

use ibex_base::{Address, Counted, Rounded};
use ibex_transport::node::{self, NodeEvent, What};

use crate::{EndCause, Fabric, NotOpened, PeerId, PeerNames, Role, Suspension};

/// Writes [`Event`] from rows, with the peer in each event. A row is an event and its fields, and
/// the pattern of what the transport reports, which has the values of the fields by their names.
macro_rules! events {
    (
        $(#[$about:meta])*
        pub enum Event {$(
            $(#[$doc:meta])*
            $What:pat => $Event:ident {
                $($(#[$field_doc:meta])* $field:ident: $type:ty $(= $value:expr)?,)*
            }
        )+}
    ) => {
        $(#[$about])*
        pub enum Event {$(
            $(#[$doc])*
            #[non_exhaustive]
            $Event {
                /// The peer.
                peer: PeerId,
                /// The peer's address.
                address: Address,
                /// The peer's names.
                names: PeerNames,
                $($(#[$field_doc])* $field: $type,)*
            },
        )+}

        impl Event {
            pub(crate) fn of(event: NodeEvent) -> Self {
                let NodeEvent { address, identity, incarnation, names, what } = event;
                let peer = PeerId::new(identity, incarnation);
                match what {$(
                    $What => {
                        $($(let $field = $value;)?)*
                        Self::$Event { peer, address, names, $($field,)* }
                    }
                )+}
            }

            /// Returns the peer of the event, its address and its names.
            fn subject(&self) -> (PeerId, Address, &PeerNames) {
                match self {
                    $(Self::$Event { peer, address, names, .. } => (*peer, *address, names),)+
                }
            }
        }
    };
}

events! {
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
        What::Connected { fabric, reason } => Connected {
            /// The fabric of the session's data.
            fabric: Fabric,
            /// The reason for the fabric, in words.
            reason: String,
        }
        /// A session has lost its connection. The event comes 50 ms after the break, or together with
        /// [`Resumed`](Self::Resumed) if the session goes on sooner. Its handles go on as far as they
        /// can, and then wait: senders until their windows are full, receivers until they have
        /// everything that arrived.
        ///
        /// The event does not say whether the peer's process lives. When a process is killed, its
        /// connection breaks first, and the kernel reports the end later, by more than 50 ms on a busy
        /// machine. Then [`Gone`](Event::Gone) with [`certain: true`](EndCause::PeerGone) follows.
        /// `Gone` may also come without a suspension.
        What::Suspended { cause, since } => Suspended {
            /// Why the connection broke.
            cause: EndCause,
            /// The time of the break.
            since: Instant,
        }
        /// A session goes on over another connection: nothing was lost, and nothing comes twice.
        What::Resumed { suspended, replayed } => Resumed {
            /// The time that it had none.
            suspended: Duration,
            /// Messages of this node that were sent again because they had not arrived.
            replayed: u64,
        }
        /// A session goes on over another fabric than before. The event follows
        /// [`Resumed`](Event::Resumed). A session over verbs goes on over TCP when its device, port or
        /// path has failed and is not back in time.
        What::FabricChanged { from, to, reason } => FabricChanged {
            /// The fabric that the session's data left.
            from: Fabric,
            /// The fabric that it goes over now.
            to: Fabric,
            /// Why the previous fabric was left, in words. At the end that connected, also the result
            /// of the last attempt to have it again.
            reason: String,
        }
        /// The peer [drains](crate::Node::drain): it begins no more calls that come to its services,
        /// and ends soon. Calls to it end as not executed from
        /// now on, so send them to another node, or to the one that takes its place. The event comes
        /// once for each session, which goes on until [`Gone`](Event::Gone).
        What::Draining => Draining {
        }
        /// A session is over. Messages that arrived are still handed out. The event comes once for each
        /// session that had [`Connected`](Event::Connected), and is its last. A suspension that it ends
        /// has no [`Resumed`](Event::Resumed).
        What::Gone { cause } => Gone {
            /// The cause.
            cause: EndCause,
        }
        /// A peer has not opened its end of a channel, and a call without `open_timeout` has waited for
        /// as long as that. Such a call is a waiting [`Select`](crate::Select) or a future. The event
        /// comes once for each end, and is logged as a warning, with the names that the peer has opened
        /// instead. The call goes on.
        What::NotOpened(failure) => NotOpened {
            /// The error that another call would have returned.
            missing: Box<NotOpened> = Box::new(NotOpened::of(&failure).expect("no end is missing")),
        }
        /// A sender has waited for its window for 1 s, and nothing of it was released. The event comes
        /// once for each such wait, at both ends, and is logged as a warning. The receiving end also
        /// reports a message that waits for room within its node's
        /// [`memory_limit`](crate::NodeBuilder::memory_limit), whether its sender waits or not. Under
        /// [`Driver::Caller`](crate::Driver::Caller) it is noticed in turns.
        What::Stalled(node::Stalled {
            channel,
            end,
            since,
            oldest,
            held,
            lacks_room,
            suspended,
        }) => Stalled {
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
        }
        /// A channel that was stalled goes on. If it ends instead, errors of its session or its handles
        /// say so. The receiving end does not report the end of a wait that its sender gave up.
        What::Recovered { channel, end, stalled } => Recovered {
            /// The channel's name.
            channel: String,
            /// The end that this node has.
            end: Role,
            /// The time that it had waited.
            stalled: Duration,
        }
    }
}

impl Event {
    /// Returns the names of the event's peer: the one that it gives itself, and the one that it has
    /// proven.
    #[must_use]
    pub fn names(&self) -> &PeerNames {
        self.subject().2
    }

    /// Returns the peer of the event.
    #[must_use]
    pub fn peer(&self) -> PeerId {
        self.subject().0
    }
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (peer, address, names) = self.subject();
        match self {
            Event::Connected { reason, .. } => {
                write!(f, "connected to {peer} at {address}{names} over {reason}")
            }
            Event::Suspended { cause, since, .. } => write!(
                f,
                "session with {peer} at {address}{names} lost its connection {} ago: {}",
                Rounded(since.elapsed()),
                cause.why()
            ),
            Event::Resumed {
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
                from, to, reason, ..
            } => write!(
                f,
                "session with {peer} at {address}{names} goes over {to} and not {from}: {reason}"
            ),
            Event::Draining { .. } => {
                write!(
                    f,
                    "{peer} at {address}{names} drains: it begins no call any more"
                )
            }
            Event::Gone { cause, .. } => write!(
                f,
                "session with {peer} at {address}{names} is over: {cause}"
            ),
            Event::NotOpened { missing, .. } => missing.fmt(f),
            Event::Stalled {
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
                channel, stalled, ..
            } => write!(
                f,
                "channel \"{channel}\" with {peer}{names} goes on after {}",
                Rounded(*stalled)
            ),
        }
    }
}
