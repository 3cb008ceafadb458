//! A process's endpoint.

mod accepting;
pub(crate) mod builder;
mod closing;
mod connecting;
mod draining;
pub(crate) mod driving_tasks;
pub(crate) mod environment;
pub(crate) mod part;
mod parts;
pub(crate) mod settings;
mod slow_messages;
mod starting;
#[cfg(feature = "tokio")]
pub(crate) mod tasks;
mod weak;

pub use builder::NodeBuilder;
pub use draining::DrainReport;

use parts::NodeParts;
pub(crate) use starting::Listening;
pub use weak::WeakNode;

use std::{
    os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd},
    sync::Arc,
    time::{Duration, Instant},
};

use ibex_base::Address;
use ibex_base::fork::{self, UsedAfterFork};
use ibex_transport::{
    node::{CloseReport, SessionShared},
    runtime::Runtime,
};

use crate::{
    ChannelBuilder, Events, ListenError, Peer, PeerId, ToAddress,
    handles::message::DefaultCodec,
    peer::{channel_defaults::ChannelDefaults, template::ChannelTemplate},
    stats::NodeStats,
};

/// A process's endpoint, which connects to peers and, if it listens, accepts them.
///
/// ```
/// use ibex::{Node, Raw};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let server = Node::listen("127.0.0.1:0")?;
/// let address = server.local_addr().unwrap();
///
/// let client = Node::client()?;
/// let to_server = client.connect(address)?;
/// let to_client = server.accept()?;
///
/// // Each end is opened by name, in any order.
/// let mut sender = to_server.channel("greetings").codec::<Raw>().sender::<[u8]>()?;
/// let mut receiver = to_client.channel("greetings").codec::<Raw>().receiver::<[u8]>()?;
/// sender.send(b"hello")?;
/// assert_eq!(&*receiver.recv()?, b"hello");
/// # Ok(())
/// # }
/// ```
///
/// A process needs one node. [`builder`](Self::builder) has all settings. Each node that it meets is
/// a [`Peer`], and the two nodes have a *session*, which carries all of their channels.
///
/// A `Node` is a handle: its clones are the same node, for other threads and tasks.
///
/// | to | call |
/// |---|---|
/// | make a node | [`client`](Self::client), [`listen`](Self::listen), [`builder`](Self::builder) |
/// | meet peers | [`connect`](Self::connect), [`accept`](Self::accept), `keep_connected` (`ibex::prelude`), [`peers`](Self::peers) |
/// | have a channel with many peers | [`fan_in`](Self::fan_in), [`group`](Self::group), [`publisher`](Self::publisher), [`channel`](Self::channel) |
/// | see what happens | [`events`](Self::events), [`stats`](Self::stats), [`environment`](Self::environment), `ibex::inspect::path_of`, [`slow_messages`](Self::slow_messages) |
/// | run it in an event loop | [`poll`](Self::poll), [`as_fd`](Self::as_fd) |
/// | end it | [`stop_accepting`](Self::stop_accepting), [`drain`](Self::drain), [`close`](Self::close) |
///
/// # When a connection breaks
///
/// A session outlives its connection. When the connection breaks, the session is *suspended*:
///
/// - Senders go on until their windows are full, and receivers until they have everything that arrived.
/// - Channels may be opened and closed.
/// - Calls that wait take longer. A call with a time-out still returns in time.
///
/// The end that dialed dials again, at once and then with pauses that grow to 1 s. The other end must
/// still listen. A node dials for all of its sessions at a time, so a host that does not answer holds
/// up no session with another. An attempt takes up to 3 s.
///
/// Over the new connection the session is *resumed*: messages that did not arrive are sent again, and
/// each message arrives once and in order. [`Node::events`] tells of both, and [`Peer::stats`] counts
/// them.
///
/// A session over verbs asks for another queue pair when its connection, queue pair or device breaks.
/// If it gets none within [`fail_over_after`](NodeBuilder::fail_over_after) (1 s), it goes on over TCP,
/// and an event tells of that. It stays on TCP; a new session gets verbs.
///
/// A connection counts as broken in these cases:
///
/// - It ends or is reset.
/// - The peer's host does not acknowledge sent data for [`notice_timeout`](NodeBuilder::notice_timeout)
///   (3 s).
/// - Nothing is being sent, and the host has not answered keepalives for 15 to 19 s.
///
/// Over vsock only the first counts, since that kernel interface has neither acknowledgements that a
/// program sees nor keepalives; see [Virtual machines](https://docs.rs/ibex/latest/ibex/guide/which_fabric/index.html#virtual-machines).
///
/// A process that is stopped, computes or does not read keeps its connection, because its host
/// answers. But it cannot make another connection meanwhile if this one breaks.
///
/// # When a peer ends
///
/// A session is over in these cases:
///
/// - The peer sends goodbye, as a node that is closed does.
/// - The peer's process is known to have ended. The kernel says so over shared memory, and where the
///   connection stays in one network namespace; elsewhere the process says so when it answers again under the same [identity](NodeBuilder::identity).
/// - The peer says that it does not have the session any more.
/// - The peer's host refuses every connection for [`peer_gone_after`](NodeBuilder::peer_gone_after)
///   (5 s), so no process listens there. The end that dials finds this out.
/// - The peer does not come back within [`session_timeout`](NodeBuilder::session_timeout) (30 s). Then
///   neither end resumes the session.
///
/// The session's handles hand out everything that arrived. Then they return an error with counters,
/// whose [cause](crate::EndCause::PeerGone) says whether the peer is certain to be gone. The peer's next
/// process gets another session: `keep_connected` connects to it, and a
/// `LogSender` goes on where its log ends.
///
/// # Fork
///
/// A child of `fork` cannot use its parent's nodes, nor make nodes of its own. Every call in the child
/// returns an error of the kind `UsedAfterFork`, as [`connect`](crate::ConnectErrorKind::UsedAfterFork)
/// does, and does nothing. The child may drop handles, messages and nodes, or leave them, and may end
/// in any way: neither the parent nor a peer notices. Fork before the first node is made, or let the
/// child `exec`.
///
/// A child gets no error for these:
///
/// - A message, loan or permit that was held at the fork may be dropped, and a message acknowledged
///   and copied by `into_owned`, all without effect. Its bytes are not there, nor those of a
///   [`Region`](crate::Region) that an RDMA device has registered, or a peer has mapped: reading them is
///   a segmentation fault, or reads what the child has mapped in their place since. The caller of
///   `fork`, which is `unsafe` for such reasons, must not do it.
/// - If `fork` is called in the middle of a call, by a codec, a waker or a signal handler, the call
///   must not go on in the child.
/// - A descriptor that was given for an event loop is the parent's. A child that sleeps on it takes
///   from the parent what the parent is told of.
/// - A counter that a peer or the engine keeps reads as 0, a session as gone, and a list of sessions
///   or events as empty.
///
/// A child that calls `exec` passes no descriptor of ibex on to the new program, so
/// [`std::process::Command`] may be used at any time. There is one exception: with an RDMA device on a
/// kernel before Linux 5.12, a fork damages libibverbs' queues unless `RDMAV_FORK_SAFE` is set
/// ([ibv_fork_init(3)](https://man7.org/linux/man-pages/man3/ibv_fork_init.3.html)), even if the child
/// calls `exec` at once. The node logs a warning when it opens such a device. `Command` forks only where
/// it must, as for `pre_exec`, and otherwise uses `posix_spawn`, which is safe.
///
/// `fork` copies the calling thread alone. Whatever other threads were doing in other libraries stays
/// half done in the child; ibex cannot mend that.
///
/// # Waiting and closing
///
/// [`close`](Self::close), called in another thread, ends every call that waits.
///
/// Dropping a node's last clone closes it, and waits for up to [`linger`](NodeBuilder::linger) (1 s)
/// until everything sent is delivered. Where tasks drive the node
/// ([`Driver::Tasks`](crate::Driver::Tasks)), a thread of a runtime that drops it leaves the waiting to
/// them. A [`WeakNode`] does not keep the node open.
///
/// Handles that outlive their node return errors, and messages stay valid. Receivers at peers get
/// everything that was sent, then an orderly end. If a panic drops the last clone, they get an error
/// instead, [`CloseReason::Aborted`](crate::CloseReason::Aborted), unless their sender was closed before.
///
/// # Errors
///
/// Making a node fails if a setting, the address or the machine does not allow it. Connecting and
/// accepting fail by errors of their own, which name the address or peer and the step that failed. A
/// session that ends later is an error of its handles, and an [event](Self::events).
#[derive(Clone)]
pub struct Node {
    pub(crate) parts: Arc<NodeParts>,
}

