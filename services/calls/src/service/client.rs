//! A service's view of one of its callers: the way back to it, and its calls that handlers have.
//!
//! A call is found by its number, which is below the limit, and by its generation. A caller that
//! has cancelled a call may give its number to another one at once. The first call's handler then
//! does not find its call, which means that it was cancelled.

mod answering;

use std::{
    mem,
    sync::{Arc, Mutex, MutexGuard, Weak, atomic::Ordering},
    task::{Poll, Waker},
    time::Instant,
};

use ibex_core::{
    PeerAt, SendError,
    extend::{SessionShared, lock, parking, peer_at, warn_limited},
};

use crate::{
    deadline_alarm::DeadlineAlarm,
    error::answers as errors,
    header::{CallId, Header},
    outbox::Outbox,
    service::ServiceState,
    waiter::Waiter,
};

/// See the module.
pub(crate) struct Client {
    pub(crate) session: Arc<SessionShared>,
    pub(crate) at: PeerAt,
    pub(crate) service: Arc<ServiceState>,
    /// The way back to the caller.
    pub(crate) outbox: Outbox,
    calls: Mutex<Calls>,
    waker: Waker,
    /// This client while notices wait to be sent, also after its last handler: a refusal that is
    /// dropped would leave the caller in doubt.
    held_by_notices: Mutex<Option<Arc<Self>>>,
}

#[derive(Default)]
struct Calls {
    by_number: Vec<ReceivedCall>,
    /// The caller has left.
    is_gone: bool,
    alarm: DeadlineAlarm,
}

#[derive(Default)]
struct ReceivedCall {
    generation: u32,
    is_taken: bool,
    is_cancelled: bool,
    credit: u32,
    deadline: Option<Instant>,
    waker: Option<Waker>,
}

/// Result of receiving the request of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CallAdmission {
    Yes,
    Overloaded,
    /// The call was there already.
    Again,
    /// The caller was given up.
    GivenUp,
}

impl Client {
    /// Begins with a caller's first frame. `goes_on` is called when the caller takes its replies
    /// again.
    pub(crate) fn new(
        session: &Arc<SessionShared>,
        service: &Arc<ServiceState>,
        goes_on: Option<Waker>,
    ) -> Arc<Self> {
        let at = peer_at(session);
        let replies = service.open_replies(session);
        if let Err(error) = &replies {
            warn_limited!(error, peer = %at, %error, "calls cannot be answered");
        }
        let client = Arc::new_cyclic(|client: &Weak<Self>| {
            let waker = parking::waker_of(client.clone(), Self::woken);
            let outbox = Outbox::new(
                replies.ok(),
                session.clone(),
                waker.clone(),
                goes_on,
                // Each call has one last frame. More notices wait only for a peer that takes none.
                2 * service.template.max_in_flight() as usize,
                service.template.wait_for_open(),
            );
            Self {
                session: session.clone(),
                at,
                service: service.clone(),
                outbox,
                calls: Mutex::default(),
                waker,
                held_by_notices: Mutex::default(),
            }
        });
        service.joined(&client);
        client
    }

