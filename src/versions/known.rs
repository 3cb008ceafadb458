//! How many versions of its message type an end knows.

use std::{convert::Infallible, fmt, marker::PhantomData};

use ibex_codec::Codec;
use ibex_transport::channel::{RawMessage, ReceiveHandle, RecvError};

use super::{VersionedMessage, Versions};
use crate::{
    ChannelBuilder, Message, OpenFailure, Sequence,
    channel_builder::{Offer, message_version},
    receiver,
};

/// How many versions of message type `T` a [`FanIn`](crate::FanIn) or a
/// [`Group`](crate::Group) knows: [`OneVersion`], or the type [`AndOlder`].
pub trait KnownVersions<T: ?Sized, C>: sealed::Sealed {
    /// A message as it is received.
    type Message;

    /// What is kept of each peer from one message to the next.
    #[doc(hidden)]
    type Kept: Send + Sync;

    /// What an end offers its peer.
    #[doc(hidden)]
    fn offer() -> Result<Offer, OpenFailure>;

    /// What is kept of the peer that `channel` is with, before its first message.
    #[doc(hidden)]
    fn keep(channel: ChannelBuilder) -> Self::Kept;

    #[doc(hidden)]
    fn sequence(message: &Self::Message) -> Sequence;

    /// Checks the bytes; what is not valid is released. `kept` was left by the message before.
    #[doc(hidden)]
    fn open(
        handle: &ReceiveHandle,
        raw: RawMessage,
        kept: &mut Self::Kept,
    ) -> Result<Self::Message, RecvError>;
}

/// The message type alone.
#[derive(Debug)]
pub enum OneVersion {}

/// The message type with those who know it, and `O` with the rest: see [`Versions`].
pub struct AndOlder<O: ?Sized>(Infallible, PhantomData<fn(&O)>);

impl<T: ?Sized, C: Codec<T>> KnownVersions<T, C> for OneVersion {
    type Message = Message<T, C>;
    type Kept = ();

    fn offer() -> Result<Offer, OpenFailure> {
        message_version::<T, C>().map(Offer::of_one)
    }

    fn keep(_channel: ChannelBuilder) {}

    fn sequence(message: &Message<T, C>) -> Sequence {
        message.sequence()
    }

    #[inline(always)]
    fn open(
        handle: &ReceiveHandle,
        raw: RawMessage,
        (): &mut (),
    ) -> Result<Message<T, C>, RecvError> {
        receiver::open(handle, raw)
    }
}

impl<N: ?Sized, O: ?Sized, C: Codec<N> + Codec<O>> KnownVersions<N, C> for AndOlder<O> {
    type Message = VersionedMessage<N, O, C>;
    /// Which of the two versions was settled, once a message has come.
    type Kept = Option<bool>;

    fn offer() -> Result<Offer, OpenFailure> {
        let (newer, older) = (message_version::<N, C>()?, message_version::<O, C>()?);
        if newer.fingerprint == older.fingerprint {
            let schema = newer.schema;
            return Err(OpenFailure::SameVersions { schema });
        }
        Ok(Offer {
            newest: newer,
            older: vec![older],
        })
    }

    fn keep(_channel: ChannelBuilder) -> Option<bool> {
        None
    }

    fn sequence(message: &VersionedMessage<N, O, C>) -> Sequence {
        message.sequence()
    }

    #[inline]
    fn open(
        handle: &ReceiveHandle,
        raw: RawMessage,
        is_newer: &mut Option<bool>,
    ) -> Result<VersionedMessage<N, O, C>, RecvError> {
        let is_newer =
            *is_newer.get_or_insert_with(|| handle.settled() == Some(fingerprint::<N, C>()));
        Ok(if is_newer {
            Versions::Newer(receiver::open(handle, raw)?)
        } else {
            Versions::Older(receiver::open(handle, raw)?)
        })
    }
}

pub(crate) fn fingerprint<T: ?Sized, C: Codec<T>>() -> [u8; 16] {
    C::schema().fingerprint.0
}

pub(crate) mod sealed {
    use super::{AndOlder, OneVersion};

    pub trait Sealed {}

    impl Sealed for OneVersion {}

    impl<O: ?Sized> Sealed for AndOlder<O> {}
}

impl<O: ?Sized> fmt::Debug for AndOlder<O> {
    fn fmt(&self, _: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {}
    }
}
