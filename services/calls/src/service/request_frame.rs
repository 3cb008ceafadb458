//! The frames that a service's fan-in receives, each with its caller.

use std::{
    sync::{Arc, atomic::Ordering},
    task::Waker,
};

use ibex_core::{
    ChannelBuilder,
    extend::{
        self, ChannelError, MessageVersions, OpenFailure, Opener, RawMessage, ReceiveHandle,
        SessionShared,
    },
};

use crate::{
    frame::{FrameBody, header_of},
    header::{Header, Kind, MalformedCallFrame},
    service::{ServiceState, client::Client},
};

/// Reads the frames of the callers of a service.
pub(crate) struct RequestFrames(pub(crate) Arc<ServiceState>);

/// A frame of a caller.
pub(crate) struct RequestFrame {
    pub(crate) client: Arc<Client>,
    pub(crate) header: Header,
    pub(crate) body: FrameBody,
}

/// A caller's place at a service, from the opening to the end of its channel of requests.
///
/// The ends of a name meet in the order in which each side opens them, and a caller opens two. So
/// even the place of a caller that made no call has an end for its replies, which is opened and
/// closed with the place.
pub(crate) struct Seat {
    service: Arc<ServiceState>,
    session: Arc<SessionShared>,
    /// Present once a frame has come.
    pub(crate) client: Option<Arc<Client>>,
    /// Called when the caller takes its replies again.
    goes_on: Option<Waker>,
}

impl Opener for RequestFrames {
    type Message = RequestFrame;
    type Kept = Seat;

    fn offer(&self) -> Result<MessageVersions, OpenFailure> {
        self.0.offer()
    }

    fn keep(&self, channel: &ChannelBuilder, waker: &Waker) -> Seat {
        let (peer, _) = extend::parts(channel);
        Seat::new(&self.0, extend::session(peer), Some(waker.clone()))
    }

    #[inline]
    fn is_held_up(seat: &Seat) -> bool {
        let client = seat.client.as_ref();
        client.is_some_and(|client| client.outbox.is_held_up())
    }

    #[inline]
    fn has_gone_on(seat: &Seat) -> bool {
        let client = seat.client.as_ref();
        client.is_some_and(|client| client.outbox.has_gone_on())
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
    /// A place at the service for the caller at the other end of `session`.
    pub(crate) fn new(
        service: &Arc<ServiceState>,
        session: &Arc<SessionShared>,
        goes_on: Option<Waker>,
    ) -> Self {
        Self {
            service: service.clone(),
            session: session.clone(),
            client: None,
            goes_on,
        }
    }

    /// Reads a frame's header.
    pub(crate) fn open(
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
            .get_or_insert_with(|| Client::new(&self.session, &self.service, self.goes_on.take()));
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
        match &self.client {
            // An error means that the session is over, and then no caller waits for this end.
            None => drop(self.service.open_replies(&self.session)),
            Some(client) => match self.service.is_closed.load(Ordering::Relaxed) {
                // Another caller of the name may be answered, although handlers of this one have
                // yet to end.
                true => client.outbox.free_name(),
                false => client.is_gone(),
            },
        }
    }
}
