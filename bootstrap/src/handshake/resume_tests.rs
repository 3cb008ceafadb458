//! A session that resumes, between machines in memory; and attempts to resume it by nodes that do
//! not have it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use proptest::prelude::*;

use super::meeting::{ENTROPY, Meeting, TIMEOUT, host, local};
use super::proof::ResumptionClaim;
use super::verbs_tests::endpoint;
use super::*;
use crate::error::HandshakeError;
use crate::identity::NodeIdentity;
use crate::local::Local;
use crate::message::{
    ALONE, CHECKSUM_BYTES, HandshakeRefusal, MAGIC, Message, MessageError, MessageKind, Ready,
    RefusalCause, Resume, ResumeRefusal, Resumed, Text, VerbsEndpoint, checksum, parse_message,
};
use crate::negotiate::End;
use crate::places::{Places, SessionLimits};
use crate::resumption::{Resumable, ResumableSessions, ResumeTicket};

/// Both ends of a resumption, and all that they say.
pub(super) struct Reunion {
    pub(super) dialer: ResumerHandshake,
    pub(super) acceptor: AcceptorHandshake,
    now: Instant,
    pub(super) chunk: usize,
    /// After this many bytes in both directions, everything is lost.
    pub(super) cut_after: usize,
    /// The end, the index and the mask of the byte that is changed on its way.
    garbled: Option<(End, usize, u8)>,
    pub(super) from_dialer: Vec<u8>,
    pub(super) from_acceptor: Vec<u8>,
    delivered: usize,
    /// The queue pairs of the dialer and the acceptor.
    pub(super) pairs: [Pair; 2],
    pub(super) dialer_end: Option<Result<ResumedSession, HandshakeError>>,
    pub(super) acceptor_end: Option<Result<ResumedSession, HandshakeError>>,
}

/// An end's queue pair, and the outcomes of making and connecting it.
pub(super) struct Pair {
    pub(super) prepares: Result<VerbsEndpoint, String>,
    pub(super) connects: Result<(), String>,
    /// The peers that it was connected to.
    pub(super) connected_to: Vec<VerbsEndpoint>,
}

impl Pair {
    fn of(identity: u8) -> Pair {
        Pair {
            prepares: Ok(endpoint(identity)),
            connects: Ok(()),
            connected_to: Vec::new(),
        }
    }

    fn connect(&mut self, theirs: VerbsEndpoint) -> Result<(), String> {
        self.connected_to.push(theirs);
        self.connects.clone()
    }
}

/// A node's only session.
#[derive(Debug)]
struct OneSession(Resumable);

impl ResumableSessions for OneSession {
    fn find(&self, session_id: &[u8; 16]) -> Option<Resumable> {
        (session_id == &ENTROPY.session_id).then(|| self.0.clone())
    }
}

/// The epoch that the tests begin.
pub(super) const EPOCH: u64 = 0x0102;
/// Lengths of what goes over the wire: magic and Hello, Offer, Resume, Resumed.
pub(super) const HELLO: usize = 8 + 2 + 34;
pub(super) const OFFER: usize = 2 + 119 + 4;
pub(super) const RESUME: usize = 2 + 58 + 4;
pub(super) const RESUMED: usize = 2 + 33 + 4;

/// A node with the session in the epoch before [`EPOCH`].
pub(super) fn node(identity: u8) -> Local {
    node_in(identity, EPOCH - 1)
}

fn node_in(identity: u8, epoch: u64) -> Local {
    let secret = ENTROPY.resume_secret;
    let mut node = local(identity);
    node.resumable = Some(Arc::new(OneSession(Resumable {
        authenticated_as: None,
        secret,
        epoch,
        fabrics: FabricKind::FASTEST_FIRST.to_vec(),
        reason: String::new(),
    })));
    node
}

/// Returns a ticket for the session with node 0x22.
pub(super) fn ticket(epoch: u64) -> ResumeTicket {
    ResumeTicket {
        authenticated_as: None,
        session_id: ENTROPY.session_id,
        secret: ENTROPY.resume_secret,
        peer: NodeIdentity([0x22; 16]),
        incarnation: 0x22,
        epoch,
        fabric: FabricKind::Tcp,
    }
}

