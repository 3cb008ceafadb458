//! Two nodes that meet over real sockets.

mod common;

use std::io::{IoSlice, Read, Write};
use std::mem::MaybeUninit;
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use common::dialing::dial;
use common::{LONG, Listening, dial_node_1, node, wait_readable};
use ibex_bootstrap::handshake::{Handshake, HandshakeEvent};
use ibex_bootstrap::{
    Acceptor, DialError, Established, Fabric, HandshakeError, HostHint, Integrity, NodeIdentity,
    Policy, Problem, UnixClosing, Version, VersionRange,
};
use rustix::net::{
    AddressFamily, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix,
    SocketType, connect, recv, send, sendmsg, socket,
};

/// Sends a byte each way, and checks that none comes before it: the handshake left nothing behind.
fn assert_connected(a: &Established, b: &Established) {
    for (from, to) in [(a, b), (b, a)] {
        assert!(from.leftover.is_empty());
        (&from.stream).write_all(b"x").unwrap();
        to.stream.set_nonblocking(false).unwrap();
        let mut byte = [0];
        (&to.stream).read_exact(&mut byte).unwrap();
        assert_eq!(&byte, b"x");
        to.stream.set_nonblocking(true).unwrap();
        let empty = (&to.stream).read(&mut byte).unwrap_err();
        assert_eq!(
            empty.kind(),
            std::io::ErrorKind::WouldBlock,
            "non-blocking and empty"
        );
        assert!(to.stream.nodelay().unwrap());
    }
}

#[test]
fn over_shm_with_a_unix_socket_on_both_ends() {
    let listening = Listening::with(node(2));
    let dialer = dial_node_1(&listening.address).unwrap();
    let acceptor = listening.established.recv_timeout(LONG).unwrap();
    assert_connected(&dialer, &acceptor);
    assert_eq!(dialer.reason, "shm: same host, same user");
    assert_eq!(acceptor.reason, dialer.reason);
    assert_eq!((dialer.is_dialer, acceptor.is_dialer), (true, false));
    assert_eq!(dialer.peer.identity, NodeIdentity([2; 16]));
    assert_eq!(acceptor.peer.identity, NodeIdentity([1; 16]));
    assert_eq!(acceptor.session_id, dialer.session_id);
    assert_eq!(acceptor.resume_secret, dialer.resume_secret);
    assert_eq!(acceptor.prologue, dialer.prologue);
    assert_eq!(dialer.address.to_string(), listening.address);
    assert_eq!(acceptor.address, dialer.stream.local_addr().unwrap().into());
    for (from, to) in [(&dialer, &acceptor), (&acceptor, &dialer)] {
        assert_eq!(from.pid, Some(std::process::id()));
        let (from, to) = (from.unix.as_ref().unwrap(), to.unix.as_ref().unwrap());
        for (from, to, text) in [
            (&from.control, &to.control, b"hello"),
            (&from.bells, &to.bells, b"rings"),
        ] {
            send(from, text, SendFlags::NOSIGNAL).unwrap();
            let mut buffer = [0; 16];
            let (_, length) = recv(to, &mut buffer, RecvFlags::empty()).unwrap();
            assert_eq!(&buffer[..length], text);
        }
    }
}

#[test]
fn over_tcp_when_shm_is_forbidden() {
    let mut local = node(2);
    local.shm = Policy::Forbid;
    let listening = Listening::with(local);
    let dialer = dial_node_1(&listening.address).unwrap();
    let acceptor = listening.established.recv_timeout(LONG).unwrap();
    assert_connected(&dialer, &acceptor);
    for end in [&dialer, &acceptor] {
        assert_eq!(end.fabric, Fabric::Tcp);
        assert!(end.unix.is_none() && end.pid.is_none());
        assert_eq!(end.stated_pid, Some(std::process::id()));
        assert!(
            end.reason
                .starts_with("tcp: not shm: the listening node's policy forbids shm; ")
        );
    }
}

