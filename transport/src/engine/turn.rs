//! The turn: moves everything that is ready, once.

use std::time::{Duration, Instant};

use super::{
    Engine, Mail, Mark,
    connections::{ACTIVE_TURNS, Connections, mark_active},
    poll::{self, PORT_WIRE, Readiness, ReadyWires, TOKEN_ALARM, TOKEN_BELL, TOKEN_CONTROLS},
};
use crate::{
    clock,
    connection::Context,
    wire::{EpollToken, Wire},
};

impl Engine {
    /// Moves everything that can move. Returns whether anything did.
    #[inline]
    pub(crate) fn turn(&mut self, ready: &ReadyWires, context: &mut Context<'_>) -> bool {
        self.turns += 1;
        let mut progress = self.take_readiness(ready, context);
        // Published messages go out before completion queues are polled for more. Completions that
        // a poll has found already come first: a thread waits for them, and the sessions had their
        // turn in the round before.
        if !self.ports.has_found() {
            progress |= self.turn_active_connections(context);
        }
        progress |= self.take_completions(context);
        if self.ports.is_left() {
            progress |= self.turn_active_connections(context);
        }
        self.share_credit(context);
        let is_due = self.connections.watch.is_due || self.ports.is_check_due();
        if is_due || self.turns.is_multiple_of(TURNS_PER_EPOLL) {
            progress |= self.connections.check_idle(context);
            self.ports.check_for_devices(&mut self.connections, context);
            if self.warnings.are_held() {
                self.warnings.tell_held(Instant::now());
            }
        }
        // Reading the clock costs a tenth of a system call, so it is read only if there may be a
        // deadline.
        if self.controls.deadline.is_some() || self.connections.next_deadline().is_some() {
            let now = clock::now();
            progress |= self.turn_controls(now, context);
            self.expire(now, context);
        }
        progress
    }

    /// Posts a record that is alone in its session, and does nothing else. Returns whether there
    /// was one. The turn that follows does the rest.
    #[inline]
    pub(crate) fn post_lone_record(&mut self, session: u64) -> bool {
        let connections = &mut self.connections;
        let Some(connection) = connections.all.get_mut(session) else {
            return false;
        };
        let is_posted = connection.send_lone_record(&mut connections.tools);
        if is_posted {
            mark_active(connection, &mut connections.hot);
            connections.watch.take_in(connection);
        }
        is_posted
    }

    /// Hands on completions, and sends what they allow. Returns whether there were any. A waiting
    /// thread needs no other part of a turn immediately.
    #[inline]
    pub(crate) fn take_completions(&mut self, context: &mut Context<'_>) -> bool {
        let (any, follows) = self.ports.take_completions(&mut self.connections, context);
        if follows {
            self.share_credit(context);
        }
        any
    }

    /// Takes in the marks and mail that handles and other engines have left. `marks` is empty
    /// afterwards. Returns whether there were any.
    #[inline(never)]
    pub(crate) fn take_changes(
        &mut self,
        marks: &mut Vec<Mark>,
        mail: Vec<Mail>,
        context: &mut Context<'_>,
    ) -> bool {
        let any = !marks.is_empty() || !mail.is_empty();
        for mark in marks.drain(..) {
            let (session, end) = match mark {
                Mark::Ready { session, end } | Mark::Released { session, end } => (session, end),
            };
            self.connections.mark_active(session);
            if let Some(connection) = self.connections.all.get_mut(session) {
                match mark {
                    Mark::Ready { .. } => connection.core.ends.senders.ring_is_ready(end),
                    Mark::Released { .. } => {
                        connection
                            .core
                            .ends
                            .receivers
                            .prefix_moved(end, &mut connection.core.common);
                    }
                }
            }
        }
        self.take_mail(mail, context);
        any
    }

    /// Takes in the readiness that epoll reported to the leader, or asks epoll if that is due.
    /// Returns whether epoll reported any. This turn then takes in all of it, and more may wait
    /// behind it.
    #[inline]
    fn take_readiness(&mut self, ready: &ReadyWires, context: &mut Context<'_>) -> bool {
        if !ready.is_empty() {
            return self.take_sent(ready, context);
        }
        let is_due =
            self.turns.is_multiple_of(TURNS_PER_EPOLL) || self.connections.tools.share_is_spent;
        is_due && self.ask_epoll(context)
    }

    #[inline(never)]
    fn ask_epoll(&mut self, context: &mut Context<'_>) -> bool {
        if self.connections.tools.reactor.is_some() {
            let now = clock::now();
            if now - *self.unstepped_since.get_or_insert(now) > TIME_WITHOUT_STEP {
                self.connections.leave_reactor();
            }
        }
        self.connections.tools.share_is_spent = false;
        let mut ready = ReadyWires::NOTHING;
        poll::sleep(
            &self.connections.tools.epoll,
            Some(Duration::ZERO),
            &mut ready,
        );
        self.take_sent(&ready, context)
    }

