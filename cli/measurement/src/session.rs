//! A measurement over ibex: a session between two nodes, an order that says what to measure, the
//! measurement itself, and the other side's checks.
//!
//! The order and the outcome travel over channels of their own, which are closed while anything is
//! timed. The same code therefore serves a peer process on this host and a listener on another one.

#[cfg(feature = "verbs")]
use std::net::Ipv6Addr;
use std::{
    iter,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    slice,
    time::Duration,
};

use ibex::{Address, Driver, Fabric, Node, NodeBuilder, Peer, Policy, Raw, Rkyv, Serde, Wait};
use ibex_harness::{
    Error,
    check::Tally,
    cores::{self, Cores},
    far_limit::{self, Door, DoorKey},
    job::{Figures, Job, Mode},
    limit::Limit,
    link,
    pair::{self, Pair, Task},
    run_keys::RunKeys,
    verbs_port::VerbsPort,
};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::Value;

use crate::{
    channels::{Care, CodecName, EntryChannels, MarkedChannels, RawChannels, Side},
    costs::Costs,
    pairs, protection,
};

/// Settings of a node, equal on both sides of a local pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Setup {
    /// The driver of the node's engine.
    pub driver: DriverName,
    /// The required fabric; with `None`, ibex chooses.
    pub fabric: Option<FabricName>,
    /// Lets the peer write large messages straight into this node's memory (verbs).
    pub trusts: bool,
    /// Lets the measuring end of a caller wait as a node does by default, which sleeps after a
    /// while.
    pub sleeps: bool,
    /// Keys by which the nodes authenticate each other, if they do.
    pub protection: Option<RunKeys>,
    /// Sessions between the two nodes, each with one thread at either end.
    pub sessions: usize,
    /// I/O threads of each node.
    pub io_threads: usize,
}

/// The driver of a node's engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DriverName {
    /// The calling thread turns the engine and busy-polls.
    Caller,
    /// Any waiting thread turns the engine and waits as by default; the node's I/O thread does
    /// while none waits.
    Threads,
}

impl DriverName {
    /// Returns the name as it stands in options and rows.
    pub fn name(self) -> &'static str {
        match self {
            DriverName::Caller => "caller",
            DriverName::Threads => "threads",
        }
    }
}

/// A fabric that can be asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum FabricName {
    /// Shared memory.
    Shm,
    /// TCP.
    Tcp,
    /// RDMA verbs.
    Verbs,
}

impl From<FabricName> for Fabric {
    fn from(name: FabricName) -> Fabric {
        match name {
            FabricName::Shm => Fabric::Shm,
            FabricName::Tcp => Fabric::Tcp,
            FabricName::Verbs => Fabric::Verbs,
        }
    }
}

/// Maps a fabric to its raw limit, which carries the same bytes without a library.
impl From<FabricName> for Limit {
    fn from(name: FabricName) -> Limit {
        match name {
            FabricName::Shm => Limit::Shm,
            FabricName::Tcp => Limit::Tcp,
            FabricName::Verbs => Limit::Verbs,
        }
    }
}

/// Returns the iterations that take about half a second at the speed of the raw limit, bounded by
/// messages and by bytes.
pub fn usual_iters(fabric: FabricName, mode: Mode, size: usize) -> u64 {
    let (messages, bytes) = match (fabric, mode) {
        (FabricName::Shm, Mode::Latency) => (1_000_000, 1 << 30),
        (FabricName::Shm, Mode::Stream) => (10_000_000, 8 << 30),
        (FabricName::Tcp, Mode::Latency) => (20_000, 1 << 29),
        (FabricName::Tcp, Mode::Stream) => (4_000_000, 1 << 30),
        // The device is software in an emulator; hardware is done sooner.
        (FabricName::Verbs, Mode::Latency) => (5_000, 1 << 25),
        (FabricName::Verbs, Mode::Stream) => (200_000, 1 << 25),
    };
    u64::min(messages, bytes / size.max(1) as u64).max(FEWEST_ITERS)
}

/// The least number of iterations; fewer give no usable figure.
pub const FEWEST_ITERS: u64 = 10;

/// Instructions to the answering side.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Order {
    /// The measurement to take part in.
    pub job: Job,
    /// The codec of the messages.
    pub codec: CodecName,
    /// The work to do on each message.
    pub care: Care,
    /// The limit that is measured between the two hosts, in place of ibex.
    #[serde(default)]
    pub limit: Option<Limit>,
    /// The sessions that take part at once, if the order comes from another host.
    #[serde(default = "one")]
    pub sessions: usize,
}

