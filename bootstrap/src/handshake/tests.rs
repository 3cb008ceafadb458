//! Handshakes of two honest ends: what they agree on, and how they end where they cannot.

use std::time::{Duration, Instant};

use super::meeting::{ENTROPY, Meeting, TIMEOUT, Unix, agreed, failed, host, local};
use super::*;
use crate::error::HandshakeError;
use crate::fabric::Policy;
use crate::identity::NodeIdentity;
use crate::message::{
    ALONE, FabricChoice, FieldError, HandshakeMessage, MAGIC, MessageError, MessageKind,
    SecurityMode, Text, Version, VersionRange,
};
use crate::negotiate::{FabricConflict, Party};
use crate::places::{Places, SessionLimit, SessionLimits};

#[test]
fn two_nodes_on_one_host_agree_on_shared_memory() {
    let (dialer, acceptor) = agreed(Meeting::new(&local(1), &local(2)));
    assert_eq!(dialer.reason, "shm: same host, same user");
    assert_eq!(dialer.peer.identity, NodeIdentity([2; 16]));
    assert_eq!(acceptor.peer.identity, NodeIdentity([1; 16]));
    assert_eq!(dialer.session_id, ENTROPY.session_id);
}

#[test]
fn each_end_learns_the_others_name() {
    let mut named = local(2);
    named.name = Text::new("replica-2");
    let (dialer, acceptor) = agreed(Meeting::new(&local(1), &named));
    assert_eq!(dialer.peer.name.as_str(), "replica-2");
    assert_eq!(acceptor.peer.name.as_str(), "");
}

#[test]
fn a_node_may_meet_itself() {
    let (dialer, acceptor) = agreed(Meeting::new(&local(1), &local(1)));
    let host = dialer.peer.host;
    assert_eq!(
        dialer.peer,
        Offer {
            host,
            ..acceptor.peer
        }
    );
    assert_ne!(host, acceptor.peer.host, "each end's tags are its own");
}

#[test]
fn two_nodes_on_two_hosts_agree_on_tcp() {
    let meeting = Meeting::on_hosts(&local(1), host(1), &local(2), host(2));
    assert_eq!(agreed(meeting).0.fabric, Fabric::Tcp);
}

#[test]
fn a_prologue_is_both_hellos_as_they_were_sent() {
    let mut meeting = Meeting::new(&local(1), &local(2));
    meeting.run();
    let sent = (meeting.from_dialer.clone(), meeting.from_acceptor.clone());
    let prologue = meeting.ends().0.expect("agreed").prologue;
    assert!(prologue.dialer.starts_with(&MAGIC) && prologue.acceptor.starts_with(&MAGIC));
    assert!(sent.0.starts_with(&prologue.dialer) && sent.1.starts_with(&prologue.acceptor));
}

#[test]
fn it_makes_no_difference_how_the_bytes_are_cut() {
    let whole = agreed(Meeting::new(&local(1), &local(2))).0;
    for chunk in 1..200 {
        let mut meeting = Meeting::new(&local(1), &local(2));
        meeting.chunk = chunk;
        let cut = agreed(meeting).0;
        assert_eq!(cut.fabric, whole.fabric);
        assert_eq!(cut.prologue, whole.prologue);
    }
}

#[test]
fn a_unix_socket_that_cannot_be_reached_leads_to_tcp() {
    let mut meeting = Meeting::new(&local(1), &local(2));
    meeting.unix = Unix::IsElsewhere;
    meeting.run();
    assert!(meeting.unix_closed);
    let (dialer, acceptor) = meeting.ends();
    assert_eq!(acceptor.expect("agreed").fabric, Fabric::Tcp);
    let reason = dialer.expect("agreed").reason;
    assert!(reason.starts_with("tcp: not shm: not here; "), "{reason}");
}

