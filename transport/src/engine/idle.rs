//! Which sessions may be silent, and when they are looked at next.
//!
//! One deadline for all of them, and none when there is nothing that could be given back:
//! a node that rests sleeps.

use std::time::{Duration, Instant};

use ibex_ring::memory::LargePool;

use super::{Engine, heat_link, note_deadline, report_credit};
use crate::{
    clock,
    connection::{Connection, Context},
};

/// Sessions that are looked at.
#[derive(Debug, Default)]
pub(super) struct Watch {
    sessions: Vec<u64>,
    /// So many of them have been looked at, where one look takes several turns.
    looked: usize,
    next_look: Option<Instant>,
    /// The time has come, as somebody found who looked at the clock.
    pub(super) is_due: bool,
}

impl Watch {
    /// Something moves at the session, so that it may be silent later.
    #[inline]
    pub(super) fn take_in(&mut self, link: &mut Connection) {
        if !link.is_watched {
            self.take_in_anew(link);
        }
    }

    #[cold]
    fn take_in_anew(&mut self, link: &mut Connection) {
        link.is_watched = true;
        self.sessions.push(link.id());
        self.next_look
            .get_or_insert_with(|| clock::now() + BETWEEN_LOOKS);
    }

    /// So many sessions are taken in without meeting the allocator.
    pub(super) fn make_room(&mut self, sessions: usize) {
        self.sessions.reserve(sessions);
    }

    pub(super) fn forget(&mut self, session: u64) {
        self.sessions.retain(|&watched| watched != session);
    }

    /// When to look next, if ever.
    pub(super) fn next_look(&self) -> Option<Instant> {
        self.next_look
    }

    /// Notes the time, which is `now`.
    pub(super) fn note(&mut self, now: Instant) {
        self.is_due |= self.next_look.is_some_and(|next| next <= now);
    }
}

impl Engine {
    /// For who has looked at the clock.
    pub(crate) fn note_time(&mut self, now: Instant) {
        self.watch.note(now);
        self.site_looks.note(now);
    }

    /// Looks at the sessions that may be silent, if it is time. Returns whether it was.
    #[inline(never)]
    pub(super) fn look_for_silence(&mut self, context: &mut Context<'_>) -> bool {
        if !self.watch.is_due {
            if self.watch.next_look.is_none() {
                return false;
            }
            self.watch.note(clock::now());
            if !self.watch.is_due {
                return false;
            }
        }
        if self.look_at_sessions(context) {
            let is_warm = self.rest_pools(context);
            let is_over = self.watch.sessions.is_empty() && !is_warm;
            self.watch.is_due = false;
            self.watch.next_look = (!is_over).then(|| clock::now() + BETWEEN_LOOKS);
        }
        true
    }

    /// Looks at the sessions, from where the last call stopped. Returns whether it has
    /// looked at all: one turn gives only so much back, as unmapping takes long.
    fn look_at_sessions(&mut self, context: &mut Context<'_>) -> bool {
        let Watch {
            sessions, looked, ..
        } = &mut self.watch;
        while let Some(&session) = sessions.get(*looked) {
            if context.leftovers.len() >= LEFTOVERS_PER_TURN {
                return false;
            }
            let goes_on = self.links.get_mut(session).is_some_and(|link| {
                link.is_watched = link.look_for_silence(&mut self.tools, context);
                let report = link.core.common.take_credit_report();
                report_credit(&mut self.credit.broker, &mut self.sites, session, report);
                // The peer may have been found not to answer.
                note_deadline(link, &mut self.timed);
                if link.core.is_broken_off() || link.is_finished() {
                    heat_link(link, &mut self.hot);
                }
                link.is_watched
            });
            if goes_on {
                *looked += 1;
            } else {
                sessions.swap_remove(*looked);
            }
        }
        *looked = 0;
        true
    }

    /// Gives back what pools have kept without need. Returns whether they keep more.
    fn rest_pools(&mut self, context: &mut Context<'_>) -> bool {
        // The rings that this turn takes go back to them behind it.
        let will_keep = !context.leftovers.is_empty();
        let rings = &context.node().ring_arena;
        let large = [&context.node().large_pool, &context.node().granted_pool];
        let surplus = (rings.take_surplus(), large.map(LargePool::take_surplus));
        if !surplus.0.is_empty() || surplus.1.iter().any(|buffers| !buffers.is_empty()) {
            context.leftovers.push(Box::new(surplus));
        }
        let has_kept = rings.kept() + large.map(LargePool::kept).iter().sum::<usize>() > 0;
        let is_warm = self.tools.blocks.rest() | self.tools.compact_blocks.rest();
        is_warm || has_kept || will_keep
    }
}

/// So long nothing may move until what it moved in goes back; up to twice that, as it
/// falls between the looks.
const BETWEEN_LOOKS: Duration = Duration::from_secs(1);
/// Rings that one turn takes back; unmapping one takes some 100 µs.
const LEFTOVERS_PER_TURN: usize = 16;
