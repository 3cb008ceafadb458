//! A request that a handler has, and its answer.

mod caller_wait;
mod send_answer;

use std::{
    fmt,
    future::poll_fn,
    marker::PhantomData,
    ops::Deref,
    sync::{Arc, atomic::Ordering},
    task::{Context, Poll},
    time::{Duration, Instant},
};

use ibex_core::{
    PeerAt, PeerNames, RegionSlice, SendError, SendErrorKind, TraceContext,
    codec::{Codec, Raw},
    extend::{
        CallTime, DefaultCodec,
        parking::{self, TimedOut},
    },
};

use self::{caller_wait::CallerWait, send_answer::sent};
use super::{
    Metadata,
    client::Client,
    error::{MAX_FAILURE_BYTES, Refused, answers as errors},
    frame::{Content, DecodedPayload, SliceContent, Value},
    header::{CallId, Header, Kind},
    no_reply::NoReply,
};

/// A request, read where it arrived, with the duty to answer it.
/// [`Service::next`](crate::Service::next) returns it.
///
/// A request dereferences to the codec's view, as a [`Message`](ibex_core::Message) does. It may be
/// answered in another thread, by [`reply`](Self::reply) or [`fail`](Self::fail). If the caller
/// asked for a stream, [`send`](Self::send) and [`end`](Self::end) answer it. Dropping it without
/// an answer, also by a panic, tells the caller so.
///
/// While a request is held where it arrived, it holds up further requests of its caller once the
/// window behind it is full; other callers go on. A handler that takes long calls
/// [`into_owned`](Self::into_owned). The first item of a stream does so by itself.
///
/// A reply waits up to 100 ms for room, and in a task not at all. Then it is copied, and goes out when
/// there is room. Until then the service takes in no further request of this caller, replies to those
/// that handlers have do not wait, and a caller that makes no room for
/// any of its answers within the node's [`session_timeout`](ibex_core::NodeBuilder::session_timeout) is
/// given up: what was not sent is dropped, and its calls are
/// [`Lost`](crate::CallErrorKind::Lost).
pub struct Request<Q: ?Sized, R: ?Sized, C: Codec<Q> = DefaultCodec> {
    opened: DecodedPayload<Q, C>,
    call: Call,
    _reply: PhantomData<fn(&R)>,
}

/// The call that a request is of.
struct Call {
    client: Arc<Client>,
    id: CallId,
    is_stream: bool,
    deadline: Option<Instant>,
    is_copied: bool,
    /// A handler got it.
    has_begun: bool,
    /// True once the request was answered or given back.
    is_over: bool,
    /// What the caller hears if there is no answer.
    no_reply: NoReply,
    /// The time of the handling, if somebody wants to know it.
    time: Option<CallTime>,
}

impl<Q: ?Sized, R: ?Sized, C: Codec<Q> + Codec<R>> Request<Q, R, C> {
    pub(super) fn new(
        client: Arc<Client>,
        header: &Header,
        deadline: Option<Instant>,
        opened: DecodedPayload<Q, C>,
    ) -> Self {
        if let Some(shared) = client.shared() {
            // COUNTED, pairs with `Runtime::begin_drain`: `is_draining` is read after this.
            shared.in_progress.fetch_add(1, Ordering::SeqCst);
        }
        let times = client.shared().and_then(|shared| shared.times.as_ref());
        let time = CallTime::start(times);
        Self {
            opened,
            call: Call {
                client,
                id: header.id,
                is_stream: header.kind == Kind::Stream,
                deadline,
                is_copied: false,
                has_begun: false,
                is_over: false,
                no_reply: NoReply::Dropped,
                time,
            },
            _reply: PhantomData,
        }
    }

    // ---- About the call ----------------------------------------------------------------

    /// The peer that calls.
    #[must_use]
    pub fn peer(&self) -> PeerAt {
        self.call.client.at
    }

