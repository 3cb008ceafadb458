//! Nodes meet, or report precisely why they do not.

use std::{
    fs,
    io::{Read, Write},
    net::{TcpListener, TcpStream},
    process, thread,
    time::{Duration, Instant},
};

use ibex::{ConnectErrorKind, Fabric, ListenErrorKind, Node, NodeBuilder, Policy, Wait};

use crate::common::{
    payload,
    scenario::{Scenario, Side, Span},
    stage::{LONG, MOMENT, Stage, receiver, sender},
};

pub(crate) const SCENARIOS: &[Scenario] = &[
    Scenario::new("fabric_chosen", fabric_chosen).on(Span::EachDriver),
    Scenario::new("ways_to_wait", ways_to_wait),
    Scenario::new("listener_starts_later", listener_starts_later),
    Scenario::new("connecting_to_nobody", to_nobody).on(Span::EachDriver),
    Scenario::new("connecting_to_a_web_server", to_a_web_server).on(Span::EachDriver),
    Scenario::new("connecting_to_silence", to_silence).on(Span::EachDriver),
    Scenario::new("strangers_at_the_door", strangers),
    Scenario::new("open_to_other_hosts", open_to_other_hosts).on(Span::EachDriver),
    Scenario::new("accepting_nobody", accepting_nobody).on(Span::EachDriver),
    Scenario::new("connecting_interrupted", interrupted).on(Span::EachDriver),
    Scenario::new("closed_before_it_accepts", closed_before_it_accepts),
];

/// Two nodes with default settings choose a fabric by the peer's place, and give the reason. A
/// fabric that one of them excludes is not chosen. An unavailable fabric is an error with the
/// reason.
fn fabric_chosen(stage: &mut Stage) {
    type Settings = fn(NodeBuilder) -> NodeBuilder;
    let cases: [(Settings, Settings, Option<Fabric>); 5] = [
        (|dialer| dialer, |listener| listener, Some(Fabric::Shm)),
        (
            |dialer| dialer.fabric(Fabric::Shm, Policy::Forbid),
            |listener| listener,
            Some(Fabric::Tcp),
        ),
        (
            |dialer| dialer,
            |listener| listener.fabric(Fabric::Shm, Policy::Forbid),
            Some(Fabric::Tcp),
        ),
        (
            |dialer| dialer.fabric(Fabric::Tcp, Policy::Prefer),
            |listener| listener,
            Some(Fabric::Tcp),
        ),
        (
            |dialer| dialer.fabric(Fabric::Shm, Policy::Require),
            |listener| listener.fabric(Fabric::Shm, Policy::Forbid),
            None,
        ),
    ];
    for (dialer, listener, expected) in cases {
        let builder = Node::builder().driver(stage.driver());
        match stage.side {
            Side::Dialer => {
                let node = dialer(builder).build().expect("a node");
                let address = stage.hear_any();
                match (node.connect(&address), expected) {
                    (Ok(peer), Some(fabric)) => {
                        assert_eq!(peer.fabric(), fabric, "{}", peer.fabric_reason());
                        assert!(!peer.fabric_reason().is_empty());
                    }
                    (Err(error), None) => {
                        let said = error.to_string();
                        assert!(said.contains("shm"), "{said}");
                    }
                    (other, expected) => panic!("{other:?} instead of {expected:?}"),
                }
                stage.tell("met");
            }
            Side::Listener => {
                let node = listener(builder)
                    .listen("127.0.0.1:0")
                    .build()
                    .expect("a node");
                stage.tell_address(&node);
                if let Some(fabric) = expected {
                    assert_eq!(node.accept().expect("a peer").fabric(), fabric);
                }
                stage.hear("met", &node);
            }
        }
    }
}

/// Polling, spinning before sleeping, and sleeping at once all receive every message.
fn ways_to_wait(stage: &mut Stage) {
    let spin = Duration::from_micros(5);
    for wait in [Wait::Event, Wait::Adaptive { spin }, Wait::BusyPoll] {
        let (node, peer) = stage.meet_as(|builder| builder.wait(wait));
        let last = stage.count(500);
        match stage.side {
            Side::Dialer => {
                let (mut ping, mut pong) = (sender(&peer, "ping"), receiver(&peer, "pong"));
                for sequence in 1..=last {
                    ping.send(&payload::numbered(sequence, 100)).expect("sent");
                    payload::check(sequence, &pong.recv().expect("an answer"));
                    ping.wait_acked(sequence).expect("acknowledged");
                }
            }
            Side::Listener => {
                let (mut ping, mut pong) = (receiver(&peer, "ping"), sender(&peer, "pong"));
                while let Some(message) = ping.next().expect("a ping") {
                    pong.send(&message).expect("sent");
                    message.ack();
                }
            }
        }
        drop(node);
        // The next pair of nodes meets when this one is gone.
        stage.tell("next");
        assert_eq!(stage.hear_any(), "next");
    }
}

