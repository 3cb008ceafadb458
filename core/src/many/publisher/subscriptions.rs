//! The sending ends of one channel name with the peers that subscribe.

use std::{
    collections::HashMap,
    sync::Arc,
    task::{Poll, Waker},
    time::{Duration, Instant},
};

use ibex_protocol::format::message_version::MessageVersion;
use ibex_ring::parking::Ticket;
use ibex_transport::{
    channel::{SendGroup, SendHandle},
    node::{Notified, SessionShared},
    runtime::Gathering,
};

use crate::{CloseReason, OpenErrorKind, PeerAt, peer::template::ChannelTemplate};

/// The sending ends of a publisher. Each is opened for a receiving end that its peer has opened, so a
/// peer whose end is open knows that it is a subscriber:
///
/// 1. The engine leaves the events of a receiving end before any later frame goes to the peer.
/// 2. The publisher's end is opened, and made a member of the group, while the subscriptions are
///    held. Over shared memory the end becomes a member a moment later: when the peer's words have
///    come, of which the peer's end becomes open.
/// 3. Whoever sends takes the events in first.
pub(super) struct Subscriptions {
    pub(super) template: ChannelTemplate,
    version: MessageVersion,
    gathering: Gathering,
    pub(super) group: SendGroup<Arc<PeerAt>>,

    // The ends.
    /// Sending ends for receiving ends of peers, before they are open, under the numbers by which they
    /// tell.
    opening: Vec<(usize, SendHandle)>,
    /// The peers that subscribe, under such numbers.
    subscribers: HashMap<usize, Subscriber>,
    /// The numbers of the subscribers, under their numbers in the group.
    members: HashMap<u64, usize>,
    /// Peers that were dropped because they had no room, and may not subscribe yet, with the numbers
    /// by which alarms tell that they may.
    paused: Vec<(usize, Arc<SessionShared>)>,
    next_number: usize,
    /// The publisher was dropped.
    is_closed: bool,

    // How events are notified.
    /// The ticket of the waker that is left for events of sessions and ends.
    held: Option<Ticket>,
}

/// A peer that subscribes. The group has the end.
struct Subscriber {
    /// Its number in the group.
    member: u64,
    session: Arc<SessionShared>,
    /// The ticket of the waker that tells of the channel's end.
    held: Option<Ticket>,
}

/// How much longer than the publisher has waited for a peer that it dropped, the peer waits until it
/// is a subscriber again. So peers that stop and subscribe again, over and over, take five per cent
/// of a publisher's time each, at most.
const PAUSE: u32 = 20;

impl Subscriptions {
    pub(super) fn new(
        template: ChannelTemplate,
        version: MessageVersion,
        gathering: Gathering,
        group: SendGroup<Arc<PeerAt>>,
    ) -> Self {
        Self {
            template,
            version,
            gathering,
            group,
            opening: Vec::new(),
            subscribers: HashMap::new(),
            members: HashMap::new(),
            paused: Vec::new(),
            next_number: 0,
            is_closed: false,
            held: None,
        }
    }

    /// Returns whether there are events that no waker need have notified of yet.
    #[inline]
    pub(super) fn has_changes(&self) -> bool {
        let is_ready = |handle: &SendHandle| handle.is_open() || handle.is_over();
        self.gathering.notified().has_items() || self.opening.iter().any(|(_, it)| is_ready(it))
    }

    /// Takes in all events, and has `waker` called for later events.
    pub(super) fn take_changes(&mut self, waker: &Waker) {
        while !self.is_closed {
            // The first ones may be over, and others be opened in their places.
            let opening: Vec<_> = self.opening.iter().map(|(number, _)| *number).collect();
            for number in opening {
                self.check_again(number);
            }
            while let Some(notified) = self.gathering.notified().pop() {
                match notified {
                    Notified::Session(session) => self.open(session),
                    Notified::Member(number) => self.check_again(number),
                }
            }
            self.renew_lost();
            let waiters = self.gathering.notified().waiters();
            let is_new = waiters.renew(&mut self.held, waker);
            // A waker tells only of what comes after it was left.
            if !is_new && !self.gathering.notified().has_items() {
                break;
            }
        }
    }

    /// Ends all channels, also those that are not open yet: in order, unless they are broken off with
    /// a reason.
    pub(super) fn close(&mut self, broken_off: Option<CloseReason>) {
        self.is_closed = true;
        self.gathering.notified().waiters().leave(&mut self.held);
        if let Some(reason) = broken_off {
            self.group.break_off(reason);
        }
        self.subscribers.clear();
        self.paused.clear();
        for (_, mut handle) in self.opening.drain(..) {
            if let Some(reason) = broken_off {
                handle.break_off(reason);
            }
        }
        let numbers: Vec<_> = self.group.numbers().rev().collect();
        for number in numbers {
            drop(self.group.leave(number));
        }
    }

