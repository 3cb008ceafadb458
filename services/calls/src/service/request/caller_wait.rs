//! The wait of a handler for its caller.

use std::sync::atomic::Ordering;

use crate::service::client::Client;

/// A handler's wait for its caller, during which it takes in arriving frames.
pub(super) struct CallerWait<'a>(&'a Client);

impl<'a> CallerWait<'a> {
    pub(super) fn on(client: &'a Client) -> Self {
        // WAITS: the wait begins with `run_claimed`, whose fence pairs with `ServiceState::woken`.
        client.service.waiting.fetch_add(1, Ordering::Relaxed);
        Self(client)
    }
}

impl Drop for CallerWait<'_> {
    fn drop(&mut self) {
        self.0.service.waiting.fetch_sub(1, Ordering::Relaxed);
    }
}
