//! The ends of one channel, each with one end of a peer's channel of the same descriptor.

use std::{
    collections::BTreeSet,
    fmt, mem,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    task::{Context, Poll, Waker},
    time::Duration,
};

use ibex::{
    Message, OpenError, OpenErrorKind, Peer, PeerAt, PeerId, Raw, Receiver, RecvErrorKind,
    SendError, SendErrorKind, Sender,
};
use ibex_core::extend::warn_limited;
use iceoryx2_link_backend::service_description::ServiceDescriptor;
use iceoryx2_link_carrier::Frame;

use crate::control::frames;

/// A channel as its user and the carrier's thread share it.
pub(crate) struct Ends {
    pub(crate) number: u64,
    pub(crate) descriptor: ServiceDescriptor,
    pairs: Mutex<Pairs>,
    pub(crate) counters: Counters,
}

/// Frames that a channel moved, each counted once for each peer.
#[derive(Default)]
pub(crate) struct Counters {
    pub(crate) sent: AtomicU64,
    pub(crate) dropped: AtomicU64,
    pub(crate) received: AtomicU64,
}

#[derive(Default)]
struct Pairs {
    senders: Vec<SendEnd>,
    receivers: Vec<ReceiveEnd>,
    /// The receiver whose turn it is.
    turn: usize,
    /// Set once the user has dropped the channel.
    is_closed: bool,
}

/// An end over which frames are sent.
struct SendEnd {
    with: Pairing,
    /// `None` once it has failed: it is not opened again for the same pair.
    sender: Option<Sender<[u8], Raw>>,
    /// Set if the last frame found no room.
    is_full: bool,
}

/// An end from which frames come.
struct ReceiveEnd {
    with: Pairing,
    /// `None` once it is over: it is not opened again for the same pair.
    receiver: Option<Receiver<[u8], Raw>>,
    /// A frame that came while the waker was registered.
    early: Option<Message<[u8], Raw>>,
    /// Set once the peer has closed its end: messages that have arrived are handed out, and then
    /// this end goes.
    is_retiring: bool,
}

/// The end of a peer, and the session that leads to it.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Pairing {
    peer: PeerId,
    session: PeerAt,
    number: u64,
}

/// A peer, as far as one channel is concerned.
pub(crate) struct Counterpart<'a> {
    pub(crate) peer: PeerId,
    /// The numbers of its open channels of the same descriptor.
    pub(crate) numbers: &'a BTreeSet<u64>,
    /// The session over which this node reports to the peer, and sends frames.
    pub(crate) outgoing: Option<&'a Peer>,
    /// The session over which the peer reports to this node, and sends frames.
    pub(crate) incoming: Option<&'a Peer>,
}

/// The outcome of sending one frame to everyone.
#[derive(Default)]
pub(crate) struct Sent {
    pub(crate) to: u64,
    /// The error of a frame that is longer than an end takes.
    pub(crate) too_long: Option<SendError>,
}

impl Ends {
    pub(crate) fn new(number: u64, descriptor: ServiceDescriptor) -> Self {
        Self {
            number,
            descriptor,
            pairs: Mutex::default(),
            counters: Counters::default(),
        }
    }

    /// Sends to every peer that has the channel open and room for the frame.
    pub(crate) fn send(&self, frame: Frame<'_>) -> Sent {
        let mut sent = Sent::default();
        let mut dropped = 0;
        for end in &mut self.lock().senders {
            match end.send(frame) {
                Outcome::Sent => sent.to += 1,
                Outcome::Dropped => dropped += 1,
                Outcome::TooLong(error) => {
                    dropped += 1;
                    sent.too_long = Some(error);
                }
                Outcome::NobodyThere => {}
            }
        }
        self.counters.sent.fetch_add(sent.to, Relaxed);
        self.counters.dropped.fetch_add(dropped, Relaxed);
        sent
    }

    /// Returns the next frame of any peer; the peers take turns. With a waker, each end that has no
    /// frame keeps it to report its next frame.
    pub(crate) fn receive(&self, waker: Option<&Waker>) -> Option<Message<[u8], Raw>> {
        let message = self.lock().receive(waker)?;
        self.counters.received.fetch_add(1, Relaxed);
        Some(message)
    }

