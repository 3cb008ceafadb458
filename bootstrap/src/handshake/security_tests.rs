//! Authenticated handshakes: both state machines over TLS, and tampering on the way.

use std::sync::Arc;

use ibex_base::tls::{AuthenticatedAs, Encryption};
use ibex_tls::{Credentials, Security, SharedSecret};

use super::meeting::{Meeting, host, local};
use super::reunion::HELLO;
use super::*;
use crate::error::HandshakeError;
use crate::fabric::Policy;
use crate::local::Local;
use crate::message::MAGIC;

/// The credentials of a cluster with a secret of its own.
pub(super) fn secret(cluster: u8) -> Arc<Credentials> {
    Arc::new(with_secret(cluster).open().unwrap())
}

fn with_secret(cluster: u8) -> Security {
    let bytes = std::array::from_fn(|at| (at as u8).wrapping_mul(37).wrapping_add(cluster));
    Security::shared_secret(SharedSecret::from_bytes(bytes).unwrap())
}

fn secured(identity: u8, cluster: u8) -> Local {
    let mut local = local(identity);
    local.credentials = Some(secret(cluster));
    local
}

#[test]
fn two_nodes_of_a_cluster_agree_and_know_it() {
    let mut meeting = Meeting::new(&secured(1, 1), &secured(2, 1));
    meeting.run();
    let ends = [meeting.dialer_end.take(), meeting.acceptor_end.take()];
    for end in ends {
        let agreement = end.unwrap().unwrap();
        assert_eq!(agreement.authenticated_as, Some(AuthenticatedAs::Member));
    }
    for tls in [meeting.dialer.take_tls(), meeting.acceptor.take_tls()] {
        assert!(!tls.unwrap().is_handshaking());
    }
}

#[test]
fn nothing_but_records_follows_the_hellos() {
    let mut meeting = Meeting::new(&secured(1, 1), &secured(2, 1));
    meeting.run();
    for (sent, planted) in [
        (&meeting.from_dialer, [1; 16]),
        (&meeting.from_acceptor, [2; 16]),
    ] {
        let hello = 8 + 2 + usize::from(u16::from_le_bytes([sent[8], sent[9]]));
        let mut records = &sent[hello..];
        let mut count = 0;
        while !records.is_empty() {
            // The kinds are handshake, change of ciphers, alert and data: RFC 8446, section 5.1.
            assert!((20..=23).contains(&records[0]), "{records:?}");
            let length = usize::from(u16::from_be_bytes([records[3], records[4]]));
            records = &records[5 + length..];
            count += 1;
        }
        assert!(count > 2);
        // The Offer carries the identity, and the acceptor's messages carry the secrets.
        for planted in [planted, [0xa1; 16], [0xa2; 16], [0xa3; 16], [0xa4; 16]] {
            assert!(!sent.windows(16).any(|window| window == planted));
        }
    }
}

#[test]
fn another_secret_is_refused_before_anything_is_offered() {
    let mut meeting = Meeting::new(&secured(1, 1), &secured(2, 2));
    meeting.run();
    for end in [meeting.dialer_end.take(), meeting.acceptor_end.take()] {
        let error = end.unwrap().unwrap_err();
        assert!(
            matches!(error, HandshakeError::Authentication(_)),
            "{error}"
        );
        let text = error.to_string();
        assert!(text.contains("another shared secret"), "{text}");
    }
    assert_eq!(meeting.dialer.step(), HandshakeStep::Binding);
    assert_eq!(meeting.acceptor.step(), HandshakeStep::Binding);
}

#[test]
fn a_node_has_no_authenticated_session_with_itself() {
    let mut meeting = Meeting::new(&secured(1, 1), &secured(1, 1));
    meeting.run();
    let acceptor = meeting.acceptor_end.take().unwrap().unwrap_err();
    let dialer = meeting.dialer_end.take().unwrap().unwrap_err();
    // The end that notices first tells the other.
    let is_notified = |error: &HandshakeError| {
        matches!(
            error,
            HandshakeError::Oneself | HandshakeError::Refused { .. }
        )
    };
    assert!(
        is_notified(&dialer) && is_notified(&acceptor),
        "{dialer} {acceptor}"
    );
    assert!([&dialer, &acceptor].contains(&&HandshakeError::Oneself));
}

