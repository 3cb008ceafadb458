//! Bytes that are damaged on every connection, so that a message never arrives.

use std::time::Duration;

use ibex::{Event, Integrity, Raw};
use ibex_harness::proxy::{Damage, Proxy};

use crate::session;

/// Sends a message that cannot arrive, from the dialing end or from the other.
fn given_up(sender_dials: bool) {
    let builder = || {
        session::builder()
            .integrity(Integrity::On)
            .session_timeout(TIMEOUT)
    };
    let there = builder().listen("127.0.0.1:0").build().unwrap();
    let here = builder().build().unwrap();
    let proxy = Proxy::start(there.local_addr().unwrap().inet().unwrap()).unwrap();
    let dialer = here.connect(proxy.address()).unwrap();
    let acceptor = there.accept().unwrap();
    let (peers, node) = match sender_dials {
        true => ([&dialer, &acceptor], &here),
        false => ([&acceptor, &dialer], &there),
    };
    let mut events = node.events();
    let mut sender = peers[0]
        .channel("bytes")
        .codec::<Raw>()
        .sender::<[u8]>()
        .unwrap();
    let mut receiver = peers[1]
        .channel("bytes")
        .codec::<Raw>()
        .receiver::<[u8]>()
        .unwrap();
    sender.opened(Duration::MAX).unwrap();
    proxy.flip_one_in(30_000, !sender_dials);
    let sent = sender.send(&vec![7; 1 << 20]).unwrap();
    let at_sender = sender.wait_acked(sent).unwrap_err().to_string();
    let at_receiver = receiver.recv().map(|_| ()).unwrap_err().to_string();
    let connections = proxy.newest();
    println!(
        "{connections} connections, {} flips",
        proxy.damaged(Damage::Flip)
    );
    for error in [&at_sender, &at_receiver] {
        println!("{error}");
        assert!(error.contains("bytes were damaged"), "{error}");
        assert!(error.contains("check the network path"), "{error}");
    }
    // The shortest possible pauses, each twice the one before up to the longest, fill the time.
    assert!((3..=MOST).contains(&connections), "{connections}");
    assert!(peers[0].stats().checksum_errors_at_peer > 0);
    assert_eq!(peers[0].stats().checksum_errors, 0);
    let told = loop {
        match events.next() {
            Some(Event::Suspended { cause, .. }) => {
                let cause = cause.to_string();
                if cause.contains("it found bytes damaged that this end had sent") {
                    break cause;
                }
            }
            Some(Event::Gone { .. }) | None => panic!("the sender heard of no damage"),
            Some(_) => {}
        }
    };
    println!("{told}");
}

#[test]
fn a_session_ends_when_a_dialers_message_never_arrives_whole() {
    given_up(true);
}

#[test]
fn a_session_ends_when_a_listeners_message_never_arrives_whole() {
    given_up(false);
}

const TIMEOUT: Duration = Duration::from_secs(6);
/// Pauses of at least 2.5, 5, 10, 20, 40, 80, 160 and 320 ms, then of 500 ms. A connection begins
/// at the end of each pause, and the first two need none.
const MOST: u64 = 2 + 8 + 11;