    /// Returns the names of the peer that calls. `authenticated_as` is proven, so it may decide
    /// what the handler does; `name` is what the peer says of itself.
    ///
    /// ```
    /// # #[cfg(feature = "rkyv")]
    /// # mod example {
    /// use ibex::calls::Request;
    ///
    /// /// Answers the members of one domain alone.
    /// fn handle(request: Request<u64, u64>) -> Result<(), ibex::SendError> {
    ///     let caller = request.names().authenticated_as.as_deref();
    ///     let uri = caller.and_then(|caller| caller.uri()).unwrap_or("");
    ///     if !uri.starts_with("spiffe://billing/") {
    ///         request.fail(403, "not for you");
    ///         return Ok(());
    ///     }
    ///     request.reply(&7)
    /// }
    /// # }
    /// ```
    #[must_use]
    pub fn names(&self) -> &PeerNames {
        &self.call.client.session.peer().names
    }

    /// Returns the time until which the caller waits, by this process's clock: the time that was
    /// left when the caller sent the request, counted from its arrival. `None` means for ever.
    #[must_use]
    pub fn deadline(&self) -> Option<Instant> {
        self.call.deadline
    }

    /// Returns the trace that the call belongs to, and the caller's span in it: what the handler's
    /// own span has as its parent. `None` if the caller sent none.
    #[must_use]
    pub fn trace_context(&self) -> Option<TraceContext> {
        self.opened.extension()?.trace
    }

    /// Returns the call's metadata, which is empty if the caller sent none.
    ///
    /// ```
    /// # #[cfg(feature = "rkyv")]
    /// # mod example {
    /// use ibex::calls::{MetadataValue, Request};
    ///
    /// fn handle(request: Request<u64, u64>) -> Result<(), ibex::SendError> {
    ///     match request.metadata().get("tenant") {
    ///         Some(MetadataValue::Text("blue")) => request.reply(&7),
    ///         _ => Ok(request.fail(404, "no such tenant")),
    ///     }
    /// }
    /// # }
    /// ```
    #[must_use]
    pub fn metadata(&self) -> &Metadata {
        static NONE: Metadata = Metadata::new();
        let extension = self.opened.extension();
        extension.map_or(&NONE, |extension| &extension.metadata)
    }

    /// Returns whether the caller takes a stream of replies.
    #[must_use]
    pub fn is_stream(&self) -> bool {
        self.call.is_stream
    }

