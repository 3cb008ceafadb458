//! A session that is fed consecutive frames from its peer's socket.
//!
//! The session has met an honest peer before: channel `to_us` is open for receiving and `from_us`
//! for sending, with a few messages sent, so that records, chunks, counters and credit refer to
//! something.
#![forbid(unsafe_code)]

use ibex_protocol::credit::session::Term;
use ibex_protocol::format::channel_window::ChannelWindow;
use ibex_protocol::format::control::{Ask, ChannelSpec, CloseReason, Role};
use ibex_protocol::format::counters::Counters;
use ibex_protocol::format::frame::{BLOCK_ALIGNMENT, FrameHeader, FrameKind, MAX_FRAME_BYTES};
use ibex_protocol::format::message_extension::MessageExtension;
use ibex_protocol::format::message_version::MessageVersion;
use ibex_protocol::format::record::{
    LargeAnnouncement, RecordHeader, RecordKind, first_position, record_size,
};
use ibex_protocol::session::{
    Arrival, Body, DataPath, RecordSource, Run, Session, SessionConfig, SessionEvent, WireTerms,
};
use ibex_protocol::transfer::eager_write::{EAGER_BLOCK_BYTES, EAGER_BLOCK_MESSAGE_BYTES};
use ibex_protocol::transfer::rendezvous::RemoteMemory;

use crate::Seed;

/// Feeds frames that a peer sends after the channels were opened. Accepts them if they are whole,
/// and the session believes all of them.
pub(crate) fn accepts(bytes: &[u8]) -> bool {
    let met = Meeting::new(true).ours.takes(bytes);
    // Over shared memory, frames carry control messages alone; over new wires, the peer first says
    // what it knows.
    let _ = Meeting::new(false).ours.takes(bytes);
    let met_again = Meeting::broken().ours.takes(bytes);
    (met || met_again) && !bytes.is_empty()
}

/// Returns a seed for each action of a peer on its two channels.
pub(crate) fn seeds() -> Vec<Seed> {
    vec![
        Seed {
            name: "records",
            bytes: Meeting::record(Node::send_some),
        },
        Seed {
            name: "counters",
            bytes: Meeting::record(Node::release_all),
        },
        Seed {
            name: "large",
            bytes: Meeting::large(LARGE_BYTES),
        },
        Seed {
            name: "written",
            bytes: Meeting::large(LARGE_BYTES + 1),
        },
        Seed {
            name: "extended",
            bytes: Meeting::record(Node::send_extended),
        },
        Seed {
            name: "ask",
            bytes: Meeting::record(Node::ask_for_all),
        },
        Seed {
            name: "credit",
            bytes: Meeting::record(Node::lend_and_recall),
        },
        Seed {
            name: "open",
            bytes: Meeting::record(Node::open_another),
        },
        Seed {
            name: "close",
            bytes: Meeting::record(Node::end),
        },
        Seed {
            name: "resumed",
            bytes: Meeting::broken().peer.transmit(),
        },
        Seed {
            name: "resumed_and_on",
            bytes: Meeting::gone_on(),
        },
    ]
}

/// Two nodes with two channels between them.
#[derive(Debug)]
struct Meeting {
    ours: Node,
    peer: Node,
}

impl Meeting {
    fn new(data_in_band: bool) -> Self {
        let mut ours = Node::new(["from_us", "to_us"], data_in_band);
        let mut peer = Node::new(["to_us", "from_us"], data_in_band);
        assert!(ours.feed(&peer.transmit()) && peer.feed(&ours.transmit()));
        ours.send_some();
        assert!(peer.feed(&ours.transmit()));
        Self { ours, peer }
    }

    /// Loses the wires with our last frames, and gives both nodes new ones.
    fn broken() -> Self {
        let mut meeting = Self::new(true);
        meeting.ours.send_some();
        let _lost = meeting.ours.transmit();
        meeting.ours.gets_new_wires();
        meeting.peer.gets_new_wires();
        meeting
    }

    /// Records the peer's first frames over new wires, and further ones.
    fn gone_on() -> Vec<u8> {
        let Self { mut ours, mut peer } = Self::broken();
        let mut recorded = peer.transmit();
        assert!(peer.feed(&ours.transmit()));
        peer.send_some();
        recorded.extend(peer.transmit());
        recorded
    }

    /// Records the frames that the peer sends after an action.
    fn record(does: fn(&mut Node)) -> Vec<u8> {
        let mut peer = Self::new(true).peer;
        does(&mut peer);
        peer.transmit()
    }

