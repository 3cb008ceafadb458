//! A receiver's handle: finds the next record, holds its cell, hands it out in place.
//!
//! The path of a message is [`ReceiveHandle::poll`]: one acquire load of the record's header and
//! one relaxed store of its cell. After each quarter window the handle sums the cells that guards
//! have settled meanwhile.

mod frames;
mod handing_over;
mod large;
mod memory_wait;
mod regions;
mod source;
mod waiting;

pub(super) use self::waiting::NextMessage;

use std::sync::atomic::Ordering;
use std::{fmt, mem, ptr::NonNull, sync::Arc};

use ibex_base::fork;
use ibex_protocol::format::{
    channel_window::ChannelWindow, control::CloseReason, counters::Counters,
    message_extension::MessageExtension,
};
use ibex_ring::{
    Arm, CellBlock,
    parking::{Patience, Ticket},
};

use self::{frames::FoundRecord, memory_wait::MemoryWait, source::Source, waiting::HeaderSpin};
use super::{message::RawMessage, payload::Payload};
use crate::{
    endpoint::{
        channel_end::ChannelEnd,
        large_waits::LargeWaits,
        receive_end::{LargeMemory, ReceiveEnd},
        state::EndReason,
    },
    node::SessionShared,
    runtime::BriefPolls,
    session::{ChannelError, Counts, EndLabel, FailureReason, coarse_time::CoarseTime},
};

/// A receiver's handle, without the message type.
pub struct ReceiveHandle {
    pub(super) end: Arc<ReceiveEnd>,
    cells: &'static CellBlock,
    source: Source,

    // Progress.
    handed_out: u64,
    handed_out_bytes: u64,
    /// The last message for which a cell was free at the last check.
    last_cell: u64,
    /// The last time at which a wait for a message reported released memory.
    gave_back_at: CoarseTime,
    header_spin: HeaderSpin,
    /// The message at which to sum cells next.
    advance_at: u64,
    advance_at_bytes: u64,
    /// The message at which to run a turn next, where callers turn the engine.
    turn_at: u64,
    quarter_messages: u64,
    quarter_bytes: u64,

    // Waiting threads and tasks.
    arm: Arm,
    /// Ticket of a task's waker, if a task left one and has not taken it back.
    pub(super) ticket: Option<Ticket>,
    /// True if the waker that was last taken back had not been used.
    pub(super) has_left_unused: bool,
    /// A record of a task's polls before its waits.
    pub(super) brief_polls: BriefPolls,

    memory_wait: MemoryWait,
    /// The lower half of the last large message's number, and its length up to a limit.
    last_large: (u32, u32),
    large_waits: LargeWaits,
    /// The engine does not have the end any more.
    is_closed: bool,
}

/// Messages that are taken one after the other without a turn of the engine, at least.
const TURN_AFTER: u64 = 256;

/// Payload, memory and time of arrival of a large message.
type FoundLarge = (Payload, LargeMemory, u64);

impl ReceiveHandle {
    pub(crate) fn new(end: Arc<ReceiveEnd>) -> Self {
        Self {
            cells: end.cells.block(),
            source: Source::None,
            handed_out: 0,
            handed_out_bytes: 0,
            last_cell: 0,
            gave_back_at: CoarseTime::default(),
            header_spin: HeaderSpin::default(),
            advance_at: 0,
            advance_at_bytes: 0,
            turn_at: TURN_AFTER,
            quarter_messages: 1,
            quarter_bytes: 1,
            arm: Arm::new(),
            ticket: None,
            has_left_unused: false,
            brief_polls: BriefPolls::default(),
            memory_wait: MemoryWait::default(),
            last_large: (0, 0),
            large_waits: LargeWaits::default(),
            is_closed: false,
            end,
        }
    }

    /// The session that the channel belongs to.
    #[must_use]
    pub fn session(&self) -> &Arc<SessionShared> {
        &self.end.session
    }

