//! What the ends of a fan-in carry: the types that they offer, and how an arriving message is read.

use std::{marker::PhantomData, task::Waker};

use ibex_codec::Codec;
use ibex_transport::channel::{ChannelError, RawMessage, ReceiveHandle};

use crate::{
    ChannelBuilder, Message,
    error::OpenFailure,
    handles::receiver,
    peer::channel_builder::{MessageVersions, message_version},
};

/// What the ends of a fan-in carry: messages of a type, or the frames of a crate above.
pub trait Opener {
    /// A message as it is received.
    type Message;
    /// State of one peer, from one message to the next.
    type Kept: Send + Sync;

    /// Returns the message types that an end offers its peer.
    fn offer(&self) -> Result<MessageVersions, OpenFailure>;

    /// Makes the state of the peer that `channel` is with, before its first message. `waker` has the
    /// peer looked at again.
    fn keep(&self, channel: &ChannelBuilder, waker: &Waker) -> Self::Kept;

    /// Returns whether nothing is taken in from the peer for now. Its waker is called when that is
    /// over.
    #[inline(always)]
    fn is_held_up(_: &Self::Kept) -> bool {
        false
    }

    /// Returns, once, whether the peer was held up and is not any more. The fan-in then has
    /// [`Joined`](crate::FanInEvent::Joined) once more, so that a waiting call returns.
    #[inline(always)]
    fn has_gone_on(_: &Self::Kept) -> bool {
        false
    }

    /// Checks the bytes, and releases them if they are not valid.
    fn open(
        handle: &ReceiveHandle,
        raw: RawMessage,
        kept: &mut Self::Kept,
    ) -> Result<Self::Message, ChannelError>;
}

/// Messages of type `T` by codec `C`.
pub(crate) struct OfType<T: ?Sized, C>(pub(super) PhantomData<fn(&T) -> C>);

impl<T: ?Sized, C: Codec<T>> Opener for OfType<T, C> {
    type Message = Message<T, C>;
    type Kept = ();

    fn offer(&self) -> Result<MessageVersions, OpenFailure> {
        message_version::<T, C>().map(MessageVersions::of_one)
    }

    fn keep(&self, _: &ChannelBuilder, _: &Waker) {}

    #[inline(always)]
    fn open(
        handle: &ReceiveHandle,
        raw: RawMessage,
        (): &mut (),
    ) -> Result<Message<T, C>, ChannelError> {
        receiver::open(handle, raw)
    }
}