    /// Records a large message in both parts: its announcement, and after the grant its chunk, or
    /// the notice that it is written.
    fn large(length: u64) -> Vec<u8> {
        let Self { mut ours, mut peer } = Self::new(true);
        peer.announce_large(length);
        let mut recorded = peer.transmit();
        assert!(ours.feed(&recorded) && peer.feed(&ours.transmit()));
        recorded.extend(peer.transmit());
        recorded
    }
}

/// A session with an application that takes everything.
#[derive(Debug)]
struct Node {
    session: Session,
    sender: u32,
    receiver: u32,
    ring: Ring,
    /// Bytes that arrived so far, modulo the alignment of arrival blocks.
    arrival_offset_in: usize,
    /// Bytes that were sent so far, modulo the alignment of arrival blocks.
    arrival_offset_out: usize,
    /// Counts of messages that arrived and were released at once.
    counters: Counters,
}

/// The terms of every connection of a node.
const WIRES: WireTerms = WireTerms {
    our_credit: 1 << 20,
    peer_credit: 1 << 20,
    writes: true,
    ..WireTerms::STREAM
};

impl Node {
    fn new([sends, receives]: [&str; 2], data_in_band: bool) -> Self {
        let mut session = Session::new(SessionConfig {
            wires: WIRES,
            dialed: false,
            max_channels: 8,
            data_path: match data_in_band {
                true => DataPath::Framed,
                false => DataPath::Mapped,
            },
            resumes: true,
        });
        let mut open = |role, name| session.open(role, name, spec());
        let sender = open(Role::Sender, sends).expect("no channel is open yet");
        let receiver = open(Role::Receiver, receives).expect("no receiver is open yet");
        let counters = Counters {
            released_position: first_position(ALIGNMENT),
            ..Counters::default()
        };
        let ring = Ring::default();
        Self {
            session,
            sender,
            receiver,
            ring,
            arrival_offset_in: 0,
            arrival_offset_out: 0,
            counters,
        }
    }

    fn gets_new_wires(&mut self) {
        self.session.suspend();
        self.session.resume(WIRES);
        (self.arrival_offset_in, self.arrival_offset_out) = (0, 0);
    }

    /// [Feeds](Self::feed) the session, and lets it send: its frames are well-formed, whatever it
    /// was fed.
    fn takes(mut self, bytes: &[u8]) -> bool {
        let fed = self.feed(bytes);
        let _ = self.transmit();
        fed
    }

    /// Takes frames in as a socket's reader does. Returns whether all were whole and believed.
    fn feed(&mut self, mut bytes: &[u8]) -> bool {
        loop {
            let header = match FrameHeader::parse(bytes) {
                Ok(Some(header)) => header,
                Ok(None) => return bytes.is_empty(),
                Err(_) => return false,
            };
            let Some((frame, behind)) = bytes.split_at_checked(header.padded_length()) else {
                return false;
            };
            let frame = &frame[..header.length as usize];
            let Ok(arrival) = self
                .session
                .handle_frame(&header, frame, self.arrival_offset_in)
            else {
                return false;
            };
            self.take(&header, arrival);
            self.arrival_offset_in =
                (self.arrival_offset_in + header.padded_length()) % BLOCK_ALIGNMENT;
            bytes = behind;
        }
    }

    /// Does the host's part for an arrival, and checks what a host relies on.
    fn take(&mut self, header: &FrameHeader, arrival: Arrival) {
        match arrival {
            Arrival::Records {
                end,
                offset,
                bytes,
                first_sequence,
                records,
            } => {
                assert_eq!(header.kind, FrameKind::Records);
                assert_eq!(offset + bytes, header.length as usize);
                assert_eq!(first_sequence, self.counters.received + 1, "a gap in {end}");
                self.counters.received += records;
            }
            Arrival::Chunk {
                chunk, complete, ..
            } => {
                assert_eq!(chunk.bytes, header.body_bytes());
                let end = chunk.offset + chunk.bytes as u64;
                assert!(end <= MAX_MESSAGE_BYTES, "a chunk beyond its message");
                assert!(!complete || end > 0);
            }
            Arrival::Written { .. } => assert_eq!(header.body_bytes(), 0),
            Arrival::Nothing | Arrival::Unwanted => {}
        }
        while let Some(landed) = self.session.eager_blocks.poll_landed() {
            assert!(landed.length <= EAGER_BLOCK_MESSAGE_BYTES && landed.length > 0);
        }
        while let Some(event) = self.session.poll_event() {
            match event {
                SessionEvent::LargeAnnounced {
                    end,
                    sequence,
                    length,
                    ..
                } => {
                    assert!(length <= MAX_MESSAGE_BYTES);
                    // Further messages of the kind go into a block.
                    if let Some(block) = RemoteMemory::new(0x2000, 8, EAGER_BLOCK_BYTES as u64) {
                        let granted = self.session.grant_eager_block(end, block);
                        assert!(granted.is_none_or(|index| index < 64));
                    }
                    // Messages of odd lengths are written.
                    let memory = RemoteMemory::new(0x1000, 7, length);
                    match memory.filter(|_| length % 2 == 1) {
                        Some(memory) => self.session.grant_memory(end, sequence, memory),
                        None => {
                            self.session.grant(end, sequence, length.div_ceil(2));
                            self.session.grant(end, sequence, length);
                        }
                    }
                }
                SessionEvent::Counted { counters, .. } => {
                    assert!(counters.received <= self.ring.published);
                    assert!(counters.released <= self.ring.published);
                    assert!(counters.acknowledged <= self.ring.published);
                }
                SessionEvent::Replay { position, .. } => self.ring.replay(position),
                _ => {}
            }
        }
    }

