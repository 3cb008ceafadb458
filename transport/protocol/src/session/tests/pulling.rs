//! Large messages that the receiver reads: offered, read, taken.

use super::peer::*;
use crate::session::*;
use crate::{
    format::{control::*, frame::*},
    transfer::rendezvous::*,
};

mod new_wires;

const LENGTH: u64 = 2 * WRITE_BYTES as u64 + 5;

/// A session over wires on which both ends offer and read.
fn session(role: Role) -> Session {
    let mut session = Session::new(SessionConfig {
        wires: WireTerms {
            offers: true,
            reads: 2,
            ..config().wires
        },
        ..config()
    });
    let spec = ChannelSpec {
        max_message_bytes: LENGTH,
        ..spec()
    };
    session.open(role, "wal", spec.clone()).unwrap();
    let theirs = open_with(PEER, role.opposite(), "wal", spec);
    deliver(&mut session, &theirs).unwrap();
    drain(&mut session);
    session
}

fn memory(bytes: u64) -> RemoteMemory {
    RemoteMemory::new(0x1000, 7, bytes).unwrap()
}

fn offer(sequence: u64, memory: Option<RemoteMemory>) -> Vec<u8> {
    control(&Control::Offer {
        channel: PEER,
        sequence,
        memory,
    })
}

fn taken(sequence: u64) -> Vec<u8> {
    control(&Control::Taken {
        channel: 1,
        sequence,
    })
}

fn grant(sequence: u64, bytes: u64) -> Vec<u8> {
    control(&Control::Grant {
        channel: 1,
        sequence,
        bytes,
    })
}

/// A sending end whose messages 1 and 2 are announced and wait for the host's offers.
fn announcing() -> Session {
    let mut session = session(Role::Sender);
    for sequence in 1..=2 {
        session.ends.announce_large(1, sequence, LENGTH);
        publish(&mut session, 1);
    }
    session
}

/// A sending end that has offered its messages 1 and 2.
fn offering() -> Session {
    let mut session = announcing();
    for sequence in 1..=2 {
        assert_eq!(
            session.ends.poll_offer(),
            Some(OfferStep::Make { end: 1, sequence })
        );
        session.offer(1, sequence, Some(memory(LENGTH)));
    }
    assert_eq!(session.ends.poll_offer(), None);
    drain(&mut session);
    session
}

/// A receiving end of which messages 1 and 2 are announced.
fn announced() -> Session {
    let mut session = session(Role::Receiver);
    for sequence in 1..=2 {
        let announcement = large(sequence, LENGTH);
        let announcement = frame(FrameKind::Records, PEER, sequence, None, &announcement);
        deliver(&mut session, &announcement).unwrap();
    }
    session
}

/// Pairs another receiving end, of which message 1 is announced and offered, and returns it.
fn another(session: &mut Session) -> u32 {
    let spec = ChannelSpec {
        max_message_bytes: LENGTH,
        ..spec()
    };
    let theirs = PEER + 1;
    let end = session.open(Role::Receiver, "other", spec.clone()).unwrap();
    let announcement = frame(FrameKind::Records, theirs, 1, None, &large(1, LENGTH));
    let offer = Control::Offer {
        channel: theirs,
        sequence: 1,
        memory: Some(memory(LENGTH)),
    };
    deliver(session, &open_with(theirs, Role::Sender, "other", spec)).unwrap();
    deliver(session, &announcement).unwrap();
    deliver(session, &control(&offer)).unwrap();
    end
}

fn offered_rail(sequence: u64, rail: u8, key: u32) -> Vec<u8> {
    control(&Control::OfferRail {
        channel: PEER,
        sequence,
        rail,
        key,
    })
}

fn told_of(session: &mut Session) -> Vec<(u64, bool)> {
    let (events, _) = drain(session);
    let notified = events.into_iter().filter_map(|event| match event {
        SessionEvent::LargeAnnounced {
            sequence,
            is_offered,
            ..
        } => Some((sequence, is_offered)),
        _ => None,
    });
    notified.collect()
}

fn chunk_of(sequence: u64, offset: u64, bytes: usize) -> Chunk {
    Chunk {
        sequence,
        offset,
        bytes,
    }
}

#[test]
fn an_offer_goes_right_behind_its_announcement() {
    let mut session = announcing();
    assert!(session.is_due());
    session.ends.poll_offer().unwrap();
    session.offer(1, 1, Some(memory(LENGTH)));
    let (_, said) = drain(&mut session);
    let offered = Control::Offer {
        channel: 1,
        sequence: 1,
        memory: Some(memory(LENGTH)),
    };
    assert_eq!(said, [offered]);
}

