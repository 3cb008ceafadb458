//! What a peer may claim to know of our ends over new wires, and what cannot be true.

use proptest::prelude::*;

use super::*;

/// True and false statements of a peer that was sent three records and learned of one.
#[test]
fn lies_about_what_is_known_are_found_out() {
    let wrong = |end| PeerMisbehaved::KnowsWrongly { end };
    let position = |arrived_position| KnownReceiver {
        arrived_position,
        ..receiver(2, 1)
    };
    let first = first_position(ALIGNMENT);
    type Lie = (&'static str, Vec<Vec<u8>>, Option<PeerMisbehaved>);
    let lies: Vec<Lie> = vec![
        (
            "arrived beyond sent",
            vec![
                known(
                    1,
                    false,
                    Some(KnownReceiver {
                        arrived: 4,
                        ..receiver(3, 0)
                    }),
                ),
                resumed(1),
            ],
            Some(wrong(1)),
        ),
        (
            "arrived below received",
            vec![
                known(
                    1,
                    false,
                    Some(KnownReceiver {
                        arrived: 1,
                        ..receiver(2, 0)
                    }),
                ),
                resumed(1),
            ],
            Some(wrong(1)),
        ),
        (
            "counters beyond sent",
            vec![known(1, false, Some(receiver(4, 4))), resumed(1)],
            None,
        ),
        (
            "a position behind all that was sent",
            vec![known(1, false, Some(position(first + 24))), resumed(1)],
            Some(wrong(1)),
        ),
        (
            "a position beyond it",
            vec![known(1, false, Some(position(first + 32))), resumed(1)],
            Some(wrong(1)),
        ),
        (
            "a position before what is released",
            vec![known(1, false, Some(position(first))), resumed(1)],
            Some(wrong(1)),
        ),
        (
            "no word of what came",
            vec![known(1, false, None), resumed(1)],
            Some(wrong(1)),
        ),
        (
            "a close that was not said",
            vec![known(1, true, Some(receiver(3, 0))), resumed(1)],
            Some(wrong(1)),
        ),
        (
            "an end that is not ours",
            vec![known(2, false, None)],
            Some(wrong(2)),
        ),
        (
            "an end twice",
            vec![known(1, false, None), known(1, false, None)],
            Some(wrong(1)),
        ),
        ("an open end forgotten", vec![resumed(1)], Some(wrong(1))),
        (
            "a newest end that is not ours",
            vec![resumed(2)],
            Some(wrong(2)),
        ),
        (
            "that it is all, twice",
            vec![
                known(1, false, Some(receiver(3, 0))),
                resumed(1),
                resumed(1),
            ],
            Some(PeerMisbehaved::NotResuming),
        ),
    ];
    for (what, frames, expected) in lies {
        let mut session = sent_three();
        deliver(&mut session, &notified_by_peer(1, counters(1))).unwrap();
        drain(&mut session);
        break_wires(&mut session);
        let (last, before) = frames.split_last().expect("some frames");
        for frame in before {
            deliver(&mut session, frame).unwrap_or_else(|error| panic!("{what}: {error}"));
        }
        let error = deliver(&mut session, last).expect_err(what);
        if let Some(expected) = expected {
            assert_eq!(error, expected, "{what}");
        }
    }
}

#[test]
fn without_new_wires_there_is_nothing_to_know() {
    for frame in [known(1, false, Some(receiver(3, 0))), resumed(1)] {
        let error = deliver(&mut sent_three(), &frame).unwrap_err();
        assert_eq!(error, PeerMisbehaved::NotResuming);
    }
}

/// The peer claims a receiver for an end of ours that is a receiver itself.
#[test]
fn a_receiving_end_has_no_receiver() {
    let mut session = receiving();
    break_wires(&mut session);
    deliver(&mut session, &known(1, false, Some(receiver(0, 0)))).unwrap();
    let error = deliver(&mut session, &resumed(1)).unwrap_err();
    assert_eq!(error, PeerMisbehaved::KnowsWrongly { end: 1 });
}

proptest! {
    /// Any claim of a peer about what it knows is believed or found out. If it is believed, the
    /// session goes on.
    #[test]
    fn no_list_breaks_a_session(
        said in proptest::collection::vec(
            (1..4_u32, any::<bool>(), proptest::option::of((0..6_u64, 0..64_u64, 0..6_u64, 0..6_u64, 0..64_u64))),
            0..4,
        ),
        newest_end in 0..4_u32,
        is_closed: bool,
    ) {
        let mut session = sent_three();
        if is_closed {
            session.ends.close_sender(1, 3, CloseReason::Dropped);
        }
        session.open(Role::Receiver, "other", spec()).unwrap();
        drain(&mut session);
        break_wires(&mut session);
        for (end, received_close, receiver) in said {
            let receiver = receiver.map(
                |(arrived, arrived_position, received, released, released_position)| KnownReceiver {
                    arrived,
                    arrived_position,
                    counters: Counters { received, released, released_position, ..Counters::default() },
                },
            );
            if deliver(&mut session, &known(end, received_close, receiver)).is_err() {
                return Ok(());
            }
        }
        if deliver(&mut session, &resumed(newest_end)).is_err() {
            return Ok(());
        }
        drain(&mut session);
        publish(&mut session, 1);
        session.suspend();
        session.resume(wires());
        drain(&mut session);
    }

    /// Arbitrary bytes do not break a session either.
    #[test]
    fn no_bytes_break_a_session(
        bodies in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..64), 0..4),
        kinds in proptest::collection::vec(12..14_u8, 4),
    ) {
        let mut session = sent_three();
        break_wires(&mut session);
        for (body, kind) in bodies.iter().zip(kinds) {
            let body: Vec<u8> = std::iter::once(kind).chain(body.iter().copied()).collect();
            if deliver(&mut session, &frame(FrameKind::Control, 0, 0, None, &body)).is_err() {
                return Ok(());
            }
        }
        drain(&mut session);
    }
}
