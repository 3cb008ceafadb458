//! The rounds of a group of log senders, and the waits between them.
#![forbid(unsafe_code)]

use std::{
    future::poll_fn,
    task::Poll,
    time::{Duration, Instant},
};

use ibex_core::{
    codec::Codec,
    extend::{self, Untyped, warn_limited},
};

use super::{LogGroup, LogMemberLost, MemberSender, member::MemberTurn};
use crate::{LogError, LogSource, error::LogFailure, source::is_past, until_quorum::UntilQuorum};

/// Result of a round.
pub(super) enum Round {
    Done(Result<(), LogError>),
    /// There is more to do at once.
    More,
    /// Nothing can be done until there are events.
    Wait,
}

/// The time until a call that waits for a quorum says so in the log.
struct QuorumPatience {
    ends_at: Instant,
    /// The position that the quorum had at the last check.
    acked: u64,
    has_warned: bool,
}

/// The time after which a call looks whether a quorum makes progress.
const LONG_WAIT: Duration = Duration::from_secs(5);

impl<T: ?Sized, C: Codec<T>> LogGroup<T, C> {
    /// Gives each member its turn, and notices who will not acknowledge `position`. Unless a wait
    /// follows, no member is asked to tell when it has room: over shared memory that is a system
    /// call.
    ///
    /// A message that cannot be sent at all is an error once each member had its turn, since no
    /// member is at fault.
    pub(super) fn round<L: LogSource<T, C>>(
        &mut self,
        log: &mut L,
        position: u64,
        a_wait_follows: bool,
    ) -> Result<MemberTurn, LogError> {
        self.note_acked();
        self.changes.forget();
        let (mut round, mut index) = (Ok(MemberTurn::default()), 0);
        while let Some(member) = self.members.get_mut(index) {
            let turn = member.turn(log, (position, a_wait_follows), self.changes.waker());
            if let Some((answer, member)) = member.take_answer() {
                self.answered.push_back(member);
                if answer.has_lost {
                    self.reached.clear();
                }
            }
            match turn {
                Ok(turn) => {
                    // Others may fail, and the program go on.
                    if turn.has_more {
                        self.changes.waker().wake_by_ref();
                    }
                    round = round.map(|others| MemberTurn {
                        has_sent: others.has_sent || turn.has_sent,
                        has_more: others.has_more || turn.has_more,
                    });
                    index += 1;
                }
                Err(error) if error.is_of_message() && !member.sender.is_narrow_for(&error) => {
                    round = Err(error);
                    index += 1;
                }
                Err(reason) => {
                    let lost = self.members.remove(index).lost(reason);
                    self.lose(lost);
                }
            }
        }
        self.answered
            .drain(..self.answered.len().saturating_sub(MOST_KEPT));
        round
    }

    /// Notes a loss for the program, and logs it, because a program that waits is notified later.
    fn lose(&mut self, lost: LogMemberLost) {
        if self.lost.len() == MOST_KEPT {
            self.lost.pop_front();
        }
        let (address, text) = (lost.address.clone(), lost.to_string());
        // A program may have it join again at once, and lose it again.
        warn_limited!(text, "a log's group has lost a member: {text}");
        self.last_loss = Some((address, text));
        self.lost.push_back(lost);
    }

    pub(super) fn wait_acked_by<L: LogSource<T, C>>(
        &mut self,
        log: &mut L,
        position: u64,
        quorum: usize,
        deadline: Option<Instant>,
    ) -> Result<(), LogError> {
        let mut is_late = false;
        let mut patience = None;
        loop {
            let round = self.run_round(log, position, quorum);
            let was_late = is_late;
            is_late = is_past(deadline);
            let in_time = match round {
                Round::Done(answer) => return answer,
                Round::More => !is_late,
                Round::Wait if was_late => false,
                // Once the time is up too, since a wait asks the far ends, and takes what is there.
                Round::Wait => {
                    let notice_at = self.notice_wait(&mut patience, position, quorum);
                    let first = deadline.map_or(notice_at, |deadline| deadline.min(notice_at));
                    let until = self.until_quorum(position, quorum);
                    let has_come = until.map(|mut until| until.wait(Some(first)));
                    has_come.is_some_and(|has_come| has_come || !is_past(deadline))
                }
            };
            if !in_time {
                return Err(self.not_acked(position, quorum));
            }
        }
    }

