//! Nodes that drain, over each fabric and under each driver.

use ibex_harness::wait_until;
use std::{
    future::Future,
    pin::{Pin, pin},
    sync::mpsc,
    task::{Context, Poll, Waker},
    thread,
    time::{Duration, Instant},
};

use ibex::prelude::*;
use ibex::{
    ConnectErrorKind, Driver, Event, Events, Fabric, Node, Peer,
    calls::{CallError, CallErrorKind, CallOptions, Execution, Request, Service},
};

use super::{LOOPBACK, over::Over};

/// Plays a test over each fabric, and under each driver of the draining node, which gets that node,
/// its one service, and a node that calls it.
fn in_each_cell(play: Play) {
    for driver in DRIVERS {
        over_each_fabric(driver, Driver::Threads, play);
    }
}

type Play = fn(&Node, Service<u64, u64>, &Node);

const DRIVERS: [Driver; 3] = [Driver::Threads, Driver::Caller, Driver::Tasks];

/// Plays a test with these drivers of the draining node and of the calling node.
fn over_each_fabric(drains: Driver, calls: Driver, play: Play) {
    let runtime = crate::runtime();
    let _entered = runtime.enter();
    for over in Over::each() {
        eprintln!("{}: {drains:?} drains, {calls:?} calls", over.fabric);
        let there = over.builder(drains).listen(LOOPBACK).build();
        let there = there.expect("a node");
        let service = there.service("double").expect("a service");
        let here = over.builder(calls).build().expect("a node");
        play(&there, service, &here);
    }
}

/// Connects while the other node runs its turns, under any driver.
fn meet(here: &Node, there: &Node) -> Peer {
    let address = there.local_addr().expect("it listens");
    thread::scope(|scope| {
        let accepting = scope.spawn(|| there.accept().expect("a peer"));
        let peer = here.connect(address).expect("it listens");
        accepting.join().expect("it accepted");
        peer
    })
}

/// Waits until the other node reports that it is told to drain.
fn hear_of_drain(events: &mut Events, there: &Node) {
    loop {
        match events.next().expect("the node is open") {
            Event::Draining { peer, .. } => break assert_eq!(peer, there.id()),
            event => assert!(matches!(event, Event::Connected { .. }), "{event}"),
        }
    }
}

fn poll_once<F: Future>(future: Pin<&mut F>) -> Poll<F::Output> {
    future.poll(&mut Context::from_waker(Waker::noop()))
}

fn assert_is_refused(error: &CallError, peer: &Peer) {
    assert_eq!(error.execution(), Execution::NotExecuted, "{error}");
    assert_eq!(error.kind(), CallErrorKind::Draining, "{error}");
    assert!(
        error.to_string().contains(&peer.address().to_string()),
        "{error}"
    );
}

#[test]
fn a_node_that_drains_answers_what_it_has_begun_and_refuses_the_rest() {
    in_each_cell(|there, mut service, here| {
        let peer = meet(here, there);
        let caller = peer.caller::<u64, u64>("double").expect("a caller");
        let mut events = here.events();
        let (begun, has_begun) = mpsc::channel();
        let (go_on, goes_on) = mpsc::channel();
        thread::scope(|scope| {
            let first = scope.spawn(|| caller.call(&21).map(|reply| u64::from(*reply)));
            let serving = scope.spawn(move || {
                let request = service.next().expect("it serves").expect("a request");
                begun.send(()).expect("somebody waits");
                goes_on.recv().expect("somebody says so");
                let doubled = 2 * u64::from(*request);
                request.reply(&doubled).expect("it goes out");
                // Every other request is refused, although this call asks for it.
                assert!(service.next().expect("an orderly end").is_none());
            });
            has_begun.recv().expect("a handler has it");
            let draining = scope.spawn(|| there.drain(Duration::MAX));
            // The drain is reported while the handler has yet to answer.
            hear_of_drain(&mut events, there);
            let refused = caller.call(&1).expect_err("it drains");
            assert_is_refused(&refused, &peer);
            assert_eq!(
                there.try_accept().expect_err("no peer").kind(),
                ConnectErrorKind::Stopped
            );
            go_on.send(()).expect("the handler waits");
            assert_eq!(first.join().expect("no panic").expect("an answer"), 42);
            let report = draining.join().expect("no panic");
            assert!(report.is_complete(), "{report}");
            assert_eq!(report.finished, 1);
            let again = there.drain(Duration::MAX);
            assert!(again.is_complete(), "{again}");
            assert_eq!(again, report);
            let report = there.close(Duration::MAX);
            assert!(report.undelivered.is_empty(), "{report}");
            serving.join().expect("no panic");
        });
        assert_is_refused(&caller.call(&1).expect_err("it drained"), &peer);
    });
}

