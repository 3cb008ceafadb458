//! The other side of a session under test, byte by byte: what it sends, and what it makes
//! of what comes.

use std::collections::VecDeque;

use crate::{
    format::{
        channel_window::ChannelWindow,
        control::{Ask, ChannelSpec, CloseReason, Control, Role},
        counters::Counters,
        frame::{
            EXTENSION_BYTES, Extension, FRAME_ALIGNMENT, FrameHeader, FrameKind, HEADER_BYTES,
        },
        message_version::MessageVersion,
        record::{LargeAnnouncement, RecordHeader, RecordKind, first_position, record_size},
    },
    session::{
        Arrival, DataPath, PeerMisbehaved, RecordSource, Run, Session, SessionConfig, SessionEvent,
        WireTerms,
    },
};

/// The id that the peer gave its end.
pub(super) const PEER: u32 = 7;
pub(super) const ALIGNMENT: usize = 8;
pub(super) const WINDOW: u64 = 8;
pub(super) const LIMIT: usize = 500;
pub(super) const MAX_CHANNELS: usize = 4;

pub(super) fn config() -> SessionConfig {
    SessionConfig {
        wires: WireTerms {
            our_credit: 1 << 20,
            peer_credit: 1 << 20,
            ..WireTerms::STREAM
        },
        dialed: false,
        max_channels: MAX_CHANNELS,
        data_path: DataPath::Framed,
        resumes: true,
    }
}

pub(in crate::session) fn spec() -> ChannelSpec {
    ChannelSpec {
        newest: MessageVersion {
            fingerprint: [1; 16],
            schema: "[u8]".into(),
            alignment: ALIGNMENT as u32,
        },
        older: Vec::new(),
        window: ChannelWindow {
            messages: WINDOW,
            bytes: 1 << 12,
        },
        max_message_bytes: LIMIT as u64,
        max_unreleased_bytes: u64::MAX,
        is_traced: false,
    }
}

/// A session whose end 1 is paired with the peer's [`PEER`].
pub(super) fn pair(session: &mut Session, role: Role) {
    session.open(role, "wal", spec()).unwrap();
    deliver(session, &open(PEER, role.opposite())).unwrap();
    drain(session);
}

pub(super) fn receiving() -> Session {
    let mut session = Session::new(config());
    pair(&mut session, Role::Receiver);
    session
}

pub(super) fn sending() -> Session {
    let mut session = Session::new(config());
    pair(&mut session, Role::Sender);
    session
}

/// A receiving end with message 1 of 100 bytes announced.
pub(super) fn announced() -> Session {
    let mut session = receiving();
    deliver(
        &mut session,
        &frame(FrameKind::Records, PEER, 1, None, &large(1, 100)),
    )
    .unwrap();
    session
}

pub(super) fn deliver(session: &mut Session, bytes: &[u8]) -> Result<Arrival, PeerMisbehaved> {
    let header = FrameHeader::parse(bytes).unwrap().unwrap();
    let whole = match header.kind {
        FrameKind::Chunk => header.body_offset(),
        _ => header.length as usize,
    };
    session.handle_frame(&header, &bytes[..whole], 0)
}

/// Returns all events, and all control messages that go out.
pub(super) fn drain(session: &mut Session) -> (Vec<SessionEvent>, Vec<Control>) {
    let mut sent = Vec::new();
    let mut head = Vec::new();
    while session
        .poll_transmit(&mut Ring::default(), 0, &mut head)
        .is_some()
    {
        sent.extend(control_of(&head));
        head.clear();
    }
    (std::iter::from_fn(|| session.poll_event()).collect(), sent)
}

/// Returns the counters that the sender of end 1 receives without anything else going out.
pub(super) fn notified(session: &mut Session) -> Option<Counters> {
    let (events, _) = drain(session);
    events.into_iter().find_map(|event| match event {
        SessionEvent::Notified { counters, .. } => Some(counters),
        _ => None,
    })
}

/// Puts the next `count` empty records of end 1 on the wire.
pub(super) fn publish(session: &mut Session, count: usize) {
    let mut ring = Ring(VecDeque::from(vec![record_size(0, ALIGNMENT); count]));
    session.ends.mark_ready(1);
    while session
        .poll_transmit(&mut ring, 0, &mut Vec::new())
        .is_some()
    {}
}

/// A ring of one end: the sizes of its records.
#[derive(Default)]
pub(super) struct Ring(pub(super) VecDeque<usize>);

