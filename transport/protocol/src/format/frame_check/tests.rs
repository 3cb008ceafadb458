use proptest::prelude::*;

use super::*;
use crate::format::{
    counters::Counters,
    frame::{BLOCK_ALIGNMENT, Extension},
    record::{RecordKind, record_size},
};

/// A frame with its checks, and what of it the checks cover.
#[derive(Debug)]
struct Sealed {
    number: u64,
    payloads: bool,
    alignment: usize,
    bytes: Vec<u8>,
    is_covered: Vec<bool>,
}

impl Sealed {
    /// Verifies a frame like an honest receiver.
    fn verify(&self, number: u64, bytes: &[u8]) -> Result<(), DamagedFrame> {
        let head = verify_head(number, bytes)?.expect("it is whole");
        let header = FrameHeader::parse(head.frame).unwrap().unwrap();
        let alignment = || Some(self.alignment);
        let coverage = Coverage::of(header.kind, self.payloads, alignment).unwrap();
        let frame = &head.frame[..header.length as usize];
        match header.kind {
            FrameKind::Chunk => {
                verify_apart(&frame[header.body_offset()..], coverage, head.body_check)
            }
            _ => verify_body(&header, frame, coverage, head.body_check),
        }
    }

    fn is_noticed(&self, bytes: &[u8]) -> bool {
        self.verify(self.number, bytes).is_err()
    }
}

fn extensions() -> impl Strategy<Value = Extension> {
    (any::<[u64; 5]>(), any::<u32>(), any::<bool>()).prop_map(|(words, channel, ended)| {
        let counters = Counters {
            received: words[0],
            released: words[1],
            released_position: words[2],
            acknowledged: words[3],
            acknowledgement_ended: ended,
        };
        Extension {
            counters: Some((channel, counters)),
            credit: Some(words[4]),
            ..Extension::default()
        }
    })
}

/// A body of records, and which of its bytes are headers or announcements.
fn records(payloads: &[(bool, Vec<u8>)], alignment: usize) -> (Vec<u8>, Vec<bool>) {
    let (mut body, mut is_header) = (Vec::new(), Vec::new());
    for (sequence, (is_large, payload)) in (1..).zip(payloads) {
        let announcement = match payload.len() % 2 {
            0 => LargeAnnouncement::in_chunks(1 + payload.len()),
            _ => LargeAnnouncement::in_segment(1 + payload.len(), 7, true),
        };
        let (kind, payload) = match is_large {
            true => (RecordKind::Large, announcement.bytes()),
            false => (RecordKind::Data, &payload[..]),
        };
        let header = RecordHeader {
            kind,
            length: payload.len() as u32,
            sequence_low: sequence,
        };
        let start = body.len();
        body.extend_from_slice(&header.to_word().to_le_bytes());
        body.extend_from_slice(payload);
        let covered = match is_large {
            true => body.len(),
            false => start + record::HEADER_BYTES,
        };
        is_header.resize(covered, true);
        body.resize(start + record_size(payload.len(), alignment), 0);
        is_header.resize(body.len(), false);
    }
    (body, is_header)
}

