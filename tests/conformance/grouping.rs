//! A sender for several peers: the same messages for all of them, quorums, and members that are
//! late, slow or gone.

use std::{
    task::Poll,
    thread::{self, JoinHandle},
    time::Duration,
};

use ibex::{
    ChannelBuilder, CloseReason, EndCause, Fabric, Node, Peer, Raw, RecvErrorKind, SendErrorKind,
    WaitErrorKind,
    group::{Group, MemberId, WhenFull},
};

use crate::common::{
    payload,
    scenario::{Scenario, Side},
    stage::{BytesReceiver, LONG, MOMENT, Stage, receiver},
    task,
};

pub(crate) const SCENARIOS: &[Scenario] = &[
    Scenario::new("group", group),
    Scenario::new("group_quorum", group_quorum),
    Scenario::new("group_full", group_full),
    Scenario::new("group_drops_the_slow", group_drops_the_slow),
    Scenario::new("group_tasks", group_tasks),
    Scenario::new("group_catches_up", group_catches_up),
    Scenario::new("group_member_killed", group_member_killed).kills(Side::Listener),
];

type BytesGroup = Group<[u8], Raw>;

const MEMBERS: usize = 3;
/// Messages that a member's window holds.
const WINDOW: u64 = 8;

/// Opens an end long before its member joins.
fn patient_receiver(peer: &Peer, name: &str) -> BytesReceiver {
    let channel = peer.channel(name).codec::<Raw>().open_timeout(LONG);
    channel.receiver().expect("a receiver")
}

fn settings<'a>(node: &'a Node, name: &str) -> ChannelBuilder<Raw, &'a Node> {
    let group = node.channel(name).codec::<Raw>();
    group.window_messages(WINDOW).open_timeout(LONG)
}

/// Creates the members' nodes, one after the other, each with its session.
pub(super) fn member_nodes(stage: &mut Stage) -> Vec<(Node, Peer)> {
    let mut nodes = Vec::new();
    for _ in 0..MEMBERS {
        let node = stage.listen();
        let peer = node.accept().expect("the sender");
        stage.check_peer(&peer);
        nodes.push((node, peer));
    }
    nodes
}

pub(super) fn sending_node(stage: &mut Stage) -> (Node, Vec<Peer>) {
    let node = stage.builder().build().expect("a node");
    let peers = (0..MEMBERS).map(|_| stage.dial(&node)).collect();
    (node, peers)
}

fn join_all(group: &mut BytesGroup, peers: &[Peer]) -> Vec<MemberId> {
    let join = |peer| group.join(peer).expect("a member");
    peers.iter().map(join).collect()
}

/// Acknowledges everything that arrives on `name`, in order, from message `first` of the group on.
/// Returns the last one's sequence, and the node.
fn acknowledge(
    (node, peer): (Node, Peer),
    name: &'static str,
    first: u64,
) -> JoinHandle<(u64, Node)> {
    acknowledging(patient_receiver(&peer, name), first, node)
}

fn acknowledging(mut receiver: BytesReceiver, first: u64, node: Node) -> JoinHandle<(u64, Node)> {
    thread::spawn(move || {
        let mut next = first;
        loop {
            match receiver.recv() {
                Ok(message) => {
                    assert_eq!(message.sequence(), next - first + 1, "its own count");
                    payload::check(next, &message);
                    message.ack();
                    next += 1;
                }
                Err(error) if error.kind() == RecvErrorKind::Ended => return (next - 1, node),
                Err(error) => panic!("{error}"),
            }
        }
    })
}

fn ended_at(member: JoinHandle<(u64, Node)>) -> u64 {
    member.join().expect("it ends in order").0
}

