//! A sender for several peers: encoding, refusals, and members that are dropped.

mod counted;

use std::{panic, thread, time::Duration};

use counted::{Counted, Value};

use ibex::{
    CloseReason, Codec, EndCause, Fabric, Node, Peer, Pod, Policy, Raw, Receiver, RecvErrorKind,
    SendErrorKind, WaitErrorKind, group::Group,
};

const LONG: Duration = Duration::from_secs(120);
const MOMENT: Duration = Duration::from_millis(30);

/// A node with peers on both fabrics, as a group may have them.
struct Cast {
    node: Node,
    members: Vec<Member>,
}

struct Member {
    /// The member as the group's node sees it.
    peer: Peer,
    /// The group's node as the member sees it.
    sender: Peer,
    _node: Node,
}

impl Cast {
    fn new(fabrics: &[Fabric]) -> Self {
        let node = Node::client().expect("a node");
        let members = fabrics.iter().map(|&fabric| {
            let builder = Node::builder().fabric(fabric, Policy::Require);
            let member = builder.listen("127.0.0.1:0").build().expect("a node");
            let address = member.local_addr().expect("it listens");
            let peer = node.connect(address).expect("a session");
            let sender = member.accept().expect("a session");
            assert_eq!(peer.fabric(), fabric);
            Member {
                peer,
                sender,
                _node: member,
            }
        });
        let members = members.collect();
        Self { node, members }
    }

    fn mixed() -> Self {
        Self::new(&[Fabric::Shm, Fabric::Tcp, Fabric::Shm])
    }

    /// Creates a group of all members, and their receivers.
    fn group<T: ?Sized, C: Codec<T>>(&self, name: &str) -> (Group<T, C>, Vec<Receiver<T, C>>) {
        let group = self.node.channel(name).codec::<C>().group::<T>();
        let mut group = group.expect("a group");
        let receivers = self.members.iter().map(|member| {
            group.join(&member.peer).expect("a member");
            let channel = member.sender.channel(name).codec::<C>();
            channel.receiver().expect("a receiver")
        });
        let receivers = receivers.collect();
        (group, receivers)
    }
}

/// Receives the next message's bytes at each member.
fn take_each(receivers: &mut [Receiver<[u8], Raw>], sequence: u64) -> Vec<Vec<u8>> {
    let take = |receiver: &mut Receiver<[u8], Raw>| {
        let message = receiver.recv_timeout(LONG).expect("a message");
        assert_eq!(message.sequence(), sequence);
        let bytes = message.to_vec();
        message.ack();
        bytes
    };
    receivers.iter_mut().map(take).collect()
}

#[test]
fn a_message_is_encoded_once_however_many_get_it() {
    let cast = Cast::mixed();
    let (mut known, mut known_ends) = cast.group::<Value, Counted>("known");
    for number in 1..=MESSAGES {
        let value = Value::new(Some(100), number);
        assert_eq!(known.send(&value).expect("sent"), number);
        assert_eq!(value.encodings(), 1);
    }
    let (mut unknown, mut unknown_ends) = cast.group::<Value, Counted>("unknown");
    for number in 1..=MESSAGES {
        // The values are longer and shorter than those before.
        let value = Value::new(None, number);
        assert_eq!(unknown.send(&value).expect("sent"), number);
        assert_eq!(value.encodings(), 1);
    }
    for end in known_ends.iter_mut().chain(&mut unknown_ends) {
        for number in 1..=MESSAGES {
            assert_eq!(*end.recv_timeout(LONG).expect("a message"), number);
        }
    }
}

const MESSAGES: u64 = 100;

/// A record in one member's ring may need its own memory for another, depending on fabric and
/// length.
#[test]
fn long_messages_come_whole_whatever_they_are_carried_in() {
    for cast in [Cast::mixed(), Cast::new(&[Fabric::Tcp, Fabric::Shm])] {
        let (mut group, mut receivers) = cast.group::<[u8], Raw>("bytes");
        let lengths = [10, 200 << 10, 0, 3 << 20, 900 << 10, 7, 5 << 20, 128 << 10];
        for (sequence, length) in (1..).zip(lengths) {
            let message: Vec<u8> = (0..length).map(|at| (at % 251) as u8).collect();
            assert_eq!(group.send(&message).expect("sent"), sequence);
            for taken in take_each(&mut receivers, sequence) {
                assert!(taken == message, "{length} bytes came otherwise");
            }
        }
        group
            .wait_acked(lengths.len() as u64, receivers.len())
            .expect("all");
    }
}

