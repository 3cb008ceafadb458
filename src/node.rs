//! A process's endpoint.

use std::{
    fmt, io, mem,
    net::{SocketAddr, TcpListener},
    os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd},
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use ibex_base::fork::{self, UsedAfterFork};
use ibex_bootstrap::{
    Acceptor, Local, Meanwhile, NodeIdentity, Places, SessionLimits, UnixClosing, dial,
};
use ibex_transport::{
    engine::Admission,
    node::CloseReport,
    runtime::{Driver, Runtime, RuntimeConfig, has_membarrier},
    session::SessionShared,
    shared_memory,
};

#[cfg(feature = "verbs")]
use crate::rdma::NodeDevices;
use crate::{
    AcceptError, ChannelBuilder, CloseReason, ConnectError, Environment, Events, ListenError,
    NodeBuilder, NodeStats, Peer, PeerId, ToAddress, address,
    channel_defaults::ChannelDefaults,
    dialing::{self, Dialers},
    error::ListenFailure,
    io::ListenerNames,
    listener::{Failures, Listener, admission, admit},
    message::DefaultCodec,
    node_builder::absent_fabrics,
    node_settings::NodeSettings,
    peers::Reaching,
    resuming::{Resuming, Sessions},
    template::ChannelTemplate,
};

/// A process's endpoint: it connects to peers, and accepts them if it listens.
///
/// # When a connection breaks
///
/// A session outlives its connection. When that breaks the session is
/// *suspended*: senders go on until their windows are full, receivers with what has arrived,
/// channels may be opened and closed, and calls that wait take longer; a call with a time-out
/// keeps its word. The end that dialed dials again, at once and then with pauses that grow to
/// 1.5 s, so the other end has to listen still; 16 threads of a node do that for all of its
/// sessions, and a host that says nothing holds one of them for up to 3 s. Then the session is
/// *resumed*: what had not arrived is sent again, and each message comes once and in order.
/// [`Node::events`] tells of both, [`Peer::stats`] counts them. One over verbs whose
/// connection, queue pair or device breaks asks for another queue pair, and goes on over tcp
/// if there is none within [`fail_over_after`](NodeBuilder::fail_over_after) (1 s), of which an
/// event tells too; there it stays, unless both nodes have it
/// [go back](NodeBuilder::fail_back) at a later break.
///
/// A connection counts as broken when it ends or is reset, when the peer's host leaves what was
/// sent to it unanswered for [`notice_timeout`](NodeBuilder::notice_timeout) (3 s), or, while
/// nothing is under way, when it has not answered for 19 s. A process that is stopped, computes
/// or does not read, on a host that lives, is never taken for dead: its host answers. What it
/// cannot do meanwhile is make another connection if that breaks as well.
///
/// # When a peer ends
///
/// A session is over when a peer says goodbye, as a node that is closed does; when it is known
/// that its process has ended, on the same host by the kernel's word and on another when it
/// answers anew under the same [identity](NodeBuilder::identity); when it says that it has no
/// such session any more; or when it has not come back within
/// [`session_timeout`](NodeBuilder::session_timeout) (30 s), and then neither end takes it up
/// again. Its handles hand out everything that arrived, and then an error with counters, whose
/// [cause](crate::EndCause::PeerGone) says whether the end is certain. The peer's next process is
/// another session's: [`keep_connected`](Node::keep_connected) connects to it, and a
/// [`LogSender`](crate::log::LogSender) goes on where its log ends.
///
/// # Fork
///
/// A process that has made a node must not be forked for its child to go on with it. In a
/// child every call answers [`UsedAfterFork`] and does nothing, a new node included; handles,
/// messages and nodes may be dropped, or left, and the child may end in any way: neither the
/// parent nor a peer notices. [`UsedAfterFork`] says what no error can tell, first of all that
/// the bytes of messages that were held at the fork are not there. A child that calls `exec`
/// leaves the new program no descriptor of ours, so [`std::process::Command`] may be used at
/// any time. With an RDMA device on a kernel before Linux 5.12, a fork is unsafe for libibverbs'
/// queues unless `RDMAV_FORK_SAFE` is set, even where the child calls `exec` at once; the node
/// then logs a warning when it opens the device. `Command` forks only where it has to, as for
/// `pre_exec`, and else uses `posix_spawn`, which is safe.
///
/// `fork` copies the calling thread alone. What other threads were doing stays half done in
/// the child, and so may what the child itself then calls of other libraries; there is nothing
/// that this one can do about that.
///
/// # Waiting and closing
///
/// Every call that waits can be interrupted by [`close`](Self::close) from another
/// thread. Dropping a node closes it, waiting for up to `linger` (default 1 s) until what
/// was sent is delivered; where tasks drive it ([`Driver::Tasks`]), a thread of a runtime that drops
/// it leaves the waiting to them. Handles that outlive it get errors, messages stay valid. Receivers at
/// peers get an orderly end, behind what was sent; if it is a panic that drops the node, they
/// get an error instead, [`CloseReason::Aborted`], unless their sender was closed before.
pub struct Node {
    pub(crate) runtime: Arc<Runtime>,
    pub(crate) dialers: Dialers,
    resuming: Resuming,
    local: Local,
    local_addr: Option<SocketAddr>,
    settings: NodeSettings,
    environment: Environment,
    pub(crate) listener_names: ListenerNames,
}

