//! A network that drops every packet, or a firewall of the sending host that does: how soon nodes
//! notice, and that no message is lost. Each test runs in a network namespace of its own.

mod namespace;

use std::{
    process::Command,
    thread,
    time::{Duration, Instant},
};

use ibex::{EndCause, Event, Events, Fabric, Node, Policy, RecvErrorKind, SendErrorKind};

/// Returns whether this process is in a namespace of its own, whose loopback is up; otherwise runs
/// the test in such a process.
fn is_inside(test: &str) -> bool {
    let is_inside = namespace::is_inside(test);
    if is_inside {
        lo("up");
    }
    is_inside
}

fn lo(state: &str) {
    let set = Command::new("ip")
        .args(["link", "set", "lo", state])
        .status();
    assert!(set.expect("ip runs").success());
}

/// A way to drop every packet.
#[derive(Clone, Copy, Debug)]
enum Hole {
    /// The network drops what was sent.
    Network,
    /// The firewall of each end's own host drops what the end sends, so that its kernel keeps the
    /// bytes and counts them as not sent.
    Firewall,
}

impl Hole {
    /// Returns the ways that this machine has. Without nft, no firewall is tested.
    fn all() -> Vec<Self> {
        match Command::new("nft").args(["list", "ruleset"]).status() {
            Ok(status) if status.success() => vec![Self::Network, Self::Firewall],
            why => {
                println!("no firewall is tested, because nft gives {why:?}");
                vec![Self::Network]
            }
        }
    }

    /// Drops every packet from now on.
    fn open(self) {
        match self {
            Self::Network => lo("down"),
            Self::Firewall => nft(
                "table ip hole { chain output { type filter hook output priority 0; policy drop; }; }",
            ),
        }
    }

    /// Lets packets through again.
    fn close(self) {
        match self {
            Self::Network => lo("up"),
            Self::Firewall => nft("delete table ip hole"),
        }
    }
}

fn nft(rules: &str) {
    let set = Command::new("nft").arg(rules).status();
    assert!(set.expect("nft runs").success());
}

fn builder() -> ibex::NodeBuilder {
    Node::builder()
        .fabric(Fabric::Tcp, Policy::Require)
        .notice_timeout(NOTICE)
}

fn next(events: &mut Events) -> Event {
    events.next_timeout(PATIENCE).expect("an event")
}

#[test]
fn a_black_hole_is_noticed_and_nothing_in_it_is_lost() {
    if !is_inside("a_black_hole_is_noticed_and_nothing_in_it_is_lost") {
        return;
    }
    for hole in Hole::all() {
        notice(hole);
    }
}

fn notice(hole: Hole) {
    let there = builder().listen("127.0.0.1:0").build().unwrap();
    let here = builder().build().unwrap();
    let mut events = here.events();
    let peer = here.connect(there.local_addr().unwrap()).unwrap();
    let other = there.accept().unwrap();
    let mut sender = peer.sender::<u64>("numbers").unwrap();
    let mut receiver = other.receiver::<u64>("numbers").unwrap();
    sender.send(&0).unwrap();
    receiver.recv().unwrap().ack();
    // From here on nothing of this end is in flight.
    sender.wait_acked(1).unwrap();
    assert!(matches!(next(&mut events), Event::Connected { .. }));

    hole.open();
    let since = Instant::now();
    for number in 1..=100 {
        sender.send(&number).unwrap();
    }
    let Event::Suspended { cause, .. } = next(&mut events) else {
        panic!("no break was told")
    };
    let noticed = since.elapsed();
    assert!(cause.to_string().contains("has not answered"), "{cause}");
    assert!(noticed >= NOTICE, "{noticed:?}");
    assert!(peer.is_suspended() && !peer.is_gone());
    assert!(receiver.try_recv().is_err());

    hole.close();
    for number in 1..=100 {
        assert_eq!(*receiver.recv().unwrap(), number);
    }
    assert!(matches!(next(&mut events), Event::Resumed { .. }));
    sender.close().unwrap();
    assert!(matches!(receiver.recv(), Err(error) if error.kind() == RecvErrorKind::Ended));
}

