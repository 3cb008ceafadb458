//! A fork of a process that has nodes. Every call tells the child that it is one. Whatever the
//! child drops and however it ends, the parent and the parent's peer notice nothing.
//!
//! The test runs on every fabric under every driver. The process forks in the middle of sessions,
//! with messages held and futures waiting.

mod processes;

use std::{
    env, fs,
    future::Future,
    net::TcpListener,
    os::unix::{fs::FileExt, process::CommandExt},
    pin::Pin,
    process::{Command, ExitCode},
    ptr,
    sync::OnceLock,
    task::{Context, Poll, Waker},
    thread,
    time::{Duration, Instant},
};

use crc_fast::CrcAlgorithm;
use futures_core::Stream;
use futures_sink::Sink;
use ibex::prelude::*;
use ibex::{
    ConnectError, ConnectErrorKind, Driver, FanIn, FanInEvent, ListenErrorKind, Node,
    OpenErrorKind, Pod, Raw, Receiver, RecvError, RecvErrorKind, Region, Select, SendError,
    SendErrorKind, Sender, WaitError, WaitErrorKind,
    discovery::{Peers, PeersEvent},
    group::Group,
};
use processes::{Party, Proof, Setup};

/// The variable that makes the program print its descriptors.
const LIST: &str = "IBEX_TEST_LIST_DESCRIPTORS";

fn main() -> ExitCode {
    if env::var_os(LIST).is_some() {
        print!("{}", descriptors().join("\n"));
        return ExitCode::SUCCESS;
    }
    INHERITED.get_or_init(descriptors);
    let proofs = Setup::all().flat_map(|setup| {
        [
            Proof::new("dropped", setup, let_children_drop, answer),
            Proof::new("called", setup, let_a_child_call, answer),
            Proof::new("in_traffic", setup, fork_in_traffic, answer),
            Proof::new("exec", setup, exec, answer),
        ]
    });
    processes::run(proofs.collect())
}

// ---- The proofs ----------------------------------------------------------------------

/// Children drop everything, or nothing, and end in either way.
fn let_children_drop(party: &mut Party) {
    let mut all = All::open(party);
    all.exchange(1..=50);
    all.sender.send(&payload(51)).expect("sent");
    let held = all.receiver.recv().expect("a message");
    let building = party.peer.channel("building").codec::<Raw>();
    let mut building = building.sender::<[u8]>().expect("opened");
    let reservation = building.loan(100).expect("room");
    let mut waiting = Box::pin(all.receiver.recv_async());
    assert!(poll(waiting.as_mut()).is_pending());
    let mut accepting = Box::pin(party.node.accept_async());
    assert!(poll(accepting.as_mut()).is_pending());
    let silent = TcpListener::bind("127.0.0.1:0").expect("a socket");
    let address = silent.local_addr().expect("it is bound");
    let mut dialing = Box::pin(party.node.connect_async(address));
    assert!(poll(dialing.as_mut()).is_pending());
    let mut keeping = Box::pin(all.kept.peers.wait_for_async(address));
    assert!(poll(keeping.as_mut()).is_pending());
    let region = Region::from(payload(52));
    let slice = region.slice(..);
    let mut freeing = Box::pin(region.wait_free_async());
    assert!(poll(freeing.as_mut()).is_pending());

    let mut parent = Untouched::at_rest(party);
    let ways = [libc::exit, libc::_exit].map(|end| [(end, true), (end, false)]);
    for (end, drops) in ways.into_iter().flatten() {
        loop {
            let child = match fork() {
                Forked::Parent(child) => child,
                Forked::Child(ending) => {
                    if drops {
                        drop((waiting, accepting, dialing, keeping, reservation));
                        drop((slice, freeing));
                        drop((held, building, all));
                        // SAFETY: this process ends before its copies are used again.
                        unsafe {
                            ptr::drop_in_place(&raw mut party.peer);
                            ptr::drop_in_place(&raw mut party.node);
                        }
                    }
                    ending.by(end)
                }
            };
            child.has_succeeded();
            if parent.is_untouched(party) {
                break;
            }
        }
    }

    drop((waiting, accepting, dialing, keeping, slice));
    assert!(poll(freeing.as_mut()).is_ready());
    all.kept.is_untouched();
    reservation.send().expect("sent");
    held.ack();
    all.take_gathered(51);
    all.exchange(52..=100);
    all.sender.wait_acked(100).expect("acknowledged");
}

