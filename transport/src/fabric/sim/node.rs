//! One node of the simulation: a session, its ends, and the bytes on their way in and out.
//!
//! It does what a link does over a socket, and nothing that a link does not.
#![forbid(unsafe_code)]

use std::collections::BTreeMap;

use super::{
    Checked, Side, ensure,
    ledger::Ledger,
    options::SimOptions,
    random::mix,
    receiver::Receiver,
    sender::{Rings, Sender},
    wire::Wire,
};
use crate::engine::{
    channel_window::ChannelWindow,
    control::{ChannelSpec, CloseReason, Role},
    frame::{BLOCK_ALIGNMENT, FRAME_ALIGNMENT, FrameHeader, FrameKind},
    session::{Arrival, Body, CannotOpen, Event, Session, SessionConfig},
};

/// A session and its host.
#[derive(Debug)]
pub(super) struct Node {
    pub(super) side: Side,
    options: SimOptions,
    pub(super) session: Session,
    pub(super) senders: BTreeMap<u32, Sender>,
    pub(super) receivers: BTreeMap<u32, Receiver>,
    /// Large messages that were announced and not granted: receiving end and sequence.
    pub(super) wanted: Vec<(u32, u64)>,
    pub(super) life: Life,
    pub(super) has_heard_goodbye: bool,

    // The wires.
    inbound: Inbound,
    outbound: Outbound,

    // The record of the run.
    pub(super) counts: Counts,
    /// A hash of everything that went out and was handed out, in order.
    pub(super) trace: u64,
}

/// How far a session's life has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Life {
    /// Channels come and go.
    Up,
    /// Either side says goodbye: what was published goes out, and nothing new comes.
    Ending,
}

/// What a node did.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counts {
    pub(super) opened: u64,
    pub(super) mismatched: u64,
    pub(super) frames: u64,
    pub(super) handed_out: u64,
    pub(super) large: u64,
    pub(super) out_of_credit: u64,
    /// Bytes of frames that went out against credit.
    pub(super) charged_out: u64,
    /// Bytes of frames that came in against credit.
    pub(super) charged_in: u64,
}

#[derive(Debug, Default)]
struct Inbound {
    bytes: Vec<u8>,
    /// Where the next frame begins in `bytes`.
    parsed: usize,
    /// Where it begins in arrival memory, modulo [`BLOCK_ALIGNMENT`].
    landing: usize,
    chunk: Option<ChunkIn>,
}

/// A chunk whose head was handled and whose bytes are on their way.
#[derive(Debug)]
struct ChunkIn {
    /// Where the bytes belong: end, sequence and offset; or nowhere.
    place: Option<(u32, u64, u64)>,
    is_last: bool,
    left: usize,
    /// Zeros behind it.
    fill: usize,
}

#[derive(Debug, Default)]
struct Outbound {
    bytes: Vec<u8>,
    written: usize,
    landing: usize,
}

impl Inbound {
    fn unparsed(&self) -> &[u8] {
        &self.bytes[self.parsed..]
    }

    fn consume(&mut self, bytes: usize) {
        self.parsed += bytes;
        self.landing = (self.landing + bytes) % BLOCK_ALIGNMENT;
    }
}

impl Node {
    pub(super) fn new(side: Side, options: &SimOptions) -> Self {
        let config = SessionConfig {
            our_credit_bytes: options.credit_bytes,
            peer_credit_bytes: options.credit_bytes,
            max_channels: options.max_channels,
            data_in_band: options.data_in_band,
        };
        Self {
            side,
            options: options.clone(),
            session: Session::new(config),
            senders: BTreeMap::new(),
            receivers: BTreeMap::new(),
            wanted: Vec::new(),
            life: Life::Up,
            has_heard_goodbye: false,
            inbound: Inbound::default(),
            outbound: Outbound::default(),
            counts: Counts::default(),
            trace: side as u64,
        }
    }

    pub(super) fn note(&mut self, word: u64) {
        self.trace = mix(self.trace ^ word);
    }

    // ---- What handles do -------------------------------------------------------------