#[test]
fn a_unix_socket_that_cannot_be_made_leads_to_tcp() {
    let mut meeting = Meeting::new(&local(1), &local(2));
    meeting.can_listen = false;
    let reason = agreed(meeting).0.reason;
    assert!(
        reason.starts_with("tcp: not shm: no descriptors; "),
        "{reason}"
    );
}

#[test]
fn without_a_way_back_both_ends_say_so() {
    let mut dialer = local(1);
    dialer.shm = Policy::Require;
    let mut meeting = Meeting::new(&dialer, &local(2));
    meeting.unix = Unix::IsElsewhere;
    let (dialer, acceptor) = failed(meeting);
    assert!(matches!(
        dialer,
        HandshakeError::Fabric(FabricConflict::Unavailable {
            fabric: Fabric::Shm,
            ..
        })
    ));
    let HandshakeError::Refused { reason, .. } = acceptor else {
        panic!("not a refusal: {acceptor}");
    };
    assert_eq!(reason.as_str(), dialer.to_string());
}

#[test]
fn a_limit_on_sessions_is_told_as_a_value_at_both_ends() {
    let (dialer, mut acceptor) = (local(1), local(2));
    acceptor.places = Places::new(SessionLimits {
        per_peer: 1,
        per_node: 9,
    });
    let (at_dialer, at_acceptor) = agreed(Meeting::new(&dialer, &acceptor));
    let (there, here) = failed(Meeting::new(&dialer, &acceptor));
    let limit = SessionLimit::PerPeer(1);
    let end = Party::Acceptor;
    assert_eq!(here, HandshakeError::TooManySessions { end, limit });
    assert_eq!(there, here);
    assert_eq!(
        here.to_string(),
        "the listening node has a session with this peer, the only one that its \
         max_peer_sessions allows; end one, or raise that limit there"
    );
    // Another peer has a place of its own, and a session that ends gives one back.
    agreed(Meeting::new(&local(3), &acceptor));
    drop((at_dialer, at_acceptor));
    agreed(Meeting::new(&dialer, &acceptor));
}

#[test]
fn a_dialer_is_bound_by_its_own_limit_and_a_failed_handshake_costs_no_place() {
    let (mut dialer, mut acceptor) = (local(1), local(2));
    dialer.places = Places::new(SessionLimits {
        per_peer: 9,
        per_node: 1,
    });
    acceptor.places = Places::new(SessionLimits {
        per_peer: 1,
        per_node: 1,
    });
    let held = dialer
        .places
        .take(NodeIdentity([7; 16]), 1, None, Instant::now())
        .unwrap();
    let (here, there) = failed(Meeting::new(&dialer, &acceptor));
    let (end, limit) = (Party::Dialer, SessionLimit::PerNode(1));
    assert_eq!(here, HandshakeError::TooManySessions { end, limit });
    assert_eq!(there, here);
    drop(held);
    agreed(Meeting::new(&dialer, &acceptor));
}

/// Tcp could be had, and would only put the shortage off.
#[test]
fn an_end_that_lacks_descriptors_refuses_the_session_and_both_ends_know_its_limit() {
    for lacking in [Party::Dialer, Party::Acceptor] {
        let mut meeting = Meeting::new(&local(1), &local(2));
        match lacking {
            Party::Dialer => meeting.unix = Unix::LacksDescriptors,
            Party::Acceptor => meeting.acceptor.handle_shortage(64),
        }
        let (dialer, acceptor) = failed(meeting);
        let (end, limit) = (lacking, 64);
        assert_eq!(dialer, HandshakeError::Descriptors { end, limit });
        assert_eq!(acceptor, dialer);
    }
}

#[test]
fn policies_that_exclude_each_other_fail_alike_at_both_ends() {
    let (mut dialer, mut acceptor) = (local(1), local(2));
    dialer.shm = Policy::Require;
    acceptor.tcp = Policy::Require;
    let (dialer, acceptor) = failed(Meeting::new(&dialer, &acceptor));
    assert_eq!(dialer, acceptor);
    assert!(matches!(
        dialer,
        HandshakeError::Fabric(FabricConflict::TwoRequired { .. })
    ));
}

