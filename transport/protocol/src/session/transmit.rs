//! The sending half of a session: the choice of the next frame. What is in its head is in `heads.rs`.
#![forbid(unsafe_code)]

use super::{Body, EagerBlockWord, EndChannel, RecordSource, Session, heads::FrameRecords};
use crate::{
    format::{
        control::{Control, Role},
        frame::{FrameHeader, FrameKind, HEAD_BYTES, HEADER_BYTES, pad_for},
        record::MAX_ALIGNMENT,
    },
    session::send_channel::Unannounced,
    transfer::rendezvous::Piece,
};

impl Session {
    /// Builds the next frame: its head (header, extension, padding, control message) is
    /// appended to `head`, the returned body follows it, then zeros up to a multiple of 8.
    ///
    /// `arrival_offset` is where the frame begins in the peer's arrival memory, modulo 64. Drain it
    /// whenever a handle published, a frame arrived or a wish was made.
    #[inline]
    #[must_use]
    pub fn poll_transmit(
        &mut self,
        source: &mut impl RecordSource,
        arrival_offset: usize,
        head: &mut Vec<u8>,
    ) -> Option<Body> {
        if !self.outgoing.has_errands {
            let end = self.ends.turns.ready.pop_front()?;
            if let Some(records) = self.poll_records(end, source) {
                return Some(records.frame(&mut self.credit, None, arrival_offset, head));
            }
            self.ends.turns.ready.push_front(end);
        }
        let body = self.poll_anything(source, arrival_offset, head);
        if body.is_none() {
            self.outgoing.has_errands =
                self.knows_errands() || self.credit.has_riders() || !self.outgoing.stage.is_live();
        }
        body
    }

    /// Builds the header of a frame with one record alone, `bytes` long with its own header, if
    /// nothing is to go before or with it. The record is the first of `end` that is in no frame.
    ///
    /// The header is the one that [`poll_transmit`](Self::poll_transmit) would build, at a third of
    /// its cost.
    #[inline(always)]
    #[must_use]
    pub fn poll_lone_record(
        &mut self,
        end: u32,
        bytes: usize,
        arrival_offset: usize,
    ) -> Option<FrameHeader> {
        if self.outgoing.has_errands || !self.ends.turns.ready.is_empty() {
            return None;
        }
        let entry = self.ends.entries.get_mut(end)?;
        if !entry.takes_records(self.config.data_path) || entry.closed_here {
            return None;
        }
        let EndChannel::Sender(channel) = &mut entry.state else {
            return None;
        };
        let pad = pad_for(arrival_offset, false, channel.alignment);
        let header = FrameHeader {
            length: (HEADER_BYTES + usize::from(pad) + bytes) as u32,
            pad,
            ..FrameHeader::new(FrameKind::Records, end, (channel.sent + 1) as u32)
        };
        let cost = self.credit.carriage.cost(&header);
        if !channel.has_nothing_large() || cost > self.credit.using.available() {
            return None;
        }
        self.credit.using.charge(cost);
        channel.lone_record_went(bytes);
        Some(header)
    }

    /// Builds the next frame, of any kind.
    #[inline(never)]
    fn poll_anything(
        &mut self,
        source: &mut impl RecordSource,
        arrival_offset: usize,
        head: &mut Vec<u8>,
    ) -> Option<Body> {
        if self.outgoing.is_suspended() {
            return None;
        }
        if self.credit.allows_talk_only() {
            return self.next_credit_frame(self.is_out_of_credit(), arrival_offset, head);
        }
        if let Some(control) = self.outgoing.next() {
            let closed = match control {
                Some(Control::Close { end, .. }) => Some(end),
                _ => None,
            };
            if let Some(end) = closed {
                self.ends.turns.tell_first_of(end);
            }
            self.build_control(control.as_ref(), arrival_offset, head);
            if let Some(end) = closed {
                self.close_went(end);
            }
            return Some(Body::Inline);
        }
        if self.credit.is_change() && self.credit.may_speak() {
            // Only when all credit has been spent is it known whether anything waits behind this
            // frame. A session that must ask for credit has asked by then, so this frame does not
            // ask.
            return self.next_credit_frame(false, arrival_offset, head);
        }
        if self.ends.changes_are_urgent() {
            self.build_control(None, arrival_offset, head);
            return Some(Body::Inline);
        }
        for _ in 0..self.ends.turns.ready.len() {
            let end = self.ends.turns.ready.pop_front()?;
            match self.serve(end, source, arrival_offset, head) {
                Served::Frame(body) => return Some(body),
                Served::OutOfCredit => self.ends.turns.ready.push_back(end),
                Served::Empty => self.ends.leaves_ready(end),
                Served::Closed(close) => {
                    self.build_control(Some(&close), arrival_offset, head);
                    self.close_went(end);
                    return Some(Body::Inline);
                }
            }
        }
        if self.outgoing.stage.is_live() && self.goodbye_is_next() {
            self.ends.queue_last_changes();
            if self.ends.turns.changes.len() > 1 {
                self.build_control(None, arrival_offset, head);
                return Some(Body::Inline);
            }
            // The goodbye carries the rest of the changes.
            let goodbye = self.outgoing.take_goodbye();
            self.build_control(Some(&goodbye), arrival_offset, head);
            return Some(Body::Inline);
        }
        // A channel that gets here cannot use the credit that it has.
        if !self.outgoing.sent_goodbye()
            && let Some(surrender) = self.credit.surrender()
        {
            self.build_control(Some(&surrender), arrival_offset, head);
            return Some(Body::Inline);
        }
        self.next_credit_frame(self.is_out_of_credit(), arrival_offset, head)
    }

