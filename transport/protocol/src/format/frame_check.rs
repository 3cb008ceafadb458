//! The checks of a frame on a stream: two CRC-32C that stand before its header.
//!
//! ```text
//!  0            4            8
//!  | head check | body check | header 16 | [extension 48] [pad] body | to 8
//! ```
//!
//! Rules:
//!
//! 1. The *head check* covers the body check, the header and the number of the frame. Both ends
//!    count frames from the beginning of the connection, so a frame that is missing, comes twice or
//!    stands in the place of another is noticed like a damaged one. No field of a header is
//!    believed before this check.
//! 2. The *body check* covers the parts that the session acts on: an extension, a control message,
//!    and the header and the announcement of each record. If the session checks payloads, the check
//!    covers every byte of a body. It is verified before any part of the body is acted on or handed
//!    out. Until then a record header only tells where the next one would be.
//! 3. Zeros that align or fill are not covered, because no code reads them.
//! 4. A chunk has no extension on a stream, since its body is read to its place as it comes
//!    and its check is known last.
//!
//! Frames over a queue pair have no checks: the device covers each packet by its invariant
//! CRC, from end to end.
//!
//! CRC-32C ([RFC 3385](https://www.rfc-editor.org/rfc/rfc3385)) finds every error of up to three bits and every burst of up to 32 in a frame, all
//! others but one in 2³², and processors compute it: 64 bytes take about 10 ns.
#![forbid(unsafe_code)]

use super::{
    frame::{EXTENSION_BYTES, FRAME_ALIGNMENT, FrameHeader, FrameKind, HEADER_BYTES},
    record::{self, LargeAnnouncement, RecordHeader},
};

/// Bytes that both checks take together.
pub const CHECK_BYTES: usize = 8;

/// Bytes of the checks and the header behind them.
pub const CHECKED_HEADER_BYTES: usize = CHECK_BYTES + HEADER_BYTES;

// Headers stay aligned as they are without checks.
const _: () = assert!(CHECK_BYTES.is_multiple_of(FRAME_ALIGNMENT));

/// Bytes that differ from those that were sent. Neither end is at fault, so the connection ends and
/// the session goes on over another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DamagedFrame {
    /// The header, or the place of the frame among the others.
    #[error("the checksum of a frame's header is wrong")]
    Head,
    /// The extension or the body.
    #[error("the checksum of a frame's contents is wrong")]
    Body,
}

/// The part of a body that its check covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Coverage {
    /// Every byte of the body.
    Whole,
    /// Headers and announcements of records that are aligned so.
    RecordHeaders {
        /// The alignment of the channel.
        alignment: usize,
    },
    /// The checksum covers no byte of the body.
    Nothing,
}

impl Coverage {
    /// The coverage for a frame of that kind. The channel's `alignment` is asked for where it
    /// matters; without a channel there is no coverage.
    #[inline]
    #[must_use]
    pub fn of(
        kind: FrameKind,
        payloads: bool,
        alignment: impl FnOnce() -> Option<usize>,
    ) -> Option<Self> {
        match kind {
            FrameKind::Control | FrameKind::Written => Some(Self::Whole),
            FrameKind::Records | FrameKind::Chunk if payloads => Some(Self::Whole),
            FrameKind::Chunk => Some(Self::Nothing),
            FrameKind::Records => alignment().map(|alignment| Self::RecordHeaders { alignment }),
        }
    }
}

/// The first bytes of a frame on a stream, as far as their check goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CheckedHead<'a> {
    /// The check that extension and body have to have.
    pub body_check: u32,
    /// From the header on.
    pub frame: &'a [u8],
}

/// Takes the checks from the front of `bytes`, where frame `number` begins; `None` while its
/// header is not whole.
#[inline]
pub fn verify_head(number: u64, bytes: &[u8]) -> Result<Option<CheckedHead<'_>>, DamagedFrame> {
    let Some(head) = bytes.first_chunk::<CHECKED_HEADER_BYTES>() else {
        return Ok(None);
    };
    if u32_at(head, 0) != head_check(number, head) {
        return Err(DamagedFrame::Head);
    }
    Ok(Some(CheckedHead {
        body_check: u32_at(head, 4),
        frame: &bytes[CHECK_BYTES..],
    }))
}

/// Verifies the check of a frame's extension and body. `frame` begins with its header, which
/// was verified, and is whole.
#[inline]
pub fn verify_body(
    header: &FrameHeader,
    frame: &[u8],
    coverage: Coverage,
    check: u32,
) -> Result<(), DamagedFrame> {
    let body = &frame[header.body_offset()..header.length as usize];
    if body_check(extension_of(header, frame), body, coverage) != check {
        return Err(DamagedFrame::Body);
    }
    Ok(())
}

/// Verifies the check of a body without an extension that lies elsewhere, as a chunk's.
pub fn verify_apart(body: &[u8], coverage: Coverage, check: u32) -> Result<(), DamagedFrame> {
    match body_check(&[], body, coverage) == check {
        true => Ok(()),
        false => Err(DamagedFrame::Body),
    }
}

