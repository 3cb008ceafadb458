//! The opening of callers and services: the two channels that a service is.

use ibex_core::{
    ChannelBuilder, Node, OpenError,
    codec::Codec,
    extend::{self, MessageVersions},
};

use crate::{
    caller::{Caller, state::CallerState},
    error::label,
    service::Service,
    versions::{reply_version, request_version},
};

#[cfg(feature = "rkyv")]
use ibex_core::{Peer, Rkyv};

/// Opens callers: of one peer's services, or of those of all [kept peers](ibex_peers::discovery::Peers).
pub trait OpenCaller {
    /// The caller that [`caller`](Self::caller) opens.
    #[cfg(feature = "rkyv")]
    type Caller<Q: ?Sized + 'static, R: ?Sized + 'static>
    where
        Rkyv: Codec<Q> + Codec<R>;

    /// Opens a caller of the service `name`, with the default settings and codec.
    ///
    /// This announces the caller and returns, without waiting for a peer. A session has one
    /// caller of a name at a time, which may be cloned. Once the last clone is dropped, another may
    /// be made. So open no caller of one peer beside a [`PeersCaller`](crate::PeersCaller) of the same name that
    /// has this peer.
    ///
    /// When the peer drops its service, all calls of a [`Caller`] fail, later ones too. Drop the
    /// caller then and make a new one: the peer's next service serves it, and its first call waits
    /// for that service. A new caller that was made before the end of the old service was known
    /// here fails in the same way; make another.
    ///
    /// # Errors
    ///
    /// [`OpenError`], as for a channel. An error of one of several kept peers is returned by calls,
    /// as [`NotSent`](crate::CallErrorKind::NotSent), if no other peer can be called.
    #[cfg(feature = "rkyv")]
    fn caller<Q: ?Sized + 'static, R: ?Sized + 'static>(
        &self,
        name: &str,
    ) -> Result<Self::Caller<Q, R>, OpenError>
    where
        Rkyv: Codec<Q> + Codec<R>;
}

/// Opens services: for the calls of one peer, or of all peers of a node.
pub trait OpenService {
    /// Opens the service `name`, with the default settings and codec: of a [`Node`] for calls of
    /// all peers, present and future, and of a [`Peer`] for calls of this peer alone.
    ///
    /// A name has either one service for all peers, or one for each of some peers. Dropping the
    /// service gives its name back.
    ///
    /// # Errors
    ///
    /// [`OpenError`], as for a channel. [`AlreadyOpen`](ibex_core::OpenErrorKind::AlreadyOpen): the
    /// node has a service of that name.
    #[cfg(feature = "rkyv")]
    fn service<Q: ?Sized + 'static, R: ?Sized + 'static>(
        &self,
        name: &str,
    ) -> Result<Service<Q, R>, OpenError>
    where
        Rkyv: Codec<Q> + Codec<R>;
}

/// Opens a caller with settings.
pub trait CallerSettings {
    /// The codec of requests and replies.
    type Codec;
    /// The caller that [`caller`](Self::caller) opens.
    type Caller<Q: ?Sized + 'static, R: ?Sized + 'static>
    where
        Self::Codec: Codec<Q> + Codec<R>;

    /// Opens the calling end of a service. This announces the caller and returns. A service is two
    /// channels of these settings: requests go over the channel of this name, and replies over
    /// another, whose name has `/replies` behind it. In both,
    /// [`max_message_bytes`](ChannelBuilder::max_message_bytes) includes 16 to 64 bytes of header.
    ///
    /// # Errors
    ///
    /// [`OpenError`], as for a channel. If the peer's types differ, the first call fails. An error
    /// of one of several kept peers is returned by calls, as
    /// [`NotSent`](crate::CallErrorKind::NotSent), if no other peer can be called.
    fn caller<Q: ?Sized + 'static, R: ?Sized + 'static>(
        self,
    ) -> Result<Self::Caller<Q, R>, OpenError>
    where
        Self::Codec: Codec<Q> + Codec<R>;
}

