//! The credit of a session in both directions, and the talk about it.
//!
//! - No frame is built that costs more than is available, and none is taken in that costs more than
//!   was granted.
//! - Talk goes out only when a buffer of the peer's is free for it. Of what is to be reported, a recall
//!   comes first, then a wish, then grants and answers, which ride on any talk.
#![forbid(unsafe_code)]

use std::mem;

use super::{PeerMisbehaved, WireTerms};
use crate::{
    credit::{
        reserved_buffer::ReservedBuffer,
        session::{CreditGrant, CreditReport, CreditUse},
    },
    format::{
        control::Control,
        frame::{EXTENSION_BYTES, Extension, FrameHeader, HEADER_BYTES, TALK, pad_for},
    },
    framing::Carriage,
};

#[cfg(test)]
mod tests;

/// The credit of a session in both directions, and the talk about it.
#[derive(Debug)]
pub struct SessionCredit {
    pub(super) carriage: Carriage,
    /// The credit that this side may use.
    pub(super) using: CreditUse,
    /// The credit that the peer may use.
    pub(super) granting: CreditGrant,
    /// The buffers for talk.
    reserved: ReservedBuffer,
    /// The next frame says that it had to wait for credit.
    has_waited: bool,
}

impl SessionCredit {
    /// The credit at the beginning of new wires.
    pub(super) fn new(wires: WireTerms, dialed: bool) -> Self {
        Self {
            carriage: wires.carriage,
            using: CreditUse::new(wires.peer_credit),
            granting: CreditGrant::new(wires.our_credit),
            reserved: ReservedBuffer::new(dialed),
            has_waited: false,
        }
    }

    // ---- For the broker --------------------------------------------------------------

    /// Takes the changes for the broker since the last time. Take it after frames were handled or
    /// polled, and after a recall.
    #[must_use]
    pub fn take_report(&mut self) -> CreditReport {
        self.granting.take_report()
    }

    /// Returns how much credit the peer has used in all: while it sends, this grows.
    #[must_use]
    pub fn used(&self) -> u64 {
        self.granting.used()
    }

    /// Returns the credit that the peer may keep in flight at a time.
    #[must_use]
    pub fn lent(&self) -> u64 {
        self.granting.lent()
    }

    // ---- Sending ---------------------------------------------------------------------

    /// Returns whether no frame but talk can go out.
    pub(super) fn allows_talk_only(&self) -> bool {
        self.carriage != Carriage::Stream && self.using.available() == 0
    }

    /// Returns how long a frame of records may be, if one may go out.
    #[inline]
    pub(super) fn room(&self) -> Option<usize> {
        match (self.carriage, self.using.available()) {
            (Carriage::Stream, available) => Some(available as usize),
            (Carriage::Buffers { .. }, 0) => None,
            (Carriage::Buffers { bytes }, _) => Some(bytes),
        }
    }

    /// Returns whether a frame of data that goes now takes the last credit, and has to ask for more
    /// if something waits behind it.
    #[inline]
    pub(super) fn is_last(&self) -> bool {
        self.carriage != Carriage::Stream && self.using.is_last(self.carriage.control_cost())
    }

    /// Gives back recalled credit, as there is nothing to send.
    pub(super) fn surrender(&mut self) -> Option<Control> {
        let credit = self.using.surrender(self.carriage.control_cost())?;
        Some(Control::Surrender { credit })
    }

    /// Appends header, extension and padding of a frame, and charges the frame.
    #[inline]
    pub(super) fn append_head(
        &mut self,
        frame: FrameHeader,
        extension: Option<Extension>,
        body_bytes: usize,
        alignment: usize,
        arrival_offset: usize,
        head: &mut Vec<u8>,
    ) {
        let has_extension = extension.is_some();
        let pad = pad_for(arrival_offset, has_extension, alignment);
        let extension_bytes = if has_extension { EXTENSION_BYTES } else { 0 };
        let length = HEADER_BYTES + extension_bytes + usize::from(pad) + body_bytes;
        let frame = FrameHeader {
            length: length as u32,
            extension: has_extension,
            pad,
            ..frame
        };
        self.using.charge(self.carriage.cost(&frame));
        frame.append_to(extension, head);
    }

    // ---- Talk ------------------------------------------------------------------------

    /// Returns whether credit is to be granted or recalled.
    #[inline]
    pub(super) fn is_change(&self) -> bool {
        self.granting.recall_due().is_some() || self.granting.owed().is_some()
    }

    /// Returns whether a frame is to go out for credit alone.
    #[inline]
    pub(super) fn has_errand(&self) -> bool {
        self.is_change() || self.using.is_recalled() || self.reserved.answer_is_due()
    }

