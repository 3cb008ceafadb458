//! What a session makes of each frame: of one that is due, one that came before, one
//! that comes again and one that comes too early; and of every order of opening and
//! closing. (What two sessions make of each other under faults is the simulated fabric's.)

use super::*;
use crate::engine::frame::FRAME_ALIGNMENT;
use crate::engine::record::{RecordHeader, RecordKind, first_position, record_size};

// ---- Records -------------------------------------------------------------------------

#[test]
fn records_arrive_once_and_in_order() {
    let mut session = receiving();
    assert_eq!(
        deliver(&mut session, &records(1, &[b"one", b"two"])),
        Ok(Arrival::Records {
            end: 1,
            offset: 16,
            bytes: 32,
            first_sequence: 1,
            records: 2
        })
    );
    let next = deliver(&mut session, &records(3, &[b""]));
    assert!(matches!(
        next,
        Ok(Arrival::Records {
            first_sequence: 3,
            records: 1,
            ..
        })
    ));
}

#[test]
fn records_of_the_past_repeated_and_of_the_future_are_refused() {
    for sequence in [1, 2, 4, 100] {
        let mut session = receiving();
        deliver(&mut session, &records(1, &[b"one", b"two"])).unwrap();
        let arrival = deliver(&mut session, &records(sequence, &[b"three"]));
        let got = sequence as u32;
        assert_eq!(
            arrival,
            Err(PeerMisbehaved::OutOfOrder { expected: 3, got })
        );
    }
    let mut body = record(1, b"one");
    body.extend(record(3, b"three"));
    let gap = deliver(
        &mut receiving(),
        &frame(FrameKind::Records, PEER, 1, None, &body),
    );
    assert_eq!(
        gap,
        Err(PeerMisbehaved::OutOfOrder {
            expected: 2,
            got: 3
        })
    );
}

#[test]
fn records_that_are_none_are_refused() {
    let refused = |body: &[u8]| {
        deliver(
            &mut receiving(),
            &frame(FrameKind::Records, PEER, 1, None, body),
        )
        .unwrap_err()
    };
    assert_eq!(refused(b""), PeerMisbehaved::NoRecords { sequence: 1 });
    assert_eq!(
        refused(&record(1, b"one")[..7]),
        PeerMisbehaved::RecordCut { sequence: 1 }
    );
    assert_eq!(
        refused(&record(1, b"one")[..8]),
        PeerMisbehaved::RecordCut { sequence: 1 }
    );
    assert_eq!(
        refused(&[0; 16]),
        PeerMisbehaved::RecordKind { sequence: 1 }
    );
    assert_eq!(
        refused(&[0xff; 16]),
        PeerMisbehaved::RecordKind { sequence: 1 }
    );
    let limit = LIMIT as u64;
    assert_eq!(
        refused(&record(1, &[0; LIMIT + 1])),
        PeerMisbehaved::TooLong {
            length: limit + 1,
            limit
        }
    );
    let announcement = large(1, limit + 1);
    assert_eq!(
        refused(&announcement),
        PeerMisbehaved::TooLong {
            length: limit + 1,
            limit
        }
    );
    assert_eq!(
        refused(&large(1, 0)),
        PeerMisbehaved::TooLong { length: 0, limit }
    );
}

#[test]
fn the_window_holds_and_one_message_beyond_does_not() {
    let mut session = receiving();
    let window: Vec<&[u8]> = vec![b"x"; WINDOW as usize];
    deliver(&mut session, &records(1, &window)).unwrap();
    assert_eq!(
        deliver(&mut session, &records(WINDOW + 1, &[b"x"])),
        Err(PeerMisbehaved::WindowOverrun {
            arrived: WINDOW + 1,
            released: 0
        })
    );
    // What was released but not told admits nothing, since the sender cannot know of it.
    let mut session = receiving();
    deliver(&mut session, &records(1, &window)).unwrap();
    session.released(1, &counters(WINDOW));
    assert!(deliver(&mut session, &records(WINDOW + 1, &[b"x"])).is_err());

    let mut session = receiving();
    deliver(&mut session, &records(1, &window)).unwrap();
    session.released(1, &counters(WINDOW));
    drain(&mut session);
    assert!(deliver(&mut session, &records(WINDOW + 1, &[b"x"])).is_ok());
}