/// An address to listen at, and the socket for that if there is one already.
pub(crate) struct Listening {
    pub(crate) address: SocketAddr,
    /// The socket that the program gave.
    pub(crate) given: Option<TcpListener>,
}

/// Where the tasks of a node run, if tasks drive it.
struct Tasks {
    #[cfg(feature = "tokio")]
    runtime: Option<tokio::runtime::Handle>,
}

impl Tasks {
    /// Returns whether the calling thread is in a runtime, whose tasks it must not hold up.
    fn are_here() -> bool {
        #[cfg(feature = "tokio")]
        let is_here = tokio::runtime::Handle::try_current().is_ok();
        #[cfg(not(feature = "tokio"))]
        let is_here = false;
        is_here
    }

    #[cfg(feature = "tokio")]
    fn of(driver: Driver) -> Result<Self, ListenError> {
        let runtime = match driver {
            Driver::Tasks => Some(tokio::runtime::Handle::try_current().map_err(|_| {
                ListenFailure::NoRuntime {
                    why: "the calling thread is in no tokio runtime: make the node in a task, or \
                          enter a runtime before",
                }
            })?),
            _ => None,
        };
        Ok(Self { runtime })
    }

    #[cfg(not(feature = "tokio"))]
    fn of(driver: Driver) -> Result<Self, ListenError> {
        match driver {
            Driver::Tasks => Err(ListenFailure::NoRuntime {
                why: "the feature `tokio` of the crate ibex is off: enable it, or use \
                      Driver::Caller with Node::as_fd in another reactor",
            }
            .into()),
            _ => Ok(Self {}),
        }
    }

    #[cfg(feature = "tokio")]
    fn spawn(self, node: &Arc<Runtime>, linger: Duration) -> io::Result<()> {
        let spawn = |handle| crate::tasks::spawn(node, &handle, linger);
        self.runtime.map_or(Ok(()), spawn)
    }

    #[cfg(not(feature = "tokio"))]
    fn spawn(self, _: &Arc<Runtime>, _: Duration) -> io::Result<()> {
        Ok(())
    }
}

/// What came of connecting.
type Dialed = Result<Admission, ConnectError>;

impl Node {
    /// A node that connects to others and does not listen.
    ///
    /// # Errors
    ///
    /// [`ListenErrorKind::Resources`](crate::ListenErrorKind::Resources): the process lacks threads, descriptors or memory.
    pub fn client() -> Result<Self, ListenError> {
        Self::builder().build()
    }

    /// A node that listens on `address` (`host:port`; port 0 lets the system choose, see
    /// [`local_addr`](Self::local_addr)).
    ///
    /// # Errors
    ///
    /// [`ListenErrorKind::InsecureAddress`](crate::ListenErrorKind::InsecureAddress) if other hosts can reach the address: the
    /// [`builder`](Self::builder) authenticates them, or allows it without.
    /// [`ListenErrorKind::Address`](crate::ListenErrorKind::Address) if it cannot be resolved or bound, and
    /// [`ListenErrorKind::Resources`](crate::ListenErrorKind::Resources).
    pub fn listen(address: impl ToAddress) -> Result<Self, ListenError> {
        Self::builder().listen(address).build()
    }

