//! A session that resumes, between machines in memory; and attempts to resume it by nodes that do
//! not have it.

use std::time::{Duration, Instant};

use proptest::prelude::*;

use super::meeting::{ENTROPY, Meeting, TIMEOUT, host, local};
use super::reunion::*;
use super::*;
use crate::error::HandshakeError;
use crate::identity::NodeIdentity;
use crate::message::{
    CHECKSUM_BYTES, FieldError, HandshakeMessage, HandshakeRefusal, MAGIC, MessageError,
    MessageKind, Ready, RefusalCause, ResumeRefusal, Resumed, Text, checksum, parse_message,
};
use crate::party::Party;
use crate::places::{Places, SessionLimits};
use crate::resumption::{Resumable, ResumeTicket};

#[test]
fn a_session_goes_on_with_its_next_epoch() {
    for fabric in [Fabric::Shm, Fabric::Tcp] {
        let ticket = ResumeTicket {
            authenticated_as: None,
            fabric,
            ..ticket(EPOCH)
        };
        let session = Reunion::between(&node(0x11), ticket, &node(0x22)).goes_on();
        let (session_id, epoch) = (ENTROPY.session_id, EPOCH);
        assert_eq!(
            session,
            ResumedSession {
                session_id,
                epoch,
                fabric
            }
        );
    }
    // Such a dialer never learned what became of its attempts.
    assert_eq!(Reunion::new(EPOCH + 7).goes_on().epoch, EPOCH + 7);
}

#[test]
fn it_makes_no_difference_how_the_bytes_are_cut() {
    for chunk in 1..HELLO + OFFER + 1 {
        let mut reunion = Reunion::new(EPOCH);
        reunion.chunk = chunk;
        reunion.goes_on();
    }
}

#[test]
fn it_takes_no_place() {
    let mut full = node(0x22);
    full.places = Places::new(SessionLimits {
        per_peer: 1,
        per_node: 1,
    });
    let _held = full
        .places
        .take(NodeIdentity([0x11; 16]), 0x11, None, Instant::now())
        .unwrap();
    Reunion::between(&node(0x11), ticket(EPOCH), &full).goes_on();
}

#[test]
fn bytes_behind_the_last_message_belong_to_the_session() {
    let mut reunion = Reunion::new(EPOCH);
    reunion.run();
    reunion.dialer.handle_bytes(b"frame");
    assert_eq!(reunion.dialer.into_leftover(), b"frame");

    let mut reunion = Reunion::new(EPOCH);
    reunion.cut_after = 2 * HELLO + OFFER;
    reunion.run();
    let resume = &reunion.from_dialer[HELLO..];
    assert_eq!(resume.len(), RESUME);
    let with_more = [resume, b"no frame yet"].concat();
    reunion.acceptor.handle_bytes(&with_more);
    reunion.run_claimed();
    assert!(reunion.acceptor_end.unwrap().is_ok());
    assert_eq!(reunion.acceptor.into_leftover(), b"no frame yet");
}

#[test]
fn a_session_that_is_not_there_is_refused() {
    let other = ResumeTicket {
        authenticated_as: None,
        session_id: [9; 16],
        ..ticket(EPOCH)
    };
    let refusal = Reunion::between(&node(0x11), other, &node(0x22)).refusal();
    assert_eq!(refusal, ResumeRefusal::NoSuchSession);
}

#[test]
fn a_dialer_with_another_secret_learns_nothing_of_epochs() {
    for epoch in [1, EPOCH] {
        let guessed = ResumeTicket {
            authenticated_as: None,
            secret: Secret::new([9; 32]),
            ..ticket(epoch)
        };
        let refusal = Reunion::between(&node(0x11), guessed, &node(0x22)).refusal();
        assert_eq!(refusal, ResumeRefusal::WrongProof);
    }
}