/// Each member gets the messages sent while it was one, once and in order, short ones and others
/// that exceed the window.
fn group(stage: &mut Stage) {
    let third = stage.count(500);
    let length = |sequence| match sequence % 97 {
        0 => 200_000,
        _ => (sequence * 37 % 3000) as usize,
    };
    match stage.side {
        Side::Dialer => {
            let (node, peers) = sending_node(stage);
            let group = settings(&node, "wal").window_bytes(64 << 10);
            let mut group = group.group::<[u8]>().expect("a group");
            let ids = join_all(&mut group, &peers[..2]);
            let send = |group: &mut BytesGroup, sequence| {
                let bytes = payload::numbered(sequence, length(sequence));
                assert_eq!(group.send(&bytes).expect("sent"), sequence);
            };
            (1..=third).for_each(|sequence| send(&mut group, sequence));
            group.join(&peers[2]).expect("a member");
            (third + 1..=2 * third).for_each(|sequence| send(&mut group, sequence));
            let mut left = group.leave(ids[1]).expect("a member");
            assert!(group.leave(ids[1]).is_none(), "it has left");
            (2 * third + 1..=3 * third).for_each(|sequence| send(&mut group, sequence));
            // The message is for this member alone.
            let alone = payload::numbered(2 * third + 1, 10);
            left.send(&alone).expect("sent");
            left.close().expect("delivered");

            group.wait_acked(3 * third, 2).expect("both");
            assert_eq!(group.acked(2), 3 * third);
            assert!(group.acked(3) <= 2 * third, "all three were there then");
            let [first, late] = &group.members()[..] else {
                panic!("two are left")
            };
            assert_eq!((first.id, first.joined_after), (ids[0], 0));
            assert_eq!((late.peer, late.joined_after), (peers[2].at(), third));
            for member in [first, late] {
                assert_eq!(member.counts.sent, 3 * third);
                assert_eq!(member.counts.acknowledged, 3 * third);
                assert_eq!(member.full_since, None);
            }
            assert!(group.close().is_empty(), "nobody was lost");
        }
        Side::Listener => {
            let firsts = [1, 1, third + 1];
            let members = member_nodes(stage).into_iter().zip(firsts);
            let members: Vec<_> = members
                .map(|(member, first)| acknowledge(member, "wal", first))
                .collect();
            let ended: Vec<_> = members.into_iter().map(ended_at).collect();
            assert_eq!(ended, [3 * third, 2 * third + 1, 3 * third]);
        }
    }
}

/// Two of three suffice, whichever the third is and whatever it does.
fn group_quorum(stage: &mut Stage) {
    let rounds = stage.count(500);
    match stage.side {
        Side::Dialer => {
            let (node, peers) = sending_node(stage);
            let group = settings(&node, "wal").window_messages(2 * rounds);
            let mut group = group.group::<[u8]>().expect("a group");
            // The silent member is the first.
            join_all(&mut group, &peers);
            for sequence in 1..=rounds {
                group.send(&payload::numbered(sequence, 100)).expect("sent");
                group.wait_acked(sequence, 2).expect("two of three");
            }
            assert_eq!((group.acked(2), group.acked(3)), (rounds, 0));
            let timed_out = group.wait_acked_timeout(1, 3, MOMENT);
            let Err(lack) = timed_out else {
                panic!("{timed_out:?}")
            };
            assert_eq!(lack.kind(), WaitErrorKind::Timeout, "{lack}");
            assert_eq!(
                (lack.needed(), lack.able()),
                (Some(3), &[peers[0].at()][..])
            );
            assert_eq!(lack.acknowledged(), [peers[1].at(), peers[2].at()]);
            let unsent = group.wait_acked(rounds + 1, 1);
            assert!(
                matches!(&unsent, Err(error) if error.kind() == WaitErrorKind::NotSent),
                "{unsent:?}"
            );
            group.wait_acked(0, 3).expect("nothing to wait for");

            // The call wakes up when the third member drops a message, although no member
            // acknowledged another.
            stage.tell("drop");
            let Err(lost) = group.wait_acked(rounds, 3) else {
                panic!("the third never will")
            };
            assert_eq!(lost.kind(), WaitErrorKind::NoQuorum, "{lost}");
            assert_eq!(lost.unable(), [peers[0].at()]);
            assert_eq!(lost.acknowledged(), [peers[1].at(), peers[2].at()]);
            assert!(lost.able().is_empty() && lost.gone().is_empty(), "{lost}");
            stage.tell("done");
            drop(group);
        }
        Side::Listener => {
            let mut nodes = member_nodes(stage).into_iter();
            let (node, peer) = nodes.next().expect("three");
            let others: Vec<_> = nodes.map(|member| acknowledge(member, "wal", 1)).collect();
            let mut silent = receiver(&peer, "wal");
            let first = silent.recv().expect("a message");
            stage.hear("drop", &node);
            drop(first);
            stage.hear("done", &node);
            for member in others {
                assert_eq!(ended_at(member), rounds);
            }
        }
    }
}

