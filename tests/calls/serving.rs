//! Services whose handlers return the reply: in threads, and in tasks of tokio.

use std::{
    panic,
    sync::{
        Arc, Barrier,
        atomic::{AtomicU64, Ordering},
    },
};

use futures_util::future::join_all;
use ibex::calls::{CallError, CallErrorKind, Caller, Execution, HandlerError, Request};
use ibex::prelude::*;
use tokio::{
    runtime::{Builder, Runtime},
    sync::{Notify, Semaphore, mpsc},
    task::yield_now,
};

use super::*;

const FAILS: u64 = 1;
const HANDS_BACK: u64 = 2;
const PANICS: u64 = 3;

/// Answers as the question's number asks for.
fn answer(number: u64) -> Result<u64, HandlerError> {
    match number {
        FAILS => Err(HandlerError::failed(404, "there is no such number")),
        HANDS_BACK => Err(HandlerError::HandedBack),
        PANICS => panic::resume_unwind(Box::new("planted: a handler panics")),
        _ => Ok(2 * number),
    }
}

/// Checks what a caller learns of `answer`.
fn check(number: u64, answer: Result<u64, CallError>) {
    match number {
        FAILS => {
            let failure = (404, "there is no such number");
            assert_eq!(answer.unwrap_err().failure(), Some(failure));
        }
        HANDS_BACK => {
            let error = answer.unwrap_err();
            assert_eq!(error.kind(), CallErrorKind::HandedBack, "{error}");
            assert_eq!(error.execution(), Execution::NotExecuted);
        }
        PANICS => {
            let error = answer.unwrap_err();
            assert_eq!(error.kind(), CallErrorKind::Unanswered, "{error}");
        }
        _ => assert_eq!(answer.unwrap(), 2 * number),
    }
}

/// More of each kind than there are threads.
fn numbers() -> impl Iterator<Item = u64> {
    (0..100).map(|index| index % 10)
}

// ---- Threads -------------------------------------------------------------------------------

#[test]
fn threads_answer_by_what_the_handler_returns() {
    in_each_cell(
        |node, peer| {
            let double = peer.caller::<u64, u64>("double").unwrap();
            for number in numbers() {
                check(number, double.call(&number).map(|reply| reply.to_native()));
            }
            run(node, async {
                let numbers: Vec<_> = numbers().collect();
                let calls = numbers.iter().map(|number| double.call_async(number));
                for (number, reply) in numbers.iter().zip(join_all(calls).await) {
                    check(*number, reply.map(|reply| reply.to_native()));
                }
            });
        },
        |_, peer| {
            let service = peer.service::<u64, u64>("double").unwrap();
            let served = service.serve_blocking(3, |number| answer(number.to_native()));
            served.expect("the peer closed its caller");
        },
    );
}

#[test]
fn as_many_threads_handle_requests_as_there_are() {
    static RUNNING: AtomicU64 = AtomicU64::new(0);
    static MOST: AtomicU64 = AtomicU64::new(0);
    in_each_cell(
        |node, peer| {
            let double = peer.caller::<u64, u64>("double").unwrap();
            let calls = [4; 9].iter().map(|number| double.call_async(number));
            let calls = calls.collect::<Vec<_>>();
            for reply in run(node, join_all(calls)) {
                assert_eq!(reply.unwrap().to_native(), 8);
            }
        },
        |_, peer| {
            let service = peer.service::<u64, u64>("double").unwrap();
            let together = Barrier::new(3);
            let served = service.serve_blocking(3, |number| {
                let running = RUNNING.fetch_add(1, Ordering::SeqCst) + 1;
                MOST.fetch_max(running, Ordering::SeqCst);
                together.wait();
                RUNNING.fetch_sub(1, Ordering::SeqCst);
                answer(number.to_native())
            });
            served.expect("the peer closed its caller");
            assert_eq!(MOST.load(Ordering::SeqCst), 3);
        },
    );
}

#[test]
fn an_error_ends_all_threads() {
    in_each_cell(
        |_, peer| {
            let other = peer.caller::<u64, String>("double").unwrap();
            other.call(&1).expect_err("the replies have other types");
        },
        |_, peer| {
            let service = peer.service::<u64, u64>("double").unwrap();
            let served = service.serve_blocking(3, |number| answer(number.to_native()));
            served.expect_err("the replies have other types");
        },
    );
}

#[test]
fn a_drain_lets_threads_finish() {
    let there = Node::listen("127.0.0.1:0").unwrap();
    let here = Node::client().unwrap();
    let service = there.service::<u64, u64>("double").unwrap();
    let peer = here.connect(there.local_addr().unwrap()).unwrap();
    let double = peer.caller::<u64, u64>("double").unwrap();
    let (begun, go_on) = (Barrier::new(2), Barrier::new(2));
    thread::scope(|scope| {
        let first = scope.spawn(|| double.call(&FIRST).map(|reply| reply.to_native()));
        let serving = scope.spawn(|| {
            service.serve_blocking(2, |number| {
                if number.to_native() == FIRST {
                    begun.wait();
                    go_on.wait();
                }
                answer(number.to_native())
            })
        });
        begun.wait();
        let draining = scope.spawn(|| there.drain(Duration::MAX));
        let refused = loop {
            match double.call(&4) {
                Ok(_) => thread::yield_now(),
                Err(error) => break error,
            }
        };
        assert_eq!(refused.kind(), CallErrorKind::Draining, "{refused}");
        go_on.wait();
        assert_eq!(first.join().unwrap().unwrap(), 2 * FIRST);
        assert!(draining.join().unwrap().is_complete());
        let _ = there.close(FOR_EVER);
        serving.join().unwrap().expect("the node was closed");
    });
}

