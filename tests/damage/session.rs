//! A session between two nodes, with a proxy in between that damages bytes.

use std::{
    fmt,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Duration,
};

use ibex::{Fabric, Integrity, Node, NodeBuilder, Peer, Policy};
use ibex_harness::{
    draw::Draw,
    proxy::{DAMAGES, Harm, Proxy},
};

use crate::{
    content::Lengths,
    ends::{self, Codec, Stream},
};

/// The traffic of a session while bytes of it are damaged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Traffic {
    /// Streams of raw, rkyv and serde messages both ways, and channels that open.
    Codecs,
    /// Large messages in both directions.
    Large,
    /// Channels with one message each, one channel after the other.
    Quiet,
    /// Channels with one message each, while each connection breaks and the handshake of the next
    /// is damaged.
    Handshakes,
}

/// Counts of the damage done, and of its effects.
#[derive(Clone, Debug, Default)]
pub(crate) struct Counted {
    pub(crate) damaged: [u64; DAMAGES.len()],
    /// Damage that the ends' counters report.
    pub(crate) noticed: u64,
    pub(crate) resumes: u64,
    pub(crate) replayed: u64,
    pub(crate) messages: u64,
    pub(crate) opened: u64,
}

impl Counted {
    pub(crate) fn faults(&self) -> u64 {
        self.damaged.iter().sum()
    }

    pub(crate) fn add(&mut self, other: &Self) {
        for (sum, more) in self.damaged.iter_mut().zip(other.damaged) {
            *sum += more;
        }
        self.noticed += other.noticed;
        self.resumes += other.resumes;
        self.replayed += other.replayed;
        self.messages += other.messages;
        self.opened += other.opened;
    }
}

impl fmt::Display for Counted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for damage in DAMAGES {
            write!(f, "{damage:?} {}, ", self.damaged[damage as usize])?;
        }
        let Self {
            noticed,
            resumes,
            replayed,
            messages,
            opened,
            ..
        } = self;
        write!(
            f,
            "noticed {noticed}, resumes {resumes}, replayed {replayed}, \
             messages {messages}, opens {opened}"
        )
    }
}

pub(crate) fn builder() -> NodeBuilder {
    let builder = Node::builder().fabric(Fabric::Tcp, Policy::Require);
    builder
        .connect_timeout(Duration::MAX)
        .open_timeout(Duration::MAX)
}

/// Both ends of the session, and the proxy between them.
pub(crate) struct Damaged {
    // The peers are dropped before their nodes.
    peers: [Peer; 2],
    _nodes: [Node; 2],
    proxy: Arc<Proxy>,
    traffic: Traffic,
    streams: Vec<Arc<Stream>>,
    is_over: Arc<AtomicBool>,
}

impl Damaged {
    pub(crate) fn begin(traffic: Traffic) -> Self {
        let builder = || builder().integrity(Integrity::On);
        let there = builder().listen("127.0.0.1:0").build().unwrap();
        let here = builder().build().unwrap();
        let proxy = Arc::new(Proxy::start(there.local_addr().unwrap().inet().unwrap()).unwrap());
        let peer = here.connect(proxy.address()).unwrap();
        let other = there.accept().unwrap();
        assert!(peer.payload_checksums() && other.payload_checksums());
        let is_over = Arc::new(AtomicBool::new(false));
        let lengths = match traffic {
            Traffic::Codecs => Some(Lengths::Mixed),
            Traffic::Large => Some(Lengths::Large),
            Traffic::Quiet | Traffic::Handshakes => None,
        };
        let streams = match lengths {
            Some(lengths) => (0..6)
                .map(|number| Stream::new(number, lengths, &is_over))
                .collect(),
            None => Vec::new(),
        };
        Self {
            peers: [peer, other],
            _nodes: [here, there],
            proxy,
            traffic,
            streams,
            is_over,
        }
    }

