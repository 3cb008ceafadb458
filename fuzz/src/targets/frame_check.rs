//! Frames on a stream, with the checks before them. The checks are computed here, since a fuzzer
//! cannot guess one: an input consists of frames without checks, and of a change to one of their
//! bits.
#![forbid(unsafe_code)]

use ibex_protocol::format::control::{Ask, Control};
use ibex_protocol::format::frame::{Extension, FRAME_ALIGNMENT, FrameHeader, FrameKind};
use ibex_protocol::format::frame_check::{
    CHECK_BYTES, CHECKED_HEADER_BYTES, Coverage, DamagedFrame, verify_apart, verify_body,
    verify_head, write_checks,
};
use ibex_protocol::format::record::{RecordHeader, RecordKind, record_size};

use crate::Seed;
use crate::reader::Reader;

/// Feeds settings, and consecutive whole frames. Accepts frames whose given checks are right, if a
/// flipped bit of their head is noticed.
pub(crate) fn accepts(bytes: &[u8]) -> bool {
    let mut reader = Reader::new(bytes);
    let (Some(settings), Some(bit)) = (reader.byte(), reader.byte()) else {
        return false;
    };
    let payloads = settings & 1 != 0;
    let alignment = 8 << ((settings >> 1) % 4);
    let mut rest = reader.rest();
    // Without computed checks no check is right, and the parser may only report that.
    hear_anything(rest, payloads, alignment);
    let mut number = u64::from(bit) << 25;
    let mut any = false;
    while !rest.is_empty() {
        let Ok(Some(header)) = FrameHeader::parse(rest) else {
            return false;
        };
        let Some((frame, behind)) = rest.split_at_checked(header.padded_length()) else {
            return false;
        };
        let coverage = Coverage::of(header.kind, payloads, || Some(alignment));
        let coverage = coverage.expect("there is a channel");
        let mut sealed = vec![0; CHECK_BYTES];
        sealed.extend_from_slice(frame);
        write_checks(number, &mut sealed, None, coverage);
        assert_eq!(hear(number, &sealed, payloads, alignment), Ok(()));
        let next = number + 1;
        assert_eq!(
            hear(next, &sealed, payloads, alignment),
            Err(DamagedFrame::Head)
        );
        let at = usize::from(bit) % (8 * CHECKED_HEADER_BYTES);
        sealed[at / 8] ^= 1 << (at % 8);
        assert_eq!(
            hear(number, &sealed, payloads, alignment),
            Err(DamagedFrame::Head)
        );
        (number, rest, any) = (next, behind, true);
    }
    any
}

/// Reads a frame, whether its head is right or not, as a wire does.
fn hear(number: u64, bytes: &[u8], payloads: bool, alignment: usize) -> Result<(), DamagedFrame> {
    let Some(head) = verify_head(number, bytes)? else {
        return Ok(());
    };
    let header = FrameHeader::parse(head.frame).expect("it was parsed before");
    let header = header.expect("it is whole");
    let coverage = Coverage::of(header.kind, payloads, || Some(alignment));
    let coverage = coverage.expect("there is a channel");
    let frame = &head.frame[..header.length as usize];
    match header.kind {
        FrameKind::Chunk if !header.extension => {
            verify_apart(&frame[header.body_offset()..], coverage, head.body_check)
        }
        _ => verify_body(&header, frame, coverage, head.body_check),
    }
}

/// Walks the bodies of frames before their check is known to be right.
fn hear_anything(bytes: &[u8], payloads: bool, alignment: usize) {
    let _ = verify_head(0, bytes);
    let Ok(Some(header)) = FrameHeader::parse(bytes) else {
        return;
    };
    if let Some(frame) = bytes.get(..header.length as usize) {
        let coverage = Coverage::of(header.kind, payloads, || Some(alignment));
        let coverage = coverage.expect("there is a channel");
        let _ = verify_body(&header, frame, coverage, 0);
    }
    let coverage = Coverage::RecordHeaders { alignment };
    let _ = verify_apart(bytes, coverage, 0);
}

pub(crate) fn seeds() -> Vec<Seed> {
    let mut ask = Vec::new();
    let wish = Ask::received(3);
    Control::Ask {
        channel: 1,
        ask: wish,
    }
    .encode(&mut ask);
    let mut records = Vec::new();
    for (sequence, payload) in [&b"one"[..], b"", b"three"].into_iter().enumerate() {
        let header = RecordHeader {
            kind: RecordKind::Data,
            length: payload.len() as u32,
            sequence_low: sequence as u32 + 1,
        };
        let start = records.len();
        records.extend_from_slice(&header.to_word().to_le_bytes());
        records.extend_from_slice(payload);
        records.resize(start + record_size(payload.len(), 8), 0);
    }
    let changes = Extension {
        credit: Some(1 << 20),
        ..Extension::default()
    };
    let frames = [
        frame(FrameKind::Control, None, &ask),
        frame(FrameKind::Records, Some(changes), &records),
        frame(FrameKind::Records, None, &records),
        frame(FrameKind::Chunk, None, b"a part of a message"),
    ];
    let all = frames.concat();
    vec![
        Seed {
            name: "headers",
            bytes: [&[0, 77][..], &all].concat(),
        },
        Seed {
            name: "payloads",
            bytes: [&[1, 191][..], &all].concat(),
        },
    ]
}

fn frame(kind: FrameKind, extension: Option<Extension>, body: &[u8]) -> Vec<u8> {
    let mut header = FrameHeader {
        length: 0,
        channel: 1,
        kind,
        extension: extension.is_some(),
        pad: 0,
        sequence: 1,
    };
    header.length = (header.body_offset() + body.len()) as u32;
    let mut bytes = Vec::new();
    header.append_to(extension, &mut bytes);
    bytes.extend_from_slice(body);
    bytes.resize(bytes.len().next_multiple_of(FRAME_ALIGNMENT), 0);
    bytes
}