/// A member that does not read is sent as much as its window holds. Then no member is sent anything
/// until it reads.
fn group_full(stage: &mut Stage) {
    match stage.side {
        Side::Dialer => {
            let (node, peers) = sending_node(stage);
            let mut group = settings(&node, "wal").group::<[u8]>().expect("a group");
            join_all(&mut group, &peers);
            for sequence in 1..=WINDOW {
                group.send(&payload::numbered(sequence, 100)).expect("room");
            }
            let slow = peers[MEMBERS - 1].at();
            group.wait_acked(WINDOW, 2).expect("the others");
            let lost = payload::numbered(0, 100);
            for _ in 0..3 {
                let full = group.try_send(&lost).expect_err("no room");
                assert!(full.is_transient(), "{full}");
                assert!(
                    full.kind() == SendErrorKind::Full && full.member() == Some(slow),
                    "{full}"
                );
            }
            let full = group.send_timeout(&lost, MOMENT).expect_err("no room");
            assert!(
                full.kind() == SendErrorKind::Full && full.member() == Some(slow),
                "{full}"
            );
            let large = vec![0; 3 << 20];
            let full = group.send_timeout(&large, MOMENT).expect_err("no room");
            assert!(
                full.kind() == SendErrorKind::Full && full.member() == Some(slow),
                "{full}"
            );
            let member = group.members().pop().expect("three");
            assert_eq!((member.peer, member.room_messages), (slow, Some(0)));
            assert!(member.full_since.is_some());
            assert_eq!((group.sent(), group.members().len()), (WINDOW, MEMBERS));

            stage.tell("read");
            for sequence in WINDOW + 1..=4 * WINDOW {
                group
                    .send(&payload::numbered(sequence, 100))
                    .expect("room again");
            }
            group.wait_acked(4 * WINDOW, MEMBERS).expect("all");
            assert!(group.close().is_empty(), "nobody was lost");
        }
        Side::Listener => {
            let mut nodes = member_nodes(stage);
            let (node, peer) = nodes.pop().expect("three");
            let others = nodes.into_iter();
            let others: Vec<_> = others.map(|member| acknowledge(member, "wal", 1)).collect();
            // The slow member opens its end, and reads when told to.
            let slow = patient_receiver(&peer, "wal");
            stage.hear("read", &node);
            for member in others.into_iter().chain([acknowledging(slow, 1, node)]) {
                assert_eq!(ended_at(member), 4 * WINDOW);
            }
        }
    }
}

/// A member that is full for too long is dropped, at once or after a time, and the others get the
/// messages that it held up.
fn group_drops_the_slow(stage: &mut Stage) {
    const CHANNELS: [&str; 2] = ["at_once", "after"];
    match stage.side {
        Side::Dialer => {
            let (node, peers) = sending_node(stage);
            let slow = peers[0].at();
            for (channel, patience) in CHANNELS.into_iter().zip([Duration::ZERO, MOMENT]) {
                let group = settings(&node, channel).group::<[u8]>().expect("a group");
                let mut group = group.when_full(WhenFull::DropAfter(patience));
                let ids = join_all(&mut group, &peers);
                for sequence in 1..=WINDOW {
                    let sent = group.send(&payload::numbered(sequence, 100));
                    assert_eq!(sent.expect("sent"), sequence);
                    // The group waits, so that none of the others is full as well.
                    group.wait_acked(sequence, 2).expect("the others");
                }
                let next = payload::numbered(WINDOW + 1, 100);
                if patience > Duration::ZERO {
                    let full = group.try_send(&next).expect_err("for a moment");
                    assert!(full.kind() == SendErrorKind::Full && full.member() == Some(slow));
                }
                assert_eq!(group.send(&next).expect("sent"), WINDOW + 1);
                let lost = group.next_lost().expect("one");
                assert_eq!((lost.id, lost.peer), (ids[0], slow));
                assert!(lost.reason.full_for().is_some_and(|time| time >= patience));
                assert_eq!((lost.counts.sent, lost.counts.acknowledged), (WINDOW, 0));
                assert!(group.next_lost().is_none(), "told once");
                assert_eq!(group.members().len(), 2);
                group.wait_acked(WINDOW + 1, 2).expect("the others");
                let Err(lost) = group.wait_acked(WINDOW, 3) else {
                    panic!("one was dropped")
                };
                assert_eq!(lost.kind(), WaitErrorKind::NoQuorum, "{lost}");
                assert_eq!(lost.gone(), [slow], "{lost}");
                assert!(group.close().is_empty(), "it was told");
            }
            stage.tell("read");
            stage.hear("read", &node);
        }
        Side::Listener => {
            let mut nodes = member_nodes(stage).into_iter();
            let (node, peer) = nodes.next().expect("three");
            let mut slow = CHANNELS.map(|channel| patient_receiver(&peer, channel));
            let others = nodes.map(|(node, peer)| {
                thread::spawn(move || {
                    let mut channels = CHANNELS.map(|channel| patient_receiver(&peer, channel));
                    for receiver in &mut channels {
                        let mut last = 0;
                        while let Some(message) = receiver.next().expect("an orderly end") {
                            last += 1;
                            payload::check(last, &message);
                            message.ack();
                        }
                        assert_eq!(last, WINDOW + 1);
                    }
                    node
                })
            });
            let others: Vec<_> = others.collect();
            stage.hear("read", &node);
            for receiver in &mut slow {
                // The dropped member gets the messages that it was sent, and learns that more were
                // to come.
                for sequence in 1..=WINDOW {
                    payload::check(sequence, &receiver.recv().expect("it was sent"));
                }
                let Err(error) = receiver.recv() else {
                    panic!("an orderly end")
                };
                let cause = EndCause::PeerClosed(CloseReason::NoRoom);
                assert_eq!(error.cause(), Some(&cause));
                assert_eq!(error.counts().map(|counts| counts.received), Some(WINDOW));
            }
            stage.tell("read");
            for other in others {
                other.join().expect("it ends");
            }
        }
    }
}

