//! Counters, credit and asks: new, late, repeated, and ahead of what there is.

use super::{super::*, peer::*};
#[allow(unused_imports, reason = "each test file uses some of them")]
use crate::engine::{control::*, frame::*, large::*, session_credit::*};

#[test]
fn counters_count_when_they_are_new() {
    let mut session = sending();
    publish(&mut session, 3);
    let mut hear = |released: u64| {
        let news = Counters {
            received: 3,
            ..counters(released)
        };
        deliver(&mut session, &told_by_peer(1, news)).map(|_| drain(&mut session).0)
    };
    let counted = |released| {
        let counters = Counters {
            received: 3,
            ..counters(released)
        };
        Ok(vec![Event::Counted { end: 1, counters }])
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
    assert!(deliver(&mut session, &told_by_peer(9, counters(7))).is_ok());
    assert_eq!(drain(&mut session).0, []);
}

#[test]
fn credit_grows_and_credit_that_shrinks_is_refused() {
    let mut session = Session::new(SessionConfig {
        peer_credit: 200,
        ..config()
    });
    pair(&mut session, Role::Sender);
    let mut ring = Ring::default();
    let mut sends = |session: &mut Session| {
        ring.0
            .push_back(crate::engine::record::record_size(50, ALIGNMENT));
        session.mark_ready(1);
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
    assert_eq!(told(&mut session), None, "nobody asked");
    deliver(&mut session, &wants(3)).unwrap();
    assert_eq!(told(&mut session), None, "the third has not come");
    deliver(&mut session, &records(3, &[b"three"])).unwrap();
    assert_eq!(
        told(&mut session).map(|counters| counters.received),
        Some(3)
    );
    deliver(&mut session, &wants(3)).unwrap();
    deliver(&mut session, &wants(1)).unwrap();
    assert_eq!(
        told(&mut session),
        None,
        "repeated and late: the answer is out"
    );
}

#[test]
fn asks_that_wait_to_go_out_go_out_as_one() {
    let mut session = sending();
    for received in 1..100 {
        session.ask(1, Ask::received(received));
        session.ask(
            1,
            Ask {
                released: received / 2,
                ..Ask::default()
            },
        );
    }
    let joined = Ask {
        received: 99,
        released: 49,
        acknowledged: 0,
    };
    assert_eq!(
        drain(&mut session).1,
        [Control::Ask {
            channel: 1,
            ask: joined
        }]
    );
}

#[test]
fn an_ask_for_what_only_the_application_can_do_reaches_it() {
    let mut session = receiving();
    deliver(&mut session, &records(1, &[b"one"])).unwrap();
    deliver(&mut session, &ask(Ask::acknowledged(1))).unwrap();
    assert_eq!(drain(&mut session).0, [Event::Asked { end: 1 }]);
    assert!(session.is_asked(1));
    session.released(
        1,
        &Counters {
            acknowledgement_ended: true,
            ..counters(1)
        },
    );
    let answer = told(&mut session).unwrap();
    assert!(answer.acknowledgement_ended && !session.is_asked(1));
    // For an end that is gone here, the close says it all.
    let late = control(&Control::Ask {
        channel: 9,
        ask: Ask::default(),
    });
    assert!(deliver(&mut session, &late).is_ok());
}

/// An end may be told of more often than each half window.
#[test]
fn an_end_tells_of_as_few_messages_as_it_is_asked_to() {
    let mut session = receiving();
    session.tell_every(1, 2);
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
    assert_eq!(told(&mut session), None);
    session.released(1, &counters(2));
    assert_eq!(told(&mut session).map(|told| told.released), Some(2));
}

/// News that nobody waits for must not stand in front of news that someone waits for.
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
        told(&mut session),
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
            [Event::Asked { end: 2 }, Event::Told { end: 2, .. }]
        ),
        "{events:?}"
    );
}