#[test]
fn credit_holds_and_one_frame_beyond_does_not() {
    let mut session = Session::new(SessionConfig {
        our_credit_bytes: 64,
        ..config()
    });
    pair(&mut session, Role::Receiver);
    deliver(&mut session, &records(1, &[b"one"])).unwrap();
    deliver(&mut session, &records(2, &[b"two"])).unwrap();
    let overrun = CreditOverrun {
        arrived: 96,
        granted: 64,
    };
    assert_eq!(
        deliver(&mut session, &records(3, &[b"x"])),
        Err(PeerMisbehaved::Credit(overrun))
    );
}

#[test]
fn records_for_an_end_that_cannot_take_them() {
    let unknown = Err(PeerMisbehaved::UnknownChannel { channel: PEER });
    let one = records(1, &[b"one"]);
    let mut session = Session::new(config());
    assert_eq!(deliver(&mut session, &one), unknown, "no end is open");
    session.open(Role::Receiver, "wal", spec()).unwrap();
    assert_eq!(
        deliver(&mut session, &one),
        unknown,
        "the peer has not opened its end"
    );

    let mut session = receiving();
    session.close_receiver(1, &counters(0), CloseReason::Dropped);
    assert_eq!(
        deliver(&mut session, &one),
        Ok(Arrival::Unwanted),
        "sent before our close came"
    );

    let mut session = receiving();
    deliver(&mut session, &close(Role::Sender, 0)).unwrap();
    assert_eq!(
        deliver(&mut session, &one),
        unknown,
        "the peer has closed its end"
    );

    let mut session = Session::new(SessionConfig {
        data_in_band: false,
        ..config()
    });
    pair(&mut session, Role::Receiver);
    assert_eq!(deliver(&mut session, &one), Err(PeerMisbehaved::DataInBand));
}

#[test]
fn a_payload_must_land_aligned() {
    let mut session = Session::new(config());
    let spec = ChannelSpec {
        alignment: 64,
        ..spec()
    };
    session.open(Role::Receiver, "wal", spec.clone()).unwrap();
    deliver(&mut session, &open_with(PEER, Role::Sender, "wal", spec)).unwrap();
    let mut body = record(1, b"one");
    body.resize(record_size(3, 64), 0);
    let bytes = frame(FrameKind::Records, PEER, 1, None, &body);
    let header = FrameHeader::parse(&bytes).unwrap().unwrap();
    let misaligned = Err(PeerMisbehaved::Misaligned { alignment: 64 });
    assert_eq!(session.handle_frame(&header, &bytes, 0), misaligned);
    // 40 and the header make 56: the payload begins a line.
    assert!(session.handle_frame(&header, &bytes, 40).is_ok());
}

// ---- Large messages ------------------------------------------------------------------

#[test]
fn a_chunk_arrives_once_it_is_granted() {
    let mut session = receiving();
    assert_eq!(
        deliver(&mut session, &chunk(1, 10)),
        Err(PeerMisbehaved::UngrantedChunk)
    );
    let mut session = announced();
    assert_eq!(
        deliver(&mut session, &chunk(1, 10)),
        Err(PeerMisbehaved::UngrantedChunk)
    );

    let mut session = announced();
    session.grant(1, 1);
    let arrival = |offset, bytes, complete| {
        Ok(Arrival::Chunk {
            end: 1,
            chunk: Chunk {
                sequence: 1,
                offset,
                bytes,
            },
            complete,
        })
    };
    assert_eq!(deliver(&mut session, &chunk(1, 60)), arrival(0, 60, false));
    assert_eq!(deliver(&mut session, &chunk(1, 40)), arrival(60, 40, true));
    session.handle_large_complete(1);
    let again = deliver(&mut session, &chunk(1, 40));
    assert_eq!(
        again,
        Err(PeerMisbehaved::UngrantedChunk),
        "all of it is there"
    );
}

#[test]
fn a_chunk_of_another_message_or_beyond_its_end_is_refused() {
    for bytes in [chunk(2, 10), chunk(1, 101), chunk(1, 0), chunk(0, 10)] {
        let mut session = announced();
        session.grant(1, 1);
        assert_eq!(
            deliver(&mut session, &bytes),
            Err(PeerMisbehaved::UngrantedChunk)
        );
    }
}

