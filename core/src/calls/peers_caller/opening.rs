//! The opening of callers of kept peers.

use ibex_codec::Codec;

use super::{OpenedCaller, PeersCaller};
#[cfg(feature = "rkyv")]
use crate::Rkyv;
use crate::{
    ChannelBuilder, OpenError, Peer, discovery::Peers, message::DefaultCodec,
    template::ChannelTemplate,
};

impl Peers {
    /// Begins the settings of a service's caller, before it is opened by
    /// [`caller`](ChannelBuilder::caller).
    ///
    /// ```
    /// use ibex::{OpenError, Raw, calls::PeersCaller, discovery::Peers};
    ///
    /// fn open(peers: &Peers) -> Result<PeersCaller<[u8], [u8], Raw>, OpenError> {
    ///     peers.channel("blobs").codec::<Raw>().max_in_flight(64).caller()
    /// }
    /// ```
    pub fn channel(&self, name: &str) -> ChannelBuilder<DefaultCodec, &Self> {
        let template = ChannelTemplate::with(self.channel_defaults(), name);
        ChannelBuilder::new(self, template)
    }

    /// Opens a caller of the service `name` of these peers, with the default settings and codec: a
    /// call goes to one of those that are connected. See [`PeersCaller`].
    ///
    /// This returns without waiting for a peer. A session has one caller of a name at a time. So
    /// make one of these and clone it, and open no [`Peer::caller`] of the same name with these
    /// peers.
    ///
    /// # Errors
    ///
    /// [`OpenError`], if a setting is out of its range. An error of a session is returned by calls,
    /// as [`NotSent`](crate::calls::CallErrorKind::NotSent), if no other peer can be called.
    #[cfg(feature = "rkyv")]
    pub fn caller<Q: ?Sized + 'static, R: ?Sized + 'static>(
        &self,
        name: &str,
    ) -> Result<PeersCaller<Q, R>, OpenError>
    where
        Rkyv: Codec<Q> + Codec<R>,
    {
        self.channel(name).caller()
    }
}

impl<C> ChannelBuilder<C, &Peers> {
    /// Opens a caller of the service of this name of all of these peers: a [`PeersCaller`].
    ///
    /// # Errors
    ///
    /// [`OpenError`], if a setting is out of its range. An error of a session is returned by calls,
    /// as [`NotSent`](crate::calls::CallErrorKind::NotSent), if no other peer can be called.
    pub fn caller<Q: ?Sized + 'static, R: ?Sized + 'static>(
        self,
    ) -> Result<PeersCaller<Q, R, C>, OpenError>
    where
        C: Codec<Q> + Codec<R>,
    {
        let template = self.template.checked()?;
        let service = template.name().to_owned();
        let open = move |peer: &Peer| -> OpenedCaller<Q, R, C> {
            template.over(peer.session()).codec::<C>().caller()
        };
        let is_open = |caller: &OpenedCaller<Q, R, C>| match caller {
            Ok(caller) => caller.is_open_now(),
            Err(_) => Some(false),
        };
        let endpoints = self.at.endpoints(Box::new(open), is_open);
        Ok(PeersCaller::new(service, endpoints))
    }
}
