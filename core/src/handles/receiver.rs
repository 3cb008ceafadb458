//! The receiving end of a typed channel.

use std::{
    fmt,
    marker::PhantomData,
    time::{Duration, Instant},
};

use ibex_codec::{Codec, Invalid};
use ibex_ring::parking::Patience;
use ibex_transport::{
    channel::{ChannelError, RawMessage, ReceiveHandle},
    session::Counts,
};

use crate::{Message, RecvError, RecvErrorKind, handles::message::DefaultCodec};

/// Receives messages of type `T`, encoded by `C`, on one channel.
///
/// ```
/// use ibex::{Raw, Receiver};
///
/// /// Prints and acknowledges each line, until the sender closes the channel.
/// fn print(log: &mut Receiver<[u8], Raw>) -> Result<(), Box<dyn std::error::Error>> {
///     while let Some(line) = log.next()? {
///         println!("{}", String::from_utf8_lossy(&line)); // read where it arrived
///         line.ack();
///     }
///     Ok(())
/// }
/// ```
///
/// [`Peer::receiver`](crate::Peer::receiver) opens a receiver, or [`Peer::channel`](crate::Peer::channel)
/// with settings. Opening announces the end and does not wait. Calls that block wait until the peer has
/// opened its sender, each for up to the channel's
/// [`open_timeout`](crate::ChannelBuilder::open_timeout).
///
/// | call | waits | at the orderly end |
/// |---|---|---|
/// | [`next`](Self::next) | until a message or the end is there | `None` |
/// | [`recv`](Self::recv) | likewise | an error, `Ended` |
/// | [`recv_many`](Self::recv_many) | as `next`, for the first of several messages | 0 |
/// | [`recv_timeout`](Self::recv_timeout), [`recv_deadline`](Self::recv_deadline) | for a limited time | the same error |
/// | [`try_recv`](Self::try_recv) | never | the same error |
/// | [`iter`](Self::iter) | as `next`, for each message | the iterator ends |
/// | [`recv_async`](Self::recv_async) | in a task | the same error |
///
/// A waiting call is woken by a message, by the peer's open, by the end of the channel or its session,
/// and by [`Node::close`](crate::Node::close) from another thread. Nothing else cancels it.
///
/// # Stopping a blocked receive
///
/// Use one of these:
///
/// - [`Node::close`](crate::Node::close) of a clone in another thread, which ends all calls of the node. A
///   receive fails with [`Disconnected`](crate::RecvErrorKind::Disconnected) and the
///   [cause](RecvError::cause) [`NodeClosed`](crate::EndCause::NodeClosed).
/// - In a task, dropping the future of `recv_async`.
/// - A [`Select`](crate::Select) over this receiver and another one, on which a message says stop.
/// - `recv_timeout`, which loses no message when its time is up:
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
///
/// # The end
///
/// Dropping a receiver ends the channel: senders get an error, `Disconnected`. Messages that the program
/// holds stay valid. [`close`](Self::close) does the same, and what had arrived is still handed out.
///
/// # Errors
///
/// An error that ends the channel comes after every message that arrived, and carries
/// [counters](crate::Counts). A message that is not valid is an error of its own, and the next call goes
/// on.
pub struct Receiver<T: ?Sized, C = DefaultCodec> {
    pub(crate) handle: ReceiveHandle,
    _types: PhantomData<fn(&T) -> C>,
}

impl<T: ?Sized, C: Codec<T>> Receiver<T, C> {
    pub(crate) fn new(handle: ReceiveHandle) -> Self {
        Self {
            handle,
            _types: PhantomData,
        }
    }