    /// Opens an end. Whether it may be opened is known here as well, so the session's
    /// answer is checked. `window` is what this end asks for.
    pub(super) fn open(
        &mut self,
        role: Role,
        name: &str,
        fits: bool,
        window: ChannelWindow,
        ledger: &Ledger,
    ) -> Checked<Option<u32>> {
        let is_live = match role {
            Role::Sender => self
                .senders
                .values()
                .any(|end| end.name == name && !end.is_closed),
            Role::Receiver => self
                .receivers
                .values()
                .any(|end| end.name == name && !end.is_closed),
        };
        let is_full = self.session.footprint().ends >= self.options.max_channels;
        let spec = ChannelSpec {
            fingerprint: [if fits { 0 } else { role as u8 + 1 }; 16],
            schema: String::new(),
            alignment: self.options.alignment,
            window,
            max_message_bytes: self.options.max_message_bytes,
        };
        let end = match self.session.open(role, name, spec) {
            Ok(end) => end,
            Err(CannotOpen::AlreadyOpen) if is_live => return Ok(None),
            Err(CannotOpen::TooMany { .. }) if is_full => return Ok(None),
            Err(error) => return Err(format!("{role:?} {name:?} cannot be opened: {error}")),
        };
        ensure!(
            !is_live && !is_full,
            "{role:?} {name:?} was opened although it is open"
        );
        let name = name.to_owned();
        match role {
            Role::Sender => {
                self.senders.insert(end, Sender::new(self.side, end, name));
            }
            Role::Receiver => {
                self.receivers.insert(end, Receiver::new(self.side, name));
            }
        }
        self.handle_events(ledger)?;
        Ok(Some(end))
    }

    pub(super) fn close_sender(&mut self, end: u32, ledger: &Ledger) -> Checked {
        if let Some(sender) = self
            .senders
            .get_mut(&end)
            .filter(|sender| !sender.is_closed)
        {
            sender.is_closed = true;
            self.session
                .close_sender(end, sender.published, CloseReason::Dropped);
        }
        self.handle_events(ledger)
    }

    pub(super) fn close_receiver(&mut self, end: u32, ledger: &Ledger) -> Checked {
        if let Some(receiver) = self.receivers.get_mut(&end).filter(|end| !end.is_closed) {
            receiver.is_closed = true;
            self.wanted.retain(|&(other, _)| other != end);
            self.session
                .close_receiver(end, &receiver.counters(), CloseReason::Dropped);
        }
        self.handle_events(ledger)
    }

    /// Closes all senders and says goodbye behind what they published.
    pub(super) fn end_session(&mut self, ledger: &Ledger) -> Checked {
        self.life = Life::Ending;
        for end in self.senders.keys().copied().collect::<Vec<_>>() {
            self.close_sender(end, ledger)?;
        }
        self.session.say_goodbye();
        self.handle_events(ledger)
    }

    /// Memory for one of the large messages has come.
    pub(super) fn grant(&mut self, at: usize) {
        let (end, sequence) = self.wanted.swap_remove(at);
        if let Some(receiver) = self.receivers.get_mut(&end) {
            receiver.grant(sequence);
            self.session.grant(end, sequence);
        }
    }

    /// Tells the session how far the guards of a receiving end are.
    pub(super) fn released(&mut self, end: u32) {
        if let Some(receiver) = self.receivers.get(&end).filter(|end| !end.is_closed) {
            self.session.released(end, &receiver.counters());
        }
    }

    // ---- The wires -------------------------------------------------------------------

    /// Writes what is due; whether anything went out.
    pub(super) fn transmit(&mut self, now: u64, wire: &mut Wire, ledger: &Ledger) -> Checked<bool> {
        let mut any = false;
        loop {
            while self.outbound.bytes.len() < FULL_BYTES && self.build_frame()? {}
            self.handle_events(ledger)?;
            let outbound = &mut self.outbound;
            if outbound.bytes.is_empty() {
                return Ok(any);
            }
            let written = wire.write(now, &outbound.bytes[outbound.written..]);
            any |= written > 0;
            outbound.written += written;
            if outbound.written < outbound.bytes.len() {
                return Ok(any);
            }
            outbound.bytes.clear();
            outbound.written = 0;
        }
    }