#[test]
fn an_old_epoch_is_refused_and_none_begins_twice() {
    for old in [0, 1, EPOCH - 1] {
        assert_eq!(Reunion::new(old).refusal(), ResumeRefusal::OldEpoch);
    }
    let begun = node_in(0x22, EPOCH);
    let again = Reunion::between(&node(0x11), ticket(EPOCH), &begun);
    assert_eq!(again.refusal(), ResumeRefusal::OldEpoch);
}

#[test]
fn a_fabric_that_it_may_not_go_on_over_is_refused_with_the_reason() {
    let choosy = node(0x22);
    let session = Resumable {
        authenticated_as: None,
        secret: ENTROPY.resume_secret,
        epoch: EPOCH - 1,
        fabrics: vec![Fabric::Verbs],
        reason: "the listening node requires verbs".to_owned(),
    };
    choosy.resumable.lock().insert(ENTROPY.session_id, session);
    let mut reunion = Reunion::between(&node(0x11), ticket(EPOCH), &choosy);
    reunion.run();
    let (dialer, acceptor) = reunion.ends();
    assert_eq!(dialer, acceptor);
    let said = "the session is not resumed over tcp: the listening node requires verbs";
    assert_eq!(dialer.unwrap_err().to_string(), said);
    // A dialer without the session's secret learns nothing of the session.
    let guessed = ResumeTicket {
        authenticated_as: None,
        secret: Secret::new([9; 32]),
        ..ticket(EPOCH)
    };
    let refusal = Reunion::between(&node(0x11), guessed, &choosy).refusal();
    assert_eq!(refusal, ResumeRefusal::WrongProof);
}

#[test]
fn messages_recorded_in_another_conversation_are_refused() {
    let mut recorded = Reunion::new(EPOCH);
    recorded.run();
    // The dialer repeats its messages to the letter; the acceptor has drawn another nonce.
    let mut entropy = ENTROPY;
    entropy.nonce = [0xa9; 16];
    let now = Instant::now();
    let mut acceptor = Handshake::accept(&node(0x22), host(1), entropy, now, now + TIMEOUT);
    acceptor.handle_bytes(&recorded.from_dialer);
    let Some(HandshakeEvent::Failed(error)) = acceptor.poll_event() else {
        panic!("no failure");
    };
    // The checksum covers that nonce, so it is not the one that such a dialer would send either.
    assert!(matches!(error, HandshakeError::Garbled { .. }), "{error}");
    let resume = &recorded.from_dialer[HELLO + 2..HELLO + RESUME - CHECKSUM_BYTES];
    let resume = parse_message(resume).expect("it is whole");
    let mut entropy = ENTROPY;
    entropy.nonce = [0xa9; 16];
    let mut reunion = Reunion::new(EPOCH);
    reunion.acceptor = Handshake::accept(&node(0x22), host(1), entropy, now, now + TIMEOUT);
    reunion.cut_after = HELLO;
    reunion.run();
    reunion.say_to_acceptor(&resume);
    let refusal = ResumeRefusal::WrongProof;
    let refused = HandshakeError::NotResumed { refusal };
    assert_eq!(reunion.acceptor_end, Some(Err(refused)));
}

#[test]
fn an_end_is_not_answered_with_its_own_words() {
    // A proof that only the acceptor can make does not prove the dialer.
    let (mut reunion, prologue) = met(&node(0x11), &node(0x22));
    reunion.say_to_acceptor(&resume_proven_by(Party::Acceptor, &prologue));
    let refusal = ResumeRefusal::WrongProof;
    let refused = Err(HandshakeError::NotResumed { refusal });
    assert_eq!(reunion.acceptor_end, Some(refused.clone()));
    let (mut reunion, prologue) = met(&node(0x11), &node(0x22));
    reunion.say_to_acceptor(&resume_proven_by(Party::Dialer, &prologue));
    assert!(
        reunion.acceptor_end.unwrap().is_ok(),
        "the same, but for the role"
    );

    // A dialer's proof does not prove the acceptor either.
    let mut reunion = Reunion::new(EPOCH);
    reunion.cut_after = 2 * HELLO + OFFER;
    reunion.run();
    let end = reunion.from_dialer.len() - CHECKSUM_BYTES;
    let proof = *reunion.from_dialer[..end].last_chunk().unwrap();
    reunion.say_to_dialer(&HandshakeMessage::Resumed(Resumed { proof }));
    assert_eq!(reunion.dialer_end, Some(refused));
}