    /// Returns the next message, or `None` when every sender has closed and everything was
    /// received. Waits until there is either. A message, the end, or
    /// [`Node::close`](crate::Node::close) wakes it.
    ///
    /// # Errors
    ///
    /// [`RecvError`]: the peer did not open its end within `open_timeout` or has another
    /// type, the session broke (everything that arrived was handed out before), one
    /// message is not valid (the next call goes on), or the kernel refuses memory for what has
    /// come ([`RecvErrorKind::Memory`], said once; later calls wait for it).
    ///
    /// A long message for which there is no room within the node's
    /// [`memory_limit`](crate::NodeBuilder::memory_limit) is no error. The call waits until
    /// messages that this process holds are dropped, which is for ever if its own thread holds
    /// them. After 1 s a warning and [`Event::Stalled`](crate::Event::Stalled) say so, as does the
    /// error of [`recv_timeout`](Self::recv_timeout).
    #[inline(always)]
    #[allow(
        clippy::should_implement_trait,
        reason = "it can fail; `iter` is the iterator"
    )]
    pub fn next(&mut self) -> Result<Option<Message<T, C>>, RecvError> {
        until_end(self.recv())
    }

    /// Returns the next message. Waits as [`next`](Self::next) does.
    ///
    /// # Errors
    ///
    /// The errors of [`next`](Self::next); the orderly end is [`RecvErrorKind::Ended`].
    #[inline(always)]
    pub fn recv(&mut self) -> Result<Message<T, C>, RecvError> {
        let raw = self.handle.receive(Patience::FOREVER)?;
        Ok(open(&self.handle, raw)?)
    }

    /// Returns the next message if one is there now. Never waits. Under
    /// [`Driver::Caller`](crate::Driver::Caller) it runs a turn when nothing is there.
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

    /// Returns the next message, waiting for up to `timeout`.
    ///
    /// # Errors
    ///
    /// [`RecvErrorKind::Timeout`] if none came, [`RecvErrorKind::NotOpened`] if the peer
    /// has not opened its end; else as [`recv`](Self::recv).
    pub fn recv_timeout(&mut self, timeout: Duration) -> Result<Message<T, C>, RecvError> {
        let raw = self.handle.receive(Patience::at_most(timeout))?;
        Ok(open(&self.handle, raw)?)
    }

    /// Returns the next message, waiting until `deadline`, which several calls may share.
    ///
    /// # Errors
    ///
    /// The errors of [`recv_timeout`](Self::recv_timeout).
    pub fn recv_deadline(&mut self, deadline: Instant) -> Result<Message<T, C>, RecvError> {
        let raw = self.handle.receive(Patience::Until(Some(deadline)))?;
        Ok(open(&self.handle, raw)?)
    }

    /// Puts up to `limit` messages behind those in `into`, and returns their number. Waits as
    /// [`next`](Self::next) does until there is one, and takes what is there then. It is 0 at the
    /// orderly end, or if `limit` is 0.
    ///
    /// The messages that `into` holds keep their room in the window, so it never gets more than the
    /// window has.
    ///
    /// ```
    /// use ibex::{Raw, Receiver, RecvError};
    ///
    /// /// Writes what comes in batches.
    /// fn serve(
    ///     log: &mut Receiver<[u8], Raw>,
    ///     mut write: impl FnMut(&[ibex::Message<[u8], Raw>]),
    /// ) -> Result<(), RecvError> {
    ///     let mut batch = Vec::new();
    ///     while log.recv_many(&mut batch, 64)? != 0 {
    ///         write(&batch);
    ///         batch.drain(..).for_each(ibex::Message::ack);
    ///     }
    ///     Ok(())
    /// }
    /// ```
    ///
    /// # Errors
    ///
    /// The errors of [`next`](Self::next). One that ends the channel comes in a call of its own. One
    /// that spares it comes behind the messages before it, which are in `into`.
    pub fn recv_many(
        &mut self,
        into: &mut Vec<Message<T, C>>,
        limit: usize,
    ) -> Result<usize, RecvError> {
        if limit == 0 {
            return Ok(0);
        }
        let first = self.next()?;
        self.take_many(first, into, limit)
    }

    /// Takes the messages that are there behind `first`; `None` is the orderly end.
    pub(crate) fn take_many(
        &mut self,
        first: Option<Message<T, C>>,
        into: &mut Vec<Message<T, C>>,
        limit: usize,
    ) -> Result<usize, RecvError> {
        let Some(first) = first else {
            return Ok(0);
        };
        into.push(first);
        let mut taken = 1;
        while taken < limit {
            match self.handle.poll() {
                Ok(Some(raw)) => into.push(open(&self.handle, raw)?),
                Ok(None) => break,
                Err(error) => match RecvError::from(error) {
                    error if error.spares_channel() => return Err(error),
                    // The next call returns it.
                    _ => break,
                },
            }
            taken += 1;
        }
        Ok(taken)
    }

    /// Ends the channel: its senders get an error, as if this receiver were dropped. What has
    /// arrived can still be received, and then the orderly end comes. It does not wait, and nothing
    /// takes it back.
    ///
    /// If memory for a long message is lacking, a call answers so at once, and a later one tries again.
    ///
    /// Messages that were on their way are lost, and so are the acknowledgements of those that are
    /// received after this call, because the channel has ended for the sender. The node's statistics
    /// count neither.
    ///
    /// ```
    /// use ibex::{Raw, Receiver, RecvError};
    ///
    /// /// Stops the sender, and takes what is there already.
    /// fn stop(log: &mut Receiver<[u8], Raw>) -> Result<usize, RecvError> {
    ///     log.close();
    ///     let mut last = 0;
    ///     while let Some(message) = log.next()? {
    ///         last += message.len();
    ///     }
    ///     Ok(last)
    /// }
    /// ```
    pub fn close(&mut self) {
        self.handle.close();
    }

    /// Returns an iterator over the messages up to the end, which waits for each. After an error
    /// that ends the channel it returns `None`.
    pub fn iter(&mut self) -> impl Iterator<Item = Result<Message<T, C>, RecvError>> {
        self.into_iter()
    }

    /// Waits until the peer has opened its end, for up to `timeout` and not beyond
    /// `open_timeout`. Everything that a [`Publisher`](crate::Publisher) sends after this has returned
    /// arrives here.
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

    /// Returns the number of messages handed out so far.
    #[must_use]
    pub fn received(&self) -> u64 {
        self.handle.counters().received
    }

    /// Returns the number of messages up to the first that is still held.
    #[must_use]
    pub fn released(&self) -> u64 {
        self.handle.counters().released
    }

    /// Returns all four counters: messages that arrived, as far as this end has seen (`sent`, a
    /// lower bound), that were handed out (`received`), released and acknowledged.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.handle.counts()
    }

    /// Returns the channel's name.
    #[must_use]
    pub fn name(&self) -> &str {
        self.handle.name()
    }
}

/// Checks the bytes, and releases a message that is not valid.
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

    /// Iterates as [`Receiver::iter`] does.
    fn into_iter(self) -> Iter<'a, T, C> {
        Iter {
            receiver: self,
            is_over: false,
        }
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

/// Returns `None` for the orderly end of a channel.
#[inline]
pub(crate) fn until_end<M>(received: Result<M, RecvError>) -> Result<Option<M>, RecvError> {
    match received {
        Ok(message) => Ok(Some(message)),
        Err(error) => unless_ended(error).map(|()| None),
    }
}

#[cold]
fn unless_ended(error: RecvError) -> Result<(), RecvError> {
    match error.kind() {
        RecvErrorKind::Ended => Ok(()),
        _ => Err(error),
    }
}
