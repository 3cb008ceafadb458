//! What a call waits for: its turn, and its next frame.

use std::task::Waker;

use ibex_core::extend::parking::Condition;

use super::CallerState;
use crate::{
    caller::slots::{CallKey, NextFrame},
    header::CallId,
};

/// The condition "the call may be sent, or no call ever will".
pub(super) struct Turn<'a> {
    pub(super) state: &'a CallerState,
    pub(super) key: CallKey,
}

impl Condition for Turn<'_> {
    type Output = Option<CallId>;

    fn check(&mut self) -> Option<Self::Output> {
        let found = {
            let mut slots = self.state.slots();
            match slots.id(self.key) {
                Some(id) => Some(Some(id)),
                None => slots.over().is_some().then_some(None),
            }
        };
        let found = found.or_else(|| self.state.session.peer_drains().then_some(None));
        if found.is_none() {
            // Calls under way end by frames that have arrived.
            self.state.take_in_if_free();
        }
        found
    }

    fn register(&mut self, waker: &Waker) {
        let _before = self.state.slots().set_waker(self.key, Some(waker));
        self.state.take_in_if_free();
    }

    fn leave(&mut self) {
        let _before = self.state.slots().set_waker(self.key, None);
    }
}

/// The condition "a frame has come for the call". Another thread may be taking in frames.
pub(super) struct FrameArrival<'a> {
    pub(super) state: &'a CallerState,
    pub(super) key: CallKey,
}

impl Condition for FrameArrival<'_> {
    type Output = NextFrame;

    fn check(&mut self) -> Option<NextFrame> {
        let state = self.state;
        let next = state.slots().next_frame(self.key);
        next.or_else(|| {
            let mut inbox = state.inbox.try_hold()?;
            state.take_in(&mut inbox);
            state.inbox.leave(inbox, |inbox| state.take_in(inbox));
            state.slots().next_frame(self.key)
        })
    }

    fn register(&mut self, waker: &Waker) {
        let _before = self.state.slots().set_waker(self.key, Some(waker));
        self.state.take_in_if_free();
    }

    fn leave(&mut self) {
        let _before = self.state.slots().set_waker(self.key, None);
    }
}
