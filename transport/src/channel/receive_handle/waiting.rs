//! The waiting of a receiver's handle: a moment at the next header alone, then as its node does.

use std::{sync::atomic::Ordering, time::Duration};

use ibex_base::fork;
use ibex_ring::parking::{Condition, Patience, TimedOut};

use super::{CoarseTime, ReceiveHandle, Source};
use crate::{
    channel::message::RawMessage,
    endpoint::error::{NoMessage, RecvError, RecvFailure},
};

impl ReceiveHandle {
    /// The next message, waiting as long as `patience` says.
    #[inline(always)]
    pub fn receive(&mut self, patience: Patience) -> Result<RawMessage, RecvFailure> {
        if fork::is_child() {
            return Err(self.used_after_fork().into());
        }
        let is_early = self.reply_delay != 0 && matches!(patience, Patience::Until(_));
        if !is_early && let Some(message) = self.take() {
            return Ok(message);
        }
        if self.header_came(patience)
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

    /// Looks at the next header and at nothing else for a moment: the peer is often about
    /// to publish.
    #[inline]
    fn header_came(&mut self, patience: Patience) -> bool {
        let Source::Ring(ring) = &self.source else {
            return false;
        };
        if !matches!(patience, Patience::Until(_)) || !self.end.session.spins() {
            return false;
        }
        // Messages that come in bursts are a stream: close behind its sender we would
        // take every line away that it is writing, so we let it get ahead.
        let burst = self.handed_out - std::mem::replace(&mut self.empty_at, self.handed_out);
        if burst >= BURST {
            for _ in 0..BACK_OFF {
                std::hint::spin_loop();
            }
        }
        // A look that comes too early takes the line away from a peer that is about to
        // write there, and makes the message later by as much as a crossing. So the first
        // look waits for as long as the last replies took.
        for turn in 0..self.reply_delay {
            std::hint::black_box(turn);
        }
        for looks in 0..HEADER_SPINS {
            if !ring.is_empty() {
                self.reply_delay = match looks {
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

    /// Waits for a message. `None` says that one is plainly there, to be taken without a
    /// detour through memory.
    #[cold]
    #[inline(never)]
    fn receive_slow(&mut self, patience: Patience) -> Result<Option<RawMessage>, RecvFailure> {
        if self.has_record() {
            match self.poll_slow() {
                Ok(Some(message)) => return Ok(Some(message)),
                Ok(None) => {}
                Err(error) => return Err(error.into()),
            }
        }
        let Patience::Until(deadline) = patience else {
            if patience == Patience::None {
                // Whoever only looks may not come again soon, and keeps nothing back: the sender
                // may look for just that.
                self.end.advance(true);
                self.end.session.poll();
            }
            return match self.poll() {
                Ok(Some(message)) => Ok(Some(message)),
                Ok(None) if self.end.state.is_pending() => Err(RecvFailure::NotOpen),
                Ok(None) => Err(RecvFailure::Empty),
                Err(error) => Err(error.into()),
            };
        };
        // A thread that waits arms and disarms the word by which a task would be told.
        self.leave();
        if self.end.session.carrier.has_device() {
            // What was sent goes out before the wait is prepared: its answer may be what is
            // waited for, and over a device that takes no system call of ours.
            self.end.session.let_out();
        }
        let end = self.end.clone();
        let session = &end.session;
        if end.state.is_pending()
            && let Err(failure) = self.opened(patience)
            && !end.state.is_over()
        {
            return Err(failure);
        }
        let mut found = Ok(None);
        let incoming = Incoming {
            handle: self,
            found: &mut found,
        };
        match session.wait_for(&end.waiters, deadline, incoming) {
            Ok(()) => found,
            Err(TimedOut) => Err(RecvFailure::TimedOut(Box::new(NoMessage {
                channel: end.name.to_string(),
                peer: session.peer_name(),
                received: end.handed_out.load(Ordering::Relaxed),
                lacks_room: end.lacks_room.load(Ordering::Relaxed),
                interface: end.interface(),
            }))),
        }
    }

    /// Looks for a message for at most `moment`, as a blocking call does before it sleeps; for a
    /// task of the runtime that drives the node.
    pub(in crate::channel) fn look_for_a_moment(
        &mut self,
        moment: Duration,
    ) -> Option<Result<RawMessage, RecvError>> {
        let end = self.end.clone();
        let mut found = Ok(None);
        let incoming = Incoming {
            handle: self,
            found: &mut found,
        };
        end.session.look_for(moment, incoming)?;
        match found {
            Ok(Some(message)) => Some(Ok(message)),
            Ok(None) => self.take().map(Ok),
            Err(RecvFailure::Failed(error)) => Some(Err(error)),
            Err(_) => None,
        }
    }

    /// Tells the sender what was released and acknowledged, where that takes no frame. Called when
    /// a wait has found nothing at once, because the sender may be waiting for it.
    pub fn keep_nothing_back(&self) {
        if self.end.session.shares_memory() {
            self.end.advance(true);
        }
    }

    /// Has the waiting thread woken, because it is about to sleep. A look follows.
    pub(in crate::channel) fn arm(&mut self) {
        let end = &self.end;
        // Whoever sleeps until a message comes must not keep back what it has released.
        end.advance(true);
        if self.handed_out == self.last_cell {
            // What is waited for is a guard: the next to settle rings, and the engine
            // wakes us.
            end.answer_ask();
        }
        if let Some(ours) = end.ours.get() {
            self.arm.arm(&ours.armed, end.session.asymmetry());
        }
    }

    /// Takes back the wish to be woken.
    pub(in crate::channel) fn disarm(&mut self) {
        if let Some(ours) = self.end.ours.get() {
            self.arm.disarm(&ours.armed);
        }
    }
}

/// So many messages without a wait are a stream.
const BURST: u64 = 8;
/// Pauses that let a stream's sender get ahead.
const BACK_OFF: u32 = 100;
/// Looks at a ring's next header before anything else is looked at.
const HEADER_SPINS: u32 = 200;

/// Number of looks within which a message counts as a reply, whose time is worth learning.
const REPLY_LOOKS: u32 = 32;
/// By how much the delay shrinks after a message that was there at the first look; it
/// grows by four times that after one that was not. About 5 ns.
const DELAY_STEP: u32 = 4;
/// About 1 µs.
const MAX_REPLY_DELAY: u32 = 1000;

/// The condition "a message, or the end".
struct Incoming<'a> {
    handle: &'a mut ReceiveHandle,
    /// The result of a look, unless it is a message that is taken from where it lies.
    found: &'a mut Result<Option<RawMessage>, RecvFailure>,
}

impl Incoming<'_> {
    #[inline(never)]
    fn look_closely(&mut self) -> bool {
        *self.found = self.handle.poll_slow().map_err(RecvFailure::from);
        !matches!(self.found, Ok(None))
    }
}

impl Condition for Incoming<'_> {
    type Output = ();

    #[inline]
    fn look(&mut self) -> Option<()> {
        (self.handle.has_plain() || self.look_closely()).then_some(())
    }

    #[inline]
    fn glance(&mut self) -> bool {
        self.handle.has_plain()
    }

    fn keep_nothing_back(&mut self) {
        self.handle.keep_nothing_back();
    }

    fn ask(&mut self) {
        // Whoever waits keeps nothing back for long; before it sleeps, nothing (`arm`).
        let now = CoarseTime::now();
        if now != self.handle.gave_back_at {
            self.handle.gave_back_at = now;
            self.handle.end.advance(true);
        }
    }

    fn arm(&mut self) {
        self.handle.arm();
    }

    fn disarm(&mut self) {
        self.handle.disarm();
    }
}
