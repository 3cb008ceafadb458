//! The receiving half of a session, which checks and takes in frames of every kind.
#![forbid(unsafe_code)]

use super::{
    Arrival, EndChannel, LocalEnd, LoneRecord, PeerMisbehaved, PeerOpen, Session, SessionEvent,
    receive_channel::EagerReceiver, resume::Stage,
};
use crate::{
    credit::session::CONTROL_RESERVE_BYTES,
    format::{
        control::{Control, Role},
        frame::{EXTENSION_BYTES, Extension, FrameHeader, FrameKind, HEADER_BYTES},
        record::{self, RecordHeader},
    },
    framing::Carriage,
    transfer::{eager_write::EagerBlockId, rendezvous::Way},
};

impl Session {
    /// Takes in one frame, from its header to the end of its body. For a chunk, only the head need
    /// be there: `frame` may end with it.
    ///
    /// `arrival_offset` is where the frame begins in arrival memory, modulo 64.
    #[inline(always)]
    pub fn handle_frame(
        &mut self,
        header: &FrameHeader,
        frame: &[u8],
        arrival_offset: usize,
    ) -> Result<Arrival, PeerMisbehaved> {
        if header.kind != FrameKind::Records || header.extension {
            return self.handle_any_frame(header, frame, arrival_offset);
        }
        self.credit.take_cost(header)?;
        self.outgoing.has_errands |= self.credit.granting.is_owed_much();
        let offset = header.body_offset();
        self.handle_records(header, &frame[offset..], arrival_offset + offset)
    }

    /// Takes in a frame of one message and nothing else, as requests and their answers are. The
    /// message leads to no frame to send and no event. Returns `None` and changes nothing for every
    /// other frame, and for a wrong one; [`handle_frame`](Self::handle_frame) then tells what it
    /// is. For a lone message `handle_frame` returns the same, at twice the cost.
    ///
    /// `frame` and `arrival_offset` are as for [`handle_frame`](Self::handle_frame).
    #[inline(always)]
    #[must_use]
    pub fn handle_lone_record(
        &mut self,
        frame: &[u8],
        arrival_offset: usize,
    ) -> Option<LoneRecord> {
        let header = FrameHeader::parse_plain(frame)?;
        let offset = header.body_offset();
        let word = frame[offset..].first_chunk::<{ record::HEADER_BYTES }>()?;
        let record = RecordHeader::of_data(u64::from_le_bytes(*word))?;
        let bytes = frame.len() - offset;
        let cost = self.credit.carriage.cost(&header);
        let is_due = self.config.data_path.check_data_frame().is_ok()
            && frame.len() <= self.credit.carriage.frame_bytes()
            && self.credit.granting.covers_quietly(cost);
        let Some((
            end,
            LocalEnd {
                closed_here: false,
                closed_there: false,
                state: EndChannel::Receiver(Some(channel)),
                ..
            },
        )) = self.ends.paired_entry(Role::Sender, header.channel)
        else {
            return None;
        };
        let is_aligned =
            (arrival_offset + offset + record::HEADER_BYTES) & (channel.alignment - 1) == 0;
        if !is_due
            || !is_aligned
            || channel.awaits_arrivals()
            || !channel.handle_lone(header.sequence, record, bytes)
        {
            return None;
        }
        self.credit.granting.arrived_quietly(cost);
        Some(LoneRecord {
            end,
            offset,
            bytes,
            sequence: channel.arrived,
        })
    }

