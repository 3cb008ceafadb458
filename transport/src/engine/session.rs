//! One session: two nodes, the channels between them, and which frame goes next.
//!
//! Pure state. The host (a fabric's link, or the simulated one) feeds it frames with
//! [`handle_frame`](Session::handle_frame) and the wishes of local handles with the
//! other methods, takes frames with [`poll_transmit`](Session::poll_transmit) until it
//! answers `None`, and events with [`poll_event`](Session::poll_event) likewise.
//!
//! Order of sending: control first, then counters that someone waits for, then records
//! and chunks of the ready channels, one frame each in turn. Closing an end and the
//! session are derived from channel state when a frame is built, so they cannot
//! overtake what was published before.
#![forbid(unsafe_code)]

use std::collections::{HashMap, VecDeque};

use super::{
    channel_window::ChannelWindow,
    control::{Ask, ChannelSpec, CloseReason, Control, MalformedControl, Role},
    counters::{Counters, ImpossibleCounters},
    frame::{
        BATCH_FRAME_BYTES, Extension, EXTENSION_BYTES, FrameHeader, FrameKind, HEAD_BYTES,
        HEADER_BYTES, MAX_FRAME_BYTES, MalformedFrame, pad_for,
    },
    large::Chunk,
    receive_channel::ReceiveChannel,
    record,
    send_channel::SendChannel,
    session_credit::{CONTROL_RESERVE_BYTES, CreditGrant, CreditOverrun, CreditUse},
};

/// What both ends settled in the handshake.
#[derive(Clone, Copy, Debug)]
pub struct SessionConfig {
    /// Arrival bytes that the peer may keep in flight to us.
    pub our_credit_bytes: u64,
    /// Arrival bytes that we may keep in flight to the peer.
    pub peer_credit_bytes: u64,
    /// Ends that either side may have open at a time.
    pub max_channels: usize,
    /// Records travel in frames; else through shared memory, and frames carry control
    /// alone.
    pub data_in_band: bool,
}

/// Where published records stand that are not in a frame yet.
pub trait RecordSource {
    /// Takes the longest run of whole records of `end` that is not above `batch` bytes,
    /// or the first record alone if that is not above `single`; `None` if there is none.
    fn take_run(&mut self, end: u32, batch: usize, single: usize) -> Option<Run>;

    /// Whether a record waits.
    fn has_records(&mut self, end: u32) -> bool;
}

/// Whole records that stand one behind the other in a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// Ring position of the first.
    pub position: u64,
    /// Their bytes.
    pub bytes: usize,
    /// How many.
    pub records: u64,
}

/// What follows the head of a frame that [`Session::poll_transmit`] built.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Body {
    /// Nothing: the frame is whole in `head`.
    Inline,
    /// Bytes of a sending end's ring.
    Records {
        /// Whose ring.
        end: u32,
        /// From where.
        position: u64,
        /// How many bytes.
        bytes: usize,
    },
    /// Bytes of a large message.
    Chunk {
        /// Whose message.
        end: u32,
        /// Which bytes.
        chunk: Chunk,
    },
}

/// What a frame brought for the host to place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrival {
    /// Everything was for the session itself.
    Nothing,
    /// Records lie at `offset..offset + bytes` of the frame, checked.
    Records {
        /// The receiving end.
        end: u32,
        /// Where they begin in the frame.
        offset: usize,
        /// Their bytes.
        bytes: usize,
        /// The first one's sequence.
        first_sequence: u64,
        /// How many.
        records: u64,
    },
    /// The frame's body is for an end that is gone here: skip it.
    Unwanted,
    /// The chunk's bytes belong into granted memory.
    Chunk {
        /// The receiving end.
        end: u32,
        /// Where they belong.
        chunk: Chunk,
        /// They are the message's last.
        complete: bool,
    },
}

