//! The rounds of a group of log senders, and the waits between them.
#![forbid(unsafe_code)]

use std::{future::poll_fn, task::Poll, time::Instant};

use ibex_core::{codec::Codec, extend::Untyped};

use super::{LogGroup, MemberSender, member::MemberTurn, of_quorum};
use crate::{LogError, LogSource, error::LogFailure, source::is_past, until_quorum::UntilQuorum};

/// Result of a round.
pub(super) enum Round {
    Done(Result<(), LogError>),
    /// There is more to do at once.
    More,
    /// Nothing can be done until there is news.
    Wait,
}

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
        self.news.forget();
        let (mut round, mut index) = (Ok(MemberTurn::default()), 0);
        while let Some(member) = self.members.get_mut(index) {
            let turn = member.turn(log, (position, a_wait_follows), self.news.waker());
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
                        self.news.waker().wake_by_ref();
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

    pub(super) fn wait_acked_by<L: LogSource<T, C>>(
        &mut self,
        log: &mut L,
        position: u64,
        quorum: usize,
        deadline: Option<Instant>,
    ) -> Result<(), LogError> {
        let mut is_late = false;
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
                    let until = self.until_quorum(position, quorum);
                    until.is_some_and(|mut until| until.wait(deadline))
                }
            };
            if !in_time {
                return Err(self.not_acked(position, quorum));
            }
        }
    }

    pub(super) async fn wait_acked_in_task<L: LogSource<T, C>>(
        &mut self,
        log: &mut L,
        position: u64,
        quorum: usize,
    ) -> Result<(), LogError> {
        loop {
            match self.run_round(log, position, quorum) {
                Round::Done(answer) => return answer,
                Round::More => {}
                Round::Wait => {
                    let Some(until) = self.until_quorum(position, quorum) else {
                        return Err(self.not_acked(position, quorum));
                    };
                    until.await;
                }
            }
            let_others_run().await;
        }
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
        let news = &mut self.news;
        Some(UntilQuorum::new((runtime?, news), lacking, channels))
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
            let lost = self.last_loss.as_ref();
            return LogFailure::NoQuorum {
                quorum,
                position,
                members: format!("{members}{}", self.present()),
                lost: lost.map_or_else(String::new, |lost| format!("; lost last: {lost}")),
            }
            .into();
        }
        LogFailure::NoSessions {
            quorum,
            position,
            members: self.describe(),
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
        }
        .into()
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
pub(super) const MOST_KEPT: usize = 64;
