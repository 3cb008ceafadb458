//! Single requests and replies: in any order, from threads and tasks, with deadlines and
//! cancellation.

use std::{
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    thread,
    time::Instant,
};

use futures_util::{StreamExt, future::join_all, stream::FuturesUnordered};
use ibex::prelude::*;
use ibex::{
    Driver, Node, Peer, Pod,
    calls::{CallError, CallErrorKind, CallOptions, Caller, Execution, Request, Service},
};

use super::*;

/// Answers all requests of a service until its caller is gone.
fn echo(mut service: Service<Question, Answer>) {
    while let Some(request) = service.next().unwrap() {
        answer(request);
    }
}

fn answer(request: Request<Question, Answer>) {
    let reply = Answer {
        number: request.number.into(),
        text: request.text.to_string(),
    };
    request.reply(&reply).unwrap();
}

#[test]
fn a_call_is_answered() {
    in_each_cell(
        |_, peer| {
            let echo = peer.caller::<Question, Answer>("echo").unwrap();
            for number in 0..2_000 {
                let reply = echo.call(&question(number)).unwrap();
                assert_eq!(reply.number, number);
                assert_eq!(reply.text.len() as u64, number * 37 % 500);
            }
            assert_eq!((echo.in_flight(), echo.strays()), (0, 0));
        },
        |_, peer| echo(peer.service("echo").unwrap()),
    );
}

#[test]
fn a_service_serves_all_peers() {
    for cell in CELLS {
        let there = builder(cell).listen("127.0.0.1:0").build().unwrap();
        let address = there.local_addr().unwrap();
        let serving = thread::spawn(move || {
            let mut service = there.service::<Question, Answer>("echo").unwrap();
            let mut peers = std::collections::BTreeSet::new();
            for _ in 0..3 * 200 {
                let request = service.next().unwrap().unwrap();
                peers.insert(request.peer());
                answer(request);
            }
            assert_eq!(peers.len(), 3);
            // The last replies are still on their way if no thread turns the engine.
            let _ = there.close(FOR_EVER);
        });
        let calling: Vec<_> = (0..3)
            .map(|_| {
                thread::spawn(move || {
                    let here = builder(cell).build().unwrap();
                    let peer = here.connect(address).unwrap();
                    let echo = peer.caller::<Question, Answer>("echo").unwrap();
                    for number in 0..200 {
                        let reply = echo.call(&question(number)).unwrap();
                        assert_eq!(reply.number, number);
                    }
                })
            })
            .collect();
        calling.into_iter().for_each(|one| one.join().unwrap());
        serving.join().unwrap();
    }
}

#[test]
fn answers_come_in_any_order() {
    in_each_cell(
        |node, peer| {
            let echo = peer.caller::<Question, Answer>("echo").unwrap();
            run(node, async {
                for _ in 0..20 {
                    let questions: Vec<_> = (0..16).map(question).collect();
                    let calls = questions.iter().map(|question| echo.call_async(question));
                    let calls = calls.enumerate().map(|(number, call)| async move {
                        let reply = call.await.unwrap();
                        assert_eq!(reply.number, number as u64);
                        number as u64
                    });
                    let mut calls: FuturesUnordered<_> = calls.collect();
                    let mut order = Vec::new();
                    while let Some(number) = calls.next().await {
                        order.push(number);
                    }
                    assert_eq!(order.len(), 16);
                    assert!(!order.is_sorted(), "they were answered backwards");
                }
            });
        },
        |node, peer| {
            let mut service = peer.service::<Question, Answer>("echo").unwrap();
            run(node, async {
                for _ in 0..20 {
                    let mut requests = Vec::new();
                    for _ in 0..16 {
                        requests.push(service.next_async().await.unwrap().unwrap());
                    }
                    for request in requests.into_iter().rev() {
                        answer(request);
                    }
                }
                assert!(service.next_async().await.unwrap().is_none());
            });
        },
    );
}

