//! New wires for a session whose old ones broke: the exchange that both ends begin with, so that
//! lost messages go out again, once.
//!
//! Rules:
//!
//! 1. No control message is kept to be sent again. The messages that have to be sent follow from
//!    the state of the ends of channels, and from what the peer reports to know of them. So a
//!    session may break at any moment, even during this exchange.
//! 2. Over new wires each end first lists those ends of the peer's that it knows
//!    ([`Control::Known`]), how far their records came, and then which is the newest that it ever
//!    knew ([`Control::Resumed`]). Ids only grow and ends are opened in that order. So an end of
//!    ours that is not in the list either never became known to the peer or is forgotten there. If
//!    bytes of the peer's were damaged on their way, the list is preceded by how often that
//!    happened ([`Control::Damaged`]): the operator who has to find the cause may be there.
//! 3. Records go out again from behind what arrived, out of the ring, where they stand until they
//!    are released. Large messages that did not arrive whole begin anew.
//! 4. All grants for the old wires end with them.
#![forbid(unsafe_code)]

use std::{collections::VecDeque, sync::Arc};

use super::{EndChannel, EndTable, PeerMisbehaved, Session, SessionCredit, SessionEvent};
use crate::{
    format::{
        control::{Ask, Control, KnownReceiver, Role},
        frame::{FRAME_ALIGNMENT, FrameHeader, FrameKind, HEADER_BYTES},
    },
    framing::Carriage,
    id_map::IdMap,
    transfer::eager_write::EagerBlocks,
};

/// The terms of a session's wires: those that it begins with, or new ones, which may differ.
#[derive(Clone, Copy, Debug)]
pub struct WireTerms {
    /// The medium that frames travel in.
    pub carriage: Carriage,
    /// The arrival bytes or buffers that the peer may keep in flight to us at first. 0 if the
    /// [broker](crate::credit::broker) decides that later.
    pub our_credit: u64,
    /// The arrival bytes or buffers that we may keep in flight to the peer at first.
    pub peer_credit: u64,
    /// Memory may be granted for large messages to be written to, at both ends.
    pub writes: bool,
    /// A write can announce itself by immediate data, both ways.
    pub immediate: bool,
    /// This end offers the peer its memory of large messages, or says that it does not.
    pub offers: bool,
    /// The pieces of the peer's large messages that this end may read at a time. If there are any,
    /// the peer offers its memory, or says that it does not.
    pub reads: u32,
}

impl WireTerms {
    /// The terms of a connection: the broker lends as soon as it knows of the session, at both
    /// ends.
    pub const STREAM: Self = Self {
        carriage: Carriage::Stream,
        our_credit: 0,
        peer_credit: 0,
        writes: false,
        immediate: false,
        offers: false,
        reads: 0,
    };
}

/// The stage of a session between old wires and new ones.
#[derive(Debug)]
pub(super) enum Stage {
    /// The session has wires, and both ends know where they are.
    Live,
    /// The session has no wires.
    Suspended,
    /// The peer tells what it knows of our ends.
    Resuming(IdMap<Known>),
}

/// The peer's knowledge of an end of this side.
#[derive(Clone, Copy, Debug)]
pub(super) struct Known {
    received_close: bool,
    receiver: Option<KnownReceiver>,
}

impl Stage {
    pub(super) fn is_live(&self) -> bool {
        matches!(self, Stage::Live)
    }
}

impl Session {
    /// Notes that the wires are gone. Frames that were on them may have arrived or not. Until there
    /// are other wires, the session sends nothing and keeps the wishes of handles.
    pub fn suspend(&mut self) {
        self.outgoing.suspend();
        self.ends.suspend();
        self.credit.granting.suspend();
    }

    /// Puts the session on new wires. By then nothing can arrive over the old ones any more, or be
    /// written to memory that was granted for them. Poll transmissions and events afterwards.
    ///
    /// [`SessionEvent::Resumed`] follows when both ends have learned of each other.
    pub fn resume(&mut self, wires: WireTerms) {
        debug_assert!(self.outgoing.is_suspended());
        self.config.wires = wires;
        self.credit = SessionCredit::new(wires, self.config.dialed);
        self.eager_blocks = EagerBlocks::default();
        self.outgoing.resume();
        self.ends.turns.take_terms(&wires);
        let (control, events) = (&mut self.outgoing.control, &mut self.events);
        let path = self.config.data_path;
        self.ends.list_known(path, &wires, control, events);
    }

