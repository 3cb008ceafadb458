//! How a service begins and ends while its clients go on: listening sockets that processes hand to
//! each other.
#![forbid(unsafe_code)]

use std::{
    env,
    error::Error,
    net::{SocketAddr, TcpListener},
    os::fd::OwnedFd,
    process::{Child, Command, Stdio},
    thread,
    time::Duration,
};

use ibex::{Driver, ListenError, Node, NodeBuilder};
use listenfd::ListenFd;
use rustix::net;

const LOOPBACK: &str = "127.0.0.1:0";
/// The driver of the child's node.
const DRIVER: &str = "IBEX_TEST_DRIVER";

/// A node of this process that cares for no variables.
fn builder() -> NodeBuilder {
    let none: [(&str, &str); 0] = [];
    Node::builder().environment(none)
}

/// Starts [`socket_activated_child`] as systemd starts a service that it activates by a socket: the
/// socket is descriptor 3, and the variables name the process itself.
fn activate(socket: TcpListener, driver: &str) -> Child {
    let handed_over = "exec 3<&0 </dev/null; LISTEN_PID=$$ LISTEN_FDS=1 exec \"$@\"";
    Command::new("sh")
        .args(["-c", handed_over, "sh"])
        .arg(env::current_exe().expect("this program"))
        .args(["--exact", "socket_activated_child", "--nocapture"])
        .env(DRIVER, driver)
        .stdin(Stdio::from(OwnedFd::from(socket)))
        .stdout(Stdio::null())
        .spawn()
        .expect("a child")
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
        assert!(child.wait().expect("it ends").success());
    }
}

/// Connects, and says to whom.
fn found_at(address: SocketAddr) -> ibex::PeerId {
    let client = builder().build().expect("a node");
    client.connect(address).expect("somebody listens").id()
}

#[test]
fn a_closed_node_leaves_a_given_socket_to_those_who_share_it() {
    let socket = TcpListener::bind(LOOPBACK).expect("a port");
    let address = socket.local_addr().expect("it is bound");
    let share = || socket.try_clone().expect("a descriptor");

    let old = builder().listen_on(share()).build().expect("a node");
    assert_eq!(found_at(address), old.id());
    assert!(old.close(Duration::MAX).undelivered.is_empty());
    // Nobody serves the socket, and who connects waits in its queue.
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
    let Err(error @ ListenError::Address { .. }) = refused else {
        panic!("it does not listen");
    };
    assert!(error.to_string().contains("does not listen"), "{error}");
}

#[test]
fn a_given_socket_that_strangers_reach_has_to_be_allowed() {
    let socket = || TcpListener::bind("0.0.0.0:0").expect("a port");
    let refused = builder().listen_on(socket()).build();
    assert!(matches!(refused, Err(ListenError::InsecureAddress { .. })));
    let allowed = builder().insecure_network().listen_on(socket()).build();
    allowed.expect("the program said so");
}
