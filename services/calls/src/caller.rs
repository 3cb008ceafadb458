//! The calling end of a service.

pub(crate) mod call;
mod caller_ref;
mod pending_call;
pub(crate) mod replies;
pub(crate) mod reply;
mod slots;
pub(crate) mod state;
#[cfg(feature = "tower")]
mod tower;

use std::{future::poll_fn, marker::PhantomData, time::Instant};

use ibex_core::{
    RegionSlice, TraceContext,
    codec::{Codec, Raw},
    extend::DefaultCodec,
};

use self::{
    call::{CallAsync, send_value},
    caller_ref::CallerRef,
    pending_call::{ONE_REPLY, PendingCall},
    replies::Replies,
    reply::Reply,
};
use crate::{
    Metadata,
    call_extension::CallExtension,
    error::CallError,
    frame::{Content, SliceContent, Value},
    header::Kind,
    options::CallOptions,
    waiter::Waiter,
};

/// Calls a service of a peer. [`Peer::caller`](crate::OpenCaller::caller) opens one, or
/// [`Peer::channel`](ibex_core::Peer::channel) with settings.
///
/// Clones share one pair of channels. Any number of threads and tasks may call at a time. Each
/// waits for its own reply, and replies come in any order.
///
/// Up to [`max_in_flight`](ibex_core::ChannelBuilder::max_in_flight) calls are under way at a
/// time, and further ones wait for their turn in the order in which they came. Calls that wait for
/// the peer to open the service, or for room in the channel, may overtake each other. If the order
/// matters, wait for each answer before the next call.
///
/// While the session lives, a handler gets each request at most once, even across broken
/// connections. [`CallError::execution`] says how much is certain of a call that failed.
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
    state: CallerRef,
    options: CallOptions,
    /// The place of the call that `tower`'s `poll_ready` reserved.
    #[cfg(feature = "tower")]
    pub(super) ready: Option<PendingCall<CallerRef>>,
    _types: crate::Types<Q, R, C>,
}

impl<Q: ?Sized + 'static, R: ?Sized + 'static, C: Codec<Q> + Codec<R>> Caller<Q, R, C> {
    pub(super) fn new(state: CallerRef) -> Self {
        Self::on(state, CallOptions::new())
    }

    /// Returns the same caller with other options.
    #[must_use]
    pub fn with(&self, options: CallOptions) -> Self {
        Self::on(self.state.clone(), options)
    }

    /// Returns the same caller, whose calls carry this metadata and no other.
    /// [`Request::metadata`](crate::Request::metadata) reads it there.
    ///
    /// Each call carries the metadata behind its request, where it counts in
    /// [`max_message_bytes`](ibex_core::ChannelBuilder::max_message_bytes). Calls without metadata and
    /// trace context cost nothing more.
    ///
    /// ```
    /// # #[cfg(feature = "rkyv")]
    /// # mod example {
    /// use ibex::calls::{Caller, Metadata};
    ///
    /// fn price(quotes: &Caller<String, u64>) -> Result<u64, Box<dyn std::error::Error>> {
    ///     let mut metadata = Metadata::new();
    ///     metadata.insert("tenant", "blue")?;
    ///     metadata.insert("attempt", 2)?;
    ///     let quotes = quotes.with_metadata(metadata); // kept, for all calls of the tenant
    ///     Ok(quotes.call(&"IBX".to_owned())?.to_native())
    /// }
    /// # }
    /// ```
    #[must_use]
    pub fn with_metadata(&self, metadata: Metadata) -> Self {
        self.carrying(|carried| carried.metadata = metadata)
    }

