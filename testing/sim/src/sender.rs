//! A sending end of the simulation: the real ring algorithms, and the reports that it received.
#![forbid(unsafe_code)]

use std::collections::{BTreeMap, VecDeque};

use ibex_harness::draw::mix;
use ibex_protocol::{
    format::{
        control::Ask,
        counters::Counters,
        message_extension::MessageExtension,
        record::{HEADER_BYTES, LargeAnnouncement, Layout, RecordKind},
    },
    session::{Agreed, RecordSource, Run, Session},
    transfer::{
        eager_write::{EAGER_BLOCKS_UNDER_WAY, lands},
        rendezvous::LARGE_PER_CHANNEL,
    },
};
use ibex_ring::{Consumer, Producer, Released};

use super::{
    Checked, Side, ensure,
    ledger::{Ledger, Lengths, Message},
    memory::SimMemory,
};

/// A sending end and its handle.
#[derive(Debug)]
pub(super) struct Sender {
    end: u32,
    side: Side,
    pub(super) name: String,
    /// The ring and the peer's end, once both ends are open.
    ring: Option<SendRing>,
    pub(super) peer_end: Option<u32>,
    /// The handle is gone.
    pub(super) is_closed: bool,
    /// The peer's end is gone or does not fit.
    pub(super) is_over: bool,
    /// The open was answered, by success or by a mismatch.
    pub(super) is_answered: bool,

    pub(super) published: u64,
    pub(super) heard: Counters,
    /// Large messages that are not known to be received.
    large: VecDeque<Large>,
    /// The counts that the handle waits for; 0 for none.
    waits: Ask,
}

#[derive(Debug)]
struct Large {
    sequence: u64,
    length: u64,
    /// Bytes sent over the present wires.
    sent: u64,
}

#[derive(Debug)]
struct SendRing {
    memory: SimMemory,
    producer: Producer<SimMemory>,
    consumer: Consumer<SimMemory>,
    layout: Layout,
    max_message_bytes: u64,
}

impl Sender {
    pub(super) fn new(side: Side, end: u32, name: String) -> Self {
        Self {
            end,
            side,
            name,
            ring: None,
            peer_end: None,
            is_closed: false,
            is_over: false,
            is_answered: false,
            published: 0,
            heard: Counters::default(),
            large: VecDeque::new(),
            waits: Ask::default(),
        }
    }

    pub(super) fn open(&mut self, peer_end: u32, agreed: Agreed) {
        let memory = SimMemory::new(agreed.window.bytes as usize);
        let layout = Layout::packed(agreed.alignment as usize);
        let producer = Producer::new(memory.clone(), layout, agreed.window.messages);
        let consumer = Consumer::new(memory.clone(), layout);
        self.heard.released_position = producer.position();
        let max_message_bytes = agreed.max_message_bytes;
        self.ring = Some(SendRing {
            memory,
            producer,
            consumer,
            layout,
            max_message_bytes,
        });
        self.peer_end = Some(peer_end);
        self.is_answered = true;
    }

    /// Returns whether the application can still use the end.
    pub(super) fn is_usable(&self) -> bool {
        self.ring.is_some() && !self.is_closed && !self.is_over
    }

    /// Publishes a message of at most `length` bytes if there is room. Otherwise asks for room, as
    /// a blocked handle does.
    pub(super) fn send(
        &mut self,
        length: u64,
        max_record_bytes: usize,
        session: &mut Session,
        ledger: &mut Ledger,
    ) {
        let Some(ring) = &mut self.ring else { return };
        let length = length.min(ring.max_message_bytes);
        let message = Message {
            side: self.side,
            end: self.end,
            sequence: self.published + 1,
        };
        let largest = ring.producer.largest().min(max_record_bytes);
        let header = header_bytes(message, largest);
        let extension = MessageExtension {
            trace: None,
            header: message.part(0, header),
        };
        let is_large = length as usize + extension.bytes() > largest;
        let inside = match is_large {
            true => LargeAnnouncement::BYTES,
            false => length as usize,
        };
        let under_way = match lands(length) {
            true => EAGER_BLOCKS_UNDER_WAY,
            // An arrived message is kept until the peer reports it.
            false => LARGE_PER_CHANNEL + 1,
        };
        if is_large && self.large.len() >= under_way {
            // The handle waits for its own engine, or for events.
            return;
        }
        if !ring.producer.fits(inside + extension.bytes()) {
            let released = self.heard.released + 1;
            if released <= self.published && self.waits.released < released {
                self.waits.released = released;
                session.ask(
                    self.end,
                    Ask {
                        released,
                        ..Ask::default()
                    },
                );
            }
            return;
        }
        let body = length;
        let sequence = ledger.publish(self.side, self.end, Lengths { body, header });
        let announcement;
        let inside = if is_large {
            let eager_block = session.ends.announce_large(self.end, sequence, length);
            self.large.push_back(Large {
                sequence,
                length,
                sent: 0,
            });
            announcement = match eager_block {
                None => LargeAnnouncement::in_chunks(length as usize),
                Some(eager_block) => {
                    LargeAnnouncement::in_eager_block(length as usize, eager_block)
                }
            };
            announcement.bytes()
        } else {
            message.part(0, inside)
        };
        let kind = match (is_large, extension.is_empty()) {
            (false, true) => RecordKind::Data,
            (false, false) => RecordKind::ExtendedData,
            (true, true) => RecordKind::Large,
            (true, false) => RecordKind::ExtendedLarge,
        };
        let payload: Vec<u8> = inside.iter().copied().chain(extension.encoded()).collect();
        ring.memory.write(ring.producer.position() + 8, &payload);
        ring.producer.publish(kind, payload.len());
        self.published = sequence;
    }

