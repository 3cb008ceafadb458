//! Quorums of a group: messages that enough members have acknowledged.
//!
//! An acknowledgement still counts when its member has left, as it does on a channel by itself. It
//! states that an application was done with the message, and the end of the member does not change
//! that. A member that joined later has acknowledged no message that was sent before.

use std::{
    mem,
    sync::Arc,
    task::{Poll, Waker},
};

use ibex_base::fork::UsedAfterFork;
use ibex_protocol::format::control::Ask;
use ibex_ring::parking::{self, Condition, Patience, TimedOut};

use super::{
    SendGroup, check_fork,
    member::{Member, Parted},
};
use crate::{
    channel::SendHandle,
    endpoint::send_end::{AskedEvent, SendEnd},
    session::Suspension,
};

/// The failure to get as many acknowledgements of a message as were asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum QuorumFailure<P> {
    /// The message was not sent yet. This is the last one that was.
    NotSent(u64),
    /// Too few members are left that may acknowledge the message.
    Lost(Votes<P>),
    /// The time was up before enough members acknowledged the message.
    TimedOut(Votes<P>),
    /// The process is a fork of the one that made the group.
    UsedAfterFork(UsedAfterFork),
}

/// The members that have acknowledged a message, and those that have not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Votes<P> {
    /// Peers that acknowledged the message, as members or before they left.
    pub acknowledged: Vec<P>,
    /// Members that may still acknowledge the message.
    pub able: Vec<P>,
    /// Members that joined later, or dropped the message or one before it unacknowledged.
    pub unable: Vec<P>,
    /// Peers that were sent the message and left without an acknowledgement.
    pub gone: Vec<P>,
    /// The suspensions of those of `able` to which there is no connection.
    pub suspended: Vec<Arc<Suspension>>,
}

/// A member's state with regard to a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AckState {
    /// The member has acknowledged the message.
    Has,
    /// The member may acknowledge the message.
    May,
    /// The member joined later, or dropped the message or one before it unacknowledged.
    Never,
}

impl<P: Clone> Member<P> {
    fn standing(&self, sequence: u64) -> AckState {
        // One load reads both, so `ended` is not newer than the number.
        let (acknowledged, ended) = self.handle.end().acknowledged();
        match self.own(sequence) {
            None => AckState::Never,
            Some(own) if own <= acknowledged => AckState::Has,
            Some(_) if ended => AckState::Never,
            Some(_) => AckState::May,
        }
    }
}

impl<P> Parted<P> {
    fn was_sent(&self, sequence: u64) -> bool {
        (self.joined + 1..=self.counts.sent).contains(&sequence)
    }

    fn has_acknowledged(&self, sequence: u64) -> bool {
        (self.joined + 1..=self.counts.acknowledged).contains(&sequence)
    }
}

impl<P: Clone> SendGroup<P> {
    /// Returns the last message that at least `quorum` present or former members have acknowledged;
    /// 0 if there is none.
    #[must_use]
    pub fn acknowledged(&self, quorum: usize) -> u64 {
        // The result is the last acknowledged message of some member.
        let present = self.members.iter().map(Member::counts_of_group);
        let former = self.former.iter().map(|parted| parted.counts);
        let last = present.chain(former).map(|counts| counts.acknowledged);
        let reached = last.filter(|&sequence| self.count(sequence).0 >= quorum);
        reached.max().unwrap_or(0)
    }

    /// Waits until at least `quorum` members have acknowledged message `sequence`. Drops members
    /// whose channels are over.
    pub fn wait_acknowledged(
        &mut self,
        sequence: u64,
        quorum: usize,
        patience: Patience,
    ) -> Result<(), QuorumFailure<P>> {
        check_fork().map_err(QuorumFailure::UsedAfterFork)?;
        if let Some(answer) = self.answer(sequence, quorum) {
            return answer;
        }
        let Patience::Until(deadline) = patience else {
            return Err(QuorumFailure::TimedOut(self.votes(sequence)));
        };
        self.ask_for(sequence, |end, ask, _| end.path.ask_ahead(end, ask));
        let (runtime, poll_target) = (self.runtime.clone(), self.poll_target());
        let reached = Reached {
            group: self,
            sequence,
            quorum,
            is_asked: true,
        };
        match runtime.wait(deadline, poll_target, reached) {
            Ok(answer) => answer,
            Err(TimedOut) => Err(QuorumFailure::TimedOut(self.votes(sequence))),
        }
    }

