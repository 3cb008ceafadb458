//! The rounds of a group of log senders, and the waits between them.
#![forbid(unsafe_code)]

use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Instant,
};

use ibex_codec::Codec;
use ibex_transport::runtime::Runtime;

use super::{LogGroup, MemberSender, member::MemberTurn};
use crate::log::{LogError, LogSource, error::LogFailure, source::is_past};

/// Result of a round.
enum Round {
    Done(Result<(), LogError>),
    /// There is more to do at once.
    More,
    /// Nothing can be done until there is news.
    Wait,
}

/// A wait for a quorum; see [`LogGroup::wait_acked_async`].
pub(super) struct LogQuorumAsync<'a, T: ?Sized, C: Codec<T>, L> {
    pub(super) group: &'a mut LogGroup<T, C>,
    pub(super) log: &'a mut L,
    pub(super) position: u64,
    pub(super) quorum: usize,
}

impl<T: ?Sized, C: Codec<T>> LogGroup<T, C> {
    /// Gives each member its turn, and asks for the acknowledgement of `position`.
    ///
    /// A message that cannot be sent at all is an error once each member had its turn, since no
    /// member is at fault.
    pub(super) fn round<L: LogSource<T, C>>(
        &mut self,
        log: &mut L,
        position: u64,
    ) -> Result<MemberTurn, LogError> {
        self.news.forget();
        let (mut round, mut index) = (Ok(MemberTurn::default()), 0);
        while let Some(member) = self.members.get_mut(index) {
            match member.turn(log, position, self.news.waker()) {
                Ok(turn) => {
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
        round
    }

    pub(super) fn wait_acked_by<L: LogSource<T, C>>(
        &mut self,
        log: &mut L,
        position: u64,
        quorum: usize,
        deadline: Option<Instant>,
    ) -> Result<(), LogError> {
        loop {
            let round = self.try_acked(log, position, quorum);
            let in_time = match round {
                Round::Done(answer) => return answer,
                _ if is_past(deadline) => false,
                Round::More => true,
                Round::Wait => {
                    let (news, members) = (&self.news, &self.members);
                    let has_quorum = || has(members, position, quorum);
                    runtime(members).is_some_and(|runtime| news.wait(runtime, deadline, has_quorum))
                }
            };
            if !in_time {
                return Err(self.not_acked(position, quorum));
            }
        }
    }

    /// Runs a round, unless the answer is known without.
    fn try_acked<L: LogSource<T, C>>(
        &mut self,
        log: &mut L,
        position: u64,
        quorum: usize,
    ) -> Round {
        let end = log.end();
        if position > end {
            return Round::Done(Err(LogFailure::Beyond { position, end }.into()));
        }
        let round = self.round(log, position);
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
            acked: self.acked(quorum),
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
fn has<T: ?Sized, C: Codec<T>>(
    members: &[MemberSender<T, C>],
    position: u64,
    quorum: usize,
) -> bool {
    let have = |member: &&MemberSender<T, C>| member.sender.acked() >= position;
    let last = quorum.checked_sub(1);
    last.is_none_or(|last| members.iter().filter(have).nth(last).is_some())
}

/// Returns the runtime whose turns bring the members' news; `None` if the program has to give all
/// of them their sessions.
fn runtime<T: ?Sized, C: Codec<T>>(members: &[MemberSender<T, C>]) -> Option<&Runtime> {
    members.iter().find_map(|member| member.sender.runtime())
}

impl<T: ?Sized, C: Codec<T>, L: LogSource<T, C>> Future for LogQuorumAsync<'_, T, C, L> {
    type Output = Result<(), LogError>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let Self {
            group,
            log,
            position,
            quorum,
        } = self.get_mut();
        let (position, quorum) = (*position, *quorum);
        match group.try_acked(*log, position, quorum) {
            Round::Done(answer) => return Poll::Ready(answer),
            Round::More => {}
            Round::Wait => {
                let (news, members) = (&mut group.news, &group.members);
                let has_quorum = || has(members, position, quorum);
                let Some(runtime) = runtime(members) else {
                    return Poll::Ready(Err(group.not_acked(position, quorum)));
                };
                ready!(news.poll(runtime, context.waker(), has_quorum));
            }
        }
        // Other tasks of this thread have their turn before the next round.
        context.waker().wake_by_ref();
        Poll::Pending
    }
}

impl<T: ?Sized, C: Codec<T>, L> Drop for LogQuorumAsync<'_, T, C, L> {
    fn drop(&mut self) {
        self.group.news.leave();
    }
}
