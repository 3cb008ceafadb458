//! A caller as a service of tower: what load balancers, limits and retries of others go around.

use std::task::{Context, Poll};

use ibex_core::codec::Codec;
use tower_service::Service;

use crate::{
    caller::{
        Caller,
        call::{CallAsync, send_value},
        pending_call::PendingCall,
        reply::Reply,
    },
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
    type Future = CallAsync<Q, R, C>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), CallError>> {
        let (state, options) = (&self.state, &self.options);
        let new = || PendingCall::new(state.clone(), Kind::Call, None, options);
        let claim = self.ready.get_or_insert_with(new);
        claim.poll_turn(Waiter::Task(context.waker()))
    }

    fn call(&mut self, request: Q) -> CallAsync<Q, R, C> {
        let (state, claim) = (self.state.clone(), self.ready.take());
        CallAsync::new(state, &self.options, claim, request, send_value::<_, Q, C>)
    }
}
