//! A process at its limit of open files: the sessions that it has work in full, and the next is
//! refused with a reason, even if the program itself has opened all files that it may.
#![forbid(unsafe_code)]

use std::{
    env,
    fs::File,
    io,
    net::SocketAddr,
    process::Stdio,
    thread,
    time::{Duration, Instant},
};

use ibex::{
    ConnectError, ConnectErrorKind, Driver, Fabric, Node, NodeBuilder, Peer, Policy, Raw, Receiver,
    Sender,
};
use ibex_harness::process::{Process, again, stay_with_parent};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// The files that the listening process may open.
const LIMIT: u64 = 112;
/// Some time that no step takes.
const WATCHDOG: Duration = Duration::from_secs(600);
/// The rounds of messages, each over channels of its own.
const ROUNDS: [&str; 3] = ["first", "second", "third"];
/// The fabric of the listening process.
const LISTENS: &str = "IBEX_TEST_LISTENS";
/// The address that the dialing process connects to.
const DIALS: &str = "IBEX_TEST_DIALS";
/// The start of the answers of the other process.
const SAYS: &str = "listener: ";

#[test]
fn a_process_at_its_limit_of_files_refuses_the_next_session_over_shm() {
    // The process itself, its node and the free descriptors take some fifty.
    refuses_the_next_session(Fabric::Shm, 6);
}

#[test]
fn a_process_at_its_limit_of_files_refuses_the_next_session_over_tcp() {
    refuses_the_next_session(Fabric::Tcp, 18);
}

fn refuses_the_next_session(fabric: Fabric, least: usize) {
    let mut listener = Listener::begin(fabric);
    let dialer = builder(fabric).build().expect("a node");
    let address = listener.address;
    let connect = || dialer.connect(address);
    let (mut sessions, mut refused) = (Vec::new(), 0);
    // A refused session costs nothing. A first refusal may come too early, while the process is
    // still closing what it needed to accept the session before.
    while refused < LIMIT {
        match connect() {
            Ok(peer) => {
                play(&peer, ROUNDS[0]);
                sessions.push(peer);
                refused = 0;
            }
            Err(error) => {
                assert_refused(&error);
                refused += 1;
            }
        }
    }
    eprintln!("{fabric}: {} sessions", sessions.len());
    assert!(sessions.len() >= least, "{} sessions", sessions.len());
    for peer in &sessions {
        play(peer, ROUNDS[1]);
    }
    listener.does("take");
    for _ in 0..3 {
        assert_refused(&connect().expect_err("a refusal"));
    }
    listener.does("free");
    for peer in &sessions {
        play(peer, ROUNDS[2]);
    }
    // A session that ends makes room for another, once the peer has closed its files.
    for peer in sessions.drain(least / 2..) {
        let report = peer.close(WATCHDOG);
        assert!(report.undelivered.is_empty(), "{report}");
    }
    let began = Instant::now();
    let next = loop {
        match connect() {
            Ok(peer) => break peer,
            Err(error) => assert_refused(&error),
        }
        assert!(began.elapsed() < WATCHDOG, "there is no room");
    };
    for round in ROUNDS {
        play(&next, round);
    }
}

/// A dialing process keeps files free as well, for the channels of its sessions and for the program.
#[test]
fn a_dialing_process_at_its_limit_of_files_makes_no_more_sessions() {
    let node = builder(Fabric::Tcp).listen("127.0.0.1:0").build();
    let node = node.expect("a node");
    let address = node.local_addr().expect("it listens");
    let mut again = again().expect("this program");
    again
        .args(["--exact", "dialer", "--nocapture"])
        .env(DIALS, address.to_string())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped());
    let mut process = Process::start("the dialer", &mut again).expect("a process");
    thread::scope(|scope| {
        scope.spawn(|| {
            while let Ok(peer) = node.accept() {
                scope.spawn(move || echo(&peer));
            }
        });
        let sessions = process.hear(SAYS);
        // The thread that accepts ends with the node, whatever the dialer says.
        let _ = process.say("end");
        let _ = node.close(WATCHDOG);
        let sessions = sessions.expect("it lives");
        let sessions: usize = sessions.parse().expect("a number");
        assert!(sessions >= 18, "{sessions} sessions");
    });
}

