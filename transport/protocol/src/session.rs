//! A session: two nodes, the channels between them, and the choice of the next frame.
//!
//! A session is pure state. The host (the engine, or the simulation) feeds it frames with
//! [`handle_frame`](Session::handle_frame) and the wishes of local handles with the other methods,
//! takes frames with [`poll_transmit`](Session::poll_transmit) until it answers `None`, and events
//! with [`poll_event`](Session::poll_event) likewise.
//!
//! Order of sending: control first, then counters that the peer waits for, then records and chunks
//! of the ready channels, one frame each in turn. Closing an end and the session are derived from
//! channel state when a frame is built, so they cannot overtake records that were published before.
#![forbid(unsafe_code)]

use std::{collections::VecDeque, sync::Arc};

mod data_path;
mod grants;
mod progress;
mod receive;
mod receive_channel;
mod resume;
mod send_channel;
mod transmit;
mod types;

pub use data_path::DataPath;
pub use progress::Progress;
pub use resume::{WireTerms, is_newer_epoch};
pub use types::{
    Agreed, Arrival, Body, CannotOpen, Event, Footprint, LandingWord, LoneRecord, PeerMisbehaved,
    RecordSource, Run,
};

use super::{
    credit::{
        reserved_buffer::ReservedBuffer,
        session::{CreditGrant, CreditReport, CreditUse, Term},
    },
    format::{
        control::{Ask, ChannelSpec, CloseReason, Control, Role},
        counters::Counters,
    },
    framing::Carriage,
    id_map::IdMap,
    transfer::eager_write::Landings,
};
use receive_channel::ReceiveChannel;
use resume::Stage;
use send_channel::SendChannel;

/// The terms that both ends settled in the handshake.
#[derive(Clone, Copy, Debug)]
pub struct SessionConfig {
    /// The medium that frames travel in.
    pub carriage: Carriage,
    /// This side dialed, so it keeps the [larger
    /// reserve](super::credit::reserved_buffer::reserved_buffers).
    pub dialed: bool,
    /// The arrival bytes or buffers that the peer may keep in flight to us at first. 0 if the
    /// [broker](super::credit::broker) decides that later.
    pub our_credit: u64,
    /// The arrival bytes or buffers that we may keep in flight to the peer at first.
    pub peer_credit: u64,
    /// Ends that either side may have open at a time.
    pub max_channels: usize,
    /// The path of messages.
    pub data_path: DataPath,
    /// Memory may be granted for large messages to be written to, at both ends.
    pub writes: bool,
    /// A write can announce itself by immediate data, both ways.
    pub immediate: bool,
    /// If its wires break, the session goes on over others, so it keeps everything until it is
    /// known to have arrived.
    pub resumes: bool,
}

/// A session's channels and queues. See the [module](self).
#[derive(Debug)]
pub struct Session {
    config: SessionConfig,

    /// The stage between old wires and new ones.
    stage: Stage,

    // Ends.
    ends: IdMap<End>,
    next_end: u32,
    /// The newest end that the peer opened.
    newest_peer_end: u32,
    /// Our ends by those of the peer that they are paired with, by its role.
    paired: [IdMap<u32>; 2],
    /// The peer's ends that wait for a counterpart here, oldest first.
    unpaired: Vec<PeerOpen>,

    // Sending.
    control: VecDeque<Control>,
    /// The control message that is being framed.
    control_body: Vec<u8>,
    /// Sending ends that have, or may have, something to send.
    ready: VecDeque<u32>,
    /// Receiving ends with news for their senders; urgent ones at the front.
    news: VecDeque<u32>,
    credit_use: CreditUse,
    reserved: ReservedBuffer,
    /// The next frame says that it had to wait for credit.
    has_waited: bool,
    /// The number of questions for any answer that are still to be sent.
    queries: u32,
    /// The number of the peer's questions that are still to be answered.
    answers: u32,
    /// The number of times that bytes of the peer's were damaged on their way.
    damaged: u64,
    goodbye: Goodbye,
    /// The program's reason to end this session alone, which the goodbye carries.
    reason: Option<Arc<str>>,
    /// The peer has said goodbye.
    heard_goodbye: bool,
    /// The peer is told that this node drains, and whether it has.
    draining: Option<bool>,
    /// The peer's announcement that it drains.
    heard_draining: Option<bool>,
    /// Set if a frame may have to go out for something other than records, or with it. Every change
    /// that may lead to that sets the flag; a look that finds nothing clears it.
    has_errands: bool,
    /// Pieces on their way into the peer's memory.
    writes_under_way: u32,
    /// Sending ends that wait for such a piece to arrive.
    awaiting_writes: Vec<u32>,

