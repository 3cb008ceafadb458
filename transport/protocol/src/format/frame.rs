//! The unit on the wire: a 16-byte little-endian header, an optional extension with
//! counters, and whole records, a chunk of a large message, or a control message.
//!
//! ```text
//!  0        4         8       10    11    12        16
//!  | length | channel | flags | pad | 0   | sequence | [extension 48] [pad] body | to 8
//! ```
//!
//! - `length` counts everything from the header to the end of the body, without the
//!   zeros that fill the frame up to a multiple of 8.
//! - `channel` is the id that the *sending end* of the channel chose; 0 means the
//!   session itself.
//! - `pad` zeros stand before the body, so that a record's payload lies aligned in the arrival
//!   block no matter what came before the frame. The sender knows the offset at which the frame
//!   will land (modulo 64) and computes it.
//! - `sequence` holds the low 32 bits of the first record's sequence, or of the large message that
//!   a chunk belongs to. In a control frame, `sequence` is [`TALK`] if the frame takes a reserved
//!   buffer, else 0.
//!
//! On a stream, [checks](super::frame_check) stand before the header. Over receive buffers a frame
//! travels as shown here, byte for byte, and the device notices damage to it.
#![forbid(unsafe_code)]

use super::counters::Counters;

/// Bytes of a frame's fixed header.
pub const HEADER_BYTES: usize = 16;

/// Bytes of the optional extension that carries counters and credit.
pub const EXTENSION_BYTES: usize = 48;

/// Frames are filled with zeros up to a multiple of this.
pub const FRAME_ALIGNMENT: usize = 8;

/// Arrival blocks begin at a multiple of this, and `pad` is computed modulo this.
pub const BLOCK_ALIGNMENT: usize = 64;

/// The longest frame of several records. A loopback segment carries 65 483 bytes of payload (65
/// 536 less the IPv4 and TCP headers with the timestamp option); one byte more makes the kernel
/// send a second, almost empty segment.
pub const BATCH_FRAME_BYTES: usize = 65_472;

/// The sequence of a control frame that is not charged (see
/// [`reserved_buffer`](crate::credit::reserved_buffer)).
pub const TALK: u32 = 1;

/// The most bytes before a body: header, extension and padding.
pub const HEAD_BYTES: usize = HEADER_BYTES + EXTENSION_BYTES + BLOCK_ALIGNMENT;

/// The longest chunk of a large message in one frame.
pub const MAX_CHUNK_BYTES: usize = BATCH_FRAME_BYTES - HEAD_BYTES;

/// The longest message that travels as a record; a longer one is announced and goes in chunks. Such
/// a frame costs a round trip less than an announcement, and a cut frame of this size is still a
/// small part of an arrival block.
pub const MAX_EAGER_BYTES: usize = 128 << 10;

/// The longest frame: one eager message with everything that stands before it.
pub const MAX_FRAME_BYTES: usize =
    MAX_EAGER_BYTES + HEAD_BYTES + super::record::HEADER_BYTES + BLOCK_ALIGNMENT;

/// The kind of a frame's body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrameKind {
    /// Whole records of a channel, at least one.
    Records,
    /// A part of a large message that was announced and granted before.
    Chunk,
    /// No body. Tells that a large message, which was announced and whose memory was granted, is
    /// written.
    Written,
    /// A control message, or nothing but an extension.
    Control,
}

/// A frame's header, checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameHeader {
    /// Bytes from the header to the end of the body.
    pub length: u32,
    /// The sending end's id; 0 is the session.
    pub channel: u32,
    /// The kind of the body.
    pub kind: FrameKind,
    /// An extension follows the header.
    pub extension: bool,
    /// Zeros between header (and extension) and body.
    pub pad: u8,
    /// Low 32 bits of the sequence of the first record or of the large message.
    pub sequence: u32,
}

/// The reason why bytes are not a frame. In each case the peer is at fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MalformedFrame {
    /// The length is below its own header, or above what a frame may hold.
    #[error("a frame claims {length} bytes, but frames have {minimum} to {MAX_FRAME_BYTES}")]
    Length {
        /// The length that the frame claims.
        length: u32,
        /// The length that the frame's own flags need.
        minimum: usize,
    },
    /// Flags that this version does not know, or that exclude each other.
    #[error("a frame has the unknown flags {flags:#06x}")]
    Flags {
        /// The flags as sent.
        flags: u16,
    },
    /// The padding is longer than any alignment asks for, or reserved bits are set.
    #[error("a frame has {pad} bytes of padding, more than an alignment can ask for")]
    Pad {
        /// The padding as sent.
        pad: u8,
    },
}

