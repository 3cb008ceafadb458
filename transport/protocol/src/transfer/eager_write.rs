//! eager blocks: memory that a receiver grants ahead, for messages too long for a receive
//! buffer and not worth a question each.
//!
//! A channel on which such a message was announced is granted some blocks. The sender has a message
//! written into a block, behind [`EAGER_BLOCK_HEAD_BYTES`], and names the block in the announcement, so
//! that the message is whole when its announcement arrives. The block is the sender's again when it
//! learns that the message is released; no further message is needed. Each use has another
//! *generation*, so a sender that is wrong about a block's owner is found out. A sender whose
//! channel rests gives its blocks back.
#![forbid(unsafe_code)]

use std::collections::VecDeque;

pub use crate::format::eager_block_id::{EAGER_BLOCKS_PER_SESSION, EagerBlockId};
use crate::format::remote_memory::RemoteMemory;

/// The longest message that goes into a block.
pub const EAGER_BLOCK_MESSAGE_BYTES: usize = 64 << 10;

/// Bytes of a block before the message. If immediate data announces the message, the frame with its
/// announcement is there.
pub const EAGER_BLOCK_HEAD_BYTES: usize =
    crate::format::frame::HEAD_BYTES + crate::format::record::MAX_ALIGNMENT;

/// Bytes of a block.
pub const EAGER_BLOCK_BYTES: usize = EAGER_BLOCK_HEAD_BYTES + EAGER_BLOCK_MESSAGE_BYTES;

/// Messages of a channel that may be on their way into blocks, or wait for that.
pub const EAGER_BLOCKS_UNDER_WAY: usize = 4;

/// Blocks that a channel is granted: those of messages under way, and those of messages that are
/// read, or were released without the sender's knowledge. With fewer blocks, a stream finds none as
/// soon as a message under way is done, and has to ask.
pub const EAGER_BLOCKS_PER_CHANNEL: usize = 2 * EAGER_BLOCKS_UNDER_WAY;

/// Returns whether a message of `length` may have a block.
#[must_use]
pub fn lands(length: u64) -> bool {
    length <= EAGER_BLOCK_MESSAGE_BYTES as u64
}

// ---- Receiving ---------------------------------------------------------------------------

/// The blocks that a session has granted.
#[derive(Debug, Default)]
pub struct EagerBlocks {
    /// The blocks, by index.
    blocks: Vec<BlockSlot>,
    /// Messages that were announced in a block and not handed to the host.
    landed: VecDeque<Landed>,
}

/// A message that is whole in a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Landed {
    /// The receiving end.
    pub end: u32,
    /// The message's sequence.
    pub sequence: u64,
    /// The message's length.
    pub length: usize,
    /// The block's number.
    pub index: u16,
}

#[derive(Clone, Copy, Debug)]
struct BlockSlot {
    generation: u16,
    state: State,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// The block is free.
    Free,
    /// The block is the peer's, for messages to this end.
    Granted { end: u32 },
    /// The block has a message that is not known to be released.
    Filled { end: u32, sequence: u64 },
}

impl State {
    fn is_of(self, of: u32) -> bool {
        match self {
            State::Free => false,
            State::Granted { end } | State::Filled { end, .. } => end == of,
        }
    }
}

impl EagerBlocks {
    /// Grants another block to the sender of `end`; `None` if it or the session has as many
    /// as may be.
    pub(crate) fn grant(&mut self, end: u32) -> Option<EagerBlockId> {
        let of_end = self.blocks.iter().filter(|block| block.state.is_of(end));
        if of_end.count() >= EAGER_BLOCKS_PER_CHANNEL {
            return None;
        }
        let is_free = |block: &BlockSlot| block.state == State::Free;
        let index = match self.blocks.iter().position(is_free) {
            Some(index) => index,
            None if self.blocks.len() < EAGER_BLOCKS_PER_SESSION => {
                self.blocks.push(BlockSlot {
                    generation: 0,
                    state: State::Free,
                });
                self.blocks.len() - 1
            }
            None => return None,
        };
        let block = &mut self.blocks[index];
        block.state = State::Granted { end };
        Some(EagerBlockId {
            index: index as u16,
            generation: block.generation,
        })
    }

    /// The next message that lies whole in a block. Drain it behind
    /// [`handle_frame`](crate::session::Session::handle_frame), when its records are placed.
    #[inline]
    #[must_use]
    pub fn poll_landed(&mut self) -> Option<Landed> {
        self.landed.pop_front()
    }

