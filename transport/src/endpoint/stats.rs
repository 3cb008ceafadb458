//! The counters of a channel's end, for monitoring.
#![forbid(unsafe_code)]

use std::{ops::AddAssign, sync::atomic::Ordering, time::Duration};

use ibex_protocol::format::{control::Role, record};

use super::{channel_end::ChannelEnd, receive_end::ReceiveEnd, send_end::SendEnd, state::EndState};
use crate::session::Counts;

/// A snapshot of one end of a channel.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct ChannelStats {
    // Identity.
    /// The channel's name.
    pub name: String,
    /// The end that this node has.
    pub end: Role,
    /// State of the end.
    pub state: ChannelState,
    /// Messages that may be unreleased: the agreed number, or this end's setting until both have
    /// agreed.
    pub window_messages: u64,
    /// Bytes that may be unreleased: the agreed number, or this end's setting until both have
    /// agreed.
    pub window_bytes: u64,

    // Progress.
    /// Messages sent. Exact at the sending end; at the receiving end, the messages whose arrival
    /// the engine has seen.
    pub sent: u64,
    /// Messages received. Exact at the receiving end, where they were handed out; at the sending
    /// end, a lower bound.
    pub received: u64,
    /// Messages whose guards were dropped, without a gap.
    pub released: u64,
    /// Messages that the application acknowledged, without a gap.
    pub acknowledged: u64,
    /// Bytes of the ring that released messages took, with their headers.
    pub released_bytes: u64,

    // Messages and senders that wait.
    /// Messages that are not released, of those sent (sending end) or handed out (receiving end).
    pub held: u64,
    /// Sequence of the first message that is not released.
    pub held_oldest: Option<u64>,
    /// Times that a sender found no room.
    pub stalls: u64,
    /// Total time for which the sender has waited, until now.
    pub stalled: Duration,

    // Messages with memory of their own.
    /// Messages with memory of their own that were sent (sending end) or handed out (receiving
    /// end).
    pub large_messages: u64,
    /// Bytes of those messages.
    pub large_bytes: u64,
    /// Bytes of those messages that were sent from a region, and were copied on the way out of it
    /// (sending end). Short messages are copied always and do not count. Calls, replies and items of
    /// streams count where they are too long for a frame and for a block that was granted ahead, and
    /// have no metadata.
    #[cfg_attr(feature = "serde", serde(default))]
    pub region_bytes_copied: u64,
}

/// The counts of several ends together, which only rise.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ChannelTotals {
    /// Messages that sending ends have sent.
    pub sent: u64,
    /// Messages that receiving ends have handed out.
    pub received: u64,
    /// Times that a sender found no room.
    pub stalls: u64,
    /// Total time for which senders have waited.
    pub stalled: Duration,
}

impl AddAssign<&ChannelStats> for ChannelTotals {
    fn add_assign(&mut self, end: &ChannelStats) {
        match end.end {
            Role::Sender => self.sent += end.sent,
            Role::Receiver => self.received += end.received,
        }
        self.stalls += end.stalls;
        self.stalled += end.stalled;
    }
}

impl AddAssign for ChannelTotals {
    fn add_assign(&mut self, other: Self) {
        self.sent += other.sent;
        self.received += other.received;
        self.stalls += other.stalls;
        self.stalled += other.stalled;
    }
}

/// The state of an end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub enum ChannelState {
    /// The peer has not opened its end.
    Pending,
    /// Both ends are open.
    Open,
    /// The end is over.
    Over,
}

impl ChannelState {
    fn of(state: &EndState) -> Self {
        if state.is_over() {
            ChannelState::Over
        } else if state.is_pending() {
            ChannelState::Pending
        } else {
            ChannelState::Open
        }
    }
}

impl ChannelStats {
    /// Returns the stats of an end that has handed on `handed_on` messages, and whose released
    /// messages end at `position`.
    fn of(end: &ChannelEnd, counts: Counts, handed_on: u64, position: u64) -> Self {
        let agreed = end.state.agreed();
        let window = agreed.map_or(end.spec.window, |agreed| agreed.window);
        // The alignment determines the position of the first record, which need not be 0.
        let start = agreed.map_or(0, |agreed| {
            record::first_position(agreed.alignment as usize)
        });
        let held = handed_on.saturating_sub(counts.released);
        Self {
            name: end.name.to_string(),
            end: end.role,
            state: ChannelState::of(&end.state),
            window_messages: window.messages,
            window_bytes: window.bytes,
            sent: counts.sent,
            received: counts.received,
            released: counts.released,
            acknowledged: counts.acknowledged,
            released_bytes: position.saturating_sub(start),
            held,
            held_oldest: (held > 0).then_some(counts.released + 1),
            stalls: 0,
            stalled: Duration::ZERO,
            large_messages: 0,
            large_bytes: 0,
            region_bytes_copied: 0,
        }
    }
}

impl SendEnd {
    /// Returns this end's counts so far.
    pub(crate) fn stats(&self) -> ChannelStats {
        let counts = self.counts();
        let position = self.theirs.get().map_or(0, |theirs| theirs.released().1);
        let stalls = self.stall.stalls();
        ChannelStats {
            stalls: stalls.count,
            stalled: stalls.total,
            large_messages: self.large_messages.get(),
            large_bytes: self.large_bytes.get(),
            region_bytes_copied: self.region_bytes_copied.get(),
            ..ChannelStats::of(self, counts, counts.sent, position)
        }
    }
}

impl ReceiveEnd {
    /// Returns this end's counts so far.
    pub(crate) fn stats(&self) -> ChannelStats {
        let counters = self.counters();
        let arrived = self.arrived.load(Ordering::Relaxed);
        let handed_out = self.handed_out.load(Ordering::Relaxed);
        let counts = Counts {
            sent: arrived.max(handed_out),
            ..counters.into()
        };
        ChannelStats {
            large_messages: self.large_messages.get(),
            large_bytes: self.large_bytes.get(),
            ..ChannelStats::of(self, counts, handed_out, counters.released_position)
        }
    }
}
