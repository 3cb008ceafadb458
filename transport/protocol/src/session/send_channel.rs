//! The sending end of a channel as the engine sees it: the frames that were sent, and those that
//! are due.
#![forbid(unsafe_code)]

use std::collections::VecDeque;

use super::Run;
use crate::{
    format::{
        control::{Ask, CloseReason, KnownReceiver, Questions},
        counters::{Counters, ImpossibleCounters},
    },
    transfer::{
        eager_write::{EagerBlockId, GrantedEagerBlocks, lands},
        rendezvous::{Chunk, RemoteMemory, Transfers},
    },
};

/// A sending end.
#[derive(Debug, Default)]
pub(super) struct SendChannel {
    // Sending over the wires.
    /// Alignment of payloads, once the channel is open.
    pub(super) alignment: usize,
    /// Messages put into frames so far.
    pub(super) sent: u64,
    /// The ring position behind the last of them.
    pub(super) sent_position: u64,
    /// Large messages under way.
    pub(super) large: Transfers,
    /// Large messages that the handle has handed over, and whose announcement is not in a frame yet.
    pub(super) unannounced: VecDeque<Unannounced>,
    /// Large messages that were announced, and that the peer has not said to have arrived.
    pub(super) unconfirmed: VecDeque<Unconfirmed>,
    /// Blocks for messages of medium size.
    pub(super) eager_blocks: GrantedEagerBlocks,
    /// The last frame was a chunk: records go next, so neither starves the other.
    pub(super) chunk_went_last: bool,

    // The peer's counters.
    pub(super) counters: Counters,

    // Wishes of the handle.
    /// The handle was dropped; a close follows once `.0` messages were sent.
    pub(super) closing: Option<(u64, CloseReason)>,
    /// The end is in the session's ready queue.
    pub(super) queued: bool,
    /// Questions that its handles wait for, or have waited for.
    pub(super) asked: Questions,
}

/// A large message whose announcement is not in a frame yet.
#[derive(Clone, Copy, Debug)]
pub(super) struct Unannounced {
    pub(super) sequence: u64,
    pub(super) length: u64,
    /// The message's block, if it has one.
    pub(super) eager_block: Option<(EagerBlockId, RemoteMemory)>,
    /// The message was written to its block.
    pub(super) is_written: bool,
    /// The message's record names a block of old wires.
    names_dead_block: bool,
}

impl Unannounced {
    /// Returns all of the message as one chunk.
    pub(super) fn whole(&self) -> Chunk {
        Chunk {
            sequence: self.sequence,
            offset: 0,
            bytes: self.length as usize,
        }
    }
}

/// A large message that was sent, or is being sent.
#[derive(Clone, Copy, Debug)]
pub(super) struct Unconfirmed {
    sequence: u64,
    length: u64,
    /// The message was whole before it was announced.
    has_landed: bool,
}

impl SendChannel {
    /// Joins the receiving end's changes.
    pub(super) fn handle_counters(
        &mut self,
        changes: &Counters,
    ) -> Result<bool, ImpossibleCounters> {
        let moved = self.counters.join(changes, self.sent, self.sent_position)?;
        while let Some(oldest) = self.unconfirmed.front()
            && oldest.sequence <= self.counters.received
        {
            self.unconfirmed.pop_front();
        }
        Ok(moved)
    }

    /// Accounts for a run of records that goes into a frame. `offers` says whether the wires carry
    /// offers. Returns whether one may be due.
    #[inline]
    pub(super) fn records_went(&mut self, records: u64, bytes: usize, offers: bool) -> bool {
        let mut any = false;
        self.count(records, bytes);
        while let Some(next) = self.unannounced.front().copied() {
            if next.sequence > self.sent {
                break;
            }
            self.unannounced.pop_front();
            self.unconfirmed.push_back(Unconfirmed {
                sequence: next.sequence,
                length: next.length,
                has_landed: next.eager_block.is_some(),
            });
            if next.eager_block.is_none() {
                self.large.announce(next.sequence, next.length, offers);
                any = offers;
            }
        }
        any
    }

    /// Notes that a large message is about to be published. Returns the block that it goes into, if
    /// it is of medium size and there is one.
    pub(super) fn announce(&mut self, sequence: u64, length: u64) -> Option<EagerBlockId> {
        let released = self.counters.released;
        let eager_block = lands(length)
            .then(|| self.eager_blocks.take(sequence, length, released))
            .flatten();
        self.unannounced.push_back(Unannounced {
            sequence,
            length,
            eager_block,
            is_written: false,
            names_dead_block: false,
        });
        eager_block.map(|(id, _)| id)
    }

    /// Returns whether the next announcement has to wait: its message is not in its block yet, or
    /// as many messages are under way as may be.
    pub(super) fn holds_announcement(&self) -> bool {
        self.unannounced
            .front()
            .is_some_and(|next| match next.eager_block {
                Some(_) => !next.is_written,
                None => self.large.is_full(),
            })
    }

