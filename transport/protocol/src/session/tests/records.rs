//! Records: due, past, repeated and of the future; beyond the window and the credit.

use proptest::prelude::*;

use super::peer::*;
use crate::session::*;
#[allow(unused_imports, reason = "each test file uses some of them")]
use crate::{
    credit::session::*,
    format::{
        control::*,
        frame::*,
        frame_check::CHECK_BYTES,
        message_extension::MessageExtension,
        record::{LargeAnnouncement, RecordKind},
        trace_context::TraceContext,
    },
    transfer::rendezvous::*,
};

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
fn trace_context_comes_where_both_ends_asked_for_it() {
    let refused = Err(PeerMisbehaved::RecordKind { sequence: 1 });
    for (here, there) in [(false, false), (true, false), (false, true), (true, true)] {
        let traced = |is_traced| ChannelSpec {
            is_traced,
            ..spec()
        };
        let receiving = || {
            let mut session = Session::new(config());
            session.open(Role::Receiver, "wal", traced(here)).unwrap();
            let open = open_with(PEER, Role::Sender, "wal", traced(there));
            deliver(&mut session, &open).unwrap();
            let (events, _) = drain(&mut session);
            let agreed = events.iter().find_map(|event| match event {
                SessionEvent::Opened { agreed, .. } => Some(agreed.is_traced),
                _ => None,
            });
            assert_eq!(agreed, Some(here && there));
            session
        };
        let extension = MessageExtension {
            trace: Some([1; TraceContext::BYTES]),
            header: &[],
        };
        let extension: Vec<u8> = extension.encoded().collect();
        let announcement = LargeAnnouncement::in_chunks(100);
        let large = [announcement.bytes(), &extension].concat();
        for (kind, payload) in [
            (RecordKind::ExtendedData, &extension[..]),
            (RecordKind::ExtendedLarge, &large),
            (RecordKind::Data, b"one"),
        ] {
            let record = record_of(kind, 1, payload);
            let frame = frame(FrameKind::Records, PEER, 1, None, &record);
            let delivered = deliver(&mut receiving(), &frame);
            match !kind.is_extended() || here && there {
                true => assert!(matches!(delivered, Ok(Arrival::Records { .. }))),
                false => assert_eq!(delivered, refused),
            }
        }
    }
}

#[test]
fn malformed_extensions_are_refused() {
    let extension = |trace, header: &[u8]| -> Vec<u8> {
        MessageExtension { trace, header }.encoded().collect()
    };
    let valid = Ok(());
    let refused = Err(PeerMisbehaved::RecordKind { sequence: 1 });
    let cut = Err(PeerMisbehaved::RecordCut { sequence: 1 });
    let announcement = LargeAnnouncement::in_chunks(100);
    let data = |extension: &[u8]| {
        let payload = [b"body", extension].concat();
        record_of(RecordKind::ExtendedData, 1, &payload)
    };
    let large = |announced: &[u8], extension: &[u8]| {
        let payload = [announced, extension].concat();
        record_of(RecordKind::ExtendedLarge, 1, &payload)
    };
    let header = extension(None, &[9; MessageExtension::MAX_HEADER_BYTES]);
    let mut longer = [&[9][..], &header].concat();
    let foot = longer.len() - 2;
    longer[foot] += 1;
    let traced = extension(Some([1; TraceContext::BYTES]), b"h");
    let announced = announcement.bytes();
    for (record, expected) in [
        (data(&header), &valid),
        (data(&longer), &refused),
        (data(&header[1..]), &valid),
        (data(&header[..header.len() - 1]), &refused),
        // No header, and an extension that is longer than its record.
        (data(&[0, 3, 0]), &refused),
        (data(&[9, 0, 255, 255]), &refused),
        // The ends did not agree on trace contexts.
        (data(&traced), &refused),
        (large(announced, &header), &valid),
        (large(announced, &longer), &refused),
        (large(announced, &traced), &refused),
        // The announcement is cut, or there is none.
        (large(&announced[..8], &header), &cut),
        (large(&[], &header), &cut),
        (large(announced, &[]), &refused),
    ] {
        let frame = frame(FrameKind::Records, PEER, 1, None, &record);
        let delivered = deliver(&mut receiving(), &frame);
        assert_eq!(delivered.map(drop), *expected, "{record:?}");
    }
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
    // Messages that were released but not reported admit nothing, since the sender cannot know of
    // them.
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
        wires: WireTerms {
            our_credit: 80,
            ..config().wires
        },
        ..config()
    });
    pair(&mut session, Role::Receiver);
    deliver(&mut session, &records(1, &[b"one"])).unwrap();
    deliver(&mut session, &records(2, &[b"two"])).unwrap();
    let overrun = CreditOverrun {
        used: 120,
        granted: 80,
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
        data_path: DataPath::Mapped,
        ..config()
    });
    pair(&mut session, Role::Receiver);
    assert_eq!(
        deliver(&mut session, &one),
        Err(PeerMisbehaved::DataFrameBesideMemory)
    );
}

