//! The sending end of a typed channel.

use std::{
    fmt,
    marker::PhantomData,
    mem::MaybeUninit,
    time::{Duration, Instant},
};

use ibex_codec::{Codec, EncodeError, SlotWriter};
#[cfg(feature = "serde")]
use ibex_codec::{SerdeBorrowed, WithLifetime};
use ibex_ring::parking::Patience;
use ibex_transport::{
    channel::{Abort, GroupMessage, SendHandle},
    session::Counts,
};

use crate::{CloseReason, Selectable, SendError, WaitError, handles::message::DefaultCodec};

/// The condition that a message is acknowledged, or never will be; see [`Sender::until_acked`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct UntilAcked<'a> {
    pub(crate) handle: &'a SendHandle,
    pub(crate) sequence: u64,
}

/// Sends messages of type `T`, encoded by `C`, on one channel.
///
/// ```
/// use ibex::{Raw, Sender};
///
/// /// Sends all lines, and waits until the peer's program is done with them.
/// fn send(lines: &[&str], mut log: Sender<[u8], Raw>) -> Result<(), Box<dyn std::error::Error>> {
///     let mut last = 0;
///     for line in lines {
///         last = log.send(line.as_bytes())?;
///     }
///     log.wait_acked(last)?;
///     log.close()?;
///     Ok(())
/// }
/// ```
///
/// [`Peer::sender`](crate::Peer::sender) opens a sender, or [`Peer::channel`](crate::Peer::channel) with
/// settings. Opening announces the end and does not wait. Calls that block wait until the peer has
/// opened its receiver, each for up to the channel's
/// [`open_timeout`](crate::ChannelBuilder::open_timeout).
///
/// | call | returns when |
/// |---|---|
/// | [`send`](Self::send) | the message is in the window; waits while the window is full |
/// | [`send_all`](Self::send_all) | all messages of a batch are in the window |
/// | [`try_send`](Self::try_send), [`send_timeout`](Self::send_timeout), [`send_deadline`](Self::send_deadline) | the same, without waiting or for a limited time |
/// | [`loan`](Self::loan) | there is room, in which the message is built without a copy |
/// | [`flush`](Self::flush) | the peer's engine holds everything that was sent |
/// | [`wait_acked`](Self::wait_acked) | the peer's program has acknowledged a message and all before it |
/// | [`close`](Self::close) | everything is delivered, and the channel has ended in order |
///
/// A waiting call is woken by what it waits for, by the end of the channel or its session, and by
/// [`Node::close`](crate::Node::close) from another thread. Nothing else cancels it.
///
/// # Several threads
///
/// `send` takes `&mut self`, so a sender costs no lock. To send from several threads,
/// [`clone`](Clone::clone) it:
///
/// ```
/// use std::thread;
/// use ibex::{Raw, Sender};
///
/// fn from_two_threads(mut bytes: Sender<[u8], Raw>) -> Result<(), Box<dyn std::error::Error>> {
///     let mut clone = bytes.clone();
///     let other = thread::spawn(move || clone.send(b"from there"));
///     bytes.send(b"from here")?;
///     other.join().expect("it does not panic")?;
///     Ok(())
/// }   // the last clone goes: the channel ends in order
/// ```
///
/// From then on the clones take turns. A sending call first waits for a clone that is building a message
/// or waits to send one, within its own time-out. Calls that begin with `try_` answer `Full` then.
///
/// # How the channel ends
///
/// | what happens | the receiver gets, after everything that was sent |
/// |---|---|
/// | the last clone is dropped, or [closed](Self::close) | `None`, the orderly end |
/// | a clone is [aborted](Self::abort), or dropped by a panic | an error: there was to be more |
/// | a panic drops the [`Node`](crate::Node) | the same error |
/// | a clone is dropped by `?`, or with a cancelled task | `None` as well, because that looks like any other drop |
///
/// If the last row matters, call `abort` on the way out, or have the receiver expect a last
/// message. Dropping a sender does not wait, and messages on their way are still delivered.
///
/// A message that was sent cannot be taken back. Over shared memory the peer has it already; elsewhere
/// at most a window is still on its way. A channel ends before everything is delivered if the receiver
/// is dropped at the peer, if the session is lost, or if either end closes it by
/// [`Peer::close`](crate::Peer::close) or [`Node::close`](crate::Node::close) and the time of that call
/// is over first: always, with a time of zero. The call [reports](crate::CloseReport) which messages are
/// not known to have arrived.
///
/// # Errors
///
/// An error of `send` means that the message was not sent. Errors that end the channel carry
/// [counters](crate::Counts), which say how far it came; the page
/// [`acknowledgement`](https://docs.rs/ibex/latest/ibex/guide/acknowledgement/index.html) says what to do with the rest.
#[repr(transparent)] // `of` relies on it
pub struct Sender<T: ?Sized, C = DefaultCodec> {
    pub(crate) handle: SendHandle,
    _types: PhantomData<fn(&T) -> C>,
}