/// Plays the dialing process; does nothing in the test's own process.
#[test]
fn dialer() {
    let Ok(address) = env::var(DIALS) else {
        return;
    };
    stay_with_parent().expect("the test runs");
    let limit = getrlimit(Resource::Nofile);
    let current = Some(LIMIT);
    setrlimit(Resource::Nofile, Rlimit { current, ..limit }).expect("a lower limit");
    let node = builder(Fabric::Tcp).build().expect("a node");
    let mut sessions = Vec::new();
    let error = loop {
        match node.connect(&*address) {
            Ok(peer) => sessions.push(peer),
            Err(error) => break error,
        }
    };
    assert_refused_at(&error, "connecting", ConnectErrorKind::Resources);
    // The program goes on as before, for example with a log file.
    let files = (0..16).map(|_| File::open("/dev/null"));
    let files: Vec<_> = files.collect::<Result<_, _>>().expect("files are free");
    drop(files);
    for peer in &sessions {
        for round in ROUNDS {
            play(peer, round);
        }
    }
    println!("{SAYS}{}", sessions.len());
    let _ = io::stdin().lines().next();
    std::process::exit(0);
}

fn assert_refused(error: &ConnectError) {
    assert_refused_at(error, "listening", ConnectErrorKind::Refused);
}

/// Asserts that a session was refused because the process of this end is at its limit.
fn assert_refused_at(error: &ConnectError, end: &str, kind: ConnectErrorKind) {
    assert_eq!(error.kind(), kind, "{error}");
    assert!(error.is_transient());
    let text = error.to_string();
    let limit = format!("the process of the {end} node may open {LIMIT} files");
    for part in [limit.as_str(), "ulimit -n", "LimitNOFILE="] {
        assert!(text.contains(part), "{part}: {text}");
    }
}

/// Sends a message and receives it back.
fn play(peer: &Peer, round: &str) {
    let (mut there, mut back) = ends(peer, &format!("{round} there"), &format!("{round} back"));
    there.send(round.as_bytes()).expect("sent");
    let echo = back.recv().expect("an echo");
    assert_eq!(&*echo, round.as_bytes());
    echo.ack();
}

fn ends(peer: &Peer, to: &str, from: &str) -> (Sender<[u8], Raw>, Receiver<[u8], Raw>) {
    let sender = peer.channel(to).codec::<Raw>().sender::<[u8]>();
    let receiver = peer.channel(from).codec::<Raw>().receiver::<[u8]>();
    (sender.expect("an end"), receiver.expect("an end"))
}

fn builder(fabric: Fabric) -> NodeBuilder {
    let none: [(&str, &str); 0] = [];
    let builder = Node::builder().environment(none).driver(Driver::Threads);
    let builder = builder.connect_timeout(WATCHDOG);
    builder.fabric(fabric, Policy::Require)
}

/// The listening process.
struct Listener {
    process: Process,
    address: SocketAddr,
}

impl Listener {
    fn begin(fabric: Fabric) -> Self {
        let mut again = again().expect("this program");
        again
            .args(["--exact", "listener", "--nocapture"])
            .env(LISTENS, fabric.to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let mut process = Process::start("the listener", &mut again).expect("a process");
        let address = process.hear(SAYS).expect("it lives");
        let address = address.parse().expect("an address");
        Self { process, address }
    }

    fn does(&mut self, what: &str) {
        self.process.say(what).expect("it lives");
        assert_eq!(self.process.hear(SAYS).expect("it lives"), what);
    }
}

/// Plays the listening process; does nothing in the test's own process.
#[test]
fn listener() {
    let Ok(fabric) = env::var(LISTENS) else {
        return;
    };
    stay_with_parent().expect("the test runs");
    let fabric = match fabric.as_str() {
        "shm" => Fabric::Shm,
        _ => Fabric::Tcp,
    };
    let limit = getrlimit(Resource::Nofile);
    let current = Some(LIMIT);
    setrlimit(Resource::Nofile, Rlimit { current, ..limit }).expect("a lower limit");
    let node = builder(fabric).listen("127.0.0.1:0").build();
    let node = node.expect("a node");
    println!("{SAYS}{}", node.local_addr().expect("it listens"));
    thread::scope(|scope| {
        scope.spawn(|| {
            while let Ok(peer) = node.accept() {
                scope.spawn(move || echo(&peer));
            }
        });
        let mut taken = Vec::new();
        for line in io::stdin().lines() {
            let what = line.expect("a line");
            match what.as_str() {
                "take" => {
                    while let Ok(file) = File::open("/dev/null") {
                        taken.push(file);
                    }
                }
                _ => taken.clear(),
            }
            println!("{SAYS}{what}");
        }
        std::process::exit(0);
    });
}

/// Sends what comes back, in each round.
fn echo(peer: &Peer) {
    for round in ROUNDS {
        let (mut back, mut there) = ends(peer, &format!("{round} back"), &format!("{round} there"));
        let Ok(message) = there.recv() else {
            return;
        };
        if back.send(&message).is_err() {
            return;
        }
        message.ack();
    }
}
