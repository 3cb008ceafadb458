//! A node stays connected to the peers at the addresses that a discovery returns.
#![forbid(unsafe_code)]

use ibex_harness::wait_until;
use std::{
    error::Error,
    fs,
    net::{SocketAddr, TcpListener},
    sync::{
        PoisonError, RwLock, RwLockReadGuard,
        mpsc::{Receiver, Sender, channel},
    },
    thread,
    time::Duration,
};

use ibex::prelude::*;
use ibex::{
    Driver, EndCause, Event, Node, Peer, Raw,
    discovery::{Discovery, Dns, Found, Peers, PeersEvent, PeersEvents},
};

const DRIVERS: [Driver; 2] = [Driver::Threads, Driver::Caller];
/// The time-out of events that must come.
const WATCHDOG: Duration = Duration::from_secs(120);

/// Held shared by all tests, and exclusively by the one that counts threads.
static THREADS: RwLock<()> = RwLock::new(());

fn beside_others() -> RwLockReadGuard<'static, ()> {
    THREADS.read().unwrap_or_else(PoisonError::into_inner)
}

fn node(driver: Driver) -> Node {
    let none: [(&str, &str); 0] = [];
    let builder = Node::builder().environment(none).driver(driver);
    builder.build().expect("a node")
}

fn listen(address: impl ibex::ToAddress) -> Node {
    let none: [(&str, &str); 0] = [];
    let builder = Node::builder().environment(none);
    builder.listen(address).build().expect("a node")
}

fn replica() -> (Node, SocketAddr) {
    let node = listen("127.0.0.1:0");
    let address = node.local_addr().expect("it listens");
    (node, address.inet().expect("of TCP"))
}

/// Returns the next event, which must come.
fn next(events: &mut PeersEvents) -> PeersEvent {
    events.next_timeout(WATCHDOG).expect("an event in time")
}

#[track_caller]
fn expect_connected(events: &mut PeersEvents, at: SocketAddr, to: &Node) {
    match next(events) {
        PeersEvent::Connected { address, peer, .. } => {
            assert_eq!((address, peer.id()), (at.to_string(), to.id()));
        }
        other => panic!("another event: {other}"),
    }
}

#[track_caller]
fn expect_lost(events: &mut PeersEvents, at: SocketAddr, from: ibex::PeerId) {
    match next(events) {
        PeersEvent::Lost { address, peer, .. } => {
            assert_eq!((address, peer), (at.to_string(), from));
        }
        other => panic!("another event: {other}"),
    }
}

/// A discovery that returns the answers that a test sends it.
struct Told {
    answers: Receiver<Result<Vec<SocketAddr>, &'static str>>,
    asked: Sender<()>,
}

type Answers = Sender<Result<Vec<SocketAddr>, &'static str>>;

/// Returns a discovery, the sender of its answers, and a receiver that learns of each query.
fn told() -> (Told, Answers, Receiver<()>) {
    let (tell, answers) = channel();
    let (asked, is_asked) = channel();
    (Told { answers, asked }, tell, is_asked)
}

impl Discovery for Told {
    fn find(&mut self) -> Result<Found, Box<dyn Error + Send + Sync>> {
        let _ = self.asked.send(());
        let answer = self.answers.recv()??;
        Ok(Found::new(answer).again_in(Duration::ZERO))
    }
}

#[test]
fn a_peer_that_starts_later_is_reached() {
    let _beside = beside_others();
    for driver in DRIVERS {
        let socket = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = socket.local_addr().expect("it is bound");
        drop(socket);
        let node = node(driver);
        let peers = node.keep_connected([address]).expect("threads");
        let mut events = peers.events();
        match next(&mut events) {
            PeersEvent::NotReached { address: at, .. } => assert_eq!(at, address.to_string()),
            other => panic!("another event: {other}"),
        }
        let replica = listen(address);
        // Failures in between were not reported.
        expect_connected(&mut events, address, &replica);
        assert_eq!(peers.connected().len(), 1);
    }
}

