//! The memory that peers can make a process hold. Announced messages that never come cost nothing,
//! arrived ones count towards one limit, and other sessions' messages still come.
//!
//! The attackers are nodes of another process, driven by their program, which sends and then makes
//! no further call: the announcements have arrived, and nothing behind them.
#![forbid(unsafe_code)]

use ibex_harness::wait_until;
use std::{env, io::BufRead, process::Stdio, sync::Mutex, thread, time::Duration};

use ibex::{
    ChannelBuilder, Driver, Event, Events, Fabric, Message, Node, NodeBuilder, Peer, Policy, Raw,
    Receiver, RecvErrorKind, Region, SendErrorKind,
};
use ibex_harness::process::{self, Process, memory_kib};

/// Half a gigabyte and more is announced over tcp and never sent. The process grows by no more than
/// a stalled sender's socket holds, while a session beside it carries long messages.
#[test]
fn announcements_cost_nothing() {
    let _alone = ALONE.lock().expect("no test has failed beside");
    let node = builder(Fabric::Tcp).listen("127.0.0.1:0").build();
    let node = node.expect("a node");
    let mut attackers = attack(&node, Fabric::Tcp);
    let attacked: Vec<_> = (0..ATTACKERS).map(|_| accept_one(&node)).collect();
    let before = resident();
    go_on(&mut attackers);
    for (_, receiver) in &attacked {
        wait_until(|| receiver.counts().sent >= ANNOUNCED);
    }
    // Memory is granted in order of requests, and these messages request theirs later.
    others_go_on(&node, Fabric::Tcp);
    let grown = resident().saturating_sub(before);
    eprintln!("the process has grown by {} KiB", grown >> 10);
    assert!(grown < MOST, "it has grown by {grown} bytes");
    drop(attackers);
}

/// Over shared memory, a message is mapped when the program asks for it. As many are mapped as the
/// limit allows, by their files' lengths; the others wait, and come when those are released.
#[test]
fn mapped_messages_count_and_others_wait() {
    let _alone = ALONE.lock().expect("no test has failed beside");
    let limit = 2 * LENGTH as u64 + LENGTH as u64 / 2;
    let builder = builder(Fabric::Shm).memory_limit(limit);
    let node = builder.listen("127.0.0.1:0").build().expect("a node");
    let mut attackers = attack(&node, Fabric::Shm);
    let mut attacked: Vec<_> = (0..ATTACKERS).map(|_| accept_one(&node)).collect();
    go_on(&mut attackers);
    for round in 0..ANNOUNCED * ATTACKERS / 2 {
        let mut held: Vec<Message<[u8], Raw>> = Vec::new();
        // Two messages fit, whichever come first.
        while held.len() < 2 {
            for (_, receiver) in &mut attacked {
                match receiver.recv_timeout(Duration::from_millis(1)) {
                    Ok(message) => held.push(message),
                    Err(error) if error.kind() == RecvErrorKind::Timeout => {}
                    Err(error) => panic!("round {round}: {error}"),
                }
            }
        }
        assert_eq!(held.len(), 2, "no third fits");
        // A short message of another session fits.
        others_go_on(&node, Fabric::Shm);
    }
}

