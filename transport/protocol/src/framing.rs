//! Framing: the longest frames of a wire, and the credit that frames cost.
//!
//! On a wire of receive buffers every frame takes one, so every frame costs one credit,
//! and without credit nothing is sent but talk about credit, for which
//! [a buffer is reserved](super::credit::reserved_buffer).
#![forbid(unsafe_code)]

use super::format::{
    frame::{
        BATCH_FRAME_BYTES, FrameHeader, FrameKind, HEAD_BYTES, MAX_EAGER_BYTES, MAX_FRAME_BYTES,
        TALK,
    },
    frame_check::CHECK_BYTES,
    record::{HEADER_BYTES, MAX_ALIGNMENT},
};

/// The medium that frames travel in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Carriage {
    /// A stream of bytes. Credit counts the bytes of frames with records, and of their
    /// checks.
    Stream,
    /// Messages into receive buffers, one frame each. Credit counts buffers.
    Buffers {
        /// The length of a buffer, at least [`LEAST_BUFFER_BYTES`].
        bytes: usize,
    },
}

/// The shortest receive buffer: the longest control frame fits it.
pub const LEAST_BUFFER_BYTES: usize = super::credit::session::CONTROL_RESERVE_BYTES as usize;

impl Carriage {
    /// The longest frame.
    #[must_use]
    pub const fn frame_bytes(self) -> usize {
        match self {
            Carriage::Stream => MAX_FRAME_BYTES,
            Carriage::Buffers { bytes } => bytes,
        }
    }

    /// The longest frame of several records, and of a chunk.
    #[must_use]
    pub const fn batch_bytes(self) -> usize {
        match self {
            Carriage::Stream => BATCH_FRAME_BYTES,
            Carriage::Buffers { bytes } => bytes,
        }
    }

    /// The longest chunk of a large message.
    #[must_use]
    pub const fn chunk_bytes(self) -> usize {
        self.batch_bytes() - HEAD_BYTES
    }

    /// The longest message that travels as a record.
    #[must_use]
    pub const fn eager_bytes(self) -> usize {
        match self {
            Carriage::Stream => MAX_EAGER_BYTES,
            Carriage::Buffers { bytes } => bytes - HEAD_BYTES - HEADER_BYTES - MAX_ALIGNMENT,
        }
    }

    /// Returns the offset in arrival memory, modulo 64, of a frame whose predecessor ended at
    /// `arrival_offset`.
    #[must_use]
    pub const fn arrival_offset(self, arrival_offset: usize) -> usize {
        match self {
            Carriage::Stream => arrival_offset,
            Carriage::Buffers { .. } => 0,
        }
    }

    /// Returns the credit that a frame costs.
    #[inline]
    #[must_use]
    pub fn cost(self, header: &FrameHeader) -> u64 {
        match (self, header.kind) {
            (Carriage::Stream, FrameKind::Records) => (header.padded_length() + CHECK_BYTES) as u64,
            (Carriage::Stream, _) => 0,
            (Carriage::Buffers { .. }, _) => u64::from(!self.is_talk(header)),
        }
    }

    /// Tells whether a frame is a chunk on a stream, which has
    /// [no extension](super::format::frame_check).
    #[inline]
    #[must_use]
    pub fn is_chunk_of_stream(self, header: &FrameHeader) -> bool {
        self == Carriage::Stream && header.kind == FrameKind::Chunk
    }

    /// Returns whether a frame takes a reserved buffer.
    #[inline]
    #[must_use]
    pub fn is_talk(self, header: &FrameHeader) -> bool {
        self != Carriage::Stream && header.kind == FrameKind::Control && header.sequence == TALK
    }

    /// Returns the cost of a control frame of the session that is no talk.
    #[must_use]
    pub const fn control_cost(self) -> u64 {
        match self {
            Carriage::Stream => 0,
            Carriage::Buffers { .. } => 1,
        }
    }

    /// The most that a frame may cost.
    const fn highest_cost(self) -> u64 {
        match self {
            Carriage::Stream => (MAX_FRAME_BYTES as u64).next_multiple_of(8),
            Carriage::Buffers { .. } => 1,
        }
    }

    /// The least credit that is of use: with it, any frame goes out sooner or later. Half of the
    /// lent credit may be owed and untold, so this is twice the highest cost if costs differ.
    #[must_use]
    pub const fn grain(self) -> u64 {
        match self {
            Carriage::Stream => 2 * self.highest_cost(),
            Carriage::Buffers { .. } => 1,
        }
    }
}
