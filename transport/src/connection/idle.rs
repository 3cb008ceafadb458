//! Idle sessions give memory back: the rings of their senders, and the memory that their receivers
//! and wires keep for messages.
//!
//! The engine looks about once a second, as long as there is memory that may be given back. An end
//! that has not moved between two looks is silent, so no clock is read for a message; a resting
//! session is not looked at. If messages are unreleased, the engine asks the peer once to report
//! their release, which leads to further looks.

use std::{mem, sync::atomic::Ordering};

use ibex_base::sync::Asymmetry;
use ibex_protocol::format::control::Ask;

use super::{
    core::{Common, Core},
    receivers::Receivers,
    senders::{AttachedRing, Senders},
    shared_memory::SharedMemory,
};
use crate::{
    connection::Context,
    endpoint::send_end::{Claim, SendEnd, Wish},
    wire::{AnyWire, Wire},
};

/// The findings of the last look at a sender's ring.
#[derive(Debug, Default)]
pub(super) struct SenderSilence {
    /// Messages sent; `None` before the first look.
    sent: Option<u64>,
    /// The peer was asked to report the release of all messages or, after the last of their frames,
    /// was asked any question.
    is_asked: bool,
    /// Number of a frame that no frame of these messages follows, set once all messages are
    /// released.
    last_frame: Option<u64>,
    /// The question, if the peer reads it in shared memory.
    wish: Option<Wish>,
}

/// The meaning of a look at a sender's ring.
enum Finding {
    /// The ring was used since the last look.
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
    fn look(&mut self, end: &SendEnd, wire: &AnyWire) -> Finding {
        let sent = end.sent.load(Ordering::Acquire);
        if self.sent.replace(sent) != Some(sent) {
            self.is_asked = false;
            self.last_frame = None;
            end.take_back_question(&mut self.wish);
            return Finding::Used;
        }
        if end.counts().released == sent {
            let last_frame = *self.last_frame.get_or_insert_with(|| {
                // An earlier question may have been sent before that frame.
                self.is_asked = false;
                wire.in_flight().unwrap_or(0)
            });
            if wire.done() >= last_frame {
                return Finding::Silent;
            }
        }
        let is_asked = mem::replace(&mut self.is_asked, true);
        Finding::Needed { is_asked }
    }
}

impl Senders {
    /// Gives back rings that were not used since the last look. Returns whether another look is
    /// worthwhile even if nothing moves.
    pub(super) fn look_for_silence(
        &mut self,
        wire: &AnyWire,
        common: &mut Common,
        shared_memory: Option<&mut SharedMemory>,
        context: &mut Context<'_>,
    ) -> bool {
        let mut goes_on = false;
        let mut silent = Vec::new();
        for (id, sender) in self.ends.iter_mut() {
            let Some(silence) = &mut sender.silence else {
                continue;
            };
            match silence.look(&sender.end, wire) {
                Finding::Used => goes_on = true,
                Finding::Silent => silent.push(id),
                Finding::Needed { is_asked: true } => {}
                Finding::Needed { is_asked: false } if common.shares_memory => {
                    sender.end.ask_for_news(&mut silence.wish);
                }
                Finding::Needed { is_asked: false } => {
                    // The question is for acknowledgements, not for releases: a question for
                    // releases means that the sender waits for room, and the peer would report a
                    // stall. If acknowledgement has ended, the peer answers when all messages are
                    // released.
                    let ask = Ask::acknowledged(sender.end.sent.load(Ordering::Acquire));
                    common.session.ask(id, ask);
                }
            }
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
        // A single heavy barrier serves all claims.
        Asymmetry::of_process().heavy_here();
        let mut is_busy = false;
        for ((id, _), claim) in ends.iter().zip(claims) {
            let Some(rested) = claim.and_then(Claim::take) else {
                is_busy = true;
                continue;
            };
            common.session.return_landings(*id);
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
            sender.end.take_back_question(&mut silence.wish);
        }
        Some(sender.ring.take())
    }
}

impl Receivers {
    /// Gives back memory for messages that ends have not used since the last look. Returns whether
    /// another look is worthwhile even if nothing moves.
    pub(super) fn look_for_silence(&mut self) -> bool {
        let mut goes_on = false;
        for receiver in self.ends.values_mut() {
            goes_on |= receiver.look_for_silence();
        }
        goes_on
    }
}

impl Core {
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