/// A child makes every possible call.
fn let_a_child_call(party: &mut Party) {
    let mut all = All::open(party);
    all.exchange(1..=50);
    let versions = party.peer.channel("versions").codec::<Raw>();
    let mut pages = Region::zeroed(1 << 20).expect("memory");
    pages.get_mut().expect("nobody else has it").fill(7);
    let mut parent = Untouched::at_rest(party);
    loop {
        match fork() {
            Forked::Parent(child) => child.has_succeeded(),
            Forked::Child(ending) => {
                // No message lay there, so the child has a copy.
                assert!(pages.iter().all(|&byte| byte == 7));
                assert!(pages.get_mut().is_none(), "a child changes a region");
                call_node(&party.node);
                let open = versions
                    .receiver::<[u8]>()
                    .expect_err("a child opened a channel");
                assert!(open.kind() == OpenErrorKind::UsedAfterFork, "{open}");
                call_peer(party);
                call_sender(&mut all.sender);
                call_receiver(&mut all.receiver);
                call_several(&mut all, party);
                call_kept(&all.kept);
                ending.by(libc::exit)
            }
        }
        if parent.is_untouched(party) {
            break;
        }
    }
    all.kept.is_untouched();
    all.exchange(51..=100);
}

fn call_node(node: &Node) {
    let again = Node::client().expect_err("a child made a node");
    assert!(again.kind() == ListenErrorKind::UsedAfterFork, "{again}");
    let connect = |error: ConnectError| error.kind() == ConnectErrorKind::UsedAfterFork;
    assert!(connect(node.accept().expect_err("a peer")));
    assert!(connect(node.accept_timeout(LONG).expect_err("a peer")));
    assert!(connect(node.try_accept().expect_err("a peer")));
    assert!(connect(ready(node.accept_async()).expect_err("a peer")));
    assert!(connect(node.connect("127.0.0.1:1").expect_err("a peer")));
    assert!(connect(
        ready(node.connect_async("127.0.0.1:1")).expect_err("a peer")
    ));
    assert!(!node.poll());
    assert!(node.close(LONG).undelivered.is_empty());
    assert!(node.stats().sessions.is_empty());
    let mut events = node.events();
    assert_eq!(
        (events.next(), events.try_next(), events.dropped()),
        (None, None, 0)
    );
    let _ = node.as_fd();
    let mut fan_in = node
        .channel("late")
        .codec::<Raw>()
        .fan_in::<[u8]>()
        .expect("settings");
    assert!(fan_in.next().is_none());
    let service = node.channel("late").codec::<Raw>();
    let service = service.service::<[u8], [u8]>();
    let service = service.expect_err("a child made a service");
    assert!(service.kind() == OpenErrorKind::UsedAfterFork, "{service}");
}

fn call_peer(party: &Party) {
    let peer = &party.peer;
    let channel = peer.channel("late").codec::<Raw>();
    let error = channel
        .sender::<[u8]>()
        .expect_err("a child opened a channel");
    assert!(error.kind() == OpenErrorKind::UsedAfterFork, "{error}");
    assert!(error.to_string().contains("is a fork"), "{error}");
    assert!(peer.is_gone() && peer.incoming().is_empty());
    let _ = (peer.stats(), peer.clone(), format!("{peer:?}"));
}