    // ---- The ends --------------------------------------------------------------------

    /// Opens a sending end for a receiving end of the peer's that has none; and another for as long
    /// as it is over at once, because a peer may have opened and dropped any number before.
    fn open(&mut self, session: Arc<SessionShared>) {
        let mut next = Some(session);
        while let Some(session) = next.take_if(|session| self.may_open(session)) {
            let channel = self.template.over(&session);
            match channel.open_publishers_sender(self.version.clone()) {
                Ok(handle) => {
                    let number = self.number();
                    self.opening.push((number, handle));
                    next = self.check(number);
                }
                Err(error) if error.is_end() => {}
                // Another end with the peer is over, and not dropped yet: see `renew_lost`.
                Err(error) if error.kind() == OpenErrorKind::AlreadyOpen && self.has(&session) => {}
                Err(error) => warn_limited!(error, %error, "this peer cannot subscribe"),
            }
        }
    }

    fn may_open(&self, session: &Arc<SessionShared>) -> bool {
        let mut paused = self.paused.iter();
        !paused.any(|(_, paused)| Arc::ptr_eq(paused, session))
            && session.requests.is_awaited(self.template.name())
    }

    fn has(&self, session: &Arc<SessionShared>) -> bool {
        let opening = self.opening.iter().map(|(_, handle)| handle.session());
        let subscribers = self.subscribers.values().map(|one| &one.session);
        let mut sessions = opening.chain(subscribers);
        sessions.any(|other| Arc::ptr_eq(other, session))
    }

    fn number(&mut self) -> usize {
        self.next_number += 1;
        self.next_number
    }

    fn check_again(&mut self, number: usize) {
        if let Some(session) = self.check(number) {
            self.open(session);
        }
    }

    /// Looks at an end that may be open, or over, or at a peer that may subscribe again. Returns the
    /// session if there is no end now, and the peer may subscribe.
    #[must_use]
    fn check(&mut self, number: usize) -> Option<Arc<SessionShared>> {
        let waker = self.gathering.waker(number);
        if let Some(subscriber) = self.subscribers.get_mut(&number) {
            let Subscriber { member, held, .. } = subscriber;
            // The group tells of the loss: see `renew_lost`.
            let _ = self.group.poll_drop_over(*member, held, &waker);
            return None;
        }
        if let Some(index) = self.paused.iter().position(|(of, _)| *of == number) {
            return Some(self.paused.swap_remove(index).1);
        }
        let index = self.opening.iter().position(|(of, _)| *of == number)?;
        let Poll::Ready(opened) = self.opening[index].1.poll_opened_unwatched(&waker) else {
            return None;
        };
        let (_, handle) = self.opening.remove(index);
        let session = Arc::clone(handle.session());
        match opened {
            Ok(()) => {
                self.join(number, session, handle, &waker);
                None
            }
            Err(error) => {
                tracing::debug!(%error, "a peer's subscription failed");
                Some(session)
            }
        }
    }

    fn join(
        &mut self,
        number: usize,
        session: Arc<SessionShared>,
        handle: SendHandle,
        waker: &Waker,
    ) {
        let peer = Arc::new(PeerAt::of(session.peer()));
        let Ok(member) = self.group.join(peer, handle) else {
            unreachable!("the end has no clone")
        };
        let mut held = None;
        let _ = self.group.poll_drop_over(member, &mut held, waker);
        let subscriber = Subscriber {
            member,
            session,
            held,
        };
        self.subscribers.insert(number, subscriber);
        self.members.insert(member, number);
    }

    /// Opens other ends with the peers of members that the group has dropped, for receiving ends that
    /// wait there already. A peer for which the publisher has waited in vain waits itself first.
    pub(super) fn renew_lost(&mut self) {
        while let Some((member, waited)) = self.group.next_lost_number() {
            let number = self.members.remove(&member);
            let lost = number.and_then(|number| self.subscribers.remove(&number));
            match lost.map(|lost| lost.session) {
                Some(session) if waited.is_zero() => self.open(session),
                Some(session) => self.pause(session, waited),
                None => {}
            }
        }
    }

    fn pause(&mut self, session: Arc<SessionShared>, waited: Duration) {
        let number = self.number();
        let waker = self.gathering.waker(number);
        let until = Instant::now().checked_add(waited.saturating_mul(PAUSE));
        // A wait that no clock can express is as long as the session.
        if until.is_none_or(|until| session.wake_at(until, &waker)) {
            self.paused.push((number, session));
        }
    }
}
