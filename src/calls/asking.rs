//! What a service's fan-in receives: frames, each with the caller that it is of.

use std::{
    convert::Infallible,
    marker::PhantomData,
    sync::{Arc, atomic::Ordering},
};

use ibex_codec::Codec;
use ibex_transport::channel::{RawMessage, ReceiveHandle, RecvError};

use super::{
    builder::request_version,
    client::Client,
    frame::Body,
    header::{Header, Kind, Malformed},
};
use crate::{
    KnownVersions, OpenFailure, Sequence, channel_builder::Offer, versions::known::sealed::Sealed,
};

/// Requests that are answered with `R`.
pub(super) struct Asking<R: ?Sized>(Infallible, PhantomData<fn(&R)>);

/// A frame of a caller.
pub(super) struct Asked {
    pub(super) client: Arc<Client>,
    pub(super) header: Header,
    pub(super) body: Body,
    sequence: Sequence,
}

/// A caller, from its first frame to the end of its channel.
#[derive(Default)]
pub(super) struct Seat(Option<Arc<Client>>);

impl<R: ?Sized> Sealed for Asking<R> {}

impl<Q: ?Sized, R: ?Sized, C: Codec<Q> + Codec<R>> KnownVersions<Q, C> for Asking<R> {
    type Message = Asked;
    type Kept = Seat;

    fn offer() -> Result<Offer, OpenFailure> {
        request_version::<Q, R, C>().map(Offer::of_one)
    }

    fn sequence(asked: &Asked) -> Sequence {
        asked.sequence
    }

    fn open(handle: &ReceiveHandle, raw: RawMessage, seat: &mut Seat) -> Result<Asked, RecvError> {
        seat.open(handle, raw)
    }
}

impl Seat {
    /// Reads a frame's header.
    pub(super) fn open(
        &mut self,
        handle: &ReceiveHandle,
        raw: RawMessage,
    ) -> Result<Asked, RecvError> {
        let header = Header::parse(raw.bytes()).and_then(|header| match header.kind {
            Kind::Call | Kind::Stream | Kind::Cancel | Kind::Credit => Ok(header),
            _ => Err(Malformed::Direction),
        });
        match header {
            Ok(header) => {
                let client = self.0.get_or_insert_with(|| Client::new(handle.session()));
                Ok(Asked {
                    client: client.clone(),
                    header,
                    sequence: raw.sequence(),
                    body: Body::InPlace(raw),
                })
            }
            Err(malformed) => Err(handle.corrupt(&raw, &malformed.to_string())),
        }
    }
}

impl Drop for Seat {
    /// The caller has closed its end, or is gone; or the service was dropped, whose handlers may
    /// still answer.
    fn drop(&mut self) {
        if let Some(client) = &self.0 {
            let is_closed =
                |shared: &Arc<super::client::Shared>| shared.is_closed.load(Ordering::Relaxed);
            if !client.shared().is_some_and(is_closed) {
                client.is_gone();
            }
        }
    }
}
