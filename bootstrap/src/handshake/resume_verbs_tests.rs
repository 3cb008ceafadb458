//! A session that resumes over a queue pair, between machines in memory.

use proptest::prelude::*;

use super::meeting::TIMEOUT;
use super::reunion::{EPOCH, HELLO, OFFER, RESUME, RESUMED, Reunion, bytes_of, node, ticket};
use super::verbs_tests::endpoint;
use super::*;
use crate::error::HandshakeError;
use crate::message::{Endpoint, GidKind, HandshakeMessage, MessageKind, Ready};
use crate::resumption::ResumeTicket;

/// A ticket for the session with node 0x22, over a queue pair.
fn verbs_ticket() -> ResumeTicket {
    ResumeTicket {
        fabric: Fabric::Verbs,
        ..ticket(EPOCH)
    }
}

pub(super) fn over_verbs() -> Reunion {
    Reunion::between(&node(0x11), verbs_ticket(), &node(0x22))
}

/// The length of an Endpoint with a queue pair.
const ENDPOINT: usize = 2 + 51 + 4;
const READY: usize = 2 + 6 + 4;

/// Returns the reason not to resume over verbs, which both ends must give alike.
fn why_not(mut reunion: Reunion) -> String {
    reunion.run();
    let (dialer, acceptor) = reunion.ends();
    assert_eq!(dialer, acceptor);
    match dialer {
        Err(HandshakeError::NotOverFabric { why }) => why.as_str().to_owned(),
        other => panic!("not this: {other:?}"),
    }
}

#[test]
fn over_verbs_each_end_is_connected_to_the_other_before_it_is_sent_to() {
    for chunk in [1, 7, usize::MAX] {
        let mut reunion = over_verbs();
        reunion.chunk = chunk;
        reunion.run();
        let connected = reunion.pairs.each_ref().map(|pair| &pair.connected_to[..]);
        assert_eq!(connected, [&[endpoint(0x22)][..], &[endpoint(0x11)]]);
        reunion.goes_on();
    }
    // Until Ready comes, the acceptor does not resume the session.
    let mut reunion = over_verbs();
    reunion.cut_after = 2 * HELLO + OFFER + RESUME + RESUMED + 2 * ENDPOINT + READY - 1;
    reunion.run();
    assert_eq!(reunion.acceptor.step(), HandshakeStep::Ready);
    assert!(reunion.dialer_end.as_ref().is_some_and(Result::is_ok));
    reunion.wait_for_ever();
    let step = HandshakeStep::Ready;
    let waited = TIMEOUT;
    let silent = Err(HandshakeError::Silent { step, waited });
    assert_eq!(reunion.acceptor_end, Some(silent));
}

/// The acceptor's deadline passes while the dialer connects its queue pair. The dialer reads the
/// Refusal behind the Endpoint: the whole message, or the part that came before the connection
/// broke.
#[test]
fn a_resumption_taken_back_before_ready_does_not_go_on() {
    let mut refusal = Vec::new();
    let said = 2 * HELLO + OFFER + RESUME + RESUMED + 2 * ENDPOINT;
    for heard in [usize::MAX, 3, 1] {
        let mut reunion = over_verbs();
        reunion.cut_after = said - ENDPOINT;
        reunion.run();
        let acceptors = reunion.from_acceptor[HELLO + OFFER + RESUMED..].to_vec();
        assert_eq!(acceptors.len(), ENDPOINT);
        reunion.wait_for_acceptor();
        refusal.clear();
        while let Some(bytes) = reunion.acceptor.poll_transmit() {
            refusal.extend(bytes);
        }
        refusal.truncate(heard);
        assert!(!refusal.is_empty());
        reunion
            .dialer
            .handle_bytes(&[&acceptors[..], &refusal].concat());
        reunion.run_claimed();
        let end = reunion.dialer_end.take().expect("it has ended");
        assert!(
            end.is_err(),
            "{end:?}, and the other end has {:?}",
            reunion.acceptor_end
        );
        assert!(
            reunion.dialer.poll_transmit().is_none(),
            "Ready is not said"
        );
    }
}

