//! The machine of one end: facts in, bytes and events out, and the steps that all ends have alike.

use std::collections::VecDeque;
use std::time::Instant;

use ibex_base::tls::TlsConnection;

use super::acceptor::{Acceptance, ReadyCondition};
use super::conversation::Conversation;
use super::resumption::ResumeAnswer;
use super::{Agreement, HandshakeEvent, HandshakeStep, ResumedSession};
use crate::error::HandshakeError;
use crate::fabric::Fabric;
use crate::identity::HostHint;
use crate::local::Local;
use crate::message::{
    Endpoint, GidKind, HandshakeMessage, HostTags, Offer, Ready, SessionSecrets, VerbsEndpoint,
    Version,
};
use crate::negotiate::{self, Chosen, RuledOut};
use crate::party::Party;
use crate::places::{Place, Places};
use crate::resumption::ResumeTicket;

/// One end of a handshake.
pub struct Handshake {
    pub(super) conversation: Conversation,
    host: HostHint,
    pub(super) ours: Offer,
    places: Places,
    pub(super) role: HandshakeRole,
    pub(super) state: State,
    /// Set where this end may offer an RDMA device.
    seeks_device: bool,
    /// Tasks for the driver about sockets and queue pairs, each handed out once, in order.
    pub(super) deferred: VecDeque<HandshakeEvent>,
}

/// The end that the machine is.
pub(super) enum HandshakeRole {
    /// The end that connected for a new session.
    Dialer,
    /// The end that connected to resume a session.
    Resumer(Box<ResumeTicket>),
    /// The end that listened, for either.
    Acceptor(Box<Acceptance>),
}

/// The event that the machine waits for.
pub(super) enum State {
    Hello,
    Binding(Version),
    Device(Version),
    Offer(Version),
    /// Nothing more, since the two Hellos do not go together.
    End,

    // A new session.
    /// The dialer's choice.
    Choice(OfferedTerms),
    /// The acceptor's endpoint.
    Endpoint(Terms),
    /// The Unix socket, at which the dialer connects and the acceptor listens.
    UnixSocket(Terms),
    /// This end's queue pair is made. The dialer connects it with the acceptor's, described here.
    Prepared(Terms, Option<Box<VerbsEndpoint>>),
    /// The dialer's queue pair; the acceptor's has a GID of this type.
    Pair(Terms, GidKind),
    /// The acceptor's *Ready*.
    Ready(Terms),
    /// The dialer's *Ready*, under a condition.
    DialerReady(Terms, ReadyCondition),
    /// The dialer's queue pair, described here, is connected.
    DialerConnected(Terms, Box<VerbsEndpoint>),
    /// The acceptor's queue pair is connected; the dialer may have named its process.
    AcceptorConnected(Terms, Option<u32>),

    // A session that resumes, at the end that asks.
    AskerPrepared,
    /// *Resumed*, with the type of this end's GID if it has a queue pair.
    Resumed(Option<GidKind>),
    /// The peer's queue pair; this end's has a GID of this type.
    AnsweringPair(GidKind),
    AskerConnected,

    // A session that resumes, at the end that answers.
    AskingPair(ResumeAnswer),
    /// This end's queue pair is made, for the peer's.
    AnswererPrepared(ResumeAnswer, Box<VerbsEndpoint>),
    /// This end's queue pair, described here, is connected.
    AnswererConnected(ResumeAnswer, Box<VerbsEndpoint>),
    AskerReady(ResumedSession),
    Over,
}

/// Everything known from the peer's offer on.
pub(super) struct OfferedTerms {
    version: Version,
    pub(super) theirs: Offer,
    place: Place,
    /// The fabrics that were chosen and could not be had. Each is chosen at most once, which bounds
    /// the number of choices.
    pub(super) ruled_out: Vec<RuledOut>,
}

/// Everything known from the choice of a fabric on.
pub(super) struct Terms {
    pub(super) offered: OfferedTerms,
    pub(super) chosen: Chosen,
}

impl Handshake {
    pub(super) fn begin(
        role: HandshakeRole,
        local: &Local,
        host: HostHint,
        nonce: [u8; 16],
        (now, deadline): (Instant, Instant),
    ) -> Handshake {
        let side = match role {
            HandshakeRole::Acceptor(_) => Party::Acceptor,
            HandshakeRole::Dialer | HandshakeRole::Resumer(_) => Party::Dialer,
        };
        let mut conversation = Conversation::new(side, local.hello(nonce), local, now, deadline);
        if side == Party::Dialer {
            conversation.send_hello();
        }
        Handshake {
            conversation,
            host,
            ours: local.offer(),
            places: local.places.clone(),
            seeks_device: !matches!(role, HandshakeRole::Resumer(_))
                && local.usable_devices().is_some(),
            role,
            state: State::Hello,
            deferred: VecDeque::new(),
        }
    }

