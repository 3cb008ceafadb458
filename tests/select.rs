//! `Select` is fair between channels over any fabrics, and a waiting thread sleeps.
#![forbid(unsafe_code)]

mod pair;

use ibex_harness::wait_until;
use std::{thread, time::Duration};

use ibex::{Driver, Fabric, FanIn, FanInEvent, Message, Node, Pod, Policy, Select};
use pair::{FABRICS, Pair};

/// In each round both have messages, so each gets its turn: half of a million rounds.
#[test]
fn nobody_is_starved() {
    for fabrics in [FABRICS, [Fabric::Tcp; 2], [Fabric::Shm; 2]] {
        let pairs = fabrics.map(Pair::over);
        let (mut left, mut left_end) = pairs[0].channel("numbers");
        let (mut right, mut right_end) = pairs[1].channel("numbers");
        let mut select = Select::new();
        // Before the first message of a channel, the select cannot be fair.
        for (sender, end) in [(&mut left, &mut left_end), (&mut right, &mut right_end)] {
            sender.send(&1).expect("sent");
            end.recv().expect("a message").ack();
        }
        let mut taken = [1u32; 2];
        for _ in 0..ROUNDS / BATCH {
            // Each sends more than is taken, so that neither is ever empty.
            let sent = [u64::from(taken[0]), u64::from(taken[1])];
            for sender in [&mut left, &mut right] {
                while sender.counts().sent < sent[0].max(sent[1]) + u64::from(BATCH) {
                    sender.send(&1).expect("sent");
                }
                sender.flush().expect("delivered");
            }
            for _ in 0..BATCH {
                let ready = select.ready(&mut [&mut left_end, &mut right_end]);
                taken[ready] += 1;
                let receiver = [&mut left_end, &mut right_end][ready].try_recv();
                receiver.expect("it is there").ack();
            }
        }
        let (least, most) = (taken[0].min(taken[1]), taken[0].max(taken[1]));
        assert!(2 * most <= 3 * least, "{taken:?} over {fabrics:?}");
    }
}

const ROUNDS: u32 = 1_000_000;
const BATCH: u32 = 250;

#[test]
fn a_wait_is_ended_by_either_channel_and_by_time() {
    let pairs = FABRICS.map(Pair::over);
    let (left, mut left_end) = pairs[0].channel("numbers");
    let (right, mut right_end) = pairs[1].channel("numbers");
    let mut living = Vec::new();
    let mut select = Select::new();
    let moment = Duration::from_millis(20);
    let nothing = select.ready_timeout(&mut [&mut left_end, &mut right_end], moment);
    assert_eq!(nothing, None);
    for (index, mut sender) in [left, right].into_iter().enumerate() {
        let sending = thread::spawn(move || {
            thread::sleep(moment);
            sender.send(&7).expect("sent");
            sender
        });
        let ready = select.ready(&mut [&mut left_end, &mut right_end]);
        assert_eq!(ready, index);
        let message = [&mut left_end, &mut right_end][ready].try_recv();
        assert_eq!(*message.expect("it is there"), 7);
        // The sender lives until here, since its end would be an event.
        drop(sending.join().expect("it ends"));
        if index == 0 {
            let ended = select.ready(&mut [&mut left_end, &mut right_end]);
            assert_eq!(ended, 0, "the end comes too");
            // An ended receiver is ready forever, so another takes its place.
            let (silent, end) = pairs[0].channel("silent");
            left_end = end;
            living.push(silent);
        }
    }
}

