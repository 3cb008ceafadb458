//! Idle sessions: the engine looks at sessions now and then, and takes idle memory back.
//!
//! All sessions share one deadline. There is none when no memory could be given back, so a node at
//! rest sleeps.

use std::time::{Duration, Instant};

use ibex_ring::memory::LargePool;

use super::{
    Engine,
    connections::{Connections, mark_active},
};
use crate::{
    clock,
    connection::{Connection, Context},
};

/// The sessions to look at, and the time of the next check.
#[derive(Debug, Default)]
pub(super) struct Watch {
    sessions: Vec<u64>,
    /// Number of sessions looked at so far, where one check takes several turns.
    looked: usize,
    next_check: Option<Instant>,
    /// True if a reading of the clock has found the time to be due.
    pub(super) is_due: bool,
}

impl Watch {
    /// Adds a session at which something moves, because it may become idle later.
    #[inline]
    pub(super) fn take_in(&mut self, connection: &mut Connection) {
        if !connection.is_watched {
            self.take_in_anew(connection);
        }
    }

    #[cold]
    fn take_in_anew(&mut self, connection: &mut Connection) {
        connection.is_watched = true;
        self.sessions.push(connection.id());
        self.next_check
            .get_or_insert_with(|| clock::now() + BETWEEN_CHECKS);
    }

    /// Reserves room, so that this many sessions can be added without an allocation.
    pub(super) fn make_room(&mut self, sessions: usize) {
        self.sessions.reserve(sessions);
    }

    pub(super) fn forget(&mut self, session: u64) {
        self.sessions.retain(|&watched| watched != session);
    }

    /// Returns the time of the next check, if there is one.
    pub(super) fn next_check(&self) -> Option<Instant> {
        self.next_check
    }

    /// Notes that the time is `now`.
    pub(super) fn note(&mut self, now: Instant) {
        self.is_due |= self.next_check.is_some_and(|next| next <= now);
    }
}

impl Engine {
    /// Notes the time, for a caller that has read the clock.
    pub(crate) fn note_time(&mut self, now: Instant) {
        self.connections.watch.note(now);
        self.ports.note(now);
    }
}

impl Connections {
    /// Looks at the sessions that may be idle, if a check is due. Returns whether it was.
    #[inline(never)]
    pub(super) fn check_idle(&mut self, context: &mut Context<'_>) -> bool {
        if !self.watch.is_due {
            if self.watch.next_check.is_none() {
                return false;
            }
            self.watch.note(clock::now());
            if !self.watch.is_due {
                return false;
            }
        }
        if self.check_sessions(context) {
            let is_warm = self.rest_pools(context);
            let is_over = self.watch.sessions.is_empty() && !is_warm;
            self.watch.is_due = false;
            self.watch.next_check = (!is_over).then(|| clock::now() + BETWEEN_CHECKS);
        }
        true
    }

    /// Looks at the sessions, from where the last call stopped. Returns whether it has looked at
    /// all of them. One turn gives only a limited number of rings back, because unmapping takes
    /// long.
    fn check_sessions(&mut self, context: &mut Context<'_>) -> bool {
        let Self {
            all,
            hot,
            deadlines,
            watch,
            credit,
            tools,
            ..
        } = self;
        let Watch {
            sessions, looked, ..
        } = watch;
        while let Some(&session) = sessions.get(*looked) {
            if context.leftovers.len() >= LEFTOVERS_PER_TURN {
                return false;
            }
            let goes_on = all.get_mut(session).is_some_and(|connection| {
                connection.is_watched = connection.check_idle(tools, context);
                credit.take_report(connection);
                // The check may have found that the peer does not answer, and set a deadline.
                deadlines.note(connection);
                if connection.core.is_broken_off() || connection.is_finished() {
                    mark_active(connection, hot);
                }
                connection.is_watched
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

    /// Gives back memory that pools have kept without need. Returns whether they keep more.
    fn rest_pools(&mut self, context: &mut Context<'_>) -> bool {
        // The rings that this turn takes go back to the pools after it.
        let will_keep = !context.leftovers.is_empty();
        let rings = &context.node.ring_arena;
        let large = [&context.node.large_pool, &context.node.granted_pool];
        let surplus = (rings.take_surplus(), large.map(LargePool::take_surplus));
        if !surplus.0.is_empty() || surplus.1.iter().any(|buffers| !buffers.is_empty()) {
            context.leftovers.push(Box::new(surplus));
        }
        let has_kept = rings.kept() + large.map(LargePool::kept).iter().sum::<usize>() > 0;
        let is_warm = self.tools.blocks.rest() | self.tools.compact_blocks.rest();
        is_warm || has_kept || will_keep
    }
}

/// Time between two checks. A session's memory goes back after this time without movement, or up to
/// twice as long, as the idle time falls between checks.
const BETWEEN_CHECKS: Duration = Duration::from_secs(1);
/// Most rings that one turn takes back. Unmapping one takes some 100 µs.
const LEFTOVERS_PER_TURN: usize = 16;
