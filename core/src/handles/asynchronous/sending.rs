//! Sending for tasks: futures and polls.

use std::{
    borrow::Borrow,
    future::Future,
    marker::PhantomData,
    pin::Pin,
    task::{Context, Poll},
};

use ibex_codec::{Codec, Raw};
use ibex_ring::parking::Ticket;
use ibex_transport::{
    channel::{RawReservation, SendHandle},
    node::Stopwatch,
};

use super::sink::SendSink;
use crate::{Loan, Permit, SendError, Sender, WaitError, handles::message::DefaultCodec};

impl<T: ?Sized, C: Codec<T>> Sender<T, C> {
    /// Sends a message in a task. Pending while the channel's window is full, or while the peer has
    /// not opened its end.
    ///
    /// If the future is dropped before it is ready, nothing is sent.
    ///
    /// # Errors
    ///
    /// The errors of [`send`](Self::send), except that the future waits for the peer to open its
    /// end without a time limit.
    pub fn send_async<'a>(
        &'a mut self,
        value: &'a T,
    ) -> impl Future<Output = Result<u64, SendError>> {
        SendAsync {
            sender: self,
            value,
        }
    }

    /// Polls to send a message. Pending means that nothing was sent: the value stays the caller's,
    /// and may be another the next time.
    ///
    /// # Errors
    ///
    /// The errors of [`send_async`](Self::send_async).
    pub fn poll_send(
        &mut self,
        context: &mut Context<'_>,
        value: &T,
    ) -> Poll<Result<u64, SendError>> {
        let encode = Self::encoder(value);
        self.handle
            .poll_send(context.waker(), C::size(value), encode)
            .map_err(SendError::from)
    }

    /// Waits in a task for room, and returns a permit to send a message without waiting.
    ///
    /// Dropping the future keeps no room.
    ///
    /// ```
    /// use ibex::{Raw, SendError, Sender};
    ///
    /// /// Reads the newest sample only when it can be sent.
    /// async fn send_newest(
    ///     to: &mut Sender<[u8], Raw>,
    ///     newest: impl Fn() -> Vec<u8>,
    /// ) -> Result<(), Box<dyn std::error::Error>> {
    ///     let permit = to.reserve_async().await?;
    ///     permit.send(&newest())?;
    ///     Ok(())
    /// }
    /// ```
    ///
    /// # Errors
    ///
    /// The errors of [`send_async`](Self::send_async).
    pub fn reserve_async(&mut self) -> impl Future<Output = Result<Permit<'_, T, C>, SendError>> {
        ReserveAsync::new(&mut self.handle, None)
    }

    /// Polls for a permit, as [`reserve_async`](Self::reserve_async) does.
    ///
    /// A [`Permit`] that is dropped keeps no room. As long as the sender has no clone, nothing else
    /// takes the room, so a later [`try_send`](Self::try_send) of a message of [that
    /// length](Permit::bytes) finds it too. A service that is asked for its readiness first works
    /// in this way. If there are clones, only the permit itself is a promise, and they wait while
    /// it is held.
    ///
    /// # Errors
    ///
    /// The errors of [`send_async`](Self::send_async).
    pub fn poll_reserve(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Result<Permit<'_, T, C>, SendError>> {
        let reserved = self.handle.poll_reserve(context.waker(), None);
        reserved.map_or(Poll::Pending, |raw| Poll::Ready(Ok(Permit::new(raw?))))
    }

    /// Waits in a task until the peer has opened its end. Dropping the future changes nothing.
    ///
    /// # Errors
    ///
    /// [`SendError`]: the peer's end has another type, or the session has ended. The future waits
    /// without a time limit until the peer opens its end, whatever `open_timeout` is.
    pub fn opened_async(&mut self) -> impl Future<Output = Result<(), SendError>> {
        SenderOpenedAsync(&mut self.handle)
    }

    /// Waits in a task until the channel is [over](Self::is_closed): the receiver was closed or
    /// dropped, or the session has ended. Calls of this sender fail then.
    ///
    /// Events of the channel wake it as well. Where messages are not acknowledged, the peer is asked for
    /// them now and then. Dropping the future changes nothing. The future borrows the sender, so
    /// a task that sends meanwhile waits on a clone.
    ///
    /// ```
    /// use ibex::{Raw, Sender};
    ///
    /// /// Produces until nobody receives any more.
    /// async fn produce(to: Sender<[u8], Raw>, work: impl Future<Output = ()>) {
    ///     tokio::select! {
    ///         () = to.closed_async() => println!("the receiver of {} has gone", to.name()),
    ///         () = work => {}
    ///     }
    /// }
    /// ```
    pub fn closed_async(&self) -> impl Future<Output = ()> {
        ClosedAsync {
            handle: &self.handle,
            held: None,
        }
    }

    /// Delivers in a task everything that was sent to the peer's engine, and ends this handle, as
    /// [`close`](Self::close) does.
    ///
    /// Dropping the future drops the sender, which also ends it in order. What was sent stays under
    /// way then.
    ///
    /// # Errors
    ///
    /// The errors of [`close`](Self::close).
    pub async fn close_async(mut self) -> Result<(), WaitError> {
        self.handle.close();
        self.flush_async().await
    }

    /// Waits in a task until the peer's engine holds everything that was sent.
    ///
    /// Dropping the future changes nothing: sent messages stay under way.
    ///
    /// # Errors
    ///
    /// The errors of [`flush`](Self::flush).
    pub fn flush_async(&mut self) -> impl Future<Output = Result<(), WaitError>> {
        WaitAckedAsync {
            sequence: self.handle.last_sequence(),
            sender: self,
            is_flush: true,
            stopwatch: None,
        }
    }

    /// Polls the condition of [`flush_async`](Self::flush_async): the peer's engine holds
    /// everything that was sent up to this poll.
    ///
    /// # Errors
    ///
    /// The errors of [`flush`](Self::flush).
    pub fn poll_flush(&mut self, context: &mut Context<'_>) -> Poll<Result<(), WaitError>> {
        let last = self.handle.last_sequence();
        let flushed = self.handle.poll_received(context.waker(), last);
        flushed.map_err(WaitError::from)
    }

    /// Waits in a task until the receiving application has acknowledged everything up to
    /// `sequence`.
    ///
    /// Dropping the future changes nothing.
    ///
    /// # Errors
    ///
    /// The errors of [`wait_acked`](Self::wait_acked).
    pub fn wait_acked_async(
        &mut self,
        sequence: u64,
    ) -> impl Future<Output = Result<(), WaitError>> {
        WaitAckedAsync {
            stopwatch: self.handle.time_ack(),
            sender: self,
            sequence,
            is_flush: false,
        }
    }

    /// Polls the condition of [`wait_acked_async`](Self::wait_acked_async). The sequence may be
    /// another the next time.
    ///
    /// # Errors
    ///
    /// The errors of [`wait_acked`](Self::wait_acked).
    pub fn poll_acked(
        &mut self,
        context: &mut Context<'_>,
        sequence: u64,
    ) -> Poll<Result<(), WaitError>> {
        let acknowledged = self.handle.poll_acked(context.waker(), sequence);
        acknowledged.map_err(WaitError::from)
    }

    /// Takes back the wakers that polls left. A future of the program's own that is made of them
    /// calls this when it is dropped. Returns whether one waited for room and was not called.
    ///
    /// ```
    /// use std::{future::Future, pin::Pin, task::{Context, Poll}};
    /// use ibex::{Raw, SendError, Sender};
    ///
    /// /// Sends what a closure returns at the time when there is room.
    /// struct SendNewest<'a, F>(&'a mut Sender<[u8], Raw>, F);
    ///
    /// impl<F: FnMut() -> Vec<u8> + Unpin> Future for SendNewest<'_, F> {
    ///     type Output = Result<u64, SendError>;
    ///
    ///     fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
    ///         let Self(sender, newest) = self.get_mut();
    ///         sender.poll_send(context, &newest())
    ///     }
    /// }
    ///
    /// impl<F> Drop for SendNewest<'_, F> {
    ///     fn drop(&mut self) {
    ///         self.0.drop_wakers();
    ///     }
    /// }
    /// ```
    pub fn drop_wakers(&mut self) -> bool {
        self.handle.leave()
    }

    /// Turns this sender into a sink of values, or of types that borrow as them: `Vec<u8>` for
    /// `[u8]`.
    ///
    /// The sink keeps a value that finds no room until there is some. Dropping the sink drops that
    /// value unsent, so flush or close it first. `flush` returns when everything is published, as
    /// [`send`](Self::send) does. `close` does too, and also says why a channel never opened. The
    /// channel ends when the sender is dropped.
    pub fn sink<V: Borrow<T>>(&mut self) -> SendSink<&mut Self, V> {
        SendSink::new(self)
    }

    /// Turns the sender into a sink, as [`sink`](Self::sink) does by reference.
    pub fn into_sink<V: Borrow<T>>(self) -> SendSink<Self, V> {
        SendSink::new(self)
    }
}

