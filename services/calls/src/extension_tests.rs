//! Trace context and metadata between two nodes: as they were sent, and malformed.

use std::{thread, time::Duration};

use ibex_core::{
    ChannelBuilder, Fabric, Node, NodeBuilder, Peer, Pod, Policy, Raw, TraceContext,
    extend::{self, MessageVersions, SendHandle, parking::Patience},
};

use crate::{
    header::{CallId, Header, Kind},
    versions::{reply_version, request_version},
    *,
};

fn trace(id: u8) -> TraceContext {
    TraceContext::new([id; 16], [id; 8], 1).expect("a context")
}

/// The trace context of every thread.
fn ambient() -> Option<TraceContext> {
    Some(trace(7))
}

fn metadata() -> Metadata {
    let mut metadata = Metadata::new();
    metadata.insert("tenant", "blue").expect("room");
    metadata.insert("attempt", 2).expect("room");
    metadata
}

pub(super) fn builder(fabric: Fabric) -> NodeBuilder {
    Node::builder().fabric(fabric, Policy::Require)
}

/// Joins two nodes: the one that calls, and the one that serves.
pub(super) fn joined(here: NodeBuilder, there: NodeBuilder) -> (Node, Node, Peer, Peer) {
    let there = there.listen("127.0.0.1:0").build().expect("a node");
    let here = here.build().expect("a node");
    let address = there.local_addr().expect("it listens");
    let to = here.connect(address).expect("a session");
    let from = there.accept().expect("a session");
    (here, there, to, from)
}

fn caller(to: &Peer) -> Caller<[u8], u64, Mixed> {
    to.channel("sum")
        .codec::<Mixed>()
        .caller()
        .expect("a caller")
}

fn service(from: &Peer) -> Service<[u8], u64, Mixed> {
    from.channel("sum")
        .codec::<Mixed>()
        .service()
        .expect("a service")
}

/// Requests of bytes and replies of a number.
#[derive(Clone)]
enum Mixed {}

impl ibex_core::Codec<[u8]> for Mixed {
    type View = [u8];
    type Held = ();

    fn alignment() -> usize {
        64
    }

    fn schema() -> ibex_core::codec::SchemaInfo {
        <Raw as ibex_core::Codec<[u8]>>::schema()
    }

    fn size(_: &[u8]) -> Option<usize> {
        None
    }

    fn encode(
        value: &[u8],
        slot: &mut ibex_core::codec::SlotWriter<'_>,
    ) -> Result<(), ibex_core::codec::EncodeError> {
        <Raw as ibex_core::Codec<[u8]>>::encode(value, slot)
    }

    fn open(payload: &[u8]) -> Result<(), ibex_core::codec::Invalid> {
        assert_eq!(payload.as_ptr() as usize % 64, 0);
        <Raw as ibex_core::Codec<[u8]>>::open(payload)
    }

    unsafe fn view<'a>((): &'a (), payload: &'a [u8]) -> &'a [u8] {
        payload
    }
}

impl ibex_core::Codec<u64> for Mixed {
    type View = u64;
    type Held = ();

    fn alignment() -> usize {
        8
    }

    fn schema() -> ibex_core::codec::SchemaInfo {
        <Pod as ibex_core::Codec<u64>>::schema()
    }

    fn size(value: &u64) -> Option<usize> {
        <Pod as ibex_core::Codec<u64>>::size(value)
    }

    fn encode(
        value: &u64,
        slot: &mut ibex_core::codec::SlotWriter<'_>,
    ) -> Result<(), ibex_core::codec::EncodeError> {
        <Pod as ibex_core::Codec<u64>>::encode(value, slot)
    }

    fn open(payload: &[u8]) -> Result<(), ibex_core::codec::Invalid> {
        <Pod as ibex_core::Codec<u64>>::open(payload).map(drop)
    }

    unsafe fn view<'a>((): &'a (), payload: &'a [u8]) -> &'a u64 {
        ibex_core::codec::bytemuck::from_bytes(payload)
    }
}

const FABRICS: [Fabric; 2] = [Fabric::Shm, Fabric::Tcp];