impl Reunion {
    pub(super) fn new(epoch: u64) -> Reunion {
        Reunion::between(&node(0x11), ticket(epoch), &node(0x22))
    }

    pub(super) fn between(dialer: &Local, ticket: ResumeTicket, acceptor: &Local) -> Reunion {
        let now = Instant::now();
        let deadline = now + TIMEOUT;
        Reunion {
            dialer: ResumerHandshake::new(dialer, ticket, [0xd0; 16], now, deadline),
            acceptor: AcceptorHandshake::new(acceptor, host(1), ENTROPY, now, deadline),
            now,
            chunk: usize::MAX,
            cut_after: usize::MAX,
            garbled: None,
            from_dialer: Vec::new(),
            from_acceptor: Vec::new(),
            delivered: 0,
            pairs: [0x11, 0x22].map(Pair::of),
            dialer_end: None,
            acceptor_end: None,
        }
    }

    /// Runs until both have nothing more to say.
    pub(super) fn run(&mut self) {
        loop {
            let said = self.from_dialer.len() + self.from_acceptor.len();
            while let Some(bytes) = self.dialer.poll_transmit() {
                let arriving = self.on_its_way(End::Dialer, bytes);
                for piece in arriving.chunks(self.chunk) {
                    self.acceptor.handle_bytes(piece);
                }
            }
            self.attend();
            while let Some(bytes) = self.acceptor.poll_transmit() {
                let arriving = self.on_its_way(End::Acceptor, bytes);
                for piece in arriving.chunks(self.chunk) {
                    self.dialer.handle_bytes(piece);
                }
            }
            self.attend();
            if self.from_dialer.len() + self.from_acceptor.len() == said {
                return;
            }
        }
    }

    /// Returns `bytes` as they arrive, with the damage that the test wants.
    fn on_its_way(&mut self, by: End, mut bytes: Vec<u8>) -> Vec<u8> {
        let record = match by {
            End::Dialer => &mut self.from_dialer,
            End::Acceptor => &mut self.from_acceptor,
        };
        let before = record.len();
        record.extend(&bytes);
        if let Some((whose, at, change)) = self.garbled
            && whose == by
            && (before..before + bytes.len()).contains(&at)
        {
            bytes[at - before] ^= change;
        }
        bytes.truncate(self.cut_after - self.delivered.min(self.cut_after));
        self.delivered += bytes.len();
        bytes
    }

    pub(super) fn attend(&mut self) {
        while let Some(event) = self.dialer.poll_event() {
            let [pair, _] = &mut self.pairs;
            match event {
                ResumerEvent::PreparePair => self.dialer.handle_prepared(pair.prepares.clone()),
                ResumerEvent::ConnectPair(theirs) => {
                    self.dialer.handle_connected(pair.connect(*theirs));
                }
                ResumerEvent::Resumed(session) => self.dialer_end = Some(Ok(session)),
                ResumerEvent::Failed(error) => self.dialer_end = Some(Err(error)),
            }
        }
        while let Some(event) = self.acceptor.poll_event() {
            let [_, pair] = &mut self.pairs;
            match event {
                AcceptorEvent::PreparePair => self.acceptor.handle_prepared(pair.prepares.clone()),
                AcceptorEvent::ConnectPair(theirs) => {
                    self.acceptor.handle_connected(pair.connect(*theirs));
                }
                AcceptorEvent::Resumed(session) => self.acceptor_end = Some(Ok(session)),
                AcceptorEvent::Failed(error) => self.acceptor_end = Some(Err(error)),
                other => panic!("nothing that a resumption asks for: {other:?}"),
            }
        }
    }

    /// Says `message` to the acceptor in the dialer's place.
    pub(super) fn say_to_acceptor(&mut self, message: &Message) {
        let mut bytes = Vec::new();
        match self.acceptor.step() {
            HandshakeStep::Hello => message.write(&mut bytes),
            HandshakeStep::Offer => message.write_checked(self.hellos(), &mut bytes),
            _ => message.write_checked(ALONE, &mut bytes),
        }
        self.acceptor.handle_bytes(&bytes);
        self.attend();
    }

