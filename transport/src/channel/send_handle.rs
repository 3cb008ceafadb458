//! A sender's handle: encode in place, publish, ring once if the other side sleeps.
//!
//! The path of a message is [`SendHandle::send`] down to `SendEnd::publish`: no fence, no locked
//! instruction, no system call, no allocation. `entered.rs` also handles a channel that is not open
//! or is over, and `steps.rs` a full ring. `run.rs` sends batches, `large.rs`
//! messages that are too long for a ring, `region.rs` those that lie in memory of the program's own.

mod entered;
mod large;
mod region;
mod run;
mod steps;

pub(super) use self::entered::Entered;
pub use self::region::SliceMessage;

use std::sync::atomic::Ordering;
use std::{
    fmt,
    mem::{self, ManuallyDrop, MaybeUninit},
    sync::Arc,
    thread,
};

use ibex_base::fork;
use ibex_protocol::format::control::{Ask, CloseReason};
use ibex_ring::parking::Patience;

use super::{reservation::RawReservation, task::SendWaits};
use crate::{
    endpoint::{
        channel_end::ChannelEnd, send_end::SendEnd, send_producer::SendProducer, state::EndReason,
    },
    node::{Measured, SessionShared, Stopwatch},
    session::{ChannelError, Counts, EndCause, EndLabel, FailureReason},
};

/// Why an encoder stopped.
#[derive(Debug)]
pub enum Abort {
    /// The slot was too small.
    Overflow,
    /// The value cannot be encoded.
    Failed(Box<dyn std::error::Error + Send + Sync>),
}

/// Encodes one message into the given slot and returns its encoded length.
type Encoder<'a> = dyn FnMut(&mut [MaybeUninit<u8>]) -> Result<usize, Abort> + 'a;

/// A sender's handle, without the message type.
pub struct SendHandle {
    pub(crate) end: Arc<SendEnd>,
    pub(super) reserved: Reserved,
    /// True once this handle was closed and sends no more.
    is_closed: bool,
    /// Wakers and tickets that waiting tasks left here.
    pub(super) waits: SendWaits,
}

/// The state of a handle's reservation: none, or made and neither published nor dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reserved {
    No,
    /// Made by the end's only handle.
    Alone,
    /// Made by a handle that holds the turnstile.
    InTurn,
}

impl SendHandle {
    pub(crate) fn new(end: Arc<SendEnd>) -> Self {
        Self {
            end,
            reserved: Reserved::No,
            is_closed: false,
            waits: SendWaits::default(),
        }
    }

    /// Says what this end is in errors, if it is not that of a channel of messages.
    #[must_use]
    pub fn labeled(self, label: Option<&'static EndLabel>) -> Self {
        self.end.set_label(label);
        self
    }

    /// Makes another handle of a shared end, which itself counts as one of its handles.
    pub(super) fn of_shared(end: Arc<SendEnd>) -> Self {
        end.handles.fetch_add(1, Ordering::Relaxed);
        Self::new(end)
    }

    /// Declares that this handle has sent everything. The channel may then end in order even if a
    /// panic drops the handle.
    pub fn close(&mut self) {
        self.is_closed = true;
    }

    /// Breaks the channel off. When the last handle is dropped, the receiver gets everything that
    /// was sent, and then an error with this reason instead of an orderly end. The first reason
    /// counts.
    pub fn break_off(&mut self, reason: CloseReason) {
        self.end.break_off(reason);
    }

    /// The session that the channel belongs to.
    #[must_use]
    pub fn session(&self) -> &Arc<SessionShared> {
        &self.end.session
    }

