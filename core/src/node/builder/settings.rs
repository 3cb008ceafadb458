//! The rows of a node's settings.
#![forbid(unsafe_code)]

use std::{path::PathBuf, time::Duration};

use ibex_base::{Address, Escaped};
use ibex_bootstrap::{Integrity, Policy, ShareWith};
use ibex_transport::{node::Wait, runtime::Driver, session::MOST_ENGINES};

use super::{Listen, NodeBuilder};
#[allow(unused_imports, reason = "the documentation speaks of it")]
use crate::Node;
use crate::{
    Fabric, PeerId, ToAddress, TraceContext,
    accept_placement::AcceptPlacement,
    setting::{settings, within},
};

settings! {
    const TABLE in NodeBuilder, |self| self.settings;

    /// Listens on `address` (`host:port` or `vsock:any:PORT`; with port 0 the system chooses the port).
    #[default("the node does not listen")]
    ///
    /// An address that other hosts can reach, and every vsock address (containers reach even the CID
    /// 1), needs `security`, with the feature `tls`, or [`insecure_network`](Self::insecure_network).
    pub fn listen(mut self, address: impl ToAddress) -> Self {
        self.listen = Some(Listen::At(address.to_text()));
        self
    }

    /// Authenticates peers, and encrypts what goes over TCP.
    #[default("neither")]
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

    /// Sets a name of the node for people, of 1 to 64 bytes.
    #[default("none")]
    ///
    /// Peers learn it when a session begins, after they were authenticated: it is
    /// [`Peer::name`](crate::Peer::name) there, and beside the node's address in their events,
    /// statistics, errors and log. Here the log and errors of channels have it beside each peer
    /// (`via node primary`), and so have [`NodeStats`](crate::stats::NodeStats) and `Debug` of the node,
    /// so that the nodes of one process can be told apart.
    ///
    /// Nothing proves a name to a peer. Characters that are not printed as themselves, such as a
    /// line feed, are escaped.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        let name = name.into();
        self.note(within!("name", name.len(), 1 byte..=64 bytes));
        self.settings.name = Some(Escaped(&name).to_string().into());
        self
    }

    /// Requires, prefers or forbids a fabric.
    #[default("chosen by the place of the peer")]
    /// That is shared memory on the same host for the same user (see also
    /// [`share_memory_with`](Self::share_memory_with)), verbs with RDMA hardware at both
    /// ends, and else TCP. A software RDMA device is slower than TCP, so it is used only where one
    /// of the two nodes requires or prefers verbs. `IBEX_FABRICS` overrides what is set here.
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
        self.set_policy(fabric, policy);
        self
    }

    /// Adds checksums to payloads over TCP, or leaves them out.
    #[default("[`Integrity::Auto`]")]
    /// It adds them with peers on other hosts and leaves them out on one host. [`Integrity`] says
    /// what every fabric covers in any case, and how the settings of two nodes combine.
    /// [`Peer::payload_checksums`](crate::Peer::payload_checksums) returns the outcome.
    pub fn integrity(integrity: Integrity);

    /// Shares memory also with processes of other users of this host.
    #[default("[`ShareWith::Nobody`]")]
    ///
    /// Both nodes have to allow the other's user, whom the kernel names to them; else their sessions
    /// take TCP, and [`Peer::fabric_reason`](crate::Peer::fabric_reason) says so.
    ///
    /// A process of another user can spoil its own messages and no others, and reads nothing but its
    /// own channels. Its messages are copied before anyone reads them; what the program holds of the
    /// copies takes up to twice a channel's window, beside long messages.
    /// [`shared_memory`](crate::shared_memory) says how memory is shared.
    pub fn share_memory_with(share_memory_with: ShareWith);

    /// Shares memory also with nodes in other network namespaces, which it meets at Unix sockets in
    /// this directory.
    #[default("none")]
    ///
    /// Both nodes need a setting for the same directory, such as one below `/run` that two containers
    /// mount; the paths may differ. It has to be on `tmpfs`, so that no node waits for a disk. If
    /// others than its owner may write there, it has to be sticky (`chmod 1777`), so that nobody takes
    /// the place of another's socket; its owner and root are trusted with that. A socket is there
    /// while two nodes meet; its name stays if its process is killed meanwhile.
    ///
    /// If nodes cannot meet there, [`Peer::fabric_reason`](crate::Peer::fabric_reason) says why.
    pub fn shared_memory_directory(mut self, directory: impl Into<PathBuf>) -> Self {
        self.settings.shared_memory_directory = Some(directory.into());
        self
    }

    /// Sets the node's identity, 16 bytes that peers see.
    #[default("random")]
    /// Peers then take a restart for another node. An identity must be used by one node only. A node
    /// that comes with the same one later is taken for a restart of this node, which ends the
    /// sessions that wait for it.
    pub fn identity(identity: [u8; 16]);

    /// Chooses how blocking calls wait.
    ///
    #[default("spin for 50 µs, then sleep")]
    /// Calls sleep at once if there is one CPU, or if fewer than four are shared with an I/O thread
    /// that has [cores](Self::cores) of its own.
    ///
    /// A spin may take 0 to 1 s. A longer spin spends a core to save the wake-up, which takes 5
    /// to 30 µs.
    ///
    /// A spinning call lets other threads run, and spins only in the time that they leave. If they
    /// keep a core for milliseconds, calls sleep at once, and try to spin again later.
    ///
    /// Under [`Driver::Tasks`] a task that waits for a message over shared memory spins for up to
    /// 4 µs first; spins that find nothing become rare, one of 128 waits. With [`Wait::Event`]
    /// nothing spins. The node's own task never does.
    pub fn wait(mut self, wait: Wait) -> Self {
        if let Wait::Adaptive { spin } = wait {
            self.note(within!("spin", spin, 0 s..=1 s));
        }
        self.settings.wait = Some(wait);
        self
    }

    /// Places the sessions that peers dial: `place` gets the peer and its address, and returns the
    /// number of an engine.
    #[default("the engine with the fewest sessions")]
    /// It also gets those for which `place` returns `None` or a number that no engine has.
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
    ///     .place_accepted(|_, address| Some(usize::from(!address.is_loopback())))
    ///     .build()?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn place_accepted(
        mut self,
        place: impl Fn(PeerId, Address) -> Option<usize> + Send + Sync + 'static,
    ) -> Self {
        self.settings.placement = Some(AcceptPlacement::new(place));
        self
    }

    /// Sets the cores of the node's I/O threads, one for each, starting over if there are fewer
    /// cores than threads. Nothing else should run on them.
    #[default("none")] #[range("the cores that the process may run on")]
    /// A core that cannot be had is a warning.
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

    /// Sets the function that tells the trace context of the thread or task that calls it, as the
    /// program's tracer has it. Calls of all callers of the node then carry it, and so do messages
    /// of channels that [ask for it](crate::ChannelBuilder::trace_context).
    #[default("none")]
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
    pub fn trace_context(current: fn() -> Option<TraceContext>);

    /// Keeps histograms of how long calls take, at the caller and at the handler, and of the waits
    /// for acknowledgements, by the name of the service or channel:
    /// [`NodeStats::histograms`](crate::stats::NodeStats::histograms).
    #[default(false)]
    ///
    /// Each call and each wait then reads the clock twice and adds to two counters that all threads
    /// share. A histogram takes 4.3 KiB, for each of up to 64 names. Messages themselves pay
    /// nothing.
    ///
    /// ```
    /// use ibex::{Node, Pod, stats::Measured};
    /// use ibex::prelude::*;
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
    pub fn histograms(keeps: bool);
}