fn call_sender(sender: &mut BytesSender) {
    let send = |error: SendError| error.kind() == SendErrorKind::UsedAfterFork;
    let acked = |error: WaitError| error.kind() == WaitErrorKind::UsedAfterFork;
    assert!(send(sender.send(b"1").expect_err("sent")));
    assert!(send(sender.try_send(b"1").expect_err("sent")));
    assert!(send(sender.send_timeout(b"1", LONG).expect_err("sent")));
    assert!(send(ready(sender.send_async(b"1")).expect_err("sent")));
    let region = Region::from(vec![7; 1 << 20]);
    let slice = region.slice(..);
    assert!(send(sender.send_region(&slice).expect_err("sent")));
    assert!(send(sender.try_send_region(&slice).expect_err("sent")));
    let late = sender.send_region_timeout(&slice, LONG);
    assert!(send(late.expect_err("sent")));
    let late = ready(sender.send_region_async(&slice));
    assert!(send(late.expect_err("sent")));
    assert!(!region.wait_free(LONG), "a child does not wait");
    ready(region.wait_free_async());
    drop(slice);
    assert!(region.is_free(), "a child's node keeps a slice");
    assert!(send(sender.loan(8).expect_err("room")));
    assert!(send(sender.try_loan(8).expect_err("room")));
    assert!(send(sender.loan_timeout(8, LONG).expect_err("room")));
    assert!(send(sender.opened(LONG).expect_err("opened")));
    assert!(acked(sender.flush().expect_err("flushed")));
    assert!(acked(sender.flush_timeout(LONG).expect_err("flushed")));
    assert!(acked(ready(sender.flush_async()).expect_err("flushed")));
    assert!(acked(sender.wait_acked(1).expect_err("acknowledged")));
    assert!(acked(
        sender
            .wait_acked_timeout(1, LONG)
            .expect_err("acknowledged")
    ));
    assert!(acked(
        ready(sender.wait_acked_async(1)).expect_err("acknowledged")
    ));
    assert_eq!(
        (sender.counts().sent, sender.counts().acknowledged),
        (50, 0)
    );
    let mut clone = sender.clone();
    assert!(send(clone.send(b"1").expect_err("sent")));
    assert!(acked(clone.close().expect_err("closed")));
    let _ = format!("{sender:?}");
}

fn call_receiver(receiver: &mut BytesReceiver) {
    let recv = |error: RecvError| error.kind() == RecvErrorKind::UsedAfterFork;
    assert!(recv(receiver.next().expect_err("a message")));
    assert!(recv(receiver.recv().expect_err("a message")));
    assert!(recv(receiver.try_recv().expect_err("a message")));
    assert!(recv(receiver.recv_timeout(LONG).expect_err("a message")));
    assert!(recv(receiver.opened(LONG).expect_err("opened")));
    assert!(recv(ready(receiver.recv_async()).expect_err("a message")));
    let first = receiver.iter().next().expect("an answer");
    assert!(recv(first.expect_err("a message")));
    let mut stream = receiver.stream();
    let Poll::Ready(Some(Err(error))) = Pin::new(&mut stream).poll_next(&mut context()) else {
        panic!("a stream goes on")
    };
    assert!(recv(error));
    drop(stream);
    assert_eq!(receiver.received(), 50);
    let _ = (receiver.counts(), format!("{receiver:?}"));
}