/// `connect` waits for a node that starts later: "refused" means "not yet there".
fn listener_starts_later(stage: &mut Stage) {
    match stage.side {
        Side::Dialer => {
            let node = stage.builder().build().expect("a node");
            let address = free_address();
            stage.tell(&address);
            let peer = node.connect(&address).expect("it starts in the end");
            sender(&peer, "hello").send(b"hello").expect("sent");
        }
        Side::Listener => {
            let address = stage.hear_any();
            let node = stage
                .builder()
                .listen(&address)
                .build()
                .expect("a free port");
            let peer = node.accept().expect("a peer");
            assert_eq!(
                &receiver(&peer, "hello").recv().expect("a message")[..],
                b"hello"
            );
        }
    }
}

/// Returns an address at which no process listens. Its port is below those that the kernel gives out
/// (`ip_local_port_range`), so that no connection of another test takes it meanwhile.
fn free_address() -> String {
    let first = 10_000 + (process::id() % 20_000) as u16;
    let mut ports = (first..32_000).chain(10_000..first);
    let listener = ports.find_map(|port| TcpListener::bind(("127.0.0.1", port)).ok());
    let address = listener.expect("a port").local_addr();
    address.expect("its address").to_string()
}

/// Returns the text of the error with which a node fails to connect, which must contain `why`. The
/// time-out grows until the machine manages one attempt, without which the error could not describe
/// the address.
fn said_in_vain(stage: &Stage, address: &str, why: &str) -> String {
    let mut timeout = 3 * MOMENT;
    loop {
        let node = stage.builder().connect_timeout(timeout).build();
        let node = node.expect("a node");
        let error = node.connect(address).expect_err("no node is there");
        let said = error.to_string();
        if said.contains(why) {
            return said;
        }
        timeout *= 2;
        assert!(timeout < LONG, "{said}");
    }
}

/// No process listens: after `connect_timeout` the error says so, with the address, the time and
/// the number of attempts.
fn to_nobody(stage: &mut Stage) {
    if !stage.is_dialer() {
        return;
    }
    let address = free_address();
    let said = said_in_vain(stage, &address, "nobody listens there");
    assert_eq!(said.matches(&address).count(), 1, "{said}");
    let node = stage.builder().build().expect("a node");
    let said = node
        .connect("not an address")
        .expect_err("nonsense")
        .to_string();
    assert!(said.contains("not an address"), "{said}");
}

/// Another program listens: the error comes at once, and shows what that program said.
fn to_a_web_server(stage: &mut Stage) {
    match stage.side {
        Side::Dialer => {
            let node = stage.builder().build().expect("a node");
            let address = stage.hear_any();
            let error = node.connect(&address).expect_err("it is no ibex node");
            assert_eq!(error.kind(), ConnectErrorKind::Foreign, "{error}");
            let said = error.to_string();
            assert!(said.contains(&address) && said.contains("HTTP"), "{said}");
        }
        Side::Listener => {
            let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
            stage.tell(&listener.local_addr().expect("its address").to_string());
            let (mut stream, _) = listener.accept().expect("a connection");
            stream
                .write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n")
                .expect("written");
            // Reads until the dialer disconnects.
            let _ = stream.read_to_end(&mut Vec::new());
        }
    }
}

/// A silent process listens: the error names the step that was waited for.
fn to_silence(stage: &mut Stage) {
    match stage.side {
        Side::Dialer => {
            let address = stage.hear_any();
            let said = said_in_vain(stage, &address, "silent");
            assert!(said.contains(&address), "{said}");
            stage.tell("done");
        }
        Side::Listener => {
            // The kernel accepts the connections, one per attempt.
            let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
            stage.tell(&listener.local_addr().expect("its address").to_string());
            assert_eq!(stage.hear_any(), "done");
        }
    }
}

