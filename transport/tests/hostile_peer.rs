//! A peer that sends anything: frames that look right and are not, and what an honest
//! peer sent, garbled. Each is an error or it is fine; nothing panics, and nothing grows
//! beyond what was agreed.

use std::collections::VecDeque;

use ibex_transport::engine::{
    channel_window::ChannelWindow,
    control::{Ask, ChannelSpec, CloseReason, Control, Role},
    counters::Counters,
    frame::{EXTENSION_BYTES, Extension, FRAME_ALIGNMENT, FrameHeader, FrameKind, HEADER_BYTES},
    large::LARGE_PER_CHANNEL,
    record::{RecordHeader, RecordKind, first_position, record_size},
    session::{Arrival, Body, Event, RecordSource, Run, Session, SessionConfig},
};
use proptest::{collection::vec, prelude::*, sample::Index};

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn frames_that_look_right_are_refused_or_fine(moves in vec(any_move(), 1..80)) {
        let mut victim = Victim::new();
        for next in moves {
            match next {
                Move::Release => victim.release(),
                Move::Transmit => victim.transmit(),
                next => {
                    let frame = next.frame(&victim);
                    if victim.take(&frame.to_bytes()).is_err() {
                        break;
                    }
                }
            }
        }
    }

    #[test]
    fn an_honest_transcript_garbled_is_refused_or_fine(garbles in vec(any_garble(), 0..6)) {
        let mut frames = transcript();
        let is_honest = garbles.is_empty();
        for garble in garbles {
            garble.apply(&mut frames);
        }
        let mut victim = Victim::new();
        for bytes in frames {
            if victim.take(&bytes).is_err() {
                prop_assert!(!is_honest);
                break;
            }
            victim.transmit();
        }
    }
}

#[test]
fn an_honest_transcript_is_believed() {
    let mut victim = Victim::new();
    for bytes in transcript() {
        victim.take(&bytes).unwrap();
        victim.transmit();
    }
    assert_eq!(victim.receivers[0].arrived, 5);
    assert!(victim.has_heard_goodbye);
}

// ---- The victim ----------------------------------------------------------------------

/// A session with ends 1 (sending), 2 and 3 (receiving) and a host that does as it should.
/// The peer has opened their counterparts as its ends 1, 2 and 3.
struct Victim {
    session: Session,
    ring: Ring,
    landing: usize,
    receivers: [Receiver; 2],
    /// Bytes of frames that were charged to credit, and the credit that the peer knows of.
    charged: u64,
    granted: u64,
    has_heard_goodbye: bool,
}

/// What a receiving end holds.
#[derive(Default)]
struct Receiver {
    arrived: u64,
    position: u64,
    /// The last sequence of each frame, and the position behind it.
    frames: VecDeque<(u64, u64)>,
    /// Large messages that are not complete.
    large: VecDeque<u64>,
    released: Counters,
}

impl Victim {
    fn new() -> Self {
        let config = SessionConfig {
            our_credit_bytes: CREDIT,
            peer_credit_bytes: CREDIT,
            max_channels: MAX_CHANNELS,
            data_in_band: true,
        };
        let receiver = || Receiver {
            position: FIRST,
            ..Receiver::default()
        };
        let mut victim = Self {
            session: Session::new(config),
            ring: Ring::default(),
            landing: 0,
            receivers: [receiver(), receiver()],
            charged: 0,
            granted: CREDIT,
            has_heard_goodbye: false,
        };
        for (end, role, name) in ENDS {
            assert_eq!(victim.session.open(role, name, spec()), Ok(end));
            let name = name.to_owned();
            let open = Control::Open {
                end,
                role: role.opposite(),
                name,
                spec: spec(),
            };
            victim.take(&Frame::control(&open).to_bytes()).unwrap();
        }
        victim.ring.publish(&[b"what we send", b""]);
        victim.session.mark_ready(1);
        victim.transmit();
        victim
    }

