//! Calls that are sent to a second peer while the first takes long.

use ibex_harness::wait_until;
use std::{
    future::poll_fn,
    ops::Range,
    panic::{self, AssertUnwindSafe},
    sync::mpsc::{self, Receiver, Sender},
    task::Poll,
};

use futures_util::future::select;
use ibex::calls::CallError;
use ibex::prelude::*;
use tower_service::Service;

use super::*;

/// The way in which a program calls.
#[derive(Clone, Copy, Debug)]
enum Form {
    Thread,
    Task,
    Tower,
}

const FORMS: [Form; 3] = [Form::Thread, Form::Task, Form::Tower];

type Answer = Result<u64, CallError>;

fn call(node: &Node, put: &PeersCaller<u64, u64>, number: u64, form: Form) -> Answer {
    let reply = match form {
        Form::Thread => put.call(&number),
        Form::Task => run(node, put.call_async(&number)),
        Form::Tower => run(node, Service::call(&mut put.clone(), number)),
    };
    reply.map(|reply| reply.to_native())
}

/// Requests that replicas hold instead of answering them, by their number.
struct Held {
    numbers: Range<u64>,
    /// How often each number was held.
    times: Mutex<BTreeMap<u64, usize>>,
    most: usize,
    requests: Mutex<Sender<Request<u64, u64>>>,
}

impl Held {
    /// Holds the first `most` requests of each of the numbers.
    fn first(most: usize, numbers: Range<u64>) -> (Arc<Self>, Receiver<Request<u64, u64>>) {
        let (requests, held) = mpsc::channel();
        let holds = Self {
            numbers,
            times: Mutex::default(),
            most,
            requests: Mutex::new(requests),
        };
        (Arc::new(holds), held)
    }

    /// Starts a replica that holds requests so, and answers all others.
    fn replica(self: &Arc<Self>, cell: Cell) -> Replica {
        let holds = self.clone();
        Replica::start(cell, ANY, move |_, request| holds.handle(request))
    }

    fn handle(&self, request: Request<u64, u64>) {
        let number = request.to_native();
        if !self.numbers.contains(&number) {
            return answer(request);
        }
        let mut times = self.times.lock().unwrap();
        let times = times.entry(number).or_default();
        *times += 1;
        match *times <= self.most {
            true => self.requests.lock().unwrap().send(request).unwrap(),
            false => answer(request),
        }
    }
}

/// The calls after which calls are hedged.
const ENOUGH: u64 = 100;
/// The number of the call that is held.
const HELD: u64 = 1000;

/// Returns a caller whose idempotent calls are hedged, as soon as they take longer than quick ones.
/// All replicas have opened the service.
fn hedging(
    node: &Node,
    put: &PeersCaller<u64, u64>,
    replicas: &[&Replica],
) -> PeersCaller<u64, u64> {
    while replicas.iter().any(|replica| replica.got().is_empty()) {
        assert_eq!(call(node, put, 0, Form::Thread).unwrap(), 0);
    }
    let put = again(put, 1).hedge_after_percentile(95);
    for number in 0..ENOUGH {
        let form = FORMS[number as usize % FORMS.len()];
        assert_eq!(call(node, &put, number, form).unwrap(), number);
    }
    assert_eq!(put.hedges_sent(), 0, "too few calls are known");
    put
}

/// Returns a caller of calls that may be sent again so often.
fn again(put: &PeersCaller<u64, u64>, times: u32) -> PeersCaller<u64, u64> {
    put.with(CallOptions::new().timeout(FOR_EVER).idempotent(times))
}

/// Closes all nodes, and returns how often handlers got the number of the call that was held.
fn close<const N: usize>(node: &Node, replicas: [Replica; N]) -> usize {
    let _ = node.close(FOR_EVER);
    let got = replicas.into_iter().flat_map(|one| one.close(node));
    got.filter(|number| *number == HELD).count()
}

fn next(node: &Node, held: &Receiver<Request<u64, u64>>) -> Request<u64, u64> {
    let mut request = None;
    until(node, || {
        request = held.try_recv().ok();
        request.is_some()
    });
    request.expect("it was received")
}

#[test]
fn the_first_answer_counts_and_the_other_call_is_cancelled() {
    let mut won = 0;
    for cell in CELLS {
        for form in FORMS {
            let (holds, held) = Held::first(1, HELD..HELD + 1);
            let replicas = [(); 2].map(|()| holds.replica(cell));
            let node = builder(cell).build().unwrap();
            let (_peers, put) = keep(&node, &replicas.each_ref());
            let put = hedging(&node, &put, &replicas.each_ref());
            assert_eq!(call(&node, &put, HELD, form).unwrap(), HELD);
            assert_eq!(put.hedges_sent(), 1);
            // A hedge may be handled sooner than the call itself, and is the one held then.
            won += put.hedges_won();
            let first = next(&node, &held);
            until(&node, || first.is_cancelled());
            drop(first);
            assert_eq!(close(&node, replicas), 2, "{cell:?} {form:?}");
        }
    }
    assert!(won > 0, "no hedge is ever the sooner one");
}

