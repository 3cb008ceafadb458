//! A node's reports: its counts and its events, at both ends.

use std::{
    thread,
    time::{Duration, Instant},
};

use ibex::{
    EndCause, Event, Node, Peer, Raw, Role, SendErrorKind,
    stats::{ChannelState, ChannelStats, NodeStats, SessionState},
};

use crate::common::{
    scenario::{Scenario, Side, Span},
    stage::{BytesReceiver, BytesSender, LONG, MOMENT, Stage},
    task,
};

pub(crate) const SCENARIOS: &[Scenario] = &[
    Scenario::new("stats_of_both_ends", stats),
    Scenario::new("events_of_a_session", events_of_a_session),
    Scenario::new("events_of_a_killed_peer", events_of_a_killed_peer).kills(Side::Dialer),
    Scenario::new("stall_by_a_guard", stall_by_a_guard),
    Scenario::new("stall_of_a_task", stall_of_a_task),
    Scenario::new("stall_of_a_sender_that_tries", stall_of_a_sender_that_tries),
    Scenario::new("waiting_for_an_acknowledgement", waiting_for_an_ack),
    Scenario::new("sender_that_goes_on", sender_that_goes_on).on(Span::EachFabric),
];

/// A guard is held until its sender has no room. Both ends report the same counts and name the
/// message, and later report that the stall is over.
fn stats(stage: &mut Stage) {
    let (node, peer) = stage.meet();
    let channel = peer.channel("full").codec::<Raw>();
    let channel = channel.window_messages(WINDOW);
    match stage.side {
        Side::Dialer => {
            let mut sender = channel.sender::<[u8]>().expect("an end");
            let pending = peer.channel("nobody's").codec::<Raw>();
            let _pending = pending.receiver::<[u8]>().expect("an end");
            let large = vec![7; 3 << 20];
            sender.send(&large).expect("sent");
            sender.wait_acked(1).expect("acknowledged");
            let mut sent = 1;
            let full = loop {
                match sender.send_timeout(b"a few bytes", 3 * MOMENT) {
                    Ok(sequence) => sent = sequence,
                    Err(error) => break error,
                }
            };
            assert!(full.kind() == SendErrorKind::Timeout, "{full}");
            assert_eq!(sent, 1 + WINDOW);
            let stats = channel_of(&node, "full");
            assert_eq!((stats.end, stats.state), (Role::Sender, ChannelState::Open));
            assert_eq!((stats.sent, stats.released), (sent, 1));
            assert_eq!((stats.held, stats.held_oldest), (WINDOW, Some(2)));
            assert_eq!((stats.large_messages, stats.large_bytes), (1, 3 << 20));
            assert_eq!(stats.window_messages, WINDOW);
            assert!(
                stats.stalls >= 1 && stats.stalled >= 3 * MOMENT,
                "{stats:?}"
            );
            let pending = channel_of(&node, "nobody's");
            assert_eq!(
                (pending.end, pending.state),
                (Role::Receiver, ChannelState::Pending)
            );
            stage.tell("it is full");
            sender.send(b"one more").expect("there is room");
            sender.wait_acked(sent + 1).expect("acknowledged");
            let after = channel_of(&node, "full");
            assert_eq!((after.released, after.acknowledged), (sent + 1, sent + 1));
            assert_eq!((after.held, after.held_oldest), (0, None));
            assert!(after.released_bytes > stats.released_bytes, "{after:?}");
            // No call waits any more.
            let later = channel_of(&node, "full");
            assert_eq!((later.stalls, later.stalled), (after.stalls, after.stalled));
            check_words(&node.stats(), "full");
            stage.tell("done");
        }
        Side::Listener => {
            let mut receiver = channel.receiver::<[u8]>().expect("an end");
            let first = receiver.recv().expect("a message");
            assert_eq!(first.len(), 3 << 20);
            first.ack();
            let held = receiver.recv().expect("a message");
            stage.hear("it is full", &node);
            check_words(&node.stats(), "full");
            let stats = channel_of(&node, "full");
            assert_eq!(
                (stats.end, stats.state),
                (Role::Receiver, ChannelState::Open)
            );
            assert_eq!((stats.received, stats.released), (2, 1));
            assert_eq!((stats.held, stats.held_oldest), (1, Some(2)));
            assert_eq!((stats.large_messages, stats.large_bytes), (1, 3 << 20));
            held.ack();
            for _ in 0..WINDOW {
                receiver.recv().expect("a message").ack();
            }
            stage.hear("done", &node);
        }
    }
}

