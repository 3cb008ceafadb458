//! What handles and other engines leave for an engine between its turns.

use std::mem;

use ibex_base::sync::{Mutex, lock};

use super::unpolled::{self, Unpolled};
use crate::{engine::Mail, node::Mark};

/// The marks and mail for an engine. While there are some, the engine's leadership is marked.
#[derive(Default)]
pub(super) struct EngineInbox {
    left: Mutex<LeftForEngine>,
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
}