    /// Returns whether the answer is no longer waited for: the caller has dropped the call or is
    /// gone, or the deadline has passed. Never waits.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        self.call.is_cancelled()
    }

    /// Waits until [`is_cancelled`](Self::is_cancelled) is true. Dropping the future leaves nothing
    /// behind.
    ///
    /// ```
    /// # #[cfg(all(feature = "rkyv", feature = "tokio"))]
    /// # mod example {
    /// use ibex::{SendError, calls::Request};
    ///
    /// async fn lookup(_key: u64) -> u64 { 7 }
    ///
    /// /// Stops looking when nobody waits for it.
    /// async fn handle(request: Request<u64, u64>) -> Result<(), SendError> {
    ///     let key = request.to_native();
    ///     let found = tokio::select! {
    ///         found = lookup(key) => found,
    ///         () = request.cancelled() => return Ok(()),
    ///     };
    ///     request.reply_async(&found).await
    /// }
    /// # }
    /// ```
    pub async fn cancelled(&self) {
        let _waiting = CallerWait::on(&self.call.client);
        poll_fn(|context| self.call.poll_cancelled(context)).await;
    }

    /// Copies the request out of its channel, so that it holds nothing up however long it is kept.
    #[must_use]
    pub fn into_owned(mut self) -> Self {
        self.copy_out();
        self
    }

    /// The bytes as the codec wrote them.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        self.opened.payload()
    }

    // ---- One answer --------------------------------------------------------------------

    /// Answers the call. Waits up to 100 ms while the channel of replies is full. If the caller has stopped waiting, that is no error. For a
    /// stream, the reply is the last item.
    ///
    /// # Errors
    ///
    /// [`SendError`]: the reply is too long or cannot be encoded, or memory was refused. The caller
    /// is told so: its call fails as [`ReplyTooLong`](crate::CallErrorKind::ReplyTooLong),
    /// [`ReplyNotEncoded`](crate::CallErrorKind::ReplyNotEncoded) or
    /// [`Unanswered`](crate::CallErrorKind::Unanswered). If that shows only when an answer
    /// goes out that had no room before, the caller alone is told.
    pub fn reply(self, reply: &R) -> Result<(), SendError> {
        self.reply_with(Value::<R, C>::new(reply), PATIENCE)
    }

    /// Like [`reply`](Self::reply), for a task. Never waits.
    ///
    /// # Errors
    ///
    /// The errors of [`reply`](Self::reply).
    #[expect(clippy::unused_async, reason = "it is the form of all calls for tasks")]
    pub async fn reply_async(self, reply: &R) -> Result<(), SendError> {
        self.reply_with(Value::<R, C>::new(reply), Duration::ZERO)
    }

    /// Fails the call with an error of the application: a code, and a text of up to 4 KiB. The
    /// caller gets it as [`Failed`](crate::CallErrorKind::Failed). Never waits.
    pub fn fail(mut self, code: u32, text: &str) {
        let mut end = text.len().min(MAX_FAILURE_BYTES);
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        self.call.finish(Kind::Failed, code, &text[..end]);
    }

    /// Hands the request back as not executed. Never waits.
    pub fn refuse(self) {
        self.give_back(Refused::BY_HANDLER);
    }

    // ---- A stream of answers -------------------------------------------------------------

    /// Sends one item of a stream. Waits while as many items are on their way as the caller allows.
    ///
    /// The request is copied out of its channel at the first item.
    ///
    /// # Errors
    ///
    /// [`SendError`]: the caller no longer waits for items
    /// ([`Cancelled`](SendErrorKind::Cancelled)), the call takes one reply alone
    /// ([`NotAStream`](SendErrorKind::NotAStream)), or the item cannot be sent.
    pub fn send(&mut self, item: &R) -> Result<(), SendError> {
        self.send_with(Value::<R, C>::new(item))
    }

    /// Like [`send`](Self::send), for a task. If the future is dropped, the item is sent whole or
    /// not at all.
    ///
    /// # Errors
    ///
    /// The errors of [`send`](Self::send).
    pub async fn send_async(&mut self, item: &R) -> Result<(), SendError> {
        self.send_with_async(Value::<R, C>::new(item)).await
    }

    /// Ends a stream in order. Never waits.
    pub fn end(mut self) {
        self.call.finish(Kind::End, 0, "");
    }

    pub(super) fn reply_with(
        mut self,
        content: impl Content,
        patience: Duration,
    ) -> Result<(), SendError> {
        let answered = sent(self.call.client.answer(self.call.id, content, patience));
        self.call.is_over = answered.is_ok();
        unless_cancelled(self.call.noted(answered))
    }

    fn send_with(&mut self, item: impl Content) -> Result<(), SendError> {
        self.begin_stream()?;
        self.call.wait_for_credit()?;
        let sent = self.call.send_item(item);
        self.call.noted(sent)?;
        self.call.client.use_credit(self.call.id);
        Ok(())
    }

    async fn send_with_async(&mut self, item: impl Content) -> Result<(), SendError> {
        self.begin_stream()?;
        self.call.wait_for_credit_async().await?;
        let sent = self.call.send_item_async(item).await;
        self.call.noted(sent)?;
        self.call.client.use_credit(self.call.id);
        Ok(())
    }

    fn begin_stream(&mut self) -> Result<(), SendError> {
        if !self.call.is_stream {
            return Err(errors::not_a_stream());
        }
        self.copy_out();
        Ok(())
    }

    // ---- For the service -----------------------------------------------------------------

    /// Notes that a handler gets the request.
    pub(super) fn begins(&mut self) {
        self.call.has_begun = true;
    }

    /// Notes that no handler gets the request.
    pub(super) fn give_back(mut self, reason: Refused) {
        self.call.is_over = true;
        if !self.call.is_dropped_by_caller() {
            self.call.client.refuse(self.call.id, reason);
        }
    }

    /// Returns whether the call is known to be over, without taking in what has arrived.
    pub(super) fn is_past(&self) -> bool {
        self.call.client.is_cancelled(self.call.id)
    }

    pub(super) fn copy_out(&mut self) {
        self.call.is_copied = true;
        self.opened.copy_out();
    }

    /// Returns whether answers to the caller wait for room.
    pub(super) fn is_held_up(&self) -> bool {
        self.call.client.is_held_up()
    }

    pub(super) fn is_copied(&self) -> bool {
        self.call.is_copied
    }

    pub(super) fn payload_bytes(&self) -> usize {
        self.opened.payload().len()
    }
}

