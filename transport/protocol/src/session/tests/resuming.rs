//! New wires: what each end makes of what the other says that it knows.

mod claims;

use super::peer::*;
use crate::{
    format::{
        control::{Ask, CloseReason, Control, KnownEnd, KnownReceiver, Role},
        counters::Counters,
        frame::FrameKind,
        record::first_position,
    },
    session::{DataPath, PeerMisbehaved, Session, SessionEvent, WireTerms},
};

fn wires() -> WireTerms {
    config().wires
}

/// Breaks the wires and puts the session on new ones. Returns the messages that go over them.
fn break_wires(session: &mut Session) -> Vec<Control> {
    session.suspend();
    assert!(session.outgoing.is_suspended() && !session.is_due());
    assert_eq!(drain(session).1, [], "there are no wires");
    session.resume(wires());
    drain(session).1
}

fn known(end: u32, received_close: bool, receiver: Option<KnownReceiver>) -> Vec<u8> {
    control(&Control::Known {
        end,
        state: KnownEnd {
            received_close,
            receiver,
        },
    })
}

fn resumed(newest_end: u32) -> Vec<u8> {
    control(&Control::Resumed { newest_end })
}

/// A receiver of empty records, `arrived` of them, of which `released` are released.
fn receiver(arrived: u64, released: u64) -> KnownReceiver {
    KnownReceiver {
        arrived,
        arrived_position: first_position(ALIGNMENT) + 8 * arrived,
        counters: Counters {
            received: arrived,
            ..counters(released)
        },
    }
}

/// A sending end that has sent three records.
fn sent_three() -> Session {
    let mut session = sending();
    publish(&mut session, 3);
    drain(&mut session);
    session
}

#[test]
fn an_open_that_was_lost_is_sent_again() {
    let mut session = Session::new(config());
    session.open(Role::Sender, "wal", spec()).unwrap();
    drain(&mut session);
    let list = break_wires(&mut session);
    assert_eq!(list, [Control::Resumed { newest_end: 0 }]);
    session.open(Role::Receiver, "late", spec()).unwrap();
    deliver(&mut session, &resumed(0)).unwrap();
    let (events, said) = drain(&mut session);
    assert_eq!(events, [SessionEvent::Resumed { replayed: 0 }]);
    assert!(
        matches!(
            said[..],
            [Control::Open { end: 1, .. }, Control::Open { end: 2, .. }]
        ),
        "{said:?}"
    );
}

#[test]
fn messages_that_did_not_arrive_are_replayed() {
    let mut session = sent_three();
    let list = break_wires(&mut session);
    let theirs = Control::Known {
        end: PEER,
        state: KnownEnd {
            received_close: false,
            receiver: None,
        },
    };
    assert_eq!(list, [theirs, Control::Resumed { newest_end: PEER }]);
    deliver(&mut session, &known(1, false, Some(receiver(1, 1)))).unwrap();
    deliver(&mut session, &resumed(1)).unwrap();
    let (events, _) = drain(&mut session);
    let replay = SessionEvent::Replay {
        end: 1,
        received: 1,
        position: first_position(ALIGNMENT) + 8,
    };
    assert!(events.contains(&replay), "{events:?}");
    assert_eq!(events.last(), Some(&SessionEvent::Resumed { replayed: 2 }));
}

/// The damage is reported ahead of the list, so that it is known when the session goes on.
#[test]
fn damage_is_told_over_new_wires_and_over_no_others() {
    let mut session = sent_three();
    session.outgoing.found_damage();
    session.outgoing.found_damage();
    for _ in 0..2 {
        let list = break_wires(&mut session);
        assert_eq!(list[0], Control::Damaged { times: 2 });
    }
    let damaged = control(&Control::Damaged { times: 7 });
    deliver(&mut session, &damaged).unwrap();
    let (events, _) = drain(&mut session);
    assert!(
        events.contains(&SessionEvent::Damaged { times: 7 }),
        "{events:?}"
    );
    deliver(&mut session, &known(1, false, Some(receiver(3, 0)))).unwrap();
    deliver(&mut session, &resumed(1)).unwrap();
    drain(&mut session);
    assert_eq!(
        deliver(&mut session, &damaged),
        Err(PeerMisbehaved::NotResuming)
    );
}

