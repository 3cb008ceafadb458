//! Events for the keeper, and its sleep until there are some.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::Waker,
    time::{Duration, Instant},
};

use ibex_core::extend::parking::{self, AtSlot, ReadySet, WaitSlot};

use super::alarms::{AlarmKey, TaskAlarms};
use crate::addresses::DiscoveryError;

/// Events for the keeper. A thread that leaves events never waits for the keeper.
#[derive(Default)]
pub(super) struct Inbox {
    pub(super) changes: Arc<ReadySet<Changes>>,
    /// The waiting place of the thread that asks the discovery, which is to stop.
    discovery: WaitSlot,
    is_stopped: AtomicBool,
    /// Times at which the keeper wakes tasks.
    pub(super) alarms: TaskAlarms,
}

pub(super) enum Changes {
    /// The discovery has answered.
    Found(Vec<String>),
    /// The discovery has failed, and is asked again then.
    NotFound(DiscoveryError, Instant),
    /// The attempt at this address has an outcome.
    Dialed(String),
    /// The session with this address is over, or its peer drains.
    Changed(String),
    /// An alarm was set that is sooner than those before.
    Alarm,
    /// The node was closed.
    Closed,
}

impl Inbox {
    /// Has the keeper's thread call `waker` at `at`, in place of the alarm `held`.
    pub(super) fn wake_at(&self, held: &mut Option<AlarmKey>, at: Instant, waker: &Waker) {
        if self.alarms.set(held, at, waker) {
            self.changes.push(Changes::Alarm);
        }
    }

    /// Returns the next event; `None` when `due` has come, or at once after the stop.
    pub(super) fn next(&self, due: Option<Instant>) -> Option<Changes> {
        let check = || match self.is_stopped() {
            true => Some(None),
            false => self.changes.pop().map(Some),
        };
        let mut held = None;
        let changes = AtSlot::new(self.changes.waiters(), &mut held, check);
        parking::block(changes, due).ok().flatten()
    }

    /// Waits for `pause`, or until the inbox is stopped. Returns whether the keeper goes on.
    pub(super) fn pause(&self, pause: Duration) -> bool {
        let mut held = None;
        let check = || self.is_stopped().then_some(());
        let stopped = AtSlot::new(&self.discovery, &mut held, check);
        parking::block(stopped, Instant::now().checked_add(pause)).is_err()
    }

    pub(super) fn stop(&self) {
        // Each slot's barrier orders this before the question whether a thread waits there.
        self.is_stopped.store(true, Ordering::Relaxed);
        self.changes.waiters().wake_all();
        self.discovery.wake_all();
    }

    pub(super) fn is_stopped(&self) -> bool {
        self.is_stopped.load(Ordering::Relaxed)
    }
}