#[test]
fn a_message_is_read_in_pieces_and_said_to_be_taken_behind_the_last() {
    let mut session = announced();
    assert_eq!(told_of(&mut session), [], "the offers come first");
    deliver(&mut session, &offer(1, Some(memory(LENGTH)))).unwrap();
    deliver(&mut session, &offer(2, Some(memory(LENGTH)))).unwrap();
    assert_eq!(told_of(&mut session), [(1, true), (2, true)]);
    assert!(session.read_large(1, 2, LENGTH));
    assert_eq!(
        session.poll_read(&[Lane::Wire]),
        None,
        "the first one is first"
    );
    assert!(session.read_large(1, 1, LENGTH) && session.is_due());
    let poll = |session: &mut Session| session.poll_read(&[Lane::Wire]).map(|read| read.chunk);
    let pieces = [
        chunk_of(1, 0, WRITE_BYTES),
        chunk_of(1, WRITE_BYTES as u64, WRITE_BYTES),
        chunk_of(1, 2 * WRITE_BYTES as u64, 5),
    ];
    assert_eq!(poll(&mut session), Some(pieces[0]));
    assert_eq!(poll(&mut session), Some(pieces[1]));
    assert_eq!(poll(&mut session), None, "two at a time");
    let arrival = |chunk, complete| Arrival::Chunk {
        end: 1,
        chunk,
        complete,
    };
    assert_eq!(session.handle_read(1, pieces[0]), arrival(pieces[0], false));
    assert_eq!(poll(&mut session), Some(pieces[2]));
    assert_eq!(session.handle_read(1, pieces[1]), arrival(pieces[1], false));
    // The next message is read while the last piece of this one is under way.
    assert_eq!(poll(&mut session), Some(chunk_of(2, 0, WRITE_BYTES)));
    assert_eq!(drain(&mut session).1, [], "it is not here yet");
    assert_eq!(session.handle_read(1, pieces[2]), arrival(pieces[2], true));
    session.handle_large_complete(1);
    let said = Control::Taken {
        channel: PEER,
        sequence: 1,
    };
    assert_eq!(drain(&mut session).1, [said]);
}

#[test]
fn a_message_is_read_when_the_one_before_it_came_in_chunks() {
    let mut session = session(Role::Receiver);
    for (sequence, length) in [(1, 100), (2, LENGTH)] {
        let announcement = large(sequence, length);
        let announcement = frame(FrameKind::Records, PEER, sequence, None, &announcement);
        deliver(&mut session, &announcement).unwrap();
    }
    deliver(&mut session, &offer(2, Some(memory(LENGTH)))).unwrap();
    session.grant(1, 1, 100);
    assert!(session.read_large(1, 2, LENGTH));
    assert_eq!(session.poll_read(&[Lane::Wire]), None);
    deliver(&mut session, &chunk(1, 100)).unwrap();
    session.handle_large_complete(1);
    let read = session.poll_read(&[Lane::Wire]).map(|read| read.chunk);
    assert_eq!(read, Some(chunk_of(2, 0, WRITE_BYTES)));
}

#[test]
fn a_message_that_is_taken_is_revoked_and_the_next_may_be_announced() {
    let mut session = offering();
    session.ends.announce_large(1, 3, LENGTH);
    publish(&mut session, 1);
    assert!(!session.ends.has_offers(), "two are under way");
    assert_eq!(deliver(&mut session, &taken(1)), Ok(Arrival::Nothing));
    assert!(session.ends.sends_large(1, 1), "the peer may read it still");
    let step = OfferStep::Revoke {
        end: 1,
        sequence: 1,
        taken: Some(chunk_of(1, 0, LENGTH as usize)),
    };
    assert_eq!(session.ends.poll_offer(), Some(step));
    assert!(!session.ends.sends_large(1, 1) && !session.ends.is_readable(1, 1));
    publish(&mut session, 1);
    let step = OfferStep::Make {
        end: 1,
        sequence: 3,
    };
    assert_eq!(session.ends.poll_offer(), Some(step));
}