    /// Registers the waker with every end. Returns whether a frame is there already.
    pub(crate) fn arm(&self, waker: &Waker) -> bool {
        let mut pairs = self.lock();
        let armed = pairs.receivers.iter_mut().map(|end| end.arm(waker));
        armed.fold(false, |has_come, has| has_come | has)
    }

    /// Opens the ends that the peer's open channels need, and ends those that they no longer need.
    /// Returns whether a frame is there already.
    pub(crate) fn match_up(&self, with: &Counterpart<'_>, waker: Option<&Waker>) -> bool {
        let mut pairs = self.lock();
        if pairs.is_closed {
            return false;
        }
        let outgoing = with.outgoing.map(|peer| (peer, peer.at()));
        let incoming = with.incoming.map(|peer| (peer, peer.at()));
        pairs.part_from(with, outgoing.map(|(_, at)| at), incoming.map(|(_, at)| at));
        let mut has_come = false;
        for &number in with.numbers {
            if let Some((peer, at)) = outgoing {
                self.open_sender(&mut pairs, peer, with.pairing(at, number));
            }
            if let Some((peer, at)) = incoming {
                has_come |= self.open_receiver(&mut pairs, peer, with.pairing(at, number), waker);
            }
        }
        has_come
    }

    fn open_sender(&self, pairs: &mut Pairs, peer: &Peer, with: Pairing) {
        if pairs.senders.iter().any(|end| end.with == with) {
            return;
        }
        let name = frames(self.number, with.number);
        match peer.channel(&name).codec::<Raw>().sender() {
            Ok(sender) => pairs.senders.push(SendEnd {
                with,
                sender: Some(sender),
                is_full: false,
            }),
            Err(error) => self.cannot_open(&error, peer),
        }
    }

    fn open_receiver(
        &self,
        pairs: &mut Pairs,
        peer: &Peer,
        with: Pairing,
        waker: Option<&Waker>,
    ) -> bool {
        if pairs.receivers.iter().any(|end| end.with == with) {
            return false;
        }
        let name = frames(with.number, self.number);
        match peer.channel(&name).codec::<Raw>().receiver() {
            Ok(receiver) => {
                let mut end = ReceiveEnd {
                    with,
                    receiver: Some(receiver),
                    early: None,
                    is_retiring: false,
                };
                let has_come = waker.is_some_and(|waker| end.arm(waker));
                pairs.receivers.push(end);
                has_come
            }
            Err(error) => {
                self.cannot_open(&error, peer);
                false
            }
        }
    }

    /// Logs that an end could not be opened. Opening is tried again when either side opens or
    /// closes a channel of this service, or when the session is made anew.
    fn cannot_open(&self, error: &OpenError, peer: &Peer) {
        let is_over = matches!(
            error.kind(),
            OpenErrorKind::SessionOver | OpenErrorKind::NodeClosed
        );
        if !is_over {
            let service = &self.descriptor.name;
            warn_limited!(error, %service, %peer, %error, "the service is not carried with this peer");
        }
    }

    /// Returns the peers that have the channel open and get its frames.
    pub(crate) fn peers(&self) -> Vec<PeerId> {
        let mut pairs = self.lock();
        let ends = pairs.senders.iter_mut();
        let peers = ends.filter_map(|end| end.is_open().then_some(end.with.peer));
        peers.collect()
    }

    /// Ends all pairs, for good.
    pub(crate) fn close(&self) {
        let closed = Pairs {
            is_closed: true,
            ..Pairs::default()
        };
        drop(mem::replace(&mut *self.lock(), closed));
    }

    fn lock(&self) -> MutexGuard<'_, Pairs> {
        self.pairs.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Ends {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ends")
            .field("number", &self.number)
            .field("service", &self.descriptor.name)
            .finish_non_exhaustive()
    }
}

impl Counterpart<'_> {
    fn pairing(&self, session: PeerAt, number: u64) -> Pairing {
        Pairing {
            peer: self.peer,
            session,
            number,
        }
    }
}

impl Pairs {
    fn part_from(
        &mut self,
        from: &Counterpart<'_>,
        outgoing: Option<PeerAt>,
        incoming: Option<PeerAt>,
    ) {
        let is_called_for = |with: &Pairing, session: Option<PeerAt>| {
            Some(with.session) == session && from.numbers.contains(&with.number)
        };
        self.senders
            .retain(|end| end.with.peer != from.peer || is_called_for(&end.with, outgoing));
        self.receivers.retain_mut(|end| {
            end.with.peer != from.peer || is_called_for(&end.with, incoming) || end.retire()
        });
    }