    /// Takes a frame as a reader of a socket does; an error ends the session.
    fn take(&mut self, bytes: &[u8]) -> Result<(), String> {
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
            .handle_frame(&header, frame, self.landing)
            .map_err(|misbehaved| misbehaved.to_string())?;
        self.landing = (self.landing + header.padded_length()) % 64;
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
            Arrival::Nothing | Arrival::Unwanted => {}
        }
        self.check_footprint();
        Ok(())
    }

    fn handle_events(&mut self) {
        while let Some(event) = self.session.poll_event() {
            match event {
                Event::LargeAnnounced {
                    end,
                    sequence,
                    length,
                } => {
                    assert!((1..=LIMIT).contains(&length));
                    let large = &mut self.receivers[end as usize - 2].large;
                    large.push_back(sequence);
                    assert!(large.len() <= LARGE_PER_CHANNEL);
                    self.session.grant(end, sequence);
                }
                Event::Counted { end, counters } => {
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
                Event::PeerClosed {
                    end: end @ (2 | 3), ..
                } => {
                    let counters = &self.receivers[end as usize - 2].released;
                    self.session
                        .close_receiver(end, counters, CloseReason::Dropped);
                }
                Event::Goodbye => self.has_heard_goodbye = true,
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
        assert!(footprint.ready <= 3 && footprint.news <= 3, "{footprint:?}");
        // A grant for each message of both windows, and the closes of both ends.
        assert!(footprint.control as u64 <= 2 * WINDOW + 2, "{footprint:?}");
    }

    /// The application lets go of all that is whole.
    fn release(&mut self) {
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

    fn transmit(&mut self) {
        let mut head = Vec::new();
        while let Some(body) = self.session.poll_transmit(&mut self.ring, 0, &mut head) {
            let header = FrameHeader::parse(&head).unwrap().unwrap();
            if header.extension {
                let extension = head[HEADER_BYTES..]
                    .first_chunk::<EXTENSION_BYTES>()
                    .unwrap();
                let told = Extension::parse(extension);
                self.granted = self.granted.max(told.credit.unwrap_or_default());
            }
            assert!(
                !matches!(body, Body::Chunk { .. }),
                "we announced no large message"
            );
            head.clear();
        }
        self.handle_events();
    }
}

/// The ring of the one sending end, as bytes that are never reused.
#[derive(Default)]
struct Ring {
    bytes: Vec<u8>,
    /// Where each record that was not taken ends.
    ends: VecDeque<usize>,
    taken: usize,
    published: u64,
}

impl Ring {
    fn publish(&mut self, payloads: &[&[u8]]) {
        for payload in payloads {
            self.published += 1;
            self.bytes
                .extend(record(RecordKind::Data, self.published, payload));
            self.ends.push_back(self.bytes.len());
        }
    }

    fn announce(&mut self, length: u64) {
        self.published += 1;
        self.bytes.extend(record(
            RecordKind::Large,
            self.published,
            &length.to_le_bytes(),
        ));
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
        })
    }

    fn has_records(&mut self, end: u32) -> bool {
        end == 1 && !self.ends.is_empty()
    }
}

// ---- What an honest peer sends -------------------------------------------------------

/// The frames of a peer that sends on end 2, of which one message is large, releases what
/// it got on end 1, and leaves.
fn transcript() -> Vec<Vec<u8>> {
    let config = SessionConfig {
        our_credit_bytes: CREDIT,
        peer_credit_bytes: CREDIT,
        max_channels: MAX_CHANNELS,
        data_in_band: true,
    };
    let mut peer = Session::new(config);
    // Ids count up, so a receiver comes first and is the counterpart of end 1.
    for (end, role, name) in ENDS {
        assert_eq!(peer.open(role.opposite(), name, spec()), Ok(end));
        let open = Control::Open {
            end,
            role,
            name: name.to_owned(),
            spec: spec(),
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

    // The end that sends is number 2 here; the ring serves number 1, so it is renamed.
    struct AsTwo(Ring);
    impl RecordSource for AsTwo {
        fn take_run(&mut self, end: u32, batch: usize, single: usize) -> Option<Run> {
            self.0.take_run(end - 1, batch, single)
        }
        fn has_records(&mut self, end: u32) -> bool {
            self.0.has_records(end - 1)
        }
    }
    let mut ring = AsTwo(Ring::default());
    let mut frames = Vec::new();
    let mut landing = 0;
    let mut send = |peer: &mut Session, ring: &mut AsTwo| {
        let mut bytes = Vec::new();
        while let Some(body) = peer.poll_transmit(ring, landing, &mut bytes) {
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
            }
            bytes.resize(bytes.len().next_multiple_of(FRAME_ALIGNMENT), 0);
            landing = (landing + bytes.len()) % 64;
            frames.push(std::mem::take(&mut bytes));
        }
    };
    ring.0.publish(&[b"one", b"", &[3; 300]]);
    peer.mark_ready(2);
    let mut released = Counters {
        released: 2,
        acknowledged: 2,
        ..Counters::default()
    };
    released.released_position = FIRST + 40;
    peer.released(1, &released);
    send(&mut peer, &mut ring);
    peer.announce_large(2, 4, 100);
    ring.0.announce(100);
    ring.0.publish(&[b"behind it"]);
    peer.mark_ready(2);
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
        }),
    );
    send(&mut peer, &mut ring);
    peer.close_receiver(1, &released, CloseReason::Dropped);
    peer.close_sender(2, 5, CloseReason::Dropped);
    peer.close_sender(3, 0, CloseReason::SlotLeaked);
    peer.say_goodbye();
    send(&mut peer, &mut ring);
    // Its opens went out first, and the victim has had them.
    frames.split_off(ENDS.len())
}

