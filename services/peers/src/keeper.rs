//! The thread that decides which addresses are dialed, and when.

use std::{
    collections::{BTreeMap, BTreeSet},
    mem,
    panic::{self, AssertUnwindSafe},
    sync::Arc,
    task::{Poll, Waker},
    time::{Duration, Instant},
};

use ibex_core::{
    ConnectError, Peer, PeerId,
    extend::{self, Admission, BackOff, Connecting, Connector, parking::Ticket, warn_limited},
};

use super::{
    Board, Changes, Inbox, PeersEvent,
    schedule::{DuePlace, Schedule},
};
use crate::addresses::{Discovery, DiscoveryError};

pub(super) struct Keeper {
    own: PeerId,
    connector: Connector,
    board: Arc<Board>,
    inbox: Arc<Inbox>,
    kept: BTreeMap<String, KeptAddress>,
    schedule: Schedule,
    discovery_fails: bool,
    /// The node's end.
    close: Option<Ticket>,
}

/// An address, and the state of its session.
struct KeptAddress {
    /// The discovery still lists the address.
    is_listed: bool,
    place: AddressState,
    /// Attempts in a row that led to no session, or to a short one.
    failures: u32,
    /// The program was told that the address is not reached.
    is_notified: bool,
}

impl KeptAddress {
    /// Ends a series of failures.
    fn is_reached(&mut self, address: &str) {
        if mem::take(&mut self.is_notified) {
            tracing::info!(%address, "a peer that is to be kept connected is reached again");
        }
    }
}

/// State of an address.
enum AddressState {
    /// The next attempt is to be made.
    Due(DuePlace),
    Dialing(Connecting),
    Connected(KeptSession),
    /// The address leads to a node that is proven to be the one that is connected by another
    /// address.
    Same(String),
}

struct KeptSession {
    peer: Peer,
    since: Instant,
    waker: Waker,
    /// The waker's place among the wakers that wait for the end.
    ended: Option<Ticket>,
    /// The waker's place among the wakers that wait until the peer drains.
    drains: Option<Ticket>,
}

impl KeptSession {
    /// Takes the event that ends the keeping of the session. The waker is called when there is one.
    fn over(&mut self, address: &str) -> Option<PeersEvent> {
        let session = extend::session(&self.peer);
        let address = address.to_owned();
        let waker = &self.waker;
        self.drains
            .get_or_insert_with(|| session.wake_when_peer_drains(waker));
        // Checked before the session's end, which may have followed: a peer that drained is never
        // reported as lost.
        let event = if session.peer_drains() {
            PeersEvent::Draining {
                address,
                peer: self.peer.clone(),
            }
        } else {
            let Poll::Ready(cause) = session.ending.poll(&mut self.ended, waker) else {
                return None;
            };
            PeersEvent::Lost {
                address,
                peer: self.peer.id(),
                names: self.peer.names().clone(),
                cause,
            }
        };
        self.leave();
        Some(event)
    }

    /// Takes the waker back.
    fn leave(&mut self) {
        let session = extend::session(&self.peer);
        session.ending.leave(&mut self.ended);
        session.leave_peer_drains(&mut self.drains);
    }
}

impl Keeper {
    pub(super) fn new(
        own: PeerId,
        connector: Connector,
        board: Arc<Board>,
        inbox: Arc<Inbox>,
    ) -> Self {
        Self {
            own,
            connector,
            board,
            inbox,
            kept: BTreeMap::new(),
            schedule: Schedule::new(Instant::now()),
            discovery_fails: false,
            close: None,
        }
    }

    pub(super) fn run(mut self) {
        let waker = self.inbox.changes.waker(|| Changes::Closed);
        let closed = self.board.runtime().poll_closed(&mut self.close, &waker);
        if closed.is_ready() {
            waker.wake();
        }
        while !self.inbox.is_stopped() {
            match self.inbox.next(self.next_due()) {
                Some(Changes::Found(addresses)) => self.found(addresses),
                Some(Changes::NotFound(error, next_attempt)) => self.not_found(error, next_attempt),
                Some(Changes::Dialed(address)) => self.check_attempt(&address),
                Some(Changes::Changed(address)) => self.check(&address),
                Some(Changes::Closed) => break,
                Some(Changes::Alarm) | None => {}
            }
            self.inbox.alarms.sound(Instant::now());
            if self.board.runtime().is_closed() {
                break;
            }
            self.dial_those_due();
        }
        // The discovery learns of the node's end as well.
        self.inbox.stop();
        for kept in self.kept.values_mut() {
            if let AddressState::Connected(session) = &mut kept.place {
                session.leave();
            }
        }
        self.board.runtime().leave_closed(&mut self.close);
        self.board.end();
        self.inbox.alarms.end();
    }