fn call_several(all: &mut All, party: &Party) {
    let mut sink = all.numbers.sink();
    let taken = Pin::new(&mut sink).start_send(1);
    assert!(matches!(&taken, Err(error) if error.kind() == SendErrorKind::UsedAfterFork));
    drop(sink);
    let mut select = Select::new();
    let mut acked = all.sender.until_acked(1000);
    assert_eq!(select.ready(&mut [&mut all.receiver, &mut acked]), 0);
    assert_eq!(select.ready_timeout(&mut [&mut acked], LONG), Some(0));
    assert_eq!(select.try_ready(&mut [&mut acked]), Some(0));

    let group = &mut all.group;
    let sent = |error: SendError| error.kind() == SendErrorKind::UsedAfterFork;
    let quorum = |error: WaitError| error.kind() == WaitErrorKind::UsedAfterFork;
    assert!(sent(group.send(b"1").expect_err("sent")));
    assert!(sent(group.try_send(b"1").expect_err("sent")));
    assert!(sent(group.send_timeout(b"1", LONG).expect_err("sent")));
    assert!(sent(ready(group.send_async(b"1")).expect_err("sent")));
    assert!(quorum(group.wait_acked(1, 1).expect_err("acknowledged")));
    assert!(quorum(
        group
            .wait_acked_timeout(1, 1, LONG)
            .expect_err("acknowledged")
    ));
    assert!(quorum(
        ready(group.wait_acked_async(1, 1)).expect_err("acknowledged")
    ));
    assert_eq!((group.acked(1), group.members().len()), (0, 1));
    assert!(group.join(&party.peer).is_err());
    ready(group.flush_async());
    group.flush();
    let lost = group.next_lost().expect("who is not flushed is lost");
    assert!(
        lost.reason.kind() == SendErrorKind::UsedAfterFork,
        "{lost:?}"
    );

    let fan_in = &mut all.fan_in;
    let _ = fan_in.peers();
    let Some(FanInEvent::Lost(_, error)) = fan_in.next() else {
        panic!("a peer is not lost")
    };
    assert_eq!(error.kind(), RecvErrorKind::UsedAfterFork);
    assert!(fan_in.next().is_none() && ready(fan_in.next_async()).is_none());
    assert!(fan_in.try_next().expect("an end").is_none());
    assert!(fan_in.next_timeout(LONG).expect("an end").is_none());
}

fn call_kept(kept: &Kept) {
    let refused = kept.node.keep_connected(["127.0.0.1:1"]);
    let refused = refused.expect_err("a child keeps peers");
    assert!(
        refused.kind() == ConnectErrorKind::UsedAfterFork,
        "{refused}"
    );
    let peers = &kept.peers;
    let address = kept.replica.local_addr().expect("it listens");
    assert!(peers.connected().is_empty());
    assert!(peers.wait_for(address).is_none());
    assert!(peers.wait_for_timeout(address, LONG).is_none());
    assert!(ready(peers.wait_for_async(address)).is_none());
    let mut events = peers.events();
    assert!(events.next().is_none() && events.try_next().is_none());
    assert!(events.next_timeout(LONG).is_none());
    assert!(ready(events.next_async()).is_none());
    assert_eq!(events.dropped(), 0);
    let _ = (events.clone(), format!("{peers:?} {events:?}"));
}

/// Children are forked while other threads send and receive, so that locks are held and rings are
/// half-way.
fn fork_in_traffic(party: &mut Party) {
    let mut all = All::open(party);
    let messages = party.setup.count(20_000, 100);
    let (sender, receiver) = (&mut all.sender, &mut all.receiver);
    thread::scope(|scope| {
        let sending = scope.spawn(|| {
            (1..=messages).for_each(|number| {
                sender.send(&streamed(number)).expect("sent");
            });
        });
        let receiving = scope.spawn(|| {
            (1..=messages).for_each(|number| {
                let message = receiver.recv().expect("a message");
                assert_eq!(*message, *streamed(number));
                message.ack();
            });
        });
        let mut children = 0;
        while children < 8 || !receiving.is_finished() {
            match fork() {
                Forked::Parent(child) => child.has_succeeded(),
                Forked::Child(ending) => {
                    call_node(&party.node);
                    call_peer(party);
                    let error = all.group.send(b"1").expect_err("sent");
                    assert!(error.kind() == SendErrorKind::UsedAfterFork);
                    // SAFETY: this process ends before its copies are used again.
                    unsafe {
                        ptr::drop_in_place(&raw mut all.group);
                        ptr::drop_in_place(&raw mut all.fan_in);
                        ptr::drop_in_place(&raw mut all.kept);
                        ptr::drop_in_place(&raw mut party.peer);
                        ptr::drop_in_place(&raw mut party.node);
                    }
                    ending.by(libc::exit)
                }
            }
            children += 1;
        }
        sending.join().expect("all was sent");
    });
    all.sender.wait_acked(messages).expect("acknowledged");
    assert_eq!(all.sender.counts().received, messages);
    assert_eq!(all.receiver.received(), messages);
}

