//! The end that connected to resume a session: it makes sure that the peer is the session's, proves
//! that it has the session's secret, and receives the same proof.
//!
//! Rule: with *Resume*, and over verbs with *Ready*, the connection may have become the session's
//! at the other end. From then on this end sends only bytes of the session.

use std::collections::VecDeque;
use std::time::Instant;

use super::conversation::Conversation;
use super::machine::{Handshake, Part};
use super::proof::ResumptionClaim;
use super::{HandshakeStep, ResumedSession};
use crate::error::HandshakeError;
use crate::fabric::FabricKind;
use crate::local::Local;
use crate::message::{
    Endpoint, GidKind, HandshakeMessage, Offer, Ready, Resume, ResumeRefusal, VerbsEndpoint,
};
use crate::negotiate;
use crate::party::Party;
use crate::resumption::ResumeTicket;

/// The dialer's side of one resumption.
pub type ResumerHandshake = Handshake<ResumerPart>;

/// The steps of a dialer that resumes.
pub struct ResumerPart {
    ticket: ResumeTicket,
    state: State,
    /// Tasks for the driver about queue pairs, each told once, in order.
    deferred: VecDeque<ResumerEvent>,
}

/// An event that a resuming dialer's driver has to act on.
#[derive(Debug)]
pub enum ResumerEvent {
    /// Make a queue pair and report to
    /// [`handle_prepared`](ResumerHandshake::handle_prepared).
    PreparePair,
    /// Connect that queue pair and report to
    /// [`handle_connected`](ResumerHandshake::handle_connected).
    ConnectPair(Box<VerbsEndpoint>),
    /// The session resumes; everything is written.
    Resumed(ResumedSession),
    /// The session does not resume now; what `poll_transmit` still has tells the peer why.
    Failed(HandshakeError),
}

enum State {
    AwaitHello,
    AwaitBinding,
    AwaitOffer,
    /// Awaits nothing more, since the two Hellos do not go together.
    AwaitEnd,
    /// Waits for this end's queue pair.
    AwaitPrepared,
    /// Waits for *Resumed*, with the type of this end's GID if it has a queue pair.
    AwaitResumed(Option<GidKind>),
    /// Waits for the peer's queue pair; this end's has a GID of this type.
    AwaitPair(GidKind),
    /// Waits until this end's queue pair is connected.
    AwaitConnected,
    Over,
}

impl Handshake<ResumerPart> {
    /// Creates a handshake that begins now and must be over by `deadline`. `nonce` is fresh random
    /// bytes.
    pub fn new(
        local: &Local,
        ticket: ResumeTicket,
        nonce: [u8; 16],
        now: Instant,
        deadline: Instant,
    ) -> Handshake<ResumerPart> {
        let hello = local.hello(nonce);
        let mut conversation = Conversation::new(Party::Dialer, hello, local, now, deadline);
        conversation.send_hello();
        let state = State::AwaitHello;
        let deferred = VecDeque::new();
        let part = ResumerPart {
            ticket,
            state,
            deferred,
        };
        Handshake { conversation, part }
    }

    /// Takes the queue pair that was made, or the reason why there is none.
    pub fn handle_prepared(&mut self, outcome: Result<VerbsEndpoint, String>) {
        let (part, conversation) = (&mut self.part, &mut self.conversation);
        match (std::mem::replace(&mut part.state, State::Over), outcome) {
            (State::AwaitPrepared, Ok(ours)) => part.ask(conversation, Some(ours)),
            (State::AwaitPrepared, Err(why)) => {
                let why = Party::Dialer.cannot_prepare(&why);
                conversation.fail(HandshakeError::not_over_verbs(&why));
            }
            // The handshake has ended meanwhile: nothing waits for the result of this work.
            (state, _) => part.state = state,
        }
        self.read_messages();
    }

    /// Notes that the queue pair is connected, or the reason why it is not.
    pub fn handle_connected(&mut self, outcome: Result<(), String>) {
        let (part, conversation) = (&mut self.part, &mut self.conversation);
        match (std::mem::replace(&mut part.state, State::Over), outcome) {
            (State::AwaitConnected, Ok(())) => part.be_ready(conversation),
            (State::AwaitConnected, Err(why)) => {
                let why = Party::Dialer.cannot_connect(&why);
                conversation.fail(HandshakeError::not_over_verbs(&why));
            }
            (state, _) => part.state = state,
        }
    }
}

impl Part for ResumerPart {
    type Event = ResumerEvent;

    fn step(&self) -> HandshakeStep {
        match self.state {
            State::AwaitHello => HandshakeStep::Hello,
            State::AwaitBinding => HandshakeStep::Binding,
            State::AwaitOffer | State::AwaitEnd => HandshakeStep::Offer,
            State::AwaitPrepared | State::AwaitConnected => HandshakeStep::QueuePair,
            State::AwaitResumed(_) => HandshakeStep::Resumed,
            State::AwaitPair(_) => HandshakeStep::Endpoint,
            State::Over => HandshakeStep::Finished,
        }
    }

    /// Returns nothing: a node that resumes has a session already, and offers none.
    fn ours(&self) -> Option<&Offer> {
        None
    }

    fn takes_messages(&self) -> bool {
        !self.step().is_ours()
    }

    fn take_deferred(&mut self) -> Option<ResumerEvent> {
        self.deferred.pop_front()
    }

    fn failed(error: HandshakeError) -> ResumerEvent {
        ResumerEvent::Failed(error)
    }

