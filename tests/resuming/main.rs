//! Sessions whose connections break: they resume, and every message arrives once and in order.

mod blame;
mod ending;
mod limits;
#[path = "../common/listen_again.rs"]
mod listen_again;
mod regions;
mod streams;

use std::{
    collections::BTreeSet,
    env, fs,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use ibex::{
    Driver, EndCause, Event, Fabric, Node, NodeBuilder, Peer, Policy, Raw, RecvErrorKind,
    WaitError, WaitErrorKind, stats::SessionState,
};
use ibex_harness::{
    process::{Process, again, stay_with_parent},
    proxy::Proxy,
    wait_until,
};
use listen_again::listen_again;

fn node(driver: Driver) -> Node {
    node_over(Fabric::Tcp, driver)
}

fn node_over(fabric: Fabric, driver: Driver) -> Node {
    builder(fabric).driver(driver).build().unwrap()
}

/// Returns a builder whose sessions are never given up and never stop dialing, except in tests of
/// that.
fn builder(fabric: Fabric) -> NodeBuilder {
    Node::builder()
        .listen("127.0.0.1:0")
        .fabric(fabric, Policy::Require)
        .session_timeout(FOR_EVER)
        .connect_timeout(FOR_EVER)
}

/// Creates two nodes, the first of which dialed the second over a proxy.
fn pair() -> (Node, Peer, Proxy, Node, Peer) {
    pair_over(Fabric::Tcp)
}

fn pair_over(fabric: Fabric) -> (Node, Peer, Proxy, Node, Peer) {
    join(builder(fabric), builder(fabric))
}

fn join(here: NodeBuilder, there: NodeBuilder) -> (Node, Peer, Proxy, Node, Peer) {
    let (here, there) = (here.build().unwrap(), there.build().unwrap());
    let proxy = Proxy::start(there.local_addr().unwrap().inet().unwrap()).unwrap();
    let peer = here.connect(proxy.address()).unwrap();
    let other = there.accept().unwrap();
    (here, peer, proxy, there, other)
}

const MESSAGES: u64 = 20_000;

/// Sends at least `messages` messages, and continues until both ends have resumed; on a fast
/// machine all would have arrived before the first cut.
fn carries_over_cuts(sends_here: bool, bytes: usize, messages: u64) {
    let (here, peer, proxy, there, other) = pair();
    let (from, to) = if sends_here {
        (peer.clone(), other.clone())
    } else {
        (other.clone(), peer.clone())
    };
    let resumed = {
        let (peer, other) = (peer.clone(), other.clone());
        move || peer.stats().resumes > 0 && other.stats().resumes > 0
    };
    let done = Arc::new(AtomicBool::new(false));
    let sending = thread::spawn(move || {
        let mut sender = from
            .channel("numbers")
            .codec::<Raw>()
            .sender::<[u8]>()
            .unwrap();
        let mut message = vec![0; bytes];
        let mut number = 0_u64;
        while number < messages || !resumed() {
            message[..8].copy_from_slice(&number.to_le_bytes());
            let last = bytes - 8;
            message[last..].copy_from_slice(&number.to_le_bytes());
            sender.send(&message[..]).unwrap();
            number += 1;
        }
        sender.flush().unwrap();
        number
    });
    let cutting = {
        let done = done.clone();
        thread::spawn(move || {
            let mut pause = 3;
            while !done.load(Ordering::Acquire) {
                // The cut comes at a random place in a message, or in the exchange before it.
                thread::sleep(Duration::from_millis(pause));
                if !peer.is_suspended() && !other.is_suspended() {
                    proxy.cut();
                }
                pause = (pause * 7) % 41;
            }
        })
    };
    let mut receiver = to
        .channel("numbers")
        .codec::<Raw>()
        .receiver::<[u8]>()
        .unwrap();
    let mut received = 0_u64;
    loop {
        let message = match receiver.recv() {
            Ok(message) => message,
            Err(error) if error.kind() == RecvErrorKind::Ended => break,
            Err(error) => panic!("{error} after {received} messages"),
        };
        assert_eq!(message[..8], received.to_le_bytes());
        assert_eq!(message[bytes - 8..], received.to_le_bytes());
        received += 1;
    }
    done.store(true, Ordering::Release);
    cutting.join().unwrap();
    assert_eq!(received, sending.join().unwrap());
    drop((here, there));
}

#[test]
fn short_messages_come_once_and_in_order() {
    carries_over_cuts(true, 64, MESSAGES);
    carries_over_cuts(false, 64, MESSAGES);
}

#[test]
fn messages_of_some_frames_come_once_and_in_order() {
    carries_over_cuts(true, 9_000, MESSAGES / 10);
}

#[test]
fn large_messages_come_once_and_in_order() {
    carries_over_cuts(true, 1 << 20, 400);
    carries_over_cuts(false, 300 << 10, 400);
}

#[test]
fn acknowledgements_come_over_another_connection() {
    let (_here, peer, proxy, _there, other) = pair();
    let mut sender = peer.sender::<u64>("numbers").unwrap();
    let mut receiver = other.receiver::<u64>("numbers").unwrap();
    for number in 0..50 {
        let sequence = sender.send(&number).unwrap();
        let waiting = thread::spawn(move || {
            sender.wait_acked(sequence).unwrap();
            sender
        });
        if number % 5 == 0 {
            thread::sleep(Duration::from_millis(2));
            proxy.cut();
        }
        let message = receiver.recv().unwrap();
        if number % 7 == 0 {
            proxy.cut();
        }
        message.ack();
        sender = waiting.join().unwrap();
    }
}

#[test]
fn channels_are_opened_and_closed_while_there_is_no_connection() {
    for fabric in [Fabric::Shm, Fabric::Tcp] {
        let (_here, peer, proxy, _there, other) = pair_over(fabric);
        let mut old = peer.sender::<u64>("old").unwrap();
        let mut receiver = other.receiver::<u64>("old").unwrap();
        old.send(&1).unwrap();
        assert_eq!(*receiver.recv().unwrap(), 1);
        proxy.cut_off();
        old.send(&2).unwrap();
        drop(old);
        wait_until(|| peer.is_suspended() && other.is_suspended());
        let mut new = peer.sender::<u64>("new").unwrap();
        let mut its_receiver = other.receiver::<u64>("new").unwrap();
        let opening = thread::spawn(move || {
            new.send(&3).unwrap();
            new.flush().unwrap();
        });
        // Neither end learns of the other, and neither takes that for a failure.
        let early = its_receiver.opened(Duration::from_millis(200));
        assert!(matches!(&early, Err(error) if error.kind() == RecvErrorKind::NotOpened));
        assert!(!opening.is_finished());
        assert!(peer.is_suspended() && other.is_suspended());
        proxy.mend();
        assert_eq!(*receiver.recv().unwrap(), 2);
        assert!(matches!(receiver.recv(), Err(error) if error.kind() == RecvErrorKind::Ended));
        assert_eq!(*its_receiver.recv().unwrap(), 3);
        opening.join().unwrap();
    }
}

/// The dialing end gives up first: then no end dials any more, and the other gives up as well.
#[test]
fn a_peer_that_does_not_come_back_in_time_is_gone() {
    for fabric in [Fabric::Shm, Fabric::Tcp] {
        let (here, there) = (
            builder(fabric).session_timeout(SHORT),
            builder(fabric).session_timeout(LONGER),
        );
        let (here, peer, proxy, there, other) = join(here, there);
        let mut events = there.events();
        let mut sender = peer.sender::<u64>("numbers").unwrap();
        let mut receiver = other.receiver::<u64>("numbers").unwrap();
        sender.send(&1).unwrap();
        sender.flush().unwrap();
        let broke = Instant::now();
        proxy.cut_off();
        let end = disconnection(sender.wait_acked(1));
        is_out_of_reach(end.cause(), "within 200ms");
        assert!(peer.is_gone());
        // The other end waits for its own time. The test asks it before the clock.
        assert!(!other.is_gone() || broke.elapsed() >= LONGER);
        proxy.mend();
        let next = |events: &mut ibex::Events| events.next_timeout(LONG).unwrap();
        assert!(matches!(next(&mut events), Event::Connected { .. }));
        let suspended = next(&mut events);
        assert!(matches!(suspended, Event::Suspended { .. }), "{suspended}");
        // Arrived messages are handed out first.
        assert_eq!(*receiver.recv().unwrap(), 1);
        let Err(end) = receiver.recv() else {
            panic!("nothing else was sent");
        };
        is_out_of_reach(end.cause(), "within 1.5s");
        assert!(broke.elapsed() >= LONGER);
        let gone = next(&mut events);
        assert!(matches!(gone, Event::Gone { .. }), "{gone}");
        assert!(peer.is_gone() && other.is_gone());
        assert_eq!((peer.stats().resumes, other.stats().resumes), (0, 0));
        drop(here);
    }
}

/// The other end gives up first: an end that dials it afterwards learns that the session is gone,
/// and need not wait.
#[test]
fn a_peer_that_comes_back_too_late_is_refused() {
    for fabric in [Fabric::Shm, Fabric::Tcp] {
        let (here, peer, proxy, there, other) =
            join(builder(fabric), builder(fabric).session_timeout(SHORT));
        let mut sender = peer.sender::<u64>("numbers").unwrap();
        let mut receiver = other.receiver::<u64>("numbers").unwrap();
        sender.send(&1).unwrap();
        receiver.recv().unwrap().ack();
        sender.wait_acked(1).unwrap();
        proxy.cut_off();
        let Err(end) = receiver.recv() else {
            panic!("nothing else was sent");
        };
        is_out_of_reach(end.cause(), "within 200ms");
        assert!(other.is_gone() && peer.is_suspended() && !peer.is_gone());
        proxy.mend();
        let end = disconnection(sender.wait_acked_timeout(2, LONG));
        assert!(
            matches!(end.cause(), Some(EndCause::PeerGone { certain: true, .. })),
            "{end}"
        );
        assert_eq!(end.counts().map(|counts| counts.sent), Some(1));
        assert!(peer.is_gone());
        assert_eq!((peer.stats().resumes, other.stats().resumes), (0, 0));
        // Only the session is over.
        let peer = here.connect(proxy.address()).unwrap();
        let other = there.accept().unwrap();
        let mut sender = peer.sender::<u64>("numbers").unwrap();
        let mut receiver = other.receiver::<u64>("numbers").unwrap();
        sender.send(&2).unwrap();
        assert_eq!(*receiver.recv().unwrap(), 2);
    }
}

/// The accepting end cannot dial. It learns of the restart when a node with the same identity
/// connects.
#[test]
fn a_peer_that_runs_anew_is_gone_for_certain() {
    let known = || builder(Fabric::Tcp).identity([7; 16]);
    // The new incarnation finds a place of its own.
    let there = builder(Fabric::Tcp).max_peer_sessions(1);
    let (here, peer, proxy, there, other) = join(known(), there);
    let mut sender = peer.sender::<u64>("numbers").unwrap();
    let mut receiver = other.receiver::<u64>("numbers").unwrap();
    sender.send(&1).unwrap();
    sender.flush().unwrap();
    proxy.cut_off();
    wait_until(|| other.is_suspended());
    let stats = there.stats();
    assert_eq!(stats.sessions[0].state, SessionState::Suspended);
    assert!(stats.to_string().contains(", suspended"), "{stats}");
    let anew = known().build().unwrap();
    let after = anew.connect(there.local_addr().unwrap()).unwrap();
    assert_eq!(*receiver.recv().unwrap(), 1);
    let Err(end) = receiver.recv_timeout(LONG) else {
        panic!("nothing else was sent");
    };
    let Some(EndCause::PeerGone { why, certain: true }) = end.cause() else {
        panic!("{end}")
    };
    assert!(why.contains("anew"), "{end}");
    assert!(other.is_gone());
    // The new incarnation has a session of its own.
    let now = there.accept().unwrap();
    let mut sender = after.sender::<u64>("numbers").unwrap();
    let mut receiver = now.receiver::<u64>("numbers").unwrap();
    sender.send(&2).unwrap();
    assert_eq!(*receiver.recv().unwrap(), 2);
    drop(here);
}

/// The peer is known to have ended before its abandoned connection is noticed.
#[test]
fn a_peer_that_ran_anew_before_its_connection_broke_is_gone_for_certain() {
    let known = || builder(Fabric::Tcp).identity([7; 16]);
    let (here, peer, proxy, there, other) = join(known(), builder(Fabric::Tcp));
    let mut sender = peer.sender::<u64>("numbers").unwrap();
    let mut receiver = other.receiver::<u64>("numbers").unwrap();
    sender.send(&1).unwrap();
    sender.flush().unwrap();
    let anew = known().build().unwrap();
    let after = anew.connect(there.local_addr().unwrap()).unwrap();
    let now = there.accept().unwrap();
    assert!(!other.is_gone(), "what works goes on");
    proxy.cut_off();
    assert_eq!(*receiver.recv().unwrap(), 1);
    let Err(end) = receiver.recv() else {
        panic!("nothing else was sent");
    };
    let Some(EndCause::PeerGone { why, certain: true }) = end.cause() else {
        panic!("{end}")
    };
    assert!(why.contains("anew"), "{end}");
    assert!(!now.is_gone() && !after.is_gone());
    drop(here);
}

/// Concurrent handshakes end in any order. Of two incarnations, the one whose handshake began first
/// is the older.
#[test]
fn a_run_is_not_taken_for_an_older_one_whose_handshake_ends_later() {
    for ends_first in [0, 1] {
        let there = builder(Fabric::Tcp).handshake_timeout(LONG);
        let there = there.build().unwrap();
        let address = there.local_addr().unwrap().inet().expect("of TCP");
        let dial = |_| {
            let proxy = Proxy::start(address).unwrap();
            proxy.hold(true);
            let known = builder(Fabric::Tcp).identity([7; 16]);
            let known = known.connect_timeout(LONG).handshake_timeout(LONG);
            let node = known.build().unwrap();
            let (dialing, at) = (node.clone(), proxy.address());
            let dialing = thread::spawn(move || dialing.connect(at).unwrap());
            wait_until(|| proxy.newest() == 1);
            (node, proxy, Some(dialing))
        };
        let mut runs: Vec<_> = (0..2).map(dial).collect();
        let mut sessions = [None, None];
        for run in [ends_first, 1 - ends_first] {
            let (_, proxy, dialing) = &mut runs[run];
            proxy.hold(false);
            let peer = dialing.take().unwrap().join().unwrap();
            let other = there.accept().unwrap();
            let mut sender = peer.sender::<u64>("numbers").unwrap();
            let mut receiver = other.receiver::<u64>("numbers").unwrap();
            sender.send(&1).unwrap();
            assert_eq!(*receiver.recv().unwrap(), 1);
            sessions[run] = Some((peer, other, sender, receiver));
        }
        let [Some(older), Some(newer)] = sessions else {
            unreachable!("both met");
        };
        // The newer incarnation's session resumes when its connection breaks, and the older one's
        // is over.
        let (_, other, mut sender, mut receiver) = newer;
        runs[1].1.cut();
        sender.send(&2).unwrap();
        assert_eq!(*receiver.recv().unwrap(), 2);
        assert!(!other.is_gone());
        let (_, _, _sender, mut receiver) = older;
        runs[0].1.cut_off();
        let Err(end) = receiver.recv() else {
            panic!("nothing else was sent");
        };
        let Some(EndCause::PeerGone { why, certain: true }) = end.cause() else {
            panic!("{end}")
        };
        assert!(why.contains("anew"), "{end}");
    }
}

/// Both ends of the session have one name and are still found.
#[test]
fn a_session_of_a_node_with_itself_goes_on() {
    for driver in [Driver::Threads, Driver::Caller] {
        let node = node(driver);
        let proxy = Proxy::start(node.local_addr().unwrap().inet().unwrap()).unwrap();
        let peer = node.connect(proxy.address()).unwrap();
        let other = node.accept().unwrap();
        let mut sender = peer.sender::<u64>("numbers").unwrap();
        let mut receiver = other.receiver::<u64>("numbers").unwrap();
        for number in 0..4 {
            sender.send(&number).unwrap();
            assert_eq!(*receiver.recv_timeout(LONG).unwrap(), number);
            proxy.cut();
            wait_until(|| {
                node.poll();
                peer.stats().resumes > number && other.stats().resumes > number
            });
        }
        // Either handle may go first.
        drop(sender);
        assert!(receiver.next().unwrap().is_none());
    }
}

/// A close behind a goodbye, and a connection that breaks behind it, is no failure of the peer.
#[test]
fn a_peer_that_closes_without_waiting_is_known_to_have_closed() {
    let here = node(Driver::Caller);
    let there = node(Driver::Threads);
    let mut events = here.events();
    let address = here.local_addr().unwrap();
    let (other, peer) = thread::scope(|scope| {
        let connecting = scope.spawn(|| there.connect(address).unwrap());
        let other = here.accept().unwrap();
        (other, connecting.join().unwrap())
    });
    let mut sender = peer.sender::<u64>("numbers").unwrap();
    let mut receiver = other.receiver::<u64>("numbers").unwrap();
    while sender.try_send(&1).is_err() {
        here.poll();
    }
    let _ = there.close(Duration::ZERO);
    loop {
        if let Event::Gone { cause, .. } = events.next_timeout(LONG).unwrap() {
            assert!(matches!(cause, EndCause::Goodbye), "{cause}");
            break;
        }
    }
    assert!(other.is_gone());
    while receiver.try_recv().is_ok() {}
}

/// The kernel reports the end of a process on the same host, with or without a connection.
#[test]
fn a_process_that_ends_while_there_is_no_connection_is_gone_for_certain() {
    const DIALS: &str = "DIALS_AND_WAITS_TO_BE_KILLED";
    if let Some(address) = env::var_os(DIALS) {
        stay_with_parent().unwrap();
        let (fabric, address) = match address.to_str().unwrap().split_once(' ').unwrap() {
            ("shm", address) => (Fabric::Shm, address),
            (_, address) => (Fabric::Tcp, address),
        };
        let here = builder(fabric).build().unwrap();
        let peer = here.connect(address).unwrap();
        let mut sender = peer.sender::<u64>("numbers").unwrap();
        sender.send(&1).unwrap();
        loop {
            // Until the process is killed.
            thread::park();
        }
    }
    for (fabric, name) in [(Fabric::Shm, "shm"), (Fabric::Tcp, "tcp")] {
        let there = builder(fabric).build().unwrap();
        let proxy = Proxy::start(there.local_addr().unwrap().inet().unwrap()).unwrap();
        let test = "a_process_that_ends_while_there_is_no_connection_is_gone_for_certain";
        let mut dialer = again().unwrap();
        let dialer = dialer.args([test, "--exact"]);
        let dialer = dialer.env(DIALS, format!("{name} {}", proxy.address()));
        let mut dialer = Process::start("the dialer", dialer).unwrap();
        let other = there.accept().unwrap();
        let mut receiver = other.receiver::<u64>("numbers").unwrap();
        assert_eq!(*receiver.recv().unwrap(), 1);
        proxy.cut_off();
        wait_until(|| other.is_suspended());
        dialer.kill().unwrap();
        let Err(end) = receiver.recv_timeout(LONG) else {
            panic!("nothing else was sent");
        };
        assert!(
            matches!(end.cause(), Some(EndCause::PeerGone { certain: true, .. })),
            "{end}"
        );
    }
}

fn disconnection(waited: Result<(), WaitError>) -> WaitError {
    match waited {
        Err(end) if end.kind() == WaitErrorKind::Disconnected => end,
        other => panic!("not a disconnection: {other:?}"),
    }
}

/// Panics unless the peer was given up, and may be alive.
fn is_out_of_reach(cause: Option<&EndCause>, within: &str) {
    assert!(
        matches!(
            cause,
            Some(EndCause::PeerGone { why, certain: false }) if why.contains(within)
        ),
        "{cause:?}"
    );
}

#[test]
fn an_end_that_gives_a_session_up_says_so() {
    let (here, peer, proxy, there, other) = pair();
    let mut sender = peer.sender::<u64>("numbers").unwrap();
    let mut receiver = other.receiver::<u64>("numbers").unwrap();
    sender.send(&1).unwrap();
    receiver.recv().unwrap().ack();
    // Nothing is missing, so closing does not wait for the other end's goodbye.
    let _ = there.close(Duration::ZERO);
    disconnection(sender.wait_acked_timeout(2, LONG));
    drop((here, proxy));
}

/// A closing node delivers its messages, and no end waits for a time-out.
#[test]
fn a_node_that_is_being_closed_goes_on_with_its_sessions() {
    for dialer_closes in [true, false] {
        let (here, peer, proxy, there, other) = pair();
        let (closes, stays) = match dialer_closes {
            true => ((here, peer), (there, other)),
            false => ((there, other), (here, peer)),
        };
        let mut sender = closes.1.sender::<u64>("numbers").unwrap();
        let mut receiver = stays.1.receiver::<u64>("numbers").unwrap();
        sender.send(&0).unwrap();
        assert_eq!(*receiver.recv().unwrap(), 0);
        proxy.cut_off();
        for number in 1..=1000 {
            sender.send(&number).unwrap();
        }
        drop(sender);
        let mut tells = closes.1.receiver::<u64>("tells").unwrap();
        let closing = thread::spawn(move || closes.0.close(FOR_EVER));
        // Every end of a closing node is over.
        assert!(
            tells
                .recv_timeout(LONG)
                .is_err_and(|error| !error.is_transient())
        );
        proxy.mend();
        for number in 1..=1000 {
            assert_eq!(*receiver.recv().unwrap(), number);
        }
        assert!(matches!(receiver.recv(), Err(error) if error.kind() == RecvErrorKind::Ended));
        wait_until(|| closing.is_finished());
        assert!(closing.join().unwrap().undelivered.is_empty());
        assert!(stays.1.is_gone());
    }
}

/// A node that connects meanwhile finds no listener, and later finds the next one at that address.
#[test]
fn a_node_that_is_being_closed_begins_no_session() {
    let (here, peer, proxy, there, other) = pair();
    let address = there.local_addr().unwrap();
    let mut sender = other.sender::<u64>("numbers").unwrap();
    let mut receiver = peer.receiver::<u64>("numbers").unwrap();
    sender.send(&0).unwrap();
    assert_eq!(*receiver.recv().unwrap(), 0);
    proxy.cut_off();
    sender.send(&1).unwrap();
    let mut tells = other.receiver::<u64>("tells").unwrap();
    let closing = thread::spawn(move || {
        drop(sender);
        there.close(FOR_EVER)
    });
    // Every end of a closing node is over.
    assert!(
        tells
            .recv_timeout(LONG)
            .is_err_and(|error| !error.is_transient())
    );
    let late = Node::builder().connect_timeout(FOR_EVER);
    let late = late.build().unwrap();
    let connecting = thread::spawn(move || late.connect(address).map(|peer| (late, peer)));
    // During this time the node could be admitted by mistake, which must never happen.
    thread::sleep(Duration::from_millis(300));
    assert!(!connecting.is_finished());
    proxy.mend();
    assert_eq!(*receiver.recv().unwrap(), 1);
    wait_until(|| closing.is_finished());
    assert!(closing.join().unwrap().undelivered.is_empty());
    let next = listen_again(Node::builder(), address.inet().unwrap());
    assert!(connecting.join().unwrap().is_ok());
    drop((here, next));
}

#[test]
fn tasks_that_connect_to_nobody_keep_no_session_from_going_on() {
    let (here, peer, proxy, there, other) = pair();
    let mut sender = peer.sender::<u64>("numbers").unwrap();
    let mut receiver = other.receiver::<u64>("numbers").unwrap();
    let mut connecting: Vec<_> = (0..20)
        .map(|_| Box::pin(here.connect_async("127.0.0.1:1")))
        .collect();
    for connect in &mut connecting {
        let begun = smol::block_on(smol::future::poll_once(connect));
        assert!(begun.is_none());
    }
    for number in 0..5 {
        proxy.cut();
        sender.send(&number).unwrap();
        let message = receiver.recv_timeout(LONG).unwrap();
        assert_eq!(*message, number);
    }
    drop(connecting);
    drop((here, there));
}

#[test]
fn callers_carry_messages_over_another_connection() {
    let (here, there) = (node(Driver::Caller), node(Driver::Caller));
    let proxy = Proxy::start(there.local_addr().unwrap().inet().unwrap()).unwrap();
    let address = proxy.address();
    let accepting = thread::spawn(move || {
        let other = there.accept().unwrap();
        let mut receiver = other.receiver::<u64>("numbers").unwrap();
        for number in 0..2_000 {
            assert_eq!(*receiver.recv().unwrap(), number);
        }
        assert!(matches!(receiver.recv(), Err(error) if error.kind() == RecvErrorKind::Ended));
        assert!(other.stats().resumes > 0);
    });
    let peer = here.connect(address).unwrap();
    let mut sender = peer.sender::<u64>("numbers").unwrap();
    for number in 0..2_000 {
        sender.send(&number).unwrap();
        if number % 100 == 50 {
            sender.flush().unwrap();
            proxy.cut();
        }
    }
    sender.close().unwrap();
    accepting.join().unwrap();
}

#[test]
fn shared_memory_carries_on_and_channels_are_opened_when_there_is_a_connection_again() {
    let (here, there) = (
        node_over(Fabric::Shm, Driver::Threads),
        node_over(Fabric::Shm, Driver::Threads),
    );
    let proxy = Proxy::start(there.local_addr().unwrap().inet().unwrap()).unwrap();
    let peer = here.connect(proxy.address()).unwrap();
    let other = there.accept().unwrap();
    let mut sender = peer.sender::<u64>("numbers").unwrap();
    let mut receiver = other.receiver::<u64>("numbers").unwrap();
    for round in 0..20 {
        sender.send(&round).unwrap();
        assert_eq!(*receiver.recv().unwrap(), round);
        proxy.cut();
        sender.send(&(round + 1000)).unwrap();
        assert_eq!(*receiver.recv().unwrap(), round + 1000);
        let name = format!("extra {round}");
        let mut extra = peer.sender::<u64>(&name).unwrap();
        let mut its_receiver = other.receiver::<u64>(&name).unwrap();
        extra.send(&7).unwrap();
        let message = its_receiver.recv().unwrap();
        assert_eq!(*message, 7);
        message.ack();
        extra.wait_acked(1).unwrap();
    }
    assert!(peer.stats().resumes > 0);
    drop((here, there));
}

/// Segments that both ends have mapped stay. The test runs in a process of its own, since other
/// tests of this one create and remove segments.
#[test]
fn shared_memory_goes_on_in_the_same_segments() {
    const ALONE: &str = "IN_A_PROCESS_OF_ITS_OWN";
    if env::var_os(ALONE).is_none() {
        let mut alone = again().unwrap();
        alone.args(["shared_memory_goes_on_in_the_same_segments", "--exact"]);
        let alone = Process::start("the test alone", alone.env(ALONE, "1"));
        return alone.unwrap().finish().unwrap();
    }
    let (_here, peer, proxy, _there, other) = pair_over(Fabric::Shm);
    let mut out = peer.sender::<u64>("out").unwrap();
    let mut there = other.receiver::<u64>("out").unwrap();
    let mut back = other.sender::<u64>("back").unwrap();
    let mut here = peer.receiver::<u64>("back").unwrap();
    let mut round = |number| {
        out.send(&number).unwrap();
        assert_eq!(*there.recv().unwrap(), number);
        back.send(&number).unwrap();
        here.recv().unwrap().ack();
        back.wait_acked(number).unwrap();
    };
    round(1);
    let before = segments();
    assert!(!before.is_empty());
    proxy.cut();
    wait_until(|| peer.stats().resumes == 1 && other.stats().resumes == 1);
    for number in 2..1000 {
        round(number);
    }
    assert_eq!(segments(), before);
}

/// Returns names and inodes of the memory files that this process has mapped (proc_pid_maps(5)).
fn segments() -> BTreeSet<(String, u64)> {
    let maps = fs::read_to_string("/proc/self/maps").unwrap();
    let segment = |line: &str| {
        let mut words = line.split_ascii_whitespace().skip(4);
        let inode = words.next()?.parse().unwrap();
        let name = words.next()?.strip_prefix("/memfd:ibex")?;
        Some((name.to_owned(), inode))
    };
    maps.lines().filter_map(segment).collect()
}

/// The time after which a session is given up.
const SHORT: Duration = Duration::from_millis(200);
/// A longer time after which a session is given up.
const LONGER: Duration = Duration::from_millis(1500);
/// A time after which a session is practically never given up.
const FOR_EVER: Duration = Duration::from_secs(24 * 3600);
/// A watchdog's time: nothing takes so long on any machine.
const LONG: Duration = Duration::from_secs(300);
