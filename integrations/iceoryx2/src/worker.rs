//! The thread of a carrier: it connects, reports this side to the peers, and receives their
//! reports.

use std::{
    collections::{BTreeMap, BTreeSet},
    iter,
    sync::{Arc, mpsc},
    task::{Context, Poll, Wake, Waker},
    thread::{self, Thread},
    time::{Duration, Instant},
};

use ibex::{
    FanIn, FanInEvent, Message, Node, PeerAt, PeerId, Raw,
    discovery::{Peers, PeersEvent, PeersEvents},
};
use ibex_core::extend::warn_limited;
use iceoryx2::service::service_hash::ServiceHash;
use iceoryx2_link_backend::service_description::ServiceDescriptor;

use crate::{
    control::Control,
    ends::{Counterpart, Ends},
    remote::{News, Remote},
    session::Session,
    shared::{Change, KnownPeer, Shared},
};

/// The control streams of all peers.
pub(crate) type Streams = FanIn<[u8], Raw>;

/// The data that the thread is given.
pub(crate) struct Work {
    pub(crate) node: Node,
    pub(crate) peers: Peers,
    pub(crate) streams: Streams,
    pub(crate) shared: Arc<Shared>,
    pub(crate) changes: mpsc::Receiver<Change>,
}

/// Works until the carrier is dropped or its node closed.
pub(crate) fn run(work: Work) {
    // Users of the carrier learn that nothing is carried any more, even if this thread panics.
    let _closing = Closing(work.shared.clone());
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut context = Context::from_waker(&waker);
    let node = &work.node;
    let mut worker = Worker {
        node,
        dialed: work.peers.events(),
        _peers: work.peers,
        streams: work.streams,
        shared: work.shared,
        changes: work.changes,
        sessions: BTreeMap::new(),
        remotes: BTreeMap::new(),
        offered: BTreeMap::new(),
        opened: BTreeMap::new(),
    };
    while worker.turn(&mut context) == Next::Sleep {
        park(worker.due());
    }
}

/// Marks the carrier as closed when the thread ends.
struct Closing(Arc<Shared>);

impl Drop for Closing {
    fn drop(&mut self) {
        self.0.set_closed();
    }
}

struct Worker<'n> {
    node: &'n Node,
    dialed: PeersEvents,
    /// The peers of the configuration, which are dialed as long as this exists.
    _peers: Peers,
    streams: Streams,
    shared: Arc<Shared>,
    changes: mpsc::Receiver<Change>,

    // The other side.
    sessions: BTreeMap<PeerAt, Session>,
    remotes: BTreeMap<PeerId, Remote>,

    // This side, up to the last change that was taken.
    offered: BTreeMap<ServiceHash, ServiceDescriptor>,
    opened: BTreeMap<u64, Arc<Ends>>,
}

#[derive(PartialEq, Eq)]
enum Next {
    Sleep,
    Stop,
}