impl Sender<[u8], Raw> {
    /// Lends room in a task for a message of `length` bytes, to be built in place, as
    /// [`loan`](Self::loan) does.
    ///
    /// Dropping the future keeps no room.
    ///
    /// # Errors
    ///
    /// The errors of [`send_async`](Self::send_async).
    pub fn loan_async(
        &mut self,
        length: usize,
    ) -> impl Future<Output = Result<Loan<'_>, SendError>> {
        ReserveAsync::new(&mut self.handle, Some(length))
    }

    /// Polls for a loan, as [`loan_async`](Self::loan_async) does. Pending means that
    /// no room is kept, and the length may be another the next time.
    ///
    /// # Errors
    ///
    /// The errors of [`send_async`](Self::send_async).
    pub fn poll_loan(
        &mut self,
        context: &mut Context<'_>,
        length: usize,
    ) -> Poll<Result<Loan<'_>, SendError>> {
        let reserved = self.handle.poll_reserve(context.waker(), Some(length));
        reserved.map_or(Poll::Pending, |raw| Poll::Ready(Ok(Loan::new(raw?))))
    }
}

// ---- Futures -------------------------------------------------------------------------

/// A message that is being sent; see [`Sender::send_async`].
///
/// If the future is dropped before it is ready, nothing is sent.
pub(crate) struct SendAsync<'a, T: ?Sized, C: Codec<T> = DefaultCodec> {
    sender: &'a mut Sender<T, C>,
    value: &'a T,
}