const WINDOW: u64 = 16;

fn channel_of(node: &Node, name: &str) -> ChannelStats {
    let stats = node.stats();
    let [session] = &stats.sessions[..] else {
        panic!("one session: {stats:?}");
    };
    assert_eq!(session.state, SessionState::Up);
    let found = session.channels.iter().find(|channel| channel.name == name);
    found.unwrap_or_else(|| panic!("{name}: {stats}")).clone()
}

/// Checks that the table and the serialized form agree.
fn check_words(stats: &NodeStats, name: &str) {
    let session = &stats.sessions[0];
    let table = stats.to_string();
    for part in [
        name,
        &session.peer.to_string(),
        &stats.id.to_string(),
        "held from",
    ] {
        assert!(table.contains(part), "no {part} in\n{table}");
    }
    let json = serde_json::to_value(stats).expect("it can be serialized");
    let there = &json["sessions"][0];
    assert_eq!(there["peer"], session.peer.to_string());
    assert_eq!(there["fabric"], session.fabric.to_string());
    assert_eq!(
        there["counters"]["frames_sent"],
        session.counters.frames_sent
    );
    let channels = there["channels"].as_array().expect("a list");
    assert_eq!(channels.len(), session.channels.len());
    assert!(channels.iter().any(|channel| channel["name"] == name));
}

/// A session begins and ends in order, and both ends report the same one.
fn events_of_a_session(stage: &mut Stage) {
    let (node, peer) = stage.meet();
    let mut events = node.events();
    check_connected(events.next_timeout(LONG), &peer);
    assert_eq!(events.try_next(), None);
    stage.rendezvous("connected", &node);
    match stage.side {
        Side::Dialer => {
            let undelivered = node.close(LONG).undelivered;
            assert!(undelivered.is_empty(), "{undelivered:?}");
            // The end is also reported at the closing node.
            assert!(matches!(events.next(), Some(Event::Gone { .. })));
            assert_eq!(events.next(), None, "the node was closed");
        }
        Side::Listener => {
            match events.next() {
                Some(Event::Gone {
                    peer: who, cause, ..
                }) => {
                    assert_eq!((who, cause), (peer.id(), EndCause::Goodbye));
                }
                other => panic!("it said goodbye: {other:?}"),
            }
            assert!(peer.is_gone());
            let waiting = thread::spawn(move || events.next());
            drop(node);
            assert_eq!(waiting.join().expect("it ends"), None);
        }
    }
}

/// A killed process reports nothing, but its kernel does. The end is reported once, as the last
/// event.
fn events_of_a_killed_peer(stage: &mut Stage) {
    let (node, peer) = stage.meet();
    let mut events = node.events();
    check_connected(events.next_timeout(LONG), &peer);
    stage.rendezvous("connected", &node);
    match stage.side {
        Side::Dialer => {
            stage.hear("never", &node);
        }
        Side::Listener => {
            stage.kill_other();
            let mut told = events.next_timeout(LONG);
            // The peer's connection broke noticeably before its kernel reported its end.
            if let Some(Event::Suspended { peer: who, .. }) = told {
                assert_eq!(who, peer.id());
                told = events.next_timeout(LONG);
            }
            match told {
                Some(Event::Gone {
                    peer: who, cause, ..
                }) => {
                    assert_eq!(who, peer.id());
                    let is_certain = matches!(cause, EndCause::PeerGone { certain: true, .. });
                    assert!(is_certain, "{cause}");
                }
                other => panic!("it was killed: {other:?}"),
            }
            let _ = node.close(LONG);
            assert_eq!(events.next(), None, "it is told last, and once");
            assert_eq!(events.dropped(), 0);
        }
    }
}

fn check_connected(event: Option<Event>, to: &Peer) {
    match event {
        Some(Event::Connected {
            peer,
            address,
            fabric,
            reason,
            ..
        }) => {
            assert_eq!((peer, address), (to.id(), to.address()));
            assert_eq!((fabric, &*reason), (to.fabric(), to.fabric_reason()));
        }
        other => panic!("a session came: {other:?}"),
    }
}

