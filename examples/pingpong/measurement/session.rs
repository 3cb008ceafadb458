//! One measurement over ibex: a session between two nodes, an order that says what
//! to measure, the measurement, and what the other side checked.
//!
//! The order and the outcome travel over channels of their own, which are closed
//! while anything is timed. So the same code serves a peer process on this host and
//! a listener on another one.

use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr},
    slice,
    time::Duration,
};

use ibex::{Driver, Fabric, Node, NodeBuilder, Peer, Policy, Raw, Rkyv, Serde, Wait};
use ibex_harness::{
    Error,
    check::Tally,
    cores::{self, Cores},
    job::{Figures, Job, Mode},
    limit::Limit,
    link,
    pair::{self, Pair, Task},
    run_keys::RunKeys,
    verbs_port::VerbsPort,
};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::Value;

use super::{
    channels::{Care, CodecName, EntryChannels, MarkedChannels, RawChannels, Side},
    costs::Costs,
    pairs, protection,
};

/// How a node is made; the same on both sides of a local pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Setup {
    /// Who runs the engine.
    pub(crate) driver: DriverName,
    /// The fabric that must be used; none leaves the choice to ibex.
    pub(crate) fabric: Option<FabricName>,
    /// Whether the peer may write large messages to where they are read (verbs).
    pub(crate) trusts: bool,
    /// Whether the measuring end of a caller waits as a node does by default, which is to
    /// sleep after a while.
    pub(crate) sleeps: bool,
    /// How nodes authenticate each other, if they do.
    pub(crate) protection: Option<RunKeys>,
    /// Sessions between the two nodes, each with a thread at either end.
    pub(crate) sessions: usize,
    /// I/O threads of each node.
    pub(crate) io_threads: usize,
}

/// Who runs the engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum DriverName {
    /// The thread that calls, busy-polling.
    Caller,
    /// Whoever waits, with the default way of waiting, and the node's I/O thread while nobody
    /// does.
    Threads,
}

impl DriverName {
    /// The name as it stands in options and rows.
    pub(crate) fn name(self) -> &'static str {
        match self {
            DriverName::Caller => "caller",
            DriverName::Threads => "threads",
        }
    }
}

/// A fabric that can be asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum FabricName {
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

/// The same bytes without a library.
impl From<FabricName> for Limit {
    fn from(name: FabricName) -> Limit {
        match name {
            FabricName::Shm => Limit::Shm,
            FabricName::Tcp => Limit::Tcp,
            FabricName::Verbs => Limit::Verbs,
        }
    }
}

/// About half a second at the speed of the raw limit, by messages or by bytes.
pub(crate) fn usual_iters(fabric: FabricName, mode: Mode, size: usize) -> u64 {
    let (messages, bytes) = match (fabric, mode) {
        (FabricName::Shm, Mode::Latency) => (1_000_000, 1 << 30),
        (FabricName::Shm, Mode::Stream) => (10_000_000, 8 << 30),
        (FabricName::Tcp, Mode::Latency) => (20_000, 1 << 29),
        (FabricName::Tcp, Mode::Stream) => (4_000_000, 1 << 30),
        // Of a software device in an emulator; hardware is through with them sooner.
        (FabricName::Verbs, Mode::Latency) => (5_000, 1 << 25),
        (FabricName::Verbs, Mode::Stream) => (200_000, 1 << 25),
    };
    u64::min(messages, bytes / size.max(1) as u64).max(FEWEST_ITERS)
}

/// Fewer say nothing.
pub(crate) const FEWEST_ITERS: u64 = 10;

/// What the answering side is to do.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Order {
    /// What is measured.
    pub(crate) job: Job,
    /// How messages become bytes.
    pub(crate) codec: CodecName,
    /// How much is done with them.
    pub(crate) care: Care,
}

impl Order {
    /// One in which every byte is compared.
    pub(crate) fn checked(job: Job, codec: CodecName) -> Order {
        let care = Care::Checked;
        Order { job, codec, care }
    }
}

/// What the other side tells at the end.
#[derive(Debug, Serialize, Deserialize)]
struct Outcome {
    tally: Tally,
    costs: Costs,
}

