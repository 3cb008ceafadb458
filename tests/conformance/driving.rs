//! Promises of a node's calls to the thread that drives it: an infinite wait is possible, closing
//! twice gives the same report, and a program's own event loop suffices.

use ibex_harness::wait_until;
use std::{os::fd::OwnedFd, thread, time::Duration};

use ibex::{Driver, Message, Node, Peer, Raw, RecvErrorKind};
use rustix::{
    buffer::spare_capacity,
    event::{
        PollFd, PollFlags, Timespec,
        epoll::{self, CreateFlags, EventData, EventFlags},
        poll,
    },
};

use crate::common::{
    kernel, payload,
    scenario::{Scenario, Side, Span},
    stage::{BytesReceiver, BytesSender, LONG, MOMENT, Stage, receiver, sender},
    task,
};

pub(crate) const SCENARIOS: &[Scenario] = &[
    Scenario::new("waiting_for_ever", waiting_for_ever),
    Scenario::new("close_reports_twice", close_reports_twice),
    Scenario::new("close_in_two_threads", close_in_two_threads),
    Scenario::new("connecting_to_oneself", to_oneself),
    Scenario::new("connecting_to_each_other", to_each_other),
    Scenario::new("connecting_while_serving", while_serving),
    Scenario::new("accepting_without_waiting", accepting_without_waiting),
    Scenario::new("own_event_loop", own_event_loop).on(Span::EachFabricByCallers),
    Scenario::new("taken_in_by_another_end", taken_in_by_another_end).on(Span::EachFabricByCallers),
    Scenario::new("taken_in_by_a_guard", taken_in_by_a_guard).on(Span::EachFabricByCallers),
    Scenario::new("asleep_after_busy_polling", asleep_after_busy_polling),
    Scenario::new("sent_behind_the_last_wait", sent_behind_the_last_wait).on(Span::EachFabric),
];

/// `Duration::MAX` means forever, wherever a time is given.
fn waiting_for_ever(stage: &mut Stage) {
    const FOR_EVER: Duration = Duration::MAX;
    let settings = |builder: ibex::NodeBuilder| {
        builder
            .connect_timeout(FOR_EVER)
            .handshake_timeout(FOR_EVER)
            .open_timeout(FOR_EVER)
            .linger(FOR_EVER)
    };
    for round in 0..2 {
        let node = match stage.side {
            Side::Dialer => {
                let builder = settings(stage.builder());
                let node = builder.build().expect("a node that dials");
                let peer = stage.dial(&node);
                let mut out = sender(&peer, "out");
                out.opened(FOR_EVER).expect("the peer opens");
                out.send_timeout(b"hello", FOR_EVER).expect("sent");
                out.flush_timeout(FOR_EVER).expect("received");
                out.wait_acked_timeout(1, FOR_EVER).expect("acknowledged");
                node
            }
            Side::Listener => {
                let builder = settings(stage.builder()).listen("127.0.0.1:0");
                let node = builder.build().expect("a node that listens");
                stage.tell_address(&node);
                let peer = node.accept_timeout(FOR_EVER).expect("a peer");
                let mut out = receiver(&peer, "out");
                let mut pending = sender(&peer, "never opened");
                let message = out.recv_timeout(FOR_EVER).expect("a message");
                assert_eq!(&message[..], b"hello");
                message.ack();
                // The send is pending until the peer's node is closed.
                pending.send(b"early").expect_err("nobody opens");
                node
            }
        };
        if round == 0 {
            let report = node.close(FOR_EVER);
            assert!(report.undelivered.is_empty(), "{report:?}");
        }
        // In other rounds the drop waits, for at most `linger`.
        drop(node);
        stage.tell("next");
        assert_eq!(stage.hear_any(), "next");
    }
}

