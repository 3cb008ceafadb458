//! The order of talk, and what rides on frames.

use super::*;
use crate::format::frame::FrameKind;

const BYTES: usize = 4096;

fn over_buffers(our_credit: u64, peer_credit: u64) -> SessionCredit {
    let wires = WireTerms {
        carriage: Carriage::Buffers { bytes: BYTES },
        our_credit,
        peer_credit,
        ..WireTerms::STREAM
    };
    SessionCredit::new(wires, true)
}

fn over_a_stream(our_credit: u64, peer_credit: u64) -> SessionCredit {
    let wires = WireTerms {
        our_credit,
        peer_credit,
        ..WireTerms::STREAM
    };
    SessionCredit::new(wires, true)
}

/// Lets the next talk go out.
fn talk(credit: &mut SessionCredit, waits: bool) -> Option<Option<Control>> {
    let talk = credit.next_talk(waits)?;
    credit.take_extension(true, false, talk.is_some());
    credit.talk_went(talk.as_ref());
    Some(talk)
}

fn answer(number: u16) -> Extension {
    Extension {
        answer: Some(number),
        ..Extension::default()
    }
}

#[test]
fn a_recall_is_told_before_a_wish_and_each_once() {
    let mut credit = over_buffers(4, 0);
    credit.granting.recall(4);
    let recall = Control::Recall {
        credit: 4,
        must_ask: true,
    };
    assert_eq!(talk(&mut credit, true), Some(Some(recall)));
    assert_eq!(talk(&mut credit, true), None, "no buffer is free");
    credit.handle_extension(&answer(1)).unwrap();
    let want = Control::Want { granted: 0 };
    assert_eq!(talk(&mut credit, true), Some(Some(want)));
    credit.handle_extension(&answer(2)).unwrap();
    assert_eq!(talk(&mut credit, true), None, "all was said");
}

#[test]
fn talk_that_came_is_answered_without_a_message() {
    let mut credit = over_buffers(4, 4);
    assert_eq!(talk(&mut credit, false), None);
    credit.take_talk(true).unwrap();
    assert!(credit.has_errand() && credit.has_riders());
    assert_eq!(talk(&mut credit, false), Some(None));
    assert!(!credit.has_errand() && !credit.has_riders());
}

#[test]
fn a_wait_rides_on_the_next_frame_unless_credit_has_to_be_asked_for() {
    for (peer_credit, rides) in [(10, true), (0, false)] {
        let mut credit = over_a_stream(10, peer_credit);
        let _ = credit.next_talk(true);
        assert_eq!(credit.has_riders(), rides);
        assert_eq!(credit.take_extension(false, false, true).waited, rides);
        assert!(!credit.has_riders(), "once is enough");
    }
}

#[test]
fn credit_that_came_back_is_granted_once_with_any_frame() {
    let mut credit = over_a_stream(100, 0);
    credit.granting.arrived(60).unwrap();
    assert!(credit.is_change());
    assert_eq!(credit.take_extension(false, false, true).credit, Some(160));
    assert_eq!(credit.take_extension(false, false, true).credit, None);
    assert!(!credit.is_change());
}

#[test]
fn frames_take_no_more_than_was_granted() {
    let mut credit = over_buffers(1, 0);
    let mut frame = FrameHeader::new(FrameKind::Control, 0, 0);
    frame.length = BYTES as u32 + 1;
    let long = Err(PeerMisbehaved::LongFrame { limit: BYTES });
    assert_eq!(credit.take_cost(&frame), long);
    frame.length = BYTES as u32;
    credit.take_cost(&frame).unwrap();
    let overrun = credit.take_cost(&frame);
    assert!(matches!(overrun, Err(PeerMisbehaved::Credit(_))));
}

#[test]
fn a_frame_is_charged_as_it_is_built() {
    let mut credit = over_buffers(0, 2);
    assert_eq!(credit.room(), Some(BYTES));
    let frame = FrameHeader::new(FrameKind::Records, 1, 1);
    let mut head = Vec::new();
    credit.append_head(frame, None, 24, 64, 0, &mut head);
    let header = FrameHeader::parse(&head).unwrap().unwrap();
    assert_eq!(header.length as usize, head.len() + 24);
    assert!(!credit.allows_talk_only());
    credit.append_head(frame, None, 24, 64, 0, &mut head);
    assert!(credit.allows_talk_only() && credit.room().is_none());
}