#[test]
fn a_message_that_cannot_be_sent_to_one_member_is_sent_to_none() {
    let cast = Cast::mixed();
    let mut group = cast
        .node
        .channel("bytes")
        .codec::<Raw>()
        .group::<[u8]>()
        .expect("a group");
    let mut receivers: Vec<_> = cast
        .members
        .iter()
        .zip([1 << 20, 1 << 20, 1000])
        .map(|(member, limit)| {
            group.join(&member.peer).expect("a member");
            let channel = member.sender.channel("bytes").codec::<Raw>();
            channel
                .max_message_bytes(limit)
                .receiver()
                .expect("a receiver")
        })
        .collect();
    group.send(&[1; 1000]).expect("sent");
    let narrow = cast.members[2].peer.at();
    for _ in 0..3 {
        let error = group.send(&[2; 1001]).expect_err("above one's limit");
        assert_eq!((error.member(), error.limit()), (Some(narrow), Some(1000)));
        assert!(!error.is_transient());
    }
    assert_eq!(group.send(&[3; 1000]).expect("sent"), 2, "it goes on");
    for (sequence, byte) in [(1, 1), (2, 3)] {
        for taken in take_each(&mut receivers, sequence) {
            assert_eq!(taken, [byte; 1000]);
        }
    }
    assert_eq!(group.members().len(), 3, "nobody is dropped for that");
}

#[test]
fn a_value_that_cannot_be_encoded_leaves_nothing_behind() {
    let cast = Cast::mixed();
    let (mut group, mut ends) = cast.group::<Value, Counted>("values");
    group.send(&Value::new(None, 1)).expect("sent");
    let error = group.send(&Value::refused()).expect_err("refused");
    assert_eq!(error.kind(), SendErrorKind::Encode, "{error}");
    // The longer message has its own memory, and encoding panics into that.
    for length in [100, 3 << 20] {
        let panicked = panic::catch_unwind(panic::AssertUnwindSafe(|| {
            group.send(&Value::panicking(length))
        }));
        assert!(panicked.is_err());
    }
    assert_eq!(group.send(&Value::new(Some(8), 2)).expect("sent"), 2);
    for end in &mut ends {
        for number in [1, 2] {
            assert_eq!(*end.recv_timeout(LONG).expect("a message"), number);
        }
    }
}

