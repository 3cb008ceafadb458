//! A group of sending ends that send the same messages: each is encoded once, and published at all
//! ends.
//!
//! Rules:
//!
//! 1. A member's handle is the only one of its end, and never had a clone. So the group may touch
//!    its producer at any time.
//! 2. All or nothing: a message is published only when every member has a place for it, and then at
//!    each. The message is encoded in the first member's place and copied to the others' places.
//! 3. The group counts messages. From when a member joins, it gets every message and nothing else.
//!    So its own count and the group's differ by their difference at that time.

use std::{
    collections::VecDeque,
    mem::MaybeUninit,
    sync::Arc,
    task::{Poll, Waker},
    time::{Duration, Instant},
};

use ibex_base::fork::{self, UsedAfterFork};
use ibex_protocol::format::control::CloseReason;

use self::{
    building::Building,
    member::{Member, NoPlace},
    waiting::AlarmWaker,
};
pub use self::{
    member::{InTheWay, LossReason, MemberCounts, Parted},
    quorum::{QuorumFailure, Votes},
    waiting::WaitingTask,
};
use super::{Abort, ChannelError, SendHandle};
use crate::{
    node::{Warning, warn_of},
    runtime::{PollTarget, Runtime},
};
use ibex_ring::parking::{Patience, Ticket};

mod building;
mod member;
mod quorum;
mod waiting;

/// The fate of a member whose window is full.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WhenFull {
    /// The sending call waits for the member.
    #[default]
    Wait,
    /// The sending call waits until the member has been full for this time, and then drops it. Zero
    /// drops it at once.
    DropAfter(Duration),
}

/// Sending ends that send the same messages. `P` identifies a member.
#[derive(Debug)]
pub struct SendGroup<P> {
    runtime: Arc<Runtime>,
    when_full: WhenFull,
    /// Peers become members as they please; see [`SendGroup::open_to_peers`].
    is_open_to_peers: bool,
    /// The task that waits for the group.
    waiting: Arc<WaitingTask>,

    // The members.
    members: Vec<Member<P>>,
    /// The number of the next member to join.
    next_number: u64,
    /// Members that have left, the last at the back.
    former: VecDeque<Parted<P>>,
    /// Members that were lost and not reported to the program yet.
    lost: VecDeque<(Parted<P>, LossReason)>,
    /// Members that were lost, for the owner of a group that is open to peers, and waits for each.
    lost_numbers: Vec<(u64, Duration)>,

    // Messages.
    sequence: u64,
    /// Room that the last message in a ring needed.
    typical: usize,
}

/// A message for a group, which is encoded once.
pub struct GroupMessage<'a, T: ?Sized> {
    /// The value.
    pub value: &'a T,
    /// Returns the value's encoded length, where that is known.
    pub size: fn(&T) -> Option<usize>,
    /// Encodes the value into a place, as the encoder of [`SendHandle::send`] does. The error is that
    /// the place is too short, or that the value cannot be encoded.
    pub encode: fn(&T, &mut [MaybeUninit<u8>]) -> Result<usize, Abort>,
}

/// A failure to send, after which no member has the message.
#[derive(Debug)]
pub enum GroupFailure<P> {
    /// The group has no members.
    NoMembers,
    /// A member's window is full.
    Full(InTheWay<P>),
    /// A member has not opened its end.
    NotOpen(InTheWay<P>),
    /// The message cannot be sent, or memory is lacking.
    Failed(P, ChannelError),
    /// The process is a fork of the one that made the group.
    UsedAfterFork(UsedAfterFork),
}

impl<P> GroupFailure<P> {
    fn is_transient(&self) -> bool {
        matches!(self, GroupFailure::Full(_) | GroupFailure::NotOpen(_))
    }
}

impl<P: Clone> SendGroup<P> {
    /// Makes a group of ends of this runtime's node, without members.
    #[must_use]
    pub fn new(runtime: &Arc<Runtime>) -> Self {
        Self {
            runtime: runtime.clone(),
            when_full: WhenFull::default(),
            is_open_to_peers: false,
            waiting: Arc::default(),
            members: Vec::new(),
            next_number: 0,
            former: VecDeque::new(),
            lost: VecDeque::new(),
            lost_numbers: Vec::new(),
            sequence: 0,
            typical: 0,
        }
    }