    /// Begins to wait until everything is received, as `flush` does.
    pub(super) fn flush(&mut self, session: &mut Session) {
        if self.waits.received == 0 && self.heard.received < self.published {
            self.waits.received = self.published;
            session.ask(self.end, Ask::received(self.published));
        }
    }

    /// Begins to wait until everything is acknowledged.
    pub(super) fn wait_acked(&mut self, session: &mut Session) {
        let is_open = self.heard.acknowledged < self.published && !self.heard.acknowledgement_ended;
        if self.waits.acknowledged == 0 && is_open {
            self.waits.acknowledged = self.published;
            session.ask(self.end, Ask::acknowledged(self.published));
        }
    }

    /// Returns whether a handle still waits although its channel lives.
    pub(super) fn waits(&self) -> bool {
        self.is_usable() && self.waits != Ask::default()
    }

    /// Takes the receiving end's events.
    pub(super) fn hear(&mut self, changes: &Counters) -> Checked {
        let before = std::mem::replace(&mut self.heard, *changes);
        ensure!(
            changes.received >= before.received
                && changes.released >= before.released
                && changes.released_position >= before.released_position
                && changes.acknowledged >= before.acknowledged
                && changes.acknowledgement_ended >= before.acknowledgement_ended,
            "counters of end {} went back from {before:?} to {changes:?}",
            self.end
        );
        ensure!(
            self.published >= changes.received
                && changes.received >= changes.released
                && changes.released >= changes.acknowledged,
            "counters of end {} are out of step: published {}, {changes:?}",
            self.end,
            self.published
        );
        if let Some(ring) = &mut self.ring {
            let released = Released {
                messages: changes.released,
                position: changes.released_position,
            };
            ring.producer
                .refresh(released)
                .map_err(|misbehaved| misbehaved.to_string())?;
        }
        // Memory of received messages belongs to the application again.
        self.large.retain(|large| large.sequence > changes.received);
        let waits = &mut self.waits;
        if changes.received >= waits.received {
            waits.received = 0;
        }
        if changes.released >= waits.released {
            waits.released = 0;
        }
        if changes.acknowledged >= waits.acknowledged || changes.acknowledgement_ended {
            waits.acknowledged = 0;
        }
        Ok(())
    }