impl RecordSource for Ring {
    fn take_run(&mut self, _: u32, batch: usize, single: usize) -> Option<Run> {
        let bytes = self
            .0
            .front()
            .copied()
            .filter(|&bytes| bytes <= batch.max(single))?;
        self.0.pop_front();
        Some(Run {
            position: 0,
            bytes,
            records: 1,
            announcement: 0,
        })
    }

    fn has_records(&mut self, _: u32) -> bool {
        !self.0.is_empty()
    }

    fn forget_block(&mut self, _: u32, _: u64) {}
}

/// Everything released and acknowledged up to `released` records of 8 bytes.
pub(super) fn counters(released: u64) -> Counters {
    Counters {
        received: released,
        released,
        released_position: first_position(ALIGNMENT) + 8 * released,
        acknowledged: 0,
        acknowledgement_ended: false,
    }
}

pub(super) fn frame(
    kind: FrameKind,
    channel: u32,
    sequence: u64,
    extension: Option<Extension>,
    body: &[u8],
) -> Vec<u8> {
    let has_extension = extension.is_some();
    let length = HEADER_BYTES + if has_extension { EXTENSION_BYTES } else { 0 } + body.len();
    let header = FrameHeader {
        length: length as u32,
        channel,
        kind,
        extension: has_extension,
        pad: 0,
        sequence: sequence as u32,
    };
    let mut bytes = header.to_bytes().to_vec();
    bytes.extend(extension.iter().flat_map(Extension::to_bytes));
    bytes.extend_from_slice(body);
    bytes.resize(bytes.len().next_multiple_of(FRAME_ALIGNMENT), 0);
    bytes
}

pub(super) fn record(sequence: u64, payload: &[u8]) -> Vec<u8> {
    record_of(RecordKind::Data, sequence, payload)
}

pub(super) fn large(sequence: u64, length: u64) -> Vec<u8> {
    let announcement = LargeAnnouncement::in_chunks(length as usize);
    record_of(RecordKind::Large, sequence, announcement.bytes())
}

pub(super) fn record_of(kind: RecordKind, sequence: u64, payload: &[u8]) -> Vec<u8> {
    let header = RecordHeader {
        kind,
        length: payload.len() as u32,
        sequence_low: sequence as u32,
    };
    let mut bytes = header.to_word().to_le_bytes().to_vec();
    bytes.extend_from_slice(payload);
    bytes.resize(record_size(payload.len(), ALIGNMENT), 0);
    bytes
}

pub(super) fn records(first: u64, payloads: &[&[u8]]) -> Vec<u8> {
    let body: Vec<u8> = (first..)
        .zip(payloads)
        .flat_map(|(sequence, payload)| record(sequence, payload))
        .collect();
    frame(FrameKind::Records, PEER, first, None, &body)
}

pub(super) fn chunk(sequence: u64, bytes: usize) -> Vec<u8> {
    frame(FrameKind::Chunk, PEER, sequence, None, &vec![0; bytes])
}

pub(super) fn control(control: &Control) -> Vec<u8> {
    let mut body = Vec::new();
    control.encode(&mut body);
    frame(FrameKind::Control, 0, 0, None, &body)
}

pub(super) fn control_of(bytes: &[u8]) -> Option<Control> {
    let header = FrameHeader::parse(bytes).unwrap().unwrap();
    let body = &bytes[header.body_offset()..header.length as usize];
    (!body.is_empty()).then(|| Control::decode(body).unwrap())
}

pub(super) fn open(end: u32, role: Role) -> Vec<u8> {
    open_with(end, role, "wal", spec())
}

pub(super) fn open_with(end: u32, role: Role, name: &str, spec: ChannelSpec) -> Vec<u8> {
    control(&Control::Open {
        end,
        role,
        name: name.into(),
        spec: spec.into(),
    })
}

pub(super) fn close(role: Role, final_sequence: u64) -> Vec<u8> {
    close_of(PEER, role, final_sequence)
}

pub(super) fn close_of(end: u32, role: Role, final_sequence: u64) -> Vec<u8> {
    control(&Control::Close {
        end,
        role,
        reason: CloseReason::Dropped,
        final_sequence,
    })
}

pub(super) fn ask(ask: Ask) -> Vec<u8> {
    control(&Control::Ask { channel: PEER, ask })
}

pub(super) fn notified_by_peer(channel: u32, counters: Counters) -> Vec<u8> {
    let extension = Extension {
        counters: Some((channel, counters)),
        credit: None,
        answer: None,
        waited: false,
        wants: false,
    };
    frame(FrameKind::Control, 0, 0, Some(extension), b"")
}