const FLAG_RECORDS: u16 = 1;
const FLAG_CHUNK: u16 = 2;
const FLAG_CONTROL: u16 = 4;
const FLAG_EXTENSION: u16 = 8;
const FLAG_WRITTEN: u16 = 16;

impl FrameHeader {
    /// The header of a frame without an extension and padding, whose length is not known yet.
    #[inline]
    #[must_use]
    pub fn new(kind: FrameKind, channel: u32, sequence: u32) -> Self {
        Self {
            length: 0,
            channel,
            kind,
            extension: false,
            pad: 0,
            sequence,
        }
    }

    /// Reads the header at the front of `bytes`; `None` while it is not whole.
    #[inline]
    pub fn parse(bytes: &[u8]) -> Result<Option<Self>, MalformedFrame> {
        let Some(bytes) = bytes.first_chunk::<HEADER_BYTES>() else {
            return Ok(None);
        };
        let flags = u16::from_le_bytes([bytes[8], bytes[9]]);
        let kind = match flags & !FLAG_EXTENSION {
            FLAG_RECORDS => FrameKind::Records,
            FLAG_CHUNK => FrameKind::Chunk,
            FLAG_CONTROL => FrameKind::Control,
            FLAG_WRITTEN => FrameKind::Written,
            _ => return Err(MalformedFrame::Flags { flags }),
        };
        let header = Self {
            length: u32_at(bytes, 0),
            channel: u32_at(bytes, 4),
            kind,
            extension: flags & FLAG_EXTENSION != 0,
            pad: bytes[10],
            sequence: u32_at(bytes, 12),
        };
        if usize::from(header.pad) >= BLOCK_ALIGNMENT || bytes[11] != 0 {
            return Err(MalformedFrame::Pad { pad: header.pad });
        }
        let minimum = header.body_offset();
        if (header.length as usize) < minimum || header.length as usize > MAX_FRAME_BYTES {
            return Err(MalformedFrame::Length {
                length: header.length,
                minimum,
            });
        }
        Ok(Some(header))
    }

    /// Bytes of it that have to be here before it can be handled: all, but that a chunk's body
    /// goes where it belongs as it comes.
    #[must_use]
    pub fn handled_length(&self) -> usize {
        match self.kind {
            FrameKind::Chunk => self.body_offset(),
            _ => self.padded_length(),
        }
    }

    /// The header of a frame of records without an extension that `frame` is all of; of
    /// every other frame, a malformed one among them, [`parse`](Self::parse) tells.
    #[inline(always)]
    #[must_use]
    pub fn parse_plain(frame: &[u8]) -> Option<Self> {
        let bytes = frame.first_chunk::<HEADER_BYTES>()?;
        let (first, second) = (u64_at(bytes, 0), u64_at(bytes, 8));
        let header = Self {
            length: first as u32,
            channel: (first >> 32) as u32,
            kind: FrameKind::Records,
            extension: false,
            pad: (second >> 16) as u8,
            sequence: (second >> 32) as u32,
        };
        // Checks the flags and the byte that is reserved.
        let is_plain = second & 0xff00_ffff == u64::from(FLAG_RECORDS)
            && usize::from(header.pad) < BLOCK_ALIGNMENT
            && header.length as usize == frame.len()
            && (header.body_offset()..=MAX_FRAME_BYTES).contains(&frame.len());
        is_plain.then_some(header)
    }

    /// The header as it stands on the wire.
    #[inline]
    #[must_use]
    pub fn to_bytes(&self) -> [u8; HEADER_BYTES] {
        let kind = match self.kind {
            FrameKind::Records => FLAG_RECORDS,
            FrameKind::Chunk => FLAG_CHUNK,
            FrameKind::Control => FLAG_CONTROL,
            FrameKind::Written => FLAG_WRITTEN,
        };
        let flags = kind | if self.extension { FLAG_EXTENSION } else { 0 };
        let mut bytes = [0; HEADER_BYTES];
        bytes[0..4].copy_from_slice(&self.length.to_le_bytes());
        bytes[4..8].copy_from_slice(&self.channel.to_le_bytes());
        bytes[8..10].copy_from_slice(&flags.to_le_bytes());
        bytes[10] = self.pad;
        bytes[12..16].copy_from_slice(&self.sequence.to_le_bytes());
        bytes
    }