#[test]
fn threads_and_tasks_share_a_caller() {
    in_each_cell(
        |node, peer| {
            let echo = peer.caller::<Question, Answer>("echo").unwrap();
            let call = |echo: Caller<Question, Answer>, from: u64| {
                for number in from..from + 300 {
                    assert_eq!(echo.call(&question(number)).unwrap().number, number);
                }
            };
            thread::scope(|scope| {
                for from in [1_000, 2_000, 3_000] {
                    let echo = echo.clone();
                    scope.spawn(move || call(echo, from));
                }
                let questions: Vec<_> = (0..300).map(question).collect();
                let calls = questions.iter().map(|question| echo.call_async(question));
                for (number, reply) in run(node, join_all(calls)).into_iter().enumerate() {
                    assert_eq!(reply.unwrap().number, number as u64);
                }
            });
            assert_eq!(echo.in_flight(), 0);
        },
        |_, peer| echo(peer.service("echo").unwrap()),
    );
}

#[test]
fn tokio_tasks_call_and_serve() {
    for cell in CELLS.into_iter().filter(|cell| cell.1 == Driver::Threads) {
        in_cell(
            cell,
            |_, peer| {
                let echo = peer.caller::<Question, Answer>("echo").unwrap();
                runtime().block_on(async {
                    let tasks = (0..500).map(|number| {
                        let echo = echo.clone();
                        tokio::spawn(async move {
                            let question = question(number);
                            let reply = echo.call_async(&question).await.unwrap();
                            assert_eq!(reply.number, number);
                        })
                    });
                    for task in tasks.collect::<Vec<_>>() {
                        task.await.unwrap();
                    }
                });
                assert_eq!(echo.in_flight(), 0);
            },
            |_, peer| {
                let mut service = peer.service::<Question, Answer>("echo").unwrap();
                runtime().block_on(async {
                    while let Some(request) = service.next_async().await.unwrap() {
                        tokio::spawn(async move {
                            tokio::task::yield_now().await;
                            let number = request.number.into();
                            let text = String::new();
                            request.reply_async(&Answer { number, text }).await.unwrap();
                        });
                    }
                });
            },
        );
    }
}

fn runtime() -> tokio::runtime::Runtime {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    builder.worker_threads(2).enable_all().build().unwrap()
}

#[test]
fn plain_data_and_long_replies_are_read_where_they_lie() {
    in_each_cell(
        |_, peer| {
            let calls = peer.channel("counting").codec::<Pod>();
            let counting = calls.caller::<u64, [u64]>().unwrap();
            for count in [0, 1, 1_000, 100_000, 1_000_000] {
                let reply = counting.call(&count).unwrap();
                assert!(reply.iter().copied().eq(0..count));
                let kept = reply.into_owned();
                assert!(kept.iter().copied().eq(0..count));
            }
        },
        |_, peer| {
            let calls = peer.channel("counting").codec::<Pod>();
            let mut service = calls.service::<u64, [u64]>().unwrap();
            while let Some(request) = service.next().unwrap() {
                let numbers: Vec<u64> = (0..*request).collect();
                request.reply(&numbers).unwrap();
            }
        },
    );
}

#[test]
fn a_deadline_travels_and_ends_the_handler() {
    static ENDED: AtomicU64 = AtomicU64::new(0);
    /// Calls with growing time-outs, until a handler has had a request and lost it.
    fn until_ended(mut call: impl FnMut(CallOptions) -> CallError) {
        let ended = ENDED.load(Ordering::SeqCst);
        let mut timeout = MOMENT;
        while ENDED.load(Ordering::SeqCst) == ended {
            let error = call(CallOptions::new().timeout(timeout));
            // If the machine had no time for the call, it was not executed.
            assert_eq!(error.kind(), CallErrorKind::DeadlineExceeded, "{error}");
            assert_ne!(error.execution(), Execution::Executed);
            timeout *= 2;
        }
    }
    in_each_cell(
        |node, peer| {
            let echo = peer.caller::<Question, Answer>("echo").unwrap();
            until_ended(|options| echo.with(options).call(&question(2)).unwrap_err());
            until_ended(|options| {
                run(node, echo.with(options).call_async(&question(3))).unwrap_err()
            });
            assert_eq!(echo.in_flight(), 0);
            echo.call(&question(4)).unwrap();
        },
        |node, peer| {
            let mut service = peer.service::<Question, Answer>("echo").unwrap();
            while let Some(request) = service.next().unwrap() {
                if let Some(deadline) = request.deadline() {
                    run(node, request.cancelled());
                    assert!(request.is_cancelled());
                    assert!(deadline > Instant::now() - FOR_EVER);
                    ENDED.fetch_add(1, Ordering::SeqCst);
                }
                // The caller may have left, which is no fault of the handler's.
                answer(request);
            }
        },
    );
}