    /// Sets the fate of a member whose window is full.
    pub fn set_when_full(&mut self, when_full: WhenFull) {
        self.when_full = when_full;
    }

    /// Makes this a group that peers join and leave as they please, so none of them may hinder it:
    ///
    /// - A message is sent even if there are no members, until the node is closed.
    /// - A member whose own limit is below a message's length is dropped.
    /// - A member that leaves is no warning.
    pub fn open_to_peers(&mut self) {
        self.is_open_to_peers = true;
    }

    fn may_be_empty(&self) -> bool {
        self.is_open_to_peers && !self.runtime.is_closed()
    }

    // ---- Members ---------------------------------------------------------------------

    /// Makes an end a member, from the next message on. Returns the member's number, which no other
    /// member gets; or the end, if the end was cloned (rule 1).
    ///
    /// # Panics
    ///
    /// If the end is of another node.
    pub fn join(&mut self, peer: P, mut handle: SendHandle) -> Result<u64, SendHandle> {
        assert!(
            std::ptr::eq(handle.session().runtime(), &*self.runtime),
            "channel \"{}\": {} is a peer of another node than the group's: join one that this node \
             accepted or connected to",
            handle.name(),
            handle.session().peer_name()
        );
        if handle.was_cloned() {
            return Err(handle);
        }
        handle.end_if_leaked();
        let number = self.next_number;
        self.next_number += 1;
        // A length that fits all present members need not fit the new one.
        self.typical = 0;
        self.members
            .push(Member::new(number, peer, handle, self.sequence));
        Ok(number)
    }

    /// Closes every member's channel in order: see [`SendHandle::close`].
    pub fn close(&mut self) {
        let members = self.members.iter_mut();
        members.for_each(|member| member.handle.close());
    }

    /// Breaks every member's channel off: see [`SendHandle::break_off`].
    pub fn break_off(&mut self, reason: CloseReason) {
        let members = self.members.iter_mut();
        members.for_each(|member| member.handle.break_off(reason));
    }

    /// Gives a member's end back. Nothing more is sent there.
    pub fn leave(&mut self, number: u64) -> Option<SendHandle> {
        let index = self.index_of(number)?;
        Some(self.take_out(index).handle)
    }

    fn index_of(&self, number: u64) -> Option<usize> {
        // Members are in the order of joining, and so of their numbers.
        let found = self
            .members
            .binary_search_by_key(&number, |member| member.number);
        found.ok()
    }

    fn take_out(&mut self, index: usize) -> Member<P> {
        let member = self.members.remove(index);
        self.let_go(member)
    }

    /// Takes back what the group left at a member that is taken out, and remembers the member.
    fn let_go(&mut self, mut member: Member<P>) -> Member<P> {
        member.handle.let_go();
        member.handle.leave();
        keep(&mut self.former, Parted::of(&member));
        member
    }

    /// Returns the progress of each member, in the order of joining.
    pub fn members(&self) -> impl Iterator<Item = MemberCounts<P>> {
        self.members.iter().map(Member::counts)
    }

    /// Returns the numbers of the members, in the order of joining.
    pub fn numbers(&self) -> impl DoubleEndedIterator<Item = u64> + ExactSizeIterator {
        self.members.iter().map(|member| member.number)
    }

    /// Drops a member if its channel is over, and says so. Else `waker` is called when it is, and is
    /// left under `held`. Never runs a turn, so it may be called inside a waker.
    ///
    /// A task that waits for the group is notified of a loss by [`WaitingTask::wake_if_lost`], because the
    /// member's own waker for it may have been taken back.
    pub fn poll_drop_over(
        &mut self,
        number: u64,
        held: &mut Option<Ticket>,
        waker: &Waker,
    ) -> Poll<()> {
        let Some(index) = self.index_of(number) else {
            return Poll::Pending;
        };
        let member = &self.members[index];
        let over = member.handle.end().poll_over(held, waker, || ());
        if over.is_ready() {
            let reason = member.end();
            self.lose(index, reason);
            self.waiting.note_lost();
        }
        over
    }

