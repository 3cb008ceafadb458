//! Idle sessions give memory back: the rings of their senders, and the memory that their receivers
//! and wires keep for messages.
//!
//! The engine looks about once a second, as long as there is memory that may be given back. An end
//! that has not moved between two checks is silent, so no clock is read for a message; a resting
//! session is not looked at. If messages are unreleased, the engine asks the peer once to report
//! their release, which leads to further checks, and checks some more times whether the peer answers
//! at all.

use std::{
    mem,
    sync::atomic::Ordering,
    time::{Duration, Instant},
};

use ibex_base::sync::Asymmetry;
use ibex_protocol::timer::Timer;

use super::{
    core::{Common, Core, Phase},
    receivers::Receivers,
    senders::{AttachedRing, Senders},
    shared_memory::SharedMemory,
};
use crate::{
    clock,
    connection::Context,
    endpoint::send_end::{AskedEvent, Claim, SendEnd},
    node::PollTarget,
    wire::{AnyWire, Wire},
};

/// The findings of the last check of a sender's ring.
#[derive(Debug, Default)]
pub(super) struct SenderSilence {
    /// Messages sent; `None` before the first check.
    sent: Option<u64>,
    /// The peer was asked to report the release of all messages or, after the last of their frames,
    /// was asked any question.
    is_asked: bool,
    /// Checks since the last message was sent.
    checks: u32,
    /// Number of a frame that no frame of these messages follows, set once all messages are
    /// released.
    last_frame: Option<u64>,
    /// The question, if the peer reads it in shared memory.
    wish: Option<AskedEvent>,
}

/// The meaning of a check of a sender's ring.
enum RingUse {
    /// The ring was used since the last check.
    Used,
    /// The ring may go back.
    Silent,
    /// The ring is still needed. The peer has to be asked, unless it was.
    Needed { is_asked: bool },
}

impl SenderSilence {
    pub(super) fn new() -> Self {
        Self::default()
    }

    /// Looks whether the ring was used. The wires may still be reading bytes that are already
    /// released. A device may be done with them without reporting that, until a frame is sent whose
    /// completion it must report, such as a question.
    fn check(&mut self, end: &SendEnd, wire: &AnyWire) -> RingUse {
        // SENT, pairs with `SendEnd::publish`.
        let sent = end.sent.load(Ordering::Acquire);
        if self.sent.replace(sent) != Some(sent) {
            self.is_asked = false;
            self.checks = 0;
            self.last_frame = None;
            end.path.take_back_question(&mut self.wish);
            return RingUse::Used;
        }
        self.checks = self.checks.saturating_add(1);
        if end.counts().released == sent {
            let last_frame = *self.last_frame.get_or_insert_with(|| {
                // An earlier question may have been sent before that frame.
                self.is_asked = false;
                wire.in_flight().unwrap_or(0)
            });
            if wire.done() >= last_frame {
                return RingUse::Silent;
            }
        }
        let is_asked = mem::replace(&mut self.is_asked, true);
        RingUse::Needed { is_asked }
    }
}

impl Senders {
    /// Returns whether changes of the peer are missed: messages were sent not long ago and are
    /// unreleased, or a thread or task waits for their acknowledgement. The messages or the changes
    /// may be lost; later, the peer's program holds the messages.
    pub(super) fn miss_changes(&self) -> bool {
        self.ends.values().any(|sender| {
            let is_recent = |silence: &SenderSilence| (1..CHECKS).contains(&silence.checks);
            let end = &sender.end;
            sender.silence.as_ref().is_some_and(is_recent) && end.path.misses_changes(end)
        })
    }

    /// Returns whether a thread or task waits for what the peer has not acknowledged yet.
    fn are_waited_for(&self) -> bool {
        self.ends.values().any(|sender| sender.end.is_waited_for())
    }