#[test]
fn a_deadline_ends_the_handler_of_a_caller_that_says_nothing() {
    // The caller's process does not run, so only the handler's own clock can end the handler.
    for cell in CELLS {
        let there = builder(cell).listen("127.0.0.1:0").build().unwrap();
        let address = there.local_addr().unwrap();
        let here = builder((cell.0, Driver::Caller, 1)).build().unwrap();
        let (tell, told) = std::sync::mpsc::channel();
        let serving = thread::spawn(move || {
            let peer = there.accept().unwrap();
            let mut service = peer.service::<Question, Answer>("echo").unwrap();
            let request = service.next().unwrap().unwrap();
            tell.send(()).unwrap();
            run(&there, request.cancelled());
            assert!(Instant::now() >= request.deadline().unwrap());
            tell.send(()).unwrap();
        });
        let peer = here.connect(address).unwrap();
        let echo = peer.caller::<Question, Answer>("echo").unwrap();
        let echo = echo.with(CallOptions::new().timeout(60 * MOMENT));
        let question = question(1);
        let mut call = echo.call_async(&question);
        until(&here, || {
            assert!(poll_once(&mut call).is_pending());
            told.try_recv().is_ok()
        });
        told.recv().unwrap();
        drop(call);
        drop(here);
        serving.join().unwrap();
    }
}

#[test]
fn a_dropped_future_cancels_its_call() {
    in_each_cell(
        |node, peer| {
            let echo = peer.caller::<Question, Answer>("echo").unwrap();
            echo.call(&question(0)).unwrap();
            for number in 1..20 {
                let question = question(number);
                let mut call = echo.call_async(&question);
                // The answer may come while the call is polled.
                if poll_once(&mut call).is_pending() {
                    assert_eq!(echo.in_flight(), 1);
                }
                drop(call);
                assert_eq!(echo.in_flight(), 0);
                // A call that was polled once has gone out or not; the next call goes behind it.
                while node.poll() {}
            }
            // A call that was never polled has sent nothing.
            drop(echo.call_async(&question(1_000)));
            echo.call(&question(20)).unwrap();
        },
        |node, peer| {
            let mut service = peer.service::<Question, Answer>("echo").unwrap();
            answer(service.next().unwrap().unwrap());
            while let Some(request) = service.next().unwrap() {
                let number: u64 = request.number.into();
                assert!(number <= 20, "it was never sent");
                if number == 20 {
                    assert!(!request.is_cancelled());
                } else {
                    run(node, request.cancelled());
                }
                answer(request);
            }
        },
    );
}