#[test]
fn a_drain_whose_time_is_up_says_what_still_runs() {
    in_each_cell(|there, mut service, here| {
        let peer = meet(here, there);
        let caller = peer.caller::<u64, u64>("double").expect("a caller");
        thread::scope(|scope| {
            let call = scope.spawn(|| caller.call(&21).map(|reply| u64::from(*reply)));
            let request = service.next().expect("it serves").expect("a request");
            let report = there.drain(Duration::ZERO);
            assert_eq!((report.finished, report.still_running), (0, 1), "{report}");
            assert!(!report.is_complete());
            let doubled = 2 * u64::from(*request);
            request.reply(&doubled).expect("it goes out");
            let report = there.drain(Duration::MAX);
            assert!(report.is_complete(), "{report}");
            assert_eq!(call.join().expect("no panic").expect("an answer"), 42);
        });
    });
}

/// Requests that were not taken when the drain begins, and are not asked for afterwards.
#[test]
fn calls_that_no_handler_has_are_refused_by_a_drain() {
    in_each_cell(|there, mut service, here| {
        let peer = meet(here, there);
        let caller = peer.caller::<u64, u64>("double").expect("a caller");
        thread::scope(|scope| {
            let calls: Vec<_> = (0..4)
                .map(|number| {
                    scope.spawn({
                        let caller = &caller;
                        move || caller.call(&number).map(drop)
                    })
                })
                .collect();
            let request = service.next().expect("it serves").expect("a request");
            drop(request);
            let report = there.drain(Duration::MAX);
            assert!(report.is_complete(), "{report}");
            let mut outcomes = calls.into_iter().map(|call| call.join().expect("no panic"));
            let failed = |error: &CallError| error.execution() == Execution::Unknown;
            let mut dropped = 0;
            outcomes.by_ref().for_each(|outcome| {
                let error = outcome.expect_err("nobody answers");
                match failed(&error) {
                    true => dropped += 1,
                    false => assert_is_refused(&error, &peer),
                }
            });
            assert_eq!(dropped, 1, "the one that a handler dropped");
        });
    });
}

#[test]
fn a_drain_delivers_sent_messages() {
    in_each_cell(|there, _service, here| {
        let address = there.local_addr().expect("it listens");
        let (there_peer, here_peer) = thread::scope(|scope| {
            let accepting = scope.spawn(|| there.accept().expect("a peer"));
            let peer = here.connect(address).expect("it listens");
            (accepting.join().expect("it accepted"), peer)
        });
        let mut sender = there_peer.sender::<u64>("news").expect("a sender");
        let mut receiver = here_peer.receiver::<u64>("news").expect("a receiver");
        for number in 0..100 {
            sender.send(&number).expect("it is sent");
        }
        let report = there.drain(Duration::MAX);
        assert!(report.is_complete(), "{report}");
        if there_peer.fabric() != Fabric::Shm {
            assert_eq!(sender.counts().received, 100);
        }
        for number in 0..100 {
            let news = receiver.next().expect("the session lasts").expect("one");
            assert_eq!(u64::from(*news), number);
        }
    });
}

/// After dropping the future, the node continues to refuse; another future reports.
#[test]
fn an_async_drain_that_is_dropped_leaves_the_node_draining() {
    in_each_cell(|there, mut service, here| {
        let peer = meet(here, there);
        let caller = peer.caller::<u64, u64>("double").expect("a caller");
        thread::scope(|scope| {
            let call = scope.spawn(|| caller.call(&21).map(|reply| u64::from(*reply)));
            let request = service.next().expect("it serves").expect("a request");
            assert!(poll_once(pin!(there.drain_async(Duration::MAX))).is_pending());
            let late = scope.spawn(|| caller.call(&1).map(drop));
            request.reply(&42).expect("it goes out");
            let report = there.drain(Duration::MAX);
            assert!(report.is_complete(), "{report}");
            assert_eq!(call.join().expect("no panic").expect("an answer"), 42);
            let refused = late.join().expect("no panic").expect_err("it drains");
            assert_is_refused(&refused, &peer);
        });
    });
}

#[test]
fn an_async_drain_reports_as_the_blocking_one_does() {
    in_each_cell(|there, mut service, here| {
        let peer = meet(here, there);
        let caller = peer.caller::<u64, u64>("double").expect("a caller");
        let mut events = here.events();
        thread::scope(|scope| {
            let call = scope.spawn(|| caller.call(&21).map(|reply| u64::from(*reply)));
            let request = service.next().expect("it serves").expect("a request");
            let draining = scope.spawn(|| smol::block_on(there.drain_async(Duration::MAX)));
            hear_of_drain(&mut events, there);
            request.reply(&42).expect("it goes out");
            let report = draining.join().expect("no panic");
            assert!(report.is_complete(), "{report}");
            assert_eq!(report.finished, 1);
            assert_eq!(call.join().expect("no panic").expect("an answer"), 42);
        });
    });
}

