//! Ends: opened, met, closed and forgotten, in every order.

use super::peer::*;
use crate::session::*;
#[allow(unused_imports, reason = "each test file uses some of them")]
use crate::{
    credit::session::*,
    format::{control::*, frame::*, message_version::*},
    transfer::rendezvous::*,
};

#[test]
fn an_end_is_opened_once() {
    let mut session = receiving();
    let twice = Err(PeerMisbehaved::OpenedTwice { end: PEER });
    assert_eq!(
        deliver(&mut session, &open(PEER, Role::Sender)),
        twice,
        "it is paired"
    );
    deliver(&mut session, &open(8, Role::Sender)).unwrap();
    let twice = Err(PeerMisbehaved::OpenedTwice { end: 8 });
    assert_eq!(
        deliver(&mut session, &open(8, Role::Sender)),
        twice,
        "it waits"
    );
    // The two roles count their ends apart.
    assert!(deliver(&mut session, &open(8, Role::Receiver)).is_ok());
    let again = session.open(Role::Receiver, "wal", spec());
    assert_eq!(again, Err(CannotOpen::AlreadyOpen));
}

#[test]
fn a_name_that_is_given_back_is_opened_again_and_ends_meet_in_their_order() {
    let mut session = receiving();
    session.ends.free_name(1);
    let second = session.open(Role::Receiver, "wal", spec()).unwrap();
    drain(&mut session);
    let again = session.open(Role::Receiver, "wal", spec());
    assert_eq!(again, Err(CannotOpen::AlreadyOpen));
    // The peer's second end meets our second, though our first is in use yet.
    deliver(&mut session, &open(8, Role::Sender)).unwrap();
    let opened = session.poll_event();
    assert!(
        matches!(opened, Some(SessionEvent::Opened { end, peer_end: 8, .. }) if end == second),
        "{opened:?}"
    );
    deliver(&mut session, &records(1, &[b"one"])).unwrap();
    // An end that is gone has no name to give back.
    session.ends.free_name(77);
}

#[test]
fn as_many_ends_as_agreed_and_no_more() {
    let mut session = Session::new(config());
    for end in 1..=MAX_CHANNELS as u32 {
        deliver(
            &mut session,
            &open_with(end, Role::Sender, &format!("{end}"), spec()),
        )
        .unwrap();
        // The close of an end that was not opened here frees no room, since that end may still be
        // opened.
        deliver(&mut session, &close_of(end, Role::Sender, 0)).unwrap();
    }
    let limit = MAX_CHANNELS;
    assert_eq!(
        deliver(&mut session, &open(100, Role::Sender)),
        Err(PeerMisbehaved::TooManyChannels { limit })
    );
    for name in 1..=MAX_CHANNELS {
        session
            .open(Role::Receiver, name.to_string(), spec())
            .unwrap();
    }
    let one_more = session.open(Role::Receiver, "wal", spec());
    assert_eq!(one_more, Err(CannotOpen::TooMany { limit }));
}

#[test]
fn a_close_is_believed_once_and_only_behind_the_last_message() {
    let mut session = receiving();
    deliver(&mut session, &records(1, &[b"one", b"two"])).unwrap();
    for last in [0, 1, 3, u64::MAX] {
        let mut session = receiving();
        deliver(&mut session, &records(1, &[b"one", b"two"])).unwrap();
        let refused = Err(PeerMisbehaved::ClosedElsewhere { last, received: 2 });
        assert_eq!(deliver(&mut session, &close(Role::Sender, last)), refused);
    }
    let closed = SessionEvent::PeerClosed {
        end: 1,
        reason: CloseReason::Dropped,
        final_sequence: 2,
    };
    deliver(&mut session, &close(Role::Sender, 2)).unwrap();
    assert_eq!(drain(&mut session).0, [closed]);
    assert!(deliver(&mut session, &close(Role::Sender, 2)).is_ok());
    assert_eq!(drain(&mut session).0, [], "repeated");
    assert!(deliver(&mut session, &close_of(9, Role::Sender, 2)).is_ok());
    assert_eq!(
        drain(&mut session).0,
        [],
        "of an end that is gone, or never was"
    );
}

#[test]
fn a_receiver_that_goes_has_a_last_word() {
    let mut session = receiving();
    deliver(&mut session, &records(1, &[b"", b""])).unwrap();
    session.close_receiver(1, &counters(2), CloseReason::Dropped);
    let (events, sent) = drain(&mut session);
    let [SessionEvent::Notified { end: 1, counters }] = &events[..] else {
        panic!("{events:?}")
    };
    assert_eq!(counters.released, 2);
    assert!(
        matches!(sent[..], [Control::Close { end: 1, .. }]),
        "{sent:?}"
    );
}

