//! How the wire below a session carries frames: how long they may be, and what credit
//! they cost.
//!
//! Rules for wires of receive buffers:
//!
//! 1. Every frame takes one buffer of the peer's, so every frame costs one credit, and
//!    without credit nothing is sent, except:
//! 2. A frame that says nothing but new credit costs none. Asking for credit must not need
//!    credit: without this, two sides that have both used theirs would wait for each other.
//! 3. Such a frame is due once half the budget is owed. At most two are on their way at a
//!    time: after the second the peer has no credit left to make more owed before it has
//!    taken the first. So [`RESERVED_BUFFERS`] more than the credit are posted, and that is
//!    all that an honest peer can take.
#![forbid(unsafe_code)]

use super::{
    frame::{
        BATCH_FRAME_BYTES, Extension, FrameHeader, FrameKind, HEAD_BYTES, MAX_EAGER_BYTES,
        MAX_FRAME_BYTES,
    },
    record::{HEADER_BYTES, MAX_ALIGNMENT},
};

/// What frames travel in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Carriage {
    /// A stream of bytes. Credit counts the bytes of frames with records.
    Stream,
    /// Messages into receive buffers, one frame each. Credit counts buffers.
    Buffers {
        /// The length of a buffer, at least [`LEAST_BUFFER_BYTES`].
        bytes: usize,
    },
}

/// Buffers that are posted beside those that credit is given for (rule 3).
pub const RESERVED_BUFFERS: u64 = 2;

/// The shortest receive buffer: the longest control frame fits it.
pub const LEAST_BUFFER_BYTES: usize = super::session_credit::CONTROL_RESERVE_BYTES as usize;

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

    /// Where a frame begins in arrival memory, modulo 64, when `landing` is where the one
    /// before it ended.
    #[must_use]
    pub const fn landing(self, landing: usize) -> usize {
        match self {
            Carriage::Stream => landing,
            Carriage::Buffers { .. } => 0,
        }
    }

    /// What a frame costs.
    #[must_use]
    pub fn cost(self, header: &FrameHeader, extension: Option<&Extension>) -> u64 {
        match (self, header.kind) {
            (Carriage::Stream, FrameKind::Records) => header.padded_length() as u64,
            (Carriage::Stream, _) => 0,
            (Carriage::Buffers { .. }, FrameKind::Control) => {
                let says_credit = extension.is_some_and(|extension| extension.credit.is_some());
                u64::from(header.body_bytes() > 0 || !says_credit)
            }
            (Carriage::Buffers { .. }, _) => 1,
        }
    }
}
