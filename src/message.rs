//! A received message, read where it lies.

use std::{fmt, ops::Deref};

use ibex_codec::Codec;
#[cfg(feature = "serde")]
use ibex_codec::{SerdeBorrowed, WithLifetime, serde::Deserialize};
use ibex_transport::channel::RawMessage;

/// The codec of channels that name none.
#[cfg(feature = "rkyv")]
pub(crate) type DefaultCodec = ibex_codec::Rkyv;
#[cfg(not(feature = "rkyv"))]
pub(crate) type DefaultCodec = ibex_codec::Raw;

/// A message in the ring, segment or arrival block where it came in, checked.
///
/// Dereferences to the codec's view: the archived value for `Rkyv`, the bytes for `Raw`,
/// the value for `Pod` and `Serde`. It may be kept for long, dropped in any order and on any thread,
/// and outlives its channel, its session and its node.
///
/// While it is held it stops its own channel, once the window behind it is full, and no
/// other; [`detach`](Self::detach) copies it out and lets the channel go on.
///
/// Dropping it (also by unwinding) gives its room back and acknowledges nothing: from
/// there on the sender's [`wait_acked`](crate::Sender::wait_acked) answers
/// `Unacknowledged`. Leaking it with `mem::forget` leaks memory and room, never safety.
///
/// What has to outlive the message is taken out of it:
///
/// ```
/// # #[cfg(feature = "rkyv")]
/// # mod example {
/// use ibex::{Message, rkyv::{self, rancor::Error}};
///
/// #[ibex::message]
/// struct Entry { offset: u64, data: Vec<u8> }
///
/// fn owned(message: Message<Entry>) -> Result<Entry, Error> {
///     let offset: u64 = message.offset.into();          // one field, converted when read
///     let entry: Entry = rkyv::deserialize::<Entry, Error>(&*message)?;
///     assert_eq!(entry.offset, offset);
///     message.ack();
///     Ok(entry)
/// }
/// # }
/// ```
pub struct Message<T: ?Sized, C: Codec<T> = DefaultCodec> {
    held: C::Held,
    raw: RawMessage,
}

impl<T: ?Sized, C: Codec<T>> Message<T, C> {
    pub(crate) fn new(raw: RawMessage, held: C::Held) -> Self {
        Self { held, raw }
    }

    /// Tells the sender that the application is done with the message.
    ///
    /// Acknowledgement is a prefix: it reaches the sender once every message before this
    /// one is acknowledged too, and ends at the first that was dropped without. Nothing
    /// is waited for. Once the channel or its session has ended it releases the message
    /// and has no other effect: nobody is there to be told.
    #[inline]
    pub fn ack(self) {
        self.raw.acknowledge();
    }

    /// Copies the bytes into a buffer of its own and gives their room back, so that the
    /// channel goes on while the message is kept. It can still be acknowledged, so it
    /// keeps its place among the messages that are unfinished: the channel stops
    /// `window_messages` behind the oldest of them.
    #[must_use]
    pub fn detach(mut self) -> Self {
        self.raw.detach();
        self
    }

    /// The message's place in its channel; the first is 1.
    #[must_use]
    pub fn sequence(&self) -> u64 {
        self.raw.sequence()
    }

    /// When the RDMA device had the whole message, by its own clock: before anybody looked
    /// for it, so what an application took until it received it is not in there. A message
    /// that came with others or in pieces has the time of its last piece. `None` unless
    /// [`RdmaSettings::completion_times`](crate::rdma::RdmaSettings::completion_times) asked
    /// for it and the device has such a clock.
    #[cfg(feature = "verbs")]
    #[must_use]
    pub fn received_at(&self) -> Option<std::time::SystemTime> {
        let since = std::time::Duration::from_nanos(self.raw.received_at()?.get());
        Some(std::time::UNIX_EPOCH + since)
    }

    /// The bytes as they were sent.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        self.raw.bytes()
    }
}

#[cfg(feature = "serde")]
impl<T> Message<T, SerdeBorrowed>
where
    SerdeBorrowed: Codec<T>,
    T: WithLifetime,
    for<'a> T::With<'a>: Deserialize<'a>,
{
    /// The value, which borrows from the message: no text and no bytes are copied.
    ///
    /// ```
    /// use ibex::{Message, Peer, SerdeBorrowed, serde_bytes};
    ///
    /// #[derive(serde::Serialize, serde::Deserialize, ibex::Schema)]
    /// struct Entry<'a> {
    ///     name: &'a str,
    ///     #[serde(with = "serde_bytes")]
    ///     data: &'a [u8],
    /// }
    ///
    /// fn total(peer: &Peer) -> Result<usize, Box<dyn std::error::Error>> {
    ///     let log = peer.channel("wal").codec::<SerdeBorrowed>();
    ///     let mut log = log.receiver::<Entry<'static>>()?;
    ///     let mut bytes = 0;
    ///     while let Some(message) = log.next()? {
    ///         let entry = message.decode();
    ///         bytes += entry.name.len() + entry.data.len();
    ///         message.ack();
    ///     }
    ///     Ok(bytes)
    /// }
    /// ```
    ///
    /// Bytes that are no value never get here: the receiving call checked them, and gave
    /// [`RecvError::Corrupt`](crate::RecvError::Corrupt).
    ///
    /// # Panics
    ///
    /// If an implementation of `Deserialize` refuses bytes that it accepted then.
    #[must_use]
    pub fn decode(&self) -> T::With<'_> {
        match SerdeBorrowed::decode::<T>(self.raw.bytes()) {
            Ok(value) => value,
            Err(refusal) => panic!("accepted when it was received: {refusal}"),
        }
    }
}

impl<T: ?Sized, C: Codec<T>> Deref for Message<T, C> {
    type Target = C::View;

    #[inline]
    fn deref(&self) -> &C::View {
        // SAFETY: `held` is what `C::open` gave for these bytes (`Receiver`), and nobody
        // writes them while the message is held; `detach` keeps their content and an
        // alignment of 64.
        unsafe { C::view(&self.held, self.raw.bytes()) }
    }
}

impl<T: ?Sized, C: Codec<T>> fmt::Debug for Message<T, C>
where
    C::View: fmt::Debug,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Message")
            .field("sequence", &self.raw.sequence())
            .field("value", &&**self)
            .finish()
    }
}