settings! {
    /// What turns a node's engines.
    pub(crate) struct ThreadSettings;
    const THREADS in NodeBuilder, |self| self.settings.threads;

    /// Chooses the threads or tasks that turn the engine.
    #[default(Driver::Threads => "[`Driver::Threads`]")]
    pub fn driver(driver: Driver);

    /// Sets the number of the node's engines, each with an I/O thread of its own.
    #[default(1)] #[range(1..=64)]
    ///
    /// An engine has its own epoll set, arrival memory and sessions. A new session is placed on the
    /// engine that has the fewest, and stays there; [`Peer::engine`](crate::Peer::engine) returns
    /// which. [`Node::connect_on`] and
    /// [`place_accepted`](Self::place_accepted) name it instead. Over RDMA each engine has queues and
    /// receive buffers of its own on each device port that its sessions use, as many as
    /// `RdmaSettings` says. Fan-ins, groups and calls span engines.
    ///
    /// [The guide](https://docs.rs/ibex/latest/ibex/guide/which_driver/index.html#several-io-threads) says when several engines help: if
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
    pub fn io_threads(threads: usize);
}

const _: () = assert!(MOST_ENGINES == 64, "the range of io_threads");

settings! {
    /// How long a node waits for its peers.
    pub(crate) struct TimeSettings;
    const TIME in NodeBuilder, |self| self.settings.time;

    /// Limits how long `connect` tries.
    #[default(10 s)] #[range(1 ms..)]
    /// [`Duration::MAX`] is for ever.
    ///
    /// "Connection refused" counts as "not yet there". Another protocol, or a refusal by the peer,
    /// ends the attempt at once. A longer time-out tolerates peers that start later, and reports
    /// later those that never do.
    pub fn connect_timeout(timeout: Duration);

    /// Limits how long a connected peer may take to agree on a session.
    #[default(5 s)] #[range(10 ms..)]
    /// `connect_timeout` ends a handshake earlier if it is shorter. A longer time-out tolerates
    /// slower peers. A silent peer then keeps one of the listener's 256 places for handshakes for
    /// as long.
    pub fn handshake_timeout(timeout: Duration);

    /// Limits how long dropping the node may take to deliver what was sent.
    #[default(1 s)] #[range(0 s..)]
    /// [`Duration::MAX`] is for ever. A shorter time loses messages that a slow peer has not taken,
    /// and drop cannot report them: [`Node::close`] does.
    pub fn linger(time: Duration);

    /// Sets how long a peer's host may leave sent data unanswered before its connection counts as
    /// broken.
    #[default(3 s)] #[range(1 s..)]
    /// The engine looks once a second.
    ///
    /// A shorter time notices a dead network sooner, and mistakes a lossy one for it: the kernel
    /// repeats a lost packet after 0.2 s, and then after twice as long each time. The host of a
    /// peer that is stopped, or does not read, still answers. An end that sends nothing notices by
    /// TCP's keepalive, within 19 s.
    pub fn notice_timeout(timeout: Duration);

    /// Sets how long a session whose connection broke waits for another. Until then its handles go
    /// on or wait; after that the peer is [gone](crate::EndCause::PeerGone).
    #[default(30 s)] #[range(10 ms..)]
    /// [`Duration::MAX`] is for ever. A longer time survives longer outages. The node keeps sent
    /// messages for this time, and calls without a time-out of their own wait for as long.
    pub fn session_timeout(timeout: Duration);

    /// Sets how long the host of a suspended peer may refuse connections until the peer counts as
    /// [gone](crate::EndCause::PeerGone), if this node dials.
    #[default(5 s)] #[range(10 ms..)]
    /// [`Duration::MAX`] leaves the decision to [`session_timeout`](Self::session_timeout).
    ///
    /// A refusal says that no process listens at the peer's address. Then the peer's process has
    /// ended, in most cases, and nothing brings the session back: a process that is started in its
    /// place is another run, and gets a session of its own. Only refusals in a row count, so any
    /// other answer, or none, begins the count anew. The end of the session is not
    /// [certain](crate::EndCause::PeerGone), since a refusal may also come from a proxy, a load
    /// balancer or a packet filter before a living peer. A longer time survives a longer restart of
    /// such a device.
    pub fn peer_gone_after(time: Duration);

    /// Sets how long a session over verbs asks for another queue pair when its queue pair, device
    /// or connection broke. After that it goes on over TCP.
    #[default(1 s)] #[range(0 s..)]
    /// Most interruptions are over within the default; 0 is TCP at once, and [`Duration::MAX`] is
    /// verbs or nothing.
    ///
    /// The setting of the end that connected holds. Policies come first: the session does not go to
    /// TCP if [`fabric`](Self::fabric) excludes it at either node.
    ///
    /// While the session asks, it moves nothing: senders go on until their windows are full, and
    /// calls wait longer. With a shorter time, a brief interruption costs the session its queue
    /// pair for good. A new session to the same peer gets verbs again.
    pub fn fail_over_after(time: Duration);
}