#[test]
fn a_proof_goes_to_nobody_but_the_peer() {
    let mut restarted = node(0x22);
    restarted.incarnation = 0x23;
    for acceptor in [restarted, node(0x33)] {
        let mut reunion = Reunion::between(&node(0x11), ticket(EPOCH), &acceptor);
        reunion.run();
        let said = &reunion.from_dialer[HELLO..];
        assert_eq!(said[2], MessageKind::Refusal as u8);
        let (dialer, there) = reunion.ends();
        let (identity, incarnation) = (acceptor.identity, acceptor.incarnation);
        let other = HandshakeError::OtherNode {
            identity,
            incarnation,
        };
        let HandshakeError::Refused { step, reason } = there.unwrap_err() else {
            panic!("not a refusal in words");
        };
        assert_eq!(step, HandshakeStep::Offer);
        assert_eq!(reason.as_str(), other.to_string());
        assert_eq!(dialer, Err(other));
    }
}

/// Nobody has asked yet, and the node has not shown that it is the peer.
#[test]
fn a_refusal_of_the_session_before_it_is_asked_for_does_not_end_it() {
    let mut reunion = Reunion::new(EPOCH);
    reunion.cut_after = 2 * HELLO;
    reunion.run();
    reunion.say_to_dialer(&HandshakeMessage::Refusal(HandshakeRefusal {
        reason: Text::new("there is no such session"),
        cause: Some(RefusalCause::Resume(ResumeRefusal::NoSuchSession)),
    }));
    let Some(Err(HandshakeError::Refused { .. })) = reunion.dialer_end else {
        panic!("believed: {:?}", reunion.dialer_end);
    };
}

/// A node that keeps no sessions refuses, because the session is not there.
#[test]
fn nothing_is_resumed_by_a_node_that_keeps_no_sessions() {
    let without = local(0x22);
    let refusal = Reunion::between(&node(0x11), ticket(EPOCH), &without).refusal();
    assert_eq!(refusal, ResumeRefusal::NoSuchSession);
    // A node that dials needs no sessions of its own, only the ticket.
    let dialer_without = local(0x11);
    Reunion::between(&dialer_without, ticket(EPOCH), &node(0x22)).goes_on();
}

#[test]
fn a_resume_out_of_turn_ends_the_handshake() {
    // The Resume comes before Hello.
    let mut reunion = Reunion::new(EPOCH);
    let prologue = Prologue {
        dialer: Vec::new(),
        acceptor: Vec::new(),
    };
    let resume = resume_proven_by(Party::Dialer, &prologue);
    reunion.acceptor.handle_bytes(&MAGIC);
    reunion.say_to_acceptor(&resume);
    let out_of_turn = |step, kind| HandshakeError::OutOfTurn { step, kind };
    let error = out_of_turn(HandshakeStep::Hello, MessageKind::Resume);
    assert_eq!(reunion.acceptor_end, Some(Err(error)));

    // The Resume comes behind the Offer of a new session, and to the dialer of one.
    let mut meeting = Meeting::on_hosts(&node(1), host(1), &node(2), host(2));
    meeting.cut_after = 4;
    meeting.run();
    assert_eq!(meeting.acceptor.step(), HandshakeStep::Choice);
    meeting.acceptor.handle_bytes(&bytes_of(&resume));
    meeting.dialer.handle_bytes(&bytes_of(&resume));
    meeting.drive_acceptor();
    meeting.drive_dialer();
    let (dialer, acceptor) = meeting.ends();
    let resume = MessageKind::Resume;
    assert_eq!(
        acceptor.unwrap_err(),
        out_of_turn(HandshakeStep::Choice, resume)
    );
    assert_eq!(
        dialer.unwrap_err(),
        out_of_turn(HandshakeStep::Endpoint, resume)
    );
}

