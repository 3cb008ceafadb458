//! Nodes that tasks of a tokio runtime drive: `Driver::Tasks`.
#![forbid(unsafe_code)]

use std::{
    error::Error,
    future::Future,
    iter,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
        mpsc,
    },
    thread,
    time::Duration,
};

use ibex::prelude::*;
use ibex::{
    ConnectErrorKind, Driver, EndCause, Fabric, ListenErrorKind, Node, NodeBuilder, Peer, Pod,
    Policy, Receiver, RecvErrorKind, Sender,
};
use ibex_harness::events::{Each, line};
use tokio::runtime::{Builder, Runtime};
use tracing::{Event, Level};

const FABRICS: [Fabric; 2] = [Fabric::Shm, Fabric::Tcp];

fn one_thread() -> Runtime {
    let runtime = Builder::new_current_thread().enable_all().build();
    runtime.expect("a runtime")
}

fn threads(count: usize) -> Runtime {
    let runtime = Builder::new_multi_thread()
        .worker_threads(count)
        .enable_all()
        .build();
    runtime.expect("a runtime")
}

fn builder(fabric: Fabric) -> NodeBuilder {
    Node::builder()
        .driver(Driver::Tasks)
        .fabric(fabric, Policy::Require)
}

/// Two nodes of the calling runtime.
struct Pair {
    nodes: [Node; 2],
    peers: [Peer; 2],
}

impl Pair {
    async fn over(fabric: Fabric) -> Self {
        let listener = builder(fabric)
            .listen("127.0.0.1:0")
            .build()
            .expect("a node");
        let client = builder(fabric).build().expect("a node");
        let address = listener.local_addr().expect("it listens");
        let there = client.connect_async(address).await.expect("a session");
        let here = listener.accept_async().await.expect("a session");
        assert_eq!(here.fabric(), fabric, "{}", here.fabric_reason());
        Self {
            nodes: [client, listener],
            peers: [there, here],
        }
    }

    /// Opens a channel from the client to the listener.
    fn channel(&self, name: &str) -> (Sender<u64, Pod>, Receiver<u64, Pod>) {
        let [there, here] = &self.peers;
        channel(there, here, name)
    }

    /// Opens a channel in the opposite direction.
    fn channel_back(&self, name: &str) -> (Sender<u64, Pod>, Receiver<u64, Pod>) {
        let [there, here] = &self.peers;
        channel(here, there, name)
    }

    async fn close(self) {
        for node in &self.nodes {
            let report = node.close_async(Duration::from_secs(60)).await;
            assert!(report.undelivered.is_empty(), "{report}");
        }
    }
}

fn channel(from: &Peer, to: &Peer, name: &str) -> (Sender<u64, Pod>, Receiver<u64, Pod>) {
    let window = 64 << 10;
    let sender = from.channel(name).codec::<Pod>().window_bytes(window);
    let receiver = to.channel(name).codec::<Pod>();
    let (sender, receiver) = (sender.sender(), receiver.receiver());
    (sender.expect("a sender"), receiver.expect("a receiver"))
}

/// Sends each received number back.
async fn echo(mut from: Receiver<u64, Pod>, mut to: Sender<u64, Pod>) {
    loop {
        let number = match from.recv_async().await {
            Ok(message) => *message,
            Err(error) if error.kind() == RecvErrorKind::Ended => return,
            Err(error) => panic!("{error}"),
        };
        to.send_async(&number).await.expect("sent");
    }
}

/// Sends numbers, and waits for the answer to each.
async fn ask(mut to: Sender<u64, Pod>, mut from: Receiver<u64, Pod>, count: u64) {
    for number in 0..count {
        to.send_async(&number).await.expect("sent");
        let answer = from.recv_async().await.expect("an answer");
        assert_eq!(*answer, number);
    }
}