impl Node {
    /// Makes a node that connects to others and does not listen.
    ///
    /// # Errors
    ///
    /// [`ListenErrorKind::Resources`](crate::ListenErrorKind::Resources): the process lacks threads, descriptors or memory.
    pub fn client() -> Result<Self, ListenError> {
        Self::builder().build()
    }

    /// Makes a node that listens on `address` (`host:port`). With port 0 the system chooses the port,
    /// which [`local_addr`](Self::local_addr) returns.
    ///
    /// # Errors
    ///
    /// [`ListenErrorKind::InsecureAddress`](crate::ListenErrorKind::InsecureAddress) if other hosts
    /// can reach the address, or it is a vsock address; the [`builder`](Self::builder) has settings
    /// that authenticate peers, or allow it without. [`ListenErrorKind::Address`](crate::ListenErrorKind::Address) if the
    /// address cannot be resolved or bound.
    /// [`ListenErrorKind::Resources`](crate::ListenErrorKind::Resources) if the process lacks
    /// threads, descriptors or memory.
    pub fn listen(address: impl ToAddress) -> Result<Self, ListenError> {
        Self::builder().listen(address).build()
    }

    /// Begins a node with settings.
    pub fn builder() -> NodeBuilder {
        NodeBuilder::new()
    }

    pub(crate) fn runtime(&self) -> &Arc<Runtime> {
        self.parts.view.runtime()
    }

