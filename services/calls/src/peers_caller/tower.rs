//! A caller of kept peers as a service of tower.

use std::{
    pin::Pin,
    task::{Context, Poll},
};

use ibex_core::codec::Codec;
use tower_service::Service;

use super::{CallResult, PeersCaller, attempts::Attempts};
use crate::{CallError, Reply};

/// Always ready: the call itself waits for a peer, within its deadline, which counts from the call.
/// It retries by itself, so it needs neither tower's balancer nor its retries.
impl<Q, R, C> Service<Q> for PeersCaller<Q, R, C>
where
    Q: Send + Sync + 'static,
    R: ?Sized + 'static,
    C: Codec<Q> + Codec<R>,
{
    type Response = Reply<R, C>;
    type Error = CallError;
    type Future = Pin<Box<dyn Future<Output = CallResult<R, C>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), CallError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Q) -> Self::Future {
        let (caller, attempts) = (self.clone(), Attempts::new(&self.options));
        Box::pin(async move { caller.run(attempts, &request).await })
    }
}
