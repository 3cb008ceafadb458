//! The log and the counts of a node, as an operator reads them. The log names the peer, and the
//! node's own address.
#![forbid(unsafe_code)]

#[path = "common/log_lines.rs"]
mod log_lines;

use ibex_harness::wait_until;
use std::{
    error::Error,
    io::Write as _,
    net::{TcpListener, TcpStream},
    thread,
    time::{Duration, Instant},
};

use ibex::prelude::*;
use ibex::{
    Fabric, Node, Peer, Policy, Raw,
    log::{LogAnswer, LogSender, LogSent, LogSource, LogTurn},
};
use ibex_harness::proxy::Proxy;
use log_lines::{Log, WATCHDOG};

/// A run that ends breaks its connection. This one goes on sending although another run has come.
#[test]
fn two_running_nodes_of_one_identity_are_warned_of() {
    let log = Log::of_process();
    for (fabric, identity) in [(Fabric::Tcp, [0xa1; 16]), (Fabric::Shm, [0xa2; 16])] {
        let builder = || Node::builder().fabric(fabric, Policy::Require);
        let there = builder().listen("127.0.0.1:0").build().expect("a node");
        let address = there.local_addr().expect("it listens");
        let run = || {
            let node = builder().identity(identity).build().expect("a node");
            let peer = node.connect(address).expect("a session");
            (node, peer, there.accept().expect("the same session"))
        };
        let (older, newer) = (run(), run());
        let mut sender = older.1.sender::<u64>("numbers").expect("a sender");
        let mut receiver = older.2.receiver::<u64>("numbers").expect("a receiver");
        let named = format!("{:02x}", identity[0]).repeat(6);
        let words = ["WARN", "two running nodes have one identity", &named];
        let began = Instant::now();
        while log.lines_with(&words).is_empty() {
            assert!(began.elapsed() < WATCHDOG, "nobody warns over {fabric}");
            sender.send(&1).expect("sent");
            receiver.recv().expect("a message").ack();
            thread::sleep(Duration::from_millis(1));
        }
        let line = &log.lines_with(&words)[0];
        for (words, run) in [("peer", older.2.id()), ("other", newer.2.id())] {
            assert!(line.contains(&format!("{words}={run}")), "{line}");
        }
        assert!(
            !older.2.is_gone() && !newer.2.is_gone(),
            "what works goes on"
        );
    }
}

#[test]
fn log_lines_name_a_peer_by_identity_and_by_the_node_it_connected_to() {
    let log = Log::of_process();
    let listener = Node::builder().name("the second").listen("127.0.0.1:0");
    let listener = listener.build().expect("a node");
    let address = listener.local_addr().expect("it listens");
    let dialer = thread::spawn(move || {
        let client = Node::builder().identity([7; 16]).build().expect("a node");
        let peer = client.connect(address).expect("a session");
        (client, peer)
    });
    let peer = listener.accept().expect("the same session");
    let own = format!(", accepted on {address}, via node the second ");
    let line = log.line_with(&own).expect("it is logged");
    assert!(line.contains("session up"), "{line}");
    let named = format!("peer={} at {}", peer.id(), peer.address());
    assert!(line.contains(&named), "{line}");
    assert!(line.contains("peer=070707070707/"), "{line}");
    drop(dialer.join());

    // A stranger is no peer and has no name, but the listener has an address.
    let mut stranger = TcpStream::connect(address).expect("a connection");
    stranger.write_all(b"GET / HTTP/1.1\r\n\r\n").expect("room");
    let own = format!("listener={address}");
    let line = log.awaited(&own);
    assert!(line.contains("did not become a session"), "{line}");
    assert!(line.starts_with("WARN "), "{line}");

    // A health probe connects and says nothing. It is counted, and is no warning.
    let warnings = || {
        let lines = log.lines();
        lines
            .iter()
            .filter(|line| line.starts_with("WARN "))
            .count()
    };
    let before = warnings();
    for _ in 0..5 {
        drop(TcpStream::connect(address).expect("a connection"));
    }
    wait_until(|| listener.stats().totals.silent_connections >= 5);
    assert_eq!(warnings(), before);
    let line = log
        .line_with("before its first byte")
        .expect("it is logged");
    assert!(line.starts_with("DEBUG "), "{line}");
    let totals = listener.stats().totals;
    assert_eq!(
        (totals.refused_connections, totals.silent_connections),
        (1, 5)
    );
}