/// A program that replaces a child inherits no descriptor.
fn exec(party: &mut Party) {
    let mut all = All::open(party);
    all.exchange(1..=50);
    let mut program = Command::new(env::current_exe().expect("this program has a path"));
    // SAFETY: the closure does nothing; its presence makes the standard library use `fork`.
    unsafe { program.pre_exec(|| Ok(())) };
    let output = program.env(LIST, "1").output().expect("it runs");
    let listed = String::from_utf8(output.stdout).expect("text");
    let inherited = INHERITED.get().expect("set in `main`");
    let ours: Vec<_> = listed
        .lines()
        .filter(|descriptor| !inherited.iter().any(|other| other == descriptor))
        .collect();
    assert!(output.status.success());
    assert_eq!(ours, Vec::<&str>::new(), "left open by exec");
    all.exchange(51..=100);
}

/// Plays the other side: sends every message back, and to the fan-in if the message says so.
fn answer(party: &mut Party) {
    let receiver = |name: &str| {
        let channel = party.peer.channel(name).codec::<Raw>();
        channel.receiver::<[u8]>().expect("opened")
    };
    let sender = |name: &str| {
        let channel = party.peer.channel(name).codec::<Raw>();
        channel.sender::<[u8]>().expect("opened")
    };
    let mut there = receiver("there");
    let mut grouped = receiver("grouped");
    let _building = receiver("building");
    let (mut back, mut gathered) = (sender("back"), sender("gathered"));
    let mut select = Select::new();
    loop {
        if select.ready(&mut [&mut there, &mut grouped]) == 1 {
            match grouped.try_recv() {
                Ok(message) => message.ack(),
                Err(error) if error.is_transient() => {}
                Err(_) => return,
            }
            continue;
        }
        match there.try_recv() {
            Ok(message) => {
                back.send(&message).expect("sent");
                if message[0] != STREAMED {
                    gathered.send(&message).expect("sent");
                }
                message.ack();
            }
            Err(error) if error.is_transient() => {}
            Err(error) if error.kind() == RecvErrorKind::Ended => break,
            Err(error) => panic!("{error}"),
        }
    }
    // The returned messages are acknowledged, or the other side is gone.
    let _ = back.flush();
}

// ---- Handles -------------------------------------------------------------------------

type BytesSender = Sender<[u8], Raw>;
type BytesReceiver = Receiver<[u8], Raw>;

/// Handles of each kind.
struct All {
    sender: BytesSender,
    receiver: BytesReceiver,
    numbers: Sender<u64, Pod>,
    group: Group<[u8], Raw>,
    fan_in: FanIn<[u8], Raw>,
    kept: Kept,
}

impl All {
    fn open(party: &Party) -> Self {
        let channel = |name| party.peer.channel(name).codec::<Raw>();
        let group = party.node.channel("grouped").codec::<Raw>();
        let fan_in = party.node.channel("gathered").codec::<Raw>();
        let numbers = party.peer.channel("numbers").codec::<Pod>();
        let mut group = group.group::<[u8]>().expect("a group");
        group.join(&party.peer).expect("a member");
        Self {
            sender: channel("there").sender().expect("opened"),
            receiver: channel("back").receiver().expect("opened"),
            numbers: numbers.sender().expect("opened"),
            group,
            fan_in: fan_in.fan_in().expect("a fan-in"),
            kept: Kept::open(party),
        }
    }

    /// Sends these numbers, and receives them back on every path.
    fn exchange(&mut self, numbers: std::ops::RangeInclusive<u64>) {
        for number in numbers {
            self.sender.send(&payload(number)).expect("sent");
            let message = self.receiver.recv().expect("a message");
            assert_eq!(*message, *payload(number));
            message.ack();
            self.take_gathered(number);
            let sent = self.group.send(&payload(number)).expect("sent");
            self.group.wait_acked(sent, 1).expect("acknowledged");
        }
    }