    /// Returns whether talk about credit has a buffer, if it needs one.
    pub(super) fn may_speak(&self) -> bool {
        self.carriage == Carriage::Stream || self.reserved.may_speak()
    }

    /// Returns the talk that is due, if there is any and a buffer is free for it: a message, or
    /// nothing but an extension. Also notes that something `waits` for credit.
    pub(super) fn next_talk(&mut self, waits: bool) -> Option<Option<Control>> {
        let may_speak = self.may_speak();
        self.has_waited |= waits && self.using.is_lent();
        if may_speak && let Some((credit, must_ask)) = self.granting.recall_due() {
            return Some(Some(Control::Recall { credit, must_ask }));
        }
        if may_speak && waits && self.using.should_ask() {
            let granted = self.using.granted();
            return Some(Some(Control::Want { granted }));
        }
        let is_due = may_speak && self.granting.owed().is_some() || self.reserved.answer_is_due();
        is_due.then_some(None)
    }

    /// Notes that [talk](Self::next_talk) is in a frame.
    pub(super) fn talk_went(&mut self, talk: Option<&Control>) {
        match talk {
            Some(Control::Recall { .. }) => self.granting.recall_notified(),
            Some(Control::Want { .. }) => self.using.asked(),
            _ => {}
        }
    }

    /// The sequence of a control frame that takes a reserved buffer, if frames take buffers.
    pub(super) fn talk_sequence(&self) -> u32 {
        match self.carriage {
            Carriage::Stream => 0,
            Carriage::Buffers { .. } => TALK,
        }
    }

    // ---- Extensions ------------------------------------------------------------------

    /// Returns whether the next frame carries something that would not go by itself.
    pub(super) fn has_riders(&self) -> bool {
        self.has_waited || self.reserved.answer().is_some()
    }

    /// Returns whether there may be changes for the next frame's extension.
    #[inline]
    pub(super) fn has_extension(&self) -> bool {
        self.has_riders() || self.granting.owed().is_some() || self.reserved.answer_is_due()
    }

    /// Takes the changes that ride on the next frame, of any kind. With `wants`, the frame asks for
    /// more credit. A frame that is talk `has_body` or is a mere answer.
    pub(super) fn take_extension(
        &mut self,
        is_talk: bool,
        wants: bool,
        has_body: bool,
    ) -> Extension {
        // A mere answer has a reserved buffer even when changes would have none.
        let may_grant = !is_talk || self.reserved.may_speak();
        let credit = self.granting.owed().filter(|_| may_grant);
        if let Some(credit) = credit {
            self.granting.notified(credit);
        }
        let answer = self.reserved.answer();
        self.reserved.has_answered();
        if wants {
            self.using.asked();
        }
        if is_talk {
            self.reserved.speak(credit.is_some() || has_body);
        }
        Extension {
            counters: None,
            credit,
            answer,
            waited: mem::take(&mut self.has_waited),
            wants,
        }
    }

    // ---- Receiving -------------------------------------------------------------------

    /// Charges a frame that arrived to what the peer was granted.
    #[inline]
    pub(super) fn take_cost(&mut self, header: &FrameHeader) -> Result<(), PeerMisbehaved> {
        if let Carriage::Buffers { bytes } = self.carriage
            && header.padded_length() > bytes
        {
            return Err(PeerMisbehaved::LongFrame { limit: bytes });
        }
        Ok(self.granting.arrived(self.carriage.cost(header))?)
    }

    /// Takes in that a credit report came: changes, or a mere answer.
    pub(super) fn take_talk(&mut self, is_change: bool) -> Result<(), PeerMisbehaved> {
        Ok(self.reserved.take(is_change)?)
    }

    /// Takes in what a frame's extension says of credit.
    pub(super) fn handle_extension(&mut self, extension: &Extension) -> Result<(), PeerMisbehaved> {
        if let Some(credit) = extension.credit {
            self.using.grant(credit)?;
        }
        if let Some(answer) = extension.answer {
            self.reserved.hear_answer(answer)?;
        }
        if extension.waited {
            self.granting.was_short();
        }
        if extension.wants {
            self.granting.used_up();
        }
        Ok(())
    }

    /// Takes in that the peer waits for credit, and knew of `granted` then.
    pub(super) fn handle_want(&mut self, granted: u64) -> Result<(), PeerMisbehaved> {
        match self.granting.is_wanted(granted) {
            true => Ok(()),
            false => Err(PeerMisbehaved::WantsUngranted { granted }),
        }
    }
}
