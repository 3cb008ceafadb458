//! The receiving end of a channel as the engine sees it: the messages that arrived, and the changes
//! that it owes.
#![forbid(unsafe_code)]

use super::{PeerMisbehaved, SessionEvent};
use crate::{
    format::{
        channel_window::{ChannelWindow, HALF_WINDOW},
        control::{Ask, KnownReceiver, Questions},
        counters::Counters,
        message_extension::MessageExtension,
        record::{self, LargeAnnouncement, RecordHeader, RecordKind},
    },
    transfer::{
        eager_write::{EagerBlocks, lands},
        rendezvous::{LARGE_PER_CHANNEL, Transfers},
    },
};

/// A receiving end.
#[derive(Debug)]
pub(crate) struct ReceiveChannel {
    // Agreed terms.
    pub(super) window: ChannelWindow,
    pub(super) alignment: usize,
    pub(super) max_message_bytes: u64,
    is_traced: bool,

    // Arrivals over the wires.
    /// Messages that arrived, without a gap (large ones count when announced).
    pub(super) arrived: u64,
    /// The sender's ring position behind the last of them.
    arrived_position: u64,
    /// Large messages under way.
    pub(super) large: Transfers,

    // Counters that this end knows, and counters that it reported.
    /// The counters of the handle's releases and acknowledgements.
    known: Counters,
    /// The counters that the sender received last.
    notified: Counters,
    /// The messages that the sender waits for.
    asked: Questions,
    /// The number of released messages after which the sender is notified, at the latest half a
    /// window.
    pub(super) tell_every: u64,
    /// The changes have to be sent to the sender. Without them it would be short of blocks, or would hold
    /// memory longer.
    pub(super) owes_changes: bool,
    /// Large messages that are here, and that the sender keeps because it does not know.
    kept_there: u32,
    /// The last message that came in a block. It may be here ahead of a longer one before it.
    landed: u64,
    /// The end is in the session's queue of ends with changes.
    pub(super) queued: bool,
}

/// The records that a frame brought.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Records {
    pub(super) first_sequence: u64,
    pub(super) records: u64,
    /// The number of them that announce a large message.
    pub(super) large: usize,
}

/// The blocks for medium-sized messages of an end.
pub(super) struct EagerReceiver<'a> {
    pub(super) end: u32,
    pub(super) blocks: &'a mut EagerBlocks,
    /// The sender keeps a message until it learns that it is there.
    pub(super) keeps: bool,
    /// The sender offers its memory of large messages.
    pub(super) offers: bool,
}

impl ReceiveChannel {
    pub(super) fn new(
        window: ChannelWindow,
        alignment: usize,
        max_message_bytes: u64,
        is_traced: bool,
    ) -> Self {
        let position = record::first_position(alignment);
        let start = Counters {
            released_position: position,
            ..Counters::default()
        };
        Self {
            window,
            alignment,
            max_message_bytes,
            is_traced,
            arrived: 0,
            arrived_position: position,
            large: Transfers::default(),
            known: start,
            notified: start,
            asked: Questions::default(),
            tell_every: HALF_WINDOW,
            owes_changes: false,
            kept_there: 0,
            landed: 0,
            queued: false,
        }
    }

    /// Checks the records of a frame, one after the other, before anyone reads them.
    #[inline(always)]
    pub(super) fn handle_records(
        &mut self,
        sequence_low: u32,
        body: &[u8],
        eager_block: &mut EagerReceiver<'_>,
    ) -> Result<Records, PeerMisbehaved> {
        let first_sequence = self.arrived + 1;
        if first_sequence as u32 != sequence_low {
            return Err(PeerMisbehaved::OutOfOrder {
                expected: first_sequence,
                got: sequence_low,
            });
        }
        if body.is_empty() {
            // Without this check, there could be more empty frames than a window has messages.
            return Err(PeerMisbehaved::NoRecords {
                sequence: first_sequence,
            });
        }
        let mut rest = body;
        let mut large = 0;
        while !rest.is_empty() {
            let sequence = self.arrived + 1;
            let word = rest
                .first_chunk::<8>()
                .ok_or(PeerMisbehaved::RecordCut { sequence })?;
            let header = RecordHeader::from_word(u64::from_le_bytes(*word))
                .and_then(Result::ok)
                .ok_or(PeerMisbehaved::RecordKind { sequence })?;
            if header.sequence_low != sequence as u32 {
                let got = header.sequence_low;
                return Err(PeerMisbehaved::OutOfOrder {
                    expected: sequence,
                    got,
                });
            }
            let length = header.length as usize;
            let size = record::record_size(length, self.alignment);
            let (this, behind) = rest
                .split_at_checked(size)
                .ok_or(PeerMisbehaved::RecordCut { sequence })?;
            let (kind, payload) = (header.kind, &this[8..][..length]);
            let payload = match kind {
                RecordKind::Data | RecordKind::Large => payload,
                RecordKind::ExtendedData | RecordKind::ExtendedLarge => self
                    .without_extension(payload)
                    .ok_or(PeerMisbehaved::RecordKind { sequence })?,
            };
            if kind.is_large() {
                large += self.handle_announcement(sequence, payload, eager_block)?;
            } else if payload.len() as u64 > self.max_message_bytes {
                let length = payload.len() as u64;
                return Err(PeerMisbehaved::TooLong {
                    length,
                    limit: self.max_message_bytes,
                });
            }
            self.arrived += 1;
            self.arrived_position += size as u64;
            rest = behind;
        }
        // The sender knows only the releases that it was notified of, so they are the strict bound.
        let Counters {
            released,
            released_position,
            ..
        } = self.notified;
        if !self.window.admits(
            self.arrived,
            self.arrived_position,
            released,
            released_position,
        ) {
            return Err(PeerMisbehaved::WindowOverrun {
                arrived: self.arrived,
                released,
            });
        }
        Ok(Records {
            first_sequence,
            records: self.arrived - first_sequence + 1,
            large,
        })
    }