/// What the host must know or do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// The peer opened an end whose counterpart is not open here.
    PeerOpened {
        /// The channel's name.
        name: String,
        /// Which end the peer opened.
        role: Role,
    },
    /// Both ends of a channel are open.
    Opened {
        /// Our end.
        end: u32,
        /// The peer's.
        peer_end: u32,
        /// What holds for both.
        agreed: Agreed,
    },
    /// Both ends are open and do not fit each other; the channel has ended.
    Mismatched {
        /// Our end.
        end: u32,
        /// What the peer's end asks of the channel.
        theirs: ChannelSpec,
    },
    /// A sending end has heard news from its receiver.
    Counted {
        /// The sending end.
        end: u32,
        /// All of them, joined.
        counters: Counters,
    },
    /// The sender of a receiving end waits for its application.
    Asked {
        /// The receiving end.
        end: u32,
    },
    /// News of a receiving end are on their way.
    Told {
        /// The receiving end.
        end: u32,
        /// What was told.
        counters: Counters,
    },
    /// The other end of a channel is gone.
    PeerClosed {
        /// Our end.
        end: u32,
        /// Why.
        reason: CloseReason,
        /// For a receiving end: the sequence of the last message.
        final_sequence: u64,
    },
    /// A large message was announced: memory is wanted, then [`Session::grant`].
    LargeAnnounced {
        /// The receiving end.
        end: u32,
        /// The message.
        sequence: u64,
        /// Its bytes.
        length: u64,
    },
    /// A local end is gone on both sides and nothing of it is left here.
    Forgotten {
        /// Our end.
        end: u32,
    },
    /// The peer closes the session.
    Goodbye,
}

/// What holds for a channel: the stricter of both ends' wishes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Agreed {
    /// Messages and bytes that may be out.
    pub window: ChannelWindow,
    /// Alignment of payloads.
    pub alignment: u32,
    /// The longest message.
    pub max_message_bytes: u64,
}

/// The peer broke the protocol: its bytes cannot be trusted any more, the session ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say what each field is")]
pub enum PeerMisbehaved {
    #[error(transparent)]
    Frame(#[from] MalformedFrame),
    #[error(transparent)]
    Control(#[from] MalformedControl),
    #[error(transparent)]
    Credit(#[from] CreditOverrun),
    #[error("channel {channel}: {source}")]
    Counters { channel: u32, source: ImpossibleCounters },
    #[error("a frame is for channel {channel}, which is not open")]
    UnknownChannel { channel: u32 },
    #[error("a frame has records or a chunk, which this session passes through shared memory")]
    DataInBand,
    #[error("record {expected} was due, one with the low bits {got} came")]
    OutOfOrder { expected: u64, got: u32 },
    #[error("a frame of records has none, {sequence} was due")]
    NoRecords { sequence: u64 },
    #[error("record {sequence} does not fit its frame")]
    RecordCut { sequence: u64 },
    #[error("record {sequence} is of no known kind")]
    RecordKind { sequence: u64 },
    #[error("the payload of a record is not aligned to {alignment}")]
    Misaligned { alignment: usize },
    #[error("a message of {length} bytes came, the channel's limit is {limit}")]
    TooLong { length: u64, limit: u64 },
    #[error("large message {sequence} was announced while two were under way")]
    TooManyLarge { sequence: u64 },
    #[error("a chunk came that was not granted")]
    UngrantedChunk,
    #[error("{arrived} messages came although only {released} were released")]
    WindowOverrun { arrived: u64, released: u64 },
    #[error("a channel was closed behind message {last} when {received} had been received")]
    ClosedElsewhere { last: u64, received: u64 },
    #[error("more than {limit} ends were opened")]
    TooManyChannels { limit: usize },
    #[error("end {end} was opened twice")]
    OpenedTwice { end: u32 },
    #[error("a control frame is longer than {CONTROL_RESERVE_BYTES} bytes")]
    LongControl,
}

/// How many entries a session's tables and queues have. Whatever a peer sends, none
/// grows beyond its bound, as long as the host drains events.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Footprint {
    /// Local ends that are not gone on both sides: at most `max_channels`.
    pub ends: usize,
    /// The peer's ends that we know of: at most `max_channels`.
    pub peer_ends: usize,
    /// Control messages to send: for each local end its open, its close, one ask, and its
    /// grants, of which the messages of a window are the bound.
    pub control: usize,
    /// Sending ends that may have something to send: each local end at most once.
    pub ready: usize,
    /// Receiving ends with news: each local end at most once.
    pub news: usize,
    /// Events that the host has not taken.
    pub events: usize,
}

/// A local end cannot be opened.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CannotOpen {
    /// A handle for this end lives already.
    #[error("this end is open already")]
    AlreadyOpen,
    /// The session has as many ends as its limit allows.
    #[error("the session has {limit} open ends, its limit")]
    TooMany {
        /// The limit.
        limit: usize,
    },
    /// The session has ended, or is ending.
    #[error("the session has ended")]
    SessionOver,
    /// There is no memory for the end.
    #[error("{0}")]
    Memory(String),
}

/// A session's channels and queues. See the [module](self).
#[derive(Debug)]
pub struct Session {
    config: SessionConfig,

    // Ends.
    ends: HashMap<u32, End>,
    next_end: u32,
    /// The peer's ends that are paired, by role and id, with ours.
    paired: HashMap<(Role, u32), u32>,
    /// The peer's ends that wait for a counterpart here, oldest first.
    unpaired: Vec<PeerOpen>,

