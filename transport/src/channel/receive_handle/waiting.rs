//! The waiting of a receiver's handle: it spins on the next header for a moment, and then waits by
//! its node's rules.

use std::{
    sync::{Arc, atomic::Ordering},
    task::Waker,
    time::Duration,
};

use ibex_base::fork;
use ibex_ring::{
    Consumer, Mapped,
    parking::{Condition, Patience, TimedOut},
};

use super::{CoarseTime, ReceiveHandle};
use crate::session::{ChannelError, FailureReason};
use crate::{channel::message::RawMessage, endpoint::receive_end::WaitsForCell, session::Counts};

impl ReceiveHandle {
    /// Returns the next message, and waits for it as long as `patience` says.
    #[inline(always)]
    pub fn receive(&mut self, patience: Patience) -> Result<RawMessage, ChannelError> {
        if fork::is_child() {
            return Err(self.used_after_fork());
        }
        let is_early = self.header_spin.reply_delay != 0 && matches!(patience, Patience::Until(_));
        if !is_early && let Some(message) = self.take() {
            return Ok(message);
        }
        if let Some(ring) = self.source.ring()
            && matches!(patience, Patience::Until(_))
            && self.end.session.node.spins()
            && self.header_spin.header_came(ring, self.handed_out)
            && let Some(message) = self.take()
        {
            return Ok(message);
        }
        loop {
            match self.receive_slow(patience) {
                Ok(Some(message)) => return Ok(message),
                Ok(None) => {}
                Err(failure) => return Err(failure),
            }
            if let Some(message) = self.take() {
                return Ok(message);
            }
        }
    }

    /// Waits for a message. `None` means that [`take`](ReceiveHandle::take) will return one,
    /// without a detour through memory.
    #[cold]
    #[inline(never)]
    fn receive_slow(&mut self, patience: Patience) -> Result<Option<RawMessage>, ChannelError> {
        if self.source.may_have_record() {
            match self.poll_slow() {
                Ok(Some(message)) => return Ok(Some(message)),
                Ok(None) => {}
                Err(error) => return Err(error),
            }
        }
        let Patience::Until(deadline) = patience else {
            if patience == Patience::None {
                // A caller that only looks may not come again soon, so it reports all releases now:
                // the sender may be waiting for them.
                self.end.advance(true);
                self.end.session.requests.poll();
            }
            return match self.poll() {
                Ok(Some(message)) => Ok(Some(message)),
                Ok(None) if self.end.state.is_pending() => Err(ChannelError::NotOpenYet),
                Ok(None) => Err(ChannelError::WouldBlock),
                Err(error) => Err(error),
            };
        };
        // The handle has one waker. That of a task that waited before is taken back.
        self.leave();
        self.end.session.let_out_before_wait();
        let end = self.end.clone();
        let session = &end.session;
        if end.state.is_pending()
            && let Err(failure) = self.opened(patience)
            && !end.state.is_over()
        {
            return Err(failure);
        }
        let mut found = Ok(None);
        let (last_large, bytes) = self.last_large;
        let began = (last_large == self.handed_out as u32 && bytes > 0)
            .then(|| self.large_waits.begin(bytes as usize));
        let waited = session.wait_for(deadline, NextMessage::new(self, &mut found));
        if let Some(began) = began {
            self.large_waits.end(began);
        }
        match waited {
            Ok(()) => Ok(found?),
            Err(TimedOut) => {
                let counts = Counts {
                    received: end.handed_out.load(Ordering::Relaxed),
                    ..end.counts()
                };
                let lacks_room = end.lacks_room.load(Ordering::Relaxed);
                let reason = FailureReason::NoMessage { lacks_room };
                Err(end.waited(counts, reason).into())
            }
        }
    }

    /// Returns what a wait by [`NextMessage`] has found. `None` if it has seen a message that a peer
    /// has since changed against the protocol.
    pub(in crate::channel) fn found(
        &mut self,
        found: Result<Option<RawMessage>, ChannelError>,
    ) -> Option<Result<RawMessage, ChannelError>> {
        let taken = found.map(|message| message.or_else(|| self.take()));
        taken.transpose()
    }

    /// Tells the sender which messages were released and acknowledged, where that takes no frame. A
    /// wait that finds nothing at once calls this, because the sender may be waiting for it.
    pub fn keep_nothing_back(&self) {
        self.end.path.keep_nothing_back(&self.end);
    }