#[test]
fn by_host_name_and_by_ipv6() {
    let listening = Listening::with(node(2));
    let port = listening.address.rsplit(':').next().unwrap();
    dial_node_1(&format!("localhost:{port}")).unwrap();
    // A kernel without IPv6 cannot run this part.
    if TcpListener::bind("[::]:0").is_ok() {
        let both = Listening::at("[::]:0", node(2));
        let port = both.address.rsplit(':').next().unwrap();
        let dialer = dial_node_1(&format!("127.0.0.1:{port}")).unwrap();
        let acceptor = both.established.recv_timeout(LONG).unwrap();
        assert_eq!(acceptor.address, dialer.stream.local_addr().unwrap().into());
    }
}

#[test]
fn a_node_may_dial_itself() {
    let listening = Listening::with(node(1));
    let dialer = dial_node_1(&listening.address).unwrap();
    let acceptor = listening.established.recv_timeout(LONG).unwrap();
    assert_eq!(dialer.peer.identity, acceptor.peer.identity);
    assert_connected(&dialer, &acceptor);
}

#[test]
fn a_listener_that_comes_late_is_waited_for() {
    let port = TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap();
    let late = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(200));
        Listening::at(&port.to_string(), node(2))
    });
    let dialer = dial_node_1(&port.to_string()).unwrap();
    assert_eq!(dialer.peer.identity, NodeIdentity([2; 16]));
    drop(late.join().unwrap());
}

#[test]
fn a_listener_that_closes_without_a_word_is_tried_again() {
    let closing = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = closing.local_addr().unwrap();
    let late = std::thread::spawn(move || {
        for _ in 0..3 {
            drop(closing.accept().unwrap());
        }
        drop(closing);
        Listening::at(&address.to_string(), node(2))
    });
    dial_node_1(&address.to_string()).unwrap();
    drop(late.join().unwrap());
}

#[test]
fn a_requirement_that_cannot_be_met_fails_at_both_ends() {
    let mut local = node(2);
    local.shm = Policy::Forbid;
    let listening = Listening::with(local);
    let mut strict = node(1);
    strict.shm = Policy::Require;
    let error = dial(&listening.address, &strict, LONG).unwrap_err();
    assert!(
        error.to_string().ends_with(
            "the connecting node insists on shm, which cannot be had: the listening node's \
             policy forbids shm; use `Prefer` in its program, or name a second fabric in its IBEX_FABRICS"
        ),
        "{error}"
    );
    let failure = listening.failures.recv_timeout(LONG).unwrap();
    assert!(matches!(
        failure.problem,
        Problem::Handshake(HandshakeError::Fabric(_))
    ));
}

#[test]
fn another_protocol_version_fails_at_both_ends_at_once() {
    let listening = Listening::with(node(2));
    let mut later = node(1);
    let newest = Version { major: 5, minor: 0 };
    later.versions = VersionRange {
        oldest: newest,
        newest,
    };
    let error = dial(&listening.address, &later, LONG).unwrap_err();
    assert!(
        matches!(
            error,
            DialError::Handshake {
                source: HandshakeError::Version { .. },
                ..
            }
        ),
        "{error}"
    );
    let failure = listening.failures.recv_timeout(LONG).unwrap();
    assert!(
        failure
            .to_string()
            .contains("the peer speaks ibex protocol 5.0"),
        "{failure}"
    );
}

/// A dialer with the state machine in its hands, to misbehave where `dial`
/// would not.
struct HandMade {
    machine: Handshake,
    stream: TcpStream,
}

impl HandMade {
    fn connected_to(acceptor: &Acceptor) -> HandMade {
        let stream = TcpStream::connect(acceptor.local_addr()).unwrap();
        let host = HostHint::read(&stream).unwrap();
        stream.set_nonblocking(true).unwrap();
        let now = Instant::now();
        let machine = Handshake::dial(&node(1), host, [0; 16], now, now + LONG);
        HandMade { machine, stream }
    }

    /// Runs, with the acceptor, until there is an event to act on.
    fn next_event(&mut self, acceptor: &mut Acceptor) -> HandshakeEvent {
        loop {
            if let Some(event) = self.machine.poll_event() {
                return event;
            }
            while let Some(bytes) = self.machine.poll_transmit() {
                self.stream.write_all(&bytes).unwrap();
            }
            if wait_readable(acceptor, Duration::from_millis(1)) {
                acceptor.turn(Instant::now());
            }
            let mut buffer = [0; 4096];
            if let Ok(length) = self.stream.read(&mut buffer) {
                self.machine.handle_bytes(&buffer[..length]);
            }
        }
    }
}