    // ---- The wire ----------------------------------------------------------------------

    /// Takes bytes that the peer sent. Bytes behind the peer's last message are kept for
    /// [`into_leftover`](Self::into_leftover).
    pub fn handle_bytes(&mut self, bytes: &[u8]) {
        self.conversation.receive(bytes);
        self.read_messages();
        let step = self.step();
        self.conversation.end_broken_tls(step);
        self.conversation.refuse_flood(step);
    }

    /// Notes that the stream ended, or failed as `detail` says.
    pub fn handle_closed(&mut self, detail: Option<String>) {
        let step = self.step();
        self.fail(HandshakeError::Closed { step, detail });
    }

    /// Notes the time; ends the handshake when its deadline is reached.
    pub fn handle_timeout(&mut self, now: Instant) {
        let step = self.step();
        self.conversation.handle_timeout(now, step);
    }

    /// Returns the time at which to call [`handle_timeout`](Self::handle_timeout); `None` once
    /// over.
    #[must_use]
    pub fn deadline(&self) -> Option<Instant> {
        self.conversation.deadline()
    }

    /// Returns bytes for the peer, in order. Drain after every `handle_*` call.
    #[must_use]
    pub fn poll_transmit(&mut self) -> Option<Vec<u8>> {
        self.conversation.poll_transmit()
    }

    /// Returns the next event to act on. Drain after every `handle_*` call.
    #[must_use]
    pub fn poll_event(&mut self) -> Option<HandshakeEvent> {
        let end = self.conversation.poll_end();
        end.or_else(|| self.deferred.pop_front())
    }

    /// Returns the step that this end waits for.
    pub fn step(&self) -> HandshakeStep {
        match &self.state {
            State::Hello => HandshakeStep::Hello,
            State::Binding(_) => HandshakeStep::Binding,
            State::Device(_) => HandshakeStep::Device,
            State::Offer(_) | State::End => HandshakeStep::Offer,
            State::Choice(_) => HandshakeStep::Choice,
            State::Endpoint(_)
            | State::Pair(..)
            | State::AnsweringPair(_)
            | State::AskingPair(_) => HandshakeStep::Endpoint,
            State::UnixSocket(_) => HandshakeStep::UnixSocket,
            State::Prepared(..)
            | State::DialerConnected(..)
            | State::AcceptorConnected(..)
            | State::AskerPrepared
            | State::AskerConnected
            | State::AnswererPrepared(..)
            | State::AnswererConnected(..) => HandshakeStep::QueuePair,
            State::Ready(_) | State::DialerReady(..) | State::AskerReady(_) => HandshakeStep::Ready,
            State::Resumed(_) => HandshakeStep::Resumed,
            State::Over => HandshakeStep::Finished,
        }
    }

    /// Tells whether TLS has begun.
    pub fn is_sealed(&self) -> bool {
        self.conversation.is_sealed()
    }

    /// Tells whether the peer has sent what only an ibex node sends. A driver short of room first
    /// drops handshakes whose peers have not.
    pub fn has_hello(&self) -> bool {
        self.conversation.has_hello()
    }

    /// Takes the TLS of a connection that becomes a session's, once everything is transmitted.
    pub fn take_tls(&mut self) -> Option<Box<dyn TlsConnection>> {
        self.conversation.take_tls()
    }

    /// Returns the bytes that the peer sent behind its last message: the session's first.
    pub fn into_leftover(self) -> Vec<u8> {
        self.conversation.into_leftover()
    }

    /// Returns the party that this end is.
    pub(crate) fn side(&self) -> Party {
        self.conversation.side
    }

    pub(super) fn send(&mut self, message: HandshakeMessage) {
        self.conversation.send(&message);
    }

    pub(super) fn fail(&mut self, error: impl Into<HandshakeError>) {
        self.conversation.fail(error.into());
    }

    pub(super) fn take_state(&mut self) -> State {
        std::mem::replace(&mut self.state, State::Over)
    }

    // ---- Messages ----------------------------------------------------------------------

