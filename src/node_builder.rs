//! Settings of nodes, checked when they are used.

mod limits;

use std::{
    io,
    net::{SocketAddr, TcpListener},
    path::PathBuf,
    sync::Arc,
    time::Duration,
};

use ibex_base::Escaped;
use ibex_bootstrap::{Integrity, Policy, resolve};
use ibex_transport::{node::Wait, runtime::Driver, session::MOST_ENGINES};

use crate::{
    Fabric, ListenError, Node, PeerId, ToAddress, TraceContext,
    accept_placement::AcceptPlacement,
    address,
    environment::{self, Environment, EnvironmentWarning, Site},
    error::ListenFailure,
    inspect::SocketPlace,
    node::Listening,
    node_settings::NodeSettings,
    setting::SettingError,
};

/// Settings of a node, from [`Node::builder`] to [`build`](Self::build).
///
/// ```
/// use std::time::Duration;
/// use ibex::{Driver, Fabric, Node, Policy};
///
/// # fn main() -> Result<(), ibex::ListenError> {
/// let node = Node::builder()
///     .name("primary")
///     .listen("127.0.0.1:0")
///     .driver(Driver::Threads)
///     .fabric(Fabric::Shm, Policy::Forbid)
///     .memory_limit(256 << 20)
///     .session_timeout(Duration::from_secs(60))
///     .build()?;
/// # Ok(())
/// # }
/// ```
///
/// Every setting has a default, and no program needs to set them all.
///
/// | purpose | settings |
/// |---|---|
/// | address and identity | [`listen`](Self::listen), [`listen_on`](Self::listen_on), [`insecure_network`](Self::insecure_network), `security` (feature `tls`), [`name`](Self::name), [`identity`](Self::identity) |
/// | waiting | [`driver`](Self::driver), [`wait`](Self::wait), [`io_threads`](Self::io_threads), [`cores`](Self::cores) |
/// | memory | [`memory_limit`](Self::memory_limit), [`session_credit_bytes`](Self::session_credit_bytes), [`node_credit_bytes`](Self::node_credit_bytes), [`max_channels`](Self::max_channels), [`max_peer_sessions`](Self::max_peer_sessions), [`max_node_sessions`](Self::max_node_sessions) |
/// | time | [`connect_timeout`](Self::connect_timeout), [`handshake_timeout`](Self::handshake_timeout), [`notice_timeout`](Self::notice_timeout), [`session_timeout`](Self::session_timeout), [`peer_gone_after`](Self::peer_gone_after), [`linger`](Self::linger) |
/// | fabrics | [`fabric`](Self::fabric), [`integrity`](Self::integrity), [`fail_over_after`](Self::fail_over_after), [`fail_back`](Self::fail_back) |
/// | RDMA | `rdma`, which takes the settings of `ibex::rdma` (feature `verbs`) |
/// | defaults of this node's channels | [`window_messages`](Self::window_messages), [`window_bytes`](Self::window_bytes), [`max_message_bytes`](Self::max_message_bytes), [`max_unreleased_bytes`](Self::max_unreleased_bytes), [`open_timeout`](Self::open_timeout) |
/// | tracing | [`trace_context`](Self::trace_context) |
/// | statistics | [`histograms`](Self::histograms) |
/// | variables | [`environment`](Self::environment) |
/// | inspection from outside | [`inspect`](Self::inspect), [`inspect_at`](Self::inspect_at) |
///
/// # Variables
///
/// The variables below override a program from outside. A node reads them once, when it is made. Each
/// replaces the program's setting, or the default. [`Node::environment`] tells which ones did.
///
/// | variable | value | overrides |
/// |---|---|---|
/// | `IBEX_FABRICS` | `shm`, `tcp`, `verbs`, separated by commas | [`fabric`](Self::fabric): a single one is required; of several the first is preferred, and the fabrics that are not named are forbidden |
/// | `IBEX_RDMA_DEVICE` | a name, such as `mlx5_0`, or `guid:0002:c903:0000:0001` | `RdmaSettings::device` |
/// | `IBEX_RDMA_PORT` | 1 to 255 | `RdmaSettings::port` |
/// | `IBEX_RDMA_GID_INDEX` | 0 to 255 | `RdmaSettings::gid_index` |
/// | `IBEX_RDMA_PARTITION_KEY` | 0x0001 to 0xffff, except 0x8000 | `RdmaSettings::partition_key` |
/// | `IBEX_RDMA_MTU` | 256, 512, 1024, 2048 or 4096 | `Tuning::path_mtu`; each session also respects what both ports carry |
/// | `IBEX_RDMA_COMPLETIONS` | plain, extended or one-by-one | `Tuning::completion_polling` |
/// | `IBEX_RDMA_FAIL_OVER_AFTER` | milliseconds, or never | [`fail_over_after`](Self::fail_over_after) |
///
/// A value that cannot be used is an error of [`build`](Self::build), and so is a misspelt name, with
/// the name that is probably meant. Any other name that begins with `IBEX_` is a warning; names of ibex's
/// own tests and tools (`IBEX_TEST_` and others) are not. A process that runs with more rights than the
/// user who started it (setuid, setgid, file capabilities) ignores all variables. A build without `verbs` reads the RDMA variables too, and
/// warns that they have no effect.
///
/// # Memory
///
/// The most that a node takes is the sum of two lines, in bytes:
///
/// - Short messages: [`node_credit_bytes`](Self::node_credit_bytes) + 80 MiB kept + 1 MiB for each
///   session + (52 *n* + 16 *W*) for each receiving end + *W* for each sending end that was used. Of
///   the first, no more than `session_credit_bytes` for each session counts.
/// - Long messages, 0 if there are none: [`memory_limit`](Self::memory_limit) + at most 512 MiB that were sent and are kept + 4 MiB for
///   each session + 1.5 *U* for each sending end that was used.
///
/// *W* is `window_bytes`, rounded up to a power of two from 64 KiB on. *n* is `window_messages`, rounded
/// up to a power of two. *U* is what `max_unreleased_bytes` leaves beside *W*. Of each, the smaller of
/// both ends' values holds. A message is long if it is longer than half of *W*, over TCP also if it is
/// longer than 128 KiB, and over verbs if it is longer than a receive buffer.
///
/// For example, one session with one channel each way over TCP takes by default up to 118 MiB for short
/// messages (2 + 80 + 1 + 1 + 32 + 2). For long ones it takes up to 564 MiB (512 + 4 + 48) and
/// `memory_limit`.
///
/// The formula differs in these cases:
///
/// - Over shared memory there is no credit, a receiving end takes 4 *n*, and shared memory is counted at
///   its sender.
/// - Over verbs, receive buffers take the place of the credit. With `trust_peers` each of
///   `landing_blocks` takes 68 KiB more.
/// - Over TCP and verbs, three of the longest messages take the place of 1.5 *U* if that is less.
/// - 16 *W* is the worst case: a channel that holds messages of 64 to 128 KiB for long while others of
///   its session flow. With shorter messages, or alone in its session, it takes 2 *W*.
///
/// The memory kept for later use is 64 MiB of rings, 16 MiB of blocks, and two long messages of 512
/// MiB together at most.
///
/// Silence gives memory back. After one to two seconds without a message, and with no message that is
/// unreleased, a session frees its rings, its arrival blocks and its ends' lists. The pools free their
/// memory two seconds later. A silent session keeps some 10 KiB in both processes together, and some 4
/// KiB for each further channel; its next message allocates again. Under [`Driver::Caller`] this happens
/// in turns.
///
/// The formula counts ends that this node opened. An end that a peer opens and this node does not costs
/// its name and its type's description, a few KiB for each of [`max_channels`](Self::max_channels).
///
/// # Errors
///
/// Each setting is checked when it is set, and settings that exclude each other when the node is made.
/// [`build`](Self::build) returns the first error, with the value and its range, or with both values.
#[derive(Clone, Debug)]
#[must_use = "a builder does nothing until `build`"]
pub struct NodeBuilder {
    settings: NodeSettings,
    listen: Option<Listen>,
    insecure_network: bool,
    #[cfg(feature = "tls")]
    security: Option<crate::Security>,
    /// The first setting that was out of its range.
    error: Option<SettingError>,
    /// The first fabric that is required and not compiled in.
    absent: Option<Fabric>,
    /// In place of the process's variables.
    variables: Option<Vec<(String, String)>>,
}

