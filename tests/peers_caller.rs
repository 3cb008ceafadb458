//! Callers of a service wherever it is: choice among kept peers, retries and their budget.
#![forbid(unsafe_code)]

use std::{
    collections::BTreeMap,
    future::Future,
    net::{SocketAddr, TcpListener},
    pin::pin,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    task::{Context, Poll, Wake, Waker},
    thread::{self, JoinHandle, Thread},
    time::Duration,
};

use futures_util::future::join_all;
use ibex::{
    Driver, Fabric, Node, Policy, Raw, SendErrorKind, ToAddress,
    calls::{CallErrorKind, CallOptions, Execution, Metadata, MetadataValue, PeersCaller, Request},
    discovery::Peers,
};

/// The conditions of a test: a fabric, and the driver of the calling node.
type Cell = (Fabric, Driver);

const CELLS: [Cell; 4] = [
    (Fabric::Shm, Driver::Threads),
    (Fabric::Shm, Driver::Caller),
    (Fabric::Tcp, Driver::Threads),
    (Fabric::Tcp, Driver::Caller),
];

/// A time-out that is longer than any test, for calls that must not time out.
const FOR_EVER: Duration = Duration::from_secs(600);
/// A time-out that is meant to pass.
const MOMENT: Duration = Duration::from_millis(30);

fn builder((fabric, driver): Cell) -> ibex::NodeBuilder {
    let none: [(&str, &str); 0] = [];
    Node::builder()
        .environment(none)
        .fabric(fabric, Policy::Require)
        .driver(driver)
        .open_timeout(FOR_EVER)
        .session_timeout(FOR_EVER)
}

fn listen((fabric, _): Cell, address: impl ToAddress) -> (Node, SocketAddr) {
    let builder = builder((fabric, Driver::Threads));
    let node = builder.listen(address).build().unwrap();
    let address = node.local_addr().unwrap();
    (node, address)
}

/// A node that serves calls of `put`, and the requests that its handler got.
struct Replica {
    node: Node,
    address: SocketAddr,
    serving: JoinHandle<()>,
    got: Arc<Mutex<Vec<u64>>>,
}

impl Replica {
    /// Starts one that handles each request by `handle`.
    fn start(
        cell: Cell,
        address: impl ToAddress,
        handle: impl Fn(&Node, Request<u64, u64>) + Send + 'static,
    ) -> Self {
        let (node, address) = listen(cell, address);
        let got = Arc::<Mutex<Vec<u64>>>::default();
        let (serves, notes) = (node.clone(), got.clone());
        let mut service = node.service::<u64, u64>("put").unwrap();
        let serving = thread::spawn(move || {
            while let Ok(Some(request)) = service.next() {
                notes.lock().unwrap().push(request.to_native());
                handle(&serves, request);
            }
        });
        Self {
            node,
            address,
            serving,
            got,
        }
    }

    /// Starts one that answers each number by that number.
    fn answering(cell: Cell, address: impl ToAddress) -> Self {
        Self::start(cell, address, |_, request| answer(request))
    }

    fn got(&self) -> Vec<u64> {
        self.got.lock().unwrap().clone()
    }

    /// Closes the node, while the calling node is turned, and returns what the handler got.
    fn close(self, beside: &Node) -> Vec<u64> {
        let node = self.node;
        let closes = thread::spawn(move || node.close(FOR_EVER));
        until(beside, || closes.is_finished());
        let _ = closes.join().unwrap();
        self.serving.join().unwrap();
        let got = self.got.lock().unwrap();
        got.clone()
    }
}

const ANY: &str = "127.0.0.1:0";

fn answer(request: Request<u64, u64>) {
    let number = request.to_native();
    // The caller may be gone.
    let _ = request.reply(&number);
}

/// Returns a caller of the replicas, once all of them are connected.
fn keep(node: &Node, replicas: &[&Replica]) -> (Peers, PeersCaller<u64, u64>) {
    let addresses: Vec<_> = replicas.iter().map(|replica| replica.address).collect();
    let peers = node.keep_connected(addresses.clone()).unwrap();
    let put = peers.caller::<u64, u64>("put").unwrap();
    for address in addresses {
        peers.wait_for_timeout(address, FOR_EVER).unwrap();
    }
    (peers, put.with(CallOptions::new().timeout(FOR_EVER)))
}

/// Runs a task on this thread, and turns the node if callers drive it.
fn run<F: Future>(node: &Node, task: F) -> F::Output {
    let mut task = pin!(task);
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut context = Context::from_waker(&waker);
    loop {
        if let Poll::Ready(output) = task.as_mut().poll(&mut context) {
            return output;
        }
        if !node.poll() {
            thread::park_timeout(Duration::from_millis(1));
        }
    }
}

