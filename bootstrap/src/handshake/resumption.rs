//! The steps of both ends of a resumption. The end that connected makes sure that the peer is the
//! session's, proves that it has the session's secret, and receives the same proof. The end that
//! listened takes up the session, or refuses to.
//!
//! Rule: with *Resume*, and over verbs with *Ready*, the connection may have become the session's
//! at the other end. From then on the asking end sends only bytes of the session.

use std::time::Instant;

use super::machine::{Handshake, HandshakeRole, State};
use super::{HandshakeEvent, HandshakeStep, ResumedSession};
use crate::error::HandshakeError;
use crate::fabric::Fabric;
use crate::identity::HostHint;
use crate::local::Local;
use crate::message::{
    Endpoint, GidKind, HandshakeMessage, Offer, Ready, Resume, ResumeRefusal, Resumed, Text,
    VerbsEndpoint,
};
use crate::party::Party;
use crate::resumption::ResumeTicket;

/// A session that is about to resume, with the proof that the answering end has it.
pub(super) struct ResumeAnswer {
    session: ResumedSession,
    proof: [u8; 32],
}

impl Handshake {
    /// Creates the handshake of an end that connected to resume a session. It begins now and must be
    /// over by `deadline`. `nonce` is fresh random bytes.
    pub fn resume(
        local: &Local,
        ticket: ResumeTicket,
        nonce: [u8; 16],
        now: Instant,
        deadline: Instant,
    ) -> Handshake {
        let role = HandshakeRole::Resumer(Box::new(ticket));
        Handshake::begin(role, local, HostHint::UNTOLD, nonce, (now, deadline))
    }

    /// Returns the session to resume, while a queue pair is made for it.
    #[must_use]
    pub fn resumes(&self) -> Option<[u8; 16]> {
        match (&self.state, &self.role) {
            (State::AnswererPrepared(answer, _), _) => Some(answer.session.session_id),
            (State::AskerPrepared, HandshakeRole::Resumer(ticket)) => Some(ticket.session_id),
            _ => None,
        }
    }

    // ---- The end that asks -------------------------------------------------------------

    /// Takes the peer's Offer. Only the node that has the session is sent a proof, and only for that
    /// node is a queue pair made.
    pub(super) fn meet_again(&mut self, theirs: &Offer) {
        let HandshakeRole::Resumer(ticket) = &self.role else {
            return;
        };
        let (identity, incarnation) = (theirs.identity, theirs.incarnation);
        let is_peer = (identity, incarnation) == (ticket.peer, ticket.incarnation);
        // What a node has proven counts before what it says of itself: a node that answers in the
        // peer's place cannot say that the peer runs anew.
        if self.conversation.authenticated_as() != ticket.authenticated_as {
            let refusal = ResumeRefusal::OtherIdentity;
            self.fail(HandshakeError::NotResumed { refusal });
        } else if !is_peer {
            self.fail(HandshakeError::OtherNode {
                identity,
                incarnation,
            });
        } else if ticket.fabric != Fabric::Verbs {
            self.ask(None);
        } else {
            self.deferred.push_back(HandshakeEvent::PreparePair);
            self.state = State::AskerPrepared;
        }
    }

    /// Asks for the session, over verbs for the queue pair `pair`.
    pub(super) fn ask(&mut self, pair: Option<VerbsEndpoint>) {
        let HandshakeRole::Resumer(ticket) = &self.role else {
            return;
        };
        let session = ticket.session();
        let proof = session.proof(Party::Dialer, &ticket.secret, self.conversation.hellos());
        self.send(HandshakeMessage::Resume(Resume { session, proof }));
        self.state = State::Resumed(pair.as_ref().map(|pair| pair.address.gid_type));
        match pair {
            Some(pair) => self.send(HandshakeMessage::Endpoint(Endpoint::Verbs(pair))),
            None => self.conversation.is_quiet = true,
        }
    }

