//! The same calls for tasks: futures, a stream and a sink, for any executor.
//!
//! Nothing here has a thread or a timer of its own. A future that is pending has left its
//! waker where a blocking call would have slept: it is woken once for what it waits for, and
//! a task that waits costs nothing meanwhile. Dropping a future at any time loses no message
//! and takes back what it left: a message is taken off its channel in the poll that returns
//! it, and one that is being sent is either published or not.
//!
//! An executor's waker is called on whatever thread has the news. If it panics there, the log
//! has an error with the panic's text, and everybody else is woken.
//!
//! Under [`Driver::Threads`](crate::Driver::Threads) the node's engine moves by itself. Under
//! [`Driver::Caller`](crate::Driver::Caller) each poll that finds nothing runs one turn, and
//! between polls nothing moves: let the program turn the engine, by
//! [`Node::poll`](crate::Node::poll) when [`Node::as_fd`](crate::Node::as_fd) is readable, in
//! a task of its own as the example `tokio_caller` does.
//!
//! `open_timeout` ends blocking calls only; a future waits until the peer opens its end or the
//! session is over. To wait no longer, drop it, which is what an executor's time-out does. That
//! the peer has not opened it for that long is told by [an event](crate::Event::NotOpened) and
//! the log.
//!
//! ```
//! use ibex::{Raw, Receiver, RecvError, SendError, Sender};
//!
//! /// Answers each message with its length.
//! async fn serve(
//!     mut requests: Receiver<[u8], Raw>,
//!     mut answers: Sender<[u8], Raw>,
//! ) -> Result<(), Box<dyn std::error::Error>> {
//!     loop {
//!         match requests.recv_async().await {
//!             Ok(request) => answers.send_async(&request.len().to_le_bytes()).await?,
//!             Err(RecvError::Ended) => return Ok(()),
//!             Err(error) => return Err(error.into()),
//!         };
//!     }
//! }
//! ```

use std::{
    borrow::Borrow,
    fmt,
    future::Future,
    pin::Pin,
    task::{Context, Poll, ready},
};

use futures_core::{FusedStream, Stream};
use futures_sink::Sink;
use ibex_codec::Codec;
use ibex_transport::channel::TaskWait;

pub use crate::dialing::ConnectAsync;

use crate::{
    AcceptError, Message, Node, Peer, Receiver, RecvError, SendError, Sender, Sequence,
    TrySendError, WaitAckedError, message::DefaultCodec, receiver,
};

/// The next message. See [`Receiver::recv_async`].
#[must_use = "a future does nothing unless it is awaited"]
pub struct RecvAsync<'a, T: ?Sized, C: Codec<T> = DefaultCodec> {
    receiver: &'a mut Receiver<T, C>,
    wait: TaskWait,
}

impl<T: ?Sized, C: Codec<T>> Receiver<T, C> {
    /// The next message, for a task.
    ///
    /// Dropping the future loses no message: what had come is there for the next call.
    ///
    /// # Errors
    ///
    /// As [`recv`](Self::recv), but that it waits for as long as it takes until the peer has
    /// opened its end.
    pub fn recv_async(&mut self) -> RecvAsync<'_, T, C> {
        RecvAsync {
            receiver: self,
            wait: TaskWait::default(),
        }
    }

    /// The messages up to the end, as a stream. After an error that ends the channel it is
    /// over; after a message that is not valid it goes on.
    pub fn stream(&mut self) -> Messages<'_, T, C> {
        Messages {
            receiver: self,
            wait: TaskWait::default(),
            is_over: false,
        }
    }

    fn poll_recv(
        &mut self,
        wait: &mut TaskWait,
        context: &mut Context<'_>,
    ) -> Poll<Result<Message<T, C>, RecvError>> {
        let raw = ready!(self.handle.poll_receive(wait, context.waker()))?;
        Poll::Ready(receiver::open(&self.handle, raw))
    }
}

impl<T: ?Sized, C: Codec<T>> Future for RecvAsync<'_, T, C> {
    type Output = Result<Message<T, C>, RecvError>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        this.receiver.poll_recv(&mut this.wait, context)
    }
}

impl<T: ?Sized, C: Codec<T>> Drop for RecvAsync<'_, T, C> {
    fn drop(&mut self) {
        self.receiver.handle.leave(&mut self.wait);
    }
}

/// A receiver's messages as a stream. See [`Receiver::stream`].
#[must_use = "a stream does nothing unless it is polled"]
pub struct Messages<'a, T: ?Sized, C: Codec<T> = DefaultCodec> {
    receiver: &'a mut Receiver<T, C>,
    wait: TaskWait,
    is_over: bool,
}