/// Parts of large messages are none: they begin anew.
#[test]
fn progress_counts_messages_the_other_end_is_known_to_have() {
    let mut session = sent_three();
    let before = session.progress();
    assert!(session.ends.is_under_way());
    break_wires(&mut session);
    deliver(&mut session, &known(1, false, Some(receiver(0, 0)))).unwrap();
    deliver(&mut session, &resumed(1)).unwrap();
    assert_eq!(session.progress(), before);
    publish(&mut session, 3);
    drain(&mut session);
    break_wires(&mut session);
    deliver(&mut session, &known(1, false, Some(receiver(1, 0)))).unwrap();
    assert_eq!(session.progress(), before, "it is not heard before the end");
    deliver(&mut session, &resumed(1)).unwrap();
    assert_ne!(session.progress(), before);
}

#[test]
fn only_the_known_list_goes_out_before_the_peer_is_heard() {
    let mut session = sent_three();
    break_wires(&mut session);
    session.ask(1, Ask::received(3));
    session.ends.close_sender(1, 3, CloseReason::Dropped);
    session.outgoing.say_goodbye(None);
    session.ends.mark_ready(1);
    assert_eq!(drain(&mut session).1, []);
    deliver(&mut session, &known(1, false, Some(receiver(3, 0)))).unwrap();
    deliver(&mut session, &resumed(1)).unwrap();
    let (_, said) = drain(&mut session);
    assert!(
        matches!(
            said[..],
            [Control::Close { .. }, Control::Goodbye { reason: None }]
        ),
        "what was asked is answered: {said:?}"
    );
}

#[test]
fn a_question_is_asked_again_until_it_is_answered() {
    let mut session = sent_three();
    session.ask(1, Ask::acknowledged(3));
    drain(&mut session);
    break_wires(&mut session);
    deliver(&mut session, &known(1, false, Some(receiver(3, 0)))).unwrap();
    deliver(&mut session, &resumed(1)).unwrap();
    let asks = Control::Ask {
        channel: 1,
        ask: Ask::acknowledged(3),
    };
    assert_eq!(drain(&mut session).1, [asks]);
}

/// A receiver that drops messages acknowledges none of them, and may yet release them.
#[test]
fn an_ask_is_repeated_after_a_break_unless_releases_answer_it() {
    let mut session = sent_three();
    let ended = |released| KnownReceiver {
        counters: Counters {
            acknowledgement_ended: true,
            ..receiver(3, released).counters
        },
        ..receiver(3, released)
    };
    session.ask(1, Ask::acknowledged(3));
    drain(&mut session);
    for (released, asked) in [(1, 1), (3, 0)] {
        break_wires(&mut session);
        deliver(&mut session, &known(1, false, Some(ended(released)))).unwrap();
        deliver(&mut session, &resumed(1)).unwrap();
        let said = drain(&mut session).1;
        let asks = said.iter().filter(|one| matches!(one, Control::Ask { .. }));
        assert_eq!(asks.count(), asked, "{released} are released: {said:?}");
    }
}

#[test]
fn a_lost_close_is_sent_again_and_one_that_was_heard_is_not() {
    for received_close in [false, true] {
        let mut session = sent_three();
        session.ends.close_sender(1, 3, CloseReason::Dropped);
        drain(&mut session);
        break_wires(&mut session);
        // The end may be closed there too, and take no records.
        let arrived = if received_close { 0 } else { 3 };
        deliver(
            &mut session,
            &known(1, received_close, Some(receiver(arrived, 0))),
        )
        .unwrap();
        deliver(&mut session, &resumed(1)).unwrap();
        let (events, said) = drain(&mut session);
        let is_sent = matches!(
            said[..],
            [Control::Close {
                end: 1,
                final_sequence: 3,
                ..
            }]
        );
        assert_eq!(is_sent, !received_close, "{said:?}");
        assert_eq!(events.last(), Some(&SessionEvent::Resumed { replayed: 0 }));
    }
}

/// The end's close was lost, and it received ours: nothing of it is left there.
#[test]
fn an_end_that_the_peer_has_forgotten_is_forgotten() {
    for role in [Role::Sender, Role::Receiver] {
        let mut session = Session::new(config());
        pair(&mut session, role);
        match role {
            Role::Sender => session.ends.close_sender(1, 0, CloseReason::Dropped),
            Role::Receiver => session.close_receiver(1, &counters(0), CloseReason::Dropped),
        }
        drain(&mut session);
        break_wires(&mut session);
        deliver(&mut session, &resumed(1)).unwrap();
        let (events, said) = drain(&mut session);
        assert!(
            events.contains(&SessionEvent::Forgotten { end: 1 }),
            "{events:?}"
        );
        assert_eq!(said, []);
        assert_eq!(
            (session.footprint().ends, session.footprint().peer_ends),
            (0, 0)
        );
    }
}