#[test]
fn strangers_at_the_unix_socket_are_kept_out_and_keep_nobody_out() {
    let mut acceptor = Acceptor::bind("127.0.0.1:0".parse().unwrap(), node(2)).unwrap();
    let mut dialer = HandMade::connected_to(&acceptor);
    let HandshakeEvent::ConnectUnix { name, token, .. } = dialer.next_event(&mut acceptor) else {
        panic!("not sent to the Unix socket");
    };
    let visit = |says: &[u8]| {
        let socket = socket(AddressFamily::UNIX, SocketType::SEQPACKET, None).unwrap();
        connect(&socket, &SocketAddrUnix::new_abstract_name(&name).unwrap()).unwrap();
        if !says.is_empty() {
            send(&socket, says, SendFlags::NOSIGNAL).unwrap();
        }
        socket
    };
    let nothing = [b""; 6].map(|silence| visit(silence));
    while wait_readable(&acceptor, Duration::ZERO) {
        acceptor.turn(Instant::now());
    }
    let shown = |what: u8| [&token.expose()[..], &[what]].concat();
    let wrong = [0; 33];
    let long = [shown(b'b'), vec![b'b']].concat();
    // The last two are each one half of what a dialer presents.
    for wrong in [&wrong[..], &shown(0)[..32], &shown(0), &long, &shown(b'c')] {
        let stranger = visit(wrong);
        acceptor.turn(Instant::now());
        let (_, length) = recv(&stranger, &mut [0; 8], RecvFlags::empty()).unwrap();
        assert_eq!(length, 0, "closed on a wrong token");
    }
    let _bells = visit(&shown(b'b'));
    let ours = visit(&shown(b'c'));
    acceptor.turn(Instant::now());
    let mut answer = [0; 8];
    assert_eq!(recv(&ours, &mut answer, RecvFlags::empty()).unwrap().1, 1);
    dialer.machine.handle_unix(Ok(()));
    assert!(matches!(
        dialer.next_event(&mut acceptor),
        HandshakeEvent::Agreed(_)
    ));
    let established = acceptor.poll_established().unwrap();
    assert_eq!(established.fabric, Fabric::Shm);
    assert!(established.unix.is_some());
    drop(nothing);
}

/// A flood of connections at the Unix socket does not keep the thread from its other work.
#[test]
fn a_turn_takes_few_strangers_at_the_unix_socket() {
    let mut acceptor = Acceptor::bind("127.0.0.1:0".parse().unwrap(), node(2)).unwrap();
    let mut dialer = HandMade::connected_to(&acceptor);
    let HandshakeEvent::ConnectUnix { name, .. } = dialer.next_event(&mut acceptor) else {
        panic!("not sent to the Unix socket");
    };
    let strangers = [(); 8].map(|()| {
        let stranger = socket(AddressFamily::UNIX, SocketType::SEQPACKET, None).unwrap();
        let address = SocketAddrUnix::new_abstract_name(&name).unwrap();
        connect(&stranger, &address).unwrap();
        send(&stranger, b"no token", SendFlags::NOSIGNAL).unwrap();
        stranger
    });
    let turned_away = || {
        let answered = strangers.iter().filter(|stranger| {
            let answer = recv(stranger, &mut [0; 8], RecvFlags::DONTWAIT);
            answer.is_ok_and(|(_, length)| length == 0)
        });
        answered.count()
    };
    for turn in 1..=4 {
        assert!(wait_readable(&acceptor, LONG), "there is more");
        acceptor.turn(Instant::now());
        assert_eq!(turned_away(), 2 * turn);
    }
}