    fn receive(&mut self, waker: Option<&Waker>) -> Option<Message<[u8], Raw>> {
        for _ in 0..self.receivers.len() {
            let at = self.turn % self.receivers.len();
            let end = &mut self.receivers[at];
            let message = end.receive(waker);
            if message.is_none() && end.is_retiring && end.receiver.is_none() {
                self.receivers.swap_remove(at);
                continue;
            }
            self.turn = at + 1;
            if message.is_some() {
                return message;
            }
        }
        None
    }
}

/// The outcome of a frame at one end.
enum Outcome {
    Sent,
    /// The frame found no room, and is gone.
    Dropped,
    TooLong(SendError),
    /// The peer has not opened its end yet, or has closed it.
    NobodyThere,
}

impl SendEnd {
    fn send(&mut self, frame: Frame<'_>) -> Outcome {
        let Some(sender) = &mut self.sender else {
            return Outcome::NobodyThere;
        };
        match publish(sender, frame) {
            Ok(()) => {
                self.is_full = false;
                Outcome::Sent
            }
            Err(error) if error.kind() == SendErrorKind::NotOpened => Outcome::NobodyThere,
            Err(error) if error.kind() == SendErrorKind::TooLong => Outcome::TooLong(error),
            Err(error) if !error.spares_channel() => {
                self.sender = None;
                Outcome::NobodyThere
            }
            Err(error) => {
                if !mem::replace(&mut self.is_full, true) {
                    let (peer, channel) = (self.with.session, sender.name());
                    warn_limited!(error, %peer, channel, %error, "frames are dropped until there is room");
                }
                Outcome::Dropped
            }
        }
    }

    fn is_open(&mut self) -> bool {
        let sender = self.sender.as_mut();
        sender.is_some_and(|sender| sender.opened(Duration::ZERO).is_ok())
    }
}

/// Writes the frame into the memory that it is sent from.
fn publish(sender: &mut Sender<[u8], Raw>, frame: Frame<'_>) -> Result<(), SendError> {
    let mut room = sender.try_loan(frame.header.len() + frame.payload.len())?;
    let (header, payload) = room.split_at_mut(frame.header.len());
    header.copy_from_slice(frame.header);
    payload.copy_from_slice(frame.payload);
    room.send()?;
    Ok(())
}

impl ReceiveEnd {
    fn receive(&mut self, waker: Option<&Waker>) -> Option<Message<[u8], Raw>> {
        if let Some(message) = self.early.take() {
            return Some(message);
        }
        loop {
            let receiver = self.receiver.as_mut()?;
            let came = match waker {
                Some(waker) => match receiver.poll_recv(&mut Context::from_waker(waker)) {
                    Poll::Ready(came) => came,
                    Poll::Pending => return None,
                },
                None => receiver.try_recv(),
            };
            match came {
                Ok(message) => return Some(message),
                // The error is reported once; the next call receives the frame behind it, and
                // registers the waker.
                Err(error) if !error.is_transient() && error.spares_channel() => {
                    let peer = self.with.session;
                    warn_limited!(error, %peer, %error, "a frame did not come through");
                }
                Err(error) if !error.is_transient() => self.receiver = None,
                Err(_) => return None,
            }
        }
    }

    /// Registers the waker with the end. Returns whether a frame is there already.
    fn arm(&mut self, waker: &Waker) -> bool {
        self.early = self.receive(Some(waker));
        self.early.is_some()
    }

    /// Stays until all arrived messages are handed out. Returns whether there may be any.
    fn retire(&mut self) -> bool {
        self.is_retiring = true;
        if self.early.is_none() {
            // The peer may have gone before it opened its end, and will then never open it.
            match self.receiver.as_mut().map(Receiver::try_recv) {
                Some(Ok(message)) => self.early = Some(message),
                Some(Err(error)) if error.kind() == RecvErrorKind::Empty => return true,
                Some(Err(_)) | None => {}
            }
        }
        self.early.is_some()
    }
}
