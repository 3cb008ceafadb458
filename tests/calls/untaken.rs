//! Callers that take no replies, and replies that cannot be sent.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use futures_util::future::join_all;
use ibex::prelude::*;
use ibex::{
    Codec, Pod, Raw, Receiver, RecvErrorKind, Schema, SendErrorKind, Sender,
    calls::{CallErrorKind, CallOptions, Caller, Execution, HandlerError, Service},
    codec::{Describer, EncodeError, Invalid, SchemaInfo, SlotWriter},
};

use super::*;

/// Frames of calls with bytes, by a hand-made peer.
#[derive(Clone)]
enum Frames {}

struct CallSchema;

impl Schema for CallSchema {
    fn describe(to: &mut Describer) {
        let bytes = |to: &mut Describer| {
            to.atom(&<Raw as Codec<[u8]>>::schema().fingerprint.to_string());
        };
        to.compound("Call", &[bytes, bytes]);
    }
}

impl Codec<[u8]> for Frames {
    type View = [u8];
    type Held = ();

    fn alignment() -> usize {
        <Raw as Codec<[u8]>>::alignment()
    }

    fn schema() -> SchemaInfo {
        SchemaInfo::of::<CallSchema>("ibex/call 1", &[])
    }

    fn size(value: &[u8]) -> Option<usize> {
        Some(value.len())
    }

    fn encode(value: &[u8], slot: &mut SlotWriter<'_>) -> Result<(), EncodeError> {
        Ok(slot.write(value)?)
    }

    fn open(_: &[u8]) -> Result<(), Invalid> {
        Ok(())
    }

    unsafe fn view<'a>((): &'a (), payload: &'a [u8]) -> &'a [u8] {
        payload
    }
}

/// A hand-made caller that takes no replies: it has opened the channel for them, with a window of
/// one, or has not.
struct Hostile {
    requests: Sender<[u8], Frames>,
    replies: Option<Receiver<[u8], Frames>>,
}

const HOSTILE_CALLS: u32 = 500;

impl Hostile {
    fn calls(peer: &Peer, opens_replies: bool) -> Self {
        let back = peer.channel("bytes/replies").window_messages(1);
        let replies = opens_replies.then(|| back.codec::<Frames>().receiver().unwrap());
        let mut requests = peer.channel("bytes").codec::<Frames>().sender().unwrap();
        for number in 0..HOSTILE_CALLS {
            let mut frame = Vec::new();
            frame.extend(number.to_le_bytes());
            frame.extend(7_u32.to_le_bytes());
            frame.push(1); // a call
            frame.extend([0; 2]);
            frame.extend([0xff; 5]); // without a deadline
            frame.extend(HOSTILE);
            requests.send(&frame[..]).unwrap();
        }
        Self { requests, replies }
    }
}

const HOSTILE: &[u8] = b"hostile";

fn service(node: &Node) -> Service<[u8], [u8], Raw> {
    node.channel("bytes").codec::<Raw>().service().unwrap()
}

fn caller(peer: &Peer) -> Caller<[u8], [u8], Raw> {
    peer.channel("bytes").codec::<Raw>().caller().unwrap()
}

/// Has another peer's calls answered beside one that takes no replies. `begun` counts the handlers
/// that the latter's calls got; they may be `most`.
fn others_are_answered(here: &Node, address: ibex::Address, begun: &AtomicU64, most: u32) {
    let mut all = Vec::new();
    for opens_replies in [true, false] {
        let before = begun.load(Ordering::Relaxed);
        let bad = here.connect(address).unwrap();
        let mut hostile = Hostile::calls(&bad, opens_replies);
        let honest = caller(&here.connect(address).unwrap());
        for _ in 0..200 {
            assert_eq!(&honest.call(b"honest").unwrap()[..], b"honest");
        }
        hostile.requests.flush().unwrap();
        let begun = begun.load(Ordering::Relaxed) - before;
        assert!(
            begun <= u64::from(most),
            "{begun} replies wait for a caller that takes none"
        );
        all.push((bad, hostile));
    }
}

