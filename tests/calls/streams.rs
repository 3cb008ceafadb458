//! Streams of replies: their order, their end, and their own back-pressure.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    thread,
};

use futures_util::StreamExt;
use ibex::prelude::*;
use ibex::{
    Raw, SendError, SendErrorKind,
    calls::{CallErrorKind, CallOptions, Request, Service},
};

use super::*;

fn item(number: u64) -> Answer {
    let text = "x".repeat((number * 37 % 300) as usize);
    Answer { number, text }
}

/// Sends as many items as the question's number says, or until the caller wants no more.
fn send_items(mut request: Request<Question, Answer>) -> Result<(), SendError> {
    let last: u64 = request.number.into();
    for number in 0..last {
        request.send(&item(number))?;
    }
    request.end();
    Ok(())
}

/// A handler that goes on after items that are too long sends as many others as the caller takes.
#[test]
fn an_item_that_cannot_be_sent_uses_no_credit_up() {
    in_each_cell(
        |_, peer| {
            let items = peer.channel("items").max_message_bytes(4096);
            let items = items.caller::<Question, Answer>().unwrap();
            let one = items.with(CallOptions::new().window(1));
            let mut replies = one.stream(&question(5)).unwrap();
            for number in 0..5 {
                assert_eq!(replies.next().unwrap().unwrap().number, number);
            }
            assert!(replies.next().unwrap().is_none());
        },
        |_, peer| {
            let items = peer.channel("items").max_message_bytes(4096);
            let mut service = items.service::<Question, Answer>().unwrap();
            while let Some(mut request) = service.next().unwrap() {
                for number in 0..request.number.into() {
                    let text = "x".repeat(8192);
                    let long = request.send(&Answer { number, text }).unwrap_err();
                    assert_eq!(long.kind(), SendErrorKind::TooLong, "{long}");
                    request.send(&item(number)).unwrap();
                }
                request.end();
            }
        },
    );
}

#[test]
fn items_come_in_order_and_end() {
    in_each_cell(
        |node, peer| {
            let items = peer.caller::<Question, Answer>("items").unwrap();
            let mut replies = items.stream(&question(1_000)).unwrap();
            for number in 0..1_000 {
                let reply = replies.next().unwrap().unwrap();
                assert_eq!(reply.number, number);
                assert_eq!(reply.text.len() as u64, number * 37 % 300);
            }
            assert!(replies.next().unwrap().is_none());
            assert!(replies.next().unwrap().is_none());
            run(node, async {
                let question = question(1_000);
                let one = items.with(CallOptions::new().window(1));
                let mut replies = one.stream_async(&question).await.unwrap();
                let mut number = 0;
                while let Some(reply) = StreamExt::next(&mut replies).await {
                    assert_eq!(reply.unwrap().number, number);
                    number += 1;
                }
                assert_eq!(number, 1_000);
            });
            assert_eq!(items.in_flight(), 0);
        },
        |_, peer| {
            let mut service = peer.service::<Question, Answer>("items").unwrap();
            while let Some(request) = service.next().unwrap() {
                send_items(request).unwrap();
            }
        },
    );
}

#[test]
fn tasks_send_streams_beside_each_other() {
    in_each_cell(
        |node, peer| {
            let items = peer.caller::<Question, Answer>("items").unwrap();
            run(node, async {
                let question = question(200);
                let mut streams = Vec::new();
                for _ in 0..10 {
                    streams.push(items.stream_async(&question).await.unwrap());
                }
                for number in 0..200 {
                    for stream in &mut streams {
                        let reply = stream.next_async().await.unwrap().unwrap();
                        assert_eq!(reply.number, number);
                    }
                }
                for mut stream in streams {
                    assert!(stream.next_async().await.unwrap().is_none());
                }
            });
        },
        |node, peer| {
            let mut service = peer.service::<Question, Answer>("items").unwrap();
            run(node, async {
                let mut requests = Vec::new();
                for _ in 0..10 {
                    requests.push(service.next_async().await.unwrap().unwrap());
                }
                let sending = requests.into_iter().map(|mut request| async move {
                    for number in 0..200 {
                        request.send_async(&item(number)).await.unwrap();
                    }
                    request.end();
                });
                futures_util::future::join_all(sending).await;
                assert!(service.next_async().await.unwrap().is_none());
            });
        },
    );
}