impl<T: ?Sized, C: Codec<T>> Future for SendAsync<'_, T, C> {
    type Output = Result<u64, SendError>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        this.sender.poll_send(context, this.value)
    }
}

impl<T: ?Sized, C: Codec<T>> Drop for SendAsync<'_, T, C> {
    fn drop(&mut self) {
        self.sender.handle.leave_room();
    }
}

/// A wait for the peer to open its end; see [`Sender::opened_async`].
struct SenderOpenedAsync<'a>(&'a mut SendHandle);

impl Future for SenderOpenedAsync<'_> {
    type Output = Result<(), SendError>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let opened = self.get_mut().0.poll_opened(context.waker());
        opened.map_err(SendError::from)
    }
}

impl Drop for SenderOpenedAsync<'_> {
    fn drop(&mut self) {
        self.0.leave_room();
    }
}

/// A wait for the end of the channel; see [`Sender::closed_async`].
struct ClosedAsync<'a> {
    handle: &'a SendHandle,
    /// Each wait keeps a ticket of its own, so that several may wait by one handle.
    held: Option<Ticket>,
}

impl Future for ClosedAsync<'_> {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let Self { handle, held } = self.get_mut();
        handle.poll_over(held, context.waker())
    }
}

impl Drop for ClosedAsync<'_> {
    fn drop(&mut self) {
        self.handle.leave_over(&mut self.held);
    }
}

/// A wait for room; see [`Sender::reserve_async`] and [`Sender::loan_async`].
///
/// Dropping the future reserves nothing. The future panics if it is polled again after it was
/// ready.
pub(crate) struct ReserveAsync<'a, R> {
    /// The handle, until the reservation takes it.
    handle: Option<&'a mut SendHandle>,
    length: Option<usize>,
    _reserved: PhantomData<fn() -> R>,
}

/// Output of [`ReserveAsync`]: a [`Permit`] or a [`Loan`].
pub(crate) trait ReserveOutput<'a> {
    fn of(raw: RawReservation<'a>) -> Self;
}

impl<'a, T: ?Sized, C: Codec<T>> ReserveOutput<'a> for Permit<'a, T, C> {
    fn of(raw: RawReservation<'a>) -> Self {
        Self::new(raw)
    }
}

impl<'a> ReserveOutput<'a> for Loan<'a> {
    fn of(raw: RawReservation<'a>) -> Self {
        Self::new(raw)
    }
}

impl<'a, R: ReserveOutput<'a>> ReserveAsync<'a, R> {
    fn new(handle: &'a mut SendHandle, length: Option<usize>) -> Self {
        Self {
            handle: Some(handle),
            length,
            _reserved: PhantomData,
        }
    }
}

impl<'a, R: ReserveOutput<'a>> Future for ReserveAsync<'a, R> {
    type Output = Result<R, SendError>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        let handle = this.handle.take().expect("it was ready before");
        match handle.poll_reserve(context.waker(), this.length) {
            Ok(reserved) => Poll::Ready(reserved.map(R::of).map_err(SendError::from)),
            Err(handle) => {
                this.handle = Some(handle);
                Poll::Pending
            }
        }
    }
}

impl<R> Drop for ReserveAsync<'_, R> {
    fn drop(&mut self) {
        if let Some(handle) = &mut self.handle {
            handle.leave_room();
        }
    }
}

/// A wait for counters; see [`Sender::flush_async`] and [`Sender::wait_acked_async`].
///
/// Dropping the future changes nothing.
pub(crate) struct WaitAckedAsync<'a, T: ?Sized, C: Codec<T> = DefaultCodec> {
    sender: &'a mut Sender<T, C>,
    sequence: u64,
    is_flush: bool,
    /// Of a wait for acknowledgement, if the node keeps histograms.
    stopwatch: Option<Stopwatch>,
}

impl<T: ?Sized, C: Codec<T>> Future for WaitAckedAsync<'_, T, C> {
    type Output = Result<(), WaitError>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        let handle = &mut this.sender.handle;
        let answer = match this.is_flush {
            true => handle.poll_received(context.waker(), this.sequence),
            false => handle.poll_acked(context.waker(), this.sequence),
        };
        if let (Poll::Ready(Ok(())), Some(stopwatch)) = (&answer, &this.stopwatch) {
            stopwatch.record();
        }
        answer.map_err(WaitError::from)
    }
}

impl<T: ?Sized, C: Codec<T>> Drop for WaitAckedAsync<'_, T, C> {
    fn drop(&mut self) {
        match self.is_flush {
            true => self.sender.handle.leave_received(),
            false => self.sender.handle.leave_acked(),
        }
    }
}
