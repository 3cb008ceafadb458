//! Proofs that need two real processes: this one, and a second run of the same program.
//!
//! Rules:
//!
//! 1. A proof has two sides with a session between them. The runner's process plays *here* and
//!    listens. A child, started for this one proof, plays *there* and connects, unless it is told
//!    to listen.
//! 2. Beside the session they talk over a socket pair, the child's standard input. It is for
//!    agreeing on times, not for the facts that are proven.
//! 3. Proofs run one after the other, and the runner has no threads of its own except a sleeping
//!    watchdog. Everything that a proof counts (allocations, processor time, memory, descriptors)
//!    therefore belongs to the library and to the proof.
//! 4. A side that panics ends the proof; the watchdog ends a proof in which the runner takes no
//!    [step](step) for minutes, and with the runner ends its child.
#![allow(dead_code, reason = "each test that includes this uses a part of it")]

#[path = "../extent/mod.rs"]
pub(crate) mod extent;

use std::{
    env, fmt,
    io::{ErrorKind, Read, Write},
    os::{fd::OwnedFd, unix::net::UnixStream},
    process::ExitCode,
    str::FromStr,
    sync::{
        OnceLock,
        atomic::{AtomicU64, Ordering},
        mpsc::{self, RecvTimeoutError},
    },
    thread,
    time::Duration,
};

use ibex::{Driver, Fabric, Node, Peer, Policy};
use ibex_harness::{
    process::{self, Process},
    verbs_port::{DEVICE_VARIABLE, VerbsPort},
};
use libtest_mimic::{Arguments, Trial};
use rustix::process::{getpid, getppid};

/// A claim about two processes.
pub(crate) struct Proof {
    name: String,
    setup: Setup,
    here: Play,
    there: Play,
}

type Play = Box<dyn Fn(&mut Party) + Send + Sync>;

/// Settings of the two nodes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Setup {
    pub(crate) fabric: Fabric,
    pub(crate) driver: Driver,
}

/// A process of a proof.
pub(crate) struct Party {
    pub(crate) node: Node,
    pub(crate) peer: Peer,
    pub(crate) other: Other,
    pub(crate) setup: Setup,
    proof: String,
}

/// The other process, reached beside the session.
pub(crate) struct Other {
    wire: UnixStream,
    pid: u32,
    /// The process that plays there, in the one that plays here.
    process: Option<Process>,
}

impl Proof {
    pub(crate) fn new(
        name: impl fmt::Display,
        setup: Setup,
        here: impl Fn(&mut Party) + Send + Sync + 'static,
        there: impl Fn(&mut Party) + Send + Sync + 'static,
    ) -> Self {
        let name = format!("{name}/{setup}");
        Self {
            name,
            setup,
            here: Box::new(here),
            there: Box::new(there),
        }
    }

    fn play_here(&self) {
        let _watchdog = Watchdog::start(&self.name);
        let node = self
            .setup
            .node()
            .listen("127.0.0.1:0")
            .build()
            .expect("the node listens");
        let (peer, other) = start_there(&node, &self.name);
        let mut party = Party::new(node, peer, other, self);
        (self.here)(&mut party);
        party.other.has_succeeded();
    }

    fn play_there(&self) {
        process::stay_with_parent().expect("the runner lives");
        let mut other = Other::of_child();
        let address: String = other.hear();
        let (node, peer) = if address == LISTEN {
            let builder = self.setup.node().listen("127.0.0.1:0");
            let node = builder.build().expect("the node listens");
            other.say(node.local_addr().expect("it listens"));
            let peer = node.accept().expect("the runner connects");
            (node, peer)
        } else {
            let node = self.setup.node().build().expect("the node starts");
            let peer = node.connect(address).expect("the runner listens");
            (node, peer)
        };
        (self.there)(&mut Party::new(node, peer, other, self));
    }
}

/// Runs the proofs that the command line selects; in a child, runs its side of its proof.
pub(crate) fn run(proofs: Vec<Proof>) -> ExitCode {
    if let Ok(name) = env::var(PROOF) {
        let proof = proofs.iter().find(|proof| proof.name == name);
        proof
            .expect("the runner and its child know the same proofs")
            .play_there();
        return ExitCode::SUCCESS;
    }
    let mut arguments = Arguments::from_args();
    arguments.test_threads = Some(1);
    let kind = |proof: &Proof| proof.name.split('/').next().unwrap_or_default().to_owned();
    let proofs = extent::drawn(proofs, &arguments, kind, |proof| proof.name.clone());
    let trial = |proof: Proof| {
        Trial::test(proof.name.clone(), move || {
            proof.play_here();
            Ok(())
        })
    };
    libtest_mimic::run(&arguments, proofs.into_iter().map(trial).collect()).exit_code()
}