    fn calls(&self) -> MutexGuard<'_, Calls> {
        lock(&self.calls)
    }

    // ---- Frames of the caller ----------------------------------------------------------

    /// Takes in the header of a request that has come.
    pub(crate) fn begin(&self, header: &Header, deadline: Option<Instant>) -> CallAdmission {
        let CallId { number, generation } = header.id;
        if u64::from(number) >= self.service.template.max_in_flight() {
            return CallAdmission::Overloaded;
        }
        let mut calls = self.calls();
        if calls.is_gone {
            return CallAdmission::GivenUp;
        }
        let number = number as usize;
        if number >= calls.by_number.len() {
            calls
                .by_number
                .resize_with(number + 1, ReceivedCall::default);
        }
        let entry = &mut calls.by_number[number];
        if entry.is_taken && entry.generation == generation {
            return CallAdmission::Again;
        }
        let before = mem::replace(
            entry,
            ReceivedCall {
                generation,
                is_taken: true,
                credit: header.count.into(),
                deadline,
                ..ReceivedCall::default()
            },
        );
        drop(calls);
        // The handler of the call that had this number before finds that its call is cancelled.
        if let Some(waker) = before.waker {
            waker.wake();
        }
        CallAdmission::Yes
    }

    /// Notes that the caller does not wait any more.
    pub(crate) fn cancel(&self, id: CallId) {
        self.change(id, |entry| entry.is_cancelled = true);
    }

    /// Notes that the caller takes this many more items.
    pub(crate) fn add_credit(&self, id: CallId, count: u16) {
        self.change(id, |entry| {
            entry.credit = entry.credit.saturating_add(count.into());
        });
    }

    fn change(&self, id: CallId, change: impl FnOnce(&mut ReceivedCall)) {
        let waker = self.calls().entry(id).and_then(|entry| {
            change(entry);
            entry.waker.take()
        });
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Notes that the caller has left, and ends its calls.
    pub(crate) fn is_gone(&self) {
        self.calls().is_gone = true;
        self.wake_waiting();
        self.outbox.close();
        let _held = lock(&self.held_by_notices).take();
        self.session.node().wake_drain();
        self.outbox.free_name();
    }

    /// Wakes the handlers that wait for this caller.
    pub(crate) fn wake_waiting(&self) {
        let wakers: Vec<Waker> = {
            let mut calls = self.calls();
            let entries = calls.by_number.iter_mut();
            entries.filter_map(|entry| entry.waker.take()).collect()
        };
        wakers.into_iter().for_each(Waker::wake);
    }

    // ---- Questions of handlers -----------------------------------------------------------

    /// Returns whether the call's answer is no longer waited for.
    pub(crate) fn is_cancelled(&self, id: CallId) -> bool {
        let mut calls = self.calls();
        calls.is_gone
            || calls.entry(id).is_none_or(|entry| {
                let is_late = |deadline| Instant::now() >= deadline;
                entry.is_cancelled || entry.deadline.is_some_and(is_late)
            })
    }

    /// Returns whether the caller has forgotten the call.
    pub(crate) fn is_dropped(&self, id: CallId) -> bool {
        let mut calls = self.calls();
        calls.is_gone || calls.entry(id).is_none_or(|entry| entry.is_cancelled)
    }

    /// Looks for the right to send an item. `None` while the caller has as many items as it takes.
    pub(crate) fn credit(&self, id: CallId) -> Option<Result<(), SendError>> {
        if self.is_cancelled(id) {
            return Some(Err(errors::cancelled()));
        }
        let is_closed = self.service.is_closed.load(Ordering::Relaxed);
        let mut calls = self.calls();
        match calls.entry(id) {
            Some(entry) if entry.credit > 0 => Some(Ok(())),
            Some(_) if !is_closed => None,
            _ => Some(Err(errors::cancelled())),
        }
    }

    /// Notes that an item was sent.
    pub(crate) fn use_credit(&self, id: CallId) {
        if let Some(entry) = self.calls().entry(id) {
            // A caller that uses the name of a call anew may have taken the credit back.
            entry.credit = entry.credit.saturating_sub(1);
        }
    }

    /// Has a handler woken by its caller's next frame, and at its call's deadline.
    pub(crate) fn set_waker(&self, id: CallId, waker: Option<&Waker>) {
        let (_before, alarm) = {
            let mut calls = self.calls();
            let Some(entry) = calls.entry(id) else {
                return;
            };
            let before = mem::replace(&mut entry.waker, waker.cloned());
            let deadline = entry.deadline.filter(|_| waker.is_some());
            (before, deadline.filter(|at| calls.alarm.wants(*at)))
        };
        if let Some(at) = alarm {
            self.session.wake_at(at, &self.waker);
        }
    }

    /// Ends a call that is answered, or never will be.
    pub(crate) fn finish(&self, id: CallId) {
        let _waker = self.calls().entry(id).and_then(|entry| {
            entry.is_taken = false;
            entry.waker.take()
        });
    }

    /// Waits until an item may be sent, or the caller no longer waits for it.
    pub(crate) fn poll_credit(
        &self,
        id: CallId,
        waiter: Waiter<'_>,
    ) -> Poll<Result<(), SendError>> {
        let check = || {
            self.credit(id).or_else(|| {
                self.service.run_claimed();
                self.credit(id)
            })
        };
        waiter.poll_until(&self.session, check, |waker| {
            self.set_waker(id, waker);
            if waker.is_some() {
                self.service.run_claimed();
            }
        })
    }
}

impl Calls {
    fn entry(&mut self, id: CallId) -> Option<&mut ReceivedCall> {
        let entry = self.by_number.get_mut(id.number as usize)?;
        (entry.is_taken && entry.generation == id.generation).then_some(entry)
    }

    /// Takes the wakers of calls whose time is over, and returns when to check again.
    fn expire(&mut self, now: Instant) -> (Vec<Waker>, Option<Instant>) {
        let entries = self.by_number.iter_mut();
        let calls = entries.map(|entry| (&mut entry.waker, entry.deadline));
        self.alarm.expire(now, calls)
    }
}