/// A fan-in gets its turn beside a receiver, and so do its peers. A message, a joining peer, and
/// the close of the node each wake a thread that waits for both.
#[test]
fn a_fan_in_is_waited_for_as_a_receiver_is() {
    for fabrics in [FABRICS, [Fabric::Tcp; 2], [Fabric::Shm; 2]] {
        let node = Node::listen("127.0.0.1:0").expect("a node");
        let address = node.local_addr().expect("it listens");
        let mut requests = node.channel("requests").codec::<Pod>().fan_in::<u64>();
        let requests = requests.as_mut().expect("a fan-in");
        let client = |fabric| {
            let builder = Node::builder().fabric(fabric, Policy::Require);
            let builder = builder
                .connect_timeout(Duration::MAX)
                .open_timeout(Duration::MAX);
            let node = builder.build().expect("a node");
            let peer = node.connect(address).expect("a session");
            let sender = peer.channel("requests").codec::<Pod>().sender::<u64>();
            (sender.expect("a sender"), peer, node)
        };
        let mut select = Select::new();
        let moment = Duration::from_millis(20);
        assert_eq!(select.ready_timeout(&mut [requests], moment), None);

        // Two clients come during the wait.
        let mut clients = Vec::new();
        for fabric in fabrics {
            clients.push(thread::scope(|scope| {
                let coming = scope.spawn(|| {
                    thread::sleep(moment);
                    client(fabric)
                });
                assert_eq!(select.ready(&mut [requests]), 0);
                let joined = requests.try_next().expect("it is there");
                assert!(matches!(joined, Some(FanInEvent::Joined(_))), "{joined:?}");
                coming.join().expect("it comes")
            }));
        }
        let commands = clients[0].1.channel("commands").codec::<Pod>();
        let mut commander = commands.sender::<u64>().expect("a sender");
        let here = node.accept().expect("a session");
        let commands = here.channel("commands").codec::<Pod>();
        let mut commands = commands.receiver::<u64>().expect("a receiver");

        // Each of the three in turn wakes the sleeper.
        let mut senders: Vec<_> = clients.iter_mut().map(|client| &mut client.0).collect();
        senders.push(&mut commander);
        let mut numbers = [0; 3];
        for round in 0..30 {
            let (sender, number) = (&mut senders[round % 3], &mut numbers[round % 3]);
            *number += 1;
            thread::scope(|scope| {
                scope.spawn(|| {
                    thread::sleep(Duration::from_millis(1));
                    sender.send(number).expect("sent");
                });
                match select.ready(&mut [requests, &mut commands]) {
                    0 => assert_eq!(number_of(requests), numbers_of(round)),
                    _ => assert_eq!(*commands.recv().expect("it is there"), numbers_of(round)),
                }
            });
        }

        // All have messages, so the fan-in gets its turns beside the receiver, once it has learned
        // of the silent peers.
        for sender in &mut senders {
            for number in 11..=10 + EACH {
                sender.send(&number).expect("sent");
            }
            sender.flush().expect("delivered");
        }
        wait_until(|| select.try_ready(&mut [requests]).is_some());
        let (mut of_all, mut of_one) = (0, 0);
        while of_all + of_one < 3 * EACH {
            match select.ready(&mut [requests, &mut commands]) {
                0 => {
                    of_all += 1;
                    number_of(requests);
                }
                _ => {
                    of_one += 1;
                    assert_eq!(*commands.recv().expect("it is there"), 10 + of_one);
                }
            }
            assert!(of_one < EACH || 3 * of_all >= 2 * EACH, "{of_all}");
        }
        assert_eq!((of_all, of_one), (2 * EACH, EACH));

        // A later call finds the event that a check has found.
        clients[0].0.send(&1).expect("sent");
        assert_eq!(select.ready(&mut [requests]), 0);
        assert_eq!(select.ready(&mut [requests]), 0);
        let found = requests.next_timeout(Duration::ZERO).expect("it is there");
        assert!(
            matches!(found, Some(FanInEvent::Message(_, _))),
            "{found:?}"
        );

        thread::scope(|scope| {
            scope.spawn(|| {
                thread::sleep(moment);
                node.close(Duration::from_secs(60))
            });
            let mut gone = 0;
            loop {
                assert_eq!(select.ready(&mut [requests]), 0);
                match requests.try_next().expect("it is there") {
                    Some(FanInEvent::Lost(..)) => gone += 1,
                    Some(other) => panic!("{other:?}"),
                    None => break,
                }
            }
            assert_eq!(gone, 2);
        });
    }
}