    /// All settings.
    pub fn builder() -> NodeBuilder {
        NodeBuilder::new()
    }

    pub(crate) fn start(
        settings: NodeSettings,
        environment: Environment,
        listening: Option<Listening>,
    ) -> Result<Self, ListenError> {
        fork::check(|| "ibex, as it runs here,".to_owned())?;
        let mut random = [0; 24];
        getrandom::fill(&mut random).map_err(|error| io::Error::other(error.to_string()))?;
        let (identity, incarnation) = random.split_at(16);
        let random_identity = <[u8; 16]>::try_from(identity).unwrap_or_default();
        let incarnation = u64::from_le_bytes(incarnation.try_into().unwrap_or_default());
        let identity = NodeIdentity(settings.identity.unwrap_or(random_identity));

        let mut local = Local::new(identity, incarnation);
        local.shm = settings.shm;
        local.tcp = settings.tcp;
        local.verbs = settings.verbs;
        local.absent = absent_fabrics();
        local.integrity = settings.integrity;
        local.credentials.clone_from(&settings.credentials);
        #[cfg(feature = "verbs")]
        let devices = Arc::new(NodeDevices::new(settings.rdma.clone()));
        #[cfg(feature = "verbs")]
        {
            if settings.needs_verbs() {
                let listen = listening.as_ref().map(|listening| listening.address.ip());
                let required = devices.require(listen);
                required.map_err(|source| ListenFailure::Rdma { source })?;
            }
            local.verbs_site = Some(devices.clone());
        }
        local.unix_closing = UnixClosing {
            close: shared_memory::close_unix,
            is_held_up: shared_memory::is_held_up,
        };
        local.handshake_timeout = settings.handshake_timeout;
        local.limits.channels = settings.max_channels;
        local.places = Places::new(SessionLimits {
            per_peer: settings.max_peer_sessions,
            per_node: settings.max_node_sessions,
        });
        local.limits.session_credit_bytes = settings.session_credit_bytes;
        let sessions = Arc::<Sessions>::default();
        local.resumable = Some(sessions.clone());
        let resuming = Resuming {
            sessions,
            dialers: Dialers::new(dialing::RESUMING),
            local: local.clone(),
            name: settings.name.clone(),
            fail_over_after: settings.fail_over_after,
            fail_back: settings.fail_back,
        };

        let tasks = Tasks::of(settings.driver)?;
        let (wait, wait_engine) = settings.waits();
        let runtime = Runtime::start(RuntimeConfig {
            driver: settings.driver,
            engines: settings.io_threads,
            wait,
            wait_engine,
            cores: settings.cores.clone(),
            session_credit_bytes: settings.session_credit_bytes,
            node_credit_bytes: settings.node_credit_bytes,
            memory_limit: settings.memory_limit(),
            notice_timeout: settings.notice_timeout,
            session_timeout: settings.session_timeout,
        })?;
        #[cfg(feature = "verbs")]
        devices.entrust_to(&runtime);
        let mut node = Self {
            runtime,
            dialers: Dialers::new(dialing::CONNECTING),
            resuming,
            local,
            local_addr: None,
            settings,
            environment,
            listener_names: ListenerNames::default(),
        };
        if let Some(listening) = listening {
            // If that fails the node is closed again, and its thread with it.
            node.bind(listening)?;
        }
        tasks.spawn(&node.runtime, node.settings.linger)?;
        Ok(node)
    }

    fn bind(&mut self, listening: Listening) -> Result<(), ListenError> {
        let Listening { address, given } = listening;
        let local = self.local.clone();
        let bound = match given {
            Some(listener) => Acceptor::listen_on(listener, local),
            None => Acceptor::bind(address, local),
        };
        let acceptor = bound.map_err(|error| ListenFailure::Address {
            address: address.to_string(),
            source: error.source,
        })?;
        self.local_addr = Some(acceptor.local_addr());
        let listener = Listener {
            acceptor,
            failures: Failures::default(),
            our_channels: self.settings.max_channels,
            resuming: self.resuming.clone(),
        };
        self.runtime.set_control_source(Box::new(listener))?;
        Ok(())
    }

    /// Which variables of the environment overrode settings when the node was made, and
    /// which had no effect; [`NodeBuilder`] says [what they mean](NodeBuilder#variables).
    #[must_use]
    pub fn environment(&self) -> &Environment {
        &self.environment
    }