    fn build_frame(&mut self) -> Checked<bool> {
        let Outbound {
            bytes: out,
            landing,
            ..
        } = &mut self.outbound;
        let start = out.len();
        let mut rings = Rings(&mut self.senders);
        let Some(body) = self.session.poll_transmit(&mut rings, *landing, out) else {
            self.counts.out_of_credit += u64::from(self.session.is_out_of_credit());
            return Ok(false);
        };
        let gone = "a frame goes out for an end that is gone";
        match body {
            Body::Inline => {}
            Body::Records {
                end,
                position,
                bytes,
            } => {
                self.senders
                    .get(&end)
                    .ok_or(gone)?
                    .ring_bytes(position, bytes, out);
            }
            Body::Chunk { end, chunk } => {
                let sender = self.senders.get(&end).ok_or(gone)?;
                let part = sender.chunk(chunk.sequence, chunk.offset, chunk.bytes)?;
                out.extend_from_slice(part);
            }
        }
        out.resize(
            start + (out.len() - start).next_multiple_of(FRAME_ALIGNMENT),
            0,
        );
        let header = FrameHeader::parse(&out[start..])
            .map_err(|error| format!("a frame that goes out is malformed: {error}"))?
            .ok_or("a frame that goes out has no header")?;
        ensure!(
            header.padded_length() == out.len() - start,
            "a frame of {} bytes goes out as {header:?}",
            out.len() - start
        );
        *landing = (*landing + header.padded_length()) % BLOCK_ALIGNMENT;
        if header.kind == FrameKind::Records {
            self.counts.charged_out += header.padded_length() as u64;
        }
        self.counts.frames += 1;
        self.note(u64::from(header.length) << 32 | u64::from(header.channel));
        self.note(u64::from(header.sequence) << 8 | u64::from(header.pad));
        Ok(true)
    }

    /// Reads and handles what has arrived; whether anything had.
    pub(super) fn receive(&mut self, now: u64, wire: &mut Wire, ledger: &Ledger) -> Checked<bool> {
        let before = self.inbound.bytes.len();
        wire.read(now, &mut self.inbound.bytes);
        let any = self.inbound.bytes.len() > before;
        while self.parse_one(ledger)? {
            self.handle_events(ledger)?;
        }
        let parsed = std::mem::take(&mut self.inbound.parsed);
        self.inbound.bytes.drain(..parsed);
        Ok(any)
    }

    /// Handles one frame; false if none is whole.
    fn parse_one(&mut self, ledger: &Ledger) -> Checked<bool> {
        if let Some(chunk) = self.inbound.chunk.take() {
            self.continue_chunk(chunk, ledger)?;
            if self.inbound.chunk.is_some() {
                return Ok(false);
            }
        }
        let bytes = self.inbound.unparsed();
        let header = FrameHeader::parse(bytes).map_err(|error| error.to_string())?;
        let Some(header) = header else {
            return Ok(false);
        };
        let needed = match header.kind {
            FrameKind::Chunk => header.body_offset(),
            _ => header.padded_length(),
        };
        if bytes.len() < needed {
            return Ok(false);
        }
        if header.kind == FrameKind::Records {
            self.counts.charged_in += header.padded_length() as u64;
        }
        let landing = self.inbound.landing;
        let frame = &bytes[..needed.min(header.length as usize)];
        let arrival = self
            .session
            .handle_frame(&header, frame, landing)
            .map_err(|misbehaved| format!("an honest peer is accused: {misbehaved}"))?;
        let fill = header.padded_length() - header.length as usize;
        match arrival {
            Arrival::Nothing => {}
            Arrival::Unwanted if header.kind == FrameKind::Chunk => {
                let left = header.body_bytes();
                self.inbound.chunk = Some(ChunkIn {
                    place: None,
                    is_last: false,
                    left,
                    fill,
                });
            }
            Arrival::Unwanted => {}
            Arrival::Records {
                end,
                offset,
                bytes,
                first_sequence,
                records,
            } => {
                let body = &frame[offset..offset + bytes];
                let receiver = self
                    .receivers
                    .get_mut(&end)
                    .ok_or("records for no receiver")?;
                receiver.take_records(first_sequence, records, landing + offset, body, ledger)?;
            }
            Arrival::Chunk {
                end,
                chunk,
                complete,
            } => {
                let place = Some((end, chunk.sequence, chunk.offset));
                self.inbound.chunk = Some(ChunkIn {
                    place,
                    is_last: complete,
                    left: chunk.bytes,
                    fill,
                });
            }
        }
        self.inbound.consume(needed);
        Ok(true)
    }

    /// Takes what is here of a chunk's bytes, and keeps the chunk if more is to come.
    fn continue_chunk(&mut self, mut chunk: ChunkIn, ledger: &Ledger) -> Checked {
        let here = self.inbound.unparsed().len().min(chunk.left);
        let receiver = chunk
            .place
            .and_then(|(end, ..)| self.receivers.get_mut(&end))
            .filter(|receiver| !receiver.is_closed && here > 0);
        if let Some(receiver) = receiver
            && let Some((end, sequence, offset)) = &mut chunk.place
        {
            let bytes = &self.inbound.bytes[self.inbound.parsed..][..here];
            receiver.place(*sequence, *offset, bytes, ledger)?;
            *offset += here as u64;
            if here == chunk.left && chunk.is_last {
                self.session.handle_large_complete(*end);
                self.counts.large += 1;
            }
        }
        self.inbound.consume(here);
        chunk.left -= here;
        let filled = if chunk.left == 0 {
            self.inbound.unparsed().len().min(chunk.fill)
        } else {
            0
        };
        self.inbound.consume(filled);
        chunk.fill -= filled;
        if chunk.left + chunk.fill > 0 {
            self.inbound.chunk = Some(chunk);
        }
        self.handle_events(ledger)
    }