    /// The channel's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.end.name
    }

    /// The end, as its session numbers it.
    #[must_use]
    pub fn number(&self) -> u32 {
        self.end.id
    }

    /// Returns the channel's counters.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.end.counts()
    }

    // ---- The path of a message -------------------------------------------------------

    /// Encodes a message into the ring and publishes it.
    ///
    /// `size` is the encoded length where it is known. `encode` may be called again with
    /// a larger slot after it answered [`Abort::Overflow`].
    #[inline]
    pub fn send(
        &mut self,
        size: Option<usize>,
        patience: Patience,
        encode: impl FnMut(&mut [MaybeUninit<u8>]) -> Result<usize, Abort>,
    ) -> Result<u64, ChannelError> {
        self.enter(patience)?.send(size, patience, encode)
    }

    /// Reserves room for a payload of `length` bytes, to be built in place.
    #[inline(always)]
    pub fn reserve(
        &mut self,
        length: usize,
        patience: Patience,
    ) -> Result<RawReservation<'_>, ChannelError> {
        let mut entered = self.enter(patience)?;
        entered.place(length, patience)?;
        self.reserved = entered.keep();
        Ok(RawReservation {
            handle: self,
            length,
        })
    }

    #[inline(always)]
    pub(super) fn enter(&mut self, patience: Patience) -> Result<Entered<'_>, ChannelError> {
        if fork::is_child() {
            return Err(self.end.used_after_fork());
        }
        self.end_if_leaked();
        // The favour is withdrawn before a second handle exists. Passing that handle to another
        // thread orders the withdrawal before its use there (rule 2 of the sending end).
        let in_turn = !self.end.bias.try_enter();
        if in_turn {
            self.end.take_turn(patience)?;
        }
        Ok(Entered {
            end: &self.end,
            in_turn,
        })
    }

    /// Returns whether there is another handle, or was one.
    pub(super) fn was_cloned(&self) -> bool {
        self.end.bias.is_withdrawn()
    }

    /// Takes the right to the producer and keeps it until [`let_go`](Self::let_go). Only for an end
    /// that was never cloned.
    #[inline(always)]
    pub(super) fn hold(&mut self) -> ManuallyDrop<Entered<'_>> {
        if self.reserved == Reserved::No {
            while !self.end.bias.try_enter() {
                // The engine holds the producer for a moment.
                thread::yield_now();
            }
            self.reserved = Reserved::Alone;
        }
        ManuallyDrop::new(Entered {
            end: &self.end,
            in_turn: false,
        })
    }

    /// Returns the right to the producer that the reservation has kept since it was made.
    #[inline(always)]
    pub(super) fn reserved_entry(&mut self) -> Entered<'_> {
        Entered {
            end: &self.end,
            in_turn: self.reserved == Reserved::InTurn,
        }
    }

    /// Takes that right for a message to be encoded, and ends the reservation.
    pub(super) fn take_reserved_entry(&mut self) -> Entered<'_> {
        let in_turn = mem::replace(&mut self.reserved, Reserved::No) == Reserved::InTurn;
        if in_turn {
            // The turnstile then reports an encoder that sends on this channel itself.
            self.end.turnstile.hand_to_thread();
        }
        Entered {
            end: &self.end,
            in_turn,
        }
    }

    /// Returns the producer of the current reservation.
    #[inline(always)]
    pub(super) fn reserved_producer(&mut self) -> Option<&mut SendProducer> {
        debug_assert_ne!(self.reserved, Reserved::No);
        // SAFETY: the reservation keeps the right to the producer (rule 4). Only the handle uses
        // that right, and the handle is borrowed exclusively.
        unsafe { (*self.end.writing.get()).producer.as_deref_mut() }
    }

    /// Returns the producer of the current reservation, for reading.
    pub(super) fn peek_reserved_producer(&self) -> Option<&SendProducer> {
        debug_assert_ne!(self.reserved, Reserved::No);
        // SAFETY: as above. The handle is borrowed shared, and its borrowers only read the
        // producer.
        unsafe { (*self.end.writing.get()).producer.as_deref() }
    }

    /// Gives a kept right to the producer back, and with it a place for a large message that was
    /// made meanwhile.
    #[inline]
    pub(super) fn let_go(&mut self) {
        if self.reserved == Reserved::No {
            return;
        }
        let mut entered = ManuallyDrop::into_inner(self.hold());
        if let Some(producer) = entered.producer() {
            producer.reserved_large = None;
        }
        drop(entered);
        self.reserved = Reserved::No;
    }

    /// Ends the channel if a reservation was leaked.
    #[inline(always)]
    pub(super) fn end_if_leaked(&mut self) {
        if self.reserved != Reserved::No {
            self.reservation_was_leaked();
        }
    }

    #[cold]
    fn reservation_was_leaked(&mut self) {
        if fork::is_child() {
            return;
        }
        // The reservation says how it entered. The end's present state does not, because the first
        // clone may have been made since.
        let in_turn = self.reserved == Reserved::InTurn;
        self.reserved = Reserved::No;
        self.end.state.end(EndReason::Cause(EndCause::SlotLeaked));
        drop(Entered {
            end: &self.end,
            in_turn,
        });
        self.end.close(CloseReason::SlotLeaked);
        self.end.waiters.wake_all();
        self.end.waiters_for_end.wake_all();
    }

    // ---- Waiting ---------------------------------------------------------------------

    pub(super) fn end(&self) -> &SendEnd {
        &self.end
    }

    /// Returns whether a message was refused because the peer takes shorter messages than this end
    /// sends.
    #[must_use]
    pub fn is_narrow_for(&self, refused: &FailureReason) -> bool {
        let most_here = self.end.spec.max_message_bytes;
        match refused {
            FailureReason::TooLong { length, limit, .. } => {
                *limit < most_here && length.is_none_or(|length| length <= most_here)
            }
            _ => false,
        }
    }

    /// Fingerprint of the message type that both ends settled on, once they have.
    #[must_use]
    pub fn settled(&self) -> Option<[u8; 16]> {
        self.end.settled()
    }

    /// Waits until the peer has opened its end.
    pub fn opened(&mut self, patience: Patience) -> Result<(), ChannelError> {
        self.end.opened(patience)
    }

    /// Waits until the peer's engine holds message `sequence`.
    pub fn wait_received(&self, sequence: u64, patience: Patience) -> Result<(), ChannelError> {
        match self.end.path.delivered(&self.end, sequence) {
            Some(answer) => answer,
            None => self.end.wait_changes(Ask::received(sequence), patience),
        }
    }

    /// Returns why the channel never opened, if that is certain.
    #[must_use]
    pub fn open_failure(&self) -> Option<ChannelError> {
        self.end.open_failure(|| self.end.counts())
    }

    /// Returns whether the peer has opened its end.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.end.state.agreed().is_some()
    }

    /// Returns whether the channel is over.
    #[must_use]
    pub fn is_over(&self) -> bool {
        fork::is_child() || self.end.state.is_over()
    }

    /// Returns how many more messages the window takes now; 0 before the peer has opened its end,
    /// and when the channel is over.
    #[must_use]
    pub fn capacity(&self) -> u64 {
        let agreed = self.end.state.agreed().filter(|_| !self.is_over());
        let counts = self.end.counts();
        let held = counts.sent.saturating_sub(counts.released);
        agreed.map_or(0, |agreed| agreed.window.messages.saturating_sub(held))
    }

    /// Returns whether the peer has closed its end, for any reason, before a message was sent.
    #[must_use]
    pub fn has_met_closed_end(&self) -> bool {
        let reason = self.end.state.reason();
        matches!(reason, Some(EndReason::Cause(EndCause::PeerClosed(_))))
            && self.last_sequence() == 0
    }

    /// Waits until the peer's application has acknowledged message `sequence`.
    pub fn wait_acked(&self, sequence: u64, patience: Patience) -> Result<(), ChannelError> {
        let stopwatch = self.time_ack();
        self.end
            .wait_changes(Ask::acknowledged(sequence), patience)?;
        if let Some(stopwatch) = stopwatch {
            stopwatch.record();
        }
        Ok(())
    }

    /// Starts to measure a wait for an acknowledgement, if the node keeps histograms.
    #[must_use]
    pub fn time_ack(&self) -> Option<Stopwatch> {
        let end = &self.end;
        let find = || end.session.node().recorder(Measured::AckWaits, &end.name);
        Stopwatch::start(end.ack_waits.get_or_init(find).as_ref())
    }

    /// Returns the last message's sequence; 0 before the first message.
    #[must_use]
    pub fn last_sequence(&self) -> u64 {
        // SENT, pairs with `publish`.
        self.end.sent.load(Ordering::Acquire)
    }
}

impl Clone for SendHandle {
    fn clone(&self) -> Self {
        self.end.bias.withdraw();
        self.end.handles.fetch_add(1, Ordering::Relaxed);
        Self {
            end: self.end.clone(),
            reserved: Reserved::No,
            is_closed: false,
            waits: SendWaits::default(),
        }
    }
}

impl fmt::Debug for SendHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        ChannelEnd::fmt(&self.end, f)
    }
}

impl Drop for SendHandle {
    fn drop(&mut self) {
        if fork::is_child() {
            // The end is leaked, so that a fork of the process frees nothing that the end holds.
            mem::forget(self.end.clone());
            return;
        }
        self.leave();
        self.end_if_leaked();
        if thread::panicking() && !self.is_closed {
            // The panic prevented messages that the handle was meant to send.
            self.end.break_off(CloseReason::Aborted);
        }
        // HANDLES, pairs with itself and `SendEnd::forsake`: the last handle sees what the others
        // sent, and why one broke the channel off.
        if self.end.handles.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.end.close(self.end.parting());
        }
    }
}
