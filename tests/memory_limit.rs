//! What peers can make a process hold: messages that are announced and never come cost nothing,
//! those that are there count in one limit, and other sessions' messages come all the same.
//!
//! The attackers are nodes of another process that are turned by their program, which sends and
//! then makes no call: what it announced is here, and nothing behind it.
#![forbid(unsafe_code)]

use std::{
    env, fs,
    io::{BufRead, BufReader, Read},
    process::{Child, Command, Stdio},
    sync::Mutex,
    thread,
    time::Duration,
};

use ibex::{
    ChannelBuilder, Driver, Fabric, Message, Node, NodeBuilder, Peer, Policy, Raw, Receiver,
    RecvTimeoutError,
};

/// Half a gigabyte and more is announced over tcp and does not come. The process grows by no
/// more than the little that a stalled sender's socket held, while a session beside goes on with long messages.
#[test]
fn announcements_cost_nothing() {
    let _alone = ALONE.lock().expect("no test has failed beside");
    let node = builder(Fabric::Tcp).listen("127.0.0.1:0").build();
    let node = node.expect("a node");
    let mut attack = Attack::begin(&node, Fabric::Tcp);
    let attackers: Vec<_> = (0..ATTACKERS).map(|_| accept_one(&node)).collect();
    let before = resident();
    attack.goes_on();
    for (_, receiver) in &attackers {
        while receiver.counts().sent < ANNOUNCED {
            thread::sleep(Duration::from_millis(1));
        }
    }
    // Memory is had in order: what is there for these was asked for later.
    others_go_on(&node, Fabric::Tcp);
    let grown = resident().saturating_sub(before);
    eprintln!("the process has grown by {} KiB", grown >> 10);
    assert!(grown < MOST, "it has grown by {grown} bytes");
    drop(attackers);
}

/// Over shared memory, where a message is mapped when the program asks for it, so many are
/// mapped as the limit lets in, by their files' lengths; the others wait, and come when those are
/// released.
#[test]
fn what_is_mapped_counts_and_the_rest_waits() {
    let _alone = ALONE.lock().expect("no test has failed beside");
    let limit = 2 * LENGTH as u64 + LENGTH as u64 / 2;
    let builder = builder(Fabric::Shm).memory_limit(limit);
    let node = builder.listen("127.0.0.1:0").build().expect("a node");
    let mut attack = Attack::begin(&node, Fabric::Shm);
    let mut attackers: Vec<_> = (0..ATTACKERS).map(|_| accept_one(&node)).collect();
    attack.goes_on();
    for round in 0..ANNOUNCED * ATTACKERS / 2 {
        let mut held: Vec<Message<[u8], Raw>> = Vec::new();
        // Whoever comes first, two fit.
        while held.len() < 2 {
            for (_, receiver) in &mut attackers {
                match receiver.recv_timeout(Duration::from_millis(1)) {
                    Ok(message) => held.push(message),
                    Err(RecvTimeoutError::Timeout(_)) => {}
                    Err(error) => panic!("round {round}: {error}"),
                }
            }
        }
        assert_eq!(held.len(), 2, "no third fits");
        // A short one of another session does.
        others_go_on(&node, Fabric::Shm);
    }
}

/// Long messages of another session come.
fn others_go_on(node: &Node, fabric: Fabric) {
    let other = builder(fabric).build().expect("a node");
    let address = node.local_addr().expect("it listens");
    let here = other.connect(address).expect("a session");
    let there = node.accept().expect("a peer");
    let mut sender = open(&here).sender::<[u8]>().expect("an end");
    let mut receiver = open(&there).receiver::<[u8]>().expect("an end");
    let sending = thread::spawn(move || {
        let message = vec![3; HONEST];
        for _ in 0..HONEST_MESSAGES {
            sender.send(&message).expect("sent");
        }
        sender.close().expect("closed");
    });
    let mut messages = 0;
    while let Some(message) = receiver.next().expect("it comes") {
        assert_eq!(message.len(), HONEST);
        messages += 1;
    }
    assert_eq!(messages, HONEST_MESSAGES);
    sending.join().expect("it has sent");
}