/// A second close returns the first report again, and not that all is delivered.
fn close_reports_twice(stage: &mut Stage) {
    let (node, peer) = stage.meet();
    match stage.side {
        Side::Dialer => {
            let _out = send_ten_to_the_stopped(stage, &peer);
            let report = node.close(MOMENT);
            assert_eq!(node.close(LONG), report);
            stage.resume_other();
            assert_eq!(stage.hear_any(), "received");
        }
        Side::Listener => receive_ten(stage, &peer),
    }
}

/// Stops the other side and sends it ten messages, which it cannot take then.
fn send_ten_to_the_stopped(stage: &Stage, peer: &Peer) -> BytesSender {
    let mut out = sender(peer, "out");
    out.opened(LONG).expect("the peer opens");
    stage.stop_other();
    for _ in 0..10 {
        out.send(b"unread").expect("sent");
    }
    out
}

/// Plays the stopped side: messages on their way arrive when it runs again.
fn receive_ten(stage: &mut Stage, peer: &Peer) {
    let mut out = receiver(peer, "out");
    for _ in 0..10 {
        out.recv().expect("what is on its way arrives");
    }
    stage.tell("received");
}

/// A thread closes without limit and waits for a stopped peer. Another with less time ends both
/// calls, with one report.
fn close_in_two_threads(stage: &mut Stage) {
    let (node, peer) = stage.meet();
    match stage.side {
        Side::Dialer => {
            let _out = send_ten_to_the_stopped(stage, &peer);
            thread::scope(|scope| {
                let (started, patient) = std::sync::mpsc::channel();
                let node = &node;
                let first = scope.spawn(move || {
                    started.send(kernel::this_thread()).expect("we wait");
                    node.close(Duration::MAX)
                });
                kernel::wait_until_asleep(patient.recv().expect("it has begun"));
                let second = node.close(MOMENT);
                assert_eq!(first.join().expect("no panic"), second);
            });
            stage.resume_other();
            assert_eq!(stage.hear_any(), "received");
        }
        Side::Listener => receive_ten(stage, &peer),
    }
}

/// A node is its own peer, with one thread.
fn to_oneself(stage: &mut Stage) {
    if !stage.is_dialer() {
        return;
    }
    let builder = stage.builder().listen("127.0.0.1:0");
    let node = builder.build().expect("a node");
    let address = node.local_addr().expect("it listens");
    let there = node.connect(address).expect("a session");
    let here = node.accept().expect("the same session");
    let (mut out, mut arriving) = (sender(&there, "out"), receiver(&here, "out"));
    out.send(b"to myself").expect("sent");
    assert_eq!(&arriving.recv().expect("a message")[..], b"to myself");
}

/// Two nodes connect to each other before either accepts.
fn to_each_other(stage: &mut Stage) {
    let node = stage.listen();
    let out = stage.dial(&node);
    let peer = node.accept().expect("the peer's session");
    stage.check_peer(&peer);
    let (mut out, mut arriving) = (sender(&out, "out"), receiver(&peer, "out"));
    out.send(b"hello").expect("sent");
    assert_eq!(&arriving.recv().expect("a message")[..], b"hello");
    stage.rendezvous("met", &node);
}

/// A node that waits in `connect` for an absent peer keeps its sessions going: meanwhile a peer
/// opens a channel, has a message received, and learns of it.
fn while_serving(stage: &mut Stage) {
    let settings = |builder: ibex::NodeBuilder| builder.connect_timeout(Duration::MAX);
    let (node, peer) = stage.meet_as(settings);
    match stage.side {
        Side::Dialer => {
            let mut out = sender(&peer, "out");
            out.opened(LONG).expect("the peer opens");
            // No thread reads; the engine takes the messages and answers.
            out.send(b"to somebody busy").expect("sent");
            out.flush().expect("received while it connects");
            let mut late = sender(&peer, "late");
            late.opened(LONG).expect("the peer opened it before");
            let _ = node.close(LONG);
        }
        Side::Listener => {
            let (out, _late) = (receiver(&peer, "out"), receiver(&peer, "late"));
            let nobody = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
            let address = nobody.local_addr().expect("its address");
            drop(nobody);
            thread::scope(|scope| {
                let connecting = scope.spawn(|| node.connect(address).map(|_| ()));
                wait_until(|| peer.is_gone());
                let _ = node.close(MOMENT);
                let end = connecting.join().expect("no panic");
                end.expect_err("nobody is there");
            });
            drop(out);
        }
    }
}