/// A receiver whose own program holds all that `memory_limit` allows learns so when its time-out
/// ends, by an event, and when it continues. A sender that gives up sends nothing further.
#[test]
fn a_receiver_that_holds_all_its_memory_limit_allows_is_told() {
    let _alone = ALONE.lock().expect("no test has failed beside");
    for fabric in [Fabric::Shm, Fabric::Tcp] {
        let limit = 2 * HELD as u64 + HELD as u64 / 2;
        let far = builder(fabric).memory_limit(limit).listen("127.0.0.1:0");
        let far = far.build().expect("a node");
        let near = builder(fabric).build().expect("a node");
        let here = near.connect(far.local_addr().expect("it listens"));
        let (here, there) = (here.expect("a session"), far.accept().expect("a peer"));
        let mut events = far.events();
        let open = |peer: &Peer| {
            let channel = peer.channel("held").codec::<Raw>();
            channel.max_unreleased_bytes(1 << 40)
        };
        let mut sender = open(&here).sender::<[u8]>().expect("an end");
        let mut receiver = open(&there).receiver::<[u8]>().expect("an end");
        let mut held = Vec::new();
        for _ in 0..2 {
            sender.send(&vec![1; HELD]).expect("it may be out");
            held.push(receiver.recv().expect("a message"));
        }
        // After the flush the sender's memory is in the pool again, and counts as well.
        sender.flush().expect("they have arrived");
        // One message waits here, and none is behind it.
        sender.send(&vec![1; HELD]).expect("it may be out");
        let error = loop {
            // Nothing is known of the third message before it begins to arrive.
            match receiver.recv_timeout(Duration::from_millis(100)) {
                Err(error) if error.kind() == RecvErrorKind::Timeout && error.lacks_room() => {
                    break error;
                }
                Err(error) if error.kind() == RecvErrorKind::Timeout => {}
                other => panic!("{fabric}: {other:?}"),
            }
        };
        let text = error.to_string();
        assert!(
            text.contains("message 3") && text.contains("raise memory_limit"),
            "{text}"
        );
        let stall = loop {
            // Over shared memory the call itself requests the memory.
            let _ = receiver.recv_timeout(Duration::from_millis(100));
            match events.next_timeout(Duration::from_millis(100)) {
                Some(event @ Event::Stalled { .. }) => break event,
                Some(Event::Connected { .. }) | None => {}
                other => panic!("{fabric}: {other:?}"),
            }
        };
        let Event::Stalled {
            lacks_room,
            oldest,
            held: count,
            ..
        } = &stall
        else {
            unreachable!("it is");
        };
        assert_eq!(
            (*lacks_room, *oldest, *count),
            (true, 1, Some(2)),
            "{fabric}"
        );
        assert!(stall.to_string().contains("memory_limit"), "{stall}");
        // The sender continues until it waits, and gives up.
        let full = loop {
            match sender.send_timeout(&vec![1; HELD], Duration::from_millis(300)) {
                Ok(_) => {}
                Err(full) if full.kind() == SendErrorKind::Timeout => break full,
                Err(error) => panic!("{fabric}: {error}"),
            }
        };
        let text = full.to_string();
        assert!(!text.contains("unreleased_bytes"), "{fabric}: {text}");
        let setting = (fabric == Fabric::Tcp).then_some("memory_limit");
        assert_eq!(full.setting(), setting, "{fabric}: {text}");
        let event = events.next_timeout(Duration::from_millis(600));
        assert!(event.is_none(), "nothing goes on: {event:?}");
        drop(held);
        drop(receiver.recv().expect("it comes"));
        let event = events.next_timeout(LONG);
        let went_on = matches!(event, Some(Event::Recovered { .. }));
        assert!(went_on, "{fabric}: {event:?}");
    }
}