#[test]
fn a_black_hole_that_stays_ends_the_session_at_both_ends_for_good() {
    if !is_inside("a_black_hole_that_stays_ends_the_session_at_both_ends_for_good") {
        return;
    }
    for hole in Hole::all() {
        give_up(hole);
    }
}

fn give_up(hole: Hole) {
    let builder = || builder().session_timeout(VERDICT);
    let there = builder().listen("127.0.0.1:0").build().unwrap();
    let here = builder().build().unwrap();
    let peer = here.connect(there.local_addr().unwrap()).unwrap();
    let other = there.accept().unwrap();
    let (mut ping, mut heard) = (
        peer.sender::<u64>("ping").unwrap(),
        other.receiver::<u64>("ping").unwrap(),
    );
    let (mut pong, mut answer) = (
        other.sender::<u64>("pong").unwrap(),
        peer.receiver::<u64>("pong").unwrap(),
    );
    ping.send(&1).unwrap();
    assert_eq!(*heard.recv().unwrap(), 1);
    pong.send(&1).unwrap();
    answer.recv().unwrap().ack();

    hole.open();
    ping.send(&2).unwrap();
    pong.send(&2).unwrap();
    let gone = |text: String, cause: Option<&EndCause>| {
        assert!(text.contains("has not answered"), "{text}");
        assert!(
            matches!(cause, Some(EndCause::PeerGone { certain: false, .. })),
            "{text}"
        );
    };
    match answer.recv() {
        Err(error) => gone(error.to_string(), error.cause()),
        Ok(_) => panic!("a message came out of a black hole"),
    }
    let error = pong.wait_acked(2).expect_err("nobody acknowledges");
    gone(error.to_string(), error.cause());
    hole.close();
    // A session that was given up stays gone, although the network works again.
    assert!(peer.is_gone() && other.is_gone());
    assert!(matches!(ping.send(&3), Err(error) if error.kind() == SendErrorKind::Disconnected));
    // Only the session is over; the nodes meet again.
    let again = here.connect(there.local_addr().unwrap()).unwrap();
    let other = there.accept().unwrap();
    let mut sender = again.sender::<u64>("ping").unwrap();
    let mut receiver = other.receiver::<u64>("ping").unwrap();
    sender.send(&4).unwrap();
    assert_eq!(*receiver.recv().unwrap(), 4);
}

/// The receiver takes everything that comes. While the break is not noticed, only its host's silence
/// is known, and that is what errors tell.
#[test]
fn a_host_that_is_silent_is_told_of_before_the_connection_counts_as_broken() {
    if !is_inside("a_host_that_is_silent_is_told_of_before_the_connection_counts_as_broken") {
        return;
    }
    for hole in Hole::all() {
        tell_of_silence(hole);
    }
}

fn tell_of_silence(hole: Hole) {
    let builder = || builder().notice_timeout(PATIENCE);
    let there = builder().listen("127.0.0.1:0").build().unwrap();
    let here = builder().build().unwrap();
    let peer = here.connect(there.local_addr().unwrap()).unwrap();
    let other = there.accept().unwrap();
    let mut sender = peer
        .channel("numbers")
        .window_messages(4)
        .sender::<u64>()
        .unwrap();
    let mut receiver = other.receiver::<u64>("numbers").unwrap();
    sender.send(&0).unwrap();
    receiver.recv().unwrap().ack();
    sender.wait_acked(1).unwrap();

    hole.open();
    let moment = Duration::from_millis(50);
    let error = loop {
        match sender.send_timeout(&1, moment) {
            Err(error) if error.suspended().is_some() => break error,
            Err(error) => assert_eq!(error.kind(), SendErrorKind::Timeout),
            Ok(_) => {}
        }
    };
    let waited = sender.wait_acked_timeout(2, moment).unwrap_err();
    for (said, account) in [
        (error.to_string(), error.suspended()),
        (waited.to_string(), waited.suspended()),
    ] {
        assert!(account.is_some_and(|account| account.is_silence), "{said}");
        assert!(
            said.contains("nothing has been heard from 127.0.0.1:"),
            "{said}"
        );
        for blame in ["see that", "stayed full", "gone", "no connection"] {
            assert!(!said.contains(blame), "{blame}: {said}");
        }
    }
    assert!(!peer.is_suspended() && peer.suspension().is_none());
    hole.close();
    let last = sender.counts().sent;
    for _ in 1..last {
        assert_eq!(*receiver.recv().unwrap(), 1);
    }
    assert_eq!(peer.stats().suspensions, 0, "the connection has held");
}

