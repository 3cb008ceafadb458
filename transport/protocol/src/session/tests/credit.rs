//! Credit that is lent, recalled, surrendered and asked for, over a stream.

use super::peer::*;
use crate::{
    credit::session::{BadSurrender, Term},
    format::{
        control::Control,
        frame::{Extension, FrameHeader, FrameKind},
    },
    session::*,
};

/// A sending end whose peer granted nothing yet.
fn without_credit() -> Session {
    let mut session = Session::new(SessionConfig {
        wires: WireTerms {
            our_credit: 0,
            peer_credit: 0,
            ..config().wires
        },
        ..config()
    });
    pair(&mut session, Role::Sender);
    session
}

fn control(control: &Control, credit: Option<u64>) -> Vec<u8> {
    let mut body = Vec::new();
    control.encode(&mut body);
    let extension = credit.map(|credit| Extension {
        credit: Some(credit),
        ..Extension::default()
    });
    frame(FrameKind::Control, 0, 0, extension, &body)
}

/// Returns the control messages that go out while a record of `bytes` waits; the record stays if
/// it does not.
fn sent_with(session: &mut Session, ring: &mut Ring) -> Vec<Control> {
    let mut sent = Vec::new();
    let mut head = Vec::new();
    session.ends.mark_ready(1);
    while session.poll_transmit(ring, 0, &mut head).is_some() {
        let header = FrameHeader::parse(&head).unwrap().unwrap();
        if header.kind == FrameKind::Control {
            sent.extend(control_of(&head));
        }
        head.clear();
    }
    sent
}

fn record_of(bytes: usize) -> Ring {
    let mut ring = Ring::default();
    ring.0
        .push_back(crate::format::record::record_size(bytes, ALIGNMENT));
    ring
}

#[test]
fn a_sender_without_credit_asks_once_until_it_is_answered() {
    let mut session = without_credit();
    let mut ring = record_of(50);
    let want = |granted| vec![Control::Want { granted }];
    assert_eq!(sent_with(&mut session, &mut ring), want(0));
    assert_eq!(sent_with(&mut session, &mut ring), []);
    // The peer answers with too little credit, as a turn.
    let turn = |credit| Control::Recall {
        credit,
        must_ask: true,
    };
    deliver(&mut session, &control(&turn(100), Some(100))).unwrap();
    assert_eq!(
        sent_with(&mut session, &mut ring),
        [
            Control::Surrender { credit: 100 },
            Control::Want { granted: 100 }
        ]
    );
    deliver(&mut session, &control(&turn(1100), Some(1100))).unwrap();
    assert_eq!(
        sent_with(&mut session, &mut ring),
        [Control::Surrender { credit: 1012 }],
        "a frame of 80 bytes and its checks were sent"
    );
    assert!(ring.0.is_empty());
}

#[test]
fn a_sender_that_is_lent_some_credit_does_not_ask() {
    let mut session = without_credit();
    deliver(
        &mut session,
        &control(&Control::Want { granted: 0 }, Some(100)),
    )
    .unwrap();
    assert_eq!(sent_with(&mut session, &mut record_of(50)), []);
    assert!(session.is_out_of_credit());
}

#[test]
fn a_wish_that_was_answered_meanwhile_is_no_wish() {
    let mut session = without_credit();
    session.give(1000, Term::Standing);
    drain(&mut session);
    let want = |granted| control(&Control::Want { granted }, None);
    deliver(&mut session, &want(0)).unwrap();
    assert!(!session.credit.take_report().wants);
    deliver(&mut session, &want(1000)).unwrap();
    assert!(session.credit.take_report().wants);
    let refused = deliver(&mut session, &want(1001)).unwrap_err();
    assert_eq!(refused, PeerMisbehaved::WantsUngranted { granted: 1001 });
}

#[test]
fn recalled_credit_comes_back_once_and_only_when_surrendered() {
    let mut session = without_credit();
    session.give(1000, Term::Standing);
    drain(&mut session);
    session.recall(600);
    let (_, sent) = drain(&mut session);
    let (credit, must_ask) = (600, false);
    assert_eq!(sent, [Control::Recall { credit, must_ask }]);
    assert_eq!(session.credit.take_report().returned, 0);
    let surrender = |credit| control(&Control::Surrender { credit }, None);
    for _ in 0..3 {
        deliver(&mut session, &surrender(400)).unwrap();
    }
    assert_eq!(session.credit.take_report().returned, 400);
    assert_eq!(session.credit.lent(), 600);
}

#[test]
fn surrenders_of_credit_that_was_not_recalled_are_refused() {
    for (recalled, surrendered) in [(0, 1), (600, 601), (600, u64::MAX)] {
        let mut session = without_credit();
        session.give(1000, Term::Standing);
        session.recall(recalled);
        drain(&mut session);
        let surrender = Control::Surrender {
            credit: surrendered,
        };
        let refused = deliver(&mut session, &control(&surrender, None)).unwrap_err();
        assert!(
            matches!(
                refused,
                PeerMisbehaved::Surrender(BadSurrender::NotRecalled { .. })
            ),
            "{refused}"
        );
    }
}

#[test]
fn a_recall_that_goes_back_is_refused_and_one_of_everything_is_not() {
    let mut session = without_credit();
    let recall = |credit| {
        let must_ask = true;
        control(&Control::Recall { credit, must_ask }, None)
    };
    deliver(&mut session, &recall(u64::MAX)).unwrap();
    deliver(&mut session, &recall(u64::MAX)).unwrap();
    let refused = deliver(&mut session, &recall(1)).unwrap_err();
    assert!(
        matches!(refused, PeerMisbehaved::CreditShrank(_)),
        "{refused}"
    );
    assert_eq!(sent_with(&mut session, &mut Ring::default()), []);
}