#[test]
fn a_later_minor_version_with_unknown_features_is_understood() {
    let (mut dialer, mut acceptor) = (local(1), local(2));
    dialer.versions.newest.minor = 9;
    dialer.features = 0b1110;
    acceptor.features = 0b0111;
    let (dialer, acceptor) = agreed(Meeting::new(&dialer, &acceptor));
    assert_eq!(dialer.version, VersionRange::SUPPORTED.newest);
    assert_eq!([dialer.features, acceptor.features], [0b0110; 2]);
}

#[test]
fn other_versions_fail_at_both_ends_with_both_ranges() {
    let mut dialer = local(1);
    let other = Version { major: 7, minor: 3 };
    dialer.versions = VersionRange {
        oldest: other,
        newest: other,
    };
    let (newer, older) = failed(Meeting::new(&dialer, &local(2)));
    let (ours, theirs) = (dialer.versions, VersionRange::SUPPORTED);
    assert_eq!(newer, HandshakeError::Version { ours, theirs });
    assert_eq!(
        older,
        HandshakeError::Version {
            ours: theirs,
            theirs: ours
        }
    );
}

#[test]
fn another_security_mode_fails_at_both_ends() {
    let mut dialer = local(1);
    dialer.credentials = Some(security_tests::secret(1));
    let (strict, plain) = failed(Meeting::new(&dialer, &local(2)));
    let (ours, theirs) = (SecurityMode::SharedSecret, SecurityMode::None);
    assert_eq!(strict, HandshakeError::Security { ours, theirs });
    assert_eq!(
        plain,
        HandshakeError::Security {
            ours: theirs,
            theirs: ours
        }
    );
    let text = "the peer's security mode is none, this node's is a shared secret";
    assert!(strict.to_string().contains(text), "{strict}");
    assert!(!strict.to_string().contains("feature"), "{strict}");
    let sent = plain.refusal().reason.to_string();
    assert!(!sent.contains("feature"), "{sent}");
    let names_feature = plain
        .to_string()
        .ends_with("enable the feature `tls` of ibex");
    assert_eq!(names_feature, cfg!(not(feature = "tls")), "{plain}");
}

#[test]
fn a_dialer_that_never_showed_the_token_is_not_let_in() {
    let mut meeting = Meeting::new(&local(1), &local(2));
    meeting.unix = Unix::IsSkipped;
    let (dialer, acceptor) = failed(meeting);
    let (step, kind) = (HandshakeStep::Ready, MessageKind::Ready);
    assert_eq!(acceptor, HandshakeError::OutOfTurn { step, kind });
    assert!(matches!(dialer, HandshakeError::Refused { .. }));
}

#[test]
fn a_choice_is_made_once_per_fabric() {
    let mut meeting = Meeting::on_hosts(&local(1), host(1), &local(2), host(2));
    meeting.cut_after = 5;
    meeting.run();
    assert_eq!(meeting.acceptor.step(), HandshakeStep::Ready);
    let mut again = Vec::new();
    let (fabric, reason) = (Fabric::Tcp, Text::new("again"));
    HandshakeMessage::Choice(FabricChoice { fabric, reason }).write_checked(ALONE, &mut again);
    meeting.acceptor.handle_bytes(&again);
    meeting.drive_acceptor();
    let problem = MessageError::Field(FieldError::Repeated {
        field: "choice of fabric",
    });
    let error = meeting.acceptor_end.expect("ended").unwrap_err();
    assert_eq!(
        error,
        HandshakeError::Malformed {
            step: HandshakeStep::Ready,
            problem
        }
    );
}

