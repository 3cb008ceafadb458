//! The credit broker, which decides how much of the engine's arrival memory each session may have
//! in flight to it.
//!
//! Rules:
//!
//! 1. Lent credit and a reserve for every session that may join never exceed the credit that
//!    exists. Lent credit is free again when its session reports that it came back, and not before.
//!    A peer that never answers keeps its credit until its session ends.
//! 2. While there is enough, a session is given the most that it may hold as soon as it wants
//!    credit, and the broker gets no further reports from it. A session counts as wanting when it
//!    joins, unless sessions have a *floor*: credit that each has beside what it is lent, from its
//!    beginning to its end. Nobody else is ever lent it, whatever others hold and however silent
//!    they are. Then a session wants when it has used half of its floor. So a peer that says nothing
//!    holds nothing else, and one that falls silent takes nothing of the floors of others.
//! 3. Otherwise the sessions that want credit share it. No session is given more than the *level*,
//!    an equal part for each *active* session. A session that has more is recalled to the level as
//!    soon as a session that has less wants credit and none is free. A session is active from its
//!    first wish until it surrenders credit that it could not use, or is found to use nothing;
//!    where sessions take turns, until it has not wanted for as long as all have a turn each. An
//!    inactive session is recalled first, to one *grain*, the least that is of use, with its floor
//!    counted. A session
//!    counts as using nothing if it uses no credit while another uses more than that one held:
//!    frames that had arrived by then have been taken in.
//! 4. If there is not even a grain for each session, they take *turns*. Each wish is given one
//!    grain, in the order of the wishes, or [`BUSY_TURN`] of them if the session has used all
//!    of its last turn and more waits behind that. A session that is given a part of its turn
//!    gets the rest before any other, unless it has no room before it returns credit. Turns come
//!    back without a recall.
//! 5. The level moves in steps of a quarter or a third: down as soon as it must, up only when a
//!    third more sessions would still find room. So the arrival of n sessions costs each of the
//!    others a recall per step, not one per arrival, and the remainder of a step is there for the
//!    next session. A recall that stays unanswered while the waiting sessions use their credit
//!    twice each no longer counts as coming back. The others share, or take turns at, the
//!    remainder. They lose the credit of a silent peer and nothing else.
//! 6. Sessions may have *spare* credit, which is kept for each. A session that wants, has nothing and
//!    finds nothing free is lent its own for a turn, and waits for more all the same. So it never
//!    has to wait for others, even if peers that fell silent hold all that is shared.
//! 7. No session has more than one recall open, and a wish looks at [`CHECKS_PER_WISH`] sessions at
//!    most to find idle ones. No step waits for a clock.
//!
//! A connection makes three calls: [`join`](CreditBroker::join) when its session begins,
//! [`report`](CreditBroker::report) with what
//! [`SessionCredit::take_report`](crate::session::SessionCredit::take_report) answers
//! whenever it handled or sent frames, and [`leave`](CreditBroker::leave) when no frame of
//! the peer's can arrive any more. A session without wires leaves by its report, and joins again
//! with others. The engine then drains
//! [`poll_action`](CreditBroker::poll_action) and passes each action to the session that it
//! names. The unit is the carriage's: bytes or receive buffers, so wires that do not share
//! memory have brokers of their own.
#![forbid(unsafe_code)]

use std::collections::{BTreeMap, BTreeSet, VecDeque};

mod action;
mod holdings;
mod level;
mod recalls;
mod settings;

use super::session::{CreditReport, Term};
pub use action::CreditAction;
use holdings::{Holding, Holdings};
use level::Level;
pub use settings::BrokerSettings;

/// A session, as the engine numbers them.
pub type SessionId = u64;

/// Divides credit between the sessions of an engine. See the [module](self).
#[derive(Debug)]
pub struct CreditBroker {
    settings: BrokerSettings,

    // Totals.
    lendable: u64,

    // Credit of sessions.
    holdings: Holdings,
    /// Sessions that have joined and are still to be given their floor.
    newcomers: Vec<SessionId>,
    /// Sessions that want since the last action, to be lent their spare credit if they have nothing.
    bare: Vec<SessionId>,
    /// Sessions that want, in the order of their wishes.
    waiting: BTreeMap<u64, SessionId>,
    next_ticket: u64,