fn sealed_frames() -> impl Strategy<Value = Sealed> {
    let kinds = prop_oneof![
        Just(FrameKind::Records),
        Just(FrameKind::Chunk),
        Just(FrameKind::Control),
    ];
    let messages = prop::collection::vec(
        (
            prop::bool::weighted(0.1),
            prop::collection::vec(any::<u8>(), 0..40),
        ),
        1..90,
    );
    let alignments = prop_oneof![Just(8_usize), Just(16), Just(64)];
    let sides = (any::<u64>(), any::<bool>(), any::<u32>(), 0..8_u8);
    let parts = (kinds, messages, alignments, prop::option::of(extensions()));
    (parts, sides).prop_map(|((kind, messages, alignment, extension), sides)| {
        let (number, payloads, channel, pad) = sides;
        let extension = extension.filter(|_| kind != FrameKind::Chunk);
        let (body, is_header) = match kind {
            FrameKind::Records => records(&messages, alignment),
            _ => {
                let body: Vec<u8> = messages.into_iter().flat_map(|(_, bytes)| bytes).collect();
                let is_control = vec![kind == FrameKind::Control; body.len()];
                (body, is_control)
            }
        };
        let pad = 8 * pad;
        let mut header = FrameHeader {
            length: 0,
            channel,
            kind,
            extension: extension.is_some(),
            pad,
            sequence: number as u32,
        };
        header.length = (header.body_offset() + body.len()) as u32;
        let mut bytes = vec![0; CHECK_BYTES];
        header.append_to(extension, &mut bytes);
        let mut is_covered = vec![true; bytes.len() - usize::from(pad)];
        is_covered.resize(bytes.len(), false);
        is_covered.extend(is_header.iter().map(|is_header| *is_header || payloads));
        let coverage = Coverage::of(kind, payloads, || Some(alignment)).unwrap();
        write_checks(number, &mut bytes, Some(&body), coverage);
        bytes.extend_from_slice(&body);
        // The checks do not depend on where the body lies.
        let mut inline = bytes.clone();
        inline[..CHECK_BYTES].fill(0);
        write_checks(number, &mut inline, None, coverage);
        assert!(inline == bytes);
        Sealed {
            number,
            payloads,
            alignment,
            bytes,
            is_covered,
        }
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn every_flipped_bit_that_is_covered_is_noticed(frame in sealed_frames()) {
        let Sealed { bytes, is_covered, number, .. } = &frame;
        prop_assert_eq!(frame.verify(*number, bytes), Ok(()));
        let mut flipped = bytes.clone();
        for at in 0..bytes.len() {
            for bit in 0..8 {
                flipped[at] ^= 1 << bit;
                prop_assert_eq!(frame.is_noticed(&flipped), is_covered[at], "byte {}", at);
                flipped[at] ^= 1 << bit;
            }
        }
    }

    /// A frame that is missing, doubled or moved has another number than the one that is due.
    #[test]
    fn a_frame_in_another_place_is_noticed(frame in sealed_frames(), away in 1..u64::from(u32::MAX)) {
        let Sealed { bytes, number, .. } = &frame;
        prop_assert_eq!(frame.verify(number.wrapping_add(away), bytes), Err(DamagedFrame::Head));
        prop_assert_eq!(frame.verify(number.wrapping_sub(away), bytes), Err(DamagedFrame::Head));
    }

    #[test]
    fn a_header_is_not_believed_before_it_is_whole(frame in sealed_frames()) {
        for length in 0..CHECKED_HEADER_BYTES {
            prop_assert_eq!(verify_head(frame.number, &frame.bytes[..length]), Ok(None));
        }
    }

    /// Bytes that are lost, doubled or swapped within a frame that is covered whole.
    #[test]
    fn moved_bytes_are_noticed(frame in sealed_frames(), at: prop::sample::Index, other: prop::sample::Index) {
        let is_whole = frame.payloads || !frame.is_covered.contains(&false);
        let end = frame.bytes.len();
        let [at, other] = [at.index(end), other.index(end)];
        let mut lost = frame.bytes.clone();
        // Bytes behind a frame belong to another frame.
        lost.push(0x55);
        let last = lost.len() - 1;
        let mut doubled = lost.clone();
        lost.remove(at);
        doubled.insert(at, doubled[at]);
        doubled.truncate(last);
        let mut swapped = frame.bytes.clone();
        swapped.swap(at, other);
        for damaged in [&lost[..], &doubled[..], &swapped[..]] {
            let in_pad = damaged.iter().zip(&frame.bytes).zip(&frame.is_covered)
                .all(|((new, old), is_covered)| new == old || !is_covered);
            if is_whole && damaged.len() >= end && !in_pad {
                prop_assert!(frame.is_noticed(&damaged[..end]));
            }
        }
    }

    /// The walk ends inside the body, whatever unverified headers say.
    #[test]
    fn records_of_any_bytes_are_walked(words: Vec<u64>, cut in 0..8_usize, alignment in 3..7_u32) {
        let mut body: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        body.truncate(body.len().saturating_sub(cut));
        body_check(&[], &body, Coverage::RecordHeaders { alignment: 1 << alignment });
    }

    #[test]
    fn the_head_of_one_message_is_that_of_its_frame(
        number: u64,
        payload in prop::collection::vec(any::<u8>(), 0..180),
        payloads: bool,
        pad in 0..8_u8,
    ) {
        let (record, _) = records(&[(false, payload)], 8);
        let header = FrameHeader {
            length: (HEADER_BYTES + 8 * usize::from(pad) + record.len()) as u32,
            channel: 3,
            kind: FrameKind::Records,
            extension: false,
            pad: 8 * pad,
            sequence: 9,
        };
        let lone = head_of_lone(number, &header, &record, payloads);
        let mut head = vec![0; CHECK_BYTES];
        header.append_to(None, &mut head);
        let coverage = Coverage::of(FrameKind::Records, payloads, || Some(8)).unwrap();
        write_checks(number, &mut head, Some(&record), coverage);
        prop_assert_eq!(&head[..CHECKED_HEADER_BYTES], &lone[..]);
    }
}

#[test]
fn it_is_crc_32_of_iscsi() {
    // Test vectors of [RFC 3720, B.4](https://www.rfc-editor.org/rfc/rfc3720#appendix-B.4).
    assert_eq!(crc(&[0; 32]), 0x8a91_36aa);
    assert_eq!(crc(b"123456789"), 0xe306_9283);
}

#[test]
fn a_stream_of_zeros_is_no_frame() {
    let zeros = [0; CHECKED_HEADER_BYTES];
    assert_eq!(verify_head(0, &zeros), Err(DamagedFrame::Head));
}

/// The longest head with its checks is not longer than credit is charged for.
#[test]
fn checks_fit_where_heads_are_counted() {
    let longest_pad = BLOCK_ALIGNMENT - FRAME_ALIGNMENT;
    let longest = CHECKED_HEADER_BYTES + EXTENSION_BYTES + longest_pad;
    assert!(longest <= crate::format::frame::HEAD_BYTES);
}
