//! Large messages: announced in the ring, granted by the receiver, carried in chunks.
//!
//! The announcement is an ordinary record, so the message keeps its place in the order;
//! its bytes travel beside the ring, straight into memory that the receiver granted,
//! and are charged to no session credit. Two may be under way per channel: while the
//! chunks of one go out, the memory of the next is granted. Frames keep their order, so
//! what is announced behind a message's last chunk finds that message complete, and both
//! ends count alike without a word.
#![forbid(unsafe_code)]

use std::collections::VecDeque;

/// How many large messages of one channel may be announced, or about to be, and not yet
/// sent whole.
pub const LARGE_PER_CHANNEL: usize = 2;

/// A chunk to send: `bytes` from `offset` of large message `sequence`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Chunk {
    /// The message.
    pub sequence: u64,
    /// Where in the message the chunk begins.
    pub offset: u64,
    /// How long it is.
    pub bytes: usize,
}

#[derive(Debug)]
struct Transfer {
    sequence: u64,
    length: u64,
    granted: bool,
    done: u64,
}

/// One end's large messages under way, in order.
#[derive(Debug, Default)]
pub(super) struct Transfers {
    under_way: VecDeque<Transfer>,
}

impl Transfers {
    /// Adds a message behind the others.
    pub(super) fn announce(&mut self, sequence: u64, length: u64) {
        self.under_way.push_back(Transfer {
            sequence,
            length,
            granted: false,
            done: 0,
        });
    }

    /// The sequences and lengths of the last so many that were announced.
    pub(super) fn newest(&self, count: usize) -> impl Iterator<Item = (u64, u64)> {
        let newest = self.under_way.range(self.under_way.len() - count..);
        newest.map(|transfer| (transfer.sequence, transfer.length))
    }

    pub(super) fn is_full(&self) -> bool {
        self.under_way.len() >= LARGE_PER_CHANNEL
    }

    pub(super) fn is_empty(&self) -> bool {
        self.under_way.is_empty()
    }

    /// Marks `sequence` as granted; false if it was not announced or already granted.
    pub(super) fn grant(&mut self, sequence: u64) -> bool {
        match self
            .under_way
            .iter_mut()
            .find(|transfer| transfer.sequence == sequence)
        {
            Some(transfer) if !transfer.granted => {
                transfer.granted = true;
                true
            }
            _ => false,
        }
    }

    /// The oldest message that is not complete.
    pub(super) fn oldest(&self) -> Option<u64> {
        self.under_way.front().map(|transfer| transfer.sequence)
    }

    /// Whether the message at the front may move.
    pub(super) fn has_chunk(&self) -> bool {
        self.under_way
            .front()
            .is_some_and(|transfer| transfer.granted)
    }

    /// The next chunk of the message at the front, now under way, of at most `longest`
    /// bytes. Sending side.
    pub(super) fn next_chunk(&mut self, longest: usize) -> Option<Chunk> {
        let transfer = self
            .under_way
            .front_mut()
            .filter(|transfer| transfer.granted)?;
        let bytes = (transfer.length - transfer.done).min(longest as u64) as usize;
        let chunk = Chunk {
            sequence: transfer.sequence,
            offset: transfer.done,
            bytes,
        };
        transfer.done += bytes as u64;
        if transfer.done == transfer.length {
            self.under_way.pop_front();
        }
        Some(chunk)
    }

    /// Places `bytes` that arrived for the message at the front. Receiving side.
    ///
    /// `None` if nothing was granted, another message is meant, or it would overflow.
    pub(super) fn place(&mut self, sequence_low: u32, bytes: usize) -> Option<(Chunk, bool)> {
        let transfer = self
            .under_way
            .front_mut()
            .filter(|transfer| transfer.granted)?;
        let fits = bytes as u64 <= transfer.length - transfer.done && bytes > 0;
        if transfer.sequence as u32 != sequence_low || !fits {
            return None;
        }
        let chunk = Chunk {
            sequence: transfer.sequence,
            offset: transfer.done,
            bytes,
        };
        transfer.done += bytes as u64;
        Some((chunk, transfer.done == transfer.length))
    }

    /// The bytes of the last chunk that was placed are there. Receiving side.
    ///
    /// Until then its message counts as under way, though its last chunk has a place: it
    /// is not received.
    pub(super) fn finish(&mut self) {
        if self
            .under_way
            .front()
            .is_some_and(|transfer| transfer.done == transfer.length)
        {
            self.under_way.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::frame::MAX_CHUNK_BYTES;

    #[test]
    fn a_message_travels_in_chunks_once_granted() {
        let length = 2 * MAX_CHUNK_BYTES as u64 + 5;
        let (mut sender, mut receiver) = (Transfers::default(), Transfers::default());
        sender.announce(9, length);
        receiver.announce(9, length);
        assert_eq!(sender.next_chunk(MAX_CHUNK_BYTES), None);
        assert!(
            receiver.place(9, 1).is_none(),
            "nothing may arrive before the grant"
        );
        assert!(sender.grant(9) && receiver.grant(9));
        assert!(!sender.grant(9), "a grant counts once");
        let mut arrived = 0;
        while let Some(chunk) = sender.next_chunk(MAX_CHUNK_BYTES) {
            let (placed, complete) = receiver.place(9, chunk.bytes).unwrap();
            assert_eq!(placed, chunk);
            arrived += chunk.bytes as u64;
            assert_eq!(complete, arrived == length);
            assert_eq!(receiver.oldest(), Some(9), "its bytes are not there yet");
            receiver.finish();
        }
        assert_eq!(arrived, length);
        assert!(sender.is_empty() && receiver.is_empty());
    }

    #[test]
    fn a_chunk_too_many_is_refused() {
        let mut receiver = Transfers::default();
        receiver.announce(1, 10);
        assert!(receiver.grant(1));
        assert!(receiver.place(2, 5).is_none());
        assert!(receiver.place(1, 11).is_none());
        assert!(receiver.place(1, 10).is_some());
        assert!(receiver.place(1, 1).is_none());
        receiver.finish();
        assert!(receiver.place(1, 1).is_none());
    }
}
