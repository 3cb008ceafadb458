//! A node on the other side of a session, and its channels.

pub(crate) mod channel_builder;
pub(crate) mod channel_defaults;
pub(crate) mod template;

pub use self::channel_builder::ChannelBuilder;

use std::{fmt, sync::Arc, time::Duration};

use ibex_base::Address;
use ibex_protocol::format::control::Role;
use ibex_transport::node::SessionShared;
use ibex_transport::session::{PeerNames, SessionStats};

use crate::{
    AuthenticatedAs, CloseReport, Fabric, PeerAt, PeerId, Suspension,
    peer::{channel_defaults::ChannelDefaults, template::ChannelTemplate},
};
#[cfg(feature = "rkyv")]
use crate::{Codec, OpenError, Receiver, Rkyv, Sender};

/// A node at the other end of a session.
///
/// ```
/// use ibex::{Peer, Raw};
///
/// /// Asks a peer for something, over a channel each way.
/// fn ask(peer: &Peer) -> Result<(), Box<dyn std::error::Error>> {
///     println!("{peer}: {}", peer.fabric_reason());
///     let mut questions = peer.channel("questions").codec::<Raw>().sender::<[u8]>()?;
///     let mut answers = peer.channel("answers").codec::<Raw>().receiver::<[u8]>()?;
///     questions.send(b"how far are you?")?;
///     println!("{} bytes", answers.recv()?.len());
///     Ok(())
/// }
/// ```
///
/// [`Node::connect`](crate::Node::connect) and [`Node::accept`](crate::Node::accept) return peers.
/// Clones name the same session. Two nodes may have several sessions, and each is a `Peer`.
///
/// Dropping a `Peer` ends nothing: the session lives until one of the two programs
/// [closes](Peer::close) it or its node, and channels live as long as their handles.
///
/// A peer is *gone* at once when it closes the session or its node, or when its process ends on this host. When only
/// its connection breaks it is *suspended*, and comes back or is given up; see
/// [`Node`](crate::Node#when-a-connection-breaks).
///
/// # Errors
///
/// Opening a channel fails if the name is taken, the session is over, or a setting is out of range. If
/// the peer's message type differs, the first call that waits for the peer's end tells so.
#[derive(Clone)]
pub struct Peer {
    session: Arc<SessionShared>,
    defaults: ChannelDefaults,
}

/// Writes the peer's [`PeerAt`] and its [`PeerNames`].
impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.at(), self.names())
    }
}

ibex_base::debug_fields! {
    [] Peer: |peer|
        id = peer.id(), address = peer.address(), names = peer.names(), fabric = peer.fabric()
}

impl Peer {
    pub(crate) fn new(session: Arc<SessionShared>, defaults: ChannelDefaults) -> Self {
        Self { session, defaults }
    }

    pub(crate) fn session(&self) -> &Arc<SessionShared> {
        &self.session
    }

    /// Opens the sending end of a channel with the default settings and codec.
    ///
    /// Announces it and returns; see [`Sender`]. A name may be used once in each direction.
    ///
    /// # Errors
    ///
    /// [`OpenError`], as [`ChannelBuilder::sender`].
    #[cfg(feature = "rkyv")]
    pub fn sender<T: ?Sized>(&self, name: &str) -> Result<Sender<T>, OpenError>
    where
        Rkyv: Codec<T>,
    {
        self.channel(name).sender()
    }

    /// Opens the receiving end of a channel with the default settings and codec.
    ///
    /// Announces it and returns; see [`Receiver`]. A name may be used once in each direction.
    ///
    /// # Errors
    ///
    /// [`OpenError`], as [`ChannelBuilder::receiver`].
    #[cfg(feature = "rkyv")]
    pub fn receiver<T: ?Sized>(&self, name: &str) -> Result<Receiver<T>, OpenError>
    where
        Rkyv: Codec<T>,
    {
        self.channel(name).receiver()
    }