fn hand(session: &mut Session, frame: &Frame) {
    let bytes = frame.to_bytes();
    let header = FrameHeader::parse(&bytes).unwrap().unwrap();
    session
        .handle_frame(&header, &bytes[..header.length as usize], 0)
        .unwrap();
}

// ---- What a hostile one sends --------------------------------------------------------

/// Something that a peer may do at that moment, and now and then something that it may not.
#[derive(Clone, Debug)]
enum Move {
    /// Records of one of its senders: `skew` beyond those that are due.
    Records {
        end: u32,
        skew: u64,
        records: Vec<(u64, bool)>,
    },
    /// A part of the large message that is under way, or of another.
    Chunk {
        end: u32,
        skew: u64,
        bytes: usize,
    },
    /// An end of an id that it has not used, or has.
    Open {
        id: u32,
        role: Role,
        name: &'static str,
        fits: bool,
    },
    Close {
        end: u32,
        role: Role,
        skew: u64,
    },
    Ask {
        end: u32,
        ask: Ask,
    },
    Grant {
        end: u32,
        sequence: u64,
    },
    /// News of what we published: bounded by it, or not.
    News {
        end: u32,
        counters: Counters,
        credit: Option<u64>,
    },
    Goodbye,
    /// A control frame of any bytes.
    Noise(Vec<u8>),
    /// Not the peer's: our application lets go of what it has.
    Release,
    /// Nor this: our socket takes something.
    Transmit,
}