impl Setup {
    pub(crate) const SHM: [Self; 2] = [
        Self {
            fabric: Fabric::Shm,
            driver: Driver::Caller,
        },
        Self {
            fabric: Fabric::Shm,
            driver: Driver::Threads,
        },
    ];
    pub(crate) const TCP: [Self; 2] = [
        Self {
            fabric: Fabric::Tcp,
            driver: Driver::Caller,
        },
        Self {
            fabric: Fabric::Tcp,
            driver: Driver::Threads,
        },
    ];

    pub(crate) const VERBS: [Self; 2] = [
        Self {
            fabric: Fabric::Verbs,
            driver: Driver::Caller,
        },
        Self {
            fabric: Fabric::Verbs,
            driver: Driver::Threads,
        },
    ];

    /// Returns every fabric under every driver. Verbs needs the feature of that name and an RDMA
    /// device: the one that `IBEX_TEST_DEVICE` names, otherwise any.
    pub(crate) fn all() -> impl Iterator<Item = Self> {
        let verbs = match device() {
            Some(_) => &Self::VERBS[..],
            None => &[],
        };
        let others = Self::SHM.into_iter().chain(Self::TCP);
        others.chain(verbs.iter().copied())
    }

    /// Returns every fabric under the driver that needs no help.
    pub(crate) fn with_threads() -> impl Iterator<Item = Self> {
        Self::all().filter(|setup| setup.driver == Driver::Threads)
    }

    /// Scales a count: `full`, or one in `part` of it if the device is emulated.
    pub(crate) fn count(self, full: u64, part: u64) -> u64 {
        match self.is_emulated() {
            true => full / part,
            false => full,
        }
    }

    /// Returns whether the kernel emulates the device, which takes a hundred times as long.
    pub(crate) fn is_emulated(self) -> bool {
        self.fabric == Fabric::Verbs && device().is_some_and(VerbsPort::is_software)
    }

    /// Returns a builder of a node with these settings.
    pub(crate) fn node(self) -> ibex::NodeBuilder {
        let builder = Node::builder()
            .driver(self.driver)
            .fabric(self.fabric, Policy::Require)
            .connect_timeout(Duration::MAX)
            .open_timeout(Duration::MAX);
        #[cfg(feature = "verbs")]
        if let Ok(device) = env::var(DEVICE_VARIABLE) {
            return builder.rdma(ibex::rdma::RdmaSettings::new().device(device));
        }
        builder
    }
}

impl fmt::Display for Setup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let driver = match self.driver {
            Driver::Threads => "threads",
            Driver::Caller => "caller",
            Driver::Tasks => "tasks",
        };
        write!(f, "{}/{driver}", self.fabric)
    }
}

impl Party {
    fn new(node: Node, peer: Peer, other: Other, proof: &Proof) -> Self {
        let (setup, proof) = (proof.setup, proof.name.clone());
        let party = Self {
            node,
            peer,
            other,
            setup,
            proof,
        };
        party.check();
        party
    }

    /// Starts, here, the next process after the other has ended; it connects to this node.
    pub(crate) fn meet_the_next(&mut self) {
        (self.peer, self.other) = start_there(&self.node, &self.proof);
        self.check();
    }

    /// Starts the next process, which listens, and connects to it.
    pub(crate) fn call_on_the_next(&mut self) {
        let mut other = Other::start(&self.proof);
        other.say(LISTEN);
        let address: String = other.hear();
        self.peer = self.node.connect(address).expect("the peer listens");
        self.other = other;
        self.check();
    }

    fn check(&self) {
        step();
        assert_ne!(self.other.pid, own_pid(), "a proof needs two processes");
        assert_eq!(self.peer.fabric(), self.setup.fabric);
        if let Some(pid) = self.peer.pid() {
            assert_eq!(pid, self.other.pid, "the session leads to another process");
        }
    }

    /// Waits until the other process has come to this point, without allocating. If callers drive
    /// the engine, it is driven meanwhile, so that the other side gets its answers.
    pub(crate) fn meet(&mut self) {
        step();
        let wire = &mut self.other.wire;
        wire.write_all(&[BEAT]).expect("the other process is there");
        wire.set_nonblocking(self.setup.driver == Driver::Caller)
            .expect("a socket can wait");
        let mut beat = [0];
        loop {
            match wire.read(&mut beat) {
                Ok(1) => break,
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    self.node.poll();
                    thread::yield_now();
                }
                ended => panic!("the other process ended before the proof did: {ended:?}"),
            }
        }
        assert_eq!(
            beat,
            [BEAT],
            "the two sides of the proof are not at the same place"
        );
        wire.set_nonblocking(false).expect("a socket can wait");
    }
}

/// Starts a process that plays there, and waits until it has connected.
fn start_there(node: &Node, proof: &str) -> (Peer, Other) {
    let mut other = Other::start(proof);
    other.say(node.local_addr().expect("it listens"));
    (node.accept().expect("the peer connects"), other)
}