    /// Ends this session in order, and returns a report of what was not delivered. Waits for up to
    /// `linger` ([`Duration::MAX`]: for ever) until everything that was sent is delivered. The node
    /// and its other sessions go on.
    ///
    /// It does for one session what [`Node::close`](crate::Node::close) does for all. Calls on its
    /// channels that wait in other threads return with errors. A call that is in the middle of a
    /// send, or a loan or permit that is held, is waited for up to a second. Handles and errors here
    /// then say [`EndedHere`](crate::EndCause::EndedHere), those of the peer
    /// [`EndedByPeer`](crate::EndCause::EndedByPeer). Both nodes forget the session: its
    /// descriptors, its memory and its place under
    /// [`max_peer_sessions`](crate::NodeBuilder::max_peer_sessions) are free.
    ///
    /// Either end may close, also the one that was dialed. A client that keeps this node
    /// connected dials again. While the session is suspended, the
    /// call waits for it to be resumed. If `linger` is over before, the peer never learns a reason:
    /// the session is [gone](crate::EndCause::PeerGone) for it when it comes back, or when its
    /// [`session_timeout`](crate::NodeBuilder::session_timeout) is over.
    ///
    /// Closing again returns the same report; the earliest deadline holds for all calls. A session
    /// that has ended otherwise reports what was not delivered by then.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use std::time::Duration;
    /// use ibex::{Node, Raw};
    ///
    /// let server = Node::listen("127.0.0.1:0")?;
    /// let client = Node::client()?;
    /// for job in 0..3 {
    ///     let peer = client.connect(server.local_addr().unwrap())?;
    ///     let accepted = server.accept()?;
    ///     let mut sender = peer.channel("job").codec::<Raw>().sender::<[u8]>()?;
    ///     let mut receiver = accepted.channel("job").codec::<Raw>().receiver::<[u8]>()?;
    ///     sender.send(&[job])?;
    ///     assert_eq!(receiver.recv()?[0], job);
    ///     let report = peer.close(Duration::from_secs(60));
    ///     assert!(report.undelivered.is_empty(), "{report}");
    /// }
    /// assert!(client.stats().sessions.is_empty());
    /// # Ok(())
    /// # }
    /// ```
    pub fn close(&self, linger: Duration) -> CloseReport {
        self.session.close("", linger)
    }

    /// Ends this session as [`close`](Self::close) does, for a `reason` that the peer receives: the
    /// peer's errors and its [`Event::Gone`](crate::Event::Gone) have it in
    /// [`EndedByPeer`](crate::EndCause::EndedByPeer). Of a longer text the first 255 bytes travel.
    ///
    /// If `linger` ends before everything was sent, the peer hears the reason behind what the kernel
    /// had of it, or over RDMA what had arrived. For that the node keeps the connection of a session
    /// over TCP for up to 10 s longer, at most 64 at a time, and not beyond its own close.
    pub fn close_because(&self, reason: &str, linger: Duration) -> CloseReport {
        self.session.close(reason, linger)
    }

    /// Begins the settings of a channel, a caller or a service with this peer.
    pub fn channel(&self, name: &str) -> ChannelBuilder {
        ChannelBuilder::new(self.clone(), ChannelTemplate::with(self.defaults, name))
    }

    /// Returns the channels that the peer has opened and this node has not, by name, with the end
    /// that the peer has. A channel is also listed if both nodes opened the same kind of end,
    /// because such ends do not pair.
    #[must_use]
    pub fn incoming(&self) -> Vec<(String, Role)> {
        self.session.requests.incoming()
    }

    /// Returns the fabric that carries the session's data now. A session over verbs goes on over
    /// TCP when its device, port or path fails and does not come back in time;
    /// [`Event::FabricChanged`](crate::Event::FabricChanged) tells of it.
    #[must_use]
    pub fn fabric(&self) -> Fabric {
        self.session.fabric()
    }

    /// Returns the identity that the peer has proven; `None` if this node does not authenticate
    /// peers. The peer proves it again each time the session goes on over another connection.
    #[must_use]
    pub fn authenticated_as(&self) -> Option<&AuthenticatedAs> {
        self.names().authenticated_as.as_deref()
    }

    /// Returns the name that the peer's program gave its node by
    /// [`NodeBuilder::name`](crate::NodeBuilder::name). It is what the peer says of itself: nothing
    /// proves it, and several peers may have the same. Use it to tell a person who the peer is, and
    /// [`authenticated_as`](Self::authenticated_as) to decide what the peer may do.
    #[must_use]
    pub fn name(&self) -> Option<&str> {
        self.names().name.as_deref()
    }