    /// Drops the members whose channels are over.
    fn drop_those_over(&mut self) {
        let over: Vec<_> = self.members.extract_if(.., |it| it.is_over()).collect();
        for member in over {
            let reason = member.end();
            let member = self.let_go(member);
            self.report(member, reason);
        }
    }

    /// Returns the number of a member that was lost and not returned here yet, and how long calls
    /// waited in vain for room there. For a group that is [open to peers](Self::open_to_peers).
    pub fn next_lost_number(&mut self) -> Option<(u64, Duration)> {
        self.lost_numbers.pop()
    }

    /// Returns the earliest lost member that was not reported yet, if there is one.
    pub fn next_lost(&mut self) -> Option<(Parted<P>, LossReason)> {
        self.lost.pop_front()
    }

    /// Drops a member that cannot be sent to any more.
    fn lose(&mut self, index: usize, reason: LossReason) {
        let member = self.take_out(index);
        self.report(member, reason);
    }

    /// Breaks off a member that was taken out, if its channel is not over, and tells of the loss.
    fn report(&mut self, mut member: Member<P>, reason: LossReason) {
        if reason.is_of_group() {
            // The member's receiver must not take the end of the channel for the end of the
            // messages.
            member.handle.break_off(CloseReason::NoRoom);
        }
        let is_expected = self.is_open_to_peers && !reason.is_of_group();
        // In a fork of the process, a thread that does not exist there may hold the log's lock.
        if !is_expected && !fork::is_child() {
            let peer = member.handle.session().peer_in_log();
            warn_of!(
                self.runtime.warnings,
                Warning::MemberDropped,
                format_args!("{peer}: {reason}"),
                channel = member.handle.name(),
                %peer,
                %reason,
                "a member of the group is dropped"
            );
        }
        if self.is_open_to_peers {
            let waited = reason.waited(self.when_full);
            self.lost_numbers.push((member.number, waited));
        }
        keep(&mut self.lost, (Parted::of(&member), reason));
    }

    // ---- Sending ---------------------------------------------------------------------

    /// The last message's sequence; 0 before the first.
    #[must_use]
    pub fn last_sequence(&self) -> u64 {
        self.sequence
    }

    /// Encodes a message once, and publishes it at every member, or at none.
    ///
    /// Drops members that have not opened their ends within their `open_timeout`, whose channels
    /// are over, or that are full for too long.
    #[inline]
    pub fn send<T: ?Sized>(
        &mut self,
        message: GroupMessage<'_, T>,
        patience: Patience,
    ) -> Result<u64, GroupFailure<P>> {
        check_fork().map_err(GroupFailure::UsedAfterFork)?;
        let mut building = Building::new(self, message);
        match building.attempt() {
            Err(failure) if failure.is_transient() => building.wait(patience, failure),
            settled => settled,
        }
    }

    /// Sends from a task. Pending while a member is full or has not opened its end.
    pub fn poll_send<T: ?Sized>(
        &mut self,
        waker: &Waker,
        message: GroupMessage<'_, T>,
    ) -> Poll<Result<u64, GroupFailure<P>>> {
        check_fork().map_err(GroupFailure::UsedAfterFork)?;
        self.leave_waits();
        Building::new(self, message).poll(waker)
    }

    /// Waits until every member's engine holds everything that was sent. Drops members whose
    /// channels end before. The error is a member whose engine does not within `patience`.
    pub fn flush(&mut self, patience: Patience) -> Result<(), InTheWay<P>> {
        let mut index = 0;
        while let Some(member) = self.members.get(index) {
            let last = member.handle.last_sequence();
            let answer = member.handle.wait_received(last, patience);
            self.take_flushed(&mut index, answer)?;
        }
        Ok(())
    }

    /// Flushes from a task. Pending while a member's engine does not hold everything.
    pub fn poll_flush(&mut self, waker: &Waker) -> Poll<Result<(), InTheWay<P>>> {
        let waker = &self.begin_wait(waker);
        let mut index = 0;
        let mut flushed = Poll::Ready(Ok(()));
        while let Some(member) = self.members.get_mut(index) {
            let last = member.handle.last_sequence();
            match member.handle.poll_received(waker, last) {
                Poll::Ready(answer) => self.take_flushed(&mut index, answer)?,
                Poll::Pending => {
                    flushed = Poll::Pending;
                    index += 1;
                }
            }
        }
        flushed
    }