    /// Appends the header, the extension that it says follows, and the padding behind that.
    #[inline]
    pub fn append_to(&self, extension: Option<Extension>, head: &mut Vec<u8>) {
        debug_assert_eq!(self.extension, extension.is_some());
        head.extend_from_slice(&self.to_bytes());
        if let Some(extension) = extension {
            head.extend_from_slice(&extension.to_bytes());
        }
        if self.pad > 0 {
            head.resize(head.len() + usize::from(self.pad), 0);
        }
    }

    /// Returns the offset of the body, counted from the header.
    #[inline]
    #[must_use]
    pub fn body_offset(&self) -> usize {
        let extension = if self.extension { EXTENSION_BYTES } else { 0 };
        HEADER_BYTES + extension + usize::from(self.pad)
    }

    /// Bytes of the body.
    #[inline]
    #[must_use]
    pub fn body_bytes(&self) -> usize {
        self.length as usize - self.body_offset()
    }

    /// Bytes that the frame takes on the wire, the filling zeros included.
    #[inline]
    #[must_use]
    pub fn padded_length(&self) -> usize {
        (self.length as usize).next_multiple_of(FRAME_ALIGNMENT)
    }
}

/// Changes that ride on any frame: one channel's counters, and the session's credit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Extension {
    /// A receiving end's counters, named by the id that the *sending* end chose.
    pub counters: Option<(u32, Counters)>,
    /// The total arrival bytes that the peer may have sent, ever.
    pub credit: Option<u64>,
    /// Talk that was taken from reserved buffers, up to this number.
    pub answer: Option<u16>,
    /// The frame's contents had to wait for credit.
    pub waited: bool,
    /// The frame takes the last credit, and more waits behind it.
    pub wants: bool,
}

const EXTENSION_COUNTERS: u32 = 1;
const EXTENSION_CREDIT: u32 = 2;
const EXTENSION_ENDED: u32 = 4;
/// The answer's number stands in the upper half.
const EXTENSION_ANSWER: u32 = 8;
const EXTENSION_WAITED: u32 = 16;
const EXTENSION_WANTS: u32 = 32;

impl Extension {
    /// Returns whether there is nothing to tell.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Reads the extension that follows a header. `bytes` starts behind the header.
    #[must_use]
    pub fn parse(bytes: &[u8; EXTENSION_BYTES]) -> Self {
        let flags = u32_at(bytes, 4);
        let counters = Counters {
            received: u64_at(bytes, 8),
            released: u64_at(bytes, 16),
            released_position: u64_at(bytes, 24),
            acknowledged: u64_at(bytes, 32),
            acknowledgement_ended: flags & EXTENSION_ENDED != 0,
        };
        Self {
            counters: (flags & EXTENSION_COUNTERS != 0).then_some((u32_at(bytes, 0), counters)),
            credit: (flags & EXTENSION_CREDIT != 0).then(|| u64_at(bytes, 40)),
            answer: (flags & EXTENSION_ANSWER != 0).then_some((flags >> 16) as u16),
            waited: flags & EXTENSION_WAITED != 0,
            wants: flags & EXTENSION_WANTS != 0,
        }
    }

    /// The extension as it stands on the wire.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; EXTENSION_BYTES] {
        let mut bytes = [0; EXTENSION_BYTES];
        let mut flags = 0;
        if let Some((channel, counters)) = self.counters {
            flags |= EXTENSION_COUNTERS;
            if counters.acknowledgement_ended {
                flags |= EXTENSION_ENDED;
            }
            bytes[0..4].copy_from_slice(&channel.to_le_bytes());
            bytes[8..16].copy_from_slice(&counters.received.to_le_bytes());
            bytes[16..24].copy_from_slice(&counters.released.to_le_bytes());
            bytes[24..32].copy_from_slice(&counters.released_position.to_le_bytes());
            bytes[32..40].copy_from_slice(&counters.acknowledged.to_le_bytes());
        }
        if let Some(credit) = self.credit {
            flags |= EXTENSION_CREDIT;
            bytes[40..48].copy_from_slice(&credit.to_le_bytes());
        }
        if let Some(answer) = self.answer {
            flags |= EXTENSION_ANSWER | u32::from(answer) << 16;
        }
        if self.waited {
            flags |= EXTENSION_WAITED;
        }
        if self.wants {
            flags |= EXTENSION_WANTS;
        }
        bytes[4..8].copy_from_slice(&flags.to_le_bytes());
        bytes
    }
}