    // Sharing.
    level: Level,
    /// The session at which the search for idle sessions continues.
    hand: SessionId,
    /// Active sessions that hold nothing and want nothing, with the number of gifts after
    /// which they are forgotten.
    lapsing: VecDeque<(u64, SessionId)>,
    /// Wishes that were granted as a whole.
    gifts: u64,

    // Recalls.
    /// Open recalls, by the number of answers after which they are overdue.
    open: BTreeSet<(u64, SessionId)>,
    answers: u64,
    /// Wishes of sessions that wait already, since the last answer.
    repeated: u64,
}

/// A session cannot be taken in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("this node has {limit} sessions, for more it keeps no arrival memory")]
pub struct TooManySessions {
    /// The largest number of sessions that may join.
    pub limit: u64,
}

/// Sessions that one wish looks at to find some that use none of their credit. More would find idle
/// credit sooner and make every wish more expensive while many sessions are busy.
pub const CHECKS_PER_WISH: usize = 4;

/// Grains in a turn of a session that used all of its last one and had more to send. A turn is told
/// once, so more of them cost less for each message, and make the round of all longer.
pub const BUSY_TURN: u64 = 4;

impl CreditBroker {
    /// Creates a broker that has lent nothing.
    ///
    /// # Panics
    ///
    /// If the reserves leave less than a grain to lend, or a session may not hold a grain.
    #[must_use]
    pub fn new(settings: BrokerSettings) -> Self {
        let of_each = settings.reserve + settings.floor + settings.spare;
        let reserves = of_each.saturating_mul(settings.max_sessions);
        let lendable = settings.capacity.saturating_sub(reserves);
        assert!(
            lendable >= settings.grain && settings.most >= settings.grain && settings.grain > 0,
            "{settings:?} leave nothing to lend"
        );
        Self {
            settings,
            lendable,
            holdings: Holdings::new(lendable, settings.idle_keeps()),
            newcomers: Vec::new(),
            bare: Vec::new(),
            waiting: BTreeMap::new(),
            next_ticket: 0,
            level: Level::new(lendable),
            hand: 0,
            lapsing: VecDeque::new(),
            gifts: 0,
            open: BTreeSet::new(),
            answers: 0,
            repeated: 0,
        }
    }

    /// Takes in a session that begins: it gets its floor, or counts as wanting credit if there is
    /// none.
    pub fn join(&mut self, session: SessionId) -> Result<(), TooManySessions> {
        let limit = self.settings.max_sessions;
        if self.holdings.len() >= limit {
            return Err(TooManySessions { limit });
        }
        self.holdings.join(session);
        match self.settings.floor {
            0 => self.wish(session, false),
            _ => self.newcomers.push(session),
        }
        Ok(())
    }

    /// Takes in an event of a session. Drain [`poll_action`](Self::poll_action) afterwards.
    ///
    /// Reports of sessions that did not join are ignored.
    pub fn report(&mut self, session: SessionId, report: CreditReport) {
        if report == CreditReport::default() || self.holdings.get(session).is_none() {
            return;
        }
        if report.is_suspended {
            return self.leave(session);
        }
        if report.returned > 0 || report.is_idle {
            self.came_back(session, report.returned, report.is_idle);
        }
        if report.wants {
            self.wish(session, report.is_busy);
        }
    }

    /// Removes a session that is over or without wires, and frees all of its credit.
    pub fn leave(&mut self, session: SessionId) {
        self.newcomers.retain(|&newcomer| newcomer != session);
        if let Some(holding) = self.holdings.leave(session) {
            holding.ticket.map(|ticket| self.waiting.remove(&ticket));
            self.close_recall(session, holding.due);
        }
        self.set_level();
    }

    /// Returns the next action. `used` tells how much credit a session has used in all
    /// ([`SessionCredit::used`](crate::session::SessionCredit::used)). Drain it whenever a
    /// session joined, left or reported.
    #[must_use]
    pub fn poll_action(&mut self, used: impl Fn(SessionId) -> u64) -> Option<CreditAction> {
        if let Some(session) = self.newcomers.pop() {
            return Some(CreditAction::Give {
                session,
                credit: self.settings.floor,
                term: Term::Floor,
            });
        }
        self.share(used).or_else(|| self.lend_spare())
    }