#[test]
fn a_stream_that_nobody_reads_stops_its_handler_and_no_other_call() {
    static SENT: AtomicU64 = AtomicU64::new(0);
    const WINDOW: u64 = 8;
    in_each_cell(
        |_, peer| {
            SENT.store(0, Ordering::SeqCst);
            let calls = peer.channel("bytes").codec::<Raw>().window_bytes(64 << 10);
            let bytes = calls.caller::<[u8], [u8]>().unwrap();
            let window = CallOptions::new().window(WINDOW as u16);
            let mut slow = bytes.with(window).stream(b"items").unwrap();
            // Replies worth several times the channel's room pass the stream that is not read.
            for _ in 0..400 {
                assert_eq!(bytes.call(b"one").unwrap().len(), 5_000);
            }
            assert!(SENT.load(Ordering::SeqCst) <= WINDOW);
            for number in 0..100 {
                let reply = slow.next().unwrap().unwrap();
                assert_eq!(*reply, [number; 5_000]);
            }
            assert!(slow.next().unwrap().is_none());
        },
        |_, peer| {
            let calls = peer.channel("bytes").codec::<Raw>().window_bytes(64 << 10);
            let mut service: Service<[u8], [u8], Raw> = calls.service().unwrap();
            let mut streaming = Vec::new();
            while let Some(mut request) = service.next().unwrap() {
                if !request.is_stream() {
                    request.reply(&[7; 5_000]).unwrap();
                    continue;
                }
                streaming.push(thread::spawn(move || {
                    for number in 0..100 {
                        request.send(&[number; 5_000]).unwrap();
                        SENT.fetch_add(1, Ordering::SeqCst);
                    }
                    request.end();
                }));
            }
            streaming.into_iter().for_each(|one| one.join().unwrap());
        },
    );
}

#[test]
fn one_thread_serves_a_stream_while_requests_wait_behind_it() {
    in_each_cell(
        |_, peer| {
            let items = peer.caller::<Question, Answer>("items").unwrap();
            let mut replies = items.stream(&question(300)).unwrap();
            thread::scope(|scope| {
                for _ in 0..40 {
                    // Each stream waits until the one before is over, since one thread serves them
                    // all.
                    scope.spawn(|| items.call(&question(5)).unwrap_err());
                }
                for number in 0..300 {
                    assert_eq!(replies.next().unwrap().unwrap().number, number);
                }
                assert!(replies.next().unwrap().is_none());
            });
        },
        |_, peer| {
            let mut service = peer.service::<Question, Answer>("items").unwrap();
            while let Some(mut request) = service.next().unwrap() {
                if request.is_stream() {
                    send_items(request).unwrap();
                } else {
                    let error = request.send(&item(1)).unwrap_err();
                    assert_eq!(error.kind(), SendErrorKind::NotAStream);
                }
            }
        },
    );
}

#[test]
fn a_dropped_stream_cancels_its_handler_and_a_failure_ends_it() {
    in_each_cell(
        |_, peer| {
            let items = peer.caller::<Question, Answer>("items").unwrap();
            for taken in [1, 7, 20] {
                let mut replies = items.stream(&question(u64::MAX)).unwrap();
                for number in 0..taken {
                    assert_eq!(replies.next().unwrap().unwrap().number, number);
                }
                drop(replies);
                assert_eq!(items.in_flight(), 0);
            }
            let mut replies = items.stream(&question(1)).unwrap();
            assert_eq!(replies.next().unwrap().unwrap().number, 0);
            let error = replies.next().unwrap_err();
            assert_eq!(error.kind(), CallErrorKind::Failed);
            assert!(
                error.failure().is_some_and(|(code, _)| code == 9),
                "{error}"
            );
            assert!(replies.next().unwrap().is_none());
        },
        |_, peer| {
            let mut service = peer.service::<Question, Answer>("items").unwrap();
            for _ in 0..3 {
                let request = service.next().unwrap().unwrap();
                let error = send_items(request).unwrap_err();
                assert_eq!(error.kind(), SendErrorKind::Cancelled, "{error}");
            }
            let mut request = service.next().unwrap().unwrap();
            request.send(&item(0)).unwrap();
            request.fail(9, "no more");
            assert!(service.next().unwrap().is_none());
            assert_eq!(service.in_progress(), 0);
        },
    );
}

/// A dropped service takes in no frames any more, so a handler could wait for ever.
#[test]
fn a_dropped_service_ends_the_wait_of_a_handler_for_its_caller() {
    in_each_cell(
        |_, peer| {
            let items = peer.caller::<Question, Answer>("items").unwrap();
            let signal = peer.caller::<Question, Answer>("signal").unwrap();
            let one = items.with(CallOptions::new().window(1));
            let mut replies = one.stream(&question(u64::MAX)).unwrap();
            signal.call(&question(0)).unwrap();
            assert_eq!(replies.next().unwrap().unwrap().number, 0);
            let error = replies.next().unwrap_err();
            assert_eq!(error.kind(), CallErrorKind::Unanswered, "{error}");
        },
        |node, _| {
            let mut signal = node.service::<Question, Answer>("signal").unwrap();
            let mut service = node.service::<Question, Answer>("items").unwrap();
            let request = service.next().unwrap().unwrap();
            let handler = thread::spawn(move || send_items(request));
            // The handler has sent what it may, and waits. Nothing tells of that.
            thread::sleep(MOMENT);
            drop(service);
            let error = handler.join().unwrap().unwrap_err();
            assert_eq!(error.kind(), SendErrorKind::Cancelled, "{error}");
            let request = signal.next().unwrap().unwrap();
            request.reply(&item(0)).unwrap();
        },
    );
}