    /// Says `message` to the dialer in the acceptor's place.
    fn say_to_dialer(&mut self, message: &Message) {
        let mut bytes = Vec::new();
        match self.dialer.step() {
            HandshakeStep::Hello => {
                bytes.extend(MAGIC);
                message.write(&mut bytes);
            }
            HandshakeStep::Offer => message.write_checked(self.hellos(), &mut bytes),
            _ => message.write_checked(ALONE, &mut bytes),
        }
        self.dialer.handle_bytes(&bytes);
        self.attend();
    }

    fn hellos(&self) -> [&[u8]; 2] {
        [&self.from_dialer[..HELLO], &self.from_acceptor[..HELLO]]
    }

    pub(super) fn wait_for_ever(&mut self) {
        self.now += TIMEOUT;
        self.dialer.handle_timeout(self.now);
        self.acceptor.handle_timeout(self.now);
        self.attend();
    }

    /// Lets the deadline of the acceptor alone pass.
    pub(super) fn wait_for_acceptor(&mut self) {
        self.acceptor.handle_timeout(self.now + TIMEOUT);
        self.attend();
    }

    /// Runs the meeting, in which both ends must resume the same session. Returns that session.
    pub(super) fn goes_on(mut self) -> ResumedSession {
        self.run();
        let (dialer, acceptor) = self.ends();
        let session = dialer.expect("dialer");
        assert_eq!(acceptor, Ok(session.clone()));
        session
    }

    /// Runs the meeting, in which both ends must end with the same refusal. Returns the refusal.
    pub(super) fn refusal(mut self) -> ResumeRefusal {
        self.run();
        let (dialer, acceptor) = self.ends();
        assert_eq!(dialer, acceptor);
        match dialer {
            Err(HandshakeError::NotResumed { refusal }) => refusal,
            other => panic!("no refusal: {other:?}"),
        }
    }

    pub(super) fn ends(
        self,
    ) -> (
        Result<ResumedSession, HandshakeError>,
        Result<ResumedSession, HandshakeError>,
    ) {
        let ended = "the handshake has ended";
        (
            self.dialer_end.expect(ended),
            self.acceptor_end.expect(ended),
        )
    }
}

/// Returns the bytes of a message that is not the first of its end.
pub(super) fn bytes_of(message: &Message) -> Vec<u8> {
    let mut bytes = Vec::new();
    message.write_checked(ALONE, &mut bytes);
    bytes
}

/// Runs a meeting until the acceptor waits for the message behind the dialer's Hello. Returns it,
/// and the conversation of both Hellos.
pub(super) fn met(dialer: &Local, acceptor: &Local) -> (Reunion, Prologue) {
    let mut reunion = Reunion::between(dialer, ticket(EPOCH), acceptor);
    reunion.cut_after = HELLO;
    reunion.run();
    assert_eq!(reunion.acceptor.step(), HandshakeStep::Offer);
    let prologue = Prologue {
        dialer: reunion.from_dialer[..HELLO].to_vec(),
        acceptor: reunion.from_acceptor[..HELLO].to_vec(),
    };
    (reunion, prologue)
}

/// Returns a Resume with the proof that `by` would give in that conversation.
pub(super) fn resume_proven_by(by: End, prologue: &Prologue) -> Message {
    let ResumeTicket {
        authenticated_as: _,
        session_id,
        secret,
        epoch,
        fabric,
        ..
    } = ticket(EPOCH);
    let claim = ResumptionClaim {
        session_id: &session_id,
        epoch,
        fabric,
        prologue,
    };
    Message::Resume(Resume {
        session_id,
        epoch,
        fabric,
        proof: claim.proof(by, &secret),
    })
}