/// Repeated calls of `try_accept` alone admit a peer.
fn accepting_without_waiting(stage: &mut Stage) {
    match stage.side {
        Side::Dialer => {
            let node = stage.builder().build().expect("a node");
            let peer = stage.dial(&node);
            sender(&peer, "out").send(b"hello").expect("sent");
            stage.hear("met", &node);
        }
        Side::Listener => {
            let node = stage.listen();
            let peer = loop {
                if let Some(peer) = node.try_accept().expect("it listens") {
                    break peer;
                }
                // The sleep stands for other work of the program.
                thread::sleep(Duration::from_millis(1));
            };
            let message = receiver(&peer, "out").recv().expect("a message");
            assert_eq!(&message[..], b"hello");
            stage.tell("met");
        }
    }
}

/// A program that sleeps on `as_fd` alone, edge-triggered, admits a peer and gets each message and
/// the end.
fn own_event_loop(stage: &mut Stage) {
    let last = stage.count(500);
    match stage.side {
        Side::Dialer => {
            let node = stage.builder().build().expect("a node");
            let peer = stage.dial(&node);
            let mut out = sender(&peer, "out");
            for sequence in 1..=last {
                out.send(&payload::numbered(sequence, 100)).expect("sent");
                // Now and then the other side has nothing to do, and sleeps.
                if sequence % 3 == 0 {
                    out.wait_acked(sequence).expect("acknowledged");
                }
            }
            out.close().expect("delivered");
            assert_eq!(stage.hear_any(), "received");
        }
        Side::Listener => {
            let builder = stage.builder().listen("127.0.0.1:0");
            let node = builder.build().expect("a node");
            let edges = Edges::of(&node);
            stage.tell_address(&node);
            let peer = loop {
                match node.try_accept().expect("it listens") {
                    Some(peer) => break peer,
                    None => edges.next(&node),
                }
            };
            let mut out = receiver(&peer, "out");
            let mut received = 0;
            loop {
                match out.try_recv() {
                    Ok(message) => {
                        received += 1;
                        payload::check(received, &message);
                        message.ack();
                    }
                    Err(error) if error.is_transient() => edges.next(&node),
                    Err(error) if error.kind() == RecvErrorKind::Ended => break,
                    Err(error) => panic!("{error}"),
                }
            }
            assert_eq!(received, last);
            stage.tell("received");
        }
    }
}

/// A program that sleeps on `as_fd` polls one end and then another. The second check takes in
/// messages for the first end.
fn taken_in_by_another_end(stage: &mut Stage) {
    // Turns ask epoll only now and then, and act differently when they do.
    let rounds = stage.count(200);
    match stage.side {
        Side::Dialer => {
            let node = stage.builder().build().expect("a node");
            let peer = stage.dial(&node);
            let (mut first, _second) = (sender(&peer, "first"), sender(&peer, "second"));
            first.opened(LONG).expect("the peer opens");
            for round in 1..=rounds {
                stage.hear("looked", &node);
                first.send(&payload::numbered(round, 100)).expect("sent");
                while node.poll() {}
                stage.tell("sent");
            }
            assert_eq!(stage.hear_any(), "received");
        }
        Side::Listener => {
            let node = stage.listen();
            let peer = node.accept().expect("a peer");
            let (mut first, mut second) = (receiver(&peer, "first"), receiver(&peer, "second"));
            for end in [&mut first, &mut second] {
                end.opened(LONG).expect("the peer opens");
            }
            let edges = Edges::of(&node);
            for round in 1..=rounds {
                while node.poll() {}
                assert!(
                    matches!(first.try_recv(), Err(error) if error.kind() == RecvErrorKind::Empty)
                );
                stage.tell("looked");
                assert_eq!(stage.hear_any(), "sent");
                let nothing = second.try_recv().expect_err("nobody sends");
                assert!(nothing.kind() == RecvErrorKind::Empty, "{nothing}");
                let message = loop {
                    edges.next(&node);
                    match first.try_recv() {
                        Ok(message) => break message,
                        Err(error) if error.kind() == RecvErrorKind::Empty => {}
                        Err(error) => panic!("{error}"),
                    }
                };
                payload::check(round, &message);
            }
            stage.tell("received");
        }
    }
}