fn one() -> usize {
    1
}

impl Order {
    /// Returns an order in which every byte is compared.
    pub fn checked(job: Job, codec: CodecName) -> Order {
        Order {
            job,
            codec,
            care: Care::Checked,
            limit: None,
            sessions: 1,
        }
    }
}

/// Results of the other side, sent at the end.
#[derive(Debug, Serialize, Deserialize)]
struct Outcome {
    tally: Tally,
    costs: Costs,
}

/// Starts a peer process on this host that answers one [`Order`], and runs `work` with it.
pub fn with_peer<R>(
    cores: Cores,
    setup: Setup,
    work: impl FnOnce(&Peer) -> Result<R, Error>,
) -> Result<R, Error> {
    with_sessions(cores, &cores, setup, |peers| work(&peers[0]))
}

/// Starts a peer process on this host that answers one [`Order`] over each session, and runs `work`
/// with all sessions. The threads of both nodes may run on all of `engine_cores`.
pub fn with_sessions<R>(
    cores: Cores,
    engine_cores: &[usize],
    setup: Setup,
    work: impl FnOnce(&[Peer]) -> Result<R, Error>,
) -> Result<R, Error> {
    let theirs = Setup {
        sleeps: false,
        ..setup
    };
    let task = serde_json::to_value((theirs, engine_cores)).map_err(Error::subject)?;
    let mut pair = Pair::start(cores, Task::Subject(task))?;
    cores::keep_to(engine_cores)?;
    let address: SocketAddr = pair.receive("the address of its node")?;
    let node = setup.builder()?.build().map_err(Error::subject)?;
    let peers = (0..setup.sessions.max(1)).map(|_| node.connect(address));
    let peers = peers.collect::<Result<Vec<_>, _>>();
    let result = work(&peers.map_err(Error::subject)?)?;
    pair.finish()?;
    Ok(result)
}

/// Measures between this thread, on `core`, and the node of `peer`.
pub fn measure(peer: &Peer, core: usize, order: Order) -> Result<Figures, Error> {
    measure_on(peer, &[core], order).map(|(figures, _)| figures)
}

/// Measures with this thread on any of `cores`. Also returns the load that both ends put on the
/// device meanwhile.
pub fn measure_on(peer: &Peer, cores: &[usize], order: Order) -> Result<(Figures, Costs), Error> {
    tell(peer, "order", &order)?;
    // The thread is pinned only now, so that threads that the node started do not share these
    // cores.
    cores::keep_to(cores)?;
    let honest = Job {
        flip: false,
        ..order.job
    };
    let mut tally = Tally::default();
    let before = Costs::of(peer);
    let stopped = match order.codec {
        CodecName::Raw if order.care != Care::Checked => {
            let mut link = MarkedChannels::open(peer, honest, order.care, Side::Measuring)?;
            link::measure(&order.job, &mut link, &mut tally)
        }
        CodecName::Raw => {
            let mut link = RawChannels::open(peer, honest, Side::Measuring)?;
            link::measure(&order.job, &mut link, &mut tally)
        }
        CodecName::Rkyv => {
            let mut link = EntryChannels::<Rkyv>::open(peer, honest, Side::Measuring)?;
            link::measure(&order.job, &mut link, &mut tally)
        }
        CodecName::Serde => {
            let mut link = EntryChannels::<Serde>::open(peer, honest, Side::Measuring)?;
            link::measure(&order.job, &mut link, &mut tally)
        }
    }?;
    let ours = Costs::of(peer).since(before);
    let theirs: Outcome = listen(peer, "outcome")?;
    let figures = stopped.figures(tally, &theirs.tally);
    Ok((figures, ours.and(theirs.costs)))
}

/// Runs the peer process's task: answers one order over each session.
pub fn answer_here(cores: Cores, task: Value) -> Result<Tally, Error> {
    let task = serde_json::from_value(task).map_err(Error::subject)?;
    let (setup, engine_cores): (Setup, Vec<usize>) = task;
    cores::keep_to(&engine_cores)?;
    let address = SocketAddr::new(setup.local_address()?, 0);
    // A stranger that connects, if the address is no loopback address, would get one measurement at
    // most, and is refused it.
    let builder = setup.builder()?.listen(address).insecure_network();
    let node = builder.build().map_err(Error::subject)?;
    pair::tell(&node.local_addr())?;
    let peers = (0..setup.sessions.max(1)).map(|_| node.accept());
    let peers = peers.collect::<Result<Vec<_>, _>>();
    match &peers.map_err(Error::subject)?[..] {
        [peer] => answer(peer, cores[1]),
        peers => pairs::answer(peers, None, &engine_cores),
    }
}

