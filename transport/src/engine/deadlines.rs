//! The deadlines of an engine's sessions, the earliest first.

use std::{collections::BTreeSet, mem, time::Instant};

use ibex_protocol::id_map::IdMap;

use crate::connection::Connection;

/// When sessions are to be looked at. A session stands here at most once, at its deadline or
/// before it: a deadline that is postponed or dropped is noticed when its time comes first. A session
/// whose deadline has moved nearer must be noted before the engine sleeps.
#[derive(Debug, Default)]
pub(super) struct Deadlines {
    queue: BTreeSet<(Instant, u64)>,
    /// Lent by [`due`](Self::due), so that no list is allocated for each deadline that passes.
    due: Vec<u64>,
}

impl Deadlines {
    /// Notes the session's deadline, if it has one.
    #[inline]
    pub(super) fn note(&mut self, connection: &mut Connection) {
        if let Some(deadline) = connection.core.common.deadline()
            && connection.due_at.is_none_or(|noted| deadline < noted)
        {
            self.move_to(deadline, connection);
        }
    }

    /// Returns the earliest deadline.
    #[inline]
    pub(super) fn next(
        &mut self,
        connections: &mut IdMap<Box<Connection>, u64>,
    ) -> Option<Instant> {
        loop {
            let &(noted, session) = self.queue.first()?;
            let Some(connection) = connections.get_mut(session) else {
                self.queue.pop_first();
                continue;
            };
            match connection.core.common.deadline() {
                Some(deadline) if deadline == noted => return Some(deadline),
                _ => {
                    self.forget(connection);
                    self.note(connection);
                }
            }
        }
    }

    /// Forgets the session's deadline.
    pub(super) fn forget(&mut self, connection: &mut Connection) {
        if let Some(noted) = connection.due_at.take() {
            self.queue.remove(&(noted, connection.id()));
        }
    }

    /// Returns the sessions that are to be looked at by now, in a list to be
    /// [given back](Self::give_back).
    pub(super) fn due(&mut self, now: Instant) -> Vec<u64> {
        let mut due = mem::take(&mut self.due);
        let all = self.queue.range(..=(now, u64::MAX));
        due.extend(all.map(|&(_, session)| session));
        due
    }

    /// Takes the list of [`due`](Self::due) back.
    pub(super) fn give_back(&mut self, mut due: Vec<u64>) {
        due.clear();
        self.due = due;
    }

    #[cold]
    fn move_to(&mut self, deadline: Instant, connection: &mut Connection) {
        self.forget(connection);
        connection.due_at = Some(deadline);
        self.queue.insert((deadline, connection.id()));
    }
}