#[test]
fn receivers_that_go_at_once_have_their_last_words_with_their_closes() {
    let mut session = receiving();
    for (end, name) in [(8, "second"), (9, "third")] {
        session.open(Role::Receiver, name, spec()).unwrap();
        deliver(&mut session, &open_with(end, Role::Sender, name, spec())).unwrap();
    }
    drain(&mut session);
    for channel in [PEER, 8, 9] {
        let one = frame(FrameKind::Records, channel, 1, None, &record(1, b""));
        deliver(&mut session, &one).unwrap();
    }
    (1..=3).for_each(|end| session.close_receiver(end, &counters(1), CloseReason::Dropped));
    let mut head = Vec::new();
    for end in 1..=3 {
        head.clear();
        let frame = session.poll_transmit(&mut Ring::default(), 0, &mut head);
        assert_eq!(frame, Some(Body::Inline));
        let Some(Control::Close { end: closed, .. }) = control_of(&head) else {
            panic!("{:?}", control_of(&head));
        };
        let Some(SessionEvent::Notified { end: notified, .. }) = session.poll_event() else {
            panic!("end {end} is closed without a word");
        };
        assert_eq!((closed, notified), (end, end));
    }
}

#[test]
fn an_end_that_closes_twice_sends_its_first_reason() {
    let mut session = sending();
    session.ends.close_sender(1, 0, CloseReason::SlotLeaked);
    session.ends.close_sender(1, 0, CloseReason::Dropped);
    let (_, sent) = drain(&mut session);
    let reason = CloseReason::SlotLeaked;
    assert!(
        matches!(sent[..], [Control::Close { end: 1, reason: said, .. }] if said == reason),
        "{sent:?}"
    );
}

#[test]
fn a_close_waits_for_no_grant_of_a_receiver_that_has_gone() {
    let mut session = sending();
    session.ends.announce_large(1, 1, 100);
    publish(&mut session, 1);
    session.ends.close_sender(1, 1, CloseReason::Dropped);
    assert_eq!(drain(&mut session).1, [], "the message has not gone");
    deliver(&mut session, &close(Role::Receiver, 0)).unwrap();
    let (events, sent) = drain(&mut session);
    assert!(
        matches!(sent[..], [Control::Close { end: 1, .. }]),
        "{sent:?}"
    );
    assert_eq!(events.last(), Some(&SessionEvent::Forgotten { end: 1 }));
}

#[test]
fn a_channel_that_never_fitted_counts_no_more_once_the_peer_has_closed_it() {
    // A peer that resumes no sessions forgets its end as soon as its close is out, and may open
    // others in its place, independent of what we do with ours.
    let mut session = Session::new(config());
    let mut unfit = spec();
    unfit.newest.fingerprint = [9; 16];
    session.open(Role::Receiver, "wal", spec()).unwrap();
    deliver(&mut session, &open_with(PEER, Role::Sender, "wal", unfit)).unwrap();
    deliver(&mut session, &close(Role::Sender, 0)).unwrap();
    let held = session.footprint();
    assert_eq!(
        (held.ends, held.peer_ends),
        (1, 0),
        "our handle is still here"
    );
    for end in 0..MAX_CHANNELS as u32 {
        deliver(&mut session, &open(10 + end, Role::Sender)).unwrap();
    }
}

#[test]
fn a_shared_memory_session_says_nothing_of_counters() {
    let mut session = Session::new(SessionConfig {
        data_path: DataPath::Mapped,
        ..config()
    });
    pair(&mut session, Role::Receiver);
    session.released(1, &counters(5));
    session.close_receiver(1, &counters(7), CloseReason::Dropped);
    let (events, sent) = drain(&mut session);
    assert_eq!(events, []);
    assert!(matches!(sent[..], [Control::Close { .. }]));
}