#[test]
fn a_peer_that_restarts_is_connected_anew_and_both_are_told() {
    let _beside = beside_others();
    for driver in DRIVERS {
        let (replica, address) = replica();
        let node = node(driver);
        let peers = node
            .keep_connected([address.to_string().as_str()])
            .expect("threads");
        let mut events = peers.events();
        expect_connected(&mut events, address, &replica);
        let first = replica.id();
        drop(replica);
        expect_lost(&mut events, address, first);
        let replica = listen(address);
        loop {
            match next(&mut events) {
                PeersEvent::NotReached { .. } => {}
                PeersEvent::Connected { peer, .. } => break assert_eq!(peer.id(), replica.id()),
                other => panic!("another event: {other}"),
            }
        }
        let peer = peers
            .wait_for_timeout(address, WATCHDOG)
            .expect("it is there");
        assert_eq!(peer.id(), replica.id());
    }
}

/// A loan keeps the session that is let go for up to a second.
#[test]
fn a_session_that_is_let_go_is_not_found_while_it_closes() {
    let _beside = beside_others();
    for driver in DRIVERS {
        let none: [(&str, &str); 0] = [];
        let builder = Node::builder().environment(none).insecure_network();
        let replica = builder.listen("0.0.0.0:0").build().expect("a node");
        let port = replica.local_addr().and_then(ibex::Address::inet);
        let port = port.expect("an address of TCP").port();
        let [first, second] = [1, 2].map(|last| SocketAddr::from(([127, 0, 0, last], port)));
        let (discovery, answers, _asked) = told();
        let node = node(driver);
        let peers = node.keep_connected(discovery).expect("threads");
        answers.send(Ok(vec![first])).expect("it is asked");
        let old = peers.wait_for_timeout(first, WATCHDOG).expect("a peer");
        let bytes = |peer: &Peer, name| peer.channel(name).codec::<Raw>();
        let there = replica.accept_timeout(WATCHDOG).expect("a session");
        let _receiver = bytes(&there, "held").receiver::<[u8]>().expect("an end");
        let mut sender = bytes(&old, "held").sender::<[u8]>().expect("an end");
        let _held = sender.loan(8).expect("room");
        answers.send(Ok(vec![second])).expect("it is asked");
        let new = peers
            .wait_for_timeout(second, WATCHDOG)
            .expect("the same node");
        let opened = bytes(&new, "new").sender::<[u8]>();
        opened.expect("a session that goes on");
        assert!(peers.wait_for_timeout(first, Duration::ZERO).is_none());
        assert_eq!(peers.connected().len(), 1);
    }
}

#[test]
fn the_own_address_and_a_second_one_of_a_peer_are_left_out() {
    let _beside = beside_others();
    let (replica, address) = replica();
    let node = listen("127.0.0.1:0");
    let own = node.local_addr().expect("it listens");
    let second = format!("localhost:{}", address.port());
    let all = vec![own.to_string(), address.to_string(), second.clone()];
    let peers = node.keep_connected(all).expect("threads");
    for address in [address.to_string(), second] {
        let peer = peers.wait_for_timeout(address, WATCHDOG);
        assert_eq!(peer.expect("it is there").id(), replica.id());
    }
    assert!(
        peers
            .wait_for_timeout(own, Duration::from_millis(100))
            .is_none()
    );
    assert_eq!(peers.connected().len(), 1);
    let mut events = peers.events();
    assert!(matches!(next(&mut events), PeersEvent::Connected { .. }));
    assert!(events.try_next().is_none());
}

#[test]
fn the_addresses_of_a_name_are_peers() {
    let _beside = beside_others();
    let (replica, address) = replica();
    let node = node(Driver::Threads);
    let name = Dns::new("localhost", address.port()).every(Duration::from_secs(1));
    let peers = node.keep_connected(name).expect("threads");
    let peer = peers
        .wait_for_timeout(address, WATCHDOG)
        .expect("it is found");
    assert_eq!(peer.id(), replica.id());
}