    /// Returns the end whose sender may write there now.
    #[must_use]
    pub fn granted_to(&self, id: EagerBlockId) -> Option<u32> {
        let block = self.blocks.get(usize::from(id.index))?;
        match block.state {
            State::Granted { end } if block.generation == id.generation => Some(end),
            _ => None,
        }
    }

    /// Notes that the block has a message now. Returns false if the sender of `end` may not use the
    /// block.
    pub(crate) fn fill(
        &mut self,
        id: EagerBlockId,
        end: u32,
        sequence: u64,
        length: usize,
    ) -> bool {
        let is_due = self.granted_to(id) == Some(end);
        if is_due {
            let index = id.index;
            self.blocks[usize::from(index)].state = State::Filled { end, sequence };
            self.landed.push_back(Landed {
                end,
                sequence,
                length,
                index,
            });
        }
        is_due
    }

    /// Returns whether the sender gets enough blocks of `end` back to be worth a frame, once it is
    /// notified that messages up to `released` are released.
    pub(crate) fn owes(&self, end: u32, released: u64) -> bool {
        let is_owed = |block: &&BlockSlot| match block.state {
            State::Filled { end: of, sequence } => of == end && sequence <= released,
            _ => false,
        };
        let owed = self.blocks.iter().filter(is_owed);
        owed.count() >= EAGER_BLOCKS_UNDER_WAY / 2
    }

    /// The sender of `end` is notified that messages up to `released` are released: their blocks
    /// are its own again.
    pub(crate) fn notified(&mut self, end: u32, released: u64) {
        for block in &mut self.blocks {
            if let State::Filled { end: of, sequence } = block.state
                && of == end
                && sequence <= released
            {
                block.state = State::Granted { end };
                block.generation = block.generation.wrapping_add(1);
            }
        }
    }

    /// The sender of `end` gives a block back. False if it is not its own.
    pub(crate) fn take_back(&mut self, id: EagerBlockId, end: u32) -> bool {
        let is_due = self.granted_to(id) == Some(end);
        if is_due {
            self.free(usize::from(id.index));
        }
        is_due
    }

    /// Forgets an end that is closed on both sides.
    pub(crate) fn forget(&mut self, end: u32) {
        for index in 0..self.blocks.len() {
            if self.blocks[index].state.is_of(end) {
                self.free(index);
            }
        }
    }

    /// Frees a block, whose used numbers are not used again.
    fn free(&mut self, index: usize) {
        let block = &mut self.blocks[index];
        block.state = State::Free;
        block.generation = block.generation.wrapping_add(1);
    }

    /// Returns how many blocks the peer has, or have a message.
    #[must_use]
    pub fn count(&self) -> usize {
        let is_out = |block: &&BlockSlot| block.state != State::Free;
        self.blocks.iter().filter(is_out).count()
    }
}

// ---- Sending -----------------------------------------------------------------------------

/// The blocks that the sender of a channel was granted.
#[derive(Debug, Default)]
pub(crate) struct GrantedEagerBlocks {
    blocks: Vec<RemoteBlock>,
}

#[derive(Clone, Copy, Debug)]
struct RemoteBlock {
    /// The number of the block's next use.
    id: EagerBlockId,
    memory: RemoteMemory,
    /// The message in it, until that is released.
    used_for: Option<u64>,
}

impl GrantedEagerBlocks {
    /// Takes in another. False if there are more than may be, or it is there already.
    pub(crate) fn add(&mut self, id: EagerBlockId, memory: RemoteMemory) -> bool {
        let is_known = self.blocks.iter().any(|block| block.id.index == id.index);
        if is_known || self.blocks.len() >= EAGER_BLOCKS_PER_CHANNEL {
            return false;
        }
        self.blocks.push(RemoteBlock {
            id,
            memory,
            used_for: None,
        });
        true
    }

    /// A block for message `sequence` of `length` bytes, and where the block is, if there is
    /// one; all up to `released` are released.
    pub(crate) fn take(
        &mut self,
        sequence: u64,
        length: u64,
        released: u64,
    ) -> Option<(EagerBlockId, RemoteMemory)> {
        let needed = length.checked_add(EAGER_BLOCK_HEAD_BYTES as u64)?;
        let block = self.blocks.iter_mut().find(|block| {
            let is_free = block.used_for.is_none_or(|used_for| used_for <= released);
            is_free && block.memory.bytes() >= needed
        })?;
        if block.used_for.replace(sequence).is_some() {
            block.id.generation = block.id.generation.wrapping_add(1);
        }
        Some((block.id, block.memory))
    }