    fn next_due(&self) -> Option<Instant> {
        let due = self.schedule.next_due().into_iter();
        due.chain(self.inbox.alarms.next()).min()
    }

    fn found(&mut self, addresses: Vec<String>) {
        if mem::take(&mut self.discovery_fails) {
            tracing::info!("the discovery of peers answers again");
        }
        self.kept
            .values_mut()
            .for_each(|kept| kept.is_listed = false);
        let now = Instant::now();
        for address in addresses {
            let schedule = &mut self.schedule;
            let new = |address: &String| KeptAddress {
                is_listed: true,
                place: AddressState::Due(schedule.put(address, 0, now)),
                failures: 0,
                is_notified: false,
            };
            self.kept.entry(address).or_insert_with_key(new).is_listed = true;
        }
        // A session that stands for another listed address stays with it.
        let stand_in = |kept: &KeptAddress| match &kept.place {
            AddressState::Same(first) if kept.is_listed => Some(first.clone()),
            _ => None,
        };
        let needed: BTreeSet<String> = self.kept.values().filter_map(stand_in).collect();
        // Addresses that are no longer listed stay until their attempt or session is over.
        let (board, linger) = (&self.board, self.connector.linger());
        let schedule = &mut self.schedule;
        self.kept.retain(|address, kept| {
            let stays = matches!(
                kept.place,
                AddressState::Dialing(_) | AddressState::Connected(_)
            );
            match &kept.place {
                _ if kept.is_listed => {}
                AddressState::Connected(_) if needed.contains(address) => {}
                AddressState::Connected(session) => {
                    extend::session(&session.peer).begin_close(NOT_LISTED, linger);
                }
                AddressState::Dialing(_) => {}
                AddressState::Due(place) => {
                    schedule.remove(address, *place);
                    board.show(address, None);
                }
                AddressState::Same(_) => board.show(address, None),
            }
            kept.is_listed || stays
        });
    }

    fn not_found(&mut self, error: DiscoveryError, next_attempt: Instant) {
        if !mem::replace(&mut self.discovery_fails, true) {
            warn_limited!(
                error,
                %error,
                "the discovery of peers failed; its last answer stays in force, and it is asked \
                 again and again; further failures in a row are not logged"
            );
            self.board.tell(PeersEvent::DiscoveryFailed {
                error,
                next_attempt,
            });
        }
    }

    fn dial_those_due(&mut self) {
        for address in self.schedule.take_due(Instant::now()) {
            match self.connector.dial(&address) {
                Ok(connecting) => {
                    if let Some(kept) = self.kept.get_mut(&address) {
                        kept.place = AddressState::Dialing(connecting);
                    }
                    // The outcome may have come already, and is waited for from here on.
                    self.check_attempt(&address);
                }
                Err(error) => self.not_reached(&address, error),
            }
        }
    }

    fn check_attempt(&mut self, address: &str) {
        let Some(KeptAddress {
            place: AddressState::Dialing(connecting),
            ..
        }) = self.kept.get_mut(address)
        else {
            return;
        };
        let dialed = address.to_owned();
        let waker = self
            .inbox
            .changes
            .waker(move || Changes::Dialed(dialed.clone()));
        if let Poll::Ready(outcome) = connecting.poll(&waker, || ()) {
            self.dialed(address, outcome);
        }
    }

    fn dialed(&mut self, address: &str, outcome: Result<Box<Admission>, ConnectError>) {
        let is_listed = self.kept.get(address).is_some_and(|kept| kept.is_listed);
        let admission = match outcome {
            Ok(admission) if !is_listed => {
                admission.abandon();
                return self.forget(address);
            }
            Ok(admission) => *admission,
            Err(_) if !is_listed => return self.forget(address),
            Err(error) => return self.not_reached(address, error),
        };
        if Connector::peer_id(&admission) == self.own {
            admission.abandon();
            // The address may be another node's by then. What is there may also only claim to be
            // this node.
            let place = self.schedule.put(address, 0, Instant::now() + OWN_AGAIN);
            self.put(address, AddressState::Due(place));
            return self.board.show(address, None);
        }
        if let Some((first, peer)) = self.connected_to(&admission) {
            admission.abandon();
            self.put(address, AddressState::Same(first));
            return self.board.show(address, Some(&peer));
        }
        match self.connector.admit(address, admission) {
            Ok(peer) => self.connected(address, peer),
            Err(error) => self.not_reached(address, error),
        }
    }

    fn forget(&mut self, address: &str) {
        let forgotten = self.kept.remove(address).map(|kept| kept.place);
        if let Some(AddressState::Due(place)) = forgotten {
            self.schedule.remove(address, place);
        }
        self.board.show(address, None);
    }