/// Runs `scenario` on each kind of runtime, over each fabric, with a watchdog.
fn on_each_runtime<F: Future<Output = ()>>(scenario: impl Fn(Fabric) -> F) {
    for fabric in FABRICS {
        for runtime in [one_thread(), threads(2)] {
            runtime.block_on(async {
                let watchdog = tokio::time::timeout(WATCHDOG, scenario(fabric));
                watchdog
                    .await
                    .unwrap_or_else(|_| panic!("hangs over {fabric}"));
            });
        }
    }
}

#[test]
fn messages_go_back_and_forth_on_both_kinds_of_runtime() {
    on_each_runtime(|fabric| async move {
        let pair = Pair::over(fabric).await;
        let (to, requests) = pair.channel("a");
        let (answers, from) = pair.channel_back("b");
        let echoing = tokio::spawn(echo(requests, answers));
        ask(to, from, 2000).await;
        echoing.await.expect("it ends");
        pair.close().await;
    });
}

/// A publisher that awaits nothing afterwards makes no further call; its first unsent message wakes
/// a task of the node.
#[test]
fn messages_without_a_flush_are_transmitted() {
    on_each_runtime(|fabric| async move {
        let pair = Pair::over(fabric).await;
        let (mut sender, mut receiver) = pair.channel("a");
        sender.send_async(&0).await.expect("sent");
        assert_eq!(*receiver.recv_async().await.expect("a message"), 0);
        let (tell, told) = tokio::sync::oneshot::channel::<()>();
        let sending = tokio::spawn(async move {
            sender.try_send(&1).expect("there is room");
            let _ = told.await;
            drop(sender);
        });
        assert_eq!(*receiver.recv_async().await.expect("a message"), 1);
        tell.send(()).expect("it waits");
        sending.await.expect("it ends");
        pair.close().await;
    });
}

/// A task publishes a message and computes for as long as others need: it stops when their messages
/// have gone back and forth.
/// Tasks that one frame of answers has woken send their next requests in one frame.
#[test]
fn the_requests_of_many_tasks_leave_together() {
    const TASKS: u64 = 64;
    const CALLS: u64 = 50;
    for runtime in [one_thread(), threads(1)] {
        let calling = async {
            let pair = Pair::over(Fabric::Tcp).await;
            let [there, here] = &pair.peers;
            let service = here.channel("echo").codec::<Pod>().service::<u64, u64>();
            let mut service = service.expect("a service");
            let serving = tokio::spawn(async move {
                while let Some(request) = service.next_async().await.expect("no failure") {
                    let number = *request;
                    request.reply_async(&number).await.expect("answered");
                }
            });
            let caller = there.channel("echo").codec::<Pod>().caller::<u64, u64>();
            let caller = caller.expect("a caller");
            let tasks = (0..TASKS).map(|_| {
                let caller = caller.clone();
                tokio::spawn(async move {
                    for number in 0..CALLS {
                        assert_eq!(
                            *caller.call_async(&number).await.expect("an answer"),
                            number
                        );
                    }
                })
            });
            for task in tasks.collect::<Vec<_>>() {
                task.await.expect("no panic");
            }
            let frames = pair.nodes[0].stats().sessions[0].counters.frames_sent;
            assert!(frames < TASKS * CALLS / 4, "{frames} frames");
            drop(caller);
            serving
                .await
                .expect("the caller is gone, and with it the service's peer");
            pair.close().await;
        };
        runtime.block_on(async { tokio::spawn(calling).await.expect("no panic") });
    }
}

#[test]
fn a_task_that_computes_delays_nobody_else() {
    for fabric in FABRICS {
        threads(2).block_on(async move {
            let pair = Pair::over(fabric).await;
            let (to, requests) = pair.channel("a");
            let (answers, from) = pair.channel_back("b");
            let (mut other, _kept) = pair.channel("c");
            let is_done = Arc::new(AtomicBool::new(false));
            let computing = tokio::spawn({
                let is_done = is_done.clone();
                async move {
                    other.send_async(&7).await.expect("sent");
                    while !is_done.load(Ordering::Relaxed) {
                        std::hint::spin_loop();
                    }
                }
            });
            let echoing = tokio::spawn(echo(requests, answers));
            let asking = tokio::spawn(ask(to, from, 1000));
            // `ask` runs in a worker's task, not in the runtime's own task, which no worker runs.
            tokio::time::timeout(WATCHDOG, asking)
                .await
                .expect("in time")
                .expect("answers");
            is_done.store(true, Ordering::Relaxed);
            computing.await.expect("it ends");
            echoing.await.expect("it ends");
            pair.close().await;
        });
    }
}

