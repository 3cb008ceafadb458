//! Which ends have something for the next frames: records, changes, or a piece that waits until
//! another one is written.
//!
//! A channel's `queued` says whether its end stands in the queue of its role, so an end stands
//! there once. Without wires, sending ends say so of themselves and stand nowhere.
#![forbid(unsafe_code)]

use std::{collections::VecDeque, mem};

use super::{EndChannel, EndTable, LocalEnd, ReceiveChannel, SessionEvent};
use crate::{
    format::counters::Counters,
    session::WireTerms,
    transfer::{
        eager_write::EagerBlocks,
        rendezvous::{Lane, LargeRead, NextRead, OfferStep, WRITES_UNDER_WAY},
    },
};

/// The queues of ends.
#[derive(Debug, Default)]
pub(crate) struct EndTurns {
    /// Sending ends that have, or may have, something to send.
    pub(crate) ready: VecDeque<u32>,
    /// Receiving ends with changes for their senders; urgent ones at the front.
    pub(crate) changes: VecDeque<u32>,
    /// Pieces on their way into the peer's memory.
    pub(crate) writes_under_way: u32,
    /// Sending ends that wait for such a piece to arrive.
    awaiting_writes: Vec<u32>,

    // Offers and reads.
    /// The wires carry offers of this end's.
    pub(crate) offers: bool,
    /// Sending ends that may have an offer to make or to revoke.
    offering: Vec<u32>,
    /// Pieces of the peer's messages that may be read at a time.
    max_reads: u32,
    pub(crate) reads_under_way: u32,
    /// Receiving ends that may have a piece to read.
    reading: VecDeque<u32>,
    /// No lane was free for the next piece, and none has become free since.
    has_no_lane: bool,
}

impl EndTurns {
    pub(super) fn rest(&mut self) {
        self.ready.shrink_to_fit();
        self.changes.shrink_to_fit();
    }

    pub(super) fn clear(&mut self) {
        self.ready.clear();
        self.changes.clear();
        self.awaiting_writes.clear();
        self.writes_under_way = 0;
        self.offering.clear();
        self.reading.clear();
        self.has_no_lane = false;
        self.reads_under_way = 0;
    }

    /// Takes over the terms of the wires.
    pub(crate) fn take_terms(&mut self, wires: &WireTerms) {
        (self.offers, self.max_reads) = (wires.offers, wires.reads);
    }

    /// A sending end may have an offer to make or to revoke.
    pub(crate) fn offers_of(&mut self, end: u32) {
        if self.offers && !self.offering.contains(&end) {
            self.offering.push(end);
        }
    }

    /// A receiving end may have pieces to read.
    pub(crate) fn reads_of(&mut self, end: u32) {
        self.has_no_lane = false;
        if self.max_reads > 0 && !self.reading.contains(&end) {
            self.reading.push_back(end);
        }
    }

    fn may_read(&self) -> bool {
        self.reads_under_way < self.max_reads
    }

    /// Returns whether there is a piece to read, as far as is known.
    #[inline]
    fn has_reads(&self) -> bool {
        self.may_read() && !self.has_no_lane && !self.reading.is_empty()
    }

    /// Returns whether the host has to be asked for offers or reads.
    #[inline]
    pub(crate) fn has_offers_or_reads(&self) -> bool {
        !self.offering.is_empty() || self.has_reads()
    }

    /// Drops an end that is no more. One that waits for a write finds no turn when the write is
    /// done.
    pub(super) fn forget(&mut self, end: u32) {
        self.ready.retain(|&other| other != end);
        self.changes.retain(|&other| other != end);
        self.offering.retain(|&other| other != end);
        self.reading.retain(|&other| other != end);
    }

    /// Returns whether another piece may go into the peer's memory.
    #[inline]
    pub(crate) fn may_write(&self) -> bool {
        self.writes_under_way < WRITES_UNDER_WAY
    }

    /// The end has a turn when a write is there.
    pub(crate) fn await_write(&mut self, end: u32) {
        if !self.awaiting_writes.contains(&end) {
            self.awaiting_writes.push(end);
        }
    }

    /// Lets the next frame carry the changes of an end, if there are any.
    pub(crate) fn tell_first_of(&mut self, end: u32) {
        if let Some(at) = self.changes.iter().position(|&other| other == end) {
            self.changes.remove(at);
            self.changes.push_front(end);
        }
    }
}

impl EndTable {
    // ---- Records ---------------------------------------------------------------------

    /// Notes that records may stand in the ring of sending end `end`. Returns whether the end has a
    /// turn: records for a peer's end that was closed are not wanted, so they need no credit
    /// either.
    #[inline]
    pub fn mark_ready(&mut self, end: u32) -> bool {
        let Some(entry) = self.entries.get_mut(end) else {
            return false;
        };
        let EndChannel::Sender(channel) = &mut entry.state else {
            return false;
        };
        if entry.closed_there && channel.closing.is_none() {
            return false;
        }
        if !channel.queued {
            channel.queued = true;
            self.turns.ready.push_back(end);
        }
        true
    }

    /// Notes that the end, which was taken from the queue of ready ones, has no turn any more.
    pub(crate) fn leaves_ready(&mut self, end: u32) {
        if let Some(channel) = self.sender_mut(end) {
            channel.queued = false;
        }
    }