    /// Returns the payload of a record without the extension behind it. `None` if the extension is
    /// malformed, or has a trace context that the ends did not agree on.
    #[cold]
    fn without_extension<'a>(&self, payload: &'a [u8]) -> Option<&'a [u8]> {
        let (before, extension) = MessageExtension::split(payload).ok()?;
        (self.is_traced || extension.trace.is_none()).then_some(before)
    }

    /// Takes in an ordinary message that is all of a frame's `bytes`, if it is valid. If it is not,
    /// nothing changes, and [`handle_records`](Self::handle_records) tells what is wrong.
    #[inline(always)]
    pub(super) fn handle_lone(
        &mut self,
        sequence_low: u32,
        record: RecordHeader,
        bytes: usize,
    ) -> bool {
        let (sequence, position) = (self.arrived + 1, self.arrived_position + bytes as u64);
        let (length, notified) = (record.length as usize, &self.notified);
        let is_next = sequence_low == sequence as u32
            && (record.sequence_low == sequence as u32)
            && record::record_size(length, self.alignment) == bytes
            && length as u64 <= self.max_message_bytes
            && self.window.admits(
                sequence,
                position,
                notified.released,
                notified.released_position,
            );
        if is_next {
            self.arrived = sequence;
            self.arrived_position = position;
        }
        is_next
    }

    /// Takes in the announcement of a large message. Returns the number of announced messages.
    #[inline(never)]
    fn handle_announcement(
        &mut self,
        sequence: u64,
        payload: &[u8],
        eager_block: &mut EagerReceiver<'_>,
    ) -> Result<usize, PeerMisbehaved> {
        let (length, place) =
            LargeAnnouncement::parse(payload).ok_or(PeerMisbehaved::RecordCut { sequence })?;
        if length == 0 || length > self.max_message_bytes {
            return Err(PeerMisbehaved::TooLong {
                length,
                limit: self.max_message_bytes,
            });
        }
        if let Some(id) = place {
            let has_landed = lands(length)
                && eager_block
                    .blocks
                    .fill(id, eager_block.end, sequence, length as usize);
            if !has_landed {
                return Err(PeerMisbehaved::UngrantedEagerBlock { sequence, id });
            }
            if eager_block.keeps {
                self.landed = sequence;
                self.is_kept_there();
            }
            return Ok(0);
        }
        if self.large.is_full() {
            return Err(PeerMisbehaved::TooManyLarge { sequence });
        }
        self.large.announce(sequence, length, eager_block.offers);
        Ok(1)
    }

    /// Tells of the large messages of this end, `end`, of which the host does not know and that wait
    /// for no offer.
    pub(super) fn tell_large(&mut self, end: u32) -> impl Iterator<Item = SessionEvent> {
        let unnotified = self.large.tell();
        unnotified.map(move |(sequence, length)| SessionEvent::LargeAnnounced {
            end,
            sequence,
            length,
            is_offered: false,
        })
    }

    /// Notes that a large message is complete. If the sender `keeps` it, it does so until it is
    /// told: with the grant of the next large message, or when it asks. Returns the message's
    /// sequence if it was read.
    pub(super) fn large_finished(&mut self, keeps: bool) -> Option<u64> {
        let read = self.large.finish();
        if keeps {
            self.is_kept_there();
        }
        read
    }

    /// Notes that the next large message has to wait for its grant, so that its sender is notified now
    /// of the messages before it.
    pub(super) fn grant_waits(&mut self) {
        self.owes_changes |= self.kept_there > 0;
    }

    /// Notes that another large message is here that its sender keeps.
    fn is_kept_there(&mut self) {
        self.kept_there += 1;
        self.owes_changes |= self.kept_there >= KEPT_THERE;
    }

    /// Notes that the handle or its guards moved the prefix. The counters may have been read while
    /// the prefix moved, and be of different age. A message that is acknowledged is released in any
    /// case.
    pub(super) fn handle_released(&mut self, changes: &Counters) {
        self.known.released = self
            .known
            .released
            .max(changes.released)
            .max(changes.acknowledged);
        self.known.released_position = self.known.released_position.max(changes.released_position);
        self.known.acknowledged = self.known.acknowledged.max(changes.acknowledged);
        self.known.acknowledgement_ended |= changes.acknowledgement_ended;
    }

    /// Notes that the sender waits for something.
    pub(super) fn handle_ask(&mut self, ask: Ask) {
        self.asked.add(ask, &self.notified);
    }

    /// Returns whether the sender waits for the application, not only for the engine.
    pub(super) fn waits_for_application(&self) -> bool {
        let open = self.asked.farthest().unanswered(&self.notified);
        open.released > 0 || open.acknowledged > 0
    }

    /// Returns whether the sender waits for room in its window.
    pub(super) fn waits_for_room(&self) -> bool {
        self.asked.farthest().released > self.notified.released
    }

    /// The counters as they stand.
    pub(super) fn counters(&self) -> Counters {
        // A large message is received when it is complete; until then the prefix ends
        // before the oldest one under way.
        let received = self
            .large
            .oldest()
            .map_or(self.arrived, |sequence| sequence - 1);
        Counters {
            received: received.max(self.known.received),
            ..self.known
        }
    }

    /// Returns whether everything up to message `last` has arrived, and nothing behind it.
    pub(super) fn is_whole(&self, last: u64) -> bool {
        self.arrived == last && self.large.is_empty()
    }

    /// Returns whether the sender must be notified of the counters now, because it waits for them or is
    /// owed enough.
    #[inline(always)]
    pub(super) fn changes_are_urgent(&self) -> bool {
        let (known, notified) = (&self.known, &self.notified);
        let released = known.released - notified.released;
        let bytes = known.released_position - notified.released_position;
        self.window.owes_changes(released, bytes, self.tell_every)
            || self.owes_changes
            || self.is_asked_for_changes() && self.is_answer_due()
    }

    /// Returns whether the sender must learn of the last arrival, because it waits for that.
    /// Arrival makes no other changes urgent.
    #[inline]
    pub(super) fn arrival_is_urgent(&self) -> bool {
        self.awaits_arrivals() && self.is_answer_due()
    }

    /// Returns whether the sender waits to learn of arrivals.
    #[inline]
    pub(super) fn awaits_arrivals(&self) -> bool {
        self.asked.farthest().received > self.notified.received
    }

    /// Returns whether the sender waits for more than it was notified of.
    fn is_asked_for_changes(&self) -> bool {
        let asked = self.asked.farthest();
        asked.received > self.notified.received
            || asked.released > self.notified.released
            || asked.acknowledged > self.notified.settled()
    }

    /// Returns whether there are changes of what the sender waits for.
    fn is_answer_due(&self) -> bool {
        self.asked.is_answer_due(&self.notified, &self.counters())
    }

    /// Returns whether there is anything that the sender has not received.
    pub(super) fn has_changes(&self) -> bool {
        self.counters() != self.notified
    }

    /// Returns the state that the sender needs to go on over new wires; of the counters, those
    /// that were [told](Self::tell).
    pub(super) fn known(&self) -> KnownReceiver {
        KnownReceiver {
            arrived: self.arrived,
            arrived_position: self.arrived_position,
            counters: self.notified,
        }
    }

    /// Takes the counters into a frame.
    pub(super) fn tell(&mut self) -> Counters {
        self.owes_changes = false;
        self.notified = self.counters();
        // What landed ahead of a message that is under way is not reported yet. The changes are due when the
        // next message is complete.
        let is_ahead = self.landed > self.notified.received;
        self.kept_there = if is_ahead { KEPT_THERE - 1 } else { 0 };
        self.notified
    }
}

/// The number of large messages that may be here without the sender's knowledge: as many as a
/// sender has under way at the least. The sender is then notified of them, so that it does not wait.
const KEPT_THERE: u32 = LARGE_PER_CHANNEL as u32 + 1;
