//! Authenticated handshakes with an interceptor that flips, strips and replays bytes. Also
//! handshakes of nodes that do not belong together: nothing is prepared for them, and both say why.

use std::fs;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use ibex_base::tls::AuthenticatedAs;
use ibex_harness::authority::{Authority, Request};
use ibex_harness::fixed_random;
use ibex_tls::{Credentials, Security, SharedSecret};

use super::meeting::{ENTROPY, Meeting, TIMEOUT, host, local};
use super::reunion::{EPOCH, Reunion, node, ticket};
use super::verbs_tests::{hardware, hardware_of, with_hardware};
use super::*;
use crate::error::HandshakeError;
use crate::local::Local;
use crate::message::{MAGIC, MessageError, ResumeRefusal, SecurityMode};

/// The keys of a cluster, with which handshakes can be replayed.
fn keys(cluster: u8) -> Arc<Credentials> {
    let bytes = std::array::from_fn(|at| (at as u8).wrapping_mul(37).wrapping_add(cluster));
    let secret = SharedSecret::from_bytes(bytes).unwrap();
    let security = Security::shared_secret(secret).provider(fixed_random::provider());
    Arc::new(security.open().unwrap())
}

fn secured(mut local: Local) -> Local {
    static KEYS: OnceLock<Arc<Credentials>> = OnceLock::new();
    local.credentials = Some(KEYS.get_or_init(|| keys(1)).clone());
    local
}

/// A meeting of two members of a cluster on one host or on two, which is the same each time.
fn members(hosts: [u8; 2]) -> Meeting {
    fixed_random::seed(1);
    let [dialer, acceptor] = [1, 2].map(|identity| secured(local(identity)));
    Meeting::on_hosts(&dialer, host(hosts[0]), &acceptor, host(hosts[1]))
}

#[test]
fn one_flipped_bit_anywhere_changes_nothing_that_is_agreed_on() {
    let mut whole = members([1, 2]);
    whole.run();
    let wanted = whole.dialer_end.take().unwrap().unwrap();
    let lengths = [whole.from_dialer.len(), whole.from_acceptor.len()];
    let mut harmless = 0;
    for (of_dialer, length) in [(true, lengths[0]), (false, lengths[1])] {
        for at in 0..length {
            let mut meeting = members([1, 2]);
            meeting.changes = vec![(of_dialer, at, 1 << (at % 8))];
            meeting.run();
            // An end that waits for bytes that do not come is ended by its deadline.
            meeting.wait_for_ever();
            let ends = [&meeting.dialer_end, &meeting.acceptor_end];
            let ends = ends.map(|end| end.as_ref().expect("it has ended"));
            for agreement in ends.iter().filter_map(|end| end.as_ref().ok()) {
                assert_eq!(agreement.session_id, wanted.session_id, "byte {at}");
                assert_eq!(agreement.fabric, wanted.fabric, "byte {at}");
                assert_eq!(agreement.version, wanted.version, "byte {at}");
                assert_eq!(agreement.prologue, wanted.prologue, "byte {at}");
            }
            // The acceptor may have sent its last message without the dialer having received it.
            assert!(ends[0].is_err() || ends[1].is_ok(), "byte {at}");
            harmless += usize::from(ends[0].is_ok());
        }
    }
    // The version of a record's header is not looked at (RFC 8446, section 5.1).
    assert!(
        harmless < lengths[0].min(lengths[1]) / 10,
        "{harmless} bytes"
    );
}

#[test]
fn a_feature_that_is_stripped_is_missed_by_both_ends() {
    let hello = |features| {
        let mut dialer = secured(local(1));
        dialer.features = features;
        let mut meeting = Meeting::new(&dialer, &secured(local(2)));
        meeting.dialer.poll_transmit().expect("it speaks first")
    };
    let (with, without) = (hello(4), hello(0));
    let mut differing = (0..with.len()).filter(|at| with[*at] != without[*at]);
    let place = differing.next().expect("the features are in the Hello");
    assert_eq!(differing.next(), None);
    for of_dialer in [true, false] {
        let [dialer, acceptor] = [1, 2].map(|identity| {
            let mut node = secured(local(identity));
            node.features = 4;
            node
        });
        let mut meeting = Meeting::new(&dialer, &acceptor);
        meeting.changes = vec![(of_dialer, place, 1 << 2)];
        meeting.run();
        meeting.wait_for_ever();
        let errors = [&meeting.dialer_end, &meeting.acceptor_end]
            .map(|end| end.as_ref().expect("it has ended").as_ref().unwrap_err());
        let is_garbled = |error: &&HandshakeError| matches!(error, HandshakeError::Garbled { .. });
        assert!(errors.iter().all(is_garbled), "{errors:?}");
    }
}