    fn take_gathered(&mut self, number: u64) {
        loop {
            match self.fan_in.next() {
                Some(FanInEvent::Joined(_)) => {}
                Some(FanInEvent::Message(_, message)) => {
                    assert_eq!(*message, *payload(number));
                    return message.ack();
                }
                other => panic!("{other:?}"),
            }
        }
    }
}

/// A peer in this process that another node keeps connected.
struct Kept {
    peers: Peers,
    node: Node,
    replica: Node,
}

impl Kept {
    fn open(party: &Party) -> Self {
        let replica = party.setup.node().driver(Driver::Threads);
        let replica = replica.listen("127.0.0.1:0").build().expect("a node");
        let address = replica.local_addr().expect("it listens");
        let node = party.setup.node().build().expect("a node");
        let peers = node.keep_connected([address]).expect("threads");
        let peer = peers.wait_for_timeout(address, LONG);
        assert_eq!(peer.expect("it is reached").id(), replica.id());
        Self {
            peers,
            node,
            replica,
        }
    }

    /// Returns whether nothing has happened to it since it was connected.
    fn is_untouched(&self) {
        let mut events = self.peers.events();
        assert!(matches!(
            events.try_next(),
            Some(PeersEvent::Connected { .. })
        ));
        assert!(events.try_next().is_none());
        assert_eq!(self.peers.connected().len(), 1);
    }
}

/// Returns a message that comes back on both paths; now and then one with its own memory.
fn payload(number: u64) -> Vec<u8> {
    let length = if number.is_multiple_of(16) { LARGE } else { 64 };
    bytes(GATHERED, length, number)
}

/// Returns a message that comes back on one path.
fn streamed(number: u64) -> Vec<u8> {
    bytes(STREAMED, 64 + (number % 7) as usize * 100, number)
}

fn bytes(kind: u8, length: usize, number: u64) -> Vec<u8> {
    let mut bytes = vec![number as u8; length];
    bytes[0] = kind;
    bytes[1..9].copy_from_slice(&number.to_le_bytes());
    bytes
}

const GATHERED: u8 = 1;
const STREAMED: u8 = 2;
/// A length that is longer than a ring takes.
const LARGE: usize = 3 << 19;

/// A process whose children must not change anything of it.
struct Untouched {
    seen: Seen,
    changes: u32,
}

impl Untouched {
    fn at_rest(party: &Party) -> Self {
        let seen = Seen::at_rest(party);
        Self { seen, changes: 0 }
    }

    /// Returns whether nothing has changed. If something has, the same child must be tried again:
    /// an engine that the machine delayed for seconds may act by itself in between, while a child's
    /// action repeats.
    fn is_untouched(&mut self, party: &Party) -> bool {
        let now = Seen::now(party);
        if now == self.seen {
            return true;
        }
        self.changes += 1;
        assert!(self.changes < TRIES, "{:#?}\nbecame {now:#?}", self.seen);
        self.seen = Seen::at_rest(party);
        false
    }
}

/// The state that a child could change.
#[derive(Debug, PartialEq, Eq)]
struct Seen {
    sessions: String,
    /// Memory files that are mapped, and their content.
    memory: Vec<(String, u64)>,
}

impl Seen {
    /// Returns the state once it does not change by itself any more: the engines have looked for
    /// idle sessions and taken unused memory back.
    fn at_rest(party: &Party) -> Self {
        let mut seen = Self::now(party);
        let mut since = Instant::now();
        while since.elapsed() < SILENCE {
            thread::sleep(Duration::from_millis(50));
            // A socket that was busy is polled about 256 times more.
            (0..500).for_each(|_| _ = party.node.poll());
            let now = Self::now(party);
            if now != seen {
                (seen, since) = (now, Instant::now());
            }
        }
        seen
    }

