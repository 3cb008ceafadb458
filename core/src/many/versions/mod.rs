//! Two versions of a message type on one channel, for programs that are updated one after
//! the other.

use std::{marker::PhantomData, time::Duration};

use ibex_codec::Codec;
use ibex_ring::parking::Patience;
use ibex_transport::{
    channel::{RawMessage, ReceiveHandle, SendHandle},
    session::Counts,
};

use crate::{
    ChannelBuilder, Message, OpenError, Receiver, RecvError, SendError, Sender,
    error::OpenFailure,
    handles::{message::DefaultCodec, receiver},
    peer::channel_builder::{MessageVersions, message_version},
};

mod futures;

/// A value of the newer version or of the older one: a message, or an end of a channel.
///
/// Both ends of a channel must have the same message type. So a program whose type has changed
/// could not talk to one that runs the last release. An end that is opened by
/// [`versioned_sender`](ChannelBuilder::versioned_sender) or
/// [`versioned_receiver`](ChannelBuilder::versioned_receiver) knows both types. It uses the newer
/// type with peers that know it, and the older type with the others:
///
/// ```
/// # #[cfg(feature = "rkyv")]
/// # mod example {
/// use std::time::Duration;
/// use ibex::{Peer, Versions};
///
/// #[ibex::message]
/// struct EntryV1 { offset: u64, data: Vec<u8> }
///
/// #[ibex::message]
/// struct EntryV2 { offset: u64, term: u64, data: Vec<u8> }
///
/// type Error = Box<dyn std::error::Error + Send + Sync>;
///
/// fn receive(peer: &Peer) -> Result<(), Error> {
///     let mut log = peer.channel("wal").versioned_receiver::<EntryV2, EntryV1>()?;
///     while let Some(entry) = log.next()? {
///         match &entry {
///             Versions::Newer(entry) => println!("{} of {}", entry.offset, entry.term),
///             Versions::Older(entry) => println!("{}", entry.offset),
///         }
///         entry.ack();
///     }
///     Ok(())
/// }
///
/// fn send(peer: &Peer, offset: u64, term: u64, data: Vec<u8>) -> Result<(), Error> {
///     let mut log = peer.channel("wal").versioned_sender::<EntryV2, EntryV1>()?;
///     match log.opened(Duration::from_secs(10))? {
///         Versions::Newer(log) => log.send(&EntryV2 { offset, term, data })?,
///         Versions::Older(log) => log.send(&EntryV1 { offset, data })?,
///     };
///     Ok(())
/// }
/// # }
/// ```
///
/// # Who has to know
///
/// Only the newer program uses versions. The older program opens its end with its one type, by
/// [`receiver::<EntryV1>()`](ChannelBuilder::receiver) or
/// [`sender::<EntryV1>()`](ChannelBuilder::sender). So processes may be updated in any order,
/// senders and receivers alike, and run side by side as long as it takes:
///
/// | | receiver of V1 | receiver of V2 or V1 | receiver of V2 |
/// |---|---|---|---|
/// | sender of V1 | V1 | V1 | mismatch |
/// | sender of V2 or V1 | V1 | V2 | V2 |
/// | sender of V2 | mismatch | V2 | V2 |
///
/// When no process runs the older program any more, the next release opens its end
/// with the newer type alone, or makes it the older of the next two. Each end that is opened knows
/// two types; a program that knows V3 and V2 shares V2 with one that knows V2 and V1.
///
/// A [`FanIn`](crate::FanIn) and a [`Group`](crate::group::Group) have one message type. If their peers
/// are of two releases, open such an end with each peer instead, or give the newer type a channel
/// of a new name.
///
/// # What is settled, and when
///
/// The version is settled when both ends are open, and holds for the life of the channel. It is the
/// first of the *sender's* two types that the receiver knows too. So two programs that disagree
/// about which type is newer still agree about what is sent. A name that is opened again is settled
/// again.
///
/// Both versions use the channel's one codec. They may differ in everything else, alignment
/// included. Two types with the same structure are refused with [`SameVersions`](crate::OpenErrorKind::SameVersions). Ends
/// that know no version in common get a [`Mismatch`](crate::SendErrorKind::Mismatch), which shows both
/// lists, at either end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Versions<N, O> {
    /// A message of the newer version.
    Newer(N),
    /// A message of the older version.
    Older(O),
}

impl<N: ?Sized, O: ?Sized, C: Codec<N> + Codec<O>> Versions<Message<N, C>, Message<O, C>> {
    /// Tells the sender that the application is done with the message; see [`Message::ack`].
    #[inline]
    pub fn ack(self) {
        match self {
            Versions::Newer(message) => message.ack(),
            Versions::Older(message) => message.ack(),
        }
    }

    /// The message's place in its channel; the first is 1.
    #[must_use]
    pub fn sequence(&self) -> u64 {
        match self {
            Versions::Newer(message) => message.sequence(),
            Versions::Older(message) => message.sequence(),
        }
    }
}