    /// Connects to the node that listens on `address` (`host:port`, a [`SocketAddr`], or
    /// `(host, port)`; see [`ToAddress`]), trying every address of a name.
    ///
    /// Waits for up to `connect_timeout` (default 10 s) for a node that starts later. Under
    /// [`Driver::Caller`] it keeps running turns meanwhile: sessions go on and peers are let
    /// in, so a node may connect to itself and two nodes to each other. Only a host name
    /// that is being looked up stops everything.
    ///
    /// # Errors
    ///
    /// [`ConnectError`]: nobody came in time, what answered is not ibex or of another
    /// version, or no fabric suits both ends. A failed attempt leaves nothing behind.
    pub fn connect(&self, address: impl ToAddress) -> Result<Peer, ConnectError> {
        self.check_fork()?;
        let address = address::text_of(&address);
        let established = dial(
            &address,
            &self.local,
            self.settings.connect_timeout,
            &Dialing(&self.runtime),
        )?;
        let admission = admission(established, self.settings.max_channels, &self.resuming);
        self.admit(&address, admission)
    }

    /// Makes a session of a finished handshake.
    pub(crate) fn admit(&self, address: &str, admission: Admission) -> Result<Peer, ConnectError> {
        admit(&self.runtime, self.settings.channel, address, admission)
    }

    /// What connects for a task, on another thread: it turns nothing, whoever drives.
    pub(crate) fn dialing(&self) -> impl FnOnce(&str, &dyn Fn() -> bool) -> Dialed + use<> {
        let (local, runtime) = (self.local.clone(), self.runtime.clone());
        let (timeout, max_channels) = (self.settings.connect_timeout, self.settings.max_channels);
        let resuming = self.resuming.clone();
        move |address, is_dropped| {
            let is_cancelled = || is_dropped() || runtime.is_closed();
            let established = dial(address, &local, timeout, &is_cancelled)?;
            Ok(admission(established, max_channels, &resuming))
        }
    }

    /// What connects to kept peers, each time by one attempt, on another thread.
    pub(crate) fn reaching(&self) -> Reaching {
        Reaching {
            runtime: self.runtime.clone(),
            local: self.local.clone(),
            resuming: self.resuming.clone(),
            max_channels: self.settings.max_channels,
            channel: self.settings.channel,
        }
    }

    /// The next peer that connected; waits for one.
    ///
    /// Peers are handed out in the order in which they connected, those included that have
    /// gone since: what such a peer sent before is still to be had from its channels, and
    /// [`Peer::is_gone`] says that no more will come. A node need not accept, as one that has a
    /// [`FanIn`](crate::FanIn) for all of its peers: sessions that are over by then keep no
    /// descriptor, and when many wait to be accepted these are left out.
    ///
    /// A connection that becomes no session (a foreign protocol, another version, a peer
    /// that falls silent for `handshake_timeout`) costs nothing but itself: it is closed,
    /// and logged as a [`tracing`] warning whose field `failure` says who it was, at which step
    /// it failed and why.
    ///
    /// # Errors
    ///
    /// [`AcceptError`]: the node does not listen, or was closed; closing it from another
    /// thread ends the wait.
    pub fn accept(&self) -> Result<Peer, AcceptError> {
        self.accept_until(None)
    }

    /// The next peer that connected, waiting for up to `timeout`.
    ///
    /// # Errors
    ///
    /// As [`accept`](Self::accept), and [`AcceptError::Timeout`].
    pub fn accept_timeout(&self, timeout: Duration) -> Result<Peer, AcceptError> {
        self.accept_until(Instant::now().checked_add(timeout))
    }

    /// The next peer that connected, if there is one. Under [`Driver::Caller`] it runs one
    /// turn; letting a peer in takes several.
    ///
    /// # Errors
    ///
    /// As [`accept`](Self::accept).
    pub fn try_accept(&self) -> Result<Option<Peer>, AcceptError> {
        self.check_listening()?;
        match self.runtime.try_accept() {
            Some(session) => Ok(Some(self.peer(session))),
            None if self.runtime.accepts_no_more() => Err(self.accepts_no_more()),
            None => Ok(None),
        }
    }