#[test]
fn a_caller_that_takes_no_replies_holds_no_thread() {
    for cell in CELLS {
        eprintln!("{cell:?}");
        let there = builder(cell).listen("127.0.0.1:0").build().unwrap();
        let address = there.local_addr().unwrap();
        let begun = AtomicU64::new(0);
        thread::scope(|scope| {
            let service = service(&there);
            let serving = scope.spawn(|| {
                service.serve_blocking(2, |bytes| {
                    begun.fetch_add(u64::from(&bytes[..] == HOSTILE), Ordering::Relaxed);
                    Ok(bytes.to_vec())
                })
            });
            let here = builder(cell).build().unwrap();
            others_are_answered(&here, address, &begun, HOSTILE_CALLS / 2);
            let _ = here.close(FOR_EVER);
            let _ = there.close(FOR_EVER);
            serving.join().unwrap().expect("the node was closed");
        });
    }
}

#[test]
fn a_caller_that_takes_no_replies_holds_no_task() {
    let runtime = tokio::runtime::Builder::new_multi_thread();
    let runtime = { runtime }.worker_threads(2).enable_all().build().unwrap();
    for fabric in [Fabric::Shm, Fabric::Tcp] {
        let cell = (fabric, Driver::Threads, 1);
        let there = builder(cell).listen("127.0.0.1:0").build().unwrap();
        let address = there.local_addr().unwrap();
        let begun = Arc::new(AtomicU64::new(0));
        let counted = begun.clone();
        let entered = runtime.enter();
        let serving = service(&there).serve(move |bytes| {
            counted.fetch_add(u64::from(&bytes[..] == HOSTILE), Ordering::Relaxed);
            async move { Ok(bytes.to_vec()) }
        });
        drop(entered);
        let here = builder(cell).build().unwrap();
        // As many tasks may have begun before the first replies.
        others_are_answered(&here, address, &begun, HOSTILE_CALLS);
        let _ = here.close(FOR_EVER);
        let _ = there.close(FOR_EVER);
        runtime.block_on(serving).expect("the node was closed");
    }
}

#[test]
fn a_caller_that_takes_no_replies_is_given_up() {
    for cell in CELLS {
        eprintln!("{cell:?}");
        let there = builder(cell).session_timeout(Duration::from_secs(1));
        let there = there.listen("127.0.0.1:0").build().unwrap();
        let address = there.local_addr().unwrap();
        thread::scope(|scope| {
            let service = service(&there);
            let serving = scope.spawn(|| service.serve_blocking(1, |bytes| Ok(bytes.to_vec())));
            let here = builder(cell).build().unwrap();
            let peer = here.connect(address).unwrap();
            let narrow = peer.channel("bytes").window_messages(1).codec::<Raw>();
            let narrow = narrow.caller::<[u8], [u8]>().unwrap();
            // It lies in the channel, and fills the window.
            let held = narrow.call(b"one").unwrap();
            let error = narrow.call(b"two").unwrap_err();
            assert_eq!(error.kind(), CallErrorKind::Lost, "{error}");
            assert_eq!(error.execution(), Execution::Unknown);
            let cause = "the service gave this caller up, because its replies were not taken";
            assert!(error.to_string().contains(cause), "{error}");
            assert_eq!(&held[..], b"one");
            drop((held, narrow));
            assert_eq!(&caller(&peer).call(b"three").unwrap()[..], b"three");
            let _ = here.close(FOR_EVER);
            let _ = there.close(FOR_EVER);
            serving.join().unwrap().expect("the node was closed");
        });
    }
}

#[test]
fn a_caller_with_little_room_gets_all_replies() {
    const CALLS: usize = 300;
    in_each_cell(
        |node, peer| {
            let narrow = peer
                .channel("bytes")
                .window_bytes(64 << 10)
                .window_messages(4);
            let narrow = narrow.codec::<Raw>().caller::<[u8], [u8]>().unwrap();
            let questions: Vec<_> = (0..CALLS).map(usize::to_le_bytes).collect();
            // A reply that is kept where it came in would stop the others.
            let call = async |question| narrow.call_async(question).await.unwrap().to_vec();
            let calls = questions.iter().map(|question| call(&question[..]));
            let replies = run(node, join_all(calls));
            for (question, reply) in questions.iter().zip(replies) {
                assert_eq!(reply.len(), 16 << 10);
                assert!(reply.starts_with(question));
            }
        },
        |_, peer| {
            let service = peer.channel("bytes").codec::<Raw>().service::<[u8], [u8]>();
            let served = service.unwrap().serve_blocking(2, |bytes| {
                let mut reply = bytes.to_vec();
                reply.resize(16 << 10, 0);
                Ok(reply)
            });
            served.expect("the peer closed its caller");
        },
    );
}

