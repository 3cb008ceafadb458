//! Large messages that are read instead of sent: this end lets the peer read its own, and reads the
//! peer's.
//!
//! Requests to bind and to invalidate windows, and reads, take places of the send queue as frames do,
//! and are done in the order of the queue. An offer is a frame behind the request that binds its
//! window.

use std::{collections::VecDeque, sync::Arc};

use ibex_protocol::{
    session::{Arrival, Session},
    transfer::rendezvous::{LargeRead, OfferStep},
};
use ibex_verbs::{ReadRequest, RemoteAddress};

use super::{PairState, QueuePairWire, device_refused};
use crate::{
    rdma::{OfferWindows, RegisteredMessage},
    session::EndCause,
    wire::Frames,
};

/// The offers of a queue pair, and its reads.
pub(super) struct Pulling {
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

    /// Forgets the reads of a queue pair that is destroyed.
    pub(super) fn forget_reads(&mut self) {
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
                OfferStep::Make { end, sequence } => self.make_offer((end, sequence), frames)?,
                OfferStep::Revoke {
                    end,
                    sequence,
                    taken,
                } => {
                    self.revoke_offer((end, sequence), frames)?;
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
    fn make_offer<F: Frames>(
        &mut self,
        (end, sequence): (u32, u64),
        frames: &mut F,
    ) -> Result<(), EndCause> {
        let mut memory = None;
        if let PairState::Live(queue_pair) = &mut self.state
            && let Some(message) = frames.message(end, sequence)
            && let Some(place) = message.registered()
            && self.pulling.windows.has_free(&self.permit.rdma_port)
        {
            let id = self.sending.slots.post(self.sending.slots.staged());
            let bound = self
                .pulling
                .windows
                .bind(queue_pair, id, (end, sequence), place);
            memory = bound.map_err(|error| device_refused(&error))?;
            count_request(frames);
        }
        frames.session().offer(end, sequence, memory);
        Ok(())
    }

    fn revoke_offer<F: Frames>(&mut self, message: (u32, u64), frames: &F) -> Result<(), EndCause> {
        if let PairState::Live(queue_pair) = &mut self.state
            && self.pulling.windows.is_bound(message)
        {
            let id = self.sending.slots.post(self.sending.slots.staged());
            let invalidated = self.pulling.windows.invalidate(queue_pair, id, message);
            invalidated.map_err(|error| device_refused(&error))?;
            count_request(frames);
        }
        Ok(())
    }

    /// Revokes the offers of messages that are no longer sent.
    pub(super) fn keep_offers(&mut self, session: &Session) {
        let ends = &session.ends;
        self.pulling
            .windows
            .keep(|end, sequence| ends.is_readable(end, sequence));
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
        count_request(frames);
        self.pulling.reads.push_back(Reading {
            number: self.sending.slots.posted(),
            read,
            _target: target,
        });
        Ok(())
    }

    /// Hands on what the reads that are done have brought, at `time`.
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
fn count_request<F: Frames>(frames: &F) {
    let counters = frames.counters();
    counters.work_requests.add(1);
    counters.signaled.add(1);
    counters.doorbells.add(1);
}
