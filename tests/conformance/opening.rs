//! Channels open: from either side, in any order, once, and only if both ends mean the
//! same.

use ibex::{Raw, RecvErrorKind, Role, SendErrorKind};

use crate::common::{
    payload,
    scenario::{Scenario, Side},
    stage::{LONG, MOMENT, Stage, receiver, sender},
    stream::send_all,
};

pub(crate) const SCENARIOS: &[Scenario] = &[
    Scenario::new("senders_opened_first", senders_first),
    Scenario::new("receivers_opened_first", receivers_first),
    Scenario::new("announced_before_accept", announced_early),
    Scenario::new("peer_handle_dropped", peer_handle_dropped),
    Scenario::new("never_opened", never_opened),
    Scenario::new("opened_twice", opened_twice),
    Scenario::new("opened_again", opened_again),
    Scenario::new("different_types", different_types),
    Scenario::new("too_long", too_long),
    Scenario::new("settings_of_two_ends", settings_of_two_ends),
];

/// Both open their sender first and then their receiver, and neither waits for the other.
fn senders_first(stage: &mut Stage) {
    let (_node, peer) = stage.meet();
    let (here, there) = match stage.side {
        Side::Dialer => ("a", "b"),
        Side::Listener => ("b", "a"),
    };
    let mut sender = sender(&peer, here);
    let mut receiver = receiver(&peer, there);
    sender.send(here.as_bytes()).expect("sent");
    let message = receiver.recv().expect("a message");
    assert_eq!(&message[..], there.as_bytes());
    message.ack();
    sender.wait_acked(1).expect("acknowledged");
    sender.close().expect("delivered");
    assert!(receiver.next().expect("an orderly end").is_none());
}

/// The same the other way round.
fn receivers_first(stage: &mut Stage) {
    let (node, peer) = stage.meet();
    let (here, there) = match stage.side {
        Side::Dialer => ("a", "b"),
        Side::Listener => ("b", "a"),
    };
    let mut receiver = receiver(&peer, there);
    stage.rendezvous("receivers are open", &node);
    let mut sender = sender(&peer, here);
    sender.send(here.as_bytes()).expect("sent");
    assert_eq!(&receiver.recv().expect("a message")[..], there.as_bytes());
    sender.close().expect("delivered");
    assert!(receiver.next().expect("an orderly end").is_none());
}

/// What the peer announced is listed until this node opens its own end.
fn announced_early(stage: &mut Stage) {
    let (node, peer) = stage.meet();
    match stage.side {
        Side::Dialer => {
            let mut out = sender(&peer, "out");
            let _back = receiver(&peer, "back");
            stage.tell("announced");
            out.send(b"at last").expect("sent");
            out.wait_acked(1).expect("acknowledged");
            stage.tell("done");
        }
        Side::Listener => {
            stage.hear("announced", &node);
            let announced = loop {
                let incoming = peer.incoming();
                if incoming.len() == 2 {
                    break incoming;
                }
                node.poll();
            };
            let is_announced = |name: &str, end| announced.contains(&(name.to_owned(), end));
            assert!(is_announced("out", Role::Sender));
            assert!(is_announced("back", Role::Receiver));
            let mut out = receiver(&peer, "out");
            let message = out.recv().expect("a message");
            assert_eq!(peer.incoming().len(), 1);
            message.ack();
            stage.hear("done", &node);
        }
    }
}

/// A peer is a handle like any other: without it the channels go on.
fn peer_handle_dropped(stage: &mut Stage) {
    let (_node, peer) = stage.meet();
    match stage.side {
        Side::Dialer => {
            let mut sender = sender(&peer, "orphan");
            drop(peer);
            send_all(&mut sender, 1000, |_| 50);
            sender.wait_acked(1000).expect("acknowledged");
        }
        Side::Listener => {
            let mut receiver = receiver(&peer, "orphan");
            drop(peer);
            for sequence in 1..=1000 {
                let message = receiver.recv().expect("a message");
                payload::check(sequence, &message);
                message.ack();
            }
            assert!(receiver.next().expect("an orderly end").is_none());
        }
    }
}