    /// Takes in a frame of any kind, with any extension.
    #[inline(never)]
    fn handle_any_frame(
        &mut self,
        header: &FrameHeader,
        frame: &[u8],
        arrival_offset: usize,
    ) -> Result<Arrival, PeerMisbehaved> {
        let extension = header
            .extension
            .then(|| frame[HEADER_BYTES..].first_chunk::<EXTENSION_BYTES>())
            .flatten()
            .map(Extension::parse);
        if extension.is_some() && self.credit.carriage.is_chunk_of_stream(header) {
            return Err(PeerMisbehaved::CountersOnChunk);
        }
        self.credit.take_cost(header)?;
        self.outgoing.has_errands = true;
        if let Some(extension) = &extension {
            self.handle_extension(extension)?;
        }
        let offset = header.body_offset();
        match header.kind {
            FrameKind::Control => {
                if u64::from(header.length) > CONTROL_RESERVE_BYTES {
                    return Err(PeerMisbehaved::LongControl);
                }
                let control = match header.body_bytes() {
                    0 => None,
                    _ => Some(Control::decode(&frame[offset..])?),
                };
                if self.credit.carriage.is_talk(header) {
                    if control
                        .as_ref()
                        .is_some_and(|control| !control.needs_no_credit())
                    {
                        return Err(PeerMisbehaved::NoTalk);
                    }
                    let has_credit = extension.is_some_and(|extension| extension.credit.is_some());
                    self.credit.take_talk(has_credit || control.is_some())?;
                }
                control.map_or(Ok(()), |control| self.handle_control(control))?;
                Ok(Arrival::Nothing)
            }
            FrameKind::Records => {
                self.handle_records(header, &frame[offset..], arrival_offset + offset)
            }
            FrameKind::Chunk => {
                self.config.data_path.check_data_frame()?;
                self.ends.handle_chunk(header)
            }
            FrameKind::Written => self.ends.handle_written(header),
        }
    }

    #[inline(always)]
    fn handle_records(
        &mut self,
        header: &FrameHeader,
        body: &[u8],
        body_offset: usize,
    ) -> Result<Arrival, PeerMisbehaved> {
        self.config.data_path.check_data_frame()?;
        let Some((end, channel)) = self.ends.addressee(header.channel)? else {
            return Ok(Arrival::Unwanted);
        };
        let alignment = channel.alignment;
        // The alignment is a power of two, since the spec was checked.
        if (body_offset + record::HEADER_BYTES) & (alignment - 1) != 0 {
            return Err(PeerMisbehaved::Misaligned { alignment });
        }
        let mut eager_block = EagerReceiver {
            end,
            blocks: &mut self.eager_blocks,
            keeps: self.config.resumes,
            offers: self.config.wires.reads > 0,
        };
        let records = channel.handle_records(header.sequence, body, &mut eager_block)?;
        let is_urgent = channel.arrival_is_urgent() || channel.owes_changes;
        if records.large > 0 {
            self.events.extend(channel.tell_large(end));
        }
        if is_urgent {
            self.queue_changes(end);
        }
        Ok(Arrival::Records {
            end,
            offset: header.body_offset(),
            bytes: body.len(),
            first_sequence: records.first_sequence,
            records: records.records,
        })
    }

    /// Notes that the bytes of a large message's last chunk are in place, or that the message is
    /// written. Only now is the message received. Call it before the next frame is handled.
    pub fn handle_large_complete(&mut self, end: u32) {
        let resumes = self.config.resumes;
        let channel = self.ends.receiver_mut(end);
        let read = channel.and_then(|channel| channel.large_finished(resumes));
        self.queue_changes(end);
        if let Some(sequence) = read
            && let Some(channel) = self.ends.entries.get(end).and_then(|entry| entry.peer)
        {
            self.outgoing.say(Control::Taken { channel, sequence });
        }
        // The next message may have waited for this one.
        self.ends.turns.reads_of(end);
    }

    fn handle_extension(&mut self, extension: &Extension) -> Result<(), PeerMisbehaved> {
        self.credit.handle_extension(extension)?;
        let Some((channel, changes)) = extension.counters else {
            return Ok(());
        };
        // Changes for an end that is closed already are late, and harmless.
        let Some(sender) = self.ends.sender_mut(channel) else {
            return Ok(());
        };
        let moved = sender
            .handle_counters(&changes)
            .map_err(|source| PeerMisbehaved::Counters { channel, source })?;
        let counters = sender.counters;
        let next = (moved && sender.has_to_ask_on()).then(|| sender.unanswered());
        if moved {
            self.events.push_back(SessionEvent::Counted {
                end: channel,
                counters,
            });
        }
        if let Some(ask) = next {
            self.outgoing.ask(channel, ask);
        }
        Ok(())
    }