// ---- Tasks ---------------------------------------------------------------------------------

/// Plays a test in each kind of runtime, over each fabric, under the drivers that have turns of
/// their own. It gets the serving node, and another node's session with it.
fn in_each_runtime<F: Future<Output = ()>>(play: impl Fn(Node, Peer) -> F) {
    for driver in [Driver::Tasks, Driver::Threads] {
        for fabric in [Fabric::Shm, Fabric::Tcp] {
            for runtime in [one_thread(), two_threads()] {
                eprintln!(
                    "{driver:?} {fabric:?} {:?}",
                    runtime.handle().runtime_flavor()
                );
                runtime.block_on(async {
                    let builder = || builder((fabric, driver, 1));
                    let there = builder().listen("127.0.0.1:0").build().unwrap();
                    let here = builder().build().unwrap();
                    let address = there.local_addr().unwrap();
                    play(there, here.connect_async(address).await.unwrap()).await;
                    let _ = here.close_async(FOR_EVER).await;
                });
            }
        }
    }
}

fn one_thread() -> Runtime {
    Builder::new_current_thread().enable_all().build().unwrap()
}

fn two_threads() -> Runtime {
    let mut builder = Builder::new_multi_thread();
    builder.worker_threads(2).enable_all().build().unwrap()
}

async fn ask(double: &Caller<u64, u64>, number: u64) -> Result<u64, CallError> {
    Ok(double.call_async(&number).await?.to_native())
}

/// Asks in a task of its own.
fn begin(
    double: &Caller<u64, u64>,
    number: u64,
) -> tokio::task::JoinHandle<Result<u64, CallError>> {
    let double = double.clone();
    tokio::spawn(async move { ask(&double, number).await })
}

/// Asks until a call fails.
async fn until_refused(double: &Caller<u64, u64>) -> CallError {
    loop {
        match ask(double, 4).await {
            Ok(_) => yield_now().await,
            Err(error) => break error,
        }
    }
}

/// The number of a question whose handler waits.
const FIRST: u64 = 7;

/// A handler whose first request waits.
struct Waiting {
    begun: Notify,
    go_on: Notify,
}

impl Waiting {
    fn new() -> Arc<Self> {
        let (begun, go_on) = (Notify::new(), Notify::new());
        Arc::new(Self { begun, go_on })
    }

    async fn answer(self: Arc<Self>, number: u64) -> Result<u64, HandlerError> {
        if number == FIRST {
            self.begun.notify_one();
            self.go_on.notified().await;
        }
        answer(number)
    }
}

#[test]
fn tasks_answer_by_what_the_handler_returns() {
    in_each_runtime(|there, peer| async move {
        let service = there.service::<u64, u64>("double").unwrap();
        let serving = service.serve(|number| async move {
            yield_now().await;
            answer(number.to_native())
        });
        let double = peer.caller::<u64, u64>("double").unwrap();
        let calls = numbers().map(|number| (number, begin(&double, number)));
        for (number, call) in calls.collect::<Vec<_>>() {
            check(number, call.await.unwrap());
        }
        let _ = there.close_async(FOR_EVER).await;
        serving.await.expect("the node was closed");
    });
}