    /// Returns the bytes of a large message's chunk, which are sent now.
    pub(super) fn chunk(
        &mut self,
        sequence: u64,
        offset: u64,
        bytes: usize,
    ) -> Checked<&'static [u8]> {
        let end = self.end;
        let Some(index) = self.large.iter().position(|one| one.sequence == sequence) else {
            return Err(format!(
                "a chunk of message {sequence} of end {end} goes out, which is received"
            ));
        };
        // A message that has begun must not be cut: it is sent from its beginning to its end.
        let is_cut = |large: &&Large| large.sent > 0 && large.sent < large.length;
        let cut = self.large.iter().find(is_cut).map(|large| large.sequence);
        let large = &mut self.large[index];
        ensure!(
            cut.is_none_or(|cut| cut == sequence) || bytes as u64 == large.length,
            "a chunk of message {sequence} of end {end} goes out in the middle of {cut:?}"
        );
        ensure!(
            large.sent == offset,
            "message {sequence} of end {end} goes on at {offset}, not {}",
            large.sent
        );
        large.sent += bytes as u64;
        Ok(Message {
            side: self.side,
            end,
            sequence,
        }
        .part(offset, bytes))
    }

    /// Returns the length of a large message that is kept.
    pub(super) fn length_of(&self, sequence: u64) -> Option<u64> {
        let large = self.large.iter().find(|one| one.sequence == sequence)?;
        Some(large.length)
    }

    /// Returns the bytes of a piece that the peer reads.
    pub(super) fn read(&self, sequence: u64, offset: u64, bytes: usize) -> Checked<&'static [u8]> {
        let large = self.large.iter().find(|one| one.sequence == sequence);
        ensure!(
            large.is_some_and(|large| offset + bytes as u64 <= large.length),
            "message {sequence} of end {} is read, which is not kept",
            self.end
        );
        Ok(Message {
            side: self.side,
            end: self.end,
            sequence,
        }
        .part(offset, bytes))
    }

    /// Handles broken wires: messages that were not received may have to be sent again.
    pub(super) fn wires_broke(&mut self) {
        self.large.iter_mut().for_each(|large| large.sent = 0);
    }

    /// Sends records behind message `received` again.
    pub(super) fn replay(&mut self, received: u64, position: u64) -> Checked {
        let end = self.end;
        let ring = self
            .ring
            .as_mut()
            .ok_or("a ring that is not open goes on")?;
        let read = ring.consumer.read();
        let released = self.heard.released;
        ensure!(
            released <= received && received <= read.messages && position <= read.position,
            "end {end} goes on behind message {received} of {}, {released} released",
            read.messages
        );
        let from = Released {
            messages: received,
            position,
        };
        ring.consumer = Consumer::resume(ring.memory.clone(), ring.layout, from);
        Ok(())
    }

    /// Returns whether memory is kept for more large messages than may be unconfirmed.
    pub(super) fn keeps_large(&self) -> bool {
        self.large.len() > EAGER_BLOCKS_UNDER_WAY.max(LARGE_PER_CHANNEL + 1)
    }

    fn has_records(&self) -> bool {
        self.ring
            .as_ref()
            .is_some_and(|ring| !ring.consumer.is_empty())
    }

    /// Appends ring bytes.
    pub(super) fn ring_bytes(&self, position: u64, bytes: usize, out: &mut Vec<u8>) {
        if let Some(ring) = &self.ring {
            ring.memory.read(position, bytes, out);
        }
    }
}

/// Returns the length of the header beside a message: 0 for most, and otherwise at most what the
/// record of an announcement of `largest` bytes has room for.
fn header_bytes(message: Message, largest: usize) -> usize {
    const FOOT_BYTES: usize = 3;
    let [is_there, drawn, ..] = mix(message.sequence ^ u64::from(message.end)).to_le_bytes();
    let room = largest.saturating_sub(LargeAnnouncement::BYTES + FOOT_BYTES);
    match is_there % 8 {
        0 => room.min(1 + usize::from(drawn)),
        _ => 0,
    }
}

/// The rings of a node's sending ends, as the session sees them.
pub(super) struct Rings<'a>(pub(super) &'a mut BTreeMap<u32, Sender>);

impl Rings<'_> {
    fn consumer(&mut self, end: u32) -> Option<&mut Consumer<SimMemory>> {
        Some(&mut self.0.get_mut(&end)?.ring.as_mut()?.consumer)
    }

    /// Appends the ends whose rings have records.
    pub(super) fn with_records(&self, into: &mut Vec<u32>) {
        let senders = self.0.iter().filter(|(_, sender)| sender.has_records());
        into.extend(senders.map(|(&end, _)| end));
    }

    /// Returns the position and length of a ring's only record, if it is an ordinary one.
    pub(super) fn lone_record(&mut self, end: u32) -> Option<(u64, usize)> {
        let consumer = self.consumer(end)?;
        let record = consumer.peek().expect("nobody else writes this ring")?;
        let is_lone = record.kind == RecordKind::Data && consumer.is_empty_behind(record.size);
        is_lone.then_some((consumer.position(), record.size))
    }

    /// Moves past a record that is in a frame.
    pub(super) fn advance(&mut self, end: u32, bytes: usize) {
        if let Some(consumer) = self.consumer(end) {
            consumer.advance_by(bytes, 1);
        }
    }
}

impl RecordSource for Rings<'_> {
    fn take_run(&mut self, end: u32, batch: usize, single: usize) -> Option<Run> {
        let consumer = self.consumer(end)?;
        let run = consumer
            .walk_frame(batch, single)
            .expect("nobody else writes this ring");
        if run.records == 0 {
            return None;
        }
        let position = consumer.position();
        consumer.advance_by(run.bytes, run.records);
        Some(Run {
            position,
            bytes: run.bytes,
            records: run.records,
            announcement: run.large.map_or(0, |record| record.size),
        })
    }

    fn has_records(&mut self, end: u32) -> bool {
        self.0.get(&end).is_some_and(Sender::has_records)
    }

    fn forget_block(&mut self, end: u32, position: u64) {
        if let Some(ring) = self.0.get(&end).and_then(|sender| sender.ring.as_ref()) {
            let payload = position + HEADER_BYTES as u64;
            let mut bytes = Vec::new();
            ring.memory
                .read(payload, LargeAnnouncement::BYTES, &mut bytes);
            let mut bytes = bytes.try_into().expect("so many were read");
            LargeAnnouncement::forget_block(&mut bytes);
            ring.memory.write(payload, &bytes);
        }
    }
}
