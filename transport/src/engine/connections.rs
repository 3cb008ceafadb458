//! The connections of an engine: which of them each turn looks at, which have a deadline, which may
//! become idle, and what credit they have.

use std::{
    collections::{BTreeMap, btree_map::Entry},
    mem,
    sync::Arc,
    time::Instant,
};

use ibex_protocol::{format::control::CloseReason, id_map::IdMap};
use ibex_ring::parking::RungEnd;

use super::{credit::Credit, deadlines::Deadlines, idle::Watch};
use crate::{
    connection::{Connection, Context, Core, Reconnect},
    node::{SessionShared, Undelivered, Warning, Warnings, warn_of},
    session::PeerDescription,
    wire::Tools,
};

/// The connections of an engine, and the tools with which they are turned.
///
/// Who turns a connection borrows it from `all` and the rest beside it.
pub(crate) struct Connections {
    /// The connections by the numbers of their sessions.
    pub(super) all: IdMap<Box<Connection>, u64>,
    /// Sessions whose socket is read every turn.
    pub(super) hot: Vec<u64>,
    pub(super) deadlines: Deadlines,
    /// The numbers of sessions with each run of a peer: by identity and incarnation.
    runs: BTreeMap<([u8; 16], u64), usize>,
    /// Ends whose guards rang; empty between two calls.
    rung: Vec<RungEnd>,
    /// Sessions that may become idle.
    pub(super) watch: Watch,
    pub(crate) credit: Credit,
    pub(crate) tools: Tools,
}

/// Turns that a socket stays hot after something moved there.
pub(super) const ACTIVE_TURNS: u32 = 256;

impl Connections {
    pub(super) fn new(credit: Credit, tools: Tools) -> Self {
        Self {
            all: IdMap::new(),
            hot: Vec::new(),
            deadlines: Deadlines::default(),
            runs: BTreeMap::new(),
            rung: Vec::new(),
            watch: Watch::default(),
            credit,
            tools,
        }
    }

    /// Adds a connection. Room is reserved now, so that messages that flow allocate nothing.
    pub(super) fn insert(&mut self, connection: Box<Connection>) {
        *self.runs.entry(run_of(&connection)).or_default() += 1;
        self.all.insert(connection.id(), connection);
        self.watch.make_room(self.all.len());
    }

    /// Removes the connection of a session, and forgets the session.
    pub(super) fn remove(&mut self, session: u64) -> Option<Box<Connection>> {
        let mut removed = self.all.remove(session);
        if let Some(connection) = &mut removed {
            self.credit.broker.leave(session);
            self.deadlines.forget(connection);
            self.forget_run(run_of(connection));
            connection.unregister(&self.tools.epoll);
        }
        self.hot.retain(|&hot| hot != session);
        self.credit.give_back();
        self.watch.forget(session);
        removed
    }

    /// Returns whether there are sessions with another run of the peer.
    pub(super) fn has_other_run(&self, peer: &PeerDescription) -> bool {
        let all = (peer.identity, 0)..=(peer.identity, u64::MAX);
        let mut runs = self.runs.range(all).map(|(run, _)| run.1);
        runs.any(|incarnation| incarnation != peer.incarnation)
    }

    fn forget_run(&mut self, run: ([u8; 16], u64)) {
        if let Entry::Occupied(mut sessions) = self.runs.entry(run) {
            *sessions.get_mut() -= 1;
            if *sessions.get() == 0 {
                sessions.remove();
            }
        }
    }

    /// Returns a session with this name that can resume as `is_meant` says.
    pub(crate) fn named(
        &self,
        name: &[u8; 16],
        is_meant: impl Fn(&Reconnect) -> bool,
    ) -> Option<u64> {
        let mut connections = self.all.values();
        let named = connections.find(|connection| {
            let reconnect = connection.core.reconnect.as_ref();
            reconnect.is_some_and(|one| one.is_named(name) && is_meant(one))
        });
        named.map(|connection| connection.id())
    }

    /// Makes the session hot: every turn looks at it for a while.
    pub(crate) fn mark_active(&mut self, session: u64) {
        if let Some(connection) = self.all.get_mut(session) {
            mark_active(connection, &mut self.hot);
        }
    }

    /// Returns the sessions, as handles share them: all, or those whose peers have receiving ends of
    /// this name without a counterpart here.
    pub(crate) fn sessions(&self, subscribed: Option<&str>) -> Vec<Arc<SessionShared>> {
        let cores = self.all.values().map(|connection| &connection.core);
        let cores = cores.filter(|core| subscribed.is_none_or(|name| core.common.is_awaited(name)));
        cores.map(|core| core.common.shared()).collect()
    }

    /// Updates a session's account of a peer whose host is silent.
    pub(crate) fn note_answers(&self, session: u64) {
        if let Some(connection) = self.all.get(session) {
            connection.note_answers();
        }
    }

    /// Breaks off all open sending ends, which then do not end in order.
    pub(crate) fn break_off(&self, reason: CloseReason) {
        let connections = self.all.values();
        connections.for_each(|connection| connection.core.ends.senders.break_off(reason));
    }