    /// Gives up the blocks that are free.
    pub(crate) fn give_up(&mut self, released: u64) -> impl Iterator<Item = EagerBlockId> {
        let is_free = move |block: &mut RemoteBlock| {
            block.used_for.is_none_or(|used_for| used_for <= released)
        };
        self.blocks
            .extract_if(.., is_free)
            .map(|block| EagerBlockId {
                generation: block
                    .id
                    .generation
                    .wrapping_add(block.used_for.is_some().into()),
                ..block.id
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn memory() -> RemoteMemory {
        RemoteMemory::new(0x1000, 7, EAGER_BLOCK_BYTES as u64).unwrap()
    }

    #[test]
    fn an_id_survives_its_word() {
        let id = EagerBlockId {
            index: 0x1234,
            generation: 0xfedc,
        };
        assert_eq!(id.to_word(), 0x1234_fedc);
        assert_eq!(EagerBlockId::from_word(id.to_word()), id);
    }

    #[test]
    fn both_ends_count_the_uses_of_a_block_alike() {
        let (mut theirs, mut ours) = (GrantedEagerBlocks::default(), EagerBlocks::default());
        let id = ours.grant(1).unwrap();
        assert!(theirs.add(id, memory()));
        for sequence in 1..=(1 << 16) + 5 {
            let (used, _) = theirs.take(sequence, 9, sequence - 1).unwrap();
            assert_eq!(used.generation, (sequence - 1) as u16);
            assert!(theirs.take(sequence + 1, 9, sequence - 1).is_none());
            assert!(ours.fill(used, 1, sequence, 9), "{sequence}");
            assert!(!ours.fill(used, 1, sequence + 1, 9), "it is full");
            ours.landed.clear();
            ours.notified(1, sequence);
        }
        let released = (1 << 16) + 5;
        let returned: Vec<_> = theirs.give_up(released).collect();
        assert_eq!(returned.len(), 1);
        assert!(ours.take_back(returned[0], 1));
        assert!(!ours.take_back(returned[0], 1), "once is enough");
        assert_eq!(ours.count(), 0);
    }

    #[test]
    fn a_block_is_used_only_by_the_end_it_was_granted_to_and_in_order() {
        let mut ours = EagerBlocks::default();
        let id = ours.grant(1).unwrap();
        let (mut later, mut other) = (id, id);
        later.generation += 1;
        other.index += 1;
        for (wrong, end) in [(id, 2), (later, 1), (other, 1)] {
            assert!(!ours.fill(wrong, end, 1, 9));
            assert!(!ours.take_back(wrong, end));
        }
        assert!(ours.fill(id, 1, 5, 9));
        ours.notified(1, 4);
        ours.notified(2, 9);
        assert!(!ours.take_back(id, 1), "it is not released");
        ours.notified(1, 5);
        assert!(!ours.fill(id, 1, 6, 9), "that was the use before");
        assert!(ours.fill(later, 1, 6, 9));
        ours.forget(1);
        assert_eq!(ours.count(), 0);
        // The block's previous owner knows its old generations.
        assert_eq!(ours.grant(3).unwrap().generation, later.generation + 1);
    }

    #[test]
    fn blocks_are_bounded_for_a_channel_and_for_a_session() {
        let mut ours = EagerBlocks::default();
        for granted in 0..EAGER_BLOCKS_PER_SESSION {
            let end = (granted / EAGER_BLOCKS_PER_CHANNEL) as u32;
            assert_eq!(ours.grant(end).unwrap().index as usize, granted);
        }
        assert!(ours.grant(1000).is_none());
        ours.forget(3);
        for _ in 0..EAGER_BLOCKS_PER_CHANNEL {
            assert!(ours.grant(1000).is_some());
        }
        assert!(ours.grant(1000).is_none());
        assert_eq!(ours.count(), EAGER_BLOCKS_PER_SESSION);

        let mut theirs = GrantedEagerBlocks::default();
        let id = |index| EagerBlockId {
            index,
            generation: 0,
        };
        for index in 0..EAGER_BLOCKS_PER_CHANNEL as u16 {
            assert!(theirs.add(id(index), memory()));
            assert!(!theirs.add(id(index), memory()), "twice");
        }
        assert!(!theirs.add(id(100), memory()));
    }

    #[test]
    fn a_message_that_does_not_fit_a_block_gets_none() {
        let mut theirs = GrantedEagerBlocks::default();
        let short = RemoteMemory::new(0x1000, 7, EAGER_BLOCK_HEAD_BYTES as u64 + 10).unwrap();
        let id = EagerBlockId {
            index: 0,
            generation: 0,
        };
        assert!(theirs.add(id, short));
        assert!(theirs.take(1, 11, 0).is_none());
        assert!(theirs.take(1, u64::MAX, 0).is_none());
        assert!(theirs.take(1, 10, 0).is_some());
    }
}