    /// Returns the peer's names together: the one that it gives itself, and the one that it has
    /// proven.
    #[must_use]
    pub fn names(&self) -> &PeerNames {
        &self.session.peer().names
    }

    /// Returns whether the session's data is encrypted now. It is over TCP, where peers are
    /// authenticated. Shared memory stays on this host. Anyone who can read the network of an RDMA
    /// device can read what it carries.
    #[must_use]
    pub fn is_encrypted(&self) -> bool {
        self.authenticated_as().is_some() && self.fabric() == Fabric::Tcp
    }

    /// Returns whether payloads of this session have a checksum where TCP carries them, as both
    /// nodes settled when the session began; see [`Integrity`](crate::Integrity).
    #[must_use]
    pub fn payload_checksums(&self) -> bool {
        self.session.payload_checksums()
    }

    /// Returns in words why the session began over its fabric, and what excluded the faster ones:
    /// `tcp: not shm: the nodes run on different hosts; not verbs: ...`. A later change of the
    /// fabric is [an event](crate::Event::FabricChanged).
    #[must_use]
    pub fn fabric_reason(&self) -> &str {
        &self.session.peer().reason
    }

    /// Returns the number of the engine that turns the session, counted from 0. It stays the same
    /// as long as the session lasts; see
    /// [`NodeBuilder::io_threads`](crate::NodeBuilder::io_threads).
    #[must_use]
    pub fn engine(&self) -> usize {
        self.session.engine().index()
    }

    /// Returns the RDMA device of this node and the port of it, counted from 1, that carry the
    /// session's data now; `None` over another fabric. A node with several ports uses the one that
    /// the route to the peer leads to.
    #[cfg(feature = "verbs")]
    #[must_use]
    pub fn rdma_port(&self) -> Option<(String, u8)> {
        self.session.rdma_port()
    }

    /// Returns the peer's identity and incarnation, as it states them.
    #[must_use]
    pub fn id(&self) -> PeerId {
        PeerId::of(self.session.peer())
    }

    /// Returns whether both are of one session. A process with which this node has two sessions, or
    /// first one and then another, has one [id](Self::id) in all of them. Never waits.
    ///
    /// ```
    /// use ibex::Peer;
    ///
    /// /// Forgets the peers of a session.
    /// fn forget(peers: &mut Vec<Peer>, gone: &Peer) {
    ///     peers.retain(|peer| !peer.is_same_session(gone));
    /// }
    /// ```
    #[must_use]
    pub fn is_same_session(&self, other: &Peer) -> bool {
        Arc::ptr_eq(&self.session, &other.session)
    }

    /// Returns the peer's address as this node sees it.
    #[must_use]
    pub fn address(&self) -> Address {
        self.session.peer().address
    }

    /// Returns the peer's identity and address, by which a [`FanIn`](crate::FanIn) and a
    /// [`Group`](crate::group::Group) name it.
    #[must_use]
    pub fn at(&self) -> PeerAt {
        PeerAt::of(self.session.peer())
    }

    /// Returns the peer's process, if the kernel told it (same host, shared memory).
    #[must_use]
    pub fn pid(&self) -> Option<u32> {
        self.session.peer().pid
    }

    /// Returns whether the session has lost its connection and waits for another. Its handles go on
    /// as far as they can, and wait.
    #[must_use]
    pub fn is_suspended(&self) -> bool {
        self.session.is_suspended()
    }

    /// Returns since when the session has had no connection, why, and what this node does about it;
    /// `None` if it has a connection, or has ended. [`Event::Suspended`](crate::Event::Suspended)
    /// tells of its begin, and errors of calls that waited in vain have it too.
    #[must_use]
    pub fn suspension(&self) -> Option<Arc<Suspension>> {
        self.session.suspension()
    }

    /// Returns whether the session has ended, as far as is known here; see
    /// [`Node`](crate::Node#when-a-peer-ends). Messages that arrived are still handed out. A peer
    /// that is gone stays gone.
    #[must_use]
    pub fn is_gone(&self) -> bool {
        self.session.is_gone()
    }

    /// Returns what the session has counted so far.
    #[must_use]
    pub fn stats(&self) -> SessionStats {
        self.session.stats()
    }
}
