//! Share of one session in a turn of its engine.
//!
//! Rules:
//!
//! 1. A share is counted in frames and in bytes. A read of the socket brings up to a block, which
//!    may hold one frame or sixty thousand, so counting reads would bound neither.
//! 2. A session that has used up its share leaves the rest where it arrived. The next turn
//!    continues with the rest before it reads anything, and no thread sleeps meanwhile.
//! 3. Inside TLS a turn opens as many records as it takes in frames, since a peer may put each byte
//!    into a record of its own.
//! 4. After a share was used up, the engine asks epoll, so that sessions which no turn looked at
//!    lately come before the next share of the same session. A driving task lets the reactor run.
//!
//! Over a queue pair a turn takes 32 completions of all sessions together, with a frame each, in
//! the order of their arrival. So queue pairs need no share.
#![forbid(unsafe_code)]

/// The rest of one session's share.
#[derive(Debug)]
pub(crate) struct TurnShare {
    frames: usize,
    bytes: usize,
}

/// Most frames of a session that one turn takes in. Empty frames take some 20 µs.
pub(crate) const FRAMES_PER_TURN: usize = 256;
/// Number of bytes after which no other frame and no other piece of a long message is begun: the
/// most that one read brings.
const BYTES_PER_TURN: usize = 1 << 20;
/// Most messages that one poll takes from the Unix socket of a session.
pub(crate) const PASSED_PER_TURN: usize = 64;

impl TurnShare {
    /// Returns the full share of a session in a turn.
    pub(crate) fn new() -> Self {
        Self {
            frames: FRAMES_PER_TURN,
            bytes: BYTES_PER_TURN,
        }
    }

    /// Counts a frame that was taken in, with its bytes.
    #[inline]
    pub(crate) fn take_frame(&mut self, bytes: usize) {
        self.frames = self.frames.saturating_sub(1);
        self.take_bytes(bytes);
    }

    /// Counts bytes that were read directly into their place.
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