#[test]
fn bytes_replayed_from_another_handshake_are_refused() {
    let mut overheard = members([1, 2]);
    overheard.run();
    assert!(matches!(overheard.acceptor_end, Some(Ok(_))));
    // Both ends draw new random bytes.
    fixed_random::seed(2);
    let [dialer, acceptor] = [1, 2].map(|identity| secured(local(identity)));
    let mut meeting = Meeting::new(&dialer, &acceptor);
    meeting.acceptor.handle_bytes(&overheard.from_dialer);
    let _ = meeting.dialer.poll_transmit();
    meeting.dialer.handle_bytes(&overheard.from_acceptor);
    for _ in 0..2 {
        meeting.drive_dialer();
        meeting.drive_acceptor();
        meeting.wait_for_ever();
    }
    for end in [meeting.dialer_end.take(), meeting.acceptor_end.take()] {
        let error = end.expect("it has ended").unwrap_err();
        let is_notified = matches!(
            error,
            HandshakeError::Tls { .. } | HandshakeError::Authentication(_)
        );
        assert!(is_notified, "{error}");
    }
}

/// Returns a node that authenticates its peers in this mode.
fn of_mode(mode: SecurityMode, identity: u8) -> Local {
    let mut local = with_hardware(identity);
    local.credentials = match mode {
        SecurityMode::SharedSecret => Some(keys(1)),
        SecurityMode::Certificates => Some(certificates()),
        _ => None,
    };
    local
}

fn certificates() -> Arc<Credentials> {
    static MADE: OnceLock<Arc<Credentials>> = OnceLock::new();
    let make = || {
        let folder =
            Folder(std::env::temp_dir().join(format!("ibex-modes-{}", std::process::id())));
        let authority = Authority::new("ca", &folder.0).unwrap();
        let files = authority.issue(&Request::new("node", &["spiffe://test/node"]));
        let files = files.unwrap();
        let security = Security::certificates(files.chain, files.key, files.authorities).unwrap();
        Arc::new(security.open().unwrap())
    };
    MADE.get_or_init(make).clone()
}