#[test]
fn a_reply_that_is_too_long_is_told_with_both_lengths() {
    static EXECUTED: AtomicU64 = AtomicU64::new(0);
    in_each_cell(
        |_, peer| {
            let before = EXECUTED.load(Ordering::SeqCst);
            let short = peer.channel("bytes").max_message_bytes(1000).codec::<Raw>();
            let short = short.caller::<[u8], [u8]>().unwrap();
            let short = short.with(CallOptions::new().idempotent(2));
            // The handler is notified, too, once the channel of replies is open.
            assert_eq!(&short.call(b"short").unwrap()[..], b"short");
            let error = short.call(b"long").unwrap_err();
            assert_eq!(error.kind(), CallErrorKind::ReplyTooLong, "{error}");
            assert_eq!(error.execution(), Execution::Executed);
            assert_eq!((error.length(), error.limit()), (Some(5016), Some(1000)));
            let text = error.to_string();
            assert!(text.contains("5016") && text.contains("1000"), "{text}");
            assert_eq!(EXECUTED.load(Ordering::SeqCst), before + 1);
            let error = short.stream(b"long").unwrap().next().unwrap_err();
            assert_eq!(error.kind(), CallErrorKind::ReplyTooLong, "{error}");
            assert_eq!(&short.call(b"short").unwrap()[..], b"short");
        },
        |_, peer| {
            let service = peer.channel("bytes").codec::<Raw>().service::<[u8], [u8]>();
            let mut service = service.unwrap();
            let long = [7; 5000];
            while let Some(mut request) = service.next().unwrap() {
                match &request[..] {
                    b"long" if request.is_stream() => {
                        let error = request.send(&long).unwrap_err();
                        assert_eq!(error.kind(), SendErrorKind::TooLong, "{error}");
                    }
                    b"long" => {
                        EXECUTED.fetch_add(1, Ordering::SeqCst);
                        let error = request.reply(&long).unwrap_err();
                        assert_eq!(error.kind(), SendErrorKind::TooLong, "{error}");
                    }
                    _ => request.reply(b"short").unwrap(),
                }
            }
        },
    );
}

#[derive(Clone, Copy, ibex::Schema, ibex::bytemuck::Pod, ibex::bytemuck::Zeroable)]
#[bytemuck(crate = "ibex::bytemuck")]
#[repr(C)]
struct Tick {
    price: u64,
}

#[test]
fn handlers_return_what_owns_an_unsized_reply() {
    in_each_cell(
        |_, peer| {
            let ticks = peer.channel("ticks").codec::<Pod>();
            let ticks = ticks.caller::<u64, [Tick]>().unwrap();
            let reply = ticks.call(&3).unwrap();
            let prices = reply.iter().map(|tick| tick.price);
            assert_eq!(prices.collect::<Vec<_>>(), [0, 1, 2]);
        },
        |_, peer| {
            let service = peer.channel("ticks").codec::<Pod>();
            let service = service.service::<u64, [Tick]>().unwrap();
            let served = service.serve_blocking(2, |count| match **count {
                0 => Err(HandlerError::HandedBack),
                count => Ok((0..count).map(|price| Tick { price }).collect()),
            });
            served.expect("the peer closed its caller");
        },
    );
}

#[test]
fn a_receiver_of_a_caller_that_was_given_up_gets_what_was_sent_and_the_reason() {
    let cell = (Fabric::Tcp, Driver::Threads, 1);
    let there = builder(cell).session_timeout(Duration::from_secs(1));
    let there = there.listen("127.0.0.1:0").build().unwrap();
    let address = there.local_addr().unwrap();
    thread::scope(|scope| {
        let service = service(&there);
        let serving = scope.spawn(|| service.serve_blocking(1, |bytes| Ok(bytes.to_vec())));
        let here = builder(cell).build().unwrap();
        let peer = here.connect(address).unwrap();
        let mut hostile = Hostile::calls(&peer, true);
        let replies = hostile.replies.as_mut().unwrap();
        let first = replies.recv().unwrap();
        let error = replies.recv().unwrap_err();
        assert_eq!(error.kind(), RecvErrorKind::Disconnected, "{error}");
        assert!(error.to_string().contains("no room"), "{error}");
        assert!(first.ends_with(HOSTILE));
        drop(first);
        let _ = here.close(FOR_EVER);
        let _ = there.close(FOR_EVER);
        serving.join().unwrap().expect("the node was closed");
    });
}