impl<T: ?Sized, C: Codec<T>> Stream for Messages<'_, T, C> {
    type Item = Result<Message<T, C>, RecvError>;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = self.get_mut();
        if this.is_over {
            return Poll::Ready(None);
        }
        let item = ready!(this.receiver.poll_recv(&mut this.wait, context));
        Poll::Ready(item_of(item, &mut this.is_over))
    }
}

/// What a stream gives for what was received, and whether it is over then: after any error but
/// one that spares the channel.
pub(crate) fn item_of<M>(
    received: Result<M, RecvError>,
    is_over: &mut bool,
) -> Option<Result<M, RecvError>> {
    *is_over = matches!(&received, Err(error) if !error.spares_channel());
    match received {
        Err(RecvError::Ended) => None,
        item => Some(item),
    }
}

impl<T: ?Sized, C: Codec<T>> FusedStream for Messages<'_, T, C> {
    fn is_terminated(&self) -> bool {
        self.is_over
    }
}

impl<T: ?Sized, C: Codec<T>> Drop for Messages<'_, T, C> {
    fn drop(&mut self) {
        self.receiver.handle.leave(&mut self.wait);
    }
}

/// A message on its way into its channel. See [`Sender::send_async`].
#[must_use = "a future does nothing unless it is awaited"]
pub struct SendAsync<'a, T: ?Sized, C: Codec<T> = DefaultCodec> {
    sender: &'a mut Sender<T, C>,
    value: &'a T,
    wait: TaskWait,
}

/// Waits for counters. See [`Sender::flush_async`] and [`Sender::wait_acked_async`].
#[must_use = "a future does nothing unless it is awaited"]
pub struct WaitAckedAsync<'a, T: ?Sized, C: Codec<T> = DefaultCodec> {
    sender: &'a mut Sender<T, C>,
    sequence: Sequence,
    is_flush: bool,
    wait: TaskWait,
}

impl<T: ?Sized, C: Codec<T>> Sender<T, C> {
    /// Sends a message, for a task: pending while the channel's window is full or its other
    /// end is not open yet.
    ///
    /// Dropping the future before it is ready sends nothing.
    ///
    /// # Errors
    ///
    /// As [`send`](Self::send), but that it waits for as long as it takes until the peer has
    /// opened its end.
    pub fn send_async<'a>(&'a mut self, value: &'a T) -> SendAsync<'a, T, C> {
        SendAsync {
            sender: self,
            value,
            wait: TaskWait::default(),
        }
    }

    /// Waits until the peer's engine holds everything that was sent, for a task.
    ///
    /// # Errors
    ///
    /// As [`flush`](Self::flush).
    pub fn flush_async(&mut self) -> WaitAckedAsync<'_, T, C> {
        WaitAckedAsync {
            sequence: self.handle.last_sequence(),
            sender: self,
            is_flush: true,
            wait: TaskWait::default(),
        }
    }

    /// Waits until the receiving application has acknowledged everything up to `sequence`,
    /// for a task.
    ///
    /// # Errors
    ///
    /// As [`wait_acked`](Self::wait_acked).
    pub fn wait_acked_async(&mut self, sequence: Sequence) -> WaitAckedAsync<'_, T, C> {
        WaitAckedAsync {
            sender: self,
            sequence,
            is_flush: false,
            wait: TaskWait::default(),
        }
    }

    fn poll_send(
        &mut self,
        value: &T,
        wait: &mut TaskWait,
        context: &mut Context<'_>,
    ) -> Poll<Result<Sequence, SendError>> {
        let encode = Self::encoder(value);
        self.handle
            .poll_send(wait, context.waker(), C::size(value), encode)
    }
}

impl<T: ?Sized, C: Codec<T>> Sender<T, C> {
    /// This sender as a sink of values, or of what holds them: `Vec<u8>` for `[u8]`.
    ///
    /// A value that finds no room is kept in the sink until there is some; dropping the sink
    /// drops it unsent, so flush or close it. `flush` says that everything is published, which
    /// is what [`send`](Self::send) says when it returns; so does `close`, which also says why a
    /// channel never opened, and the channel ends when the sender is dropped.
    pub fn sink<V: Borrow<T>>(&mut self) -> SendSink<'_, T, C, V> {
        SendSink {
            sender: self,
            kept: None,
            wait: TaskWait::default(),
        }
    }
}

impl<T: ?Sized, C: Codec<T>> Future for SendAsync<'_, T, C> {
    type Output = Result<Sequence, SendError>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        this.sender.poll_send(this.value, &mut this.wait, context)
    }
}

impl<T: ?Sized, C: Codec<T>> Drop for SendAsync<'_, T, C> {
    fn drop(&mut self) {
        self.sender.handle.leave(&mut self.wait);
    }
}

