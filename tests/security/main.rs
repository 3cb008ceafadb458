//! Nodes that authenticate each other: in both ways, over every fabric and driver that needs no
//! device; refusals with the errors of both ends; and the bytes on the wire.

mod aging;
#[path = "../common/dialed.rs"]
mod dialed;
mod expecting;
mod impostor;
mod posing;
mod suspended;

use std::{
    fs,
    io::{Read, Write},
    net::{Shutdown, SocketAddr, TcpListener, TcpStream},
    path::PathBuf,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::{Duration, SystemTime},
};

use ibex::{
    Driver, Fabric, ListenErrorKind, Node, NodeBuilder, Peer, Policy, Raw, Receiver, Security,
    Sender, SharedSecret,
};
use ibex_bootstrap::{AuthenticationCause, DialError, HandshakeError, RefusedBy, SecurityMode};
use ibex_harness::{
    authority::{Authority, NodeFiles, Request},
    draw::Draw,
    proxy::{DAMAGES, Harm, Proxy},
};

const A: &str = "spiffe://test/storage/a";
const B: &str = "spiffe://test/storage/b";

/// A folder that is removed with its test.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Self {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("ibex-security-{}-{number}", std::process::id());
        Self(std::env::temp_dir().join(name))
    }

    fn authority(&self) -> Authority {
        Authority::new("ca", &self.0).unwrap()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn secret(cluster: u8) -> Security {
    let bytes = std::array::from_fn(|at| (at as u8).wrapping_mul(37).wrapping_add(cluster));
    Security::shared_secret(SharedSecret::from_bytes(bytes).unwrap())
}

fn certificate(files: &NodeFiles) -> Security {
    Security::certificates(&files.chain, &files.key, &files.authorities).unwrap()
}

fn builder(fabric: Fabric) -> NodeBuilder {
    Node::builder()
        .environment::<String, String>([])
        .fabric(fabric, Policy::Require)
        .connect_timeout(Duration::from_secs(120))
}

fn listening(fabric: Fabric, security: Security) -> Node {
    let builder = builder(fabric).listen("127.0.0.1:0").security(security);
    builder.build().unwrap()
}

fn dialing(fabric: Fabric, security: Security) -> Node {
    builder(fabric).security(security).build().unwrap()
}

fn address(node: &Node) -> SocketAddr {
    node.local_addr().unwrap().inet().expect("of TCP")
}

/// Passes messages of every kind of size in both directions.
fn talk(one: &Peer, other: &Peer, name: &str) {
    for (from, to, way) in [(one, other, "there"), (other, one, "back")] {
        let name = format!("{name}-{way}");
        let mut sender = from.channel(&name).codec::<Raw>().sender::<[u8]>().unwrap();
        let mut receiver = to.channel(&name).codec::<Raw>().receiver::<[u8]>().unwrap();
        for bytes in [1, 64, 5000, 16 << 10, 100_000, 1 << 20] {
            let payload: Vec<u8> = (0..bytes).map(|at| (at * 7 % 251) as u8).collect();
            sender.send(&payload[..]).unwrap();
            let received = receiver.recv().unwrap();
            assert!(received[..] == payload[..], "{bytes} bytes");
        }
    }
}

#[test]
fn both_ways_to_authenticate_work_over_tcp_and_shared_memory() {
    let folder = Folder::new();
    let authority = folder.authority();
    let a = certificate(&authority.issue(&Request::new("a", &[A])).unwrap());
    let b = certificate(&authority.issue(&Request::new("b", &[B])).unwrap());
    for fabric in [Fabric::Tcp, Fabric::Shm] {
        for (ours, theirs, names) in [
            (a.clone(), b.clone(), [A, B]),
            (secret(1), secret(1), ["member", "member"]),
        ] {
            let (dialer, acceptor) = (dialing(fabric, ours), listening(fabric, theirs));
            let there = dialer.connect(address(&acceptor)).unwrap();
            let here = acceptor.accept().unwrap();
            let name = |peer: &Peer| peer.authenticated_as().unwrap().to_string();
            assert_eq!([name(&here), name(&there)], names);
            assert_eq!(there.fabric(), fabric);
            assert_eq!(there.is_encrypted(), fabric == Fabric::Tcp);
            talk(&there, &here, "log");
            let sealed = there.stats().bytes_sealed;
            match fabric {
                Fabric::Tcp => assert!(sealed > 1 << 20, "{sealed}"),
                _ => assert!((1..1 << 20).contains(&sealed), "{sealed}"),
            }
        }
    }
}

#[test]
fn tasks_and_the_callers_thread_drive_it_too() {
    let acceptor = builder(Fabric::Tcp)
        .driver(Driver::Caller)
        .listen("127.0.0.1:0")
        .security(secret(2));
    let acceptor = acceptor.build().unwrap();
    let to = address(&acceptor);
    let dialer = thread::spawn(move || {
        let dialer = dialing(Fabric::Tcp, secret(2));
        let there = dialer.connect(to).unwrap();
        let mut sender = there
            .channel("log")
            .codec::<Raw>()
            .sender::<[u8]>()
            .unwrap();
        sender.send(&[7; 300_000][..]).unwrap();
        let _ = dialer.close(Duration::from_secs(120));
    });
    let here = acceptor.accept().unwrap();
    let mut receiver = here
        .channel("log")
        .codec::<Raw>()
        .receiver::<[u8]>()
        .unwrap();
    assert!(receiver.recv().unwrap().iter().all(|byte| *byte == 7));
    drop(receiver);
    let _ = acceptor.close(Duration::from_secs(120));
    dialer.join().unwrap();

    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build();
    runtime.unwrap().block_on(async {
        let tasks = |security| {
            builder(Fabric::Tcp)
                .driver(Driver::Tasks)
                .security(security)
        };
        let acceptor = tasks(secret(3)).listen("127.0.0.1:0").build().unwrap();
        let dialer = tasks(secret(3)).build().unwrap();
        let there = dialer.connect_async(address(&acceptor)).await.unwrap();
        let here = acceptor.accept_async().await.unwrap();
        let (mut sender, mut receiver) = log(&there, &here);
        sender.send_async(&[7; 300_000][..]).await.unwrap();
        let message = receiver.recv_async().await.unwrap();
        assert!(message.iter().all(|byte| *byte == 7));
    });
}

/// Opens a channel of bytes from one node to the other.
fn log(there: &Peer, here: &Peer) -> (Sender<[u8], Raw>, Receiver<[u8], Raw>) {
    let sender = there.channel("log").codec::<Raw>().sender().unwrap();
    let receiver = here.channel("log").codec::<Raw>().receiver().unwrap();
    (sender, receiver)
}

fn refusal(dialer: &Node, acceptor: &Node) -> HandshakeError {
    let error = dialer.connect(address(acceptor)).expect_err("a refusal");
    match error.dial_error() {
        Some(DialError::Handshake { source, .. }) => source.clone(),
        _ => panic!("not refused: {error:?}"),
    }
}

#[test]
fn a_stranger_is_told_why_it_is_refused() {
    let folder = Folder::new();
    let authority = folder.authority();
    let a = authority.issue(&Request::new("a", &[A])).unwrap();
    let acceptor = listening(Fabric::Tcp, secret(1));
    let other = refusal(&dialing(Fabric::Tcp, secret(9)), &acceptor);
    let HandshakeError::Authentication(why) = &other else {
        panic!("{other}");
    };
    assert_eq!(why.cause, AuthenticationCause::WrongSecret);
    let plain = builder(Fabric::Tcp).build().unwrap();
    for (dialer, ours) in [
        (plain, SecurityMode::None),
        (
            dialing(Fabric::Tcp, certificate(&a)),
            SecurityMode::Certificates,
        ),
    ] {
        let theirs = SecurityMode::SharedSecret;
        let mismatch = refusal(&dialer, &acceptor);
        assert_eq!(mismatch, HandshakeError::Security { ours, theirs });
        assert!(
            mismatch.to_string().contains("a shared secret"),
            "{mismatch}"
        );
    }
    // The certificate of a node that the acceptor does not authorize: the acceptor's refusal
    // arrives.
    let choosy = certificate(&a).authorize(|peer| peer.uri() != Some(A));
    let refused = refusal(
        &dialing(Fabric::Tcp, certificate(&a)),
        &listening(Fabric::Tcp, choosy),
    );
    let HandshakeError::Authentication(why) = &refused else {
        panic!("{refused}");
    };
    assert_eq!(why.by, RefusedBy::OtherNode);
    assert_eq!(why.cause, AuthenticationCause::NotAuthorized);
}

#[test]
fn security_opens_a_listener_to_other_hosts() {
    let open = || Node::builder().listen("0.0.0.0:0");
    let refused = open().build().unwrap_err();
    assert!(refused.kind() == ListenErrorKind::InsecureAddress);
    let text = refused.to_string();
    assert!(text.contains(".security(..)"), "{text}");
    assert!(text.contains(".insecure_network()"), "{text}");
    open().security(secret(1)).build().unwrap();
}

/// Forwards a connection, and records the bytes of both directions.
fn tapped(target: SocketAddr) -> (SocketAddr, [Arc<Mutex<Vec<u8>>>; 2]) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let taken: [Arc<Mutex<Vec<u8>>>; 2] = Default::default();
    let ways = taken.clone();
    thread::spawn(move || {
        let (from, _) = listener.accept().unwrap();
        let to = TcpStream::connect(target).unwrap();
        for (mut from, mut to, taken) in [
            (
                from.try_clone().unwrap(),
                to.try_clone().unwrap(),
                ways[0].clone(),
            ),
            (to, from, ways[1].clone()),
        ] {
            thread::spawn(move || {
                let mut buffer = [0; 4096];
                while let Ok(read @ 1..) = from.read(&mut buffer) {
                    taken.lock().unwrap().extend_from_slice(&buffer[..read]);
                    if to.write_all(&buffer[..read]).is_err() {
                        break;
                    }
                }
                let _ = to.shutdown(Shutdown::Both);
            });
        }
    });
    (address, taken)
}

