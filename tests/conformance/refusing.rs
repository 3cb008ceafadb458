//! Descriptors and memory that the kernel refuses to a process: the call that needed them gets an
//! error. Nothing is lost or consumed, and the call succeeds once they are available.

use std::{
    fs, thread,
    time::{Duration, Instant},
};

use ibex::{
    CloseReason, Driver, EndCause, Fabric, FanIn, FanInEvent, OpenErrorKind, Peer, Raw,
    RecvErrorKind, SendErrorKind,
};
use rustix::{
    param::page_size,
    process::{Resource, Rlimit, getrlimit, setrlimit},
};

use crate::{
    common::{
        scenario::{Scenario, Side},
        stage::{BytesReceiver, LONG, MOMENT, Stage, receiver, sender},
    },
    limiting::{answer, converse},
};

pub(crate) const SCENARIOS: &[Scenario] = &[
    Scenario::new("no_descriptor_for_a_session", no_descriptor_for_a_session),
    Scenario::new("no_descriptor_for_an_end", no_descriptor_for_an_end),
    Scenario::new("no_descriptor_for_a_ring", no_descriptor_for_a_ring),
    Scenario::new(
        "no_descriptor_to_receive_with",
        no_descriptor_to_receive_with,
    ),
    Scenario::new(
        "no_descriptor_for_what_is_aborted",
        no_descriptor_for_what_is_aborted,
    ),
    Scenario::new(
        "no_descriptor_for_what_is_forgotten",
        no_descriptor_for_what_is_forgotten,
    ),
    Scenario::new("abort_behind_a_full_socket", abort_behind_a_full_socket),
    Scenario::new("no_memory_to_receive_with", no_memory_to_receive_with),
    Scenario::new("no_memory_to_gather_with", no_memory_to_gather_with),
];

/// `connect` fails if the node lacks any of the descriptors for a session. A peer that already has
/// the session learns of its end.
fn no_descriptor_for_a_session(stage: &mut Stage) {
    if stage.side == Side::Listener {
        let builder = stage.builder().listen("127.0.0.1:0");
        let builder = builder.session_timeout(Duration::from_secs(3600));
        let node = builder.build().expect("a node that listens");
        stage.tell_address(&node);
        stage.hear("one came about", &node);
        let mut peers = Vec::new();
        // A watchdog ends the wait if a peer never learns of the end.
        while peers.iter().filter(|peer: &&Peer| !peer.is_gone()).count() != 1
            || peers.iter().all(|peer| peer.incoming().is_empty())
        {
            peers.extend(node.accept_timeout(MOMENT));
        }
        let peer = peers.iter().find(|peer| !peer.is_gone());
        let mut receiver = receiver(peer.expect("the last"), "wal");
        return receiver.recv().expect("a message").ack();
    }
    let address = stage.hear_any();
    let node = stage.builder().build().expect("a node that dials");
    // The limit grows from none to enough, so that each needed descriptor is the missing one once.
    let mut attempts = (0..).map(|most| {
        let connected = limited(Resource::Nofile, most, || node.connect(&address));
        connected.inspect_err(|error| assert!(error.to_string().contains("open files"), "{error}"))
    });
    let peer = attempts.find_map(Result::ok).expect("enough at last");
    stage.tell("one came about");
    let mut sender = sender(&peer, "wal");
    let last = sender.send(b"here").expect("sent");
    sender.wait_acked(last).expect("acknowledged");
}

/// An end is not opened, and a message is not sent, while the kernel refuses memory for it; both
/// succeed afterwards.
fn no_descriptor_for_an_end(stage: &mut Stage) {
    let (_node, peer) = stage.meet();
    let names = || (0..40).map(|number| number.to_string());
    if stage.side == Side::Listener {
        answer(&peer, "first");
        converse(&peer, "second");
        // Everything sent before has arrived, too: no peer passes descriptors that this process
        // cannot take.
        answer(&peer, "they are open");
        let mut senders: Vec<_> = names().map(|name| sender(&peer, &name)).collect();
        let sent = limited(Resource::Nofile, 3, || {
            let sent = senders.iter_mut().map(|sender| sender.send(b"here"));
            sent.collect::<Vec<_>>()
        });
        for (sender, sent) in senders.iter_mut().zip(sent) {
            match sent {
                Ok(sequence) => assert_eq!(sequence, 1),
                Err(error) if error.kind() == SendErrorKind::Memory => {
                    assert_eq!(sender.send(b"here").expect("sent"), 1);
                }
                Err(error) => panic!("{error}"),
            }
        }
        for sender in &mut senders {
            sender.wait_acked(1).expect("acknowledged");
        }
        return;
    }
    converse(&peer, "first");
    answer(&peer, "second");
    let open = |name: &str| peer.channel(name).codec::<Raw>().receiver::<[u8]>();
    let (mut opened, mut refused) = (Vec::new(), None);
    limited(Resource::Nofile, 3, || {
        for name in names() {
            match open(&name) {
                Ok(end) => opened.push(end),
                // A second try may succeed: another thread may have closed something.
                Err(error) => return refused = Some((error, name)),
            }
        }
    });
    let next = opened.len();
    // Ends that share memory need no descriptor of their own.
    if let Some((error, name)) = refused {
        assert!(error.kind() == OpenErrorKind::Memory, "{error}");
        assert!(error.to_string().contains(&name), "{error}");
    }
    opened.extend(names().skip(next).map(|name| open(&name).expect("opened")));
    converse(&peer, "they are open");
    for receiver in &mut opened {
        let message = receiver.recv().expect("a message");
        assert_eq!(&message[..], b"here");
        message.ack();
    }
}