#[test]
fn a_message_out_of_turn_ends_the_resumption() {
    let wrong = [
        HandshakeMessage::Ready(Ready::ALONE),
        HandshakeMessage::Resumed(Resumed { proof: [0; 32] }),
    ];
    let steps = [
        (HELLO, HandshakeStep::Hello),
        (2 * HELLO, HandshakeStep::Offer),
        (2 * HELLO + OFFER, HandshakeStep::Resumed),
    ];
    for (delivered, step) in steps {
        for message in &wrong {
            let mut reunion = Reunion::new(EPOCH);
            reunion.cut_after = delivered;
            reunion.run();
            assert_eq!(reunion.dialer.step(), step);
            reunion.say_to_dialer(message);
            let kind = message.kind();
            let error = match (step, kind) {
                (HandshakeStep::Resumed, MessageKind::Resumed) => HandshakeError::NotResumed {
                    refusal: ResumeRefusal::WrongProof,
                },
                _ => HandshakeError::OutOfTurn { step, kind },
            };
            assert_eq!(reunion.dialer_end, Some(Err(error)));
        }
    }
}

#[test]
fn a_dialer_sends_no_more_of_the_handshake_behind_its_resume() {
    let unknown_kind = [1, 0, 99];
    let wrong_answer = bytes_of(&HandshakeMessage::Resumed(Resumed { proof: [0; 32] }));
    let out_of_turn = bytes_of(&HandshakeMessage::Ready(Ready::ALONE));
    for answer in [&unknown_kind[..], &wrong_answer, &out_of_turn, &[]] {
        let mut reunion = Reunion::new(EPOCH);
        reunion.cut_after = 2 * HELLO + OFFER;
        reunion.run();
        assert_eq!(reunion.from_dialer.len(), HELLO + RESUME);
        reunion.dialer.handle_bytes(answer);
        reunion.wait_for_ever();
        assert!(reunion.dialer_end.unwrap().is_err());
        assert_eq!(reunion.dialer.poll_transmit(), None);
    }
}

#[test]
fn a_peer_that_falls_silent_is_given_up_by_name_of_the_step() {
    let silent = |step| HandshakeError::Silent {
        step,
        waited: TIMEOUT,
    };
    for (delivered, at_dialer, at_acceptor) in [
        (0, HandshakeStep::Hello, Some(HandshakeStep::Hello)),
        (HELLO, HandshakeStep::Hello, Some(HandshakeStep::Offer)),
        (2 * HELLO, HandshakeStep::Offer, Some(HandshakeStep::Offer)),
        (
            2 * HELLO + OFFER,
            HandshakeStep::Resumed,
            Some(HandshakeStep::Offer),
        ),
        (2 * HELLO + OFFER + RESUME, HandshakeStep::Resumed, None),
        (
            2 * HELLO + OFFER + RESUME + RESUMED - 1,
            HandshakeStep::Resumed,
            None,
        ),
    ] {
        let mut reunion = Reunion::new(EPOCH);
        reunion.cut_after = delivered;
        reunion.run();
        let early = reunion.now + TIMEOUT - Duration::from_nanos(1);
        reunion.dialer.handle_timeout(early);
        assert!(reunion.dialer.deadline().is_some());
        reunion.wait_for_ever();
        let (dialer, acceptor) = reunion.ends();
        assert_eq!(dialer, Err(silent(at_dialer)), "after {delivered}");
        match at_acceptor {
            Some(step) => assert_eq!(acceptor, Err(silent(step)), "after {delivered}"),
            None => assert!(acceptor.is_ok()),
        }
    }
}

