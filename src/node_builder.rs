//! Settings of nodes, checked when they are used.

use std::{
    io,
    net::{TcpListener, ToSocketAddrs},
    sync::Arc,
    time::Duration,
};

use ibex_bootstrap::{Integrity, Policy};
use ibex_transport::{engine::Wait, runtime::Driver, session::MOST_ENGINES};

use crate::{
    Fabric, ListenError, Node, SettingError, ToAddress, address,
    environment::{self, EnvironmentWarning, Site},
    node::Listening,
    node_settings::{LEAST_MEMORY_LIMIT, NodeSettings},
};

/// Settings of a node. Made by [`Node::builder`], ends in [`build`](Self::build).
///
/// Each is checked when it is set, and settings that do not go together when the node is
/// made; the error is `build`'s, with the value and the range, or with both values.
///
/// # Variables
///
/// What the site knows and the program does not can be said from outside. A node reads these
/// variables of its process once, when it is made; each takes the place of what the program
/// set, or of the default. [`Node::environment`] says which did.
///
/// | variable | value | overrides |
/// |---|---|---|
/// | `IBEX_FABRICS` | `shm`, `tcp`, `verbs`, with commas between them | [`fabric`](Self::fabric): one alone is required; of several the first is preferred and those that are not named are forbidden |
/// | `IBEX_RDMA_DEVICE` | a name, such as `mlx5_0` | `RdmaSettings::device` |
/// | `IBEX_RDMA_PORT` | 1 to 255 | `RdmaSettings::port` |
/// | `IBEX_RDMA_GID_INDEX` | 0 to 255 | `RdmaSettings::gid_index` |
/// | `IBEX_RDMA_PARTITION_KEY` | 0x0001 to 0xffff, but for 0x8000 | `RdmaSettings::partition_key` |
/// | `IBEX_RDMA_MTU` | 256, 512, 1024, 2048 or 4096 | `RdmaSettings::path_mtu`; what both ports carry is looked at when a session comes |
/// | `IBEX_RDMA_COMPLETIONS` | plain, extended or one-by-one | `RdmaSettings::completion_polling` |
/// | `IBEX_RDMA_FAIL_OVER_AFTER` | milliseconds, or never | [`fail_over_after`](Self::fail_over_after) |
///
/// Those of RDMA are read, and are warnings, in a build without `verbs`. A value that
/// cannot be used is an error of [`build`](Self::build); another name that begins with
/// `IBEX_` is a warning, with the name that may have been meant, but for those of ibex's own
/// tests and tools (`IBEX_TEST_` and others).
///
/// # Memory
///
/// The most that a node takes, in bytes, is the sum of two lines. *W* is `window_bytes` (as a
/// power of two from 64 KiB on), *n* is `window_messages` (as a power of two) and *U* what
/// `max_unreleased_bytes` leaves beside *W*, of each channel the smaller of both ends'. Long are
/// messages longer than half of *W*, over tcp also than 128 KiB and over verbs than a receive
/// buffer.
///
/// - Short messages: [`node_credit_bytes`](Self::node_credit_bytes), but no more than
///   `session_credit_bytes` for each session, + 80 MiB kept + 1 MiB for each session + 52 *n* +
///   16 *W* for each receiving end + *W* for each sending end that was used.
/// - Long messages, 0 without any: [`memory_limit`](Self::memory_limit) + 512 MiB kept + 4 MiB for
///   each session + 1.5 *U* for each sending end that was used.
///
/// One session with one channel each way over tcp has by default 118 MiB of short messages
/// (2 + 80 + 1 + 1 + 32 + 2). Of long ones it has up to 564 MiB (512 + 4 + 48) and `memory_limit`.
///
/// Over shared memory there is no credit, a receiving end takes 4 *n*, and what is in shared
/// memory is counted at its sender. Over verbs receive buffers stand for the credit, and 68 KiB for
/// each of `landing_blocks` with `trust_peers`. Over tcp and verbs three of the longest messages
/// stand for 1.5 *U* if that is less. 16 *W* is the worst case of a channel that holds messages of
/// 64 to 128 KiB for long while others of its session flow; with shorter ones, or alone, it is
/// 2 *W*. Kept for what comes next are 64 MiB of rings, 16 MiB of blocks and two long messages.
///
/// What is silent gives back: after one to two seconds without a message, and when nothing
/// is out that is not released, rings, arrival blocks and what ends have for each message
/// go back, and pools' memory two seconds later. What stays of a session is some 10 KiB in
/// both processes together, and some 4 KiB for each further channel; its next
/// message gets memory anew. With [`Driver::Caller`] that happens in turns.
///
/// Ends count that this node opened. What a peer opens and this node does not costs its name
/// and its type's description, a few KiB for each of [`max_channels`](Self::max_channels).
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

    /// Listens on `address` (`host:port`; port 0 lets the system choose). Default: no.
    ///
    /// An address that other hosts can reach needs `security`, with the feature `tls`, or
    /// [`insecure_network`](Self::insecure_network).
    pub fn listen(mut self, address: impl ToAddress) -> Self {
        self.listen = Some(Listen::At(address::text_of(&address)));
        self
    }

    /// Listens with a socket that is bound and listens already, in place of
    /// [`listen`](Self::listen): one that systemd or another supervisor hands over, or the
    /// process that this one replaces. The last of the two calls counts.
    ///
    /// Processes may share the socket. Each connection goes to one of them, and the socket
    /// listens for as long as any of them has it, so nobody who connects meanwhile is turned
    /// away. A node that is closed leaves it to the others at once. A session that loses its
    /// connection then, or whose new connection another process gets, is
    /// [gone](crate::EndCause::PeerGone).
    ///
    /// The socket is set to non-blocking mode, which holds for all processes that share it.
    /// An address that other hosts can reach needs `security` or
    /// [`insecure_network`](Self::insecure_network), as with `listen`.
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
    /// Both nodes of a session need it, in the same way: a node with security has no session with
    /// a node without. Whoever dials gets a [`ConnectError`](crate::ConnectError) and whoever listens
    /// a line in the log, which name the mode of each. No variable of the environment changes that.
    /// [`Security`](crate::Security) says how peers are authenticated.
    #[cfg(feature = "tls")]
    pub fn security(mut self, security: crate::Security) -> Self {
        self.security = Some(security);
        self
    }

    /// Allows to listen where other hosts can connect. Whoever can reach the address may
    /// then open channels and read what is sent: only for networks that keep strangers
    /// out themselves.
    pub fn insecure_network(mut self) -> Self {
        self.insecure_network = true;
        self
    }

    /// A name of the node for people, of 1 to 64 bytes. Default: none. The log and the
    /// errors of channels have it with each peer, and [`NodeStats`](crate::NodeStats) and `Debug`
    /// of the node show it, so that the nodes of one process are told apart. Peers are not told.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        let name = name.into();
        let bytes = name.len() as u64;
        self.note(SettingError::check_bytes("name", bytes, 1..=64));
        self.settings.name = Some(name.into());
        self
    }

    /// Who turns the engine. Default: [`Driver::Threads`].
    pub fn driver(mut self, driver: Driver) -> Self {
        self.settings.driver = driver;
        self
    }

    /// How blocking calls wait. Default: spin for 50 µs, then sleep; sleep at once where there
    /// is one CPU, and where fewer than four are shared with an I/O thread that has
    /// [cores](Self::cores) of its own. Range of a spin: 0 to 1 s. Longer spends a core to
    /// save the wake-up, which takes 5 to 30 µs; who spins lets other threads run, and spins
    /// on only in what time they leave. Where they keep a core for milliseconds, calls sleep at
    /// once and try to spin again later.
    ///
    /// Under [`Driver::Tasks`] a task spins for 4 µs before it waits for a message over shared
    /// memory, and only where the last messages came within 150 µs each: to be woken takes an idle
    /// processor 25 to 50 µs. [`Wait::Event`] has it wait at once; [`Wait::BusyPoll`] is for
    /// threads that block.
    pub fn wait(mut self, wait: Wait) -> Self {
        if let Wait::Adaptive { spin } = wait {
            let range = ..=Duration::from_secs(1);
            self.note(SettingError::check_time("spin", spin, range));
        }
        self.settings.wait = Some(wait);
        self
    }

    /// Engines of the node, each with an I/O thread of its own. Default: 1. Range: 1 to 64.
    ///
    /// An engine has its own epoll set, arrival memory and sessions. A session that begins is
    /// placed on the engine that has the fewest, and stays there; [`Peer::engine`](crate::Peer::engine)
    /// tells which. All sessions over verbs are on one engine, which has the device port. Fan-ins,
    /// groups and calls span engines.
    ///
    /// More than one is for nodes whose sessions keep a core busy: with one, threads that wait in
    /// calls turn the engine themselves; with more, the I/O threads alone do, and a message passes
    /// a wake-up more at each end. Each takes a core while messages flow; put them on
    /// [cores](Self::cores) that nobody else uses.
    ///
    /// Under [`Driver::Tasks`] each engine has a driving task in place of the thread. A call that
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

    /// Cores for the node's I/O threads, one each, and from the first again where there are
    /// fewer; nobody else should be put there. Default: none. Range: those that the process may run on; one that cannot be
    /// had is a warning.
    ///
    /// Without cores and with one engine, threads that wait in a call turn it themselves, and the
    /// I/O thread does while none waits: a message goes through no thread but its sender's and
    /// its receiver's. With cores each I/O thread alone turns its engine, beside whatever
    /// the program computes, and wakes who waits. Under [`Driver::Caller`] and [`Driver::Tasks`]
    /// there is no such thread, and [`build`](Self::build) refuses cores.
    pub fn cores(mut self, cores: &[usize]) -> Self {
        self.settings.cores = cores.to_vec();
        self
    }

    /// Whether a fabric must, should or must not be used. Default: chosen by the place of
    /// the peer (same host and user: shared memory; RDMA hardware at both ends: verbs; else
    /// tcp). A software RDMA device is slower than tcp, so it is used only where one of the
    /// two nodes requires or prefers verbs. `IBEX_FABRICS` overrides what is set here.
    ///
    /// It holds for as long as a session lasts: one over verbs whose queue pair or device breaks
    /// goes on over tcp [in time](Self::fail_over_after), unless one of the two nodes requires
    /// verbs or forbids tcp. Then it waits for another queue pair, until
    /// [`session_timeout`](Self::session_timeout).
    ///
    /// A fabric whose cargo feature is off is never used; to require it is an error of
    /// [`build`](Self::build), as is to require verbs, or to forbid all other fabrics, on a
    /// machine without a device that can be used (`ListenError::Rdma`).
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

    /// Whether payloads have checksums over tcp. Default: [`Integrity::Auto`], which is with
    /// peers on other hosts and not on one host. [`Integrity`] says what every fabric covers in
    /// any case, and how the settings of two nodes go together;
    /// [`Peer::payload_checksums`](crate::Peer::payload_checksums) tells the outcome.
    pub fn integrity(mut self, integrity: Integrity) -> Self {
        self.settings.integrity = integrity;
        self
    }

    /// Which RDMA device is used, and how. Default: as
    /// [`RdmaSettings`](crate::rdma::RdmaSettings) says, setting by setting.
    #[cfg(feature = "verbs")]
    pub fn rdma(mut self, settings: crate::rdma::RdmaSettings) -> Self {
        self.note(settings.error().map_or(Ok(()), Err));
        self.settings.rdma = settings;
        self
    }

    /// How long `connect` tries. Default: 10 s, range from 1 ms ([`Duration::MAX`]: for
    /// ever). "Connection refused" counts as "not yet there"; another protocol or a refusal
    /// by the peer ends it at once. Longer bears with peers that start later, and tells
    /// later of those that never do.
    pub fn connect_timeout(mut self, timeout: Duration) -> Self {
        let range = Duration::from_millis(1)..;
        self.note(SettingError::check_time("connect_timeout", timeout, range));
        self.settings.connect_timeout = timeout;
        self
    }

    /// How long a peer that is connected may take to agree on a session. Default: 5 s,
    /// range from 10 ms; within `connect_timeout` in any case. Longer bears with slower
    /// peers, and lets a silent one keep a place among the 256 that a listener hears at a
    /// time.
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

    /// How long dropping the node may take to deliver what was sent. Default: 1 s, range
    /// from 0 ([`Duration::MAX`]: for ever). Shorter loses what a slow peer has not taken,
    /// and nobody is told: [`Node::close`] tells.
    pub fn linger(mut self, linger: Duration) -> Self {
        self.settings.linger = linger;
        self
    }

    /// How long a peer's host may leave what was sent to it unanswered before its connection
    /// counts as broken. Default: 3 s, range from 1 s; the engine looks once a second. Shorter
    /// tells sooner of a network that is down, and takes one that loses much for it: the kernel
    /// repeats a lost packet after 0.2 s, and then after twice as long each time. A peer that
    /// does not read, or is stopped, answers. An end that has nothing to say notices by TCP's
    /// keepalive, after 19 s.
    pub fn notice_timeout(mut self, timeout: Duration) -> Self {
        let range = Duration::from_secs(1)..;
        self.note(SettingError::check_time("notice_timeout", timeout, range));
        self.settings.notice_timeout = timeout;
        self
    }

    /// How long a session whose connection broke waits for another, while its handles go on or
    /// wait; then the peer is [gone](crate::EndCause::PeerGone). Default: 30 s, range from
    /// 10 ms ([`Duration::MAX`]: for ever). Longer bears with longer outages; what was sent is
    /// kept for as long, and whoever waits without a time-out of its own waits so.
    pub fn session_timeout(mut self, timeout: Duration) -> Self {
        let range = Duration::from_millis(10)..;
        self.note(SettingError::check_time("session_timeout", timeout, range));
        self.settings.session_timeout = timeout;
        self
    }

    /// How long a session over verbs whose queue pair, device or connection broke asks its peer
    /// for another queue pair, from the break on; then it goes on over tcp.
    /// Default: 1 s, in which most of what passes is over; range from 0 (tcp at once) to
    /// [`Duration::MAX`] (verbs or nothing). The end that connected has the say, and policies do
    /// before it: tcp is not asked for where [`fabric`](Self::fabric) excludes it at either node.
    ///
    /// While it asks the session moves nothing: senders go on until their windows are full, and
    /// whoever waits does so longer. With less, an interruption that would have passed costs the
    /// session its queue pair, for good or until it [goes back](Self::fail_back).
    pub fn fail_over_after(mut self, time: Duration) -> Self {
        self.settings.fail_over_after = time;
        self
    }

    /// Whether a session that began over verbs and went over to tcp asks for a queue pair again,
    /// once, when its connection breaks later; never while it runs. Default: no. It takes both
    /// nodes: the end that connected asks, and the other has to have been ready for it.
    ///
    /// The price is paid over tcp, meanwhile: messages longer than a receive buffer go as they
    /// do over verbs, each asking for its memory first, and what is sent from stays registered.
    /// A connection that works rarely breaks, so it is off: what matters then is tcp's speed.
    pub fn fail_back(mut self, goes_back: bool) -> Self {
        self.settings.fail_back = goes_back;
        self
    }

    /// The node's identity, 16 bytes that peers see. Default: random, so that a restart
    /// is another node to them. One that is given has to be this node's alone: whoever comes
    /// with it later is taken for its restart, which ends the sessions that wait for it.
    pub fn identity(mut self, identity: [u8; 16]) -> Self {
        self.settings.identity = Some(identity);
        self
    }

    /// Channel ends that a session may have open at each of its nodes; the smaller of both
    /// nodes' holds for both. Default: 1024, range 1 to 16384. Each costs some hundred
    /// bytes, and once it is used its [window and more](Self#memory). Whoever opens one more
    /// gets [`OpenFailure::TooMany`](crate::OpenFailure::TooMany) with the limit, at either
    /// end; a peer that opens one more all the same loses its session. An end that was dropped
    /// counts until the peer has opened its own, which is told of what was sent and that it
    /// ended.
    pub fn max_channels(mut self, ends: u32) -> Self {
        let given = u64::from(ends);
        self.note(SettingError::check_count("max_channels", given, 1..=16384));
        self.settings.max_channels = ends;
        self
    }

    /// Sessions that one peer may have with this node, whoever connected; peers are told
    /// apart by their [`identity`](Self::identity), and one that was started again is not kept
    /// out by sessions of its run before. Default: 1024, range 1 to 65536. Each
    /// costs a descriptor (over shared memory five), and [memory](Self#memory). One more is
    /// refused: both ends hear the limit and whose it is, and `connect` gives
    /// [`ConnectErrorKind::Refused`](crate::ConnectErrorKind::Refused). A session counts until its end is noticed here; one
    /// of a node with itself counts twice. It keeps a peer that fails from taking all there
    /// is; strangers can make up identities, so against them there is
    /// [`max_node_sessions`](Self::max_node_sessions).
    pub fn max_peer_sessions(mut self, sessions: u32) -> Self {
        let given = u64::from(sessions);
        let range = 1..=MOST_SESSIONS;
        self.note(SettingError::check_count("max_peer_sessions", given, range));
        self.settings.max_peer_sessions = sessions;
        self
    }

    /// Sessions that this node may have in all. Default: 4096, range 1 to 65536. The price of
    /// each, and what happens to one more, are those of
    /// [`max_peer_sessions`](Self::max_peer_sessions); the process's limit on descriptors
    /// (`ulimit -n`) is often lower.
    pub fn max_node_sessions(mut self, sessions: u32) -> Self {
        let given = u64::from(sessions);
        let range = 1..=MOST_SESSIONS;
        self.note(SettingError::check_count("max_node_sessions", given, range));
        self.settings.max_node_sessions = sessions;
        self
    }

    /// The most bytes that one tcp session lets its peer keep in flight. Default: 2 MiB,
    /// range 512 KiB to 1 GiB. More lets one fast sender run further ahead of the network;
    /// the memory is used only by bytes that arrived and were not read. All sessions
    /// together have [`node_credit_bytes`](Self::node_credit_bytes), and if that is less, it
    /// holds for one as well.
    pub fn session_credit_bytes(mut self, bytes: u64) -> Self {
        let range = 512 << 10..=1 << 30;
        self.note(SettingError::check_bytes(
            "session_credit_bytes",
            bytes,
            range,
        ));
        self.settings.session_credit_bytes = bytes;
        self
    }

    /// The most bytes that all tcp sessions of the node together let their peers keep in
    /// flight. Default: 256 MiB, enough for 128 sessions with the default
    /// [`session_credit_bytes`](Self::session_credit_bytes); range 512 KiB to 1 TiB. As long
    /// as that is enough, every session has its full credit. With more sessions those that
    /// send share it equally, and sessions that send nothing are left little or none, so
    /// that their next message waits for a round trip. Below 257 KiB for each session that
    /// sends they take turns. More is more memory where many peers send faster than their
    /// messages are read: at worst this much, and a block of 1 MiB per session.
    pub fn node_credit_bytes(mut self, bytes: u64) -> Self {
        let range = 512 << 10..=1 << 40;
        self.note(SettingError::check_bytes("node_credit_bytes", bytes, range));
        self.settings.node_credit_bytes = bytes;
        self
    }

    /// The most bytes of long messages that peers may make this process hold, beside 1 MiB of each
    /// of four messages that begin in each session, and beside short messages; the
    /// [sum](NodeBuilder#memory) has all. A message counts from when its first bytes are here until
    /// the application has released it, and so does what is kept of its memory for the next one.
    /// Default: a quarter of what the process may have (the least of
    /// the machine's memory, its control groups' limits, and RLIMIT_AS and RLIMIT_DATA where
    /// they are set); range 1 MiB to 64 TiB.
    ///
    /// Over tcp and verbs a message is charged as it comes, over shared memory as much as is
    /// mapped of the sender's for it. One for which there is no room waits, and its sender with
    /// it: nothing that was sent is lost. Of those that have begun to come, the oldest always
    /// has room to come whole, once what was there before it is released. A receiver whose
    /// program holds all that there is waits for what it holds itself;
    /// [`Event::Stalled`](crate::Event::Stalled) says so.
    /// [`max_message_bytes`](crate::ChannelBuilder::max_message_bytes) of a receiving end is
    /// lowered to `memory_limit`; a longer message is
    /// [`SendError::TooLong`](crate::SendError::TooLong).
    ///
    /// All nodes of a process are charged together. If their limits differ, each takes in more
    /// only while what all of them hold is below its own.
    ///
    /// A higher limit lets more or longer messages wait here for a slow program, and a lower one
    /// keeps them at their senders.
    pub fn memory_limit(mut self, bytes: u64) -> Self {
        let range = LEAST_MEMORY_LIMIT..=1 << 46;
        self.note(SettingError::check_bytes("memory_limit", bytes, range));
        self.settings.memory_limit = Some(bytes);
        self
    }

    /// Default window in messages of this node's channels; see
    /// [`ChannelBuilder::window_messages`](crate::ChannelBuilder::window_messages).
    pub fn window_messages(mut self, messages: u64) -> Self {
        let checked = self.settings.channel.set_window_messages(messages);
        self.note(checked);
        self
    }

    /// Default window in bytes of this node's channels; see
    /// [`ChannelBuilder::window_bytes`](crate::ChannelBuilder::window_bytes).
    pub fn window_bytes(mut self, bytes: u64) -> Self {
        let checked = self.settings.channel.set_window_bytes(bytes);
        self.note(checked);
        self
    }

    /// Default limit of a message in this node's channels; see
    /// [`ChannelBuilder::max_message_bytes`](crate::ChannelBuilder::max_message_bytes).
    pub fn max_message_bytes(mut self, bytes: u64) -> Self {
        let checked = self.settings.channel.set_max_message_bytes(bytes);
        self.note(checked);
        self
    }

    /// Default limit of what may be sent and not released in this node's channels; see
    /// [`ChannelBuilder::max_unreleased_bytes`](crate::ChannelBuilder::max_unreleased_bytes).
    pub fn max_unreleased_bytes(mut self, bytes: u64) -> Self {
        let checked = self.settings.channel.set_max_unreleased_bytes(bytes);
        self.note(checked);
        self
    }

    /// Default `open_timeout` of this node's channels; see
    /// [`ChannelBuilder::open_timeout`](crate::ChannelBuilder::open_timeout).
    pub fn open_timeout(mut self, timeout: Duration) -> Self {
        self.settings.channel.open_timeout = timeout;
        self
    }

    /// Takes [`IBEX_*` variables](Self#variables) from here and not from the process; none,
    /// if there are none. For programs that read such things from elsewhere, and for tests.
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
    /// [`ListenError`]: a setting is out of its range or does not go with another, a
    /// [variable](Self#variables) has a value that it cannot have, the
    /// address cannot be had or is open to strangers, the process lacks threads, descriptors or
    /// memory, or there is no runtime for [`Driver::Tasks`].
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
        site.environment.warnings.extend(warnings);
        for warning in &site.environment.warnings {
            tracing::warn!(%warning, "a variable has no effect");
        }
        if let Some(fabric) = self.absent {
            return Err(ListenError::NotCompiledIn { fabric });
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
            return Err(ListenError::InsecureAddress { address });
        }
        if self.insecure_network && self.settings.credentials.is_none() {
            tracing::info!("a node authenticates nobody, as insecure_network() allows");
        }
        Node::start(self.settings, site.environment, listening)
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
            move |source| ListenError::Address { address, source }
        };
        match self {
            Self::At(name) => {
                let mut addresses = name.to_socket_addrs().map_err(failed(name))?;
                let address = addresses
                    .next()
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

/// Whether the cargo feature of a fabric is on.
pub(crate) fn is_compiled_in(fabric: Fabric) -> bool {
    match fabric {
        Fabric::Shm => cfg!(feature = "shm"),
        Fabric::Tcp => cfg!(feature = "tcp"),
        Fabric::Verbs => cfg!(feature = "verbs"),
    }
}

/// Descriptors end long before.
const MOST_SESSIONS: u64 = 1 << 16;