    /// Builds the talk about credit that is due, if there is any and a buffer is free for it. Also
    /// tells that something `waits` for credit.
    fn next_credit_frame(
        &mut self,
        waits: bool,
        arrival_offset: usize,
        head: &mut Vec<u8>,
    ) -> Option<Body> {
        let talk = self.credit.next_talk(waits)?;
        let frame = FrameHeader::new(FrameKind::Control, 0, self.credit.talk_sequence());
        self.build_whole(frame, talk.as_ref(), arrival_offset, head);
        self.credit.talk_went(talk.as_ref());
        Some(Body::Inline)
    }

    /// Returns whether [`poll_transmit`](Self::poll_transmit) may have a frame: a cheap look for
    /// turns that have nothing to send.
    #[inline]
    #[must_use]
    pub fn is_due(&self) -> bool {
        !self.ends.turns.ready.is_empty() || self.outgoing.has_errands && self.knows_errands()
    }

    /// Returns whether something other than records is to go out.
    #[inline]
    fn knows_errands(&self) -> bool {
        !self.outgoing.is_suspended()
            && (self.outgoing.has_any()
                || !self.ends.turns.changes.is_empty()
                || self.ends.turns.has_offers_or_reads()
                || self.credit.has_errand())
    }

    /// Returns whether the goodbye is due and nothing is left to go ahead of it.
    fn goodbye_is_next(&self) -> bool {
        self.outgoing.goodbye_is_due()
            && self.ends.all_is_sent()
            && self.ends.turns.reads_under_way == 0
    }

    /// Returns whether sending waits for the peer's credit although there is something to send.
    #[must_use]
    pub fn is_out_of_credit(&self) -> bool {
        !self.ends.turns.ready.is_empty()
            || !self.outgoing.control.is_empty()
            || self.credit.allows_talk_only()
                && (self.ends.changes_are_urgent() || self.goodbye_is_next())
    }

    /// Takes records of a ready channel for one frame, if it has some and it is their turn and not
    /// that of a large message's chunk. The channel stays ready if it has more.
    #[inline]
    fn poll_records(&mut self, end: u32, source: &mut impl RecordSource) -> Option<FrameRecords> {
        let carriage = self.credit.carriage;
        let room = self.credit.room()?;
        let entry = self.ends.entries.get_mut(end)?;
        if !entry.takes_records(self.config.data_path) {
            return None;
        }
        let EndChannel::Sender(channel) = &mut entry.state else {
            return None;
        };
        let has_large = !channel.has_nothing_large();
        let may_write = self.ends.turns.may_write();
        let has_piece = has_large && channel.large.has_piece(may_write);
        if has_large && (channel.holds_announcement() || !channel.is_turn_of_records(has_piece)) {
            return None;
        }
        let batch = room.min(carriage.batch_bytes()).saturating_sub(HEAD_BYTES);
        let single = room.min(carriage.frame_bytes()).saturating_sub(HEAD_BYTES);
        let run = source.take_run(end, batch, single)?;
        let sequence = (channel.sent + 1) as u32;
        if has_large && let Some(position) = channel.names_dead_block(&run) {
            source.forget_block(end, position);
        }
        if channel.records_went(run.records, run.bytes, self.ends.turns.offers) {
            self.ends.turns.offers_of(end);
            self.outgoing.has_errands = true;
        }
        // An end with no records behind these leaves the ready queue. An end with a piece that may
        // not be written yet stays: it waits for that once it is served.
        let has_piece = has_large && channel.large.has_piece(true);
        channel.queued = has_piece || channel.closing.is_some() || source.has_records(end);
        if channel.queued {
            self.ends.turns.ready.push_back(end);
        }
        Some(FrameRecords {
            end,
            sequence,
            run,
            alignment: channel.alignment,
        })
    }

