//! The receiving half of a session, which checks and takes in frames of every kind.
#![forbid(unsafe_code)]

use std::sync::Arc;

use super::{
    Agreed, Arrival, End, EndState, Event, LoneRecord, PeerMisbehaved, PeerOpen, Session, Stage,
    paired_entry,
};
use crate::{
    credit::session::CONTROL_RESERVE_BYTES,
    format::{
        control::{Ask, ChannelSpec, CloseReason, Control, Role},
        frame::{EXTENSION_BYTES, Extension, FrameHeader, FrameKind, HEADER_BYTES},
        message_version::settle,
        record::{self, RecordHeader},
    },
    framing::Carriage,
    id_map::IdMap,
    session::receive_channel::{Landing, ReceiveChannel},
    transfer::{
        eager_write::LandingId,
        rendezvous::{RemoteMemory, Way},
    },
};

impl Session {
    /// Takes in one frame, from its header to the end of its body. For a chunk, only the head need
    /// be there: `frame` may end with it.
    ///
    /// `landing` is where the frame begins in arrival memory, modulo 64.
    #[inline(always)]
    pub fn handle_frame(
        &mut self,
        header: &FrameHeader,
        frame: &[u8],
        landing: usize,
    ) -> Result<Arrival, PeerMisbehaved> {
        if header.kind != FrameKind::Records || header.extension {
            return self.handle_any_frame(header, frame, landing);
        }
        self.take_cost(header)?;
        let offset = header.body_offset();
        self.handle_records(header, &frame[offset..], landing + offset)
    }