/// Tasks wait for room at several members, and for a quorum.
fn group_tasks(stage: &mut Stage) {
    let last = stage.count(500);
    let driver = stage.driver();
    match stage.side {
        Side::Dialer => {
            let (node, peers) = sending_node(stage);
            let mut group = settings(&node, "wal").group::<[u8]>().expect("a group");
            join_all(&mut group, &peers);
            for sequence in 1..=last {
                let bytes = payload::numbered(sequence, (sequence * 37 % 3000) as usize);
                // Most futures are dropped after one poll.
                let polled = task::poll_once(&mut group.send_async(&bytes));
                let sent = match polled {
                    Poll::Ready(sent) => sent,
                    Poll::Pending => task::run(&node, driver, group.send_async(&bytes)),
                };
                assert_eq!(sent.expect("sent"), sequence);
                let _ = task::poll_once(&mut group.wait_acked_async(sequence, 3));
                if sequence % 7 == 0 {
                    let _ = task::poll_once(&mut group.flush_async());
                    task::run(&node, driver, group.flush_async());
                    for member in group.members() {
                        assert!(
                            stage.fabric() == Fabric::Shm || member.counts.received == sequence
                        );
                    }
                }
                if sequence % 10 == 0 {
                    let quorum = (sequence / 10 % 3 + 1) as usize;
                    let acked = task::run(&node, driver, group.wait_acked_async(sequence, quorum));
                    acked.expect("a quorum");
                    assert!(group.acked(quorum) >= sequence);
                }
            }
            assert!(group.close().is_empty(), "nobody was lost");
        }
        Side::Listener => {
            let members = member_nodes(stage).into_iter();
            let members: Vec<_> = members
                .map(|member| acknowledge(member, "wal", 1))
                .collect();
            for member in members {
                assert_eq!(ended_at(member), last);
            }
        }
    }
}

