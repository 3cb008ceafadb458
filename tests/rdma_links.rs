//! Effects of a bad link on sessions over RDMA: it delays, loses, duplicates, reorders and corrupts
//! packets, and is cut.
//!
//! The link is that of `cargo xtask vm --pair` or `--two`: this node is at one end, and a process at
//! the other end, in a network namespace or a guest of its own, has the other node. Elsewhere the
//! tests pass without doing anything, unless `IBEX_TEST_GUEST` claims that this is the guest. All
//! traffic between the two uses the link, including the handshake's connection.
#![cfg(feature = "verbs")]
#![forbid(unsafe_code)]

use std::process::{Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use std::{env, thread};

use ibex::rdma::{RdmaSettings, Tuning};
use ibex::{
    Event, Events, Fabric, Node, NodeBuilder, Peer, Policy, Raw, Receiver, RecvErrorKind, Sender,
};
use ibex_harness::process::{Process, ours, stay_with_parent};

/// A watchdog's time, which suffices in a guest under emulation, although nothing here takes long.
const PATIENCE: Duration = Duration::from_secs(300);

/// Returns a builder of a node whose device waits this long for an acknowledgement, seven times.
fn builder(device: &str, timeout: Duration) -> NodeBuilder {
    Node::builder()
        .rdma(
            RdmaSettings::new()
                .device(device)
                .tuning(Tuning::new().timeout(timeout)),
        )
        .fabric(Fabric::Verbs, Policy::Prefer)
        .connect_timeout(PATIENCE)
        .handshake_timeout(PATIENCE)
}

/// The variable that tells the other end its device's time-out.
const TIMEOUT: &str = "IBEX_TEST_ACK_TIMEOUT_MS";

/// Returns message `number`: of any length up to 20 kB, and each 100th of 300 kB.
fn message(number: u64) -> Vec<u8> {
    let length = match number % 100 {
        0 => 300_000,
        _ => (number * 7919 % 20_000) as usize,
    };
    let byte = |at| (number as usize * 31 + at) as u8;
    (0..length).map(byte).collect()
}

// ---- The other end -------------------------------------------------------------------

#[test]
#[ignore = "run by the other tests, at the other end of the link"]
fn the_other_end() {
    stay_with_parent().expect("the tests run");
    let timeout = env::var(TIMEOUT).expect("it is told").parse();
    let timeout = Duration::from_millis(timeout.expect("a number"));
    let node = builder("rxe1", timeout)
        .insecure_network()
        .listen("192.0.2.2:0");
    let node = node.build();
    let node = node.expect("a node");
    // The lines explain a failed test.
    let (events, begun) = (node.events(), Instant::now());
    thread::spawn(move || {
        for event in events {
            eprintln!("the other end, {:?}: {event}", begun.elapsed());
        }
    });
    println!("address| {}", node.local_addr().expect("it listens"));
    // Serves until the reading process is done.
    while let Ok(peer) = node.accept_timeout(PATIENCE) {
        println!("heard| {}", hear(&peer));
    }
}

/// Checks all messages and answers each with its number. Returns their count and how the channel
/// ended.
fn hear(peer: &Peer) -> String {
    let receiver = peer.channel("said").codec::<Raw>().receiver::<[u8]>();
    let answers = peer.channel("answered").codec::<Raw>().sender::<[u8]>();
    let (mut receiver, mut answers) = (receiver.expect("an end"), answers.expect("an end"));
    let mut count = 0_u64;
    loop {
        match receiver.next() {
            Ok(Some(said)) => {
                count += 1;
                assert_eq!(said.sequence(), count);
                assert!(said[..] == message(count)[..], "message {count}");
            }
            Ok(None) => return format!("{count}, all"),
            Err(end) if end.kind() == RecvErrorKind::Disconnected => {
                let received = end.counts().map(|counts| counts.received);
                assert_eq!(received, Some(count), "{end}");
                return format!("{count}, and then {end}");
            }
            Err(error) => panic!("{error}"),
        }
        // If the channel is over, the next receive says why.
        let _ = answers.send(&count.to_le_bytes());
    }
}

// ---- This end ------------------------------------------------------------------------

/// The two nodes of the link.
struct Link {
    node: Node,
    address: String,
    /// The fabric of new sessions.
    fabric: Fabric,
    other: Process,
    /// It is given back after the other end was killed.
    _guest: MutexGuard<'static, ()>,
}

impl Link {
    /// Starts both nodes; `None` if there is no such link.
    fn new(timeout_ms: u64) -> Option<Self> {
        Self::with(timeout_ms, Policy::Prefer, PATIENCE)
    }

    /// Starts both nodes; their sessions move to tcp after `fail_over_after`, if they may.
    fn with(timeout_ms: u64, verbs: Policy, fail_over_after: Duration) -> Option<Self> {
        static GUEST: Mutex<()> = Mutex::new(());
        let Ok(there) = env::var(THERE) else {
            assert_eq!(env::var_os("IBEX_TEST_GUEST"), None);
            println!("this is not the guest with a link");
            return None;
        };
        let guest = GUEST.lock().unwrap_or_else(PoisonError::into_inner);
        for end in ENDS {
            // The disturbance is set before there is traffic, since installing it drops packets at
            // their sender.
            at(
                end,
                &format!("tc qdisc replace dev {end} root netem limit 100000"),
            );
        }
        let program = env::current_exe().expect("this program");
        let command = format!(
            "exec {there} env {TIMEOUT}={timeout_ms} {} the_other_end --exact --ignored --nocapture",
            program.display()
        );
        let mut other = ours("sh");
        other.args(["-c", &command]).stdout(Stdio::piped());
        let mut other = Process::start("the other end", &mut other).expect("a shell");
        let address = other.hear("address| ").expect("it lives");
        Some(Self {
            _guest: guest,
            node: builder("rxe0", Duration::from_millis(timeout_ms))
                .fabric(Fabric::Verbs, verbs)
                .fail_over_after(fail_over_after)
                .build()
                .expect("a node"),
            address,
            fabric: match verbs {
                Policy::Forbid => Fabric::Tcp,
                _ => Fabric::Verbs,
            },
            other,
        })
    }

    fn meet(&self) -> Met {
        let peer = self.node.connect(&self.address).expect("a session");
        assert_eq!(peer.fabric(), self.fabric);
        let sender = peer.channel("said").codec::<Raw>().sender();
        let answers = peer.channel("answered").codec::<Raw>().receiver();
        Met {
            sender: sender.expect("an end"),
            answers: answers.expect("an end"),
            peer,
        }
    }

    /// Sends `count` messages and receives their answers. The other end has received each once.
    fn carry(&mut self, count: u64) {
        let Met {
            mut sender,
            answers,
            ..
        } = self.meet();
        let taking = thread::spawn(move || take(answers, count));
        for number in 1..=count {
            sender.send(&message(number)).expect("sent");
        }
        sender.close().expect("delivered");
        taking.join().expect("all answers");
        assert_eq!(
            self.other.hear("heard| ").expect("it lives"),
            format!("{count}, all")
        );
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        for end in ENDS {
            at(
                end,
                &format!("tc qdisc replace dev {end} root netem limit 100000"),
            );
        }
        // The lines explain a failed test.
        let mut events = self.node.events();
        while let Some(event) = events.next_timeout(Duration::ZERO) {
            eprintln!("this end: {event}");
        }
    }
}

/// A session.
struct Met {
    peer: Peer,
    sender: Sender<[u8], Raw>,
    answers: Receiver<[u8], Raw>,
}

fn take(mut answers: Receiver<[u8], Raw>, count: u64) {
    for number in 1..=count {
        let answer = answers.recv().expect("an answer");
        assert_eq!(answer[..], number.to_le_bytes());
    }
}

const ENDS: [&str; 2] = ["v0", "v1"];
/// The variable with the words that begin a command at the other end of the link.
const THERE: &str = "VM_PEER";

/// Runs a command at that end of the link.
fn at(end: &str, command: &str) {
    let there = match end {
        "v1" => env::var(THERE).unwrap_or_default(),
        _ => String::new(),
    };
    let command = format!("{there} {command}");
    let status = Command::new("sh").args(["-e", "-c", &command]).status();
    assert!(status.expect("a shell").success(), "{command}");
}

/// Makes the link disturb packets of both directions with netem.
fn disturb(how: &str) {
    for end in ENDS {
        let netem = format!("tc qdisc change dev {end} root netem limit 100000 {how}");
        at(end, &netem);
    }
}

/// Returns the sum of these counters of both devices.
fn counted(counters: &[&str]) -> u64 {
    // The kernel's values are up to 12 ms old.
    thread::sleep(Duration::from_millis(30));
    let there = env::var(THERE).unwrap_or_default();
    // Network namespaces of one guest share its devices' counters.
    let of = |device: &str, counter: &str| {
        let path = format!("/sys/class/infiniband/{device}/ports/1/hw_counters/{counter}");
        let command = format!("cat {path} 2>/dev/null || {there} cat {path}");
        let said = Command::new("sh").args(["-c", &command]).output();
        let said = String::from_utf8(said.expect("a shell").stdout).expect("a text");
        said.trim().parse::<u64>().expect(&command)
    };
    let counters = counters.iter();
    counters
        .map(|counter| of("rxe0", counter) + of("rxe1", counter))
        .sum()
}

#[test]
fn no_message_is_lost_or_doubled_when_a_link_disturbs_packets() {
    let Some(mut link) = Link::new(67) else {
        return;
    };
    let again = [
        "rcvd_seq_err",
        "out_of_seq_request",
        "duplicate_request",
        "completer_retry_err",
    ];
    for (how, counters) in [
        ("delay 1ms", &again[..0]),
        ("loss 1%", &again[..]),
        ("delay 1ms reorder 25%", &again[..]),
        ("duplicate 5%", &again[2..3]),
        ("corrupt 1%", &again[..]),
    ] {
        let before = counted(counters);
        disturb(how);
        let begun = Instant::now();
        link.carry(100);
        let took = begun.elapsed();
        disturb("");
        let after = counted(counters);
        println!(
            "{how}: {took:?}, packets sent again or out of order: {}",
            after - before
        );
        assert!(counters.is_empty() || after > before, "{how}: {counters:?}");
    }
}

#[test]
fn a_cut_shorter_than_the_devices_patience_loses_nothing() {
    let Some(mut link) = Link::new(130) else {
        return;
    };
    let Met {
        mut sender,
        answers,
        ..
    } = link.meet();
    let again = counted(&["completer_retry_err"]);
    let taking = thread::spawn(move || take(answers, 300));
    for number in 1..=300 {
        let message = message(number);
        if number % 100 == 50 {
            disturb("loss 100%");
            thread::scope(|scope| {
                scope.spawn(|| {
                    thread::sleep(Duration::from_millis(150));
                    disturb("");
                });
                // This message goes into the cut, whatever has arrived before.
                sender.send(&message).expect("sent");
            });
        } else {
            sender.send(&message).expect("sent");
        }
    }
    sender.close().expect("delivered");
    taking.join().expect("all answers");
    assert_eq!(link.other.hear("heard| ").expect("it lives"), "300, all");
    assert!(counted(&["completer_retry_err"]) > again);
}

/// Cuts the link as [`goes_on_behind_a_cut`] does, and checks that it is the device that gives up.
fn goes_on_behind_a_longer_cut(link: Link) -> (String, Option<(Fabric, Fabric, String)>) {
    let exceeded = counted(&["retry_exceeded_err"]);
    let (cause, took, changed) = goes_on_behind_a_cut(link);
    // Messages go both ways, so the other end's device may be the one that gives up first.
    if !cause.contains("closed the connection") {
        assert!(cause.contains("retries exceeded"), "{cause}");
        assert!(counted(&["retry_exceeded_err"]) > exceeded);
    }
    // The device makes seven tries, of at least 67 ms each.
    assert!(took > Duration::from_millis(400), "{took:?}");
    (cause, changed)
}

/// Cuts the link in mid-stream, and mends it when the session is suspended. Returns the cause of the
/// suspension, the time until then, and any change of fabric reported by the time the session
/// continues.
fn goes_on_behind_a_cut(mut link: Link) -> (String, Duration, Option<(Fabric, Fabric, String)>) {
    let mut events = link.node.events();
    let Met {
        peer,
        mut sender,
        answers,
    } = link.meet();
    let taking = thread::spawn(move || take(answers, 600));
    for number in 1..=300 {
        sender.send(&message(number)).expect("sent");
    }
    let cut = Instant::now();
    disturb("loss 100%");
    let sending = thread::spawn(move || {
        for number in 301..=600 {
            sender.send(&message(number)).expect("sent");
        }
        sender.close().expect("delivered");
    });
    let cause = told(&mut events, |event| match event {
        Event::Suspended { cause, .. } => Some(cause.why().to_string()),
        _ => None,
    });
    let took = cut.elapsed();
    println!("after {took:?}: {cause}");
    assert!(peer.is_suspended());
    disturb("");
    told(&mut events, |event| match event {
        Event::Resumed { .. } => Some(()),
        _ => None,
    });
    sending.join().expect("all are sent");
    taking.join().expect("all answers");
    assert_eq!(link.other.hear("heard| ").expect("it lives"), "600, all");
    let mut changed = None;
    while let Some(event) = events.try_next() {
        if let Event::FabricChanged {
            from, to, reason, ..
        } = event
        {
            changed = Some((from, to, reason));
        }
    }
    let now = changed.as_ref().map_or(link.fabric, |(_, to, _)| *to);
    assert_eq!(peer.fabric(), now);
    // New sessions find the link as it was.
    link.carry(100);
    (cause, took, changed)
}

#[test]
fn after_a_longer_cut_the_session_gets_another_queue_pair_and_nothing_is_lost() {
    let Some(link) = Link::new(60) else {
        return;
    };
    let (_, changed) = goes_on_behind_a_longer_cut(link);
    assert_eq!(changed, None);
}

#[test]
fn where_verbs_is_required_it_gets_one_however_long_that_takes() {
    let Some(link) = Link::with(60, Policy::Require, Duration::ZERO) else {
        return;
    };
    let (_, changed) = goes_on_behind_a_longer_cut(link);
    assert_eq!(changed, None);
}

#[test]
fn where_it_may_not_wait_for_one_it_goes_on_over_tcp_and_nothing_is_lost() {
    let Some(link) = Link::with(60, Policy::Prefer, Duration::ZERO) else {
        return;
    };
    let (cause, changed) = goes_on_behind_a_longer_cut(link);
    let (from, to, reason) = changed.expect("another fabric");
    assert_eq!((from, to), (Fabric::Verbs, Fabric::Tcp));
    assert!(reason.starts_with(&cause), "{reason}");
}

/// No device tells of this cut: the engine notices that the peer does not answer.
#[test]
fn over_tcp_a_cut_suspends_the_session_and_nothing_is_lost() {
    let Some(link) = Link::with(60, Policy::Forbid, PATIENCE) else {
        return;
    };
    let (cause, _, changed) = goes_on_behind_a_cut(link);
    assert!(cause.contains("has not answered"), "{cause}");
    assert_eq!(changed, None);
}

/// Returns the next event of a kind.
fn told<T>(events: &mut Events, mut of_kind: impl FnMut(Event) -> Option<T>) -> T {
    let until = Instant::now() + PATIENCE;
    while let Some(event) = events.next_timeout(until.saturating_duration_since(Instant::now())) {
        println!("{event}");
        if let Some(told) = of_kind(event) {
            return told;
        }
    }
    panic!("it is not told");
}