impl Worker<'_> {
    /// Handles everything that has come, and registers the waker for later events.
    fn turn(&mut self, context: &mut Context<'_>) -> Next {
        if self.take_changes() == Next::Stop {
            return Next::Stop;
        }
        loop {
            match self.streams.poll_next(context) {
                Poll::Ready(Some(event)) => self.hear(event),
                Poll::Ready(None) => return Next::Stop,
                Poll::Pending => break,
            }
        }
        loop {
            match self.dialed.poll_next(context) {
                Poll::Ready(Some(event)) => self.hear_of_peer(event),
                Poll::Ready(None) => return Next::Stop,
                Poll::Pending => break,
            }
        }
        self.look_after_sessions();
        for session in self.sessions.values_mut() {
            session.flush(context);
        }
        Next::Sleep
    }

    /// Returns the time of the next turn, if there is one without a wake-up.
    fn due(&self) -> Option<Instant> {
        // The end of a session without a carrier is not reported, so it must be looked for.
        let mut sessions = self.sessions.values();
        let look = sessions.any(|session| !session.has_joined);
        look.then(|| Instant::now() + LOOK_AFTER)
    }

    // ---- This side -------------------------------------------------------------------

    fn take_changes(&mut self) -> Next {
        loop {
            match self.changes.try_recv() {
                Ok(Change::Stop) | Err(mpsc::TryRecvError::Disconnected) => return Next::Stop,
                Ok(change) => self.take(change),
                Err(mpsc::TryRecvError::Empty) => return Next::Sleep,
            }
        }
    }

    fn take(&mut self, change: Change) {
        match change {
            Change::Offered(descriptor) => {
                let hash = descriptor.hash;
                self.offered.insert(hash, (*descriptor).clone());
                self.tell_all(&Control::Offered(*descriptor));
            }
            Change::Withdrawn(hash) => {
                if self.offered.remove(&hash).is_some() {
                    self.tell_all(&Control::Withdrawn(hash));
                }
            }
            Change::Opened(ends) => {
                let (number, descriptor) = (ends.number, ends.descriptor.clone());
                self.match_up_with_all(&ends);
                self.opened.insert(number, ends);
                self.tell_all(&Control::Opened { number, descriptor });
            }
            Change::Closed(number) => {
                if self.opened.remove(&number).is_some() {
                    self.tell_all(&Control::Closed { number });
                }
            }
            Change::Attached => self.arm(),
            // The caller has handled it.
            Change::Stop => {}
        }
    }

    /// Registers the link's waker with every channel.
    fn arm(&self) {
        let Some(waker) = self.shared.waker() else {
            return;
        };
        let armed = self.opened.values().map(|ends| ends.arm(waker));
        if armed.fold(false, |has_come, has| has_come | has) {
            self.shared.signal();
        }
    }

    fn tell_all(&mut self, word: &Control) {
        let bytes: Arc<[u8]> = word.encode().into();
        let account_words = self.offered.len() + self.opened.len() + 2;
        let mut late = Vec::new();
        for outgoing in self.remotes.values().filter_map(|remote| remote.outgoing) {
            if let Some(session) = self.sessions.get_mut(&outgoing)
                && !session.tell(&bytes, account_words)
            {
                late.push(outgoing);
            }
        }
        for at in late {
            self.begin(at);
        }
    }

    /// Begins a session with a full account of this side.
    fn begin(&mut self, at: PeerAt) {
        let offered = self.offered.values().cloned().map(Control::Offered);
        let opened = self.opened.values().map(|ends| Control::Opened {
            number: ends.number,
            descriptor: ends.descriptor.clone(),
        });
        let words = iter::once(Control::Begin).chain(offered).chain(opened);
        let words = words.chain([Control::End]);
        let account = words.map(|word| word.encode().into()).collect();
        if let Some(session) = self.sessions.get_mut(&at) {
            session.begin(account);
        }
    }

    // ---- Sessions --------------------------------------------------------------------

    fn hear_of_peer(&mut self, event: PeersEvent) {
        // The node itself logs what is not reached.
        if let PeersEvent::Connected { peer, .. } = event {
            let session = self.sessions.entry(peer.at());
            session.or_insert_with(|| Session::new(peer));
        }
    }

    /// Drops the sessions that are over, and opens streams again on those whose carrier has left.
    fn look_after_sessions(&mut self) {
        let mut over = Vec::new();
        let sessions = self.sessions.values_mut();
        for session in sessions.filter(|session| !session.has_joined) {
            match session.peer.is_gone() {
                true => over.push(session.at),
                false => session.open(),
            }
        }
        for at in over {
            self.sessions.remove(&at);
        }
    }

    fn hear(&mut self, event: FanInEvent<Message<[u8], Raw>>) {
        match event {
            FanInEvent::Joined(at) => self.joined(at),
            FanInEvent::Message(at, message) => match Control::decode(&message) {
                Ok(word) => self.heard(at, word),
                Err(error) => warn_limited!(
                    error,
                    peer = %at,
                    %error,
                    "a word of the peer's carrier was left out; see that both have the same \
                     release of ibex-iceoryx2"
                ),
            },
            FanInEvent::Ended(at) => self.left(at),
            FanInEvent::Lost(at, error) if error.spares_channel() => {
                warn_limited!(error, peer = %at, %error, "a word of the peer's carrier did not come");
            }
            FanInEvent::Lost(at, error) => {
                tracing::debug!(peer = %at, %error, "a peer's carrier is gone");
                self.left(at);
            }
        }
    }

    fn joined(&mut self, at: PeerAt) {
        if at.id == self.node.id() {
            return;
        }
        let Some(peer) = self.streams.peer(at) else {
            return;
        };
        let session = self.sessions.entry(at);
        session.or_insert_with(|| Session::new(peer)).has_joined = true;
        self.choose_outgoing(at.id);
    }

    /// Notes that a carrier has left, with its session or before.
    fn left(&mut self, at: PeerAt) {
        if let Some(session) = self.sessions.get_mut(&at) {
            session.part();
        }
        self.choose_outgoing(at.id);
    }

    /// Chooses one of the peer's sessions on which this side reports, the same for as long as that
    /// lasts.
    fn choose_outgoing(&mut self, id: PeerId) {
        let has_joined = |session: &Session| session.has_joined && session.at.id == id;
        let first = self.sessions.values().find(|session| has_joined(session));
        let Some(first) = first.map(|session| session.at) else {
            return self.forget(id);
        };
        let remote = self.remotes.entry(id).or_default();
        let last = remote.outgoing.and_then(|at| self.sessions.get(&at));
        if last.is_some_and(has_joined) {
            return;
        }
        remote.outgoing = Some(first);
        let channels: BTreeSet<_> = remote.account().descriptors().cloned().collect();
        self.begin(first);
        self.match_up_with(id, &channels);
    }

    /// Drops a peer that is gone, and what it offered.
    fn forget(&mut self, id: PeerId) {
        let Some(remote) = self.remotes.remove(&id) else {
            return;
        };
        let nobody = Remote::default();
        for ends in self.opened.values() {
            if remote.account().numbers(&ends.descriptor).is_some() {
                self.match_up(id, &nobody, ends);
            }
        }
        let known = self.shared.peers().remove(&id);
        if known.is_some_and(|known| !known.offers.is_empty()) {
            self.shared.offers_changed();
        }
    }

    // ---- The other side --------------------------------------------------------------

    fn heard(&mut self, at: PeerAt, word: Control) {
        let Some(remote) = self.remotes.get_mut(&at.id) else {
            return;
        };
        let News { offers, channels } = remote.hear(at, word);
        self.match_up_with(at.id, &channels);
        self.publish(at, offers);
    }

    /// Shows the peer's report to the link and the monitors.
    fn publish(&self, at: PeerAt, offers_changed: bool) {
        let remote = self.remotes.get(&at.id).filter(|remote| remote.is_known);
        let (Some(remote), Some(session)) = (remote, self.sessions.get(&at)) else {
            return;
        };
        let mut peers = self.shared.peers();
        let mut has_gone = false;
        // An earlier incarnation of the same node, whose end is not known yet, offers nothing.
        peers.retain(|id, known| {
            let is_earlier = *id != at.id && id.node_id() == at.id.node_id();
            has_gone |= is_earlier && !known.offers.is_empty();
            !is_earlier
        });
        let fabric = session.peer.fabric();
        let known = peers.entry(at.id).or_insert_with(|| KnownPeer {
            at,
            fabric,
            offers: BTreeMap::new(),
            channels: 0,
        });
        let account = remote.account();
        (known.at, known.fabric) = (at, fabric);
        known.channels = account.channels();
        if offers_changed {
            known.offers.clone_from(&account.offers);
        }
        drop(peers);
        if offers_changed || has_gone {
            self.shared.offers_changed();
        }
    }

    fn match_up_with(&self, id: PeerId, channels: &BTreeSet<ServiceDescriptor>) {
        if channels.is_empty() {
            return;
        }
        let Some(remote) = self.remotes.get(&id) else {
            return;
        };
        for ends in self.opened.values() {
            if channels.contains(&ends.descriptor) {
                self.match_up(id, remote, ends);
            }
        }
    }

    fn match_up_with_all(&self, ends: &Ends) {
        for (id, remote) in &self.remotes {
            self.match_up(*id, remote, ends);
        }
    }

    fn match_up(&self, id: PeerId, remote: &Remote, ends: &Ends) {
        let peer = |at: &PeerAt| self.sessions.get(at).map(|session| &session.peer);
        let nothing = BTreeSet::new();
        let numbers = remote.account().numbers(&ends.descriptor);
        let counterpart = Counterpart {
            peer: id,
            numbers: numbers.unwrap_or(&nothing),
            outgoing: remote.outgoing.as_ref().and_then(peer),
            incoming: remote.incoming.as_ref().and_then(peer),
        };
        if ends.match_up(&counterpart, self.shared.waker()) {
            self.shared.signal();
        }
    }
}

/// The waker of a thread that parks. A wake-up between the last look and the parking is not lost,
/// as parking then returns at once; the thread parks nowhere else.
struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.0.unpark();
    }
}

fn park(until: Option<Instant>) {
    match until {
        None => thread::park(),
        Some(until) => thread::park_timeout(until.saturating_duration_since(Instant::now())),
    }
}

/// The interval at which sessions without a carrier are looked at.
const LOOK_AFTER: Duration = Duration::from_secs(1);
