//! What the ends tell each other of their hosts, and what a listener can make a dialer do with it.

use super::meeting::{ENTROPY, Meeting, TIMEOUT, host, local};
use super::*;
use crate::error::HandshakeError;
use crate::identity::HostHint;
use crate::local::Local;
use crate::message::{ALONE, Endpoint, HandshakeMessage, MessageKind, ShmEndpoint};

/// A host with facts that no other field of a handshake looks like.
const DISTINCT: HostHint = HostHint {
    boot_id: *b"boot id of host!",
    pid: 0x5a5b_5c5d,
    uid: 0x6a6b_6c6d,
    pid_namespace: 0x7a7b_7c7d_7e7f_7071,
    network_namespace: 0x8a8b_8c8d_8e8f_8081,
};

fn contains(bytes: &[u8], part: &[u8]) -> bool {
    bytes.windows(part.len()).any(|window| window == part)
}

/// Neither end's bytes contain a fact of its host, whether the peer is on that host or not; only
/// there it is sent the process.
#[test]
fn no_fact_of_a_host_is_sent_as_it_is() {
    let elsewhere = HostHint {
        boot_id: [9; 16],
        ..DISTINCT
    };
    // As for a connection that leads through a proxy or to another host.
    let away = HostHint {
        network_namespace: 0,
        ..DISTINCT
    };
    for (acceptor, is_here) in [(DISTINCT, true), (elsewhere, false), (away, false)] {
        let mut meeting = Meeting::on_hosts(&local(1), DISTINCT, &local(2), acceptor);
        meeting.run();
        for sent in [&meeting.from_dialer, &meeting.from_acceptor] {
            assert!(!contains(sent, &DISTINCT.boot_id));
            assert!(!contains(sent, &DISTINCT.uid.to_le_bytes()));
            assert!(!contains(sent, &DISTINCT.pid_namespace.to_le_bytes()));
            assert!(!contains(sent, &DISTINCT.network_namespace.to_le_bytes()));
            assert_eq!(contains(sent, &DISTINCT.pid.to_le_bytes()), is_here);
        }
        for end in [meeting.dialer_end, meeting.acceptor_end] {
            let agreement = end.expect("an end").expect("a session");
            assert_eq!(agreement.stated_pid, is_here.then_some(DISTINCT.pid));
        }
    }
}

/// Every other conversation has other tags, so nobody can follow a host by them.
#[test]
fn tags_differ_from_one_connection_to_the_next() {
    let tags = |nonce| {
        let now = std::time::Instant::now();
        let mut dialer = Handshake::dial(&local(1), host(1), nonce, now, now + TIMEOUT);
        let mut acceptor = Handshake::accept(&local(2), host(2), ENTROPY, now, now + TIMEOUT);
        acceptor.handle_bytes(&dialer.poll_transmit().expect("a Hello"));
        dialer.handle_bytes(&acceptor.poll_transmit().expect("a Hello and an Offer"));
        let said = dialer.poll_transmit().expect("an Offer");
        assert_eq!(said[2], MessageKind::Offer as u8);
        said[27..27 + 64].to_vec()
    };
    let [one, other] = [tags([1; 16]), tags([2; 16])];
    for (one, other) in one.chunks(16).zip(other.chunks(16)) {
        assert_ne!(one, other);
        assert_ne!(one, [0; 16]);
    }
}

/// Shared memory is for a connection that stays here, whatever the peer claims; each end decides
/// for itself.
#[test]
fn no_end_shares_memory_over_a_connection_that_leads_away() {
    let away = HostHint {
        network_namespace: 0,
        ..host(1)
    };
    for (dialer, acceptor, who) in [
        (away, host(1), "connecting node"),
        (host(1), away, "listening node"),
    ] {
        let mut meeting = Meeting::on_hosts(&local(1), dialer, &local(2), acceptor);
        meeting.run();
        let agreement = meeting.dialer_end.expect("an end").expect("a session");
        assert_eq!(agreement.fabric, Fabric::Tcp);
        let why = format!(
            "tcp: not shm: the connection has an address that is not of the network namespace of \
             the {who}, and the "
        );
        assert!(agreement.reason.starts_with(&why), "{}", agreement.reason);
    }
}

/// A listener that sends a dialer to a Unix socket, against the dialer's choice.
#[test]
fn a_dialer_is_not_sent_to_a_socket_that_it_did_not_choose() {
    let away = HostHint {
        network_namespace: 0,
        ..host(1)
    };
    let now = std::time::Instant::now();
    let node: &Local = &local(1);
    let mut dialer = Handshake::dial(node, away, [0xd0; 16], now, now + TIMEOUT);
    let mut acceptor = Handshake::accept(&local(2), host(1), ENTROPY, now, now + TIMEOUT);
    acceptor.handle_bytes(&dialer.poll_transmit().expect("a Hello"));
    dialer.handle_bytes(&acceptor.poll_transmit().expect("a Hello and an Offer"));
    let token = ENTROPY.token;
    let mut endpoint = Vec::new();
    HandshakeMessage::Endpoint(Endpoint::Shm(ShmEndpoint { token }))
        .write_checked(ALONE, &mut endpoint);
    dialer.handle_bytes(&endpoint);
    match dialer.poll_event() {
        Some(HandshakeEvent::Failed(HandshakeError::OutOfTurn { step, kind })) => {
            assert_eq!(
                (step, kind),
                (HandshakeStep::Endpoint, MessageKind::Endpoint)
            );
        }
        other => panic!("{other:?}"),
    }
}

/// Also a listener on this host cannot choose the socket that a dialer connects to: its name is a
/// hash of the bytes that are presented there.
#[test]
fn the_name_of_the_unix_socket_follows_from_the_token() {
    let mut meeting = Meeting::new(&local(1), &local(2));
    meeting.run();
    let name = ShmEndpoint::name(&ENTROPY.token);
    // SHA-256, by another implementation.
    assert_eq!(name, b"ibex-70bef8c8c937d7f538909f11bfc02aaa");
    assert!(!contains(&meeting.from_acceptor, &name));
    assert!(!contains(&name, &ENTROPY.token.expose()[..4]));
}
