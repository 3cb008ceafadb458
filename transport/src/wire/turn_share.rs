//! Share of one session in a turn of its engine.
//!
//! Rules:
//!
//! 1. A share is counted in frames and in bytes. A read of the socket brings up to
//!    a block, which may be one frame or sixty thousand: counting reads bounds neither.
//! 2. A session that has used its share leaves the rest where it arrived. The next turn goes on
//!    with that before it reads anything, and no thread sleeps meanwhile.
//! 3. Behind a share that was used up the engine asks epoll, so that sessions which no turn
//!    looked at lately come before the next share of the same one.
//!
//! Over a queue pair a turn takes 32 completions of all sessions together, a frame each, in
//! the order in which they came: that needs no share.
#![forbid(unsafe_code)]

/// The rest of one session's share.
#[derive(Debug)]
pub(crate) struct TurnShare {
    frames: usize,
    bytes: usize,
}

/// Frames that one turn takes in of a session. Some 20 µs if there is nothing in them.
pub(crate) const FRAMES_PER_TURN: usize = 256;
/// Bytes after which no other frame, and no other piece of a long message, is begun: as much as
/// one read brings at most.
const BYTES_PER_TURN: usize = 1 << 20;
/// Messages that one look takes off the Unix socket of a session.
pub(crate) const PASSED_PER_TURN: usize = 64;

impl TurnShare {
    /// The full share of a session in a turn.
    pub(crate) fn new() -> Self {
        Self {
            frames: FRAMES_PER_TURN,
            bytes: BYTES_PER_TURN,
        }
    }

    /// A frame was taken in, with so many bytes.
    #[inline]
    pub(crate) fn take_frame(&mut self, bytes: usize) {
        self.frames = self.frames.saturating_sub(1);
        self.take_bytes(bytes);
    }

    /// Bytes came straight to where they belong.
    #[inline]
    pub(crate) fn take_bytes(&mut self, bytes: usize) {
        self.bytes = self.bytes.saturating_sub(bytes);
    }

    #[inline]
    pub(crate) fn is_spent(&self) -> bool {
        self.frames == 0 || self.bytes == 0
    }
}

#[cfg(test)]
mod tests;
