//! The heads of a session's frames: what every frame says beside its body.
#![forbid(unsafe_code)]

use std::mem;

use super::{Body, Run, Session, SessionCredit};
use crate::format::{
    control::Control,
    frame::{Extension, FRAME_ALIGNMENT, FrameHeader, FrameKind},
};

/// Records that go into a frame.
pub(super) struct FrameRecords {
    pub(super) end: u32,
    /// Low bits of the first one's sequence.
    pub(super) sequence: u32,
    pub(super) run: Run,
    pub(super) alignment: usize,
}

impl FrameRecords {
    /// Builds the frame that carries the records.
    #[inline]
    pub(super) fn frame(
        &self,
        credit: &mut SessionCredit,
        extension: Option<Extension>,
        arrival_offset: usize,
        head: &mut Vec<u8>,
    ) -> Body {
        let (run, alignment) = (self.run, self.alignment);
        let frame = FrameHeader::new(FrameKind::Records, self.end, self.sequence);
        credit.append_head(frame, extension, run.bytes, alignment, arrival_offset, head);
        Body::Records {
            end: self.end,
            position: run.position,
            bytes: run.bytes,
        }
    }
}

impl Session {
    pub(super) fn build_control(
        &mut self,
        control: Option<&Control>,
        arrival_offset: usize,
        head: &mut Vec<u8>,
    ) {
        let frame = FrameHeader::new(FrameKind::Control, 0, 0);
        self.build_whole(frame, control, arrival_offset, head);
    }

    /// Builds a whole frame, whose body is a control message or nothing.
    pub(super) fn build_whole(
        &mut self,
        frame: FrameHeader,
        control: Option<&Control>,
        arrival_offset: usize,
        head: &mut Vec<u8>,
    ) {
        let mut body = mem::take(&mut self.outgoing.control_body);
        body.clear();
        if let Some(control) = control {
            control.encode(&mut body);
        }
        let start = head.len();
        self.build_head(frame, body.len(), arrival_offset, head);
        head.extend_from_slice(&body);
        self.outgoing.control_body = body;
        let padded = (head.len() - start).next_multiple_of(FRAME_ALIGNMENT);
        head.resize(start + padded, 0);
    }

    /// Appends header, extension (if there is news) and padding, and charges the frame.
    pub(super) fn build_head(
        &mut self,
        frame: FrameHeader,
        bytes: usize,
        arrival_offset: usize,
        head: &mut Vec<u8>,
    ) {
        let mut extension = None;
        if !self.credit.carriage.is_chunk_of_stream(&frame) {
            let is_talk = self.credit.carriage.is_talk(&frame);
            let wants = frame.kind != FrameKind::Control && self.wants_behind_this();
            extension = self.extension_of(is_talk, wants, bytes > 0);
        }
        let alignment = FRAME_ALIGNMENT;
        self.credit
            .append_head(frame, extension, bytes, alignment, arrival_offset, head);
    }

    /// Builds the extension of a frame that is about to go.
    pub(super) fn extension_of(
        &mut self,
        is_talk: bool,
        wants: bool,
        has_body: bool,
    ) -> Option<Extension> {
        // Most frames have no extension, which this check finds quickly.
        let has_changes = !self.ends.turns.changes.is_empty();
        if !is_talk && !wants && !has_changes && !self.credit.has_extension() {
            return None;
        }
        let extension = Extension {
            counters: self
                .ends
                .take_changes(&mut self.eager_blocks, &mut self.events),
            ..self.credit.take_extension(is_talk, wants, has_body)
        };
        (!extension.is_empty()).then_some(extension)
    }

    /// Returns whether more is to be sent than there is credit for once a frame with data is out.
    /// If that frame reports it, no talk is needed.
    #[inline]
    pub(super) fn wants_behind_this(&self) -> bool {
        self.credit.is_last()
            && (!self.ends.turns.ready.is_empty() || !self.outgoing.control.is_empty())
    }
}
