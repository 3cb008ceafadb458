//! The wait for an endpoint, for a task.

use std::{
    future::{Future, poll_fn},
    pin::{Pin, pin},
    task::{Context, Poll, Waker},
    time::{Duration, Instant},
};

use ibex_core::extend::{WakeUps, parking::Ticket};

use super::{
    alarms::AlarmKey,
    endpoints::{ChosenEndpoint, Endpoints, NoEndpoint, PeerEndpoint, soonest},
    tried::Tried,
};

/// A wait for an endpoint. Dropping the future changes nothing.
pub struct EndpointWait<'a, T> {
    endpoints: &'a Endpoints<T>,
    tried: &'a mut Tried,
    deadline: Option<Instant>,
    /// The task's place among those that wait at the board.
    held: Option<Ticket>,
    alarm: HeldAlarm<'a, T>,
}

/// An alarm of a task, which is taken back when it is dropped.
struct HeldAlarm<'a, T> {
    endpoints: &'a Endpoints<T>,
    held: Option<AlarmKey>,
}

impl<'a, T> EndpointWait<'a, T> {
    pub(super) fn new(
        endpoints: &'a Endpoints<T>,
        tried: &'a mut Tried,
        deadline: Option<Instant>,
    ) -> Self {
        Self {
            endpoints,
            tried,
            deadline,
            held: None,
            alarm: HeldAlarm::new(endpoints),
        }
    }
}

impl<T> Future for EndpointWait<'_, T> {
    type Output = Result<ChosenEndpoint<T>, NoEndpoint>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        let (endpoints, waker) = (this.endpoints, context.waker());
        loop {
            let (tried, held) = (&mut *this.tried, &mut this.held);
            let polled = endpoints.board.poll(held, waker, || endpoints.check(tried));
            let Poll::Ready(found) = polled else {
                break;
            };
            if let Some(result) = endpoints.result(Some(found)) {
                return Poll::Ready(result);
            }
        }
        if this
            .deadline
            .is_some_and(|deadline| Instant::now() >= deadline)
        {
            return Poll::Ready(Err(NoEndpoint::Late));
        }
        if let Some(at) = soonest(this.deadline, this.tried.pause_until()) {
            this.alarm.set(at, waker);
        }
        Poll::Pending
    }
}

impl<T> Drop for EndpointWait<'_, T> {
    fn drop(&mut self) {
        self.endpoints.board.leave(&mut self.held);
    }
}

impl<T> Endpoints<T> {
    /// Runs a future on the calling thread.
    pub fn block_on<F: Future>(&self, future: F) -> F::Output {
        WakeUps::block_on(self.board.runtime(), future)
    }

    /// Polls a call until it is ready or the time `at` has come; `None` if that came first. Once the
    /// keeping has ended, the time may not come.
    pub async fn until<F: Future>(&self, at: Instant, mut call: Pin<&mut F>) -> Option<F::Output> {
        let mut alarm = HeldAlarm::new(self);
        poll_fn(|context| {
            if let Poll::Ready(output) = call.as_mut().poll(context) {
                return Poll::Ready(Some(output));
            }
            if Instant::now() >= at {
                return Poll::Ready(None);
            }
            alarm.set(at, context.waker());
            Poll::Pending
        })
        .await
    }

    /// Waits for a call that was begun with `endpoint`, as long as its peer has opened its end or no
    /// other one that `tried` allows has. `None` if another has, or the keeping has ended; the call
    /// was not sent then.
    pub async fn unless_in_vain<F: Future>(
        &self,
        endpoint: &PeerEndpoint<T>,
        tried: &Tried,
        call: F,
    ) -> Option<F::Output> {
        if self.is_open(endpoint) == Some(true) {
            return Some(call.await);
        }
        let (mut call, mut alarm) = (pin!(call), HeldAlarm::new(self));
        poll_fn(|context| {
            if let Poll::Ready(output) = call.as_mut().poll(context) {
                return Poll::Ready(Some(output));
            }
            if self.is_open(endpoint) == Some(true) {
                return Poll::Pending;
            }
            // Before the check of the board, whose end comes before that of the alarms.
            alarm.set_within(POLL_FOR_OPEN, context.waker());
            let is_over = self.board.is_over();
            match self.is_open(endpoint) {
                Some(false) if is_over || self.is_served_elsewhere(tried) => {
                    return Poll::Ready(None);
                }
                // A thread is sending there, and no alarm sounds any more.
                None if is_over => context.waker().wake_by_ref(),
                _ => {}
            }
            Poll::Pending
        })
        .await
    }
}

impl<'a, T> HeldAlarm<'a, T> {
    fn new(endpoints: &'a Endpoints<T>) -> Self {
        let held = None;
        Self { endpoints, held }
    }

    fn set(&mut self, at: Instant, waker: &Waker) {
        self.endpoints.wake_at(&mut self.held, at, waker);
    }

    /// Sets an alarm that sounds after `pause`, unless one does before.
    fn set_within(&mut self, pause: Duration, waker: &Waker) {
        let (now, held) = (Instant::now(), self.held.map(|(at, _)| at));
        let at = held.filter(|at| *at > now).unwrap_or(now + pause);
        self.set(at, waker);
    }
}

impl<T> Drop for HeldAlarm<'_, T> {
    fn drop(&mut self) {
        self.endpoints.leave_alarm(&mut self.held);
    }
}

/// The time after which a task that waits for a peer to open its end looks whether another one has.
const POLL_FOR_OPEN: Duration = Duration::from_millis(100);