    /// The address by which the node that answers is proven to be connected, and the peer. What it
    /// says of itself does not suffice: a node would get the calls and logs for another one's
    /// address.
    fn connected_to(&self, answers: &Admission) -> Option<(String, Peer)> {
        self.kept
            .iter()
            .find_map(|(address, kept)| match &kept.place {
                AddressState::Connected(session)
                    if extend::session(&session.peer)
                        .peer()
                        .is_proven_same_run(&answers.peer)
                        && !extend::is_ending(&session.peer) =>
                {
                    Some((address.clone(), session.peer.clone()))
                }
                _ => None,
            })
    }

    fn put(&mut self, address: &str, place: AddressState) {
        if let Some(kept) = self.kept.get_mut(address) {
            kept.place = place;
            kept.failures = 0;
            kept.is_reached(address);
        }
    }

    fn connected(&mut self, address: &str, peer: Peer) {
        if let Some(kept) = self.kept.get_mut(address) {
            let changed = address.to_owned();
            kept.is_reached(address);
            kept.place = AddressState::Connected(KeptSession {
                peer: peer.clone(),
                since: Instant::now(),
                waker: self
                    .inbox
                    .changes
                    .waker(move || Changes::Changed(changed.clone())),
                ended: None,
                drains: None,
            });
        }
        self.board.show(address, Some(&peer));
        self.board.tell(PeersEvent::Connected {
            address: address.to_owned(),
            peer,
        });
        // The session may be over by now, and is watched from here on.
        self.check(address);
    }

    /// Leaves the session with an address if it is over or its peer drains, and begins another.
    fn check(&mut self, address: &str) {
        let Some(kept) = self.kept.get_mut(address) else {
            return;
        };
        let AddressState::Connected(session) = &mut kept.place else {
            return;
        };
        let Some(event) = session.over(address) else {
            return;
        };
        // An address whose sessions end again and again is dialed with pauses.
        kept.failures = match session.since.elapsed() < BACK_OFF.longest() {
            true => kept.failures.saturating_add(1),
            false => 0,
        };
        let pause = BACK_OFF.pause(kept.failures);
        let next = Instant::now() + pause;
        kept.place = AddressState::Due(self.schedule.put(address, kept.failures, next));
        let mut hidden = vec![address.to_owned()];
        if !kept.is_listed {
            self.forget(address);
        }
        // Another address of the peer may lead to it sooner.
        for (other, kept) in &mut self.kept {
            if matches!(&kept.place, AddressState::Same(first) if first == address) {
                kept.place = AddressState::Due(self.schedule.put(other, 0, next));
                hidden.push(other.clone());
            }
        }
        for address in hidden {
            self.board.show(&address, None);
        }
        self.board.tell(event);
    }

    fn not_reached(&mut self, address: &str, error: ConnectError) {
        let Some(kept) = self.kept.get_mut(address) else {
            return;
        };
        kept.failures = kept.failures.saturating_add(1);
        let next_attempt = Instant::now() + BACK_OFF.pause(kept.failures);
        kept.place = AddressState::Due(self.schedule.put(address, kept.failures, next_attempt));
        self.board.show_failure(address, &error);
        if !mem::replace(&mut kept.is_notified, true) {
            warn_limited!(
                format_args!("{address}: {error}"),
                %address, %error,
                "a peer that is to be kept connected was not reached; it is tried again and again; \
                 further failures in a row are not logged"
            );
            self.board.tell(PeersEvent::NotReached {
                address: address.to_owned(),
                error,
                next_attempt,
            });
        }
    }
}

/// Asks `discovery` until it has no more to say, or the keeping ends.
pub(super) fn ask(mut discovery: Box<dyn Discovery>, inbox: &Inbox) {
    let mut failures = 0;
    while !inbox.is_stopped() {
        let answer = panic::catch_unwind(AssertUnwindSafe(|| discovery.find()));
        let pause = match answer.unwrap_or_else(|_| Err("it panicked".into())) {
            Ok(found) => {
                failures = 0;
                inbox.changes.push(Changes::Found(found.addresses));
                match found.again_in {
                    Some(pause) => pause,
                    None => return,
                }
            }
            Err(error) => {
                failures += 1;
                let pause = BACK_OFF.pause(failures);
                inbox
                    .changes
                    .push(Changes::NotFound(error, Instant::now() + pause));
                pause
            }
        };
        if !inbox.pause(pause) {
            return;
        }
    }
}

/// The reason that a peer receives when its address is let go.
const NOT_LISTED: &str = "its address is no longer listed";
/// The pauses before an address is dialed again, or asked for again.
const BACK_OFF: BackOff = BackOff::new(Duration::from_millis(200), Duration::from_secs(5));
/// The pause before an address that leads to this node is dialed again.
const OWN_AGAIN: Duration = Duration::from_secs(60);