/// Descriptors that a stranger attaches are neither taken nor closed on the thread that drives
/// handshakes.
#[test]
fn descriptors_from_strangers_are_closed_off_the_handshake_thread() {
    static LEFT: Mutex<Vec<OwnedFd>> = Mutex::new(Vec::new());
    let mut local = node(2);
    local.unix.closing = UnixClosing {
        close: |socket| LEFT.lock().unwrap().push(socket),
        is_held_up: || false,
    };
    let mut acceptor = Acceptor::bind("127.0.0.1:0".parse().unwrap(), local).unwrap();
    let mut dialer = HandMade::connected_to(&acceptor);
    let HandshakeEvent::ConnectUnix { name, .. } = dialer.next_event(&mut acceptor) else {
        panic!("not sent to the Unix socket");
    };
    let (reader, writer) = std::io::pipe().unwrap();
    let stranger = socket(AddressFamily::UNIX, SocketType::SEQPACKET, None).unwrap();
    connect(
        &stranger,
        &SocketAddrUnix::new_abstract_name(&name).unwrap(),
    )
    .unwrap();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let writers = [writer.as_fd()];
    assert!(control.push(SendAncillaryMessage::ScmRights(&writers)));
    let text = [IoSlice::new(b"x")];
    sendmsg(&stranger, &text, &mut control, SendFlags::NOSIGNAL).unwrap();
    drop(writer);
    acceptor.turn(Instant::now());
    assert_eq!(LEFT.lock().unwrap().len(), 1, "the stranger's connection");
    rustix::io::ioctl_fionbio(&reader, true).unwrap();
    let open = (&reader).read(&mut [0]).unwrap_err();
    assert_eq!(open.kind(), std::io::ErrorKind::WouldBlock, "it is open");
    LEFT.lock().unwrap().clear();
    assert_eq!((&reader).read(&mut [0]).unwrap(), 0);
    // The same holds for the listening socket, into which any process may have put something.
    drop((dialer, acceptor));
    assert_eq!(LEFT.lock().unwrap().len(), 1);
}

#[test]
fn a_dialer_that_cannot_reach_the_unix_socket_gets_tcp() {
    let mut acceptor = Acceptor::bind("127.0.0.1:0".parse().unwrap(), node(2)).unwrap();
    let mut dialer = HandMade::connected_to(&acceptor);
    let event = dialer.next_event(&mut acceptor);
    assert!(matches!(event, HandshakeEvent::ConnectUnix { .. }));
    dialer
        .machine
        .handle_unix(Err("in another network namespace".to_string()));
    assert!(matches!(
        dialer.next_event(&mut acceptor),
        HandshakeEvent::Agreed(_)
    ));
    let established = acceptor.poll_established().unwrap();
    assert_eq!(established.fabric, Fabric::Tcp);
    assert!(established.unix.is_none());
    assert!(
        established
            .reason
            .starts_with("tcp: not shm: in another network namespace; ")
    );
    // Nothing of the finished handshake is left in the set.
    drop(dialer);
    assert!(!wait_readable(&acceptor, Duration::ZERO));
    assert_eq!(acceptor.next_deadline(), None);
}

#[test]
fn a_handshake_that_is_never_finished_ends_at_its_deadline() {
    let mut acceptor = Acceptor::bind("127.0.0.1:0".parse().unwrap(), node(2)).unwrap();
    let silent = TcpStream::connect(acceptor.local_addr()).unwrap();
    assert!(wait_readable(&acceptor, LONG));
    acceptor.turn(Instant::now());
    let deadline = acceptor.next_deadline().unwrap();
    acceptor.turn(deadline - Duration::from_nanos(1));
    assert!(acceptor.poll_failure().is_none());
    acceptor.turn(deadline);
    let failure = acceptor.poll_failure().unwrap();
    assert_eq!(failure.address, Some(silent.local_addr().unwrap().into()));
    assert!(matches!(
        failure.problem,
        Problem::Handshake(HandshakeError::Silent { .. })
    ));
    assert_eq!(acceptor.next_deadline(), None);
}

/// Over loopback the two are on one host, so payloads have no checksums unless a node asks for
/// them.
#[test]
fn both_ends_know_alike_whether_payloads_have_checksums() {
    use Integrity::{Auto, Off, On};
    for (wishes, expected) in [
        ([Auto, Auto], false),
        ([Auto, On], true),
        ([On, Off], true),
        ([Off, Auto], false),
    ] {
        let [mut dials, mut listens] = [node(1), node(2)];
        [dials.integrity, listens.integrity] = wishes;
        let listening = Listening::with(listens);
        let dialer = dial(&listening.address, &dials, LONG).unwrap();
        let acceptor = listening.established.recv_timeout(LONG).unwrap();
        let agreed = [&dialer, &acceptor].map(|end| end.payload_checksums);
        assert_eq!(agreed, [expected; 2], "{wishes:?}");
    }
}
