//! Handshakes with bytes that no honest end sends, or that changed on their way.

use std::time::Instant;

use proptest::prelude::*;

use super::meeting::{Meeting, TIMEOUT, Unix, host, local};
use super::reunion::HELLO;
use super::*;
use crate::error::{Garbling, HandshakeError};
use crate::message::{HandshakeMessage, Hello, MAGIC, MessageError, SecurityMode, VersionRange};

#[test]
fn another_protocol_is_known_by_its_first_bytes() {
    let now = Instant::now();
    for (answer, shown) in [
        (
            &b"HTTP/1.1 400 Bad Request\r\n"[..],
            "HTTP/1.1 400 Bad Request\\r\\n",
        ),
        (b"SSH-2.0-OpenSSH_9.6\r\n", "SSH-2.0-OpenSSH_9.6\\r\\n"),
        (b"\x89ibeX", "\\x89ibeX"),
        (b"\0", "\\x00"),
    ] {
        let mut dialer = Handshake::dial(&local(1), host(1), [0; 16], now, now + TIMEOUT);
        dialer.handle_bytes(answer);
        let Some(HandshakeEvent::Failed(error)) = dialer.poll_event() else {
            panic!("no failure");
        };
        assert_eq!(
            error,
            HandshakeError::NotIbex {
                seen: shown.to_string()
            }
        );
    }
    let long = HandshakeError::NotIbex {
        seen: "HTTP/1.1 400".to_string(),
    };
    assert!(
        long.to_string()
            .contains("an HTTP server's answer; check the address")
    );
}

#[test]
fn a_stranger_is_told_nothing() {
    let mut meeting = Meeting::new(&local(1), &local(2));
    assert_eq!(meeting.acceptor.poll_transmit(), None);
    meeting.acceptor.handle_bytes(b"GET / HTTP/1.1\r\n\r\n");
    assert_eq!(meeting.acceptor.poll_transmit(), None);
    assert!(!meeting.acceptor.has_hello());
}

#[test]
fn a_length_out_of_bounds_is_refused_before_its_bytes_come() {
    let now = Instant::now();
    for (prefix, problem) in [
        ([0, 0], MessageError::Empty),
        ([0x01, 0x10], MessageError::Oversize { length: 4097 }),
    ] {
        let mut dialer = Handshake::dial(&local(1), host(1), [0; 16], now, now + TIMEOUT);
        dialer.handle_bytes(&MAGIC);
        dialer.handle_bytes(&prefix);
        let Some(HandshakeEvent::Failed(error)) = dialer.poll_event() else {
            panic!("no failure");
        };
        assert_eq!(
            error,
            HandshakeError::Malformed {
                step: HandshakeStep::Hello,
                problem
            }
        );
    }
}

/// Both ends notice the damage, act on nothing that came, and the dialer may try again.
#[test]
fn a_message_that_changed_on_its_way_ends_the_handshake_at_both_ends() {
    // `delivered` counts messages as above; the last byte before the checksum is changed.
    for delivered in 2..8 {
        let mut meeting = Meeting::on_hosts(&local(1), host(1), &local(2), host(2));
        meeting.garbles = Some(delivered);
        meeting.run();
        let (dialer, acceptor) = meeting.ends();
        let is_by_dialer = [3, 4, 6].contains(&delivered);
        let dialer = dialer.expect_err("it cannot go on");
        assert!(dialer.may_be_garbling());
        match (is_by_dialer, delivered) {
            (true, _) => {
                let acceptor = acceptor.expect_err("it cannot go on");
                let (here, there) = (&acceptor, &dialer);
                assert!(matches!(
                    here,
                    HandshakeError::Garbled {
                        how: Garbling::Here { .. },
                        ..
                    }
                ));
                let HandshakeError::Garbled {
                    how: Garbling::AtPeer(said),
                    ..
                } = there
                else {
                    panic!("after {delivered}: {there}");
                };
                assert_eq!(said.as_str(), here.to_string());
            }
            (false, _) => {
                assert!(matches!(
                    dialer,
                    HandshakeError::Garbled {
                        how: Garbling::Here { .. },
                        ..
                    }
                ));
                // Message 7 is the acceptor's Ready, after which the acceptor has a session.
                match delivered {
                    7 => assert!(acceptor.is_ok()),
                    _ => assert!(acceptor.expect_err("told").may_be_garbling()),
                }
            }
        }
    }
}

/// The bytes behind a Hello show that it has changed, even if it states another version or another
/// security mode: that is no permanent failure.
#[test]
fn a_hello_that_changed_on_its_way_is_no_permanent_failure() {
    for of_dialer in [true, false] {
        for at in 0..HELLO {
            for bit in 0..8 {
                let mut meeting = Meeting::new(&local(1), &local(2));
                meeting.changes = vec![(of_dialer, at, 1 << bit)];
                meeting.run();
                meeting.wait_for_ever();
                let dialer = meeting.dialer_end.expect("ended").expect_err("found out");
                let context = format!("{of_dialer} {at} {bit}: {dialer}");
                assert!(dialer.may_be_garbling(), "{context}");
                assert!(meeting.acceptor_end.expect("ended").is_err(), "{context}");
            }
        }
    }
}