/// Opens a service with settings.
pub trait ServiceSettings {
    /// The codec of requests and replies.
    type Codec;

    /// Opens the serving end, for calls of one peer or of all peers of a node. This announces the
    /// service and returns.
    ///
    /// # Errors
    ///
    /// [`OpenError`]: as for a channel, or the node has a service of that name.
    fn service<Q: ?Sized + 'static, R: ?Sized + 'static>(
        self,
    ) -> Result<Service<Q, R, Self::Codec>, OpenError>
    where
        Self::Codec: Codec<Q> + Codec<R>;
}

#[cfg(feature = "rkyv")]
impl OpenCaller for Peer {
    type Caller<Q: ?Sized + 'static, R: ?Sized + 'static>
        = Caller<Q, R>
    where
        Rkyv: Codec<Q> + Codec<R>;

    fn caller<Q: ?Sized + 'static, R: ?Sized + 'static>(
        &self,
        name: &str,
    ) -> Result<Caller<Q, R>, OpenError>
    where
        Rkyv: Codec<Q> + Codec<R>,
    {
        self.channel(name).caller()
    }
}

#[cfg(feature = "rkyv")]
impl OpenService for Peer {
    fn service<Q: ?Sized + 'static, R: ?Sized + 'static>(
        &self,
        name: &str,
    ) -> Result<Service<Q, R>, OpenError>
    where
        Rkyv: Codec<Q> + Codec<R>,
    {
        self.channel(name).service()
    }
}

#[cfg(feature = "rkyv")]
impl OpenService for Node {
    fn service<Q: ?Sized + 'static, R: ?Sized + 'static>(
        &self,
        name: &str,
    ) -> Result<Service<Q, R>, OpenError>
    where
        Rkyv: Codec<Q> + Codec<R>,
    {
        self.channel(name).service()
    }
}

impl<C> CallerSettings for ChannelBuilder<C> {
    type Codec = C;
    type Caller<Q: ?Sized + 'static, R: ?Sized + 'static>
        = Caller<Q, R, C>
    where
        C: Codec<Q> + Codec<R>;

    fn caller<Q: ?Sized + 'static, R: ?Sized + 'static>(self) -> Result<Caller<Q, R, C>, OpenError>
    where
        C: Codec<Q> + Codec<R>,
    {
        let (peer, template) = extend::parts(&self);
        let session = extend::session(peer);
        let template = template.clone().labeled(&label::CALLER).untraced();
        let channel = template.over(session);
        let back = template.clone().with_suffix(label::REPLIES).over(session);
        let (replies, requests) = loop {
            let offer = reply_version::<Q, R, C>().map(MessageVersions::of_one);
            let replies = extend::open_receiver(&back, offer)?;
            let offer = request_version::<Q, R, C>().map(MessageVersions::of_one);
            let requests = extend::open_sender(&channel, offer)?;
            if !requests.has_met_closed_end() {
                break (replies, requests);
            }
            // The closed end was left by a service that was dropped. The next end meets the service
            // that has replaced it or will replace it.
        };
        Ok(Caller::new(CallerState::open(requests, replies, &template)))
    }
}

impl<C> ServiceSettings for ChannelBuilder<C> {
    type Codec = C;

    fn service<Q: ?Sized + 'static, R: ?Sized + 'static>(
        self,
    ) -> Result<Service<Q, R, C>, OpenError>
    where
        C: Codec<Q> + Codec<R>,
    {
        let (peer, template) = extend::parts(&self);
        Service::of_peer(template.clone(), extend::session(peer))
    }
}

impl<C> ServiceSettings for ChannelBuilder<C, &Node> {
    type Codec = C;

    fn service<Q: ?Sized + 'static, R: ?Sized + 'static>(
        self,
    ) -> Result<Service<Q, R, C>, OpenError>
    where
        C: Codec<Q> + Codec<R>,
    {
        let (node, template) = extend::parts(&self);
        Service::of_node(template.clone(), node)
    }
}
