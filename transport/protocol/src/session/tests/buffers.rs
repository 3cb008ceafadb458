//! A wire of receive buffers: every frame costs one, and changes of credit cost none.

use super::peer::*;
use crate::{
    credit::{reserved_buffer::ReserveOverrun, session::Term},
    format::{
        control::{Ask, CloseReason, Control, Role},
        frame::{Extension, FrameHeader, FrameKind, HEADER_BYTES, TALK},
    },
    framing::Carriage,
    session::*,
};

const CREDIT: u64 = 4;
const BYTES: usize = 4096;

fn over_buffers() -> Session {
    Session::new(SessionConfig {
        wires: WireTerms {
            carriage: Carriage::Buffers { bytes: BYTES },
            our_credit: CREDIT,
            peer_credit: CREDIT,
            ..config().wires
        },
        ..config()
    })
}

/// A frame that says nothing but that `credit` buffers may have been used in all.
fn credit(credit: u64) -> Vec<u8> {
    let extension = Extension {
        counters: None,
        credit: Some(credit),
        answer: None,
        waited: false,
        wants: false,
    };
    frame(FrameKind::Control, 0, u64::from(TALK), Some(extension), b"")
}

/// A mere answer to what was sent up to `number`.
fn answer(number: u16) -> Vec<u8> {
    let extension = Extension {
        answer: Some(number),
        ..Extension::default()
    };
    frame(FrameKind::Control, 0, u64::from(TALK), Some(extension), b"")
}

fn open_as(number: u32) -> Vec<u8> {
    open_with(
        PEER + number,
        Role::Sender,
        &format!("channel {number}"),
        spec(),
    )
}

fn frames_out(session: &mut Session) -> usize {
    let mut ring = Ring::default();
    std::iter::from_fn(|| session.poll_transmit(&mut ring, 0, &mut Vec::new())).count()
}

#[test]
fn without_credit_nothing_goes_out_and_with_it_the_rest_does() {
    let mut session = over_buffers();
    session.open(Role::Sender, "wal", spec()).unwrap();
    for end in 1..=CREDIT as u32 + 1 {
        session.ask(end, Ask::default());
    }
    assert_eq!(frames_out(&mut session), CREDIT as usize);
    assert!(session.is_out_of_credit());
    deliver(&mut session, &credit(2 * CREDIT)).unwrap();
    assert_eq!(frames_out(&mut session), 2);
    assert!(!session.is_out_of_credit());
}

#[test]
fn news_of_credit_go_out_without_credit_once_more_than_half_of_it_is_owed() {
    let mut session = over_buffers();
    for end in 1..=CREDIT as u32 {
        session.ask(end, Ask::default());
    }
    assert_eq!(frames_out(&mut session), CREDIT as usize);
    deliver(&mut session, &open_as(0)).unwrap();
    deliver(&mut session, &open_as(1)).unwrap();
    assert_eq!(frames_out(&mut session), 0, "half is owed");
    deliver(&mut session, &open_as(2)).unwrap();
    assert_eq!(frames_out(&mut session), 1);
    assert_eq!(frames_out(&mut session), 0, "told");
}

#[test]
fn no_news_of_credit_is_sent_before_the_last_is_answered() {
    let mut session = over_buffers();
    session.give(10, Term::Standing);
    assert_eq!(frames_out(&mut session), 1);
    session.recall(1);
    assert_eq!(
        frames_out(&mut session),
        0,
        "the peer's reserved buffer is taken"
    );
    deliver(&mut session, &answer(1)).unwrap();
    assert_eq!(
        frames_out(&mut session),
        1,
        "the recall, and with it the answer"
    );
}

