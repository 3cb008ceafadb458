//! Requests and replies from memory of the program's own: as calls of any bytes, with the header
//! beside long ones, and malformed.

use std::thread;

use ibex_core::{
    ChannelBuilder, Fabric, Peer, Raw, Region,
    extend::{self, MessageVersions, SendHandle, SliceMessage, parking::Patience},
};

use crate::{
    extension_tests::{builder, joined},
    header::{CallId, Header, Kind},
    versions::{reply_version, request_version},
    *,
};

const FABRICS: [Fabric; 2] = [Fabric::Tcp, Fabric::Shm];
const LENGTHS: [usize; 7] = [0, 1, 4000, 20_000, 128 << 10, 200_000, (3 << 20) + 5];

fn service(from: &Peer) -> Service<[u8], [u8], Raw> {
    let service = from.channel("blocks").codec::<Raw>().service();
    service.expect("a service")
}

/// Echoes requests from regions: each call once, and a stream as three items.
fn echo(mut service: Service<[u8], [u8], Raw>) {
    let mut number = 0;
    while let Ok(Some(mut request)) = service.next() {
        number += 1;
        if number % 3 == 0 {
            request = request.into_owned();
        }
        let slice = Region::from(request.to_vec()).slice(..);
        if request.is_stream() {
            request.send_region(&slice).expect("an item");
            async_io::block_on(request.send_region_async(&slice)).expect("an item");
            request.send(&slice).expect("an item");
            request.end();
        } else if number % 2 == 0 {
            request.reply_region(&slice).expect("sent");
        } else {
            async_io::block_on(request.reply_region_async(&slice)).expect("sent");
        }
    }
}

#[test]
fn slices_are_called_with_and_replied_as_other_bytes_are() {
    for fabric in FABRICS {
        let (_here, _there, to, from) = joined(builder(fabric), builder(fabric));
        let serving = thread::spawn(move || echo(service(&from)));
        let caller = to.channel("blocks").codec::<Raw>().caller();
        let caller: Caller<[u8], [u8], Raw> = caller.expect("a caller");
        let mut metadata = Metadata::new();
        metadata.insert("tenant", "blue").expect("room");
        let carrying = caller.with_metadata(metadata);
        for length in LENGTHS {
            let bytes: Vec<u8> = (0..length).map(|at| (at * 7 / 3) as u8).collect();
            let region = Region::from(bytes.clone());
            let slice = region.slice(..);
            for caller in [&caller, &carrying] {
                let reply = caller.call_region(&slice).expect("a reply").into_owned();
                assert!(reply[..] == bytes, "{fabric} {length}");
                let reply = async_io::block_on(caller.call_region_async(&slice));
                assert!(reply.expect("a reply")[..] == bytes, "{fabric} {length}");
            }
            let mut items = caller.stream(&bytes).expect("sent");
            for _ in 0..3 {
                let item = items.next().expect("an item").expect("not the end");
                assert!(item[..] == bytes, "{fabric} {length}");
            }
            assert!(items.next().expect("the end").is_none());
            drop(slice);
            assert!(region.wait_free(std::time::Duration::MAX));
            assert!(region.into_vec().is_ok(), "the request has arrived");
        }
        assert_eq!(caller.strays(), 0);
        drop((caller, carrying));
        serving.join().expect("no panic");
    }
}

/// Opens the ends of a caller, to be used by hand.
fn by_hand(to: &Peer) -> (SendHandle, ibex_core::extend::ReceiveHandle) {
    let channel: ChannelBuilder<Raw> = to.channel("blocks").codec();
    let replies = reply_version::<[u8], [u8], Raw>().map(MessageVersions::of_one);
    let back = extend::parts(&channel)
        .1
        .clone()
        .with_suffix(crate::error::label::REPLIES)
        .over(extend::session(to));
    let replies = extend::open_receiver(&back, replies);
    let requests = request_version::<[u8], [u8], Raw>().map(MessageVersions::of_one);
    let requests = extend::open_sender(&channel, requests);
    (requests.expect("an end"), replies.expect("an end"))
}

#[test]
fn a_long_payload_has_its_header_beside_it_and_a_malformed_one_is_dropped() {
    for fabric in FABRICS {
        let (_here, _there, to, from) = joined(builder(fabric), builder(fabric));
        let serving = thread::spawn(move || {
            let mut service = service(&from);
            let request = service.next().expect("no error").expect("the valid call");
            let slice = Region::from(request.to_vec()).slice(..);
            request.reply_region(&slice).expect("sent");
            service.strays()
        });
        let (mut requests, mut replies) = by_hand(&to);
        let id = CallId {
            number: 0,
            generation: 1,
        };
        let header = |kind| Header::new(id, kind).with_time_left(None).to_bytes();
        let body = &Region::from(vec![5; LENGTHS[6]]).slice(..);
        let mut send = |header: &[u8]| {
            let message = SliceMessage { header, body };
            let sent = requests.send_region(message, Patience::FOREVER);
            sent.expect("sent");
        };
        let longer = [&header(Kind::Call)[..], &[0]].concat();
        let malformed: [&[u8]; 6] = [
            &header(Kind::Call)[..15],
            &longer,
            &[0; 16],
            &header(Kind::Cancel),
            // An extension would be behind the payload.
            &header(Kind::ExtendedCall),
            &header(Kind::Reply),
        ];
        malformed.into_iter().for_each(&mut send);
        send(&header(Kind::Call));
        let reply = replies.receive(Patience::FOREVER).expect("an answer");
        assert_eq!(reply.header(), Header::new(id, Kind::Reply).to_bytes());
        assert!(reply.bytes() == &body[..]);
        let strays = serving.join().expect("the service ends");
        assert_eq!(strays, malformed.len() as u64, "{fabric}");
    }
}