impl<T: ?Sized, C: Codec<T>> Future for WaitAckedAsync<'_, T, C> {
    type Output = Result<(), WaitAckedError>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        let (handle, wait) = (&this.sender.handle, &mut this.wait);
        match this.is_flush {
            true => handle.poll_received(wait, context.waker(), this.sequence),
            false => handle.poll_acked(wait, context.waker(), this.sequence),
        }
    }
}

impl<T: ?Sized, C: Codec<T>> Drop for WaitAckedAsync<'_, T, C> {
    fn drop(&mut self) {
        self.sender.handle.leave(&mut self.wait);
    }
}

/// A sender as a sink. See [`Sender::sink`].
#[must_use = "a sink does nothing unless it is polled"]
pub struct SendSink<'a, T: ?Sized, C: Codec<T>, V> {
    sender: &'a mut Sender<T, C>,
    /// A value that found no room.
    kept: Option<V>,
    wait: TaskWait,
}

impl<T: ?Sized, C: Codec<T>, V: Borrow<T>> SendSink<'_, T, C, V> {
    /// Sends what is kept.
    fn poll_empty(&mut self, context: &mut Context<'_>) -> Poll<Result<(), SendError>> {
        let Some(value) = &self.kept else {
            return Poll::Ready(Ok(()));
        };
        let value = value.borrow();
        let sent = ready!(self.sender.poll_send(value, &mut self.wait, context));
        self.kept = None;
        Poll::Ready(sent.map(|_| ()))
    }
}

impl<T: ?Sized, C: Codec<T>, V: Borrow<T> + Unpin> Sink<V> for SendSink<'_, T, C, V> {
    type Error = SendError;

    fn poll_ready(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<(), SendError>> {
        self.get_mut().poll_empty(context)
    }

    fn start_send(self: Pin<&mut Self>, value: V) -> Result<(), SendError> {
        let this = self.get_mut();
        match this.sender.try_send(value.borrow()) {
            Ok(_) => Ok(()),
            Err(TrySendError::Failed(error)) => Err(error),
            Err(_) => {
                this.kept = Some(value);
                Ok(())
            }
        }
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<(), SendError>> {
        self.get_mut().poll_empty(context)
    }

    fn poll_close(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<(), SendError>> {
        let this = self.get_mut();
        ready!(this.poll_empty(context))?;
        Poll::Ready(this.sender.handle.open_failure().map_or(Ok(()), Err))
    }
}

impl<T: ?Sized, C: Codec<T>, V> Drop for SendSink<'_, T, C, V> {
    fn drop(&mut self) {
        self.sender.handle.leave(&mut self.wait);
    }
}

/// The next peer that connects. See [`Node::accept_async`].
#[must_use = "a future does nothing unless it is awaited"]
pub struct AcceptAsync<'a> {
    node: &'a Node,
    wait: TaskWait,
}

impl Node {
    /// The next peer that connected, for a task.
    ///
    /// Dropping the future loses no peer: it is there for the next call.
    ///
    /// # Errors
    ///
    /// As [`accept`](Self::accept).
    pub fn accept_async(&self) -> AcceptAsync<'_> {
        AcceptAsync {
            node: self,
            wait: TaskWait::default(),
        }
    }
}

impl Future for AcceptAsync<'_> {
    type Output = Result<Peer, AcceptError>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        this.node.check_listening()?;
        let accepted = this
            .node
            .runtime
            .poll_accept(&mut this.wait, context.waker());
        Poll::Ready(match ready!(accepted) {
            Some(session) => Ok(this.node.peer(session)),
            None => Err(AcceptError::Closed),
        })
    }
}

impl Drop for AcceptAsync<'_> {
    fn drop(&mut self) {
        self.node.runtime.leave_accept(&mut self.wait);
    }
}

macro_rules! debug_as_named {
    ($($name:ident[T: ?Sized, C: Codec<T>$(, $more:ident)?] $of:ident),*) => {$(
        impl<T: ?Sized, C: Codec<T>$(, $more)?> fmt::Debug for $name<'_, T, C$(, $more)?> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.debug_struct(stringify!($name))
                    .field("channel", &self.$of.name())
                    .finish_non_exhaustive()
            }
        }
    )*};
}

debug_as_named!(
    RecvAsync[T: ?Sized, C: Codec<T>] receiver,
    Messages[T: ?Sized, C: Codec<T>] receiver,
    SendAsync[T: ?Sized, C: Codec<T>] sender,
    WaitAckedAsync[T: ?Sized, C: Codec<T>] sender,
    SendSink[T: ?Sized, C: Codec<T>, V] sender
);

impl fmt::Debug for AcceptAsync<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AcceptAsync").finish_non_exhaustive()
    }
}
