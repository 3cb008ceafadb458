//! Sessions over vsock, between two nodes of this process.
//!
//! Sessions need the CID 1, which the kernel's module `vsock_loopback` serves: the guest of
//! `cargo xtask vm` has it, and a Linux machine gets it by `modprobe vsock_loopback`. Elsewhere the
//! tests of sessions test nothing, and say so. With `IBEX_TEST_VSOCK=1` they fail there.
#![forbid(unsafe_code)]

use std::{
    env, fs,
    io::ErrorKind,
    sync::{Mutex, MutexGuard, PoisonError},
    thread,
    time::Duration,
};

use ibex::{
    Address, ConnectErrorKind, Driver, Fabric, ListenError, ListenErrorKind, Node, NodeBuilder,
    Peer, Policy, Raw, Receiver, Security, Sender, SharedSecret,
};
use rustix::{
    net::{self, AddressFamily, Shutdown, sockopt},
    process::{self, PidfdFlags, PidfdGetfdFlags},
};

/// An address that leads to this machine, at any port.
const HERE: &str = "vsock:1:0";
const WATCHDOG: Duration = Duration::from_secs(120);

fn builder() -> NodeBuilder {
    Node::builder()
        .environment::<String, String>([])
        .fabric(Fabric::Tcp, Policy::Require)
        .connect_timeout(WATCHDOG)
        .insecure_network()
}

/// Waits for the turn of a test that needs sessions: one of them cuts all connections. Returns
/// `None` if vsock does not lead back to this machine.
fn loopback() -> Option<MutexGuard<'static, ()>> {
    static TURN: Mutex<()> = Mutex::new(());
    let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    match builder().listen(HERE).build() {
        Ok(_) => Some(turn),
        Err(error) => {
            let kinds = [ErrorKind::Unsupported, ErrorKind::AddrNotAvailable];
            skip("session over vsock", &kinds, &error);
            None
        }
    }
}

/// Says that something is not tested, since this machine lacks it.
///
/// # Panics
/// The error has none of these kinds, or the tests must not be skipped here.
fn skip(what: &str, kinds: &[ErrorKind], error: &ListenError) {
    let is_lacking = error.io_kind().is_some_and(|kind| kinds.contains(&kind));
    assert!(is_lacking, "{error}");
    assert!(env::var_os("IBEX_TEST_VSOCK").is_none(), "{error}");
    println!("no {what} is tested: {error}");
}

/// Returns whether the kernel has vsock sockets.
fn has_sockets() -> bool {
    match builder().listen("vsock:any:0").build() {
        Ok(_) => true,
        Err(error) => {
            skip("vsock socket", &[ErrorKind::Unsupported], &error);
            false
        }
    }
}

fn secret() -> Security {
    let bytes = std::array::from_fn(|at| (at as u8).wrapping_mul(37).wrapping_add(11));
    let secret = SharedSecret::from_bytes(bytes).expect("a secret");
    Security::shared_secret(secret)
}

/// Returns two nodes and their session, the end that dialed first.
fn session(with: impl Fn(NodeBuilder) -> NodeBuilder) -> ([Node; 2], [Peer; 2]) {
    let acceptor = with(builder()).listen(HERE).build().expect("a listener");
    let dialer = with(builder()).build().expect("a node");
    let address = acceptor.local_addr().expect("it listens");
    let there = dialer.connect(address).expect("a session");
    let here = acceptor.accept().expect("its other end");
    ([dialer, acceptor], [there, here])
}

fn channel(from: &Peer, to: &Peer, name: &str) -> (Sender<[u8], Raw>, Receiver<[u8], Raw>) {
    let sender = from.channel(name).codec::<Raw>().sender();
    let receiver = to.channel(name).codec::<Raw>().receiver();
    (sender.expect("an end"), receiver.expect("the other"))
}

/// Passes messages of every kind of size in both directions.
fn talk([one, other]: &[Peer; 2]) {
    for (from, to, name) in [(one, other, "there"), (other, one, "back")] {
        let (mut sender, mut receiver) = channel(from, to, name);
        for bytes in [0, 1, 64, 5000, 100_000, 1 << 20] {
            let payload: Vec<u8> = (0..bytes).map(|at| (at * 7 % 251) as u8).collect();
            sender.send(&payload[..]).expect("room");
            let received = receiver.recv().expect("the message");
            assert!(received[..] == payload[..], "{bytes} bytes");
        }
    }
}