/// A message is not sent while the kernel refuses memory for its ring, whether it is the channel's
/// first ring or one after a rest; it can be sent afterwards.
fn no_descriptor_for_a_ring(stage: &mut Stage) {
    let (node, peer) = stage.meet();
    if stage.side == Side::Listener {
        let mut receiver = receiver(&peer, "wal");
        for sequence in 1..=2 {
            let message = receiver.recv().expect("a message");
            assert_eq!(message.sequence(), sequence);
            message.ack();
            stage.rendezvous("it is here", &node);
        }
        assert!(receiver.next().expect("the end").is_none());
        return;
    }
    let mut sender = sender(&peer, "wal");
    sender.opened(LONG).expect("opened");
    for sequence in 1..=2 {
        // Before the second message, waits long enough for an idle ring to be returned.
        thread::sleep(REST * (sequence as u32 - 1));
        let refused = limited(Resource::Nofile, 3, || sender.send(b"here"));
        match refused {
            Err(error) if error.kind() == SendErrorKind::Memory => {
                assert!(error.to_string().contains("ulimit -n"), "{error}");
                assert_eq!(sender.send(b"here").expect("sent"), sequence);
            }
            // If the engine carries rings, none needs a descriptor.
            sent => assert_eq!(sent.expect("sent"), sequence),
        }
        sender.wait_acked(sequence).expect("acknowledged");
        stage.rendezvous("it is here", &node);
    }
    sender.close().expect("closed");
}

/// A ring and a large message that reach a process without free descriptors are not lost: they are
/// available later, and the session continues.
fn no_descriptor_to_receive_with(stage: &mut Stage) {
    let (node, peer) = stage.meet();
    if stage.side == Side::Listener {
        let mut sender = sender(&peer, "wal");
        sender.opened(LONG).expect("opened");
        for length in [10, LARGE] {
            stage.hear("it has none", &node);
            let last = sender.send(&vec![7; length]).expect("sent");
            stage.tell("it is sent");
            sender.wait_acked(last).expect("acknowledged");
        }
        // The last message is on its way while everything behind it is closed.
        stage.hear("it has none", &node);
        sender.send(&vec![7; 2 * LARGE]).expect("sent");
        stage.tell("it is sent");
        sender.close().expect("delivered");
        let report = node.close(LONG);
        assert!(report.undelivered.is_empty(), "{report}");
        return stage.tell("it is closed");
    }
    let mut receiver = receiver(&peer, "wal");
    receiver.opened(LONG).expect("opened");
    for length in [10, LARGE, 2 * LARGE] {
        limited(Resource::Nofile, 3, || {
            stage.tell("it has none");
            stage.hear("it is sent", &node);
            // If the engine takes messages in, none comes with a descriptor.
            if stage.fabric() == Fabric::Shm {
                let early = receiver.recv_timeout(MOMENT);
                assert!(
                    matches!(&early, Err(error) if error.kind() == RecvErrorKind::Timeout),
                    "{early:?}"
                );
            }
        });
        if length == 2 * LARGE && stage.driver() == Driver::Threads {
            // The goodbye came with it, and is answered although the message is not taken.
            stage.hear("it is closed", &node);
        }
        let message = receiver.recv().expect("a message");
        assert_eq!(message.len(), length);
        message.ack();
    }
    assert!(receiver.next().expect("the end").is_none());
    if stage.driver() != Driver::Threads {
        stage.hear("it is closed", &node);
    }
}

