//! Large messages that are read instead of sent: this end lets the peer read its own, and reads the
//! peer's.
//!
//! Requests to bind and to invalidate windows, and reads, take places of the send queue as frames do,
//! and are done in the order of the queue. An offer is a frame behind the request that binds its
//! window. Offers and reads of messages of several pieces go over the session's [rails](super::rails)
//! too. Pieces are handed on in their order, whatever brings them.

use std::{collections::VecDeque, ops::Range, sync::Arc, time::Instant};

use ibex_protocol::{
    session::Arrival,
    transfer::rendezvous::{Lane, LargeRead, MOST_RAILS, OfferStep, WRITE_BYTES},
};
use ibex_verbs::{PostError, QueuePair, ReadRequest, RemoteAddress, TargetEntry};

use super::{
    PairState, QueuePairWire, device_refused,
    rails::{PieceState, Rails},
};
use crate::{
    rdma::{OfferWindows, PreparedRail, RegisteredMessage, SendSlots},
    session::{EndCause, SessionCounters},
    wire::{EventOutcome, Frames, RailEvent},
};

/// The offers of a queue pair, and its reads.
pub(super) struct Pulling {
    // Fields in drop order: windows go before the memory that reads keep.
    pub(super) windows: OfferWindows,
    pub(super) rails: Rails,
    /// The reads that are not handed on, in their order.
    reads: VecDeque<Reading>,
    /// Most reads over the wire.
    depth: u32,
}

/// A read that is not handed on.
struct Reading {
    /// The number of the request on its lane; `None` if it is to be posted again, on the wire.
    number: Option<u64>,
    read: LargeRead,
    /// The memory that the piece is read to, as it is registered for the wire. The receiver may go
    /// meanwhile.
    target: Arc<RegisteredMessage>,
    /// The same, as it is registered for the rail.
    _on_rail: Option<Arc<RegisteredMessage>>,
}

impl Pulling {
    /// `depth` is the number of reads over the wire that may be under way.
    pub(super) fn new(windows: OfferWindows, rails: Vec<Option<PreparedRail>>, depth: u32) -> Self {
        Self {
            windows,
            rails: Rails::new(rails),
            reads: VecDeque::new(),
            depth,
        }
    }

    /// Takes out the oldest read, if it is done. On the wire requests up to `done` are.
    #[inline]
    fn next_done(&mut self, done: u64) -> Option<Reading> {
        let Reading { number, read, .. } = self.reads.front()?;
        let number = (*number)?;
        let is_done = match read.lane {
            Lane::Wire => number <= done,
            Lane::Rail(rail) => self
                .rails
                .get(rail)
                .is_some_and(|rail| matches!(rail.state_of(number), PieceState::Done)),
        };
        is_done.then(|| self.reads.pop_front())?
    }

    /// Marks pieces that were lost with their rail as to be read again.
    fn note_lost(&mut self) {
        for reading in &mut self.reads {
            if let (Lane::Rail(rail), Some(number)) = (reading.read.lane, reading.number)
                && let Some(rail) = self.rails.get(rail)
                && let PieceState::Lost = rail.state_of(number)
            {
                (reading.read.lane, reading.number) = (Lane::Wire, None);
            }
        }
    }

    /// Returns whether a piece is to be read again.
    #[inline]
    pub(super) fn has_lost(&self) -> bool {
        !self.rails.are_none() && self.reads.iter().any(|one| one.number.is_none())
    }

    /// Returns how many reads are under way over the wire, where requests up to `done` are done.
    fn on_wire(&self, done: u64) -> u32 {
        let is_on_wire = |reading: &&Reading| {
            let is_under_way = reading.number.is_some_and(|number| number > done);
            reading.read.lane == Lane::Wire && is_under_way
        };
        self.reads.iter().filter(is_on_wire).count() as u32
    }

    /// Counts the reads that are under way over a rail.
    fn count_reads_of(&mut self, rail: u8) {
        let Some(one) = self.rails.get_mut(rail) else {
            return;
        };
        let is_under_way = |reading: &&Reading| {
            let number = reading
                .number
                .filter(|_| reading.read.lane == Lane::Rail(rail));
            number.is_some_and(|number| matches!(one.state_of(number), PieceState::UnderWay))
        };
        one.reads = self.reads.iter().filter(is_under_way).count() as u32;
    }