#[test]
fn members_that_are_of_no_use_are_dropped_with_a_reason() {
    let cast = Cast::new(&[Fabric::Shm, Fabric::Tcp, Fabric::Tcp, Fabric::Shm]);
    let group = cast
        .node
        .channel("bytes")
        .codec::<Raw>()
        .open_timeout(MOMENT);
    let mut group = group.group::<[u8]>().expect("a group");
    let [well, mismatched, silent, closed] = &cast.members[..] else {
        unreachable!("four")
    };
    let ids = [mismatched, silent, closed, well].map(|member| {
        let id = group.join(&member.peer).expect("a member");
        (id, member.peer.at())
    });
    let not_open = group.try_send(b"nobody is there").expect_err("not open");
    assert!(not_open.kind() == SendErrorKind::NotOpened, "{not_open}");
    let channel = |member: &Member| member.sender.channel("bytes");
    let _numbers: Receiver<u64, Pod> = channel(mismatched).codec().receiver().expect("a receiver");
    let short: Receiver<[u8], Raw> = channel(closed).codec().receiver().expect("a receiver");
    let mut bytes: Receiver<[u8], Raw> = channel(well).codec().receiver().expect("a receiver");
    drop(short);
    // Only the silent member may be late, on any machine: a peer's action on its end arrives before
    // the next end that it opens.
    for member in [well, mismatched, closed] {
        let _next: Receiver<u64, Pod> = member.sender.channel("next").codec().receiver().unwrap();
        let next = member.peer.channel("next").codec::<Pod>();
        let mut next = next.sender::<u64>().expect("a sender");
        next.opened(LONG).expect("it is opened there");
    }
    assert_eq!(group.send(b"to the one").expect("sent"), 1);
    assert_eq!(
        &*bytes.recv_timeout(LONG).expect("a message"),
        b"to the one"
    );

    let mut lost: Vec<_> = std::iter::from_fn(|| group.next_lost()).collect();
    lost.sort_by_key(|lost| lost.id);
    let who: Vec<_> = lost.iter().map(|lost| (lost.id, lost.peer)).collect();
    assert_eq!(who, ids[..3]);
    let [mismatch, not_opened, ended] = &lost[..] else {
        unreachable!("three")
    };
    assert!(
        mismatch.reason.kind() == SendErrorKind::Mismatch,
        "{mismatch}"
    );
    assert!(
        not_opened.reason.kind() == SendErrorKind::NotOpened,
        "{not_opened}"
    );
    assert!(
        ended.reason.kind() == SendErrorKind::Disconnected,
        "{ended}"
    );
    assert_eq!(group.members()[0].peer, ids[3].1);
    // A member that opens its end too late is told why it was dropped.
    let mut late: Receiver<[u8], Raw> = channel(silent).codec().receiver().expect("a receiver");
    let error = late.recv().expect_err("it was dropped");
    let cause = EndCause::PeerClosed(CloseReason::NoRoom);
    assert_eq!(error.cause(), Some(&cause), "{error}");
    drop(cast);
    let error = group.send(b"to nobody").expect_err("the node is closed");
    assert!(error.kind() == SendErrorKind::NoMembers, "{error}");
}

#[test]
fn a_group_that_aborts_is_not_taken_for_one_that_closes_in_order() {
    let cast = Cast::new(&[Fabric::Shm, Fabric::Tcp]);
    for aborts in [true, false] {
        let (mut group, mut receivers) = cast.group::<[u8], Raw>("wal");
        group.send(b"one of many").expect("sent");
        match aborts {
            true => group.abort(),
            false => assert!(group.close().is_empty()),
        }
        for receiver in &mut receivers {
            assert_eq!(&*receiver.recv().expect("a message"), b"one of many");
            match receiver.recv().expect_err("nothing follows") {
                error if error.kind() == RecvErrorKind::Disconnected => {
                    assert!(aborts);
                    let cause = EndCause::PeerClosed(CloseReason::Aborted);
                    assert_eq!(error.cause(), Some(&cause));
                }
                end => assert!(end.kind() == RecvErrorKind::Ended && !aborts, "{end}"),
            }
        }
    }
}

#[test]
fn acknowledgements_of_a_gone_member_still_count() {
    for fabric in [Fabric::Shm, Fabric::Tcp] {
        let cast = Cast::new(&[fabric; 3]);
        let (mut group, mut receivers) = cast.group::<[u8], Raw>("wal");
        for sequence in 1..=4 {
            group.send(&[sequence; 8]).expect("sent");
        }
        let mut late = receivers.pop().expect("three");
        for sequence in 1..=4 {
            take_each(&mut receivers, sequence);
        }
        group.wait_acked(4, 2).expect("two");
        let ids: Vec<_> = group.members().iter().map(|member| member.id).collect();
        // One member leaves, and another's application closes it.
        drop(group.leave(ids[0]).expect("a member"));
        drop(receivers);
        group.wait_acked(4, 2).expect("two had it");
        let lack = group
            .wait_acked_timeout(4, 3, MOMENT)
            .expect_err("the third");
        assert_eq!(lack.kind(), WaitErrorKind::Timeout);
        assert_eq!(lack.channel(), Some("wal"));
        assert_eq!(lack.acknowledged().len(), 2, "{lack}");
        let third = &cast.members[2].peer;
        assert_eq!(lack.able(), [third.at()], "{lack}");
        let named = format!("may come from {} at {}", third.id(), third.address());
        assert!(lack.to_string().contains(&named), "{lack}");
        // Only the third member can still complete the quorum.
        let waiting = thread::spawn(move || {
            group.wait_acked(4, 3).expect("all three");
            group
        });
        for _ in 0..4 {
            late.recv_timeout(LONG).expect("a message").ack();
        }
        let mut group = waiting.join().expect("it does not panic");
        assert_eq!((group.acked(3), group.acked(4)), (4, 0));
        assert_eq!(group.send(b"more").expect("one is left"), 5);
        let Err(lost) = group.wait_acked(5, 2) else {
            panic!("one is left")
        };
        assert_eq!(lost.kind(), WaitErrorKind::NoQuorum, "{lost}");
        assert_eq!(lost.able(), [cast.members[2].peer.at()], "{lost}");
        assert!(lost.gone().is_empty(), "it was not sent to them: {lost}");
    }
}

