//! A message on its way into a group: encoded in one member's place, copied to the places of the
//! others, and published at all of them.

use std::{
    task::{Poll, Waker},
    time::{Duration, Instant},
};

use ibex_ring::parking::{self, Condition, Patience, TimedOut};

use super::{GroupFailure, GroupMessage, LossReason, SendGroup};
use crate::channel::{Abort, FailureReason, SendHandle};

/// A message that is being built. Dropping it gives its places back.
pub(super) struct Building<'g, P: Clone, T: ?Sized> {
    group: &'g mut SendGroup<P>,
    message: GroupMessage<'g, T>,
    /// Bytes to make places for, set at the first look at a member: the message's length, where
    /// that is known.
    wanted: Option<usize>,
    /// The message's length, once the message is encoded in a member's place.
    encoded: Option<usize>,
    /// The time by which members must have opened their ends.
    open_by: Option<Instant>,
}

impl<'g, P: Clone, T: ?Sized> Building<'g, P, T> {
    #[inline]
    pub(super) fn new(group: &'g mut SendGroup<P>, message: GroupMessage<'g, T>) -> Self {
        Self {
            group,
            message,
            wanted: None,
            encoded: None,
            open_by: None,
        }
    }

    /// Sends the message, if every member has a place for it. An encoded message stays for the next
    /// attempt.
    #[inline]
    pub(super) fn attempt(&mut self) -> Result<u64, GroupFailure<P>> {
        match self.attempt_at_members() {
            Err(GroupFailure::NoMembers) if self.group.may_be_empty() => {
                self.group.sequence += 1;
                Ok(self.group.sequence)
            }
            settled => settled,
        }
    }

    #[inline]
    fn attempt_at_members(&mut self) -> Result<u64, GroupFailure<P>> {
        let length = match self.encoded {
            Some(length) => length,
            None => self.encode()?,
        };
        self.group.check_all(self.open_by, |_, member| {
            if member.has_message {
                return Ok(());
            }
            member.place(length)
        })?;
        Ok(self.publish(length))
    }

    /// Encodes the message in the place of the first member, and returns its length. The other
    /// members must have room too, as far as that is known. So an encoder does not run in vain each
    /// time that a group is full.
    #[inline]
    fn encode(&mut self) -> Result<usize, GroupFailure<P>> {
        loop {
            let Self {
                group,
                message,
                wanted,
                ..
            } = self;
            let typical = group.typical;
            let mut first = None;
            group.check_all(self.open_by, |index, member| {
                let wanted =
                    *wanted.get_or_insert_with(|| (message.size)(message.value).unwrap_or(typical));
                if first.is_none() {
                    member.place(wanted)?;
                    first = Some(index);
                    return Ok(());
                }
                member.room(wanted)
            })?;
            let index = first.ok_or(GroupFailure::NoMembers)?;
            let first = &mut self.group.members[index];
            let peer = first.peer.clone();
            let mut entered = first.handle.hold();
            let end = entered.end;
            let Some(producer) = entered.producer() else {
                unreachable!("a place has a producer")
            };
            let limit = producer.max_message_bytes;
            let slot = producer.place_slot();
            let room = slot.len();
            let refusal = match (self.message.encode)(self.message.value, slot) {
                Ok(length) if length as u64 <= limit => {
                    first.has_message = true;
                    self.encoded = Some(length);
                    return Ok(length);
                }
                Ok(length) => end.too_long(Some(length as u64)),
                Err(Abort::Failed(error)) => end.failed(FailureReason::Encode(error)),
                Err(Abort::Overflow) if room as u64 >= limit => end.too_long(None),
                Err(Abort::Overflow) => {
                    let before = self.wanted.unwrap_or_default();
                    self.wanted = Some(more_room(room, before, producer.largest, limit));
                    continue;
                }
            };
            if self.group.is_open_to_peers && first.is_narrow(&refusal) {
                self.group.lose(index, LossReason::Failed(refusal));
                continue;
            }
            return Err(GroupFailure::Failed(peer, refusal));
        }
    }

    #[inline]
    fn publish(&mut self, length: usize) -> u64 {
        let group = &mut *self.group;
        let first = group.members.iter().position(|member| member.has_message);
        // All other members come after the first, because members are looked at in their order.
        if let Some(first) = first
            && let Some((first, others)) = group.members[first..].split_first_mut()
            && let Some(producer) = first.handle.hold().producer()
        {
            if producer.reserved_large.is_none() {
                group.typical = length;
            }
            let bytes = producer.written(length);
            for member in others {
                if let Some(producer) = member.handle.hold().producer() {
                    producer.place_slot()[..length].copy_from_slice(bytes);
                }
            }
        }
        for member in &mut group.members {
            member.handle.hold().publish_reserved(length);
        }
        group.sequence += 1;
        group.sequence
    }

    // ---- Waiting ---------------------------------------------------------------------