/// The peer may not have learned of our end: what fits no other is kept until both are closed.
#[test]
fn a_mismatch_survives_its_wires() {
    let mut session = Session::new(config());
    let mut unfit = spec();
    unfit.newest.fingerprint = [9; 16];
    session.open(Role::Receiver, "wal", spec()).unwrap();
    session.close_receiver(1, &counters(0), CloseReason::Dropped);
    deliver(&mut session, &open_with(PEER, Role::Sender, "wal", unfit)).unwrap();
    drain(&mut session);
    let list = break_wires(&mut session);
    assert!(matches!(list[0], Control::Known { end: PEER, .. }));
    deliver(&mut session, &resumed(0)).unwrap();
    let (_, said) = drain(&mut session);
    assert!(
        matches!(said[..], [Control::Open { .. }, Control::Close { .. }]),
        "{said:?}"
    );
    deliver(&mut session, &close(Role::Sender, 0)).unwrap();
    assert_eq!(drain(&mut session).0, [SessionEvent::Forgotten { end: 1 }]);
}

#[test]
fn a_large_message_that_was_cut_begins_anew() {
    // At the receiver: the grant is sent again, and the chunks are taken from the first one.
    let mut session = announced();
    session.grant(1, 1, 100);
    drain(&mut session);
    deliver(&mut session, &chunk(1, 60)).unwrap();
    let list = break_wires(&mut session);
    let Control::Known { state, .. } = &list[0] else {
        panic!("{list:?}");
    };
    let known = state.receiver.expect("it is known how far it came");
    assert_eq!((known.arrived, known.counters.received), (1, 0));
    deliver(&mut session, &super::resuming::known(1, false, None)).unwrap();
    deliver(&mut session, &resumed(1)).unwrap();
    let grant = Control::Grant {
        channel: PEER,
        sequence: 1,
        bytes: 100,
    };
    assert_eq!(drain(&mut session).1, [grant]);
    deliver(&mut session, &ask(Ask::received(1))).unwrap();
    deliver(&mut session, &chunk(1, 100)).unwrap();
    session.handle_large_complete(1);
    assert_eq!(
        notified(&mut session).map(|counters| counters.received),
        Some(1)
    );
}

#[test]
fn a_large_message_that_was_sent_whole_is_kept_until_it_is_received() {
    let mut session = sending();
    session.ends.announce_large(1, 1, 100);
    publish(&mut session, 1);
    let grant = Control::Grant {
        channel: 1,
        sequence: 1,
        bytes: 100,
    };
    deliver(&mut session, &control(&grant)).unwrap();
    publish(&mut session, 0);
    break_wires(&mut session);
    // The message is announced there, and not whole.
    let announced = KnownReceiver {
        counters: counters(0),
        ..receiver(1, 0)
    };
    deliver(&mut session, &known(1, false, Some(announced))).unwrap();
    deliver(&mut session, &resumed(1)).unwrap();
    drain(&mut session);
    deliver(&mut session, &control(&grant)).unwrap();
    assert!(session.is_due(), "it goes out again");
}

#[test]
fn a_goodbye_is_sent_again_after_a_break_and_heard_once() {
    let mut session = Session::new(config());
    session.outgoing.say_goodbye(None);
    assert_eq!(drain(&mut session).1, [Control::Goodbye { reason: None }]);
    deliver(&mut session, &control(&Control::Goodbye { reason: None })).unwrap();
    assert_eq!(
        drain(&mut session).0,
        [SessionEvent::Goodbye { reason: None }]
    );
    break_wires(&mut session);
    deliver(&mut session, &resumed(0)).unwrap();
    deliver(&mut session, &control(&Control::Goodbye { reason: None })).unwrap();
    let (events, said) = drain(&mut session);
    assert_eq!(events, [SessionEvent::Resumed { replayed: 0 }]);
    assert_eq!(said, [Control::Goodbye { reason: None }]);
}

#[test]
fn over_shared_memory_a_resumption_sends_no_counters() {
    let mut session = Session::new(crate::session::SessionConfig {
        data_path: DataPath::Mapped,
        ..config()
    });
    pair(&mut session, Role::Receiver);
    let list = break_wires(&mut session);
    assert!(
        matches!(list[0], Control::Known { state, .. } if state.receiver.is_none()),
        "{list:?}"
    );
}
