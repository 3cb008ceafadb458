//! A request that a handler has, and its answer.

mod call;
mod caller_wait;
mod region;

use std::{
    future::poll_fn,
    marker::PhantomData,
    ops::Deref,
    time::{Duration, Instant},
};

use ibex_core::{
    PeerAt, PeerNames, SendError, SendErrorKind, TraceContext, codec::Codec, extend::DefaultCodec,
};

use self::{call::sent, caller_wait::CallerWait};
use crate::{
    Metadata,
    error::{MAX_FAILURE_BYTES, Refused, answers as errors},
    frame::{Content, DecodedPayload, Value},
    header::Kind,
};

pub(crate) use self::call::{ArrivedRequest, Call};

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

impl<Q: ?Sized, R: ?Sized, C: Codec<Q> + Codec<R>> Request<Q, R, C> {
    /// Hands a request to a handler. `None` if it is not valid, of which the caller is notified.
    pub(crate) fn open(arrived: ArrivedRequest) -> Option<Self> {
        let ArrivedRequest { mut call, body, .. } = arrived;
        match DecodedPayload::of(body) {
            Ok(opened) => {
                call.begun = Some(Instant::now());
                Some(Self {
                    opened,
                    call,
                    _reply: PhantomData,
                })
            }
            Err(invalid) => {
                tracing::debug!(peer = %call.client.at, %invalid, "a request is not valid");
                call.give_back(Refused::INVALID);
                None
            }
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
        self.opened.copy_out();
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
    /// goes out that had no room before, the caller alone is notified.
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
        self.call.give_back(Refused::BY_HANDLER);
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

    pub(crate) fn reply_with(
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
        let sent = self.call.send_item(item);
        self.call.item_sent(sent)
    }

    async fn send_with_async(&mut self, item: impl Content) -> Result<(), SendError> {
        self.begin_stream()?;
        let sent = self.call.send_item_async(item).await;
        self.call.item_sent(sent)
    }

    fn begin_stream(&mut self) -> Result<(), SendError> {
        if !self.call.is_stream {
            return Err(errors::not_a_stream());
        }
        self.opened.copy_out();
        Ok(())
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

ibex_core::extend::debug_fields! {
    [Q: ?Sized, R: ?Sized, C: Codec<Q>] Request<Q, R, C>: |request|
        peer = request.call.client.at, bytes = request.opened.payload().len()
}
