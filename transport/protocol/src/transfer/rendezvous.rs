//! Large messages: announced in the ring, granted by the receiver, carried in chunks.
//!
//! The announcement is an ordinary record, so the message keeps its place in the order; its bytes
//! travel beside the ring, straight into memory that the receiver granted, and are charged to no
//! session credit. Two may be under way per channel: while the chunks of one go out, the memory of
//! the next is granted. Frames keep their order, so an announcement behind a message's last chunk
//! finds that message complete. Both ends therefore count alike without further messages.
//!
//! A grant says how far into its message the sender may go: memory that is not the sender's
//! alone comes piece by piece, each granted when it is there.
//!
//! If the wires allow it, the receiver grants the memory itself: the sender's device writes the
//! message there, in pieces, and a frame behind the last says that it is whole. Wires keep the
//! order of writes and frames, so that frame is all that the receiver needs.
//!
//! To a receiver that does not trust it, the sender offers its own memory, right behind the
//! announcement: the receiver's device reads the message there, in pieces, and a control message
//! behind the last says that it is taken. A receiver that cannot read grants chunks, which declines
//! the offer. An offer holds for the session's wire; behind it, messages may say that it holds for
//! rails too. While wires carry offers, each message that is [long enough](is_offered) gets an
//! offer, or word that there is none, and its receiver grants nothing before that.
#![forbid(unsafe_code)]

mod offers;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;

use crate::format::control::Control;
pub use crate::format::remote_memory::{MOST_RAILS, RemoteMemory};
pub(crate) use offers::NextRead;
use offers::OfferState;
pub use offers::{Lane, LargeRead, OfferStep, is_offered};

/// The number of large messages of one channel that may be announced, or about to be, and not yet
/// sent whole.
pub const LARGE_PER_CHANNEL: usize = 2;

/// The longest piece that is written at once into granted memory. Between two pieces
/// frames of other channels go out.
pub const WRITE_BYTES: usize = 256 << 10;

/// Pieces of all channels of a session that may be on their way: one that moves, and the
/// next behind it, so that the wire never waits for us; a frame waits for no more than
/// these.
pub const WRITES_UNDER_WAY: u32 = 3;

/// A chunk to send: `bytes` from `offset` of large message `sequence`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Chunk {
    /// The message's sequence.
    pub sequence: u64,
    /// The offset of the chunk in the message.
    pub offset: u64,
    /// The length of the chunk.
    pub bytes: usize,
}

/// The way in which a granted message travels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// The message goes in chunks, which the receiver puts into their place.
    Chunks,
    /// The message's bytes are written there.
    Memory(RemoteMemory),
    /// The receiver reads the message. Receiving side.
    Read,
}

impl Way {
    /// The message that grants `bytes` of large message `sequence` to the peer's end `channel`;
    /// `None` if the peer has nothing to do.
    pub(crate) fn control(self, channel: u32, sequence: u64, bytes: u64) -> Option<Control> {
        match self {
            Way::Chunks => Some(Control::Grant {
                channel,
                sequence,
                bytes,
            }),
            Way::Memory(memory) => Some(Control::GrantMemory {
                channel,
                sequence,
                memory,
            }),
            Way::Read => None,
        }
    }
}

/// The next step of a large message's sending side. Sending side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Piece {
    /// A frame with these bytes.
    Chunk(Chunk),
    /// Bytes that are to be written into the memory of their message.
    Write(Chunk, RemoteMemory),
    /// A frame that says that all of this message is written.
    Written {
        /// The message's sequence.
        sequence: u64,
    },
}

#[derive(Debug)]
struct Transfer {
    sequence: u64,
    length: u64,
    granted: Option<Way>,
    /// The offset up to which memory is granted.
    allowed: u64,
    done: u64,
    offer: OfferState,
    /// The keys to the offered memory on rails, by rail. Receiving side.
    rails: [Option<u32>; MOST_RAILS],
    /// The offset up to which reads are posted. Receiving side.
    asked: u64,
    /// The host has learned of the message. Receiving side.
    is_notified: bool,
}