impl<T: ?Sized, C> Sender<T, C> {
    /// Returns the handle as a sender of messages of type `T`.
    #[inline]
    pub(crate) fn of(handle: &mut SendHandle) -> &mut Self {
        // SAFETY: a sender is its handle and nothing else: it is transparent, and its other
        // fields are markers without size. The handle knows nothing of `T` and `C`, so every
        // value of it is one of a sender. The reference is as exclusive as `handle`, and
        // lives no longer.
        unsafe { &mut *std::ptr::from_mut(handle).cast() }
    }
}

impl<T: ?Sized, C: Codec<T>> Sender<T, C> {
    pub(crate) fn new(handle: SendHandle) -> Self {
        Self {
            handle,
            _types: PhantomData,
        }
    }

    /// Sends a message. Waits while the channel's window is full, or while the peer has not opened
    /// its end.
    ///
    /// Returns the message's place in its channel; the first is 1. The message is published then,
    /// and will be delivered while both processes and the session live. [`flush`](Self::flush) waits until the peer's engine holds it,
    /// [`wait_acked`](Self::wait_acked) until the peer's application is done with it. Under
    /// [`Driver::Caller`](crate::Driver::Caller) publishing alone transmits nothing.
    ///
    /// A receiver that takes no more messages, or keeps all that it has, blocks this call for as
    /// long as its process lives, because ibex cannot tell it from a slow one. A program that must
    /// not wait so long calls [`send_timeout`](Self::send_timeout). After 1 s without room the node
    /// reports [`Event::Stalled`](crate::Event::Stalled) in [`Node::events`](crate::Node::events),
    /// and a `tracing` warning. A program without either waits in silence.
    ///
    /// # Errors
    ///
    /// [`SendError`]; nothing was sent then: the peer did not open its end within
    /// `open_timeout` or has another type, the message is above the limit or cannot be
    /// encoded, memory was refused, or the channel has ended. A panic of the value's
    /// serializer comes through; it sends nothing either, and the channel goes on.
    #[inline]
    pub fn send(&mut self, value: &T) -> Result<u64, SendError> {
        self.send_with(value, Patience::FOREVER)
    }

    /// Sends a message if there is room for it now.
    ///
    /// ```
    /// use ibex::{Raw, SendError, Sender};
    ///
    /// /// Sends the newest sample, or none: a late one is of no use.
    /// fn sample(bytes: &mut Sender<[u8], Raw>, sample: &[u8]) -> Result<bool, SendError> {
    ///     match bytes.try_send(sample) {
    ///         Ok(_sequence) => Ok(true),
    ///         Err(error) if error.is_transient() => Ok(false),
    ///         Err(error) => Err(error),
    ///     }
    /// }
    /// ```
    ///
    /// # Errors
    ///
    /// [`SendErrorKind::Full`](crate::SendErrorKind::Full) or
    /// [`SendErrorKind::NotOpened`](crate::SendErrorKind::NotOpened) while it may work later; else
    /// as [`send`](Self::send).
    #[inline]
    pub fn try_send(&mut self, value: &T) -> Result<u64, SendError> {
        self.send_with(value, Patience::None)
    }

    /// Sends a message, waiting for up to `timeout`.
    ///
    /// # Errors
    ///
    /// [`SendErrorKind::Timeout`](crate::SendErrorKind::Timeout) if the channel stayed full,
    /// [`SendErrorKind::NotOpened`](crate::SendErrorKind::NotOpened) if the peer has not opened
    /// its end; else as [`send`](Self::send).
    pub fn send_timeout(&mut self, value: &T, timeout: Duration) -> Result<u64, SendError> {
        self.send_with(value, Patience::at_most(timeout))
    }

    /// Sends a message, waiting until `deadline`, which several calls may share.
    ///
    /// # Errors
    ///
    /// The errors of [`send_timeout`](Self::send_timeout).
    pub fn send_deadline(&mut self, value: &T, deadline: Instant) -> Result<u64, SendError> {
        self.send_with(value, Patience::Until(Some(deadline)))
    }

    #[inline]
    fn send_with(&mut self, value: &T, patience: Patience) -> Result<u64, SendError> {
        self.handle
            .send(C::size(value), patience, Self::encoder(value))
            .map_err(SendError::from)
    }