    #[inline(never)]
    fn take_sent(&mut self, ready: &ReadyWires, context: &mut Context<'_>) -> bool {
        for readiness in ready.iter() {
            self.handle_readiness(readiness, context);
        }
        !ready.is_empty()
    }

    fn handle_readiness(&mut self, readiness: Readiness, context: &mut Context<'_>) {
        match readiness.token {
            TOKEN_BELL => {
                if context.may_drain {
                    context.bell.drain();
                }
                self.connections.answer_guards(context);
            }
            TOKEN_ALARM => {
                if let Some(alarm) = &mut self.alarm {
                    alarm.went_off();
                }
                self.note_time(clock::now());
            }
            TOKEN_CONTROLS => self.controls.is_ready(clock::now()),
            token if token & PORT_WIRE == PORT_WIRE => {
                self.ports
                    .is_ready(token >> 2, &mut self.connections, context);
                self.share_credit(context);
            }
            token => {
                let session = token >> 2;
                self.connections.mark_active(session);
                let Connections {
                    all,
                    deadlines,
                    watch,
                    tools,
                    ..
                } = &mut self.connections;
                let Some(connection) = all.get_mut(session) else {
                    return;
                };
                match token & 3 {
                    bell if bell == EpollToken::Bell as u64 => {
                        connection.core.bell_rang(tools, context);
                        deadlines.note(connection);
                        watch.take_in(connection);
                        if self.is_watched {
                            // The program that runs this turn looks for messages after it.
                            connection.core.arm_receivers();
                        }
                    }
                    unix if unix == EpollToken::Unix as u64 => {
                        connection.core.check_unix(context);
                        deadlines.note(connection);
                    }
                    _ => connection.socket.is_reported(readiness.readable),
                }
            }
        }
    }

    #[inline]
    fn turn_active_connections(&mut self, context: &mut Context<'_>) -> bool {
        let sleeps_elsewhere = self.sleeps_elsewhere();
        let mut progress = false;
        let mut at = 0;
        while at < self.connections.hot.len() {
            let Connections {
                all,
                hot,
                deadlines,
                watch,
                credit,
                tools,
                ..
            } = &mut self.connections;
            let session = hot[at];
            let Some(connection) = all.get_mut(session) else {
                hot.swap_remove(at);
                continue;
            };
            let has_moved = connection.turn(tools, context);
            // A program or executor that sleeps on the epoll set needs every socket in the set.
            if !sleeps_elsewhere {
                let reads = connection.wire.reads_every_turn();
                connection.socket.stay_awake(reads, &tools.epoll);
            }
            if has_moved {
                progress = true;
                connection.mark_active = ACTIVE_TURNS;
                watch.take_in(connection);
                credit.take_report(connection);
            } else {
                connection.socket.has_not_moved();
                connection.mark_active = connection.mark_active.saturating_sub(1);
                if connection.mark_active > 0
                    && connection.core.is_undisturbed()
                    && !connection.waits_for_completions()
                    && !connection.has_left_device
                {
                    at += 1;
                    continue;
                }
            }
            deadlines.note(connection);
            if connection.has_left_device {
                self.left_port(session, context);
                at += 1;
            } else if connection.is_finished() {
                self.remove(session, context);
            } else if (connection.waits_for_completions()
                || connection.mark_active == 0 && connection.is_cold())
                && connection.socket.join(tools).is_ok()
            {
                connection.is_hot = false;
                hot.swap_remove(at);
            } else {
                at += 1;
            }
        }
        progress
    }

    fn expire(&mut self, now: Instant, context: &mut Context<'_>) {
        let Connections { all, deadlines, .. } = &mut self.connections;
        if deadlines.next(all).is_none_or(|next| now < next) {
            return;
        }
        let due = deadlines.due(now);
        for &session in &due {
            let Connections {
                all,
                deadlines,
                credit,
                tools,
                ..
            } = &mut self.connections;
            let Some(connection) = all.get_mut(session) else {
                continue;
            };
            deadlines.forget(connection);
            connection.expire(now, tools, context);
            deadlines.note(connection);
            credit.take_report(connection);
            if connection.has_left_device {
                self.left_port(session, context);
            } else if connection.is_finished() {
                self.remove(session, context);
            }
        }
        self.connections.deadlines.give_back(due);
        // Sessions that have ended leave credit. Without this, sessions that wait for it would
        // sleep on.
        self.share_credit(context);
    }
}

/// Time in which calls turn the engine and the executor runs neither task. After it the calls are
/// held to keep the reactor from running.
const TIME_WITHOUT_STEP: Duration = Duration::from_millis(10);

/// Turns between two calls of epoll while no thread sleeps in the set.
const TURNS_PER_EPOLL: u64 = 64;
