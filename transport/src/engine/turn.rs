//! The turn: moves everything that is ready, once.

use std::{
    mem,
    time::{Duration, Instant},
};

use super::{
    Engine, HOT_TURNS, Mail, Mark,
    credit::report_credit,
    heat_link, note_deadline,
    poll::{
        self, PORT_WIRE, Readiness, Ready, TOKEN_ALARM, TOKEN_BELL, TOKEN_DIALER, TOKEN_LISTENER,
    },
};
use crate::{
    clock,
    connection::Context,
    wire::{EpollToken, Wire},
};

impl Engine {
    /// Moves everything that can move. Returns whether anything did.
    #[inline]
    pub(crate) fn turn(&mut self, ready: &Ready, context: &mut Context<'_>) -> bool {
        self.turns += 1;
        let mut progress = self.take_readiness(ready, context);
        // Published messages go out before completion queues are polled for more. Completions that
        // a look has found already come first: a thread waits for them, and the sessions had their
        // turn in the round before.
        if !self.has_found_completions() {
            progress |= self.turn_hot_links(context);
        }
        progress |= self.turn_ports(context);
        if self.is_left() {
            progress |= self.turn_hot_links(context);
        }
        self.share_credit(context);
        let is_due = self.watch.is_due || self.port_looks.is_due;
        if is_due || self.turns.is_multiple_of(TURNS_PER_EPOLL) {
            progress |= self.look_for_silence(context);
            self.look_for_devices(context);
            if self.warnings.are_held() {
                self.warnings.tell_held(Instant::now());
            }
        }
        // Reading the clock costs a tenth of a system call, so it is read only if there may be a
        // deadline.
        if self.controls.deadline.is_some() || !self.timed.is_empty() {
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
        let Some(link) = self.links.get_mut(session) else {
            return false;
        };
        let is_posted = link.send_lone_record(&mut self.tools);
        if is_posted {
            heat_link(link, &mut self.hot);
            self.watch.take_in(link);
        }
        is_posted
    }

    /// Runs the part of a turn that a waiting thread needs immediately: handles completions that a
    /// look has found, and sends what they allow.
    #[inline]
    pub(crate) fn take_completions(&mut self, context: &mut Context<'_>) {
        self.take_found(context);
    }

    /// Takes in the marks and mail that handles and other engines have left. `marks` is empty
    /// afterwards. Returns whether there were any.
    #[inline(never)]
    pub(crate) fn take_news(
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
            self.heat(session);
            if let Some(link) = self.links.get_mut(session) {
                match mark {
                    Mark::Ready { .. } => link.core.ends.senders.ring_is_ready(end),
                    Mark::Released { .. } => {
                        link.core
                            .ends
                            .receivers
                            .prefix_moved(end, &mut link.core.common);
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
    fn take_readiness(&mut self, ready: &Ready, context: &mut Context<'_>) -> bool {
        if !ready.is_empty() {
            return self.take_said(ready, context);
        }
        let is_due = self.turns.is_multiple_of(TURNS_PER_EPOLL) || self.tools.share_is_spent;
        is_due && self.ask_epoll(context)
    }

    #[inline(never)]
    fn ask_epoll(&mut self, context: &mut Context<'_>) -> bool {
        self.tools.share_is_spent = false;
        let ready = poll::sleep(&self.tools.epoll, Some(Duration::ZERO));
        self.take_said(&ready, context)
    }

    #[inline(never)]
    fn take_said(&mut self, ready: &Ready, context: &mut Context<'_>) -> bool {
        for &readiness in ready.as_slice() {
            self.handle_readiness(readiness, context);
        }
        !ready.is_empty()
    }

    fn handle_readiness(&mut self, readiness: Readiness, context: &mut Context<'_>) {
        match readiness.token {
            TOKEN_BELL => {
                context.surroundings.drain_bell();
                self.answer_guards(context);
            }
            TOKEN_ALARM => {
                if let Some(alarm) = &mut self.alarm {
                    alarm.went_off();
                }
                self.note_time(clock::now());
            }
            TOKEN_LISTENER | TOKEN_DIALER => self.controls.is_ready(clock::now()),
            token if token & PORT_WIRE == PORT_WIRE => self.port_is_ready(token >> 2, context),
            token => {
                let session = token >> 2;
                self.heat(session);
                let Some(link) = self.links.get_mut(session) else {
                    return;
                };
                match token & 3 {
                    bell if bell == EpollToken::Bell as u64 => {
                        link.core.bell_rang(&self.tools, context);
                        note_deadline(link, &mut self.timed);
                        self.watch.take_in(link);
                        if self.is_watched {
                            // The program that runs this turn looks for messages after it.
                            link.core.arm_receivers();
                        }
                    }
                    unix if unix == EpollToken::Unix as u64 => {
                        link.core.look_at_unix(context);
                        note_deadline(link, &mut self.timed);
                    }
                    _ => link.socket.readable |= readiness.readable,
                }
            }
        }
    }

    /// Sums the cells of ends that were asked, because a guard settled while a sender waits.
    #[inline(never)]
    pub(crate) fn answer_guards(&mut self, context: &mut Context<'_>) {
        for link in self.links.values_mut() {
            if link.core.ends.answer_guards(&mut link.core.common, context)
                && !mem::replace(&mut link.is_hot, true)
            {
                self.hot.push(link.id());
            }
        }
    }

    #[inline]
    fn turn_hot_links(&mut self, context: &mut Context<'_>) -> bool {
        let sleeps_elsewhere = self.sleeps_elsewhere();
        let mut progress = false;
        let mut at = 0;
        while at < self.hot.len() {
            let session = self.hot[at];
            let Some(link) = self.links.get_mut(session) else {
                self.hot.swap_remove(at);
                continue;
            };
            let has_moved = link.turn(&mut self.tools, context);
            // A program or executor that sleeps on the epoll set needs every socket in the set.
            if !sleeps_elsewhere {
                let reads = link.wire.reads_every_turn();
                link.socket.stay_awake(reads, &self.tools.epoll);
            }
            if has_moved {
                progress = true;
                link.heat = HOT_TURNS;
                self.watch.take_in(link);
                let report = link.core.common.take_credit_report();
                report_credit(
                    &mut self.credit.broker,
                    &mut self.rdma_ports,
                    session,
                    report,
                );
            } else {
                link.heat = link.heat.saturating_sub(1);
                if link.heat > 0
                    && link.core.is_undisturbed()
                    && !link.waits_for_completions()
                    && !link.has_left_device
                {
                    at += 1;
                    continue;
                }
            }
            note_deadline(link, &mut self.timed);
            if link.has_left_device {
                self.left_port(session, context);
                at += 1;
            } else if link.is_finished() {
                self.remove(session, context);
            } else if (link.waits_for_completions() || link.heat == 0 && link.is_cold())
                && link.socket.join(&self.tools.epoll).is_ok()
            {
                link.is_hot = false;
                self.hot.swap_remove(at);
            } else {
                at += 1;
            }
        }
        progress
    }

    fn expire(&mut self, now: Instant, context: &mut Context<'_>) {
        let links = &self.links;
        let is_due = |&id: &u64| {
            let deadline = links.get(id).and_then(|link| link.core.common.deadline());
            deadline.is_none_or(|deadline| deadline <= now)
        };
        if !self.timed.iter().any(is_due) {
            return;
        }
        let mut at = 0;
        while at < self.timed.len() {
            let session = self.timed[at];
            let Some(link) = self.links.get_mut(session) else {
                self.timed.swap_remove(at);
                continue;
            };
            link.expire(now, &mut self.tools, context);
            let report = link.core.common.take_credit_report();
            report_credit(
                &mut self.credit.broker,
                &mut self.rdma_ports,
                session,
                report,
            );
            if link.has_left_device {
                self.left_port(session, context);
                at += 1;
            } else if link.is_finished() {
                self.remove(session, context);
            } else if link.core.common.deadline().is_none() {
                self.timed.swap_remove(at);
            } else {
                at += 1;
            }
        }
        // Sessions that have ended leave credit. Without this, sessions that wait for it would
        // sleep on.
        self.share_credit(context);
    }
}

/// Turns between two calls of epoll while no thread sleeps in the set.
const TURNS_PER_EPOLL: u64 = 64;
