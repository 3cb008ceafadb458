//! Large messages: announced, granted, in chunks, whole.

use super::peer::*;
use crate::session::*;
#[allow(unused_imports, reason = "each test file uses some of them")]
use crate::{
    credit::session::*,
    format::{
        control::*,
        frame::*,
        record::{LargeAnnouncement, RecordKind},
    },
    transfer::{
        eager_write::{EAGER_BLOCK_BYTES, EagerBlockId},
        rendezvous::*,
    },
};

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
    session.grant(1, 1, 100);
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
        session.grant(1, 1, 100);
        assert_eq!(
            deliver(&mut session, &bytes),
            Err(PeerMisbehaved::UngrantedChunk)
        );
    }
}

#[test]
fn a_message_comes_no_further_than_it_is_granted() {
    let mut session = announced();
    session.grant(1, 1, 60);
    deliver(&mut session, &chunk(1, 50)).unwrap();
    session.grant(1, 1, 80);
    session.grant(1, 1, 80);
    let said = drain(&mut session).1;
    assert_eq!(said.len(), 2, "a grant of no more is not said: {said:?}");
    assert_eq!(
        deliver(&mut session, &chunk(1, 31)),
        Err(PeerMisbehaved::UngrantedChunk)
    );
}

#[test]
fn a_large_message_is_received_when_its_last_byte_is_in_place() {
    let mut session = announced();
    session.grant(1, 1, 100);
    deliver(&mut session, &ask(Ask::received(1))).unwrap();
    deliver(&mut session, &chunk(1, 100)).unwrap();
    // The chunk's head came, its bytes are on their way: the sender needs them still.
    assert_eq!(notified(&mut session), None);
    session.handle_large_complete(1);
    assert_eq!(
        notified(&mut session).map(|counters| counters.received),
        Some(1)
    );
}

/// The sender keeps the three until it learns that they are here, and sends no fourth before.
#[test]
fn messages_are_told_of_when_the_last_one_overtaken_by_a_block_is_complete() {
    let mut session = writing(Role::Receiver);
    let index = session
        .grant_eager_block(1, memory(EAGER_BLOCK_BYTES as u64))
        .unwrap();
    let block = EagerBlockId {
        index,
        generation: 0,
    };
    let landed = LargeAnnouncement::in_eager_block(10, block);
    let body = [
        record(1, b"one"),
        large(2, 100),
        large(3, 100),
        record_of(RecordKind::Large, 4, landed.bytes()),
    ];
    let frame = frame(FrameKind::Records, PEER, 1, None, &body.concat());
    deliver(&mut session, &frame).unwrap();
    session.grant(1, 2, 100);
    session.grant(1, 3, 100);
    // The sender learns of the first message while the block is ahead of two.
    deliver(&mut session, &ask(Ask::received(1))).unwrap();
    let received = |session: &mut Session| notified(session).map(|counters| counters.received);
    assert_eq!(received(&mut session), Some(1));
    let mut heard = 1;
    for sequence in [2, 3] {
        deliver(&mut session, &chunk(sequence, 100)).unwrap();
        session.handle_large_complete(1);
        heard = received(&mut session).unwrap_or(heard);
    }
    assert_eq!(heard, 4);
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
fn a_grant_counts_once_and_only_for_an_announced_message() {
    let grant = control(&Control::Grant {
        channel: 1,
        sequence: 1,
        bytes: 100,
    });
    let refused = Err(PeerMisbehaved::UnwantedGrant { sequence: 1 });
    assert_eq!(
        deliver(&mut sending(), &grant),
        refused,
        "nothing is announced"
    );

    let mut session = sending();
    session.ends.announce_large(1, 1, 100);
    assert_eq!(
        deliver(&mut session, &grant),
        refused,
        "the announcement is not sent"
    );

    let mut session = sending();
    session.ends.announce_large(1, 1, 100);
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
        bytes: 100,
    });
    assert_eq!(deliver(&mut sending(), &late), Ok(Arrival::Nothing));
}

/// A session that agreed on writes.
fn writing(role: Role) -> Session {
    let mut session = Session::new(SessionConfig {
        wires: WireTerms {
            writes: true,
            immediate: true,
            ..config().wires
        },
        ..config()
    });
    pair(&mut session, role);
    session
}

fn memory(bytes: u64) -> RemoteMemory {
    RemoteMemory::new(0x1000, 7, bytes).unwrap()
}

fn memory_grant(bytes: u64) -> Vec<u8> {
    control(&Control::GrantMemory {
        channel: 1,
        sequence: 1,
        memory: memory(bytes),
    })
}

fn written(sequence: u64) -> Vec<u8> {
    frame(FrameKind::Written, PEER, sequence, None, &[])
}

/// A sending end whose message 1 of 100 bytes is announced.
fn announcing() -> Session {
    let mut session = writing(Role::Sender);
    session.ends.announce_large(1, 1, 100);
    publish(&mut session, 1);
    session
}

/// Everything that goes out: the kinds of frames, and the pieces written between them.
fn sent(session: &mut Session) -> Vec<(Option<FrameKind>, Body)> {
    let mut sent = Vec::new();
    let mut head = Vec::new();
    while let Some(body) = session.poll_transmit(&mut Ring::default(), 0, &mut head) {
        let header = FrameHeader::parse(&head).unwrap();
        sent.push((header.map(|header| header.kind), body));
        head.clear();
    }
    sent
}