    /// Builds a frame of one ready channel.
    fn serve(
        &mut self,
        end: u32,
        source: &mut impl RecordSource,
        arrival_offset: usize,
        head: &mut Vec<u8>,
    ) -> Served {
        if let Some(records) = self.poll_records(end, source) {
            let wants = self.wants_behind_this();
            let extension = self.extension_of(false, wants, true);
            let credit = &mut self.credit;
            return Served::Frame(records.frame(credit, extension, arrival_offset, head));
        }
        let Some(entry) = self.ends.entries.get_mut(end) else {
            return Served::Empty;
        };
        let takes_records = entry.takes_records(self.config.data_path);
        let EndChannel::Sender(channel) = &mut entry.state else {
            return Served::Empty;
        };
        if takes_records {
            let longest = self.credit.carriage.chunk_bytes();
            let may_write = self.ends.turns.may_write();
            if let Some(next) = channel.unlanded() {
                if !may_write {
                    self.ends.turns.await_write(end);
                } else if let Some(body) = self.land(end, next, source, arrival_offset, head) {
                    self.ends.turns.ready.push_back(end);
                    return Served::Frame(body);
                }
            }
            let Some(channel) = self.ends.sender_mut(end) else {
                return Served::Empty;
            };
            if let Some(piece) = channel.large.next_piece(longest, may_write) {
                channel.chunk_went_last = true;
                self.ends.turns.ready.push_back(end);
                return Served::Frame(match piece {
                    Piece::Write(chunk, memory) => {
                        self.ends.turns.writes_under_way += 1;
                        Body::Write { end, chunk, memory }
                    }
                    Piece::Chunk(chunk) => {
                        let frame = FrameHeader::new(FrameKind::Chunk, end, chunk.sequence as u32);
                        self.build_head(frame, chunk.bytes, arrival_offset, head);
                        Body::Chunk { end, chunk }
                    }
                    Piece::Written { sequence } => {
                        let frame = FrameHeader::new(FrameKind::Written, end, sequence as u32);
                        self.build_whole(frame, None, arrival_offset, head);
                        Body::Inline
                    }
                });
            }
            if !channel.large.has_piece(may_write) && channel.large.has_piece(true) {
                self.ends.turns.await_write(end);
            }
            if source.has_records(end) {
                return Served::OutOfCredit;
            }
        }
        let Some(channel) = self.ends.sender_mut(end) else {
            return Served::Empty;
        };
        let is_due = |&(last, _): &(u64, _)| !takes_records || channel.is_drained(last);
        let Some((last, reason)) = channel.closing.filter(is_due) else {
            return Served::Empty;
        };
        channel.closing = None;
        channel.queued = false;
        Served::Closed(Control::Close {
            end,
            role: Role::Sender,
            reason,
            final_sequence: last.max(channel.sent),
        })
    }

    /// Has a message written into its block, together with its announcement if that is the next
    /// record, is short, and immediate data can announce it. Otherwise the announcement goes in a frame
    /// behind the write.
    fn land(
        &mut self,
        end: u32,
        next: Unannounced,
        source: &mut impl RecordSource,
        arrival_offset: usize,
        head: &mut Vec<u8>,
    ) -> Option<Body> {
        let can_tell = self.config.wires.immediate;
        let channel = self.ends.sender_mut(end)?;
        let (id, memory) = next.eager_block?;
        let is_next = next.sequence == channel.sent + 1;
        let mut word = None;
        if can_tell && is_next {
            if !channel.is_turn_of_records(channel.large.has_piece(true)) {
                return None;
            }
            // The announcement is taken alone, so that it has room before the message. One with a
            // long extension has none.
            if let Some(run) = source.take_run(end, 0, MAX_ALIGNMENT) {
                channel.records_went(run.records, run.bytes, false);
                let records = FrameRecords {
                    end,
                    sequence: next.sequence as u32,
                    run,
                    alignment: channel.alignment,
                };
                let wants = self.wants_behind_this();
                let extension = self.extension_of(false, wants, true);
                records.frame(&mut self.credit, extension, arrival_offset, head);
                word = Some(EagerBlockWord {
                    immediate: id.to_word(),
                    position: run.position,
                    bytes: run.bytes,
                });
            } else if !source.has_records(end) {
                return None;
            }
        }
        if word.is_none() {
            let unannounced = &mut self.ends.sender_mut(end)?.unannounced;
            unannounced.front_mut()?.is_written = true;
        }
        self.ends.turns.writes_under_way += 1;
        Some(Body::EagerBlock {
            end,
            chunk: next.whole(),
            memory,
            word,
        })
    }
}

/// The part of a ready channel that was sent.
enum Served {
    /// A frame; the channel stays ready if it has more.
    Frame(Body),
    Empty,
    OutOfCredit,
    Closed(Control),
}
