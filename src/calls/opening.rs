//! The opening of callers and services: the two channels that a service is.

use ibex_codec::{Codec, Describer, MAX_TEXT_BYTES, Schema, SchemaInfo};
use ibex_protocol::format::message_version::MessageVersion;

use super::{
    caller::Caller,
    line::{Line, LineSettings},
    service::Service,
};
#[cfg(feature = "rkyv")]
use crate::Rkyv;
use crate::{
    ChannelBuilder, Node, OpenError, Peer,
    channel_builder::{MessageVersions, message_version},
    error::{Interface, OpenFailure},
};

impl Peer {
    /// Opens a caller of this peer's service `name`, with the default settings and codec.
    ///
    /// This announces the caller and returns, without waiting for the peer. A session has one
    /// caller of a name at a time, which may be cloned. Once the last clone is dropped, another may
    /// be made.
    ///
    /// When the peer drops its service, all calls of the caller fail, later ones too. Drop the
    /// caller then and make a new one: the peer's next service serves it, and its first call waits
    /// for that service. A new caller that was made before the end of the old service was known
    /// here fails in the same way; make another.
    ///
    /// # Errors
    ///
    /// [`OpenError`], as for a channel.
    #[cfg(feature = "rkyv")]
    pub fn caller<Q: ?Sized + 'static, R: ?Sized + 'static>(
        &self,
        name: &str,
    ) -> Result<Caller<Q, R>, OpenError>
    where
        Rkyv: Codec<Q> + Codec<R>,
    {
        self.channel(name).caller()
    }

    /// Opens a service for calls of this peer alone, with the default settings and codec.
    ///
    /// # Errors
    ///
    /// [`OpenError`], as for a channel; with the kind [`AlreadyOpen`](crate::OpenErrorKind::AlreadyOpen) also where the
    /// node has a service of that name for all peers.
    #[cfg(feature = "rkyv")]
    pub fn service<Q: ?Sized + 'static, R: ?Sized + 'static>(
        &self,
        name: &str,
    ) -> Result<Service<Q, R>, OpenError>
    where
        Rkyv: Codec<Q> + Codec<R>,
    {
        self.channel(name).service()
    }
}

impl Node {
    /// Opens a service for calls of all peers, present and future, with the default settings and
    /// codec. A name has either one service for all peers, or one for each of some peers
    /// ([`Peer::service`](crate::Peer::service)). Dropping the service gives its name back.
    ///
    /// # Errors
    ///
    /// [`AlreadyOpen`](crate::OpenErrorKind::AlreadyOpen): the node has a service of that name.
    /// [`UsedAfterFork`](crate::OpenErrorKind::UsedAfterFork): this process is a fork.
    #[cfg(feature = "rkyv")]
    pub fn service<Q: ?Sized + 'static, R: ?Sized + 'static>(
        &self,
        name: &str,
    ) -> Result<Service<Q, R>, OpenError>
    where
        Rkyv: Codec<Q> + Codec<R>,
    {
        self.channel(name).service()
    }
}

impl<C> ChannelBuilder<C> {
    /// Opens the calling end of a service. This announces the caller and returns. A service is two
    /// channels of these settings: requests go over the channel of this name, and replies over
    /// another, whose name has `/replies` behind it. In both,
    /// [`max_message_bytes`](Self::max_message_bytes) includes 16 to 64 bytes of header.
    ///
    /// # Errors
    ///
    /// [`OpenError`], as for a channel. If the peer's types differ, the first call fails.
    pub fn caller<Q: ?Sized + 'static, R: ?Sized + 'static>(
        self,
    ) -> Result<Caller<Q, R, C>, OpenError>
    where
        C: Codec<Q> + Codec<R>,
    {
        let template = self.template.told_as(Interface::Caller);
        let channel = template.over(self.at.session());
        let back = channel.clone().for_replies();
        let (replies, requests) = loop {
            let replies =
                back.open_receiver(reply_version::<Q, R, C>().map(MessageVersions::of_one))?;
            let requests =
                channel.open_sender(request_version::<Q, R, C>().map(MessageVersions::of_one))?;
            if !requests.has_met_closed_end() {
                break (replies, requests);
            }
            // The closed end was left by a service that was dropped. The next end meets the service
            // that has replaced it or will replace it.
        };
        let settings = LineSettings {
            // The setting is at most 65536.
            max_in_flight: template.defaults.max_in_flight as u32,
            open_timeout: template.wait_for_open(),
        };
        Ok(Caller::new(Line::open(requests, replies, &settings)))
    }

    /// Opens the serving end for calls of this peer. This announces the service and returns.
    ///
    /// # Errors
    ///
    /// [`OpenError`], as for a channel.
    pub fn service<Q: ?Sized + 'static, R: ?Sized + 'static>(
        self,
    ) -> Result<Service<Q, R, C>, OpenError>
    where
        C: Codec<Q> + Codec<R>,
    {
        Service::of_peer(self.template, self.at.session())
    }
}

impl<C> ChannelBuilder<C, &Node> {
    /// Opens the serving end with all peers, present and future.
    ///
    /// # Errors
    ///
    /// [`OpenError`]: the node has a service of that name, a setting is out of its range, or
    /// this process is a fork.
    pub fn service<Q: ?Sized + 'static, R: ?Sized + 'static>(
        self,
    ) -> Result<Service<Q, R, C>, OpenError>
    where
        C: Codec<Q> + Codec<R>,
    {
        Service::of_node(self.template, self.at)
    }
}

/// Returns the message version of requests. The version covers both types, so that a caller whose
/// reply type differs gets an error before any request is executed.
pub(super) fn request_version<Q: ?Sized, R: ?Sized, C: Codec<Q> + Codec<R>>()
-> Result<MessageVersion, OpenFailure> {
    call_version::<Q, R, C>(message_version::<Q, C>()?.alignment)
}

/// Returns the message version of the replies.
pub(super) fn reply_version<Q: ?Sized, R: ?Sized, C: Codec<Q> + Codec<R>>()
-> Result<MessageVersion, OpenFailure> {
    call_version::<Q, R, C>(message_version::<R, C>()?.alignment)
}

fn call_version<Q: ?Sized, R: ?Sized, C: Codec<Q> + Codec<R>>(
    alignment: u32,
) -> Result<MessageVersion, OpenFailure> {
    let (request, reply) = (message_version::<Q, C>()?, message_version::<R, C>()?);
    let mut schema = format!("call of {} for {}", request.schema, reply.schema);
    while schema.len() > MAX_TEXT_BYTES {
        schema.pop();
    }
    let fingerprint = SchemaInfo::of::<CallSchema<Q, R, C>>("ibex/call 1", &[]).fingerprint;
    Ok(MessageVersion {
        fingerprint: fingerprint.0,
        schema,
        alignment,
    })
}

/// The header's layout and both types.
struct CallSchema<Q: ?Sized, R: ?Sized, C>(super::Types<Q, R, C>);

impl<Q: ?Sized, R: ?Sized, C: Codec<Q> + Codec<R>> Schema for CallSchema<Q, R, C> {
    fn describe(to: &mut Describer) {
        to.compound("Call", &[describe_by::<Q, C>, describe_by::<R, C>]);
    }
}

/// By its fingerprint, which is all that a codec gives.
fn describe_by<T: ?Sized, C: Codec<T>>(to: &mut Describer) {
    to.atom(&C::schema().fingerprint.to_string());
}
