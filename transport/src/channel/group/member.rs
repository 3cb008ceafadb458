//! A member of a group, and the record that the group keeps of a former member.

use std::{
    fmt,
    sync::Arc,
    time::{Duration, Instant},
};

use ibex_base::fork::UsedAfterFork;
use ibex_ring::parking::Patience;

use super::{GroupFailure, WhenFull};
use crate::{
    channel::{NotOpened, SchemaMismatch, SendError, SendFailure, SendHandle},
    endpoint::channel_end::Unusable,
    session::{Counts, Disconnected, Suspension},
};

/// A sending end in a group.
#[derive(Debug)]
pub(super) struct Member<P> {
    pub(super) number: u64,
    pub(super) peer: P,
    pub(super) handle: SendHandle,
    /// The group's last message before the member joined (rule 3).
    pub(super) joined: u64,
    /// The member's own last message before it joined.
    own_joined: u64,

    // The message that is being sent.
    /// True while the message is encoded in the member's place.
    pub(super) has_message: bool,

    // Reasons for which a sending call waits for the member.
    /// True if the member had no place for a message at the last look.
    pub(super) is_lacking: bool,
    /// The time at which a sending call first found the member full.
    full_since: Option<Instant>,
}

/// A member's progress. Sequences are the group's. Before the member's first message, all of them
/// equal the sequence at which it joined.
#[derive(Clone, Copy, Debug)]
pub struct MemberCounts<P> {
    /// The member's number.
    pub number: u64,
    /// The member's peer.
    pub peer: P,
    /// The group's last message before the member joined.
    pub joined: u64,
    /// The last messages that were sent to the member, received, released and acknowledged.
    pub counts: Counts,
    /// Messages that the member's window has room for; `None` until the member has opened its end.
    pub room_messages: Option<u64>,
    /// The time since which sending finds no room in the member's window.
    pub full_since: Option<Instant>,
}

/// The record of a member that has left.
#[derive(Clone, Copy, Debug)]
pub struct Parted<P> {
    /// The member's number.
    pub number: u64,
    /// The member's peer.
    pub peer: P,
    /// The group's last message before the member joined.
    pub joined: u64,
    /// The member's counters, in the group's sequences.
    pub counts: Counts,
}

/// A member that a call of the group waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InTheWay<P> {
    /// The member's peer.
    pub peer: P,
    /// The suspension of its session, if it has no connection.
    pub suspended: Option<Arc<Suspension>>,
}

/// Why a group dropped a member.
#[derive(Clone, Debug)]
pub enum LossReason {
    /// The member's window was full for this time, because its receiver falls behind, or because
    /// of this suspension.
    Full(Duration, Option<Arc<Suspension>>),
    /// The peer did not open its end within `open_timeout`.
    NotOpened(Box<NotOpened>),
    /// The peer's end has another message type.
    Mismatch(Box<SchemaMismatch>),
    /// The channel has ended.
    Disconnected(Box<Disconnected>),
    /// The member belongs to another process, of which this one is a fork.
    UsedAfterFork(UsedAfterFork),
}

/// Why a member has no place for a message.
pub(super) enum Lack<P> {
    /// The member may have a place later.
    Transient(GroupFailure<P>),
    /// The member will never have a place.
    Ended(LossReason),
    /// The member will never have a place for this message.
    Refused(SendError),
}

impl<P: Clone> Member<P> {
    pub(super) fn new(number: u64, peer: P, handle: SendHandle, joined: u64) -> Self {
        // Any member may become slow and be waited for, so each gets room for a waker now, and not
        // at its first wait.
        handle.end().waiters.prepare();
        Self {
            number,
            peer,
            own_joined: handle.last_sequence(),
            handle,
            joined,
            has_message: false,
            is_lacking: false,
            full_since: None,
        }
    }

    pub(super) fn counts(&self) -> MemberCounts<P> {
        let counts = self.handle.counts();
        let agreed = self.handle.end().state.agreed();
        let outstanding = counts.sent - counts.released;
        MemberCounts {
            number: self.number,
            peer: self.peer.clone(),
            joined: self.joined,
            counts: self.counts_of_group(),
            room_messages: agreed.map(|agreed| agreed.window.messages.saturating_sub(outstanding)),
            full_since: self.full_since,
        }
    }

    pub(super) fn counts_of_group(&self) -> Counts {
        let counts = self.handle.counts();
        Counts {
            sent: self.of_group(counts.sent),
            received: self.of_group(counts.received),
            released: self.of_group(counts.released),
            acknowledged: self.of_group(counts.acknowledged),
        }
    }

    /// Converts one of the member's own sequences to the group's. A sequence from before the member
    /// joined becomes the one at which it joined.
    fn of_group(&self, own: u64) -> u64 {
        self.joined + own.saturating_sub(self.own_joined)
    }