/// A late member is sent the messages that it lacks before it joins, leaves, gets one message
/// alone, and comes back. It gets everything once and in order, and counts for the messages that it
/// got as a member.
fn group_catches_up(stage: &mut Stage) {
    let part = stage.count(300);
    let message = |sequence: u64| payload::numbered(sequence, (sequence * 37 % 3000) as usize);
    match stage.side {
        Side::Dialer => {
            let (node, peers) = sending_node(stage);
            let mut group = settings(&node, "wal").group::<[u8]>().expect("a group");
            join_all(&mut group, &peers[..2]);
            let send = |group: &mut BytesGroup, last: u64| {
                for sequence in group.sent() + 1..=last {
                    assert_eq!(group.send(&message(sequence)).expect("sent"), sequence);
                }
            };
            send(&mut group, part);
            // The late member lacks all messages.
            let alone = peers[2].channel("wal").codec::<Raw>();
            let alone = alone.window_messages(WINDOW).open_timeout(LONG);
            let mut alone = alone.sender::<[u8]>().expect("a sender");
            for sequence in 1..=part {
                assert_eq!(alone.send(&message(sequence)).expect("sent"), sequence);
            }
            let late = group.join_sender(alone).expect("it has no clone");
            let member = group.members().pop().expect("three");
            assert_eq!((member.id, member.peer), (late, peers[2].at()));
            assert_eq!(member.joined_after, part);
            assert_eq!(
                (member.counts.sent, member.counts.acknowledged),
                (part, part)
            );

            send(&mut group, 2 * part);
            group.wait_acked(2 * part, MEMBERS).expect("all three");
            assert_eq!(group.acked(MEMBERS), 2 * part);
            // The late member has all messages, but got the earlier ones before it was a member.
            let Err(lost) = group.wait_acked(part, MEMBERS) else {
                panic!("only two were sent it")
            };
            assert_eq!(lost.kind(), WaitErrorKind::NoQuorum, "{lost}");
            assert_eq!(lost.unable(), [peers[2].at()], "{lost}");

            let mut left = group.leave(late).expect("a member");
            send(&mut group, 3 * part);
            for sequence in 2 * part + 1..=3 * part {
                left.send(&message(sequence)).expect("sent");
            }
            let back = group.join_sender(left).expect("it has no clone");
            assert_ne!(back, late);
            send(&mut group, 4 * part);
            group.wait_acked(4 * part, MEMBERS).expect("all three");
            let member = group.members().pop().expect("three");
            assert_eq!((member.id, member.joined_after), (back, 3 * part));
            assert_eq!(member.counts.acknowledged, 4 * part);
            assert!(group.close().is_empty(), "nobody was lost");
        }
        Side::Listener => {
            let members = member_nodes(stage).into_iter();
            let members: Vec<_> = members
                .map(|member| acknowledge(member, "wal", 1))
                .collect();
            for member in members {
                assert_eq!(ended_at(member), 4 * part);
            }
        }
    }
}

/// `kill -9` of a member: a wait for it ends with an error, and the others continue.
fn group_member_killed(stage: &mut Stage) {
    match stage.side {
        Side::Dialer => {
            let node = stage.builder().build().expect("a node");
            let killed = stage.dial(&node);
            let mut group = settings(&node, "wal").group::<[u8]>().expect("a group");
            group.join(&killed).expect("a member");
            let mut others = Vec::new();
            for _ in 0..2 {
                let builder = stage.builder().listen("127.0.0.1:0");
                let member = builder.build().expect("a node");
                let address = member.local_addr().expect("it listens");
                let accepting = thread::spawn(move || {
                    let peer = member.accept().expect("the sender");
                    (member, peer)
                });
                group
                    .join(&node.connect(address).expect("a session"))
                    .expect("a member");
                let member = accepting.join().expect("a session");
                others.push(acknowledge(member, "wal", 1));
            }
            for sequence in 1..=WINDOW {
                group.send(&payload::numbered(sequence, 100)).expect("sent");
                group.wait_acked(sequence, 2).expect("the others");
            }
            stage.kill_other();
            // The killed member's window is full, so the send waits for it and learns of its end.
            for sequence in WINDOW + 1..=4 * WINDOW {
                let sent = group.send(&payload::numbered(sequence, 100));
                assert_eq!(sent.expect("sent"), sequence);
            }
            group.wait_acked(4 * WINDOW, 2).expect("the others");
            let lost = group.next_lost().expect("the killed one");
            assert_eq!(lost.peer, killed.at());
            assert_eq!(lost.counts.sent, WINDOW, "{lost}");
            let cause = lost.reason.cause();
            assert!(matches!(cause, Some(EndCause::PeerGone { .. })), "{lost}");
            let Err(lost) = group.wait_acked(WINDOW, 3) else {
                panic!("one is gone")
            };
            assert_eq!(lost.kind(), WaitErrorKind::NoQuorum, "{lost}");
            assert_eq!(lost.gone(), [killed.at()], "{lost}");
            assert_eq!(lost.acknowledged().len(), 2, "{lost}");
            assert!(group.close().is_empty(), "it was told");
            // All nodes of this process end at the same time, since a caller answers a goodbye only
            // while its own node closes.
            thread::scope(|scope| {
                for other in others {
                    scope.spawn(|| assert_eq!(ended_at(other), 4 * WINDOW));
                }
                drop(node);
            });
        }
        Side::Listener => {
            let node = stage.listen();
            let peer = node.accept().expect("the sender");
            let mut receiver = receiver(&peer, "wal");
            let mut held = Vec::new();
            // The member holds every message until it is killed.
            while let Ok(message) = receiver.recv() {
                held.push(message);
            }
            panic!("it was to be killed");
        }
    }
}
