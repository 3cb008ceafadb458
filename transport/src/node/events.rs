//! Events of a node's sessions and channels, for a program that asks for them.
//!
//! Rules:
//!
//! 1. Reporting an event never waits for the program. The queue is bounded; at the limit the oldest
//!    event is dropped and counted.
//! 2. Each event is handed out once.
//! 3. The end of a session is reported once, and no event of the session after it.
#![forbid(unsafe_code)]

use std::{
    collections::VecDeque,
    fmt,
    sync::Arc,
    time::{Duration, Instant},
};

use ibex_base::Address;
use ibex_base::{
    Counted, Rounded,
    sync::{Mutex, lock},
};
use ibex_protocol::format::control::Role;
use ibex_ring::parking::{WaitSlot, Wakers};

use super::SessionShared;
use super::{Warning, warn_of};
use crate::session::{ChannelFailure, EndCause, Fabric, PeerDescription, PeerNames, Suspension};

/// Something that happened, and the peer that it happened with.
#[derive(Debug)]
pub struct NodeEvent {
    /// The peer's address as this end sees it.
    pub address: Address,
    /// The peer's identity.
    pub identity: [u8; 16],
    /// The peer's incarnation.
    pub incarnation: u64,
    /// The peer's names.
    pub names: PeerNames,
    /// The event.
    pub what: What,
}

/// An event of a node.
#[derive(Debug)]
pub enum What {
    /// A session is up.
    Connected {
        /// The fabric of the session's data.
        fabric: Fabric,
        /// The reason for this fabric.
        reason: String,
    },
    /// A session has lost its connection to its peer. It goes on when it has another.
    Suspended {
        /// The cause of the break.
        cause: EndCause,
        /// The time of the break.
        since: Instant,
    },
    /// The session goes on over another connection.
    Resumed {
        /// The time for which the session had no connection.
        suspended: Duration,
        /// Messages that were sent again, because they had not arrived.
        replayed: u64,
    },
    /// A session goes on over another fabric than before.
    FabricChanged {
        /// The fabric that the data left.
        from: Fabric,
        /// The fabric that the data goes over now.
        to: Fabric,
        /// The reason why the data left the former fabric.
        reason: String,
    },
    /// The peer drains: it begins no more of the calls that it serves.
    Draining,
    /// A session is over.
    Gone {
        /// The cause of the end.
        cause: EndCause,
    },
    /// A call has waited for the peer to open an end for as long as the `open_timeout`, and goes on
    /// waiting.
    NotOpened(Box<ChannelFailure>),
    /// A sender waits for its window, and nothing has moved for a while.
    Stalled(Stalled),
    /// A stalled sender goes on.
    Recovered {
        /// The channel.
        channel: String,
        /// The local end of the channel.
        end: Role,
        /// The time for which the sender had waited.
        stalled: Duration,
    },
}

/// A wait of one end for the other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stalled {
    /// The channel.
    pub channel: String,
    /// The local end of the channel.
    pub end: Role,
    /// The time since which nothing has moved.
    pub since: Instant,
    /// The first message that is not released. All later ones wait for it.
    pub oldest: u64,
    /// At the receiving end, the number of messages that its application has taken and not
    /// released. If there are none, the application does not take messages.
    pub held: Option<u64>,
    /// True if, at the receiving end, the next message waits for room within `memory_limit`.
    pub lacks_room: bool,
    /// At the sending end, the suspension of the session, if it has no connection.
    pub suspended: Option<Arc<Suspension>>,
}

/// Describes the stall, without the channel and the peer.
impl fmt::Display for Stalled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let waits = match self.end {
            Role::Sender => "this sender",
            Role::Receiver => "its sender",
        };
        let waited = Rounded(self.since.elapsed());
        if self.lacks_room {
            let (held, oldest) = (self.held.unwrap_or(0), self.oldest);
            return write!(
                f,
                "the next message has waited {waited} for room within memory_limit here ({} of this \
                 channel held, from {oldest} on); drop what is held, on whatever channel, or raise \
                 memory_limit",
                Counted(held, "message")
            );
        }
        write!(f, "{waits} began to wait for room {waited} ago; ")?;
        if let Some(suspended) = &self.suspended {
            return suspended.fmt(f);
        }
        let oldest = self.oldest;
        match self.held {
            None => write!(
                f,
                "message {oldest} is not released there since: see that the process there runs, is \
                 not stopped, and takes messages and drops them; the session does not end for that"
            ),
            Some(0) => write!(f, "nobody takes message {oldest} here"),
            Some(1) => write!(f, "message {oldest} is held here"),
            Some(held) => write!(f, "{held} messages from {oldest} on are held here"),
        }
    }
}

/// Events that the program has not taken yet.
#[derive(Debug, Default)]
pub(crate) struct EventQueue {
    state: Mutex<State>,
    pub(crate) waiters: WaitSlot,
}

#[derive(Debug, Default)]
struct State {
    events: VecDeque<NodeEvent>,
    dropped: u64,
    is_closed: bool,
}