#[test]
fn threads_that_block_share_a_node_with_tasks() {
    for fabric in FABRICS {
        let runtime = threads(2);
        let pair = runtime.block_on(Pair::over(fabric));
        let (to, requests) = pair.channel("a");
        let (answers, from) = pair.channel_back("b");
        let echoing = runtime.spawn(echo(requests, answers));
        let (mut to_thread, mut in_thread) = pair.channel("c");
        let (mut back, mut from_thread) = pair.channel_back("d");
        let blocked = thread::spawn(move || {
            while let Some(message) = in_thread.next().expect("a message") {
                back.send(&message).expect("sent");
            }
        });
        let asking = runtime.spawn(ask(to, from, 1000));
        for number in 0..1000 {
            to_thread.send(&number).expect("sent");
            assert_eq!(*from_thread.recv().expect("an answer"), number);
        }
        drop(to_thread);
        blocked.join().expect("it ends");
        runtime.block_on(async {
            asking.await.expect("answers");
            echoing.await.expect("it ends");
            pair.close().await;
        });
    }
}

/// Blocking calls turn the engine themselves, so even the runtime's only thread may block.
#[test]
fn a_task_may_block_the_only_thread_of_its_runtime() {
    for fabric in FABRICS {
        one_thread().block_on(async {
            let pair = Pair::over(fabric).await;
            let (mut sender, mut receiver) = pair.channel("a");
            let there = thread::spawn(move || {
                let numbers: Vec<_> = (0..100).map(|_| *receiver.recv().expect("one")).collect();
                numbers
            });
            for number in 0..100 {
                sender.send(&number).expect("sent");
            }
            sender.flush().expect("it is there");
            let numbers = there.join().expect("it ends");
            assert_eq!(numbers, (0..100).collect::<Vec<_>>());
            drop(sender);
            pair.close().await;
        });
    }
}

/// The call turns the engine itself, though it is the first that does, and the reactor never runs
/// again.
#[test]
fn a_node_closes_outside_of_its_runtime_of_one_thread() {
    for fabric in FABRICS {
        let listener = Node::builder()
            .fabric(fabric, Policy::Require)
            .listen("127.0.0.1:0")
            .build()
            .expect("a node");
        let address = listener.local_addr().expect("it listens");
        let there = thread::spawn(move || {
            let peer = listener.accept().expect("a session");
            let receiver = peer.channel("a").codec::<Pod>().receiver::<u64>();
            let mut receiver = receiver.expect("a receiver");
            iter::from_fn(|| receiver.next().expect("an end").map(|message| *message)).count()
        });
        let runtime = one_thread();
        let (node, mut sender) = runtime.block_on(async {
            let node = builder(fabric).build().expect("a node");
            let peer = node.connect_async(address).await.expect("a session");
            let sender = peer.channel("a").codec::<Pod>().sender::<u64>();
            let mut sender = sender.expect("a sender");
            sender.send_async(&0).await.expect("sent");
            (node, sender)
        });
        for number in 1..100 {
            sender.try_send(&number).expect("there is room");
        }
        drop(sender);
        let report = node.close(WATCHDOG);
        assert!(report.undelivered.is_empty(), "{report}");
        assert_eq!(there.join().expect("it ends"), 100);
    }
}

