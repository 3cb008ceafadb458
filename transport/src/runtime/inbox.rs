//! What handles and other engines leave for an engine between its turns.

use std::{mem, sync::atomic::Ordering};

use ibex_base::sync::{AtomicBool, Mutex, lock};

use super::unpolled::{self, Unpolled};
use crate::{engine::Mail, node::Mark};

/// The marks and mail for an engine. While there are some, the engine's leadership is marked.
#[derive(Default)]
pub(super) struct EngineInbox {
    left: Mutex<LeftForEngine>,
    /// True if a guard rang since a turn last answered guards (`Driver::Caller`).
    guard_rang: AtomicBool,
}

#[derive(Default)]
struct LeftForEngine {
    marks: Vec<Mark>,
    mail: Vec<Mail>,
    /// Messages that `marks` tell of, where only calls take the marks.
    unpolled: Unpolled,
}

impl EngineInbox {
    /// Leaves a mark; `awaits_call` if only a call of the program takes it.
    pub(super) fn leave_mark(&self, mark: Mark, awaits_call: bool) {
        let mut left = lock(&self.left);
        // A second equal mark adds nothing, and would leave the list without a bound.
        if !left.marks.contains(&mark) {
            left.marks.push(mark);
        }
        let mut unpolled = None;
        if awaits_call && matches!(mark, Mark::Ready { .. }) {
            unpolled = left.unpolled.take_notice();
            left.unpolled.message_waits();
        }
        drop(left);
        unpolled::warn(unpolled);
    }

    pub(super) fn leave_mail(&self, mail: Mail) {
        lock(&self.left).mail.push(mail);
    }

    /// Appends the marks to `marks`, and returns the mail.
    pub(super) fn take(&self, marks: &mut Vec<Mark>) -> Vec<Mail> {
        let mut left = lock(&self.left);
        marks.append(&mut left.marks);
        let mail = mem::take(&mut left.mail);
        let unpolled = left.unpolled.turn_comes();
        drop(left);
        unpolled::warn(unpolled);
        mail
    }

    /// Warns once of messages that have waited long for a call.
    pub(super) fn warn_of_unpolled(&self) {
        let unpolled = lock(&self.left).unpolled.take_notice();
        unpolled::warn(unpolled);
    }

    /// Notes that a guard rings.
    pub(super) fn guard_rings(&self) {
        // RANG, pairs with `guard_rang`: the engine sees the cell that the guard settled. A swap
        // and not a store, which would overwrite the release of a guard that rang before.
        self.guard_rang.swap(true, Ordering::Release);
    }

    /// Returns whether a guard rang since the last call. This is for `Driver::Caller`; elsewhere
    /// the bell reports guards through epoll.
    pub(super) fn guard_rang(&self) -> bool {
        // RANG, pairs with `guard_rings`.
        self.guard_rang.load(Ordering::Relaxed) && self.guard_rang.swap(false, Ordering::Acquire)
    }
}