#[test]
fn a_session_goes_on_with_its_next_epoch() {
    for fabric in [FabricKind::Shm, FabricKind::Tcp] {
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
    // Such a dialer never heard what became of its attempts.
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
    reunion.attend();
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
    let mut choosy = node(0x22);
    let session = Resumable {
        authenticated_as: None,
        secret: ENTROPY.resume_secret,
        epoch: EPOCH - 1,
        fabrics: vec![FabricKind::Verbs],
        reason: "the listening node requires verbs".to_owned(),
    };
    choosy.resumable = Some(Arc::new(OneSession(session)));
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
    let mut acceptor = AcceptorHandshake::new(&node(0x22), host(1), entropy, now, now + TIMEOUT);
    acceptor.handle_bytes(&recorded.from_dialer);
    let Some(AcceptorEvent::Failed(error)) = acceptor.poll_event() else {
        panic!("no failure");
    };
    // The checksum covers that nonce, so it is not the one that such a dialer would send either.
    assert!(matches!(error, HandshakeError::Garbled { .. }), "{error}");
    let resume = &recorded.from_dialer[HELLO + 2..HELLO + RESUME - CHECKSUM_BYTES];
    let resume = parse_message(resume).expect("it is whole");
    let mut entropy = ENTROPY;
    entropy.nonce = [0xa9; 16];
    let mut reunion = Reunion::new(EPOCH);
    reunion.acceptor = AcceptorHandshake::new(&node(0x22), host(1), entropy, now, now + TIMEOUT);
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
    reunion.say_to_acceptor(&resume_proven_by(End::Acceptor, &prologue));
    let refusal = ResumeRefusal::WrongProof;
    let refused = Err(HandshakeError::NotResumed { refusal });
    assert_eq!(reunion.acceptor_end, Some(refused.clone()));
    let (mut reunion, prologue) = met(&node(0x11), &node(0x22));
    reunion.say_to_acceptor(&resume_proven_by(End::Dialer, &prologue));
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
    reunion.say_to_dialer(&Message::Resumed(Resumed { proof }));
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
    reunion.say_to_dialer(&Message::Refusal(HandshakeRefusal {
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
    let mut without = node(0x22);
    without.resumable = None;
    let refusal = Reunion::between(&node(0x11), ticket(EPOCH), &without).refusal();
    assert_eq!(refusal, ResumeRefusal::NoSuchSession);
    // A node that dials needs no sessions of its own, only the ticket.
    let mut dialer_without = node(0x11);
    dialer_without.resumable = None;
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
    let resume = resume_proven_by(End::Dialer, &prologue);
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
    meeting.attend_acceptor();
    meeting.attend_dialer();
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
        Message::Ready(Ready::ALONE),
        Message::Resumed(Resumed { proof: [0; 32] }),
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
    let wrong_answer = bytes_of(&Message::Resumed(Resumed { proof: [0; 32] }));
    let out_of_turn = bytes_of(&Message::Ready(Ready::ALONE));
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
    let mut bytes = bytes_of(&resume_proven_by(End::Dialer, &prologue));
    bytes.truncate(bytes.len() - CHECKSUM_BYTES);
    let fabric = bytes.len() - 33;
    bytes[fabric] = 9;
    let checksum = checksum(reunion.hellos(), &bytes);
    bytes.extend(checksum.to_le_bytes());
    reunion.acceptor.handle_bytes(&bytes);
    reunion.attend();
    let problem = MessageError::UnknownValue {
        field: "fabric kind",
        value: 9,
    };
    let step = HandshakeStep::Offer;
    let malformed = HandshakeError::Malformed { step, problem };
    assert_eq!(reunion.acceptor_end, Some(Err(malformed)));
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
            None => (End::Dialer, at, change),
            Some(at) => (End::Acceptor, at, change),
        };
        reunion.garbled = Some(garbled);
        reunion.run();
        reunion.wait_for_ever();
        let (dialer, acceptor) = reunion.ends();
        let dialer = dialer.expect_err("it is noticed");
        prop_assert!(dialer.may_be_garbling(), "{}", dialer);
        // Only a wrong answer comes too late for the acceptor.
        let too_late = garbled.0 == End::Acceptor && garbled.1 >= HELLO + OFFER;
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
