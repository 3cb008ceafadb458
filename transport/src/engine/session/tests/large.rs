//! Large messages: announced, granted, in chunks, whole.

use super::{super::*, peer::*};
#[allow(unused_imports, reason = "each test file uses some of them")]
use crate::engine::{control::*, frame::*, large::*, session_credit::*};

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