    /// Returns the variables of the environment that took the place of what the program said, or of
    /// the default, when the node was made, and their values.
    /// [`NodeBuilder`](NodeBuilder#variables) lists all variables.
    #[must_use]
    pub fn environment(&self) -> &[(&'static str, String)] {
        self.parts.view.environment()
    }

    /// Returns the variables of the environment that have no effect, and why not, as text. Each is
    /// also a [`tracing`] warning.
    #[must_use]
    pub fn environment_warnings(&self) -> &[String] {
        &self.parts.view.environment.warnings
    }

    /// Returns an error if the calling process is a fork of the one that made the node.
    pub(crate) fn check_fork(&self) -> Result<(), UsedAfterFork> {
        fork::check(|| "this node".to_owned())
    }

    /// Begins the settings of a channel with many peers, before it is opened as a
    /// [`FanIn`](crate::FanIn), a [`Group`](crate::group::Group), a [`Publisher`](crate::Publisher) or a
    /// `Service`.
    pub fn channel(&self, name: &str) -> ChannelBuilder<DefaultCodec, &Self> {
        ChannelBuilder::new(self, ChannelTemplate::with(self.channel_defaults(), name))
    }

    pub(crate) fn channel_defaults(&self) -> ChannelDefaults {
        self.parts.settings.channel
    }

    pub(crate) fn peer(&self, session: Arc<SessionShared>) -> Peer {
        Peer::new(session, self.parts.settings.channel)
    }

    /// Returns the address that the node listens on, if it listens.
    #[must_use]
    pub fn local_addr(&self) -> Option<Address> {
        self.parts.view.address
    }

    /// Returns the name that [`NodeBuilder::name`] gave the node.
    #[must_use]
    pub fn name(&self) -> Option<&str> {
        self.parts.settings.name.as_deref()
    }

    /// Reads the node's certificates and revocation lists again from their files. Sessions that
    /// begin or are resumed from now on use them, and running ones are not broken. If a file is
    /// wrong, nothing changes.
    ///
    /// ibex never does this by itself, so call it when the files were replaced, or from time to
    /// time. It has no effect on a node without [`security`](NodeBuilder::security).
    ///
    /// # Errors
    ///
    /// [`SecurityError`](crate::SecurityError), with the file that is wrong.
    #[cfg(feature = "tls")]
    pub fn reload_certificates(&self) -> Result<(), crate::SecurityError> {
        let credentials = self.parts.settings.reloadable.as_ref();
        credentials.map_or(Ok(()), |credentials| credentials.reload())?;
        starting::warn_of_credentials(&self.parts.local, std::time::SystemTime::now());
        Ok(())
    }

    /// Returns this node's identity, as its peers see it.
    #[must_use]
    pub fn id(&self) -> PeerId {
        self.parts.view.id
    }

    /// Returns the peers whose sessions have not [ended](Self#when-a-peer-ends), also those that were
    /// not accepted yet, in no order. It takes each engine's lock for a moment.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use ibex::Node;
    ///
    /// let server = Node::listen("127.0.0.1:0")?;
    /// let client = Node::client()?;
    /// assert!(client.peers().is_empty());
    /// let peer = client.connect(server.local_addr().unwrap())?;
    /// assert_eq!(client.peers()[0].id(), peer.id());
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn peers(&self) -> Vec<Peer> {
        let sessions = self.runtime().sessions().into_iter();
        sessions.map(|session| self.peer(session)).collect()
    }

    /// Returns a snapshot of what the node, its sessions and their channels have counted; its
    /// `Display` is a table. It holds the engine's lock while it reads, some 100 ns for each
    /// channel.
    #[must_use]
    pub fn stats(&self) -> NodeStats {
        self.parts.view.stats()
    }

    /// Returns the events of the node's sessions and channels, from the node's beginning on, in
    /// order.
    ///
    /// Each event is returned once, so of several readers each gets a part. A program need not read
    /// events: if it does not, the oldest are [dropped](Events::dropped).
    #[must_use]
    pub fn events(&self) -> Events {
        Events::new(self.runtime().clone())
    }

    /// Runs one turn of the engine: sends what is queued, and takes in what has arrived. It is
    /// meant for [`Driver::Caller`](crate::Driver::Caller); under [`Driver::Threads`](crate::Driver::Threads) it helps the I/O thread.
    ///
    /// Returns whether there was anything to do: bytes moved, a peer rang or connected, or a
    /// message may have come. One turn takes in only a part of what made [`as_fd`](Self::as_fd)
    /// readable; `while node.poll() {}` takes in all of it.
    pub fn poll(&self) -> bool {
        self.runtime().poll_ready()
    }

    /// Returns a descriptor that is readable when [`poll`](Self::poll) has something to do. It is
    /// meant for a program's own event loop under [`Driver::Caller`](crate::Driver::Caller), or for a reactor other than
    /// tokio's, level- or edge-triggered:
    ///
    /// 1. Call `poll` until it returns false.
    /// 2. Take what is there (`try_accept`, `try_recv`) until nothing is left.
    /// 3. Sleep until the descriptor is readable.
    ///
    /// The order matters. Anything that arrives after the last `poll` makes the descriptor
    /// readable, and anything that came before is found in the second step. A deadline, a
    /// handshake's for example, makes it readable too, by a timer in the set. Messages that the
    /// program sends after its last `poll` do not make it readable, so call `poll` after sending.
    ///
    /// If another thread drops or acknowledges a message and the engine has to act on it, that
    /// makes the descriptor readable too.
    ///
    /// From the first call of this method on, peers ring for each message in shared memory that
    /// follows a pause. That costs them a system call.
    #[must_use]
    pub fn as_fd(&self) -> BorrowedFd<'_> {
        self.runtime().watch()
    }

