//! Counters, credit and asks: new, late, repeated, and ahead of what there is.

use super::peer::*;
use crate::session::*;
#[allow(unused_imports, reason = "each test file uses some of them")]
use crate::{
    credit::session::*,
    format::{control::*, frame::*},
    transfer::rendezvous::*,
};

#[test]
fn counters_count_when_they_are_new() {
    let mut session = sending();
    publish(&mut session, 3);
    let mut hear = |released: u64| {
        let changes = Counters {
            received: 3,
            ..counters(released)
        };
        deliver(&mut session, &notified_by_peer(1, changes)).map(|_| drain(&mut session).0)
    };
    let counted = |released| {
        let counters = Counters {
            received: 3,
            ..counters(released)
        };
        Ok(vec![SessionEvent::Counted { end: 1, counters }])
    };
    assert_eq!(hear(2), counted(2));
    assert_eq!(hear(2), Ok(vec![]), "repeated");
    assert_eq!(hear(1), Ok(vec![]), "late");
    assert_eq!(hear(3), counted(3));
    let refused = hear(4).unwrap_err();
    assert!(
        matches!(refused, PeerMisbehaved::Counters { channel: 1, .. }),
        "{refused}"
    );
}

#[test]
fn counters_of_an_end_that_is_gone_are_late_and_harmless() {
    let mut session = sending();
    assert!(deliver(&mut session, &notified_by_peer(9, counters(7))).is_ok());
    assert_eq!(drain(&mut session).0, []);
}

#[test]
fn credit_grows_and_credit_that_shrinks_is_refused() {
    let mut session = Session::new(SessionConfig {
        wires: WireTerms {
            peer_credit: 200,
            ..config().wires
        },
        ..config()
    });
    pair(&mut session, Role::Sender);
    let mut ring = Ring::default();
    let mut sends = |session: &mut Session| {
        ring.0
            .push_back(crate::format::record::record_size(50, ALIGNMENT));
        session.ends.mark_ready(1);
        let sent = session
            .poll_transmit(&mut ring, 0, &mut Vec::new())
            .is_some();
        ring.0.clear();
        sent
    };
    // A frame of 64 + 16 bytes needs room for the longest head.
    assert!(sends(&mut session));
    assert!(
        !sends(&mut session),
        "120 bytes are less than a record and the longest head"
    );
    deliver(&mut session, &granted(200)).unwrap();
    assert!(!sends(&mut session), "repeated");
    deliver(&mut session, &granted(400)).unwrap();
    assert!(sends(&mut session));
    let refused = deliver(&mut session, &granted(399)).unwrap_err();
    assert!(
        matches!(refused, PeerMisbehaved::CreditShrank(_)),
        "{refused}"
    );
}

fn granted(credit: u64) -> Vec<u8> {
    let extension = Extension {
        credit: Some(credit),
        ..Extension::default()
    };
    frame(FrameKind::Control, 0, 0, Some(extension), b"")
}

// ---- Asking --------------------------------------------------------------------------

#[test]
fn an_ask_is_answered_when_it_is_reached() {
    let wants = |received| ask(Ask::received(received));
    let mut session = receiving();
    deliver(&mut session, &records(1, &[b"one", b"two"])).unwrap();
    assert_eq!(notified(&mut session), None, "nobody asked");
    deliver(&mut session, &wants(3)).unwrap();
    assert_eq!(notified(&mut session), None, "the third has not come");
    deliver(&mut session, &records(3, &[b"three"])).unwrap();
    assert_eq!(
        notified(&mut session).map(|counters| counters.received),
        Some(3)
    );
    deliver(&mut session, &wants(3)).unwrap();
    deliver(&mut session, &wants(1)).unwrap();
    assert_eq!(
        notified(&mut session),
        None,
        "repeated and late: the answer is out"
    );
}

#[test]
fn asks_that_wait_to_go_out_go_out_as_one() {
    let mut session = sending();
    publish(&mut session, 100);
    for received in (10..100).rev() {
        session.ask(1, Ask::received(received));
        session.ask(
            1,
            Ask {
                released: received / 2,
                ..Ask::default()
            },
        );
    }
    let nearest = Ask {
        received: 10,
        released: 49,
        acknowledged: 0,
    };
    assert_eq!(drain(&mut session).1, [asks(nearest)]);
}

fn asks(ask: Ask) -> Control {
    Control::Ask { channel: 1, ask }
}

/// Everything is acknowledged up to `acknowledged`, and nothing else is held back.
fn acknowledged(acknowledged: u64) -> Counters {
    Counters {
        acknowledged,
        ..counters(acknowledged)
    }
}

/// A wait for the third message does not wait for the sixth.
#[test]
fn a_nearer_ask_is_answered_before_a_farther_one() {
    for order in [[6, 3], [3, 6]] {
        let mut session = receiving();
        deliver(&mut session, &records(1, &[&b""[..]; 6])).unwrap();
        for target in order {
            deliver(&mut session, &ask(Ask::acknowledged(target))).unwrap();
        }
        for (now, heard) in [(2, None), (3, Some(3)), (5, None), (6, Some(6))] {
            session.released(1, &acknowledged(now));
            let answer = notified(&mut session).map(|notified| notified.acknowledged);
            assert_eq!(answer, heard, "{order:?}: {now} are acknowledged");
        }
    }
}