#[test]
fn a_grant_of_chunks_declines_an_offer() {
    let mut session = offering();
    assert_eq!(
        deliver(&mut session, &grant(1, LENGTH)),
        Ok(Arrival::Nothing)
    );
    assert!(!session.ends.is_readable(1, 1) && session.ends.is_readable(1, 2));
    let step = OfferStep::Revoke {
        end: 1,
        sequence: 1,
        taken: None,
    };
    assert_eq!(session.ends.poll_offer(), Some(step));
    assert_eq!(session.ends.poll_offer(), None);
    // It goes in chunks.
    let mut head = Vec::new();
    let body = session.poll_transmit(&mut Ring::default(), 0, &mut head);
    assert!(matches!(body, Some(Body::Chunk { end: 1, .. })), "{body:?}");
}

#[test]
fn a_message_that_is_not_offered_is_granted_as_others_are() {
    let mut session = announced();
    session.grant(1, 1, 100);
    assert_eq!(
        drain(&mut session).1,
        [],
        "the word of an offer comes first"
    );
    for memory in [None, Some(memory(LENGTH))] {
        let mut session = announced();
        session.grant(1, 1, 100);
        deliver(&mut session, &offer(1, memory)).unwrap();
        let granted = Control::Grant {
            channel: PEER,
            sequence: 1,
            bytes: 100,
        };
        assert_eq!(drain(&mut session).1, [granted]);
    }
    let mut session = announced();
    deliver(&mut session, &offer(1, None)).unwrap();
    assert_eq!(told_of(&mut session), [(1, false)]);
    assert!(!session.read_large(1, 1, LENGTH));
}

#[test]
fn an_offer_is_checked() {
    for offered in [LENGTH - 1, LENGTH + 1, 1] {
        assert_eq!(
            deliver(&mut announced(), &offer(1, Some(memory(offered)))),
            Err(PeerMisbehaved::OfferedLength {
                sequence: 1,
                length: LENGTH,
                offered
            })
        );
    }
    let unwanted = |sequence| Err(PeerMisbehaved::UnwantedOffer { sequence });
    for memory in [None, Some(memory(LENGTH))] {
        let mut twice = announced();
        deliver(&mut twice, &offer(1, memory)).unwrap();
        assert_eq!(deliver(&mut twice, &offer(1, memory)), unwanted(1));
        let early = deliver(&mut announced(), &offer(3, memory));
        assert_eq!(early, unwanted(3), "it is not announced");
        let none = deliver(&mut super::peer::announced(), &offer(1, memory));
        assert_eq!(none, unwanted(1), "these wires carry no offers");
    }
    let mut short = session(Role::Receiver);
    let announcement = frame(FrameKind::Records, PEER, 1, None, &large(1, 100));
    deliver(&mut short, &announcement).unwrap();
    assert_eq!(told_of(&mut short), [(1, false)]);
    let short = deliver(&mut short, &offer(1, Some(memory(100))));
    assert_eq!(short, unwanted(1), "short messages are not offered");
}

#[test]
fn that_a_message_is_taken_is_checked() {
    let refused = |sequence| Err(PeerMisbehaved::UnofferedTaken { sequence });
    assert_eq!(deliver(&mut sending(), &taken(1)), refused(1), "no offers");
    let early = deliver(&mut announcing(), &taken(1));
    assert_eq!(early, refused(1), "it is not offered yet");
    assert_eq!(deliver(&mut offering(), &taken(2)), refused(2), "not next");
    assert_eq!(deliver(&mut offering(), &taken(3)), refused(3), "another");
    let mut twice = offering();
    deliver(&mut twice, &taken(1)).unwrap();
    assert_eq!(deliver(&mut twice, &taken(1)), refused(1));
    assert_eq!(deliver(&mut twice, &taken(2)), Ok(Arrival::Nothing));
    let mut declined = offering();
    deliver(&mut declined, &grant(1, LENGTH)).unwrap();
    assert_eq!(deliver(&mut declined, &taken(1)), refused(1));
    // And a grant of what is not offered yet, or is taken.
    let unwanted = Err(PeerMisbehaved::UnwantedGrant { sequence: 1 });
    assert_eq!(deliver(&mut announcing(), &grant(1, LENGTH)), unwanted);
    let mut over = offering();
    deliver(&mut over, &taken(1)).unwrap();
    assert_eq!(deliver(&mut over, &grant(1, LENGTH)), unwanted);
    let late = control(&Control::Taken {
        channel: 9,
        sequence: 1,
    });
    assert_eq!(deliver(&mut offering(), &late), Ok(Arrival::Nothing));
}