    /// Returns a closure that encodes a value into a slot.
    #[inline(always)]
    pub(crate) fn encoder(value: &T) -> impl FnMut(&mut [MaybeUninit<u8>]) -> Result<usize, Abort> {
        move |slot| {
            let mut writer = SlotWriter::new(slot);
            match C::encode(value, &mut writer) {
                Ok(()) => Ok(writer.len()),
                Err(EncodeError::Overflow(_)) => Err(Abort::Overflow),
                Err(EncodeError::Failed(error)) => Err(Abort::Failed(error)),
            }
        }
    }

    /// Makes a message of a group.
    #[inline]
    pub(crate) fn group_message(value: &T) -> GroupMessage<'_, T> {
        GroupMessage {
            value,
            size: C::size,
            encode: |value, slot| Self::encoder(value)(slot),
        }
    }

    /// Waits until the peer has opened its end, for up to `timeout` and not beyond
    /// `open_timeout`.
    ///
    /// # Errors
    ///
    /// [`SendErrorKind::NotOpened`](crate::SendErrorKind::NotOpened) if it has not within
    /// `timeout` ([`is_transient`](SendError::is_transient)) or `open_timeout`; another kind if it
    /// has another type, or the session has ended.
    pub fn opened(&mut self, timeout: Duration) -> Result<(), SendError> {
        self.handle
            .opened(Patience::at_most(timeout))
            .map_err(SendError::from)
    }

    /// Waits until the peer's engine holds everything that was sent. Over shared memory publishing
    /// is delivery, so it returns at once.
    ///
    /// # Errors
    ///
    /// [`Disconnected`](crate::WaitErrorKind::Disconnected) if the channel ended before; its
    /// [counts](WaitError::counts) say how far it came. If nothing was sent, `flush` fails only if
    /// the channel cannot open any more: the peer has another type, the session has ended, or a
    /// call has waited for all of `open_timeout`.
    pub fn flush(&mut self) -> Result<(), WaitError> {
        self.handle
            .wait_received(self.handle.last_sequence(), Patience::FOREVER)
            .map_err(WaitError::from)
    }

    /// Like [`flush`](Self::flush), for up to `timeout`.
    ///
    /// # Errors
    ///
    /// The errors of [`flush`](Self::flush), and [`Timeout`](crate::WaitErrorKind::Timeout).
    pub fn flush_timeout(&mut self, timeout: Duration) -> Result<(), WaitError> {
        self.handle
            .wait_received(self.handle.last_sequence(), Patience::at_most(timeout))
            .map_err(WaitError::from)
    }

    /// Waits until the receiving application has acknowledged everything up to `sequence`.
    /// `wait_acked(0)` returns at once. A sequence that was not sent yet is waited for until a
    /// clone has sent it and it is acknowledged.
    ///
    /// # Errors
    ///
    /// [`Unacknowledged`](crate::WaitErrorKind::Unacknowledged) if a message up to `sequence` was
    /// dropped there without acknowledgement; [`Disconnected`](crate::WaitErrorKind::Disconnected)
    /// if the channel ended before, and other [kinds](WaitError::kind) if it never opened. What was
    /// acknowledged before the end still answers with `Ok`.
    pub fn wait_acked(&mut self, sequence: u64) -> Result<(), WaitError> {
        let waited = self.handle.wait_acked(sequence, Patience::FOREVER);
        waited.map_err(WaitError::from)
    }

    /// Like [`wait_acked`](Self::wait_acked), for up to `timeout`.
    ///
    /// # Errors
    ///
    /// The errors of [`wait_acked`](Self::wait_acked), and
    /// [`Timeout`](crate::WaitErrorKind::Timeout).
    pub fn wait_acked_timeout(
        &mut self,
        sequence: u64,
        timeout: Duration,
    ) -> Result<(), WaitError> {
        let waited = self.handle.wait_acked(sequence, Patience::at_most(timeout));
        waited.map_err(WaitError::from)
    }

    /// Returns the condition that message `sequence` is acknowledged, or never will be.
    /// [`Select`](crate::Select) waits for the first of several.
    ///
    /// ```
    /// use ibex::{Raw, Select, Sender};
    ///
    /// /// Waits until one of two replicas has all that it was sent.
    /// fn first_of(one: &Sender<[u8], Raw>, other: &Sender<[u8], Raw>) -> usize {
    ///     let last = |log: &Sender<[u8], Raw>| -> u64 { log.counts().sent };
    ///     let ends = (one.until_acked(last(one)), other.until_acked(last(other)));
    ///     let (mut one, mut other) = ends;
    ///     Select::new().ready(&mut [&mut one, &mut other])
    /// }
    /// ```
    #[must_use]
    pub fn until_acked(&self, sequence: u64) -> impl Selectable + Copy {
        UntilAcked {
            handle: &self.handle,
            sequence,
        }
    }

    /// Returns the sequence up to which everything is acknowledged, as far as this end knows.
    #[must_use]
    pub fn acked(&self) -> u64 {
        self.handle.counts().acknowledged
    }

    /// Returns the sequence up to which the receiver has released everything, as far as this end
    /// knows.
    #[must_use]
    pub fn released(&self) -> u64 {
        self.handle.counts().released
    }

    /// Returns all four counters, as far as this end knows.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.handle.counts()
    }

    /// Returns how many more messages the channel's window takes now. Long messages may fill the
    /// window's bytes before. It is 0 before the peer has opened its end, and when the channel is
    /// [over](Self::is_closed).
    #[must_use]
    pub fn capacity(&self) -> u64 {
        self.handle.capacity()
    }

    /// Returns whether the channel is over, as far as this end knows: the receiver was closed
    /// or dropped, or the session has ended. [`closed_async`](Self::closed_async) waits for that.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.handle.is_over()
    }

    /// Returns the channel's name.
    #[must_use]
    pub fn name(&self) -> &str {
        self.handle.name()
    }

    /// Delivers everything that was sent to the peer's engine, then ends this handle. The last
    /// handle ends the channel.
    ///
    /// Dropping the handle ends it too; `close` also says whether everything was delivered.
    ///
    /// # Errors
    ///
    /// The errors of [`flush`](Self::flush). The handle is gone in any case.
    pub fn close(mut self) -> Result<(), WaitError> {
        self.handle.close();
        self.flush()
    }

    /// Breaks the channel off, so that it does not end in order. The receiver gets what was sent,
    /// and then [`RecvErrorKind::Disconnected`](crate::RecvErrorKind::Disconnected) with
    /// [`CloseReason::Aborted`](crate::CloseReason::Aborted). It gets the error at once or, if the
    /// sender has clones, when the last of them goes. Other channels go on, and this one may be
    /// opened again. `abort` does not wait.
    ///
    /// A panic that drops a sender has the same effect.
    ///
    /// ```
    /// use std::{error::Error, io::BufRead};
    /// use ibex::{Raw, Sender};
    ///
    /// fn send_lines(to: &mut Sender<[u8], Raw>, from: impl BufRead) -> Result<(), Box<dyn Error>> {
    ///     for line in from.lines() {
    ///         to.send(line?.as_bytes())?;
    ///     }
    ///     Ok(())
    /// }
    ///
    /// /// A receiver that gets an orderly end has all lines.
    /// fn send_file(mut to: Sender<[u8], Raw>, file: impl BufRead) -> Result<(), Box<dyn Error>> {
    ///     match send_lines(&mut to, file) {
    ///         Ok(()) => Ok(to.close()?),
    ///         Err(error) => {
    ///             to.abort();
    ///             Err(error)
    ///         }
    ///     }
    /// }
    /// ```
    pub fn abort(mut self) {
        self.handle.break_off(CloseReason::Aborted);
    }
}

