//! The sending half of a session: the choice of the next frame, and the news that ride on it.
#![forbid(unsafe_code)]

use std::mem;

use super::{Body, End, EndState, Event, Goodbye, LandingWord, RecordSource, Run, Session};
use crate::{
    format::{
        control::{Control, Role},
        frame::{
            EXTENSION_BYTES, Extension, FRAME_ALIGNMENT, FrameHeader, FrameKind, HEAD_BYTES,
            HEADER_BYTES, TALK, pad_for,
        },
        record::MAX_ALIGNMENT,
    },
    framing::Carriage,
    session::send_channel::Unannounced,
    transfer::rendezvous::{Chunk, Piece, WRITES_UNDER_WAY},
};

impl Session {
    /// Builds the next frame: its head (header, extension, padding, control message) is
    /// appended to `head`, the returned body follows it, then zeros up to a multiple of 8.
    ///
    /// `landing` is where the frame begins in the peer's arrival memory, modulo 64. Drain it
    /// whenever a handle published, a frame arrived or a wish was made.
    #[inline]
    #[must_use]
    pub fn poll_transmit(
        &mut self,
        source: &mut impl RecordSource,
        landing: usize,
        head: &mut Vec<u8>,
    ) -> Option<Body> {
        if !self.has_errands {
            let end = self.ready.pop_front()?;
            if let Some(records) = self.poll_records(end, source) {
                return Some(self.frame_records(&records, None, landing, head));
            }
            self.ready.push_front(end);
        }
        let body = self.poll_anything(source, landing, head);
        if body.is_none() {
            self.has_errands = self.knows_errands() || self.has_riders() || !self.stage.is_live();
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
        landing: usize,
    ) -> Option<FrameHeader> {
        if self.has_errands || !self.ready.is_empty() {
            return None;
        }
        let entry = self.ends.get_mut(end)?;
        if !entry.takes_records(self.config.data_path) || entry.closed_here {
            return None;
        }
        let EndState::Sender(channel) = &mut entry.state else {
            return None;
        };
        let pad = pad_for(landing, false, channel.alignment);
        let header = FrameHeader {
            length: (HEADER_BYTES + usize::from(pad) + bytes) as u32,
            channel: end,
            kind: FrameKind::Records,
            extension: false,
            pad,
            sequence: (channel.sent + 1) as u32,
        };
        let cost = self.config.carriage.cost(&header);
        if !channel.has_nothing_large() || cost > self.credit_use.available() {
            return None;
        }
        self.credit_use.charge(cost);
        channel.lone_record_went(bytes);
        Some(header)
    }

    /// Builds the next frame, of any kind.
    #[inline(never)]
    fn poll_anything(
        &mut self,
        source: &mut impl RecordSource,
        landing: usize,
        head: &mut Vec<u8>,
    ) -> Option<Body> {
        if self.is_suspended() {
            return None;
        }
        if self.needs_credit_for_anything() {
            return self.talk_of_credit(self.is_out_of_credit(), landing, head);
        }
        if let Some(control) = self.control.pop_front() {
            if let Control::Close { end, .. } = control {
                self.tell_first_of(end);
            }
            self.build_control(Some(&control), landing, head);
            if let Control::Close { end, .. } = control {
                self.close_went(end);
            }
            return Some(Body::Inline);
        }
        if self.queries > 0 {
            self.queries -= 1;
            self.build_control(Some(&Control::Query), landing, head);
            return Some(Body::Inline);
        }
        if self.answers > 0 {
            self.answers -= 1;
            self.build_control(None, landing, head);
            return Some(Body::Inline);
        }
        if self.credit_is_news() && self.may_speak() {
            // Only when all credit has been spent is it known whether anything waits behind this
            // frame. A session that must ask for credit has asked by then, so this frame does not
            // ask.
            return self.talk_of_credit(false, landing, head);
        }
        if self.news_are_urgent() {
            self.build_control(None, landing, head);
            return Some(Body::Inline);
        }
        for _ in 0..self.ready.len() {
            let end = self.ready.pop_front()?;
            match self.serve(end, source, landing, head) {
                Served::Frame(body) => return Some(body),
                Served::OutOfCredit => {
                    self.ready.push_back(end);
                }
                Served::Empty => self.leaves_ready(end),
                Served::Closed(close) => {
                    self.build_control(Some(&close), landing, head);
                    self.close_went(end);
                    return Some(Body::Inline);
                }
            }
        }
        if self.stage.is_live()
            && self.goodbye == Goodbye::Due
            && self.ready.is_empty()
            && self.all_senders_ended()
        {
            self.queue_last_news();
            if self.news.len() > 1 {
                self.build_control(None, landing, head);
                return Some(Body::Inline);
            }
            // The goodbye carries the rest of the news.
            self.goodbye = Goodbye::Said;
            let reason = self.reason.clone();
            self.build_control(Some(&Control::Goodbye { reason }), landing, head);
            return Some(Body::Inline);
        }
        // A channel that gets here cannot use the credit that it has.
        if self.goodbye != Goodbye::Said
            && let Some(credit) = self
                .credit_use
                .surrender(self.config.carriage.control_cost())
        {
            self.build_control(Some(&Control::Surrender { credit }), landing, head);
            return Some(Body::Inline);
        }
        self.talk_of_credit(self.is_out_of_credit(), landing, head)
    }

    /// Builds the talk about credit that is due, if there is any and a buffer is free for it. Also
    /// tells that something `waits` for credit.
    fn talk_of_credit(&mut self, waits: bool, landing: usize, head: &mut Vec<u8>) -> Option<Body> {
        let may_speak = self.may_speak();
        self.has_waited |= waits && self.credit_use.is_lent();
        if may_speak && let Some((credit, must_ask)) = self.credit_grant.recall_due() {
            self.build_talk(Some(&Control::Recall { credit, must_ask }), landing, head);
            self.credit_grant.recall_told();
        } else if may_speak && waits && self.credit_use.should_ask() {
            let granted = self.credit_use.granted();
            self.build_talk(Some(&Control::Want { granted }), landing, head);
            self.credit_use.asked();
        } else if may_speak && self.credit_grant.owed().is_some() || self.reserved.answer_is_due() {
            self.build_talk(None, landing, head);
        } else {
            return None;
        }
        Some(Body::Inline)
    }

    #[inline]
    pub(super) fn credit_is_news(&self) -> bool {
        self.credit_grant.recall_due().is_some() || self.credit_grant.owed().is_some()
    }

    /// Returns whether talk about credit has a buffer, if it needs one.
    fn may_speak(&self) -> bool {
        self.config.carriage == Carriage::Stream || self.reserved.may_speak()
    }

    /// Returns whether [`poll_transmit`](Self::poll_transmit) may have a frame: a cheap look for
    /// turns that have nothing to send.
    #[inline]
    #[must_use]
    pub fn is_due(&self) -> bool {
        !self.ready.is_empty() || self.has_errands && self.knows_errands()
    }

    /// Returns whether something other than records is to go out.
    #[inline]
    fn knows_errands(&self) -> bool {
        if self.is_suspended() {
            return false;
        }
        !self.control.is_empty()
            || self.queries > 0
            || self.answers > 0
            || !self.news.is_empty()
            || self.goodbye == Goodbye::Due
            || self.credit_is_news()
            || self.credit_use.is_recalled()
            || self.reserved.answer_is_due()
    }

    /// Returns whether the next frame carries something that would not go by itself.
    fn has_riders(&self) -> bool {
        self.has_waited || self.reserved.answer().is_some()
    }

    pub(super) fn leaves_ready(&mut self, end: u32) {
        if let Some(channel) = self.sender_mut(end) {
            channel.queued = false;
        }
    }

    /// Returns whether sending waits for the peer's credit although there is something to send.
    #[must_use]
    pub fn is_out_of_credit(&self) -> bool {
        let has_goodbye =
            || self.goodbye == Goodbye::Due && self.ready.is_empty() && self.all_senders_ended();
        !self.ready.is_empty()
            || !self.control.is_empty()
            || self.needs_credit_for_anything() && (self.news_are_urgent() || has_goodbye())
    }

    fn needs_credit_for_anything(&self) -> bool {
        self.config.carriage != Carriage::Stream && self.credit_use.available() == 0
    }

    /// Takes records of a ready channel for one frame, if it has some and it is their turn and not
    /// that of a large message's chunk. The channel stays ready if it has more.
    #[inline]
    fn poll_records(&mut self, end: u32, source: &mut impl RecordSource) -> Option<Records> {
        let carriage = self.config.carriage;
        let room = match (carriage, self.credit_use.available()) {
            (Carriage::Stream, available) => available as usize,
            (Carriage::Buffers { .. }, 0) => return None,
            (Carriage::Buffers { bytes }, _) => bytes,
        };
        let entry = self.ends.get_mut(end)?;
        if !entry.takes_records(self.config.data_path) {
            return None;
        }
        let EndState::Sender(channel) = &mut entry.state else {
            return None;
        };
        let has_large = !channel.has_nothing_large();
        let may_write = self.writes_under_way < WRITES_UNDER_WAY;
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
        channel.records_went(run.records, run.bytes);
        // An end with no records behind these leaves the ready queue. An end with a piece that may
        // not be written yet stays: it waits for that once it is served.
        let has_piece = has_large && channel.large.has_piece(true);
        channel.queued = has_piece || channel.closing.is_some() || source.has_records(end);
        if channel.queued {
            self.ready.push_back(end);
        }
        Some(Records {
            end,
            sequence,
            run,
            alignment: channel.alignment,
        })
    }

    /// The frame that carries records.
    #[inline]
    fn frame_records(
        &mut self,
        records: &Records,
        extension: Option<Extension>,
        landing: usize,
        head: &mut Vec<u8>,
    ) -> Body {
        let &Records {
            end,
            sequence,
            run,
            alignment,
        } = records;
        let frame = FrameHeader {
            length: 0,
            channel: end,
            kind: FrameKind::Records,
            extension: false,
            pad: 0,
            sequence,
        };
        self.append_head(frame, extension, run.bytes, alignment, landing, head);
        Body::Records {
            end,
            position: run.position,
            bytes: run.bytes,
        }
    }

    /// Builds a frame of one ready channel.
    fn serve(
        &mut self,
        end: u32,
        source: &mut impl RecordSource,
        landing: usize,
        head: &mut Vec<u8>,
    ) -> Served {
        if let Some(records) = self.poll_records(end, source) {
            let wants = self.wants_behind_this();
            let extension = self.extension_of(false, wants, true);
            return Served::Frame(self.frame_records(&records, extension, landing, head));
        }
        let Some(entry) = self.ends.get_mut(end) else {
            return Served::Empty;
        };
        let takes_records = entry.takes_records(self.config.data_path);
        let EndState::Sender(channel) = &mut entry.state else {
            return Served::Empty;
        };
        if takes_records {
            let longest = self.config.carriage.chunk_bytes();
            let may_write = self.writes_under_way < WRITES_UNDER_WAY;
            if let Some(next) = channel.unlanded() {
                if !may_write {
                    self.awaits_write(end);
                } else if let Some(body) = self.land(end, next, source, landing, head) {
                    self.ready.push_back(end);
                    return Served::Frame(body);
                }
            }
            let Some(channel) = self.sender_mut(end) else {
                return Served::Empty;
            };
            if let Some(piece) = channel.large.next_piece(longest, may_write) {
                channel.chunk_went_last = true;
                self.ready.push_back(end);
                return Served::Frame(self.frame_piece(end, piece, landing, head));
            }
            if !channel.large.has_piece(may_write) && channel.large.has_piece(true) {
                self.awaits_write(end);
            }
            if source.has_records(end) {
                return Served::OutOfCredit;
            }
        }
        let Some(channel) = self.sender_mut(end) else {
            return Served::Empty;
        };
        match channel.closing {
            Some((final_sequence, reason))
                if !takes_records || channel.is_drained(final_sequence) =>
            {
                channel.closing = None;
                channel.queued = false;
                let role = Role::Sender;
                let final_sequence = final_sequence.max(channel.sent);
                Served::Closed(Control::Close {
                    end,
                    role,
                    reason,
                    final_sequence,
                })
            }
            _ => Served::Empty,
        }
    }

    /// The end has a turn when a write is there.
    fn awaits_write(&mut self, end: u32) {
        if !self.awaiting_writes.contains(&end) {
            self.awaiting_writes.push(end);
        }
    }

    /// Has a message written into its block, together with its announcement if that is the next
    /// record and immediate data can announce it.
    fn land(
        &mut self,
        end: u32,
        next: Unannounced,
        source: &mut impl RecordSource,
        landing: usize,
        head: &mut Vec<u8>,
    ) -> Option<Body> {
        let can_tell = self.config.immediate;
        let channel = self.sender_mut(end)?;
        let (id, memory) = next.landing?;
        let is_next = next.sequence == channel.sent + 1;
        let chunk = Chunk {
            sequence: next.sequence,
            offset: 0,
            bytes: next.length as usize,
        };
        let mut word = None;
        if can_tell && is_next {
            if !channel.is_turn_of_records(channel.large.has_piece(true)) {
                return None;
            }
            // The announcement is taken alone, so that it has room before the message.
            let run = source.take_run(end, 0, MAX_ALIGNMENT)?;
            channel.records_went(run.records, run.bytes);
            let records = Records {
                end,
                sequence: next.sequence as u32,
                run,
                alignment: channel.alignment,
            };
            let wants = self.wants_behind_this();
            let extension = self.extension_of(false, wants, true);
            self.frame_records(&records, extension, landing, head);
            word = Some(LandingWord {
                immediate: id.to_word(),
                position: run.position,
                bytes: run.bytes,
            });
        } else if let Some(unannounced) = channel.unannounced.front_mut() {
            unannounced.is_written = true;
        }
        self.writes_under_way += 1;
        Some(Body::Landing {
            end,
            chunk,
            memory,
            word,
        })
    }

    /// Builds the frame or write that carries a piece of a large message.
    fn frame_piece(&mut self, end: u32, piece: Piece, landing: usize, head: &mut Vec<u8>) -> Body {
        let (kind, sequence, body) = match piece {
            Piece::Write(chunk, memory) => {
                self.writes_under_way += 1;
                return Body::Write { end, chunk, memory };
            }
            Piece::Chunk(chunk) => {
                let body = Body::Chunk { end, chunk };
                (FrameKind::Chunk, chunk.sequence, body)
            }
            Piece::Written { sequence } => (FrameKind::Written, sequence, Body::Inline),
        };
        let frame = FrameHeader {
            length: 0,
            channel: end,
            kind,
            extension: false,
            pad: 0,
            sequence: sequence as u32,
        };
        let start = head.len();
        self.build_head(frame, body.bytes(), 8, landing, head);
        if body == Body::Inline {
            // The whole frame, which ends where a multiple of 8 does.
            let padded = (head.len() - start).next_multiple_of(FRAME_ALIGNMENT);
            head.resize(start + padded, 0);
        }
        body
    }

    fn build_control(&mut self, control: Option<&Control>, landing: usize, head: &mut Vec<u8>) {
        self.build_session_frame(control, 0, landing, head);
    }

    /// Builds a control frame that takes a reserved buffer, if frames take buffers.
    fn build_talk(&mut self, control: Option<&Control>, landing: usize, head: &mut Vec<u8>) {
        let sequence = match self.config.carriage {
            Carriage::Stream => 0,
            Carriage::Buffers { .. } => TALK,
        };
        self.build_session_frame(control, sequence, landing, head);
    }

    fn build_session_frame(
        &mut self,
        control: Option<&Control>,
        sequence: u32,
        landing: usize,
        head: &mut Vec<u8>,
    ) {
        let frame = FrameHeader {
            length: 0,
            channel: 0,
            kind: FrameKind::Control,
            extension: false,
            pad: 0,
            sequence,
        };
        self.control_body.clear();
        if let Some(control) = control {
            control.encode(&mut self.control_body);
        }
        let start = head.len();
        self.build_head(frame, self.control_body.len(), 8, landing, head);
        head.extend_from_slice(&self.control_body);
        let padded = (head.len() - start).next_multiple_of(FRAME_ALIGNMENT);
        head.resize(start + padded, 0);
    }

    /// Appends header, extension (if there is news) and padding, and charges the frame.
    fn build_head(
        &mut self,
        frame: FrameHeader,
        body_bytes: usize,
        alignment: usize,
        landing: usize,
        head: &mut Vec<u8>,
    ) {
        if self.config.carriage.is_chunk_of_stream(&frame) {
            return self.append_head(frame, None, body_bytes, alignment, landing, head);
        }
        let is_talk = self.config.carriage.is_talk(&frame);
        let wants = frame.kind != FrameKind::Control && self.wants_behind_this();
        let extension = self.extension_of(is_talk, wants, body_bytes > 0);
        self.append_head(frame, extension, body_bytes, alignment, landing, head);
    }

    /// Builds the extension of a frame that is about to go.
    fn extension_of(&mut self, is_talk: bool, wants: bool, has_body: bool) -> Option<Extension> {
        // Most frames have no extension, which this check finds quickly.
        if !is_talk && !wants && !self.has_extension() {
            return None;
        }
        // A mere answer has a reserved buffer even when news would have none.
        let mut extension = self.take_extension(!is_talk || self.reserved.may_speak());
        if wants {
            extension.wants = true;
            self.credit_use.asked();
        }
        if is_talk {
            let is_news = extension.credit.is_some() || has_body;
            self.reserved.speak(is_news);
        }
        (!extension.is_empty()).then_some(extension)
    }

    #[inline]
    fn append_head(
        &mut self,
        frame: FrameHeader,
        extension: Option<Extension>,
        body_bytes: usize,
        alignment: usize,
        landing: usize,
        head: &mut Vec<u8>,
    ) {
        let has_extension = extension.is_some();
        let pad = pad_for(landing, has_extension, alignment);
        let extension_bytes = if has_extension { EXTENSION_BYTES } else { 0 };
        let length = HEADER_BYTES + extension_bytes + usize::from(pad) + body_bytes;
        let frame = FrameHeader {
            length: length as u32,
            extension: has_extension,
            pad,
            ..frame
        };
        self.credit_use.charge(self.config.carriage.cost(&frame));
        frame.append_to(extension, head);
    }

    /// Returns whether more is to be sent than there is credit for once a frame with data is out.
    /// If that frame reports it, no talk is needed.
    #[inline]
    fn wants_behind_this(&self) -> bool {
        self.config.carriage != Carriage::Stream
            && self.credit_use.is_last(self.config.carriage.control_cost())
            && (!self.ready.is_empty() || !self.control.is_empty())
    }

    /// Returns whether there may be news for the next frame's extension.
    #[inline]
    fn has_extension(&self) -> bool {
        self.has_riders()
            || !self.news.is_empty()
            || self.credit_grant.owed().is_some()
            || self.reserved.answer_is_due()
    }

    /// Takes the news that ride on the next frame, of any kind.
    fn take_extension(&mut self, may_grant: bool) -> Extension {
        let credit = self.credit_grant.owed().filter(|_| may_grant);
        if let Some(credit) = credit {
            self.credit_grant.told(credit);
        }
        let answer = self.reserved.answer();
        self.reserved.has_answered();
        let mut counters = None;
        while let Some(end) = self.news.pop_front() {
            let Some(End {
                state: EndState::Receiver(Some(channel)),
                peer: Some(peer),
                ..
            }) = self.ends.get_mut(end)
            else {
                continue;
            };
            channel.queued = false;
            if channel.has_news() {
                let told = channel.tell();
                self.landings.told(end, told.released);
                counters = Some((*peer, told));
                self.events.push_back(Event::Told {
                    end,
                    counters: told,
                });
                break;
            }
        }
        Extension {
            counters,
            credit,
            answer,
            waited: mem::take(&mut self.has_waited),
            wants: false,
        }
    }

    fn news_are_urgent(&self) -> bool {
        self.news
            .front()
            .is_some_and(|&end| match self.ends.get(end) {
                Some(End {
                    state: EndState::Receiver(Some(channel)),
                    ..
                }) => channel.news_are_urgent(),
                _ => false,
            })
    }

    /// Lets the next frame carry the news of an end, if there are any.
    fn tell_first_of(&mut self, end: u32) {
        if let Some(at) = self.news.iter().position(|&other| other == end) {
            self.news.remove(at);
            self.news.push_front(end);
        }
    }

    pub(super) fn queue_news(&mut self, end: u32) {
        let Some(channel) = self.receiver_mut(end) else {
            return;
        };
        let urgent = channel.news_are_urgent();
        let queued = channel.queued;
        if !queued && channel.has_news() {
            channel.queued = true;
            if urgent {
                self.news.push_front(end);
            } else {
                self.news.push_back(end);
            }
        } else if queued && urgent {
            // Urgent news stand at the front, where `news_are_urgent` looks.
            self.tell_first_of(end);
        }
        self.has_errands = true;
    }

    /// Queues the news that no frame would carry ahead of the goodbye: a sender that closes at the
    /// same time learns of arrivals in no other way.
    fn queue_last_news(&mut self) {
        for (end, entry) in self.ends.iter_mut() {
            if let EndState::Receiver(Some(channel)) = &mut entry.state
                && entry.peer.is_some()
                && channel.has_news()
                && !mem::replace(&mut channel.queued, true)
            {
                self.news.push_back(end);
            }
        }
    }

    fn all_senders_ended(&self) -> bool {
        let has_ended = |end: &End| end.close_is_out || end.closed_there;
        self.ends
            .values()
            .all(|end| end.state.role() == Role::Receiver || has_ended(end))
    }
}

/// Records that go into a frame.
struct Records {
    end: u32,
    /// Low bits of the first one's sequence.
    sequence: u32,
    run: Run,
    alignment: usize,
}

/// The part of a ready channel that was sent.
enum Served {
    /// A frame; the channel stays ready if it has more.
    Frame(Body),
    Empty,
    OutOfCredit,
    Closed(Control),
}