    /// Tries again after `failure`, for as long as `patience` says.
    #[cold]
    pub(super) fn wait(
        &mut self,
        patience: Patience,
        mut failure: GroupFailure<P>,
    ) -> Result<u64, GroupFailure<P>> {
        let Patience::Until(deadline) = patience else {
            return Err(failure);
        };
        let opens = self.group.members.iter();
        let open_timeout = opens.map(|member| member.handle.end().open_timeout).max();
        // A time that the clock cannot express means no limit.
        let open_timeout = open_timeout.unwrap_or(Duration::ZERO);
        self.open_by = Instant::now().checked_add(open_timeout);
        loop {
            if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                return Err(failure);
            }
            let runtime = self.group.runtime.clone();
            let until = self.check_again(&failure, deadline);
            let poll_target = self.group.poll_target();
            match runtime.wait(until, poll_target, self.placed()) {
                Ok(settled) => return settled,
                Err(TimedOut) => match self.attempt() {
                    Err(again) if again.is_transient() => failure = again,
                    settled => return settled,
                },
            }
        }
    }

    /// Tries in a task. Members without a place wake it while it is pending.
    pub(super) fn poll(&mut self, waker: &Waker) -> Poll<Result<u64, GroupFailure<P>>> {
        if let Some(settled) = self.placed().check() {
            return Poll::Ready(settled);
        }
        let waker = self.group.begin_wait(waker);
        let polled = parking::poll_again(self.placed(), &waker, || ());
        if polled.is_pending() {
            self.group.wake_to_drop();
        }
        polled
    }

    fn placed(&mut self) -> Placed<'_, 'g, P, T> {
        Placed {
            building: self,
            waker: None,
        }
    }

    /// Returns the time at which to look again even without changes from members.
    fn check_again(&self, failure: &GroupFailure<P>, deadline: Option<Instant>) -> Option<Instant> {
        let lacking = self.group.members.iter().filter(|member| member.is_lacking);
        let members = lacking.filter_map(|member| member.check_again(self.group.when_full));
        let open_by = match failure {
            GroupFailure::NotOpen(_) => self.open_by,
            _ => None,
        };
        members.chain(open_by).chain(deadline).min()
    }

    /// Attempts to send, with `waker` left at every member that has no place for the message.
    fn attempt_watched(&mut self, waker: &Waker) -> Option<Result<u64, GroupFailure<P>>> {
        loop {
            match self.attempt() {
                Err(failure) if failure.is_transient() => {}
                settled => return Some(settled),
            }
            // A waker reports only events after it was left, so another attempt follows.
            if !self.watch(waker) {
                return None;
            }
        }
    }

    /// Leaves a waker at members that have no place for the message and no waker yet. Returns
    /// whether there were any.
    fn watch(&mut self, waker: &Waker) -> bool {
        let mut any = false;
        for member in &mut self.group.members {
            let SendHandle { end, waits, .. } = &mut member.handle;
            if member.is_lacking && !waits.room.has_waker() {
                end.register(&mut waits.room, waker);
                end.ask_for_room(&mut waits.room.asked);
                any = true;
            }
        }
        any
    }
}

impl<P: Clone, T: ?Sized> Drop for Building<'_, P, T> {
    #[inline]
    fn drop(&mut self) {
        for member in &mut self.group.members {
            member.has_message = false;
            member.handle.let_go();
        }
    }
}

/// The condition "every member has a place, and the message is sent".
struct Placed<'b, 'g, P: Clone, T: ?Sized> {
    building: &'b mut Building<'g, P, T>,
    /// The waker of a waiter that is about to sleep.
    waker: Option<Waker>,
}

impl<P: Clone, T: ?Sized> Condition for Placed<'_, '_, P, T> {
    type Output = Result<u64, GroupFailure<P>>;

    fn check(&mut self) -> Option<Self::Output> {
        if let Some(waker) = &self.waker {
            return self.building.attempt_watched(waker);
        }
        match self.building.attempt() {
            Err(failure) if failure.is_transient() => None,
            settled => Some(settled),
        }
    }

    fn ask(&mut self) {
        for member in &mut self.building.group.members {
            if member.is_lacking {
                let SendHandle { end, waits, .. } = &mut member.handle;
                end.ask_for_room(&mut waits.room.asked);
            }
        }
    }

    fn register(&mut self, waker: &Waker) {
        self.waker = Some(waker.clone());
        let members = self.building.group.members.iter_mut();
        for member in members.filter(|member| member.is_lacking) {
            let SendHandle { end, waits, .. } = &mut member.handle;
            end.register(&mut waits.room, waker);
        }
    }

    fn leave(&mut self) {
        self.waker = None;
        self.building.group.leave_waits();
    }
}

/// Returns the room for the next attempt, after `room` bytes were not enough.
fn more_room(room: usize, wanted: usize, largest: usize, limit: u64) -> usize {
    let limit = usize::try_from(limit).unwrap_or(usize::MAX);
    if room < largest {
        (room * 2).clamp(wanted + 1, largest)
    } else {
        room.saturating_mul(2).min(limit)
    }
}