impl Transfer {
    fn has_piece(&self, may_write: bool) -> bool {
        match self.granted {
            None => false,
            Some(Way::Chunks) => self.done < self.allowed,
            Some(Way::Memory(_)) => may_write || self.done == self.length,
            Some(Way::Read) => false,
        }
    }

    /// The next bytes, now under way.
    fn advance(&mut self, longest: usize) -> Chunk {
        let bytes = (self.allowed - self.done).min(longest as u64) as usize;
        let chunk = Chunk {
            sequence: self.sequence,
            offset: self.done,
            bytes,
        };
        self.done += bytes as u64;
        chunk
    }
}

/// The large messages of one end that are under way, in order.
#[derive(Debug, Default)]
pub(crate) struct Transfers {
    under_way: VecDeque<Transfer>,
}

impl Transfers {
    /// Adds a message behind the others. `carries_offers` says whether the wires do, from the
    /// sender to the receiver.
    pub(crate) fn announce(&mut self, sequence: u64, length: u64, carries_offers: bool) {
        self.under_way.push_back(Transfer {
            sequence,
            length,
            granted: None,
            allowed: 0,
            done: 0,
            offer: OfferState::at_first(carries_offers, length),
            rails: [None; MOST_RAILS],
            asked: 0,
            is_notified: false,
        });
    }

    /// Returns the sequences and lengths of the messages that the host has not learned of and that
    /// wait for no offer. It learns of them now. Receiving side.
    pub(crate) fn tell(&mut self) -> impl Iterator<Item = (u64, u64)> {
        let transfers = self.under_way.iter_mut();
        let unnotified =
            transfers.filter(|transfer| !transfer.is_notified && transfer.offer == OfferState::No);
        unnotified.map(|transfer| {
            transfer.is_notified = true;
            (transfer.sequence, transfer.length)
        })
    }

    pub(crate) fn is_full(&self) -> bool {
        self.under_way.len() >= LARGE_PER_CHANNEL
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.under_way.is_empty()
    }

    /// Marks `sequence` as granted up to byte `allowed`, all of it where it is to be written;
    /// gives its length, or `None` if it was not announced, or is granted so far already, or
    /// otherwise.
    pub(crate) fn grant(&mut self, sequence: u64, way: Way, allowed: u64) -> Option<u64> {
        let transfer = self
            .under_way
            .iter_mut()
            .find(|transfer| transfer.sequence == sequence)?;
        let is_due = match (transfer.granted, way) {
            (None, _) | (Some(Way::Chunks), Way::Chunks) => allowed > transfer.allowed,
            _ => false,
        };
        if !is_due || allowed > transfer.length {
            return None;
        }
        transfer.granted = Some(way);
        transfer.allowed = allowed;
        Some(transfer.length)
    }

    /// The length of a message that waits for its first grant.
    pub(crate) fn length_of(&self, sequence: u64) -> Option<u64> {
        let is_it =
            |transfer: &&Transfer| transfer.sequence == sequence && transfer.granted.is_none();
        self.under_way
            .iter()
            .find(is_it)
            .map(|transfer| transfer.length)
    }

    /// The oldest message that is not complete.
    pub(crate) fn oldest(&self) -> Option<u64> {
        self.under_way.front().map(|transfer| transfer.sequence)
    }

    /// Returns whether the message at the front may move. `may_write` says whether another piece
    /// may be on its way into granted memory.
    pub(crate) fn has_piece(&self, may_write: bool) -> bool {
        let front = self.under_way.front();
        front.is_some_and(|transfer| transfer.has_piece(may_write))
    }

    /// Returns whether the message at the front is written and the peer was not notified.
    pub(crate) fn owes_word(&self) -> bool {
        self.under_way.front().is_some_and(|transfer| {
            matches!(transfer.granted, Some(Way::Memory(_))) && transfer.done == transfer.length
        })
    }