/// A peer of the first major version sends its Hello and hangs up, or receives a Refusal, behind
/// this node's Hello, that it can read.
#[test]
fn a_peer_of_another_major_version_is_told_in_its_own_way() {
    let mut older = local(1);
    older.versions = VersionRange {
        oldest: Version { major: 1, minor: 0 },
        newest: Version { major: 1, minor: 6 },
    };
    let (ours, theirs) = (VersionRange::SUPPORTED, older.versions);
    let ending = HandshakeError::Version { ours, theirs };
    // The older peer dials.
    let mut meeting = Meeting::new(&older, &local(2));
    meeting.run();
    assert_eq!(meeting.acceptor_end.expect("ended").unwrap_err(), ending);
    let refusal = &meeting.from_acceptor[HELLO..];
    let Ok(HandshakeMessage::Refusal(refusal)) = crate::parse_message(&refusal[2..]) else {
        panic!("no refusal that it can read: {refusal:?}");
    };
    assert_eq!(refusal.reason.as_str(), ending.to_string());
    // The older peer listens, and hangs up behind its Hello.
    let mut meeting = Meeting::new(&local(1), &older);
    meeting.cut_after = 2;
    meeting.run();
    meeting.dialer.handle_closed(None);
    meeting.drive_dialer();
    assert_eq!(meeting.dialer_end.expect("ended").unwrap_err(), ending);
    // The older peer listens, and never hangs up.
    let mut meeting = Meeting::new(&local(1), &older);
    meeting.cut_after = 2;
    meeting.run();
    meeting.wait_for_ever();
    assert_eq!(meeting.dialer_end.expect("ended").unwrap_err(), ending);
}

/// Tries each message at each step that does not expect it.
#[test]
fn a_message_out_of_turn_ends_the_handshake() {
    let hello = HandshakeMessage::Hello(Hello {
        versions: VersionRange::SUPPORTED,
        features: 0,
        security: SecurityMode::None,
        nonce: [0; 16],
    });
    let ready = HandshakeMessage::Ready(crate::message::Ready::ALONE);
    for delivered in 1..8 {
        for message in [&hello, &ready] {
            let mut meeting = Meeting::new(&local(1), &local(2));
            meeting.cut_after = delivered;
            meeting.run();
            let (step, kind) = (meeting.dialer.step(), message.kind());
            if step == HandshakeStep::Hello {
                continue;
            }
            let mut bytes = Vec::new();
            message.write_checked(meeting.before_dialer_hears(), &mut bytes);
            meeting.dialer.handle_bytes(&bytes);
            meeting.drive_dialer();
            let error = meeting.dialer_end.expect("ended").unwrap_err();
            assert_eq!(error, HandshakeError::OutOfTurn { step, kind });
        }
    }
}

proptest! {
    /// One byte anywhere is changed, lost, doubled or swapped with the next.
    #[test]
    fn a_stream_that_changes_leads_to_no_session_at_the_dialer_and_to_no_permanent_failure(
        of_dialer: bool,
        at in any::<prop::sample::Index>(),
        fault in 0..4,
        change in 1..=255u8,
    ) {
        let mut whole = Meeting::on_hosts(&local(1), host(1), &local(2), host(2));
        whole.run();
        let mut stream = match of_dialer {
            true => whole.from_dialer,
            false => whole.from_acceptor,
        };
        let at = at.index(stream.len());
        match fault {
            0 => stream[at] ^= change,
            1 => drop(stream.remove(at)),
            2 => stream.insert(at, stream[at]),
            _ => {
                let next = (at + 1) % stream.len();
                if stream[at] == stream[next] {
                    return Ok(());
                }
                stream.swap(at, next);
            }
        }
        let mut meeting = Meeting::on_hosts(&local(1), host(1), &local(2), host(2));
        // Each end receives the other's whole stream; one of the streams has changed.
        meeting.replay(of_dialer, &stream);
        meeting.wait_for_ever();
        let dialer = meeting.dialer_end.expect("ended");
        match (dialer, of_dialer) {
            (Err(error), _) => prop_assert!(error.may_be_garbling(), "{}", error),
            // Doubling the last byte leaves all messages as they were; the session finds one more
            // byte.
            (Ok(_), _) => prop_assert!(fault == 2 && at + 1 == stream.len() - 1),
        }
    }

    #[test]
    fn garbage_after_any_step_ends_or_waits(
        delivered in 0..8usize,
        garbage in proptest::collection::vec(any::<u8>(), 0..300),
        as_message: bool,
    ) {
        let meeting = Meeting::new(&local(1), &local(2));
        prop_assert!(meeting.ends_in_spite_of(garbage, as_message, delivered));
    }

    #[test]
    fn any_bytes_end_or_wait(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        let with_magic = [&MAGIC, &*bytes].concat();
        for bytes in [&bytes, &with_magic] {
            let mut meeting = Meeting::new(&local(1), &local(2));
            // Both ends receive these bytes and no others.
            meeting.cut_after = 0;
            meeting.unix = Unix::IsElsewhere;
            meeting.dialer.handle_bytes(bytes);
            meeting.acceptor.handle_bytes(bytes);
            meeting.run();
            meeting.wait_for_ever();
            prop_assert!(meeting.dialer_end.is_some() && meeting.acceptor_end.is_some());
        }
    }
}