/// Carries out the peer's order on `core`. Returns the checks made here.
fn answer(peer: &Peer, core: usize) -> Result<Tally, Error> {
    answer_on(peer, slice::from_ref(&core))
}

/// Carries out the peer's order on any of `cores`. Returns the checks made here.
pub fn answer_on(peer: &Peer, cores: &[usize]) -> Result<Tally, Error> {
    let order = take_order(peer)?;
    carry_out(peer, cores, order)
}

/// Answers a visitor from another host: one order, over this session alone on `core`, or over as
/// many sessions as the order says on any of `all_cores`. Returns the checks made here.
pub fn answer_visitor(
    node: &Node,
    peer: Peer,
    core: usize,
    all_cores: &[usize],
) -> Result<Tally, Error> {
    let order = take_order(&peer)?;
    match (order.limit, order.sessions) {
        (Some(limit), _) => answer_limit(node, &peer, core, limit, &order.job),
        (None, 0 | 1) => carry_out(&peer, &[core], order),
        (None, MAX_SESSIONS..) => Err(Error::subject("a visitor asked for too many sessions")),
        (None, sessions) => {
            let others = (1..sessions).map(|_| node.accept_timeout(PATIENCE));
            let peers = iter::once(Ok(peer)).chain(others);
            let peers = peers.collect::<Result<Vec<_>, _>>();
            pairs::answer(&peers.map_err(Error::subject)?, Some(order), all_cores)
        }
    }
}

/// Measures a limit between this host and the peer's.
pub fn measure_limit(peer: &Peer, core: usize, limit: Limit, job: Job) -> Result<Figures, Error> {
    let host = peer
        .address()
        .ip()
        .ok_or_else(|| Error::subject(format!("there is no TCP to {}", peer.address())))?;
    let order = Order {
        limit: Some(limit),
        ..Order::checked(job, CodecName::Raw)
    };
    tell(peer, "order", &order)?;
    let key: DoorKey = listen(peer, "door")?;
    cores::keep_to(&[core])?;
    let honest = Job { flip: false, ..job };
    let (stopped, tally) = far_limit::measure(host, &key, limit, honest)?;
    let theirs: Outcome = listen(peer, "outcome")?;
    Ok(stopped.figures(tally, &theirs.tally))
}

fn answer_limit(
    node: &Node,
    peer: &Peer,
    core: usize,
    limit: Limit,
    job: &Job,
) -> Result<Tally, Error> {
    let address = node.local_addr().and_then(Address::ip);
    let door = Door::open(address.unwrap_or(Ipv4Addr::UNSPECIFIED.into()), limit)?;
    tell(peer, "door", &door.key()?)?;
    cores::keep_to(&[core])?;
    let tally = door.answer(job)?;
    let costs = Costs::default();
    let outcome = Outcome { tally, costs };
    tell(peer, "outcome", &outcome)?;
    Ok(outcome.tally)
}

/// Carries out an order. Returns the checks made here.
pub(crate) fn carry_out(peer: &Peer, cores: &[usize], order: Order) -> Result<Tally, Error> {
    let Order {
        job, codec, care, ..
    } = order;
    cores::keep_to(cores)?;
    let side = Side::Answering;
    let before = Costs::of(peer);
    let tally = match codec {
        CodecName::Raw if care != Care::Checked => {
            link::answer(&job, &mut MarkedChannels::open(peer, job, care, side)?)
        }
        CodecName::Raw => link::answer(&job, &mut RawChannels::open(peer, job, side)?),
        CodecName::Rkyv => link::answer(&job, &mut EntryChannels::<Rkyv>::open(peer, job, side)?),
        CodecName::Serde => link::answer(&job, &mut EntryChannels::<Serde>::open(peer, job, side)?),
    }?;
    let costs = Costs::of(peer).since(before);
    let outcome = Outcome { tally, costs };
    tell(peer, "outcome", &outcome)?;
    Ok(outcome.tally)
}

fn take_order(peer: &Peer) -> Result<Order, Error> {
    let order: Order = listen(peer, "order")?;
    order.job.check()?;
    Ok(order)
}