#[test]
fn nothing_but_records_is_on_the_wire() {
    const PLANTED: &[u8] = b"planted string of the payload";
    const NAME: &str = "planted-name-of-the-channel";
    for fabric in [Fabric::Tcp, Fabric::Shm] {
        for _ in 0..20 {
            let acceptor = listening(fabric, secret(4));
            let (to, taken) = tapped(address(&acceptor));
            let dialer = builder(fabric)
                .identity(*b"planted identity")
                .security(secret(4));
            let dialer = dialer.build().unwrap();
            let there = dialer.connect(to).unwrap();
            let here = acceptor.accept().unwrap();
            let mut sender = there.channel(NAME).codec::<Raw>().sender::<[u8]>().unwrap();
            let mut receiver = here
                .channel(NAME)
                .codec::<Raw>()
                .receiver::<[u8]>()
                .unwrap();
            sender.send(PLANTED).unwrap();
            assert_eq!(receiver.recv().unwrap()[..], *PLANTED);
            drop((sender, receiver));
            let _ = dialer.close(Duration::from_secs(120));
            drop(acceptor);
            for taken in taken {
                let taken = taken.lock().unwrap();
                let hello = 8 + 2 + usize::from(u16::from_le_bytes([taken[8], taken[9]]));
                let mut rest = &taken[hello..];
                let mut records = 0;
                while let [kind, 3, 3 | 1, high, low, behind @ ..] = rest {
                    assert!((20..=23).contains(kind), "a record of kind {kind}");
                    let length = usize::from(u16::from_be_bytes([*high, *low]));
                    // The end of the connection may have cut the last record.
                    rest = behind.get(length..).unwrap_or_default();
                    records += 1;
                }
                assert!(rest.len() < 5 && records > 3, "{records} records, {rest:?}");
                for planted in [PLANTED, NAME.as_bytes(), b"planted identity"] {
                    let is_there = taken.windows(16).any(|window| window == &planted[..16]);
                    assert!(!is_there, "{}", planted.escape_ascii());
                }
            }
        }
    }
}