/// Another thread drops a guard and so runs a turn, which takes in a message. The program that
/// sleeps on the node's descriptor learns of it.
fn taken_in_by_a_guard(stage: &mut Stage) {
    let rounds = stage.count(200);
    match stage.side {
        Side::Dialer => {
            let node = stage.builder().build().expect("a node");
            let peer = stage.dial(&node);
            let (mut first, mut second) = (sender(&peer, "first"), sender(&peer, "second"));
            for end in [&mut first, &mut second] {
                end.opened(LONG).expect("the peer opens");
            }
            for round in 1..=rounds {
                second.send(b"held").expect("sent");
                let mut acknowledged = second.wait_acked_async(round);
                assert!(task::poll_once(&mut acknowledged).is_pending());
                stage.hear("looked", &node);
                first.send(&payload::numbered(round, 100)).expect("sent");
                while node.poll() {}
                stage.tell("sent");
                task::run(&node, Driver::Caller, acknowledged).expect("acknowledged");
            }
            assert_eq!(stage.hear_any(), "received");
        }
        Side::Listener => {
            let node = stage.listen();
            let peer = node.accept().expect("a peer");
            let (mut first, mut second) = (receiver(&peer, "first"), receiver(&peer, "second"));
            for end in [&mut first, &mut second] {
                end.opened(LONG).expect("the peer opens");
            }
            let edges = Edges::of(&node);
            for round in 1..=rounds {
                let held = second.recv().expect("a message");
                while node.poll() {}
                assert!(
                    matches!(first.try_recv(), Err(error) if error.kind() == RecvErrorKind::Empty)
                );
                while node.poll() {}
                stage.tell("looked");
                assert_eq!(stage.hear_any(), "sent");
                thread::spawn(|| held.ack()).join().expect("no panic");
                let message = loop {
                    edges.next(&node);
                    match first.try_recv() {
                        Ok(message) => break message,
                        Err(error) if error.kind() == RecvErrorKind::Empty => {}
                        Err(error) => panic!("{error}"),
                    }
                };
                payload::check(round, &message);
            }
            stage.tell("received");
        }
    }
}

/// Under `Driver::Threads` a waiting thread turns the engine. A message that a thread sends after
/// its last wait still arrives, however short or long ago the wait was, even if sending takes
/// several turns.
fn sent_behind_the_last_wait(stage: &mut Stage) {
    let rounds = stage.count(300);
    let length = |round| [8, 5_000, 100_000, 700_000][round as usize % 4];
    let (_node, peer) = stage.meet();
    match stage.side {
        Side::Dialer => {
            let (mut out, mut back) = (sender(&peer, "out"), receiver(&peer, "back"));
            for round in 1..=rounds {
                // The thread leads, follows or only polls; some of its waits take long.
                back.recv().expect("the last call that waits").ack();
                thread::sleep(Duration::from_micros(
                    [0, 0, 30, 200, 3_000][round as usize % 5],
                ));
                let bytes = payload::numbered(round, length(round));
                assert_eq!(out.send(&bytes).expect("sent"), round);
                // This side makes no call of the library until the message has arrived.
                assert_eq!(stage.hear_any(), "arrived");
            }
        }
        Side::Listener => {
            let (mut out, mut back) = (receiver(&peer, "out"), sender(&peer, "back"));
            for round in 1..=rounds {
                thread::sleep(Duration::from_micros([0, 100, 2_000][round as usize % 3]));
                back.send(b"go on").expect("sent");
                let message = out.recv().expect("it arrives");
                assert_eq!(message.len(), length(round));
                payload::check(round, &message);
                message.ack();
                stage.tell("arrived");
            }
        }
    }
}