    /// Handles a member's answer to a flush. If the member has everything, `index` moves to the
    /// next one. If it failed, it is dropped, and the next one takes its index. If its time was up,
    /// it is the error.
    fn take_flushed(
        &mut self,
        index: &mut usize,
        answer: Result<(), ChannelError>,
    ) -> Result<(), InTheWay<P>> {
        let member = &self.members[*index];
        match answer {
            Ok(()) => *index += 1,
            Err(error) if error.is_transient() => return Err(member.in_the_way()),
            Err(error) => {
                let reason = member.failed(error);
                self.lose(*index, reason);
            }
        }
        Ok(())
    }

    /// Applies `check` to every member, and drops those that cannot be sent to any more. A full
    /// member does not end the round, so that the time of each full member runs from now.
    #[inline]
    fn check_all(
        &mut self,
        open_by: Option<Instant>,
        mut check: impl FnMut(usize, &mut Member<P>) -> Result<(), ChannelError>,
    ) -> Result<(), GroupFailure<P>> {
        let mut lacking = Ok(());
        let mut index = 0;
        while let Some(member) = self.members.get_mut(index) {
            let Err(failure) = check(index, member) else {
                member.has_place();
                index += 1;
                continue;
            };
            match member.lacks(failure, self.when_full, open_by) {
                NoPlace::Transient(failure) => {
                    lacking = lacking.and(Err(failure));
                    index += 1;
                }
                NoPlace::Ended(reason) => self.lose(index, reason),
                NoPlace::Refused(error) if self.is_open_to_peers && member.is_narrow(&error) => {
                    self.lose(index, LossReason::Failed(error));
                }
                NoPlace::Refused(error) => {
                    return Err(GroupFailure::Failed(member.peer.clone(), error));
                }
            }
        }
        lacking
    }

    // ---- Waiting ---------------------------------------------------------------------

    /// Returns the task that waits for the group.
    #[must_use]
    pub fn waiting(&self) -> &Arc<WaitingTask> {
        &self.waiting
    }

    /// Begins a task's wait. Returns the waker to leave with members, which wakes the task.
    fn begin_wait(&self, waker: &Waker) -> Waker {
        self.waiting.set(waker);
        Waker::from(self.waiting.clone())
    }

    /// Has the waiting task woken when the first full member is to be dropped. An alarm that comes
    /// before that stands for this one too: it wakes the task, which asks again.
    fn wake_to_drop(&self) {
        let full = self.members.iter().filter(|member| member.is_lacking);
        let first = full.filter_map(|member| Some((member.drop_at(self.when_full)?, member)));
        let Some((at, member)) = first.min_by_key(|(at, _)| *at) else {
            return;
        };
        if self.waiting.wants_alarm(at) {
            let alarm = Waker::from(Arc::new(AlarmWaker(self.waiting.clone())));
            // A member whose session is over has woken the task.
            if !member.handle.session().wake_at(at, &alarm) {
                self.waiting.alarm_is_over();
            }
        }
    }

    /// Returns the widest kind of poll that a member's session needs of a waiting call.
    fn poll_target(&self) -> PollTarget {
        let poll_target = self
            .members
            .iter()
            .map(|member| member.handle.session().poll_target());
        poll_target.max().unwrap_or(PollTarget::Memory)
    }

    /// Takes back all that a thread or task left at members for a wait that is over.
    pub fn leave_waits(&mut self) {
        if fork::is_child() {
            return;
        }
        self.waiting.clear();
        for member in &mut self.members {
            member.handle.leave();
        }
    }
}

/// Returns an error if the calling process is a fork of the one that made the group.
#[inline]
fn check_fork() -> Result<(), UsedAfterFork> {
    fork::check(|| "a group".to_owned())
}

/// Appends `newest`, and drops the oldest record if there are [`MOST_PARTED`].
fn keep<T>(parted: &mut VecDeque<T>, newest: T) {
    if parted.len() == MOST_PARTED {
        parted.pop_front();
    }
    parted.push_back(newest);
}

/// Number of former members that a group remembers. A group is unlikely to lose more between two
/// questions, and a peer that comes and goes all the time must not fill the memory.
const MOST_PARTED: usize = 64;