#[test]
fn a_payload_must_land_aligned() {
    let mut session = Session::new(config());
    let mut spec = spec();
    spec.newest.alignment = 64;
    session.open(Role::Receiver, "wal", spec.clone()).unwrap();
    deliver(&mut session, &open_with(PEER, Role::Sender, "wal", spec)).unwrap();
    let mut body = record(1, b"one");
    body.resize(crate::format::record::record_size(3, 64), 0);
    let bytes = frame(FrameKind::Records, PEER, 1, None, &body);
    let header = FrameHeader::parse(&bytes).unwrap().unwrap();
    let misaligned = Err(PeerMisbehaved::Misaligned { alignment: 64 });
    assert_eq!(session.handle_frame(&header, &bytes, 0), misaligned);
    // 40 and the header make 56: the payload begins a line.
    assert!(session.handle_frame(&header, &bytes, 40).is_ok());
}

/// A frame as it came, or with up to two bytes changed on the way.
fn frames() -> impl Strategy<Value = Vec<u8>> {
    let message = prop::collection::vec(any::<u8>(), 0..200);
    let messages = prop::collection::vec(message, 1..3);
    let changes = prop::collection::vec((0usize..48, any::<u8>()), 0..3);
    (1u64..4, messages, changes, any::<bool>()).prop_map(|(first, messages, changes, is_whole)| {
        let messages: Vec<&[u8]> = messages.iter().map(Vec::as_slice).collect();
        let mut bytes = records(first, &messages);
        if !is_whole {
            for (at, byte) in changes {
                let at = at.min(bytes.len() - 1);
                bytes[at] = byte;
            }
        }
        bytes
    })
}

proptest! {
    #[test]
    fn a_lone_record_is_handled_as_any_frame_is(frames in prop::collection::vec(frames(), 1..6)) {
        let (mut at_once, mut by_any) = (receiving(), receiving());
        for frame in frames {
            let Ok(Some(header)) = FrameHeader::parse(&frame) else {
                prop_assert_eq!(at_once.handle_lone_record(&frame, 0), None);
                continue;
            };
            let Some(whole) = frame.get(..header.length as usize) else {
                prop_assert_eq!(at_once.handle_lone_record(&frame, 0), None);
                continue;
            };
            let as_any = by_any.handle_frame(&header, whole, 0);
            let before = format!("{at_once:?}");
            match at_once.handle_lone_record(&frame, 0) {
                Some(LoneRecord { end, offset, bytes, sequence }) => {
                    let arrival = Arrival::Records {
                        end,
                        offset,
                        bytes,
                        first_sequence: sequence,
                        records: 1,
                    };
                    prop_assert_eq!(as_any, Ok(arrival));
                }
                None => {
                    prop_assert_eq!(&before, &format!("{at_once:?}"));
                    prop_assert_eq!(&as_any, &at_once.handle_frame(&header, whole, 0));
                }
            }
            prop_assert_eq!(format!("{at_once:?}"), format!("{by_any:?}"));
            if as_any.is_err() {
                break;
            }
        }
    }
}

#[test]
fn one_message_that_is_a_frame_is_a_lone_record() {
    let mut session = receiving();
    let frame = records(1, &[b"one"]);
    let lone = session.handle_lone_record(&frame, 0);
    let expected = LoneRecord {
        end: 1,
        offset: 16,
        bytes: 16,
        sequence: 1,
    };
    assert_eq!(lone, Some(expected));
    // The record came, so neither it nor any record but the next may come now, and no two in one
    // frame.
    for frame in [
        frame,
        records(3, &[b"three"]),
        records(2, &[b"two", b"three"]),
    ] {
        assert_eq!(session.handle_lone_record(&frame, 0), None);
    }
    assert!(
        session
            .handle_lone_record(&records(2, &[b"two"]), 0)
            .is_some()
    );
}

/// A lone record leads to no report. The sender is not notified that credit is back or that the record
/// came, and the broker is not notified that recalled credit is back.
#[test]
fn a_record_that_something_follows_from_is_no_lone_one() {
    let lending = |our_credit| {
        let config = SessionConfig {
            wires: WireTerms {
                our_credit,
                ..config().wires
            },
            ..config()
        };
        let mut session = Session::new(config);
        pair(&mut session, Role::Receiver);
        session
    };
    let one = records(1, &[b"one"]);
    let cost = (CHECK_BYTES + one.len()) as u64;

    // Credit is reported at once when it exceeds half of what is lent.
    assert!(lending(2 * cost).handle_lone_record(&one, 0).is_some());
    let mut session = lending(2 * cost - 1);
    assert_eq!(session.handle_lone_record(&one, 0), None);
    deliver(&mut session, &one).unwrap();
    assert!(session.is_due());

    // Once it is due, more of it changes nothing.
    let mut session = lending(4 * cost);
    let frames = [records(1, &[b"one"]), records(2, &[b"two"])];
    for frame in &frames {
        assert!(session.handle_lone_record(frame, 0).is_some());
    }
    let crossing = records(3, &[b"tri"]);
    assert_eq!(session.handle_lone_record(&crossing, 0), None);
    deliver(&mut session, &crossing).unwrap();
    assert!(session.is_due());
    let behind = session.handle_lone_record(&records(4, &[b"for"]), 0);
    assert!(behind.is_some() && session.is_due());

    let mut session = lending(10 * cost);
    session.recall(10 * cost);
    drain(&mut session);
    assert_eq!(session.handle_lone_record(&one, 0), None);
    deliver(&mut session, &one).unwrap();
    assert_eq!(session.credit.take_report().returned, cost);

    let mut session = receiving();
    let receipt = Ask::received(1);
    deliver(&mut session, &ask(receipt)).unwrap();
    drain(&mut session);
    assert_eq!(session.handle_lone_record(&one, 0), None);
    deliver(&mut session, &one).unwrap();
    assert!(session.is_due());
}