    /// The next piece of the message at the front, now under way, as a chunk of at most
    /// `longest` bytes. Sending side.
    pub(crate) fn next_piece(&mut self, longest: usize, may_write: bool) -> Option<Piece> {
        let transfer = self
            .under_way
            .front_mut()
            .filter(|transfer| transfer.has_piece(may_write))?;
        let (sequence, length) = (transfer.sequence, transfer.length);
        let (piece, is_last) = match transfer.granted? {
            Way::Chunks => {
                let chunk = transfer.advance(longest);
                (Piece::Chunk(chunk), transfer.done == length)
            }
            Way::Memory(_) if transfer.done == length => (Piece::Written { sequence }, true),
            Way::Memory(memory) => {
                let chunk = transfer.advance(WRITE_BYTES);
                (Piece::Write(chunk, memory), false)
            }
            Way::Read => return None,
        };
        if is_last {
            self.under_way.pop_front();
        }
        Some(piece)
    }

    /// Places `bytes` that arrived for the message at the front. Receiving side.
    ///
    /// `None` if nothing was granted, another message is meant, or it would overflow.
    pub(crate) fn place(&mut self, sequence_low: u32, bytes: usize) -> Option<(Chunk, bool)> {
        let transfer = self
            .under_way
            .front_mut()
            .filter(|transfer| transfer.granted == Some(Way::Chunks))?;
        let fits = bytes as u64 <= transfer.allowed - transfer.done && bytes > 0;
        if transfer.sequence as u32 != sequence_low || !fits {
            return None;
        }
        let chunk = transfer.advance(bytes);
        Some((chunk, transfer.done == transfer.length))
    }

    /// The message at the front was written into its memory, all of it. Receiving side.
    ///
    /// `None` if no memory was granted, another message is meant, or it was sent before.
    pub(crate) fn written(&mut self, sequence_low: u32) -> Option<u64> {
        let transfer = self.under_way.front_mut()?;
        let is_due = matches!(transfer.granted, Some(Way::Memory(_)))
            && transfer.done < transfer.length
            && transfer.sequence as u32 == sequence_low;
        if !is_due {
            return None;
        }
        transfer.done = transfer.length;
        Some(transfer.sequence)
    }

    /// Prepares for new wires: messages under way begin anew, and grants and offers have to be made
    /// again. Receiving side.
    pub(crate) fn begin_anew(&mut self, writes: bool, carries_offers: bool) {
        for transfer in &mut self.under_way {
            (transfer.done, transfer.asked) = (0, 0);
            transfer.offer = OfferState::at_first(carries_offers, transfer.length);
            transfer.rails = [None; MOST_RAILS];
            if !writes && transfer.granted.is_some() {
                transfer.granted = Some(Way::Chunks);
            }
        }
    }

    /// Memory that a device wrote to is gone: other memory is to be granted. Receiving side.
    pub(crate) fn withdraw_memory(&mut self) {
        for transfer in &mut self.under_way {
            if transfer.granted != Some(Way::Chunks) {
                (transfer.granted, transfer.allowed) = (None, 0);
            }
        }
    }

    /// Returns whether the message is among them.
    pub(crate) fn contains(&self, sequence: u64) -> bool {
        let is_it = |transfer: &Transfer| transfer.sequence == sequence;
        self.under_way.iter().any(is_it)
    }

    /// Lists what is granted and waits for no offer, how and up to where. Receiving side.
    pub(crate) fn grants(&self) -> impl Iterator<Item = (u64, Way, u64)> {
        let settled = self.under_way.iter();
        let settled = settled.filter(|transfer| transfer.offer != OfferState::Due);
        let granted =
            |transfer: &Transfer| Some((transfer.sequence, transfer.granted?, transfer.allowed));
        settled.filter_map(granted)
    }

    /// The bytes of the last chunk that was placed are there. Returns the sequence of its message if
    /// that was read. Receiving side.
    ///
    /// Until then its message counts as under way, though its last chunk has a place: it
    /// is not received.
    pub(crate) fn finish(&mut self) -> Option<u64> {
        let front = self.under_way.front()?;
        if front.done < front.length {
            return None;
        }
        let transfer = self.under_way.pop_front()?;
        (transfer.granted == Some(Way::Read)).then_some(transfer.sequence)
    }
}