/// A thread whose long polling made its sockets leave the epoll set still wakes up for messages
/// that come while it sleeps, in a call or in an event loop that begins only then.
fn asleep_after_busy_polling(stage: &mut Stage) {
    const BUSY: u64 = 500;
    // There is at least one round for either way to wait.
    let rounds = stage.count(20).max(2);
    let (node, peer) = stage.meet();
    match stage.side {
        Side::Dialer => {
            let (mut out, mut back) = (sender(&peer, "out"), receiver(&peer, "back"));
            for round in 1..=rounds {
                for _ in 0..BUSY {
                    let message = back.recv().expect("a message to echo");
                    out.send(&message).expect("echoed");
                }
                drop(back.recv().expect("the last"));
                // By now the other side sleeps, or is about to.
                thread::sleep(Duration::from_micros(500 * (round % 4)));
                out.send(b"wake up").expect("sent");
                out.flush().expect("received");
            }
            assert_eq!(stage.hear_any(), "received");
        }
        Side::Listener => {
            let (mut out, mut back) = (receiver(&peer, "out"), sender(&peer, "back"));
            let mut edges = None;
            for round in 1..=rounds {
                for ping in 1..=BUSY {
                    back.send(&payload::numbered(ping, 100)).expect("sent");
                    payload::check(ping, &busy_recv(&mut out));
                }
                back.send(b"the last").expect("sent");
                // The call takes the message without sleeping; a wake-up may be pending already.
                if out.try_recv().is_ok() {
                    continue;
                }
                if round <= rounds / 2 || stage.driver() != Driver::Caller {
                    assert_eq!(&out.recv().expect("a message")[..], b"wake up");
                    continue;
                }
                let edges = edges.get_or_insert_with(|| Edges::of(&node));
                while node.poll() {}
                let message = loop {
                    match out.try_recv() {
                        Ok(message) => break message,
                        Err(_) => edges.next(&node),
                    }
                };
                assert_eq!(&message[..], b"wake up");
            }
            stage.tell("received");
        }
    }
}

fn busy_recv(out: &mut BytesReceiver) -> Message<[u8], Raw> {
    loop {
        match out.try_recv() {
            Ok(message) => return message,
            Err(error) if error.is_transient() => {}
            Err(error) => panic!("{error}"),
        }
    }
}

/// The descriptor of a node, watched for edges.
struct Edges(OwnedFd);

impl Edges {
    fn of(node: &Node) -> Self {
        let epoll = epoll::create(CreateFlags::CLOEXEC).expect("an epoll set");
        let edges = EventFlags::IN | EventFlags::ET;
        epoll::add(&epoll, node.as_fd(), EventData::new_u64(0), edges).expect("room in it");
        Self(epoll)
    }

    /// Sleeps until the next edge, and polls until nothing is left to do. Whatever the descriptor
    /// announced, `poll` reports.
    fn next(&self, node: &Node) {
        let mut events = Vec::with_capacity(1);
        let count = epoll::wait(&self.0, spare_capacity(&mut events), None);
        assert_eq!(count, Ok(1), "slept for an edge");
        while is_readable(node) {
            assert!(node.poll(), "it was readable and there was nothing to do");
        }
        while node.poll() {}
    }
}

fn is_readable(node: &Node) -> bool {
    let mut fds = [PollFd::from_borrowed_fd(node.as_fd(), PollFlags::IN)];
    let now = Timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    poll(&mut fds, Some(&now)).expect("a valid descriptor") == 1
}