#[test]
fn a_session_goes_on_when_its_connection_is_cut_or_damaged() {
    let acceptor = listening(Fabric::Tcp, secret(5));
    let proxy = Proxy::start(address(&acceptor)).unwrap();
    let dialer = dialing(Fabric::Tcp, secret(5));
    let there = dialer.connect(proxy.address()).unwrap();
    let here = acceptor.accept().unwrap();
    let (mut sender, mut receiver) = log(&there, &here);
    const MESSAGES: u64 = 3000;
    let sending = thread::spawn(move || {
        for number in 0..MESSAGES {
            let mut payload = vec![number as u8; 3000];
            payload[..8].copy_from_slice(&number.to_le_bytes());
            sender.send(&payload[..]).unwrap();
        }
        sender
    });
    let mut draw = Draw::new(Draw::seed());
    for number in 0..MESSAGES {
        match number {
            500 | 1500 => {
                proxy.harm_one(Harm::Reset, Duration::ZERO);
            }
            _ if number % 600 == 0 => {
                let damage = DAMAGES[number as usize / 600 % DAMAGES.len()];
                proxy.damage(proxy.newest(), damage, false, 50, &mut draw);
            }
            _ => {}
        }
        let message = receiver.recv().unwrap();
        assert_eq!(message[..8], number.to_le_bytes());
        assert!(message[8..].iter().all(|byte| *byte == number as u8));
    }
    sending.join().unwrap();
    let stats = there.stats();
    assert!(stats.resumes > 0, "{stats:?}");
}