/// Each answer leads to the next question while the end waits for more, so no waiter between the
/// nearest message and the farthest is left out.
#[test]
fn an_end_asks_on_until_the_farthest_is_answered() {
    let mut session = sending();
    publish(&mut session, 10);
    for target in [10, 7, 5] {
        session.ask(1, Ask::acknowledged(target));
    }
    assert_eq!(drain(&mut session).1, [asks(Ask::acknowledged(5))]);
    for (heard, next) in [
        (4, None),
        (5, Some(6)),
        (7, Some(8)),
        (9, Some(10)),
        (10, None),
    ] {
        deliver(&mut session, &notified_by_peer(1, acknowledged(heard))).unwrap();
        let next: Vec<_> = next
            .map(|next| asks(Ask::acknowledged(next)))
            .into_iter()
            .collect();
        assert_eq!(drain(&mut session).1, next, "{heard} are acknowledged");
    }
    // A lone question leads to no other.
    let mut session = sending();
    publish(&mut session, 10);
    session.ask(1, Ask::acknowledged(10));
    drain(&mut session);
    deliver(&mut session, &notified_by_peer(1, acknowledged(5))).unwrap();
    deliver(&mut session, &notified_by_peer(1, acknowledged(10))).unwrap();
    assert_eq!(drain(&mut session).1, []);
}

/// Behind the goodbye nothing can be asked, so the last question is for all.
#[test]
fn the_last_ask_takes_the_place_of_nearer_ones() {
    let mut session = sending();
    publish(&mut session, 10);
    session.ask(1, Ask::received(5));
    session.ask_last(1, Ask::received(10));
    assert_eq!(drain(&mut session).1, [asks(Ask::received(10))]);
    deliver(&mut session, &notified_by_peer(1, counters(5))).unwrap();
    assert_eq!(drain(&mut session).1, []);
}

/// A caller that looks again and again asks once for each message.
#[test]
fn a_caller_that_looks_repeatedly_asks_once_for_each_message() {
    let mut session = sending();
    publish(&mut session, 10);
    for target in [8, 5, 6, 8, 5] {
        session.ask_once(1, target);
    }
    assert_eq!(drain(&mut session).1, [asks(Ask::acknowledged(5))]);
    session.ask_once(1, 6);
    assert_eq!(drain(&mut session).1, []);
    session.ask_once(1, 4);
    assert_eq!(drain(&mut session).1, [asks(Ask::acknowledged(4))]);
}

/// A peer that has not opened its end cannot note a question.
#[test]
fn an_ask_ahead_of_the_peers_open_is_asked_again() {
    let mut session = Session::new(config());
    session.open(Role::Sender, "wal", spec()).unwrap();
    session.ask(1, Ask::acknowledged(1));
    drain(&mut session);
    deliver(&mut session, &open(PEER, Role::Receiver)).unwrap();
    assert_eq!(drain(&mut session).1, [asks(Ask::acknowledged(1))]);
}

#[test]
fn an_ask_for_an_acknowledgement_reaches_the_application() {
    let mut session = receiving();
    deliver(&mut session, &records(1, &[b"one"])).unwrap();
    deliver(&mut session, &ask(Ask::acknowledged(1))).unwrap();
    assert_eq!(drain(&mut session).0, [SessionEvent::Asked { end: 1 }]);
    assert!(session.ends.is_asked(1));
    session.released(
        1,
        &Counters {
            acknowledgement_ended: true,
            ..counters(1)
        },
    );
    let answer = notified(&mut session).unwrap();
    assert!(answer.acknowledgement_ended && !session.ends.is_asked(1));
    // The close tells everything about an end that is gone here.
    let late = control(&Control::Ask {
        channel: 9,
        ask: Ask::default(),
    });
    assert!(deliver(&mut session, &late).is_ok());
}

/// An end may be reported more often than each half window.
#[test]
fn an_end_tells_of_as_few_messages_as_it_is_asked_to() {
    let mut session = receiving();
    session.ends.tell_every(1, 2);
    for sequence in 1..=2 {
        let one = frame(
            FrameKind::Records,
            PEER,
            sequence,
            None,
            &record(sequence, b""),
        );
        deliver(&mut session, &one).unwrap();
    }
    session.released(1, &counters(1));
    assert_eq!(notified(&mut session), None);
    session.released(1, &counters(2));
    assert_eq!(
        notified(&mut session).map(|notified| notified.released),
        Some(2)
    );
}

/// Changes that no sender waits for must not stand in front of changes that a sender waits for.
#[test]
fn an_ask_overtakes_the_news_of_other_ends() {
    let mut session = receiving();
    let other = 8;
    session.open(Role::Receiver, "other", spec()).unwrap();
    deliver(
        &mut session,
        &open_with(other, Role::Sender, "other", spec()),
    )
    .unwrap();
    drain(&mut session);
    for channel in [PEER, other] {
        let one = frame(FrameKind::Records, channel, 1, None, &record(1, b""));
        deliver(&mut session, &one).unwrap();
    }
    session.released(1, &counters(1));
    session.released(2, &counters(1));
    assert_eq!(
        notified(&mut session),
        None,
        "nobody waits, and half a window is more"
    );
    let asked = Ask {
        released: 1,
        ..Ask::default()
    };
    deliver(
        &mut session,
        &control(&Control::Ask {
            channel: other,
            ask: asked,
        }),
    )
    .unwrap();
    let (events, _) = drain(&mut session);
    assert!(
        matches!(
            events[..],
            [
                SessionEvent::Asked { end: 2 },
                SessionEvent::Notified { end: 2, .. }
            ]
        ),
        "{events:?}"
    );
}