#[test]
fn messages_of_every_size_go_both_ways() {
    let Some(_turn) = loopback() else {
        return;
    };
    let (nodes, peers) = session(|builder| builder);
    let Some(Address::Vsock { cid: 1, port }) = nodes[1].local_addr() else {
        panic!("it listens at {:?}", nodes[1].local_addr());
    };
    assert_eq!(peers[0].address(), Address::Vsock { cid: 1, port });
    assert!(matches!(peers[1].address(), Address::Vsock { cid: 1, .. }));
    let reason = peers[0].fabric_reason();
    assert!(reason.starts_with("vsock: "), "{reason}");
    talk(&peers);
    let stats = nodes[0].stats().to_string();
    assert!(
        stats.contains(&format!("at vsock:1:{port} over vsock")),
        "{stats}"
    );
}

#[test]
fn two_nodes_that_meet_at_cid_1_share_memory() {
    let Some(_turn) = loopback() else {
        return;
    };
    let shared = |builder: NodeBuilder| {
        builder
            .fabric(Fabric::Tcp, Policy::Auto)
            .fabric(Fabric::Shm, Policy::Require)
    };
    let (_nodes, peers) = session(shared);
    assert_eq!(peers[0].fabric(), Fabric::Shm);
    talk(&peers);
}

#[test]
fn the_callers_thread_drives_it_too() {
    let Some(_turn) = loopback() else {
        return;
    };
    let acceptor = builder().driver(Driver::Caller).listen(HERE).build();
    let acceptor = acceptor.expect("a listener");
    let address = acceptor.local_addr().expect("it listens");
    let dialer = thread::spawn(move || {
        let dialer = builder().driver(Driver::Caller).build().expect("a node");
        let there = dialer.connect(address).expect("a session");
        let mut sender = there
            .channel("log")
            .codec::<Raw>()
            .sender::<[u8]>()
            .expect("an end");
        sender.send(&[7; 300_000][..]).expect("room");
        let _ = dialer.close(WATCHDOG);
    });
    let here = acceptor.accept().expect("a session");
    let mut receiver = here
        .channel("log")
        .codec::<Raw>()
        .receiver::<[u8]>()
        .expect("an end");
    assert!(
        receiver
            .recv()
            .expect("the message")
            .iter()
            .all(|byte| *byte == 7)
    );
    drop(receiver);
    let _ = acceptor.close(WATCHDOG);
    dialer.join().expect("it has sent");
}

#[test]
fn nodes_authenticate_each_other_and_encrypt() {
    let Some(_turn) = loopback() else {
        return;
    };
    let (_nodes, peers) = session(|builder| builder.security(secret()));
    talk(&peers);
    assert!(peers[0].is_encrypted());
    assert!(peers[0].stats().bytes_sealed > 1 << 20);
}

#[test]
fn a_session_outlives_its_connection() {
    let Some(_turn) = loopback() else {
        return;
    };
    let (_nodes, [there, here]) = session(|builder| builder);
    let (mut sender, mut receiver) = channel(&there, &here, "log");
    for number in 0..4_u8 {
        // The cut meets messages anywhere on their way.
        for part in 0..8 {
            sender.send(&[number * 9 + part; 50_000][..]).expect("room");
        }
        cut_connections();
        // What is sent now cannot arrive over the connection that was cut.
        sender.send(&[number * 9 + 8; 1000][..]).expect("room");
        for part in 0..9 {
            let received = receiver.recv().expect("the message");
            assert_eq!(received.len(), if part < 8 { 50_000 } else { 1000 });
            assert!(received.iter().all(|byte| *byte == number * 9 + part));
        }
        let suspensions = here.stats().suspensions;
        assert!(suspensions > u64::from(number), "{suspensions}");
    }
}

