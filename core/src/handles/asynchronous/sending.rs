//! Sending for tasks: futures and polls.

use std::{
    borrow::Borrow,
    future::Future,
    task::{Context, Poll},
};

use ibex_codec::{Codec, Raw};
use ibex_ring::parking;
use ibex_transport::channel::{RawReservation, SendHandle};

use super::sink::SendSink;
use crate::{Loan, Permit, SendError, Sender, WaitError};

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
        parking::future(
            self,
            move |sender, context| sender.poll_send(context, value),
            |sender| _ = sender.handle.leave_room(),
        )
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
        reserve_async(&mut self.handle, None, Permit::new)
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
        parking::future(
            &mut self.handle,
            |handle, context| handle.poll_opened(context.waker()).map_err(SendError::from),
            |handle| _ = handle.leave_room(),
        )
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
        // Each wait keeps a ticket of its own, so that several may wait by one handle.
        parking::future(
            None,
            |held, context| self.handle.poll_over(held, context.waker()),
            |held| self.handle.leave_over(held),
        )
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
        let last = self.handle.last_sequence();
        parking::future(
            &mut self.handle,
            move |handle, context| {
                let flushed = handle.poll_received(context.waker(), last);
                flushed.map_err(WaitError::from)
            },
            |handle| handle.leave_received(),
        )
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
        let stopwatch = self.handle.time_ack();
        parking::future(
            self,
            move |sender, context| {
                let acknowledged = sender.poll_acked(context, sequence);
                if let (Poll::Ready(Ok(())), Some(stopwatch)) = (&acknowledged, &stopwatch) {
                    stopwatch.record();
                }
                acknowledged
            },
            |sender| sender.handle.leave_acked(),
        )
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
        reserve_async(&mut self.handle, Some(length), Loan::new)
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

/// Waits for room in a task, and makes a permit or a loan of it.
///
/// Dropping the future reserves nothing. The future panics if it is polled again after it was
/// ready.
fn reserve_async<'a, R>(
    handle: &'a mut SendHandle,
    length: Option<usize>,
    of: fn(RawReservation<'a>) -> R,
) -> impl Future<Output = Result<R, SendError>> {
    parking::future(
        // Until the reservation takes it.
        Some(handle),
        move |place, context| {
            let handle = place.take().expect("it was ready before");
            match handle.poll_reserve(context.waker(), length) {
                Ok(reserved) => Poll::Ready(reserved.map(of).map_err(SendError::from)),
                Err(handle) => {
                    *place = Some(handle);
                    Poll::Pending
                }
            }
        },
        |place| {
            if let Some(handle) = place {
                handle.leave_room();
            }
        },
    )
}
