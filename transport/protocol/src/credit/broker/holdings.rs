//! The credit that sessions hold, each and together.
//!
//! The rule of this module: a holding is changed by [`Holdings::change`] only, which keeps all sums
//! and orders over holdings in step with it.
#![forbid(unsafe_code)]

use std::collections::{BTreeMap, BTreeSet};

use super::SessionId;

/// The holdings of all sessions.
#[derive(Debug)]
pub(super) struct Holdings {
    /// The most that an inactive session keeps.
    idle_keeps: u64,
    sessions: BTreeMap<SessionId, Holding>,

    // Totals.
    /// Credit that is not lent.
    free: u64,
    /// Credit that was recalled so long ago that it no longer counts as coming back.
    overdue: u64,
    active: u64,
    /// What each session keeps that is not active.
    idle_floor: u64,

    // Orders by holding.
    /// Active sessions by what they may keep, richest last.
    active_holders: BTreeSet<(u64, SessionId)>,
    /// Idle sessions, by what they hold.
    idle_holders: BTreeSet<(u64, SessionId)>,
}

impl Holdings {
    /// Creates the table without sessions.
    pub(super) fn new(free: u64, idle_keeps: u64) -> Self {
        Self {
            idle_keeps,
            sessions: BTreeMap::new(),
            free,
            overdue: 0,
            active: 0,
            idle_floor: 0,
            active_holders: BTreeSet::new(),
            idle_holders: BTreeSet::new(),
        }
    }

    /// Adds `credit` to the free credit.
    pub(super) fn grow(&mut self, credit: u64) {
        self.free += credit;
    }

    /// Takes `credit` from the free credit.
    pub(super) fn shrink(&mut self, credit: u64) {
        self.free -= credit;
    }

    pub(super) fn join(&mut self, session: SessionId) {
        self.sessions.entry(session).or_default();
    }

    /// Forgets the session and frees the credit that it held. Returns what it had open.
    pub(super) fn leave(&mut self, session: SessionId) -> Option<Holding> {
        self.change(session, |holding, free| {
            *free += holding.held;
            *holding = Holding {
                ticket: holding.ticket,
                due: holding.due,
                ..Holding::default()
            };
        });
        self.sessions.remove(&session)
    }

    pub(super) fn get(&self, session: SessionId) -> Option<&Holding> {
        self.sessions.get(&session)
    }

    /// Returns the session with the next number, and after the last one the first.
    pub(super) fn behind(&self, session: SessionId) -> Option<(SessionId, &Holding)> {
        let behind = self.sessions.range(session + 1..).next();
        let (&session, holding) = behind.or_else(|| self.sessions.first_key_value())?;
        Some((session, holding))
    }

    /// Returns the number of sessions.
    pub(super) fn len(&self) -> u64 {
        self.sessions.len() as u64
    }

    /// Returns the number of active sessions.
    pub(super) fn active(&self) -> u64 {
        self.active
    }

    pub(super) fn free(&self) -> u64 {
        self.free
    }

    /// Returns the credit that all sessions hold together.
    pub(super) fn held(&self) -> u64 {
        self.sessions.values().map(|holding| holding.held).sum()
    }

    /// Returns the credit that active sessions cannot share.
    pub(super) fn bound(&self) -> u64 {
        self.overdue + self.idle_floor
    }

    /// Returns the richest active session, if it may keep more than `most`.
    pub(super) fn richest_active(&self, most: u64) -> Option<(SessionId, u64)> {
        richer(&self.active_holders, most)
    }

    /// Returns the richest idle session, if it may keep more than `most`.
    pub(super) fn richest_idle(&self, most: u64) -> Option<(SessionId, u64)> {
        richer(&self.idle_holders, most)
    }

    /// Changes a holding and the free credit.
    pub(super) fn change(
        &mut self,
        session: SessionId,
        change: impl FnOnce(&mut Holding, &mut u64),
    ) {
        let Some(holding) = self.sessions.get_mut(&session) else {
            return;
        };
        let idle_keeps = self.idle_keeps;
        let before = *holding;
        change(holding, &mut self.free);
        let after = *holding;
        for (holding, is_before) in [(before, true), (after, false)] {
            let key = (holding.kept(), session);
            let holders = if holding.is_active {
                &mut self.active_holders
            } else {
                &mut self.idle_holders
            };
            if is_before {
                holders.remove(&key);
                self.active -= u64::from(holding.is_active);
                self.idle_floor -= holding.idle_floor(idle_keeps);
                self.overdue -= holding.overdue();
            } else {
                if holding.kept() > 0 {
                    holders.insert(key);
                }
                self.active += u64::from(holding.is_active);
                self.idle_floor += holding.idle_floor(idle_keeps);
                self.overdue += holding.overdue();
            }
        }
    }
}

/// Returns the richest of `holders`, if it may keep more than `most`.
fn richer(holders: &BTreeSet<(u64, SessionId)>, most: u64) -> Option<(SessionId, u64)> {
    let (kept, session) = holders.last().copied()?;
    (kept > most).then_some((session, kept))
}

/// The credit of one session, and its recalls and wishes.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Holding {
    pub(super) held: u64,
    /// The spare credit that the session is lent, beside `held`.
    pub(super) spare: u64,
    /// The part of `held` that will not be lent again.
    pub(super) recalled: u64,
    /// The place in the queue of sessions that want more.
    pub(super) ticket: Option<u64>,
    pub(super) is_active: bool,
    /// The part of its turn that is still to be given, where sessions take turns.
    pub(super) turn: u64,
    /// The time at which the recall is overdue, while one is open.
    pub(super) due: Option<u64>,
    pub(super) is_overdue: bool,
    /// The state at the last check; `None` if the session was given something since.
    pub(super) check: Option<Look>,
    /// The time at which the session becomes inactive, while it holds and wants nothing.
    pub(super) lapses: Option<u64>,
}

/// A session as it was found, and a busy one beside it to tell how much time passes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Look {
    /// The session's total use when it was last looked at.
    pub(super) used: u64,
    pub(super) witness: SessionId,
    /// The witness's total use beyond which all frames that had arrived before the check have
    /// been taken in: its own frames come behind them.
    pub(super) until: u64,

    // Without these fields, two sessions that fell silent could be each other's witnesses for ever.
    /// The witness's total use when it was last found to use credit.
    pub(super) seen: u64,
    /// The number of wishes at that time.
    pub(super) wishes: u64,
}

impl Holding {
    pub(super) fn kept(&self) -> u64 {
        self.held - self.recalled
    }

    fn idle_floor(&self, idle_keeps: u64) -> u64 {
        if self.is_active {
            0
        } else {
            self.held.min(idle_keeps)
        }
    }

    fn overdue(&self) -> u64 {
        if self.is_overdue { self.recalled } else { 0 }
    }
}
