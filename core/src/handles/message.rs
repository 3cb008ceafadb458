//! A received message, read where it lies.

use std::{fmt, ops::Deref};

use ibex_codec::{Codec, Pod, Raw};
#[cfg(feature = "rkyv")]
use ibex_codec::{
    Invalid, Rkyv,
    rkyv::{self, Archive, Deserialize, api::high::HighDeserializer},
};
#[cfg(feature = "serde")]
use ibex_codec::{Serde, SerdeBorrowed, WithLifetime, serde};
use ibex_protocol::format::trace_context::TraceContext;
use ibex_ring::memory::Region;
use ibex_transport::channel::RawMessage;

/// The codec of channels that name none.
#[cfg(feature = "rkyv")]
pub type DefaultCodec = ibex_codec::Rkyv;
/// The codec of channels that name none.
#[cfg(not(feature = "rkyv"))]
pub type DefaultCodec = ibex_codec::Raw;

/// A received message, which is checked and read where it arrived.
///
/// ```
/// # #[cfg(feature = "rkyv")]
/// # mod example {
/// use ibex::{Message, codec::Invalid};
///
/// #[ibex::message]
/// struct Entry { offset: u64, data: Vec<u8> }
///
/// /// Reads a message in place, and acknowledges it.
/// fn sum(message: Message<Entry>) -> u64 {
///     let sum = message.data.iter().map(|&byte| u64::from(byte)).sum();
///     message.ack();
///     sum
/// }
///
/// /// Makes a value that outlives the message.
/// fn owned(message: Message<Entry>) -> Result<Entry, Invalid> {
///     let offset: u64 = message.offset.into();          // one field, converted when read
///     let entry = message.ack_on_drop().into_value()?;
///     assert_eq!(entry.offset, offset);
///     Ok(entry)
/// }
/// # }
/// ```
///
/// A message dereferences to the codec's view: the archived value for `Rkyv`, the bytes for `Raw`, the
/// value for `Pod` and `Serde`. It lies in the ring, segment or arrival block where it came in. It may be
/// kept for long, dropped in any order and on any thread, and outlives its channel, its session and its
/// node.
///
/// | to | call |
/// |---|---|
/// | tell the sender that the program is done with it | [`ack`](Self::ack), or [`ack_on_drop`](Self::ack_on_drop) before it is moved on |
/// | give its room back, and acknowledge nothing | drop it |
/// | keep it, and let the channel go on | [`into_owned`](Self::into_owned), which copies the bytes |
/// | take an owned value out | `into_value` |
/// | share its bytes | turn it into `bytes::Bytes` (feature `bytes`) |
///
/// A message that is held keeps its room in the window. Once the window behind it is full, its channel
/// stops, and no other one does.
///
/// A message that is dropped without an acknowledgement, also by a panic, is only *released*. From there
/// on the sender's [`wait_acked`](crate::Sender::wait_acked) fails, because that message will never be
/// acknowledged. Leaking a message with `mem::forget` leaks memory and room, never safety.
///
/// # Errors
///
/// There are none: bytes that are not valid never become a message, and the receiving call returns the
/// error. Only `into_value` of `Rkyv` can fail.
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
    /// The sender learns of it once every message before this one is acknowledged too. A message
    /// that was dropped without `ack` ends that: no later one of its channel counts as
    /// acknowledged. The call does not wait. After the end of the channel or its session it only
    /// releases the message.
    #[inline]
    pub fn ack(self) {
        self.raw.acknowledge();
    }

    /// Has the message acknowledge itself when it is dropped. That holds for the message itself,
    /// for `Bytes` made of it, and when its value is taken out.
    ///
    /// A drop by a panic acknowledges nothing, nor does an error of `into_value`.
    ///
    /// ```
    /// use ibex::{Receiver, RecvError, Serde};
    /// # #[derive(serde::Serialize, serde::Deserialize, ibex::Schema)]
    /// # struct Entry { offset: u64 }
    ///
    /// /// Moves what comes into memory, and has the sender know that it is there.
    /// fn take_all(log: &mut Receiver<Entry, Serde>) -> Result<Vec<Entry>, RecvError> {
    ///     let mut entries = Vec::new();
    ///     while let Some(message) = log.next()? {
    ///         entries.push(message.ack_on_drop().into_value());
    ///     }
    ///     Ok(entries)
    /// }
    /// ```
    #[must_use]
    pub fn ack_on_drop(mut self) -> Self {
        self.raw.acknowledge_on_drop(true);
        self
    }

    /// Copies the bytes into a buffer of their own, and gives their room back, so that the channel
    /// goes on while the message is kept. The message can still be acknowledged, so it keeps its
    /// place among the unfinished messages: the channel stops `window_messages` behind the oldest
    /// of them.
    #[must_use]
    pub fn into_owned(mut self) -> Self {
        self.raw.detach();
        self
    }

    /// Returns the message's place in its channel; the first is 1.
    #[must_use]
    pub fn sequence(&self) -> u64 {
        self.raw.sequence()
    }

    /// Returns the time at which the RDMA device had the whole message, by the device's clock. It
    /// does not include the time that the application took to receive the message. A message that
    /// came with others or in pieces has the time of its last piece.
    ///
    /// `None` unless
    /// [`Tuning::completion_times`](crate::rdma::Tuning::completion_times) asked for
    /// times and the device has such a clock.
    #[cfg(feature = "verbs")]
    #[must_use]
    pub fn received_at(&self) -> Option<std::time::SystemTime> {
        let since = std::time::Duration::from_nanos(self.raw.received_at()?.get());
        Some(std::time::UNIX_EPOCH + since)
    }

    /// Returns the trace context in which the message was sent: what the span that takes it in has
    /// as its parent. `None` if the channel does not [carry](crate::ChannelBuilder::trace_context)
    /// it, or there was none.
    #[must_use]
    pub fn trace_context(&self) -> Option<TraceContext> {
        self.raw.trace_context()
    }

    /// Returns the bytes as they were sent.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        self.raw.bytes()
    }
}

