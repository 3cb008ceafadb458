//! Large messages that the receiver reads over new wires, and over rails.

use super::*;
use crate::format::{control::KnownEnd, counters::Counters, record::first_position};

#[test]
fn over_new_wires_messages_are_offered_anew() {
    let mut session = offering();
    deliver(&mut session, &taken(1)).unwrap();
    session.suspend();
    assert_eq!(session.ends.poll_offer(), None, "their windows are gone");
    session.resume(WireTerms {
        offers: true,
        ..config().wires
    });
    drain(&mut session);
    let known = Control::Known {
        end: 1,
        state: KnownEnd {
            received_close: false,
            receiver: Some(KnownReceiver {
                arrived: 2,
                arrived_position: first_position(ALIGNMENT) + 2 * 8,
                counters: Counters {
                    received: 1,
                    ..counters(0)
                },
            }),
        },
    };
    deliver(&mut session, &control(&known)).unwrap();
    deliver(&mut session, &control(&Control::Resumed { newest_end: 1 })).unwrap();
    let step = OfferStep::Make {
        end: 1,
        sequence: 2,
    };
    assert_eq!(
        session.ends.poll_offer(),
        Some(step),
        "the first one arrived"
    );
}

#[test]
fn over_new_wires_without_offers_messages_are_granted() {
    let mut session = announced();
    deliver(&mut session, &offer(1, Some(memory(LENGTH)))).unwrap();
    session.read_large(1, 1, LENGTH);
    session.poll_read(&[Lane::Wire]).unwrap();
    drain(&mut session);
    session.suspend();
    session.ends.withdraw_memory();
    session.grant(1, 1, 100);
    session.resume(config().wires);
    drain(&mut session);
    let known = Control::Known {
        end: 1,
        state: KnownEnd {
            received_close: false,
            receiver: None,
        },
    };
    deliver(&mut session, &control(&known)).unwrap();
    deliver(&mut session, &control(&Control::Resumed { newest_end: 1 })).unwrap();
    let (events, said) = drain(&mut session);
    let notified =
        |event: &&SessionEvent| matches!(event, SessionEvent::LargeAnnounced { sequence: 2, .. });
    assert_eq!(events.iter().filter(notified).count(), 1, "{events:?}");
    let granted = Control::Grant {
        channel: PEER,
        sequence: 1,
        bytes: 100,
    };
    assert!(said.contains(&granted), "{said:?}");
}

#[test]
fn an_offer_holds_for_a_rail_as_long_as_it_holds() {
    let mut session = offering();
    assert!(session.offer_rail(1, 1, 2, 9));
    let (_, said) = drain(&mut session);
    let rail = Control::OfferRail {
        channel: 1,
        sequence: 1,
        rail: 2,
        key: 9,
    };
    assert_eq!(said, [rail]);
    deliver(&mut session, &taken(1)).unwrap();
    assert!(!session.offer_rail(1, 1, 1, 9), "it was taken");
    assert!(!session.offer_rail(1, 3, 1, 9), "it was not announced");
    assert_eq!(drain(&mut session).1, []);
}

#[test]
fn a_piece_is_read_over_the_first_lane_that_leads_to_it() {
    let mut session = announced();
    deliver(&mut session, &offer(1, Some(memory(LENGTH)))).unwrap();
    deliver(&mut session, &offer(2, None)).unwrap();
    drain(&mut session);
    assert!(session.read_large(1, 1, LENGTH));
    let lanes = [Lane::Rail(0), Lane::Rail(2), Lane::Wire];
    assert_eq!(session.poll_read(&lanes[..2]), None, "no rail leads there");
    let first = session.poll_read(&lanes).unwrap();
    assert_eq!(
        (first.lane, first.key, first.chunk.offset),
        (Lane::Wire, 7, 0)
    );
    deliver(&mut session, &offered_rail(1, 2, 9)).unwrap();
    let second = session.poll_read(&lanes).unwrap();
    assert_eq!((second.lane, second.key), (Lane::Rail(2), 9));
    assert_eq!(second.chunk.offset, WRITE_BYTES as u64);
    assert_eq!(second.memory, memory(LENGTH), "its address is the same");
}

#[test]
fn the_key_on_a_rail_may_come_late() {
    let mut session = announced();
    deliver(&mut session, &offer(1, None)).unwrap();
    deliver(&mut session, &offer(2, None)).unwrap();
    for sequence in 1..=3 {
        deliver(&mut session, &offered_rail(sequence, 0, 9)).unwrap();
    }
    assert_eq!(session.poll_read(&[Lane::Rail(0)]), None);
    assert!(
        deliver(&mut session, &offered_rail(1, 3, 9)).is_err(),
        "no session has that many rails"
    );
}