/// Writes the checks of frame `number` to the front of `head`, where there is room for them
/// before the header. The body is behind that, or `apart`.
#[inline]
pub fn write_checks(number: u64, head: &mut [u8], apart: Option<&[u8]>, coverage: Coverage) {
    let frame = &head[CHECK_BYTES..];
    let header = FrameHeader::parse(frame).ok().flatten();
    let Some(header) = header else {
        debug_assert!(false, "a frame of ours has a header");
        return;
    };
    let body = match apart {
        Some(body) => body,
        None => &frame[header.body_offset()..header.length as usize],
    };
    let body_check = body_check(extension_of(&header, frame), body, coverage);
    head[4..CHECK_BYTES].copy_from_slice(&body_check.to_le_bytes());
    if let Some(head) = head.first_chunk_mut() {
        write_head_check(number, head);
    }
}

/// Checks and header of frame `number`, which has no extension, and is one record of an
/// ordinary message.
#[inline]
#[must_use]
pub fn head_of_lone(
    number: u64,
    header: &FrameHeader,
    record: &[u8],
    payloads: bool,
) -> [u8; CHECKED_HEADER_BYTES] {
    let covered = match payloads {
        true => record,
        false => &record[..record::HEADER_BYTES],
    };
    let mut head = [0; CHECKED_HEADER_BYTES];
    head[4..CHECK_BYTES].copy_from_slice(&crc(covered).to_le_bytes());
    head[CHECK_BYTES..].copy_from_slice(&header.to_bytes());
    write_head_check(number, &mut head);
    head
}

#[inline]
fn write_head_check(number: u64, head: &mut [u8; CHECKED_HEADER_BYTES]) {
    let check = head_check(number, head);
    head[..4].copy_from_slice(&check.to_le_bytes());
}

/// Frames that differ in nothing but their number differ in their check for certain.
#[inline]
fn head_check(number: u64, head: &[u8; CHECKED_HEADER_BYTES]) -> u32 {
    crc(&head[4..]) ^ number as u32
}

#[inline]
fn extension_of<'a>(header: &FrameHeader, frame: &'a [u8]) -> &'a [u8] {
    match header.extension {
        true => &frame[HEADER_BYTES..][..EXTENSION_BYTES],
        false => &[],
    }
}

#[inline]
fn body_check(extension: &[u8], body: &[u8], coverage: Coverage) -> u32 {
    let of_body = match coverage {
        Coverage::Whole => crc(body),
        Coverage::RecordHeaders { alignment } => of_record_headers(body, alignment),
        Coverage::Nothing => 0,
    };
    match extension {
        [] => of_body,
        extension => joined(crc(extension), of_body),
    }
}

/// Damage to the bytes of one of them changes the whole.
#[inline]
fn joined(first: u32, second: u32) -> u32 {
    first.rotate_left(1) ^ second
}

/// The check of every record's header, and of the announcements among them. The headers are not
/// verified yet and may be wrong, so the walk follows them only inside the body.
fn of_record_headers(body: &[u8], alignment: usize) -> u32 {
    // Shortcut for a frame of one message, which most frames are.
    if let Some((covered, size)) = covered_of(body, alignment)
        && size >= body.len()
    {
        return crc(covered);
    }
    let (mut batch, mut filled) = ([0; BATCH_BYTES], 0);
    let (mut rest, mut check) = (body, 0);
    while let Some((covered, size)) = covered_of(rest, alignment) {
        if filled + covered.len() > BATCH_BYTES {
            check = joined(check, crc(&batch[..filled]));
            filled = 0;
        }
        batch[filled..][..covered.len()].copy_from_slice(covered);
        filled += covered.len();
        rest = rest.get(size..).unwrap_or_default();
    }
    joined(check, crc(&batch[..filled]))
}

/// Finds what is covered of the record at the front, and its size; `None` where no record is.
#[inline]
fn covered_of(body: &[u8], alignment: usize) -> Option<(&[u8], usize)> {
    let Some(word) = body.first_chunk() else {
        // A body ends with a record.
        return (!body.is_empty()).then_some((body, body.len()));
    };
    let header = RecordHeader::from_word(u64::from_le_bytes(*word));
    let (covered, length) = match header {
        Some(Ok(header)) if header.kind.is_large() => {
            let announced = (header.length as usize).min(LargeAnnouncement::BYTES);
            (word.len() + announced, header.length)
        }
        Some(Ok(header)) => (word.len(), header.length),
        _ => (word.len(), 0),
    };
    let covered = &body[..covered.min(body.len())];
    Some((covered, record::record_size(length as usize, alignment)))
}

/// Headers that are checked at once.
const BATCH_BYTES: usize = 64 * record::HEADER_BYTES;

#[inline]
fn crc(bytes: &[u8]) -> u32 {
    crc_fast::crc32_iscsi(bytes)
}

#[inline]
fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

#[cfg(test)]
mod tests;