    /// Whether everything that is due is on the wire.
    pub(super) fn is_flushed(&self) -> bool {
        self.outbound.bytes.is_empty()
    }

    // ---- Events ----------------------------------------------------------------------

    fn handle_events(&mut self, ledger: &Ledger) -> Checked {
        while let Some(event) = self.session.poll_event() {
            match event {
                Event::PeerOpened { .. } => {}
                Event::Opened {
                    end,
                    peer_end,
                    agreed,
                } => {
                    self.counts.opened += 1;
                    if let Some(sender) = self.senders.get_mut(&end) {
                        sender.open(peer_end, agreed);
                    }
                    if let Some(receiver) = self.receivers.get_mut(&end) {
                        receiver.open(peer_end, agreed);
                    }
                }
                Event::Mismatched { end, .. } => {
                    self.counts.mismatched += 1;
                    if let Some(sender) = self.senders.get_mut(&end) {
                        (sender.is_over, sender.is_answered) = (true, true);
                    }
                    if let Some(receiver) = self.receivers.get_mut(&end) {
                        (receiver.is_over, receiver.is_answered) = (true, true);
                    }
                }
                Event::Counted { end, counters } => {
                    self.senders
                        .get_mut(&end)
                        .ok_or("news for no sender")?
                        .hear(&counters)?;
                }
                Event::Asked { end } => self.released(end),
                Event::Told { end, counters } => {
                    let receiver = self.receivers.get(&end).ok_or("news of no receiver")?;
                    receiver.check_told(&counters)?;
                }
                Event::PeerClosed {
                    end,
                    reason,
                    final_sequence,
                } => {
                    ensure!(
                        reason == CloseReason::Dropped,
                        "end {end} closes with {reason:?}"
                    );
                    if let Some(sender) = self.senders.get_mut(&end) {
                        sender.is_over = true;
                    }
                    if let Some(receiver) = self.receivers.get_mut(&end) {
                        receiver.sender_closed(final_sequence, ledger)?;
                    }
                }
                Event::LargeAnnounced { end, sequence, .. } => self.wanted.push((end, sequence)),
                Event::Forgotten { end } => self.forget(end)?,
                Event::Goodbye => self.hear_goodbye(ledger)?,
            }
        }
        Ok(())
    }

    fn forget(&mut self, end: u32) -> Checked {
        let sender = self.senders.remove(&end).map(|sender| sender.is_closed);
        let receiver = self
            .receivers
            .remove(&end)
            .map(|receiver| receiver.is_closed);
        ensure!(
            sender.or(receiver) == Some(true),
            "end {end} is forgotten while a handle lives"
        );
        Ok(())
    }

    fn hear_goodbye(&mut self, ledger: &Ledger) -> Checked {
        ensure!(!self.has_heard_goodbye, "the peer says goodbye twice");
        self.has_heard_goodbye = true;
        for receiver in self
            .receivers
            .values()
            .filter(|receiver| receiver.is_usable())
        {
            ensure!(
                receiver.is_closed_there(),
                "the peer says goodbye before it closes {:?}",
                receiver.name
            );
        }
        match self.life {
            Life::Up => self.end_session(ledger),
            Life::Ending => Ok(()),
        }
    }

    /// Checks that nothing has grown beyond its bound.
    pub(super) fn check_footprint(&self) -> Checked {
        let footprint = self.session.footprint();
        let limit = self.options.max_channels;
        // An open, a close, three asks (room, received, acknowledged) and two grants.
        let control = footprint.ends.max(1) * 7 + usize::from(self.life == Life::Ending);
        ensure!(
            footprint.ends <= limit
                && footprint.peer_ends <= limit
                && footprint.ready <= footprint.ends
                && footprint.news <= footprint.ends
                && footprint.events == 0
                && footprint.control <= control,
            "a queue has grown beyond its bound: {footprint:?} with {limit} channels"
        );
        Ok(())
    }
}

/// Bytes that are built ahead of a wire that takes no more.
const FULL_BYTES: usize = 1 << 16;