    /// Returns the lanes over which another piece may be read, the least busy first. On the wire
    /// requests up to `done` are done.
    fn lanes(&self, done: u64) -> ([Lane; 1 + MOST_RAILS], usize) {
        let (mut lanes, mut count) = ([(0, Lane::Wire); 1 + MOST_RAILS], 0);
        let mut add = |reads, lane| {
            lanes[count] = (reads, lane);
            count += 1;
        };
        let on_wire = self.on_wire(done);
        if on_wire < self.depth {
            add(on_wire, Lane::Wire);
        }
        for (at, rail) in self.rails.iter().filter(|(_, rail)| rail.may_read()) {
            add(rail.reads, Lane::Rail(at));
        }
        lanes[..count].sort_by_key(|(reads, _)| *reads);
        (lanes.map(|(_, lane)| lane), count)
    }

    /// Frees windows and targets, because the queue pair is destroyed.
    pub(super) fn clear(&mut self) {
        self.rails.clear();
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
        if !self.pulling.rails.are_none() && self.is_live() {
            self.pulling
                .rails
                .iter_mut()
                .for_each(|rail| rail.begin(frames.counters()));
            progress |= self.read_again(frames)?;
        }
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
        while frames.session().ends.has_reads() && self.has_room() && !self.pulling.has_lost() {
            let (lanes, count) = self.pulling.lanes(self.sending.slots.done());
            let Some(read) = frames.session().poll_read(&lanes[..count]) else {
                break;
            };
            progress = true;
            self.read(read, frames)?;
            self.read_again(frames)?;
        }
        Ok(progress)
    }

