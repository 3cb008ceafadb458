//! A wire of receive buffers: every frame costs one, and news of credit cost none.

use super::{super::*, peer::*};
use crate::engine::{
    control::Ask,
    frame::{Extension, FrameKind},
};

const CREDIT: u64 = 4;
const BYTES: usize = 4096;

fn over_buffers() -> Session {
    Session::new(SessionConfig {
        carriage: Carriage::Buffers { bytes: BYTES },
        our_credit: CREDIT,
        peer_credit: CREDIT,
        ..config()
    })
}

/// A frame that says nothing but that `credit` buffers may have been used in all.
fn credit(credit: u64) -> Vec<u8> {
    let extension = Extension {
        counters: None,
        credit: Some(credit),
    };
    frame(FrameKind::Control, 0, 0, Some(extension), b"")
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
fn news_of_credit_go_out_without_credit_once_half_of_it_is_owed() {
    let mut session = over_buffers();
    for end in 1..=CREDIT as u32 {
        session.ask(end, Ask::default());
    }
    assert_eq!(frames_out(&mut session), CREDIT as usize);
    deliver(&mut session, &open_as(0)).unwrap();
    assert_eq!(frames_out(&mut session), 0, "a quarter is owed");
    deliver(&mut session, &open_as(1)).unwrap();
    assert_eq!(frames_out(&mut session), 1);
    assert_eq!(frames_out(&mut session), 0, "told");
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
fn news_of_credit_that_was_not_owed_are_refused() {
    let mut session = over_buffers();
    assert!(deliver(&mut session, &credit(CREDIT + CREDIT / 2)).is_ok());
    let refused = deliver(&mut session, &credit(CREDIT + CREDIT / 2 + 1)).unwrap_err();
    assert_eq!(refused, PeerMisbehaved::IdleCredit);
}

#[test]
fn a_frame_longer_than_a_buffer_is_refused() {
    let mut session = over_buffers();
    pair(&mut session, Role::Receiver);
    let long = records(1, &[&[1; BYTES]]);
    let refused = deliver(&mut session, &long).unwrap_err();
    assert_eq!(refused, PeerMisbehaved::LongFrame { limit: BYTES });
}