/// A folder that is removed when its files were read.
struct Folder(PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[test]
fn nodes_of_two_modes_both_say_which_and_prepare_nothing() {
    let modes = [
        SecurityMode::None,
        SecurityMode::SharedSecret,
        SecurityMode::Certificates,
    ];
    for ours in modes {
        for theirs in modes {
            if ours == theirs {
                continue;
            }
            let mut meeting = hardware_of(&of_mode(ours, 1), &of_mode(theirs, 2));
            meeting.run();
            let dialer = meeting.dialer_end.take().unwrap().unwrap_err();
            let acceptor = meeting.acceptor_end.take().unwrap().unwrap_err();
            assert_eq!(dialer, HandshakeError::Security { ours, theirs });
            let (ours, theirs) = (theirs, ours);
            assert_eq!(acceptor, HandshakeError::Security { ours, theirs });
            for error in [&dialer, &acceptor] {
                let text = error.to_string();
                for mode in [ours, theirs] {
                    assert!(text.contains(&mode.to_string()), "{text}");
                }
            }
            assert!(meeting.pairs.iter().all(Option::is_none));
            assert!(meeting.from_dialer.len() < 80, "a Hello and no Offer");
        }
    }
}

#[test]
fn another_cluster_is_told_before_anything_is_prepared() {
    let [ours, theirs] = [1, 2].map(|cluster| {
        let mut local = with_hardware(cluster);
        local.credentials = Some(keys(cluster));
        local
    });
    let mut meeting = hardware_of(&ours, &theirs);
    meeting.run();
    for end in [meeting.dialer_end.take(), meeting.acceptor_end.take()] {
        let text = end.unwrap().unwrap_err().to_string();
        assert!(text.contains("another shared secret"), "{text}");
    }
    assert!(meeting.pairs.iter().all(Option::is_none));
}

#[test]
fn a_session_goes_on_for_the_identity_alone_that_began_it() {
    let somebody = AuthenticatedAs::Certificate {
        uri: Some("spiffe://test/somebody".to_owned()),
        dns_names: Vec::new(),
    };
    let reunion = |known: &AuthenticatedAs, notified: &AuthenticatedAs| {
        let dialer = secured(node(0x11));
        let acceptor = secured(node(0x22));
        for session in acceptor.resumable.lock().values_mut() {
            session.authenticated_as = Some(known.clone());
        }
        let mut ticket = ticket(EPOCH);
        ticket.authenticated_as = Some(notified.clone());
        Reunion::between(&dialer, ticket, &acceptor)
    };
    let member = AuthenticatedAs::Member;
    reunion(&member, &member).goes_on();
    // First the acceptor's session belongs to another peer, and then the dialer's does.
    for (known, notified) in [(&somebody, &member), (&member, &somebody)] {
        let mut reunion = reunion(known, notified);
        reunion.run();
        reunion.wait_for_ever();
        let (dialer, acceptor) = reunion.ends();
        let refusal = ResumeRefusal::OtherIdentity;
        let errors = [dialer.unwrap_err(), acceptor.unwrap_err()];
        assert!(
            errors.contains(&HandshakeError::NotResumed { refusal }),
            "{errors:?}"
        );
    }
}

/// Another node answers where the peer was: it claims to be a later run of the peer, or that the
/// session is over. Neither is believed.
#[test]
fn a_node_that_proves_another_identity_tells_nothing_about_the_peer() {
    let peer = AuthenticatedAs::Certificate {
        uri: Some("spiffe://test/peer".to_owned()),
        dns_names: Vec::new(),
    };
    let mut restarted = secured(node(0x22));
    restarted.incarnation += 1;
    let mut ticket = ticket(EPOCH);
    ticket.authenticated_as = Some(peer);
    let mut reunion = Reunion::between(&secured(node(0x11)), ticket, &restarted);
    reunion.run();
    let refusal = ResumeRefusal::OtherIdentity;
    assert_eq!(
        reunion.ends().0.unwrap_err(),
        HandshakeError::NotResumed { refusal }
    );
}

/// Panics unless `sent` consists, behind its Hello, of TLS records in none of which a secret can be
/// read.
fn check_capture(sent: &[u8], planted: &[&[u8]]) {
    let start = MAGIC.len();
    let length = usize::from(u16::from_le_bytes([sent[start], sent[start + 1]]));
    let (mut rest, mut records) = (&sent[start + 2 + length..], 0);
    while !rest.is_empty() {
        // The kinds are handshake, change of ciphers, alert and data: RFC 8446, section 5.1.
        let [kind @ 20..=23, 3, 1 | 3, high, low, ..] = *rest else {
            panic!("no record: {rest:?}");
        };
        rest = &rest[5 + usize::from(u16::from_be_bytes([high, low]))..];
        records += usize::from(kind > 0);
    }
    assert!(records > 2);
    for secret in planted {
        let is_there = sent
            .windows(16)
            .any(|window| secret.windows(16).any(|one| one == window));
        assert!(!is_there, "{secret:?}");
    }
}

#[test]
fn a_thousand_captured_bootstraps_tell_nothing() {
    let entropy = ENTROPY;
    for number in 0..1000 {
        let [mut dialer, mut acceptor] = [1, 2].map(|identity| match number % 3 {
            0 => secured(with_hardware(identity)),
            _ => secured(local(identity)),
        });
        (dialer.identity.0, acceptor.identity.0) = (*b"planted dialer's", *b"planted acceptor");
        fixed_random::seed(number);
        let hosts = [1, if number % 3 == 1 { 1 } else { 2 }].map(host);
        let mut meeting = Meeting::on_hosts(&dialer, hosts[0], &acceptor, hosts[1]);
        meeting.run();
        let agreement = meeting.acceptor_end.take().unwrap().unwrap();
        let wanted = [Fabric::Verbs, Fabric::Shm, Fabric::Tcp];
        assert_eq!(agreement.fabric, wanted[number as usize % 3]);
        let planted = [
            &dialer.identity.0[..],
            &acceptor.identity.0,
            entropy.token.expose(),
            &entropy.session_id,
            entropy.resume_secret.expose(),
            // The name of the Unix socket as the Endpoint message carries it.
            b"a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1a1",
        ];
        check_capture(&meeting.from_dialer, &planted);
        check_capture(&meeting.from_acceptor, &planted);
    }
}

#[test]
fn a_peer_that_sends_on_while_a_device_is_found_is_given_up() {
    let (now, deadline) = (Instant::now(), TIMEOUT);
    let mut dialer = hardware();
    let mut acceptor = Handshake::accept(&with_hardware(2), host(2), ENTROPY, now, now + deadline);
    acceptor.handle_bytes(&dialer.dialer.poll_transmit().unwrap());
    assert!(matches!(
        acceptor.poll_event(),
        Some(HandshakeEvent::FindDevice)
    ));
    // No deferred work is done, and the peer sends more than any handshake holds.
    let mut rounds = 0;
    loop {
        acceptor.handle_bytes(&[1; 4096]);
        if let Some(HandshakeEvent::Failed(error)) = acceptor.poll_event() {
            let HandshakeError::Malformed { problem, .. } = error else {
                panic!("{error}");
            };
            assert!(matches!(problem, MessageError::Unasked { .. }), "{problem}");
            break;
        }
        rounds += 1;
        assert!(rounds < 100, "it takes anything");
    }
}