#[test]
fn a_peer_that_hangs_is_not_drawn_for_half_of_the_calls() {
    for cell in CELLS {
        for form in FORMS {
            let (hangs, held) = Held::first(usize::MAX, HELD..2 * HELD);
            let (answers, _) = Held::first(0, 0..0);
            let replicas = [hangs.replica(cell), answers.replica(cell)];
            let node = builder(cell).build().unwrap();
            let (_peers, put) = keep(&node, &replicas.each_ref());
            let put = hedging(&node, &put, &replicas.each_ref());
            for number in HELD..HELD + 300 {
                assert_eq!(call(&node, &put, number, form).unwrap(), number);
            }
            // It is drawn three times, and then once at the end of each pause.
            let sent = put.hedges_sent();
            assert!((1..100).contains(&sent), "{cell:?} {form:?}: {sent}");
            drop(held);
            close(&node, replicas);
        }
    }
}

/// Calls once, lets a handler hold the request for longer than calls take, and returns how many
/// handlers got it.
fn handlers_of_a_slow_call<const N: usize>(
    cell: Cell,
    form: Form,
    with: impl Fn(&Node, &PeersCaller<u64, u64>, &[&Replica]) -> PeersCaller<u64, u64>,
) -> usize {
    let (holds, held) = Held::first(1, HELD..HELD + 1);
    let replicas = [(); N].map(|()| holds.replica(cell));
    let node = builder(cell).build().unwrap();
    let (_peers, put) = keep(&node, &replicas.each_ref());
    let put = with(&node, &put, &replicas.each_ref());
    let answers = thread::spawn(move || {
        let request = held.recv().unwrap();
        thread::sleep(MOMENT);
        answer(request);
    });
    assert_eq!(call(&node, &put, HELD, form).unwrap(), HELD);
    answers.join().unwrap();
    assert_eq!(put.hedges_won(), 0);
    assert_eq!(put.hedges_sent(), 0);
    close(&node, replicas)
}

#[test]
fn a_call_that_is_not_idempotent_is_not_hedged() {
    for cell in CELLS {
        for form in FORMS {
            let once =
                |node: &Node, put: &_, replicas: &[&_]| again(&hedging(node, put, replicas), 0);
            assert_eq!(handlers_of_a_slow_call::<2>(cell, form, once), 1);
        }
    }
}

#[test]
fn a_call_is_not_hedged_while_few_are_known() {
    for cell in CELLS {
        let few = |_: &Node, put: &_, _: &[&_]| again(put, 1).hedge_after_percentile(1);
        for form in FORMS {
            assert_eq!(handlers_of_a_slow_call::<2>(cell, form, few), 1);
        }
    }
}

#[test]
fn a_call_of_one_peer_is_not_hedged() {
    for cell in CELLS {
        for form in FORMS {
            assert_eq!(handlers_of_a_slow_call::<1>(cell, form, hedging), 1);
        }
    }
}

#[test]
fn a_peer_that_drains_gets_no_hedge() {
    for cell in CELLS {
        let (holds, held) = Held::first(1, HELD..HELD + 2);
        let replicas = [(); 2].map(|()| holds.replica(cell));
        let node = builder(cell).build().unwrap();
        let (peers, put) = keep(&node, &replicas.each_ref());
        let put = hedging(&node, &put, &replicas.each_ref());
        thread::scope(|scope| {
            let once = again(&put, 0);
            let slow = scope.spawn(move || once.call(&HELD).unwrap());
            let keeps_draining = next(&node, &held);
            let drains = replicas.iter().find(|one| one.got().contains(&HELD));
            let drains = &drains.expect("one has the request").node;
            scope.spawn(|| drains.drain(FOR_EVER));
            until(&node, || peers.connected().len() == 1);
            let answers = scope.spawn(move || {
                let request = held.recv().unwrap();
                thread::sleep(MOMENT);
                answer(request);
            });
            assert_eq!(put.call(&(HELD + 1)).unwrap().to_native(), HELD + 1);
            answers.join().unwrap();
            answer(keeps_draining);
            until(&node, || slow.is_finished());
        });
        assert_eq!(put.hedges_sent(), 0);
        close(&node, replicas);
    }
}

