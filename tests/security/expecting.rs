//! A dialer that names whom it expects at an address.

use ibex_harness::wait_until;
use std::time::Duration;

use ibex::prelude::*;
use ibex::{ConnectErrorKind, Fabric, discovery::PeersEvent};
use ibex_harness::{
    authority::Request,
    proxy::{Harm, Proxy},
};

use super::{A, B, Folder, address, builder, certificate, listening, talk};

/// A node with a good certificate listens where another one is expected.
#[test]
fn a_node_that_is_not_the_expected_one_gets_no_session() {
    let folder = Folder::new();
    let authority = folder.authority();
    let issue = |name, uri| certificate(&authority.issue(&Request::new(name, &[uri])).unwrap());
    let a = listening(Fabric::Tcp, issue("a", A));
    let b = listening(Fabric::Tcp, issue("b", B));
    let expected = address(&a).to_string();
    let wrong = Proxy::start(address(&b)).unwrap();
    let at_wrong = wrong.address().to_string();
    let right = Proxy::start(address(&a)).unwrap();
    let security = issue("dialer", "spiffe://test/dialer").expect(move |address| match address {
        address if address == expected || address == at_wrong => Some(A.to_owned()),
        _ => None,
    });
    let dialer = builder(Fabric::Tcp).security(security).build().unwrap();

    let to_a = dialer.connect(address(&a)).unwrap();
    talk(&to_a, &a.accept().unwrap(), "expected");

    let refused = dialer.connect(wrong.address()).expect_err("B is there");
    assert_eq!(refused.kind(), ConnectErrorKind::Unauthenticated);
    assert!(!refused.is_transient());
    let text = refused.to_string();
    assert!(text.contains(A) && text.contains(B), "{text}");
    assert_eq!(b.stats().sessions.len(), 0);

    let peers = dialer.keep_connected([wrong.address()]).unwrap();
    match peers.events().next_timeout(Duration::from_secs(120)) {
        Some(PeersEvent::NotReached { error, .. }) => {
            assert_eq!(error.kind(), ConnectErrorKind::Unauthenticated);
        }
        other => panic!("another event: {other:?}"),
    }
    drop(peers);

    // Nobody in particular is expected there, and the session goes on over its next connection.
    let to_a = dialer.connect(right.address()).unwrap();
    let of_dialer = a.accept().unwrap();
    talk(&to_a, &of_dialer, "before");
    assert!(right.harm_one(Harm::Reset, Duration::ZERO));
    talk(&to_a, &of_dialer, "after");
    wait_until(|| of_dialer.stats().resumes > 0);
}
