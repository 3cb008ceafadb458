//! The sending ends of one channel name with all peers of a node, and the peers that subscribe.

use std::{
    collections::{BTreeSet, HashMap},
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

use crate::{PeerAt, channel_builder::MessageVersions, template::ChannelTemplate};

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
    /// How many of `ends` are members.
    members: usize,
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
            members: 0,
            is_closed: false,
            held: None,
        }
    }

    /// Takes in all news, and has `waker` called for later news.
    pub(super) fn take_news(&mut self, waker: &Waker) {
        while !self.is_closed {
            while let Some(told) = self.gathering.told().pop() {
                match told {
                    Told::Session(session) => self.open(&session),
                    Told::Member(number) => self.look_at(number),
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

    /// Ends all channels, in order unless the group breaks them off.
    pub(super) fn close(&mut self) {
        self.is_closed = true;
        self.gathering.told().waiters().leave(&mut self.held);
        self.ends.clear();
        let numbers: Vec<_> = self.group.numbers().collect();
        for number in numbers {
            drop(self.group.leave(number));
        }
    }

    // ---- The ends --------------------------------------------------------------------

    /// Opens the sending end with a peer.
    fn open(&mut self, session: &Arc<SessionShared>) {
        if session.is_over() {
            return;
        }
        let channel = self.template.over(session);
        let offer = MessageVersions::of_one(self.version.clone());
        match channel.open_sender(Ok(offer)) {
            Ok(handle) => {
                let number = self.next_end;
                self.next_end += 1;
                self.ends.insert(number, Subscription::Awaited(handle));
                self.look_at(number);
            }
            Err(error) if error.is_end() => {}
            Err(error) => tracing::warn!(%error, "this peer cannot subscribe"),
        }
    }

    /// Looks at an end that may have been opened by its peer, or may be over.
    fn look_at(&mut self, number: usize) {
        let waker = self.gathering.waker(number);
        let handle = match self.ends.get_mut(&number) {
            Some(Subscription::Awaited(handle)) => handle,
            Some(Subscription::Member { number, held, .. }) => {
                let is_over = self.group.poll_over(*number, held, &waker).is_ready();
                if is_over {
                    self.group.drop_those_over();
                }
                return;
            }
            None => return,
        };
        let Poll::Ready(opened) = handle.poll_opened_unwatched(&waker) else {
            return;
        };
        let Some(Subscription::Awaited(handle)) = self.ends.remove(&number) else {
            unreachable!("it was there")
        };
        match opened {
            Ok(()) => self.join(number, handle),
            Err(error) => {
                tracing::debug!(%error, "a peer's subscription failed");
                self.reopen(handle);
            }
        }
    }

    fn join(&mut self, end: usize, handle: SendHandle) {
        let session = Arc::clone(handle.session());
        let peer = Arc::new(PeerAt::of(session.peer()));
        let Ok(number) = self.group.join(peer, handle) else {
            unreachable!("the end has no clone")
        };
        let member = Subscription::Member {
            number,
            session,
            held: None,
        };
        self.ends.insert(end, member);
        self.members += 1;
        self.look_at(end);
    }

    /// Drops an end that is over, and opens another with its peer, which may subscribe again.
    fn reopen(&mut self, handle: SendHandle) {
        let session = Arc::clone(handle.session());
        drop(handle);
        self.open(&session);
    }

    /// Opens other ends with the peers of members that the group has dropped.
    pub(super) fn renew_lost(&mut self) {
        if self.group.numbers().len() == self.members {
            return;
        }
        let present: BTreeSet<_> = self.group.numbers().collect();
        let is_lost = |_: &usize, end: &mut Subscription| match end {
            Subscription::Awaited(_) => false,
            Subscription::Member { number, .. } => !present.contains(number),
        };
        let lost: Vec<_> = self.ends.extract_if(is_lost).collect();
        self.members = present.len();
        for (_, end) in lost {
            if let Subscription::Member { session, .. } = end {
                self.open(&session);
            }
        }
    }
}
