//! What a handler of a stream waits for.

use std::task::Waker;

use ibex_core::{SendError, extend::parking::Condition};

use super::Client;
use crate::header::CallId;

/// The condition "an item may be sent, or the caller no longer waits for it".
pub(crate) struct ForCredit<'a> {
    pub(super) client: &'a Client,
    pub(super) id: CallId,
}

impl Condition for ForCredit<'_> {
    type Output = Result<(), SendError>;

    fn check(&mut self) -> Option<Self::Output> {
        self.client.credit(self.id).or_else(|| {
            self.client.service.run_claimed();
            self.client.credit(self.id)
        })
    }

    fn register(&mut self, waker: &Waker) {
        self.client.set_waker(self.id, Some(waker));
        self.client.service.run_claimed();
    }

    fn leave(&mut self) {
        self.client.set_waker(self.id, None);
    }
}