#[test]
fn an_unknown_fabric_is_no_message() {
    let (mut reunion, prologue) = met(&node(0x11), &node(0x22));
    let mut bytes = bytes_of(&resume_proven_by(Party::Dialer, &prologue));
    bytes.truncate(bytes.len() - CHECKSUM_BYTES);
    let fabric = bytes.len() - 33;
    bytes[fabric] = 9;
    let checksum = checksum(reunion.hellos(), &bytes);
    bytes.extend(checksum.to_le_bytes());
    reunion.acceptor.handle_bytes(&bytes);
    reunion.run_claimed();
    let problem = MessageError::Field(FieldError::UnknownValue {
        field: "fabric kind",
        value: 9,
    });
    let step = HandshakeStep::Offer;
    let malformed = HandshakeError::Malformed { step, problem };
    assert_eq!(reunion.acceptor_end, Some(Err(malformed)));
}

/// A Hello whose kind has changed into that of a Refusal may be read as one, which proves nothing.
#[test]
fn a_hello_of_another_kind_is_no_permanent_failure() {
    // The kind lies behind the magic bytes and the length.
    let kind = MAGIC.len() + 2;
    for change in 1..=u8::MAX {
        let mut reunion = Reunion::new(EPOCH);
        reunion.garbled = Some((Party::Acceptor, kind, change));
        reunion.run();
        reunion.wait_for_ever();
        let (dialer, _) = reunion.ends();
        let dialer = dialer.expect_err("it is noticed");
        assert!(dialer.may_be_garbling(), "{change}: {dialer}");
    }
}

proptest! {
    /// Changes any byte of either end; the dialer may try again.
    #[test]
    fn a_byte_that_is_changed_is_noticed(
        at in 0..2 * HELLO + OFFER + RESUME + RESUMED,
        change in 1..=255u8,
    ) {
        let mut reunion = Reunion::new(EPOCH);
        let of_dialer = HELLO + RESUME;
        let garbled = match at.checked_sub(of_dialer) {
            None => (Party::Dialer, at, change),
            Some(at) => (Party::Acceptor, at, change),
        };
        reunion.garbled = Some(garbled);
        reunion.run();
        reunion.wait_for_ever();
        let (dialer, acceptor) = reunion.ends();
        let dialer = dialer.expect_err("it is noticed");
        prop_assert!(dialer.may_be_garbling(), "{}", dialer);
        // Only a wrong answer comes too late for the acceptor.
        let too_late = garbled.0 == Party::Acceptor && garbled.1 >= HELLO + OFFER;
        prop_assert_eq!(acceptor.is_ok(), too_late);
    }

    #[test]
    fn garbage_at_any_byte_ends_or_waits(
        delivered in 0..2 * HELLO + OFFER + RESUME + RESUMED,
        garbage in proptest::collection::vec(any::<u8>(), 0..300),
    ) {
        let mut reunion = Reunion::new(EPOCH);
        reunion.cut_after = delivered;
        reunion.run();
        reunion.dialer.handle_bytes(&garbage);
        reunion.acceptor.handle_bytes(&garbage);
        reunion.cut_after = usize::MAX;
        reunion.run();
        reunion.wait_for_ever();
        prop_assert!(reunion.dialer_end.is_some() && reunion.acceptor_end.is_some());
    }

    #[test]
    fn any_bytes_end_or_wait(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        let with_magic = [&MAGIC, &*bytes].concat();
        for bytes in [&bytes, &with_magic] {
            let mut reunion = Reunion::new(EPOCH);
            reunion.cut_after = 0;
            reunion.dialer.handle_bytes(bytes);
            reunion.run();
            reunion.wait_for_ever();
            prop_assert!(reunion.dialer_end.unwrap().is_err());
        }
    }
}