/// A message waits for room when its session ends. No engine tries again for it, so each call does,
/// and says that there is none until there is.
#[test]
fn a_message_that_waits_for_room_outlives_its_session() {
    let _alone = ALONE.lock().expect("no test has failed beside");
    let limit = 2 * HELD as u64 + HELD as u64 / 2;
    let far = builder(Fabric::Shm).memory_limit(limit);
    let far = far.listen("127.0.0.1:0").build().expect("a node");
    let near = builder(Fabric::Shm).build().expect("a node");
    let here = near.connect(far.local_addr().expect("it listens"));
    let (here, there) = (here.expect("a session"), far.accept().expect("a peer"));
    let open = |peer: &Peer| {
        let channel = peer.channel("held").codec::<Raw>();
        channel.max_unreleased_bytes(1 << 40)
    };
    let mut sender = open(&here).sender::<[u8]>().expect("an end");
    let mut receiver = open(&there).receiver::<[u8]>().expect("an end");
    let mut held = Vec::new();
    for _ in 0..2 {
        sender.send(&vec![1; HELD]).expect("it may be out");
        held.push(receiver.recv().expect("a message"));
    }
    sender.send(&vec![3; HELD]).expect("it may be out");
    let waits = receiver.recv_timeout(Duration::from_millis(100));
    assert_eq!(waits.expect_err("no room").kind(), RecvErrorKind::Timeout);
    let mut events = far.events();
    assert!(here.close(LONG).is_complete(), "it has arrived");
    let ends = events.any(|event| matches!(event, Event::Gone { .. }));
    assert!(ends, "the session is over");
    for _ in 0..2 {
        let error = receiver.recv().expect_err("there is no room");
        assert_eq!(error.kind(), RecvErrorKind::Memory, "{error}");
    }
    drop(held);
    let message = receiver.recv().expect("there is room");
    assert_eq!(&message[..1], [3]);
}

/// A region counts once, whole, however many messages in it are held, and however short they are.
#[test]
fn a_region_counts_whole_and_once() {
    let _alone = ALONE.lock().expect("no test has failed beside");
    let far = builder(Fabric::Shm).memory_limit(5 * LENGTH as u64 / 2);
    let far = far.listen("127.0.0.1:0").build().expect("a node");
    let near = builder(Fabric::Shm).build().expect("a node");
    let here = near.connect(far.local_addr().expect("it listens"));
    let (here, there) = (here.expect("a session"), far.accept().expect("a peer"));
    let open = |peer: &Peer| {
        let channel = peer.channel("regions").codec::<Raw>();
        channel.max_unreleased_bytes(1 << 40)
    };
    let mut sender = open(&here).sender::<[u8]>().expect("an end");
    let mut receiver = open(&there).receiver::<[u8]>().expect("an end");
    let regions = [0; 3].map(|_| Region::zeroed(LENGTH).expect("memory"));
    let mut held = Vec::new();
    for region in &regions[..2] {
        for start in 0..10 {
            let slice = region.slice(start..start + HELD);
            sender.send_region(&slice).expect("it may be out");
            held.push(receiver.recv().expect("a message"));
        }
    }
    // Two regions are held, and a third does not fit.
    let slice = regions[2].slice(..HELD);
    sender.send_region(&slice).expect("it may be out");
    loop {
        let waits = receiver.recv_timeout(Duration::from_millis(100));
        let waits = waits.expect_err("no room");
        assert_eq!(waits.kind(), RecvErrorKind::Timeout, "{waits}");
        // The region may still be on its way.
        if waits.lacks_room() {
            break;
        }
    }
    // As long as one message of each is held, both count.
    held.drain(1..10);
    let waits = receiver.recv_timeout(Duration::from_millis(100));
    assert!(waits.expect_err("no room").lacks_room());
    drop(held.remove(0));
    let third = receiver.recv().expect("there is room");
    assert_eq!(third.len(), HELD);
}