#[test]
fn a_large_message_is_received_when_its_last_byte_is_in_place() {
    let mut session = announced();
    session.grant(1, 1);
    deliver(
        &mut session,
        &ask(Ask {
            received: 1,
            ..Ask::default()
        }),
    )
    .unwrap();
    deliver(&mut session, &chunk(1, 100)).unwrap();
    // The chunk's head came, its bytes are on their way: the sender needs them still.
    assert_eq!(told(&mut session), None);
    session.handle_large_complete(1);
    assert_eq!(
        told(&mut session).map(|counters| counters.received),
        Some(1)
    );
}

#[test]
fn two_large_messages_may_be_under_way_and_no_third() {
    let mut session = receiving();
    let body = [large(1, 100), large(2, 100)].concat();
    deliver(
        &mut session,
        &frame(FrameKind::Records, PEER, 1, None, &body),
    )
    .unwrap();
    let third = frame(FrameKind::Records, PEER, 3, None, &large(3, 100));
    assert_eq!(
        deliver(&mut session, &third),
        Err(PeerMisbehaved::TooManyLarge { sequence: 3 })
    );
}

#[test]
fn a_grant_counts_once_and_only_for_what_was_announced() {
    let grant = control(&Control::Grant {
        channel: 1,
        sequence: 1,
    });
    let refused = Err(PeerMisbehaved::UngrantedChunk);
    assert_eq!(
        deliver(&mut sending(), &grant),
        refused,
        "nothing is announced"
    );

    let mut session = sending();
    session.announce_large(1, 1, 100);
    assert_eq!(
        deliver(&mut session, &grant),
        refused,
        "the announcement is not sent"
    );

    let mut session = sending();
    session.announce_large(1, 1, 100);
    publish(&mut session, 1);
    assert_eq!(deliver(&mut session, &grant), Ok(Arrival::Nothing));
    assert_eq!(
        deliver(&mut session, &grant),
        refused,
        "it was granted before"
    );
    // A grant for an end that is gone here was under way when it went.
    let late = control(&Control::Grant {
        channel: 9,
        sequence: 1,
    });
    assert_eq!(deliver(&mut sending(), &late), Ok(Arrival::Nothing));
}

// ---- Counters and credit -------------------------------------------------------------

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
fn credit_grows_and_never_shrinks() {
    let mut session = Session::new(SessionConfig {
        peer_credit_bytes: 200,
        ..config()
    });
    pair(&mut session, Role::Sender);
    let mut ring = Ring::default();
    let mut sent_with = |credit: Option<u64>| {
        if let Some(credit) = credit {
            let extension = Extension {
                counters: None,
                credit: Some(credit),
            };
            deliver(
                &mut session,
                &frame(FrameKind::Control, 0, 0, Some(extension), b""),
            )
            .unwrap();
        }
        ring.0.push_back(record_size(50, ALIGNMENT));
        session.mark_ready(1);
        let sent = session
            .poll_transmit(&mut ring, 0, &mut Vec::new())
            .is_some();
        ring.0.clear();
        sent
    };
    // A frame of 64 + 16 bytes needs room for the longest head.
    assert!(sent_with(None));
    assert!(
        !sent_with(None),
        "120 bytes are less than a record and the longest head"
    );
    assert!(!sent_with(Some(100)), "late");
    assert!(!sent_with(Some(200)), "repeated");
    assert!(sent_with(Some(400)));
}

// ---- Asking --------------------------------------------------------------------------

