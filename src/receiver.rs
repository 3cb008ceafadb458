//! The receiving end of a typed channel.

use std::{fmt, marker::PhantomData, time::Duration};

use ibex_codec::{Codec, Invalid};
use ibex_ring::parking::Patience;
use ibex_transport::{
    channel::{RawMessage, ReceiveHandle, RecvError as ChannelError},
    session::Counts,
};

use crate::{Message, RecvError, RecvErrorKind, message::DefaultCodec, sender::Sequence};

/// Receives messages of type `T`, encoded by `C`.
///
/// Opening announces the end and does not wait for the peer to open its own: blocking
/// calls do, each for up to the channel's `open_timeout`, until it has.
///
/// A call that waits is woken by a message, the peer's open, the end of the channel or of
/// its session, and [`Node::close`](crate::Node::close) from another thread; nothing else
/// cancels it. A wait that has timed out loses no message.
///
/// Dropping it gives senders [`Disconnected`](crate::SendErrorKind::Disconnected); messages that are held stay valid.
///
/// ```
/// use std::time::Duration;
/// use ibex::{Raw, Receiver, RecvError, RecvErrorKind};
///
/// /// Takes what comes, and does something else each second in which nothing does.
/// fn serve(bytes: &mut Receiver<[u8], Raw>) -> Result<(), RecvError> {
///     loop {
///         match bytes.recv_timeout(Duration::from_secs(1)) {
///             Ok(message) => {
///                 println!("{} bytes", message.len());
///                 message.ack();
///             }
///             Err(quiet) if quiet.is_transient() => println!("{quiet}"),
///             Err(error) if error.kind() == RecvErrorKind::Ended => return Ok(()),
///             Err(error) => return Err(error),
///         }
///     }
/// }
/// ```
pub struct Receiver<T: ?Sized, C = DefaultCodec> {
    pub(crate) handle: ReceiveHandle,
    _message: PhantomData<fn(&T)>,
    _codec: PhantomData<fn() -> C>,
}

impl<T: ?Sized, C: Codec<T>> Receiver<T, C> {
    pub(crate) fn new(handle: ReceiveHandle) -> Self {
        Self {
            handle,
            _message: PhantomData,
            _codec: PhantomData,
        }
    }