/// The receiving end also learns that while its program takes nothing and its sender gives up.
#[test]
fn a_sender_that_gives_up_does_not_go_on() {
    let _alone = ALONE.lock().expect("no test has failed beside");
    for fabric in [Fabric::Shm, Fabric::Tcp] {
        let far = builder(fabric).listen("127.0.0.1:0");
        let far = far.build().expect("a node");
        let near = builder(fabric).build().expect("a node");
        let here = near.connect(far.local_addr().expect("it listens"));
        let (here, there) = (here.expect("a session"), far.accept().expect("a peer"));
        let mut events = far.events();
        let open = |peer: &Peer| peer.channel("given up").codec::<Raw>().window_messages(1);
        let mut sender = open(&here).sender::<[u8]>().expect("an end");
        let mut receiver = open(&there).receiver::<[u8]>().expect("an end");
        sender.send(b"first").expect("room");
        let waits = |events: &mut Events| loop {
            match events.next_timeout(LONG) {
                Some(Event::Connected { .. }) => {}
                Some(Event::Stalled { .. }) => break,
                other => panic!("{fabric}: {other:?}"),
            }
        };
        thread::scope(|scope| {
            let (give_up, heard) = std::sync::mpsc::channel();
            let sending = scope.spawn(move || {
                while heard.try_recv().is_err() {
                    let error = sender.send_timeout(b"second", Duration::from_millis(1500));
                    assert!(error.is_err(), "{error:?}");
                }
                sender
            });
            waits(&mut events);
            give_up.send(()).expect("it listens");
            let mut sender = sending.join().expect("it gives up");
            while let Some(event) = events.next_timeout(Duration::from_millis(600)) {
                assert!(
                    !matches!(event, Event::Recovered { .. }),
                    "{fabric}: {event}"
                );
            }
            drop(receiver.recv().expect("the first"));
            sender.send_timeout(b"second", LONG).expect("room");
        });
    }
}

/// The sending end says so once, whatever its messages wait for: their window, the limit of what is
/// unreleased, or its own engine, which cannot send a long message that the peer has no room for.
#[test]
fn a_sender_that_tries_again_and_again_does_not_go_on() {
    let _alone = ALONE.lock().expect("no test has failed beside");
    let lengths = [
        (20_000, 20_000_000),
        (1_500_000, 20_000_000),
        (1_500_000, 2_000_000_000),
    ];
    for (length, unreleased) in lengths {
        for fabric in [Fabric::Shm, Fabric::Tcp] {
            let case = format!("{fabric}, {length} bytes of {unreleased}");
            let far = builder(fabric).listen("127.0.0.1:0");
            let far = far.build().expect("a node");
            let near = builder(fabric).build().expect("a node");
            let here = near.connect(far.local_addr().expect("it listens"));
            let (here, there) = (here.expect("a session"), far.accept().expect("a peer"));
            let mut events = near.events();
            let open = |peer: &Peer| {
                let channel = peer.channel("held").codec::<Raw>();
                let channel = channel.max_unreleased_bytes(unreleased);
                channel.window_messages(64)
            };
            let mut sender = open(&here).sender::<[u8]>().expect("an end");
            let mut receiver = open(&there).receiver::<[u8]>().expect("an end");
            let message = vec![7; length];
            let mut is_told = false;
            let mut attempts = 0;
            while attempts < 3 {
                // Long enough for each attempt to be reported.
                let sent = sender.send_timeout(&message, Duration::from_millis(1100));
                let has_failed = sent.is_err();
                while let Some(event) = events.try_next() {
                    match event {
                        Event::Connected { .. } => {}
                        Event::Stalled { .. } if !is_told && has_failed => is_told = true,
                        other => panic!("{case}: {other}"),
                    }
                }
                attempts += u32::from(is_told);
            }
            let sent = sender.counts().sent;
            for _ in 0..sent {
                receiver.recv().expect("a message").ack();
            }
            sender.send_timeout(&message, LONG).expect("room");
            match events.next_timeout(LONG) {
                Some(Event::Recovered { .. }) => {}
                other => panic!("{case}: {other:?}"),
            }
        }
    }
}

/// Checks that long messages of another session arrive.
fn others_go_on(node: &Node, fabric: Fabric) {
    let other = builder(fabric).build().expect("a node");
    let address = node.local_addr().expect("it listens");
    let here = other.connect(address).expect("a session");
    let there = node.accept().expect("a peer");
    let mut sender = open(&here).sender::<[u8]>().expect("an end");
    let mut receiver = open(&there).receiver::<[u8]>().expect("an end");
    let sending = thread::spawn(move || {
        let message = vec![3; HONEST];
        for _ in 0..HONEST_MESSAGES {
            sender.send(&message).expect("sent");
        }
        sender.close().expect("closed");
    });
    let mut messages = 0;
    while let Some(message) = receiver.next().expect("it comes") {
        assert_eq!(message.len(), HONEST);
        messages += 1;
    }
    assert_eq!(messages, HONEST_MESSAGES);
    sending.join().expect("it has sent");
}

