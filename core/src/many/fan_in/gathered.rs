//! The receiving ends of one channel name with all peers of a node, and their turns.

use std::{
    collections::VecDeque,
    fmt, mem,
    sync::Arc,
    task::{Context, Poll, Waker},
    time::{Duration, Instant},
};

use ibex_base::fork;
use ibex_ring::parking::{Condition, Ticket, TimedOut};
use ibex_transport::{
    channel::{AwaitedEnd, ChannelError, FOUND_PER_TURN},
    node::{Notified, SessionShared},
    runtime::{BriefPolls, EventLoop, Gathering, PollTarget},
};

use super::{FanInEvent, Opener, member::FanInMember};
use crate::{
    Counts, Node, Peer, PeerAt, Suspension,
    peer::{channel_defaults::ChannelDefaults, template::ChannelTemplate},
    setting::SettingError,
};

/// The receiving ends of one channel name with all peers of a node, present and future. `O` opens
/// the messages that they receive.
pub struct Gathered<O: Opener> {
    opener: O,
    template: ChannelTemplate,
    /// Defaults for other channels with the peers.
    defaults: ChannelDefaults,
    gathering: Gathering,
    // Peers.
    members: Vec<Option<FanInMember<O>>>,
    live: usize,
    /// The kind of poll that a waiting call needs.
    poll_target: PollTarget,
    /// Members that may have something; `turn` is the one to look at next.
    hot: Vec<usize>,
    turn: usize,
    /// How often a member had something.
    found: u32,
    events: VecDeque<FanInEvent<O::Message>>,
    /// The ticket of the waker that a waiting thread or task left.
    held: Option<Ticket>,
    /// The waiter is about to sleep, so members without events must notify it.
    is_registered: bool,
    brief_polls: BriefPolls,
}

/// Number of polls of a peer that has nothing, before the peer is left alone until it tells.
pub(super) const HOT_POLLS: u32 = 64;

/// The result of a poll or wait in which nothing came.
#[derive(Debug)]
pub struct NothingCame;

impl<O: Opener> Gathered<O> {
    /// Opens the receiving end with every present and future peer.
    pub fn open(node: &Node, template: ChannelTemplate, opener: O) -> Result<Self, SettingError> {
        Ok(Self {
            opener,
            template: template.check()?,
            defaults: node.channel_defaults(),
            gathering: Gathering::of(node.runtime()),
            members: Vec::new(),
            live: 0,
            poll_target: PollTarget::Memory,
            hot: Vec::new(),
            turn: 0,
            found: 0,
            events: VecDeque::new(),
            held: None,
            is_registered: false,
            brief_polls: BriefPolls::default(),
        })
    }