    // Receiving.
    credit_grant: CreditGrant,
    /// Blocks that the peer was granted.
    landings: Landings,
    events: VecDeque<Event>,
}

#[derive(Debug)]
struct End {
    name: Arc<str>,
    spec: Arc<ChannelSpec>,
    /// The peer's id of the other end, once both are open.
    peer: Option<u32>,
    state: EndState,
    /// The local handle was dropped.
    closed_here: bool,
    /// Another end of the name and role may be opened here.
    name_is_free: bool,
    /// The last message before the close, and the reason.
    closing: Option<(u64, CloseReason)>,
    /// The peer's end was closed, or is of no use.
    closed_there: bool,
    /// The two ends do not fit each other, so this one is of no use.
    is_mismatched: bool,
    /// The peer has said that its end is gone.
    heard_close: bool,
    /// The peer has been told that ours is gone.
    close_is_out: bool,
}

#[derive(Debug)]
enum EndState {
    Sender(Box<SendChannel>),
    Receiver(Option<Box<ReceiveChannel>>),
}

impl EndState {
    fn role(&self) -> Role {
        match self {
            EndState::Sender(_) => Role::Sender,
            EndState::Receiver(_) => Role::Receiver,
        }
    }
}

#[derive(Debug)]
struct PeerOpen {
    end: u32,
    role: Role,
    name: Arc<str>,
    spec: Arc<ChannelSpec>,
    /// The end was closed before the counterpart was opened here.
    closed: Option<CloseReason>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Goodbye {
    NotDue,
    Due,
    Said,
}

impl Session {
    /// A session without channels.
    #[must_use]
    pub fn new(config: SessionConfig) -> Self {
        Self {
            config,
            stage: Stage::Live,
            ends: IdMap::new(),
            next_end: 1,
            newest_peer_end: 0,
            paired: [IdMap::new(), IdMap::new()],
            unpaired: Vec::new(),
            control: VecDeque::new(),
            control_body: Vec::new(),
            ready: VecDeque::new(),
            news: VecDeque::new(),
            credit_use: CreditUse::new(config.peer_credit),
            reserved: ReservedBuffer::new(config.dialed),
            has_waited: false,
            queries: 0,
            answers: 0,
            damaged: 0,
            goodbye: Goodbye::NotDue,
            reason: None,
            heard_goodbye: false,
            draining: None,
            heard_draining: None,
            has_errands: false,
            writes_under_way: 0,
            awaiting_writes: Vec::new(),
            credit_grant: CreditGrant::new(config.our_credit),
            landings: Landings::default(),
            events: VecDeque::new(),
        }
    }

    /// Frees the memory of its empty queues, because the session was silent for a while.
    pub fn rest(&mut self) {
        self.control.shrink_to_fit();
        self.control_body = Vec::new();
        self.unpaired.shrink_to_fit();
        self.ready.shrink_to_fit();
        self.news.shrink_to_fit();
        self.events.shrink_to_fit();
    }

    // ---- Wishes of local handles -------------------------------------------------

    /// Returns a spec to open an end with: an equal one that another end has already, if there is
    /// one. The many channels of a session are mostly of a few types.
    pub fn share_spec(&self, spec: ChannelSpec) -> Arc<ChannelSpec> {
        let mut of_ends = self.ends.values().map(|end| &end.spec);
        let equal = of_ends.find(|of_end| ***of_end == spec).cloned();
        equal.unwrap_or_else(|| Arc::new(spec))
    }