/// Plays the attackers' process, which runs this test alone.
#[test]
fn attackers() {
    let Ok(target) = env::var(TARGET) else {
        return;
    };
    let (fabric, address) = target.split_once(' ').expect("a fabric and an address");
    let fabric = match fabric {
        "shm" => Fabric::Shm,
        _ => Fabric::Tcp,
    };
    let mut ends: Vec<_> = (0..ATTACKERS)
        .map(|_| {
            let node = builder(fabric).driver(Driver::Caller).build();
            let node = node.expect("a node");
            let peer = node.connect(address).expect("a session");
            let mut sender = open(&peer).sender::<[u8]>().expect("an end");
            sender.opened(LONG).expect("opened");
            (node, sender)
        })
        .collect();
    println!("{READY}");
    wait_for_line();
    for (_, sender) in &mut ends {
        for _ in 0..ANNOUNCED {
            // The memory is sent as zeros, without being written.
            let place = sender.loan(LENGTH).expect("room");
            place.send().expect("announced");
        }
    }
    println!("{READY}");
    // From here on no call is made.
    wait_for_line();
    std::process::exit(0);
}

fn wait_for_line() {
    let mut line = String::new();
    std::io::stdin()
        .lock()
        .read_line(&mut line)
        .expect("a pipe");
}

/// Starts the process of the attackers.
fn attack(node: &Node, fabric: Fabric) -> Process {
    let address = node.local_addr().expect("it listens");
    let mut again = process::again().expect("this program");
    again
        .args(["--exact", "attackers", "--nocapture"])
        .env(TARGET, format!("{fabric} {address}"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped());
    Process::start("the attackers", &mut again).expect("a process")
}

/// Lets the attackers send, after all have opened their ends.
fn go_on(attackers: &mut Process) {
    attackers.hear(READY).expect("they live");
    attackers.say("go").expect("they live");
    attackers.hear(READY).expect("they live");
}

fn accept_one(node: &Node) -> (Peer, Receiver<[u8], Raw>) {
    let peer = node.accept().expect("a peer");
    let receiver = open(&peer).receiver().expect("an end");
    (peer, receiver)
}

fn open(peer: &Peer) -> ChannelBuilder<Raw> {
    let channel = peer.channel("wal").codec::<Raw>();
    channel.max_message_bytes(LENGTH as u64)
}

fn builder(fabric: Fabric) -> NodeBuilder {
    let builder = Node::builder().fabric(fabric, Policy::Require);
    builder
        .connect_timeout(Duration::MAX)
        .open_timeout(Duration::MAX)
}

/// Returns the private memory of this process.
fn resident() -> u64 {
    memory_kib(std::process::id(), "RssAnon").expect("procfs") << 10
}

/// Held by each test, since memory belongs to the process.
static ALONE: Mutex<()> = Mutex::new(());

const TARGET: &str = "IBEX_TEST_ATTACK";
const READY: &str = "the attackers are ready";
const LONG: Duration = Duration::from_secs(120);
const ATTACKERS: u64 = 5;
/// Messages that each attacker announces.
const ANNOUNCED: u64 = 2;
const LENGTH: usize = 64 << 20;
/// The most that the process may grow: by the bytes that a turn of an attacker still brought, and
/// by the memory of the session beside it, at both ends.
const MOST: u64 = 160 << 20;
/// A message length above half a window.
const HELD: usize = 3 << 19;
const HONEST: usize = 12 << 20;
const HONEST_MESSAGES: u64 = 10;