    /// Causes `faults` faults while messages go both ways, then lets the rest of the messages
    /// arrive.
    pub(crate) fn run(&mut self, faults: u64, draw: &mut Draw) -> Counted {
        let watched = Watched {
            peers: self.peers.clone(),
            proxy: self.proxy.clone(),
            streams: self.streams.clone(),
        };
        WATCHED.lock().unwrap().push(watched);
        let mut opened = 0;
        thread::scope(|scope| {
            for (number, stream) in self.streams.iter().enumerate() {
                let codec = [Codec::Raw, Codec::Rkyv, Codec::Serde][number / 2];
                let [from, to] = [&self.peers[number % 2], &self.peers[1 - number % 2]];
                scope.spawn(move || ends::send(from, codec, stream));
                scope.spawn(move || ends::receive(to, codec, stream));
            }
            let [from, to] = &self.peers;
            let opening = scope.spawn(|| ends::open(from, to, &self.is_over));
            self.damage(faults, draw);
            self.is_over.store(true, Ordering::Relaxed);
            opened = opening.join().expect("opening under fire");
        });
        let stats = self.peers.each_ref().map(Peer::stats);
        let sum = |of: fn(&ibex::stats::SessionStats) -> u64| stats.iter().map(of).sum::<u64>();
        Counted {
            damaged: DAMAGES.map(|damage| self.proxy.damaged(damage)),
            noticed: sum(|stats| stats.checksum_errors),
            resumes: sum(|stats| stats.resumes),
            replayed: sum(|stats| stats.replayed),
            messages: self
                .streams
                .iter()
                .map(|stream| stream.sent.load(Ordering::Relaxed))
                .sum(),
            opened,
        }
    }

    fn faults(&self) -> u64 {
        DAMAGES
            .map(|damage| self.proxy.damaged(damage))
            .iter()
            .sum()
    }

    /// Orders one fault after the other, each on a connection that has completed its handshake.
    fn damage(&self, faults: u64, draw: &mut Draw) {
        let furthest = match self.traffic {
            Traffic::Codecs => 14,
            Traffic::Large => 21,
            Traffic::Quiet => 8,
            Traffic::Handshakes => HANDSHAKE_BITS,
        };
        let in_handshake = u64::from(self.traffic == Traffic::Handshakes);
        while self.faults() < faults {
            let connection = self.proxy.newest();
            let is_live = self.peers.iter().all(|peer| !peer.is_suspended());
            if !is_live || self.proxy.newest() != connection {
                thread::sleep(A_MOMENT);
                continue;
            }
            let before = self.faults();
            let range = 1 << draw.of(1..furthest);
            let after = draw.of(0..range);
            let (damage, is_back) = (*draw.one_of(&DAMAGES), draw.once_in(2));
            let connection = connection + in_handshake;
            self.proxy.damage(connection, damage, is_back, after, draw);
            let mut cuts = self.proxy.harmed(Harm::Cut);
            if in_handshake > 0 {
                self.proxy.harm_one(Harm::Cut, Duration::ZERO);
            }
            // Waits until the fault has happened, or cannot happen any more.
            while self.faults() == before && self.proxy.newest() <= connection {
                let is_over = self.peers.iter().any(Peer::is_suspended);
                if is_over && in_handshake == 0 {
                    break;
                }
                // A connection that was ending anyway may have taken the cut; the session then
                // continues over the one that was to be cut.
                let is_cut = self.proxy.harmed(Harm::Cut) > cuts;
                if in_handshake > 0 && is_cut && !is_over && self.proxy.newest() < connection {
                    cuts = self.proxy.harmed(Harm::Cut);
                    self.proxy.harm_one(Harm::Cut, Duration::ZERO);
                }
                thread::sleep(A_MOMENT);
            }
        }
    }
}

/// The parts of a session that the report of a hung run shows.
struct Watched {
    peers: [Peer; 2],
    proxy: Arc<Proxy>,
    streams: Vec<Arc<Stream>>,
}

static WATCHED: Mutex<Vec<Watched>> = Mutex::new(Vec::new());

/// Returns a number that grows while sessions make progress.
pub(crate) fn progress() -> u64 {
    let of_one = |watched: &Watched| {
        let acked = watched
            .streams
            .iter()
            .map(|stream| stream.acked.load(Ordering::Relaxed));
        let received = watched
            .peers
            .iter()
            .map(|peer| peer.stats().frames_received);
        acked.chain(received).sum::<u64>()
    };
    WATCHED.lock().unwrap().iter().map(of_one).sum()
}

/// Prints the state of all sessions of a hung run.
pub(crate) fn tell_all() {
    for watched in WATCHED.lock().unwrap().iter() {
        for peer in &watched.peers {
            eprintln!("suspended: {}, {:?}", peer.is_suspended(), peer.stats());
        }
        let sent = watched.streams.iter().map(|stream| {
            (
                stream.sent.load(Ordering::Relaxed),
                stream.acked.load(Ordering::Relaxed),
            )
        });
        let damaged = DAMAGES.map(|damage| watched.proxy.damaged(damage));
        eprintln!(
            "damaged {damaged:?}, sent and received {:?}",
            sent.collect::<Vec<_>>()
        );
    }
}

/// A handshake has fewer bytes than this power of two, in either direction.
const HANDSHAKE_BITS: u64 = 10;
/// The pause between two polls of a condition.
const A_MOMENT: Duration = Duration::from_micros(200);