    /// Notes that this many pieces, the oldest ones, have come to the peer's memory.
    pub fn writes_are_done(&mut self, writes: u32) {
        self.turns.writes_under_way -= writes;
        while let Some(end) = self.turns.awaiting_writes.pop() {
            self.mark_ready(end);
        }
    }

    // ---- Offers and reads ------------------------------------------------------------

    /// Returns whether the host has offers to make or to revoke.
    #[inline]
    #[must_use]
    pub fn has_offers(&self) -> bool {
        !self.turns.offering.is_empty()
    }

    /// Returns whether another piece of the peer's messages may be read.
    #[inline]
    #[must_use]
    pub fn has_reads(&self) -> bool {
        self.turns.has_reads()
    }

    /// A lane may have become free for the next piece.
    #[inline]
    pub fn lane_is_free(&mut self) {
        self.turns.has_no_lane = false;
    }

    /// The next step for an offer. Whoever polls it must be able to do it. Drain it whenever frames
    /// are asked for, before each.
    pub fn poll_offer(&mut self) -> Option<OfferStep> {
        while let Some(&end) = self.turns.offering.last() {
            if let Some(entry) = self.entries.get_mut(end)
                && !entry.closed_there
                && let EndChannel::Sender(channel) = &mut entry.state
                && let Some(step) = channel.large.next_offer_step(end)
            {
                // The next announcement may have waited for the end of this message.
                self.mark_ready(end);
                return Some(step);
            }
            self.turns.offering.pop();
        }
        None
    }

    /// Returns whether the peer may still read large message `sequence` of sending end `end`.
    #[must_use]
    pub fn is_readable(&self, end: u32, sequence: u64) -> bool {
        self.entries
            .get(end)
            .is_some_and(|entry| match &entry.state {
                EndChannel::Sender(channel) => {
                    !entry.closed_there && channel.large.is_readable(sequence)
                }
                EndChannel::Receiver(_) => false,
            })
    }

    /// The next piece of the peer's messages to read, if another one may be under way and one of
    /// the lanes leads to it; the first such lane is taken. A message is
    /// read to its end before one of another channel: each that has begun holds memory.
    pub(crate) fn next_read(&mut self, lanes: &[Lane]) -> Option<LargeRead> {
        while self.turns.may_read() {
            let end = *self.turns.reading.front()?;
            let next = match self.entries.get_mut(end) {
                Some(LocalEnd {
                    closed_here: false,
                    state: EndChannel::Receiver(Some(channel)),
                    ..
                }) => channel.large.next_read(lanes),
                _ => NextRead::Nothing,
            };
            match next {
                NextRead::NoLane => {
                    self.turns.has_no_lane = true;
                    return None;
                }
                NextRead::Nothing => drop(self.turns.reading.pop_front()),
                NextRead::Piece(chunk, memory, lane, key) => {
                    if chunk.offset + chunk.bytes as u64 == memory.bytes() {
                        self.turns.reading.rotate_left(1);
                    }
                    self.turns.reads_under_way += 1;
                    return Some(LargeRead {
                        end,
                        chunk,
                        memory,
                        lane,
                        key,
                    });
                }
            }
        }
        None
    }

    // ---- Changes ------------------------------------------------------------------------

    pub(crate) fn queue_changes(&mut self, end: u32) {
        let Some(channel) = self.receiver_mut(end) else {
            return;
        };
        let urgent = channel.changes_are_urgent();
        let queued = channel.queued;
        if !queued && channel.has_changes() {
            channel.queued = true;
            if urgent {
                self.turns.changes.push_front(end);
            } else {
                self.turns.changes.push_back(end);
            }
        } else if queued && urgent {
            // Urgent changes stand at the front, where `changes_are_urgent` looks.
            self.turns.tell_first_of(end);
        }
    }

    /// Queues the changes that no frame would carry ahead of the goodbye: a sender that closes at the
    /// same time learns of arrivals in no other way.
    pub(crate) fn queue_last_changes(&mut self) {
        for (end, entry) in self.entries.iter_mut() {
            if let EndChannel::Receiver(Some(channel)) = &mut entry.state
                && entry.peer.is_some()
                && channel.has_changes()
                && !mem::replace(&mut channel.queued, true)
            {
                self.turns.changes.push_back(end);
            }
        }
    }

    /// Returns whether the peer waits for the changes of an end.
    pub(crate) fn changes_are_urgent(&self) -> bool {
        self.turns
            .changes
            .front()
            .and_then(|&end| self.receiver(end))
            .is_some_and(ReceiveChannel::changes_are_urgent)
    }

    /// Takes the next end's changes into a frame: the peer's end and the counters. The blocks of the
    /// messages that were released are the peer's from now.
    pub(crate) fn take_changes(
        &mut self,
        blocks: &mut EagerBlocks,
        events: &mut VecDeque<SessionEvent>,
    ) -> Option<(u32, Counters)> {
        while let Some(end) = self.turns.changes.pop_front() {
            let Some(LocalEnd {
                state: EndChannel::Receiver(Some(channel)),
                peer: Some(peer),
                ..
            }) = self.entries.get_mut(end)
            else {
                continue;
            };
            channel.queued = false;
            if channel.has_changes() {
                let counters = channel.tell();
                blocks.notified(end, counters.released);
                events.push_back(SessionEvent::Notified { end, counters });
                return Some((*peer, counters));
            }
        }
        None
    }
}