    /// The next message, or `None` when every sender has closed and everything was
    /// received. Waits while neither is there; a message, the end, or `Node::close`
    /// wakes it.
    ///
    /// # Errors
    ///
    /// [`RecvError`]: the peer did not open its end within `open_timeout` or has another
    /// type, the session broke (everything that arrived was handed out before), one
    /// message is not valid (the next call goes on), or the kernel refuses memory for what has
    /// come ([`RecvErrorKind::Memory`], said once; later calls wait for it).
    ///
    /// A long message for which there is no room within the node's
    /// [`memory_limit`](crate::NodeBuilder::memory_limit) is no error: the call waits until
    /// messages that this process holds are dropped, and for ever if its own thread holds them. A
    /// warning and [`Event::Stalled`](crate::Event::Stalled) say so after 1 s, and the error of
    /// [`recv_timeout`](Self::recv_timeout) does.
    #[inline(always)]
    #[allow(
        clippy::should_implement_trait,
        reason = "it can fail; `iter` is the iterator"
    )]
    pub fn next(&mut self) -> Result<Option<Message<T, C>>, RecvError> {
        match self.recv() {
            Ok(message) => Ok(Some(message)),
            Err(error) if error.kind() == RecvErrorKind::Ended => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The next message; waits as [`next`](Self::next) does.
    ///
    /// # Errors
    ///
    /// As [`next`](Self::next); the orderly end is [`RecvErrorKind::Ended`].
    #[inline(always)]
    pub fn recv(&mut self) -> Result<Message<T, C>, RecvError> {
        let raw = self.handle.receive(Patience::FOREVER)?;
        Ok(open(&self.handle, raw)?)
    }

    /// The next message if one is there now. Never waits; under `Driver::Caller` it runs a
    /// turn when nothing is there.
    ///
    /// # Errors
    ///
    /// [`RecvErrorKind::Empty`] or [`RecvErrorKind::NotOpened`] while there may be one later;
    /// else as [`recv`](Self::recv).
    #[inline]
    pub fn try_recv(&mut self) -> Result<Message<T, C>, RecvError> {
        let raw = self.handle.receive(Patience::None)?;
        Ok(open(&self.handle, raw)?)
    }

    /// The next message, waiting for up to `timeout`.
    ///
    /// # Errors
    ///
    /// [`RecvErrorKind::Timeout`] if none came, [`RecvErrorKind::NotOpened`] if the peer
    /// has not opened its end; else as [`recv`](Self::recv).
    pub fn recv_timeout(&mut self, timeout: Duration) -> Result<Message<T, C>, RecvError> {
        let raw = self.handle.receive(Patience::at_most(timeout))?;
        Ok(open(&self.handle, raw)?)
    }

    /// The messages up to the end, each waited for. After an error that ends the channel
    /// it answers `None`.
    pub fn iter(&mut self) -> Iter<'_, T, C> {
        Iter {
            receiver: self,
            is_over: false,
        }
    }

    /// Waits until the peer has opened its end, for up to `timeout` and not beyond
    /// `open_timeout`.
    ///
    /// # Errors
    ///
    /// [`RecvErrorKind::NotOpened`] if it has not within `timeout`
    /// ([`is_transient`](RecvError::is_transient)) or `open_timeout`; another kind if it has
    /// another type, or the session has ended.
    pub fn opened(&mut self, timeout: Duration) -> Result<(), RecvError> {
        self.handle
            .opened(Patience::at_most(timeout))
            .map_err(RecvError::from)
    }

    /// Messages handed out so far.
    #[must_use]
    pub fn received(&self) -> Sequence {
        self.handle.counters().received
    }

    /// Messages up to the first that is still held.
    #[must_use]
    pub fn released(&self) -> Sequence {
        self.handle.counters().released
    }

    /// All four counters: messages that arrived, as far as this end has seen (`sent`: at least
    /// so many were), that were handed out (`received`), released and acknowledged.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.handle.counts()
    }

    /// The channel's name.
    #[must_use]
    pub fn name(&self) -> &str {
        self.handle.name()
    }
}

/// Checks the bytes; what is not valid is released.
#[inline(always)]
pub(crate) fn open<T: ?Sized, C: Codec<T>>(
    handle: &ReceiveHandle,
    raw: RawMessage,
) -> Result<Message<T, C>, ChannelError> {
    match C::open(raw.bytes()) {
        Ok(held) => Ok(Message::new(raw, held)),
        Err(invalid) => Err(corrupt(handle, raw, &invalid)),
    }
}

#[cold]
fn corrupt(handle: &ReceiveHandle, raw: RawMessage, invalid: &Invalid) -> ChannelError {
    handle.corrupt(&raw, &invalid.to_string())
}

impl<T: ?Sized, C> fmt::Debug for Receiver<T, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.handle.fmt(f)
    }
}

/// Iterates over a receiver's messages. See [`Receiver::iter`].
#[derive(Debug)]
pub struct Iter<'a, T: ?Sized, C: Codec<T>> {
    receiver: &'a mut Receiver<T, C>,
    is_over: bool,
}

impl<'a, T: ?Sized, C: Codec<T>> IntoIterator for &'a mut Receiver<T, C> {
    type Item = Result<Message<T, C>, RecvError>;
    type IntoIter = Iter<'a, T, C>;

    /// As [`Receiver::iter`].
    fn into_iter(self) -> Iter<'a, T, C> {
        self.iter()
    }
}

impl<T: ?Sized, C: Codec<T>> Iterator for Iter<'_, T, C> {
    type Item = Result<Message<T, C>, RecvError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.is_over {
            return None;
        }
        let item = self.receiver.next().transpose();
        self.is_over = match &item {
            None => true,
            Some(Err(error)) => !error.spares_channel(),
            Some(Ok(_)) => false,
        };
        item
    }
}