    fn handle_message(
        &mut self,
        conversation: &mut Conversation<ResumerEvent>,
        message: HandshakeMessage,
    ) {
        let step = self.step();
        match (std::mem::replace(&mut self.state, State::Over), message) {
            (State::AwaitHello, HandshakeMessage::Hello(theirs)) => {
                self.state = match conversation.settle(&theirs) {
                    Ok(_) if conversation.secure() => State::AwaitBinding,
                    Ok(_) => State::AwaitOffer,
                    Err(conflict) => {
                        conversation.suspect(conflict);
                        State::AwaitEnd
                    }
                };
            }
            (State::AwaitBinding, HandshakeMessage::Binding(_)) => self.state = State::AwaitOffer,
            (State::AwaitOffer, HandshakeMessage::Offer(theirs)) => {
                self.meet(conversation, &theirs);
            }
            (State::AwaitResumed(gid_type), HandshakeMessage::Resumed(resumed)) => {
                self.hear(conversation, gid_type, &resumed.proof);
            }
            (State::AwaitPair(ours), HandshakeMessage::Endpoint(Endpoint::Verbs(theirs))) => {
                match negotiate::gid_types(ours, theirs.address.gid_type) {
                    Ok(()) => {
                        let theirs = Box::new(theirs);
                        self.deferred.push_back(ResumerEvent::ConnectPair(theirs));
                        self.state = State::AwaitConnected;
                    }
                    Err(why) => conversation.fail(HandshakeError::not_over_verbs(&why)),
                }
            }
            (_, message) => {
                let kind = message.kind();
                conversation.fail(HandshakeError::OutOfTurn { step, kind });
            }
        }
    }
}

impl ResumerPart {
    /// Only the node that has the session is sent a proof, and only for that node is a queue pair
    /// made.
    fn meet(&mut self, conversation: &mut Conversation<ResumerEvent>, theirs: &Offer) {
        let Offer {
            identity,
            incarnation,
            ..
        } = *theirs;
        let is_peer = (identity, incarnation) == (self.ticket.peer, self.ticket.incarnation);
        // What a node has proven counts before what it says of itself: a node that answers in the
        // peer's place cannot say that the peer runs anew.
        if conversation.authenticated_as() != self.ticket.authenticated_as {
            let refusal = ResumeRefusal::OtherIdentity;
            conversation.fail(HandshakeError::NotResumed { refusal });
        } else if !is_peer {
            conversation.fail(HandshakeError::OtherNode {
                identity,
                incarnation,
            });
        } else if self.ticket.fabric != FabricKind::Verbs {
            self.ask(conversation, None);
        } else {
            self.deferred.push_back(ResumerEvent::PreparePair);
            self.state = State::AwaitPrepared;
        }
    }

    fn ask(&mut self, conversation: &mut Conversation<ResumerEvent>, pair: Option<VerbsEndpoint>) {
        let proof = self.with_claim(conversation, |claim, ticket| {
            claim.proof(Party::Dialer, &ticket.secret)
        });
        conversation.send(&HandshakeMessage::Resume(Resume {
            session_id: self.ticket.session_id,
            epoch: self.ticket.epoch,
            fabric: self.ticket.fabric,
            proof,
        }));
        self.state = State::AwaitResumed(pair.as_ref().map(|pair| pair.address.gid_type));
        match pair {
            Some(pair) => conversation.send(&HandshakeMessage::Endpoint(Endpoint::Verbs(pair))),
            None => conversation.be_quiet(),
        }
    }

    fn hear(
        &mut self,
        conversation: &mut Conversation<ResumerEvent>,
        gid_type: Option<GidKind>,
        proof: &[u8; 32],
    ) {
        let is_proven = self.with_claim(conversation, |claim, ticket| {
            claim.is_proven(Party::Acceptor, &ticket.secret, proof)
        });
        if !is_proven {
            let refusal = ResumeRefusal::WrongProof;
            conversation.fail(HandshakeError::NotResumed { refusal });
            return;
        }
        match gid_type {
            Some(gid_type) => self.state = State::AwaitPair(gid_type),
            None => self.go_on(conversation),
        }
    }

    /// Sends *Ready* and continues, unless the peer has given up meanwhile: a peer that waits for
    /// *Ready* sends nothing else before it.
    fn be_ready(&self, conversation: &mut Conversation<ResumerEvent>) {
        let step = HandshakeStep::QueuePair;
        if let Some(message) = conversation.next_message(step) {
            let kind = message.kind();
            conversation.fail(HandshakeError::OutOfTurn { step, kind });
        } else if conversation.has_more() {
            // The connection broke within the peer's Refusal.
            let detail = None;
            conversation.fail(HandshakeError::Closed { step, detail });
        } else {
            conversation.send(&HandshakeMessage::Ready(Ready::ALONE));
            self.go_on(conversation);
        }
    }

    fn go_on(&self, conversation: &mut Conversation<ResumerEvent>) {
        conversation.succeed(ResumerEvent::Resumed(ResumedSession {
            session_id: self.ticket.session_id,
            epoch: self.ticket.epoch,
            fabric: self.ticket.fabric,
        }));
    }

    fn with_claim<T>(
        &self,
        conversation: &Conversation<ResumerEvent>,
        then: impl FnOnce(&ResumptionClaim<'_>, &ResumeTicket) -> T,
    ) -> T {
        let prologue = conversation.prologue();
        let claim = ResumptionClaim {
            session_id: &self.ticket.session_id,
            epoch: self.ticket.epoch,
            fabric: self.ticket.fabric,
            prologue: &prologue,
        };
        then(&claim, &self.ticket)
    }
}
