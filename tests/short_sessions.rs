//! A node that makes a session for each job, and ends it, stays as it is: no session, descriptor or
//! mapping is left of thousands of jobs, whichever end closes.
#![forbid(unsafe_code)]

mod extent;

use std::{
    fs,
    sync::{Mutex, PoisonError},
    thread,
    time::{Duration, Instant},
};

use ibex::{Driver, EndCause, Event, Fabric, Node, Peer, Policy, Raw};

/// More jobs than a node may have sessions with one peer.
const JOBS: u32 = 1200;
/// Jobs after which the node has everything that it keeps.
const WARM_UP: u32 = 200;
/// What sessions that have just ended may still have: the peer's node forgets a session a moment
/// later.
const BEHIND: usize = 64;
const WATCHDOG: Duration = Duration::from_secs(600);

/// Held by each test: the counts are of the whole process.
static ALONE: Mutex<()> = Mutex::new(());

fn builder(fabric: Fabric, driver: Driver) -> ibex::NodeBuilder {
    let none: [(&str, &str); 0] = [];
    let builder = Node::builder().environment(none).driver(driver);
    let builder = builder
        .connect_timeout(Duration::MAX)
        .open_timeout(Duration::MAX);
    builder.fabric(fabric, Policy::Require)
}

/// Returns the number of this process's descriptors, and of its mappings.
fn belongings() -> (usize, usize) {
    let descriptors = fs::read_dir("/proc/self/fd").expect("a list").count();
    let maps = fs::read_to_string("/proc/self/maps").expect("a list");
    (descriptors, maps.lines().count())
}

/// Plays one job between two nodes of this process, and leaves the session to be closed.
fn play(client: &Node, server: &Node) -> (Peer, Peer) {
    let peer = client
        .connect(server.local_addr().expect("it listens"))
        .expect("a session");
    let accepted = server.accept().expect("a peer");
    let mut sender = peer.channel("job").codec::<Raw>().sender().expect("an end");
    let mut receiver = accepted
        .channel("job")
        .codec::<Raw>()
        .receiver::<[u8]>()
        .expect("an end");
    sender.send(b"x").expect("sent");
    receiver.recv().expect("a message").ack();
    sender.close().expect("delivered");
    (peer, accepted)
}

fn settle(nodes: [&Node; 2]) {
    let began = Instant::now();
    while nodes.iter().any(|node| !node.stats().sessions.is_empty()) {
        assert!(began.elapsed() < WATCHDOG, "sessions are left");
        thread::yield_now();
    }
}

fn many_jobs(fabric: Fabric, server_closes: bool) {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let server = builder(fabric, Driver::Threads).listen("127.0.0.1:0");
    let server = server.build().expect("a node");
    let client = builder(fabric, Driver::Threads).build().expect("a node");
    let mut settled = None;
    let times = if extent::is_whole() { 5 } else { 1 };
    for job in 0..times * JOBS {
        let (peer, accepted) = play(&client, &server);
        let closes = if server_closes { &accepted } else { &peer };
        let report = closes.close(WATCHDOG);
        assert!(report.undelivered.is_empty(), "job {job}: {report}");
        if job == WARM_UP {
            settle([&client, &server]);
            settled = Some(belongings());
        }
        if let Some((descriptors, mappings)) = settled {
            let now = belongings();
            assert!(
                now.0 <= descriptors + BEHIND && now.1 <= mappings + BEHIND,
                "job {job}: {now:?} descriptors and mappings, beside {settled:?} after {WARM_UP}"
            );
        }
    }
    settle([&client, &server]);
}

#[test]
fn thousands_of_jobs_over_shared_memory_leave_nothing() {
    many_jobs(Fabric::Shm, false);
}

#[test]
fn thousands_of_clients_sent_away_over_shared_memory_leave_nothing() {
    many_jobs(Fabric::Shm, true);
}

#[test]
fn thousands_of_jobs_over_tcp_leave_nothing() {
    many_jobs(Fabric::Tcp, false);
}

#[test]
fn thousands_of_clients_sent_away_over_tcp_leave_nothing() {
    many_jobs(Fabric::Tcp, true);
}

/// A session's place is free as soon as its close has returned, so that the only place serves one
/// job after the other.
#[test]
fn the_only_place_serves_one_job_after_the_other() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let server = builder(Fabric::Tcp, Driver::Threads).listen("127.0.0.1:0");
    let server = server.build().expect("a node");
    let mut events = server.events();
    let client = builder(Fabric::Tcp, Driver::Threads).max_peer_sessions(1);
    let client = client.build().expect("a node");
    for job in 0..20 {
        let (peer, accepted) = play(&client, &server);
        let reason = format!("job {job} is done");
        let report = peer.close_because(&reason, WATCHDOG);
        assert!(report.undelivered.is_empty(), "{report}");
        let cause = loop {
            let event = events.next_timeout(WATCHDOG).expect("an event");
            if let Event::Gone { cause, .. } = event {
                break cause;
            }
        };
        assert_eq!(cause, EndCause::EndedByPeer { reason });
        assert!(accepted.is_gone());
    }
}

/// What a session had not delivered when it ended is in the report of its node, which is closed
/// later.
#[test]
fn a_node_reports_what_sessions_before_its_close_did_not_deliver() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    // Nobody turns this node's engine while messages come.
    let server = builder(Fabric::Tcp, Driver::Caller).listen("127.0.0.1:0");
    let server = server.build().expect("a node");
    let client = builder(Fabric::Tcp, Driver::Threads)
        .build()
        .expect("a node");
    let address = server.local_addr().expect("it listens");
    let connecting = thread::scope(|scope| {
        let connecting = scope.spawn(|| client.connect(address));
        let accepted = server.accept().expect("a peer");
        (connecting.join().expect("no panic"), accepted)
    });
    let (peer, accepted) = (connecting.0.expect("a session"), connecting.1);
    let _receiver = accepted
        .channel("job")
        .codec::<Raw>()
        .receiver::<[u8]>()
        .expect("an end");
    let mut sender = peer.channel("job").codec::<Raw>().sender().expect("an end");
    while sender.opened(Duration::from_millis(1)).is_err() {
        server.poll();
    }
    for _ in 0..3 {
        sender.send(b"x").expect("sent");
    }
    let report = peer.close(Duration::ZERO);
    let missing = &report.undelivered[..];
    assert!(matches!(missing, [job] if (job.sent, job.received) == (3, 0)));
    settle([&client, &client]);
    let report = client.close(WATCHDOG);
    assert!(!report.is_complete());
    assert_eq!(
        report.to_string(),
        "not all that was sent is delivered: 3 messages of sessions that had ended before"
    );
}