    /// Begins no session any more with those who connect. Sessions, their channels and calls go
    /// on, and this node may still connect to others. It takes effect at once and cannot be taken
    /// back; [`close`](Self::close) does the same first.
    ///
    /// `connect` of a peer finds nobody who takes it, and tries on within its time-out. Another
    /// process that shares a socket of [`listen_on`](NodeBuilder::listen_on) has all who connect
    /// from now on. A node that listens by itself keeps its address, where peers go on
    /// with sessions whose connections broke.
    ///
    /// [`accept`](Self::accept) still hands out those who had connected before, and then
    /// [`AcceptError::Stopped`]; calls of it that wait return so. Whoever was in the middle of a
    /// handshake may become a session a moment later, which a last `try_accept` finds.
    pub fn stop_accepting(&self) {
        if !fork::is_child() {
            self.runtime.stop_accepting();
        }
    }

    /// The reason why nobody else comes.
    pub(crate) fn accepts_no_more(&self) -> AcceptError {
        match self.runtime.is_closed() {
            true => AcceptError::Closed,
            false => AcceptError::Stopped,
        }
    }

    fn accept_until(&self, deadline: Option<Instant>) -> Result<Peer, AcceptError> {
        self.check_listening()?;
        match self.runtime.accept(deadline) {
            Ok(Some(session)) => Ok(self.peer(session)),
            Ok(None) => Err(self.accepts_no_more()),
            Err(_) => Err(AcceptError::Timeout),
        }
    }

    /// Whether the node is this process's.
    pub(crate) fn check_fork(&self) -> Result<(), UsedAfterFork> {
        fork::check(|| "this node".to_owned())
    }

    pub(crate) fn check_listening(&self) -> Result<(), AcceptError> {
        self.check_fork()?;
        match self.local_addr {
            None => Err(AcceptError::NotListening),
            Some(_) if self.runtime.is_closed() => Err(AcceptError::Closed),
            Some(_) => Ok(()),
        }
    }

    /// Begins the settings of a channel with many peers, before it is opened as a
    /// [`FanIn`](crate::FanIn) or a [`Group`](crate::Group).
    pub fn channel(&self, name: &str) -> ChannelBuilder<DefaultCodec, &Self> {
        ChannelBuilder::new(self, ChannelTemplate::new(self, name))
    }

    pub(crate) fn channel_defaults(&self) -> ChannelDefaults {
        self.settings.channel
    }

    pub(crate) fn peer(&self, session: Arc<SessionShared>) -> Peer {
        Peer::new(session, self.settings.channel)
    }

    /// The address that the node listens on.
    #[must_use]
    pub fn local_addr(&self) -> Option<SocketAddr> {
        self.local_addr
    }

    /// The name that [`NodeBuilder::name`] gave the node.
    #[must_use]
    pub fn name(&self) -> Option<&str> {
        self.settings.name.as_deref()
    }

    /// Reads the node's certificates and revocation lists once more from their files. Sessions
    /// that begin or are resumed from now on use them, and none that runs is broken. Where a file
    /// is wrong, nothing changes.
    ///
    /// Nobody else does it: call it when the files were replaced, or from time to time. It has
    /// no effect on a node without [`security`](NodeBuilder::security).
    ///
    /// # Errors
    ///
    /// [`SecurityError`](crate::SecurityError), with the file that is wrong.
    #[cfg(feature = "tls")]
    pub fn reload_certificates(&self) -> Result<(), crate::SecurityError> {
        let credentials = self.local.credentials.as_ref();
        credentials.map_or(Ok(()), |credentials| credentials.reload())
    }

    /// Who this node is to its peers.
    #[must_use]
    pub fn id(&self) -> PeerId {
        PeerId::new(self.local.identity.0, self.local.incarnation)
    }

    /// What the node, its sessions and their channels counted so far: a snapshot, whose
    /// `Display` is a table. It takes the engine's lock for as long as it reads, some 100 ns
    /// for each channel.
    #[must_use]
    pub fn stats(&self) -> NodeStats {
        NodeStats::new(
            self.name().map(str::to_owned),
            self.id(),
            self.local_addr,
            self.settings.driver,
            has_membarrier(),
            self.runtime.stats(),
        )
    }