    /// Asks to be woken, because the caller is about to sleep. A poll follows.
    pub(in crate::channel) fn arm(&mut self) {
        let end = &self.end;
        // A receiver that sleeps until a message comes must first report all that it has released.
        end.advance(true);
        if self.handed_out == self.last_cell {
            // The receiver waits for a guard to be settled. The next guard that is settled rings,
            // and the engine wakes the receiver.
            match end.state.is_over() {
                true => {
                    let handle = WaitsForCell(Arc::downgrade(end));
                    self.cells.report_to(Arc::new(handle));
                }
                false => end.answer_ask(),
            }
        }
        end.path.arm(end, &mut self.arm);
    }

    /// Withdraws the request to be woken.
    pub(in crate::channel) fn disarm(&mut self) {
        self.end.path.disarm(&mut self.arm);
    }
}

/// What a handle has learned of the time until the next message comes.
#[derive(Debug, Default)]
pub(super) struct HeaderSpin {
    /// The count of messages handed out when the source was last found empty.
    empty_at: u64,
    /// Turns of an empty loop before the first look for a message. The handle learns the number
    /// from messages that came soon after a wait began.
    reply_delay: u32,
}

impl HeaderSpin {
    /// Looks only at the next header for a moment, because the peer is often about to publish.
    #[inline]
    fn header_came(&mut self, ring: &Consumer<Mapped>, handed_out: u64) -> bool {
        // Messages that come in bursts are a stream. A receiver close behind its sender would take
        // away every cache line that the sender is writing, so it lets the sender get ahead.
        let burst = handed_out - std::mem::replace(&mut self.empty_at, handed_out);
        if burst >= BURST {
            for _ in 0..BACK_OFF {
                std::hint::spin_loop();
            }
        }
        // A look that comes too early takes the cache line away from a peer that is about to write
        // it, and delays the message by one transfer of the line between cores. So the first look
        // waits for as long as the last replies took.
        for turn in 0..self.reply_delay {
            std::hint::black_box(turn);
        }
        for spin in 0..HEADER_SPINS {
            if !ring.is_empty() {
                self.reply_delay = match spin {
                    0 => self.reply_delay.saturating_sub(DELAY_STEP),
                    1..REPLY_LOOKS => (self.reply_delay + 4 * DELAY_STEP).min(MAX_REPLY_DELAY),
                    _ => 0,
                };
                return true;
            }
            std::hint::spin_loop();
        }
        self.reply_delay = 0;
        false
    }
}

/// Number of messages without a wait that count as a stream.
const BURST: u64 = 8;
/// Spin-loop pauses that let a stream's sender get ahead.
const BACK_OFF: u32 = 100;
/// Looks at a ring's next header before anything else is looked at.
const HEADER_SPINS: u32 = 200;

/// Number of polls within which a message counts as a reply, whose time is worth learning.
const REPLY_LOOKS: u32 = 32;
/// Step by which the delay shrinks after a message that was there at the first poll. It grows by
/// four steps after one that was not. A step takes about 5 ns.
const DELAY_STEP: u32 = 4;
/// Longest delay, which takes about 1 µs.
const MAX_REPLY_DELAY: u32 = 1000;

/// The condition "a message, or the end".
pub(in crate::channel) struct NextMessage<'a> {
    handle: &'a mut ReceiveHandle,
    /// The result of a poll. It stays `Ok(None)` for a message that the caller takes in place.
    found: &'a mut Result<Option<RawMessage>, ChannelError>,
}

impl<'a> NextMessage<'a> {
    pub(in crate::channel) fn new(
        handle: &'a mut ReceiveHandle,
        found: &'a mut Result<Option<RawMessage>, ChannelError>,
    ) -> Self {
        Self { handle, found }
    }

    #[inline(never)]
    fn poll_closely(&mut self) -> bool {
        *self.found = self.handle.poll_slow();
        !matches!(self.found, Ok(None))
    }
}

impl Condition for NextMessage<'_> {
    type Output = ();

    #[inline]
    fn check(&mut self) -> Option<()> {
        (self.handle.has_plain() || self.poll_closely()).then_some(())
    }

    #[inline]
    fn poll_quickly(&mut self) -> bool {
        self.handle.has_plain() || self.handle.source.may_have_copy()
    }

    fn lasts(&self) -> Duration {
        self.handle.large_waits.lasts()
    }

    fn keep_nothing_back(&mut self) {
        self.handle.keep_nothing_back();
    }

    fn ask(&mut self) {
        // A waiting receiver reports releases at least at each tick of the coarse clock. Before it
        // sleeps, it reports all of them (`arm`).
        let now = CoarseTime::now();
        if now != self.handle.gave_back_at {
            self.handle.gave_back_at = now;
            self.handle.end.advance(true);
        }
    }

    fn register(&mut self, waker: &Waker) {
        self.handle.register(waker);
    }

    fn leave(&mut self) {
        self.handle.leave();
    }
}