/// Both directions are idle, so only a missing answer to a keep-alive shows the outage.
#[test]
fn an_end_that_only_receives_notices_by_keepalive() {
    if !is_inside("an_end_that_only_receives_notices_by_keepalive") {
        return;
    }
    for hole in Hole::all() {
        notice_by_keepalive(hole);
    }
}

fn notice_by_keepalive(hole: Hole) {
    let there = builder().listen("127.0.0.1:0").build().unwrap();
    let here = builder().build().unwrap();
    let peer = here.connect(there.local_addr().unwrap()).unwrap();
    let other = there.accept().unwrap();
    let mut sender = peer.sender::<u64>("numbers").unwrap();
    let mut receiver = other.receiver::<u64>("numbers").unwrap();
    let answered = Instant::now();
    sender.send(&0).unwrap();
    receiver.recv().unwrap().ack();
    sender.wait_acked(1).unwrap();
    let mut events = there.events();
    assert!(matches!(next(&mut events), Event::Connected { .. }));
    // An idle end reports that, and gives its memory back.
    thread::sleep(Duration::from_secs(4));
    hole.open();
    let told = next(&mut events);
    assert!(matches!(told, Event::Suspended { .. }), "{told}");
    // A later answer may have arrived than the last one known here.
    let silent = answered.elapsed();
    assert!(silent >= KEEPALIVE - NOTICE, "{silent:?}");
    hole.close();
    sender.send(&1).unwrap();
    assert_eq!(*receiver.recv().unwrap(), 1);
    assert!(peer.stats().resumes == 1 && other.stats().resumes == 1);
}

/// Closing a node waits for its peer as usual, and no longer.
#[test]
fn a_node_that_is_being_closed_notices_a_black_hole() {
    if !is_inside("a_node_that_is_being_closed_notices_a_black_hole") {
        return;
    }
    for hole in Hole::all() {
        close_into(hole);
    }
}

fn close_into(hole: Hole) {
    let there = builder().listen("127.0.0.1:0").build().unwrap();
    let here = builder().session_timeout(VERDICT).build().unwrap();
    let peer = here.connect(there.local_addr().unwrap()).unwrap();
    let other = there.accept().unwrap();
    let mut sender = peer.sender::<u64>("numbers").unwrap();
    let receiver = other.receiver::<u64>("numbers").unwrap();
    sender.send(&0).unwrap();
    sender.flush().unwrap();
    hole.open();
    sender.send(&1).unwrap();
    let since = Instant::now();
    // The call waits forever if the node does not notice.
    let report = here.close(Duration::MAX);
    assert!(since.elapsed() >= NOTICE);
    assert_eq!(report.undelivered.len(), 1, "{report}");
    drop(receiver);
    hole.close();
}

/// The least time until a silent network is noticed while nothing is under way.
const KEEPALIVE: Duration = Duration::from_secs(15);
/// A watchdog's time: nothing takes so long on any machine.
const PATIENCE: Duration = Duration::from_secs(300);
/// Time until a silent network is noticed.
const NOTICE: Duration = Duration::from_secs(1);
/// Time from then until the session is given up.
const VERDICT: Duration = Duration::from_millis(700);
