//! Which calls are tried again, and how often.

use ibex_harness::wait_until;
use std::{
    task::{Wake, Waker},
    thread::Thread,
};

use super::*;

#[test]
fn what_was_handed_back_is_executed_elsewhere_and_once() {
    for cell in CELLS {
        let refusing = Replica::start(cell, ANY, |_, request| request.refuse());
        let answering = Replica::answering(cell, ANY);
        let node = builder(cell).build().unwrap();
        let (_peers, put) = keep(&node, &[&refusing, &answering]);
        for number in 0..40 {
            assert_eq!(put.call(&number).unwrap().to_native(), number);
            let answer = run(&node, put.call_async(&(number + 40))).unwrap();
            assert_eq!(answer.to_native(), number + 40);
        }
        let mut executed = answering.close(&node);
        executed.sort_unstable();
        assert_eq!(executed, (0..80).collect::<Vec<_>>());
        let _ = node.close(FOR_EVER);
        refusing.close(&node);
    }
}

/// A handler that closes its node with the request in its hands, if it is told to.
fn killing(kill: &Arc<AtomicBool>) -> impl Fn(&Node, Request<u64, u64>) + Send + 'static {
    let kill = kill.clone();
    move |node, request| match kill.swap(false, Ordering::SeqCst) {
        true => {
            let _ = node.close(FOR_EVER);
            drop(request);
        }
        false => answer(request),
    }
}

#[test]
fn a_lost_call_is_repeated_only_if_it_is_idempotent() {
    for cell in CELLS {
        for is_task in [false, true] {
            let kill = Arc::new(AtomicBool::new(true));
            let replicas = [(); 3].map(|()| Replica::start(cell, ANY, killing(&kill)));
            let node = builder(cell).build().unwrap();
            let (_peers, put) = keep(&node, &replicas.each_ref());
            let call = |put: &PeersCaller<u64, u64>, number: u64| match is_task {
                true => run(&node, put.call_async(&number)),
                false => put.call(&number),
            };
            let error = call(&put, 1).unwrap_err();
            assert_eq!(error.kind(), CallErrorKind::Lost, "{error}");
            assert_eq!(error.execution(), Execution::Unknown);
            assert!(!kill.swap(true, Ordering::SeqCst));
            let again = put.with(CallOptions::new().timeout(FOR_EVER).idempotent(1));
            assert_eq!(call(&again, 2).unwrap().to_native(), 2);
            assert_eq!(call(&put, 3).unwrap().to_native(), 3);
            let _ = node.close(FOR_EVER);
            let mut got: Vec<_> = replicas
                .into_iter()
                .flat_map(|one| one.close(&node))
                .collect();
            got.sort_unstable();
            assert_eq!(got, [1, 2, 2, 3]);
        }
    }
}

#[test]
fn an_unanswered_call_is_repeated_as_often_as_it_says() {
    for cell in CELLS {
        let drops = |_: &Node, request: Request<u64, u64>| drop(request);
        let replicas = [(); 2].map(|()| Replica::start(cell, ANY, drops));
        let node = builder(cell).build().unwrap();
        let (_peers, put) = keep(&node, &replicas.each_ref());
        for times in [0, 1, 3] {
            let options = CallOptions::new().timeout(FOR_EVER).idempotent(times);
            let error = put.with(options).call(&u64::from(times)).unwrap_err();
            assert_eq!(error.kind(), CallErrorKind::Unanswered, "{error}");
            let error = run(&node, put.with(options).call_async(&u64::from(times)));
            assert_eq!(error.unwrap_err().execution(), Execution::Unknown);
        }
        let _ = node.close(FOR_EVER);
        let got: Vec<_> = replicas
            .into_iter()
            .flat_map(|one| one.close(&node))
            .collect();
        for times in [0, 1, 3] {
            let sent = got.iter().filter(|number| **number == times).count();
            assert_eq!(sent as u64, 2 * (1 + times));
        }
    }
}

/// Peers drain and are replaced one after the other, under calls that are not idempotent.
#[test]
fn a_rolling_restart_fails_no_call() {
    for cell in CELLS {
        let replicas = [(); 2].map(|()| Replica::answering(cell, ANY));
        let node = builder(cell).build().unwrap();
        let (peers, put) = keep(&node, &replicas.each_ref());
        let mut replicas = replicas.map(Some);
        let is_over = AtomicBool::new(false);
        let made = AtomicU64::new(0);
        let mut executed = 0;
        thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    while !is_over.load(Ordering::Relaxed) {
                        let number = made.fetch_add(1, Ordering::Relaxed);
                        let answer = put.call(&number).expect("no call fails");
                        assert_eq!(answer.to_native(), number);
                    }
                });
            }
            let wait_for_calls = |replica: &Replica| {
                wait_until(|| replica.got().len() >= 20);
            };
            for place in &mut replicas {
                let old = place.take().expect("it runs");
                wait_for_calls(&old);
                let address = old.address;
                let _ = old.node.drain(FOR_EVER);
                executed += old.close(&node).len();
                let next = Replica::answering(cell, address);
                wait_for_calls(&next);
                *place = Some(next);
            }
            is_over.store(true, Ordering::Relaxed);
        });
        drop(peers);
        let _ = node.close(FOR_EVER);
        executed += replicas
            .into_iter()
            .flatten()
            .map(|one| one.close(&node).len())
            .sum::<usize>();
        assert_eq!(executed as u64, made.load(Ordering::Relaxed));
    }
}

