//! Ends of two versions, for tasks.

use std::{
    future::Future,
    task::{Context, Poll, ready},
};

use ibex_codec::Codec;
use ibex_ring::parking;

use super::{VersionedMessage, VersionedReceiver, VersionedSender, Versions};
use crate::{
    RecvError, SendError, Sender,
    handles::{
        asynchronous::{Messages, ReceivingEnd, item_of, opened_async, recv_async},
        receiver,
    },
};

// ---- Sending -------------------------------------------------------------------------

impl<N: ?Sized, O: ?Sized, C: Codec<N> + Codec<O>> VersionedSender<N, O, C> {
    /// Returns the sender of the version that was settled, in a task. Pending until the peer has
    /// opened its end. From then on it is ready at once and with the same version, so it may be
    /// awaited for each message.
    ///
    /// The sender has [`send_async`](Sender::send_async), [`sink`](Sender::sink) and everything
    /// else of a [`Sender`]. Dropping the future changes nothing.
    ///
    /// ```
    /// # #[cfg(feature = "rkyv")]
    /// # mod example {
    /// use ibex::{SendError, VersionedSender, Versions};
    ///
    /// # #[ibex::message]
    /// # struct EntryV1 { offset: u64 }
    /// # #[ibex::message]
    /// # struct EntryV2 { offset: u64, term: u64 }
    /// async fn send(
    ///     log: &mut VersionedSender<EntryV2, EntryV1>,
    ///     offset: u64,
    ///     term: u64,
    /// ) -> Result<u64, SendError> {
    ///     match log.opened_async().await? {
    ///         Versions::Newer(log) => log.send_async(&EntryV2 { offset, term }).await,
    ///         Versions::Older(log) => log.send_async(&EntryV1 { offset }).await,
    ///     }
    /// }
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`SendError`]: the peer knows neither version, or the session has ended. The future waits
    /// without limit until the peer opens its end, whatever `open_timeout` is.
    ///
    /// # Panics
    ///
    /// The future does if it is polled again when it was ready.
    #[allow(clippy::type_complexity, reason = "an alias would hide what it gives")]
    pub fn opened_async(
        &mut self,
    ) -> impl Future<Output = Result<Versions<&mut Sender<N, C>, &mut Sender<O, C>>, SendError>>
    {
        parking::future(
            // Until it is handed on.
            Some(self),
            |place, context| {
                let sender = place.take().expect("it was ready before");
                let opened = sender.handle.poll_opened(context.waker());
                if opened.is_pending() {
                    *place = Some(sender);
                    return Poll::Pending;
                }
                opened.map(|opened| Ok(opened.map(|()| sender.open())?))
            },
            |place| {
                if let Some(sender) = place {
                    sender.handle.leave_room();
                }
            },
        )
    }
}

// ---- Receiving -----------------------------------------------------------------------

impl<N: ?Sized, O: ?Sized, C: Codec<N> + Codec<O>> VersionedReceiver<N, O, C> {
    /// Waits in a task for the next message, as
    /// [`Receiver::recv_async`](crate::Receiver::recv_async) does. Dropping the future loses no
    /// message.
    ///
    /// ```
    /// # #[cfg(feature = "rkyv")]
    /// # mod example {
    /// use ibex::{RecvError, VersionedReceiver, Versions};
    ///
    /// # #[ibex::message]
    /// # struct EntryV1 { offset: u64 }
    /// # #[ibex::message]
    /// # struct EntryV2 { offset: u64, term: u64 }
    /// async fn next_offset(
    ///     log: &mut VersionedReceiver<EntryV2, EntryV1>,
    /// ) -> Result<u64, RecvError> {
    ///     Ok(match log.recv_async().await? {
    ///         Versions::Newer(entry) => entry.offset.to_native(),
    ///         Versions::Older(entry) => entry.offset.to_native(),
    ///     })
    /// }
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// The errors of [`recv`](Self::recv), except that the future waits for the peer to open its
    /// end without a time limit.
    pub fn recv_async(
        &mut self,
    ) -> impl Future<Output = Result<VersionedMessage<N, O, C>, RecvError>> {
        recv_async(self)
    }

    /// Returns the next message, or `None` when the channel has ended in order, as
    /// [`Receiver::next_async`](crate::Receiver::next_async) does.
    ///
    /// # Errors
    ///
    /// The errors of [`recv_async`](Self::recv_async), but for the orderly end.
    pub async fn next_async(&mut self) -> Result<Option<VersionedMessage<N, O, C>>, RecvError> {
        receiver::until_end(self.recv_async().await)
    }

    /// Waits in a task until the peer has opened its end, as
    /// [`Receiver::opened_async`](crate::Receiver::opened_async) does.
    ///
    /// # Errors
    ///
    /// [`RecvError`]: the peer knows neither version, or the session has ended.
    pub fn opened_async(&mut self) -> impl Future<Output = Result<(), RecvError>> {
        opened_async(&mut self.handle)
    }

    /// Polls for the next message, as [`Receiver::poll_recv`](crate::Receiver::poll_recv) does.
    ///
    /// # Errors
    ///
    /// The errors of [`recv_async`](Self::recv_async).
    pub fn poll_recv(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Result<VersionedMessage<N, O, C>, RecvError>> {
        let raw = ready!(self.handle.poll_receive(context.waker()))?;
        Poll::Ready(self.open(raw))
    }

    /// Returns the messages up to the end as a stream, as
    /// [`Receiver::stream`](crate::Receiver::stream) does.
    pub fn stream(&mut self) -> Messages<&mut Self> {
        Messages::new(self)
    }

    /// Turns the receiver into a stream, as [`stream`](Self::stream) does by reference.
    pub fn into_stream(self) -> Messages<Self> {
        Messages::new(self)
    }
}

impl<N: ?Sized, O: ?Sized, C: Codec<N> + Codec<O>> ReceivingEnd for VersionedReceiver<N, O, C> {
    type Received = Result<VersionedMessage<N, O, C>, RecvError>;
    type Item = Result<VersionedMessage<N, O, C>, RecvError>;

    #[inline]
    fn poll_received(&mut self, context: &mut Context<'_>) -> Poll<Self::Received> {
        self.poll_recv(context)
    }

    fn item(received: Self::Received, is_over: &mut bool) -> Option<Self::Item> {
        item_of(received, is_over)
    }

    #[inline]
    fn leave(&mut self) {
        self.handle.leave();
    }
}
