//! The session that a peer tries to break, and a host that relies on the session's statements.

use std::collections::VecDeque;

use ibex_protocol::{
    format::{
        control::{CloseReason, Control},
        counters::Counters,
        frame::{EXTENSION_BYTES, Extension, FrameHeader, FrameKind, HEADER_BYTES},
    },
    session::{Arrival, Body, Session, SessionEvent},
    transfer::{
        eager_write::{EAGER_BLOCK_BYTES, EAGER_BLOCKS_PER_CHANNEL},
        rendezvous::{LARGE_PER_CHANNEL, RemoteMemory},
    },
};

use super::{agreed::*, frame::Frame, transcript::Ring};

/// A session with ends 1 (sending), 2 and 3 (receiving) and a well-behaved host. The peer has
/// opened their counterparts as its ends 1, 2 and 3.
pub(crate) struct Victim {
    session: Session,
    ring: Ring,
    arrival_offset: usize,
    pub(crate) receivers: [Receiver; 2],
    /// Bytes of frames that were charged to credit, and the credit that the peer knows of.
    charged: u64,
    granted: u64,
    pub(crate) has_received_goodbye: bool,
}

/// The state of a receiving end.
#[derive(Default)]
pub(crate) struct Receiver {
    pub(crate) arrived: u64,
    position: u64,
    /// The last sequence of each frame, and the position behind it.
    frames: VecDeque<(u64, u64)>,
    /// Large messages that are not complete.
    pub(crate) large: VecDeque<u64>,
    released: Counters,
}

impl Victim {
    pub(crate) fn new() -> Self {
        let receiver = || Receiver {
            position: FIRST,
            ..Receiver::default()
        };
        let mut victim = Self {
            session: Session::new(config()),
            ring: Ring::default(),
            arrival_offset: 0,
            receivers: [receiver(), receiver()],
            charged: 0,
            granted: CREDIT,
            has_received_goodbye: false,
        };
        for (end, role, name) in ENDS {
            assert_eq!(victim.session.open(role, name, spec()), Ok(end));
            let name = name.into();
            let open = Control::Open {
                end,
                role: role.opposite(),
                name,
                spec: spec().into(),
            };
            victim.take(&Frame::control(&open).to_bytes()).unwrap();
        }
        victim.ring.publish(&[b"what we send", b""]);
        victim.session.ends.mark_ready(1);
        victim.transmit();
        victim
    }

    /// Takes a frame as a reader of a socket does; an error ends the session.
    pub(crate) fn take(&mut self, bytes: &[u8]) -> Result<(), String> {
        let header = FrameHeader::parse(bytes).map_err(|error| error.to_string())?;
        let header = header.ok_or("no header")?;
        let needed = match header.kind {
            FrameKind::Chunk => header.body_offset(),
            _ => header.length as usize,
        };
        let frame = bytes
            .get(..needed)
            .ok_or("a frame that never comes as a whole")?;
        let arrival = self
            .session
            .handle_frame(&header, frame, self.arrival_offset)
            .map_err(|misbehaved| misbehaved.to_string())?;
        self.arrival_offset = (self.arrival_offset + header.padded_length()) % 64;
        while let Some(landed) = self.session.eager_blocks.poll_landed() {
            assert!((1..=LIMIT).contains(&(landed.length as u64)));
            assert!(landed.end == 2 || landed.end == 3);
        }
        assert!(self.session.eager_blocks.count() <= 2 * EAGER_BLOCKS_PER_CHANNEL);
        if header.kind == FrameKind::Records {
            self.charged += header.padded_length() as u64;
            assert!(
                self.charged <= self.granted,
                "more arrived than was granted"
            );
        }
        self.handle_events();
        match arrival {
            Arrival::Records {
                end,
                offset,
                bytes,
                first_sequence,
                records,
            } => {
                assert_eq!(offset + bytes, frame.len());
                let receiver = &mut self.receivers[end as usize - 2];
                assert_eq!(first_sequence, receiver.arrived + 1);
                assert!(records > 0);
                receiver.arrived += records;
                receiver.position += bytes as u64;
                receiver
                    .frames
                    .push_back((receiver.arrived, receiver.position));
                assert!(receiver.arrived - receiver.released.released <= WINDOW);
            }
            Arrival::Chunk {
                end,
                chunk,
                complete,
            } => {
                assert_eq!(chunk.bytes, header.body_bytes());
                assert!(chunk.offset + chunk.bytes as u64 <= LIMIT);
                if complete {
                    let large = &mut self.receivers[end as usize - 2].large;
                    assert_eq!(large.pop_front(), Some(chunk.sequence));
                    self.session.handle_large_complete(end);
                }
            }
            Arrival::Written { end, sequence } => {
                assert_eq!(header.body_bytes(), 0);
                let large = &mut self.receivers[end as usize - 2].large;
                assert_eq!(large.pop_front(), Some(sequence));
                self.session.handle_large_complete(end);
            }
            Arrival::Nothing | Arrival::Unwanted => {}
        }
        self.check_footprint();
        Ok(())
    }

