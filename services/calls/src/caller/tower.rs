//! A caller as a service of tower: what load balancers, limits and retries of others go around.

use std::task::{Context, Poll};

use ibex_core::codec::Codec;
use tower_service::Service;

use crate::{
    caller::{Caller, call::CallAsync, pending_call::PendingCall, reply::Reply},
    error::CallError,
    header::Kind,
    waiter::Waiter,
};

/// Ready when a call may be under way: [`max_in_flight`](ibex_core::ChannelBuilder::max_in_flight) is
/// the back-pressure. A call that was made ready and is not made is given back when the caller is
/// dropped. The options are the caller's ([`Caller::with`]); a deadline counts from the call.
impl<Q: 'static, R: ?Sized + 'static, C: Codec<Q> + Codec<R>> Service<Q> for Caller<Q, R, C> {
    type Response = Reply<R, C>;
    type Error = CallError;
    type Future = CallAsync<Q, Q, R, C>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), CallError>> {
        let (state, options) = (self.state(), *self.options());
        let ready = &mut self.ready;
        let claim =
            ready.get_or_insert_with(|| PendingCall::new(state, Kind::Call, None, &options));
        claim.poll_turn(Waiter::Task(context.waker()))
    }

    fn call(&mut self, request: Q) -> CallAsync<Q, Q, R, C> {
        let claim = self.ready.take();
        self.call_owned(claim, request)
    }
}