    /// Returns the next action for the sessions that want what all share.
    fn share(&mut self, used: impl Fn(SessionId) -> u64) -> Option<CreditAction> {
        let mut next = 0;
        while let Some((&ticket, &session)) = self.waiting.range(next..).next() {
            let holding = self.holdings.get(session).copied().unwrap_or_default();
            let target = self.target(holding.turn);
            let has_enough = holding.kept() >= target;
            if has_enough {
                // A session that got more while there were fewer sessions is treated like one that
                // wants credit now.
                let most = target + target / 2;
                if let Some((richest, kept)) = self.holdings.richest_active(most)
                    && richest != session
                {
                    return Some(self.recall(richest, kept - target));
                }
                if self.look_for_idle(session, &used) {
                    // The session's share has grown.
                    continue;
                }
            }
            if has_enough || holding.held >= self.settings.most {
                self.drop_wish(session, ticket);
                continue;
            }
            let missing = target - holding.kept();
            let room = self.settings.most - holding.held;
            let least = self.settings.grain.min(missing);
            if room < least {
                // Recalled credit has to come back from the session first. If it is silent, the
                // sessions behind it would wait for ever.
                next = ticket + 1;
                continue;
            }
            let credit = missing.min(room).min(self.holdings.free());
            if credit >= least {
                if credit == missing || !self.is_crowded() {
                    self.drop_wish(session, ticket);
                    self.gifts += 1;
                }
                return Some(self.give(session, credit));
            }
            return self.recall_one(session);
        }
        None
    }