    // Sending.
    control: VecDeque<Control>,
    /// Sending ends that have, or may have, something to send.
    ready: VecDeque<u32>,
    /// Receiving ends with news for their senders; urgent ones at the front.
    news: VecDeque<u32>,
    credit_use: CreditUse,
    goodbye: Goodbye,

    // Receiving.
    credit_grant: CreditGrant,
    events: VecDeque<Event>,
}

#[derive(Debug)]
struct End {
    name: String,
    spec: ChannelSpec,
    /// The peer's id of the other end, once both are open.
    peer: Option<u32>,
    state: EndState,
    /// The local handle is gone.
    closed_here: bool,
    /// The peer's end is gone.
    closed_there: bool,
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
    name: String,
    spec: ChannelSpec,
    /// It was closed before anyone here opened the counterpart.
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
            ends: HashMap::new(),
            next_end: 1,
            paired: HashMap::new(),
            unpaired: Vec::new(),
            control: VecDeque::new(),
            ready: VecDeque::new(),
            news: VecDeque::new(),
            credit_use: CreditUse::new(config.peer_credit_bytes),
            goodbye: Goodbye::NotDue,
            credit_grant: CreditGrant::new(config.our_credit_bytes),
            events: VecDeque::new(),
        }
    }

    // ---- What local handles want -------------------------------------------------

    /// Opens a local end and announces it. Poll transmissions and events afterwards.
    pub fn open(&mut self, role: Role, name: &str, spec: ChannelSpec) -> Result<u32, CannotOpen> {
        let is_open = |end: &End| end.state.role() == role && end.name == name && !end.closed_here;
        if self.ends.values().any(is_open) {
            return Err(CannotOpen::AlreadyOpen);
        }
        if self.ends.len() >= self.config.max_channels {
            return Err(CannotOpen::TooMany { limit: self.config.max_channels });
        }
        let end = self.next_end;
        self.next_end += 1;
        let state = match role {
            Role::Sender => EndState::Sender(Box::default()),
            Role::Receiver => EndState::Receiver(None),
        };
        let name = name.to_owned();
        self.control.push_back(Control::Open { end, role, name: name.clone(), spec: spec.clone() });
        let counterpart = self
            .unpaired
            .iter()
            .position(|open| open.role == role.opposite() && open.name == name);
        let (closed_here, closed_there, close_is_out) = (false, false, false);
        let entry = End { name, spec, peer: None, state, closed_here, closed_there, close_is_out };
        self.ends.insert(end, entry);
        if let Some(counterpart) = counterpart {
            let open = self.unpaired.remove(counterpart);
            self.pair(end, open);
        }
        Ok(end)
    }

    /// The last handle of a sending end is gone; its close follows message
    /// `final_sequence`.
    pub fn close_sender(&mut self, end: u32, final_sequence: u64, reason: CloseReason) {
        if let Some(entry) = self.ends.get_mut(&end) {
            entry.closed_here = true;
            if let EndState::Sender(channel) = &mut entry.state {
                channel.closing = Some((final_sequence, reason));
            }
        }
        self.mark_ready(end);
    }

    /// The handle of a receiving end is gone, with `counters` as its last word.
    pub fn close_receiver(&mut self, end: u32, counters: &Counters, reason: CloseReason) {
        let Some(entry) = self.ends.get_mut(&end) else { return };
        entry.closed_here = true;
        if let EndState::Receiver(Some(channel)) = &mut entry.state
            && self.config.data_in_band
        {
            channel.handle_released(counters);
            channel.queued = true;
            // Its last word rides on the close, or on a frame before it.
            self.news.retain(|&other| other != end);
            self.news.push_front(end);
        }
        let role = Role::Receiver;
        self.control.push_back(Control::Close { end, role, reason, final_sequence: 0 });
    }

    /// Records may stand in the ring of sending end `end`.
    pub fn mark_ready(&mut self, end: u32) {
        if let Some(channel) = self.sender_mut(end)
            && !channel.queued
        {
            channel.queued = true;
            self.ready.push_back(end);
        }
    }

    /// A large message was published as announcement `sequence`; call before
    /// [`mark_ready`](Self::mark_ready) shows the record.
    pub fn announce_large(&mut self, end: u32, sequence: u64, length: u64) {
        if let Some(channel) = self.sender_mut(end) {
            channel.unannounced.push_back((sequence, length));
        }
    }

    /// A sending end waits for something. What it asked before and is still to go out goes
    /// with it.
    pub fn ask(&mut self, end: u32, ask: Ask) {
        let queued = self.control.iter_mut().find_map(|control| match control {
            Control::Ask { channel, ask } if *channel == end => Some(ask),
            _ => None,
        });
        match queued {
            Some(queued) => queued.join(ask),
            None => self.control.push_back(Control::Ask { channel: end, ask }),
        }
    }

    /// The prefix of a receiving end moved. The sender hears of it at once if it waits
    /// for it or half a window is owed, else with the next frame.
    ///
    /// In shared memory the sender reads the counters itself and frames have none.
    pub fn released(&mut self, end: u32, counters: &Counters) {
        if !self.config.data_in_band {
            return;
        }
        if let Some(channel) = self.receiver_mut(end) {
            channel.handle_released(counters);
            self.queue_news(end);
        }
    }

    /// Our end that is paired with an end of the peer's.
    #[must_use]
    pub fn paired(&self, role: Role, peer_end: u32) -> Option<u32> {
        self.paired.get(&(role, peer_end)).copied()
    }

    /// Whether the sender of receiving end `end` waits for its application.
    #[must_use]
    pub fn is_asked(&self, end: u32) -> bool {
        match self.ends.get(&end) {
            Some(End { state: EndState::Receiver(Some(channel)), .. }) => {
                channel.waits_for_application()
            }
            _ => false,
        }
    }

    /// Memory for large message `sequence` of receiving end `end` is ready.
    pub fn grant(&mut self, end: u32, sequence: u64) {
        let Some(entry) = self.ends.get_mut(&end) else { return };
        let peer = entry.peer.unwrap_or_default();
        if let EndState::Receiver(Some(channel)) = &mut entry.state
            && channel.large.grant(sequence)
        {
            self.control.push_back(Control::Grant { channel: peer, sequence });
        }
    }

    /// Says goodbye once everything published is on its way.
    pub fn say_goodbye(&mut self) {
        if self.goodbye == Goodbye::NotDue {
            self.goodbye = Goodbye::Due;
        }
    }

    /// Whether the goodbye is in a frame: nothing more will be sent.
    #[must_use]
    pub fn said_goodbye(&self) -> bool {
        self.goodbye == Goodbye::Said
    }

    /// The names of ends that the peer opened and we did not, with the peer's role.
    pub fn unpaired(&self) -> impl Iterator<Item = (&str, Role)> {
        self.unpaired
            .iter()
            .filter(|open| open.closed.is_none())
            .map(|open| (open.name.as_str(), open.role))
    }

    /// How much the session holds.
    #[must_use]
    pub fn footprint(&self) -> Footprint {
        Footprint {
            ends: self.ends.len(),
            peer_ends: self.paired.len() + self.unpaired.len(),
            control: self.control.len(),
            ready: self.ready.len(),
            news: self.news.len(),
            events: self.events.len(),
        }
    }

    /// The next event. Drain it after every other call that takes `&mut self`.
    #[must_use]
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    // ---- Sending ---------------------------------------------------------------------

    /// Builds the next frame: its head (header, extension, padding, control message) is
    /// appended to `head`, the returned body follows it, then zeros up to a multiple of 8.
    ///
    /// `landing` is where the frame begins in the peer's arrival memory, modulo 64.
    /// Drain it whenever a handle published, a frame arrived or a wish was uttered.
    #[must_use]
    pub fn poll_transmit(
        &mut self,
        source: &mut impl RecordSource,
        landing: usize,
        head: &mut Vec<u8>,
    ) -> Option<Body> {
        if let Some(control) = self.control.pop_front() {
            self.build_control(Some(&control), landing, head);
            if let Control::Close { end, .. } = control {
                self.close_went(end);
            }
            return Some(Body::Inline);
        }
        if self.credit_grant.owed().is_some() || self.news_are_urgent() {
            self.build_control(None, landing, head);
            return Some(Body::Inline);
        }
        for _ in 0..self.ready.len() {
            let end = self.ready.pop_front()?;
            match self.serve(end, source, landing, head) {
                Served::Frame(body) => {
                    self.ready.push_back(end);
                    return Some(body);
                }
                Served::OutOfCredit => {
                    self.ready.push_back(end);
                }
                Served::Empty => {
                    if let Some(channel) = self.sender_mut(end) {
                        channel.queued = false;
                    }
                }
                Served::Closed(close) => {
                    self.build_control(Some(&close), landing, head);
                    self.close_went(end);
                    return Some(Body::Inline);
                }
            }
        }
        if self.goodbye == Goodbye::Due && self.ready.is_empty() && self.all_senders_ended() {
            self.goodbye = Goodbye::Said;
            self.build_control(Some(&Control::Goodbye), landing, head);
            return Some(Body::Inline);
        }
        None
    }

    /// Whether sending waits for the peer's credit although records are there.
    #[must_use]
    pub fn is_out_of_credit(&self) -> bool {
        !self.ready.is_empty()
    }

    /// One frame of one ready channel.
    fn serve(
        &mut self,
        end: u32,
        source: &mut impl RecordSource,
        landing: usize,
        head: &mut Vec<u8>,
    ) -> Served {
        let in_band = self.config.data_in_band;
        let Some(entry) = self.ends.get_mut(&end) else { return Served::Empty };
        let is_live = entry.peer.is_some() && !entry.closed_there;
        let alignment = entry.spec.alignment as usize;
        let EndState::Sender(channel) = &mut entry.state else { return Served::Empty };
        if is_live && in_band {
            let records_first = channel.chunk_went_last || !channel.large.has_chunk();
            if records_first {
                let room = self.credit_use.available().saturating_sub(HEAD_BYTES as u64) as usize;
                let batch = room.min(BATCH_FRAME_BYTES - HEAD_BYTES);
                let single = room.min(MAX_FRAME_BYTES - HEAD_BYTES);
                if let Some(run) = source.take_run(end, batch, single) {
                    let first = channel.sent + 1;
                    channel.records_went(run.records, run.bytes);
                    let frame = FrameHeader {
                        length: 0,
                        channel: end,
                        kind: FrameKind::Records,
                        extension: false,
                        pad: 0,
                        sequence: first as u32,
                    };
                    let padded = self.build_head(frame, run.bytes, alignment, landing, head);
                    self.credit_use.charge(padded as u64);
                    let Run { position, bytes, .. } = run;
                    return Served::Frame(Body::Records { end, position, bytes });
                }
            }
            if let Some(chunk) = channel.large.next_chunk() {
                channel.chunk_went_last = true;
                let frame = FrameHeader {
                    length: 0,
                    channel: end,
                    kind: FrameKind::Chunk,
                    extension: false,
                    pad: 0,
                    sequence: chunk.sequence as u32,
                };
                let _ = self.build_head(frame, chunk.bytes, 8, landing, head);
                return Served::Frame(Body::Chunk { end, chunk });
            }
            if source.has_records(end) {
                return Served::OutOfCredit;
            }
        }
        match channel.closing {
            Some((final_sequence, reason))
                if !is_live || !in_band || channel.is_drained(final_sequence) =>
            {
                channel.closing = None;
                channel.queued = false;
                let role = Role::Sender;
                let final_sequence = final_sequence.max(channel.sent);
                Served::Closed(Control::Close { end, role, reason, final_sequence })
            }
            _ => Served::Empty,
        }
    }

    fn build_control(&mut self, control: Option<&Control>, landing: usize, head: &mut Vec<u8>) {
        let start = head.len();
        let frame = FrameHeader {
            length: 0,
            channel: 0,
            kind: FrameKind::Control,
            extension: false,
            pad: 0,
            sequence: 0,
        };
        let _ = self.build_head(frame, 0, 8, landing, head);
        if let Some(control) = control {
            control.encode(head);
        }
        let length = (head.len() - start) as u32;
        head[start..start + 4].copy_from_slice(&length.to_le_bytes());
        let padded = (length as usize).next_multiple_of(super::frame::FRAME_ALIGNMENT);
        head.resize(start + padded, 0);
    }

    /// Appends header, extension (if there is news) and padding; returns the frame's
    /// length on the wire.
    fn build_head(
        &mut self,
        frame: FrameHeader,
        body_bytes: usize,
        alignment: usize,
        landing: usize,
        head: &mut Vec<u8>,
    ) -> usize {
        let extension = self.take_extension();
        let has_extension = !extension.is_empty();
        let pad = pad_for(landing, has_extension, alignment);
        let extension_bytes = if has_extension { EXTENSION_BYTES } else { 0 };
        let length = HEADER_BYTES + extension_bytes + usize::from(pad) + body_bytes;
        let frame =
            FrameHeader { length: length as u32, extension: has_extension, pad, ..frame };
        head.extend_from_slice(&frame.to_bytes());
        if has_extension {
            head.extend_from_slice(&extension.to_bytes());
        }
        head.resize(head.len() + usize::from(pad), 0);
        frame.padded_length()
    }

    /// The news that ride on the next frame, whatever it is.
    fn take_extension(&mut self) -> Extension {
        let credit = self.credit_grant.owed();
        if let Some(credit) = credit {
            self.credit_grant.told(credit);
        }
        let mut counters = None;
        while let Some(end) = self.news.pop_front() {
            let Some(End { state: EndState::Receiver(Some(channel)), peer: Some(peer), .. }) =
                self.ends.get_mut(&end)
            else {
                continue;
            };
            channel.queued = false;
            if channel.has_news() {
                let told = channel.tell();
                counters = Some((*peer, told));
                self.events.push_back(Event::Told { end, counters: told });
                break;
            }
        }
        Extension { counters, credit }
    }

    fn news_are_urgent(&self) -> bool {
        self.news.front().is_some_and(|&end| match self.ends.get(&end) {
            Some(End { state: EndState::Receiver(Some(channel)), .. }) => channel.news_are_urgent(),
            _ => false,
        })
    }

    fn queue_news(&mut self, end: u32) {
        let Some(channel) = self.receiver_mut(end) else { return };
        let urgent = channel.news_are_urgent();
        let queued = channel.queued;
        if !queued && channel.has_news() {
            channel.queued = true;
            if urgent {
                self.news.push_front(end);
            } else {
                self.news.push_back(end);
            }
        } else if queued && urgent {
            // Urgent news stand at the front, where `news_are_urgent` looks.
            self.news.retain(|&other| other != end);
            self.news.push_front(end);
        }
    }

    fn all_senders_ended(&self) -> bool {
        let has_ended = |end: &End| end.close_is_out || end.closed_there;
        self.ends.values().all(|end| end.state.role() == Role::Receiver || has_ended(end))
    }

    // ---- Receiving -------------------------------------------------------------------

    /// Takes in one frame, from its header to the end of its body. Of a chunk only the
    /// head need be there: `frame` may end with it.
    ///
    /// `landing` is where the frame begins in arrival memory, modulo 64.
    pub fn handle_frame(
        &mut self,
        header: &FrameHeader,
        frame: &[u8],
        landing: usize,
    ) -> Result<Arrival, PeerMisbehaved> {
        if header.extension
            && let Some(extension) = frame[HEADER_BYTES..].first_chunk::<EXTENSION_BYTES>()
        {
            self.handle_extension(&Extension::parse(extension))?;
        }
        let offset = header.body_offset();
        match header.kind {
            FrameKind::Control => {
                if u64::from(header.length) > CONTROL_RESERVE_BYTES {
                    return Err(PeerMisbehaved::LongControl);
                }
                if header.body_bytes() > 0 {
                    self.handle_control(Control::decode(&frame[offset..])?)?;
                }
                Ok(Arrival::Nothing)
            }
            _ if !self.config.data_in_band => Err(PeerMisbehaved::DataInBand),
            FrameKind::Records => {
                self.credit_grant.arrived(header.padded_length() as u64)?;
                self.handle_records(header, &frame[offset..], landing + offset)
            }
            FrameKind::Chunk => self.handle_chunk(header),
        }
    }

    fn handle_records(
        &mut self,
        header: &FrameHeader,
        body: &[u8],
        body_landing: usize,
    ) -> Result<Arrival, PeerMisbehaved> {
        let Some((end, entry)) = self.paired_entry(Role::Sender, header.channel) else {
            return Err(PeerMisbehaved::UnknownChannel { channel: header.channel });
        };
        let (closed_here, closed_there) = (entry.closed_here, entry.closed_there);
        let EndState::Receiver(Some(channel)) = &mut entry.state else {
            return Err(PeerMisbehaved::UnknownChannel { channel: header.channel });
        };
        if closed_there {
            return Err(PeerMisbehaved::UnknownChannel { channel: header.channel });
        }
        let alignment = channel.alignment;
        if !(body_landing + record::HEADER_BYTES).is_multiple_of(alignment) {
            return Err(PeerMisbehaved::Misaligned { alignment });
        }
        if closed_here {
            // Sent before our close got there.
            return Ok(Arrival::Unwanted);
        }
        let mut announced = [None; super::large::LARGE_PER_CHANNEL];
        let mut count = 0;
        let records = channel.handle_records(header.sequence, body, |sequence, length| {
            announced[count] = Some((sequence, length));
            count += 1;
        })?;
        for (sequence, length) in announced.into_iter().flatten() {
            self.events.push_back(Event::LargeAnnounced { end, sequence, length });
        }
        self.queue_news_if_urgent(end);
        Ok(Arrival::Records {
            end,
            offset: header.body_offset(),
            bytes: body.len(),
            first_sequence: records.first_sequence,
            records: records.records,
        })
    }

    fn handle_chunk(&mut self, header: &FrameHeader) -> Result<Arrival, PeerMisbehaved> {
        let Some((end, entry)) = self.paired_entry(Role::Sender, header.channel) else {
            return Err(PeerMisbehaved::UnknownChannel { channel: header.channel });
        };
        let (closed_here, closed_there) = (entry.closed_here, entry.closed_there);
        let EndState::Receiver(Some(channel)) = &mut entry.state else {
            return Err(PeerMisbehaved::UnknownChannel { channel: header.channel });
        };
        if closed_there {
            return Err(PeerMisbehaved::UnknownChannel { channel: header.channel });
        }
        if closed_here {
            return Ok(Arrival::Unwanted);
        }
        let (chunk, complete) = channel
            .large
            .place(header.sequence, header.body_bytes())
            .ok_or(PeerMisbehaved::UngrantedChunk)?;
        Ok(Arrival::Chunk { end, chunk, complete })
    }

    /// The bytes of a large message's last chunk are in place: only now is it received.
    /// Call it before the next frame is handled.
    pub fn handle_large_complete(&mut self, end: u32) {
        if let Some(channel) = self.receiver_mut(end) {
            channel.large.finish();
        }
        self.queue_news_if_urgent(end);
    }

    fn queue_news_if_urgent(&mut self, end: u32) {
        if self.receiver_mut(end).is_some_and(|channel| channel.news_are_urgent()) {
            self.queue_news(end);
        }
    }

    fn handle_extension(&mut self, extension: &Extension) -> Result<(), PeerMisbehaved> {
        if let Some(credit) = extension.credit {
            self.credit_use.grant(credit);
        }
        let Some((channel, news)) = extension.counters else { return Ok(()) };
        // News of an end that is gone already are late, and harmless.
        let Some(sender) = self.sender_mut(channel) else { return Ok(()) };
        let moved = sender
            .handle_counters(&news)
            .map_err(|source| PeerMisbehaved::Counters { channel, source })?;
        let counters = sender.counters;
        if moved {
            self.events.push_back(Event::Counted { end: channel, counters });
        }
        Ok(())
    }

    fn handle_control(&mut self, control: Control) -> Result<(), PeerMisbehaved> {
        match control {
            Control::Open { end, role, name, spec } => self.handle_open(end, role, name, spec),
            Control::Close { end, role, reason, final_sequence } => {
                self.handle_close(end, role, reason, final_sequence)
            }
            Control::Ask { channel, ask } => {
                if let Some((end, entry)) = self.paired_entry(Role::Sender, channel)
                    && let EndState::Receiver(Some(receiver)) = &mut entry.state
                {
                    receiver.handle_ask(ask);
                    if receiver.waits_for_application() {
                        self.events.push_back(Event::Asked { end });
                    }
                    self.queue_news_if_urgent(end);
                }
                Ok(())
            }
            Control::Grant { channel, sequence } => {
                let Some(sender) = self.sender_mut(channel) else { return Ok(()) };
                if !sender.large.grant(sequence) {
                    return Err(PeerMisbehaved::UngrantedChunk);
                }
                self.mark_ready(channel);
                Ok(())
            }
            Control::Goodbye => {
                self.events.push_back(Event::Goodbye);
                Ok(())
            }
        }
    }

    fn handle_open(
        &mut self,
        end: u32,
        role: Role,
        name: String,
        spec: ChannelSpec,
    ) -> Result<(), PeerMisbehaved> {
        let limit = self.config.max_channels;
        let known = |open: &PeerOpen| open.role == role && open.end == end;
        if self.paired.contains_key(&(role, end)) || self.unpaired.iter().any(known) {
            return Err(PeerMisbehaved::OpenedTwice { end });
        }
        if self.unpaired.len() + self.paired.len() >= limit {
            return Err(PeerMisbehaved::TooManyChannels { limit });
        }
        let open = PeerOpen { end, role, name, spec, closed: None };
        // The oldest local end that waits for this name; ids grow, so the smallest.
        let waiting = self
            .ends
            .iter()
            .filter(|(_, local)| {
                local.state.role() == role.opposite() && local.name == open.name
            })
            .filter(|(_, local)| local.peer.is_none() && !local.closed_there)
            .map(|(&id, _)| id)
            .min();
        match waiting {
            Some(local) => self.pair(local, open),
            None => {
                self.events.push_back(Event::PeerOpened { name: open.name.clone(), role });
                self.unpaired.push(open);
            }
        }
        Ok(())
    }

    /// Joins a local end and the peer's open of the same name.
    fn pair(&mut self, end: u32, open: PeerOpen) {
        let Some(local) = self.ends.get_mut(&end) else { return };
        local.peer = Some(open.end);
        self.paired.insert((open.role, open.end), end);
        let fits = local.spec.fingerprint == open.spec.fingerprint
            && local.spec.alignment == open.spec.alignment;
        if !fits {
            // Both ends see the same two specs and come to the same result.
            local.closed_there = true;
            if open.closed.is_some() {
                local.peer = None;
                self.paired.remove(&(open.role, open.end));
            }
            self.events.push_back(Event::Mismatched { end, theirs: open.spec });
            self.forget_if_over(end);
            return;
        }
        let agreed = Agreed {
            window: local.spec.window.agree(open.spec.window),
            alignment: local.spec.alignment,
            max_message_bytes: local.spec.max_message_bytes.min(open.spec.max_message_bytes),
        };
        match &mut local.state {
            EndState::Receiver(state) => {
                *state = Some(Box::new(ReceiveChannel::new(
                    agreed.window,
                    agreed.alignment as usize,
                    agreed.max_message_bytes,
                )));
            }
            EndState::Sender(channel) => {
                channel.sent_position = record::first_position(agreed.alignment as usize);
                channel.counters.released_position = channel.sent_position;
            }
        }
        self.events.push_back(Event::Opened { end, peer_end: open.end, agreed });
        if let Some(reason) = open.closed {
            local.closed_there = true;
            self.events.push_back(Event::PeerClosed { end, reason, final_sequence: 0 });
        }
        self.mark_ready(end);
        self.forget_if_over(end);
    }

    fn handle_close(
        &mut self,
        peer_end: u32,
        role: Role,
        reason: CloseReason,
        last: u64,
    ) -> Result<(), PeerMisbehaved> {
        let in_band = self.config.data_in_band;
        if let Some(open) =
            self.unpaired.iter_mut().find(|open| open.role == role && open.end == peer_end)
        {
            open.closed = Some(reason);
            return Ok(());
        }
        let Some((end, entry)) = self.paired_entry(role, peer_end) else { return Ok(()) };
        if entry.closed_there {
            // A mismatch ended the channel on both ends already, so the peer has forgotten
            // its end with this close: it counts no more against the limit.
            entry.peer = None;
            self.paired.remove(&(role, peer_end));
            return Ok(());
        }
        if let EndState::Receiver(Some(channel)) = &entry.state
            && in_band
            && !entry.closed_here
            && !channel.is_whole(last)
        {
            let received = channel.counters().received;
            return Err(PeerMisbehaved::ClosedElsewhere { last, received });
        }
        entry.closed_there = true;
        self.events.push_back(Event::PeerClosed { end, reason, final_sequence: last });
        // A close of ours that waited for a grant waits no longer.
        self.mark_ready(end);
        self.forget_if_over(end);
        Ok(())
    }

    // ---- Bookkeeping -----------------------------------------------------------------

    fn close_went(&mut self, end: u32) {
        if let Some(entry) = self.ends.get_mut(&end) {
            entry.close_is_out = true;
        }
        self.forget_if_over(end);
    }

    /// Forgets an end that is gone on both sides.
    fn forget_if_over(&mut self, end: u32) {
        let Some(entry) = self.ends.get(&end) else { return };
        if entry.close_is_out && entry.closed_there {
            if let Some(peer) = entry.peer {
                self.paired.remove(&(entry.state.role().opposite(), peer));
            }
            self.ends.remove(&end);
            self.ready.retain(|&other| other != end);
            self.news.retain(|&other| other != end);
            self.events.push_back(Event::Forgotten { end });
        }
    }

    fn sender_mut(&mut self, end: u32) -> Option<&mut SendChannel> {
        match &mut self.ends.get_mut(&end)?.state {
            EndState::Sender(channel) => Some(channel),
            EndState::Receiver(_) => None,
        }
    }

    fn receiver_mut(&mut self, end: u32) -> Option<&mut ReceiveChannel> {
        match &mut self.ends.get_mut(&end)?.state {
            EndState::Receiver(Some(channel)) => Some(channel),
            _ => None,
        }
    }

    /// Our end that is paired with the peer's.
    fn paired_entry(&mut self, role: Role, peer_end: u32) -> Option<(u32, &mut End)> {
        let end = *self.paired.get(&(role, peer_end))?;
        Some((end, self.ends.get_mut(&end)?))
    }
}

enum Served {
    Frame(Body),
    Empty,
    OutOfCredit,
    Closed(Control),
}

#[cfg(test)]
mod tests;