#[cfg(feature = "serde")]
impl<T: WithLifetime> Sender<T, SerdeBorrowed> {
    /// Returns this sender for values that borrow for a shorter time than the channel lives.
    ///
    /// ```
    /// use std::io::Read;
    /// use ibex::{Sender, SerdeBorrowed, serde_bytes};
    ///
    /// #[derive(serde::Serialize, serde::Deserialize, ibex::Schema)]
    /// struct Page<'a> {
    ///     number: u64,
    ///     #[serde(with = "serde_bytes")]
    ///     data: &'a [u8],
    /// }
    ///
    /// type Pages = Sender<Page<'static>, SerdeBorrowed>;
    /// type Error = Box<dyn std::error::Error>;
    ///
    /// fn send_all(pages: &mut Pages, mut file: impl Read) -> Result<(), Error> {
    ///     let mut buffer = [0; 4096];
    ///     for number in 0.. {
    ///         let data = match file.read(&mut buffer)? {
    ///             0 => break,
    ///             length => &buffer[..length],
    ///         };
    ///         pages.borrowing().send(&Page { number, data })?;
    ///     }
    ///     Ok(())
    /// }
    /// ```
    #[inline]
    pub fn borrowing<'a>(&mut self) -> &mut Sender<T::With<'a>, SerdeBorrowed> {
        Sender::of(&mut self.handle)
    }
}

impl<T: ?Sized, C> fmt::Debug for Sender<T, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.handle.fmt(f)
    }
}

impl<T: ?Sized, C> Clone for Sender<T, C> {
    /// Returns another handle of the same end. From now on the handles take turns, even when only
    /// one is left.
    fn clone(&self) -> Self {
        Self {
            handle: self.handle.clone(),
            _types: PhantomData,
        }
    }
}
