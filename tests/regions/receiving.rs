//! Messages that arrive in regions which the program has provided.

use std::{
    future::Future,
    pin::pin,
    task::{Context, Poll, Waker},
};

use ibex::{Fabric, Raw, RecvErrorKind, Region, Select};

use super::{LENGTH, LONG, MOMENT, Over, Pair, bytes, mapped};

/// A region that is longer than the message, and full of other bytes.
const REGION: usize = LENGTH + 100;

fn region() -> Region {
    let mut region = Region::zeroed(REGION).expect("memory");
    region.get_mut().expect("nobody else has it").fill(0xee);
    region
}

/// Checks the message of the test in a region, and returns the region.
fn taken(message: ibex::Message<[u8], Raw>, from: usize) -> Region {
    let sent = &bytes()[from..];
    assert!(message[..] == *sent, "{} other bytes", message.len());
    let (region, length) = message.ack_on_drop().into_region().expect("a region");
    assert_eq!(length, sent.len());
    assert!(region[..length] == *sent);
    assert!(region[length..].iter().all(|&byte| byte == 0xee));
    assert!(region.is_free(), "{region:?}");
    region
}

#[test]
fn long_messages_arrive_in_regions_and_short_ones_do_not() {
    for over in Over::each() {
        let mut pair = Pair::meet(&over, 64);
        let regions = [region(), Region::from(vec![0xee; REGION])];
        let places = regions.each_ref().map(|region| region.as_ptr());
        for region in regions {
            pair.receiver.provide(region).expect("provided");
        }
        let own = bytes();
        for from in [0, 1, 2] {
            pair.sender.send(b"short").expect("sent");
            pair.sender.send(&own[from..]).expect("sent");
        }
        for (from, place) in places.into_iter().map(Some).chain([None]).enumerate() {
            let short = pair.receiver.recv_timeout(LONG).expect("a message");
            assert!(short[..] == *b"short");
            let short = short.into_region().expect_err("it is short");
            short.ack();
            let message = pair.receiver.recv_timeout(LONG).expect("a message");
            match place {
                Some(place) => assert_eq!(taken(message, from).as_ptr(), place),
                None => {
                    let message = message.into_region().expect_err("there were two");
                    assert!(message[..] == own[from..]);
                    message.ack();
                }
            }
        }
        while let Err(late) = pair.sender.wait_acked_timeout(7, MOMENT) {
            assert!(late.is_transient(), "{late}");
            assert!(pair.receiver.try_recv().is_err(), "nothing more was sent");
        }
    }
}

/// However the program waits, and however a message is used, it keeps its region.
#[test]
fn every_way_to_receive_gives_regions() {
    for over in Over::each() {
        let mut pair = Pair::meet(&over, 64);
        let mut region = Some(region());
        for way in 0..4 {
            pair.receiver
                .provide(region.take().expect("it came back"))
                .expect("provided");
            pair.sender.send(&bytes()).expect("sent");
            let message = match way {
                0 => pair.receiver.next().expect("no error").expect("a message"),
                1 => {
                    assert_eq!(Select::new().ready(&mut [&mut pair.receiver]), 0);
                    pair.receiver.try_recv().expect("a message").into_owned()
                }
                2 => {
                    let mut many = Vec::new();
                    assert_eq!(pair.receiver.recv_many(&mut many, 1).expect("no error"), 1);
                    many.pop().expect("one came")
                }
                _ => {
                    let mut context = Context::from_waker(Waker::noop());
                    loop {
                        // A wait that is given up changes nothing.
                        let polled = pin!(pair.receiver.recv_async()).as_mut().poll(&mut context);
                        if let Poll::Ready(message) = polled {
                            break message.expect("a message");
                        }
                    }
                }
            };
            region = Some(taken(message, 0));
        }
    }
}

/// Unused regions come back, and a region goes with its message, its receiver or its node.
#[test]
fn regions_that_serve_no_message_come_back() {
    for over in Over::each() {
        let mut pair = Pair::meet(&over, 64);
        let short = Region::zeroed(LENGTH - 1).expect("memory");
        let place = short.as_ptr();
        pair.receiver.provide(short).expect("provided");
        pair.sender.send(&bytes()).expect("sent");
        let message = pair.receiver.recv_timeout(LONG).expect("a message");
        let message = message.into_region().expect_err("the region is too short");
        assert!(message[..] == bytes());
        drop(message);
        pair.receiver.provide(region()).expect("provided");
        pair.sender.send(&bytes()).expect("sent");
        drop(pair.receiver.recv_timeout(LONG).expect("a message"));
        let back = pair.receiver.take_regions();
        assert_eq!(back.len(), 1, "the other went with its message");
        assert_eq!(back[0].as_ptr(), place);

        // What has arrived in a region is received although the channel is over.
        pair.receiver.provide(region()).expect("provided");
        pair.receiver.provide(region()).expect("provided");
        pair.sender.send(&bytes()).expect("sent");
        let Pair {
            sender,
            mut receiver,
            there,
            ..
        } = pair;
        drop(sender);
        taken(receiver.recv_timeout(LONG).expect("a message"), 0);
        assert_eq!(
            receiver.recv_timeout(LONG).expect_err("the end").kind(),
            RecvErrorKind::Ended
        );
        assert_eq!(receiver.take_regions().len(), 1);
        receiver.provide(region()).expect("it is only not used");
        drop((receiver, there));
    }
}

#[test]
fn a_region_that_cannot_be_written_comes_back_with_the_reason() {
    let mut pair = Pair::meet(&Over::new(Fabric::Tcp), 64);
    let region = Region::from(vec![7; 100]);
    let slice = region.slice(..);
    let refused = pair.receiver.provide(region).expect_err("a slice is left");
    assert_eq!(refused.kind(), RecvErrorKind::RegionRefused);
    assert!(refused.spares_channel() && !refused.is_transient());
    assert_eq!(refused.channel(), Some("bytes"));
    let why = refused.to_string();
    assert!(why.contains("slices of the region exist"), "{why}");
    let region = refused.into_region().expect("the same region");
    drop(slice);
    assert!(region.is_free());
    let refused = pair
        .receiver
        .provide(mapped("received"))
        .expect_err("a file");
    assert!(refused.to_string().contains("mapped file"), "{refused}");
    assert!(refused.into_region().is_some());
    for _ in 0..64 {
        pair.receiver
            .provide(Region::from(vec![0; 8]))
            .expect("there is room");
    }
    let refused = pair.receiver.provide(region).expect_err("the 65th");
    assert!(refused.to_string().contains("64 regions"), "{refused}");
    assert_eq!(pair.receiver.take_regions().len(), 64);
    let ordinary = pair.receiver.try_recv().expect_err("nothing was sent");
    assert!(ordinary.into_region().is_none());
}

/// A region is the program's, so it has room for messages for which the node's limit has none.
#[test]
fn a_region_does_not_count_against_the_memory_limit() {
    let over = Over::new(Fabric::Tcp);
    let mut pair = Pair::meet_with(&over, 64, |there| there.memory_limit(8 << 20));
    let mut held = Vec::new();
    for _ in 0..4 {
        pair.receiver.provide(region()).expect("provided");
        pair.sender.send(&bytes()).expect("sent");
        held.push(pair.receiver.recv_timeout(LONG).expect("a message"));
    }
    for message in held {
        taken(message, 0);
    }
}