    /// Takes the peer's consent, if it proves that the peer has the session.
    pub(super) fn hear_consent(&mut self, gid_type: Option<GidKind>, proof: &[u8; 32]) {
        let HandshakeRole::Resumer(ticket) = &self.role else {
            return;
        };
        let (session, hellos) = (ticket.session(), self.conversation.hellos());
        if !session.is_proven(Party::Acceptor, &ticket.secret, hellos, proof) {
            let refusal = ResumeRefusal::WrongProof;
            return self.fail(HandshakeError::NotResumed { refusal });
        }
        match gid_type {
            Some(gid_type) => self.state = State::AnsweringPair(gid_type),
            None => self.take_up(),
        }
    }

    /// Sends *Ready* and continues, unless the peer has given up meanwhile: a peer that waits for
    /// *Ready* sends nothing else before it.
    pub(super) fn be_ready(&mut self) {
        let step = HandshakeStep::QueuePair;
        if let Some(message) = self.conversation.next_message(step) {
            let kind = message.kind();
            self.fail(HandshakeError::OutOfTurn { step, kind });
        } else if self.conversation.has_more() {
            // The connection broke within the peer's Refusal.
            let detail = None;
            self.fail(HandshakeError::Closed { step, detail });
        } else {
            self.send(HandshakeMessage::Ready(Ready::ALONE));
            self.take_up();
        }
    }

    fn take_up(&mut self) {
        if let HandshakeRole::Resumer(ticket) = &self.role {
            let resumed = HandshakeEvent::Resumed(ticket.session());
            self.conversation.succeed(resumed);
        }
    }

    // ---- The end that answers ----------------------------------------------------------

    /// Takes up the session, or refuses to.
    pub(super) fn answer_resume(&mut self, resume: &Resume) {
        match self.answer(resume) {
            Ok(answer) if answer.session.fabric == Fabric::Verbs => {
                self.state = State::AskingPair(answer);
            }
            Ok(answer) => self.consent(answer, None),
            Err(error) => self.fail(error),
        }
    }

    /// Sends the proof, and over verbs describes the queue pair `ours`, which the peer has to connect
    /// before the session resumes.
    pub(super) fn consent(&mut self, answer: ResumeAnswer, ours: Option<VerbsEndpoint>) {
        let ResumeAnswer { session, proof } = answer;
        self.send(HandshakeMessage::Resumed(Resumed { proof }));
        match ours {
            Some(ours) => {
                self.send(HandshakeMessage::Endpoint(Endpoint::Verbs(ours)));
                self.state = State::AskerReady(session);
            }
            None => self.conversation.succeed(HandshakeEvent::Resumed(session)),
        }
    }

    /// Answers a resumption. A peer without the secret learns nothing about epochs.
    fn answer(&self, resume: &Resume) -> Result<ResumeAnswer, HandshakeError> {
        let refused = |refusal| HandshakeError::NotResumed { refusal };
        let (session, hellos) = (&resume.session, self.conversation.hellos());
        let known = match &self.role {
            HandshakeRole::Acceptor(acceptance) => {
                let sessions = acceptance.resumable.lock();
                sessions.get(&session.session_id).cloned()
            }
            _ => None,
        };
        let known = known.ok_or(refused(ResumeRefusal::NoSuchSession))?;
        if !session.is_proven(Party::Dialer, &known.secret, hellos, &resume.proof) {
            return Err(refused(ResumeRefusal::WrongProof));
        }
        if self.conversation.authenticated_as() != known.authenticated_as {
            return Err(refused(ResumeRefusal::OtherIdentity));
        }
        if session.epoch <= known.epoch {
            return Err(refused(ResumeRefusal::OldEpoch));
        }
        if let Some(why) = known.obstacle(session.fabric) {
            let why = Text::new(&why);
            return Err(HandshakeError::NotOverFabric { why });
        }
        Ok(ResumeAnswer {
            session: session.clone(),
            proof: session.proof(Party::Acceptor, &known.secret, hellos),
        })
    }
}

impl ResumeTicket {
    fn session(&self) -> ResumedSession {
        ResumedSession {
            session_id: self.session_id,
            epoch: self.epoch,
            fabric: self.fabric,
        }
    }
}
