//! The beginning and the end of a service while its clients continue: listening sockets that
//! processes pass to each other, and nodes that drain.
#![forbid(unsafe_code)]

mod draining;
#[path = "../common/over.rs"]
mod over;
mod replacing;

use std::{
    env,
    error::Error,
    net::{SocketAddr, TcpListener},
    os::fd::OwnedFd,
    process::{Command, Stdio},
    thread,
    time::Duration,
};

use ibex::{ConnectErrorKind, Driver, ListenErrorKind, Node, NodeBuilder};
use ibex_harness::process::Process;
use listenfd::ListenFd;
use rustix::net;

const LOOPBACK: &str = "127.0.0.1:0";
/// The driver of the child's node.
const DRIVER: &str = "IBEX_TEST_DRIVER";

/// Returns a builder of a node of this process that ignores the environment.
fn builder() -> NodeBuilder {
    let none: [(&str, &str); 0] = [];
    Node::builder().environment(none)
}

/// Starts [`socket_activated_child`] as systemd starts a socket-activated service: the socket is
/// descriptor 3, and the variables name the process itself.
fn activate(socket: TcpListener, driver: &str) -> Process {
    let handed_over = "exec 3<&0 </dev/null; LISTEN_PID=$$ LISTEN_FDS=1 exec \"$@\"";
    let mut child = Command::new("sh");
    child
        .args(["-c", handed_over, "sh"])
        .arg(env::current_exe().expect("this program"))
        .args(["--exact", "socket_activated_child", "--nocapture"])
        .env(DRIVER, driver)
        .stdin(Stdio::from(OwnedFd::from(socket)))
        .stdout(Stdio::null());
    Process::start("the child", &mut child).expect("a shell")
}

/// Serves one client, if this process was started by [`activate`].
#[test]
fn socket_activated_child() -> Result<(), Box<dyn Error + Send + Sync>> {
    let driver = match env::var(DRIVER).as_deref() {
        Ok("caller") => Driver::Caller,
        Ok(_) => Driver::Threads,
        Err(_) => return Ok(()),
    };
    let socket = ListenFd::from_env().take_tcp_listener(0)?;
    let socket = socket.ok_or("no socket was handed over")?;
    let node = builder().driver(driver).listen_on(socket).build()?;
    let peer = node.accept()?;
    let mut questions = peer.receiver::<u32>("questions")?;
    let mut answers = peer.sender::<(u32, u32)>("answers")?;
    while let Some(question) = questions.next()? {
        answers.send(&(u32::from(*question), std::process::id()))?;
        question.ack();
    }
    answers.close()?;
    Ok(())
}

#[test]
fn a_child_serves_on_the_socket_that_its_parent_bound() {
    for driver in ["threads", "caller"] {
        let socket = TcpListener::bind(LOOPBACK).expect("a port");
        let address = socket.local_addr().expect("it is bound");
        let mut child = activate(socket, driver);

        let node = builder().build().expect("a node");
        let peer = node.connect(address).expect("the child listens");
        let mut questions = peer.sender::<u32>("questions").expect("a sender");
        let mut answers = peer.receiver::<(u32, u32)>("answers").expect("a receiver");
        questions.send(&7).expect("it is sent");
        let answer = answers.next().expect("the session lasts").expect("one");
        assert_eq!((u32::from(answer.0), u32::from(answer.1)), (7, child.id()));
        drop(answer);
        questions.close().expect("the child read all");
        assert!(answers.next().expect("the end is orderly").is_none());
        child.finish().expect("it succeeds");
    }
}

/// Connects, and returns the peer's identity.
fn found_at(address: SocketAddr) -> ibex::PeerId {
    let client = builder().build().expect("a node");
    client.connect(address).expect("somebody listens").id()
}

#[test]
fn a_closed_node_leaves_a_given_socket_to_its_other_holders() {
    let socket = TcpListener::bind(LOOPBACK).expect("a port");
    let address = socket.local_addr().expect("it is bound");
    let share = || socket.try_clone().expect("a descriptor");

    let old = builder().listen_on(share()).build().expect("a node");
    assert_eq!(found_at(address), old.id());
    assert!(old.close(Duration::MAX).undelivered.is_empty());
    // No process serves the socket, and clients wait in its queue.
    let client = thread::spawn(move || found_at(address));
    let new = builder().listen_on(share()).build().expect("a node");
    assert_eq!(client.join().expect("it connected"), new.id());
    for _ in 0..8 {
        assert_eq!(found_at(address), new.id());
    }
}

#[test]
fn a_socket_that_does_not_listen_is_refused() {
    let bound = net::socket(net::AddressFamily::INET, net::SocketType::STREAM, None);
    let bound = bound.expect("a socket");
    let address: SocketAddr = LOOPBACK.parse().expect("an address");
    net::bind(&bound, &address).expect("a port");
    let refused = builder().listen_on(bound.into()).build();
    let error = refused.expect_err("it does not listen");
    assert_eq!(error.kind(), ListenErrorKind::Address);
    assert!(error.to_string().contains("does not listen"), "{error}");
}

