//! The credit that sessions hold, each and together.
//!
//! One rule: a holding is changed by [`Holdings::change`] only, which keeps all sums and
//! orders over holdings in step with it.
#![forbid(unsafe_code)]

use std::collections::{BTreeMap, BTreeSet};

use super::SessionId;

/// The holdings of all sessions.
#[derive(Debug)]
pub(super) struct Holdings {
    /// The least credit that is of use.
    grain: u64,
    sessions: BTreeMap<SessionId, Holding>,

    // What they come to.
    /// What nobody holds.
    free: u64,
    /// What was recalled so long ago that nobody counts on it.
    overdue: u64,
    active: u64,
    /// A grain, or what is held if that is less, for each that is not active.
    idle_floor: u64,

    // The richest.
    /// Active sessions by what they may keep, richest last.
    active_holders: BTreeSet<(u64, SessionId)>,
    /// The same of those that are not active.
    idle_holders: BTreeSet<(u64, SessionId)>,
}

impl Holdings {
    /// Nobody holds anything of `free`.
    pub(super) fn new(free: u64, grain: u64) -> Self {
        Self {
            grain,
            sessions: BTreeMap::new(),
            free,
            overdue: 0,
            active: 0,
            idle_floor: 0,
            active_holders: BTreeSet::new(),
            idle_holders: BTreeSet::new(),
        }
    }

    /// So much more is free.
    pub(super) fn grow(&mut self, credit: u64) {
        self.free += credit;
    }

    /// So much is free no more.
    pub(super) fn shrink(&mut self, credit: u64) {
        self.free -= credit;
    }

    pub(super) fn join(&mut self, session: SessionId) {
        self.sessions.entry(session).or_default();
    }

    /// The session is forgotten, and what it held is free. What it had open.
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

    /// The session with the next number, and behind the last one the first.
    pub(super) fn behind(&self, session: SessionId) -> Option<(SessionId, &Holding)> {
        let behind = self.sessions.range(session + 1..).next();
        let (&session, holding) = behind.or_else(|| self.sessions.first_key_value())?;
        Some((session, holding))
    }

    /// How many sessions there are.
    pub(super) fn len(&self) -> u64 {
        self.sessions.len() as u64
    }

    /// How many of them are active.
    pub(super) fn active(&self) -> u64 {
        self.active
    }

    pub(super) fn free(&self) -> u64 {
        self.free
    }

    /// What all hold together.
    pub(super) fn held(&self) -> u64 {
        self.sessions.values().map(|holding| holding.held).sum()
    }

    /// What is not to be shared among active sessions.
    pub(super) fn bound(&self) -> u64 {
        self.overdue + self.idle_floor
    }

    /// The richest active session, if it may keep more than `most`.
    pub(super) fn richest_active(&self, most: u64) -> Option<(SessionId, u64)> {
        richer(&self.active_holders, most)
    }

    /// The richest of the others, if it may keep more than `most`.
    pub(super) fn richest_idle(&self, most: u64) -> Option<(SessionId, u64)> {
        richer(&self.idle_holders, most)
    }

    /// Changes a holding, and what is free.
    pub(super) fn change(
        &mut self,
        session: SessionId,
        change: impl FnOnce(&mut Holding, &mut u64),
    ) {
        let Some(holding) = self.sessions.get_mut(&session) else {
            return;
        };
        let grain = self.grain;
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
                self.idle_floor -= holding.idle_floor(grain);
                self.overdue -= holding.overdue();
            } else {
                if holding.kept() > 0 {
                    holders.insert(key);
                }
                self.active += u64::from(holding.is_active);
                self.idle_floor += holding.idle_floor(grain);
                self.overdue += holding.overdue();
            }
        }
    }
}

/// The richest of `holders`, if it may keep more than `most`.
fn richer(holders: &BTreeSet<(u64, SessionId)>, most: u64) -> Option<(SessionId, u64)> {
    let (kept, session) = holders.last().copied()?;
    (kept > most).then_some((session, kept))
}

/// What one session holds, and what it was asked for and asked.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Holding {
    pub(super) held: u64,
    /// Of that, what will not be lent again.
    pub(super) recalled: u64,
    /// The place in the queue of who wants more.
    pub(super) ticket: Option<u64>,
    pub(super) is_active: bool,
    /// What is still to be given to it, where sessions take turns.
    pub(super) turn: u64,
    /// When the recall is overdue, while one is open.
    pub(super) due: Option<u64>,
    pub(super) is_overdue: bool,
    /// How it was found when it was looked at; nothing if it was given something since.
    pub(super) look: Option<Look>,
    /// When it is forgotten, while it holds and wants nothing.
    pub(super) lapses: Option<u64>,
}

/// A session as it was found, and a busy one beside it to tell how much time passes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Look {
    /// What the session had used in all.
    pub(super) used: u64,
    pub(super) witness: SessionId,
    /// When the witness has used more than this in all, what had arrived before the look
    /// was taken in: its frames come behind that.
    pub(super) until: u64,

    // Two that fell silent could be each other's witnesses for ever.
    /// What the witness had used when it was last found to use something.
    pub(super) seen: u64,
    /// How many wishes there had been by then.
    pub(super) wishes: u64,
}

impl Holding {
    pub(super) fn kept(&self) -> u64 {
        self.held - self.recalled
    }

    fn idle_floor(&self, grain: u64) -> u64 {
        if self.is_active {
            0
        } else {
            self.held.min(grain)
        }
    }

    fn overdue(&self) -> u64 {
        if self.is_overdue { self.recalled } else { 0 }
    }
}