#[test]
fn hedges_take_from_the_retry_budget() {
    const CALLS: u64 = 300;
    for cell in CELLS {
        let (holds, held) = Held::first(1, HELD..HELD + CALLS);
        let replicas = [(); 2].map(|()| holds.replica(cell));
        let node = builder(cell).build().unwrap();
        let (_peers, put) = keep(&node, &replicas.each_ref());
        let put = hedging(&node, &put, &replicas.each_ref());
        let numbers: Vec<u64> = (HELD..HELD + CALLS).collect();
        let calls = join_all(numbers.iter().map(|one| put.call_async(one)));
        let answers = thread::spawn({
            let put = put.clone();
            move || {
                // The budget was full.
                wait_until(|| put.hedges_sent() >= 100);
                thread::sleep(MOMENT);
                (0..CALLS).for_each(|_| answer(held.recv().unwrap()));
            }
        });
        for (number, reply) in numbers.iter().zip(run(&node, calls)) {
            assert_eq!(reply.unwrap().to_native(), *number);
        }
        answers.join().unwrap();
        let sent = put.hedges_sent();
        assert!((100..=100 + CALLS / 5).contains(&sent), "{sent}");
        close(&node, replicas);
    }
}

/// How the handlers of a call end it.
type Ends = fn(&Node, [Request<u64, u64>; 2]);

/// Calls, ends the call once two handlers hold it, and returns its answer and how many handlers got
/// it.
fn with_both_held(cell: Cell, form: Form, ends: Ends) -> (Answer, usize) {
    let (holds, held) = Held::first(2, HELD..HELD + 1);
    let replicas = [(); 3].map(|()| holds.replica(cell));
    let node = builder(cell).build().unwrap();
    let (_peers, put) = keep(&node, &replicas.each_ref());
    let put = hedging(&node, &put, &replicas.each_ref());
    let answered = thread::scope(|scope| {
        let calls = scope.spawn(|| call(&node, &put, HELD, form));
        let both = [(); 2].map(|()| next(&node, &held));
        ends(&node, both);
        until(&node, || calls.is_finished());
        calls.join().unwrap()
    });
    assert_eq!(put.hedges_sent(), 1);
    (answered, close(&node, replicas))
}

#[test]
fn the_other_call_is_the_retry_of_one_that_fails() {
    for cell in CELLS {
        for form in FORMS {
            let ends: [Ends; 2] = [
                |_, [first, hedge]| {
                    first.refuse();
                    answer(hedge);
                },
                |_, [first, hedge]| {
                    drop(hedge);
                    answer(first);
                },
            ];
            for ends in ends {
                let (answered, got) = with_both_held(cell, form, ends);
                assert_eq!(answered.unwrap(), HELD);
                assert_eq!(got, 2, "no third is sent");
            }
        }
    }
}

#[test]
fn a_handlers_error_is_an_answer() {
    for cell in CELLS {
        for form in FORMS {
            let fails = |node: &Node, [first, second]: [Request<u64, u64>; 2]| {
                second.fail(7, "no");
                until(node, || first.is_cancelled());
            };
            let (answered, got) = with_both_held(cell, form, fails);
            assert_eq!(answered.unwrap_err().failure(), Some((7, "no")));
            assert_eq!(got, 2);
        }
    }
}

#[test]
fn a_hedge_counts_as_one_of_the_times_that_a_call_is_sent_again() {
    for cell in CELLS {
        for form in FORMS {
            let (answered, got) = with_both_held(cell, form, |_, both| drop(both));
            let error = answered.unwrap_err();
            assert_eq!(error.kind(), CallErrorKind::Unanswered, "{error}");
            assert_eq!(got, 2);
            // What was certainly not executed may be sent again.
            let (answered, got) = with_both_held(cell, form, |_, both| {
                both.into_iter().for_each(Request::refuse);
            });
            assert_eq!(answered.unwrap(), HELD);
            assert_eq!(got, 3);
        }
    }
}

#[test]
fn a_call_that_is_dropped_cancels_both() {
    for cell in CELLS {
        let (holds, held) = Held::first(2, HELD..HELD + 1);
        let replicas = [(); 2].map(|()| holds.replica(cell));
        let node = builder(cell).build().unwrap();
        let (_peers, put) = keep(&node, &replicas.each_ref());
        let put = hedging(&node, &put, &replicas.each_ref());
        let mut both = Vec::new();
        let get_both = poll_fn(|context| {
            both.extend(held.try_recv());
            context.waker().wake_by_ref();
            match both.len() {
                2 => Poll::Ready(()),
                _ => Poll::Pending,
            }
        });
        let call = Box::pin(put.call_async(&HELD));
        run(&node, select(call, get_both));
        assert_eq!((put.hedges_sent(), put.hedges_won()), (1, 0));
        until(&node, || both.iter().all(Request::is_cancelled));
        drop(both);
        assert_eq!(close(&node, replicas), 2);
    }
}

#[test]
fn percentiles_are_checked() {
    let node = builder(CELLS[0]).build().unwrap();
    let peers = node.keep_connected([vacant()]).unwrap();
    let put = peers.caller::<u64, u64>("put").unwrap();
    for percentile in [0, 100] {
        let asks = || put.hedge_after_percentile(percentile);
        let panic = panic::catch_unwind(AssertUnwindSafe(asks)).unwrap_err();
        let text = panic.downcast_ref::<String>().unwrap();
        assert!(text.contains("from 1 to 99"), "{text}");
    }
}