    /// Opens a local end and announces it. Poll transmissions and events afterwards.
    pub fn open(
        &mut self,
        role: Role,
        name: impl Into<Arc<str>>,
        spec: impl Into<Arc<ChannelSpec>>,
    ) -> Result<u32, CannotOpen> {
        let (name, spec) = (name.into(), spec.into());
        let is_open = |end: &End| {
            end.state.role() == role && end.name == name && !end.closed_here && !end.name_is_free
        };
        if self.ends.values().any(is_open) {
            return Err(CannotOpen::AlreadyOpen);
        }
        if self.ends.len() >= self.config.max_channels {
            return Err(CannotOpen::TooMany {
                limit: self.config.max_channels,
            });
        }
        let end = self.next_end;
        self.next_end += 1;
        self.has_errands = true;
        let state = match role {
            Role::Sender => EndState::Sender(Box::new(SendChannel {
                // Without wires, no end may enter the ready queue, so the end counts as queued.
                queued: !self.stage.is_live(),
                ..SendChannel::default()
            })),
            Role::Receiver => EndState::Receiver(None),
        };
        self.say(Control::Open {
            end,
            role,
            name: name.clone(),
            spec: spec.clone(),
        });
        let counterpart = self
            .unpaired
            .iter()
            .position(|open| open.role == role.opposite() && open.name == name);
        let entry = End {
            name,
            spec,
            peer: None,
            state,
            closed_here: false,
            name_is_free: false,
            closing: None,
            closed_there: false,
            is_mismatched: false,
            heard_close: false,
            close_is_out: false,
        };
        self.ends.insert(end, entry);
        if let Some(counterpart) = counterpart {
            let open = self.unpaired.remove(counterpart);
            self.pair(end, open);
        }
        Ok(end)
    }

    /// Lets another end of the same name be opened before this one is closed. The peer's ends meet
    /// both of them in the order in which they were opened.
    pub fn free_name(&mut self, end: u32) {
        if let Some(entry) = self.ends.get_mut(end) {
            entry.name_is_free = true;
        }
    }

    /// Notes that the last handle of a sending end was dropped; its close follows message
    /// `final_sequence`. If an end closes again, the first reason stands.
    pub fn close_sender(&mut self, end: u32, final_sequence: u64, reason: CloseReason) {
        if let Some(entry) = self.ends.get_mut(end) {
            entry.closed_here = true;
            let reason = entry.closing.map_or(reason, |(_, first)| first);
            entry.closing = Some((final_sequence, reason));
            if let EndState::Sender(channel) = &mut entry.state {
                channel.closing = entry.closing;
            }
        }
        self.mark_ready(end);
    }

    /// Notes that the handle of a receiving end was dropped. `counters` are its last counters.
    pub fn close_receiver(&mut self, end: u32, counters: &Counters, reason: CloseReason) {
        let Some(entry) = self.ends.get_mut(end) else {
            return;
        };
        self.has_errands = true;
        entry.closed_here = true;
        entry.closing = Some((0, reason));
        if let Some(channel) = entry.state.framed_receiver(self.config.data_path) {
            channel.handle_released(counters);
            // The last counters ride on the close, or on a frame before it.
            if !channel.queued {
                channel.queued = true;
                self.news.push_back(end);
            }
        }
        let role = Role::Receiver;
        self.say(Control::Close {
            end,
            role,
            reason,
            final_sequence: 0,
        });
    }

    /// Notes that records may stand in the ring of sending end `end`. Returns whether the end has a
    /// turn: records for a peer's end that was closed are not wanted, so they need no credit
    /// either.
    #[inline]
    pub fn mark_ready(&mut self, end: u32) -> bool {
        let Some(entry) = self.ends.get_mut(end) else {
            return false;
        };
        let EndState::Sender(channel) = &mut entry.state else {
            return false;
        };
        if entry.closed_there && channel.closing.is_none() {
            return false;
        }
        if !channel.queued {
            channel.queued = true;
            self.ready.push_back(end);
        }
        true
    }

    /// Asks for the counters that a sending end waits for. One question goes out for all of them:
    /// see [`Questions`](super::format::control::Questions).
    pub fn ask(&mut self, end: u32, ask: Ask) {
        let ask = match self.sender_mut(end) {
            Some(channel) => channel.ask(ask),
            None => ask,
        };
        self.say_ask(end, ask);
    }

    /// Asks for the acknowledgement of message `sequence`, unless the peer was asked for it.
    pub fn ask_once(&mut self, end: u32, sequence: u64) {
        let channel = self.sender_mut(end);
        if !channel.is_some_and(|channel| channel.has_asked_for(sequence)) {
            self.ask(end, Ask::acknowledged(sequence));
        }
    }

    /// Asks for an end whose handles were dropped, ahead of the goodbye. This question replaces all
    /// others, since an answer to one of those could not lead to a further question.
    pub fn ask_last(&mut self, end: u32, ask: Ask) {
        if let Some(channel) = self.sender_mut(end) {
            channel.ask_last(ask);
        }
        self.say_ask(end, ask);
    }

    /// Asks the peer, in the place of a question that is still to go out.
    fn say_ask(&mut self, end: u32, ask: Ask) {
        self.has_errands = true;
        let queued = self.control.iter_mut().find_map(|control| match control {
            Control::Ask { channel, ask } if *channel == end => Some(ask),
            _ => None,
        });
        match queued {
            Some(queued) => *queued = ask,
            None => self.say(Control::Ask { channel: end, ask }),
        }
    }