    /// Takes in a frame of one message and nothing else, as requests and their answers are. The
    /// message leads to no frame to send and no event. Returns `None` and changes nothing for every
    /// other frame, and for a wrong one; [`handle_frame`](Self::handle_frame) then tells what it
    /// is. For a lone message `handle_frame` returns the same, at twice the cost.
    ///
    /// `frame` and `landing` are as for [`handle_frame`](Self::handle_frame).
    #[inline(always)]
    #[must_use]
    pub fn handle_lone_record(&mut self, frame: &[u8], landing: usize) -> Option<LoneRecord> {
        let header = FrameHeader::parse_plain(frame)?;
        let offset = header.body_offset();
        let word = frame[offset..].first_chunk::<{ record::HEADER_BYTES }>()?;
        let record = RecordHeader::of_data(u64::from_le_bytes(*word))?;
        let bytes = frame.len() - offset;
        let cost = self.config.carriage.cost(&header);
        let is_due = self.config.data_path.check_data_frame().is_ok()
            && frame.len() <= self.config.carriage.frame_bytes()
            && self.credit_grant.covers_quietly(cost);
        let Some((
            end,
            End {
                closed_here: false,
                closed_there: false,
                state: EndState::Receiver(Some(channel)),
                ..
            },
        )) = paired_entry(&self.paired, &mut self.ends, Role::Sender, header.channel)
        else {
            return None;
        };
        let is_aligned = (landing + offset + record::HEADER_BYTES) & (channel.alignment - 1) == 0;
        if !is_due
            || !is_aligned
            || channel.awaits_arrivals()
            || !channel.handle_lone(header.sequence, record, bytes)
        {
            return None;
        }
        self.credit_grant.arrived_quietly(cost);
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
        landing: usize,
    ) -> Result<Arrival, PeerMisbehaved> {
        let extension = header
            .extension
            .then(|| frame[HEADER_BYTES..].first_chunk::<EXTENSION_BYTES>())
            .flatten()
            .map(Extension::parse);
        if extension.is_some() && self.config.carriage.is_chunk_of_stream(header) {
            return Err(PeerMisbehaved::NewsOnChunk);
        }
        self.take_cost(header)?;
        self.has_errands = true;
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
                if self.config.carriage.is_talk(header) {
                    if control
                        .as_ref()
                        .is_some_and(|control| !control.needs_no_credit())
                    {
                        return Err(PeerMisbehaved::NoTalk);
                    }
                    let has_credit = extension.is_some_and(|extension| extension.credit.is_some());
                    self.reserved.take(has_credit || control.is_some())?;
                }
                control.map_or(Ok(()), |control| self.handle_control(control))?;
                Ok(Arrival::Nothing)
            }
            FrameKind::Records => self.handle_records(header, &frame[offset..], landing + offset),
            FrameKind::Chunk => self.handle_chunk(header),
            FrameKind::Written => self.handle_written(header),
        }
    }

    /// Returns our receiving end to which the peer's sending end `channel` sends.
    #[inline]
    fn addressee<'a>(
        paired: &[IdMap<u32>; 2],
        ends: &'a mut IdMap<End>,
        channel: u32,
    ) -> Result<Addressee<'a>, PeerMisbehaved> {
        match paired_entry(paired, ends, Role::Sender, channel) {
            Some((
                end,
                End {
                    closed_here,
                    closed_there: false,
                    state: EndState::Receiver(Some(receiver)),
                    ..
                },
            )) => Ok(Addressee {
                end,
                is_closed: *closed_here,
                channel: receiver,
            }),
            _ => Err(PeerMisbehaved::UnknownChannel { channel }),
        }
    }

    #[inline(always)]
    fn handle_records(
        &mut self,
        header: &FrameHeader,
        body: &[u8],
        body_landing: usize,
    ) -> Result<Arrival, PeerMisbehaved> {
        self.config.data_path.check_data_frame()?;
        let Addressee {
            end,
            is_closed,
            channel,
        } = Self::addressee(&self.paired, &mut self.ends, header.channel)?;
        let alignment = channel.alignment;
        // The alignment is a power of two, since the spec was checked.
        if (body_landing + record::HEADER_BYTES) & (alignment - 1) != 0 {
            return Err(PeerMisbehaved::Misaligned { alignment });
        }
        if is_closed {
            // The peer sent this before our close arrived there.
            return Ok(Arrival::Unwanted);
        }
        let mut landing = Landing {
            end,
            blocks: &mut self.landings,
            keeps: self.config.resumes,
        };
        let records = channel.handle_records(header.sequence, body, &mut landing)?;
        let is_urgent = channel.arrival_is_urgent() || channel.owes_news;
        if records.large > 0 {
            let newest = channel.large.newest(records.large);
            self.events
                .extend(newest.map(|(sequence, length)| Event::LargeAnnounced {
                    end,
                    sequence,
                    length,
                }));
        }
        if is_urgent {
            self.queue_news(end);
        }
        Ok(Arrival::Records {
            end,
            offset: header.body_offset(),
            bytes: body.len(),
            first_sequence: records.first_sequence,
            records: records.records,
        })
    }

    fn handle_chunk(&mut self, header: &FrameHeader) -> Result<Arrival, PeerMisbehaved> {
        self.config.data_path.check_data_frame()?;
        let Addressee {
            end,
            is_closed,
            channel,
        } = Self::addressee(&self.paired, &mut self.ends, header.channel)?;
        if is_closed {
            return Ok(Arrival::Unwanted);
        }
        let (chunk, complete) = channel
            .large
            .place(header.sequence, header.body_bytes())
            .ok_or(PeerMisbehaved::UngrantedChunk)?;
        Ok(Arrival::Chunk {
            end,
            chunk,
            complete,
        })
    }

    fn handle_written(&mut self, header: &FrameHeader) -> Result<Arrival, PeerMisbehaved> {
        let Addressee {
            end,
            is_closed,
            channel,
        } = Self::addressee(&self.paired, &mut self.ends, header.channel)?;
        if is_closed {
            return Ok(Arrival::Unwanted);
        }
        let sequence = channel
            .large
            .written(header.sequence)
            .filter(|_| header.body_bytes() == 0)
            .ok_or(PeerMisbehaved::UngrantedWrite)?;
        Ok(Arrival::Written { end, sequence })
    }

    /// Notes that the bytes of a large message's last chunk are in place, or that the message is
    /// written. Only now is the message received. Call it before the next frame is handled.
    pub fn handle_large_complete(&mut self, end: u32) {
        let resumes = self.config.resumes;
        if let Some(channel) = self.receiver_mut(end) {
            channel.large_finished(resumes);
        }
        self.queue_news(end);
    }

    fn queue_news_if_urgent(&mut self, end: u32) {
        if self
            .receiver_mut(end)
            .is_some_and(|channel| channel.news_are_urgent())
        {
            self.queue_news(end);
        }
    }

    /// Charges a frame that arrived to what the peer was granted.
    #[inline]
    fn take_cost(&mut self, header: &FrameHeader) -> Result<(), PeerMisbehaved> {
        if let Carriage::Buffers { bytes } = self.config.carriage
            && header.padded_length() > bytes
        {
            return Err(PeerMisbehaved::LongFrame { limit: bytes });
        }
        let cost = self.config.carriage.cost(header);
        self.credit_grant.arrived(cost)?;
        self.has_errands |= self.credit_grant.is_owed_much();
        Ok(())
    }

    fn handle_extension(&mut self, extension: &Extension) -> Result<(), PeerMisbehaved> {
        if let Some(credit) = extension.credit {
            self.credit_use.grant(credit)?;
        }
        if let Some(answer) = extension.answer {
            self.reserved.hear_answer(answer)?;
        }
        if extension.waited {
            self.credit_grant.was_short();
        }
        if extension.wants {
            self.credit_grant.used_up();
        }
        let Some((channel, news)) = extension.counters else {
            return Ok(());
        };
        // News for an end that is closed already are late, and harmless.
        let Some(sender) = self.sender_mut(channel) else {
            return Ok(());
        };
        let moved = sender
            .handle_counters(&news)
            .map_err(|source| PeerMisbehaved::Counters { channel, source })?;
        let counters = sender.counters;
        let next = (moved && sender.has_to_ask_on()).then(|| sender.unanswered());
        if moved {
            self.events.push_back(Event::Counted {
                end: channel,
                counters,
            });
        }
        if let Some(ask) = next {
            self.say_ask(channel, ask);
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
            } => self.handle_open(end, role, name, spec),
            Control::Close {
                end,
                role,
                reason,
                final_sequence,
            } => self.handle_close(end, role, reason, final_sequence),
            Control::Ask { channel, ask } => {
                if let Some((end, entry)) = self.paired_entry(Role::Sender, channel)
                    && let EndState::Receiver(Some(receiver)) = &mut entry.state
                {
                    receiver.handle_ask(ask);
                    if receiver.waits_for_application() {
                        self.events.push_back(Event::Asked { end });
                    }
                    self.queue_news_if_urgent(end);
                }
                Ok(())
            }
            Control::Grant {
                channel,
                sequence,
                bytes,
            } => self.handle_grant(channel, sequence, Way::Chunks, bytes),
            Control::GrantMemory {
                channel,
                sequence,
                memory,
            } => self.handle_grant(channel, sequence, Way::Memory(memory), memory.bytes()),
            Control::GrantLanding {
                channel,
                landing,
                memory,
            } => self.handle_granted_landing(channel, landing, memory),
            Control::ReturnLanding { channel, landing } => self.handle_returned(channel, landing),
            Control::Goodbye { reason } => {
                // The peer may repeat this over new wires.
                if !std::mem::replace(&mut self.heard_goodbye, true) {
                    self.events.push_back(Event::Goodbye { reason });
                }
                Ok(())
            }
            Control::Abandoned => {
                self.events.push_back(Event::Abandoned);
                Ok(())
            }
            Control::Draining { is_done } => {
                // The peer repeats this over new wires.
                let heard = Some(is_done);
                if heard > self.heard_draining {
                    self.heard_draining = heard;
                    self.events.push_back(Event::Draining { is_done });
                }
                Ok(())
            }
            Control::Want { granted } => {
                if self.credit_grant.is_wanted(granted) {
                    Ok(())
                } else {
                    Err(PeerMisbehaved::WantsUngranted { granted })
                }
            }
            Control::Recall { credit, must_ask } => Ok(self.credit_use.recall(credit, must_ask)?),
            Control::Surrender { credit } => Ok(self.credit_grant.surrendered(credit)?),
            Control::Known {
                end,
                heard_close,
                receiver,
            } => self.handle_known(end, heard_close, receiver),
            Control::Damaged { .. } if !matches!(self.stage, Stage::Resuming(_)) => {
                Err(PeerMisbehaved::NotResuming)
            }
            Control::Damaged { times } => {
                self.events.push_back(Event::Damaged { times });
                Ok(())
            }
            Control::Query if self.config.carriage != Carriage::Stream => {
                Err(PeerMisbehaved::QueryOverBuffers)
            }
            Control::Query => {
                self.answers = self.answers.saturating_add(1).min(MOST_ANSWERS);
                Ok(())
            }
            Control::Resumed { newest_end } => self.handle_resumed(newest_end),
        }
    }

    fn handle_grant(
        &mut self,
        channel: u32,
        sequence: u64,
        way: Way,
        allowed: u64,
    ) -> Result<(), PeerMisbehaved> {
        if matches!(way, Way::Memory(_)) && !self.config.writes {
            return Err(PeerMisbehaved::UnknownGrant);
        }
        // A grant for an end that is gone here was under way when the end went.
        let Some(sender) = self.sender_mut(channel) else {
            return Ok(());
        };
        if let Way::Memory(memory) = way
            && let Some(length) = sender.large.length_of(sequence)
            && memory.bytes() != length
        {
            return Err(PeerMisbehaved::GrantedLength {
                sequence,
                length,
                granted: memory.bytes(),
            });
        }
        sender
            .large
            .grant(sequence, way, allowed)
            .ok_or(PeerMisbehaved::UnwantedGrant { sequence })?;
        self.mark_ready(channel);
        Ok(())
    }

    fn handle_granted_landing(
        &mut self,
        channel: u32,
        id: LandingId,
        memory: RemoteMemory,
    ) -> Result<(), PeerMisbehaved> {
        if !self.config.writes {
            return Err(PeerMisbehaved::UnknownGrant);
        }
        // The peer gets the block of an end that is gone here back when the end goes there.
        let Some(sender) = self.sender_mut(channel) else {
            return Ok(());
        };
        match sender.landings.add(id, memory) {
            true => Ok(()),
            false => Err(PeerMisbehaved::TooManyLandings { channel }),
        }
    }

    fn handle_returned(&mut self, channel: u32, id: LandingId) -> Result<(), PeerMisbehaved> {
        let end = self.paired(Role::Sender, channel);
        if !end.is_some_and(|end| self.landings.take_back(id, end)) {
            return Err(PeerMisbehaved::WrongLanding { id });
        }
        self.events
            .push_back(Event::LandingReturned { index: id.index });
        Ok(())
    }

    fn handle_open(
        &mut self,
        end: u32,
        role: Role,
        name: Arc<str>,
        spec: Arc<ChannelSpec>,
    ) -> Result<(), PeerMisbehaved> {
        let limit = self.config.max_channels;
        let known = |open: &PeerOpen| open.role == role && open.end == end;
        if self.paired[role as usize].contains(end) || self.unpaired.iter().any(known) {
            return Err(PeerMisbehaved::OpenedTwice { end });
        }
        if self.peer_ends() >= limit {
            return Err(PeerMisbehaved::TooManyChannels { limit });
        }
        self.newest_peer_end = self.newest_peer_end.max(end);
        let open = PeerOpen {
            end,
            role,
            name,
            spec,
            closed: None,
        };
        // The oldest local end that waits for this name; ids grow, so the smallest.
        let waiting = self
            .ends
            .iter()
            .filter(|(_, local)| local.state.role() == role.opposite() && local.name == open.name)
            .filter(|(_, local)| local.peer.is_none() && !local.closed_there)
            .map(|(id, _)| id)
            .min();
        match waiting {
            Some(local) => self.pair(local, open),
            None => {
                self.events.push_back(Event::PeerOpened {
                    name: open.name.clone(),
                    role,
                });
                self.unpaired.push(open);
            }
        }
        Ok(())
    }

    /// Joins a local end and the peer's open of the same name.
    pub(super) fn pair(&mut self, end: u32, open: PeerOpen) {
        let Some(local) = self.ends.get_mut(end) else {
            return;
        };
        local.peer = Some(open.end);
        self.paired[open.role as usize].insert(open.end, end);
        // Both ends see the same two specs, so they come to the same result.
        let settled = match open.role {
            Role::Sender => settle(&open.spec, &local.spec),
            Role::Receiver => settle(&local.spec, &open.spec),
        };
        let Some(settled) = settled else {
            (local.closed_there, local.is_mismatched) = (true, true);
            local.heard_close = open.closed.is_some();
            self.events.push_back(Event::Mismatched {
                end,
                theirs: open.spec,
            });
            self.forget_if_over(end);
            return;
        };
        let agreed = Agreed {
            fingerprint: settled.fingerprint,
            window: local.spec.window.agree(open.spec.window),
            alignment: settled.alignment,
            max_message_bytes: local
                .spec
                .max_message_bytes
                .min(open.spec.max_message_bytes),
            limit_here_to_there: local
                .spec
                .max_message_bytes
                .cmp(&open.spec.max_message_bytes),
            max_unreleased_bytes: local
                .spec
                .max_unreleased_bytes
                .min(open.spec.max_unreleased_bytes),
            is_traced: local.spec.is_traced && open.spec.is_traced,
        };
        let mut asked = Ask::default();
        match &mut local.state {
            EndState::Receiver(state) => {
                *state = Some(Box::new(ReceiveChannel::new(
                    agreed.window,
                    agreed.alignment as usize,
                    agreed.max_message_bytes,
                    agreed.is_traced,
                )));
            }
            EndState::Sender(channel) => {
                channel.alignment = agreed.alignment as usize;
                channel.sent_position = record::first_position(channel.alignment);
                channel.counters.released_position = channel.sent_position;
                // The peer had no end that it could have answered for.
                asked = channel.unanswered();
            }
        }
        self.events.push_back(Event::Opened {
            end,
            peer_end: open.end,
            agreed,
        });
        if let Some(reason) = open.closed {
            (local.closed_there, local.heard_close) = (true, true);
            self.events.push_back(Event::PeerClosed {
                end,
                reason,
                final_sequence: 0,
            });
        }
        if asked != Ask::default() {
            self.say_ask(end, asked);
        }
        self.mark_ready(end);
        self.forget_if_over(end);
    }

    fn handle_close(
        &mut self,
        peer_end: u32,
        role: Role,
        reason: CloseReason,
        last: u64,
    ) -> Result<(), PeerMisbehaved> {
        let path = self.config.data_path;
        if let Some(open) = self
            .unpaired
            .iter_mut()
            .find(|open| open.role == role && open.end == peer_end)
        {
            open.closed = Some(reason);
            return Ok(());
        }
        let Some((end, entry)) = self.paired_entry(role, peer_end) else {
            return Ok(());
        };
        entry.heard_close = true;
        if entry.closed_there {
            // A mismatch ended the channel on both ends already.
            self.forget_if_over(end);
            return Ok(());
        }
        let is_closed = entry.closed_here;
        if let Some(channel) = entry.state.framed_receiver(path)
            && !is_closed
            && !channel.is_whole(last)
        {
            let received = channel.counters().received;
            return Err(PeerMisbehaved::ClosedElsewhere { last, received });
        }
        entry.closed_there = true;
        self.events.push_back(Event::PeerClosed {
            end,
            reason,
            final_sequence: last,
        });
        // A close of ours that waited for a grant waits no longer, and no peer is left for records
        // to wait for.
        if !self.mark_ready(end) {
            self.ready.retain(|&other| other != end);
            self.leaves_ready(end);
        }
        self.forget_if_over(end);
        Ok(())
    }
}

/// The end that a data frame is for.
struct Addressee<'a> {
    end: u32,
    /// The end was closed here, so a frame that still comes was sent before the peer heard of the
    /// close.
    is_closed: bool,
    channel: &'a mut ReceiveChannel,
}

/// Answers that wait to be sent. Further questions of the peer need no answer of their own.
const MOST_ANSWERS: u32 = 1 << 16;