/// Totals keep what channels and sessions counted that are over and forgotten.
#[test]
fn totals_of_a_node_never_fall() {
    for fabric in [Fabric::Shm, Fabric::Tcp] {
        let builder = || Node::builder().fabric(fabric, Policy::Require);
        let server = builder().listen("127.0.0.1:0").build().expect("a node");
        let mut last = server.stats();
        let mut look = || {
            let (before, now) = (last.clone(), server.stats());
            let rise = |before: u64, now: u64| assert!(before <= now, "{before}, {now}: {last}");
            rise(before.totals.sessions, now.totals.sessions);
            rise(before.totals.sent, now.totals.sent);
            rise(before.totals.received, now.totals.received);
            let (of, to) = (before.totals.counters, now.totals.counters);
            rise(of.frames_received, to.frames_received);
            rise(of.bytes_received, to.bytes_received);
            rise(of.control_bytes_received, to.control_bytes_received);
            rise(before.engines[0].received, now.engines[0].received);
            rise(
                before.engines[0].bytes_received,
                now.engines[0].bytes_received,
            );
            last = now;
            last.clone()
        };
        for run in 1..=3 {
            let client = builder().build().expect("a node");
            let there = client.connect(server.local_addr().expect("it listens"));
            let there = there.expect("a session");
            let here = server.accept().expect("the same session");
            for name in ["first", "second"] {
                let raw = there.channel(name).codec::<Raw>();
                let mut sender = raw.sender::<[u8]>().expect("an end");
                let raw = here.channel(name).codec::<Raw>();
                let mut receiver = raw.receiver::<[u8]>().expect("the other");
                for _ in 0..10 {
                    sender.send(b"counted").expect("room");
                    receiver.recv().expect("it came").ack();
                    look();
                }
                drop(sender);
                assert!(receiver.next().expect("closed in order").is_none());
                drop(receiver);
                look();
            }
            drop((here, there, client));
            wait_until(|| look().sessions.is_empty());
            let totals = look().totals;
            assert_eq!((totals.sessions, totals.received), (run, run * 20));
            assert_eq!(look().engines[0].received, run * 20);
            assert!(totals.counters.frames_received > 0);
        }
    }
}

#[test]
fn a_suspension_is_a_warning_and_its_end_is_information() {
    let log = Log::of_process();
    let there = Node::builder().name("cut").listen("127.0.0.1:0");
    let there = there.fabric(Fabric::Tcp, Policy::Require);
    let there = there.build().expect("a node");
    let proxy = Proxy::start(there.local_addr().expect("it listens").inet().unwrap()).unwrap();
    let here = Node::client().expect("a node");
    let _peer = here.connect(proxy.address()).expect("a session");
    let _other = there.accept().expect("the same session");
    proxy.cut_off();
    let of_cut = |words: &str| log.lines_with(&[words, "via node cut"]);
    let suspended = "message=a session is suspended";
    log.awaited(suspended);
    wait_until(|| !of_cut(suspended).is_empty());
    let line = of_cut(suspended).remove(0);
    assert!(line.starts_with("WARN "), "{line}");
    for part in ["there has been no connection to", "has to dial again"] {
        assert!(line.contains(part), "{line}");
    }
    assert!(!line.contains("gone"), "{line}");
    proxy.mend();
    let goes_on = "a session goes on over a new connection";
    wait_until(|| !of_cut(goes_on).is_empty());
    let line = of_cut(goes_on).remove(0);
    assert!(line.starts_with("INFO "), "{line}");
}