    /// Takes in that the peer knows an end of ours.
    pub(super) fn handle_known(
        &mut self,
        end: u32,
        received_close: bool,
        receiver: Option<KnownReceiver>,
    ) -> Result<(), PeerMisbehaved> {
        let Stage::Resuming(known) = &mut self.outgoing.stage else {
            return Err(PeerMisbehaved::NotResuming);
        };
        if !self.ends.has_given(end) || known.contains(end) {
            return Err(PeerMisbehaved::KnowsWrongly { end });
        }
        // An end that is closed on both sides here is closed at the peer too when the peer learns
        // our list.
        if self.ends.entries.contains(end) {
            known.insert(
                end,
                Known {
                    received_close,
                    receiver,
                },
            );
        }
        Ok(())
    }

    /// Takes in that the peer's list is complete, so that the session goes on.
    pub(super) fn handle_resumed(&mut self, newest_end: u32) -> Result<(), PeerMisbehaved> {
        let stage = &mut self.outgoing.stage;
        let Stage::Resuming(known) = std::mem::replace(stage, Stage::Live) else {
            return Err(PeerMisbehaved::NotResuming);
        };
        if !self.ends.has_given(newest_end) {
            return Err(PeerMisbehaved::KnowsWrongly { end: newest_end });
        }
        let ends: Vec<u32> = self.ends.entries.ids().collect();
        let mut resumption = Resumption {
            ends: &mut self.ends,
            control: &mut self.outgoing.control,
            events: &mut self.events,
        };
        let mut replayed = 0;
        for &end in &ends {
            replayed += match known.get(end) {
                Some(known) => resumption.go_on(end, known)?,
                None if end > newest_end => resumption.open_again(end)?,
                None => resumption.was_forgotten(end)?,
            };
        }
        self.outgoing.repeat();
        self.events.push_back(SessionEvent::Resumed { replayed });
        Ok(())
    }
}

/// The ends of a session at the moment when both sides know what the other has.
struct Resumption<'a> {
    ends: &'a mut EndTable,
    control: &'a mut VecDeque<Control>,
    events: &'a mut VecDeque<SessionEvent>,
}