impl Move {
    /// The frame that does it to `victim`.
    fn frame(self, victim: &Victim) -> Frame {
        let due = |end: u32, skew: u64| match victim.receivers.get(end as usize - 2) {
            Some(receiver) => (receiver.arrived + 1).wrapping_add(skew),
            None => skew,
        };
        match self {
            Move::Records { end, skew, records } => {
                let first = due(end, skew);
                let mut body = Vec::new();
                for (index, (length, is_large)) in records.into_iter().enumerate() {
                    let sequence = first.wrapping_add(index as u64);
                    let announced = (length * 10).to_le_bytes();
                    body.extend(match is_large {
                        true => record(RecordKind::Large, sequence, &announced),
                        false => record(RecordKind::Data, sequence, &vec![7; length as usize]),
                    });
                }
                Frame {
                    channel: end,
                    sequence: first as u32,
                    ..Frame::records(body)
                }
            }
            Move::Chunk { end, skew, bytes } => {
                let receiver = victim.receivers.get(end as usize - 2);
                let under_way = receiver.and_then(|receiver| receiver.large.front().copied());
                if under_way.is_none() && skew == 0 {
                    // None is under way: one is announced.
                    let records = vec![(20, true)];
                    return Move::Records { end, skew, records }.frame(victim);
                }
                let sequence = under_way.unwrap_or_default().wrapping_add(skew) as u32;
                let body = vec![0; bytes];
                Frame {
                    kind: FrameKind::Chunk,
                    channel: end,
                    sequence,
                    extension: None,
                    body,
                }
            }
            Move::Open {
                id,
                role,
                name,
                fits,
            } => {
                let spec = ChannelSpec {
                    fingerprint: [u8::from(fits); 16],
                    ..spec()
                };
                Frame::control(&Control::Open {
                    end: id,
                    role,
                    name: name.to_owned(),
                    spec,
                })
            }
            Move::Close { end, role, skew } => {
                let final_sequence = due(end.max(2), skew).wrapping_sub(1);
                let reason = CloseReason::Dropped;
                Frame::control(&Control::Close {
                    end,
                    role,
                    reason,
                    final_sequence,
                })
            }
            Move::Ask { end, ask } => Frame::control(&Control::Ask { channel: end, ask }),
            Move::Grant { end, sequence } => Frame::control(&Control::Grant {
                channel: end,
                sequence,
            }),
            Move::News {
                end,
                counters,
                credit,
            } => {
                let extension = Some(Extension {
                    counters: Some((end, counters)),
                    credit,
                });
                Frame {
                    extension,
                    body: Vec::new(),
                    ..Frame::control(&Control::Goodbye)
                }
            }
            Move::Noise(body) => Frame {
                body,
                ..Frame::control(&Control::Goodbye)
            },
            Move::Goodbye | Move::Release | Move::Transmit => Frame::control(&Control::Goodbye),
        }
    }
}

/// A frame of any content with a header that agrees with it.
#[derive(Clone, Debug)]
struct Frame {
    kind: FrameKind,
    channel: u32,
    sequence: u32,
    extension: Option<Extension>,
    body: Vec<u8>,
}

impl Frame {
    fn control(control: &Control) -> Self {
        let mut body = Vec::new();
        control.encode(&mut body);
        Self {
            kind: FrameKind::Control,
            channel: 0,
            sequence: 0,
            extension: None,
            body,
        }
    }

    fn records(body: Vec<u8>) -> Self {
        Self {
            kind: FrameKind::Records,
            channel: 2,
            sequence: 1,
            extension: None,
            body,
        }
    }

    fn to_bytes(&self) -> Vec<u8> {
        let extension = self.extension.map(|extension| extension.to_bytes());
        let extension = extension.as_ref().map_or(&[][..], |bytes| bytes);
        let header = FrameHeader {
            length: (HEADER_BYTES + extension.len() + self.body.len()) as u32,
            channel: self.channel,
            kind: self.kind,
            extension: !extension.is_empty(),
            pad: 0,
            sequence: self.sequence,
        };
        let mut bytes = [&header.to_bytes()[..], extension, &self.body].concat();
        bytes.resize(bytes.len().next_multiple_of(FRAME_ALIGNMENT), 0);
        bytes
    }
}

fn any_move() -> impl Strategy<Value = Move> {
    let role = || prop_oneof![Just(Role::Sender), Just(Role::Receiver)];
    let name = prop_oneof![Just("a"), Just("b"), Just("c"), Just("d")];
    let sender = || prop_oneof![60 => 2..4_u32, 1 => 4..8_u32];
    let record = (0..30_u64, prop::bool::weighted(0.1));
    let ask = [(); 3].map(|()| 0..12_u64);
    let news = (
        0..3_u64,
        0..3_u64,
        0..3_u64,
        0..=32_u64,
        prop::option::of(any::<u64>()),
    );
    prop_oneof![
        48 => (sender(), skew(), vec(record, 1..4))
            .prop_map(|(end, skew, records)| Move::Records { end, skew, records }),
        24 => (sender(), skew(), 1..150_usize)
            .prop_map(|(end, skew, bytes)| Move::Chunk { end, skew, bytes }),
        16 => (4..40_u32, role(), name, any::<bool>())
            .prop_map(|(id, role, name, fits)| Move::Open { id, role, name, fits }),
        8 => (4..40_u32, role(), skew())
            .prop_map(|(end, role, skew)| Move::Close { end, role, skew }),
        4 => (1..4_u32, role(), skew())
            .prop_map(|(end, role, skew)| Move::Close { end, role, skew }),
        16 => (1..8_u32, ask).prop_map(|(end, [received, released, acknowledged])| {
            Move::Ask { end, ask: Ask { received, released, acknowledged } }
        }),
        4 => (1..8_u32, 0..4_u64).prop_map(|(end, sequence)| Move::Grant { end, sequence }),
        16 => (1..3_u32, news).prop_map(|(end, (one, other, third, position, credit))| {
            let mut steps = [one, other, third];
            steps.sort_unstable();
            let [acknowledged, released, received] = steps;
            let counters = Counters {
                received,
                released,
                released_position: position,
                acknowledged,
                acknowledgement_ended: false,
            };
            Move::News { end, counters, credit }
        }),
        4 => Just(Move::Goodbye),
        1 => vec(any::<u8>(), 0..64).prop_map(Move::Noise),
        24 => Just(Move::Release),
        24 => Just(Move::Transmit),
    ]
}

