//! After `kill -9` of the peer in mid-stream nothing of the session is left in this
//! process once its handles are dropped: no descriptor, no thread, no mapping, no file, no
//! queue pair.
//!
//! One node lives through all rounds, as a server does; in each round a process connects,
//! streams both ways and is killed. What a node keeps for itself it has after the first
//! rounds, so from then on the counts must stand still.

mod processes;

use std::{
    fs,
    process::{Command, ExitCode},
    thread,
    time::Duration,
};

use ibex::{Fabric, Message, Node, Raw, RecvError, SendError};
use processes::{Party, Proof, Setup, own_pid};

fn main() -> ExitCode {
    let proof = |setup| Proof::new("killed", setup, survive, stream_until_killed);
    processes::run(Setup::all().map(proof).collect())
}

fn survive(party: &mut Party) {
    let mut settled = None;
    for round in 0..party.setup.count(ROUNDS, 5) {
        if round > 0 {
            party.meet_the_next();
        }
        // A message that outlives its handles keeps its memory until it is dropped and,
        // after that, a node is made or closed.
        drop(one_session(party));
        drop(Node::client().expect("another node starts"));
        let left = Belongings::settle(party, settled.as_ref());
        match &settled {
            Some(settled) => assert_eq!(left, *settled, "round {round} left something behind"),
            None if round + 1 == WARM_UP => settled = Some(left),
            None => {}
        }
    }
    assert!(!files_are_left(), "a file is left in /dev/shm");
}

/// Streams both ways, kills the peer, and lets go of everything but the last message.
fn one_session(party: &mut Party) -> Message<[u8], Raw> {
    let mut sender = party
        .peer
        .channel("back")
        .codec::<Raw>()
        .sender::<[u8]>()
        .unwrap();
    let mut receiver = party
        .peer
        .channel("there")
        .codec::<Raw>()
        .receiver::<[u8]>()
        .unwrap();
    let mut last = None;
    for _ in 0..MESSAGES {
        last = Some(receiver.recv().unwrap());
        sender.send(&[7; 64]).unwrap();
    }
    party.other.kill();
    loop {
        match receiver.recv() {
            Ok(message) => last = Some(message),
            Err(RecvError::Disconnected(_)) => break,
            Err(error) => panic!("{error}"),
        }
    }
    loop {
        match sender.send(&[7; 64]) {
            Ok(_) => {}
            Err(SendError::Disconnected(_)) => break,
            Err(error) => panic!("{error}"),
        }
    }
    last.expect("messages came before the end")
}

fn stream_until_killed(party: &mut Party) {
    let mut sender = party
        .peer
        .channel("there")
        .codec::<Raw>()
        .sender::<[u8]>()
        .unwrap();
    let mut receiver = party
        .peer
        .channel("back")
        .codec::<Raw>()
        .receiver::<[u8]>()
        .unwrap();
    thread::spawn(move || while receiver.next().is_ok_and(|message| message.is_some()) {});
    while sender.send(&[7; 64]).is_ok() {}
}

/// What this process has of the kernel that a session could leave behind.
#[derive(Debug, PartialEq, Eq)]
struct Belongings {
    descriptors: Vec<String>,
    threads: Vec<String>,
    segments: Vec<String>,
    /// Over verbs, as rdma(8) tells where that is installed.
    queue_pairs: Option<usize>,
}

impl Belongings {
    /// What is left when it is what was `expected`, or does not change any more: the end
    /// of a session comes from the kernel through the node's engine.
    fn settle(party: &Party, expected: Option<&Self>) -> Self {
        let fabric = party.peer.fabric();
        let mut before = Self::now(fabric);
        let mut unchanged = 0;
        while unchanged < LOOKS && expected != Some(&before) {
            thread::sleep(Duration::from_millis(5));
            party.node.poll();
            let now = Self::now(fabric);
            unchanged = if now == before { unchanged + 1 } else { 0 };
            before = now;
        }
        before
    }

    fn now(fabric: Fabric) -> Self {
        let mut descriptors = entries("/proc/self/fd", |path| {
            let target = fs::read_link(path).ok()?.to_string_lossy().into_owned();
            // Numbers of sockets change with each session, only their count must not.
            Some(
                target
                    .split_once(":[")
                    .map_or(target.clone(), |(kind, _)| kind.to_owned()),
            )
        });
        descriptors.retain(|target| !target.starts_with("/proc/"));
        let threads = entries("/proc/self/task", |path| {
            Some(
                fs::read_to_string(path.join("comm"))
                    .ok()?
                    .trim()
                    .to_owned(),
            )
        });
        let maps = fs::read_to_string("/proc/self/maps").expect("/proc is mounted");
        let segments = maps
            .lines()
            .filter_map(|line| line.find("/memfd:ibex").map(|at| line[at..].to_owned()))
            .collect();
        Self {
            descriptors,
            threads,
            segments,
            queue_pairs: (fabric == Fabric::Verbs).then(queue_pairs).flatten(),
        }
    }
}

/// How many queue pairs this process has.
fn queue_pairs() -> Option<usize> {
    let listed = Command::new("rdma")
        .args(["resource", "show", "qp"])
        .output()
        .ok()
        .filter(|listed| listed.status.success())?;
    let ours = format!(" pid {} ", own_pid());
    let listed = String::from_utf8_lossy(&listed.stdout).into_owned();
    Some(listed.lines().filter(|line| line.contains(&ours)).count())
}

fn entries(folder: &str, what: impl Fn(&std::path::Path) -> Option<String>) -> Vec<String> {
    let entries = fs::read_dir(folder).expect("/proc is mounted");
    let mut found: Vec<_> = entries
        .filter_map(|entry| what(&entry.expect("an entry").path()))
        .collect();
    found.sort();
    found
}

fn files_are_left() -> bool {
    let Ok(entries) = fs::read_dir("/dev/shm") else {
        return false;
    };
    entries
        .flatten()
        .any(|entry| entry.file_name().to_string_lossy().contains("ibex"))
}

const ROUNDS: u64 = 50;
/// Rounds after which a node has all that it keeps.
const WARM_UP: u64 = 3;
const MESSAGES: usize = 1000;
/// Looks that see the same. An engine that is awake needs one turn.
const LOOKS: usize = 100;