/// Each member in turn may be the first to acknowledge.
#[test]
fn a_quorum_wakes_up_whoever_waits_for_it() {
    for fabric in [Fabric::Shm, Fabric::Tcp] {
        let cast = Cast::new(&[fabric; 3]);
        let (mut group, mut receivers) = cast.group::<[u8], Raw>("wal");
        for round in 1..=300 {
            group.send(b"an entry").expect("sent");
            let waiting = thread::spawn(move || {
                group.wait_acked_timeout(round, 1, LONG).expect("one");
                group
            });
            if round % 50 == 0 {
                // The pause is long enough for the thread to fall asleep.
                thread::sleep(MOMENT);
            }
            // One member acknowledges first, the others only afterwards.
            let first = (round % 3) as usize;
            let take = |receiver: &mut Receiver<[u8], Raw>| {
                receiver.recv_timeout(LONG).expect("a message").ack();
            };
            take(&mut receivers[first]);
            group = waiting.join().expect("it does not panic");
            for (number, receiver) in receivers.iter_mut().enumerate() {
                if number != first {
                    take(receiver);
                }
            }
        }
    }
}

#[test]
fn dropping_a_group_ends_its_channels_in_order() {
    let cast = Cast::mixed();
    let (mut group, receivers) = cast.group::<[u8], Raw>("wal");
    for _ in 0..10 {
        group.send(b"an entry").expect("sent");
    }
    group.flush_timeout(LONG).expect("delivered");
    drop(group);
    for mut receiver in receivers {
        assert_eq!(receiver.iter().count(), 10);
    }
}

#[test]
#[should_panic(expected = "is a peer of another node than the group's")]
fn a_peer_of_another_node_cannot_join() {
    let (cast, other) = (Cast::mixed(), Cast::mixed());
    let (mut group, _receivers) = cast.group::<[u8], Raw>("wal");
    let _ = group.join(&other.members[0].peer);
}

#[test]
fn a_sender_that_was_cloned_is_given_back() {
    let cast = Cast::new(&[Fabric::Shm]);
    let (mut group, _receivers) = cast.group::<[u8], Raw>("bytes");
    let alone = cast.members[0].peer.channel("alone").codec::<Raw>();
    let alone = alone.sender::<[u8]>().expect("a sender");
    drop(alone.clone());
    let alone = group.join_sender(alone).expect_err("it was cloned");
    assert_eq!((alone.name(), group.members().len()), ("alone", 1));
}

#[test]
fn a_sender_with_a_leaked_reservation_is_dropped_with_that_reason() {
    let cast = Cast::new(&[Fabric::Shm]);
    let (mut group, _receivers) = cast.group::<[u8], Raw>("bytes");
    let here = cast.members[0].sender.channel("alone").codec::<Raw>();
    let _receiver = here.receiver::<[u8]>().expect("a receiver");
    let alone = cast.members[0].peer.channel("alone").codec::<Raw>();
    let mut alone = alone.sender::<[u8]>().expect("a sender");
    std::mem::forget(alone.loan(8).expect("room"));
    group.join_sender(alone).expect("it has no clone");
    group.send(b"to the other").expect("sent");
    let lost = group.next_lost().expect("one");
    assert_eq!(lost.reason.cause(), Some(&EndCause::SlotLeaked), "{lost}");
}

#[test]
fn settings_out_of_range_are_refused() {
    let node = Node::client().expect("a node");
    let group = node.channel("wal").window_messages(0).codec::<Raw>();
    let error = group.group::<[u8]>().expect_err("no window");
    assert!(error.to_string().contains("window_messages"), "{error}");
}