/// Ends all vsock connections of this process.
fn cut_connections() {
    let this = process::pidfd_open(process::getpid(), PidfdFlags::empty()).expect("a descriptor");
    let numbers = fs::read_dir("/proc/self/fd").expect("descriptors");
    let numbers = numbers.map(|entry| {
        let name = entry.expect("an entry").file_name();
        let number = name.to_str().and_then(|name| name.parse::<i32>().ok());
        number.expect("a number")
    });
    // Nodes make their next connections after the first shutdown: those are to stay.
    let numbers: Vec<i32> = numbers.collect();
    let connections: Vec<_> = numbers
        .into_iter()
        // Copies, since nothing here owns the sockets. Some descriptors are closed by now.
        .filter_map(|number| process::pidfd_getfd(&this, number, PidfdGetfdFlags::empty()).ok())
        .filter(|socket| {
            sockopt::socket_domain(socket) == Ok(AddressFamily::VSOCK)
                && sockopt::socket_acceptconn(socket) == Ok(false)
        })
        .collect();
    for connection in connections {
        // It fails where the other end's shutdown came first.
        let _ = net::shutdown(&connection, Shutdown::Both);
    }
}

#[test]
fn nobody_listens_is_what_a_refusal_says() {
    let Some(_turn) = loopback() else {
        return;
    };
    let listener = builder().listen(HERE).build().expect("a listener");
    let address = listener.local_addr().expect("it listens");
    drop(listener);
    let dialer = builder().connect_timeout(Duration::from_millis(100));
    let dialer = dialer.build().expect("a node");
    let refused = dialer.connect(address).expect_err("nobody listens there");
    assert_eq!(refused.kind(), ConnectErrorKind::Unreachable);
    let text = refused.to_string();
    // On a busy machine the time is over before the kernel has answered.
    let is_refused = text.starts_with(&format!("{address}: nobody listens there"))
        && text.contains("nobody listens on that port");
    assert!(is_refused || text.contains("still waited for"), "{text}");
}

#[test]
fn what_cannot_be_bound_says_why() {
    if !has_sockets() {
        return;
    }
    let listen = |address: &str| builder().listen(address).build();
    let first = listen("vsock:any:0").expect("a listener");
    let Some(Address::Vsock {
        cid: Address::ANY_CID,
        port,
    }) = first.local_addr()
    else {
        panic!("it listens at {:?}", first.local_addr());
    };
    let taken = listen(&format!("vsock:any:{port}")).expect_err("the port is taken");
    assert_eq!(taken.kind(), ListenErrorKind::Address);
    assert_eq!(taken.io_kind(), Some(ErrorKind::AddrInUse));
    assert!(taken.to_string().contains("choose another port"), "{taken}");
    let foreign = listen("vsock:4242:0").expect_err("it is no CID of this machine");
    assert_eq!(foreign.io_kind(), Some(ErrorKind::AddrNotAvailable));
    assert!(
        foreign.to_string().contains("listen at vsock:any:PORT"),
        "{foreign}"
    );
}

#[test]
fn an_address_that_is_none_says_the_form() {
    let dialer = builder().build().expect("a node");
    for text in [
        "vsock:7000",
        "vsock:x:1",
        "vsock:3:99999999999",
        "vsock:any:7000",
        "vsock:3:0",
        "vsock:3:00",
    ] {
        let invalid = dialer.connect(text).expect_err(text);
        assert_eq!(invalid.kind(), ConnectErrorKind::InvalidAddress, "{text}");
        assert!(
            invalid.to_string().contains("give vsock:CID:PORT"),
            "{invalid}"
        );
    }
    let invalid = Node::listen("vsock:7000").expect_err("there is no CID");
    assert_eq!(invalid.kind(), ListenErrorKind::Address);
    assert!(
        invalid.to_string().contains("give vsock:CID:PORT"),
        "{invalid}"
    );
}

#[test]
fn no_vsock_address_keeps_strangers_out() {
    for address in ["vsock:any:7000", "vsock:1:7000", "vsock:2:7000"] {
        let open = Node::listen(address).expect_err("nothing protects it");
        assert_eq!(open.kind(), ListenErrorKind::InsecureAddress, "{address}");
    }
}