/// The runtime's reactor does not run meanwhile.
#[test]
fn a_task_may_poll_without_giving_its_thread_back() {
    for fabric in FABRICS {
        one_thread().block_on(async {
            let pair = Pair::over(fabric).await;
            let (mut sender, mut receiver) = pair.channel("a");
            let there = thread::spawn(move || {
                for number in 0..100 {
                    sender.send(&number).expect("sent");
                }
                sender.flush().expect("it is there");
            });
            for number in 0..100 {
                let mut polls = iter::repeat_with(|| receiver.try_recv());
                let waits = [RecvErrorKind::Empty, RecvErrorKind::NotOpened];
                let message = polls.find(|polled| match polled {
                    Ok(_) => true,
                    Err(error) => !waits.contains(&error.kind()),
                });
                let message = message.expect("an end").expect("the channel is open");
                assert_eq!(*message, number);
            }
            there.join().expect("it ends");
            drop(receiver);
            pair.close().await;
        });
    }
}

/// The call waits for a message that is sent only once the node has warned of the call.
#[test]
fn a_blocking_call_that_holds_up_all_tasks_of_its_runtime_is_warned_of() {
    for fabric in FABRICS {
        one_thread().block_on(async {
            let pair = Pair::over(fabric).await;
            let (mut sender, mut receiver) = pair.channel("a");
            let (tell, told) = mpsc::channel();
            let there = thread::spawn(move || {
                let warning = told.recv_timeout(WATCHDOG).expect("the call is warned of");
                sender.send(&7).expect("sent");
                sender.flush().expect("it is there");
                warning
            });
            let warnings = Each(move |event: &Event<'_>| {
                if *event.metadata().level() == Level::WARN {
                    // The listener may be satisfied already.
                    let _ = tell.send(line(event));
                }
            });
            let warnings = tracing::subscriber::set_default(warnings);
            assert_eq!(*receiver.recv().expect("a message"), 7);
            drop(warnings);
            let warning = there.join().expect("it ends");
            for words in ["current-thread runtime", "_async", "spawn_blocking"] {
                assert!(warning.contains(words), "{warning} does not say {words:?}");
            }
            pair.close().await;
        });
    }
}

#[test]
fn handles_work_in_another_runtime_than_the_nodes() {
    for fabric in FABRICS {
        let (home, other) = (threads(1), one_thread());
        let pair = home.block_on(Pair::over(fabric));
        let (to, requests) = pair.channel("a");
        let (answers, from) = pair.channel_back("b");
        let echoing = home.spawn(echo(requests, answers));
        other.block_on(ask(to, from, 1000));
        home.block_on(async {
            echoing.await.expect("it ends");
            pair.close().await;
        });
    }
}

/// The runtime is shut down while a thread waits, and handles live.
#[test]
fn the_end_of_the_runtime_closes_the_node() {
    for fabric in FABRICS {
        let (home, peers) = (threads(1), threads(1));
        let node = home.block_on(async { builder(fabric).listen("127.0.0.1:0").build() });
        let node = node.expect("a node");
        let address = node.local_addr().expect("it listens");
        let client = peers
            .block_on(async { builder(fabric).build() })
            .expect("a node");
        let there = peers
            .block_on(client.connect_async(address))
            .expect("a session");
        let here = node.accept().expect("a session");
        let (mut sender, mut waiting) = channel(&there, &here, "a");
        let (mut ours, mut theirs) = channel(&here, &there, "b");
        ours.send(&1).expect("sent");
        let (begins, begun) = mpsc::channel();
        let blocked = thread::spawn(move || {
            assert_eq!(*waiting.recv().expect("a message"), 7);
            begins.send(()).expect("it listens");
            waiting.recv().map(|_| ())
        });
        sender.send(&7).expect("sent");
        begun.recv().expect("it has begun");
        drop(home);
        let error = blocked.join().expect("it ends").expect_err("no message");
        assert_eq!(error.cause(), Some(&EndCause::RuntimeEnded), "{error}");
        let error = ours.send(&2).expect_err("it is over");
        assert_eq!(error.cause(), Some(&EndCause::RuntimeEnded), "{error}");
        for connecting in [
            peers.block_on(node.connect_async(address)),
            node.connect(address),
        ] {
            let error = connecting.expect_err("it is over");
            assert_eq!(error.kind(), ConnectErrorKind::Closed);
            let said = error.to_string();
            assert!(said.contains("the tokio runtime"), "{said}");
        }
        // Earlier messages are delivered, then an orderly end comes.
        assert_eq!(*theirs.recv().expect("a message"), 1);
        assert!(matches!(
            theirs.recv(),
            Err(error) if matches!(error.kind(), RecvErrorKind::Ended | RecvErrorKind::Disconnected)
        ));
        let report = node.close(Duration::from_secs(60));
        assert!(report.undelivered.is_empty(), "{report}");
        drop(node);
        let report = peers.block_on(client.close_async(WATCHDOG));
        assert!(report.undelivered.is_empty(), "{report}");
    }
}