#[test]
fn no_more_calls_are_under_way_than_may_be() {
    static STAGE: AtomicU64 = AtomicU64::new(0);
    static MOST: AtomicU64 = AtomicU64::new(0);
    in_each_cell(
        |node, peer| {
            STAGE.store(0, Ordering::SeqCst);
            let calls = peer.channel("echo").max_in_flight(4);
            let echo = calls.caller::<Question, Answer>().unwrap();
            let questions: Vec<_> = (1..=100).map(question).collect();
            let mut calls: Vec<_> = questions.iter().map(|one| echo.call_async(one)).collect();
            for call in &mut calls[..10] {
                assert!(poll_once(call).is_pending());
            }
            assert_eq!(echo.in_flight(), 4);
            assert_eq!(echo.queued(), 6);
            // The service has received the four calls that may be in flight.
            until(node, || {
                calls[..10]
                    .iter_mut()
                    .for_each(|call| assert!(poll_once(call).is_pending()));
                STAGE.load(Ordering::SeqCst) == 1
            });
            // Two waiting calls leave, in front of one that stays.
            calls.drain(5..7);
            assert_eq!(echo.queued(), 4);
            STAGE.store(2, Ordering::SeqCst);
            for reply in run(node, join_all(calls)) {
                reply.unwrap();
            }
            // Threads wait for their turn as well.
            thread::scope(|scope| {
                for _ in 0..12 {
                    scope.spawn(|| {
                        for number in 0..20 {
                            echo.call(&question(number)).unwrap();
                        }
                    });
                }
            });
            assert_eq!((echo.in_flight(), echo.queued()), (0, 0));
            assert!(MOST.load(Ordering::SeqCst) <= 4);
        },
        |node, peer| {
            let mut service = peer.service::<Question, Answer>("echo").unwrap();
            let held: Vec<_> = (0..4).map(|_| service.next().unwrap().unwrap()).collect();
            STAGE.store(1, Ordering::SeqCst);
            until(node, || STAGE.load(Ordering::SeqCst) == 2);
            held.into_iter().for_each(answer);
            while let Some(request) = service.next().unwrap() {
                MOST.fetch_max(service.in_progress() as u64, Ordering::SeqCst);
                answer(request);
            }
        },
    );
}

#[test]
fn a_call_of_a_service_that_nobody_offers_says_so_at_its_deadline() {
    in_each_cell(
        |node, peer| {
            let soon = CallOptions::new().timeout(MOMENT);
            let nobody = peer
                .caller::<Question, Answer>("nobody")
                .unwrap()
                .with(soon);
            let of_thread = nobody.call(&question(1)).unwrap_err();
            let of_task = run(node, nobody.call_async(&question(2))).unwrap_err();
            for error in [of_thread, of_task] {
                assert_eq!(error.execution(), Execution::NotExecuted);
                let text = error.to_string();
                assert!(
                    text.contains("no service of the peer has met this caller"),
                    "{text}"
                );
            }
            let last = peer.caller::<Question, Answer>("last").unwrap();
            last.call(&question(3)).unwrap();
        },
        |node, _| {
            let mut last = node.service::<Question, Answer>("last").unwrap();
            answer(last.next().unwrap().unwrap());
        },
    );
}

#[test]
fn a_call_without_a_turn_is_late_and_was_not_executed() {
    static ARE_LATE: AtomicBool = AtomicBool::new(false);
    in_each_cell(
        |node, peer| {
            ARE_LATE.store(false, Ordering::SeqCst);
            let calls = peer.channel("echo").max_in_flight(1);
            let echo = calls.caller::<Question, Answer>().unwrap();
            let first = question(1);
            let mut first = echo.call_async(&first);
            assert!(poll_once(&mut first).is_pending());
            let soon = echo.with(CallOptions::new().timeout(MOMENT));
            for late in [
                soon.call(&question(2)).unwrap_err(),
                run(node, soon.call_async(&question(3))).unwrap_err(),
            ] {
                assert_eq!(late.kind(), CallErrorKind::DeadlineExceeded, "{late}");
                assert_eq!(late.execution(), Execution::NotExecuted);
            }
            ARE_LATE.store(true, Ordering::SeqCst);
            assert_eq!(run(node, first).unwrap().number, 1);
        },
        |node, peer| {
            let mut service = peer.service::<Question, Answer>("echo").unwrap();
            let request = service.next().unwrap().unwrap();
            until(node, || ARE_LATE.load(Ordering::SeqCst));
            answer(request);
            assert!(service.next().unwrap().is_none());
        },
    );
}

#[allow(dead_code, reason = "it is compiled")]
fn callers_and_requests_go_to_other_threads() {
    fn goes<T: Send>() {}
    fn is_shared<T: Send + Sync>() {}
    is_shared::<Caller<Question, Answer>>();
    goes::<Service<Question, Answer>>();
    goes::<Request<Question, Answer>>();
    goes::<ibex::calls::Reply<Answer>>();
    goes::<ibex::calls::Replies<Answer>>();
    fn call_goes(echo: &Caller<Question, Answer>, question: &Question) -> impl Send {
        echo.call_async(question)
    }
    let _: fn(&Node, &Peer) = |_, _| {};
}