/// The lengths of requests: short ones, and one with memory of its own.
const LENGTHS: [usize; 4] = [0, 1, 100, 3 << 20];

fn sum(request: &[u8]) -> u64 {
    request.iter().map(|&byte| u64::from(byte)).sum()
}

/// Calls in each way with requests of each length. The service answers with their sum, and returns
/// what they carried.
fn carried(here: NodeBuilder, there: NodeBuilder) -> Vec<(Option<TraceContext>, Metadata)> {
    let (here, there, to, from) = joined(here, there);
    let serving = thread::spawn(move || {
        let mut service = service(&from);
        let mut carried = Vec::new();
        while let Some(request) = service.next().expect("an orderly end") {
            let request = match carried.len() % 2 {
                0 => request,
                _ => request.into_owned(),
            };
            carried.push((request.trace_context(), request.metadata().clone()));
            let sum = sum(&request);
            match request.is_stream() {
                true => {
                    let mut request = request;
                    request.send(&sum).expect("sent");
                    request.end();
                }
                false => request.reply(&sum).expect("sent"),
            }
        }
        carried
    });
    let plain = caller(&to);
    let all = plain.with_metadata(metadata()).with_trace_context(trace(1));
    for length in LENGTHS {
        let request = vec![3; length];
        let expected = 3 * length as u64;
        assert_eq!(*plain.call(&request).expect("a reply"), expected);
        assert_eq!(*all.call(&request).expect("a reply"), expected);
        let mut items = all.stream(&request).expect("sent");
        let item = items.next().expect("an item").expect("one item");
        assert_eq!(*item, expected);
        assert!(items.next().expect("the end").is_none());
        let mut task = Box::pin(all.call_async(&request));
        let waker = std::task::Waker::noop();
        let mut context = std::task::Context::from_waker(waker);
        let reply = loop {
            match task.as_mut().poll(&mut context) {
                std::task::Poll::Ready(reply) => break reply,
                std::task::Poll::Pending => thread::yield_now(),
            }
        };
        assert_eq!(*reply.expect("a reply"), expected);
    }
    drop((plain, all));
    let carried = serving.join().expect("the service ends");
    for node in [here, there] {
        let _ = node.close(Duration::from_secs(60));
    }
    carried
}

#[test]
fn calls_carry_what_their_callers_were_given() {
    for fabric in FABRICS {
        for (ask, ambient) in [(false, None), (true, ambient())] {
            let here = match ask {
                false => builder(fabric),
                true => builder(fabric).trace_context(super::extension_tests::ambient),
            };
            let carried = carried(here, builder(fabric));
            let plain = (ambient, Metadata::new());
            let all = (Some(trace(1)), metadata());
            let each = [plain, all.clone(), all.clone(), all];
            let expected: Vec<_> = LENGTHS.iter().flat_map(|_| each.clone()).collect();
            assert_eq!(carried, expected, "{fabric}");
        }
    }
}

/// Opens the two channels of a caller by hand.
fn by_hand(to: &Peer) -> (SendHandle, ibex_core::extend::ReceiveHandle) {
    let channel: ChannelBuilder<Mixed> = to.channel("sum").codec();
    let replies = reply_version::<[u8], u64, Mixed>().map(MessageVersions::of_one);
    let back = extend::parts(&channel)
        .1
        .clone()
        .with_suffix(crate::error::label::REPLIES)
        .over(extend::session(to));
    let replies = extend::open_receiver(&back, replies);
    let requests = request_version::<[u8], u64, Mixed>().map(MessageVersions::of_one);
    let requests = extend::open_sender(&channel, requests);
    (requests.expect("an end"), replies.expect("an end"))
}