#[test]
fn a_given_socket_that_strangers_reach_has_to_be_allowed() {
    let socket = || TcpListener::bind("0.0.0.0:0").expect("a port");
    let refused = builder().listen_on(socket()).build();
    assert!(matches!(refused, Err(error) if error.kind() == ListenErrorKind::InsecureAddress));
    let allowed = builder().insecure_network().listen_on(socket()).build();
    allowed.expect("the program said so");
}

#[test]
fn a_node_that_stops_accepting_goes_on_with_its_sessions() {
    for driver in [Driver::Threads, Driver::Caller] {
        let socket = TcpListener::bind(LOOPBACK).expect("a port");
        let address = socket.local_addr().expect("it is bound");
        let share = || socket.try_clone().expect("a descriptor");
        let old = builder().driver(driver).listen_on(share()).build();
        let old = old.expect("a node");
        let client = builder().build().expect("a node");
        thread::scope(|scope| {
            let connected = scope.spawn(|| client.connect(address).expect("it listens"));
            let here = old.accept().expect("a peer");
            let there = connected.join().expect("it connected");
            assert_eq!(there.id(), old.id());

            // No other peer comes, and a waiting thread learns that.
            let waiting = scope.spawn(|| old.accept());
            old.stop_accepting();
            let refused = waiting.join().expect("it returned");
            assert_eq!(
                refused.expect_err("no peer").kind(),
                ConnectErrorKind::Stopped
            );
            assert_eq!(
                old.try_accept().expect_err("no peer").kind(),
                ConnectErrorKind::Stopped
            );
            let new = builder().listen_on(share()).build().expect("a node");
            assert_eq!(found_at(address), new.id());

            // The old session accepts new channels.
            let mut sender = here.sender::<u64>("news").expect("a sender");
            let mut receiver = there.receiver::<u64>("news").expect("a receiver");
            let sent = scope.spawn(move || {
                sender.send(&3).expect("it is sent");
                sender.close().expect("it is read");
            });
            let news = receiver.next().expect("the session lasts").expect("one");
            assert_eq!(u64::from(*news), 3);
            drop(news);
            assert!(receiver.next().expect("an orderly end").is_none());
            sent.join().expect("all was sent");
            assert!(old.close(Duration::MAX).undelivered.is_empty());
            assert_eq!(
                old.try_accept().expect_err("no peer").kind(),
                ConnectErrorKind::Closed
            );
        });
    }
}

/// A node with its own address keeps it, and refuses with its own error.
#[test]
fn a_node_that_stops_accepting_refuses_connections_to_its_own_address() {
    let node = builder().listen(LOOPBACK).build().expect("a node");
    let address = node.local_addr().expect("it listens");
    node.stop_accepting();
    // The last attempt within the time-out gives the reason, if there was time for one.
    let mut timeout = Duration::from_millis(50);
    loop {
        let client = builder().connect_timeout(timeout).build().expect("a node");
        let refused = client.connect(address).expect_err("it accepts nobody");
        if refused.to_string().contains("begins no session") {
            break;
        }
        timeout *= 2;
    }
}

#[test]
fn a_name_is_in_stats_and_errors_and_an_identity_outlives_a_run() {
    let identity = [7; 16];
    let run = || builder().name("replica-2").identity(identity).build();
    let first = run().expect("a node");
    let stats = first.stats();
    assert_eq!(
        (first.name(), stats.name.as_deref()),
        (Some("replica-2"), Some("replica-2"))
    );
    assert!(stats.to_string().starts_with("node replica-2 ("), "{stats}");
    let second = run().expect("a node");
    assert_ne!(first.id(), second.id());
    assert_eq!(first.id().node_id(), identity);
    assert_eq!(second.id().node_id(), identity);

    let there = builder().name("primary").listen(LOOPBACK);
    let there = there.build().expect("a node");
    let address = there.local_addr().expect("it listens");
    let peer = first.connect(address).expect("it listens");
    let _ = there.close(Duration::ZERO);
    let gone = peer.receiver::<u64>("news").and_then(|mut news| {
        let _ = news.recv();
        peer.receiver::<u64>("news")
    });
    let gone = gone.expect_err("the node is closed").to_string();
    let told = format!("with {address} (named \"primary\", via node replica-2)");
    assert!(gone.contains(&told), "{gone}");

    let nameless = builder().name("").build().expect_err("no name");
    assert_eq!(
        nameless.to_string(),
        "name is 0 bytes; it may be 1 byte to 64 bytes"
    );
}

/// Returns the runtime that `Driver::Tasks` needs, beside the test's thread.
fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .expect("a runtime")
}