    fn now(party: &Party) -> Self {
        let maps = fs::read_to_string("/proc/self/maps").expect("mappings");
        let memory = fs::File::open("/proc/self/mem").expect("our memory");
        let content = |line: &str| {
            let (range, rest) = line.split_once(' ')?;
            let (_, file) = rest.split_once("/memfd:ibex-")?;
            let (start, end) = range.split_once('-')?;
            let start = u64::from_str_radix(start, 16).ok()?;
            let end = u64::from_str_radix(end, 16).ok()?;
            let mut bytes = vec![0; (end - start) as usize];
            memory.read_exact_at(&mut bytes, start).ok()?;
            let sum = crc_fast::checksum(CrcAlgorithm::Crc64Nvme, &bytes);
            Some((file.to_owned(), sum))
        };
        let mut sessions = party.node.stats().sessions;
        for session in &mut sessions {
            // An engine polls its device independently of other events.
            (session.counters.polls, session.counters.empty_polls) = (0, 0);
        }
        Self {
            sessions: format!("{sessions:?}"),
            memory: maps.lines().filter_map(content).collect(),
        }
    }
}

// ---- Children ------------------------------------------------------------------------

enum Forked {
    Parent(Child),
    Child(Ending),
}

fn fork() -> Forked {
    // SAFETY: the child calls ibex, which promises to allow it, and otherwise functions that
    // allocate and print. These work after `fork` with the C libraries on which the tests run.
    match unsafe { libc::fork() } {
        0 => Forked::Child(Ending),
        -1 => panic!("no child: {}", std::io::Error::last_os_error()),
        pid => Forked::Parent(Child(pid)),
    }
}

struct Child(libc::pid_t);

impl Child {
    fn has_succeeded(self) {
        let mut status = 0;
        // SAFETY: `status` is written to.
        let waited = unsafe { libc::waitpid(self.0, &raw mut status, 0) };
        assert_eq!(waited, self.0, "{}", std::io::Error::last_os_error());
        assert_eq!(status, 0, "the child did not succeed");
    }
}

/// The end of a child, which must not continue with other proofs when it panics.
struct Ending;

impl Ending {
    fn by(self, end: unsafe extern "C" fn(libc::c_int) -> !) -> ! {
        // SAFETY: no other thread exists that could interfere.
        unsafe { end(0) }
    }
}

impl Drop for Ending {
    fn drop(&mut self) {
        // SAFETY: it ends the process.
        unsafe { libc::_exit(101) }
    }
}

/// The descriptors with which this program was started.
static INHERITED: OnceLock<Vec<String>> = OnceLock::new();

/// Returns the numbers and targets of the open descriptors, except the standard ones.
fn descriptors() -> Vec<String> {
    let open = fs::read_dir("/proc/self/fd").expect("descriptors");
    let open = open.filter_map(|entry| {
        let path = entry.ok()?.path();
        let number: u32 = path.file_name()?.to_str()?.parse().ok()?;
        let target = fs::read_link(&path).ok()?.to_string_lossy().into_owned();
        // The directory itself is open while it is read.
        (number > 2 && !target.starts_with("/proc/")).then(|| format!("{number} {target}"))
    });
    open.collect()
}

// ---- Tasks ---------------------------------------------------------------------------

fn context() -> Context<'static> {
    Context::from_waker(Waker::noop())
}

fn poll<F: Future>(future: Pin<&mut F>) -> Poll<F::Output> {
    future.poll(&mut context())
}

/// Returns the result of a future that is ready at once.
fn ready<F: Future>(future: F) -> F::Output {
    match poll(Box::pin(future).as_mut()) {
        Poll::Ready(output) => output,
        Poll::Pending => panic!("it waits"),
    }
}

/// Two and a half times the interval of checks for idle sessions, of which the second takes memory
/// back.
const SILENCE: Duration = Duration::from_millis(2500);
/// The number of attempts to tell a child's change from one that an engine makes with time: such an
/// engine comes to rest, while a child does the same each time.
const TRIES: u32 = 20;
/// A watchdog's time: nothing takes so long on any machine.
const LONG: Duration = Duration::from_secs(300);