#[test]
fn no_more_than_1024_tasks_handle_requests() {
    const CALLS: u64 = 1056;
    in_each_runtime(|there, peer| async move {
        let (running, most) = (AtomicU64::new(0), AtomicU64::new(0));
        let state = Arc::new((running, most, Semaphore::new(0)));
        let service = there.channel("double").max_in_flight(2048);
        let service = service.service::<u64, u64>().unwrap();
        let handled = state.clone();
        let serving = service.serve(move |number| {
            let handled = handled.clone();
            async move {
                let (running, most, go_on) = &*handled;
                most.fetch_max(running.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                let _may = go_on.acquire().await.expect("it is not closed");
                running.fetch_sub(1, Ordering::SeqCst);
                answer(number.to_native())
            }
        });
        let double = peer.channel("double").max_in_flight(2048);
        let double = double.caller::<u64, u64>().unwrap();
        let calls: Vec<_> = (0..CALLS).map(|_| begin(&double, 4)).collect();
        let (running, most, go_on) = &*state;
        while running.load(Ordering::SeqCst) < 1024 || double.in_flight() < CALLS as usize {
            yield_now().await;
        }
        go_on.add_permits(1);
        for call in calls {
            assert_eq!(call.await.unwrap().unwrap(), 8);
        }
        assert_eq!(most.load(Ordering::SeqCst), 1024);
        serving.shutdown().await.expect("it was served");
    });
}

#[test]
fn a_service_that_is_stopped_answers_what_handlers_have() {
    for waits in [true, false] {
        in_each_runtime(|there, peer| async move {
            let waiting = Waiting::new();
            let service = there.service::<u64, u64>("double").unwrap();
            let serving = service.serve({
                let waiting = waiting.clone();
                move |number| waiting.clone().answer(number.to_native())
            });
            let double = peer.caller::<u64, u64>("double").unwrap();
            let first = begin(&double, FIRST);
            waiting.begun.notified().await;
            let stopping = match waits {
                true => Some(tokio::spawn(serving.shutdown())),
                false => {
                    drop(serving);
                    None
                }
            };
            let refused = until_refused(&double).await;
            assert_eq!(refused.kind(), CallErrorKind::HandedBack, "{refused}");
            if let Some(stopping) = &stopping {
                assert!(!stopping.is_finished(), "a handler has a request");
            }
            waiting.go_on.notify_one();
            assert_eq!(first.await.unwrap().unwrap(), 2 * FIRST);
            if let Some(stopping) = stopping {
                stopping.await.unwrap().expect("it was served");
            }
        });
    }
}

#[test]
fn a_drain_lets_tasks_finish() {
    in_each_runtime(|there, peer| async move {
        let waiting = Waiting::new();
        let service = there.service::<u64, u64>("double").unwrap();
        let serving = service.serve({
            let waiting = waiting.clone();
            move |number| waiting.clone().answer(number.to_native())
        });
        let double = peer.caller::<u64, u64>("double").unwrap();
        let first = begin(&double, FIRST);
        waiting.begun.notified().await;
        let draining = tokio::spawn({
            let there = there.clone();
            async move { there.drain_async(Duration::MAX).await }
        });
        let refused = until_refused(&double).await;
        assert_eq!(refused.kind(), CallErrorKind::Draining, "{refused}");
        waiting.go_on.notify_one();
        assert_eq!(first.await.unwrap().unwrap(), 2 * FIRST);
        let drained = draining.await.unwrap();
        assert!(drained.is_complete(), "{drained}");
        let _ = there.close_async(FOR_EVER).await;
        serving.await.expect("the node was closed");
    });
}

#[test]
fn a_peer_that_leaves_ends_its_own_calls_alone() {
    in_each_runtime(|there, peer| async move {
        let (tell, mut told) = mpsc::unbounded_channel();
        let service = there.service::<u64, u64>("double").unwrap();
        let serving = service.serve(move |number: Arc<Request<u64, u64>>| {
            let tell = tell.clone();
            async move {
                if number.to_native() == FIRST {
                    tell.send("begins").unwrap();
                    number.cancelled().await;
                    tell.send("is cancelled").unwrap();
                }
                answer(number.to_native())
            }
        });
        let other = Node::builder().driver(Driver::Threads).build().unwrap();
        let leaving = other
            .connect_async(there.local_addr().unwrap())
            .await
            .unwrap();
        let first = begin(&leaving.caller("double").unwrap(), FIRST);
        assert_eq!(told.recv().await, Some("begins"));
        let _ = leaving.close_async(Duration::ZERO).await;
        assert_eq!(told.recv().await, Some("is cancelled"));
        first.await.unwrap().expect_err("its session is over");
        let double = peer.caller::<u64, u64>("double").unwrap();
        assert_eq!(ask(&double, 4).await.unwrap(), 8);
        serving.shutdown().await.expect("it was served");
    });
}

#[test]
fn an_error_ends_the_service_of_one_peer() {
    in_each_runtime(|there, peer| async move {
        let here = there.accept_async().await.unwrap();
        let service = here.service::<u64, u64>("double").unwrap();
        let mut serving = service.serve(|number| async move { answer(number.to_native()) });
        let other = peer.caller::<u64, String>("double").unwrap();
        let error = other.call_async(&1).await;
        error.expect_err("the replies have other types");
        (&mut serving)
            .await
            .expect_err("the replies have other types");
        serving.shutdown().await.expect("its error was returned");
    });
}

#[test]
fn a_request_that_the_program_keeps_has_no_reply() {
    in_each_runtime(|there, peer| async move {
        let (keep, mut kept) = mpsc::unbounded_channel();
        let service = there.service::<u64, u64>("double").unwrap();
        let serving = service.serve(move |number: Arc<Request<u64, u64>>| {
            keep.send(number.clone()).expect("somebody keeps it");
            async move { answer(number.to_native()) }
        });
        let double = peer.caller::<u64, u64>("double").unwrap();
        let call = begin(&double, FIRST);
        let kept = kept.recv().await.expect("a request");
        while Arc::strong_count(&kept) > 1 {
            yield_now().await;
        }
        drop(kept);
        let error = call.await.unwrap().unwrap_err();
        assert_eq!(error.kind(), CallErrorKind::Unanswered, "{error}");
        serving.shutdown().await.expect("it was served");
    });
}