/// A sender waits while the receiving application holds a message. Both ends report the channel,
/// the message and the time once, and later the end of the stall.
fn stall_by_a_guard(stage: &mut Stage) {
    let (node, peer) = stage.meet();
    let mut events = node.events();
    check_connected(events.next_timeout(LONG), &peer);
    match stage.side {
        Side::Dialer => {
            let mut sender = small_sender(&peer, "held");
            for _ in 0..3 {
                sender.send(b"a few bytes").expect("sent");
            }
            // The acknowledgement ensures that only the held message makes a call wait for room.
            stage.hear("held", &node);
            sender.wait_acked(2).expect("acknowledged");
            for _ in 3..WINDOW + 2 {
                sender.send(b"a few bytes").expect("sent");
            }
            thread::scope(|scope| {
                let last = scope.spawn(|| sender.send(b"a few bytes").expect("sent"));
                let stall = stalled(events.next_timeout(LONG), "held", Role::Sender);
                assert_eq!(stall, (3, None));
                stage.tell("stalled");
                assert_eq!(last.join().expect("it goes on"), WINDOW + 3);
            });
            let waited = recovered(events.next_timeout(LONG), "held", Role::Sender);
            assert!(waited >= NOTICE, "{waited:?}");
            assert_eq!(events.try_next(), None, "told once");
            sender.wait_acked(WINDOW + 3).expect("acknowledged");
            stage.tell("done");
        }
        Side::Listener => {
            let mut receiver = small_receiver(&peer, "held");
            for _ in 0..2 {
                receiver.recv().expect("a message").ack();
            }
            let held = receiver.recv().expect("a message");
            stage.tell("held");
            let stall = stalled(events.next_timeout(LONG), "held", Role::Receiver);
            assert_eq!(stall, (3, Some(1)));
            // The wait is long enough for a second warning, if there were one.
            assert_eq!(events.next_timeout(NOTICE + 10 * MOMENT), None, "told once");
            // The other end has its own clock.
            stage.hear("stalled", &node);
            held.ack();
            for _ in 3..WINDOW + 3 {
                receiver.recv().expect("a message").ack();
            }
            let waited = recovered(events.next_timeout(LONG), "held", Role::Receiver);
            assert!(waited >= NOTICE, "{waited:?}");
            stage.hear("done", &node);
        }
    }
}

/// A task stalls in the same way, and is not woken meanwhile.
fn stall_of_a_task(stage: &mut Stage) {
    let (node, peer) = stage.meet();
    let mut events = node.events();
    check_connected(events.next_timeout(LONG), &peer);
    match stage.side {
        Side::Dialer => {
            let mut sender = small_sender(&peer, "task");
            let driver = stage.driver();
            task::run(&node, driver, async {
                for _ in 0..WINDOW {
                    sender.send_async(b"a few bytes").await.expect("sent");
                }
            });
            thread::scope(|scope| {
                scope.spawn(|| {
                    task::run(&node, driver, async {
                        sender.send_async(b"a few bytes").await.expect("sent");
                        let acked = sender.wait_acked_async(WINDOW + 1).await;
                        acked.expect("acknowledged");
                    });
                });
                // Waiting for the event turns the engine as well; the stall ends when the other end
                // makes room.
                let stall = stalled(events.next_timeout(LONG), "task", Role::Sender);
                assert_eq!(stall, (1, None));
                stage.tell("stalled");
            });
            recovered(events.next_timeout(LONG), "task", Role::Sender);
            assert_eq!(events.try_next(), None, "told once");
            stage.tell("done");
        }
        Side::Listener => {
            let mut receiver = small_receiver(&peer, "task");
            let held = receiver.recv().expect("a message");
            let stall = stalled(events.next_timeout(LONG), "task", Role::Receiver);
            assert_eq!(stall, (1, Some(1)));
            // The other end has its own clock.
            stage.hear("stalled", &node);
            held.ack();
            for _ in 0..WINDOW {
                receiver.recv().expect("a message").ack();
            }
            recovered(events.next_timeout(LONG), "task", Role::Receiver);
            stage.hear("done", &node);
        }
    }
}

