//! After `kill -9` of the peer in mid-stream nothing of the session is left in this
//! process once its handles are dropped: no descriptor, no thread, no mapping, no file, and
//! over verbs no queue pair, no memory region and nothing else of the device. Of what the
//! killed process had there the kernel has nothing left either.
//!
//! One node lives through all rounds, as a server does; in each round a process connects,
//! or is connected to, streams both ways and is killed. What a node keeps for itself it has
//! after the first rounds, so from then on the counts must stand still.

mod processes;

use std::{
    fs,
    io::Write,
    process::{Command, ExitCode, Stdio},
    thread,
    time::{Duration, Instant},
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
        match round {
            0 => {}
            _ if round.is_multiple_of(2) => party.meet_the_next(),
            _ => party.call_on_the_next(),
        }
        // A message that outlives its handles keeps its memory until it is dropped and,
        // after that, a node is made or closed.
        drop(one_session(party));
        drop(Node::client().expect("another node starts"));
        let left = Belongings::settle(party, settled.as_ref());
        let of_the_killed = left.on_devices.iter().find(|line| line.contains("killed"));
        assert_eq!(of_the_killed, None, "round {round}: the kernel keeps it");
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
    /// Over verbs, as rdma(8) tells where that is installed: queue pairs, memory regions
    /// and so on, and whose they are.
    on_devices: Vec<String>,
}

impl Belongings {
    /// What is left when it is what was `expected`, or does not change any more: the end
    /// of a session comes from the kernel through the node's engine.
    fn settle(party: &Party, expected: Option<&Self>) -> Self {
        let mut seen = Self::now(party);
        let mut since = Instant::now();
        while since.elapsed() < SETTLED && expected != Some(&seen) {
            thread::sleep(Duration::from_millis(5));
            party.node.poll();
            let now = Self::now(party);
            if now != seen {
                (seen, since) = (now, Instant::now());
            }
        }
        seen
    }

    fn now(party: &Party) -> Self {
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
            on_devices: match party.peer.fabric() {
                Fabric::Verbs => on_devices(party.other.pid()),
                _ => Vec::new(),
            },
        }
    }
}

/// What this process has of RDMA devices, and what the one that was killed has.
fn on_devices(killed: u32) -> Vec<String> {
    let program = Command::new("rdma")
        .args(["-f", "-b", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn();
    let Ok(mut program) = program else {
        return Vec::new();
    };
    let mut questions = program.stdin.take().expect("it is piped");
    for kind in ["qp", "cq", "mr", "srq", "pd", "ctx"] {
        writeln!(questions, "resource show {kind}").expect("it reads to the end");
    }
    drop(questions);
    let listed = program.wait_with_output().expect("it ends");
    let listed = String::from_utf8_lossy(&listed.stdout);
    // `dev rxe0 mrn 5 ... pid 189 ...`; the number is another in each round.
    let mut found: Vec<_> = listed
        .lines()
        .filter_map(|line| {
            let words: Vec<_> = line.split_ascii_whitespace().collect();
            let owner = words.iter().skip_while(|word| **word != "pid").nth(1)?;
            let owner = match owner.parse::<u32>() {
                Ok(pid) if pid == own_pid() => "ours",
                Ok(pid) if pid == killed => "of the killed",
                _ => return None,
            };
            Some(format!("{} {owner}", words.get(2)?))
        })
        .collect();
    found.sort();
    assert!(
        found.iter().any(|line| line == "pdn ours"),
        "a node over verbs has a protection domain: {listed}"
    );
    found
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
const WARM_UP: u64 = 4;
const MESSAGES: usize = 1000;
/// How long to see the same. An engine that is awake needs one turn.
const SETTLED: Duration = Duration::from_millis(500);