#[test]
fn a_receiver_says_that_it_is_closed_when_nothing_is_read_any_more() {
    let mut session = announced();
    deliver(&mut session, &offer(1, Some(memory(LENGTH)))).unwrap();
    session.read_large(1, 1, LENGTH);
    let pieces = [0, 1].map(|_| session.poll_read(&[Lane::Wire]).unwrap().chunk);
    drain(&mut session);
    session.close_receiver(1, &counters(0), CloseReason::Dropped);
    session.outgoing.say_goodbye(None);
    assert_eq!(drain(&mut session).1, []);
    assert_eq!(session.handle_read(1, pieces[0]), Arrival::Unwanted);
    assert_eq!(session.poll_read(&[Lane::Wire]), None, "nobody wants more");
    assert_eq!(drain(&mut session).1, []);
    assert_eq!(session.handle_read(1, pieces[1]), Arrival::Unwanted);
    let (_, said) = drain(&mut session);
    assert!(
        matches!(said[..], [Control::Close { .. }, Control::Goodbye { .. }]),
        "{said:?}"
    );
}

#[test]
fn a_receiver_of_which_two_messages_are_read_says_that_it_is_closed() {
    let mut session = announced();
    for sequence in 1..=2 {
        deliver(&mut session, &offer(sequence, Some(memory(LENGTH)))).unwrap();
        session.read_large(1, sequence, LENGTH);
    }
    let poll = |session: &mut Session| session.poll_read(&[Lane::Wire]).unwrap().chunk;
    let [first, second] = [0, 1].map(|_| poll(&mut session));
    session.handle_read(1, first);
    let last = poll(&mut session);
    session.handle_read(1, second);
    let of_next = poll(&mut session);
    assert_eq!((last.sequence, of_next.sequence), (1, 2));
    session.close_receiver(1, &counters(0), CloseReason::Dropped);
    assert_eq!(session.handle_read(1, last), Arrival::Unwanted);
    assert_eq!(drain(&mut session).1, [], "the other one is being read");
    assert_eq!(session.handle_read(1, of_next), Arrival::Unwanted);
    session.released(1, &counters(0));
    let (events, said) = drain(&mut session);
    assert!(matches!(said[..], [Control::Close { .. }]), "{said:?}");
    let received = |event: &SessionEvent| matches!(event, SessionEvent::Notified { counters, .. } if counters.received > 0);
    assert!(!events.iter().any(received), "{events:?}");
}

#[test]
fn a_message_is_read_to_its_end_before_one_of_another_channel() {
    let mut session = announced();
    deliver(&mut session, &offer(1, Some(memory(LENGTH)))).unwrap();
    let other = another(&mut session);
    for end in [1, other] {
        assert!(session.read_large(end, 1, LENGTH));
    }
    let mut order = Vec::new();
    while let Some(read) = session.poll_read(&[Lane::Wire]) {
        order.push(read.end);
        session.handle_read(read.end, read.chunk);
        if read.chunk.offset + read.chunk.bytes as u64 == LENGTH {
            session.handle_large_complete(read.end);
        }
    }
    assert_eq!(order, [1, 1, 1, other, other, other]);
}

#[test]
fn a_goodbye_that_waits_for_reads_alone_waits_for_no_more_of_them() {
    let mut session = announced();
    deliver(&mut session, &offer(1, Some(memory(LENGTH)))).unwrap();
    session.read_large(1, 1, LENGTH);
    let read = session.poll_read(&[Lane::Wire]).unwrap().chunk;
    session.outgoing.say_goodbye(None);
    assert_eq!(session.poll_read(&[Lane::Wire]), None);
    assert_eq!(drain(&mut session).1, [], "a read is under way");
    session.handle_read(1, read);
    assert_eq!(session.poll_read(&[Lane::Wire]), None);
    let (_, said) = drain(&mut session);
    assert!(matches!(said[..], [Control::Goodbye { .. }]), "{said:?}");
    assert!(
        session.poll_read(&[Lane::Wire]).is_some(),
        "the peer waits for that"
    );
}

#[test]
fn reads_go_on_while_the_goodbye_waits_for_what_is_sent() {
    let mut session = announced();
    deliver(&mut session, &offer(1, Some(memory(LENGTH)))).unwrap();
    session.read_large(1, 1, LENGTH);
    let end = session.open(Role::Sender, "out", spec()).unwrap();
    session.outgoing.say_goodbye(None);
    // The other end may close too, and wait for its messages to be read.
    assert!(session.poll_read(&[Lane::Wire]).is_some());
    session.ends.close_sender(end, 0, CloseReason::Dropped);
    drain(&mut session);
    assert_eq!(session.poll_read(&[Lane::Wire]), None);
}