/// Without descriptors, the messages of a sender that gives up are handed out later as well, and
/// then the error.
fn no_descriptor_for_what_is_aborted(stage: &mut Stage) {
    let (node, peer) = stage.meet();
    let cases = [("first", 10), ("large", LARGE)];
    for (name, length) in cases {
        if stage.side == Side::Listener {
            let mut sender = sender(&peer, name);
            sender.opened(LONG).expect("opened");
            if name == "large" {
                // The channel has a ring already.
                let last = sender.send(b"here").expect("sent");
                sender.wait_acked(last).expect("acknowledged");
            }
            stage.hear("it has none", &node);
            sender.send(&vec![7; length]).expect("sent");
            sender.abort();
            stage.tell("it is given up");
            continue;
        }
        let mut receiver = receiver(&peer, name);
        receiver.opened(LONG).expect("opened");
        if name == "large" {
            receiver.recv().expect("a message").ack();
        }
        limited(Resource::Nofile, 3, || {
            stage.tell("it has none");
            stage.hear("it is given up", &node);
            if stage.fabric() == Fabric::Shm {
                let early = receiver.recv_timeout(MOMENT);
                assert!(
                    matches!(&early, Err(error) if error.kind() == RecvErrorKind::Timeout),
                    "{early:?}"
                );
            }
        });
        assert_given_up(&mut receiver, length);
    }
}

/// A ring that can be taken only after its channel has ended at both ends goes with it: nothing of
/// it stays in the receiving process.
fn no_descriptor_for_what_is_forgotten(stage: &mut Stage) {
    let (node, peer) = stage.meet();
    if stage.side == Side::Listener {
        for name in ["first", "second", "third"] {
            let mut sender = sender(&peer, name);
            sender.opened(LONG).expect("opened");
            stage.hear("it has none", &node);
            sender.send(b"nobody takes it").expect("sent");
            stage.tell("it is sent");
            stage.hear("it is dropped", &node);
            while sender.try_send(b"nor this").is_ok() {
                node.poll();
            }
            drop(sender);
            node.poll();
            stage.tell("it is over");
        }
        return stage.hear("done", &node);
    }
    let descriptors = || fs::read_dir("/proc/self/fd").expect("procfs").count();
    let mut least = None;
    for name in ["first", "second", "third"] {
        let mut receiver = receiver(&peer, name);
        receiver.opened(LONG).expect("opened");
        limited(Resource::Nofile, 3, || {
            stage.tell("it has none");
            stage.hear("it is sent", &node);
            drop(receiver);
            node.poll();
            stage.tell("it is dropped");
            stage.hear("it is over", &node);
            // During this time the sender's close arrives, which may also come later.
            let until = Instant::now() + MOMENT;
            while Instant::now() < until {
                node.poll();
                thread::sleep(Duration::from_millis(1));
            }
        });
        // The ring is passed once more to a process that may take it. Then only the session's
        // descriptors remain; the first channel brought some of them, the others none.
        let least = least.get_or_insert_with(|| {
            let count = (0..5 * MOMENT.as_millis()).map(|_| {
                node.poll();
                thread::sleep(Duration::from_millis(1));
                descriptors()
            });
            count.min().expect("some looks")
        });
        let began = Instant::now();
        while descriptors() > *least {
            assert!(began.elapsed() < PATIENCE, "{name} keeps some");
            node.poll();
            thread::sleep(Duration::from_millis(1));
        }
    }
    stage.tell("done");
}

/// If the peer's socket is full because the peer has taken nothing for long, passed descriptors
/// wait, and no end overtakes them.
fn abort_behind_a_full_socket(stage: &mut Stage) {
    let (node, peer) = stage.meet();
    if stage.side == Side::Listener {
        let mut given_up = receiver(&peer, "wal");
        given_up.opened(LONG).expect("opened");
        stage.tell("it is open");
        assert_given_up(&mut given_up, 10);
        return receiver(&peer, "0").recv().expect("a message").ack();
    }
    let mut wal = sender(&peer, "wal");
    wal.opened(LONG).expect("opened");
    stage.hear("it is open", &node);
    stage.stop_other();
    let mut ends: Vec<_> = (0..MANY)
        .map(|name| sender(&peer, &name.to_string()))
        .collect();
    wal.send(&[7; 10]).expect("sent");
    wal.abort();
    stage.resume_other();
    let last = ends[0].send(b"it goes on").expect("sent");
    ends[0].wait_acked(last).expect("acknowledged");
}

/// A message of `length` bytes comes, then the error of a sender that gave up.
fn assert_given_up(receiver: &mut BytesReceiver, length: usize) {
    assert_eq!(receiver.recv().expect("a message").len(), length);
    let error = receiver.next().expect_err("no orderly end");
    let cause = EndCause::PeerClosed(CloseReason::Aborted);
    assert_eq!(error.cause(), Some(&cause), "{error}");
}