/// The attackers' process, which runs this test alone.
#[test]
fn attackers() {
    let Ok(target) = env::var(TARGET) else {
        return;
    };
    let (fabric, address) = target.split_once(' ').expect("a fabric and an address");
    let fabric = match fabric {
        "shm" => Fabric::Shm,
        _ => Fabric::Tcp,
    };
    let mut ends: Vec<_> = (0..ATTACKERS)
        .map(|_| {
            let node = builder(fabric).driver(Driver::Caller).build();
            let node = node.expect("a node");
            let peer = node.connect(address).expect("a session");
            let mut sender = open(&peer).sender::<[u8]>().expect("an end");
            sender.opened(LONG).expect("opened");
            (node, sender)
        })
        .collect();
    println!("{READY}");
    wait_for_line();
    for (_, sender) in &mut ends {
        for _ in 0..ANNOUNCED {
            // Nobody writes it: it is of zeros.
            let place = sender.reserve(LENGTH).expect("room");
            place.send().expect("announced");
        }
    }
    println!("{READY}");
    // From here on no call is made.
    wait_for_line();
    std::process::exit(0);
}

fn wait_for_line() {
    let mut line = String::new();
    std::io::stdin()
        .lock()
        .read_line(&mut line)
        .expect("a pipe");
}

/// The process of the attackers.
struct Attack {
    process: Child,
    says: BufReader<Box<dyn Read>>,
}

impl Attack {
    fn begin(node: &Node, fabric: Fabric) -> Self {
        let address = node.local_addr().expect("it listens");
        let program = env::current_exe().expect("this program");
        let mut process = Command::new(program)
            .args(["--exact", "attackers", "--nocapture"])
            .env(TARGET, format!("{fabric} {address}"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("a process");
        let says: Box<dyn Read> = Box::new(process.stdout.take().expect("a pipe"));
        Self {
            process,
            says: BufReader::new(says),
        }
    }

    /// All have opened their ends: now they send.
    fn goes_on(&mut self) {
        self.hear();
        let stdin = self.process.stdin.as_mut().expect("a pipe");
        std::io::Write::write_all(stdin, b"go\n").expect("it lives");
        self.hear();
    }

    fn hear(&mut self) {
        let mut line = String::new();
        while !line.contains(READY) {
            line.clear();
            let read = self.says.read_line(&mut line).expect("a pipe");
            assert!(read > 0, "the attackers have gone");
        }
    }
}

impl Drop for Attack {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn accept_one(node: &Node) -> (Peer, Receiver<[u8], Raw>) {
    let peer = node.accept().expect("a peer");
    let receiver = open(&peer).receiver().expect("an end");
    (peer, receiver)
}

fn open(peer: &Peer) -> ChannelBuilder<Raw> {
    let channel = peer.channel("wal").codec::<Raw>();
    channel.max_message_bytes(LENGTH as u64)
}

fn builder(fabric: Fabric) -> NodeBuilder {
    Node::builder().fabric(fabric, Policy::Require)
}

/// Memory of the process alone.
fn resident() -> u64 {
    let status = fs::read_to_string("/proc/self/status").expect("procfs");
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("RssAnon:"));
    let kib = line.and_then(|line| line.trim().strip_suffix(" kB"));
    kib.and_then(|kib| kib.trim().parse::<u64>().ok())
        .expect("a number")
        << 10
}

/// Memory is the process's.
static ALONE: Mutex<()> = Mutex::new(());

const TARGET: &str = "IBEX_TEST_ATTACK";
const READY: &str = "the attackers are ready";
const LONG: Duration = Duration::from_secs(120);
const ATTACKERS: u64 = 5;
/// Messages that each announces.
const ANNOUNCED: u64 = 2;
const LENGTH: usize = 64 << 20;
/// What the process may take meanwhile: what a turn of an attacker brought all the same, and
/// the memory of the session beside, at both ends.
const MOST: u64 = 160 << 20;
const HONEST: usize = 12 << 20;
const HONEST_MESSAGES: u64 = 10;