#[test]
fn certificates_are_replaced_under_load() {
    let folder = Folder::new();
    let authority = folder.authority();
    let files = authority.issue(&Request::new("node", &[A])).unwrap();
    let acceptor = listening(Fabric::Tcp, certificate(&files));
    let dialer = dialing(Fabric::Tcp, certificate(&files));
    let first = dialer.connect(address(&acceptor)).unwrap();
    let here = acceptor.accept().unwrap();
    talk(&first, &here, "before");
    authority.issue(&Request::new("node", &[B])).unwrap();
    acceptor.reload_certificates().unwrap();
    talk(&first, &here, "after");
    let second = dialer.connect(address(&acceptor)).unwrap();
    let name = |peer: &Peer| peer.authenticated_as().unwrap().uri().map(str::to_owned);
    assert_eq!(name(&first).as_deref(), Some(A));
    assert_eq!(name(&second).as_deref(), Some(B));
    assert!(!first.is_gone() && first.stats().suspensions == 0);
}

#[test]
fn handshakes_are_counted_by_outcome() {
    let folder = Folder::new();
    let authority = folder.authority();
    let mut request = Request::new("a", &[A]);
    request.until_year = 2100;
    let files = authority.issue(&request).unwrap();
    let choosy = certificate(&files).authorize(|peer| peer.uri() != Some(B));
    let acceptor = listening(Fabric::Tcp, choosy);
    let security = |node: &Node| node.stats().security.expect("it has security");
    let expires = security(&acceptor).certificate_expires.unwrap();
    let since_1970 = expires.duration_since(SystemTime::UNIX_EPOCH).unwrap();
    assert_eq!(since_1970.as_secs(), 4_102_444_800, "2100-01-01");

    let welcome = dialing(Fabric::Tcp, certificate(&files));
    welcome.connect(address(&acceptor)).unwrap();
    assert_eq!(security(&welcome).handshakes, 1);
    let unwelcome = dialing(
        Fabric::Tcp,
        certificate(&authority.issue(&Request::new("b", &[B])).unwrap()),
    );
    refusal(&unwelcome, &acceptor);
    let other = Authority::new("other", &folder.0.join("other")).unwrap();
    let other = certificate(&other.issue(&Request::new("c", &[A])).unwrap());
    refusal(&dialing(Fabric::Tcp, other), &acceptor);
    let of_secret = dialing(Fabric::Tcp, secret(1));
    refusal(&of_secret, &acceptor);
    assert_eq!(security(&of_secret).other_mode, 1);
    assert_eq!(security(&of_secret).certificate_expires, None);
    let counted = security(&acceptor);
    // The dialer with another authority's certificate may be the end that refuses.
    assert!(
        counted.handshakes >= 1 && counted.not_authorized == 1,
        "{counted}"
    );
    assert!(
        counted.unknown_issuer == 1 && counted.other_mode == 1,
        "{counted}"
    );
    let shown = acceptor.stats().to_string();
    assert!(shown.contains("security: handshakes"), "{shown}");
    assert!(shown.contains("not_authorized 1"), "{shown}");
    assert!(
        builder(Fabric::Tcp)
            .build()
            .unwrap()
            .stats()
            .security
            .is_none()
    );
}
