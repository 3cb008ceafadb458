//! Calls leave no trace behind.

use std::{pin::Pin, sync::Arc, time::Duration};

use futures_util::{StreamExt, stream::FuturesUnordered};
use ibex::calls::{CallErrorKind, CallOptions, Caller, Execution, Request};
use ibex::prelude::*;
use ibex_harness::draw::Draw;

use super::*;

const CALLS: u64 = 10_000;

/// Makes one call in a drawn way: to its end, with too little time, or dropped on its way.
async fn call(echo: Caller<Question, Answer>, drawn: u64, number: u64) {
    let question = question(number);
    match drawn {
        0 => {
            let mut call = echo.call_async(&question);
            let _ = poll_in_task(&mut call).await;
        }
        1 => {
            let mut call = echo.call_async(&question);
            for _ in 0..3 {
                if poll_in_task(&mut call).await.is_ready() {
                    return;
                }
                yield_once().await;
            }
        }
        2 => {
            let soon = CallOptions::new().timeout(Duration::from_micros(number % 700));
            match echo.with(soon).call_async(&question).await {
                Ok(reply) => assert_eq!(reply.number, number),
                Err(error) if error.kind() == CallErrorKind::DeadlineExceeded => {}
                // The handler drops one request in five.
                Err(error)
                    if error.kind() == CallErrorKind::Unanswered && number.is_multiple_of(5) => {}
                Err(error) => assert_eq!(error.execution(), Execution::NotExecuted, "{error}"),
            }
        }
        3 => {
            let mut stream = echo.stream_async(&question).await.unwrap();
            let _ = stream.next_async().await;
        }
        _ => {
            let reply = echo.call_async(&question).await;
            match (reply, number % 5) {
                (Ok(reply), _) => assert_eq!(reply.number, number),
                (Err(error), 0) if error.kind() == CallErrorKind::Unanswered => {}
                (Err(error), _) => panic!("{error}"),
            }
        }
    }
}

async fn poll_in_task<F: Future + Unpin>(future: &mut F) -> Poll<F::Output> {
    std::future::poll_fn(|context| Poll::Ready(Pin::new(&mut *future).poll(context))).await
}

async fn yield_once() {
    let mut has_yielded = false;
    std::future::poll_fn(|context| {
        if std::mem::replace(&mut has_yielded, true) {
            return Poll::Ready(());
        }
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

#[test]
fn calls_that_end_in_every_way_leave_nothing_behind() {
    in_each_cell(
        |node, peer| {
            let calls = peer.channel("echo").max_in_flight(32);
            let echo = calls.caller::<Question, Answer>().unwrap();
            let mut draw = Draw::new(1);
            run(node, async {
                let mut under_way = FuturesUnordered::new();
                for number in 0..CALLS {
                    under_way.push(call(echo.clone(), draw.below(8), number));
                    while under_way.len() >= 100 {
                        under_way.next().await;
                    }
                }
                while under_way.next().await.is_some() {}
            });
            assert_eq!((echo.in_flight(), echo.queued()), (0, 0));
            // The line continues.
            assert_eq!(echo.call(&question(1)).unwrap().number, 1);
        },
        |node, peer| {
            let mut service = peer.service::<Question, Answer>("echo").unwrap();
            let mut draw = Draw::new(7);
            run(node, async {
                let mut held = Vec::new();
                loop {
                    let next = {
                        let mut next = std::pin::pin!(service.next_async());
                        match poll_in_task(&mut next).await {
                            Poll::Ready(next) => next.unwrap(),
                            Poll::Pending if held.is_empty() => next.await.unwrap(),
                            // The callers of the held requests may wait for exactly these answers.
                            Poll::Pending => {
                                answer(&mut draw, &mut held).await;
                                continue;
                            }
                        }
                    };
                    match next {
                        None => break,
                        Some(request) if request.is_stream() => drop(request),
                        Some(request) => held.push(request),
                    }
                    if held.len() as u64 > draw.below(4) {
                        answer(&mut draw, &mut held).await;
                    }
                }
                drop(held);
            });
            assert_eq!(service.in_progress(), 0);
            assert_eq!(service.strays(), 0);
        },
    );
}

/// Answers one of the held requests, or drops it.
async fn answer(draw: &mut Draw, held: &mut Vec<Request<Question, Answer>>) {
    let request = held.swap_remove(draw.below(held.len() as u64) as usize);
    let number: u64 = request.number.into();
    let text = String::new();
    if !number.is_multiple_of(5) || draw.below(3) != 0 {
        request.reply_async(&Answer { number, text }).await.unwrap();
    }
}

/// Dropping a caller that has clones ends nothing.
#[test]
fn a_line_lives_as_long_as_its_last_caller() {
    in_each_cell(
        |_, peer| {
            let echo = Arc::new(peer.caller::<Question, Answer>("echo").unwrap());
            let again = (*echo).clone();
            drop(echo);
            assert_eq!(again.call(&question(2)).unwrap().number, 2);
        },
        |_, peer| {
            let mut service = peer.service::<Question, Answer>("echo").unwrap();
            while let Some(request) = service.next().unwrap() {
                let number = request.number.into();
                let text = String::new();
                request.reply(&Answer { number, text }).unwrap();
            }
        },
    );
}
