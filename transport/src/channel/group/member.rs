//! One of a group's members, and what is left of it when it is gone.

use std::{
    fmt,
    time::{Duration, Instant},
};

use ibex_base::fork::UsedAfterFork;
use ibex_ring::parking::Patience;

use super::{GroupFailure, WhenFull};
use crate::{
    channel::{NotOpened, SchemaMismatch, SendError, SendFailure, SendHandle},
    endpoint::channel_end::Unusable,
    session::{Counts, Disconnected},
};

/// A sending end in a group.
#[derive(Debug)]
pub(super) struct Member<P> {
    pub(super) number: u64,
    pub(super) peer: P,
    pub(super) handle: SendHandle,
    /// The group's last message before it joined (rule 3).
    pub(super) joined: u64,
    /// Its own last message before it joined.
    own_joined: u64,

    // What it is sent.
    /// What is on its way stands encoded in its place.
    pub(super) has_message: bool,

    // What it keeps whoever sends waiting with.
    /// It had no place for a message when it was looked at last.
    pub(super) is_lacking: bool,
    /// Since when it is full, as whoever sends has noticed.
    full_since: Option<Instant>,
}

/// How far a member came. Sequences are the group's: before its first message, all of them
/// are where it joined.
#[derive(Clone, Copy, Debug)]
pub struct MemberCounts<P> {
    /// Its number.
    pub number: u64,
    /// Who it is.
    pub peer: P,
    /// The last message before it joined.
    pub joined: u64,
    /// Up to where messages were sent to it, received, released and acknowledged.
    pub counts: Counts,
    /// Messages that its window has room for; `None` until it has opened its end.
    pub room_messages: Option<u64>,
    /// Since when sending finds no room in its window.
    pub full_since: Option<Instant>,
}

/// What a member did that is gone.
#[derive(Clone, Copy, Debug)]
pub struct Parted<P> {
    /// Its number.
    pub number: u64,
    /// Who it was.
    pub peer: P,
    /// The last message before it joined.
    pub joined: u64,
    /// How far it came, in the group's sequences.
    pub counts: Counts,
}

/// Why a group dropped a member.
#[derive(Clone, Debug)]
pub enum LossReason {
    /// Its window was full for so long.
    Full(Duration),
    /// Its peer did not open its end within `open_timeout`.
    NotOpened(Box<NotOpened>),
    /// Its peer's end has another message type.
    Mismatch(Box<SchemaMismatch>),
    /// Its channel has ended.
    Disconnected(Box<Disconnected>),
    /// It is another process's, of which this one is a fork.
    UsedAfterFork(UsedAfterFork),
}

/// Why a member has no place for a message.
pub(super) enum Lack<P> {
    /// It may have one later.
    Transient(GroupFailure<P>),
    /// It will never have one.
    Ended(LossReason),
    /// It will never have one for this message.
    Refused(SendError),
}

impl<P: Clone> Member<P> {
    pub(super) fn new(number: u64, peer: P, handle: SendHandle, joined: u64) -> Self {
        // Which member is waited for first depends on who is slow, and when.
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

    /// What one of its own sequences is in the group: where it joined, if that was before.
    fn of_group(&self, own: u64) -> u64 {
        self.joined + own.saturating_sub(self.own_joined)
    }

    /// What one of the group's sequences is in its own count; `None` if it was not sent to it
    /// as a member.
    pub(super) fn own(&self, sequence: u64) -> Option<u64> {
        (sequence > self.joined).then(|| self.own_joined + (sequence - self.joined))
    }

    // ---- Places for a message --------------------------------------------------------

    /// Makes a place for a message of `length` bytes, if there is room.
    #[inline]
    pub(super) fn place(&mut self, length: usize) -> Result<(), SendFailure> {
        self.handle.hold().place(length, Patience::None)
    }

    /// Looks whether there is room for a message of `length` bytes, if it goes into the ring.
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

    /// It has no place for a message: what is to be done about that.
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
                _ => Lack::Transient(GroupFailure::NotOpen(self.peer.clone())),
            },
            SendFailure::Full | SendFailure::TimedOut(_) => {
                let full = now - *self.full_since.get_or_insert(now);
                match when_full {
                    WhenFull::DropAfter(patience) if full >= patience => {
                        Lack::Ended(LossReason::Full(full))
                    }
                    _ => Lack::Transient(GroupFailure::Full(self.peer.clone())),
                }
            }
        }
    }

    /// When whoever waits for it has to look again, whatever happens.
    pub(super) fn look_again_at(&self, when_full: WhenFull) -> Option<Instant> {
        let drop_at = match (when_full, self.full_since) {
            (WhenFull::DropAfter(patience), Some(since)) => since.checked_add(patience),
            _ => None,
        };
        let notice_at = self.handle.end().stall.notice_at();
        [drop_at, notice_at].into_iter().flatten().min()
    }

    // ---- Its end ---------------------------------------------------------------------

    pub(super) fn is_over(&self) -> bool {
        self.handle.end().state.is_over()
    }

    /// Why waiting for it failed.
    pub(super) fn failed(&self, error: SendError) -> LossReason {
        match error {
            SendError::NotOpened(error) => LossReason::NotOpened(error),
            SendError::UsedAfterFork(error) => LossReason::UsedAfterFork(error),
            _ => self.end(),
        }
    }

    /// Why it is over.
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
            LossReason::Full(time) => {
                write!(
                    f,
                    "its window was full for {time:?}: its receiver falls behind"
                )
            }
            LossReason::NotOpened(error) => error.fmt(f),
            LossReason::Mismatch(error) => error.fmt(f),
            LossReason::Disconnected(error) => error.fmt(f),
            LossReason::UsedAfterFork(error) => error.fmt(f),
        }
    }
}