    /// Converts one of the group's sequences to the member's own; `None` if the message was sent
    /// before the member joined.
    pub(super) fn own(&self, sequence: u64) -> Option<u64> {
        (sequence > self.joined).then(|| self.own_joined + (sequence - self.joined))
    }

    // ---- Places for a message --------------------------------------------------------

    /// Makes a place for a message of `length` bytes, if there is room.
    #[inline]
    pub(super) fn place(&mut self, length: usize) -> Result<(), SendFailure> {
        self.handle.hold().place(length, Patience::None)
    }

    /// Checks that there is room for a message of `length` bytes, if the message goes into the
    /// ring.
    #[inline]
    pub(super) fn room(&mut self, length: usize) -> Result<(), SendFailure> {
        let mut entered = self.handle.hold();
        let end = entered.end;
        let producer = entered.open_producer(Patience::None)?;
        match producer.takes(length) || length > producer.largest {
            true => Ok(()),
            false => end.wait_room(producer, length, Patience::None),
        }
    }

    #[inline]
    pub(super) fn has_place(&mut self) {
        if self.is_lacking {
            self.is_lacking = false;
            self.full_since = None;
        }
    }

    /// Notes that the member has no place for a message, and returns what to do about it.
    #[cold]
    pub(super) fn lacks(
        &mut self,
        failure: SendFailure,
        when_full: WhenFull,
        open_by: Option<Instant>,
    ) -> Lack<P> {
        self.is_lacking = true;
        let now = Instant::now();
        match failure {
            SendFailure::Failed(_) if self.is_over() => Lack::Ended(self.end()),
            SendFailure::Failed(error) => Lack::Refused(error),
            SendFailure::NotOpen | SendFailure::NotOpenInTime(_) => match open_by {
                Some(open_by) if now >= open_by => {
                    let end = self.handle.end();
                    Lack::Ended(LossReason::NotOpened(end.not_opened(end.open_timeout)))
                }
                _ => Lack::Transient(GroupFailure::NotOpen(self.in_the_way())),
            },
            SendFailure::Full | SendFailure::TimedOut(_) => {
                let full = now - *self.full_since.get_or_insert(now);
                match when_full {
                    WhenFull::DropAfter(patience) if full >= patience => {
                        Lack::Ended(LossReason::Full(full, self.handle.end().cut_off()))
                    }
                    _ => Lack::Transient(GroupFailure::Full(self.in_the_way())),
                }
            }
        }
    }

    /// Returns the time at which a wait for the member has to look again in any case.
    pub(super) fn look_again_at(&self, when_full: WhenFull) -> Option<Instant> {
        let drop_at = match (when_full, self.full_since) {
            (WhenFull::DropAfter(patience), Some(since)) => since.checked_add(patience),
            _ => None,
        };
        let notice_at = self.handle.end().stall.notice_at();
        [drop_at, notice_at].into_iter().flatten().min()
    }

    /// Returns the member as what a call of the group waited for.
    pub(super) fn in_the_way(&self) -> InTheWay<P> {
        InTheWay {
            peer: self.peer.clone(),
            suspended: self.handle.end().cut_off(),
        }
    }

    // ---- The member's end ------------------------------------------------------------

    pub(super) fn is_over(&self) -> bool {
        self.handle.end().state.is_over()
    }

    /// Returns why a wait for the member failed.
    pub(super) fn failed(&self, error: SendError) -> LossReason {
        match error {
            SendError::NotOpened(error) => LossReason::NotOpened(error),
            SendError::UsedAfterFork(error) => LossReason::UsedAfterFork(error),
            _ => self.end(),
        }
    }

    /// Returns why the member's channel is over.
    pub(super) fn end(&self) -> LossReason {
        let end = self.handle.end();
        match end.unusable(|| end.counts()) {
            Unusable::NotOpened(error) => LossReason::NotOpened(error),
            Unusable::Mismatch(error) => LossReason::Mismatch(error),
            Unusable::Disconnected(error) => LossReason::Disconnected(error),
            Unusable::Forked(error) => LossReason::UsedAfterFork(error),
        }
    }
}

impl<P: Clone> Parted<P> {
    pub(super) fn of(member: &Member<P>) -> Self {
        Self {
            number: member.number,
            peer: member.peer.clone(),
            joined: member.joined,
            counts: member.counts_of_group(),
        }
    }
}

impl fmt::Display for LossReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LossReason::Full(time, suspended) => {
                write!(f, "its window was full for {time:?}: ")?;
                match suspended {
                    Some(suspended) => suspended.fmt(f),
                    None => f.write_str("its receiver falls behind"),
                }
            }
            LossReason::NotOpened(error) => error.fmt(f),
            LossReason::Mismatch(error) => error.fmt(f),
            LossReason::Disconnected(error) => error.fmt(f),
            LossReason::UsedAfterFork(error) => error.fmt(f),
        }
    }
}