    fn handle_control(&mut self, control: Control) -> Result<(), PeerMisbehaved> {
        match control {
            Control::Open {
                end,
                role,
                name,
                spec,
            } => {
                let (limit, events) = (self.config.max_channels, &mut self.events);
                let open = PeerOpen {
                    end,
                    role,
                    name,
                    spec,
                    closed: None,
                };
                if let Some((end, open)) = self.ends.handle_open(open, limit, events)? {
                    self.pair(end, open);
                }
                Ok(())
            }
            Control::Close {
                end,
                role,
                reason,
                final_sequence: last,
            } => {
                let (path, events) = (self.config.data_path, &mut self.events);
                let closed = self
                    .ends
                    .handle_close((end, role), reason, last, path, events)?;
                if let Some(end) = closed {
                    self.forget_if_over(end);
                }
                Ok(())
            }
            Control::Ask { channel, ask } => {
                if let Some((end, entry)) = self.ends.paired_entry(Role::Sender, channel)
                    && let EndChannel::Receiver(Some(receiver)) = &mut entry.state
                {
                    receiver.handle_ask(ask);
                    if receiver.waits_for_application() {
                        self.events.push_back(SessionEvent::Asked { end });
                    }
                    if receiver.changes_are_urgent() {
                        self.queue_changes(end);
                    }
                }
                Ok(())
            }
            Control::Grant {
                channel,
                sequence,
                bytes,
            } => self
                .ends
                .handle_grant(channel, sequence, Way::Chunks, bytes),
            Control::GrantMemory { .. } | Control::GrantEagerBlock { .. }
                if !self.config.wires.writes =>
            {
                Err(PeerMisbehaved::UnknownGrant)
            }
            Control::GrantMemory {
                channel,
                sequence,
                memory,
            } => self
                .ends
                .handle_grant(channel, sequence, Way::Memory(memory), memory.bytes()),
            Control::Offer {
                channel,
                sequence,
                memory,
            } => self.handle_offer(channel, sequence, memory),
            Control::OfferRail {
                channel,
                sequence,
                rail,
                key,
            } => self.handle_offered_rail(channel, sequence, rail, key),
            Control::Taken { channel, sequence } => self.ends.handle_taken(channel, sequence),
            Control::GrantEagerBlock {
                channel,
                eager_block,
                memory,
            } => self
                .ends
                .handle_granted_eager_block(channel, eager_block, memory),
            Control::ReturnEagerBlock {
                channel,
                eager_block,
            } => self.handle_returned(channel, eager_block),
            Control::Goodbye { reason } => {
                // The peer may repeat this over new wires.
                if !std::mem::replace(&mut self.received_goodbye, true) {
                    self.events.push_back(SessionEvent::Goodbye { reason });
                }
                Ok(())
            }
            Control::Abandoned => {
                self.events.push_back(SessionEvent::Abandoned);
                Ok(())
            }
            Control::Draining { is_done } => {
                // The peer repeats this over new wires.
                let heard = Some(is_done);
                if heard > self.received_draining {
                    self.received_draining = heard;
                    self.events.push_back(SessionEvent::Draining { is_done });
                }
                Ok(())
            }
            Control::Want { granted } => self.credit.handle_want(granted),
            Control::Recall { credit, must_ask } => {
                Ok(self.credit.using.recall(credit, must_ask)?)
            }
            Control::Surrender { credit } => Ok(self.credit.granting.surrendered(credit)?),
            Control::Known { end, state } => {
                self.handle_known(end, state.received_close, state.receiver)
            }
            Control::Damaged { .. } if !matches!(self.outgoing.stage, Stage::Resuming(_)) => {
                Err(PeerMisbehaved::NotResuming)
            }
            Control::Damaged { times } => {
                self.events.push_back(SessionEvent::Damaged { times });
                Ok(())
            }
            Control::Query if self.credit.carriage != Carriage::Stream => {
                Err(PeerMisbehaved::QueryOverBuffers)
            }
            Control::Query => {
                self.outgoing.answer();
                Ok(())
            }
            Control::Resumed { newest_end } => self.handle_resumed(newest_end),
        }
    }

    fn handle_returned(&mut self, channel: u32, id: EagerBlockId) -> Result<(), PeerMisbehaved> {
        let end = self.ends.paired(Role::Sender, channel);
        if !end.is_some_and(|end| self.eager_blocks.take_back(id, end)) {
            return Err(PeerMisbehaved::WrongEagerBlock { id });
        }
        self.events
            .push_back(SessionEvent::EagerBlockReturned { index: id.index });
        Ok(())
    }
}
