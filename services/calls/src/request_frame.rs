//! The frames that a service's fan-in receives, each with its caller.

use std::{
    marker::PhantomData,
    sync::{Arc, atomic::Ordering},
    task::Waker,
};

use ibex_core::{
    ChannelBuilder,
    codec::Codec,
    extend::{
        ChannelError, ExtendChannel, ExtendPeer, MessageVersion, MessageVersions, OpenFailure,
        OpenUntyped, Opener, RawMessage, ReceiveHandle,
    },
};

use super::{
    client::{Client, ServiceState},
    frame::{FrameBody, header_of},
    header::{Header, Kind, MalformedCallFrame},
    opening::{reply_version, request_version},
    outbox::Outbox,
};

/// Requests of type `Q` that are answered with `R`, both by codec `C`.
pub(super) struct CallTypes<Q: ?Sized, R: ?Sized, C>(PhantomData<fn(&Q, &R) -> C>);

/// A frame of a caller.
pub(super) struct RequestFrame {
    pub(super) client: Arc<Client>,
    pub(super) header: Header,
    pub(super) body: FrameBody,
}

/// A caller's place at a service, from the opening to the end of its channel of requests.
///
/// The ends of a name meet in the order in which each side opens them, and a caller opens two. So
/// even the place of a caller that made no call has an end for its replies, which is opened and
/// closed with the place.
pub(super) struct Seat {
    client: Option<Arc<Client>>,
    /// The channel of replies.
    channel: ChannelBuilder,
    /// Returns the message version of the replies.
    version: fn() -> Result<MessageVersion, OpenFailure>,
    /// Called when the caller takes its replies again.
    goes_on: Option<Waker>,
}

impl<Q: ?Sized, R: ?Sized, C: Codec<Q> + Codec<R>> Opener for CallTypes<Q, R, C> {
    type Message = RequestFrame;
    type Kept = Seat;

    fn keep(channel: ChannelBuilder, waker: &Waker) -> Seat {
        Seat::new(channel, reply_version::<Q, R, C>, Some(waker.clone()))
    }

    #[inline]
    fn is_held_up(seat: &Seat) -> bool {
        let client = seat.client.as_ref();
        client.is_some_and(|client| client.is_held_up())
    }

    #[inline]
    fn has_gone_on(seat: &Seat) -> bool {
        let client = seat.client.as_ref();
        client.is_some_and(|client| client.has_gone_on())
    }

    fn offer() -> Result<MessageVersions, OpenFailure> {
        request_version::<Q, R, C>().map(MessageVersions::of_one)
    }

    fn open(
        handle: &ReceiveHandle,
        raw: RawMessage,
        seat: &mut Seat,
    ) -> Result<RequestFrame, ChannelError> {
        seat.open(handle, raw)
    }
}

impl Seat {
    /// A place at the service whose requests come over `channel`.
    pub(super) fn new(
        channel: ChannelBuilder,
        version: fn() -> Result<MessageVersion, OpenFailure>,
        goes_on: Option<Waker>,
    ) -> Self {
        Self {
            client: None,
            channel: channel
                .template()
                .clone()
                .with_suffix(crate::error::label::REPLIES)
                .over(channel.at().session()),
            version,
            goes_on,
        }
    }

    /// Returns the way back to the caller, once a frame has come.
    pub(super) fn outbox(&self) -> Option<&Outbox> {
        self.client.as_ref()?.outbox()
    }

    /// Reads a frame's header.
    pub(super) fn open(
        &mut self,
        handle: &ReceiveHandle,
        raw: RawMessage,
    ) -> Result<RequestFrame, ChannelError> {
        let header = header_of(&raw).and_then(|header| match header.kind.is_for_service() {
            false => Err(MalformedCallFrame::Direction),
            true => Ok(header),
        });
        let header = match header {
            Ok(header) => header,
            Err(malformed) => return Err(handle.corrupt(&raw, &malformed.to_string())),
        };
        let client = self
            .client
            .get_or_insert_with(|| Client::new(handle.session(), self.goes_on.clone()));
        let (header, body) = match header.kind {
            Kind::ExtendedCall | Kind::ExtendedStream => {
                (header.without_extension(), FrameBody::cut(raw))
            }
            _ => (header, FrameBody::InPlace(raw)),
        };
        Ok(RequestFrame {
            client: client.clone(),
            header,
            body,
        })
    }
}

impl Drop for Seat {
    /// The caller has closed its end or is gone, or the service was dropped, whose handlers may
    /// still answer.
    fn drop(&mut self) {
        let Some(client) = &self.client else {
            let offer = (self.version)().map(MessageVersions::of_one);
            // An error means that the session is over, and then no caller waits for this end.
            let _ = self.channel.open_sender(offer);
            return;
        };
        let is_closed = |shared: &Arc<ServiceState>| shared.is_closed.load(Ordering::Relaxed);
        match client.shared().is_some_and(is_closed) {
            true => client.free_name(),
            false => client.is_gone(),
        }
    }
}