    /// Takes messages as long as none has to wait for the driver's answer.
    pub(super) fn read_messages(&mut self) {
        while self.takes_messages() {
            let step = self.step();
            let Some(message) = self.conversation.next_message(step) else {
                break;
            };
            // A node that resumes has a session already, and offers none.
            let ours = (!matches!(self.role, HandshakeRole::Resumer(_))).then_some(&self.ours);
            if self.conversation.admits(step, ours, &message) {
                self.handle_message(step, message);
            }
        }
    }

    /// Returns whether the next message may be taken now. It may not while the driver's answer to
    /// deferred work decides how the message is understood.
    fn takes_messages(&self) -> bool {
        let step = self.step();
        let listens = step == HandshakeStep::UnixSocket && self.side() == Party::Acceptor;
        !step.is_ours() && !listens
    }

    fn handle_message(&mut self, step: HandshakeStep, message: HandshakeMessage) {
        use HandshakeMessage as Message;

        match (self.take_state(), message) {
            (State::Hello, Message::Hello(theirs)) => {
                // The acceptor's Hello goes out even when the two do not match: the dialer needs it
                // for its own diagnosis.
                if self.side() == Party::Acceptor {
                    self.conversation.send_hello();
                }
                match self.conversation.settle(&theirs) {
                    Ok(version) if self.conversation.secure() => {
                        self.state = State::Binding(version);
                    }
                    Ok(version) => self.go_on(version),
                    Err(conflict) if self.side() == Party::Dialer => {
                        self.conversation.suspect(conflict);
                        self.state = State::End;
                    }
                    Err(conflict) => self.fail(conflict),
                }
            }
            (State::Binding(version), Message::Binding(_)) => self.go_on(version),
            (State::Offer(version), Message::Offer(theirs)) => match &self.role {
                HandshakeRole::Resumer(_) => self.meet_again(&theirs),
                _ => self.consider(version, theirs),
            },

            // A new session, at the dialer.
            (State::Endpoint(terms), Message::Endpoint(endpoint))
                if endpoint.fabric() == terms.chosen.fabric =>
            {
                self.go_to(endpoint, terms);
            }
            (State::Endpoint(terms), Message::Unavailable(unavailable))
                if unavailable.fabric == terms.chosen.fabric =>
            {
                self.fall_back(terms, unavailable.reason.to_string());
            }
            // The acceptor could not connect its queue pair with this end's.
            (State::Ready(terms), Message::Unavailable(unavailable))
                if [unavailable.fabric, terms.chosen.fabric] == [Fabric::Verbs; 2] =>
            {
                self.leave_verbs(terms, unavailable.reason.to_string());
            }
            (
                State::Ready(terms),
                Message::Ready(Ready {
                    process,
                    session: Some(session),
                }),
            ) => self.agree(terms, process, session),

            // A new session, at the acceptor.
            (State::Choice(terms), Message::Choice(choice)) => self.follow(step, terms, choice),
            (State::DialerReady(terms, condition), Message::Choice(choice)) => {
                self.deferred.extend(condition.close());
                self.follow(step, terms.offered, choice);
            }
            (State::Pair(terms, _), Message::Choice(choice)) => {
                self.deferred.push_back(HandshakeEvent::ClosePair);
                self.follow(step, terms.offered, choice);
            }
            (State::Pair(terms, gid_type), Message::Endpoint(Endpoint::Verbs(theirs))) => {
                self.hear_pair(step, terms, gid_type, theirs);
            }
            (
                State::DialerReady(terms, condition),
                Message::Ready(Ready {
                    process,
                    session: None,
                }),
            ) if condition.is_met() => match condition {
                ReadyCondition::Verbs(theirs) => {
                    self.connect_pair(theirs);
                    self.state = State::AcceptorConnected(terms, process);
                }
                _ => self.accept_session(terms, process),
            },

            // A session that resumes.
            (State::Offer(_), Message::Resume(resume)) if self.side() == Party::Acceptor => {
                self.answer_resume(&resume);
            }
            (State::Resumed(gid_type), Message::Resumed(resumed)) => {
                self.hear_consent(gid_type, &resumed.proof);
            }
            (State::AnsweringPair(gid_type), Message::Endpoint(Endpoint::Verbs(theirs))) => {
                match negotiate::gid_types(gid_type, theirs.address.gid_type) {
                    Ok(()) => {
                        self.connect_pair(Box::new(theirs));
                        self.state = State::AskerConnected;
                    }
                    Err(why) => self.fail(HandshakeError::not_over_verbs(&why)),
                }
            }
            (State::AskingPair(answer), Message::Endpoint(Endpoint::Verbs(theirs))) => {
                self.deferred.push_back(HandshakeEvent::PreparePair);
                self.state = State::AnswererPrepared(answer, Box::new(theirs));
            }
            (State::AskerReady(session), Message::Ready(Ready { session: None, .. })) => {
                self.conversation.succeed(HandshakeEvent::Resumed(session));
            }
            (_, message) => {
                let kind = message.kind();
                self.fail(HandshakeError::OutOfTurn { step, kind });
            }
        }
    }