/// A message of the newer version or of the older.
pub(crate) type VersionedMessage<N, O, C = DefaultCodec> = Versions<Message<N, C>, Message<O, C>>;

impl<C> ChannelBuilder<C> {
    /// Opens the sending end, as [`sender`](Self::sender) does, for two versions of the message
    /// type, a newer and an older one. Programs that are updated one after the other need it; see
    /// [`Versions`].
    ///
    /// # Errors
    ///
    /// [`OpenError`], as there, and with [`SameVersions`](crate::OpenErrorKind::SameVersions).
    pub fn versioned_sender<N: ?Sized, O: ?Sized>(
        self,
    ) -> Result<VersionedSender<N, O, C>, OpenError>
    where
        C: Codec<N> + Codec<O>,
    {
        let handle = self.open_sender(offer::<N, O, C>())?;
        Ok(VersionedSender::new(handle))
    }

    /// Opens the receiving end, as [`receiver`](Self::receiver) does, for two versions of the
    /// message type; see [`Versions`].
    ///
    /// # Errors
    ///
    /// The errors of [`versioned_sender`](Self::versioned_sender).
    pub fn versioned_receiver<N: ?Sized, O: ?Sized>(
        self,
    ) -> Result<VersionedReceiver<N, O, C>, OpenError>
    where
        C: Codec<N> + Codec<O>,
    {
        let handle = self.open_receiver(offer::<N, O, C>())?;
        Ok(VersionedReceiver {
            handle,
            newer: fingerprint::<N, C>(),
            is_newer: None,
            _versions: PhantomData,
        })
    }
}

fn offer<N: ?Sized, O: ?Sized, C: Codec<N> + Codec<O>>() -> Result<MessageVersions, OpenFailure> {
    let (newer, older) = (message_version::<N, C>()?, message_version::<O, C>()?);
    if newer.fingerprint == older.fingerprint {
        let schema = newer.schema;
        return Err(OpenFailure::SameVersions { schema });
    }
    Ok(MessageVersions {
        newest: newer,
        older: vec![older],
    })
}

/// Sends messages of the one of two versions that the peer knows; see [`Versions`].
///
/// Dropping it ends the channel, as dropping a [`Sender`] does.
pub struct VersionedSender<N: ?Sized, O: ?Sized, C = DefaultCodec> {
    pub(crate) handle: SendHandle,
    newer: [u8; 16],
    _versions: PhantomData<fn(&N, &O, C)>,
}

impl<N: ?Sized, O: ?Sized, C: Codec<N> + Codec<O>> VersionedSender<N, O, C> {
    pub(crate) fn new(handle: SendHandle) -> Self {
        Self {
            handle,
            newer: fingerprint::<N, C>(),
            _versions: PhantomData,
        }
    }

    /// Returns the sender of the version that was settled. Waits until the peer has opened its end,
    /// for up to `timeout` and not beyond `open_timeout`. From then on it returns at once and with
    /// the same version, so it may be called for each message.
    ///
    /// # Errors
    ///
    /// [`SendErrorKind::NotOpened`](crate::SendErrorKind::NotOpened) if the peer has not opened its
    /// end within `timeout` ([`is_transient`](SendError::is_transient)) or `open_timeout`; another
    /// kind if the peer knows neither version, or the session has ended.
    #[inline]
    #[allow(clippy::type_complexity, reason = "an alias would hide what it gives")]
    pub fn opened(
        &mut self,
        timeout: Duration,
    ) -> Result<Versions<&mut Sender<N, C>, &mut Sender<O, C>>, SendError> {
        if self.handle.settled().is_none() {
            self.handle.opened(Patience::at_most(timeout))?;
        }
        Ok(self.open())
    }

    /// The sender of the version that was settled.
    #[inline]
    #[allow(clippy::type_complexity, reason = "as above")]
    fn open(&mut self) -> Versions<&mut Sender<N, C>, &mut Sender<O, C>> {
        if self.handle.settled() == Some(self.newer) {
            Versions::Newer(Sender::of(&mut self.handle))
        } else {
            Versions::Older(Sender::of(&mut self.handle))
        }
    }

    /// Returns the sender of the version that was settled, in place of this handle.
    ///
    /// # Errors
    ///
    /// This handle, if nothing is settled yet: the peer has not opened its end, or knows
    /// neither version. [`opened`](Self::opened) says which.
    #[allow(clippy::type_complexity, reason = "an alias would hide what it gives")]
    pub fn into_sender(self) -> Result<Versions<Sender<N, C>, Sender<O, C>>, Self> {
        match self.handle.settled() {
            None => Err(self),
            Some(version) if version == self.newer => Ok(Versions::Newer(Sender::new(self.handle))),
            Some(_) => Ok(Versions::Older(Sender::new(self.handle))),
        }
    }

    /// The channel's name.
    #[must_use]
    pub fn name(&self) -> &str {
        self.handle.name()
    }
}