    /// What happens to the node's sessions and channels from its beginning on, in order.
    ///
    /// Each event is handed out once: of several readers each gets some. Taking events is
    /// nobody's duty; with nobody there, the oldest are [dropped](Events::dropped).
    #[must_use]
    pub fn events(&self) -> Events {
        Events::new(self.runtime.clone())
    }

    /// Runs one turn of the engine: transmits what is queued, takes in what has arrived.
    /// Of use under [`Driver::Caller`]; under [`Driver::Threads`] it helps the I/O thread.
    ///
    /// Returns whether there was anything to do: bytes moved, a peer rang or knocked, or a
    /// message may have come. Whatever made [`as_fd`](Self::as_fd) readable is taken in, as
    /// far as one turn goes; `while node.poll() {}` takes in all of it.
    pub fn poll(&self) -> bool {
        self.runtime.poll_ready()
    }

    /// Readable when [`poll`](Self::poll) has something to do; for a program's own event
    /// loop, or a reactor other than tokio's, under [`Driver::Caller`], level- or
    /// edge-triggered:
    ///
    /// 1. call `poll` until it returns false;
    /// 2. take what is there (`try_accept`, `try_recv`) until nothing is;
    /// 3. sleep until the descriptor is readable.
    ///
    /// In this order: what arrives after the last `poll` makes the descriptor readable, and
    /// what came before it is found in the second step. A time that runs out, a handshake's for
    /// example, makes it readable as well, by a timer in the set. What this program sends between
    /// the last `poll` and sleeping is in no descriptor: call `poll` after sending.
    ///
    /// What another thread does meanwhile by dropping or acknowledging a message makes it
    /// readable as well, if there is anything to do for it.
    ///
    /// From the first call of this method on, peers ring for each message in shared memory
    /// that follows a pause, which costs them a system call.
    #[must_use]
    pub fn as_fd(&self) -> BorrowedFd<'_> {
        self.runtime.watch()
    }

    /// Ends every channel and session in order, waiting for up to `timeout`
    /// ([`Duration::MAX`]: for ever) until what was sent is delivered, and says what was
    /// not. Calls that wait in other threads return with errors; one that is in the middle of a
    /// send, or a reservation that is held, is waited for, up to a second, so that what it says
    /// is sent comes before the end.
    ///
    /// In a task, [`close_async`](Self::close_async) does the same without blocking its thread.
    ///
    /// Closing again returns the report of the first call. While that is still under way
    /// in another thread it is waited for, and the earlier of the two deadlines counts for
    /// both.
    pub fn close(&self, timeout: Duration) -> CloseReport {
        self.runtime.close(timeout)
    }
}

/// As [`Node::as_fd`] has it, for event loops that take what has a descriptor.
impl AsFd for Node {
    fn as_fd(&self) -> BorrowedFd<'_> {
        Self::as_fd(self)
    }
}

/// As [`Node::as_fd`] has it. It is always the same, and open until the node is dropped, which
/// is what tokio's `AsyncFd` demands.
impl AsRawFd for Node {
    fn as_raw_fd(&self) -> RawFd {
        Self::as_fd(self).as_raw_fd()
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        if fork::is_child() {
            // What they hold stays.
            let Self {
                runtime,
                dialers,
                resuming,
                local,
                ..
            } = self;
            let kept = (runtime.clone(), dialers.clone(), resuming.clone());
            mem::forget((kept, local.clone()));
            return;
        }
        if thread::panicking() {
            self.runtime.break_off(CloseReason::Aborted);
        }
        // Nobody is there to be told what was not delivered.
        match Tasks::are_here() {
            true => self.runtime.close_in_passing(self.settings.linger),
            false => drop(self.close(self.settings.linger)),
        }
    }
}

impl fmt::Debug for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Node")
            .field("name", &self.name())
            .field("local_addr", &self.local_addr)
            .field("settings", &self.settings)
            .finish_non_exhaustive()
    }
}

/// What goes on while the node connects.
struct Dialing<'a>(&'a Runtime);

impl Meanwhile for Dialing<'_> {
    fn is_cancelled(&self) -> bool {
        self.0.is_closed()
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        (self.0.driver() != Driver::Threads).then(|| self.0.as_fd())
    }

    /// Where callers drive the engine, it is this one's turn: its sessions go on, and its
    /// listener may be whom it connects to.
    fn turn(&self) -> bool {
        self.0.driver() != Driver::Threads && self.0.poll_ready()
    }
}