/// Sends a call of one byte with this extension behind it.
fn send(requests: &mut SendHandle, number: u32, kind: Kind, extension: &[u8]) {
    let id = CallId {
        number,
        generation: 1,
    };
    let mut frame = Header::new(id, kind)
        .with_time_left(None)
        .to_bytes()
        .to_vec();
    frame.resize(64, 0);
    frame.push(5);
    frame.extend_from_slice(extension);
    let sent = requests.send(Some(frame.len()), Patience::FOREVER, |slot| {
        let room = slot.get_mut(..frame.len());
        let room = room.ok_or(ibex_core::extend::Abort::Overflow)?;
        for (to, from) in room.iter_mut().zip(&frame) {
            to.write(*from);
        }
        Ok(frame.len())
    });
    assert!(sent.is_ok());
}

#[test]
fn malformed_extensions_end_their_own_calls_and_nothing_else() {
    for fabric in FABRICS {
        let (_here, _there, to, from) = joined(builder(fabric), builder(fabric));
        let malformed: [&[u8]; 6] = [
            b"",
            &[0, 3, 0],
            &[0x80, 3, 0],
            &[0, 0xff, 0xff],
            &[1, 1, 1, 1, 1, 5, 0],
            // A pair whose key is not visible.
            &[1, 0, 0, 0, b' ', 0, 8, 0],
        ];
        let serving = thread::spawn(move || {
            let mut service = service(&from);
            let request = service.next().expect("no error").expect("the valid call");
            assert_eq!(&request[..], [5]);
            assert_eq!(request.metadata().get("k"), Some(MetadataValue::Text("")));
            assert_eq!(request.trace_context(), None);
            request.reply(&5).expect("sent");
            (service.refused(), service.strays())
        });
        let (mut requests, mut replies) = by_hand(&to);
        for (number, extension) in (0..).zip(malformed) {
            send(&mut requests, number, Kind::ExtendedCall, extension);
            let reply = replies.receive(Patience::FOREVER).expect("an answer");
            let reply = Header::parse(reply.bytes()).expect("a header");
            assert_eq!((reply.id.number, reply.kind), (number, Kind::Refused));
            assert_eq!(reply.count, super::error::Refused::INVALID.0);
        }
        let number = malformed.len() as u32;
        let valid = [1, 0, 0, 0, b'k', 0, 8, 0];
        send(&mut requests, number, Kind::ExtendedCall, &valid);
        let reply = replies.receive(Patience::FOREVER).expect("an answer");
        let reply = Header::parse(reply.bytes()).expect("a header");
        assert_eq!((reply.id.number, reply.kind), (number, Kind::Reply));
        let (refused, strays) = serving.join().expect("the service ends");
        assert_eq!((refused, strays), (malformed.len() as u64, 0), "{fabric}");
    }
}

#[test]
fn messages_carry_trace_context_if_both_ends_ask_for_it() {
    for fabric in FABRICS {
        for (there_asks, expected) in [(true, ambient()), (false, None)] {
            let here = builder(fabric).trace_context(ambient);
            let (_here, _there, to, from) = joined(here, builder(fabric));
            let mut receiver = from
                .channel("bytes")
                .codec::<Raw>()
                .trace_context(there_asks)
                .receiver::<[u8]>()
                .expect("a receiver");
            let sending = thread::spawn(move || {
                let channel = to.channel("bytes").codec::<Raw>().trace_context(true);
                let mut sender = channel.sender::<[u8]>().expect("a sender");
                for length in LENGTHS {
                    sender.send(&vec![length as u8; length]).expect("sent");
                }
                let mut page = sender.loan(9).expect("room");
                page.fill(9);
                let last = page.send().expect("sent");
                sender.wait_acked(last).expect("acknowledged");
            });
            for (at, length) in LENGTHS.into_iter().enumerate() {
                let message = receiver.recv().expect("a message");
                let message = match at % 2 {
                    0 => message,
                    _ => message.into_owned(),
                };
                assert_eq!(message.trace_context(), expected, "{fabric} {length}");
                assert_eq!(message.len(), length);
                assert!(message.iter().all(|&byte| byte == length as u8));
                message.ack();
            }
            let reserved = receiver.recv().expect("a message");
            assert_eq!(
                (&reserved[..], reserved.trace_context()),
                (&[9; 9][..], None)
            );
            reserved.ack();
            sending.join().expect("the sender ends");
        }
    }
}