/// Both ends log the end of a session that a program closes, with its reason.
#[test]
fn both_ends_log_the_end_of_a_session_with_its_reason() {
    let log = Log::of_process();
    let there = Node::listen("127.0.0.1:0").expect("a node");
    let node = Node::client().expect("a node");
    let peer = node.connect(there.local_addr().expect("it listens"));
    let peer = peer.expect("a session");
    there.accept().expect("the same session");
    let report = peer.close_because("the job of this test is done", WATCHDOG);
    assert!(report.is_complete(), "{report}");
    for who in ["this program", "the peer"] {
        let why = format!("why={who} ended the session: \"the job of this test is done\"");
        let line = log.awaited(&why);
        assert!(
            line.starts_with("INFO ") && line.contains("session over"),
            "{line}"
        );
    }
}

/// A series of failures is one warning with the cause, and its end is reported.
#[test]
fn a_peer_that_is_kept_and_not_reached_is_one_warning() {
    let log = Log::of_process();
    let address = {
        let place = TcpListener::bind("127.0.0.1:0").expect("a port");
        place.local_addr().expect("it has one")
    };
    let node = Node::client().expect("a node");
    let peers = node.keep_connected([address]).expect("they are kept");
    let (words, about) = ("was not reached", address.to_string());
    let about = format!("address={about}");
    log.awaited(&format!("{about} error="));
    // The log sender's error has the last failure.
    let mut sender: LogSender<[u8], Raw> = LogSender::at(&peers, address);
    let error = sender.send_timeout(&mut Nothing, Duration::from_millis(700));
    let said = error.expect_err("there is no session").to_string();
    assert!(said.contains("the last attempt: "), "{said}");
    assert!(said.contains("refused"), "{said}");
    let listener = Node::builder().listen(address).build().expect("a node");
    listener.accept().expect("it is reached");
    peers.wait_for(address).expect("it is connected");
    let warnings = log.lines_with(&[words, &about]);
    assert_eq!(warnings.len(), 1, "{warnings:?}");
    assert!(warnings[0].starts_with("WARN "), "{warnings:?}");
    assert!(warnings[0].contains("refused"), "{warnings:?}");
    let again = log.lines_with(&["is reached again", &about]);
    assert_eq!(again.len(), 1, "{again:?}");
    assert!(again[0].starts_with("INFO "), "{again:?}");
}

/// A log that never gets a session.
struct Nothing;

type Result<R> = std::result::Result<R, Box<dyn Error + Send + Sync>>;

impl LogSource<[u8], Raw> for Nothing {
    fn end(&self) -> u64 {
        1
    }

    fn resume(&mut self, _: Peer) -> LogAnswer<[u8], Raw> {
        Box::pin(async { Err("there is no session".into()) })
    }

    fn send_next(&mut self, _: u64, _: LogTurn<'_, [u8], Raw>) -> Result<LogSent> {
        Err("there is no session".into())
    }
}

/// Counts tell bytes of messages from bytes of control messages, on each fabric.
#[test]
fn over_shared_memory_no_bytes_of_messages_are_sent() {
    for fabric in [Fabric::Shm, Fabric::Tcp] {
        let builder = || Node::builder().fabric(fabric, Policy::Require);
        let listener = builder().listen("127.0.0.1:0").build().expect("a node");
        let client = builder().build().expect("a node");
        let peer = client.connect(listener.local_addr().expect("it listens"));
        let peer = peer.expect("a session");
        let theirs = listener.accept().expect("the same session");
        let raw = peer.channel("log").codec::<Raw>();
        let mut sender = raw.sender::<[u8]>().expect("an end");
        let raw = theirs.channel("log").codec::<Raw>();
        let mut receiver = raw.receiver::<[u8]>().expect("the other");
        sender.send(&[7; 1000]).expect("room");
        receiver.recv().expect("it came").ack();
        sender.wait_acked(1).expect("acknowledged");

        let counted = |node: &Node| {
            let sessions = node.stats().sessions;
            sessions.first().expect("the session").counters
        };
        let (sent, came) = (counted(&client), counted(&listener));
        match fabric {
            Fabric::Shm => {
                assert_eq!((sent.bytes_sent, came.bytes_received), (0, 0));
                assert!(sent.control_bytes_sent > 0 && came.control_bytes_received > 0);
            }
            _ => {
                assert!(sent.bytes_sent > 1000 && came.bytes_received > 1000);
                let control = (sent.control_bytes_sent, came.control_bytes_received);
                assert_eq!(control, (0, 0));
            }
        }
    }
}
