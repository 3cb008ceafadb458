//! The frames of an honest peer, and the ring that a session sends from.

use std::collections::VecDeque;

use ibex_protocol::{
    format::{
        control::{Ask, CloseReason, Control},
        counters::Counters,
        frame::{FRAME_ALIGNMENT, FrameHeader},
        record::{LargeAnnouncement, RecordKind},
    },
    session::{Body, RecordSource, Run, Session},
};

use super::{agreed::*, frame::Frame};

/// The frames of a peer that sends on end 2, releases what it got on end 1, and leaves. One of its
/// messages goes in chunks and one is written.
pub(crate) fn transcript() -> Vec<Vec<u8>> {
    let mut peer = Session::new(config());
    // Ids count up, so a receiver comes first and is the counterpart of end 1.
    for (end, role, name) in ENDS {
        assert_eq!(peer.open(role.opposite(), name, spec()), Ok(end));
        let open = Control::Open {
            end,
            role,
            name: name.into(),
            spec: spec().into(),
        };
        hand(&mut peer, &Frame::control(&open));
    }
    let body = [
        record(RecordKind::Data, 1, b"what we send"),
        record(RecordKind::Data, 2, b""),
    ];
    hand(
        &mut peer,
        &Frame {
            channel: 1,
            sequence: 1,
            ..Frame::records(body.concat())
        },
    );

    // The sending end is number 2 here; the ring serves number 1, so the number is mapped.
    struct AsTwo(Ring);
    impl RecordSource for AsTwo {
        fn take_run(&mut self, end: u32, batch: usize, single: usize) -> Option<Run> {
            self.0.take_run(end - 1, batch, single)
        }
        fn has_records(&mut self, end: u32) -> bool {
            self.0.has_records(end - 1)
        }

        fn forget_block(&mut self, _: u32, _: u64) {}
    }
    let mut ring = AsTwo(Ring::default());
    let mut frames = Vec::new();
    let mut arrival_offset = 0;
    let mut send = |peer: &mut Session, ring: &mut AsTwo| {
        let mut bytes = Vec::new();
        while let Some(body) = peer.poll_transmit(ring, arrival_offset, &mut bytes) {
            match body {
                Body::Inline => {}
                Body::Records {
                    position,
                    bytes: count,
                    ..
                } => {
                    bytes.extend_from_slice(&ring.0.bytes[(position - FIRST) as usize..][..count]);
                }
                Body::Chunk { chunk, .. } => bytes.resize(bytes.len() + chunk.bytes, 0xcc),
                // Writes and eager blocks are no frames.
                Body::Write { .. } | Body::EagerBlock { .. } => continue,
            }
            bytes.resize(bytes.len().next_multiple_of(FRAME_ALIGNMENT), 0);
            arrival_offset = (arrival_offset + bytes.len()) % 64;
            frames.push(std::mem::take(&mut bytes));
        }
    };
    ring.0.publish(&[b"one", b"", &[3; 300]]);
    peer.ends.mark_ready(2);
    let mut released = Counters {
        released: 2,
        acknowledged: 2,
        ..Counters::default()
    };
    released.released_position = FIRST + 40;
    peer.released(1, &released);
    send(&mut peer, &mut ring);
    peer.ends.announce_large(2, 4, 100);
    ring.0.announce(100);
    ring.0.publish(&[b"behind it"]);
    peer.ends.announce_large(2, 6, 101);
    ring.0.announce(101);
    peer.ends.mark_ready(2);
    peer.ask(
        2,
        Ask {
            received: 5,
            released: 5,
            acknowledged: 5,
        },
    );
    send(&mut peer, &mut ring);
    hand(
        &mut peer,
        &Frame::control(&Control::Grant {
            channel: 2,
            sequence: 4,
            bytes: 100,
        }),
    );
    hand(
        &mut peer,
        &Frame::control(&Control::GrantMemory {
            channel: 2,
            sequence: 6,
            memory: memory_for(101).unwrap(),
        }),
    );
    send(&mut peer, &mut ring);
    peer.close_receiver(1, &released, CloseReason::Dropped);
    peer.ends.close_sender(2, 6, CloseReason::Dropped);
    peer.ends.close_sender(3, 0, CloseReason::SlotLeaked);
    peer.outgoing.say_goodbye(None);
    send(&mut peer, &mut ring);
    // The peer's opens went out first, and the victim has received them already.
    frames.split_off(ENDS.len())
}

fn hand(session: &mut Session, frame: &Frame) {
    let bytes = frame.to_bytes();
    let header = FrameHeader::parse(&bytes).unwrap().unwrap();
    session
        .handle_frame(&header, &bytes[..header.length as usize], 0)
        .unwrap();
}

/// The ring of the one sending end, as bytes that are never reused.
#[derive(Default)]
pub(crate) struct Ring {
    bytes: Vec<u8>,
    /// The ends of the records that were not taken yet.
    ends: VecDeque<usize>,
    taken: usize,
    pub(crate) published: u64,
}

impl Ring {
    pub(crate) fn publish(&mut self, payloads: &[&[u8]]) {
        for payload in payloads {
            self.published += 1;
            self.bytes
                .extend(record(RecordKind::Data, self.published, payload));
            self.ends.push_back(self.bytes.len());
        }
    }

    fn announce(&mut self, length: usize) {
        self.published += 1;
        let announcement = LargeAnnouncement::in_chunks(length);
        let large = record(RecordKind::Large, self.published, announcement.bytes());
        self.bytes.extend(large);
        self.ends.push_back(self.bytes.len());
    }
}

impl RecordSource for Ring {
    fn take_run(&mut self, end: u32, _: usize, single: usize) -> Option<Run> {
        let behind = self.ends.front().copied().filter(|_| end == 1)?;
        let bytes = behind - self.taken;
        if bytes > single {
            return None;
        }
        self.ends.pop_front();
        let position = FIRST + std::mem::replace(&mut self.taken, behind) as u64;
        Some(Run {
            position,
            bytes,
            records: 1,
            announcement: 0,
        })
    }

    fn has_records(&mut self, end: u32) -> bool {
        end == 1 && !self.ends.is_empty()
    }

    fn forget_block(&mut self, _: u32, _: u64) {}
}