    /// Ends every channel and session in order, and returns a report of what was not delivered.
    /// Waits for up to `timeout` ([`Duration::MAX`]: for ever) until everything that was sent is
    /// delivered. What sessions that had ended before did not deliver is
    /// [counted](CloseReport::undelivered_before) in the report.
    ///
    /// Calls that wait in other threads return with errors. A call that is in the middle of a send,
    /// or a loan or permit that is held, is waited for up to a second, so that its message comes
    /// before the end.
    ///
    /// In a task, [`close_async`](Self::close_async) does the same without blocking its thread.
    ///
    /// Closing again returns the report of the first call. If the first call is still running in
    /// another thread, the second waits for it, and the earlier of the two deadlines holds for
    /// both.
    pub fn close(&self, timeout: Duration) -> CloseReport {
        let runtime = self.runtime();
        let deadline = Instant::now().checked_add(timeout);
        if runtime.has_pending_notices() {
            // Answers that wait for room go first, for half of the time: a caller that takes none
            // leaves the rest to the others.
            let half = Instant::now().checked_add(timeout / 2);
            runtime.wait_in_drain(half, || !runtime.has_pending_notices());
        }
        let left = deadline.map_or(timeout, |at| at.saturating_duration_since(Instant::now()));
        runtime.close(left)
    }
}

/// Returns the descriptor of [`Node::as_fd`], for event loops that take anything with a descriptor.
impl AsFd for Node {
    fn as_fd(&self) -> BorrowedFd<'_> {
        Self::as_fd(self)
    }
}

/// Returns the descriptor of [`Node::as_fd`]. It stays the same and open until the node's last clone
/// is dropped, which tokio's `AsyncFd` demands.
impl AsRawFd for Node {
    fn as_raw_fd(&self) -> RawFd {
        Self::as_fd(self).as_raw_fd()
    }
}

ibex_base::debug_fields! {
    [] Node: |node|
        name = node.name(), local_addr = node.local_addr(), settings = node.parts.settings
}
