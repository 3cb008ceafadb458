//! Idle sessions give memory back: the rings of their senders, and what their receivers and wires
//! have for messages.
//!
//! The engine looks about once a second, as long as there is something that may go back.
//! What has not moved between two looks is silent: no clock is read for a message, and a
//! session that rests is not looked at. Where messages are out that are not released, the
//! peer is asked to tell when they are, once, which leads to other looks.

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
    /// The peer was asked to tell when all of them are released, or, behind the last of
    /// their frames, whatever it says.
    is_asked: bool,
    /// Once all are released: the number of a frame that none of theirs comes after.
    last_frame: Option<u64>,
    /// The question, where the peer sees it in memory.
    wish: Option<Wish>,
}

/// The meaning of a look at a sender's ring.
enum Finding {
    /// The ring was used since the last look.
    Used,
    /// The ring may go back.
    Silent,
    /// The ring is still needed; the peer has to be asked, or was.
    Needed { is_asked: bool },
}

impl SenderSilence {
    pub(super) fn new() -> Self {
        Self::default()
    }

    /// The wires may still be reading what is released already. A device may be done with
    /// all of it, and not have said so before it is asked for something that has to be told,
    /// as a question is.
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
                // What was asked before may have gone out before that frame.
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
    /// worth it although nothing moves.
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
                    // Not for what is released, which a sender asks that waits for room: the
                    // peer would watch it stall. Where acknowledgement has ended this is
                    // answered when all of them are released.
                    let ask = Ask::acknowledged(sender.end.sent.load(Ordering::Acquire));
                    common.session.ask(id, ask);
                }
            }
        }
        goes_on | self.take_rings(&silent, common, shared_memory, context)
    }

    /// Takes the rings of senders back, unless their handles are at it. Returns whether
    /// one was.
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
        // Of all claims at once.
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

    /// Gives the ring of an end that rests.
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
    /// Gives back what ends took for messages and have not used since the last look. Returns
    /// whether another look is worth it although nothing moves.
    pub(super) fn look_for_silence(&mut self) -> bool {
        let mut goes_on = false;
        for receiver in self.ends.values_mut() {
            goes_on |= receiver.look_for_silence();
        }
        goes_on
    }
}

impl Core {
    /// Frees lists whose entries come and go, as nothing moves.
    pub(super) fn rest(&mut self) {
        self.common.session.rest();
        if let Some(shared_memory) = &mut self.shared_memory {
            shared_memory.rest();
        }
        self.ends.senders.hot.shrink_to_fit();
        self.retained.rest();
    }
}