#[test]
fn a_peer_silent_at_any_step_is_given_up_by_name_of_the_step() {
    use HandshakeStep::*;
    // `delivered` counts messages: D Hello, A Hello, A Offer, D Offer, D Choice, A Endpoint, D
    // Ready, A Ready.
    let waiting = [
        (Hello, Hello),
        (Hello, Offer),
        (Offer, Offer),
        (Endpoint, Offer),
        (Endpoint, Choice),
        (Endpoint, Ready),
        (Ready, Ready),
        (Ready, Finished),
    ];
    for (delivered, (dialer_waits, acceptor_waits)) in waiting.into_iter().enumerate() {
        let mut meeting = Meeting::new(&local(1), &local(2));
        meeting.cut_after = delivered;
        meeting.run();
        meeting
            .dialer
            .handle_timeout(meeting.now + TIMEOUT - Duration::from_nanos(1));
        assert!(
            meeting.dialer.deadline().is_some(),
            "not a moment too early"
        );
        meeting.wait_for_ever();
        let (dialer, acceptor) = meeting.ends();
        let silent = |step| HandshakeError::Silent {
            step,
            waited: TIMEOUT,
        };
        assert_eq!(
            dialer.unwrap_err(),
            silent(dialer_waits),
            "after {delivered}"
        );
        match acceptor_waits {
            Finished => assert!(acceptor.is_ok()),
            step => assert_eq!(acceptor.unwrap_err(), silent(step), "after {delivered}"),
        }
    }
}

/// With the dialer's Ready the connection may have become the session's at the acceptor, which
/// would read a refusal as a frame.
#[test]
fn a_dialer_says_nothing_behind_its_ready() {
    let mut meeting = Meeting::on_hosts(&local(1), host(1), &local(2), host(2));
    // Every message arrives but the acceptor's Ready.
    meeting.cut_after = 7;
    meeting.run();
    assert_eq!(meeting.dialer.step(), HandshakeStep::Ready);
    assert!(meeting.acceptor_end.as_ref().is_some_and(Result::is_ok));
    meeting.wait_for_ever();
    assert!(meeting.dialer_end.is_some() && meeting.dialer.poll_transmit().is_none());
}

#[test]
fn a_unix_socket_that_never_answers_is_a_silent_peer() {
    let mut meeting = Meeting::new(&local(1), &local(2));
    meeting.unix = Unix::IsSilent;
    meeting.run();
    meeting.wait_for_ever();
    let (dialer, acceptor) = meeting.ends();
    let silent = |step| HandshakeError::Silent {
        step,
        waited: TIMEOUT,
    };
    assert_eq!(dialer.unwrap_err(), silent(HandshakeStep::UnixSocket));
    assert_eq!(acceptor.unwrap_err(), silent(HandshakeStep::Ready));
}

#[test]
fn a_peer_that_closes_at_any_step_is_reported_with_the_step() {
    for delivered in 0..8 {
        let mut meeting = Meeting::new(&local(1), &local(2));
        meeting.cut_after = delivered;
        meeting.run();
        let step = meeting.dialer.step();
        let detail = Some("Connection reset by peer".to_string());
        meeting.dialer.handle_closed(detail.clone());
        meeting.drive_dialer();
        let error = meeting.dialer_end.expect("ended").unwrap_err();
        assert_eq!(error, HandshakeError::Closed { step, detail });
    }
}

#[test]
fn the_session_may_begin_in_the_same_read_as_ready() {
    let mut meeting = Meeting::new(&local(1), &local(2));
    meeting.cut_after = 7;
    meeting.run();
    let ready = meeting.from_acceptor.len() - (2 + 1 + 4 + 1 + 16 + 32 + 4);
    let ready = meeting.from_acceptor.split_off(ready);
    meeting
        .dialer
        .handle_bytes(&[&ready, &b"first frame"[..]].concat());
    meeting.dialer.handle_bytes(b" and more");
    meeting.drive_dialer();
    assert!(meeting.dialer_end.expect("ended").is_ok());
    assert_eq!(meeting.dialer.into_leftover(), b"first frame and more");
}
