//! A member of a group, and the record that the group keeps of a former member.

use std::{
    fmt,
    sync::Arc,
    time::{Duration, Instant},
};

use ibex_ring::parking::Patience;

use super::{GroupFailure, WhenFull};
use crate::{
    channel::{ChannelError, FailureReason, SendHandle},
    session::{Counts, Suspension},
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
    /// True if the member had no place for a message at the last check.
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
#[derive(Debug)]
pub enum LossReason {
    /// The member's window was full for this time, because its receiver falls behind, or because
    /// of this suspension.
    Full(Duration, Option<Arc<Suspension>>),
    /// The peer did not open its end within `open_timeout`, or the channel is over.
    Failed(ChannelError),
}

/// Why a member has no place for a message.
pub(super) enum NoPlace<P> {
    /// The member may have a place later.
    Transient(GroupFailure<P>),
    /// The member will never have a place.
    Ended(LossReason),
    /// The member will never have a place for this message.
    Refused(ChannelError),
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
    pub(super) fn place(&mut self, length: usize) -> Result<(), ChannelError> {
        self.handle.hold().place(length, Patience::None)
    }

    /// Checks that there is room for a message of `length` bytes, if the message goes into the
    /// ring.
    #[inline]
    pub(super) fn room(&mut self, length: usize) -> Result<(), ChannelError> {
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
        failure: ChannelError,
        when_full: WhenFull,
        open_by: Option<Instant>,
    ) -> NoPlace<P> {
        self.is_lacking = true;
        let now = Instant::now();
        match failure {
            ChannelError::NotOpenYet => match open_by {
                Some(open_by) if now >= open_by => {
                    let end = self.handle.end();
                    let error = end.not_opened(end.open_timeout).into();
                    NoPlace::Ended(LossReason::Failed(error))
                }
                _ => NoPlace::Transient(GroupFailure::NotOpen(self.in_the_way())),
            },
            ChannelError::WouldBlock => {
                let full = now - *self.full_since.get_or_insert(now);
                match when_full {
                    WhenFull::DropAfter(patience) if full >= patience => {
                        NoPlace::Ended(LossReason::Full(full, self.handle.end().cut_off()))
                    }
                    _ => NoPlace::Transient(GroupFailure::Full(self.in_the_way())),
                }
            }
            _ if self.is_over() => NoPlace::Ended(self.end()),
            error => NoPlace::Refused(error),
        }
    }

    /// Returns the time at which a wait for the member has to look again in any case.
    pub(super) fn check_again(&self, when_full: WhenFull) -> Option<Instant> {
        let notice_at = self.handle.end().stall.notice_at();
        let times = [self.drop_at(when_full), notice_at];
        times.into_iter().flatten().min()
    }

    /// Returns the time at which the member is dropped if it is full until then.
    pub(super) fn drop_at(&self, when_full: WhenFull) -> Option<Instant> {
        match when_full {
            WhenFull::DropAfter(patience) => self.full_since?.checked_add(patience),
            WhenFull::Wait => None,
        }
    }

    /// Returns the member as what a call of the group waited for.
    pub(super) fn in_the_way(&self) -> InTheWay<P> {
        InTheWay {
            peer: self.peer.clone(),
            suspended: self.handle.end().cut_off(),
        }
    }

    /// Returns whether a message was refused because the member's peer takes shorter messages than
    /// this end sends.
    pub(super) fn is_narrow(&self, error: &ChannelError) -> bool {
        error
            .reason()
            .is_some_and(|reason| self.handle.is_narrow_for(reason))
    }

    // ---- The member's end ------------------------------------------------------------

    pub(super) fn is_over(&self) -> bool {
        self.handle.end().state.is_over()
    }

    /// Returns why a wait for the member failed.
    pub(super) fn failed(&self, error: ChannelError) -> LossReason {
        match error.reason() {
            Some(FailureReason::NotOpened { .. } | FailureReason::UsedAfterFork) => {
                LossReason::Failed(error)
            }
            _ => self.end(),
        }
    }

    /// Returns why the member's channel is over.
    pub(super) fn end(&self) -> LossReason {
        let end = self.handle.end();
        LossReason::Failed(end.error())
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

impl LossReason {
    /// Returns how long calls waited in vain for room at the member. It may be found full for longer,
    /// if nothing was sent meanwhile.
    pub(super) fn waited(&self, when_full: WhenFull) -> Duration {
        match (self, when_full) {
            (LossReason::Full(time, _), WhenFull::DropAfter(patience)) => patience.min(*time),
            _ => Duration::ZERO,
        }
    }

    /// Returns whether the member's channel is not over yet, so that the group breaks it off.
    pub(super) fn is_of_group(&self) -> bool {
        match self {
            LossReason::Full(..) => true,
            LossReason::Failed(error) => {
                let is_too_long = matches!(error.reason(), Some(FailureReason::TooLong { .. }));
                is_too_long || error.is_not_opened()
            }
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
            LossReason::Failed(error) => error.fmt(f),
        }
    }
}
