//! What threads wait for on a line.

use std::task::Waker;

use ibex_core::extend::parking::Condition;

use super::Line;
use crate::{
    header::CallId,
    slots::{CallKey, CallPoll},
};

/// The condition "the call may be sent, or no call ever will".
pub(super) struct Turn<'a> {
    pub(super) line: &'a Line,
    pub(super) key: CallKey,
}

impl Condition for Turn<'_> {
    type Output = Option<CallId>;

    fn look(&mut self) -> Option<Self::Output> {
        let found = {
            let mut slots = self.line.slots();
            match slots.id(self.key) {
                Some(id) => Some(Some(id)),
                None => slots.over().is_some().then_some(None),
            }
        };
        let found = found.or_else(|| self.line.session.peer_drains().then_some(None));
        if found.is_none() {
            // Calls under way end by frames that have arrived.
            self.line.take_in_in_passing();
        }
        found
    }

    fn register(&mut self, waker: &Waker) {
        let _before = self.line.slots().set_waker(self.key, Some(waker));
        self.line.take_in_in_passing();
    }

    fn leave(&mut self) {
        let _before = self.line.slots().set_waker(self.key, None);
    }
}

/// The condition "a frame has come for the call". Another thread may be taking in frames.
pub(super) struct FrameArrival<'a> {
    pub(super) line: &'a Line,
    pub(super) key: CallKey,
}

impl Condition for FrameArrival<'_> {
    type Output = CallPoll;

    fn look(&mut self) -> Option<CallPoll> {
        let found = |look: CallPoll| (!matches!(look, CallPoll::Nothing)).then_some(look);
        let look = self.line.slots().look(self.key);
        found(look).or_else(|| {
            let mut inbox = self.line.inbox.try_hold()?;
            let line = self.line;
            line.take_in(&mut inbox);
            line.inbox.leave(inbox, |inbox| line.take_in(inbox));
            found(line.slots().look(self.key))
        })
    }

    fn register(&mut self, waker: &Waker) {
        let _before = self.line.slots().set_waker(self.key, Some(waker));
        self.line.take_in_in_passing();
    }

    fn leave(&mut self) {
        let _before = self.line.slots().set_waker(self.key, None);
    }
}