/// Old and new programs, either of them sending and either opening first: both ends come to
/// the same version, or both to none.
#[test]
fn the_newest_version_in_common_is_settled_at_both_ends() {
    let offer = |known: &[(u8, u32)]| {
        let version = |&(number, alignment)| MessageVersion {
            fingerprint: [number; 16],
            schema: String::new(),
            alignment,
        };
        ChannelSpec {
            newest: version(&known[0]),
            older: known[1..].iter().map(version).collect(),
            ..spec()
        }
    };
    let (first, second, third) = ((1, 8), (2, 64), (3, 16));
    for (ours, theirs, expected) in [
        (&[second, first][..], &[first][..], Some(first)),
        (&[second, first], &[second, first], Some(second)),
        (&[third, second], &[second, first], Some(second)),
        (&[third, second], &[first], None),
        // The message type in another build: other padding, so other bytes.
        (&[second, first], &[(2, 8)], None),
    ] {
        for (ours, theirs) in [(ours, theirs), (theirs, ours)] {
            for (role, we_open_first) in [Role::Sender, Role::Receiver]
                .into_iter()
                .flat_map(|role| [(role, true), (role, false)])
            {
                let mut session = Session::new(config());
                let open = open_with(PEER, role.opposite(), "wal", offer(theirs));
                if we_open_first {
                    session.open(role, "wal", offer(ours)).unwrap();
                    deliver(&mut session, &open).unwrap();
                } else {
                    deliver(&mut session, &open).unwrap();
                    session.open(role, "wal", offer(ours)).unwrap();
                }
                let settled = drain(&mut session)
                    .0
                    .into_iter()
                    .find_map(|event| match event {
                        SessionEvent::Opened { agreed, .. } => {
                            Some(Some((agreed.fingerprint[0], agreed.alignment)))
                        }
                        SessionEvent::Mismatched {
                            theirs: notified, ..
                        } => {
                            assert_eq!(
                                notified,
                                Arc::new(offer(theirs)),
                                "all of what the peer knows"
                            );
                            Some(None)
                        }
                        _ => None,
                    });
                assert_eq!(settled, Some(expected), "{ours:?} {role} meets {theirs:?}");
            }
        }
    }
}

/// Every state of an end and everything that can happen to it: the events that follow,
/// the control messages that go out, and how many ends are left.
#[test]
fn the_states_of_an_end() {
    type Step = fn(&mut Session, Role);
    fn peer_opens(session: &mut Session, role: Role) {
        deliver(session, &open(PEER, role.opposite())).unwrap();
    }
    fn peer_opens_unfit(session: &mut Session, role: Role) {
        let mut unfit = spec();
        unfit.newest.fingerprint = [9; 16];
        deliver(session, &open_with(PEER, role.opposite(), "wal", unfit)).unwrap();
    }
    fn peer_closes(session: &mut Session, role: Role) {
        deliver(session, &close(role.opposite(), 0)).unwrap();
    }
    fn we_open(session: &mut Session, role: Role) {
        session.open(role, "wal", spec()).unwrap();
    }
    fn we_close(session: &mut Session, role: Role) {
        match role {
            Role::Sender => session.ends.close_sender(1, 0, CloseReason::Dropped),
            Role::Receiver => session.close_receiver(1, &counters(0), CloseReason::Dropped),
        }
    }
    type Applies = fn(&str) -> bool;
    let may_open: Applies = |state| matches!(state, "absent" | "ours waits" | "ours closed unmet");
    let states: [(&str, &[Step]); 11] = [
        ("absent", &[]),
        ("theirs waits", &[peer_opens]),
        ("theirs closed unmet", &[peer_opens, peer_closes]),
        ("ours waits", &[we_open]),
        ("ours closed unmet", &[we_open, we_close]),
        ("open", &[we_open, peer_opens]),
        ("closed here", &[we_open, peer_opens, we_close]),
        ("closed there", &[we_open, peer_opens, peer_closes]),
        ("mismatched", &[we_open, peer_opens_unfit]),
        (
            "mismatched, closed here",
            &[we_open, peer_opens_unfit, we_close],
        ),
        (
            "mismatched, closed there",
            &[we_open, peer_opens_unfit, peer_closes],
        ),
    ];
    let steps: [(&str, Step, Applies); 5] = [
        ("peer opens", peer_opens, may_open),
        ("peer opens unfit", peer_opens_unfit, may_open),
        ("peer closes", peer_closes, |_| true),
        ("we open", we_open, |state| {
            matches!(state, "absent" | "theirs waits" | "theirs closed unmet")
        }),
        ("we close", we_close, |state| {
            let is_ours = matches!(state, "ours waits" | "open" | "closed there");
            is_ours || matches!(state, "mismatched" | "mismatched, closed there")
        }),
    ];
    let mut table = String::new();
    for (state, before) in states {
        for (name, step, applies) in steps {
            if !applies(state) {
                continue;
            }
            let outcomes = [Role::Sender, Role::Receiver].map(|role| {
                let mut session = Session::new(config());
                for step in before {
                    step(&mut session, role);
                    drain(&mut session);
                }
                step(&mut session, role);
                let (events, sent) = drain(&mut session);
                let events: Vec<String> = events.iter().map(variant).collect();
                let sent: Vec<String> = sent.iter().map(variant).collect();
                let ends = session.footprint().ends;
                format!(
                    "[{}] sends [{}], {ends} ends",
                    events.join(" "),
                    sent.join(" ")
                )
            });
            assert_eq!(
                outcomes[0], outcomes[1],
                "{state}, {name}: the roles differ"
            );
            table += &format!("{state} / {name}: {}\n", outcomes[0]);
        }
    }
    assert_eq!(table.trim(), STATES.trim(), "the machine is now:\n{table}");
}

