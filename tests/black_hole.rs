//! A network that swallows everything and says nothing: what is noticed, when, and what is not
//! lost. Each test runs in a network namespace of its own, whose loopback goes down.

mod namespace;

use std::{
    process::Command,
    thread,
    time::{Duration, Instant},
};

use ibex::{EndCause, Event, Events, Fabric, Node, Policy, RecvErrorKind, SendErrorKind};

/// Tells whether this process is in a namespace of its own, whose loopback is up; another runs the
/// test there.
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
    let there = builder().listen("127.0.0.1:0").build().unwrap();
    let here = builder().build().unwrap();
    let mut events = here.events();
    let peer = here.connect(there.local_addr().unwrap()).unwrap();
    let other = there.accept().unwrap();
    let mut sender = peer.sender::<u64>("numbers").unwrap();
    let mut receiver = other.receiver::<u64>("numbers").unwrap();
    sender.send(&0).unwrap();
    assert_eq!(*receiver.recv().unwrap(), 0);
    assert!(matches!(next(&mut events), Event::Connected { .. }));

    lo("down");
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

    lo("up");
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

    lo("down");
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
    lo("up");
    // Whoever gave up does not come back, though the way is free.
    assert!(peer.is_gone() && other.is_gone());
    assert!(matches!(ping.send(&3), Err(error) if error.kind() == SendErrorKind::Disconnected));
    // Only the session is over.
    let again = here.connect(there.local_addr().unwrap()).unwrap();
    let other = there.accept().unwrap();
    let mut sender = again.sender::<u64>("ping").unwrap();
    let mut receiver = other.receiver::<u64>("ping").unwrap();
    sender.send(&4).unwrap();
    assert_eq!(*receiver.recv().unwrap(), 4);
}

/// Nothing is on its way, so that only an answer to nothing can fail to come.
#[test]
fn an_end_that_only_receives_notices_by_keepalive() {
    if !is_inside("an_end_that_only_receives_notices_by_keepalive") {
        return;
    }
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
    // What is silent tells so, and gives its memory back.
    thread::sleep(Duration::from_secs(4));
    lo("down");
    let told = next(&mut events);
    assert!(matches!(told, Event::Suspended { .. }), "{told}");
    // There may have been a later answer than the last that is known here.
    let silent = answered.elapsed();
    assert!(silent >= KEEPALIVE - NOTICE, "{silent:?}");
    lo("up");
    sender.send(&1).unwrap();
    assert_eq!(*receiver.recv().unwrap(), 1);
    assert!(peer.stats().resumes == 1 && other.stats().resumes == 1);
}

/// A node that is closed waits for its peer as it does otherwise, and no longer.
#[test]
fn a_node_that_is_being_closed_notices_a_black_hole() {
    if !is_inside("a_node_that_is_being_closed_notices_a_black_hole") {
        return;
    }
    let there = builder().listen("127.0.0.1:0").build().unwrap();
    let here = builder().session_timeout(VERDICT).build().unwrap();
    let peer = here.connect(there.local_addr().unwrap()).unwrap();
    let other = there.accept().unwrap();
    let mut sender = peer.sender::<u64>("numbers").unwrap();
    let receiver = other.receiver::<u64>("numbers").unwrap();
    sender.send(&0).unwrap();
    sender.flush().unwrap();
    lo("down");
    sender.send(&1).unwrap();
    let since = Instant::now();
    // It waits for ever if it does not notice.
    let report = here.close(Duration::MAX);
    assert!(since.elapsed() >= NOTICE);
    assert_eq!(report.undelivered.len(), 1, "{report}");
    drop(receiver);
}

/// When a silent network is noticed where nothing is under way.
const KEEPALIVE: Duration = Duration::from_secs(19);
/// A watchdog's time: nothing takes so long on any machine.
const PATIENCE: Duration = Duration::from_secs(300);
/// When a silent network is noticed.
const NOTICE: Duration = Duration::from_secs(1);
/// When it is given up, from then.
const VERDICT: Duration = Duration::from_millis(700);