    /// Waits in a task as [`wait_acked`](Self::wait_acked) does in a thread.
    ///
    /// Dropping the future leaves the messages that were sent and the questions that were asked,
    /// and the next call goes on with them.
    ///
    /// # Errors
    ///
    /// The errors of [`wait_acked`](Self::wait_acked).
    pub async fn wait_acked_async<L: LogSource<T, C>>(
        &mut self,
        log: &mut L,
        position: u64,
        quorum: usize,
    ) -> Result<(), LogError> {
        let mut patience: Option<QuorumPatience> = None;
        loop {
            match self.run_round(log, position, quorum) {
                Round::Done(answer) => return answer,
                Round::More => {}
                Round::Wait => {
                    let before = patience.as_ref().map(|patience| patience.ends_at);
                    let notice_at = self.notice_wait(&mut patience, position, quorum);
                    if before != Some(notice_at) {
                        self.wake_at(notice_at);
                    }
                    let Some(until) = self.until_quorum(position, quorum) else {
                        return Err(self.not_acked(position, quorum));
                    };
                    until.await;
                }
            }
            let_others_run().await;
        }
    }

    /// Logs, once in a call, that the quorum has made no progress for long: the call itself says
    /// nothing until it returns. Returns the time of the next check.
    fn notice_wait(
        &self,
        patience: &mut Option<QuorumPatience>,
        position: u64,
        quorum: usize,
    ) -> Instant {
        let acked = || of_quorum(self.acked_of_each().collect(), quorum);
        let patience = patience.get_or_insert_with(|| QuorumPatience {
            ends_at: Instant::now() + LONG_WAIT,
            acked: acked(),
            has_warned: false,
        });
        if is_past(Some(patience.ends_at)) {
            let acked = acked();
            if patience.acked == acked && !patience.has_warned {
                patience.has_warned = true;
                let (members, lost) = (self.describe(), self.lost_last());
                warn_limited!(
                    members,
                    quorum,
                    position,
                    acked,
                    "a quorum of a log's group is waited for: {members}{lost}"
                );
            }
            patience.acked = acked;
            patience.ends_at = Instant::now() + LONG_WAIT;
        }
        patience.ends_at
    }

    /// Has the task woken at `at` that waits for a quorum, if a member has a session.
    fn wake_at(&self, at: Instant) {
        let sessions = self.members.iter().filter_map(|one| one.sender.peer());
        let waker = self.changes.waker();
        let _ = sessions
            .map(extend::session)
            .any(|session| session.wake_at(at, waker));
    }

