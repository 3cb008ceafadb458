//! Settings of calls, and the two channels that a service is.

use std::marker::PhantomData;

use ibex_codec::{Codec, Describer, MAX_TEXT_BYTES, Schema, SchemaInfo};
use ibex_protocol::format::message_version::MessageVersion;
use ibex_transport::session::Interface;

use super::{
    caller::Caller,
    line::{Line, LineSettings},
    service::Service,
};
#[cfg(feature = "rkyv")]
use crate::Rkyv;
use crate::{
    Node, OpenError, Peer,
    channel_builder::{Offer, message_version},
    error::OpenFailure,
    message::DefaultCodec,
    setting::SettingError,
    template::ChannelTemplate,
};

/// Settings of calls and of services.
///
/// [`Peer::calls`] begins one for one peer, which ends in [`caller`](Self::caller) or
/// [`service`](Self::service). [`Node::calls`] begins one for all peers, which ends in
/// [`service`](CallsBuilder::service).
#[derive(Debug)]
#[must_use = "a builder does nothing until `caller` or `service`"]
pub struct CallsBuilder<C = DefaultCodec, At = Peer> {
    at: At,
    settings: CallSettings,
    _codec: PhantomData<fn() -> C>,
}

#[derive(Clone, Debug)]
pub(super) struct CallSettings {
    pub(super) template: ChannelTemplate,
    pub(super) max_in_flight: u32,
}

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
        self.calls(name).caller()
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
        self.calls(name).service()
    }

    /// Begins a caller with settings.
    pub fn calls(&self, name: &str) -> CallsBuilder {
        CallsBuilder {
            at: self.clone(),
            settings: CallSettings::new(ChannelTemplate::with(self.channel_defaults(), name)),
            _codec: PhantomData,
        }
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
        self.calls(name).service()
    }

    /// Begins a service with settings.
    pub fn calls(&self, name: &str) -> CallsBuilder<DefaultCodec, &Self> {
        CallsBuilder {
            at: self,
            settings: CallSettings::new(ChannelTemplate::new(self, name)),
            _codec: PhantomData,
        }
    }
}

impl<C, At: Clone> Clone for CallsBuilder<C, At> {
    fn clone(&self) -> Self {
        Self {
            at: self.at.clone(),
            settings: self.settings.clone(),
            _codec: PhantomData,
        }
    }
}

impl<C, At> CallsBuilder<C, At> {
    /// Chooses how requests and replies are encoded, as
    /// [`ChannelBuilder::codec`](crate::ChannelBuilder::codec) does.
    pub fn codec<D>(self) -> CallsBuilder<D, At> {
        CallsBuilder {
            at: self.at,
            settings: self.settings,
            _codec: PhantomData,
        }
    }

    /// Limits the calls of one caller that may be under way. Default: 1024. Range: 1 to 65536.
    /// Calls beyond the caller's own limit wait, and calls beyond the service's are
    /// [refused](crate::calls::CallError::Refused). A higher limit lets more requests and replies
    /// take room in the window.
    pub fn max_in_flight(mut self, calls: u32) -> Self {
        self.settings = self.settings.max_in_flight(calls);
        self
    }

    /// Limits the bytes of requests, and of replies, that may be sent and not yet released, as
    /// [`ChannelBuilder::window_bytes`](crate::ChannelBuilder::window_bytes) does.
    pub fn window_bytes(mut self, bytes: u64) -> Self {
        self.settings.template = self.settings.template.window_bytes(bytes);
        self
    }

    /// Limits the length of a request or reply, including 16 to 64 bytes of header, as
    /// [`ChannelBuilder::max_message_bytes`](crate::ChannelBuilder::max_message_bytes) does.
    pub fn max_message_bytes(mut self, bytes: u64) -> Self {
        self.settings.template = self.settings.template.max_message_bytes(bytes);
        self
    }

    /// Limits how long a blocking call waits for the peer to open its end, as
    /// [`ChannelBuilder::open_timeout`](crate::ChannelBuilder::open_timeout) does.
    pub fn open_timeout(mut self, timeout: std::time::Duration) -> Self {
        self.settings.template = self.settings.template.open_timeout(timeout);
        self
    }
}

impl<C> CallsBuilder<C> {
    /// Opens the calling end. This announces the caller and returns.
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
        let channel = self.settings.template.over(self.at.session());
        let channel = channel.told_as(Interface::Caller);
        let (replies, requests) = loop {
            let replies = channel.open_receiver(reply_version::<Q, R, C>().map(Offer::of_one))?;
            let requests = channel.open_sender(request_version::<Q, R, C>().map(Offer::of_one))?;
            if !requests.has_met_closed_end() {
                break (replies, requests);
            }
            // A service that was dropped had left this end. The next one meets the service that
            // came in its place, or will come.
        };
        let settings = LineSettings {
            max_in_flight: self.settings.max_in_flight,
            open_timeout: self.settings.template.wait_for_open(),
        };
        Ok(Caller::new(Line::open(requests, replies, &settings)))
    }

    /// Opens the serving end. This announces the service and returns.
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
        Service::of_peer(self.settings, self.at.session())
    }
}

impl<C> CallsBuilder<C, &Node> {
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
        Service::of_node(self.settings, self.at)
    }
}

impl CallSettings {
    fn new(template: ChannelTemplate) -> Self {
        Self {
            template: template.told_as(Interface::Service),
            max_in_flight: 1024,
        }
    }

    fn max_in_flight(mut self, calls: u32) -> Self {
        let checked = SettingError::check_count("max_in_flight", calls.into(), 1..=1 << 16);
        self.template = self.template.note(checked);
        self.max_in_flight = calls;
        self
    }
}

/// Returns the message version of requests. It covers both types, so that a caller whose reply type
/// differs hears of it before anything is executed.
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