/// Mostly what is due.
fn skew() -> impl Strategy<Value = u64> {
    prop_oneof![100 => Just(0), 1 => 1..3_u64, 1 => any::<u64>()]
}

/// What may happen to a transcript.
#[derive(Clone, Debug)]
enum Garble {
    Flip(Index, Index, u8),
    Cut(Index, Index),
    Repeat(Index, Index),
    Drop(Index),
    Swap(Index, Index),
}

impl Garble {
    fn apply(&self, frames: &mut Vec<Vec<u8>>) {
        if frames.is_empty() {
            return;
        }
        let count = frames.len();
        match self {
            Garble::Flip(frame, byte, bits) => {
                let frame = &mut frames[frame.index(count)];
                if !frame.is_empty() {
                    let at = byte.index(frame.len());
                    frame[at] ^= bits;
                }
            }
            Garble::Cut(frame, length) => {
                let frame = &mut frames[frame.index(count)];
                frame.truncate(length.index(frame.len() + 1));
            }
            Garble::Repeat(frame, at) => {
                let again = frames[frame.index(count)].clone();
                frames.insert(at.index(count + 1), again);
            }
            Garble::Drop(frame) => {
                frames.remove(frame.index(count));
            }
            Garble::Swap(one, other) => frames.swap(one.index(count), other.index(count)),
        }
    }
}

fn any_garble() -> impl Strategy<Value = Garble> {
    let index = any::<Index>;
    prop_oneof![
        4 => (index(), index(), 1..=u8::MAX).prop_map(|(frame, at, bits)| Garble::Flip(frame, at, bits)),
        1 => (index(), index()).prop_map(|(frame, length)| Garble::Cut(frame, length)),
        1 => (index(), index()).prop_map(|(frame, at)| Garble::Repeat(frame, at)),
        1 => index().prop_map(Garble::Drop),
        1 => (index(), index()).prop_map(|(one, other)| Garble::Swap(one, other)),
    ]
}

// ---- What both agreed on -------------------------------------------------------------

fn record(kind: RecordKind, sequence: u64, payload: &[u8]) -> Vec<u8> {
    let header = RecordHeader {
        kind,
        length: payload.len() as u32,
        sequence_low: sequence as u32,
    };
    let mut bytes = [&header.to_word().to_le_bytes()[..], payload].concat();
    bytes.resize(record_size(payload.len(), ALIGNMENT), 0);
    bytes
}

fn spec() -> ChannelSpec {
    ChannelSpec {
        fingerprint: [1; 16],
        schema: String::new(),
        alignment: ALIGNMENT as u32,
        window: ChannelWindow {
            messages: WINDOW,
            bytes: 1 << 12,
        },
        max_message_bytes: LIMIT,
    }
}

/// Our ends: what we send on, and what we receive on.
const ENDS: [(u32, Role, &str); 3] = [
    (1, Role::Sender, "a"),
    (2, Role::Receiver, "b"),
    (3, Role::Receiver, "c"),
];
const ALIGNMENT: usize = 8;
const FIRST: u64 = first_position(ALIGNMENT);
const WINDOW: u64 = 8;
const LIMIT: u64 = 400;
const CREDIT: u64 = 1 << 12;
const MAX_CHANNELS: usize = 6;