/// Turns the node until the condition holds.
fn until(node: &Node, mut is_so: impl FnMut() -> bool) {
    while !is_so() {
        if !node.poll() {
            thread::sleep(Duration::from_micros(200));
        }
    }
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Returns an address at which nobody listens.
fn vacant() -> SocketAddr {
    let socket = TcpListener::bind(ANY).unwrap();
    socket.local_addr().unwrap()
}

#[test]
fn threads_and_tasks_call_whichever_peer_is_there() {
    for cell in CELLS {
        let replicas = [(); 3].map(|()| Replica::answering(cell, ANY));
        let node = builder(cell).build().unwrap();
        let (_peers, put) = keep(&node, &replicas.each_ref());
        assert_eq!(put.name(), "put");
        for number in 0..100 {
            assert_eq!(put.call(&number).unwrap().to_native(), number);
        }
        let numbers: Vec<u64> = (100..200).collect();
        let answers = run(
            &node,
            join_all(numbers.iter().map(|one| put.call_async(one))),
        );
        let answers: Vec<u64> = answers
            .into_iter()
            .map(|answer| answer.unwrap().to_native())
            .collect();
        assert_eq!(answers, numbers);
        thread::scope(|scope| {
            for thread in 2..6 {
                let put = put.clone();
                scope.spawn(move || {
                    for number in thread * 100..(thread + 1) * 100 {
                        assert_eq!(put.call(&number).unwrap().to_native(), number);
                    }
                });
            }
        });
        let _ = node.close(FOR_EVER);
        let mut got = BTreeMap::<u64, u32>::new();
        for replica in replicas {
            let one = replica.close(&node);
            // Each is one of two for two of three calls.
            assert!(one.len() > 20, "{}", one.len());
            one.into_iter()
                .for_each(|number| *got.entry(number).or_default() += 1);
        }
        assert_eq!(got.len(), 600);
        assert!(got.values().all(|times| *times == 1), "each once");
    }
}

#[test]
fn a_call_waits_for_a_peer_and_finds_its_successor() {
    for cell in CELLS {
        let address = vacant();
        let node = builder(cell).build().unwrap();
        let peers = node.keep_connected([address]).unwrap();
        let put = peers.caller::<u64, u64>("put").unwrap();
        for number in 0..3 {
            // The call begins before the peer starts, or after.
            let call = |put: PeersCaller<u64, u64>| put.call(&number).unwrap().to_native();
            let replica = thread::scope(|scope| {
                let put = put.clone();
                let waits = scope.spawn(move || call(put));
                let replica = Replica::answering(cell, address);
                assert_eq!(waits.join().unwrap(), number);
                replica
            });
            assert_eq!(run(&node, put.call_async(&7)).unwrap().to_native(), 7);
            assert_eq!(replica.close(&node), [number, 7]);
            until(&node, || peers.connected().is_empty());
        }
    }
}

#[test]
fn a_task_that_waits_for_a_peer_is_woken() {
    for cell in CELLS {
        let address = vacant();
        let node = builder(cell).build().unwrap();
        let peers = node.keep_connected([address]).unwrap();
        let put = peers.caller::<u64, u64>("put").unwrap();
        let starts = thread::spawn(move || Replica::answering(cell, address));
        assert_eq!(run(&node, put.call_async(&1)).unwrap().to_native(), 1);
        assert_eq!(starts.join().unwrap().close(&node), [1]);
    }
}

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
                while replica.got().len() < 20 {
                    thread::sleep(Duration::from_millis(1));
                }
            };
            for place in 0..2 {
                let old = replicas[place].take().expect("it runs");
                wait_for_calls(&old);
                let address = old.address;
                let _ = old.node.drain(FOR_EVER);
                executed += old.close(&node).len();
                let next = Replica::answering(cell, address);
                wait_for_calls(&next);
                replicas[place] = Some(next);
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

#[test]
fn a_deadline_without_a_peer_names_what_was_waited_for() {
    for cell in CELLS {
        let address = vacant();
        let node = builder(cell).build().unwrap();
        let peers = node.keep_connected([address]).unwrap();
        let put = peers.caller::<u64, u64>("put").unwrap();
        // The failure of the first attempt is known.
        let mut events = peers.events();
        events.next_timeout(FOR_EVER).expect("it is not reached");
        let soon = put.with(CallOptions::new().timeout(MOMENT));
        for error in [
            soon.call(&1).unwrap_err(),
            run(&node, soon.call_async(&1)).unwrap_err(),
        ] {
            assert_eq!(error.kind(), CallErrorKind::DeadlineExceeded, "{error}");
            assert_eq!(error.execution(), Execution::NotExecuted);
            assert_eq!(error.service(), "put");
            let text = error.to_string();
            assert!(text.contains(&address.to_string()), "{text}");
            assert!(text.contains("none is connected"), "{text}");
        }
    }
}

#[test]
fn a_deadline_is_that_of_all_attempts() {
    for cell in CELLS {
        let refusing = Replica::start(cell, ANY, |_, request| request.refuse());
        let node = builder(cell).build().unwrap();
        let (_peers, put) = keep(&node, &[&refusing]);
        let soon = put.with(CallOptions::new().timeout(MOMENT * 3));
        for error in [
            soon.call(&1).unwrap_err(),
            run(&node, soon.call_async(&1)).unwrap_err(),
        ] {
            assert_eq!(error.kind(), CallErrorKind::DeadlineExceeded, "{error}");
            assert_eq!(error.execution(), Execution::NotExecuted);
        }
        let _ = node.close(FOR_EVER);
        refusing.close(&node);
    }
}

#[test]
fn the_end_of_the_keeping_ends_calls_and_wakes_those_that_wait() {
    for cell in CELLS {
        let node = builder(cell).build().unwrap();
        let peers = node.keep_connected([vacant()]).unwrap();
        let put = peers.caller::<u64, u64>("put").unwrap();
        let waits = {
            let put = put.clone();
            thread::spawn(move || put.call(&1).unwrap_err())
        };
        let mut task = pin!(put.call_async(&2));
        let waker = Waker::from(Arc::new(Unpark(thread::current())));
        let mut context = Context::from_waker(&waker);
        assert!(task.as_mut().poll(&mut context).is_pending());
        drop(peers);
        for error in [
            waits.join().unwrap(),
            run(&node, task).unwrap_err(),
            put.call(&3).unwrap_err(),
        ] {
            assert_eq!(error.kind(), CallErrorKind::NoSession, "{error}");
            assert_eq!(error.execution(), Execution::NotExecuted);
        }
        let peers = node.keep_connected([vacant()]).unwrap();
        let put = peers.caller::<u64, u64>("put").unwrap();
        let _ = node.close(FOR_EVER);
        let error = put.call(&4).unwrap_err();
        assert_eq!(error.kind(), CallErrorKind::NoSession, "{error}");
    }
}

#[test]
fn peers_whose_service_has_other_types_are_left_out() {
    for cell in CELLS {
        let (other, address) = listen(cell, ANY);
        let mut service = other.channel("put").codec::<Raw>().service::<[u8], [u8]>();
        let service = service.as_mut().unwrap();
        let node = builder(cell).build().unwrap();
        thread::scope(|scope| {
            scope.spawn(move || assert!(service.next().unwrap().is_none()));
            let peers = node.keep_connected([address]).unwrap();
            let put = peers.caller::<u64, u64>("put").unwrap();
            for error in [
                put.call(&1).unwrap_err(),
                run(&node, put.call_async(&1)).unwrap_err(),
            ] {
                let kind = error.send_error().map(|error| error.kind());
                assert_eq!(kind, Some(SendErrorKind::Mismatch), "{error}");
            }
            drop((put, peers));

            let answering = Replica::answering(cell, ANY);
            let both = [address, answering.address];
            let peers = node.keep_connected(both).unwrap();
            let put = peers.caller::<u64, u64>("put").unwrap();
            for one in both {
                assert!(peers.wait_for_timeout(one, FOR_EVER).is_some());
            }
            for number in 0..20 {
                assert_eq!(put.call(&number).unwrap().to_native(), number);
                let answer = run(&node, put.call_async(&number)).unwrap();
                assert_eq!(answer.to_native(), number);
            }
            drop(peers);
            let _ = node.close(FOR_EVER);
            assert_eq!(answering.close(&node).len(), 40);
            let _ = other.close(FOR_EVER);
        });
    }
}

/// The caller in a session is opened anew when the service has ended and another is there.
#[test]
fn a_service_that_is_made_anew_is_called() {
    for cell in CELLS {
        let (server, address) = listen(cell, ANY);
        let node = builder(cell).build().unwrap();
        let serving = thread::spawn(move || {
            for _ in 0..3 {
                let mut service = server.service::<u64, u64>("put").unwrap();
                for _ in 0..2 {
                    answer(service.next().unwrap().unwrap());
                }
            }
            let _ = server.close(FOR_EVER);
        });
        let peers = node.keep_connected([address]).unwrap();
        let put = peers.caller::<u64, u64>("put").unwrap();
        // A request may be on its way when a service ends.
        let again = put.with(CallOptions::new().timeout(FOR_EVER).idempotent(100));
        for number in 0..3 {
            assert_eq!(again.call(&number).unwrap().to_native(), number);
            let answer = run(&node, again.call_async(&number)).unwrap();
            assert_eq!(answer.to_native(), number);
        }
        let _ = node.close(FOR_EVER);
        serving.join().unwrap();
    }
}

#[test]
fn a_task_leaves_a_peer_that_does_not_open_the_service_for_one_that_does() {
    for cell in CELLS {
        let (without, silent) = listen(cell, ANY);
        let (server, address) = listen(cell, ANY);
        let node = builder(cell).build().unwrap();
        let peers = node.keep_connected([silent, address]).unwrap();
        let put = peers.caller::<u64, u64>("put").unwrap();
        for one in [silent, address] {
            assert!(peers.wait_for_timeout(one, FOR_EVER).is_some());
        }
        let numbers: Vec<u64> = (0..10).collect();
        let mut calls = pin!(join_all(numbers.iter().map(|one| put.call_async(one))));
        let waker = Waker::from(Arc::new(Unpark(thread::current())));
        let mut context = Context::from_waker(&waker);
        assert!(calls.as_mut().poll(&mut context).is_pending());
        let serving = thread::spawn(move || {
            let mut service = server.service::<u64, u64>("put").unwrap();
            for _ in 0..10 {
                answer(service.next().unwrap().unwrap());
            }
            let _ = server.close(FOR_EVER);
        });
        for answer in run(&node, calls) {
            answer.unwrap();
        }
        let _ = node.close(FOR_EVER);
        serving.join().unwrap();
        let _ = without.close(FOR_EVER);
    }
}

#[test]
fn errors_that_no_other_attempt_mends_come_at_once() {
    for cell in CELLS {
        let fails = |_: &Node, request: Request<u64, u64>| request.fail(7, "no");
        let replicas = [(); 2].map(|()| Replica::start(cell, ANY, fails));
        let node = builder(cell).build().unwrap();
        let (_peers, put) = keep(&node, &replicas.each_ref());
        let error = put.call(&1).unwrap_err();
        assert_eq!(error.failure(), Some((7, "no")));
        let error = run(&node, put.call_async(&1)).unwrap_err();
        assert_eq!(error.execution(), Execution::Executed);
        let _ = node.close(FOR_EVER);
        let got = replicas.into_iter().map(|one| one.close(&node).len());
        assert_eq!(got.sum::<usize>(), 2);
    }
}

#[test]
fn calls_carry_metadata_and_settings_hold() {
    for cell in CELLS {
        let replica = Replica::start(cell, ANY, |_, request| {
            let tenant = request.metadata().get("tenant");
            let is_blue = tenant == Some(MetadataValue::Text("blue"));
            request.reply(&u64::from(is_blue)).unwrap();
        });
        let node = builder(cell).build().unwrap();
        let peers = node.keep_connected([replica.address]).unwrap();
        let refused = peers.channel("put").max_in_flight(0).caller::<u64, u64>();
        assert!(refused.unwrap_err().setting().is_some());
        let put = peers.channel("put").max_in_flight(1);
        let put: PeersCaller<u64, u64> = put.caller().unwrap();
        let mut metadata = Metadata::new();
        metadata.insert("tenant", "blue").unwrap();
        let blue = put.with_metadata(metadata);
        assert_eq!(put.call(&1).unwrap().to_native(), 0);
        assert_eq!(blue.call(&1).unwrap().to_native(), 1);
        let answer = run(&node, blue.call_async(&1)).unwrap();
        assert_eq!(answer.to_native(), 1);
        let _ = node.close(FOR_EVER);
        replica.close(&node);
    }
}

#[test]
fn it_is_a_service_of_tower() {
    use tower_service::Service;
    for cell in CELLS {
        let replicas = [(); 2].map(|()| Replica::answering(cell, ANY));
        let node = builder(cell).build().unwrap();
        let (_peers, mut put) = keep(&node, &replicas.each_ref());
        run(&node, async {
            std::future::poll_fn(|context| Service::poll_ready(&mut put, context))
                .await
                .unwrap();
            let answer = Service::call(&mut put, 5).await.unwrap();
            assert_eq!(answer.to_native(), 5);
        });
        let _ = node.close(FOR_EVER);
        let got = replicas.into_iter().map(|one| one.close(&node).len());
        assert_eq!(got.sum::<usize>(), 1);
    }
}