/// Takes the event of a session that this node has ended, and checks that its peer was told why.
#[track_caller]
fn expect_let_go(events: &mut PeersEvents, at: SocketAddr, from: &Node) {
    match next(events) {
        PeersEvent::Lost {
            address,
            peer,
            cause: EndCause::EndedHere { .. },
            ..
        } => assert_eq!((address, peer), (at.to_string(), from.id())),
        other => panic!("another event: {other}"),
    }
    let mut of_peer = from.events();
    loop {
        let event = of_peer.next_timeout(WATCHDOG).expect("an event in time");
        if let Event::Gone { cause, .. } = event {
            let reason = "its address is no longer listed".to_owned();
            return assert_eq!(cause, EndCause::EndedByPeer { reason });
        }
    }
}

#[test]
fn an_address_off_the_list_is_let_go_and_gets_no_other_session() {
    let _beside = beside_others();
    for driver in DRIVERS {
        let ((going, leaving), (staying, other)) = (replica(), replica());
        let (discovery, answers, is_asked) = told();
        let node = node(driver);
        let peers = node.keep_connected(discovery).expect("threads");
        let mut events = peers.events();
        answers.send(Ok(vec![leaving, other])).expect("it is asked");
        // Either may be connected first.
        for _ in 0..2 {
            let event = next(&mut events);
            assert!(matches!(event, PeersEvent::Connected { .. }), "{event}");
        }
        answers.send(Ok(vec![other])).expect("it is asked");
        expect_let_go(&mut events, leaving, &going);
        let connected: Vec<_> = peers.connected().iter().map(Peer::id).collect();
        assert_eq!(connected, [staying.id()]);
        assert_eq!(node.stats().sessions.len(), 1);
        drop(going);
        let back = listen(leaving);
        answers.send(Ok(vec![other])).expect("it is asked");
        for _ in 0..4 {
            is_asked.recv_timeout(WATCHDOG).expect("it is asked");
        }
        assert!(back.accept_timeout(Duration::from_millis(300)).is_err());
        answers.send(Ok(vec![other, leaving])).expect("it is asked");
        expect_connected(&mut events, leaving, &back);
    }
}

#[test]
fn a_discovery_that_fails_keeps_its_last_answer() {
    let _beside = beside_others();
    for driver in DRIVERS {
        let (replica, address) = replica();
        let (discovery, answers, is_asked) = told();
        let node = node(driver);
        let peers = node.keep_connected(discovery).expect("threads");
        let mut events = peers.events();
        answers.send(Ok(vec![address])).expect("it is asked");
        expect_connected(&mut events, address, &replica);
        answers
            .send(Err("the registry is down"))
            .expect("it is asked");
        match next(&mut events) {
            PeersEvent::DiscoveryFailed { error, .. } => {
                assert_eq!(error.to_string(), "the registry is down");
            }
            other => panic!("another event: {other}"),
        }
        answers.send(Err("it still is")).expect("it is asked");
        for _ in 0..4 {
            is_asked.recv_timeout(WATCHDOG).expect("it is asked again");
        }
        let first = replica.id();
        drop(replica);
        expect_lost(&mut events, address, first);
        let replica = listen(address);
        let peer = peers.wait_for(address).expect("it is dialed again");
        assert_eq!(peer.id(), replica.id());
    }
}

#[test]
fn tasks_wait_for_events_and_for_a_peer() {
    let _beside = beside_others();
    let (replica, address) = replica();
    let node = node(Driver::Threads);
    let peers = node.keep_connected([address]).expect("threads");
    smol::block_on(async {
        let peer = peers.wait_for_async(address).await.expect("it is reached");
        assert_eq!(peer.id(), replica.id());
        let mut events = peers.events();
        let first = events.next_async().await;
        assert!(matches!(first, Some(PeersEvent::Connected { .. })));
        drop(replica);
        let second = events.next_async().await;
        assert!(matches!(second, Some(PeersEvent::Lost { .. })));
    });
}