/// A listener besieged by half-open connections, web browsers and clients that disconnect still
/// admits a peer.
fn strangers(stage: &mut Stage) {
    const HALF_OPEN: usize = 400;
    match stage.side {
        Side::Dialer => {
            let node = stage.builder().build().expect("a node");
            let address = stage.hear_any();
            let knock = || TcpStream::connect(&address).expect("the listener's queue");
            for _ in 0..20 {
                drop(knock());
                // The listener may have disconnected already.
                let _ = knock().write_all(b"GET / HTTP/1.1\r\n\r\n");
            }
            let crowd: Vec<TcpStream> = (0..HALF_OPEN).map(|_| knock()).collect();
            let peer = node.connect(&address).expect("there is room for a peer");
            stage.check_peer(&peer);
            let mut sender = sender(&peer, "through");
            sender.send(b"through the crowd").expect("sent");
            sender.wait_acked(1).expect("acknowledged");
            drop(crowd);
            stage.tell("done");
        }
        Side::Listener => {
            let node = stage.listen();
            let peer = node.accept().expect("the one that is a peer");
            stage.check_peer(&peer);
            let mut receiver = receiver(&peer, "through");
            let message = receiver.recv().expect("a message");
            assert_eq!(&message[..], b"through the crowd");
            message.ack();
            stage.hear("done", &node);
            assert!(node.try_accept().expect("still listening").is_none());
        }
    }
}

/// Without security a node listens on loopback only, unless it is told that the network is safe.
fn open_to_other_hosts(stage: &mut Stage) {
    if !stage.is_dialer() {
        return;
    }
    match stage.builder().listen("0.0.0.0:0").build() {
        Err(error) if error.kind() == ListenErrorKind::InsecureAddress => {
            let said = error.to_string();
            assert!(
                said.contains("0.0.0.0") && said.contains("insecure_network"),
                "{said}"
            );
        }
        other => panic!("everybody could connect: {other:?}"),
    }
    let node = stage
        .builder()
        .listen("0.0.0.0:0")
        .insecure_network()
        .build()
        .expect("told so");
    let taken = node.local_addr().expect("it listens");
    let error = stage
        .builder()
        .listen(taken)
        .insecure_network()
        .build()
        .expect_err("taken");
    assert!(error.kind() == ListenErrorKind::Address, "{error}");
    assert!(error.to_string().contains(&taken.to_string()), "{error}");
}

/// No peer comes, or none can.
fn accepting_nobody(stage: &mut Stage) {
    if !stage.is_dialer() {
        return;
    }
    let node = stage
        .builder()
        .listen("127.0.0.1:0")
        .build()
        .expect("a node");
    assert_eq!(
        node.accept_timeout(MOMENT).expect_err("no peer").kind(),
        ConnectErrorKind::Timeout
    );
    assert!(node.try_accept().expect("it listens").is_none());
    let client = stage.builder().build().expect("a node");
    assert_eq!(
        client.accept().expect_err("no peer").kind(),
        ConnectErrorKind::NotListening
    );
    assert!(client.local_addr().is_none());
}

/// Closing the node ends a waiting `connect`.
fn interrupted(stage: &mut Stage) {
    if !stage.is_dialer() {
        return;
    }
    let node: Node = stage
        .builder()
        .connect_timeout(Duration::MAX)
        .build()
        .expect("a node");
    std::thread::scope(|scope| {
        let address = free_address();
        let connecting = scope.spawn(|| node.connect(address).map(|_| ()));
        let _ = node.close(MOMENT);
        let said = connecting
            .join()
            .expect("no panic")
            .expect_err("closed")
            .to_string();
        assert!(said.contains("closing"), "{said}");
    });
}

/// A node dropped with unaccepted sessions leaves nothing of them behind.
fn closed_before_it_accepts(stage: &mut Stage) {
    const NODES: usize = 4;
    let descriptors = || fs::read_dir("/proc/self/fd").expect("procfs").count();
    let mut first = None;
    for _ in 0..NODES {
        if stage.is_dialer() {
            let node = stage.builder().build().expect("a node");
            let peer = stage.dial(&node);
            stage.tell("it is connected");
            stage.hear("it is closed", &node);
            assert!(node.close(LONG).undelivered.is_empty());
            drop(peer);
            continue;
        }
        let node = stage.listen();
        stage.hear("it is connected", &node);
        while node.stats().sessions.is_empty() {
            node.poll();
        }
        drop(node);
        stage.tell("it is closed");
        let first = *first.get_or_insert_with(descriptors);
        let began = Instant::now();
        // A thread of its own closes a socket with unread bytes.
        while descriptors() > first {
            assert!(began.elapsed() < LONG, "descriptors are left behind");
            thread::sleep(Duration::from_millis(1));
        }
    }
}
