//! Nodes with two engines each, under an executor that a seed drives.
//!
//! Everything is the code of [`Driver::Tasks`]: placement, mail between engines, borrowed credit,
//! closing, and the wake-ups of driving and flushing tasks. The executor is a test double that runs
//! one task at a time. It runs a parked task only if its epoll set is readable or its waker was
//! called. So a wake-up that goes to the wrong engine leaves the right one asleep for ever. The
//! faults are an engine that lags, a connection that is cut, a node that stops accepting, and a
//! node that closes while sessions are on their way to an engine.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::{Shutdown, TcpListener, TcpStream},
    sync::Arc,
    time::{Duration, Instant},
};

use ibex_harness::draw::Draw;
use ibex_protocol::{
    format::{
        channel_window::{ChannelWindow, HALF_WINDOW},
        control::ChannelSpec,
    },
    framing::Carriage,
};
use ibex_ring::parking::Patience;

use super::tasks::Tasks;
use crate::{
    channel::{ChannelError, ReceiveHandle, SendHandle},
    engine::{Admission, lendable_credit},
    node::SessionShared,
    runtime::{Driver, Runtime, RuntimeConfig},
    session::{EngineId, Fabric, PeerDescription, PeerNames},
    wire::{WireParts, tests::by_hand::spec_of_bytes},
};

/// The simulation's record of a session.
struct Session {
    dialed: Arc<SessionShared>,
    /// The other end, once its engine has begun it.
    accepted: Option<Arc<SessionShared>>,
    channel: Option<Channel>,
    /// Another handle of the connection, with which the simulation cuts it.
    connection: TcpStream,
    is_cut: bool,
}

struct Channel {
    sender: SendHandle,
    receiver: ReceiveHandle,
    sent: u64,
    received: u64,
}

/// A node that dials, a node that listens, and the executor of both.
struct Stage {
    draw: Draw,
    step: u64,
    /// The node that dials, and the one that listens.
    nodes: [Arc<Runtime>; 2],
    tasks: Vec<Tasks>,
    sessions: BTreeMap<u8, Session>,
    is_closing: bool,
}

const ENGINES: usize = 2;
const DIALER: usize = 0;
const LISTENER: usize = 1;

fn config() -> RuntimeConfig {
    RuntimeConfig {
        engines: ENGINES,
        // Four sessions can hold all of the node's credit, so engines lend and recall it.
        node_credit_bytes: 4 << 20,
        notice_timeout: Duration::from_secs(300),
        session_timeout: Duration::from_secs(300),
        ..RuntimeConfig::of_test(Driver::Tasks)
    }
}

impl Stage {
    fn new(seed: u64) -> Self {
        let nodes = [(); 2].map(|()| Runtime::start(config()).expect("a runtime"));
        let loops = nodes.iter().flat_map(|node| node.event_loops());
        Self {
            draw: Draw::new(seed),
            step: 0,
            tasks: loops.map(Tasks::of).collect(),
            nodes,
            sessions: BTreeMap::new(),
            is_closing: false,
        }
    }

    /// Runs one step of the executor or of a program, as the seed decides.
    fn step(&mut self) {
        self.step += 1;
        match self.draw.index(16) {
            0 if self.sessions.len() < MOST_SESSIONS && !self.is_closing => self.dial(),
            1 => self.open_a_channel(),
            2 | 3 => self.send_some(),
            4 | 5 => self.receive_some(),
            6 if self.draw.index(8) == 0 => self.cut_a_connection(),
            7 if self.draw.index(4) == 0 => {
                let task = self.draw.index(self.tasks.len());
                self.tasks[task].lags_until = self.step + self.draw.index(60) as u64;
            }
            8 if self.draw.index(40) == 0 => self.nodes[LISTENER].stop_accepting(),
            _ => {
                self.run_a_task();
            }
        }
        self.check();
    }

    /// Runs a task that is woken and does not lag. Returns whether there was one.
    fn run_a_task(&mut self) -> bool {
        let step = self.step;
        let may_run = |task: &&mut Tasks| task.lags_until <= step && task.is_woken();
        let mut woken: Vec<_> = self.tasks.iter_mut().filter(may_run).collect();
        if woken.is_empty() {
            return false;
        }
        let chosen = self.draw.index(woken.len());
        woken[chosen].run();
        true
    }