/// Most events that wait to be taken, of some 200 bytes each.
const MOST_EVENTS: usize = 1024;

impl EventQueue {
    pub(crate) fn tell(&self, peer: &PeerDescription, what: What, wakers: &mut Wakers) {
        let mut state = lock(&self.state);
        if state.events.len() == MOST_EVENTS {
            state.events.pop_front();
            state.dropped += 1;
        }
        state.events.push_back(NodeEvent {
            address: peer.address,
            identity: peer.identity,
            incarnation: peer.incarnation,
            names: peer.names.clone(),
            what,
        });
        drop(state);
        self.waiters.take(wakers);
    }

    /// Closes the queue: no more events will come.
    pub(crate) fn close(&self, wakers: &mut Wakers) {
        lock(&self.state).is_closed = true;
        self.waiters.take(wakers);
    }

    /// Returns the next event; `Some(None)` if no more will come, and `None` if there is none yet.
    pub(crate) fn check(&self) -> Option<Option<NodeEvent>> {
        let mut state = lock(&self.state);
        match state.events.pop_front() {
            Some(event) => Some(Some(event)),
            None => state.is_closed.then_some(None),
        }
    }

    /// Returns how many events were dropped because they were not taken.
    pub(crate) fn dropped(&self) -> u64 {
        lock(&self.state).dropped
    }
}

impl What {
    /// Logs an event: a stall or a missing end as a warning, and the end of a stall as information.
    pub(crate) fn warn(&self, session: &SessionShared) {
        let (peer, warnings) = (session.peer_in_log(), &session.node.warnings);
        match self {
            What::NotOpened(missing) => warn_of!(
                warnings,
                Warning::NotOpened,
                missing,
                %peer, %missing, "a call waits for an end that the peer has not opened"
            ),
            What::Stalled(stalled) => {
                let Stalled { channel, end, .. } = stalled;
                warn_of!(
                    warnings,
                    Warning::Stalled,
                    format_args!("channel {channel:?} with {peer}: {stalled}"),
                    %channel, %peer, %end, "{stalled}"
                );
            }
            What::Recovered {
                channel,
                end,
                stalled,
            } => tracing::info!(%channel, %peer, %end, ?stalled, "a stalled channel goes on"),
            What::Connected { .. }
            | What::Suspended { .. }
            | What::Resumed { .. }
            | What::FabricChanged { .. }
            | What::Draining
            | What::Gone { .. } => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer() -> PeerDescription {
        PeerDescription {
            names: PeerNames::default(),
            address: "127.0.0.1:7000".parse().expect("an address"),
            identity: [1; 16],
            incarnation: 2,
            began: std::time::Instant::now(),
            pid: None,
            fabric: Fabric::Tcp,
            reason: "tcp: a test".to_owned(),
            known_to: None,
        }
    }

    fn gone(why: u64) -> What {
        What::Gone {
            cause: EndCause::lost(why.to_string()),
        }
    }

    #[test]
    fn a_stall_names_the_end_that_waits_and_the_message() {
        let words = |end, held| {
            let stalled = Stalled {
                channel: "wal".to_owned(),
                end,
                since: Instant::now(),
                oldest: 5,
                held,
                lacks_room: false,
                suspended: None,
            };
            stalled.to_string()
        };
        let (waits, rest) = (
            " began to wait for room ",
            "message 5 is not released there since: see that the process there runs, is not stopped, \
             and takes messages and drops them; the session does not end for that",
        );
        let here = words(Role::Sender, None);
        assert!(
            here.starts_with("this sender") && here.contains(waits),
            "{here}"
        );
        assert!(here.ends_with(rest), "{here}");
        let there = words(Role::Receiver, Some(0));
        assert!(there.starts_with("its sender"), "{there}");
        assert!(there.ends_with("nobody takes message 5 here"), "{there}");
    }

    #[test]
    fn events_that_nobody_takes_are_bounded_and_the_newest_stay() {
        let queue = EventQueue::default();
        let mut wakers = Wakers::new();
        for number in 0..MOST_EVENTS as u64 + 3 {
            queue.tell(&peer(), gone(number), &mut wakers);
        }
        assert_eq!(lock(&queue.state).dropped, 3);
        let first = queue.check().flatten().expect("events");
        let What::Gone { cause } = first.what else {
            panic!("another event: {first:?}");
        };
        let EndCause::PeerGone { why, .. } = cause else {
            panic!("another cause: {cause:?}");
        };
        assert_eq!(why, "3");
        let rest = std::iter::from_fn(|| queue.check().flatten()).count();
        assert_eq!(rest, MOST_EVENTS - 1);
        assert!(queue.check().is_none(), "more may come");
    }

    #[test]
    fn events_queued_before_the_close_are_handed_out_after_it() {
        let queue = EventQueue::default();
        let mut wakers = Wakers::new();
        queue.tell(&peer(), gone(1), &mut wakers);
        queue.close(&mut wakers);
        assert!(queue.check().is_some_and(|event| event.is_some()));
        assert!(queue.check().is_some_and(|event| event.is_none()));
    }
}
