//! Events of kept peers, for tasks.

use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll},
};

use super::{PeersEvent, PeersEvents};

/// The next event of kept peers. See [`PeersEvents::next_async`].
pub(crate) struct PeersEventAsync<'a>(pub(super) &'a mut PeersEvents);

impl Future for PeersEventAsync<'_> {
    type Output = Option<PeersEvent>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<PeersEvent>> {
        self.get_mut().0.poll_next(context)
    }
}

impl Drop for PeersEventAsync<'_> {
    fn drop(&mut self) {
        self.0.leave();
    }
}
