//! Going to sleep: the engine arms everything and looks once more. The earliest deadline ends the
//! sleep.

use std::time::Instant;

use super::Engine;
use crate::{
    clock,
    node::{Warning, warn_of},
};

impl Engine {
    /// Arms everything for which peers must ring, for a program that sleeps on the epoll set
    /// itself. Returns whether it armed anything; then the program must look again.
    pub(crate) fn arm_receivers(&mut self) -> bool {
        let links = self.links.values_mut();
        let armed = links.fold(false, |any, link| link.core.arm_receivers() | any);
        self.arm_ports_once() | armed
    }

    /// Adds hot sessions to the epoll set again. Returns whether the set now reports every session.
    pub(crate) fn join_epoll(&mut self) -> bool {
        let mut all = true;
        for &session in &self.hot {
            if let Some(link) = self.links.get_mut(session)
                && let Err(error) = link.socket.join(&self.tools.epoll)
            {
                warn_of!(
                    self.warnings,
                    Warning::NoEpoll,
                    error,
                    %error, "epoll does not take a session back; polling it instead"
                );
                all = false;
            }
        }
        all
    }

    /// Arms every ring and looks once more. Returns `None` if there is work, or if `stay_awake` is
    /// set: then the caller must not sleep. Otherwise returns the time to wake up at the latest, if
    /// there is one.
    pub(crate) fn prepare_sleep(
        &mut self,
        now: Instant,
        stay_awake: bool,
    ) -> Option<Option<Instant>> {
        let is_told = self.join_epoll();
        let mut armed = false;
        for &session in &self.hot {
            if let Some(link) = self.links.get_mut(session) {
                armed |= link.core.ends.senders.arm_rings();
            }
        }
        if armed {
            // DOORBELL: this is the heavy half for all words set above. It pairs with the light
            // half in `Doorbell::is_due`.
            self.asymmetry.heavy_here();
        }
        let mut work = stay_awake || !is_told || self.is_finished() || self.arm_ports();
        for &session in &self.hot {
            if let Some(link) = self.links.get_mut(session) {
                work |= link.look_at_armed_rings() || link.has_leftover();
                link.heat = 0;
            }
        }
        if work {
            return None;
        }
        let links = &mut self.links;
        self.hot.retain(|&session| {
            let Some(link) = links.get_mut(session) else {
                return false;
            };
            link.is_hot = !link.is_cold();
            link.is_hot
        });
        self.warnings.tell_held(now);
        let next = self.deadline();
        self.note_time(now);
        if next.is_some_and(|next| next <= now) {
            None
        } else {
            Some(next)
        }
    }

    /// Returns the time at which there is something to do even if no event comes.
    fn deadline(&self) -> Option<Instant> {
        let deadlines = self
            .timed
            .iter()
            .filter_map(|&id| self.links.get(id)?.core.common.deadline());
        deadlines
            .chain(self.controls.deadline)
            .chain(self.closing.deadline())
            .chain(self.watch.next_look())
            .chain(self.port_looks.next())
            .chain(self.warnings.next_due())
            .min()
    }

    /// Sets the alarm for `next`, for a program or executor that sleeps on the epoll set itself.
    pub(crate) fn set_alarm(&mut self, now: Instant, next: Option<Instant>) {
        self.sleeps_until = next;
        if let Some(alarm) = &mut self.alarm {
            alarm.set(now, next);
        }
    }

    /// Sets the alarm for the earliest deadline.
    pub(crate) fn set_alarm_for_deadline(&mut self) {
        let next = self.deadline();
        self.set_alarm(clock::now(), next);
    }

    /// Returns whether the leader would wake too late for a deadline that was added since it fell
    /// asleep.
    pub(crate) fn is_overslept(&self) -> bool {
        self.deadline()
            .is_some_and(|deadline| self.sleeps_until.is_none_or(|until| deadline < until))
    }
}