    /// See [`FanIn::next`](super::FanIn::next).
    #[allow(
        clippy::should_implement_trait,
        reason = "it waits, as that of a `FanIn`"
    )]
    pub fn next(&mut self) -> Option<FanInEvent<O::Message>> {
        match self.find() {
            Some(event) => Some(event),
            None => self.wait(None).unwrap_or(None),
        }
    }

    /// See [`FanIn::next_timeout`](super::FanIn::next_timeout).
    pub fn next_timeout(
        &mut self,
        timeout: Duration,
    ) -> Result<Option<FanInEvent<O::Message>>, NothingCame> {
        match self.find() {
            Some(event) => Ok(Some(event)),
            None => self.wait(Instant::now().checked_add(timeout)),
        }
    }

    /// See [`FanIn::try_next`](super::FanIn::try_next).
    pub fn try_next(&mut self) -> Result<Option<FanInEvent<O::Message>>, NothingCame> {
        if let Some(event) = self.find() {
            return Ok(Some(event));
        }
        self.gathering.poll();
        self.find_now().ok_or(NothingCame)
    }

    /// See [`FanIn::peers`](super::FanIn::peers).
    pub(super) fn peers(&self) -> Vec<(PeerAt, Counts)> {
        let members = self.members.iter().flatten();
        let joined = members.filter(|member| member.has_joined);
        joined
            .map(|member| (member.peer, member.handle.counts()))
            .collect()
    }

    /// The suspensions of the peers to which there is no connection.
    pub(super) fn suspended(&self) -> Vec<Arc<Suspension>> {
        let members = self.members.iter().flatten();
        members
            .filter_map(|member| member.handle.session().cut_off())
            .collect()
    }

    /// See [`FanIn::peer`](super::FanIn::peer).
    pub(super) fn peer(&self, who: PeerAt) -> Option<Peer> {
        let mut members = self.members.iter().flatten();
        let member = members.find(|member| member.has_joined && member.peer == who)?;
        let session = Arc::clone(member.handle.session());
        Some(Peer::new(session, self.defaults))
    }

    // ---- Waiting as a task -----------------------------------------------------------

    /// Polls for the next event. A task may look for a moment before it is pending. A waker may
    /// not, because it holds up its caller.
    pub fn poll_for(
        &mut self,
        context: &mut Context<'_>,
        may_poll: bool,
    ) -> Poll<Option<FanInEvent<O::Message>>> {
        if let Some(event) = self.find_now() {
            self.stop_waiting();
            return Poll::Ready(event);
        }
        let may_poll = may_poll && self.held.is_none() && self.poll_target == PollTarget::Memory;
        let gathering = self.gathering.clone();
        let mut brief_polls = mem::take(&mut self.brief_polls);
        let there = gathering.poll_until(&mut brief_polls, context.waker(), may_poll, &mut *self);
        self.brief_polls = brief_polls;
        there.map(|()| self.find())
    }

    /// Takes back the waker that a poll left.
    pub fn stop_waiting(&mut self) {
        self.is_registered = false;
        self.gathering.notified().waiters().leave(&mut self.held);
    }

    // ---- Looking ---------------------------------------------------------------------

    /// Takes the next event that is there, without waiting.
    pub fn find(&mut self) -> Option<FanInEvent<O::Message>> {
        if fork::is_child() {
            return self.find_after_fork();
        }
        while let Some(notified) = self.gathering.notified().pop() {
            match notified {
                Notified::Session(session) => self.join(session),
                Notified::Member(number) => self.heat(number),
            }
        }
        if let Some(event) = self.events.pop_front() {
            return Some(event);
        }
        for _ in 0..self.hot.len() {
            if self.turn >= self.hot.len() {
                self.turn = 0;
            }
            let Some(&number) = self.hot.get(self.turn) else {
                break;
            };
            let found = self.check(number);
            if found.is_some() {
                self.found = self.found.wrapping_add(1);
                if self.found.is_multiple_of(FOUND_PER_TURN) {
                    self.gathering.poll_all();
                }
                return found;
            }
        }
        None
    }

    /// Looks once at a hot member, and moves the turn to the next one.
    fn check(&mut self, number: usize) -> Option<FanInEvent<O::Message>> {
        let Some(member) = self.members[number].as_mut() else {
            self.hot.swap_remove(self.turn);
            return None;
        };
        if member.is_held_up() {
            member.is_hot = false;
            self.hot.swap_remove(self.turn);
            return None;
        }
        if let Some(peer) = member.joins() {
            return Some(FanInEvent::Joined(peer));
        }
        match member.handle.poll() {
            Ok(Some(raw)) => {
                self.turn += 1;
                Some(member.sent(raw))
            }
            Ok(None) => {
                member.silent += 1;
                if member.silent > HOT_POLLS {
                    return self.cool(self.turn);
                }
                self.turn += 1;
                None
            }
            Err(error) => self.lose(number, error),
        }
    }

    /// Leaves a hot member alone until it tells, unless it has something after all.
    fn cool(&mut self, at: usize) -> Option<FanInEvent<O::Message>> {
        let number = self.hot[at];
        let Some(member) = self.members[number].as_mut() else {
            self.hot.swap_remove(at);
            return None;
        };
        if member.is_held_up() {
            member.is_hot = false;
            self.hot.swap_remove(at);
            return None;
        }
        let waker = member.waker.clone();
        // A peer that has nothing to say on this channel never opens it.
        let handle = &mut member.handle;
        match handle.poll_receive_unwatched(&waker) {
            Poll::Pending => {
                member.is_hot = false;
                self.hot.swap_remove(at);
                // The peer may have opened its end before the member had a waker to tell by.
                member.joins().map(FanInEvent::Joined)
            }
            Poll::Ready(Ok(raw)) => {
                if !mem::replace(&mut member.has_joined, true) {
                    self.events.push_back(FanInEvent::Joined(member.peer));
                }
                let event = member.sent(raw);
                self.events.push_back(event);
                self.events.pop_front()
            }
            Poll::Ready(Err(error)) => self.lose(number, error),
        }
    }

    /// Polls a member again from now on, because it has notified this end.
    fn heat(&mut self, number: usize) {
        if let Some(member) = self.members.get_mut(number).and_then(Option::as_mut) {
            member.handle.leave();
            member.silent = 0;
            if !mem::replace(&mut member.is_hot, true) {
                self.hot.push(number);
            }
        }
    }

    /// Opens the channel with a peer.
    fn join(&mut self, session: Arc<SessionShared>) {
        let peer = PeerAt::of(session.peer());
        let channel = self.template.over(&session);
        let handle = match channel.open_receiver(self.opener.offer()) {
            Ok(handle) => handle,
            // The session came and went without a message, so no peer has joined.
            Err(error) if error.is_end() => return,
            Err(error) => {
                self.events.push_back(FanInEvent::Lost(peer, error.into()));
                return;
            }
        };
        let free = self.members.iter().position(Option::is_none);
        let number = free.unwrap_or(self.members.len());
        let waker = self.gathering.waker(number);
        let kept = self.opener.keep(&channel, &waker);
        let member = FanInMember::new(peer, handle, kept, waker);
        match free {
            Some(free) => self.members[free] = Some(member),
            None => self.members.push(Some(member)),
        }
        self.poll_target = Gathering::looks_with(self.poll_target, &session);
        self.live += 1;
        self.hot.push(number);
    }

    /// Ends a member, unless more can be received from it later. While its session lives the peer
    /// may open its sender again, and finds an end of its own.
    fn lose(&mut self, number: usize, error: ChannelError) -> Option<FanInEvent<O::Message>> {
        if error.spares_channel() {
            self.turn += 1;
            let peer = self.members[number].as_ref()?.peer;
            return Some(FanInEvent::Lost(peer, error.into()));
        }
        let member = self.members[number].take()?;
        self.hot.retain(|hot| *hot != number);
        self.live -= 1;
        let came = member.has_joined || member.handle.is_open();
        let event = match error {
            ChannelError::Ended => FanInEvent::Ended(member.peer),
            // A peer that never opened the channel is not missed, unless it opened it with another
            // type.
            error if error.cause().is_some() && !came => return None,
            error => FanInEvent::Lost(member.peer, error.into()),
        };
        let (peer, has_joined) = (member.peer, member.has_joined);
        self.reopen(member);
        if came && !has_joined {
            // The peer opened its end, and ended the channel or gave it up, between two polls.
            self.events.push_front(event);
            return Some(FanInEvent::Joined(peer));
        }
        Some(event)
    }

    /// Drops a member's end, and opens another with its peer.
    fn reopen(&mut self, member: FanInMember<O>) {
        let session = Arc::clone(member.handle.session());
        drop(member);
        if !session.is_over() && !self.gathering.is_closed() {
            self.join(session);
        }
    }

    /// Loses all peers in a fork of the process, where no other event comes.
    #[cold]
    fn find_after_fork(&mut self) -> Option<FanInEvent<O::Message>> {
        if self.live > 0 {
            self.live = 0;
            self.hot.clear();
            self.events.clear();
            for member in self.members.drain(..).flatten() {
                let lost = FanInEvent::Lost(member.peer, member.handle.used_after_fork().into());
                self.events.push_back(lost);
            }
        }
        self.events.pop_front()
    }

    /// Returns whether no event can follow: the node is closed, and all events were taken.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.live == 0 && self.events.is_empty() && self.gathering.is_closed()
    }

    // ---- Waiting ---------------------------------------------------------------------

    fn wait(
        &mut self,
        deadline: Option<Instant>,
    ) -> Result<Option<FanInEvent<O::Message>>, NothingCame> {
        self.stop_waiting();
        let (gathering, poll_target) = (self.gathering.clone(), self.poll_target());
        match gathering.wait(deadline, poll_target, &mut *self) {
            Ok(()) => Ok(self.find()),
            Err(TimedOut) => Err(NothingCame),
        }
    }

    /// Returns an event, or `None` within if there will be none.
    fn find_now(&mut self) -> Option<Option<FanInEvent<O::Message>>> {
        match self.find() {
            Some(event) => Some(Some(event)),
            None => self.is_over().then_some(None),
        }
    }

    /// Leaves all members alone until they tell. Returns whether one has something after all.
    fn cool_all(&mut self) -> bool {
        while !self.hot.is_empty() {
            if let Some(event) = self.cool(0) {
                self.events.push_front(event);
                return true;
            }
        }
        false
    }
}