/// Does `work` with a peer process on this host, which answers one [`Order`].
pub(crate) fn with_peer<R>(
    cores: Cores,
    setup: Setup,
    work: impl FnOnce(&Peer) -> Result<R, Error>,
) -> Result<R, Error> {
    with_sessions(cores, &cores, setup, |peers| work(&peers[0]))
}

/// Does `work` with all sessions of a peer process on this host, which answers one [`Order`] over
/// each. The threads of both nodes start on any of `engine_cores`.
pub(crate) fn with_sessions<R>(
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
pub(crate) fn measure(peer: &Peer, core: usize, order: Order) -> Result<Figures, Error> {
    measure_on(peer, &[core], order).map(|(figures, _)| figures)
}

/// Measures with this thread on any of `cores`. Returns also what both ends together asked of the
/// device meanwhile.
pub(crate) fn measure_on(
    peer: &Peer,
    cores: &[usize],
    order: Order,
) -> Result<(Figures, Costs), Error> {
    tell(peer, "order", &order)?;
    // Only now: threads that the node started are not to share these cores.
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

/// The task of a peer process: one order of each session.
pub(crate) fn answer_here(cores: Cores, task: Value) -> Result<Tally, Error> {
    let task = serde_json::from_value(task).map_err(Error::subject)?;
    let (setup, engine_cores): (Setup, Vec<usize>) = task;
    cores::keep_to(&engine_cores)?;
    let address = SocketAddr::new(setup.local_address()?, 0);
    // A stranger who connects, where that is no loopback address, finds one measurement, and is
    // refused it.
    let builder = setup.builder()?.listen(address).insecure_network();
    let node = builder.build().map_err(Error::subject)?;
    pair::tell(&node.local_addr())?;
    let peers = (0..setup.sessions.max(1)).map(|_| node.accept());
    let peers = peers.collect::<Result<Vec<_>, _>>();
    match &peers.map_err(Error::subject)?[..] {
        [peer] => answer(peer, cores[1]),
        peers => pairs::answer(peers, &engine_cores),
    }
}

/// Does what the peer orders, on `core`; what was checked here.
pub(crate) fn answer(peer: &Peer, core: usize) -> Result<Tally, Error> {
    answer_on(peer, slice::from_ref(&core))
}

/// Does what the peer orders, on any of `cores`; what was checked here.
pub(super) fn answer_on(peer: &Peer, cores: &[usize]) -> Result<Tally, Error> {
    let Order { job, codec, care } = listen(peer, "order")?;
    job.check()?;
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

impl Setup {
    /// Nodes with one session and one engine.
    pub(crate) fn new(driver: DriverName, fabric: Option<FabricName>) -> Self {
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

    /// Where two processes of this host meet. An RDMA device is chosen by the network that
    /// a session starts on, so for verbs that is the one of the limit's device.
    fn local_address(self) -> Result<IpAddr, Error> {
        let device_address = match self.fabric {
            Some(FabricName::Verbs) => VerbsPort::choose()?.address(),
            _ => None,
        };
        Ok(device_address.unwrap_or(Ipv4Addr::LOCALHOST.into()))
    }

    /// A node, as far as both sides want it alike.
    pub(crate) fn builder(self) -> Result<NodeBuilder, Error> {
        let builder = match self.driver {
            DriverName::Caller if self.sleeps => Node::builder().driver(Driver::Caller),
            DriverName::Caller => Node::builder().driver(Driver::Caller).wait(Wait::BusyPoll),
            DriverName::Threads => Node::builder().driver(Driver::Threads),
        };
        let builder = builder.io_threads(self.io_threads);
        // A machine that emulates another one, and does other things, takes its time.
        let builder = builder
            .connect_timeout(PATIENCE)
            .handshake_timeout(PATIENCE);
        // The limit has a receive queue to itself, too.
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

/// Who has sent a stream may be this far ahead of who still checks it: some messages of
/// [`Job::MAX_SIZE`], in a build without optimization.
const PATIENCE: Duration = Duration::from_secs(120);