    /// Returns the wait for a quorum, or for anything that gives the next round more to do. `None`
    /// if the program has to give all members their sessions.
    pub(super) fn until_quorum(&mut self, position: u64, quorum: usize) -> Option<UntilQuorum<'_>> {
        let (mut lacking, mut runtime) = (quorum, None);
        let mut channels = Vec::with_capacity(self.members.len());
        for member in &mut self.members {
            let sender = &mut member.sender;
            let message = sender.unacked(position).unwrap_or_default();
            // The far end acknowledges meanwhile. A member with a message is counted by that, once.
            if message.is_none() && sender.acked() >= position {
                lacking = lacking.saturating_sub(1);
            }
            let (sessions, channel) = sender.sessions_and_channel();
            runtime = runtime.or(sessions.runtime());
            channels.push(channel.map(|channel| (channel.untyped_mut(), message)));
        }
        let changes = &mut self.changes;
        Some(UntilQuorum::new((runtime?, changes), lacking, channels))
    }

    /// Runs a round, unless the answer is known without.
    pub(super) fn run_round<L: LogSource<T, C>>(
        &mut self,
        log: &mut L,
        position: u64,
        quorum: usize,
    ) -> Round {
        let end = log.end();
        if position > end {
            return Round::Done(Err(LogFailure::Beyond { position, end }.into()));
        }
        let round = self.round(log, position, true);
        match (self.answer(position, quorum), round) {
            (Some(answer), _) => Round::Done(answer),
            (None, Err(error)) => Round::Done(Err(error)),
            (None, Ok(turn)) if turn.has_more => Round::More,
            (None, Ok(_)) => Round::Wait,
        }
    }

    /// Returns the answer to a wait for a quorum, if it is known by now.
    fn answer(&self, position: u64, quorum: usize) -> Option<Result<(), LogError>> {
        if has(&self.members, position, quorum) {
            return Some(Ok(()));
        }
        let may_have = |member: &MemberSender<T, C>| usize::from(member.may_have(position));
        let able: usize = self.members.iter().map(may_have).sum();
        (able < quorum).then(|| Err(self.no_quorum(position, quorum)))
    }

    #[cold]
    fn no_quorum(&self, position: u64, quorum: usize) -> LogError {
        let members = self.members.len();
        if members < quorum {
            return LogFailure::NoQuorum {
                quorum,
                position,
                members: format!("{members}{}", self.present()),
                lost: self.lost_last(),
            }
            .into();
        }
        LogFailure::NoSessions {
            quorum,
            position,
            members: self.describe(),
            lost: self.lost_last(),
        }
        .into()
    }

    #[cold]
    fn not_acked(&self, position: u64, quorum: usize) -> LogError {
        LogFailure::NotAcked {
            quorum,
            position,
            acked: of_quorum(self.acked_of_each().collect(), quorum),
            members: self.describe(),
            lost: self.lost_last(),
        }
        .into()
    }

    /// Describes the last loss behind the members, unless that member has joined again.
    fn lost_last(&self) -> String {
        let mut members = self.members.iter();
        let lost = self.last_loss.as_ref();
        let lost =
            lost.filter(|(address, _)| members.all(|one| one.describe().address != *address));
        lost.map_or_else(String::new, |(_, lost)| format!("; lost last: {lost}"))
    }

    /// Describes the members behind their number.
    fn present(&self) -> String {
        match self.members.is_empty() {
            true => String::new(),
            false => format!(": {}", self.describe()),
        }
    }

    fn describe(&self) -> String {
        let members = self.members.iter();
        let members: Vec<_> = members
            .map(|member| member.describe().to_string())
            .collect();
        members.join("; ")
    }
}

/// Returns whether at least `quorum` members have the log up to `position`.
pub(super) fn has<T: ?Sized, C: Codec<T>>(
    members: &[MemberSender<T, C>],
    position: u64,
    quorum: usize,
) -> bool {
    let have = |member: &&MemberSender<T, C>| member.sender.acked() >= position;
    let last = quorum.checked_sub(1);
    last.is_none_or(|last| members.iter().filter(have).nth(last).is_some())
}

/// Lets other tasks of this thread have their turn.
async fn let_others_run() {
    let mut is_second = false;
    poll_fn(|context| {
        if is_second {
            return Poll::Ready(());
        }
        is_second = true;
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

/// The answers and losses that a group keeps for the program.
const MOST_KEPT: usize = 64;

/// Returns the position up to which `quorum` of these have the log; 0 if they are fewer.
pub(super) fn of_quorum(mut positions: Vec<u64>, quorum: usize) -> u64 {
    positions.sort_unstable_by(|a, b| b.cmp(a));
    let last = quorum.saturating_sub(1);
    positions.get(last).copied().unwrap_or(0)
}
