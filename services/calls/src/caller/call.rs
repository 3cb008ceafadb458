//! A call, for a task.

use std::{
    borrow::Borrow,
    future::Future,
    marker::PhantomData,
    mem,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Instant,
};

use ibex_core::{codec::Codec, extend::parking::Patience};

use crate::{
    caller::{
        caller_ref::CallerRef,
        pending_call::{ONE_REPLY, PendingCall},
        reply::Reply,
    },
    error::CallError,
    frame::Value,
    header::Kind,
    options::CallOptions,
    waiter::Waiter,
};

/// Sends a request, each time that it is tried.
type SendCall<V> = fn(&V, &mut PendingCall<CallerRef>, Waiter<'_>) -> Poll<Result<(), CallError>>;

/// Sends a request that a codec writes.
pub(crate) fn send_value<V: Borrow<Q>, Q: ?Sized, C: Codec<Q>>(
    request: &V,
    call: &mut PendingCall<CallerRef>,
    waiter: Waiter<'_>,
) -> Poll<Result<(), CallError>> {
    call.send(waiter, Value::<Q, C>::new(request.borrow()))
}

/// A call, for a task. See [`Caller::call_async`](crate::Caller::call_async). `V` is the request,
/// a reference to it, or a slice that holds its bytes.
#[must_use = "a future does nothing unless it is awaited"]
#[cfg_attr(
    not(feature = "tower"),
    allow(unreachable_pub, reason = "only the impl of tower's trait shows it")
)]
pub struct CallAsync<V, R: ?Sized, C> {
    state: CallerRef,
    request: V,
    send: SendCall<V>,
    options: CallOptions,
    deadline: Option<Instant>,
    retries: u32,
    /// How long a poll waits in its thread once the request is sent: not at all, unless the thread
    /// runs this future alone.
    patience: Patience,
    /// From the first poll to the reply.
    claim: Option<PendingCall<CallerRef>>,
    /// The attempts before this one failed so.
    before: Option<CallError>,
    _types: crate::ReplyTypes<R, C>,
}

impl<V, R: ?Sized, C: Codec<R>> CallAsync<V, R, C> {
    /// `claim` may be had already.
    pub(crate) fn new(
        state: CallerRef,
        options: &CallOptions,
        mut claim: Option<PendingCall<CallerRef>>,
        request: V,
        send: SendCall<V>,
    ) -> Self {
        let deadline = options.deadline();
        if let Some(claim) = &mut claim {
            claim.set_deadline(deadline);
        }
        Self {
            state,
            request,
            send,
            options: *options,
            deadline,
            retries: options.retries,
            patience: Patience::None,
            claim,
            before: None,
            _types: PhantomData,
        }
    }

    /// Has the first poll after the request was sent wait in its thread, for so long. A thread that
    /// waits itself has the reply sooner than one that is woken.
    pub(crate) fn waiting(mut self, patience: Patience) -> Self {
        self.patience = patience;
        self
    }

    fn poll_once(&mut self, context: &mut Context<'_>) -> Poll<Result<Reply<R, C>, CallError>> {
        let waiter = Waiter::Task(context.waker());
        let (state, deadline, options) = (&self.state, self.deadline, &self.options);
        let claim = self
            .claim
            .get_or_insert_with(|| PendingCall::new(state.clone(), Kind::Call, deadline, options));
        if !claim.is_sent {
            ready!((self.send)(&self.request, claim, waiter))?;
        }
        let mut answer = Poll::Pending;
        if let Patience::Until(at) = mem::replace(&mut self.patience, Patience::None) {
            let until = at.into_iter().chain(deadline).min();
            answer = claim.poll_answer::<R, C>(Waiter::Thread(until));
        }
        if answer.is_pending() {
            answer = claim.poll_answer::<R, C>(waiter);
        }
        answer.map_ok(|reply| reply.expect(ONE_REPLY))
    }
}

impl<V, R: ?Sized, C> Unpin for CallAsync<V, R, C> {}

impl<V, R: ?Sized, C: Codec<R>> Future for CallAsync<V, R, C> {
    type Output = Result<Reply<R, C>, CallError>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        loop {
            let done = ready!(this.poll_once(context));
            this.claim = None;
            match done {
                Err(error) if this.retries > 0 && error.is_worth_another() => {
                    this.retries -= 1;
                    this.before = Some(error.behind(this.before.take()));
                }
                done => return Poll::Ready(done.map_err(|error| error.behind(this.before.take()))),
            }
        }
    }
}

ibex_core::extend::debug_fields! {
    [V, R: ?Sized, C] CallAsync<V, R, C>: |call|
        service = call.state.service,
        is_sent = call.claim.as_ref().is_some_and(|claim| claim.is_sent),
}