    // ---- Programs ----------------------------------------------------------------------

    /// Begins a session. The first engine of the listener places the other end, as it does when a
    /// handshake is over.
    fn dial(&mut self) {
        let number = self.sessions.len() as u8;
        let [dialed, accepted] = connection();
        let kept = dialed.try_clone().expect("a descriptor");
        let mut ends = [dialed, accepted].map(|stream| admission(stream, number));
        for end in &mut ends {
            let wish = self.draw.index(3 * ENGINES);
            end.engine = (wish < ENGINES).then(|| EngineId::new(wish));
        }
        let [ours, theirs] = ends;
        let engine = |node: &Runtime, wish: Option<EngineId>, before: &[usize]| {
            let after = node.loads();
            let rose: Vec<_> = (0..ENGINES).filter(|&at| after[at] > before[at]).collect();
            let [engine] = rose[..] else {
                panic!("one session was placed: {before:?}, then {after:?}")
            };
            let least = before.iter().min().expect("an engine");
            match wish {
                Some(wish) => assert_eq!(engine, wish.index(), "the program's wish"),
                None => assert_eq!(before[engine], *least, "{before:?}"),
            }
            engine
        };
        let (before, wish) = (self.nodes[DIALER].loads(), ours.engine);
        let dialed = self.nodes[DIALER].admit(ours).expect("a session");
        let placed = engine(&self.nodes[DIALER], wish, &before);
        assert_eq!(dialed.engine().index(), placed);
        let (before, wish) = (self.nodes[LISTENER].loads(), theirs.engine);
        let first = self.nodes[LISTENER].first().clone();
        first.with_engine(|engine, context| engine.place_session(theirs, context));
        engine(&self.nodes[LISTENER], wish, &before);
        let session = Session {
            dialed,
            accepted: None,
            channel: None,
            connection: kept,
            is_cut: false,
        };
        self.sessions.insert(number, session);
    }

    /// Takes the sessions that have begun at the listener.
    fn accept(&mut self) {
        while let Some(session) = self.nodes[LISTENER].take_accepted() {
            let number = session.peer().identity[0];
            let ours = self.sessions.get_mut(&number).expect("it was dialed");
            let before = ours.accepted.replace(session);
            assert!(before.is_none(), "session {number} begins twice");
        }
    }

    fn open_a_channel(&mut self) {
        self.accept();
        let [dialer, listener] = &self.nodes;
        let closed = |session: &Session| session.is_cut || session.channel.is_some();
        let mut waiting = self
            .sessions
            .values_mut()
            .filter(|session| !closed(session));
        let Some(session) = waiting.find(|session| session.accepted.is_some()) else {
            return;
        };
        let accepted = session.accepted.as_ref().expect("it has begun");
        let sender = dialer.open_sender(&session.dialed, "numbers", spec(), LONG);
        let receiver = listener.open_receiver(accepted, "numbers", spec(), LONG, HALF_WINDOW);
        if let (Ok(sender), Ok(receiver)) = (sender, receiver) {
            session.channel = Some(Channel {
                sender,
                receiver,
                sent: 0,
                received: 0,
            });
        } else {
            assert!(self.is_closing, "a session that is up opens channels");
        }
    }

    fn a_channel(&mut self) -> Option<&mut Session> {
        let open = self.sessions.values_mut();
        let mut open: Vec<_> = open.filter(|session| session.channel.is_some()).collect();
        let chosen = self.draw.index(open.len().max(1));
        (!open.is_empty()).then(|| open.swap_remove(chosen))
    }

    fn send_some(&mut self) {
        let bytes = 8 + self.draw.index(30_000);
        let is_closing = self.is_closing;
        let Some(session) = self.a_channel() else {
            return;
        };
        let is_cut = session.is_cut;
        let channel = session.channel.as_mut().expect("it is open");
        let number = channel.sent;
        let sent = channel.sender.send(Some(bytes), Patience::None, |slot| {
            let (head, rest) = slot[..bytes].split_at_mut(8);
            head.write_copy_of_slice(&number.to_le_bytes());
            rest.fill(std::mem::MaybeUninit::new(7));
            Ok(bytes)
        });
        match sent {
            Ok(_) => channel.sent += 1,
            Err(ChannelError::WouldBlock | ChannelError::NotOpenYet) => {}
            Err(failure) => assert!(is_cut || is_closing, "{failure:?}"),
        }
    }

