//! The close of a node, which closes each of its sessions: they end in order, or when their time is
//! up.
//!
//! Until then they go on, over other connections if theirs break. So the listener stays until the
//! last session has ended.

use std::{mem, time::Instant};

use super::Engine;
use crate::{connection::Context, node::CloseReport};

/// The state of the node's close.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Closing {
    No,
    /// The node is being closed, until this time at the latest, or for as long as it takes.
    Until(Option<Instant>),
}

impl Closing {
    pub(super) fn deadline(self) -> Option<Instant> {
        match self {
            Closing::No => None,
            Closing::Until(deadline) => deadline,
        }
    }
}

impl Engine {
    /// Begins to end every session in order. At `deadline` they end in any case; without one they
    /// may take for ever. If this is called again, the earliest deadline counts.
    pub(crate) fn begin_close(&mut self, deadline: Option<Instant>, context: &mut Context<'_>) {
        self.closing = match self.closing {
            Closing::No => Closing::Until(deadline),
            Closing::Until(before) => {
                Closing::Until([before, deadline].into_iter().flatten().min())
            }
        };
        // The listener itself stays: a session whose connection breaks during the close can resume.
        self.controls.begin_no_more(&mut context.wakers);
        self.on_every_connection(context, |connection, context| {
            connection.core.begin_close(None, deadline, context);
        });
        self.stop_listening_if_over(context);
    }

    /// Drops the source of sessions, once every session of a closing node has ended.
    pub(super) fn stop_listening_if_over(&mut self, context: &mut Context<'_>) {
        if self.is_finished() {
            self.controls
                .drop_source(&self.connections.tools.epoll, context);
        }
    }

    /// Returns `None` if closing is over at `now`, because every session has ended or the time is
    /// up. Otherwise returns the deadline of the close.
    pub(crate) fn closing_ends(&self, now: Instant) -> Option<Option<Instant>> {
        let deadline = self.closing.deadline();
        let is_done = self.connections.all.is_empty() && self.controls.are_quiet();
        let is_over = is_done || deadline.is_some_and(|deadline| deadline <= now);
        (!is_over).then_some(deadline)
    }

    /// Returns whether the I/O thread has nothing more to do: the node is closing, and none of its
    /// engines has a session that might come back here.
    pub(crate) fn is_finished(&self) -> bool {
        self.closing != Closing::No
            && self.connections.all.is_empty()
            && self.sessions.are_over()
            && self.controls.are_quiet()
    }

    /// Ends the sessions that are left. Returns the report of what was not delivered.
    pub(crate) fn finish_close(&mut self, context: &mut Context<'_>) -> CloseReport {
        let mut report = mem::take(&mut self.close_report);
        for mut connection in self.connections.take_all() {
            let tools = &mut self.connections.tools;
            connection.close_now(tools, context);
            report
                .undelivered
                .extend(connection.core.common.undelivered());
            connection.unregister(&tools.epoll);
            connection.core.leave_passed(context);
            context.leftovers.push(connection);
        }
        self.controls
            .drop_source(&self.connections.tools.epoll, context);
        self.ports.close(&mut self.connections, context);
        report
    }
}