    /// Asks the peer `times` times for any answer, which it gives as soon as it runs.
    pub fn query(&mut self, times: u32) {
        self.has_errands = true;
        self.queries = self.queries.saturating_add(times);
    }

    /// Notes that bytes of the peer's were damaged on their way, so that its frames are of no use
    /// any more. The peer is told over the next wires, because over these the end of the connection
    /// would often come first.
    pub fn found_damage(&mut self) {
        self.damaged = self.damaged.saturating_add(1);
    }

    /// Notes that the prefix of a receiving end moved. The sender is told at once if it waits for
    /// the news or half a window is owed, else with the next frame.
    ///
    /// In shared memory the sender reads the counters itself, and frames carry none. Returns whether
    /// frames carry them.
    pub fn released(&mut self, end: u32, counters: &Counters) -> bool {
        let path = self.config.data_path;
        let owes_landings = self.landings.owes(end, counters.released);
        let entry = self.ends.get_mut(end);
        let Some(channel) = entry.and_then(|entry| entry.state.framed_receiver(path)) else {
            return false;
        };
        channel.owes_news |= owes_landings;
        channel.handle_released(counters);
        self.queue_news(end);
        true
    }

    /// Sets after how many released messages (or half a window, if that is less) the sender of
    /// receiving end `end` is told at the latest. Has no effect while the channel is not open.
    pub fn tell_every(&mut self, end: u32, messages: u64) {
        if let Some(channel) = self.receiver_mut(end) {
            channel.tell_every = messages;
        }
    }

    /// Returns the alignment of payloads of our end `end`, once the channel is open.
    #[must_use]
    pub fn alignment(&self, end: u32) -> Option<usize> {
        match &self.ends.get(end)?.state {
            EndState::Sender(channel) => Some(channel.alignment),
            EndState::Receiver(channel) => Some(channel.as_ref()?.alignment),
        }
    }

    /// Like [`alignment`](Self::alignment), for the end that is paired with the peer's sending end
    /// `channel`.
    #[must_use]
    pub fn alignment_of_arrivals(&self, channel: u32) -> Option<usize> {
        self.alignment(self.paired(Role::Sender, channel)?)
    }

    /// Our end that is paired with an end of the peer's.
    #[must_use]
    pub fn paired(&self, role: Role, peer_end: u32) -> Option<u32> {
        self.paired[role as usize].get(peer_end).copied()
    }

    /// Returns whether the peer has announced its end `peer_end`, which may be over.
    #[must_use]
    pub fn has_heard_of(&self, peer_end: u32) -> bool {
        peer_end <= self.newest_peer_end
    }

    /// Returns whether the sender of receiving end `end` waits for its application.
    #[must_use]
    pub fn is_asked(&self, end: u32) -> bool {
        match self.ends.get(end) {
            Some(End {
                state: EndState::Receiver(Some(channel)),
                ..
            }) => channel.waits_for_application(),
            _ => false,
        }
    }

    /// Returns whether the sender of receiving end `end` waits for room in its window.
    #[must_use]
    pub fn wants_room(&self, end: u32) -> bool {
        match self.ends.get(end) {
            Some(End {
                state: EndState::Receiver(Some(channel)),
                ..
            }) => channel.waits_for_room(),
            _ => false,
        }
    }

    /// Says goodbye once everything published is on its way. The goodbye carries the `reason` for
    /// which the program ends this session alone, if it does; the first call decides.
    pub fn say_goodbye(&mut self, reason: Option<Arc<str>>) {
        if self.goodbye == Goodbye::NotDue {
            self.goodbye = Goodbye::Due;
            self.reason = reason;
            self.has_errands = true;
        }
    }

    /// Tells the peer that no call begins here any more, and with `is_done` that all calls that had
    /// begun are answered. Poll transmissions afterwards.
    pub fn say_draining(&mut self, is_done: bool) {
        if Some(is_done) > self.draining {
            self.draining = Some(is_done);
            self.control.push_back(Control::Draining { is_done });
            self.has_errands = true;
        }
    }

    /// Returns whether the goodbye is in a frame: nothing more will be sent.
    #[must_use]
    pub fn said_goodbye(&self) -> bool {
        self.goodbye == Goodbye::Said
    }

    // ---- Decisions of the engine's broker --------------------------------------------

