//! A future of any poll that leaves a waker somewhere.

use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll},
};

/// Returns a future that is ready when `poll` is. When it is dropped, ready or not, `leave` takes
/// back the waker that `poll` left.
pub fn future<E, T>(
    end: E,
    poll: impl FnMut(&mut E, &mut Context<'_>) -> Poll<T>,
    leave: impl FnMut(&mut E),
) -> impl Future<Output = T> {
    PollFuture { end, poll, leave }
}

struct PollFuture<E, P, L: FnMut(&mut E)> {
    end: E,
    poll: P,
    leave: L,
}

// Nothing in it is pinned.
impl<E, P, L: FnMut(&mut E)> Unpin for PollFuture<E, P, L> {}

impl<E, T, P, L> Future for PollFuture<E, P, L>
where
    P: FnMut(&mut E, &mut Context<'_>) -> Poll<T>,
    L: FnMut(&mut E),
{
    type Output = T;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<T> {
        let Self { end, poll, .. } = self.get_mut();
        poll(end, context)
    }
}

impl<E, P, L: FnMut(&mut E)> Drop for PollFuture<E, P, L> {
    fn drop(&mut self) {
        (self.leave)(&mut self.end);
    }
}

#[cfg(test)]
mod tests {
    use std::{cell::Cell, task::Waker};

    use super::*;

    #[test]
    fn dropping_the_future_takes_the_waker_back_once() {
        let left = Cell::new(0);
        let is_ready = Cell::new(false);
        let mut future = future(
            &left,
            |_, _| match is_ready.get() {
                true => Poll::Ready(7),
                false => Poll::Pending,
            },
            |left| left.set(left.get() + 1),
        );
        let mut context = Context::from_waker(Waker::noop());
        let mut poll = || Pin::new(&mut future).poll(&mut context);
        assert_eq!(poll(), Poll::Pending);
        is_ready.set(true);
        assert_eq!(poll(), Poll::Ready(7));
        assert_eq!(left.get(), 0);
        drop(future);
        assert_eq!(left.get(), 1);
    }
}