#[test]
fn retries_of_calls_that_all_peers_refuse_are_bounded() {
    const CALLS: u64 = 300;
    for cell in CELLS {
        let refuses = |_: &Node, request: Request<u64, u64>| request.refuse();
        let replicas = [(); 2].map(|()| Replica::start(cell, ANY, refuses));
        let node = builder(cell).build().unwrap();
        let (_peers, put) = keep(&node, &replicas.each_ref());
        let numbers: Vec<u64> = (0..CALLS).collect();
        let failed = run(
            &node,
            join_all(numbers.iter().map(|one| put.call_async(one))),
        );
        for error in failed {
            let error = error.unwrap_err();
            assert_eq!(error.kind(), CallErrorKind::HandedBack, "{error}");
            assert_eq!(error.execution(), Execution::NotExecuted);
            let text = error.to_string();
            assert!(text.contains("the retry budget is empty"), "{text}");
        }
        // The budget is shared, and empty for a thread too.
        let error = put.call(&CALLS).unwrap_err();
        assert!(error.to_string().contains("the retry budget"), "{error}");
        let _ = node.close(FOR_EVER);
        let requests = replicas
            .into_iter()
            .map(|one| one.close(&node).len() as u64)
            .sum::<u64>();
        let calls = CALLS + 1;
        assert!(requests >= calls, "{requests}");
        assert!(requests <= calls + calls / 5 + 100, "{requests}");
    }
}

/// One call leaves the others most of the budget, of which it takes a fifth: 20 retries of 100, and
/// then 17 of 80.
#[test]
fn one_call_takes_its_share_of_the_retry_budget() {
    for cell in CELLS {
        let drops = |_: &Node, request: Request<u64, u64>| drop(request);
        let replicas = [(); 5].map(|()| Replica::start(cell, ANY, drops));
        let node = builder(cell).build().unwrap();
        let (_peers, put) = keep(&node, &replicas.each_ref());
        let again = put.with(CallOptions::new().timeout(FOR_EVER).idempotent(100));
        for error in [
            again.call(&1).unwrap_err(),
            run(&node, again.call_async(&2)).unwrap_err(),
        ] {
            assert_eq!(error.kind(), CallErrorKind::Unanswered, "{error}");
            let text = error.to_string();
            assert!(text.contains("its share of the retry budget"), "{text}");
        }
        let _ = node.close(FOR_EVER);
        let got: Vec<_> = replicas
            .into_iter()
            .flat_map(|one| one.close(&node))
            .collect();
        let sent = [1, 2].map(|number| got.iter().filter(|one| **one == number).count());
        assert_eq!(sent, [1 + 20, 1 + 17]);
    }
}

/// Counts how often it is woken.
struct Woken {
    thread: Thread,
    times: AtomicU64,
}

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.times.fetch_add(1, Ordering::Relaxed);
        self.thread.unpark();
    }
}

/// A pause that is over while no peer is left neither spins nor keeps a call from the next peer.
#[test]
fn calls_that_the_only_peer_refused_wait_for_its_successor() {
    for cell in CELLS {
        let refusing = Replica::start(cell, ANY, |node, request| {
            request.refuse();
            let _ = node.close(FOR_EVER);
        });
        let address = refusing.address;
        let node = builder(cell).build().unwrap();
        let (peers, put) = keep(&node, &[&refusing]);
        let put = put.with(CallOptions::new().timeout(FOR_EVER).idempotent(100));
        let mut events = peers.events();
        let next = thread::scope(|scope| {
            let waits = scope.spawn(|| {
                let woken = Arc::new(Woken {
                    thread: thread::current(),
                    times: AtomicU64::new(0),
                });
                let waker = Waker::from(woken.clone());
                let answer = run_with(&node, &waker, put.call_async(&1)).unwrap();
                (answer.to_native(), woken.times.load(Ordering::Relaxed))
            });
            let blocks = scope.spawn(|| put.call(&2).unwrap().to_native());
            while !matches!(
                events.next_timeout(FOR_EVER),
                Some(PeersEvent::NotReached { .. })
            ) {}
            // This lasts longer than the pauses.
            let soon = put.with(CallOptions::new().timeout(MOMENT));
            let error = soon.call(&3).unwrap_err();
            assert_eq!(error.kind(), CallErrorKind::DeadlineExceeded, "{error}");
            let next = Replica::answering(cell, address);
            let (answer, times) = waits.join().unwrap();
            assert_eq!(answer, 1);
            assert!(times < 200, "{times}");
            assert_eq!(blocks.join().unwrap(), 2);
            next
        });
        drop(peers);
        let _ = node.close(FOR_EVER);
        next.close(&node);
        refusing.close(&node);
    }
}