impl NodeBuilder {
    pub(crate) fn new() -> Self {
        Self {
            settings: NodeSettings::default(),
            listen: None,
            insecure_network: false,
            #[cfg(feature = "tls")]
            security: None,
            error: None,
            absent: None,
            variables: None,
        }
    }

    /// Listens on `address` (`host:port`; with port 0 the system chooses the port). Default: the
    /// node does not listen.
    ///
    /// An address that other hosts can reach needs `security`, with the feature `tls`, or
    /// [`insecure_network`](Self::insecure_network).
    pub fn listen(mut self, address: impl ToAddress) -> Self {
        self.listen = Some(Listen::At(address::text_of(&address)));
        self
    }

    /// Listens with a socket that is already bound and listening, in place of
    /// [`listen`](Self::listen). systemd or another supervisor hands over such a socket, or the
    /// process that this one replaces. The last of the two calls counts.
    ///
    /// Processes may share the socket. Each connection goes to one of them, and the socket listens
    /// as long as any of them has it, so peers that connect meanwhile are not turned away. A node
    /// that is closed leaves the socket to the others at once. A session is
    /// [gone](crate::EndCause::PeerGone) if it loses its connection after that, or if another
    /// process gets its new connection.
    ///
    /// The socket is set to non-blocking mode, for all processes that share it. As with `listen`,
    /// an address that other hosts can reach needs `security` or
    /// [`insecure_network`](Self::insecure_network).
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let socket = std::net::TcpListener::bind("127.0.0.1:0")?;
    /// let address = socket.local_addr()?;
    /// let node = ibex::Node::builder().listen_on(socket).build()?;
    /// assert_eq!(node.local_addr(), Some(address));
    /// # Ok(())
    /// # }
    /// ```
    pub fn listen_on(mut self, listener: TcpListener) -> Self {
        self.listen = Some(Listen::On(Arc::new(listener)));
        self
    }