/// A sender that only tries stalls in the same way, with a receiver that does not read.
fn stall_of_a_sender_that_tries(stage: &mut Stage) {
    let (node, peer) = stage.meet();
    let mut events = node.events();
    check_connected(events.next_timeout(LONG), &peer);
    match stage.side {
        Side::Dialer => {
            let mut sender = small_sender(&peer, "unread");
            sender.opened(LONG).expect("it is opened");
            let mut try_until = |mut done: Box<dyn FnMut(Option<Event>, bool) -> bool + '_>| {
                loop {
                    let sent = match sender.try_send(b"a few bytes") {
                        Ok(_) => true,
                        Err(error) if error.kind() == SendErrorKind::Full => false,
                        Err(error) => panic!("{error}"),
                    };
                    if done(events.try_next(), sent) {
                        return;
                    }
                    thread::sleep(Duration::from_millis(1));
                }
            };
            try_until(Box::new(|event, _| {
                let is_told = event.is_some();
                if is_told {
                    assert_eq!(stalled(event, "unread", Role::Sender), (1, None));
                }
                is_told
            }));
            stage.tell("told");
            try_until(Box::new(|event, _| {
                let is_told = event.is_some();
                if is_told {
                    recovered(event, "unread", Role::Sender);
                }
                is_told
            }));
            stage.tell("done");
        }
        Side::Listener => {
            let mut receiver = small_receiver(&peer, "unread");
            stage.hear("told", &node);
            while let Ok(message) = receiver.try_recv() {
                message.ack();
            }
            stage.hear("done", &node);
        }
    }
}

/// Waiting for an acknowledgement is not waiting for room.
fn waiting_for_an_ack(stage: &mut Stage) {
    let (node, peer) = stage.meet();
    let mut events = node.events();
    check_connected(events.next_timeout(LONG), &peer);
    match stage.side {
        Side::Dialer => {
            let mut sender = small_sender(&peer, "slow");
            sender.send(b"a few bytes").expect("sent");
            sender.wait_acked(1).expect("acknowledged");
        }
        Side::Listener => {
            let mut receiver = small_receiver(&peer, "slow");
            let message = receiver.recv().expect("a message");
            assert_eq!(events.next_timeout(NOTICE + 10 * MOMENT), None);
            message.ack();
            drop(receiver);
        }
    }
    assert_eq!(events.try_next(), None);
    stage.rendezvous("over", &node);
}

/// A sender that repeatedly finds no room, over a time longer than a stall, is not stalled. Each
/// end measures its own waits; a single wait that a slow machine makes that long is a stall.
fn sender_that_goes_on(stage: &mut Stage) {
    let (node, peer) = stage.meet();
    let mut events = node.events();
    check_connected(events.next_timeout(LONG), &peer);
    let messages = 3 * WINDOW;
    let mut longest = Duration::ZERO;
    match stage.side {
        Side::Dialer => {
            let mut sender = small_sender(&peer, "busy");
            for _ in 0..messages {
                let began = Instant::now();
                sender.send(b"a few bytes").expect("sent");
                longest = longest.max(began.elapsed());
            }
            sender.wait_acked(messages).expect("acknowledged");
            let stats = channel_of(&node, "busy");
            assert!(stats.stalls > 1, "{stats:?}");
        }
        Side::Listener => {
            let mut receiver = small_receiver(&peer, "busy");
            let mut released = Instant::now();
            for _ in 0..messages {
                thread::sleep(Duration::from_millis(60));
                receiver.recv().expect("a message").ack();
                longest = longest.max(released.elapsed());
                released = Instant::now();
            }
            drop(receiver);
        }
    }
    // The wait includes the time that the other end takes to report room, behind which the next
    // wait begins.
    if longest < NOTICE / 2 {
        assert_eq!(events.try_next(), None);
    }
    stage.rendezvous("over", &node);
}

/// A wait of this length is a stall.
const NOTICE: Duration = Duration::from_secs(1);

fn small_sender(peer: &Peer, name: &str) -> BytesSender {
    let channel = peer.channel(name).codec::<Raw>().window_messages(WINDOW);
    channel.sender().expect("an end")
}

fn small_receiver(peer: &Peer, name: &str) -> BytesReceiver {
    let channel = peer.channel(name).codec::<Raw>().window_messages(WINDOW);
    channel.receiver().expect("an end")
}

/// Returns the oldest message that is not released, and the number held here.
fn stalled(event: Option<Event>, name: &str, side: Role) -> (u64, Option<u64>) {
    match event {
        Some(
            ref said @ Event::Stalled {
                ref channel,
                end,
                since,
                oldest,
                held,
                ..
            },
        ) => {
            assert_eq!((&**channel, end), (name, side));
            assert!(since.elapsed() >= NOTICE, "{said}");
            assert!(said.to_string().contains(name), "{said}");
            (oldest, held)
        }
        other => panic!("nothing moves: {other:?}"),
    }
}

fn recovered(event: Option<Event>, name: &str, side: Role) -> Duration {
    match event {
        Some(Event::Recovered {
            channel,
            end,
            stalled,
            ..
        }) => {
            assert_eq!((&*channel, end), (name, side));
            stalled
        }
        other => panic!("it goes on: {other:?}"),
    }
}
