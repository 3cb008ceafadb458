//! The sending ends of one channel name with all peers of a node, and the peers that subscribe.

use std::{
    collections::HashMap,
    sync::Arc,
    task::{Poll, Waker},
};

use ibex_protocol::format::message_version::MessageVersion;
use ibex_ring::parking::Ticket;
use ibex_transport::{
    channel::{SendGroup, SendHandle},
    node::SessionShared,
    runtime::{Gathering, Told},
};

use crate::{CloseReason, PeerAt, channel_builder::MessageVersions, template::ChannelTemplate};

/// The sending ends of a publisher with all peers of its node, present and future. A peer that has
/// opened its receiving end is a member of the group.
pub(super) struct Subscriptions {
    pub(super) template: ChannelTemplate,
    version: MessageVersion,
    gathering: Gathering,
    pub(super) group: SendGroup<Arc<PeerAt>>,

    // The ends.
    /// The end with each peer, under the number by which it tells.
    ends: HashMap<usize, Subscription>,
    next_end: usize,
    /// The ends of the members, under their numbers in the group.
    members: HashMap<u64, usize>,
    /// The publisher was dropped.
    is_closed: bool,

    // How news is told.
    /// The ticket of the waker that is left for news of sessions and ends.
    held: Option<Ticket>,
}

/// A sending end with one peer.
enum Subscription {
    /// The peer has not opened its receiving end.
    Awaited(SendHandle),
    /// The peer subscribes. The group has the end.
    Member {
        number: u64,
        session: Arc<SessionShared>,
        /// The ticket of the waker that tells of the channel's end.
        held: Option<Ticket>,
    },
}

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
            ends: HashMap::new(),
            next_end: 0,
            members: HashMap::new(),
            is_closed: false,
            held: None,
        }
    }

    /// Takes in all news, and has `waker` called for later news.
    pub(super) fn take_news(&mut self, waker: &Waker) {
        while !self.is_closed {
            while let Some(told) = self.gathering.told().pop() {
                match told {
                    Told::Session(session) => self.open(session),
                    Told::Member(number) => self.look_again_at(number),
                }
            }
            self.renew_lost();
            let waiters = self.gathering.told().waiters();
            let is_new = waiters.renew(&mut self.held, waker);
            // A waker tells only of what comes after it was left.
            if !is_new && !self.gathering.told().has_items() {
                break;
            }
        }
    }

    /// Ends all channels, also those that no peer has opened: in order, unless they are broken off
    /// with a reason.
    pub(super) fn close(&mut self, broken_off: Option<CloseReason>) {
        self.is_closed = true;
        self.gathering.told().waiters().leave(&mut self.held);
        if let Some(reason) = broken_off {
            self.group.break_off(reason);
        }
        for (_, end) in self.ends.drain() {
            if let (Subscription::Awaited(mut handle), Some(reason)) = (end, broken_off) {
                handle.break_off(reason);
            }
        }
        let numbers: Vec<_> = self.group.numbers().rev().collect();
        for number in numbers {
            drop(self.group.leave(number));
        }
    }

    // ---- The ends --------------------------------------------------------------------

    /// Opens the sending end with a peer; and another for as long as it is over at once, because a
    /// peer may have opened and dropped any number of receiving ends before.
    fn open(&mut self, session: Arc<SessionShared>) {
        let mut next = Some(session);
        while let Some(session) = next.take_if(|session| !session.is_over()) {
            let channel = self.template.over(&session);
            let offer = MessageVersions::of_one(self.version.clone());
            match channel.open_sender(Ok(offer)) {
                Ok(handle) => {
                    let number = self.next_end;
                    self.next_end += 1;
                    self.ends.insert(number, Subscription::Awaited(handle));
                    next = self.look_at(number);
                }
                Err(error) if error.is_end() => {}
                Err(error) => warn_limited!(error, %error, "this peer cannot subscribe"),
            }
        }
    }

    fn look_again_at(&mut self, number: usize) {
        if let Some(session) = self.look_at(number) {
            self.open(session);
        }
    }

    /// Looks at an end that may have been opened by its peer, or may be over. If it was over before
    /// it became a member, returns the session, whose peer may subscribe again.
    #[must_use]
    fn look_at(&mut self, number: usize) -> Option<Arc<SessionShared>> {
        let waker = self.gathering.waker(number);
        let handle = match self.ends.get_mut(&number)? {
            Subscription::Awaited(handle) => handle,
            Subscription::Member { number, held, .. } => {
                // The group tells of the loss: see `renew_lost`.
                let _ = self.group.poll_drop_over(*number, held, &waker);
                return None;
            }
        };
        let Poll::Ready(opened) = handle.poll_opened_unwatched(&waker) else {
            return None;
        };
        let Some(Subscription::Awaited(handle)) = self.ends.remove(&number) else {
            unreachable!("it was there")
        };
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

    fn join(&mut self, end: usize, session: Arc<SessionShared>, handle: SendHandle, waker: &Waker) {
        let peer = Arc::new(PeerAt::of(session.peer()));
        let Ok(number) = self.group.join(peer, handle) else {
            unreachable!("the end has no clone")
        };
        let mut held = None;
        let _ = self.group.poll_drop_over(number, &mut held, waker);
        let member = Subscription::Member {
            number,
            session,
            held,
        };
        self.ends.insert(end, member);
        self.members.insert(number, end);
    }

    /// Opens other ends with the peers of members that the group has dropped.
    pub(super) fn renew_lost(&mut self) {
        while let Some(number) = self.group.next_lost_number() {
            let end = self.members.remove(&number);
            let end = end.and_then(|end| self.ends.remove(&end));
            if let Some(Subscription::Member { session, .. }) = end {
                self.open(session);
            }
        }
    }
}