    /// Authenticates peers, and encrypts what goes over TCP. Default: neither.
    ///
    /// Both nodes of a session need the same kind of security. A node with security has no session
    /// with a node without: the end that connects gets
    /// [`Incompatible`](crate::ConnectErrorKind::Incompatible), whose text names the mode of each.
    /// No variable of the environment changes that.
    /// [`Security`](crate::Security) says how peers are authenticated.
    #[cfg(feature = "tls")]
    pub fn security(mut self, security: crate::Security) -> Self {
        self.security = Some(security);
        self
    }

    /// Allows listening where other hosts can connect. Anyone who can reach the address may then
    /// open channels and read what is sent, so use it only on networks that keep strangers out.
    pub fn insecure_network(mut self) -> Self {
        self.insecure_network = true;
        self
    }

    /// Sets a name of the node for people, of 1 to 64 bytes. Default: none.
    ///
    /// Peers learn it when a session begins, after they were authenticated: it is
    /// [`Peer::name`](crate::Peer::name) there, and beside the node's address in their events,
    /// statistics, errors and log. Here the log and errors of channels have it beside each peer
    /// (`via node primary`), and so have [`NodeStats`](crate::NodeStats) and `Debug` of the node,
    /// so that the nodes of one process can be told apart.
    ///
    /// Nothing proves a name to a peer. Characters that are not printed as themselves, such as a
    /// line feed, are escaped.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        let name = name.into();
        let bytes = name.len() as u64;
        self.note(SettingError::check_bytes("name", bytes, 1..=64));
        self.settings.name = Some(Escaped(&name).to_string().into());
        self
    }

    /// Chooses the threads or tasks that turn the engine. Default: [`Driver::Threads`].
    pub fn driver(mut self, driver: Driver) -> Self {
        self.settings.driver = driver;
        self
    }

    /// Chooses how blocking calls wait.
    ///
    /// - Default: spin for 50 µs, then sleep. Calls sleep at once if there is one CPU, or if fewer
    ///   than four are shared with an I/O thread that has [cores](Self::cores) of its own.
    /// - Range of a spin: 0 to 1 s. A longer spin spends a core to save the wake-up, which takes 5
    ///   to 30 µs.
    ///
    /// A spinning call lets other threads run, and spins only in the time that they leave. If they
    /// keep a core for milliseconds, calls sleep at once, and try to spin again later.
    ///
    /// Under [`Driver::Tasks`] a task spins for 4 µs before it waits for a message over shared
    /// memory, and only if the last messages came within 150 µs each. Waking an idle processor
    /// takes 25 to 50 µs. With [`Wait::Event`] a task waits at once; [`Wait::BusyPoll`] is for
    /// threads that block.
    pub fn wait(mut self, wait: Wait) -> Self {
        if let Wait::Adaptive { spin } = wait {
            let range = ..=Duration::from_secs(1);
            self.note(SettingError::check_time("spin", spin, range));
        }
        self.settings.wait = Some(wait);
        self
    }

    /// Sets the number of the node's engines, each with an I/O thread of its own. Default: 1.
    /// Range: 1 to 64.
    ///
    /// An engine has its own epoll set, arrival memory and sessions. A new session is placed on the
    /// engine that has the fewest, and stays there; [`Peer::engine`](crate::Peer::engine) returns
    /// which. [`Node::connect_on`] and
    /// [`place_accepted`](Self::place_accepted) name it instead. Over RDMA each engine has queues and
    /// receive buffers of its own on each device port that its sessions use, as many as
    /// `RdmaSettings` says. Fan-ins, groups and calls span engines.
    ///
    /// [The guide](crate::guide::which_driver#several-io-threads) says when several engines help: if
    /// sessions over TCP or RDMA keep a core busy. The channels of one session share its engine.
    ///
    /// A thread that waits for one session turns that session's engine, as with one engine. While a
    /// thread waits for several engines (a fan-in, a group, a select), their I/O threads turn them,
    /// and a message takes one more wake-up at each end that waits so. With [`cores`](Self::cores)
    /// the I/O threads always turn them. Without, an I/O thread that uses an RDMA device stays on the
    /// cores of the device's NUMA node, as far as the process may use them. Each thread allocates its
    /// engine's receive memory on its own NUMA node.
    ///
    /// Under [`Driver::Tasks`] each engine has two tasks in place of the thread. A call that
    /// blocks turns one engine, so the executor needs threads of its own for the others. Under
    /// [`Driver::Caller`] there is one engine, and [`build`](Self::build) refuses more.
    pub fn io_threads(mut self, io_threads: usize) -> Self {
        let range = 1..=MOST_ENGINES as u64;
        self.note(SettingError::check_count(
            "io_threads",
            io_threads as u64,
            range,
        ));
        self.settings.io_threads = io_threads;
        self
    }

    /// Places the sessions that peers dial: `place` gets the peer and its address, and returns the
    /// number of an engine. Default: the engine with the fewest sessions, which also gets those for
    /// which `place` returns `None` or a number that no engine has.
    ///
    /// `place` runs where connections are taken in, so it must not block, and may be asked more
    /// than once for one session. A session that goes on over another connection stays where it is.
    /// A peer for which `place` panics gets no session, and an error in the log says so.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use ibex::Node;
    /// // Nodes of this host have an engine to themselves.
    /// let node = Node::builder()
    ///     .listen("127.0.0.1:0")
    ///     .io_threads(2)
    ///     .place_accepted(|_, address| Some(usize::from(!address.ip().is_loopback())))
    ///     .build()?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn place_accepted(
        mut self,
        place: impl Fn(PeerId, SocketAddr) -> Option<usize> + Send + Sync + 'static,
    ) -> Self {
        self.settings.placement = Some(AcceptPlacement::new(place));
        self
    }

    /// Sets the cores of the node's I/O threads, one for each, starting over if there are fewer
    /// cores than threads. Nothing else should run on them. Default: none. Range: the cores that
    /// the process may run on; a core that cannot be had is a warning.
    ///
    /// Without cores, threads that wait in a call turn the engine, and the I/O
    /// thread turns it while none waits. A message then passes through no thread but its sender's
    /// and its receiver's. With cores, each I/O thread alone turns its engine, beside whatever the
    /// program computes, and wakes the threads that wait. [`Driver::Caller`] and [`Driver::Tasks`]
    /// have no such thread, so [`build`](Self::build) refuses cores there.
    pub fn cores(mut self, cores: &[usize]) -> Self {
        self.settings.cores = cores.to_vec();
        self
    }

    /// Requires, prefers or forbids a fabric. Default: chosen by the place of the peer (same host
    /// and user: shared memory; RDMA hardware at both ends: verbs; else TCP). A software RDMA
    /// device is slower than TCP, so it is used only where one of the two nodes requires or prefers
    /// verbs. `IBEX_FABRICS` overrides what is set here.
    ///
    /// The policy holds for as long as a session lasts. A session over verbs whose queue pair or
    /// device breaks goes on over TCP [in time](Self::fail_over_after). If either node requires
    /// verbs or forbids TCP, it waits for another queue pair instead, until
    /// [`session_timeout`](Self::session_timeout).
    ///
    /// A fabric whose cargo feature is off is never used, and requiring it is an error of
    /// [`build`](Self::build). On a machine without a usable RDMA device it is also an error to
    /// require verbs, or to forbid all other fabrics (`ListenErrorKind::Rdma`).
    pub fn fabric(mut self, fabric: Fabric, policy: Policy) -> Self {
        let wish = match fabric {
            Fabric::Shm => &mut self.settings.shm,
            Fabric::Tcp => &mut self.settings.tcp,
            Fabric::Verbs => &mut self.settings.verbs,
        };
        if is_compiled_in(fabric) {
            *wish = policy;
        } else if policy == Policy::Require {
            self.absent = self.absent.or(Some(fabric));
        }
        self
    }

    /// Adds checksums to payloads over TCP, or leaves them out. Default: [`Integrity::Auto`], which
    /// adds them with peers on other hosts and leaves them out on one host. [`Integrity`] says what
    /// every fabric covers in any case, and how the settings of two nodes combine.
    /// [`Peer::payload_checksums`](crate::Peer::payload_checksums) returns the outcome.
    pub fn integrity(mut self, integrity: Integrity) -> Self {
        self.settings.integrity = integrity;
        self
    }

    /// Sets the RDMA device and its settings. [`RdmaSettings`](crate::rdma::RdmaSettings) has the
    /// default of each.
    #[cfg(feature = "verbs")]
    pub fn rdma(mut self, settings: crate::rdma::RdmaSettings) -> Self {
        self.note(settings.error().map_or(Ok(()), Err));
        self.settings.rdma = settings;
        self
    }

    /// Limits how long `connect` tries. Default: 10 s. Range: from 1 ms to [`Duration::MAX`], which
    /// is for ever.
    ///
    /// "Connection refused" counts as "not yet there". Another protocol, or a refusal by the peer,
    /// ends the attempt at once. A longer time-out tolerates peers that start later, and reports
    /// later those that never do.
    pub fn connect_timeout(mut self, timeout: Duration) -> Self {
        let range = Duration::from_millis(1)..;
        self.note(SettingError::check_time("connect_timeout", timeout, range));
        self.settings.connect_timeout = timeout;
        self
    }

    /// Limits how long a connected peer may take to agree on a session. Default: 5 s. Range: from
    /// 10 ms; `connect_timeout` ends a handshake earlier if it is shorter. A longer time-out
    /// tolerates slower peers. A silent peer then keeps one of the listener's 256 places for
    /// handshakes for as long.
    pub fn handshake_timeout(mut self, timeout: Duration) -> Self {
        let range = Duration::from_millis(10)..;
        self.note(SettingError::check_time(
            "handshake_timeout",
            timeout,
            range,
        ));
        self.settings.handshake_timeout = timeout;
        self
    }

    /// Limits how long dropping the node may take to deliver what was sent. Default: 1 s. Range:
    /// from 0 to [`Duration::MAX`], which is for ever. A shorter time loses messages that a slow
    /// peer has not taken, and drop cannot report them: [`Node::close`] does.
    pub fn linger(mut self, linger: Duration) -> Self {
        self.settings.linger = linger;
        self
    }

    /// Sets how long a peer's host may leave sent data unanswered before its connection counts as
    /// broken. Default: 3 s. Range: from 1 s; the engine looks once a second.
    ///
    /// A shorter time notices a dead network sooner, and mistakes a lossy one for it: the kernel
    /// repeats a lost packet after 0.2 s, and then after twice as long each time. The host of a
    /// peer that is stopped, or does not read, still answers. An end that sends nothing notices by
    /// TCP's keepalive, after 19 s.
    pub fn notice_timeout(mut self, timeout: Duration) -> Self {
        let range = Duration::from_secs(1)..;
        self.note(SettingError::check_time("notice_timeout", timeout, range));
        self.settings.notice_timeout = timeout;
        self
    }

    /// Sets how long a session whose connection broke waits for another. Until then its handles go
    /// on or wait; after that the peer is [gone](crate::EndCause::PeerGone). Default: 30 s. Range:
    /// from 10 ms to [`Duration::MAX`], which is for ever. A longer time survives longer outages.
    /// The node keeps sent messages for this time, and calls without a time-out of their own wait
    /// for as long.
    pub fn session_timeout(mut self, timeout: Duration) -> Self {
        let range = Duration::from_millis(10)..;
        self.note(SettingError::check_time("session_timeout", timeout, range));
        self.settings.session_timeout = timeout;
        self
    }

    /// Sets how long the host of a suspended peer may refuse connections until the peer counts as
    /// [gone](crate::EndCause::PeerGone), if this node dials. Default: 5 s. Range: from 10 ms to
    /// [`Duration::MAX`], which leaves the decision to [`session_timeout`](Self::session_timeout).
    ///
    /// A refusal says that no process listens at the peer's address. Then the peer's process has
    /// ended, in most cases, and nothing brings the session back: a process that is started in its
    /// place is another run, and gets a session of its own. Only refusals in a row count, so any
    /// other answer, or none, begins the count anew. The end of the session is not
    /// [certain](crate::EndCause::PeerGone), since a refusal may also come from a proxy, a load
    /// balancer or a packet filter before a living peer. A longer time survives a longer restart of
    /// such a device.
    pub fn peer_gone_after(mut self, time: Duration) -> Self {
        let range = Duration::from_millis(10)..;
        self.note(SettingError::check_time("peer_gone_after", time, range));
        self.settings.peer_gone_after = time;
        self
    }

    /// Sets how long a session over verbs asks for another queue pair when its queue pair, device
    /// or connection broke. After that it goes on over TCP. Default: 1 s, in which most
    /// interruptions are over. Range: from 0 (TCP at once) to [`Duration::MAX`] (verbs or nothing).
    ///
    /// The setting of the end that connected holds. Policies come first: the session does not go to
    /// TCP if [`fabric`](Self::fabric) excludes it at either node.
    ///
    /// While the session asks, it moves nothing: senders go on until their windows are full, and
    /// calls wait longer. With a shorter time, a brief interruption costs the session its queue
    /// pair, for good or until it [goes back](Self::fail_back).
    pub fn fail_over_after(mut self, time: Duration) -> Self {
        self.settings.fail_over_after = time;
        self
    }

    /// Lets a session that began over verbs and went over to TCP ask for a queue pair again. It
    /// asks once, when its connection breaks later, never while the connection works. Default: no.
    /// Both nodes have to set it: the end that connected asks, and the other must be prepared.
    ///
    /// The price is paid over TCP: messages longer than a receive buffer travel as they do over
    /// verbs, each asking for its memory first, and memory to send from stays registered. A
    /// connection that works rarely breaks, so by default TCP's speed comes first.
    pub fn fail_back(mut self, goes_back: bool) -> Self {
        self.settings.fail_back = goes_back;
        self
    }

    /// Sets the function that tells the trace context of the thread or task that calls it, as the
    /// program's tracer has it. Calls of all callers of the node then carry it, and so do messages of
    /// channels that [ask for it](crate::ChannelBuilder::trace_context). Default: none.
    ///
    /// The function runs when a call or a message is sent, and in a task at each poll until it is
    /// sent. It must not wait, and must not send on the channel that asks. `None` from it sends no
    /// context. A panic in it comes through, and nothing is sent. The crate `ibex-tracing` has a
    /// function for programs that use `tracing` with OpenTelemetry.
    ///
    /// ```
    /// use std::cell::Cell;
    /// use ibex::{Node, TraceContext};
    ///
    /// thread_local! {
    ///     static CONTEXT: Cell<Option<TraceContext>> = const { Cell::new(None) };
    /// }
    ///
    /// # fn main() -> Result<(), ibex::ListenError> {
    /// let node = Node::builder().trace_context(|| CONTEXT.get()).build()?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn trace_context(mut self, current: fn() -> Option<TraceContext>) -> Self {
        self.settings.trace_context = Some(current);
        self
    }

    /// Plays a node that knows these optional parts of the protocol and no others.
    #[cfg(test)]
    pub(crate) fn features(mut self, features: u64) -> Self {
        self.settings.features = features;
        self
    }

    /// Keeps histograms of how long calls take, at the caller and at the handler, and of the waits
    /// for acknowledgements, by the name of the service or channel:
    /// [`NodeStats::histograms`](crate::NodeStats::histograms). Default: no.
    ///
    /// Each call and each wait then reads the clock twice and adds to two counters that all threads
    /// share. A histogram takes 4.3 KiB, for each of up to 64 names. Messages themselves pay
    /// nothing.
    ///
    /// ```
    /// use ibex::{Measured, Node, Pod};
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let store = Node::builder().listen("127.0.0.1:0").build()?;
    /// let mut prices = store.channel("prices").codec::<Pod>().service::<u64, u64>()?;
    /// std::thread::spawn(move || {
    ///     while let Ok(Some(request)) = prices.next() {
    ///         let _too_late = request.reply(&7);
    ///     }
    /// });
    ///
    /// let node = Node::builder().histograms(true).build()?;
    /// let peer = node.connect(store.local_addr().unwrap())?;
    /// let caller = peer.channel("prices").codec::<Pod>().caller::<u64, u64>()?;
    /// for symbol in 0..10 {
    ///     caller.call(&symbol)?;
    /// }
    /// let [calls] = &node.stats().histograms[..] else {
    ///     panic!("one service is called");
    /// };
    /// assert_eq!((calls.measured, calls.name.as_str()), (Measured::Calls, "prices"));
    /// assert_eq!(calls.durations.count(), 10);
    /// println!("half of the calls took at most {:?}", calls.durations.quantile(0.5));
    /// # Ok(())
    /// # }
    /// ```
    pub fn histograms(mut self, keeps: bool) -> Self {
        self.settings.histograms = keeps;
        self
    }

    /// Sets the node's identity, 16 bytes that peers see. Default: random, so that peers take a
    /// restart for another node. An identity must be used by one node only. A node that comes with
    /// the same one later is taken for a restart of this node, which ends the sessions that wait
    /// for it.
    pub fn identity(mut self, identity: [u8; 16]) -> Self {
        self.settings.identity = Some(identity);
        self
    }

    /// Lets `ibex top` and other programs of this user inspect the running node, over a Unix socket
    /// in a folder of the user that nobody else may enter. Default: nobody can.
    ///
    /// The socket is `$XDG_RUNTIME_DIR/ibex/PID-NAME.sock`, or `/tmp/ibex-UID/PID-NAME.sock` without
    /// that variable; [`Node::inspect_path`] returns it. NAME is that of the node, if it has one.
    /// [`ibex::inspect`](crate::inspect) says what is answered there, and to whom.
    ///
    /// The node has a thread for it, under each driver, which sleeps while nobody is connected. An
    /// answer holds each engine's lock for some 100 ns for each channel.
    pub fn inspect(mut self) -> Self {
        self.settings.inspect = Some(SocketPlace::Default);
        self
    }

    /// Lets programs of this user inspect the node at a path, in place of
    /// [`inspect`](Self::inspect). The last of the two calls counts. The path is one where there is
    /// no file yet, or the socket of a node that is gone. It has 107 bytes at most.
    pub fn inspect_at(mut self, path: impl Into<PathBuf>) -> Self {
        self.settings.inspect = Some(SocketPlace::At(path.into()));
        self
    }

    /// Takes [`IBEX_*` variables](Self#variables) from here instead of from the process. An empty
    /// list means no variables. It is meant for programs that read them from elsewhere, and for
    /// tests.
    pub fn environment<N: Into<String>, V: Into<String>>(
        mut self,
        variables: impl IntoIterator<Item = (N, V)>,
    ) -> Self {
        let variables = variables.into_iter();
        let owned = variables.map(|(name, value)| (name.into(), value.into()));
        self.variables = Some(owned.collect());
        self
    }

    /// Lets the variables override what was set.
    fn apply(mut self, site: &Site) -> (Self, Vec<EnvironmentWarning>) {
        let mut warnings = Vec::new();
        if let Some(fabrics) = &site.fabrics {
            self.absent = None;
            for fabric in Fabric::FASTEST_FIRST {
                let place = fabrics.iter().position(|&named| named == fabric);
                let policy = match place {
                    Some(0) if fabrics.len() == 1 => Policy::Require,
                    Some(0) => Policy::Prefer,
                    Some(_) => Policy::Auto,
                    None => Policy::Forbid,
                };
                if place.is_some() && !is_compiled_in(fabric) {
                    let variable = "IBEX_FABRICS";
                    warnings.push(EnvironmentWarning::NotCompiledIn { variable, fabric });
                }
                self = self.fabric(fabric, policy);
            }
        }
        #[cfg(feature = "verbs")]
        self.settings.rdma.apply(site);
        if let Some(time) = site.fail_over_after {
            self.settings.fail_over_after = time;
        }
        (self, warnings)
    }

    /// Keeps the first error for `build` to report.
    fn note(&mut self, checked: Result<(), SettingError>) {
        self.error = self.error.or(checked.err());
    }

    /// Reads the certificates or derives the keys.
    #[cfg(feature = "tls")]
    fn open_security(&mut self) -> Result<(), ListenError> {
        let Some(security) = self.security.take() else {
            return Ok(());
        };
        let credentials = security.open()?;
        #[cfg(feature = "verbs")]
        if credentials.trusts_authenticated() {
            self.settings.rdma = self.settings.rdma.clone().trust_peers(true);
        }
        self.settings.credentials = Some(Arc::new(credentials));
        Ok(())
    }

    /// Makes the node.
    ///
    /// # Errors
    ///
    /// [`ListenError`] if
    ///
    /// - a setting is out of its range or does not go with another,
    /// - a [variable](Self#variables) has a value that it cannot have,
    /// - the address cannot be had or is open to strangers,
    /// - the socket of [`inspect`](Self::inspect) cannot be made,
    /// - the process lacks threads, descriptors or memory, or
    /// - there is no runtime for [`Driver::Tasks`].
    ///
    /// # Panics
    ///
    /// Under [`Driver::Tasks`], in a tokio runtime without an I/O driver (`enable_io`).
    pub fn build(mut self) -> Result<Node, ListenError> {
        if let Some(error) = self.error {
            return Err(error.into());
        }
        let variables = self
            .variables
            .take()
            .unwrap_or_else(environment::of_process);
        let mut site = environment::parse(&variables)?;
        let warnings;
        (self, warnings) = self.apply(&site);
        site.warnings.extend(warnings);
        for warning in &site.warnings {
            tracing::warn!(%warning, "a variable has no effect");
        }
        let environment = Environment {
            overrides: site.overrides,
            warnings: site.warnings.iter().map(ToString::to_string).collect(),
        };
        if let Some(fabric) = self.absent {
            return Err(ListenFailure::NotCompiledIn { fabric }.into());
        }
        self.settings.check_relations()?;
        #[cfg(feature = "tls")]
        self.open_security()?;
        let listening = self.listen.as_ref().map(Listen::resolve).transpose()?;
        if let Some(Listening { address, .. }) = listening
            && !address.ip().is_loopback()
            && !self.insecure_network
            && self.settings.credentials.is_none()
        {
            return Err(ListenFailure::InsecureAddress { address }.into());
        }
        if self.insecure_network && self.settings.credentials.is_none() {
            tracing::info!("a node authenticates nobody, as insecure_network() allows");
        }
        Node::start(self.settings, environment, listening)
    }
}