    /// Lets the peer keep `credit` more in flight. Poll transmissions afterwards.
    pub fn give(&mut self, credit: u64, term: Term) {
        self.credit_grant.give(credit, term);
        self.has_errands = true;
    }

    /// Takes `credit` back, at most as much as the peer was given. The part that the peer has comes
    /// back once the peer has used or surrendered it. Poll transmissions and the
    /// [report](Self::take_credit_report) afterwards.
    pub fn recall(&mut self, credit: u64) {
        self.credit_grant.recall(credit);
        self.has_errands = true;
    }

    /// Takes the news for the broker since the last time. Take it after frames were handled or
    /// polled, and after a recall.
    #[must_use]
    pub fn take_credit_report(&mut self) -> CreditReport {
        self.credit_grant.take_report()
    }

    /// Returns how much credit the peer has used in all: while it sends, this grows.
    #[must_use]
    pub fn credit_used(&self) -> u64 {
        self.credit_grant.used()
    }

    /// Returns the credit that the peer may keep in flight at a time.
    #[must_use]
    pub fn credit_lent(&self) -> u64 {
        self.credit_grant.lent()
    }

    /// The names of ends that the peer opened and we did not, with the peer's role.
    pub fn unpaired(&self) -> impl Iterator<Item = (&str, Role)> {
        self.unpaired
            .iter()
            .filter(|open| open.closed.is_none())
            .map(|open| (&*open.name, open.role))
    }

    /// The peer's ends that count against the limit. Ends that did not fit ours and that the peer
    /// has closed do not count: both sides knew of the mismatch without a message.
    fn peer_ends(&self) -> usize {
        let is_over = |end: &&End| end.is_mismatched && end.heard_close;
        let over = self.ends.values().filter(is_over).count();
        let paired: usize = self.paired.iter().map(IdMap::len).sum();
        self.unpaired.len() + paired - over
    }

    /// Returns how much the session holds.
    #[must_use]
    pub fn footprint(&self) -> Footprint {
        Footprint {
            ends: self.ends.len(),
            peer_ends: self.peer_ends(),
            control: self.control.len(),
            ready: self.ready.len(),
            news: self.news.len(),
            events: self.events.len(),
        }
    }

    /// Returns whether there are events.
    #[inline]
    #[must_use]
    pub fn has_events(&self) -> bool {
        !self.events.is_empty()
    }

    /// The next event. Drain it after every other call that takes `&mut self`.
    #[must_use]
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    // ---- Bookkeeping -----------------------------------------------------------------

    fn close_went(&mut self, end: u32) {
        if let Some(entry) = self.ends.get_mut(end) {
            entry.close_is_out = true;
        }
        self.forget_if_over(end);
    }

    /// Forgets an end that is gone on both sides.
    fn forget_if_over(&mut self, end: u32) {
        let Some(entry) = self.ends.get(end) else {
            return;
        };
        if entry.close_is_out && entry.heard_close {
            if let Some(peer) = entry.peer {
                self.paired[entry.state.role().opposite() as usize].remove(peer);
            }
            self.ends.remove(end);
            self.ready.retain(|&other| other != end);
            self.news.retain(|&other| other != end);
            self.landings.forget(end);
            self.events.push_back(Event::Forgotten { end });
        }
    }

    fn sender_mut(&mut self, end: u32) -> Option<&mut SendChannel> {
        match &mut self.ends.get_mut(end)?.state {
            EndState::Sender(channel) => Some(channel),
            EndState::Receiver(_) => None,
        }
    }

    fn receiver_mut(&mut self, end: u32) -> Option<&mut ReceiveChannel> {
        match &mut self.ends.get_mut(end)?.state {
            EndState::Receiver(Some(channel)) => Some(channel),
            _ => None,
        }
    }

    /// Our end that is paired with the peer's.
    fn paired_entry(&mut self, role: Role, peer_end: u32) -> Option<(u32, &mut End)> {
        paired_entry(&self.paired, &mut self.ends, role, peer_end)
    }
}

/// [`Session::paired_entry`] for callers that need other parts of the session as well.
#[inline(always)]
fn paired_entry<'a>(
    paired: &[IdMap<u32>; 2],
    ends: &'a mut IdMap<End>,
    role: Role,
    peer_end: u32,
) -> Option<(u32, &'a mut End)> {
    let end = *paired[role as usize].get(peer_end)?;
    Some((end, ends.get_mut(end)?))
}

#[cfg(test)]
mod tests;