    /// Reads pieces over the wire that were lost with their rail. Returns whether there were any.
    fn read_again<F: Frames>(&mut self, frames: &F) -> Result<bool, EndCause> {
        if self.pulling.rails.are_none() {
            return Ok(false);
        }
        self.pulling.note_lost();
        let mut any = false;
        while self.has_room()
            && self.pulling.on_wire(self.sending.slots.done()) < self.pulling.depth
            && let Some(at) = self
                .pulling
                .reads
                .iter()
                .position(|one| one.number.is_none())
        {
            any = true;
            let Reading { read, target, .. } = &self.pulling.reads[at];
            let (read, target) = (*read, target.clone());
            self.pulling.reads[at] = self.read_over_wire(read, target, frames.counters())?;
        }
        Ok(any)
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
        if memory.is_some_and(|memory| memory.bytes() > WRITE_BYTES as u64)
            && let Some(message) = frames.message(end, sequence)
        {
            for rail in self.pulling.rails.iter_mut() {
                if let Some((registered, range)) = message.registered_at(rail.rdma_port()) {
                    rail.bind((end, sequence), (&registered, range), frames.counters());
                }
            }
        }
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
            let at = slots.posted();
            for rail in self.pulling.rails.iter_mut() {
                rail.revoke(message, at, counters);
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
        while let Some(message) = self.stale(&is_out) {
            if !self.has_room() {
                return Ok(false);
            }
            self.revoke_offer(message, counters)?;
        }
        Ok(!self.has_open_windows())
    }

    /// Returns a message that the peer may read, on the wire or on a rail, and that `is_out` no more.
    fn stale(&self, is_out: impl Fn(u32, u64) -> bool) -> Option<(u32, u64)> {
        let of_rails = || {
            let mut rails = self.pulling.rails.iter();
            rails.find_map(|(_, rail)| rail.windows.stale(&is_out))
        };
        self.pulling.windows.stale(&is_out).or_else(of_rails)
    }

    fn read<F: Frames>(&mut self, mut read: LargeRead, frames: &F) -> Result<(), EndCause> {
        let LargeRead { end, chunk, .. } = read;
        let target = frames.target(end, chunk.sequence);
        // The session reads for ends that are open, into memory that was registered for it.
        let target = target.expect("a read has a target").clone();
        let reading = match read.lane {
            Lane::Wire => self.read_over_wire(read, target, frames.counters())?,
            Lane::Rail(number) => {
                let mut posted = None;
                if let Some(rail) = self.pulling.rails.get_mut(number)
                    && let Some(on_rail) = frames.target_at(end, chunk.sequence, rail.rdma_port())
                {
                    let (range, from) = place_of(&read);
                    let number = rail.read(&on_rail, range, from, frames.counters());
                    frames.counters().rail_reads.add(1);
                    posted = Some((number, on_rail));
                } else {
                    // The memory is not registered for the rail.
                    read.lane = Lane::Wire;
                }
                let (number, on_rail) = posted.unzip();
                Reading {
                    number,
                    read,
                    target,
                    _on_rail: on_rail,
                }
            }
        };
        self.pulling.reads.push_back(reading);
        Ok(())
    }

    /// Posts a read over the wire, which is live and has room.
    fn read_over_wire(
        &mut self,
        mut read: LargeRead,
        target: Arc<RegisteredMessage>,
        counters: &SessionCounters,
    ) -> Result<Reading, EndCause> {
        (read.lane, read.key) = (Lane::Wire, read.memory.key());
        if let PairState::Live(queue_pair) = &mut self.state {
            let (range, from) = place_of(&read);
            let posted = post_read(
                queue_pair,
                &mut self.sending.slots,
                target.target(range),
                from,
            );
            posted.map_err(|refused| device_refused(&refused))?;
            count_request(counters);
        }
        Ok(Reading {
            number: Some(self.sending.slots.posted()),
            read,
            target,
            _on_rail: None,
        })
    }

    /// Takes in events of a rail.
    pub(super) fn rail_reported<F: Frames>(
        &mut self,
        rail: u8,
        event: RailEvent<'_>,
        frames: &mut F,
    ) -> EventOutcome {
        let Some(one) = self.pulling.rails.get_mut(rail) else {
            return EventOutcome::Stray;
        };
        let mut time = 0;
        match event {
            RailEvent::Completed(completion) => {
                frames.counters().completions.add(1);
                time = one.time_of(completion);
                if let Some(((end, sequence), key)) = one.complete(completion) {
                    frames.session().offer_rail(end, sequence, rail, key);
                }
            }
            RailEvent::Said(event) => one.event(event),
            RailEvent::Lost(why) => one.destroy(why),
        }
        self.pulling.count_reads_of(rail);
        self.rails_moved(time, frames)
    }

    /// Destroys failed rails that are overdue at `now`.
    pub(super) fn expire_rails<F: Frames>(&mut self, now: Instant, frames: &mut F) -> EventOutcome {
        if self.pulling.rails.are_none() {
            return EventOutcome::Nothing;
        }
        self.pulling.rails.expire(now);
        self.rails_moved(0, frames)
    }

    /// Goes on after events of rails.
    fn rails_moved<F: Frames>(&mut self, time: u64, frames: &mut F) -> EventOutcome {
        if !self.is_live() || self.sending.has_failed || frames.is_over() {
            return EventOutcome::Something;
        }
        self.reads_are_done(time, frames);
        frames.gone(self.freed());
        frames.session().ends.lane_is_free();
        match self.pull(frames) {
            Ok(_) => EventOutcome::Something,
            Err(cause) => EventOutcome::Broke(Box::new(cause)),
        }
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

/// Returns the part of its target that a piece is read to, and where it is read from.
fn place_of(read: &LargeRead) -> (Range<usize>, RemoteAddress) {
    let start = read.chunk.offset as usize;
    let from = RemoteAddress {
        address: read.memory.at(read.chunk.offset),
        rkey: read.key,
    };
    (start..start + read.chunk.bytes, from)
}

/// Posts a read to a queue pair that has room and carries reads.
pub(super) fn post_read(
    pair: &mut QueuePair,
    slots: &mut SendSlots,
    target: TargetEntry<'_>,
    from: RemoteAddress,
) -> Result<(), PostError> {
    let id = slots.post(slots.staged());
    let targets = [target];
    let mut batch = pair.send_batch();
    let request = ReadRequest::new(id, &targets, from).signaled();
    batch.push_read(&request).expect("a read fits");
    batch.post().map(drop)
}

/// Counts a request that was posted alone.
pub(super) fn count_request(counters: &SessionCounters) {
    counters.work_requests.add(1);
    counters.signaled.add(1);
    counters.doorbells.add(1);
}