impl Setup {
    /// Returns settings of nodes with one session and one engine.
    pub fn new(driver: DriverName, fabric: Option<FabricName>) -> Self {
        Self {
            driver,
            fabric,
            trusts: true,
            sleeps: false,
            protection: None,
            sessions: 1,
            io_threads: 1,
        }
    }

    /// Returns the address at which two processes of this host meet. ibex chooses an RDMA device by
    /// the network of a session's connection, so for verbs this is the address of the limit's
    /// device.
    fn local_address(self) -> Result<IpAddr, Error> {
        let device_address = match self.fabric {
            Some(FabricName::Verbs) => match VerbsPort::choose() {
                Ok(port) => port.address(),
                Err(error) => Some(own_choice().ok_or(error)?),
            },
            _ => None,
        };
        Ok(device_address.unwrap_or(Ipv4Addr::LOCALHOST.into()))
    }

    /// Returns a builder with the settings that both sides share.
    pub fn builder(self) -> Result<NodeBuilder, Error> {
        let builder = match self.driver {
            DriverName::Caller if self.sleeps => Node::builder().driver(Driver::Caller),
            DriverName::Caller => Node::builder().driver(Driver::Caller).wait(Wait::BusyPoll),
            DriverName::Threads => Node::builder().driver(Driver::Threads),
        };
        let builder = builder.io_threads(self.io_threads);
        // Emulated and busy machines need longer than the defaults allow.
        let builder = builder
            .connect_timeout(PATIENCE)
            .handshake_timeout(PATIENCE);
        // The limit has a receive queue of its own, so a single session gets one, too.
        #[cfg(feature = "verbs")]
        let builder = {
            let tuning = ibex::rdma::Tuning::new().shared_receives(self.sessions > 1);
            let settings = ibex::rdma::RdmaSettings::new().tuning(tuning);
            builder.rdma(settings.trust_peers(self.trusts))
        };
        let builder = match self.protection {
            Some(keys) => builder.security(protection::security(keys)?),
            None => builder,
        };
        Ok(match self.fabric {
            Some(fabric) => builder.fabric(fabric.into(), Policy::Require),
            None => builder,
        })
    }
}

/// Returns the address of the first device port that ibex finds, for builds without the limit of
/// verbs.
#[cfg(feature = "verbs")]
pub fn own_choice() -> Option<IpAddr> {
    let inventory = ibex::rdma::discover().ok()?;
    let addresses = inventory.devices.iter().filter_map(|device| {
        let wish = ibex::rdma::Wish::Device {
            name: device.name.clone(),
            port: None,
            gid_index: None,
        };
        let gid = Ipv6Addr::from(inventory.choose(&wish).ok()?.gid.gid.0);
        let is_routed = !gid.is_unicast_link_local();
        let address = gid.to_ipv4_mapped().map(IpAddr::V4);
        address.or(is_routed.then_some(IpAddr::V6(gid)))
    });
    addresses.into_iter().next()
}

/// Returns nothing: this build has no verbs.
#[cfg(not(feature = "verbs"))]
pub fn own_choice() -> Option<IpAddr> {
    None
}

/// Sends one value over a channel of its own, and closes it.
fn tell(peer: &Peer, name: &str, value: &impl Serialize) -> Result<(), Error> {
    let bytes = serde_json::to_vec(value).map_err(Error::subject)?;
    let channel = peer.channel(name).codec::<Raw>().open_timeout(PATIENCE);
    let channel = channel.sender::<[u8]>();
    let mut sender = channel.map_err(Error::subject)?;
    sender.send(&bytes).map_err(Error::subject)?;
    sender.close().map_err(Error::subject)
}

/// Receives what [`tell`] sends, and waits for the channel's end.
fn listen<T: DeserializeOwned>(peer: &Peer, name: &str) -> Result<T, Error> {
    let channel = peer.channel(name).codec::<Raw>().receiver::<[u8]>();
    let mut receiver = channel.map_err(Error::subject)?;
    let message = receiver.recv().map_err(Error::subject)?;
    let value = serde_json::from_slice(&message).map_err(Error::subject)?;
    drop(message);
    while receiver.next().map_err(Error::subject)?.is_some() {}
    Ok(value)
}

/// Sessions of one visitor, and one more.
const MAX_SESSIONS: usize = 1001;

/// The longest wait for the other side. The sender of a stream may be ahead of a checking receiver
/// by several messages of [`Job::MAX_SIZE`], and builds without optimization check slowly.
const PATIENCE: Duration = Duration::from_secs(120);