    /// Returns all frames that the session has to send, as they stand on the wire.
    fn transmit(&mut self) -> Vec<u8> {
        let mut sent = Vec::new();
        loop {
            let start = sent.len();
            let body =
                self.session
                    .poll_transmit(&mut self.ring, self.arrival_offset_out, &mut sent);
            match body {
                None => return sent,
                Some(Body::Inline) => {}
                Some(Body::Records {
                    position, bytes, ..
                }) => {
                    sent.extend_from_slice(self.ring.run(position, bytes));
                }
                Some(Body::Chunk { chunk, .. }) => sent.resize(sent.len() + chunk.bytes, 0xcc),
                // Writes are no frames.
                Some(Body::Write { .. } | Body::EagerBlock { word: None, .. }) => {
                    self.session.ends.writes_are_done(1);
                    continue;
                }
                // A stream has no eager block with a word.
                Some(Body::EagerBlock { .. }) => unreachable!("no immediate data was agreed on"),
            }
            let header = FrameHeader::parse(&sent[start..]).expect("a frame of ours is valid");
            let header = header.expect("a frame of ours is whole");
            assert!(header.length as usize <= MAX_FRAME_BYTES);
            sent.resize(start + header.padded_length(), 0);
            self.arrival_offset_out =
                (self.arrival_offset_out + header.padded_length()) % BLOCK_ALIGNMENT;
        }
    }

    /// Publishes some messages.
    fn send_some(&mut self) {
        for length in SOME_LENGTHS {
            self.ring
                .publish(RecordKind::Data, &vec![length as u8; length]);
        }
        self.session.ends.mark_ready(self.sender);
    }

    /// Publishes messages with headers: a short one, and one that travels in chunks.
    fn send_extended(&mut self) {
        let extension = MessageExtension {
            trace: None,
            header: &[9; 16],
        };
        let publish = |ring: &mut Ring, kind, before: &[u8]| {
            let payload: Vec<u8> = before.iter().copied().chain(extension.encoded()).collect();
            ring.publish(kind, &payload);
        };
        publish(&mut self.ring, RecordKind::ExtendedData, &[1; 40]);
        let sequence = self.ring.published + 1;
        let length = 4096;
        let announcement = self.announcement(sequence, length);
        publish(
            &mut self.ring,
            RecordKind::ExtendedLarge,
            announcement.bytes(),
        );
        self.session.ends.mark_ready(self.sender);
    }

    /// Publishes the announcement of a message that travels in chunks.
    fn announce_large(&mut self, length: u64) {
        let sequence = self.ring.published + 1;
        let announcement = self.announcement(sequence, length);
        self.ring.publish(RecordKind::Large, announcement.bytes());
        self.session.ends.mark_ready(self.sender);
    }

    fn announcement(&mut self, sequence: u64, length: u64) -> LargeAnnouncement {
        let ends = &mut self.session.ends;
        match ends.announce_large(self.sender, sequence, length) {
            None => LargeAnnouncement::in_chunks(length as usize),
            Some(eager_block) => LargeAnnouncement::in_eager_block(length as usize, eager_block),
        }
    }