/// Neither end believes a Hello that has changed, and the dialer may try again.
fn assert_ends_as_garbled(changes: Vec<(bool, usize, u8)>) {
    let context = format!("{changes:?}");
    let mut meeting = Meeting::new(&secured(1, 1), &secured(2, 1));
    meeting.changes = changes;
    meeting.run();
    // The dialer's time is over first.
    meeting.wait_for_ever();
    let dialer = meeting.dialer_end.expect("ended").expect_err("found out");
    assert!(dialer.may_be_garbling(), "{context}: {dialer}");
    let acceptor = meeting.acceptor_end.expect("ended");
    assert!(acceptor.is_err(), "{context}");
}

#[test]
fn a_hello_with_a_changed_bit_is_no_permanent_failure() {
    for of_dialer in [true, false] {
        for at in 0..HELLO {
            assert_ends_as_garbled(vec![(of_dialer, at, 1 << (at % 8))]);
        }
    }
}

/// The versions change places with bytes of the nonce, or with each other.
#[test]
fn a_hello_whose_bytes_have_changed_places_is_no_permanent_failure() {
    let mut whole = Meeting::new(&secured(1, 1), &secured(2, 1));
    whole.run();
    for (of_dialer, sent) in [(true, whole.from_dialer), (false, whole.from_acceptor)] {
        for at in MAGIC.len() + 2..HELLO {
            for other in (at + 1..HELLO).filter(|other| sent[*other] != sent[at]) {
                let bits = sent[at] ^ sent[other];
                assert_ends_as_garbled(vec![(of_dialer, at, bits), (of_dialer, other, bits)]);
            }
        }
    }
}

/// Ends whose modes differ do not take it for damage, although neither has a proof of it.
#[test]
fn ends_of_different_modes_know_it() {
    for (dialer, acceptor) in [(secured(1, 1), local(2)), (local(1), secured(2, 1))] {
        let mut meeting = Meeting::new(&dialer, &acceptor);
        meeting.run();
        for end in [meeting.dialer_end, meeting.acceptor_end] {
            let error = end.expect("ended").expect_err("they differ");
            assert!(matches!(error, HandshakeError::Security { .. }), "{error}");
        }
    }
}

#[test]
fn a_changed_nonce_is_found_by_the_binding() {
    let mut meeting = Meeting::new(&secured(1, 1), &secured(2, 1));
    // The last byte of the dialer's Hello belongs to its nonce, which TLS does not know.
    let hello = {
        let mut whole = Meeting::new(&secured(1, 1), &secured(2, 1));
        whole.run();
        8 + 2
            + usize::from(u16::from_le_bytes([
                whole.from_dialer[8],
                whole.from_dialer[9],
            ]))
    };
    meeting.changes = vec![(true, hello - 1, 1)];
    meeting.run();
    let error = meeting.acceptor_end.take().unwrap().unwrap_err();
    assert!(matches!(error, HandshakeError::Garbled { .. }), "{error}");
}

#[test]
fn where_encryption_is_required_verbs_is_not_used() {
    let mut strict = local(2);
    let security = with_secret(1).encryption(Encryption::Required);
    strict.credentials = Some(Arc::new(security.open().unwrap()));
    let mut meeting = Meeting::on_hosts(&secured(1, 1), host(1), &strict, host(2));
    meeting.run();
    let agreement = meeting.dialer_end.take().unwrap().unwrap();
    assert_eq!(agreement.fabric, Fabric::Tcp);
    let reason = &agreement.reason;
    assert!(
        reason.contains("listening node requires encryption, and verbs has none"),
        "{reason}"
    );
    let mut insisting = secured(1, 1);
    insisting.verbs = Policy::Require;
    let mut meeting = Meeting::on_hosts(&insisting, host(1), &strict, host(2));
    meeting.run();
    let error = meeting.dialer_end.take().unwrap().unwrap_err();
    assert!(matches!(error, HandshakeError::Fabric(_)), "{error}");
}

#[test]
fn sealed_payloads_need_no_checksum() {
    let far = |dialer: &Local, acceptor: &Local| {
        let mut meeting = Meeting::on_hosts(dialer, host(1), acceptor, host(2));
        meeting.run();
        meeting
            .dialer_end
            .take()
            .unwrap()
            .unwrap()
            .payload_checksums
    };
    assert!(far(&local(1), &local(2)));
    assert!(!far(&secured(1, 1), &secured(2, 1)));
}