/// Zeros to put before a body so that its payloads lie aligned.
///
/// `arrival_offset` is where the frame will begin in the arrival block (modulo
/// [`BLOCK_ALIGNMENT`]); the first record's header word ends where its payload
/// begins, 8 bytes further on.
#[inline]
#[must_use]
pub fn pad_for(arrival_offset: usize, extension: bool, alignment: usize) -> u8 {
    let extension = if extension { EXTENSION_BYTES } else { 0 };
    let payload = arrival_offset + HEADER_BYTES + extension + super::record::HEADER_BYTES;
    debug_assert!(alignment.is_power_of_two());
    (payload.wrapping_neg() & (alignment - 1)) as u8
}

#[inline]
fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

#[inline]
fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from(u32_at(bytes, at)) | u64::from(u32_at(bytes, at + 4)) << 32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_survives_the_wire() {
        let header = FrameHeader {
            length: 1000,
            channel: 7,
            kind: FrameKind::Records,
            extension: true,
            pad: 40,
            sequence: 0xffff_fff0,
        };
        assert_eq!(FrameHeader::parse(&header.to_bytes()), Ok(Some(header)));
        assert_eq!(header.body_offset(), 16 + 48 + 40);
        assert_eq!(header.padded_length(), 1000);
    }

    #[test]
    fn a_header_that_lies_is_refused() {
        let good = FrameHeader {
            length: 16,
            channel: 0,
            kind: FrameKind::Control,
            extension: false,
            pad: 0,
            sequence: 0,
        };
        assert_eq!(FrameHeader::parse(&good.to_bytes()[..15]), Ok(None));
        let short = FrameHeader { length: 15, ..good };
        assert!(matches!(
            FrameHeader::parse(&short.to_bytes()),
            Err(MalformedFrame::Length {
                length: 15,
                minimum: 16
            })
        ));
        let long = FrameHeader {
            length: MAX_FRAME_BYTES as u32 + 1,
            ..good
        };
        assert!(FrameHeader::parse(&long.to_bytes()).is_err());
        let extension_cut = FrameHeader {
            length: 63,
            extension: true,
            ..good
        };
        assert!(FrameHeader::parse(&extension_cut.to_bytes()).is_err());
        let mut flags = good.to_bytes();
        flags[8] = 3;
        assert_eq!(
            FrameHeader::parse(&flags),
            Err(MalformedFrame::Flags { flags: 3 })
        );
        let padded = FrameHeader {
            length: 128,
            pad: 64,
            ..good
        };
        assert_eq!(
            FrameHeader::parse(&padded.to_bytes()),
            Err(MalformedFrame::Pad { pad: 64 })
        );
    }

    #[test]
    fn an_extension_survives_the_wire() {
        let counters = Counters {
            received: 9,
            released: 7,
            released_position: 700,
            acknowledged: 5,
            acknowledgement_ended: true,
        };
        for extension in [
            Extension {
                counters: Some((3, counters)),
                credit: None,
                answer: Some(0),
                waited: true,
                wants: false,
            },
            Extension {
                counters: None,
                credit: Some(u64::MAX),
                answer: Some(u16::MAX),
                waited: false,
                wants: true,
            },
            Extension {
                counters: Some((3, counters)),
                credit: Some(1),
                answer: None,
                waited: true,
                wants: true,
            },
            Extension::default(),
        ] {
            assert_eq!(Extension::parse(&extension.to_bytes()), extension);
        }
    }

    #[test]
    fn padding_aligns_the_payload() {
        for alignment in [8, 16, 32, 64] {
            for arrival_offset in (0..64).step_by(8) {
                for extension in [false, true] {
                    let pad = usize::from(pad_for(arrival_offset, extension, alignment));
                    let ext = if extension { EXTENSION_BYTES } else { 0 };
                    assert_eq!(
                        (arrival_offset + HEADER_BYTES + ext + pad + 8) % alignment,
                        0
                    );
                    assert!(pad < alignment);
                }
            }
        }
    }
}
