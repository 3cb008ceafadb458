//! Large messages that are read instead of sent: this end lets the peer read its own, and reads the
//! peer's.
//!
//! Requests to bind and to invalidate windows, and reads, take places of the send queue as frames do,
//! and are done in the order of the queue. An offer is a frame behind the request that binds its
//! window.

use std::{collections::VecDeque, sync::Arc};

use ibex_protocol::{
    session::Arrival,
    transfer::rendezvous::{LargeRead, OfferStep},
};
use ibex_verbs::{ReadRequest, RemoteAddress};

use super::{PairState, QueuePairWire, device_refused};
use crate::{
    rdma::{OfferWindows, RegisteredMessage},
    session::{EndCause, SessionCounters},
    wire::Frames,
};

/// The offers of a queue pair, and its reads.
pub(super) struct Pulling {
    // Fields in drop order: windows go before the memory that reads keep.
    pub(super) windows: OfferWindows,
    reads: VecDeque<Reading>,
}

/// A read that is not done.
struct Reading {
    /// The request's number.
    number: u64,
    read: LargeRead,
    /// Keeps the memory that the device writes to.
    _target: Arc<RegisteredMessage>,
}

impl Pulling {
    pub(super) fn new(windows: OfferWindows) -> Self {
        Self {
            windows,
            reads: VecDeque::new(),
        }
    }

    /// Takes out the oldest read, if its request is one of those up to `done`.
    #[inline]
    fn next_done(&mut self, done: u64) -> Option<Reading> {
        let is_done = self.reads.front()?.number <= done;
        is_done.then(|| self.reads.pop_front())?
    }

    /// Frees windows and targets, because the queue pair is destroyed.
    pub(super) fn clear(&mut self) {
        self.windows.clear();
        self.reads.clear();
    }
}

impl QueuePairWire {
    /// Returns whether another request can be posted.
    fn has_room(&self) -> bool {
        match &self.state {
            PairState::Live(queue_pair) => {
                self.sending.slots.room() > 0 && queue_pair.send_room() > 0
            }
            _ => false,
        }
    }

    /// Makes and revokes offers, and reads, as far as the send queue has room. Returns whether it
    /// did any of that.
    pub(super) fn pull<F: Frames>(&mut self, frames: &mut F) -> Result<bool, EndCause> {
        let mut progress = false;
        while self.has_room()
            && let Some(step) = frames.session().ends.poll_offer()
        {
            progress = true;
            match step {
                OfferStep::Make { end, sequence } => self.make_offer((end, sequence), frames),
                OfferStep::Revoke {
                    end,
                    sequence,
                    taken,
                } => {
                    self.revoke_offer((end, sequence), frames.counters())?;
                    if let Some(whole) = taken {
                        frames.counters().rendezvous_sent.add(1);
                        frames.taken(end, whole, self.sending.slots.posted());
                    }
                }
            }
        }
        while self.has_room()
            && let Some(read) = frames.session().poll_read()
        {
            progress = true;
            self.read(read, frames)?;
        }
        Ok(progress)
    }

    /// Binds a window to a message and tells the peer, or tells it that there is none.
    fn make_offer<F: Frames>(&mut self, (end, sequence): (u32, u64), frames: &mut F) {
        let mut memory = None;
        if let PairState::Live(queue_pair) = &mut self.state
            && let Some(message) = frames.message(end, sequence)
            && let Some(place) = message.registered()
        {
            let (windows, slots) = (&mut self.pulling.windows, &mut self.sending.slots);
            memory = windows.bind(queue_pair, slots.next_id(), (end, sequence), place);
            if memory.is_some() {
                slots.post(slots.staged());
                count_request(frames.counters());
            }
        }
        frames.session().offer(end, sequence, memory);
    }

    fn revoke_offer(
        &mut self,
        message: (u32, u64),
        counters: &SessionCounters,
    ) -> Result<(), EndCause> {
        if let PairState::Live(queue_pair) = &mut self.state {
            let (windows, slots) = (&mut self.pulling.windows, &mut self.sending.slots);
            let revoked = windows.revoke(queue_pair, slots.next_id(), message);
            if revoked.map_err(|error| device_refused(&error))? {
                slots.post(slots.staged());
                count_request(counters);
            }
        }
        Ok(())
    }

    /// Revokes the offers of messages that are out no more. Returns whether that is posted for all
    /// of them.
    pub(super) fn revoke_stale(
        &mut self,
        is_out: impl Fn(u32, u64) -> bool,
        counters: &SessionCounters,
    ) -> Result<bool, EndCause> {
        while let Some(message) = self.pulling.windows.stale(&is_out) {
            if !self.has_room() {
                return Ok(false);
            }
            self.revoke_offer(message, counters)?;
        }
        Ok(!self.has_open_windows())
    }

    fn read<F: Frames>(&mut self, read: LargeRead, frames: &F) -> Result<(), EndCause> {
        let PairState::Live(queue_pair) = &mut self.state else {
            return Ok(());
        };
        let LargeRead { end, chunk, memory } = read;
        let target = frames.target(end, chunk.sequence);
        // The session reads for ends that are open, into memory that was registered for it.
        let target = target.expect("a read has a target").clone();
        let start = chunk.offset as usize;
        let targets = [target.target(start..start + chunk.bytes)];
        let remote = RemoteAddress {
            address: memory.at(chunk.offset),
            rkey: memory.key(),
        };
        let id = self.sending.slots.post(self.sending.slots.staged());
        let mut batch = queue_pair.send_batch();
        let request = ReadRequest::new(id, &targets, remote).signaled();
        // Room was checked before, and a connection without reads carries no offers.
        batch.push_read(&request).expect("a read fits");
        batch.post().map_err(|refused| device_refused(&refused))?;
        count_request(frames.counters());
        self.pulling.reads.push_back(Reading {
            number: self.sending.slots.posted(),
            read,
            _target: target,
        });
        Ok(())
    }

    /// Hands on what the reads that are done have brought, at `time`. No request has failed.
    pub(super) fn reads_are_done<F: Frames>(&mut self, time: u64, frames: &mut F) {
        let done = self.sending.slots.done();
        while let Some(Reading { read, .. }) = self.pulling.next_done(done) {
            if frames.is_over() {
                continue;
            }
            let arrival = frames.session().handle_read(read.end, read.chunk);
            if let Arrival::Chunk {
                end,
                chunk,
                complete,
            } = arrival
            {
                let until = chunk.offset + chunk.bytes as u64;
                frames.chunk_moves(end, chunk.sequence, until);
                if complete {
                    frames.counters().rendezvous_received.add(1);
                    frames.chunk_done(end, time);
                }
            }
            frames.events();
        }
    }
}

/// Counts a request that was posted alone.
fn count_request(counters: &SessionCounters) {
    counters.work_requests.add(1);
    counters.signaled.add(1);
    counters.doorbells.add(1);
}