    /// Returns the next message to be announced, if it has a block and is not in the block yet.
    pub(super) fn unlanded(&self) -> Option<Unannounced> {
        let next = self.unannounced.front().copied();
        next.filter(|next| next.eager_block.is_some() && !next.is_written)
    }

    /// Returns whether records go next, and not a piece of a large message. `has_piece` says
    /// whether there is one.
    pub(super) fn is_turn_of_records(&self, has_piece: bool) -> bool {
        // The handle may announce another large message when the last piece of one is there. The
        // peer has to be notified of that one first.
        !self.large.owes_word() && (self.chunk_went_last || !has_piece)
    }

    /// Like [`records_went`](Self::records_went), for one record where there is [nothing
    /// large](Self::has_nothing_large).
    #[inline]
    pub(super) fn lone_record_went(&mut self, bytes: usize) {
        debug_assert!(self.has_nothing_large());
        self.count(1, bytes);
    }

    #[inline]
    fn count(&mut self, records: u64, bytes: usize) {
        self.sent += records;
        self.sent_position += bytes as u64;
        self.chunk_went_last = false;
    }

    /// Returns whether no large message is under way or about to be.
    #[inline]
    pub(super) fn has_nothing_large(&self) -> bool {
        self.large.is_empty() && self.unannounced.is_empty()
    }

    /// Returns whether bytes of large message `sequence` may still be wanted.
    pub(super) fn sends_large(&self, sequence: u64) -> bool {
        let is_it = |next: &Unannounced| next.sequence == sequence;
        self.large.contains(sequence) || self.unannounced.iter().any(is_it)
    }

    /// Forgets the large messages, because nothing is sent any more.
    pub(super) fn give_up(&mut self) {
        self.large = Transfers::default();
        self.unannounced.clear();
    }

    /// Returns whether everything that the handle published is on its way. A session that is
    /// closed from another thread may have sent more than it knew to be published.
    pub(super) fn is_drained(&self, published: u64) -> bool {
        self.sent >= published && self.has_nothing_large()
    }

    // ---- New wires -------------------------------------------------------------------

    /// Drops the grants of wires that are gone.
    pub(super) fn grants_are_over(&mut self) {
        self.eager_blocks = GrantedEagerBlocks::default();
        for next in &mut self.unannounced {
            next.names_dead_block |= next.eager_block.take().is_some();
            next.is_written = false;
        }
    }

    /// Returns the position of the announcement that ends `run`, if it names a block that is gone.
    pub(super) fn names_dead_block(&self, run: &Run) -> Option<u64> {
        let next = self.unannounced.front()?;
        let is_in_run = next.sequence == self.sent + run.records;
        let before = run.bytes - run.announcement;
        (next.names_dead_block && is_in_run).then(|| run.position + before as u64)
    }

    /// Sends again the records that the receiving end does not have, after its counters were
    /// [handled](Self::handle_counters). Returns how many records these are; `None` if the peer's
    /// claim cannot be true.
    pub(super) fn replay(&mut self, known: &KnownReceiver, offers: bool) -> Option<u64> {
        let &KnownReceiver {
            arrived,
            arrived_position: position,
            ..
        } = known;
        let has_all = arrived == self.sent;
        let is_possible = (self.counters.received..=self.sent).contains(&arrived)
            && (self.counters.released_position..=self.sent_position).contains(&position)
            && has_all == (position == self.sent_position);
        if !is_possible {
            return None;
        }
        let replayed = self.sent - arrived;
        (self.sent, self.sent_position) = (arrived, position);
        self.chunk_went_last = false;
        self.large = Transfers::default();
        let announced = self
            .unconfirmed
            .partition_point(|one| one.sequence <= arrived);
        for lost in self.unconfirmed.drain(announced..).rev() {
            self.unannounced.push_front(Unannounced {
                sequence: lost.sequence,
                length: lost.length,
                eager_block: None,
                is_written: false,
                names_dead_block: lost.has_landed,
            });
        }
        for cut in self.unconfirmed.iter().filter(|one| !one.has_landed) {
            self.large.announce(cut.sequence, cut.length, offers);
        }
        Some(replayed)
    }

    /// Adds the counters that its handles wait for. Returns the question that the peer has to know.
    pub(super) fn ask(&mut self, ask: Ask) -> Ask {
        self.asked.add(ask, &self.counters);
        self.unanswered()
    }

    /// Returns whether the peer will tell of the acknowledgement of message `sequence`.
    pub(super) fn has_asked_for(&self, sequence: u64) -> bool {
        self.asked.cover_acknowledged(sequence, &self.counters)
    }

    /// Asks once more, for all waiters: no handle is left, so that nothing can be asked later.
    pub(super) fn ask_last(&mut self, ask: Ask) {
        self.asked = Questions::only(ask);
    }

    /// Returns whether the peer has answered one question, and has to be asked for a farther
    /// one.
    #[inline]
    pub(super) fn has_to_ask_on(&self) -> bool {
        self.asked.goes_on(&self.counters)
    }

    /// Returns the question that the peer has to know, as far as it has not answered.
    pub(super) fn unanswered(&mut self) -> Ask {
        self.asked.next(&self.counters)
    }
}