    /// Reports that all arrived messages were read and acknowledged. The report alone is not
    /// urgent, and travels with other frames.
    fn release_all(&mut self) {
        let received = self.counters.received;
        let sizes = SOME_LENGTHS.map(|length| record_size(length, ALIGNMENT) as u64);
        let counters = Counters {
            released: received,
            released_position: first_position(ALIGNMENT) + sizes.iter().sum::<u64>(),
            acknowledged: received,
            ..self.counters
        };
        self.session.released(self.receiver, &counters);
        self.send_some();
    }

    /// Asks to be notified when everything is received, released and acknowledged.
    fn ask_for_all(&mut self) {
        self.send_some();
        let published = self.ring.published;
        let ask = Ask {
            received: published,
            released: published,
            acknowledged: published,
        };
        self.session.ask(self.sender, ask);
    }

    /// Recalls some credit, and gives some for one turn.
    fn lend_and_recall(&mut self) {
        self.session.recall(1 << 19);
        self.session.give(1 << 10, Term::Turn);
    }

    /// Opens an end without a counterpart.
    fn open_another(&mut self) {
        let opened = self.session.open(Role::Sender, "another", spec());
        opened.expect("the name is free");
    }

    /// Closes both ends and the session.
    fn end(&mut self) {
        let counters = self.counters;
        self.session
            .close_receiver(self.receiver, &counters, CloseReason::Dropped);
        self.session
            .ends
            .close_sender(self.sender, self.ring.published, CloseReason::Dropped);
        self.session.outgoing.say_goodbye(None);
    }
}

/// The ring of the one sending end, as bytes that are never reused.
#[derive(Debug, Default)]
struct Ring {
    bytes: Vec<u8>,
    /// The end of each record.
    all_ends: Vec<usize>,
    /// The ends of the records that were not taken.
    ends: Vec<usize>,
    /// The end of the last record that was taken.
    taken: usize,
    published: u64,
}

impl Ring {
    fn publish(&mut self, kind: RecordKind, payload: &[u8]) {
        self.published += 1;
        let start = self.bytes.len();
        let header = RecordHeader {
            kind,
            length: payload.len() as u32,
            sequence_low: self.published as u32,
        };
        self.bytes
            .extend_from_slice(&header.to_word().to_le_bytes());
        self.bytes.extend_from_slice(payload);
        self.bytes
            .resize(start + record_size(payload.len(), ALIGNMENT), 0);
        self.ends.push(self.bytes.len());
        self.all_ends.push(self.bytes.len());
    }

    /// Takes the records behind `position` again.
    fn replay(&mut self, position: u64) {
        self.taken = (position - first_position(ALIGNMENT)) as usize;
        let is_behind = |end: &usize| *end > self.taken;
        self.ends = self.all_ends.iter().copied().filter(is_behind).collect();
    }

    fn run(&self, position: u64, bytes: usize) -> &[u8] {
        let start = (position - first_position(ALIGNMENT)) as usize;
        &self.bytes[start..][..bytes]
    }
}

impl RecordSource for Ring {
    fn take_run(&mut self, _: u32, batch: usize, single: usize) -> Option<Run> {
        let size = |end: &usize| end - self.taken;
        self.ends.first().filter(|end| size(end) <= single)?;
        // Only the first may be longer than a batch.
        let fitting = self.ends.iter().take_while(|end| size(end) <= batch);
        let records = fitting.count().max(1);
        let end = self.ends.drain(..records).next_back()?;
        let position = first_position(ALIGNMENT) + self.taken as u64;
        let bytes = end - self.taken;
        self.taken = end;
        Some(Run {
            position,
            bytes,
            records: records as u64,
            announcement: 0,
        })
    }

    fn has_records(&mut self, _: u32) -> bool {
        !self.ends.is_empty()
    }

    fn forget_block(&mut self, _: u32, _: u64) {}
}

fn spec() -> ChannelSpec {
    ChannelSpec {
        newest: MessageVersion {
            fingerprint: *b"a fingerprint 16",
            schema: "[u8]".to_string(),
            alignment: ALIGNMENT as u32,
        },
        older: Vec::new(),
        window: ChannelWindow {
            messages: 64,
            bytes: 1 << 16,
        },
        max_message_bytes: MAX_MESSAGE_BYTES,
        max_unreleased_bytes: 4 * MAX_MESSAGE_BYTES,
        is_traced: false,
    }
}

const ALIGNMENT: usize = 16;
const MAX_MESSAGE_BYTES: u64 = 1 << 20;
const LARGE_BYTES: u64 = 1000;
/// Lengths of the messages that each node has sent when the fuzzing begins.
const SOME_LENGTHS: [usize; 3] = [1, 64, 500];
const _: () = assert!(LARGE_BYTES <= MAX_MESSAGE_BYTES);