/// Replies of bytes from memory of the program's own.
impl<Q: ?Sized> Request<Q, [u8], Raw>
where
    Raw: Codec<Q>,
{
    /// Answers the call with the bytes of a slice, as [`reply`](Self::reply) does, and from where
    /// they lie if [`send_region`](ibex_core::Sender::send_region) can. The caller gets an ordinary reply
    /// of bytes.
    ///
    /// Only [long](https://docs.rs/ibex/latest/ibex/guide/memory/index.html#large-payloads) replies are sent so, and only to callers
    /// whose version of ibex takes [headers](ibex_core::RegionMessage); others are copied. Until the
    /// reply has left the slice, the node holds a clone of it: over shared memory, until the caller has
    /// dropped the reply, so a slow caller keeps the value. The caller's channel bounds the regions
    /// that it maps, as the service's does; a few regions that hold many values each stay within that
    /// bound.
    ///
    /// ```
    /// use std::collections::HashMap;
    /// use ibex::{Raw, RegionSlice, RecvError, calls::Service};
    ///
    /// /// Serves what is kept, from where it lies if that can be.
    /// fn serve(
    ///     service: &mut Service<[u8], [u8], Raw>,
    ///     kept: &HashMap<Vec<u8>, RegionSlice>,
    /// ) -> Result<(), RecvError> {
    ///     while let Some(request) = service.next()? {
    ///         match kept.get(&request[..]) {
    ///             Some(value) => {
    ///                 if let Err(error) = request.reply_region(value) {
    ///                     eprintln!("no reply: {error}");
    ///                 }
    ///             }
    ///             None => request.fail(404, "it is not kept"),
    ///         }
    ///     }
    ///     Ok(())
    /// }
    /// ```
    ///
    /// # Errors
    ///
    /// The errors of [`reply`](Self::reply).
    pub fn reply_region(self, slice: &RegionSlice) -> Result<(), SendError> {
        self.reply_with(SliceContent(slice), PATIENCE)
    }

    /// Like [`reply_region`](Self::reply_region), for a task. Never waits.
    ///
    /// # Errors
    ///
    /// The errors of [`reply`](Self::reply).
    #[expect(clippy::unused_async, reason = "it is the form of all calls for tasks")]
    pub async fn reply_region_async(self, slice: &RegionSlice) -> Result<(), SendError> {
        self.reply_with(SliceContent(slice), Duration::ZERO)
    }

    /// Sends the bytes of a slice as one item of a stream, as [`send`](Self::send) does, and from
    /// where they lie as [`reply_region`](Self::reply_region) does.
    ///
    /// # Errors
    ///
    /// The errors of [`send`](Self::send).
    pub fn send_region(&mut self, slice: &RegionSlice) -> Result<(), SendError> {
        self.send_with(SliceContent(slice))
    }

    /// Like [`send_region`](Self::send_region), for a task. If the future is dropped, the item is
    /// sent whole or not at all.
    ///
    /// # Errors
    ///
    /// The errors of [`send`](Self::send).
    pub async fn send_region_async(&mut self, slice: &RegionSlice) -> Result<(), SendError> {
        self.send_with_async(SliceContent(slice)).await
    }
}