    /// Returns whether a session waits for credit that is lent.
    #[inline]
    #[must_use]
    pub fn is_wanted(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Returns whether there may be an action.
    #[inline]
    #[must_use]
    pub fn has_actions(&self) -> bool {
        self.is_wanted() || !self.newcomers.is_empty()
    }

    /// Returns whether lent and free credit add up to the total: holds after every call.
    #[must_use]
    pub fn is_sound(&self) -> bool {
        self.holdings.free().checked_add(self.holdings.held()) == Some(self.lendable)
    }

    /// Lends more than before.
    pub fn grow(&mut self, credit: u64) {
        self.lendable += credit;
        self.holdings.grow(credit);
        self.level.set_lendable(self.lendable);
        self.set_level();
    }

    /// Lends less than before.
    ///
    /// # Panics
    ///
    /// If less than that is [free](Self::free), or no grain would be left to lend.
    pub fn shrink(&mut self, credit: u64) {
        assert!(
            credit <= self.free() && self.lendable - credit >= self.settings.grain,
            "{credit} of {} of which {} is free",
            self.lendable,
            self.free()
        );
        self.lendable -= credit;
        self.holdings.shrink(credit);
        self.level.set_lendable(self.lendable);
        self.set_level();
    }

    /// Returns the credit that a session has: its floor, and what it is lent of its spare credit and
    /// of what all share.
    #[must_use]
    pub fn held(&self, session: SessionId) -> u64 {
        let floor = match self.newcomers.contains(&session) {
            true => 0,
            false => self.settings.floor,
        };
        let holding = self.holdings.get(session);
        holding.map_or(0, |holding| holding.held + holding.spare + floor)
    }

    /// Returns the credit that is not lent.
    #[must_use]
    pub fn free(&self) -> u64 {
        self.holdings.free()
    }

    // ---- Events of sessions ----------------------------------------------------------

    fn wish(&mut self, session: SessionId, is_busy: bool) {
        let ticket = self.next_ticket;
        let most = self.settings.most;
        let turn = if is_busy { BUSY_TURN } else { 1 } * self.settings.grain;
        // A fast sender that has the most it may have makes this wish again and again.
        let is_known = |holding: &Holding| holding.is_active && holding.held >= most;
        if self.holdings.get(session).is_some_and(is_known) {
            return;
        }
        let (mut is_new, mut is_repeated) = (false, false);
        self.holdings.change(session, |holding, _| {
            is_new = holding.ticket.is_none() && holding.held < most;
            is_repeated = holding.ticket.is_some();
            if is_new {
                holding.ticket = Some(ticket);
                holding.turn = turn;
            }
            holding.is_active = true;
            holding.lapses = None;
        });
        if is_new {
            self.next_ticket += 1;
            self.waiting.insert(ticket, session);
        }
        if is_repeated {
            self.notice_silence();
        }
        if self.settings.spare > 0 {
            self.bare.push(session);
        }
        self.set_level();
    }

    fn came_back(&mut self, session: SessionId, credit: u64, is_idle: bool) {
        let lapses = self.gifts + self.holdings.len();
        // A turn that is not used up says little: its session may want again before all others
        // had theirs, and lapses if it does not.
        let takes_turns = self.is_crowded();
        let mut closed = None;
        let mut is_lapsing = false;
        self.holdings.change(session, |holding, free| {
            let own = credit.saturating_sub(holding.recalled);
            debug_assert!(own <= holding.spare, "{holding:?} returns {credit}");
            holding.spare = holding.spare.saturating_sub(own);
            let credit = credit - own;
            holding.held -= credit;
            holding.recalled -= credit;
            *free += credit;
            if holding.recalled == 0 {
                closed = holding.due.take();
                holding.is_overdue = false;
            }
            if is_idle && holding.ticket.is_none() && !takes_turns {
                holding.is_active = false;
            }
            is_lapsing = holding.is_active && holding.held == 0 && holding.ticket.is_none();
            if is_lapsing {
                holding.lapses = Some(lapses);
            }
        });
        if is_lapsing {
            self.lapsing.push_back((lapses, session));
        }
        if closed.is_some() {
            self.close_recall(session, closed);
            self.answers += 1;
            self.repeated = 0;
            self.find_overdue();
        }
        self.set_level();
    }

    // ---- Actions of the broker -------------------------------------------------------

    /// Returns the credit up to which a session that wants is given, `turn` of it where sessions
    /// take turns.
    fn target(&self, turn: u64) -> u64 {
        let share = if self.is_crowded() {
            turn
        } else {
            self.level.get()
        };
        share.clamp(self.settings.grain, self.settings.most)
    }

    /// Returns whether there is less than a grain for each session.
    fn is_crowded(&self) -> bool {
        self.level.get() < self.settings.grain
    }

    fn give(&mut self, session: SessionId, credit: u64) -> CreditAction {
        let term = if self.is_crowded() {
            Term::Turn
        } else {
            Term::Standing
        };
        // As many turns are out as there are grains, so each is answered among others.
        let due = self.answers + 2 * (self.open.len() as u64 + 1);
        let mut opened = None;
        self.holdings.change(session, |holding, free| {
            holding.held += credit;
            *free -= credit;
            holding.check = None;
            holding.turn = holding.turn.saturating_sub(credit);
            if term == Term::Turn {
                holding.recalled += credit;
                opened = Some(*holding.due.get_or_insert(due));
            }
        });
        if let Some(due) = opened {
            self.open.insert((due, session));
        }
        self.forget_lapsed();
        CreditAction::Give {
            session,
            credit,
            term,
        }
    }

    /// Lends a session that wants, and has nothing, its spare credit.
    fn lend_spare(&mut self) -> Option<CreditAction> {
        while let Some(session) = self.bare.pop() {
            let mut is_bare = false;
            let credit = self.settings.spare;
            self.holdings.change(session, |holding, _| {
                is_bare = holding.ticket.is_some() && holding.held + holding.spare == 0;
                holding.spare += if is_bare { credit } else { 0 };
            });
            if is_bare {
                return Some(CreditAction::Give {
                    session,
                    credit,
                    term: Term::Turn,
                });
            }
        }
        None
    }

    // ---- Bookkeeping -----------------------------------------------------------------

    fn set_level(&mut self) {
        let bound = self.holdings.bound();
        self.level.share(bound, self.holdings.active());
    }

    fn drop_wish(&mut self, session: SessionId, ticket: u64) {
        self.waiting.remove(&ticket);
        self.holdings
            .change(session, |holding, _| holding.ticket = None);
    }

    /// Makes sessions inactive that used their turn and have not wanted credit since all others
    /// had one.
    fn forget_lapsed(&mut self) {
        while let Some(&(lapses, session)) = self.lapsing.front()
            && lapses <= self.gifts
        {
            self.lapsing.pop_front();
            self.holdings.change(session, |holding, _| {
                if holding.lapses == Some(lapses) {
                    holding.lapses = None;
                    holding.is_active = false;
                }
            });
        }
        self.set_level();
    }
}

#[cfg(test)]
mod tests;
