//! Fan-ins: one receiver for a channel name of all peers, as for a server's requests.

use std::{fmt, marker::PhantomData, time::Duration};

use ibex_codec::Codec;
use ibex_transport::channel::ChannelError;

pub use self::event::FanInEvent;
pub(crate) use self::gathered::NothingCame;
use self::opener::OfType;
pub use self::{gathered::Gathered, opener::Opener};
use crate::{
    ChannelBuilder, Counts, Message, Node, OpenError, Peer, PeerAt, RecvError,
    handles::message::DefaultCodec,
};

mod event;
mod futures;
mod gathered;
mod member;
mod opener;

/// Receives from all present and future peers of a node, on one channel name.
///
/// ```
/// use ibex::{FanIn, FanInEvent, Raw};
///
/// /// Counts the bytes of all peers until the node is closed.
/// fn count(requests: &mut FanIn<[u8], Raw>) -> u64 {
///     let mut bytes = 0;
///     while let Some(event) = requests.next() {
///         match event {
///             FanInEvent::Joined(peer) => println!("{peer} has come"),
///             FanInEvent::Message(_, message) => bytes += message.len() as u64,
///             FanInEvent::Ended(peer) => println!("{peer} is done"),
///             FanInEvent::Lost(peer, error) => println!("{peer} is gone: {error}"),
///         }
///     }
///     bytes
/// }
/// ```
///
/// [`Node::fan_in`] opens one with the default settings, and [`Node::channel`] one with settings.
/// Peers need not be accepted.
///
/// - **Joining.** A peer joins when it opens its sender of the name. When it drops that sender and opens
///   another, it joins again.
/// - **Order.** Messages of a peer arrive in order. Peers that have messages take turns.
/// - **Cost.** Idle peers cost nothing. A wake-up says which peer it comes from, so nothing is
///   polled while the fan-in sleeps, and no thread stands in between.
/// - **One receiver for a name.** A fan-in opens the receiving end of the name with every peer, so a
///   [`Peer::receiver`](crate::Peer::receiver) of that name is refused, and the other way round.
/// - **Only calls make progress.** A fan-in opens ends and takes peers in while it is called, not in
///   between. If nobody calls it, a sender at a peer waits for its `open_timeout`.
/// - **The end.** Dropping the fan-in ends all of its channels.
///
/// A [`Select`](crate::Select) waits for a fan-in beside other receivers.
///
/// # Errors
///
/// A peer's error ends nothing but that peer's channel, and is the event [`FanInEvent::Lost`].
pub struct FanIn<T: ?Sized, C: Codec<T> = DefaultCodec> {
    pub(crate) gathered: Gathered<OfType<T, C>>,
}

impl Node {
    /// Opens the receiving ends of the channel `name` with all peers, present and future, with the
    /// default settings and codec. If the name cannot be opened, each peer has the event
    /// [`FanInEvent::Lost`].
    ///
    /// # Errors
    ///
    /// None: the settings are the node's, which were checked when it was made.
    #[cfg(feature = "rkyv")]
    pub fn fan_in<T: ?Sized>(&self, name: &str) -> Result<FanIn<T>, OpenError>
    where
        crate::Rkyv: Codec<T>,
    {
        self.channel(name).fan_in()
    }
}

impl<C> ChannelBuilder<C, &Node> {
    /// Opens the receiving end with every present and future peer.
    ///
    /// # Errors
    ///
    /// [`OpenErrorKind::Setting`](crate::OpenErrorKind::Setting): a setting is out of its range.
    pub fn fan_in<T: ?Sized>(self) -> Result<FanIn<T, C>, OpenError>
    where
        C: Codec<T>,
    {
        let gathered = Gathered::open(self.at, self.template, OfType(PhantomData))?;
        Ok(FanIn { gathered })
    }
}

impl<T: ?Sized, C: Codec<T>> FanIn<T, C> {
    /// Waits for the next event of any peer; `None` when the node was closed and everything was
    /// received. A message, a peer that comes or goes, or [`Node::close`] wakes it.
    ///
    /// A peer's end or error ends nothing but that peer.
    #[allow(
        clippy::should_implement_trait,
        reason = "an iterator could not be asked for counters between two events"
    )]
    #[inline]
    pub fn next(&mut self) -> Option<FanInEvent<Message<T, C>>> {
        self.gathered.next()
    }

    /// Like [`next`](Self::next), waiting for up to `timeout`.
    ///
    /// # Errors
    ///
    /// [`RecvErrorKind::Timeout`](crate::RecvErrorKind::Timeout) when the time was up.
    #[inline]
    pub fn next_timeout(
        &mut self,
        timeout: Duration,
    ) -> Result<Option<FanInEvent<Message<T, C>>>, RecvError> {
        self.gathered
            .next_timeout(timeout)
            .map_err(|NothingCame| RecvError::of_nobody(self.gathered.suspended()))
    }

    /// Returns the next event if there is one now. Under [`Driver::Caller`](crate::Driver::Caller)
    /// it runs a turn when there is none.
    ///
    /// # Errors
    ///
    /// [`RecvErrorKind::Empty`](crate::RecvErrorKind::Empty) if nothing is there.
    #[inline]
    pub fn try_next(&mut self) -> Result<Option<FanInEvent<Message<T, C>>>, RecvError> {
        self.gathered
            .try_next()
            .map_err(|NothingCame| ChannelError::WouldBlock.into())
    }

    /// Returns the peers that have joined and are not gone, with the counters of their channels. A
    /// peer with several sessions is listed once for each. Never waits.
    ///
    /// The counters are of messages that arrived, as far as this end has seen (`sent`, a lower
    /// bound), that were handed out (`received`), released without a gap, and acknowledged without
    /// a gap.
    #[must_use]
    pub fn peers(&self) -> Vec<(PeerAt, Counts)> {
        self.gathered.peers()
    }

    /// Returns a peer that has joined and is not gone. Other channels can be opened with it, for
    /// example to answer on; they use the session that `who` names. If several sessions have the
    /// same [`PeerAt`], the peer has one of them. A clone of the peer outlives the peer's end here.
    ///
    /// ```
    /// use std::collections::HashMap;
    ///
    /// use ibex::{FanIn, FanInEvent, PeerAt, Raw, Sender};
    ///
    /// /// Tells each peer how long its messages are.
    /// fn measure(requests: &mut FanIn<[u8], Raw>) -> Result<(), Box<dyn std::error::Error>> {
    ///     let mut answers: HashMap<PeerAt, Sender<[u8], Raw>> = HashMap::new();
    ///     while let Some(event) = requests.next() {
    ///         match event {
    ///             FanInEvent::Joined(who) => {
    ///                 if let Some(peer) = requests.peer(who) {
    ///                     answers.insert(who, peer.channel("lengths").codec::<Raw>().sender()?);
    ///                 }
    ///             }
    ///             FanInEvent::Message(who, message) => {
    ///                 let length = (message.len() as u64).to_le_bytes();
    ///                 // A peer that does not take its answers loses them.
    ///                 if answers.get_mut(&who).is_some_and(|to| to.try_send(&length).is_err()) {
    ///                     answers.remove(&who);
    ///                 }
    ///             }
    ///             FanInEvent::Ended(who) | FanInEvent::Lost(who, _) => _ = answers.remove(&who),
    ///         }
    ///     }
    ///     Ok(())
    /// }
    /// ```
    #[must_use]
    pub fn peer(&self, who: PeerAt) -> Option<Peer> {
        self.gathered.peer(who)
    }
}

impl<T: ?Sized, C: Codec<T>> fmt::Debug for FanIn<T, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.gathered.fmt(f)
    }
}