    fn receive_some(&mut self) {
        let is_closing = self.is_closing;
        if let Some(session) = self.a_channel() {
            let is_cut = session.is_cut;
            let channel = session.channel.as_mut().expect("it is open");
            let is_up = channel.receive();
            assert!(is_up || is_cut || is_closing, "a session has ended");
        }
    }

    fn cut_a_connection(&mut self) {
        if let Some(session) = self.a_channel() {
            session.is_cut = true;
            let _ = session.connection.shutdown(Shutdown::Both);
        }
    }

    fn close(&mut self, node: usize) {
        self.is_closing = true;
        self.nodes[node].start_close(LONG);
    }

    // ---- Rules -------------------------------------------------------------------------

    /// Checks the rules that hold after every step.
    fn check(&self) {
        for node in &self.nodes {
            let mut known = BTreeSet::new();
            let (mut borrowed, mut held) = (0, 0);
            let loads = node.loads();
            for event_loop in node.event_loops() {
                let engine = event_loop.engine.lock();
                for (id, connection) in engine
                    .connections
                    .all
                    .ids()
                    .zip(engine.connections.all.values())
                {
                    let number = connection.core.common.peer().identity[0];
                    assert!(known.insert(number), "session {number} is on two engines");
                    assert_eq!(EngineId::of_session(id), event_loop.id());
                    let of_session = engine.connections.credit.broker.held(id);
                    held += of_session.saturating_sub(Carriage::Stream.grain());
                }
                let placed = loads[event_loop.id().index()];
                assert!(
                    engine.connections.all.len() <= placed,
                    "a session without a place"
                );
                assert!(engine.connections.credit.broker.is_sound());
                borrowed += engine.connections.credit.borrowed();
            }
            let config = &node.config;
            let engine = node.first().engine.lock();
            let all = borrowed + engine.connections.credit.left_to_borrow();
            assert_eq!(all, lendable_credit(config), "the limit is the node's");
            assert!(held <= config.node_credit_bytes, "{held}");
        }
    }

    /// Lets every task run until all are parked, even tasks that lag.
    fn rest(&mut self) {
        self.tasks.iter_mut().for_each(|task| task.lags_until = 0);
        for _ in 0..100_000 {
            if !self.run_a_task() && self.tasks.iter().all(Tasks::is_parked) {
                return self.check_deadlines();
            }
        }
        panic!("the nodes never come to rest");
    }

    /// Checks that each engine, which sleeps, wakes for the deadlines of all of its sessions.
    fn check_deadlines(&self) {
        for event_loop in self.nodes.iter().flat_map(|node| node.event_loops()) {
            let engine = event_loop.engine.lock();
            for connection in engine.connections.all.values() {
                let is_noted = |deadline| {
                    connection
                        .due_at
                        .is_some_and(|noted: Instant| noted <= deadline)
                };
                assert!(connection.core.common.deadline().is_none_or(is_noted));
            }
        }
    }

    /// Checks that everything arrives that was sent over sessions that were not cut.
    fn expect_everything(&mut self) {
        // Engines notice cut connections, and arrivals are handed out. A full window needs a few
        // rounds.
        for _ in 0..1000 {
            self.rest();
            self.accept();
            let mut is_missing = false;
            let whole = self.sessions.values_mut().filter(|session| !session.is_cut);
            for channel in whole.filter_map(|session| session.channel.as_mut()) {
                assert!(channel.receive(), "nobody ended it");
                is_missing |= channel.received < channel.sent;
            }
            if !is_missing {
                return;
            }
        }
        panic!("messages are missing while every task sleeps");
    }
}

impl Channel {
    /// Takes all messages that have arrived. Returns whether the channel goes on.
    fn receive(&mut self) -> bool {
        loop {
            match self.receiver.poll() {
                Ok(Some(message)) => {
                    let number = self.received.to_le_bytes();
                    assert_eq!(
                        message.bytes()[..8],
                        number,
                        "each message once and in order"
                    );
                    self.received += 1;
                }
                Ok(None) => return true,
                Err(_) => return false,
            }
        }
    }
}

