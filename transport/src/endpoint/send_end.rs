//! The sending end of a channel: the state that its handles and the engine share.
//!
//! Rules for `writing`, the only part that is not shared by atomics:
//!
//! 1. While there is one handle, `bias` favours that handle, which touches the producer inside it.
//! 2. Before a second handle exists, the favour is withdrawn. From then on every handle touches the
//!    producer only while it holds `turnstile`. A handle that finds `bias` closed takes the
//!    turnstile too.
//! 3. The engine touches the producer while it holds the turnstile and has closed `bias`, so that
//!    no handle is inside by either rule. It does so to take back a silent sender's producer.
//! 4. A reservation keeps what rule 1 or 2 gave it until it is published or dropped.
//!    A leaked one ends the channel, and its handle opens the turnstile again.

use std::sync::atomic::Ordering;
use std::{
    cell::UnsafeCell,
    ops::Deref,
    sync::{Arc, OnceLock},
    thread,
};

use ibex_base::{
    fork,
    sync::{AtomicBool, AtomicU32, AtomicU64, BiasedLock, Mutex, lock},
};
use ibex_protocol::format::control::CloseReason;
use ibex_ring::{
    Arm, Released,
    end_status::{ReceiverWords, SenderWords, Words},
    parking::{self, AtSlot, Patience, TimedOut, WaitSlot, Wakers},
};

use super::{
    channel_end::ChannelEnd, send_path::SendPath, send_producer::SendProducer,
    send_times::SendTimes, stall::Stall, state::EndReason,
};
use crate::session::{ChannelError, FailureReason};
use crate::{counter::Counter, histogram::Recorder, session::Counts};

/// The state that the handles of a sending end and its engine share.
#[derive(Debug)]
pub struct SendEnd {
    // Identity and state.
    common: ChannelEnd,

    // Counters of the two sides.
    /// The receiving end's words: the engine's copy, or the peer's own in shared memory.
    pub(crate) theirs: OnceLock<Words<ReceiverWords>>,
    /// The path of its messages.
    pub(crate) path: SendPath,
    /// The last message for whose acknowledgement a caller asked without waiting.
    pub(crate) asked_in_passing: AtomicU64,

    /// The reason why the channel does not end in order, if it was broken off.
    broken_off: OnceLock<CloseReason>,

    // The means by which handles write, and the locks that guard them.
    pub(crate) writing: UnsafeCell<Writing>,
    pub(crate) bias: BiasedLock,
    pub(crate) turnstile: Turnstile,
    pub(crate) handles: AtomicU32,
    /// The shared handle. It counts as one of the handles and stays open without the others.
    pub(crate) shared: Shared,
    /// Messages sent, for readers that must not touch the producer.
    pub(crate) sent: AtomicU64,
    /// The last large message whose bytes were all sent over a wire and whose memory is back in its
    /// pool.
    pub(crate) large_gone: AtomicU64,
    /// Bytes of large messages that went into frames, written by the engine. Bytes that are sent
    /// again count again.
    pub(crate) large_bytes_sent: Counter,

    // Counters, written by the thread that may touch the producer.
    pub(crate) stall: Stall,
    /// Messages with memory of their own.
    pub(crate) large_messages: Counter,
    pub(crate) large_bytes: Counter,
    /// Those of them that lay in a region, and were copied.
    pub(crate) region_bytes_copied: Counter,
    /// Measures waits for acknowledgements, from the first one on, if the node keeps histograms.
    pub(crate) ack_waits: OnceLock<Option<Arc<Recorder>>>,
    /// The times of messages, if the node is inspected.
    pub(crate) times: Option<Box<SendTimes>>,
}

// SAFETY: `writing` is touched only as the rules of this module say, one thread at a
// time, each after it saw what the one before wrote (`&mut` handles and the bias, or the
// turnstile's acquire and release). Everything else is `Sync` by itself.
unsafe impl Sync for SendEnd {}

/// The means by which the handles of an end write.
#[derive(Debug, Default)]
pub(crate) struct Writing {
    /// The producer, present while the channel is used; boxed, so that an unused end stays small.
    pub(crate) producer: Option<Box<SendProducer>>,
    /// The released count of the producer before this one, whose ring was given back.
    pub(crate) before: Option<Released>,
}

/// Gives access to the part that both ends have in common.
impl Deref for SendEnd {
    type Target = ChannelEnd;

    #[inline]
    fn deref(&self) -> &ChannelEnd {
        &self.common
    }
}

impl SendEnd {
    pub(crate) fn new(common: ChannelEnd, path: SendPath) -> Self {
        Self {
            times: common.session.is_inspected().then(Box::default),
            common,
            theirs: OnceLock::new(),
            path,
            asked_in_passing: AtomicU64::new(0),
            broken_off: OnceLock::new(),
            writing: UnsafeCell::default(),
            bias: BiasedLock::new(),
            turnstile: Turnstile::default(),
            handles: AtomicU32::new(1),
            shared: Shared::default(),
            sent: AtomicU64::new(0),
            large_gone: AtomicU64::new(0),
            large_bytes_sent: Counter::default(),
            stall: Stall::default(),
            large_messages: Counter::default(),
            large_bytes: Counter::default(),
            region_bytes_copied: Counter::default(),
            ack_waits: OnceLock::new(),
        }
    }