settings! {
    /// What a node's peers may make it hold.
    pub(crate) struct LimitSettings;
    const LIMITS in NodeBuilder, |self| self.settings.limits;

    /// Limits the channel ends that a session may have open at each of its nodes. The smaller value
    /// of both nodes holds.
    #[default(1024)] #[range(1..=16384)]
    ///
    /// An end costs some hundred bytes and, once it is used, its [window and more](Self#memory).
    /// Opening one more fails at either end with
    /// [`OpenErrorKind::TooMany`](crate::OpenErrorKind::TooMany), which has the limit. A peer that
    /// opens one more all the same loses its session. An end that was dropped counts until the peer
    /// has opened its own end, which is then told what was sent and that the channel has ended.
    pub fn max_channels(ends: u32);

    /// Limits the sessions that one peer may have with this node, whichever connected.
    #[default(1024)] #[range(1..=65536)]
    ///
    /// A session costs a descriptor (five over shared memory), and [memory](Self#memory). One more
    /// is refused: both ends receive the limit and whose it is, and `connect` fails as
    /// [`ConnectErrorKind::Refused`](crate::ConnectErrorKind::Refused). A session counts until its
    /// end is noticed here; a session of a node with itself counts twice.
    ///
    /// Peers with certificates are told apart by the names that they prove: all processes with one
    /// certificate share its places. Other peers are told apart by their [`identity`](Self::identity),
    /// and sessions of an earlier run do not keep the next run out. The limit keeps a faulty peer from
    /// taking all places. Strangers can make identities up, so against them there is
    /// [`max_node_sessions`](Self::max_node_sessions).
    pub fn max_peer_sessions(sessions: u32);

    /// Limits all sessions of this node together.
    #[default(4096)] #[range(1..=65536)]
    /// The price of a session, and the fate of one more, are those of
    /// [`max_peer_sessions`](Self::max_peer_sessions). The process's limit on descriptors (`ulimit
    /// -n`) is often lower.
    ///
    /// Where peers have certificates, a new session may take the place of a suspended one that has
    /// been without a connection for longer than with one, and whose peer has at least two places
    /// more. That session ends with [`PeerGone`](crate::EndCause::PeerGone), whose text says so.
    pub fn max_node_sessions(sessions: u32);

    /// Limits the bytes that one TCP session lets its peer keep in flight.
    #[default(2 MiB)] #[range(512 KiB..=1 GiB)]
    /// A higher value lets one fast sender run further ahead of the network. Only bytes that
    /// arrived and were not read use memory. [`node_credit_bytes`](Self::node_credit_bytes) limits
    /// all sessions together, and if it is lower, it holds for one as well.
    ///
    /// 257 KiB of this are the session's own from its beginning. It has the rest once its peer has
    /// used half of them.
    pub fn session_credit_bytes(bytes: u64);

    /// Limits the bytes that all TCP sessions of the node together let their peers keep in flight,
    /// beside 257 KiB that are each session's own.
    #[default(256 MiB)] #[range(512 KiB..=1 TiB)]
    /// The default suffices for 128 sessions with the default
    /// [`session_credit_bytes`](Self::session_credit_bytes).
    ///
    /// While the limit suffices, every session that sends much has its full credit. With more of them,
    /// they share the limit equally. Below 257 KiB for each, they take turns. Sessions that send
    /// nothing keep none of it. A peer that stops to answer keeps what it was lent until its session
    /// is suspended or over, and never what is another session's own.
    ///
    /// A higher value takes more memory where many peers send faster than their messages are read:
    /// at worst this much, and 257 KiB and a block of 1 MiB for each session.
    pub fn node_credit_bytes(bytes: u64);

    /// Limits the bytes of long messages that peers may make this process hold.
    #[default(None => "a quarter of what the process may have")] #[range(1 MiB..=64 TiB)]
    /// A process may have the least of the machine's memory, its control groups' limits, and
    /// RLIMIT_AS and RLIMIT_DATA where they are set.
    ///
    /// Short messages do not count, nor does the first MiB of each of four messages that begin in a
    /// session; the [sum](NodeBuilder#memory) has everything. A message counts from the arrival of
    /// its first bytes until the application has released it. Memory that is kept of it for the
    /// next message counts too.
    ///
    /// Over TCP and verbs a message is charged as it comes. Over shared memory the charge is the
    /// sender's memory that is mapped for it. A message for which there is no room waits, and its
    /// sender with it: nothing that was sent is lost. The oldest message that has begun to come
    /// always has room to become whole, once earlier ones are released.
    ///
    /// A receiver whose program holds everything that fits waits for its own program;
    /// [`Event::Stalled`](crate::Event::Stalled) says so.
    /// [`max_message_bytes`](crate::ChannelBuilder::max_message_bytes) of a receiving end is
    /// lowered to `memory_limit`; a longer message is
    /// [`SendErrorKind::TooLong`](crate::SendErrorKind::TooLong).
    ///
    /// All nodes of a process are charged together. If their limits differ, each takes in more only
    /// while the sum is below its own limit.
    ///
    /// A higher limit lets more or longer messages wait here for a slow program; a lower limit
    /// keeps them at their senders.
    pub fn memory_limit(bytes: u64 as Option<u64>);
}
