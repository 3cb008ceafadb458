//! The opening of callers of kept peers.

use ibex_core::{ChannelBuilder, OpenError, Peer, codec::Codec, extend};
use ibex_peers::discovery::Peers;

use super::{OpenedCaller, PeersCaller};
use crate::opening::CallerSettings;

#[cfg(feature = "rkyv")]
use crate::opening::OpenCaller;
#[cfg(feature = "rkyv")]
use ibex_core::Rkyv;

#[cfg(feature = "rkyv")]
impl OpenCaller for Peers {
    type Caller<Q: ?Sized + 'static, R: ?Sized + 'static>
        = PeersCaller<Q, R>
    where
        Rkyv: Codec<Q> + Codec<R>;

    fn caller<Q: ?Sized + 'static, R: ?Sized + 'static>(
        &self,
        name: &str,
    ) -> Result<PeersCaller<Q, R>, OpenError>
    where
        Rkyv: Codec<Q> + Codec<R>,
    {
        self.channel(name).caller()
    }
}

impl<C> CallerSettings for ChannelBuilder<C, &Peers> {
    type Codec = C;
    type Caller<Q: ?Sized + 'static, R: ?Sized + 'static>
        = PeersCaller<Q, R, C>
    where
        C: Codec<Q> + Codec<R>;

    fn caller<Q: ?Sized + 'static, R: ?Sized + 'static>(
        self,
    ) -> Result<PeersCaller<Q, R, C>, OpenError>
    where
        C: Codec<Q> + Codec<R>,
    {
        let (peers, template) = extend::parts(&self);
        let template = template.clone().checked()?;
        let service = template.name().to_owned();
        let open = move |peer: &Peer| -> OpenedCaller<Q, R, C> {
            template.over(extend::session(peer)).codec::<C>().caller()
        };
        let is_open = |caller: &OpenedCaller<Q, R, C>| match caller {
            Ok(caller) => caller.is_open_now(),
            Err(_) => Some(false),
        };
        let endpoints = peers.endpoints(Box::new(open), is_open);
        Ok(PeersCaller::new(service, endpoints))
    }
}