#[test]
fn a_message_is_whole_when_its_sender_says_that_it_is_written() {
    let mut session = writing(Role::Receiver);
    let announcement = frame(FrameKind::Records, PEER, 1, None, &large(1, 100));
    deliver(&mut session, &announcement).unwrap();
    drain(&mut session);
    session.grant_memory(1, 1, memory(100));
    let (_, said) = drain(&mut session);
    let granted = Control::GrantMemory {
        channel: PEER,
        sequence: 1,
        memory: memory(100),
    };
    assert_eq!(said, [granted]);
    let arrival = Arrival::Written {
        end: 1,
        sequence: 1,
    };
    assert_eq!(deliver(&mut session, &written(1)), Ok(arrival));
    session.handle_large_complete(1);
    assert_eq!(
        deliver(&mut session, &written(1)),
        Err(PeerMisbehaved::UngrantedWrite),
        "it was said before"
    );
}

#[test]
fn a_write_or_chunk_without_such_a_grant_is_refused() {
    let refused = Err(PeerMisbehaved::UngrantedWrite);
    assert_eq!(deliver(&mut announced(), &written(1)), refused, "no grant");
    let mut session = announced();
    session.grant(1, 1, 100);
    assert_eq!(deliver(&mut session, &written(1)), refused, "of chunks");

    let granted = || {
        let mut session = writing(Role::Receiver);
        let announcement = frame(FrameKind::Records, PEER, 1, None, &large(1, 100));
        deliver(&mut session, &announcement).unwrap();
        session.grant_memory(1, 1, memory(100));
        session
    };
    assert_eq!(deliver(&mut granted(), &written(2)), refused, "another");
    let with_body = frame(FrameKind::Written, PEER, 1, None, &[0; 8]);
    assert_eq!(deliver(&mut granted(), &with_body), refused, "with a body");
    assert_eq!(
        deliver(&mut granted(), &chunk(1, 100)),
        Err(PeerMisbehaved::UngrantedChunk),
        "its memory is the device's to fill"
    );
}

#[test]
fn granted_memory_is_written_in_order_and_a_few_pieces_at_a_time() {
    let length = 4 * WRITE_BYTES as u64 + 1;
    let mut session = writing(Role::Sender);
    session.ends.announce_large(1, 1, length);
    publish(&mut session, 1);
    deliver(&mut session, &memory_grant(length)).unwrap();
    let first = sent(&mut session);
    assert_eq!(first.len(), WRITES_UNDER_WAY as usize);
    assert!(sent(&mut session).is_empty() && !session.is_due());
    session.ends.writes_are_done(1);
    assert_eq!(sent(&mut session).len(), 1);
    session.ends.writes_are_done(WRITES_UNDER_WAY);
    let rest = sent(&mut session);
    let (last, said) = (rest[0].1, rest[1]);
    let Body::Write { chunk, .. } = last else {
        panic!("{last:?}");
    };
    assert_eq!((chunk.offset, chunk.bytes), (4 * WRITE_BYTES as u64, 1));
    assert_eq!(said, (Some(FrameKind::Written), Body::Inline));
    assert_eq!(rest.len(), 2);
}

#[test]
fn records_do_not_wait_for_pieces_that_are_on_their_way() {
    let length = 8 * WRITE_BYTES as u64;
    let mut session = writing(Role::Sender);
    session.ends.announce_large(1, 1, length);
    publish(&mut session, 1);
    deliver(&mut session, &memory_grant(length)).unwrap();
    sent(&mut session);
    let mut ring = Ring(std::collections::VecDeque::from(vec![16; 3]));
    session.ends.mark_ready(1);
    let mut records = 0;
    while let Some(body) = session.poll_transmit(&mut ring, 0, &mut Vec::new()) {
        assert!(matches!(body, Body::Records { .. }), "{body:?}");
        records += 1;
    }
    assert_eq!(records, 3);
}

#[test]
fn a_grant_of_memory_is_checked() {
    let deliver = |session: &mut Session, grant: &[u8]| deliver(session, grant);
    assert_eq!(
        deliver(&mut announcing(), &memory_grant(100)),
        Ok(Arrival::Nothing)
    );
    for granted in [99, 101] {
        assert_eq!(
            deliver(&mut announcing(), &memory_grant(granted)),
            Err(PeerMisbehaved::GrantedLength {
                sequence: 1,
                length: 100,
                granted
            })
        );
    }
    let mut twice = announcing();
    deliver(&mut twice, &memory_grant(100)).unwrap();
    let unwanted = Err(PeerMisbehaved::UnwantedGrant { sequence: 1 });
    assert_eq!(deliver(&mut twice, &memory_grant(100)), unwanted);
    let early = deliver(&mut writing(Role::Sender), &memory_grant(100));
    assert_eq!(early, unwanted, "nothing is announced");
    assert_eq!(
        deliver(&mut sending(), &memory_grant(100)),
        Err(PeerMisbehaved::UnknownGrant),
        "the handshake did not agree on it"
    );
}

#[test]
fn a_written_message_is_reported_before_later_records_go_out() {
    let mut session = announcing();
    deliver(&mut session, &memory_grant(100)).unwrap();
    let mut ring = Ring::default();
    let mut next = |ring: &mut Ring| {
        let body = session.poll_transmit(ring, 0, &mut Vec::new());
        session.ends.mark_ready(1);
        body
    };
    assert!(matches!(next(&mut ring), Some(Body::Write { .. })));
    // The handle publishes more as soon as the message is there.
    ring.0.push_back(16);
    assert_eq!(next(&mut ring), Some(Body::Inline), "the word goes first");
    assert!(matches!(next(&mut ring), Some(Body::Records { .. })));
}