impl Message<[u8], Raw> {
    /// Returns the [header](crate::RegionMessage) that the sender sent beside the message's bytes.
    /// Empty if it sent none.
    #[must_use]
    pub fn header(&self) -> &[u8] {
        self.raw.header()
    }

    /// Returns the [provided region](crate::Receiver::provide) that the message arrived in, and the
    /// message's length. The message is the beginning of the region; what lies behind it there is of no
    /// message. Its [header](Self::header) is not in the region and goes with the message, so copy it
    /// before. The message is released, and acknowledged only after
    /// [`ack_on_drop`](Self::ack_on_drop).
    ///
    /// Dropping the message instead drops its region with it.
    ///
    /// # Errors
    ///
    /// The message itself, if it arrived in memory of the node.
    pub fn into_region(self) -> Result<(Region, usize), Self> {
        let Self { held, raw } = self;
        raw.into_region().map_err(|raw| Self { held, raw })
    }
}

#[cfg(feature = "serde")]
impl<T> Message<T, Serde>
where
    Serde: Codec<T, Held = T>,
{
    /// Takes the value out, which was decoded when the message came, so nothing is copied. The
    /// message is released, and acknowledged only after [`ack_on_drop`](Self::ack_on_drop).
    #[must_use]
    pub fn into_value(self) -> T {
        self.held
    }
}

impl<T: Copy> Message<T, Pod>
where
    Pod: Codec<T, View = T>,
{
    /// Copies the value out. The message is released, and acknowledged only after
    /// [`ack_on_drop`](Self::ack_on_drop).
    #[must_use]
    pub fn into_value(self) -> T {
        *self
    }
}

#[cfg(feature = "rkyv")]
impl<T> Message<T, Rkyv>
where
    Rkyv: Codec<T, View = T::Archived>,
    T: Archive,
    T::Archived: Deserialize<T, HighDeserializer<Invalid>>,
{
    /// Makes an owned value of the archived one, with the allocations that it takes. The message is
    /// released, and acknowledged only after [`ack_on_drop`](Self::ack_on_drop).
    ///
    /// # Errors
    ///
    /// [`Invalid`], if the type's implementation of rkyv's `Deserialize` refuses what the check
    /// of its bytes accepted. The derived ones do not.
    pub fn into_value(mut self) -> Result<T, Invalid> {
        let value = rkyv::deserialize(&*self);
        if value.is_err() {
            self.raw.acknowledge_on_drop(false);
        }
        value
    }
}

/// Returns the bytes where they lie. `std::io::Cursor::new(message)` reads them piece by piece
/// (`io::Read`, `io::BufRead`, and `bytes::Buf`), without a copy either.
impl<C: Codec<[u8], View = [u8]>> AsRef<[u8]> for Message<[u8], C> {
    #[inline]
    fn as_ref(&self) -> &[u8] {
        self
    }
}

/// Shares the bytes where they lie, to be cloned and cut. The message is released when the last of
/// them goes, and acknowledged only after [`ack_on_drop`](Message::ack_on_drop). Until then it
/// holds up its channel as the message would. To keep bytes for long, [`into_owned`](Message::into_owned)
/// the message first, or copy them.
#[cfg(feature = "bytes")]
impl<C: Codec<[u8], View = [u8]>> From<Message<[u8], C>> for bytes::Bytes {
    fn from(message: Message<[u8], C>) -> Self {
        Self::from_owner(message)
    }
}

#[cfg(feature = "serde")]
impl<T> Message<T, SerdeBorrowed>
where
    SerdeBorrowed: Codec<T>,
    T: WithLifetime,
    for<'a> T::With<'a>: serde::Deserialize<'a>,
{
    /// Returns the value, which borrows from the message: no text and no bytes are copied.
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
    /// Invalid bytes never get here: the receiving call checked them, and returned
    /// [`Corrupt`](crate::RecvErrorKind::Corrupt).
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
        // SAFETY: `held` is what `C::open` gave for these bytes (`Receiver`), and no code writes
        // them while the message is held; `into_owned` keeps their content and an alignment of 64.
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