    fn handle_events(&mut self) {
        while let Some(event) = self.session.poll_event() {
            match event {
                SessionEvent::LargeAnnounced {
                    end,
                    sequence,
                    length,
                    ..
                } => {
                    assert!((1..=LIMIT).contains(&length));
                    let large = &mut self.receivers[end as usize - 2].large;
                    large.push_back(sequence);
                    assert!(large.len() <= LARGE_PER_CHANNEL);
                    let block = RemoteMemory::new(0x7000, 9, EAGER_BLOCK_BYTES as u64);
                    let block = block.expect("memory that can be");
                    for _ in 0..sequence % 3 {
                        self.session.grant_eager_block(end, block);
                    }
                    match memory_for(length) {
                        Some(memory) => self.session.grant_memory(end, sequence, memory),
                        None => self.session.grant(end, sequence, length),
                    }
                }
                SessionEvent::Counted { end, counters } => {
                    assert_eq!(end, 1);
                    let Counters {
                        received,
                        released,
                        acknowledged,
                        ..
                    } = counters;
                    assert!(self.ring.published >= received);
                    assert!(received >= released && released >= acknowledged);
                }
                SessionEvent::PeerClosed {
                    end: end @ (2 | 3), ..
                } => {
                    let counters = &self.receivers[end as usize - 2].released;
                    self.session
                        .close_receiver(end, counters, CloseReason::Dropped);
                }
                SessionEvent::Goodbye { .. } => self.has_received_goodbye = true,
                _ => {}
            }
        }
    }

    fn check_footprint(&self) {
        let footprint = self.session.footprint();
        assert!(
            footprint.ends <= 3 && footprint.peer_ends <= MAX_CHANNELS,
            "{footprint:?}"
        );
        assert!(
            footprint.ready <= 3 && footprint.changes <= 3,
            "{footprint:?}"
        );
        // Control messages are a grant for each message of both windows, and the closes of both
        // ends.
        assert!(footprint.control as u64 <= 2 * WINDOW + 2, "{footprint:?}");
    }

    /// Releases all complete messages, for the application.
    pub(crate) fn release(&mut self) {
        for (end, receiver) in [2, 3].into_iter().zip(&mut self.receivers) {
            let whole = receiver
                .large
                .front()
                .map_or(u64::MAX, |sequence| sequence - 1);
            while let Some(&(last, position)) = receiver.frames.front()
                && last <= whole
            {
                receiver.frames.pop_front();
                receiver.released.released = last;
                receiver.released.released_position = position;
            }
            self.session.released(end, &receiver.released);
        }
    }

    pub(crate) fn transmit(&mut self) {
        let mut head = Vec::new();
        while let Some(body) = self.session.poll_transmit(&mut self.ring, 0, &mut head) {
            let header = FrameHeader::parse(&head).unwrap().unwrap();
            if header.extension {
                let extension = head[HEADER_BYTES..]
                    .first_chunk::<EXTENSION_BYTES>()
                    .unwrap();
                let notified = Extension::parse(extension);
                self.granted = self.granted.max(notified.credit.unwrap_or_default());
            }
            assert!(
                !matches!(
                    body,
                    Body::Chunk { .. } | Body::Write { .. } | Body::EagerBlock { .. }
                ),
                "we announced no large message"
            );
            head.clear();
        }
        self.handle_events();
    }
}
