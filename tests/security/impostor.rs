//! A peer with a certificate of its own claims what belongs to another peer.

use std::time::Duration;

use ibex::{ConnectErrorKind, Fabric, Raw};
use ibex_harness::{
    authority::Request,
    proxy::{Harm, Proxy},
};

use super::{A, B, Folder, address, builder, certificate, listening};

const IDENTITY: [u8; 16] = [7; 16];

/// It comes with the other peer's identity, as a new run of it, and leaves. The session of the other
/// one still goes on over its next connection.
#[test]
fn a_peer_that_claims_anothers_identity_does_not_end_its_session() {
    let folder = Folder::new();
    let authority = folder.authority();
    let issue = |name, uri| certificate(&authority.issue(&Request::new(name, &[uri])).unwrap());
    let server = listening(Fabric::Tcp, issue("server", "spiffe://test/server"));
    let proxy = Proxy::start(address(&server)).unwrap();
    let client = |security| {
        let builder = builder(Fabric::Tcp).identity(IDENTITY);
        builder.security(security).build().unwrap()
    };
    let (a, b) = (client(issue("a", A)), client(issue("b", B)));
    let to_server = a.connect(proxy.address()).unwrap();
    let of_a = server.accept().unwrap();
    let mut sender = to_server
        .channel("log")
        .codec::<Raw>()
        .sender::<[u8]>()
        .unwrap();
    let mut receiver = of_a.channel("log").codec::<Raw>().receiver().unwrap();
    sender.send(b"before").unwrap();
    assert_eq!(receiver.recv().unwrap()[..], b"before"[..]);

    b.connect(address(&server)).unwrap();
    let of_b = server.accept().unwrap();
    assert_eq!(of_b.id().node_id(), of_a.id().node_id());
    assert_ne!(of_b.authenticated_as(), of_a.authenticated_as());
    drop(b);

    assert!(proxy.harm_one(Harm::Reset, Duration::ZERO));
    while of_a.stats().resumes == 0 {
        sender.send(b"behind").expect("the session goes on");
        let message = receiver.recv().expect("the session goes on");
        assert_eq!(message[..], b"behind"[..]);
    }
}

/// It claims another identity each time.
#[test]
fn a_certificate_has_its_places_whatever_identities_its_holder_claims() {
    let folder = Folder::new();
    let authority = folder.authority();
    let issue = |name, uri| certificate(&authority.issue(&Request::new(name, &[uri])).unwrap());
    let server = builder(Fabric::Tcp)
        .listen("127.0.0.1:0")
        .max_peer_sessions(2)
        .security(issue("server", "spiffe://test/server"))
        .build()
        .unwrap();
    let security = issue("b", B);
    let client = |security, identity| {
        let builder = builder(Fabric::Tcp).identity([identity; 16]);
        builder.security(security).build().unwrap()
    };
    let clients = [1, 2, 3].map(|identity| client(security.clone(), identity));
    let [first, second, third] = clients.each_ref();
    first.connect(address(&server)).unwrap();
    second.connect(address(&server)).unwrap();
    let refused = third.connect(address(&server)).expect_err("the limit is 2");
    assert_eq!(refused.kind(), ConnectErrorKind::Refused);
    assert!(
        refused.to_string().contains("max_peer_sessions"),
        "{refused}"
    );
    // Another certificate has places of its own.
    client(issue("a", A), 1).connect(address(&server)).unwrap();
}

/// The program's functions run on the engine's thread, which serves others as well.
#[test]
fn a_panic_of_the_programs_functions_refuses_one_peer_and_harms_no_other() {
    let folder = Folder::new();
    let authority = folder.authority();
    let issue = |name, uri| certificate(&authority.issue(&Request::new(name, &[uri])).unwrap());
    let security = issue("server", "spiffe://test/server").authorize(|peer| match peer.uri() {
        Some(A) => panic!("a planned panic of `authorize`"),
        _ => true,
    });
    let server = builder(Fabric::Tcp)
        .listen("127.0.0.1:0")
        .security(security)
        .place_accepted(|peer, _| match peer.node_id() {
            [2, ..] => panic!("a planned panic of `place_accepted`"),
            _ => Some(0),
        })
        .cores(&[1024])
        .build()
        .expect("a core that cannot be had is a warning");
    let client = |security, identity| {
        let builder = builder(Fabric::Tcp).identity([identity; 16]);
        builder.security(security).build().unwrap()
    };
    let (a, b) = (issue("a", A), issue("b", B));
    let good = client(b.clone(), 1);
    let to_server = good.connect(address(&server)).unwrap();
    let accepted = server.accept().unwrap();
    let refused = client(a, 3).connect(address(&server));
    refused.expect_err("`authorize` panicked");
    // This one is let in by the handshake, and gets no session.
    let unplaced = client(b, 2);
    let mut events = unplaced.events();
    if let Ok(peer) = unplaced.connect(address(&server)) {
        while !peer.is_gone() {
            let _ = events.next_timeout(Duration::from_secs(120));
        }
    }
    super::talk(&to_server, &accepted, "on");
    assert_eq!(server.stats().sessions.len(), 1);
}
