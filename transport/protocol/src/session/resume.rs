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

use super::{CreditUse, EndState, Event, Goodbye, PeerMisbehaved, Session};
use crate::{
    credit::{reserved_buffer::ReservedBuffer, session::CreditGrant},
    format::{
        control::{Ask, Control, KnownReceiver, Role},
        frame::{FRAME_ALIGNMENT, FrameHeader, FrameKind, HEADER_BYTES},
    },
    framing::Carriage,
    id_map::IdMap,
    transfer::{eager_write::Landings, rendezvous::Way},
};

/// The terms of a session's new wires, which may differ from the old ones' in
/// [`SessionConfig`](super::SessionConfig).
#[derive(Clone, Copy, Debug)]
pub struct WireTerms {
    /// The medium that frames travel in.
    pub carriage: Carriage,
    /// The credit that the peer has at first.
    pub our_credit: u64,
    /// The credit that this end has at first.
    pub peer_credit: u64,
    /// Memory may be granted for large messages to be written to, at both ends.
    pub writes: bool,
    /// A write can announce itself by immediate data, both ways.
    pub immediate: bool,
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
    heard_close: bool,
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
        self.stage = Stage::Suspended;
        self.has_errands = true;
        self.control.clear();
        self.ready.clear();
        self.news.clear();
        self.awaiting_writes.clear();
        self.writes_under_way = 0;
        (self.queries, self.answers) = (0, 0);
        for entry in self.ends.values_mut() {
            match &mut entry.state {
                // The end counts as queued, so it asks for no turn.
                EndState::Sender(channel) => {
                    channel.queued = true;
                    channel.grants_are_over();
                }
                EndState::Receiver(Some(channel)) => channel.queued = false,
                EndState::Receiver(None) => {}
            }
        }
    }

    /// Gives up the granted memory, to which nothing more is written: the host
    /// [grants](Self::grant) other memory for the messages that are not complete.
    pub fn withdraw_memory(&mut self) {
        debug_assert!(self.is_suspended());
        for entry in self.ends.values_mut() {
            if let EndState::Receiver(Some(channel)) = &mut entry.state {
                channel.large.withdraw_memory();
            }
        }
    }

    /// Returns whether the session is without wires.
    #[must_use]
    pub fn is_suspended(&self) -> bool {
        matches!(self.stage, Stage::Suspended)
    }

    /// Puts the session on new wires. By then nothing can arrive over the old ones any more, or be
    /// written to memory that was granted for them. Poll transmissions and events afterwards.
    ///
    /// [`Event::Resumed`] follows when both ends have heard of each other.
    pub fn resume(&mut self, wires: WireTerms) {
        debug_assert!(self.is_suspended());
        self.config.carriage = wires.carriage;
        self.config.writes = wires.writes;
        self.config.immediate = wires.immediate;
        self.credit_use = CreditUse::new(wires.peer_credit);
        self.credit_grant = CreditGrant::new(wires.our_credit);
        self.reserved = ReservedBuffer::new(self.config.dialed);
        self.has_waited = false;
        self.landings = Landings::default();
        self.stage = Stage::Resuming(IdMap::new());
        self.has_errands = true;
        self.list_peer_ends();
    }

    /// Queues a control message, unless the message will follow from the state of the ends when the
    /// peer was heard.
    pub(super) fn say(&mut self, control: Control) {
        if self.stage.is_live() {
            self.control.push_back(control);
        }
    }

    /// A frame that says that this end has no such session any more, for a peer that would wait for
    /// the session to come back. No frame follows it, so nothing is charged for it.
    #[must_use]
    pub fn last_word() -> Vec<u8> {
        let mut body = Vec::new();
        Control::Abandoned.encode(&mut body);
        let frame = FrameHeader {
            length: (HEADER_BYTES + body.len()) as u32,
            channel: 0,
            kind: FrameKind::Control,
            extension: false,
            pad: 0,
            sequence: 0,
        };
        let mut bytes = Vec::new();
        frame.append_to(None, &mut bytes);
        bytes.append(&mut body);
        bytes.resize(bytes.len().next_multiple_of(FRAME_ALIGNMENT), 0);
        bytes
    }

    /// Lists the peer's ends that this end knows.
    fn list_peer_ends(&mut self) {
        if self.damaged > 0 {
            let times = self.damaged;
            self.control.push_back(Control::Damaged { times });
        }
        for open in &self.unpaired {
            self.control.push_back(Control::Known {
                end: open.end,
                heard_close: open.closed.is_some(),
                receiver: None,
            });
        }
        let path = self.config.data_path;
        for (peer_end, &end) in self.paired.iter().flat_map(IdMap::iter) {
            let Some(entry) = self.ends.get_mut(end) else {
                continue;
            };
            let receiver = entry.state.framed_receiver(path).map(|channel| {
                channel.large.begin_anew(self.config.writes);
                let counters = channel.tell();
                self.events.push_back(Event::Told { end, counters });
                channel.known()
            });
            self.control.push_back(Control::Known {
                end: peer_end,
                heard_close: entry.heard_close,
                receiver,
            });
        }
        self.control.push_back(Control::Resumed {
            newest_end: self.newest_peer_end,
        });
    }

    /// Takes in that the peer knows an end of ours.
    pub(super) fn handle_known(
        &mut self,
        end: u32,
        heard_close: bool,
        receiver: Option<KnownReceiver>,
    ) -> Result<(), PeerMisbehaved> {
        let Stage::Resuming(known) = &mut self.stage else {
            return Err(PeerMisbehaved::NotResuming);
        };
        if end >= self.next_end || known.contains(end) {
            return Err(PeerMisbehaved::KnowsWrongly { end });
        }
        // An end that is closed on both sides here is closed at the peer too when the peer hears
        // our list.
        if self.ends.contains(end) {
            known.insert(
                end,
                Known {
                    heard_close,
                    receiver,
                },
            );
        }
        Ok(())
    }

    /// Takes in that the peer's list is complete, so that the session goes on.
    pub(super) fn handle_resumed(&mut self, newest_end: u32) -> Result<(), PeerMisbehaved> {
        let Stage::Resuming(known) = std::mem::replace(&mut self.stage, Stage::Live) else {
            return Err(PeerMisbehaved::NotResuming);
        };
        if newest_end >= self.next_end {
            return Err(PeerMisbehaved::KnowsWrongly { end: newest_end });
        }
        let ends: Vec<u32> = self.ends.iter().map(|(end, _)| end).collect();
        let mut replayed = 0;
        for &end in &ends {
            replayed += match known.get(end) {
                Some(known) => self.go_on(end, known)?,
                None if end > newest_end => self.open_again(end)?,
                None => self.was_forgotten(end)?,
            };
        }
        if self.goodbye == Goodbye::Said {
            self.goodbye = Goodbye::Due;
        }
        if let Some(is_done) = self.draining {
            self.control.push_back(Control::Draining { is_done });
            self.has_errands = true;
        }
        self.events.push_back(Event::Resumed { replayed });
        Ok(())
    }

    /// Handles that the peer knows `end`. Returns how many of its records go out again.
    fn go_on(&mut self, end: u32, known: &Known) -> Result<u64, PeerMisbehaved> {
        let mut replayed = 0;
        let is_closed = self.ends.get(end).is_some_and(|entry| entry.closed_here);
        if known.heard_close {
            // The peer has heard the close, which follows everything that was sent, wanted or not.
            if !is_closed {
                return Err(PeerMisbehaved::KnowsWrongly { end });
            }
        } else {
            match known.receiver {
                Some(receiver) => replayed = self.replay(end, &receiver)?,
                // If records were sent, the peer knows how many came.
                None if self.sender_mut(end).is_some_and(|channel| channel.sent > 0) => {
                    return Err(PeerMisbehaved::KnowsWrongly { end });
                }
                None => {}
            }
            self.close_again(end);
        }
        self.ask_and_grant_again(end);
        Ok(replayed)
    }

    /// Opens `end` again, because the peer never heard of it.
    fn open_again(&mut self, end: u32) -> Result<u64, PeerMisbehaved> {
        let Some(entry) = self.ends.get(end) else {
            return Ok(0);
        };
        let open = Control::Open {
            end,
            role: entry.state.role(),
            name: entry.name.clone(),
            spec: entry.spec.clone(),
        };
        self.control.push_back(open);
        // The peer does not know the end, so no record of it has arrived.
        let mut replayed = 0;
        if let EndState::Sender(channel) = &entry.state
            && channel.sent > 0
        {
            let nothing = KnownReceiver::nothing(channel.alignment);
            replayed = self.replay(end, &nothing)?;
        }
        self.close_again(end);
        self.ask_and_grant_again(end);
        Ok(replayed)
    }

    /// Handles that the peer has forgotten `end`: its own end was closed, and it heard that ours
    /// was.
    fn was_forgotten(&mut self, end: u32) -> Result<u64, PeerMisbehaved> {
        if let Some(entry) = self.ends.get_mut(end) {
            if !entry.closed_here {
                return Err(PeerMisbehaved::KnowsWrongly { end });
            }
            (entry.closed_there, entry.heard_close) = (true, true);
            entry.close_is_out = true;
            self.forget_if_over(end);
        }
        Ok(0)
    }

    /// Sends again the records of a sending end that have not arrived.
    fn replay(&mut self, end: u32, known: &KnownReceiver) -> Result<u64, PeerMisbehaved> {
        let Some(entry) = self.ends.get_mut(end) else {
            return Ok(0);
        };
        let EndState::Sender(channel) = &mut entry.state else {
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
        let replayed = channel
            .replay(known)
            .ok_or(PeerMisbehaved::KnowsWrongly { end })?;
        if moved {
            let counters = channel.counters;
            self.events.push_back(Event::Counted { end, counters });
        }
        if replayed > 0 {
            let (received, position) = (known.arrived, known.arrived_position);
            self.events.push_back(Event::Replay {
                end,
                received,
                position,
            });
        }
        Ok(replayed)
    }

    /// Closes `end` again if it is closed, because the peer has not heard of that.
    fn close_again(&mut self, end: u32) {
        let Some(entry) = self.ends.get_mut(end) else {
            return;
        };
        let Some((final_sequence, reason)) = entry.closing else {
            return;
        };
        entry.close_is_out = false;
        match &mut entry.state {
            EndState::Sender(channel) => channel.closing = Some((final_sequence, reason)),
            EndState::Receiver(_) => self.control.push_back(Control::Close {
                end,
                role: Role::Receiver,
                reason,
                final_sequence,
            }),
        }
    }

    fn ask_and_grant_again(&mut self, end: u32) {
        let Some(entry) = self.ends.get_mut(end) else {
            return;
        };
        match &mut entry.state {
            EndState::Sender(channel) => {
                channel.queued = true;
                self.ready.push_back(end);
                let ask = channel.unanswered();
                if ask != Ask::default() {
                    self.control.push_back(Control::Ask { channel: end, ask });
                }
            }
            EndState::Receiver(Some(receiver)) => {
                let channel = entry.peer.unwrap_or_default();
                let grants = receiver.large.grants();
                let grants = grants.map(|(sequence, way, bytes)| match way {
                    Way::Chunks => Control::Grant {
                        channel,
                        sequence,
                        bytes,
                    },
                    Way::Memory(memory) => Control::GrantMemory {
                        channel,
                        sequence,
                        memory,
                    },
                });
                self.control.extend(grants);
                self.queue_news(end);
            }
            EndState::Receiver(None) => {}
        }
    }
}

/// Returns whether wires of number `epoch` may replace a session's wires of number `newest`. Older
/// ones were given up at the other end, or are broken.
#[must_use]
pub fn is_newer_epoch(epoch: u64, newest: u64) -> bool {
    epoch > newest
}