#[test]
fn over_verbs_nothing_is_prepared_for_whoever_has_no_proof() {
    for ticket in [
        ResumeTicket {
            secret: Secret::new([9; 32]),
            ..verbs_ticket()
        },
        ResumeTicket {
            epoch: EPOCH - 1,
            ..verbs_ticket()
        },
    ] {
        let mut reunion = Reunion::between(&node(0x11), ticket, &node(0x22));
        reunion.pairs[1].prepares = Err("it is not asked".to_owned());
        reunion.refusal();
    }
    // The dialer makes none for another node either.
    let mut reunion = Reunion::between(&node(0x11), verbs_ticket(), &node(0x33));
    reunion.pairs[0].prepares = Err("it is not asked".to_owned());
    reunion.run();
    let (dialer, _) = reunion.ends();
    assert!(matches!(dialer, Err(HandshakeError::OtherNode { .. })));
}

#[test]
fn an_end_that_gets_no_queue_pair_is_named_in_the_errors() {
    for (end, name) in [(0, "connecting"), (1, "listening")] {
        let mut reunion = over_verbs();
        reunion.pairs[end].prepares = Err("no such device".to_owned());
        let why = "cannot make a queue pair: no such device";
        let said = format!("over verbs: the {name} node {why}");
        match end {
            // Neither end has sent anything about the session yet.
            0 => {
                reunion.run();
                let (dialer, _) = reunion.ends();
                let error = dialer.unwrap_err().to_string();
                assert_eq!(error, format!("the session is not resumed {said}"));
            }
            _ => assert_eq!(why_not(reunion), said),
        }
        let mut reunion = over_verbs();
        reunion.pairs[end].connects = Err("no route".to_owned());
        let said = format!("over verbs: the {name} node cannot connect: no route");
        assert_eq!(why_not(reunion), said);
    }
    let mut reunion = over_verbs();
    let mut other = endpoint(0x22);
    other.address.gid_type = GidKind::RoceV1;
    reunion.pairs[1].prepares = Ok(other);
    assert!(why_not(reunion).contains("speaks RoCE v2"));
}

#[test]
fn a_message_out_of_turn_between_queue_pairs_ends_the_resumption() {
    let ready = HandshakeMessage::Ready(Ready::ALONE);
    let out_of_turn = |step, kind| Some(Err(HandshakeError::OutOfTurn { step, kind }));
    let resumed = 2 * HELLO + OFFER + RESUME;
    for (delivered, step) in [
        (resumed, HandshakeStep::Endpoint),
        (resumed + 2 * ENDPOINT + RESUMED, HandshakeStep::Ready),
    ] {
        let mut reunion = over_verbs();
        reunion.cut_after = delivered;
        reunion.run();
        assert_eq!(reunion.acceptor.step(), step);
        let endpoint = HandshakeMessage::Endpoint(Endpoint::Tcp);
        let said = if step == HandshakeStep::Ready {
            &endpoint
        } else {
            &ready
        };
        reunion.say_to_acceptor(said);
        assert_eq!(reunion.acceptor_end, out_of_turn(step, said.kind()));
    }
    let mut reunion = over_verbs();
    reunion.cut_after = resumed + ENDPOINT + RESUMED;
    reunion.run();
    assert_eq!(reunion.dialer.step(), HandshakeStep::Endpoint);
    reunion.dialer.handle_bytes(&bytes_of(&ready));
    reunion.run_claimed();
    assert_eq!(
        reunion.dialer_end,
        out_of_turn(HandshakeStep::Endpoint, MessageKind::Ready)
    );
}

proptest! {
    #[test]
    fn garbage_over_verbs_ends_or_waits(
        delivered in 0..2 * HELLO + OFFER + RESUME + RESUMED + 2 * ENDPOINT + READY,
        garbage in proptest::collection::vec(any::<u8>(), 0..300),
    ) {
        let mut reunion = over_verbs();
        reunion.cut_after = delivered;
        reunion.run();
        reunion.dialer.handle_bytes(&garbage);
        reunion.acceptor.handle_bytes(&garbage);
        reunion.cut_after = usize::MAX;
        reunion.run();
        reunion.wait_for_ever();
        prop_assert!(reunion.dialer_end.is_some() && reunion.acceptor_end.is_some());
    }
}