/// How long a reply waits for room before it is queued.
const PATIENCE: Duration = Duration::from_millis(100);

/// A reply is no error even if the caller has stopped waiting.
fn unless_cancelled(sent: Result<(), SendError>) -> Result<(), SendError> {
    match sent {
        Err(error) if error.kind() == SendErrorKind::Cancelled => Ok(()),
        sent => sent,
    }
}

impl<Q: ?Sized, R: ?Sized, C: Codec<Q>> Deref for Request<Q, R, C> {
    type Target = C::View;

    #[inline]
    fn deref(&self) -> &C::View {
        &self.opened
    }
}

impl<Q: ?Sized, R: ?Sized, C: Codec<Q>> fmt::Debug for Request<Q, R, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Request")
            .field("peer", &self.call.client.at)
            .field("bytes", &self.opened.payload().len())
            .finish_non_exhaustive()
    }
}

impl Call {
    fn is_cancelled(&self) -> bool {
        self.client.is_cancelled(self.id) || {
            self.client.attend();
            self.client.is_cancelled(self.id)
        }
    }

    /// Returns whether the caller has forgotten the call, so that it could not use an answer. A
    /// passed deadline alone does not count.
    fn is_dropped_by_caller(&self) -> bool {
        self.client.is_dropped(self.id)
    }

    fn poll_cancelled(&self, context: &mut Context<'_>) -> Poll<()> {
        self.client.set_waker(self.id, Some(context.waker()));
        match self.is_cancelled() {
            true => Poll::Ready(()),
            false => Poll::Pending,
        }
    }

    /// Waits while the caller has as many items as it takes. Uses no credit up, since the item may yet
    /// fail.
    fn wait_for_credit(&self) -> Result<(), SendError> {
        self.client.look_for_credit(self.id).unwrap_or_else(|| {
            let _waiting = CallerWait::on(&self.client);
            let credit = self.client.for_credit(self.id);
            let found = self.client.session.wait_for(self.deadline, credit);
            found.unwrap_or_else(|TimedOut| Err(errors::cancelled()))
        })
    }

    /// Does the same for a task.
    async fn wait_for_credit_async(&self) -> Result<(), SendError> {
        if let Some(found) = self.client.look_for_credit(self.id) {
            return found;
        }
        let _waiting = CallerWait::on(&self.client);
        let credit = || self.client.for_credit(self.id);
        poll_fn(|context| parking::poll(credit(), context.waker(), || ())).await
    }

    /// Ends the call without waiting. A caller whose deadline has passed is told too; otherwise it
    /// might conclude from the node's drain that no handler had the call.
    fn finish(&mut self, kind: Kind, code: u32, text: &str) {
        self.is_over = true;
        if !self.is_dropped_by_caller() {
            let header = Header::new(self.id, kind).with_code(code);
            self.client.say(header, text.as_bytes().to_vec());
        }
    }

    /// Keeps what an answer failed by, for the case that no other follows.
    fn noted(&mut self, sent: Result<(), SendError>) -> Result<(), SendError> {
        self.no_reply = sent
            .as_ref()
            .map_or_else(NoReply::of, |()| NoReply::Dropped);
        sent
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        if !self.is_over && !self.is_dropped_by_caller() {
            let header = Header::new(self.id, Kind::Unanswered);
            let header = header.with_count(self.no_reply.as_count());
            self.client.say(header, self.no_reply.to_bytes());
        }
        self.client.finish(self.id);
        if let (true, Some(time)) = (self.has_begun, &self.time) {
            time.note(&self.client.session);
        }
        let node = self.client.session.node();
        if self.has_begun && node.is_draining() {
            node.count_drained_call();
        }
        if let Some(shared) = self.client.shared() {
            // ENDED, pairs with `ServiceState::running`: a thread that sees the lower count also
            // sees what was said and counted before.
            shared.in_progress.fetch_sub(1, Ordering::Release);
            node.wake_drain();
        }
    }
}
