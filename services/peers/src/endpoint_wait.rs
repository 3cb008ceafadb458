//! The wait for an endpoint, for a task.

use std::{
    future::{Future, poll_fn},
    pin::{Pin, pin},
    task::{Context, Poll, Waker},
    time::{Duration, Instant},
};

use ibex_core::extend::{
    WakeUps,
    parking::{self, Ticket},
};

use super::{
    alarms::AlarmKey,
    endpoints::{ChosenEndpoint, Endpoints, NoEndpoint, PeerEndpoint},
    inbox::Inbox,
    tried::Tried,
};

/// An alarm of a task, which is taken back when it is dropped.
struct HeldAlarm<'a> {
    inbox: &'a Inbox,
    held: Option<AlarmKey>,
}

impl<T> Endpoints<T> {
    /// Waits as [`choose`](Self::choose) does, for a task. Dropping the future changes nothing.
    pub fn choose_async<'a>(
        &'a self,
        tried: &'a mut Tried,
        deadline: Option<Instant>,
    ) -> impl Future<Output = Result<ChosenEndpoint<T>, NoEndpoint>> + use<'a, T> {
        let mut alarm = HeldAlarm::new(&self.inbox);
        let poll = move |held: &mut Option<Ticket>, context: &mut Context<'_>| {
            let waker = context.waker();
            while let Poll::Ready(found) = self.board.poll(held, waker, || self.check(tried)) {
                if let Some(result) = self.result(Some(found)) {
                    return Poll::Ready(result);
                }
            }
            if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                return Poll::Ready(Err(NoEndpoint::Late));
            }
            if let Some(at) = deadline.into_iter().chain(tried.pause_until()).min() {
                alarm.set(at, waker);
            }
            Poll::Pending
        };
        parking::future(None, poll, |held| self.board.leave(held))
    }

    /// Runs a future on the calling thread.
    pub fn block_on<F: Future>(&self, future: F) -> F::Output {
        WakeUps::block_on(self.board.runtime(), future)
    }

    /// Polls a call until it is ready or the time `at` has come; `None` if that came first. Once the
    /// keeping has ended, the time may not come.
    pub async fn until<F: Future>(&self, at: Instant, mut call: Pin<&mut F>) -> Option<F::Output> {
        let mut alarm = HeldAlarm::new(&self.inbox);
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
        let (mut call, mut alarm) = (pin!(call), HeldAlarm::new(&self.inbox));
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

impl<'a> HeldAlarm<'a> {
    fn new(inbox: &'a Inbox) -> Self {
        Self { inbox, held: None }
    }

    fn set(&mut self, at: Instant, waker: &Waker) {
        self.inbox.wake_at(&mut self.held, at, waker);
    }

    /// Sets an alarm that sounds after `pause`, unless one does before.
    fn set_within(&mut self, pause: Duration, waker: &Waker) {
        let (now, held) = (Instant::now(), self.held.map(|(at, _)| at));
        let at = held.filter(|at| *at > now).unwrap_or(now + pause);
        self.set(at, waker);
    }
}

impl Drop for HeldAlarm<'_> {
    fn drop(&mut self) {
        self.inbox.alarms.leave(&mut self.held);
    }
}

/// The time after which a task that waits for a peer to open its end looks whether another one has.
const POLL_FOR_OPEN: Duration = Duration::from_millis(100);