impl Other {
    fn start(name: &str) -> Self {
        let (wire, theirs) = UnixStream::pair().expect("a socket pair");
        let mut again = process::again().expect("this program has a path");
        again.env(PROOF, name).stdin(OwnedFd::from(theirs));
        let process = Process::start(name, &mut again).expect("this program runs once more");
        Self {
            wire,
            pid: process.id(),
            process: Some(process),
        }
    }

    fn of_child() -> Self {
        let wire = rustix::io::dup(std::io::stdin()).expect("the runner left a socket");
        let pid = getppid().map_or(0, |pid| pid.as_raw_nonzero().get().unsigned_abs());
        Self {
            wire: UnixStream::from(wire),
            pid,
            process: None,
        }
    }

    /// Returns the other process's id.
    pub(crate) fn pid(&self) -> u32 {
        self.pid
    }

    /// Sends a line.
    pub(crate) fn say(&mut self, what: impl fmt::Display) {
        writeln!(self.wire, "{what}").expect("the other process is there");
    }

    /// Waits for a line.
    pub(crate) fn hear<T: FromStr<Err: fmt::Debug>>(&mut self) -> T {
        let mut line = Vec::new();
        let mut byte = [0];
        while self.wire.read(&mut byte).is_ok_and(|count| count == 1) && byte != *b"\n" {
            line.extend(byte);
        }
        step();
        let line = String::from_utf8(line).expect("lines are text");
        line.parse().unwrap_or_else(|error| {
            panic!("the other process ended or said {line:?} out of turn: {error:?}")
        })
    }

    /// Kills the process as `kill -9` does, and waits until it is gone.
    pub(crate) fn kill(&mut self) {
        let process = self.process.as_mut().expect("only the runner kills");
        process.kill().expect("a child can be killed");
    }

    fn has_succeeded(&mut self) {
        let process = self.process.as_mut().expect("only the runner asks");
        let status = process.wait().expect("a child can be waited for");
        assert!(
            status.success() || process::was_killed(status),
            "the other side failed: {status}"
        );
    }
}

/// Returns every order of `things`.
pub(crate) fn orders<T: Copy>(things: &[T]) -> Vec<Vec<T>> {
    let Some((&first, rest)) = things.split_first() else {
        return vec![Vec::new()];
    };
    let with_first_at = |at: usize, mut order: Vec<T>| {
        order.insert(at, first);
        order
    };
    let of_rest = orders(rest);
    let places = 0..=rest.len();
    places
        .flat_map(|at| {
            of_rest
                .iter()
                .map(move |order| with_first_at(at, order.clone()))
        })
        .collect()
}

/// Returns this process's id, as the kernel knows it.
pub(crate) fn own_pid() -> u32 {
    getpid().as_raw_nonzero().get().unsigned_abs()
}

/// Returns the device on which verbs is proven, if there is one.
fn device() -> Option<&'static VerbsPort> {
    static DEVICE: OnceLock<Option<VerbsPort>> = OnceLock::new();
    let choose = || {
        let port = VerbsPort::choose();
        // A device that was named must be used.
        let is_wanted = cfg!(feature = "verbs") && env::var_os(DEVICE_VARIABLE).is_some();
        assert!(port.is_ok() || !is_wanted, "{port:?}");
        port.ok()
    };
    DEVICE.get_or_init(choose).as_ref()
}

/// Says that the proof goes on. Each meeting with the other process does; a proof that needs minutes
/// between them on a slow machine calls this in its loop.
pub(crate) fn step() {
    STEPS.fetch_add(1, Ordering::Relaxed);
}

/// Ends the process when a proof hangs. It is no time limit, since it is far longer than any step
/// needs.
struct Watchdog {
    _done: mpsc::Sender<()>,
}

impl Watchdog {
    fn start(proof: &str) -> Self {
        let (done, is_done) = mpsc::channel();
        let message = format!("process {}: {proof} hangs; ending it", own_pid());
        thread::spawn(move || {
            let mut seen = STEPS.load(Ordering::Relaxed);
            while is_done.recv_timeout(PATIENCE) == Err(RecvTimeoutError::Timeout) {
                let steps = STEPS.load(Ordering::Relaxed);
                if steps == seen {
                    eprintln!("{message}");
                    std::process::abort();
                }
                seen = steps;
            }
        });
        Self { _done: done }
    }
}

/// The variable that names the proof whose other side a child plays.
const PROOF: &str = "TWO_PROCESS_PROOF";
/// The word that a child gets instead of an address.
const LISTEN: &str = "listen";
/// The byte that [`Party::meet`] exchanges.
const BEAT: u8 = b'.';
/// The longest time without a step.
const PATIENCE: Duration = Duration::from_secs(600);
static STEPS: AtomicU64 = AtomicU64::new(0);