/// Receives messages of the one of two versions that the peer knows; see [`Versions`].
///
/// All messages of one channel are of one version, which is settled when both ends are open.
/// Everything else is as with a [`Receiver`]; [`into_receiver`](Self::into_receiver) returns one,
/// for calls that only it has. [`Select`](crate::Select) waits for either.
pub struct VersionedReceiver<N: ?Sized, O: ?Sized, C = DefaultCodec> {
    pub(crate) handle: ReceiveHandle,
    newer: [u8; 16],
    /// True if the newer version was settled; `None` until a message has come.
    is_newer: Option<bool>,
    _versions: PhantomData<fn(&N, &O, C)>,
}

impl<N: ?Sized, O: ?Sized, C: Codec<N> + Codec<O>> VersionedReceiver<N, O, C> {
    /// Returns the next message, or `None` when every sender has closed and everything was
    /// received. Waits as [`Receiver::next`] does.
    ///
    /// # Errors
    ///
    /// [`RecvError`], as there.
    #[inline]
    #[allow(
        clippy::should_implement_trait,
        reason = "it can fail, as that of `Receiver`"
    )]
    pub fn next(&mut self) -> Result<Option<VersionedMessage<N, O, C>>, RecvError> {
        receiver::until_end(self.recv())
    }

    /// The next message; waits as [`next`](Self::next) does.
    ///
    /// # Errors
    ///
    /// The errors of [`next`](Self::next); the orderly end is [`RecvErrorKind::Ended`](crate::RecvErrorKind::Ended).
    #[inline]
    pub fn recv(&mut self) -> Result<VersionedMessage<N, O, C>, RecvError> {
        let raw = self.handle.receive(Patience::FOREVER)?;
        self.open(raw)
    }

    /// Returns the next message if one is there now, as [`Receiver::try_recv`] does.
    ///
    /// # Errors
    ///
    /// [`RecvError`], as there.
    #[inline]
    pub fn try_recv(&mut self) -> Result<VersionedMessage<N, O, C>, RecvError> {
        let received = self.handle.receive(Patience::None);
        self.open(received?)
    }

    /// Returns the next message, waiting for up to `timeout`, as [`Receiver::recv_timeout`] does.
    ///
    /// # Errors
    ///
    /// [`RecvError`], as there.
    pub fn recv_timeout(
        &mut self,
        timeout: Duration,
    ) -> Result<VersionedMessage<N, O, C>, RecvError> {
        let received = self.handle.receive(Patience::at_most(timeout));
        self.open(received?)
    }

    /// Waits until the peer has opened its end, and the version is settled, for up to
    /// `timeout` and not beyond `open_timeout`.
    ///
    /// # Errors
    ///
    /// [`RecvError`], as [`Receiver::opened`].
    pub fn opened(&mut self, timeout: Duration) -> Result<(), RecvError> {
        self.handle
            .opened(Patience::at_most(timeout))
            .map_err(RecvError::from)
    }

    /// Returns the receiver of the version that was settled, in place of this handle. Messages that
    /// were received stay received.
    ///
    /// # Errors
    ///
    /// This handle, if nothing is settled yet: the peer has not opened its end, or knows
    /// neither version. [`opened`](Self::opened) waits, and says which.
    #[allow(
        clippy::type_complexity,
        clippy::result_large_err,
        reason = "an alias would hide what it gives, and it is called once"
    )]
    pub fn into_receiver(self) -> Result<Versions<Receiver<N, C>, Receiver<O, C>>, Self> {
        match self.handle.settled() {
            None => Err(self),
            Some(version) if version == self.newer => {
                Ok(Versions::Newer(Receiver::new(self.handle)))
            }
            Some(_) => Ok(Versions::Older(Receiver::new(self.handle))),
        }
    }

    /// Returns all four counters; see [`Receiver::counts`].
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.handle.counts()
    }

    /// The channel's name.
    #[must_use]
    pub fn name(&self) -> &str {
        self.handle.name()
    }

    #[inline]
    fn open(&mut self, raw: RawMessage) -> Result<VersionedMessage<N, O, C>, RecvError> {
        let settled = || self.handle.settled() == Some(self.newer);
        Ok(if *self.is_newer.get_or_insert_with(settled) {
            Versions::Newer(receiver::open(&self.handle, raw)?)
        } else {
            Versions::Older(receiver::open(&self.handle, raw)?)
        })
    }
}

fn fingerprint<T: ?Sized, C: Codec<T>>() -> [u8; 16] {
    C::schema().fingerprint.0
}

ibex_base::debug_fields! {
    [N: ?Sized, O: ?Sized, C] VersionedSender<N, O, C>: |sender|
        handle = sender.handle
}

ibex_base::debug_fields! {
    [N: ?Sized, O: ?Sized, C] VersionedReceiver<N, O, C>: |receiver|
        handle = receiver.handle
}