/// A name that the other side never opens: the first blocking call says so.
fn never_opened(stage: &mut Stage) {
    let (node, peer) = stage.meet();
    if stage.is_dialer() {
        let channel = || peer.channel("nobody's").codec::<Raw>().open_timeout(MOMENT);
        let mut sender = channel().sender::<[u8]>().expect("announced");
        assert!(matches!(
            sender.try_send(b"early"),
            Err(error) if error.kind() == SendErrorKind::NotOpened
        ));
        match sender.send(b"lost") {
            Err(error) if error.kind() == SendErrorKind::NotOpened => {
                let said = error.to_string();
                assert!(
                    said.contains("nobody's") && said.contains("open_timeout"),
                    "{said}"
                );
            }
            other => panic!("nobody opens it: {other:?}"),
        }
        assert_eq!(sender.counts().sent, 0);
        let other = peer
            .channel("nobody's either")
            .codec::<Raw>()
            .open_timeout(MOMENT);
        let mut receiver = other.receiver::<[u8]>().expect("announced");
        let error = receiver.recv().expect_err("nobody opens it");
        assert!(error.kind() == RecvErrorKind::NotOpened, "{error}");
    }
    stage.rendezvous("done", &node);
}

/// The same end cannot be opened twice; the first handle goes on.
fn opened_twice(stage: &mut Stage) {
    let (node, peer) = stage.meet();
    match stage.side {
        Side::Dialer => {
            let mut first = sender(&peer, "twice");
            let refused = peer.channel("twice").codec::<Raw>().sender::<[u8]>();
            let said = refused.expect_err("it is open").to_string();
            assert!(
                said.contains("\"twice\"") && said.contains("already"),
                "{said}"
            );
            first.send(b"still here").expect("sent");
            // The other direction of the same name is another channel.
            let _other = receiver(&peer, "twice");
            stage.hear("done", &node);
        }
        Side::Listener => {
            let mut first = receiver(&peer, "twice");
            assert!(
                peer.channel("twice")
                    .codec::<Raw>()
                    .receiver::<[u8]>()
                    .is_err()
            );
            assert_eq!(&first.recv().expect("a message")[..], b"still here");
            let mut other = sender(&peer, "twice");
            other.opened(LONG).expect("the peer opens");
            stage.tell("done");
        }
    }
}

/// After both ends have ended, the name is free for a new channel.
fn opened_again(stage: &mut Stage) {
    let (node, peer) = stage.meet();
    for round in 0..20 {
        match stage.side {
            Side::Dialer => {
                let mut sender = sender(&peer, "again");
                for sequence in 1..=round + 1 {
                    let bytes = payload::numbered(sequence + round, 100);
                    assert_eq!(
                        sender.send(&bytes).expect("sent"),
                        sequence,
                        "in round {round}"
                    );
                }
                sender.close().expect("delivered");
                // The receiver has seen the end, and its handle is gone.
                stage.hear("ended", &node);
            }
            Side::Listener => {
                let mut receiver = receiver(&peer, "again");
                for sequence in 1..=round + 1 {
                    let message = receiver.recv().expect("a message");
                    assert_eq!(message.sequence(), sequence, "in round {round}");
                    payload::check(sequence + round, &message);
                }
                assert!(receiver.next().expect("an orderly end").is_none());
                drop(receiver);
                stage.tell("ended");
            }
        }
    }
    stage.rendezvous("done", &node);
}

/// The dialer's idea of an entry.
mod here {
    #[ibex::message]
    pub(super) struct Entry {
        pub(super) offset: u64,
        pub(super) data: Vec<u8>,
    }
}

/// The listener's: one field was renamed.
mod there {
    #[ibex::message]
    pub(super) struct Entry {
        pub(super) position: u64,
        pub(super) data: Vec<u8>,
    }
}