/// If callers turn the engine, a peer whose messages need no turn must not starve peers whose
/// messages need one: neither in a select nor in a fan-in.
#[test]
fn peers_in_shared_memory_starve_none_whose_bytes_an_engine_brings() {
    for is_fan_in in [true, false] {
        let builder = Node::builder().driver(Driver::Caller).listen("127.0.0.1:0");
        let node = builder.build().expect("a node");
        let address = node.local_addr().expect("it listens");
        let mut requests = node.channel("numbers").codec::<Pod>().fan_in::<u64>();
        let requests = requests.as_mut().expect("a fan-in");
        let mut select = Select::new();

        let mut clients = Vec::new();
        let mut receivers = Vec::new();
        for fabric in FABRICS {
            let connecting = thread::spawn(move || {
                let builder = Node::builder().fabric(fabric, Policy::Require);
                let builder = builder
                    .connect_timeout(Duration::MAX)
                    .open_timeout(Duration::MAX);
                let node = builder.build().expect("a node");
                let peer = node.connect(address).expect("a session");
                let numbers = peer.channel("numbers").codec::<Pod>();
                let mut sender = numbers.sender::<u64>().expect("a sender");
                sender.send(&0).expect("sent");
                (sender, peer, node)
            });
            if is_fan_in {
                let joined = requests.next().expect("the node is open");
                assert!(matches!(joined, FanInEvent::Joined(_)), "{joined:?}");
                assert_eq!(number(requests.next()), 0);
            } else {
                let peer = node.accept().expect("a session");
                let numbers = peer.channel("numbers").codec::<Pod>();
                let mut receiver = numbers.receiver::<u64>().expect("a receiver");
                assert_eq!(*receiver.recv().expect("sent"), 0);
                receivers.push(receiver);
            }
            clients.push(connecting.join().expect("it connects"));
        }
        if is_fan_in {
            // Turns until both are left alone.
            for _ in 0..200 {
                requests.try_next().expect_err("nothing comes");
            }
        }
        let [(in_memory, ..), (by_turns, peer_of_turns, _)] = &mut clients[..] else {
            unreachable!("two")
        };
        (1..=EACH).for_each(|number| _ = in_memory.send(&number).expect("sent"));
        let mut next = || match &mut receivers[..] {
            [left, right] => match select.ready(&mut [&mut *left, &mut *right]) {
                0 => *left.try_recv().expect("it is there"),
                _ => *right.try_recv().expect("it is there"),
            },
            _ => number(requests.next()),
        };
        (1..10).for_each(|number| assert_eq!(next(), number));
        // From here on the engine has a message, but no call waits for it.
        let before = peer_of_turns.stats().bytes_sent;
        by_turns.send(&u64::MAX).expect("sent");
        wait_until(|| peer_of_turns.stats().bytes_sent != before);
        let place = (10..EACH).position(|_| next() == u64::MAX);
        assert!(
            place.is_some_and(|place| place < 200),
            "{place:?}, fan-in: {is_fan_in}"
        );
        // The node is not turned for its peers' goodbyes.
        let _ = node.close(Duration::ZERO);
    }
}

/// Messages of each of the three.
const EACH: u64 = 500;

/// Returns the number in the fan-in's next message.
fn number_of(requests: &mut FanIn<u64, Pod>) -> u64 {
    number(requests.try_next().expect("it is there"))
}

fn number(event: Option<FanInEvent<Message<u64, Pod>>>) -> u64 {
    match event {
        Some(FanInEvent::Message(_, number)) => *number,
        other => panic!("{other:?}"),
    }
}

/// Returns the number that is sent in this round of three.
fn numbers_of(round: usize) -> u64 {
    round as u64 / 3 + 1
}

#[test]
#[should_panic(expected = "nothing to wait for")]
fn nothing_is_not_waited_for() {
    Select::new().ready(&mut []);
}

/// The first acknowledgement wakes a thread that waits for both, and for a receiver.
#[test]
fn acknowledgements_are_waited_for_as_messages_are() {
    let pairs = FABRICS.map(Pair::over);
    let mut select = Select::new();
    let (mut logs, mut replicas) = (Vec::new(), Vec::new());
    for pair in &pairs {
        let (log, replica) = pair.channel("log");
        logs.push(log);
        replicas.push(replica);
    }
    let (mut commands, mut command) = pairs[0].channel("commands");
    for round in 1..=100 {
        for log in &mut logs {
            log.send(&round).expect("sent");
        }
        let first = round as usize % 2;
        thread::scope(|scope| {
            let replica = &mut replicas[first];
            scope.spawn(|| replica.recv().expect("sent").ack());
            let mut ends = [&logs[0], &logs[1]].map(|log| log.until_acked(round));
            let [one, other] = &mut ends;
            assert_eq!(select.ready(&mut [one, other, &mut command]), first);
        });
        assert_eq!(logs[first].acked(), round);
        replicas[1 - first].recv().expect("sent").ack();

        commands.send(&round).expect("sent");
        let mut ends = [&logs[0], &logs[1]].map(|log| log.until_acked(round + 1));
        let [one, other] = &mut ends;
        let ready = select.ready(&mut [one, other, &mut command]);
        assert_eq!(ready, 2, "nobody acknowledges what was not sent");
        assert_eq!(*command.recv().expect("sent"), round);
    }
    // The end of acknowledgements is an event as well.
    drop(replicas.remove(0));
    let mut ends = [&logs[0], &logs[1]].map(|log| log.until_acked(101));
    let [one, other] = &mut ends;
    assert_eq!(select.ready(&mut [one, other]), 0);
    logs[0].wait_acked(101).expect_err("the receiver is gone");
}