const STATES: &str = "
absent / peer opens: [PeerOpened] sends [], 0 ends
absent / peer opens unfit: [PeerOpened] sends [], 0 ends
absent / peer closes: [] sends [], 0 ends
absent / we open: [] sends [Open], 1 ends
theirs waits / peer closes: [] sends [], 0 ends
theirs waits / we open: [Opened] sends [Open], 1 ends
theirs closed unmet / peer closes: [] sends [], 0 ends
theirs closed unmet / we open: [Opened PeerClosed] sends [Open], 1 ends
ours waits / peer opens: [Opened] sends [], 1 ends
ours waits / peer opens unfit: [Mismatched] sends [], 1 ends
ours waits / peer closes: [] sends [], 1 ends
ours waits / we close: [] sends [Close], 1 ends
ours closed unmet / peer opens: [Opened] sends [], 1 ends
ours closed unmet / peer opens unfit: [Mismatched] sends [], 1 ends
ours closed unmet / peer closes: [] sends [], 1 ends
open / peer closes: [PeerClosed] sends [], 1 ends
open / we close: [] sends [Close], 1 ends
closed here / peer closes: [PeerClosed Forgotten] sends [], 0 ends
closed there / peer closes: [] sends [], 1 ends
closed there / we close: [Forgotten] sends [Close], 0 ends
mismatched / peer closes: [] sends [], 1 ends
mismatched / we close: [] sends [Close], 1 ends
mismatched, closed here / peer closes: [Forgotten] sends [], 0 ends
mismatched, closed there / peer closes: [] sends [], 1 ends
mismatched, closed there / we close: [Forgotten] sends [Close], 0 ends
";

/// The name of a variant, without what it holds.
fn variant(value: &impl std::fmt::Debug) -> String {
    let text = format!("{value:?}");
    text.split([' ', '{', '('])
        .next()
        .unwrap_or_default()
        .to_owned()
}

#[test]
fn a_name_is_opened_again_while_the_peers_old_end_lives() {
    let mut session = receiving();
    session.close_receiver(1, &counters(0), CloseReason::Dropped);
    drain(&mut session);
    assert_eq!(session.open(Role::Receiver, "wal", spec()), Ok(2));
    // The peer's old sender belongs to the old end, its next one to the next.
    deliver(&mut session, &close(Role::Sender, 0)).unwrap();
    assert_eq!(
        drain(&mut session).0.last(),
        Some(&SessionEvent::Forgotten { end: 1 })
    );
    deliver(&mut session, &open(8, Role::Sender)).unwrap();
    let (events, _) = drain(&mut session);
    assert!(
        matches!(
            events[..],
            [SessionEvent::Opened {
                end: 2,
                peer_end: 8,
                ..
            }]
        ),
        "{events:?}"
    );
}

#[test]
fn ends_meet_in_the_order_in_which_they_were_opened() {
    // Both sides count the opens of a name, so crossing messages pair the same ends.
    let mut session = Session::new(config());
    assert_eq!(session.open(Role::Sender, "wal", spec()), Ok(1));
    session.ends.close_sender(1, 0, CloseReason::Dropped);
    assert_eq!(session.open(Role::Sender, "wal", spec()), Ok(2));
    drain(&mut session);
    for (peer_end, end) in [(7, 1), (8, 2)] {
        deliver(&mut session, &open(peer_end, Role::Receiver)).unwrap();
        let (events, _) = drain(&mut session);
        let SessionEvent::Opened { end: opened, .. } = events[0] else {
            panic!("{events:?}")
        };
        assert_eq!(opened, end);
    }
}