    /// Gives back rings that were not used since the last check. Returns whether another check is
    /// worthwhile even if nothing moves.
    pub(super) fn check_idle(
        &mut self,
        wire: &AnyWire,
        common: &mut Common,
        mut shared_memory: Option<&mut SharedMemory>,
        context: &mut Context<'_>,
    ) -> bool {
        let mut goes_on = false;
        let mut silent = Vec::new();
        for (id, sender) in self.ends.iter_mut() {
            let Some(silence) = &mut sender.silence else {
                continue;
            };
            match silence.check(&sender.end, wire) {
                RingUse::Used => goes_on = true,
                RingUse::Silent => silent.push(id),
                RingUse::Needed { is_asked: true } => {}
                RingUse::Needed { is_asked: false } => {
                    let end = &sender.end;
                    end.path
                        .ask_for_all(end, &mut silence.wish, &mut common.session);
                }
            }
        }
        if let Some(shared_memory) = &mut shared_memory {
            goes_on |= shared_memory.forget_regions();
        }
        goes_on | self.take_rings(&silent, common, shared_memory, context)
    }

    /// Takes back the rings of silent senders, unless a handle is inside. Returns whether one was.
    fn take_rings(
        &mut self,
        silent: &[u32],
        common: &mut Common,
        mut shared_memory: Option<&mut SharedMemory>,
        context: &mut Context<'_>,
    ) -> bool {
        let ends: Vec<_> = silent
            .iter()
            .filter_map(|&id| Some((id, self.ends.get(id)?.end.clone())))
            .collect();
        if ends.is_empty() {
            return false;
        }
        let claims: Vec<_> = ends.iter().map(|(_, end)| end.claim()).collect();
        // A single heavy barrier serves all claims. CLAIM, pairs with the light half with which a
        // handle enters.
        Asymmetry::of_process().heavy_here();
        let mut is_busy = false;
        for ((id, _), claim) in ends.iter().zip(claims) {
            let Some(rested) = claim.and_then(Claim::take) else {
                is_busy = true;
                continue;
            };
            common.session.return_eager_blocks(*id);
            if let Some(ring) = self.ring_rests(*id) {
                context.leftovers.push(Box::new((ring, rested)));
                if let Some(shared_memory) = &mut shared_memory {
                    shared_memory.pass_rest(*id);
                }
            }
        }
        is_busy
    }

    /// Takes the ring out of an end that rests.
    fn ring_rests(&mut self, id: u32) -> Option<Option<Box<AttachedRing>>> {
        self.hot.retain(|&hot| hot != id);
        let sender = self.ends.get_mut(id)?;
        if let Some(mut silence) = sender.silence.take() {
            sender.end.path.take_back_question(&mut silence.wish);
        }
        Some(sender.ring.take())
    }
}

impl Receivers {
    /// Gives back memory for messages that ends have not used since the last check. Returns whether
    /// another check is worthwhile even if nothing moves.
    pub(super) fn check_idle(&mut self) -> bool {
        let mut goes_on = false;
        for receiver in self.ends.values_mut() {
            goes_on |= receiver.check_idle();
        }
        goes_on
    }
}

impl Core {
    /// Has the peer asked later, if calls wait for its changes longer than checks miss them. Its program
    /// may take long before it acknowledges, and those changes may be lost.
    pub(super) fn watch_waiters(&mut self) {
        let timers = &mut self.common.timers;
        // Bytes may be lost on their way into a socket.
        let may_be_lost = self.common.shared.poll_target() == PollTarget::Socket;
        if may_be_lost && !timers.is_set(Timer::Changes) && self.ends.senders.are_waited_for() {
            timers.set(Timer::Changes, clock::now() + BETWEEN_QUESTIONS);
        }
    }

    /// Asks the peer for any answer, and again later, for as long as calls wait for its changes. The
    /// answer shows whether bytes before it are lost.
    pub(super) fn ask_for_waiters(&mut self, now: Instant) {
        if self.common.phase != Phase::Up || !self.ends.senders.are_waited_for() {
            return;
        }
        self.common
            .timers
            .set(Timer::Changes, now + BETWEEN_QUESTIONS);
        if !self.is_broken_off() {
            self.common.session.outgoing.query(1);
        }
    }

    /// Frees the spare capacity of lists whose entries come and go, while nothing moves.
    pub(super) fn rest(&mut self) {
        self.common.session.rest();
        if let Some(shared_memory) = &mut self.shared_memory {
            shared_memory.rest();
        }
        self.ends.senders.hot.shrink_to_fit();
        self.retained.rest();
    }
}

/// Checks after which changes of messages are asked for more seldom, and only for calls that wait.
const CHECKS: u32 = 8;
/// Time between two questions for calls that wait for long. Their node rests in between.
const BETWEEN_QUESTIONS: Duration = Duration::from_secs(30);

#[cfg(test)]
mod tests;