    /// Continues now that the peer may learn of this end: with an Offer, unless it resumes.
    fn go_on(&mut self, version: Version) {
        if let HandshakeRole::Resumer(_) = self.role {
            self.state = State::Offer(version);
        } else if self.seeks_device {
            self.deferred.push_back(HandshakeEvent::FindDevice);
            self.state = State::Device(version);
        } else {
            self.offer(version);
        }
    }

    pub(super) fn offer(&mut self, version: Version) {
        self.ours.host = HostTags::new(&self.host, self.side(), self.conversation.hellos());
        self.send(HandshakeMessage::Offer(self.ours.clone()));
        self.state = State::Offer(version);
    }

    /// Takes the peer's Offer, and a place for a session with that peer.
    fn consider(&mut self, version: Version, mut theirs: Offer) {
        let end = self.side();
        let expected = HostTags::new(&self.host, end.other(), self.conversation.hellos());
        theirs.host = theirs.host.recognized(&self.ours.host, &expected);
        if let Some(error) = self.objection(&theirs) {
            return self.fail(error);
        }
        let proven = self.conversation.authenticated_as();
        let (peer, run) = (theirs.identity, theirs.incarnation);
        let place = self
            .places
            .take(peer, run, proven, self.conversation.started);
        let place = match place {
            Ok(place) => place,
            Err(limit) => return self.fail(HandshakeError::TooManySessions { end, limit }),
        };
        let terms = OfferedTerms {
            version,
            theirs,
            place,
            ruled_out: Vec::new(),
        };
        match end {
            Party::Dialer => self.choose(terms),
            Party::Acceptor => self.state = State::Choice(terms),
        }
    }

    /// Returns the reason why this end, if it accepts, has no session for a peer with this Offer.
    fn objection(&self, theirs: &Offer) -> Option<HandshakeError> {
        let HandshakeRole::Acceptor(acceptance) = &self.role else {
            return None;
        };
        // The dialer computes the same. With this check, both ends fail with the same words, and
        // neither depends on the other's check.
        if let Err(conflict) = negotiate::fabric(theirs, &self.ours, &[]) {
            return Some(conflict.into());
        }
        if self.places.are_closed() {
            return Some(HandshakeError::Closing);
        }
        let end = Party::Acceptor;
        let limit = acceptance.shortage?;
        Some(HandshakeError::Descriptors { end, limit })
    }

    /// Returns this end's *Ready*.
    pub(super) fn ready(&self, terms: &Terms, session: Option<SessionSecrets>) -> HandshakeMessage {
        let theirs = &terms.offered.theirs;
        HandshakeMessage::Ready(self.ours.ready(theirs, self.host.pid, session))
    }

    /// Ends the handshake with a new session. The peer may have named its `process`.
    pub(super) fn agree(&mut self, terms: Terms, process: Option<u32>, session: SessionSecrets) {
        let OfferedTerms {
            version,
            theirs,
            place,
            ..
        } = terms.offered;
        let ours = &self.ours;
        let [dialer, acceptor] = match self.side() {
            Party::Dialer => [ours, &theirs],
            Party::Acceptor => [&theirs, ours],
        };
        let is_sealed = self.is_sealed();
        let agreement = Agreement {
            stated_pid: process.filter(|_| ours.host.share_pids(&theirs.host)),
            no_tcp: negotiate::exclusion(dialer, acceptor, Fabric::Tcp),
            payload_checksums: negotiate::payload_checksums(dialer, acceptor, is_sealed),
            peer: theirs,
            version,
            features: self.conversation.common_features,
            session_id: session.id,
            resume_secret: session.resume,
            fabric: terms.chosen.fabric,
            reason: terms.chosen.reason,
            prologue: self.conversation.prologue(),
            authenticated_as: self.conversation.authenticated_as(),
            place,
        };
        let agreed = HandshakeEvent::Agreed(Box::new(agreement));
        self.conversation.succeed(agreed);
    }
}
