//! The calling end of a service.

use std::{fmt, marker::PhantomData, time::Instant};

use ibex_codec::Codec;

use super::{
    call::CallAsync,
    claim::{Answer, CallKind, Claim},
    error::CallError,
    line_ref::LineRef,
    options::CallOptions,
    replies::{Replies, StreamAsync},
    reply::Reply,
};
use crate::message::DefaultCodec;

/// Calls a service of a peer. Made by [`Peer::caller`](crate::Peer::caller) or, with settings, by
/// [`Peer::calls`](crate::Peer::calls).
///
/// Clones share one pair of channels. Any number of threads and tasks may call at a time, each
/// waits for its own reply, and replies come in any order. As many calls as
/// [`max_in_flight`](crate::calls::CallsBuilder::max_in_flight) says are under way at a time; further
/// ones wait for their turn, in the order in which they came. Calls that wait for the peer to open
/// the service, or for room in the channel, may overtake each other: where the order matters, a call
/// follows the answer to the one before.
///
/// While the session lives each request is given to a handler at most once, over outages too;
/// [`CallError::execution`] says what is certain of a call that failed.
///
/// ```
/// # #[cfg(feature = "rkyv")]
/// # mod example {
/// use std::time::Duration;
/// use ibex::calls::{CallError, CallOptions, Caller, Execution};
///
/// fn price(quotes: &Caller<String, u64>, symbol: &String) -> Result<Option<u64>, CallError> {
///     let soon = CallOptions::new().timeout(Duration::from_millis(20));
///     match quotes.with(soon).call(symbol) {
///         Ok(price) => Ok(Some(price.to_native())),
///         Err(error) if error.execution() == Execution::NotExecuted => Ok(None),
///         Err(error) => Err(error),
///     }
/// }
/// # }
/// ```
pub struct Caller<Q: ?Sized, R: ?Sized, C = DefaultCodec> {
    line: LineRef,
    options: CallOptions,
    /// What `tower`'s `poll_ready` has reserved.
    #[cfg(feature = "tower")]
    pub(super) ready: Option<Claim<LineRef>>,
    _types: super::Types<Q, R, C>,
}

/// How many calls of a caller are under way. See [`Caller::stats`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CallerStats {
    /// Calls that have been sent, or may be, and have not ended.
    pub in_flight: usize,
    /// Calls that wait for their turn.
    pub queued: usize,
    /// Frames of the peer that were of no call: late replies to calls that were cancelled, and what
    /// no service of ibex sends.
    pub strays: u64,
}

impl<Q: ?Sized + 'static, R: ?Sized + 'static, C: Codec<Q> + Codec<R>> Caller<Q, R, C> {
    pub(super) fn new(line: LineRef) -> Self {
        Self::on(line, CallOptions::new())
    }

    fn on(line: LineRef, options: CallOptions) -> Self {
        Self {
            line,
            options,
            #[cfg(feature = "tower")]
            ready: None,
            _types: PhantomData,
        }
    }

    /// The same caller with other options.
    #[must_use]
    pub fn with(&self, options: CallOptions) -> Self {
        Self::on(self.line.clone(), options)
    }

    /// Calls, and waits for the reply.
    ///
    /// # Errors
    ///
    /// [`CallError`]. A panic of the request's serializer comes through, and sends nothing.
    pub fn call(&self, request: &Q) -> Result<Reply<R, C>, CallError> {
        let deadline = self.options.deadline();
        let mut retries = self.options.retries();
        let mut before = None;
        loop {
            match self.call_once(request, deadline) {
                Err(error) if retries > 0 && error.is_worth_another() => {
                    retries -= 1;
                    before = Some(error.behind(before));
                }
                done => return done.map_err(|error| error.behind(before)),
            }
        }
    }

    #[inline]
    fn call_once(&self, request: &Q, deadline: Option<Instant>) -> Result<Reply<R, C>, CallError> {
        let mut claim = Claim::new(&*self.line, CallKind::Unary, deadline);
        claim.send::<Q, C>(request)?;
        match claim.answer::<R, C>()? {
            Answer::Reply(reply) => Ok(reply),
            Answer::Item(_) | Answer::End => unreachable!("they come of streams alone"),
        }
    }

    /// Calls, for a task. Nothing is sent before the first poll.
    ///
    /// Dropping the future cancels the call: a request that did not go out is not sent, and the
    /// handler of one that did is told, by [`Request::cancelled`](crate::calls::Request::cancelled). The
    /// deadline counts from this call on.
    ///
    /// # Errors
    ///
    /// As [`call`](Self::call), but that it waits for as long as it takes until the peer has opened
    /// its service.
    pub fn call_async<'a>(&self, request: &'a Q) -> CallAsync<&'a Q, Q, R, C> {
        CallAsync::new(self.line.clone(), &self.options, None, request)
    }

    /// Calls for a stream of replies; waits until the request is sent.
    ///
    /// # Errors
    ///
    /// [`CallError`]: the request was not sent.
    pub fn stream(&self, request: &Q) -> Result<Replies<R, C>, CallError> {
        let (line, options) = (self.line.clone(), &self.options);
        let mut claim = Claim::new(line, options.stream(), options.deadline());
        claim.send::<Q, C>(request)?;
        Ok(Replies::new(claim))
    }

    /// The same for a task. Dropping the future sends nothing, or cancels.
    pub fn stream_async<'a>(
        &self,
        request: &'a Q,
    ) -> impl Future<Output = Result<Replies<R, C>, CallError>> + use<'a, Q, R, C> {
        StreamAsync::new(self.line.clone(), &self.options, request)
    }

    /// How many calls are under way, of all clones. Never waits.
    #[must_use]
    pub fn stats(&self) -> CallerStats {
        let slots = self.line.slots();
        CallerStats {
            in_flight: slots.in_flight(),
            queued: slots.queued(),
            strays: slots.strays(),
        }
    }

    /// The service's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.line.service
    }
}

#[cfg(feature = "tower")]
impl<Q, R: ?Sized, C> Caller<Q, R, C> {
    pub(super) fn line(&self) -> LineRef {
        self.line.clone()
    }

    /// A call that may have its place already.
    pub(super) fn call_owned(
        &self,
        claim: Option<Claim<LineRef>>,
        request: Q,
    ) -> CallAsync<Q, Q, R, C> {
        CallAsync::new(self.line.clone(), &self.options, claim, request)
    }
}

impl<Q: ?Sized, R: ?Sized, C> Clone for Caller<Q, R, C> {
    fn clone(&self) -> Self {
        Self {
            line: self.line.clone(),
            options: self.options,
            #[cfg(feature = "tower")]
            ready: None,
            _types: PhantomData,
        }
    }
}

impl<Q: ?Sized, R: ?Sized, C> fmt::Debug for Caller<Q, R, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Caller")
            .field("service", &self.line.service)
            .field("peer", &self.line.session.peer().address)
            .finish_non_exhaustive()
    }
}