/// Types that differ are an error at both ends, which shows both.
fn different_types(stage: &mut Stage) {
    let (node, peer) = stage.meet();
    let said = match stage.side {
        Side::Dialer => {
            let mut sender = peer.sender::<here::Entry>("typed").expect("announced");
            let entry = here::Entry {
                offset: 1,
                data: vec![],
            };
            match sender.send(&entry) {
                Err(error) if error.kind() == SendErrorKind::Mismatch => error.to_string(),
                other => panic!("the types differ: {other:?}"),
            }
        }
        Side::Listener => {
            let mut receiver = peer.receiver::<there::Entry>("typed").expect("announced");
            match receiver.recv() {
                Err(error) if error.kind() == RecvErrorKind::Mismatch => error.to_string(),
                other => panic!("the types differ: {:?}", other.map(|_| ())),
            }
        }
    };
    assert!(
        said.contains("offset") && said.contains("position"),
        "{said}"
    );
    // The session goes on, and so does the name with one type.
    stage.rendezvous("refused", &node);
    match stage.side {
        Side::Dialer => {
            let mut sender = peer.sender::<here::Entry>("another").expect("announced");
            sender
                .send(&here::Entry {
                    offset: 7,
                    data: vec![7],
                })
                .expect("sent");
            sender.wait_acked(1).expect("acknowledged");
        }
        Side::Listener => {
            let mut receiver = peer.receiver::<here::Entry>("another").expect("announced");
            let entry = receiver.recv().expect("an entry");
            assert_eq!((entry.offset.to_native(), &entry.data[..]), (7, &[7][..]));
            entry.ack();
            assert!(receiver.next().expect("an orderly end").is_none());
        }
    }
    // The other idea is never sent.
    let _ = there::Entry {
        position: 0,
        data: vec![],
    };
}

/// A message above the limit is refused with both numbers, and the channel goes on. The
/// lower limit of both ends holds.
fn too_long(stage: &mut Stage) {
    let (node, peer) = stage.meet();
    let channel = peer.channel("limited").codec::<Raw>();
    match stage.side {
        Side::Dialer => {
            let mut sender = channel.sender::<[u8]>().expect("a sender");
            sender.send(&[1; 1000]).expect("at the limit");
            for length in [1001, 100_000, 2 << 20] {
                match sender.send(&vec![0; length]) {
                    Err(told) if told.kind() == SendErrorKind::TooLong => {
                        let told = (told.length(), told.limit());
                        assert_eq!(told, (Some(length as u64), Some(1000)));
                    }
                    other => panic!("{length} bytes are above the limit: {other:?}"),
                }
            }
            assert_eq!(sender.send(&[2; 1000]).expect("the channel goes on"), 2);
            sender.wait_acked(2).expect("acknowledged");
            // Where the length is not known beforehand, encoding finds out.
            let limited = peer.channel("limited entries").max_message_bytes(1000);
            let mut entries = limited.sender::<here::Entry>().expect("a sender");
            let error = entries.send(&here::Entry {
                offset: 0,
                data: vec![0; 5000],
            });
            assert!(
                matches!(&error, Err(told) if told.limit() == Some(1000)),
                "{error:?}"
            );
            entries
                .send(&here::Entry {
                    offset: 0,
                    data: vec![0; 500],
                })
                .expect("sent");
            entries.wait_acked(1).expect("acknowledged");
            stage.tell("done");
        }
        Side::Listener => {
            let mut receiver = channel
                .max_message_bytes(1000)
                .receiver::<[u8]>()
                .expect("a receiver");
            let mut entries = peer
                .receiver::<here::Entry>("limited entries")
                .expect("a receiver");
            for number in 1..=2 {
                let message = receiver.recv().expect("a message");
                assert_eq!(message[..], [number; 1000]);
                message.ack();
            }
            entries.recv().expect("an entry").ack();
            stage.hear("done", &node);
        }
    }
}

/// The smaller window of both ends holds.
fn settings_of_two_ends(stage: &mut Stage) {
    let (node, peer) = stage.meet();
    let channel = peer.channel("windows").codec::<Raw>();
    match stage.side {
        Side::Dialer => {
            let mut sender = channel
                .window_messages(100)
                .sender::<[u8]>()
                .expect("a sender");
            sender.opened(LONG).expect("the peer opens");
            for _ in 0..10 {
                sender.try_send(b"fits").expect("room");
            }
            assert!(matches!(
                sender.try_send(b"too many"),
                Err(error) if error.kind() == SendErrorKind::Full
            ));
            stage.tell("full");
        }
        Side::Listener => {
            let receiver = channel.window_messages(10).receiver::<[u8]>();
            stage.hear("full", &node);
            drop(receiver);
        }
    }
    for messages in [0, (1 << 20) + 1] {
        let refused = peer
            .channel("none")
            .codec::<Raw>()
            .window_messages(messages)
            .sender::<[u8]>();
        let said = refused.expect_err("out of range").to_string();
        assert!(
            said.contains(&messages.to_string()) && said.contains("1048576"),
            "{said}"
        );
    }
}