impl Resumption<'_> {
    /// Handles that the peer knows `end`. Returns how many of its records go out again.
    fn go_on(&mut self, end: u32, known: &Known) -> Result<u64, PeerMisbehaved> {
        let mut replayed = 0;
        let is_closed = self
            .ends
            .entries
            .get(end)
            .is_some_and(|entry| entry.closed_here);
        if known.received_close {
            // The peer has received the close, which follows everything that was sent, wanted or not.
            if !is_closed {
                return Err(PeerMisbehaved::KnowsWrongly { end });
            }
        } else {
            match known.receiver {
                Some(receiver) => replayed = self.replay(end, &receiver)?,
                // If records were sent, the peer knows how many came.
                None if self
                    .ends
                    .sender_mut(end)
                    .is_some_and(|channel| channel.sent > 0) =>
                {
                    return Err(PeerMisbehaved::KnowsWrongly { end });
                }
                None => {}
            }
            self.close_again(end);
        }
        self.ask_and_grant_again(end);
        Ok(replayed)
    }

    /// Opens `end` again, because the peer never learned of it.
    fn open_again(&mut self, end: u32) -> Result<u64, PeerMisbehaved> {
        let Some(entry) = self.ends.entries.get(end) else {
            return Ok(0);
        };
        self.control.push_back(entry.open(end));
        // The peer does not know the end, so no record of it has arrived.
        let mut replayed = 0;
        if let EndChannel::Sender(channel) = &entry.state
            && channel.sent > 0
        {
            let nothing = KnownReceiver::nothing(channel.alignment);
            replayed = self.replay(end, &nothing)?;
        }
        self.close_again(end);
        self.ask_and_grant_again(end);
        Ok(replayed)
    }

    /// Handles that the peer has forgotten `end`: its own end was closed, and it learned that ours
    /// was.
    fn was_forgotten(&mut self, end: u32) -> Result<u64, PeerMisbehaved> {
        if let Some(entry) = self.ends.entries.get_mut(end) {
            if !entry.closed_here {
                return Err(PeerMisbehaved::KnowsWrongly { end });
            }
            (entry.closed_there, entry.received_close) = (true, true);
            entry.close_is_out = true;
            // No block was granted over the new wires yet.
            if self.ends.remove_if_over(end) {
                self.events.push_back(SessionEvent::Forgotten { end });
            }
        }
        Ok(0)
    }

    /// Sends again the records of a sending end that have not arrived.
    fn replay(&mut self, end: u32, known: &KnownReceiver) -> Result<u64, PeerMisbehaved> {
        let Some(entry) = self.ends.entries.get_mut(end) else {
            return Ok(0);
        };
        let EndChannel::Sender(channel) = &mut entry.state else {
            return Err(PeerMisbehaved::KnowsWrongly { end });
        };
        if entry.peer.is_none() {
            // The peer's open did not arrive here, so nothing was sent to that end.
            return match known.arrived {
                0 => Ok(0),
                _ => Err(PeerMisbehaved::KnowsWrongly { end }),
            };
        }
        let counters = |source| PeerMisbehaved::Counters {
            channel: end,
            source,
        };
        let moved = channel.handle_counters(&known.counters).map_err(counters)?;
        let offers = self.ends.turns.offers;
        let replayed = channel
            .replay(known, offers)
            .ok_or(PeerMisbehaved::KnowsWrongly { end })?;
        self.ends.turns.offers_of(end);
        if moved {
            let counters = channel.counters;
            self.events
                .push_back(SessionEvent::Counted { end, counters });
        }
        if replayed > 0 {
            let (received, position) = (known.arrived, known.arrived_position);
            self.events.push_back(SessionEvent::Replay {
                end,
                received,
                position,
            });
        }
        Ok(replayed)
    }

    /// Closes `end` again if it is closed, because the peer has not learned of that.
    fn close_again(&mut self, end: u32) {
        let Some(entry) = self.ends.entries.get_mut(end) else {
            return;
        };
        let Some((final_sequence, reason)) = entry.closing else {
            return;
        };
        entry.close_is_out = false;
        match &mut entry.state {
            EndChannel::Sender(channel) => channel.closing = Some((final_sequence, reason)),
            EndChannel::Receiver(_) => self.control.push_back(Control::Close {
                end,
                role: Role::Receiver,
                reason,
                final_sequence,
            }),
        }
    }

    fn ask_and_grant_again(&mut self, end: u32) {
        let Some(entry) = self.ends.entries.get_mut(end) else {
            return;
        };
        match &mut entry.state {
            EndChannel::Sender(channel) => {
                channel.queued = true;
                self.ends.turns.ready.push_back(end);
                let ask = channel.unanswered();
                if ask != Ask::default() {
                    self.control.push_back(Control::Ask { channel: end, ask });
                }
            }
            EndChannel::Receiver(Some(receiver)) => {
                let channel = entry.peer.unwrap_or_default();
                let grants = receiver.large.grants();
                let grants = grants
                    .filter_map(|(sequence, way, bytes)| way.control(channel, sequence, bytes));
                self.control.extend(grants);
                self.events.extend(receiver.tell_large(end));
                self.ends.queue_changes(end);
            }
            EndChannel::Receiver(None) => {}
        }
    }
}

/// A frame that says that this end has no such session any more, for a peer that would wait for
/// the session to come back, with the `reason` for which the program ended it, if it did. No frame
/// follows it, so nothing is charged for it.
#[must_use]
pub fn last_word(reason: Option<Arc<str>>) -> Vec<u8> {
    lone_frame(&match reason {
        None => Control::Abandoned,
        reason => Control::Goodbye { reason },
    })
}

/// Returns a frame of one control message, behind which no frame follows.
pub(super) fn lone_frame(control: &Control) -> Vec<u8> {
    let mut body = Vec::new();
    control.encode(&mut body);
    let length = (HEADER_BYTES + body.len()) as u32;
    let frame = FrameHeader {
        length,
        ..FrameHeader::new(FrameKind::Control, 0, 0)
    };
    let mut bytes = Vec::new();
    frame.append_to(None, &mut bytes);
    bytes.append(&mut body);
    bytes.resize(bytes.len().next_multiple_of(FRAME_ALIGNMENT), 0);
    bytes
}

/// Returns whether wires of number `epoch` may replace a session's wires of number `newest`. Older
/// ones were given up at the other end, or are broken.
#[must_use]
pub fn is_newer_epoch(epoch: u64, newest: u64) -> bool {
    epoch > newest
}