    /// Returns the channel's counters.
    pub(crate) fn counts(&self) -> Counts {
        // SENT, pairs with `publish`.
        let sent = self.sent.load(Ordering::Acquire);
        let Some(theirs) = self.theirs.get().filter(|_| !fork::is_child()) else {
            return Counts {
                sent,
                ..Counts::default()
            };
        };
        // A peer's counters are limited to what was sent.
        Counts {
            sent,
            received: theirs.received().min(sent),
            released: theirs.released().0.min(sent),
            acknowledged: theirs.acknowledged().0.min(sent),
        }
    }

    /// Notes that the channel will not end in order. The first reason stays.
    pub(crate) fn break_off(&self, reason: CloseReason) {
        let _ = self.broken_off.set(reason);
    }

    /// Returns the reason why the channel ends once it has no handle any more.
    pub(crate) fn parting(&self) -> CloseReason {
        *self.broken_off.get().unwrap_or(&CloseReason::Dropped)
    }

    /// Returns the end of the channel as an error of a sending call.
    pub(crate) fn error(&self) -> ChannelError {
        self.over(self.counts())
    }

    /// Returns the error of a sending call.
    #[cold]
    pub(crate) fn failed(&self, reason: FailureReason) -> ChannelError {
        self.failure(self.counts(), reason).into()
    }
}

/// This end's *asked* word in shared memory, set while any thread waits for the peer's counters.
///
/// Several threads may wait at a time, some for room and some for acknowledgements, and they share
/// the word. Each question has a generation of its own, so that the peer answers it regardless of
/// earlier answers. The last thread to give up clears the word.
#[derive(Debug)]
pub(crate) struct Asking {
    /// This end's words, which the peer reads.
    pub(super) words: Words<SenderWords>,
    askers: Mutex<Askers>,
}

#[derive(Debug, Default)]
struct Askers {
    arm: Arm,
    count: u32,
    /// Threads among these that wait for room.
    for_room: u32,
}

/// The event that a thread asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AskedEvent {
    /// A message is released.
    Room,
    /// The counters move.
    Changes,
}

impl Asking {
    pub(super) fn new(words: Words<SenderWords>) -> Self {
        Self {
            words,
            askers: Mutex::default(),
        }
    }

    /// Asks, for the first time or again, and rings the peer. The caller must look once more before
    /// it sleeps.
    pub(super) fn ask(&self, end: &SendEnd, wish: AskedEvent, asked: &mut Option<AskedEvent>) {
        let (ours, mut askers) = (&self.words, lock(&self.askers));
        if asked.is_none() {
            *asked = Some(wish);
            askers.count += 1;
            askers.for_room += u32::from(wish == AskedEvent::Room);
            ours.wants_room.store(askers.for_room, Ordering::Relaxed);
        }
        askers.arm.arm(&ours.asked, end.session.asymmetry());
        drop(askers);
        end.session.ring_peer();
    }

    /// Withdraws the question of a caller that has stopped waiting, or pauses.
    pub(super) fn give_up(&self, asked: &mut Option<AskedEvent>) {
        let Some(wish) = asked.take() else {
            return;
        };
        let (ours, mut askers) = (&self.words, lock(&self.askers));
        askers.count -= 1;
        askers.for_room -= u32::from(wish == AskedEvent::Room);
        ours.wants_room.store(askers.for_room, Ordering::Relaxed);
        if askers.count == 0 {
            askers.arm.disarm(&ours.asked);
        }
    }
}

/// The producer lock of cloned senders. It is roughly fair and knows its holder, so that a
/// serializer that sends on the channel it serializes for gets an error and does not deadlock.
#[derive(Debug, Default)]
pub(crate) struct Turnstile {
    holder: AtomicU64,
    pub(crate) waiters: WaitSlot,
}

/// The holder of the right to the producer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Inside {
    Us,
    /// The engine, which holds the right for a moment only.
    TheEngine,
    Another,
}

/// Holder number of the engine.
const ENGINE: u64 = u64::MAX;
/// Holder number of any task: a task does not stay on one thread.
const TASK: u64 = u64::MAX - 1;

impl Turnstile {
    #[inline]
    fn try_enter(&self) -> Result<(), Inside> {
        self.try_enter_as(thread_number())
    }

    #[inline]
    fn try_enter_as(&self, me: u64) -> Result<(), Inside> {
        // TURN, pairs with `leave`: the entering thread sees what the previous holder wrote.
        match self
            .holder
            .compare_exchange(0, me, Ordering::Acquire, Ordering::Relaxed)
        {
            Ok(_) => Ok(()),
            Err(holder) if holder == me => Err(Inside::Us),
            Err(ENGINE) => Err(Inside::TheEngine),
            Err(_) => Err(Inside::Another),
        }
    }