/// An address or a socket to listen with, as the program gave it.
#[derive(Clone, Debug)]
enum Listen {
    At(String),
    On(Arc<TcpListener>),
}

impl Listen {
    fn resolve(&self) -> Result<Listening, ListenError> {
        let failed = |address: &str| {
            let address = address.to_owned();
            move |source| ListenFailure::Address { address, source }
        };
        match self {
            Self::At(name) => {
                let addresses = resolve(name).map_err(failed(name))?;
                let address = addresses
                    .first()
                    .copied()
                    .ok_or_else(|| failed(name)(io::Error::other("the name has no address")))?;
                let given = None;
                Ok(Listening { address, given })
            }
            Self::On(listener) => {
                let failed = failed("the socket that was given");
                let address = listener.local_addr().map_err(failed)?;
                let given = Some(listener.try_clone()?);
                Ok(Listening { address, given })
            }
        }
    }
}

/// The fabrics whose cargo features are off.
pub(crate) fn absent_fabrics() -> Vec<Fabric> {
    let mut absent = Fabric::FASTEST_FIRST.to_vec();
    absent.retain(|fabric| !is_compiled_in(*fabric));
    absent
}

/// Returns whether the cargo feature of a fabric is on.
pub(crate) fn is_compiled_in(fabric: Fabric) -> bool {
    match fabric {
        Fabric::Shm => cfg!(feature = "shm"),
        Fabric::Tcp => cfg!(feature = "tcp"),
        Fabric::Verbs => cfg!(feature = "verbs"),
    }
}