    /// Returns the same caller, whose calls belong to this trace.
    /// [`Request::trace_context`](crate::Request::trace_context) reads it there.
    ///
    /// A program whose tracer knows the present span gives it to all calls at once by
    /// [`NodeBuilder::trace_context`](ibex_core::NodeBuilder::trace_context) instead.
    ///
    /// ```
    /// # #[cfg(feature = "rkyv")]
    /// # mod example {
    /// use ibex::{TraceContext, calls::Caller};
    ///
    /// /// Asks in the trace of a request that came over HTTP.
    /// fn price(
    ///     quotes: &Caller<String, u64>,
    ///     traceparent: &str,
    /// ) -> Result<u64, Box<dyn std::error::Error>> {
    ///     let quotes = match TraceContext::from_traceparent(traceparent) {
    ///         Ok(context) => &quotes.with_trace_context(context),
    ///         Err(_) => quotes, // the call is made in any case
    ///     };
    ///     Ok(quotes.call(&"IBX".to_owned())?.to_native())
    /// }
    /// # }
    /// ```
    #[must_use]
    pub fn with_trace_context(&self, context: TraceContext) -> Self {
        self.carrying(|carried| carried.trace = Some(context))
    }

    /// Returns the same caller, with a change to what its calls carry.
    pub(super) fn carrying(&self, change: impl FnOnce(&mut CallExtension)) -> Self {
        Self::on(self.state.carrying(change), self.options)
    }

    /// Calls, and waits for the reply.
    ///
    /// # Errors
    ///
    /// [`CallError`]. A panic of the request's serializer comes through, and sends nothing.
    pub fn call(&self, request: &Q) -> Result<Reply<R, C>, CallError> {
        self.call_with(Value::<Q, C>::new(request))
    }

    fn call_with(&self, request: impl Content) -> Result<Reply<R, C>, CallError> {
        let deadline = self.options.deadline();
        let mut retries = self.options.retries;
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
    fn call_once(
        &self,
        request: impl Content,
        deadline: Option<Instant>,
    ) -> Result<Reply<R, C>, CallError> {
        let mut call = PendingCall::new(&self.state, Kind::Call, deadline, &self.options);
        call.send_in_thread(request)?;
        Ok(call.answer()?.expect(ONE_REPLY))
    }

    /// Calls, for a task. Nothing is sent before the first poll.
    ///
    /// Dropping the future cancels the call. A request that did not go out is not sent. If it did
    /// go out, its handler learns it by [`Request::cancelled`](crate::Request::cancelled).
    /// The deadline counts from this call on.
    ///
    /// # Errors
    ///
    /// Errors are those of [`call`](Self::call), except that it waits without limit until the peer
    /// has opened its service.
    pub fn call_async<'a>(
        &self,
        request: &'a Q,
    ) -> impl Future<Output = Result<Reply<R, C>, CallError>> + use<'a, Q, R, C> {
        self.future_of(request)
    }

    pub(super) fn future_of<'a>(&self, request: &'a Q) -> CallAsync<&'a Q, R, C> {
        let send = send_value::<_, Q, C>;
        CallAsync::new(self.state.clone(), &self.options, None, request, send)
    }

    /// Calls for a stream of replies; waits until the request is sent.
    ///
    /// # Errors
    ///
    /// [`CallError`]: the request was not sent.
    pub fn stream(&self, request: &Q) -> Result<Replies<R, C>, CallError> {
        let (state, options) = (self.state.clone(), &self.options);
        let mut call = PendingCall::new(state, Kind::Stream, options.deadline(), options);
        call.send_in_thread(Value::<Q, C>::new(request))?;
        Ok(Replies::new(call))
    }

    /// Like [`stream`](Self::stream), for a task. Dropping the future sends nothing, or cancels the
    /// call.
    pub fn stream_async<'a>(
        &self,
        request: &'a Q,
    ) -> impl Future<Output = Result<Replies<R, C>, CallError>> + use<'a, Q, R, C> {
        let (state, options) = (self.state.clone(), self.options);
        let deadline = options.deadline();
        async move {
            let mut call = PendingCall::new(state, Kind::Stream, deadline, &options);
            let value = Value::<Q, C>::new(request);
            poll_fn(|context| call.send(Waiter::Task(context.waker()), value)).await?;
            Ok(Replies::new(call))
        }
    }

    /// Returns the number of calls that have been sent, or may be, and have not ended, of all
    /// clones. Never waits.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.state.slots(|slots| slots.in_flight())
    }

    /// Returns the number of calls that wait for their turn, of all clones.
    #[must_use]
    pub fn queued(&self) -> usize {
        self.state.slots(|slots| slots.queued())
    }

    /// Returns the number of the peer's frames that belong to no call: late replies to cancelled
    /// calls, and frames that no service of ibex sends.
    #[must_use]
    pub fn strays(&self) -> u64 {
        self.state.slots(|slots| slots.strays())
    }

    /// The service's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.state.service
    }
}