    /// Notes that a task holds the right from now on, and no longer this thread, which may call for
    /// another task. Only the holder calls this.
    pub(crate) fn hand_to_task(&self) {
        self.holder.store(TASK, Ordering::Relaxed);
    }

    /// Notes that this thread holds the right from now on. Only the holder calls this.
    pub(crate) fn hand_to_thread(&self) {
        self.holder.store(thread_number(), Ordering::Relaxed);
    }

    /// Leaves on behalf of the holder, from any thread.
    #[inline]
    pub(crate) fn leave(&self) {
        // TURN, pairs with `try_enter_as`.
        self.holder.store(0, Ordering::Release);
        if self.waiters.is_waiting() {
            self.waiters.wake_all();
        }
    }
}

impl SendEnd {
    /// Enters the turnstile, waiting for the thread inside as long as `patience` allows. That
    /// thread may stay inside for long, while it waits for room or builds a message.
    #[inline]
    pub(crate) fn take_turn(&self, patience: Patience) -> Result<(), ChannelError> {
        loop {
            match self.turnstile.try_enter() {
                Ok(()) => return Ok(()),
                Err(Inside::Us) => return Err(self.failed(FailureReason::Nested)),
                Err(Inside::TheEngine) => thread::yield_now(),
                Err(Inside::Another) => return self.take_turn_slow(patience),
            }
        }
    }

    #[cold]
    fn take_turn_slow(&self, patience: Patience) -> Result<(), ChannelError> {
        let Patience::Until(deadline) = patience else {
            return Err(ChannelError::WouldBlock);
        };
        let released = self.counts().released;
        for _ in 0..SPINS {
            if self.turnstile.try_enter().is_ok() {
                return Ok(());
            }
            std::hint::spin_loop();
        }
        let check = || match self.turnstile.try_enter() {
            Ok(()) => Some(Ok(())),
            Err(_) => self.state.is_over().then(|| Err(self.error())),
        };
        let mut held = None;
        let turn = AtSlot::new(&self.turnstile.waiters, &mut held, check);
        parking::block(turn, deadline)
            .unwrap_or_else(|TimedOut| Err(self.stayed_full(None, released)))
    }

    /// Ends the channel as [`ChannelEnd::end`] does, also for handles that wait for their turn.
    pub(crate) fn end(&self, why: EndReason, wakers: &mut Wakers) {
        self.common.end(why, wakers);
        self.turnstile.waiters.take(wakers);
    }
}

/// The engine's claim to a silent sender's producer (rule 3), or its way to learn that no handle
/// publishes in an end that is over. Dropping the claim lets handles in again.
#[must_use = "behind a heavy barrier it may be taken"]
pub(crate) struct Claim<'a>(&'a SendEnd);

impl SendEnd {
    /// Keeps handles out from now on, unless one is inside already. A heavy barrier must
    /// follow, then [`Claim::take`].
    pub(crate) fn claim(&self) -> Option<Claim<'_>> {
        self.turnstile.try_enter_as(ENGINE).ok()?;
        self.bias.close();
        Some(Claim(self))
    }
}

impl Claim<'_> {
    /// Returns whether no handle is inside. The caller has executed the heavy barrier before.
    pub(crate) fn is_alone(&self) -> bool {
        self.0.bias.is_left()
    }

    /// Takes the producer, if no handle is inside and every published message has been released.
    /// The next send makes a new producer, which continues at the same position.
    pub(crate) fn take(self) -> Option<Rested> {
        if !self.is_alone() {
            return None;
        }
        let end = self.0;
        // SAFETY: rule 3; the claim lives to the end of this function.
        let writing = unsafe { &mut *end.writing.get() };
        let producer = writing.producer.as_mut()?;
        // If the peer's numbers are invalid, the next send reports it.
        producer.refresh().ok()?;
        end.path.retire_large(end, producer);
        if !producer.is_at_rest() {
            return None;
        }
        writing.before = Some(producer.ring.released());
        writing.producer.take().map(Rested)
    }
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        self.0.bias.open();
        self.0.turnstile.leave();
    }
}

/// The producer of a silent sender. Dropping it unmaps its memory, or gives it back to its pool.
#[derive(Debug)]
pub(crate) struct Rested(#[allow(dead_code, reason = "held for its drop")] Box<SendProducer>);

const SPINS: u32 = 100;

/// Returns a small number for the calling thread, never 0 and never reused.
fn thread_number() -> u64 {
    use std::{cell::Cell, sync::atomic};
    static NEXT: atomic::AtomicU64 = atomic::AtomicU64::new(1);
    thread_local!(static MINE: Cell<u64> = const { Cell::new(0) });
    MINE.with(|mine| {
        if mine.get() == 0 {
            mine.set(NEXT.fetch_add(1, atomic::Ordering::Relaxed));
        }
        mine.get()
    })
}

/// Mark of an end that stays open without a handle.
#[derive(Debug, Default)]
pub(crate) struct Shared(pub(crate) AtomicBool);

impl Shared {
    pub(crate) fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}