    /// Waits for a quorum in a task.
    pub fn poll_acknowledged(
        &mut self,
        waker: &Waker,
        sequence: u64,
        quorum: usize,
    ) -> Poll<Result<(), QuorumFailure<P>>> {
        check_fork().map_err(QuorumFailure::UsedAfterFork)?;
        self.leave_waits();
        let runtime = self.runtime.clone();
        let reached = Reached {
            group: self,
            sequence,
            quorum,
            is_asked: false,
        };
        // Where callers turn the engine, this turn may bring the answer at once.
        parking::poll(reached, waker, || runtime.poll_in_passing())
    }

    /// Returns the answer of the quorum, if it is known by now.
    fn answer(&mut self, sequence: u64, quorum: usize) -> Option<Result<(), QuorumFailure<P>>> {
        if sequence > self.sequence {
            return Some(Err(QuorumFailure::NotSent(self.sequence)));
        }
        // Members that are over go before counters are read: the counters of an end that is over
        // are final.
        self.drop_those_over();
        let (have, may) = self.count(sequence);
        if sequence == 0 || have >= quorum {
            return Some(Ok(()));
        }
        (have + may < quorum).then(|| Err(QuorumFailure::Lost(self.votes(sequence))))
    }

    /// Returns how many members have acknowledged a message, and how many others may.
    fn count(&self, sequence: u64) -> (usize, usize) {
        let former = self.former.iter();
        let mut have = former
            .filter(|parted| parted.has_acknowledged(sequence))
            .count();
        let mut may = 0;
        for member in &self.members {
            match member.standing(sequence) {
                AckState::Has => have += 1,
                AckState::May => may += 1,
                AckState::Never => {}
            }
        }
        (have, may)
    }

    #[cold]
    fn votes(&self, sequence: u64) -> Votes<P> {
        let mut acknowledged = Vec::new();
        let (mut able, mut unable, mut gone) = (Vec::new(), Vec::new(), Vec::new());
        let mut suspended = Vec::new();
        for member in &self.members {
            let whose = match member.standing(sequence) {
                AckState::Has => &mut acknowledged,
                AckState::May => {
                    suspended.extend(member.handle.end().cut_off());
                    &mut able
                }
                AckState::Never => &mut unable,
            };
            whose.push(member.peer.clone());
        }
        for parted in &self.former {
            if parted.has_acknowledged(sequence) {
                acknowledged.push(parted.peer.clone());
            } else if parted.was_sent(sequence) {
                gone.push(parted.peer.clone());
            }
        }
        Votes {
            acknowledged,
            able,
            unable,
            gone,
            suspended,
        }
    }

    // ---- Waiting ---------------------------------------------------------------------

    /// Has `ask` ask each member that may acknowledge `sequence` to report that.
    fn ask_for(&mut self, sequence: u64, ask: impl Fn(&SendEnd, &Ask, &mut Option<AskedEvent>)) {
        for member in &mut self.members {
            if let Some(acknowledged) = member.own(sequence)
                && member.standing(sequence) == AckState::May
            {
                let question = Ask::acknowledged(acknowledged);
                let SendHandle { end, waits, .. } = &mut member.handle;
                ask(end, &question, &mut waits.acked.asked);
            }
        }
    }

    /// Leaves a waker at every member that may acknowledge `sequence`. A check follows.
    fn watch_for(&mut self, sequence: u64, waker: &Waker) {
        for member in &mut self.members {
            if member.standing(sequence) == AckState::May {
                let SendHandle { end, waits, .. } = &mut member.handle;
                end.register(&mut waits.acked, waker);
            }
        }
    }
}

/// The condition "enough members have acknowledged the message, or never will".
struct Reached<'g, P> {
    group: &'g mut SendGroup<P>,
    sequence: u64,
    quorum: usize,
    /// The members were asked.
    is_asked: bool,
}

impl<P: Clone> Condition for Reached<'_, P> {
    type Output = Result<(), QuorumFailure<P>>;

    fn check(&mut self) -> Option<Self::Output> {
        self.group.answer(self.sequence, self.quorum)
    }

    fn ask(&mut self) {
        let is_asked = mem::replace(&mut self.is_asked, true);
        self.group.ask_for(self.sequence, |end, ask, asked| {
            end.path.ask_for(end, ask, asked, is_asked);
        });
    }

    fn register(&mut self, waker: &Waker) {
        self.group.watch_for(self.sequence, waker);
    }

    fn leave(&mut self) {
        self.group.leave_waits();
    }
}
