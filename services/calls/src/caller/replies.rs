//! The replies of one call that has many.

use std::{
    future::poll_fn,
    marker::PhantomData,
    pin::Pin,
    task::{Context, Poll, ready},
};

use futures_core::{FusedStream, Stream};
use ibex_core::{codec::Codec, extend::DefaultCodec};

use crate::{
    caller::{
        caller_ref::CallerRef,
        pending_call::{NextReply, PendingCall},
        reply::Reply,
    },
    error::CallError,
    waiter::Waiter,
};

/// The replies to one request, one after the other.
/// [`Caller::stream`](crate::Caller::stream) returns them.
///
/// The handler may send up to [`window`](crate::CallOptions::window) items ahead of those
/// that were taken, and then waits. A stream that is not read therefore stops its own handler, and
/// no other call. Dropping it before its end cancels the call.
///
/// ```
/// # #[cfg(feature = "rkyv")]
/// # mod example {
/// use ibex::calls::{CallError, Caller};
///
/// fn sum(ranges: &Caller<u64, u64>) -> Result<u64, CallError> {
///     let mut sum = 0;
///     let mut items = ranges.stream(&100)?;
///     while let Some(item) = items.next()? {
///         sum += item.to_native();
///     }
///     Ok(sum)
/// }
/// # }
/// ```
pub struct Replies<R: ?Sized, C = DefaultCodec> {
    /// `None` when it is over.
    claim: Option<PendingCall<CallerRef>>,
    _types: crate::ReplyTypes<R, C>,
}

impl<R: ?Sized, C: Codec<R>> Replies<R, C> {
    pub(crate) fn new(claim: PendingCall<CallerRef>) -> Self {
        Self {
            claim: Some(claim),
            _types: PhantomData,
        }
    }

    /// Returns the next item, or `None` when the handler has ended the stream. Waits until there is
    /// either.
    ///
    /// # Errors
    ///
    /// [`CallError`], once: the stream is over then.
    #[allow(
        clippy::should_implement_trait,
        reason = "it can fail, as that of `Receiver`"
    )]
    pub fn next(&mut self) -> Result<Option<Reply<R, C>>, CallError> {
        let Some(claim) = &mut self.claim else {
            return Ok(None);
        };
        let answer = claim.answer();
        self.take(answer)
    }

    /// Returns the next item, for a task. Dropping the future loses no item.
    ///
    /// # Errors
    ///
    /// The errors of [`next`](Self::next).
    pub async fn next_async(&mut self) -> Result<Option<Reply<R, C>>, CallError> {
        poll_fn(|context| self.poll_item(context)).await
    }

    fn poll_item(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Result<Option<Reply<R, C>>, CallError>> {
        let Some(claim) = &mut self.claim else {
            return Poll::Ready(Ok(None));
        };
        let answer = ready!(claim.poll_answer(Waiter::Task(context.waker())));
        Poll::Ready(self.take(answer))
    }

    /// Returns the answer, behind which the stream goes on or is over.
    fn take(&mut self, answer: NextReply<R, C>) -> NextReply<R, C> {
        if answer.is_err() || self.claim.as_ref().is_some_and(|claim| claim.is_over) {
            self.claim = None;
        }
        answer
    }
}

impl<R: ?Sized, C: Codec<R>> Stream for Replies<R, C> {
    type Item = Result<Reply<R, C>, CallError>;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.get_mut().poll_item(context).map(Result::transpose)
    }
}

impl<R: ?Sized, C: Codec<R>> FusedStream for Replies<R, C> {
    fn is_terminated(&self) -> bool {
        self.claim.is_none()
    }
}

ibex_core::extend::debug_fields! {
    [R: ?Sized, C] Replies<R, C>: |replies|
        is_over = replies.claim.is_none()
}