fn connection() -> [TcpStream; 2] {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a socket");
    let address = listener.local_addr().expect("an address");
    let dialed = TcpStream::connect(address).expect("a connection");
    [dialed, listener.accept().expect("a connection").0]
}

/// The end of a session with a peer of its own, so that no run of a peer ends another's.
fn admission(stream: TcpStream, number: u8) -> Admission {
    // As the handshake leaves it. The clock stands, so nothing may wait for an acknowledgement.
    stream.set_nodelay(true).expect("it is connected");
    Admission {
        reconnect: None,
        peer: PeerDescription {
            names: PeerNames::default(),
            address: stream.peer_addr().expect("it is connected").into(),
            identity: [number; 16],
            incarnation: 0,
            began: Instant::now(),
            pid: None,
            fabric: Fabric::Tcp,
            reason: "the test says so".to_owned(),
            known_to: None,
        },
        parts: WireParts {
            stream,
            leftover: Vec::new(),
            tls: None,
            rdma: None,
        },
        unix: None,
        payload_checksums: false,
        max_channels: 64,
        engine: None,
        place: Box::new(()),
    }
}

fn spec() -> ChannelSpec {
    let window = ChannelWindow {
        messages: 64,
        bytes: 1 << 20,
    };
    ChannelSpec {
        max_unreleased_bytes: 16 << 20,
        is_traced: false,
        ..spec_of_bytes(window, 64 << 10)
    }
}

const LONG: Duration = Duration::from_secs(300);
const MOST_SESSIONS: usize = 12;
const SEEDS: u64 = 40;
const STEPS: usize = 1500;

/// Runs a simulation, and prints the seed if a rule is broken.
fn with_seed(seed: u64, play: impl FnOnce(&mut Stage)) {
    struct Named(u64);
    impl Drop for Named {
        fn drop(&mut self) {
            if std::thread::panicking() {
                eprintln!("seed {}", self.0);
            }
        }
    }
    let _named = Named(seed);
    play(&mut Stage::new(seed));
}

/// Sessions begin, carry messages and end while engines lag. Then the node closes.
#[test]
fn sessions_are_on_one_engine_each_and_every_message_arrives() {
    for seed in 0..SEEDS {
        with_seed(seed, |stage| {
            (0..STEPS).for_each(|_| stage.step());
            stage.expect_everything();
            let whole = stage.sessions.values().filter(|session| !session.is_cut);
            let whole = whole.count();
            for node in &stage.nodes {
                assert_eq!(node.loads().iter().sum::<usize>(), whole);
            }
            stage.check();
            close_both(stage);
        });
    }
}

/// A node closes in the middle of everything, with sessions on their way to an engine that lags.
#[test]
fn a_node_that_closes_is_over_when_both_of_its_engines_are() {
    let mut on_their_way = 0;
    for seed in 0..SEEDS {
        with_seed(seed, |stage| {
            (0..STEPS / 4).for_each(|_| stage.step());
            // The listener's second engine has not begun these sessions when the close begins.
            stage.tasks[ENGINES + 1].lags_until = u64::MAX;
            (0..3).for_each(|_| stage.dial());
            let second = stage.nodes[LISTENER].event_loop(EngineId::new(1));
            let begun = second.engine.lock().connections.all.len();
            on_their_way += stage.nodes[LISTENER].loads()[1] - begun;
            stage.close(LISTENER);
            (0..STEPS / 4).for_each(|_| stage.step());
            close_both(stage);
        });
    }
    assert!(on_their_way > 0, "no session was ever on its way");
}

/// Closes both nodes. No handle is used any more: only wake-ups turn the engines.
fn close_both(stage: &mut Stage) {
    for node in [LISTENER, DIALER] {
        stage.close(node);
    }
    stage.rest();
    for task in &stage.tasks {
        assert!(task.is_over, "{:?} sleeps for ever", task.event_loop);
    }
    for node in &stage.nodes {
        assert_eq!(node.loads(), [0; ENGINES]);
        let borrowed = node.event_loops().iter().map(|event_loop| {
            let engine = event_loop.engine.lock();
            assert!(engine.is_finished());
            engine.connections.credit.borrowed()
        });
        assert!(borrowed.sum::<u64>() <= lendable_credit(&node.config));
    }
}