    /// Says what this end is in errors, if it is not that of a channel of messages.
    #[must_use]
    pub fn labeled(self, label: Option<&'static EndLabel>) -> Self {
        self.end.set_label(label);
        self
    }

    /// The channel's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.end.name
    }

    /// The end, as its session numbers it.
    #[must_use]
    pub fn number(&self) -> u32 {
        self.end.id
    }

    /// Messages handed out, released and acknowledged so far.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.end.summed()
    }

    /// Returns the counters, including the messages that the engine has seen arrive.
    #[must_use]
    pub fn counts(&self) -> Counts {
        let counts = self.end.counts();
        let arrived = self.end.arrived.load(Ordering::Relaxed);
        Counts {
            sent: arrived.max(counts.received),
            ..counts
        }
    }

    // ---- The path of a message -------------------------------------------------------

    /// Returns the next message, if taking it needs no wait, no mapping and no report.
    ///
    /// This is inlined into the caller, so that message and record stay in registers. Passing them
    /// through memory costs 15 ns of stalled loads.
    #[inline(always)]
    pub(super) fn take(&mut self) -> Option<RawMessage> {
        if self.handed_out == self.last_cell {
            return None;
        }
        let (payload, length, size, time) = self.source.take_data()?;
        Some(self.hand_out(payload, length, size, time))
    }

    /// Returns whether [`take`](Self::take) would give a message.
    fn has_plain(&self) -> bool {
        self.handed_out != self.last_cell && self.source.has_data()
    }

    /// Returns the next message, if there is one. [`ChannelError::Ended`] is the orderly end.
    #[inline(always)]
    pub fn poll(&mut self) -> Result<Option<RawMessage>, ChannelError> {
        match self.take() {
            Some(message) => Ok(Some(message)),
            None => self.poll_slow(),
        }
    }

    /// Returns the record at the front after checking it. The record stays there.
    fn find(&self) -> Result<Option<FoundRecord>, ChannelError> {
        let found = self.source.find();
        found.map_err(|malformed| self.refused(&malformed.to_string()))
    }

    #[inline(always)]
    fn hand_out(
        &mut self,
        payload: NonNull<u8>,
        length: usize,
        size: usize,
        time: u64,
    ) -> RawMessage {
        let (sequence, units) = self.hold(size);
        // SAFETY: the bytes stay until the prefix passes this cell, which is held from here on. A
        // sender of the same user does not write into a published record, messages of other users
        // are copied (`payload`), and arrival memory belongs to this process.
        unsafe { RawMessage::new(payload, length, self.cells, sequence, units, time) }
    }

    /// Holds the cell of the next message, whose record has this size. Returns the message's number
    /// and the size in units of the cell.
    #[inline(always)]
    fn hold(&mut self, size: usize) -> (u64, u32) {
        self.handed_out += 1;
        self.handed_out_bytes += size as u64;
        let sequence = self.handed_out;
        self.cells.hold(sequence, size);
        // HAND, pairs with `ReceiveEnd::rest` and `ring_rests`.
        self.end.handed_out.store(sequence, Ordering::Release);
        if sequence >= self.advance_at || self.handed_out_bytes >= self.advance_at_bytes {
            self.advance();
        }
        (sequence, ibex_ring::cells::size_units(size))
    }

    #[cold]
    #[inline(never)]
    fn advance(&mut self) {
        self.advance_at = self.handed_out + self.quarter_messages;
        self.advance_at_bytes = self.handed_out_bytes + self.quarter_bytes;
        self.end.advance(false);
        self.end.path.stay_awake(&mut self.arm, self.handed_out);
        self.last_cell = self.end.prefix.last_cell(self.cells);
        if self.handed_out >= self.turn_at {
            // A sender that is always ahead, in memory, leaves no moment in which this thread waits.
            self.turn_at = self.handed_out + TURN_AFTER;
            self.end.session.requests.poll();
        }
        if let Some(times) = &self.end.times {
            // Each message comes here, so that its time is noted.
            self.advance_at = 0;
            self.end.check_released();
            times.taken(self.handed_out);
        }
    }

    /// Handles everything but a plain message: a large message, a full set of cells, a source that
    /// has just come, or the end.
    ///
    /// If memory for an arrival is lacking, that error is returned once. Later calls find nothing
    /// until memory is available, and try for it from time to time. Once no engine has the end, which
    /// would wake the handle for a try, each call tries and returns the error.
    #[inline(never)]
    fn poll_slow(&mut self) -> Result<Option<RawMessage>, ChannelError> {
        if self.end.times.is_some() {
            self.end.advance(false);
            self.end.check_released();
        }
        if self.memory_wait.is_too_soon(&self.end) {
            return Ok(None);
        }
        let found = self.poll_all();
        match (is_beyond_limit(&found), found) {
            (Some(lacks_room), Err(error)) => match self.memory_wait.begin(&self.end, lacks_room) {
                true => Err(error),
                false => Ok(None),
            },
            (_, found) => {
                if self.memory_wait.end() {
                    self.end.lacks_room.store(false, Ordering::Relaxed);
                }
                found
            }
        }
    }

    fn poll_all(&mut self) -> Result<Option<RawMessage>, ChannelError> {
        // Both facts are read before the last check. So the check misses no record that came before
        // them, and no ring that replaced another. `over` is read before `closed_at`, because the
        // end of the session often follows an orderly end at once.
        let over = self.end.state.is_over();
        let closed_at = self.end.theirs.get().and_then(|theirs| theirs.closed_at());
        self.take_source()?;
        if matches!(self.source, Source::None) {
            return self.end_of_stream();
        }
        let Some(found) = self.find()? else {
            if closed_at.is_some_and(|last| last <= self.handed_out) {
                return Err(ChannelError::Ended);
            }
            return if over {
                Err(self.end.error())
            } else {
                Ok(None)
            };
        };
        if !self.has_cell() {
            return Ok(None);
        }
        if found.kind.is_large() {
            return self.poll_large(found, over);
        }
        // SAFETY: the source has found this record.
        let payload = unsafe { self.payload(found.payload, found.length)? };
        let mut extension = 0;
        if found.kind.is_extended() {
            // SAFETY: a peer of this user does not write to a record that it has published, and the
            // payload of another peer's was copied.
            extension = self.check_extension(unsafe { payload.bytes() })?;
        }
        let mut message = self.hand_over(payload, found.size, found.time);
        if extension > 0 {
            message.take_extension_off(extension);
        }
        Ok(Some(message))
    }

    /// Returns whether the next call has a message or the end to return.
    pub(super) fn is_ready(&mut self) -> bool {
        if fork::is_child() || self.has_plain() {
            return true;
        }
        if self.memory_wait.is_on() && !self.has_memory_now() {
            return false;
        }
        // The order of reads is that of `poll_all`.
        let over = self.end.state.is_over();
        let closed_at = self.end.theirs.get().and_then(|theirs| theirs.closed_at());
        if self.take_source().is_err() {
            return true;
        }
        if matches!(self.source, Source::None) {
            return self.end_of_stream().is_err();
        }
        match self.find() {
            Ok(None) => over || closed_at.is_some_and(|last| last <= self.handed_out),
            Ok(Some(found)) => {
                self.has_cell() && (over || self.is_whole(&found, self.handed_out + 1))
            }
            Err(_) => true,
        }
    }

    /// Returns whether a cell is free for the next message.
    fn has_cell(&mut self) -> bool {
        if self.handed_out == self.last_cell {
            self.end.advance(true);
            self.last_cell = self.end.prefix.last_cell(self.cells);
        }
        self.handed_out < self.last_cell
    }

    fn end_of_stream(&self) -> Result<Option<RawMessage>, ChannelError> {
        // The order of reads is that of `poll_all`.
        let over = self.end.state.is_over();
        if self
            .end
            .theirs
            .get()
            .is_some_and(|theirs| theirs.closed_at() == Some(0))
        {
            return Err(ChannelError::Ended);
        }
        if over && !self.end.has_source.load(Ordering::Relaxed) {
            return Err(self.end.error());
        }
        Ok(None)
    }

    /// Returns the length of the extension at the end of these bytes, if it is one whose parts the ends
    /// agreed on.
    fn check_extension(&self, bytes: &[u8]) -> Result<usize, ChannelError> {
        let agreed = self.end.state.agreed();
        let may_trace = agreed.is_some_and(|agreed| agreed.is_traced);
        match MessageExtension::split(bytes) {
            Ok((_, extension)) if may_trace || extension.trace.is_none() => Ok(extension.bytes()),
            Ok(_) => Err(self.refused("a message has a trace context where none may be")),
            Err(malformed) => Err(self.refused(&malformed.to_string())),
        }
    }

    fn refused(&self, what: &str) -> ChannelError {
        self.end.session.requests.misbehaved(what);
        self.end.error()
    }

    pub(super) fn end(&self) -> &ReceiveEnd {
        &self.end
    }

    /// Fingerprint of the message type that both ends settled on, once they have.
    #[must_use]
    pub fn settled(&self) -> Option<[u8; 16]> {
        self.end.settled()
    }

    /// The window that both ends agreed on, once the peer has opened its end.
    #[must_use]
    pub fn window(&self) -> Option<ChannelWindow> {
        self.end.state.agreed().map(|agreed| agreed.window)
    }

    /// Returns whether the peer has opened its end.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.end.state.agreed().is_some()
    }

    /// Waits until the peer has opened its end.
    pub fn opened(&mut self, patience: Patience) -> Result<(), ChannelError> {
        let end = &*self.end;
        end.wait_open(patience, || end.counts())
    }

    /// Ends the channel, so that its sender gets an error. What has arrived is still handed out, and
    /// then the orderly end.
    pub fn close(&mut self) {
        // The number of an end that was closed may be that of another.
        if fork::is_child() || mem::replace(&mut self.is_closed, true) {
            return;
        }
        self.leave();
        self.end.advance(true);
        self.end.path.close_words();
        self.end
            .session
            .requests
            .close_receiver(&self.end, CloseReason::Dropped);
        // From here on the engine does not have the end, so nothing arrives there any more, and
        // nobody else ends it.
        self.end.state.end(EndReason::Closed);
    }

    /// Returns the error of calls in a fork of the process.
    #[cold]
    #[must_use]
    pub fn used_after_fork(&self) -> ChannelError {
        self.end.used_after_fork()
    }

    /// Makes the error for a message whose bytes are not valid.
    #[cold]
    #[must_use]
    pub fn corrupt(&self, message: &RawMessage, why: &str) -> ChannelError {
        self.end.failed(FailureReason::Corrupt {
            sequence: message.sequence(),
            why: why.to_owned(),
        })
    }
}

/// Returns, of a check that lacked memory, whether that is room within the node's limit.
fn is_beyond_limit<T>(outcome: &Result<T, ChannelError>) -> Option<bool> {
    match outcome.as_ref().err()?.reason()? {
        FailureReason::Memory(error) => Some(error.is_beyond_limit()),
        _ => None,
    }
}

impl fmt::Debug for ReceiveHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        ChannelEnd::fmt(&self.end, f)
    }
}

impl Drop for ReceiveHandle {
    fn drop(&mut self) {
        if fork::is_child() {
            // The end and the source are leaked, so that a fork of the process frees nothing that
            // they hold.
            mem::forget(self.end.clone());
            mem::forget(mem::replace(&mut self.source, Source::None));
            return;
        }
        self.close();
        let unread = mem::take(&mut *self.end.large());
        drop(unread);
        self.end.provided.close();
        if !self.end.prefix.is_settled(self.handed_out) {
            self.cells.leave_to_guards(self.end.clone());
        }
    }
}