/// The condition "the next call that takes an event has one to return, or the end".
impl<O: Opener> Condition for Gathered<O> {
    type Output = ();

    fn check(&mut self) -> Option<()> {
        loop {
            if let Some(found) = self.find_now() {
                // The next call that takes an event gets this one first.
                if let Some(event) = found {
                    self.events.push_front(event);
                }
                return Some(());
            }
            // A member that notified for another reason is polled again and would not notify. All are
            // made idle before a sleep.
            if !self.is_registered || !self.cool_all() {
                return None;
            }
        }
    }

    fn keep_nothing_back(&mut self) {
        for &number in &self.hot {
            if let Some(member) = &self.members[number] {
                member.handle.keep_nothing_back();
            }
        }
    }

    fn register(&mut self, waker: &Waker) {
        self.is_registered = true;
        let place = self.gathering.notified().waiters();
        place.renew(&mut self.held, waker);
        self.cool_all();
    }

    fn leave(&mut self) {
        self.stop_waiting();
    }
}

impl<O: Opener> AwaitedEnd for Gathered<O> {
    fn event_loops(&self) -> &[Arc<EventLoop>] {
        self.gathering.event_loops()
    }

    fn poll_target(&self) -> PollTarget {
        self.poll_target
    }
}

impl<O: Opener> Drop for Gathered<O> {
    fn drop(&mut self) {
        for member in self.members.iter_mut().flatten() {
            member.handle.leave();
        }
    }
}

impl<O: Opener> fmt::Debug for Gathered<O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FanIn")
            .field("channel", &self.template.name())
            .field("peers", &self.live)
            .finish_non_exhaustive()
    }
}