/// Requests of bytes from memory of the program's own.
impl<R: ?Sized + 'static> Caller<[u8], R, Raw>
where
    Raw: Codec<R>,
{
    /// Calls with the bytes of a slice, as [`call`](Self::call) does, and sends them from where they
    /// lie if [`send_region`](ibex_core::Sender::send_region) can. The service gets an ordinary request of
    /// bytes.
    ///
    /// Only [long](https://docs.rs/ibex/latest/ibex/guide/memory/index.html#large-payloads) requests are sent so, and only to a peer whose
    /// version of ibex takes [headers](ibex_core::RegionMessage). Others are copied, and so are those with
    /// metadata or a trace context. Until the request has left the slice, the node holds a clone of
    /// it.
    ///
    /// ```
    /// use ibex::{Raw, Region, calls::{CallError, Caller}};
    ///
    /// /// Stores a mapped file, in blocks of 4 MiB. The reply to each is its place.
    /// fn store(
    ///     blocks: &Caller<[u8], [u8], Raw>,
    ///     file: &Region,
    /// ) -> Result<Vec<Vec<u8>>, CallError> {
    ///     let starts = (0..file.len()).step_by(4 << 20);
    ///     let block = |start| file.slice(start..file.len().min(start + (4 << 20)));
    ///     let stored = starts.map(|start| blocks.call_region(&block(start)));
    ///     stored.map(|place| Ok(place?.to_vec())).collect()
    /// }
    /// ```
    ///
    /// # Errors
    ///
    /// [`CallError`].
    pub fn call_region(&self, request: &RegionSlice) -> Result<Reply<R, Raw>, CallError> {
        self.call_with(SliceContent(request))
    }

    /// Calls with the bytes of a slice, for a task, as [`call_async`](Self::call_async) does, and
    /// sends them as [`call_region`](Self::call_region) does.
    ///
    /// # Errors
    ///
    /// The errors of [`call_async`](Self::call_async).
    pub fn call_region_async<'a>(
        &self,
        request: &'a RegionSlice,
    ) -> impl Future<Output = Result<Reply<R, Raw>, CallError>> + use<'a, R> {
        let (state, request) = (self.state.clone(), SliceContent(request));
        CallAsync::new(
            state,
            &self.options,
            None,
            request,
            |request, call, waiter| call.send(waiter, *request),
        )
    }
}

impl<Q: ?Sized, R: ?Sized, C> Caller<Q, R, C> {
    fn on(state: CallerRef, options: CallOptions) -> Self {
        Self {
            options,
            state,
            #[cfg(feature = "tower")]
            ready: None,
            _types: PhantomData,
        }
    }

    /// Returns whether the peer has opened the service, unless a thread is sending a request.
    pub(super) fn is_open_now(&self) -> Option<bool> {
        self.state.outbox.is_open_now()
    }

    /// Lets another caller of the name be opened, although calls of this one have yet to end.
    pub(super) fn free_names(&self) {
        self.state.free_names();
    }
}

impl<Q: ?Sized, R: ?Sized, C> Clone for Caller<Q, R, C> {
    fn clone(&self) -> Self {
        Self::on(self.state.clone(), self.options)
    }
}

ibex_core::extend::debug_fields! {
    [Q: ?Sized, R: ?Sized, C] Caller<Q, R, C>: |caller|
        service = caller.state.service, peer = caller.state.session.peer().address
}