#[test]
fn an_ask_is_answered_when_it_is_reached() {
    let wants = |received| {
        ask(Ask {
            received,
            ..Ask::default()
        })
    };
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
fn an_ask_for_what_only_the_application_can_do_reaches_it() {
    let mut session = receiving();
    deliver(&mut session, &records(1, &[b"one"])).unwrap();
    deliver(
        &mut session,
        &ask(Ask {
            acknowledged: 1,
            ..Ask::default()
        }),
    )
    .unwrap();
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

// ---- Opening and closing -------------------------------------------------------------

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
fn as_many_ends_as_agreed_and_no_more() {
    let mut session = Session::new(config());
    for end in 1..=MAX_CHANNELS as u32 {
        deliver(
            &mut session,
            &open_with(end, Role::Sender, &format!("{end}"), spec()),
        )
        .unwrap();
        // Closing what nobody here opened gives no room: it may be opened yet.
        deliver(&mut session, &close_of(end, Role::Sender, 0)).unwrap();
    }
    let limit = MAX_CHANNELS;
    assert_eq!(
        deliver(&mut session, &open(100, Role::Sender)),
        Err(PeerMisbehaved::TooManyChannels { limit })
    );
    for name in 1..=MAX_CHANNELS {
        session
            .open(Role::Receiver, &format!("{name}"), spec())
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
    let closed = Event::PeerClosed {
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
fn a_close_waits_for_no_grant_of_a_receiver_that_has_gone() {
    let mut session = sending();
    session.announce_large(1, 1, 100);
    publish(&mut session, 1);
    session.close_sender(1, 1, CloseReason::Dropped);
    assert_eq!(drain(&mut session).1, [], "the message has not gone");
    deliver(&mut session, &close(Role::Receiver, 0)).unwrap();
    let (events, sent) = drain(&mut session);
    assert!(
        matches!(sent[..], [Control::Close { end: 1, .. }]),
        "{sent:?}"
    );
    assert_eq!(events.last(), Some(&Event::Forgotten { end: 1 }));
}

#[test]
fn a_channel_that_never_fitted_is_forgotten_on_both_sides_alone() {
    // The peer forgets its end as soon as its close is out, and may open others in its
    // place, whatever we do with ours.
    let mut session = Session::new(config());
    let unfit = ChannelSpec {
        fingerprint: [9; 16],
        ..spec()
    };
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
        data_in_band: false,
        ..config()
    });
    pair(&mut session, Role::Receiver);
    session.released(1, &counters(5));
    session.close_receiver(1, &counters(7), CloseReason::Dropped);
    let (events, sent) = drain(&mut session);
    assert_eq!(events, []);
    assert!(matches!(sent[..], [Control::Close { .. }]));
}

#[test]
fn goodbye_waits_for_what_was_published() {
    let mut session = sending();
    let mut ring = Ring::default();
    ring.0.push_back(16);
    session.mark_ready(1);
    session.say_goodbye();
    session.close_sender(1, 1, CloseReason::Dropped);
    let mut bodies = Vec::new();
    let mut head = Vec::new();
    while let Some(body) = session.poll_transmit(&mut ring, 0, &mut head) {
        bodies.push((body, std::mem::take(&mut head)));
    }
    let [
        (Body::Records { .. }, _),
        (Body::Inline, close),
        (Body::Inline, goodbye),
    ] = &bodies[..]
    else {
        panic!("{bodies:?}");
    };
    assert!(matches!(
        control_of(close),
        Some(Control::Close {
            final_sequence: 1,
            ..
        })
    ));
    assert_eq!(control_of(goodbye), Some(Control::Goodbye));
    assert!(session.said_goodbye());
    assert_eq!(
        deliver(&mut session, &control(&Control::Goodbye)),
        Ok(Arrival::Nothing)
    );
    assert_eq!(drain(&mut session).0, [Event::Goodbye]);
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
        let unfit = ChannelSpec {
            fingerprint: [9; 16],
            ..spec()
        };
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
            Role::Sender => session.close_sender(1, 0, CloseReason::Dropped),
            Role::Receiver => session.close_receiver(1, &counters(0), CloseReason::Dropped),
        }
    }
    type Applies = fn(&str) -> bool;
    let may_open: Applies = |state| matches!(state, "absent" | "ours waits" | "ours closed unmet");
    let states: [(&str, &[Step]); 9] = [
        ("absent", &[]),
        ("theirs waits", &[peer_opens]),
        ("theirs closed unmet", &[peer_opens, peer_closes]),
        ("ours waits", &[we_open]),
        ("ours closed unmet", &[we_open, we_close]),
        ("open", &[we_open, peer_opens]),
        ("closed here", &[we_open, peer_opens, we_close]),
        ("closed there", &[we_open, peer_opens, peer_closes]),
        ("mismatched", &[we_open, peer_opens_unfit]),
    ];
    let steps: [(&str, Step, Applies); 5] = [
        ("peer opens", peer_opens, may_open),
        ("peer opens unfit", peer_opens_unfit, may_open),
        ("peer closes", peer_closes, |_| true),
        ("we open", we_open, |state| {
            matches!(state, "absent" | "theirs waits" | "theirs closed unmet")
        }),
        ("we close", we_close, |state| {
            matches!(state, "ours waits" | "open" | "closed there" | "mismatched")
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
ours closed unmet / peer opens unfit: [Mismatched Forgotten] sends [], 0 ends
ours closed unmet / peer closes: [] sends [], 1 ends
open / peer closes: [PeerClosed] sends [], 1 ends
open / we close: [] sends [Close], 1 ends
closed here / peer closes: [PeerClosed Forgotten] sends [], 0 ends
closed there / peer closes: [] sends [], 1 ends
closed there / we close: [Forgotten] sends [Close], 0 ends
mismatched / peer closes: [] sends [], 1 ends
mismatched / we close: [Forgotten] sends [Close], 0 ends
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
        Some(&Event::Forgotten { end: 1 })
    );
    deliver(&mut session, &open(8, Role::Sender)).unwrap();
    let (events, _) = drain(&mut session);
    assert!(
        matches!(
            events[..],
            [Event::Opened {
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
    session.close_sender(1, 0, CloseReason::Dropped);
    assert_eq!(session.open(Role::Sender, "wal", spec()), Ok(2));
    drain(&mut session);
    for (peer_end, end) in [(7, 1), (8, 2)] {
        deliver(&mut session, &open(peer_end, Role::Receiver)).unwrap();
        let (events, _) = drain(&mut session);
        let Event::Opened { end: opened, .. } = events[0] else {
            panic!("{events:?}")
        };
        assert_eq!(opened, end);
    }
}

// ---- A peer, byte by byte ------------------------------------------------------------

/// The id that the peer gave its end.
const PEER: u32 = 7;
const ALIGNMENT: usize = 8;
const WINDOW: u64 = 8;
const LIMIT: usize = 500;
const MAX_CHANNELS: usize = 4;

fn config() -> SessionConfig {
    SessionConfig {
        our_credit_bytes: 1 << 20,
        peer_credit_bytes: 1 << 20,
        max_channels: MAX_CHANNELS,
        data_in_band: true,
    }
}

fn spec() -> ChannelSpec {
    ChannelSpec {
        fingerprint: [1; 16],
        schema: "[u8]".into(),
        alignment: ALIGNMENT as u32,
        window: ChannelWindow {
            messages: WINDOW,
            bytes: 1 << 12,
        },
        max_message_bytes: LIMIT as u64,
    }
}

/// A session whose end 1 is paired with the peer's [`PEER`].
fn pair(session: &mut Session, role: Role) {
    session.open(role, "wal", spec()).unwrap();
    deliver(session, &open(PEER, role.opposite())).unwrap();
    drain(session);
}

fn receiving() -> Session {
    let mut session = Session::new(config());
    pair(&mut session, Role::Receiver);
    session
}

fn sending() -> Session {
    let mut session = Session::new(config());
    pair(&mut session, Role::Sender);
    session
}

/// A receiving end with message 1 of 100 bytes announced.
fn announced() -> Session {
    let mut session = receiving();
    deliver(
        &mut session,
        &frame(FrameKind::Records, PEER, 1, None, &large(1, 100)),
    )
    .unwrap();
    session
}

fn deliver(session: &mut Session, bytes: &[u8]) -> Result<Arrival, PeerMisbehaved> {
    let header = FrameHeader::parse(bytes).unwrap().unwrap();
    let whole = match header.kind {
        FrameKind::Chunk => header.body_offset(),
        _ => header.length as usize,
    };
    session.handle_frame(&header, &bytes[..whole], 0)
}

/// All events, and all control messages that go out.
fn drain(session: &mut Session) -> (Vec<Event>, Vec<Control>) {
    let mut sent = Vec::new();
    let mut head = Vec::new();
    while session
        .poll_transmit(&mut Ring::default(), 0, &mut head)
        .is_some()
    {
        sent.extend(control_of(&head));
        head.clear();
    }
    (std::iter::from_fn(|| session.poll_event()).collect(), sent)
}

/// What the sender hears of end 1 without anything else going out.
fn told(session: &mut Session) -> Option<Counters> {
    let (events, _) = drain(session);
    events.into_iter().find_map(|event| match event {
        Event::Told { counters, .. } => Some(counters),
        _ => None,
    })
}

/// Puts the next `count` empty records of end 1 on the wire.
fn publish(session: &mut Session, count: usize) {
    let mut ring = Ring(VecDeque::from(vec![record_size(0, ALIGNMENT); count]));
    session.mark_ready(1);
    while session
        .poll_transmit(&mut ring, 0, &mut Vec::new())
        .is_some()
    {}
}

/// A ring of one end: the sizes of its records.
#[derive(Default)]
struct Ring(VecDeque<usize>);

impl RecordSource for Ring {
    fn take_run(&mut self, _: u32, batch: usize, single: usize) -> Option<Run> {
        let bytes = self
            .0
            .front()
            .copied()
            .filter(|&bytes| bytes <= batch.max(single))?;
        self.0.pop_front();
        Some(Run {
            position: 0,
            bytes,
            records: 1,
        })
    }

    fn has_records(&mut self, _: u32) -> bool {
        !self.0.is_empty()
    }
}

/// Everything released and acknowledged up to `released` records of 8 bytes.
fn counters(released: u64) -> Counters {
    Counters {
        received: released,
        released,
        released_position: first_position(ALIGNMENT) + 8 * released,
        acknowledged: 0,
        acknowledgement_ended: false,
    }
}

fn frame(
    kind: FrameKind,
    channel: u32,
    sequence: u64,
    extension: Option<Extension>,
    body: &[u8],
) -> Vec<u8> {
    let has_extension = extension.is_some();
    let length = HEADER_BYTES + if has_extension { EXTENSION_BYTES } else { 0 } + body.len();
    let header = FrameHeader {
        length: length as u32,
        channel,
        kind,
        extension: has_extension,
        pad: 0,
        sequence: sequence as u32,
    };
    let mut bytes = header.to_bytes().to_vec();
    bytes.extend(extension.iter().flat_map(Extension::to_bytes));
    bytes.extend_from_slice(body);
    bytes.resize(bytes.len().next_multiple_of(FRAME_ALIGNMENT), 0);
    bytes
}

fn record(sequence: u64, payload: &[u8]) -> Vec<u8> {
    record_of(RecordKind::Data, sequence, payload)
}

fn large(sequence: u64, length: u64) -> Vec<u8> {
    record_of(RecordKind::Large, sequence, &length.to_le_bytes())
}

fn record_of(kind: RecordKind, sequence: u64, payload: &[u8]) -> Vec<u8> {
    let header = RecordHeader {
        kind,
        length: payload.len() as u32,
        sequence_low: sequence as u32,
    };
    let mut bytes = header.to_word().to_le_bytes().to_vec();
    bytes.extend_from_slice(payload);
    bytes.resize(record_size(payload.len(), ALIGNMENT), 0);
    bytes
}

fn records(first: u64, payloads: &[&[u8]]) -> Vec<u8> {
    let body: Vec<u8> = (first..)
        .zip(payloads)
        .flat_map(|(sequence, payload)| record(sequence, payload))
        .collect();
    frame(FrameKind::Records, PEER, first, None, &body)
}

fn chunk(sequence: u64, bytes: usize) -> Vec<u8> {
    frame(FrameKind::Chunk, PEER, sequence, None, &vec![0; bytes])
}

fn control(control: &Control) -> Vec<u8> {
    let mut body = Vec::new();
    control.encode(&mut body);
    frame(FrameKind::Control, 0, 0, None, &body)
}

fn control_of(bytes: &[u8]) -> Option<Control> {
    let header = FrameHeader::parse(bytes).unwrap().unwrap();
    let body = &bytes[header.body_offset()..header.length as usize];
    (!body.is_empty()).then(|| Control::decode(body).unwrap())
}

fn open(end: u32, role: Role) -> Vec<u8> {
    open_with(end, role, "wal", spec())
}

fn open_with(end: u32, role: Role, name: &str, spec: ChannelSpec) -> Vec<u8> {
    control(&Control::Open {
        end,
        role,
        name: name.to_owned(),
        spec,
    })
}

fn close(role: Role, final_sequence: u64) -> Vec<u8> {
    close_of(PEER, role, final_sequence)
}

fn close_of(end: u32, role: Role, final_sequence: u64) -> Vec<u8> {
    control(&Control::Close {
        end,
        role,
        reason: CloseReason::Dropped,
        final_sequence,
    })
}

fn ask(ask: Ask) -> Vec<u8> {
    control(&Control::Ask { channel: PEER, ask })
}

fn told_by_peer(channel: u32, counters: Counters) -> Vec<u8> {
    let extension = Extension {
        counters: Some((channel, counters)),
        credit: None,
    };
    frame(FrameKind::Control, 0, 0, Some(extension), b"")
}