    /// Returns the channels with messages that their peers are not known to hold.
    pub(crate) fn undelivered(&self) -> Vec<Undelivered> {
        let connections = self.all.values();
        connections
            .flat_map(|connection| connection.core.undelivered())
            .collect()
    }

    /// Takes the connections out, to end them.
    pub(super) fn take_all(&mut self) -> impl Iterator<Item = Box<Connection>> + use<> {
        self.hot.clear();
        self.deadlines = Deadlines::default();
        self.runs.clear();
        mem::take(&mut self.all).into_values()
    }

    /// Sums the cells of the ends whose guards rang, because a guard settled while a sender waits.
    #[inline]
    pub(crate) fn answer_guards(&mut self, context: &mut Context<'_>) {
        if context.bell.take_rung(&mut self.rung) {
            self.answer_rung(context);
        }
    }

    #[inline(never)]
    fn answer_rung(&mut self, context: &mut Context<'_>) {
        for RungEnd { session, end } in self.rung.drain(..) {
            let Some(connection) = self.all.get_mut(session) else {
                continue;
            };
            let Core { ends, common, .. } = &mut connection.core;
            if ends.answer_guard(end, common, context)
                && !mem::replace(&mut connection.is_hot, true)
            {
                self.hot.push(session);
            }
        }
    }

    /// Returns the number of sessions that every turn looks at.
    #[cfg(test)]
    pub(crate) fn hot_sessions(&self) -> usize {
        self.hot.len()
    }

    /// Returns the earliest deadline of a session.
    #[inline]
    pub(super) fn next_deadline(&mut self) -> Option<Instant> {
        self.deadlines.next(&mut self.all)
    }

    // ---- Sleeping --------------------------------------------------------------------

    /// Adds hot sessions to the epoll set again. Returns whether the set now reports every session.
    pub(super) fn join_epoll(&mut self, warnings: &Warnings) -> bool {
        let mut all = true;
        for &session in &self.hot {
            if let Some(connection) = self.all.get_mut(session)
                && let Err(error) = connection.socket.join(&self.tools)
            {
                warn_of!(
                    warnings,
                    Warning::NoEpoll,
                    error,
                    %error, "epoll does not take a session back; polling it instead"
                );
                all = false;
            }
        }
        all
    }

    /// Has the epoll set report the connections that a reactor watches, because a thread waits or
    /// polls by itself: the reactor may not run meanwhile.
    pub(crate) fn leave_reactor(&mut self) {
        if self.tools.reactor.take().is_none() {
            return;
        }
        for connection in self.all.values_mut() {
            connection.socket.leave(&self.tools.epoll);
            connection.socket.readable = true;
            // Hot sessions join the set before anybody sleeps there.
            mark_active(connection, &mut self.hot);
        }
    }

    /// Arms everything for which peers must ring. Returns whether it armed anything.
    pub(super) fn arm_receivers(&mut self) -> bool {
        let connections = self.all.values_mut();
        connections.fold(false, |any, connection| {
            connection.core.arm_receivers() | any
        })
    }

    /// Arms the rings of hot sessions. Returns `None` if there are none, else whether the barrier
    /// that follows must be a heavy one.
    pub(super) fn arm_rings(&mut self) -> Option<bool> {
        let mut armed = None;
        for &session in &self.hot {
            if let Some(connection) = self.all.get_mut(session) {
                armed = armed.max(connection.core.ends.senders.arm_rings());
            }
        }
        armed
    }

    /// Looks once more at hot sessions whose rings are armed. Returns whether one of them has work.
    pub(super) fn poll_armed_rings(&mut self) -> bool {
        let mut work = false;
        for &session in &self.hot {
            if let Some(connection) = self.all.get_mut(session) {
                work |= connection.poll_armed_rings() || connection.has_leftover();
                work |= connection.socket.read_before_parking();
                connection.mark_active = 0;
                // A turn in which the session did not move has not noted its deadline.
                self.deadlines.note(connection);
            }
        }
        work
    }

    /// Makes the sessions cold that need no turn until epoll, a bell or a mark requests one.
    pub(super) fn stop_polling(&mut self) {
        let connections = &mut self.all;
        self.hot.retain(|&session| {
            let Some(connection) = connections.get_mut(session) else {
                return false;
            };
            connection.is_hot = !connection.is_cold();
            connection.is_hot
        });
    }
}

/// The run of the peer with which the session is: its identity and incarnation.
fn run_of(connection: &Connection) -> ([u8; 16], u64) {
    let peer = connection.core.common.peer();
    (peer.identity, peer.incarnation)
}

/// Makes the session hot: every turn looks at it for a while.
#[inline]
pub(super) fn mark_active(connection: &mut Connection, hot: &mut Vec<u64>) {
    connection.mark_active = ACTIVE_TURNS;
    if !mem::replace(&mut connection.is_hot, true) {
        hot.push(connection.id());
    }
}