#[test]
fn a_node_that_tasks_drive_keeps_peers() {
    let _beside = beside_others();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    runtime.block_on(async {
        let (replica, address) = replica();
        let node = node(Driver::Tasks);
        let peers = node.keep_connected([address]).expect("threads");
        let peer = peers.wait_for_async(address).await.expect("it is reached");
        assert_eq!(peer.id(), replica.id());
        let mut events = peers.events();
        let first = events.next_async().await;
        assert!(matches!(first, Some(PeersEvent::Connected { .. })));
        thread::spawn(move || drop(replica));
        let second = events.next_async().await;
        assert!(matches!(second, Some(PeersEvent::Lost { .. })));
    });
}

/// Addresses that do not answer hold up no attempt at one that does.
#[test]
fn a_peer_is_reached_beside_hundreds_of_addresses_that_are_silent() {
    const SILENT: u8 = 250;
    let _beside = beside_others();
    for driver in DRIVERS {
        // Every address of the loopback network leads to the kernel's queue, or is not answered.
        let silent = TcpListener::bind("0.0.0.0:0").expect("a port");
        let port = silent.local_addr().expect("it is bound").port();
        let replica = listen("127.0.2.1:0");
        let address = replica.local_addr().expect("it listens");
        let dead = (1..=SILENT).map(|last| SocketAddr::from(([127, 0, 1, last], port)));
        let none: [(&str, &str); 0] = [];
        let builder = Node::builder().environment(none).driver(driver);
        let node = builder.connect_timeout(WATCHDOG).build().expect("a node");
        let peers = node.keep_connected(dead.chain(address.inet()).collect::<Vec<_>>());
        let peers = peers.expect("threads");
        assert!(peers.wait_for_timeout(address, WATCHDOG).is_some());
        let mut events = peers.events();
        let mut not_reached = 0;
        while let PeersEvent::NotReached { .. } = next(&mut events) {
            not_reached += 1;
        }
        // None was given up before.
        assert_eq!(not_reached, 0);
    }
}

/// Counts this process's threads that keep peers connected.
fn keeping() -> usize {
    let names = fs::read_dir("/proc/self/task").expect("threads");
    let names = names.filter_map(|thread| {
        let path = thread.expect("a thread").path().join("comm");
        fs::read_to_string(path).ok()
    });
    names
        .filter(|name| name.starts_with("ibex-peers") || name.starts_with("ibex-discover"))
        .count()
}

fn keep(node: &Node, address: SocketAddr) -> Peers {
    let peers = node
        .keep_connected(Dns::new("127.0.0.1", address.port()))
        .expect("threads");
    let peer = peers.wait_for_timeout(address, WATCHDOG);
    assert!(peer.is_some());
    peers
}

#[test]
fn nothing_is_left_when_the_handle_is_dropped_or_the_node_closed() {
    let _alone = THREADS.write().unwrap_or_else(PoisonError::into_inner);
    for driver in DRIVERS {
        let (replica, address) = replica();
        let node = node(driver);
        let peers = keep(&node, address);
        let peer = peers.connected().pop().expect("a peer");
        let mut events = peers.events();
        assert_eq!(keeping(), 2);
        drop(peers);
        assert!(matches!(next(&mut events), PeersEvent::Connected { .. }));
        assert!(events.next().is_none());
        wait_until(|| keeping() == 0);
        assert!(!peer.is_gone(), "its session goes on");

        let peers = keep(&node, address);
        drop(node);
        assert!(peers.wait_for("127.0.0.1:1").is_none());
        wait_until(|| keeping() == 0);
        drop(replica);
    }
}