/// The node is dropped in a task, whose thread drives both nodes: its messages are delivered.
#[test]
fn dropping_a_node_waits_for_nobody_and_delivers() {
    on_each_runtime(|fabric| async move {
        let pair = Pair::over(fabric).await;
        let (mut sender, mut receiver) = pair.channel("a");
        sender.opened_async().await.expect("open");
        for number in 0..100 {
            sender.try_send(&number).expect("there is room");
        }
        let Pair {
            nodes: [client, listener],
            peers,
        } = pair;
        drop(sender);
        drop(client);
        for number in 0..100 {
            let message = receiver.recv_async().await.expect("a message");
            assert_eq!(*message, number);
            message.ack();
        }
        assert!(
            matches!(receiver.recv_async().await, Err(error) if error.kind() == RecvErrorKind::Ended)
        );
        drop(peers);
        let report = listener.close_async(WATCHDOG).await;
        assert!(report.undelivered.is_empty(), "{report}");
    });
}

#[test]
fn without_a_runtime_there_is_no_such_node() -> Result<(), Box<dyn Error>> {
    let refused = Node::builder().driver(Driver::Tasks).build();
    let error = refused.expect_err("there is no runtime");
    assert_eq!(error.kind(), ListenErrorKind::NoRuntime);
    assert!(error.to_string().contains("enter a runtime"), "{error}");
    let runtime = one_thread();
    let _inside = runtime.enter();
    drop(Node::builder().driver(Driver::Tasks).build()?);
    Ok(())
}

/// Each message wakes its receiver, or finds it awake; one that did neither would stop its pair
/// forever.
#[test]
fn a_million_wake_ups_lose_none() {
    for fabric in FABRICS {
        threads(4).block_on(async {
            let pair = Pair::over(fabric).await;
            let pending = Arc::new(AtomicU64::new(0));
            let tasks: Vec<_> = (0..PAIRS)
                .flat_map(|n| {
                    let (to, requests) = pair.channel(&format!("a{n}"));
                    let (answers, from) = pair.channel_back(&format!("b{n}"));
                    let share = WAKE_UPS / PAIRS / 2;
                    let counted = counted(ask(to, from, share), pending.clone());
                    [
                        tokio::spawn(counted),
                        tokio::spawn(counted_echo(requests, answers, pending.clone())),
                    ]
                })
                .collect();
            for task in tasks {
                tokio::time::timeout(WATCHDOG, task)
                    .await
                    .expect("none is lost")
                    .expect("it ends");
            }
            println!("{} waits over {fabric}", pending.load(Ordering::Relaxed));
            pair.close().await;
        });
    }
}

async fn counted_echo(
    requests: Receiver<u64, Pod>,
    answers: Sender<u64, Pod>,
    pending: Arc<AtomicU64>,
) {
    counted(echo(requests, answers), pending).await;
}

/// Counts how often a future was pending.
async fn counted(future: impl Future<Output = ()>, pending: Arc<AtomicU64>) {
    let mut future = Box::pin(future);
    std::future::poll_fn(|context| {
        let polled = future.as_mut().poll(context);
        pending.fetch_add(u64::from(polled.is_pending()), Ordering::Relaxed);
        polled
    })
    .await;
}

const PAIRS: u64 = 16;
/// The approximate number of waits over each fabric.
const WAKE_UPS: u64 = if cfg!(debug_assertions) {
    50_000
} else {
    1_000_000
};
/// The time-out of the watchdog.
const WATCHDOG: Duration = Duration::from_secs(600);