/// A wish that arrives while the session has all the credit that it may have would have no effect.
#[test]
fn a_sender_asks_for_more_credit_with_the_last_it_has() {
    let mut session = over_buffers();
    pair(&mut session, Role::Sender);
    let turn = Control::Recall {
        credit: CREDIT - 1,
        must_ask: true,
    };
    let mut body = Vec::new();
    turn.encode(&mut body);
    let talk = frame(FrameKind::Control, 0, u64::from(TALK), None, &body);
    deliver(&mut session, &talk).unwrap();
    // There are changes of the credit that the peer has.
    session.give(10, Term::Standing);
    let mut ring = Ring([16; 5].into());
    session.ends.mark_ready(1);
    let mut head = Vec::new();
    let mut sent = Vec::new();
    while session.poll_transmit(&mut ring, 0, &mut head).is_some() {
        let header = FrameHeader::parse(&head).unwrap().unwrap();
        let extension = head[HEADER_BYTES..].first_chunk();
        let extension = extension.filter(|_| header.extension).map(Extension::parse);
        let wants = extension.is_some_and(|extension| extension.wants);
        sent.push((header.kind, wants));
        head.clear();
    }
    let records = |wants| (FrameKind::Records, wants);
    assert_eq!(
        sent,
        [
            (FrameKind::Control, false),
            records(false),
            records(false),
            records(true)
        ]
    );
}

/// Records for an end that is gone get no credit, and are not looked at again.
#[test]
fn records_for_an_end_that_is_gone_want_no_credit() {
    for is_ready in [false, true] {
        let mut session = over_buffers();
        pair(&mut session, Role::Sender);
        let mut ring = Ring([16; 9].into());
        session.ends.mark_ready(1);
        while session
            .poll_transmit(&mut ring, 0, &mut Vec::new())
            .is_some()
        {}
        assert!(session.is_out_of_credit());
        deliver(&mut session, &close(Role::Receiver, 0)).unwrap();
        if is_ready {
            assert!(!session.ends.mark_ready(1));
        }
        assert!(!session.is_out_of_credit() && !session.is_due());
        assert_eq!(frames_out(&mut session), 0);
        session.ends.close_sender(1, 9, CloseReason::Dropped);
        assert!(session.is_out_of_credit(), "the close needs some");
    }
}

#[test]
fn a_peer_that_uses_more_buffers_than_it_was_granted_is_refused() {
    let mut session = over_buffers();
    for channel in 0..CREDIT as u32 {
        deliver(&mut session, &open_as(channel)).unwrap();
    }
    let refused = deliver(&mut session, &open_as(CREDIT as u32)).unwrap_err();
    assert!(matches!(refused, PeerMisbehaved::Credit(_)), "{refused}");
}

#[test]
fn talk_beyond_the_reserved_buffers_is_refused() {
    let mut session = over_buffers();
    deliver(&mut session, &credit(CREDIT + 1)).unwrap();
    let refused = deliver(&mut session, &credit(CREDIT + 2)).unwrap_err();
    let overrun = ReserveOverrun::Talk { open: 2, kept: 1 };
    assert_eq!(refused, PeerMisbehaved::Reserve(overrun));
}

#[test]
fn talk_is_answered_and_then_there_may_be_more() {
    let mut session = over_buffers();
    for granted in 1..10 {
        deliver(&mut session, &credit(CREDIT + granted)).unwrap();
        assert_eq!(frames_out(&mut session), 1, "the answer");
    }
}

#[test]
fn reserved_buffers_are_for_credit_alone() {
    let mut session = over_buffers();
    let mut goodbye = Vec::new();
    Control::Goodbye { reason: None }.encode(&mut goodbye);
    let frame = frame(FrameKind::Control, 0, u64::from(TALK), None, &goodbye);
    assert_eq!(deliver(&mut session, &frame), Err(PeerMisbehaved::NoTalk));
}

#[test]
fn an_answer_to_talk_that_was_not_sent_is_refused() {
    let mut session = over_buffers();
    let refused = deliver(&mut session, &answer(1)).unwrap_err();
    assert!(matches!(refused, PeerMisbehaved::Reserve(_)), "{refused}");
}

#[test]
fn a_frame_longer_than_a_buffer_is_refused() {
    let mut session = over_buffers();
    pair(&mut session, Role::Receiver);
    let long = records(1, &[&[1; BYTES]]);
    let refused = deliver(&mut session, &long).unwrap_err();
    assert_eq!(refused, PeerMisbehaved::LongFrame { limit: BYTES });
}