/// A receiving end is not opened while the kernel refuses memory for it, and can be afterwards;
/// neither a ring nor a large message that cannot be mapped is lost.
fn no_memory_to_receive_with(stage: &mut Stage) {
    let (node, peer) = stage.meet();
    if stage.side == Side::Listener {
        let mut sender = sender(&peer, "wal");
        for length in [10, LARGE] {
            let last = sender.send(&vec![7; length]).expect("sent");
            stage.rendezvous("it is sent", &node);
            sender.wait_acked(last).expect("acknowledged");
        }
        return sender.close().expect("closed");
    }
    let open = |messages: u64| {
        let channel = peer.channel("wal").codec::<Raw>();
        channel.window_messages(messages).receiver::<[u8]>()
    };
    let refused = without_memory(|| open(1 << 20)).expect_err("cells for so many messages");
    assert!(refused.kind() == OpenErrorKind::Memory, "{refused}");
    let says = refused.to_string();
    assert!(says.contains("lower window_messages"), "{says}");
    let mut receiver = open(1 << 20).expect("opened");
    for length in [10, LARGE] {
        stage.rendezvous("it is sent", &node);
        // If the engine takes messages in, it needs memory at other times.
        if stage.fabric() == Fabric::Shm {
            let (error, later, tried) = without_memory(|| {
                let error = receiver.recv().expect_err("nothing to map it with");
                // The error is reported once; later calls wait for memory.
                let later = [MOMENT, MOMENT].map(|time| receiver.recv_timeout(time).err());
                (error, later, receiver.try_recv().err())
            });
            assert!(error.kind() == RecvErrorKind::Memory, "{error}");
            assert!(error.spares_channel());
            for late in later {
                assert!(
                    matches!(&late, Some(error) if error.kind() == RecvErrorKind::Timeout),
                    "{late:?}"
                );
            }
            assert!(
                matches!(&tried, Some(error) if error.kind() == RecvErrorKind::Empty),
                "{tried:?}"
            );
        }
        let message = receiver.recv().expect("a message");
        assert_eq!(message.len(), length);
        message.ack();
    }
    assert!(receiver.next().expect("the end").is_none());
}

/// A peer of a fan-in whose large message cannot be mapped stays a member, and the message comes
/// later.
fn no_memory_to_gather_with(stage: &mut Stage) {
    let (node, peer) = stage.meet();
    if stage.side == Side::Listener {
        let mut sender = sender(&peer, "wal");
        sender.send(b"here").expect("sent");
        let last = sender.send(&vec![7; LARGE]).expect("sent");
        stage.rendezvous("it is sent", &node);
        return sender.wait_acked(last).expect("acknowledged");
    }
    let gathering = node.channel("wal").codec::<Raw>();
    let mut requests: FanIn<[u8], Raw> = gathering.fan_in().expect("a fan-in");
    let mut next = || requests.next_timeout(LONG).expect("in time").expect("open");
    assert!(matches!(next(), FanInEvent::Joined(_)));
    let FanInEvent::Message(_, message) = next() else {
        panic!("it goes on");
    };
    message.ack();
    stage.rendezvous("it is sent", &node);
    // If the engine takes messages in, it needs memory at other times.
    if stage.fabric() == Fabric::Shm {
        let event = without_memory(&mut next);
        let FanInEvent::Lost(_, error) = event else {
            panic!("nothing to map it with: {event:?}");
        };
        assert!(error.kind() == RecvErrorKind::Memory, "{error}");
    }
    let FanInEvent::Message(_, message) = next() else {
        panic!("it goes on");
    };
    assert_eq!(message.len(), LARGE);
    message.ack();
}

/// Returns the result of `act`, run while this process may have at most `most` of `resource`.
fn limited<T>(resource: Resource, most: u64, act: impl FnOnce() -> T) -> T {
    let limit = getrlimit(resource);
    let less = Rlimit {
        current: Some(most),
        ..limit
    };
    setrlimit(resource, less).expect("less than it may have");
    let outcome = act();
    setrlimit(resource, limit).expect("what it may have");
    outcome
}

/// Returns the result of `act`, run while this process may map little more than it has.
fn without_memory<T>(act: impl FnOnce() -> T) -> T {
    let statm = fs::read_to_string("/proc/self/statm").expect("procfs");
    let pages = statm.split(' ').next().expect("the size of the process");
    let mapped = pages.parse::<u64>().expect("a number") * page_size() as u64;
    limited(Resource::As, mapped + (1 << 20), act)
}

/// Ends whose messages exceed the socket's room.
const MANY: usize = 600;
/// Bytes of a message that is longer than its ring.
const LARGE: usize = 3 << 20;
/// A watchdog's time, shorter than the supervisor's.
const PATIENCE: Duration = Duration::from_secs(240);
/// A time longer than an idle channel keeps its memory.
const REST: Duration = Duration::from_millis(3300);