/// Waiting calls end before those whose answers they wait for.
#[test]
fn calls_that_wait_for_their_turn_end_when_their_node_hears_of_a_drain() {
    for driver in DRIVERS {
        over_each_fabric(Driver::Threads, driver, |there, mut service, here| {
            let peer = meet(here, there);
            let calls = peer.channel("double").max_in_flight(1);
            let caller = calls.caller::<u64, u64>().expect("a caller");
            thread::scope(|scope| {
                let first = scope.spawn(|| caller.call(&21).map(|reply| u64::from(*reply)));
                let request = service.next().expect("it serves").expect("a request");
                let in_thread = scope.spawn(|| caller.call(&1).map(drop));
                let in_task = scope.spawn(|| smol::block_on(caller.call_async(&2)).map(drop));
                wait_until(|| caller.queued() >= 2);
                let report = there.drain(Duration::ZERO);
                assert_eq!(report.still_running, 1, "{report}");
                for waiting in [in_thread, in_task] {
                    let refused = waiting.join().expect("no panic").expect_err("it drains");
                    assert_is_refused(&refused, &peer);
                }
                request.reply(&42).expect("it goes out");
                assert_eq!(first.join().expect("no panic").expect("an answer"), 42);
            });
        });
    }
}

/// The handler was too late to answer, but has executed the call.
#[test]
fn a_call_whose_deadline_passed_in_a_handler_is_not_known_as_not_executed() {
    in_each_cell(|there, mut service, here| {
        let peer = meet(here, there);
        let caller = peer.caller::<u64, u64>("double").expect("a caller");
        thread::scope(|scope| {
            // Both ends are open once this call is answered, so that one poll sends the next.
            let first = scope.spawn(|| caller.call(&21).map(drop));
            let request = service.next().expect("it serves").expect("a request");
            request.reply(&42).expect("it goes out");
            while !first.is_finished() {
                // This call turns the engine, if callers do.
                there.poll();
                thread::yield_now();
            }
            first.join().expect("no panic").expect("an answer");
        });
        let mut timeout = Duration::from_millis(20);
        let (call, request) = loop {
            let soon = caller.with(CallOptions::new().timeout(timeout));
            let mut call = Box::pin(soon.call_async(&21));
            assert!(poll_once(call.as_mut()).is_pending());
            let until = Instant::now() + timeout;
            match next_until(there, &mut service, until) {
                Some(request) => break (call, request),
                // The machine is slow, and the service has not seen the call in time.
                None => timeout *= 2,
            }
        };
        let deadline = request.deadline().expect("the call has one");
        thread::sleep(deadline.saturating_duration_since(Instant::now()));
        request.reply(&42).expect("that nobody waits is no error");
        let report = there.drain(Duration::MAX);
        assert!(report.is_complete(), "{report}");
        let error = smol::block_on(call).expect_err("it came too late");
        assert_eq!(error.execution(), Execution::Unknown, "{error}");
    });
}

/// Returns the next request, if one comes before `until`.
fn next_until(
    there: &Node,
    service: &mut Service<u64, u64>,
    until: Instant,
) -> Option<Request<u64, u64>> {
    while Instant::now() < until {
        there.poll();
        if let Poll::Ready(next) = poll_once(pin!(service.next_async())) {
            return next.expect("it serves");
        }
        thread::yield_now();
    }
    None
}

/// The second attempt was certainly not executed, but the first one may have been.
#[test]
fn a_call_that_is_refused_when_it_is_tried_again_may_have_been_executed() {
    in_each_cell(|there, mut service, here| {
        let peer = meet(here, there);
        let caller = peer.caller::<u64, u64>("double").expect("a caller");
        let caller = caller.with(CallOptions::new().idempotent(3));
        let mut events = here.events();
        thread::scope(|scope| {
            let in_thread = scope.spawn(|| caller.call(&1).map(drop));
            let in_task = scope.spawn(|| smol::block_on(caller.call_async(&2)).map(drop));
            let mut next = || service.next().expect("it serves").expect("a request");
            let requests = [next(), next()];
            assert_eq!(there.drain(Duration::ZERO).still_running, 2);
            hear_of_drain(&mut events, there);
            drop(requests);
            let report = there.drain(Duration::MAX);
            assert!(report.is_complete(), "{report}");
            for call in [in_thread, in_task] {
                let error = call.join().expect("no panic").expect_err("nobody answers");
                assert_eq!(error.kind(), CallErrorKind::Unanswered, "{error}");
            }
        });
    });
}
