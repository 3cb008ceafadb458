//! The end that connected: it speaks first, chooses the fabric, and falls back
//! to another when the first cannot be reached.

use std::time::Instant;

use super::conversation::{Conversation, Terms};
use super::{Agreement, Step};
use crate::error::HandshakeError;
use crate::fabric::FabricKind;
use crate::identity::{HostHint, Secret};
use crate::local::Local;
use crate::message::{Choice, Endpoint, Message, Offer, Ready, SessionSecrets, Text};
use crate::negotiate::{self, Chosen, RuledOut};

/// The dialer's side of one handshake.
pub struct DialerHandshake {
    conversation: Conversation,
    ours: Offer,
    state: State,
    /// To be told once: the Unix socket to connect to.
    errand: Option<DialerEvent>,
}

/// What a dialer's driver has to act on.
#[derive(Debug)]
pub enum DialerEvent {
    /// Connect a `SOCK_SEQPACKET` socket to this abstract name, present the
    /// token, wait for the answer, and report to
    /// [`handle_unix`](DialerHandshake::handle_unix).
    ConnectUnix {
        /// The name, without the leading zero byte.
        name: Vec<u8>,
        /// To be presented there.
        token: Secret,
    },
    /// The handshake is over; write out what `poll_transmit` still has.
    Agreed(Box<Agreement>),
    /// The handshake is over; what `poll_transmit` still has tells the peer why.
    Failed(HandshakeError),
}

enum State {
    AwaitHello,
    AwaitOffer(Terms),
    AwaitEndpoint(Course),
    AwaitUnix(Course),
    AwaitReady(Course),
    Over,
}

/// Everything known from the choice on.
struct Course {
    terms: Terms,
    theirs: Offer,
    chosen: Chosen,
    ruled_out: Vec<RuledOut>,
}

impl DialerHandshake {
    /// A handshake that begins now and must be over by `deadline`. `nonce` is
    /// fresh random bytes.
    pub fn new(
        local: &Local,
        host: HostHint,
        nonce: [u8; 16],
        now: Instant,
        deadline: Instant,
    ) -> DialerHandshake {
        let mut conversation = Conversation::new(local.hello(nonce), now, deadline);
        conversation.send_hello();
        DialerHandshake {
            conversation,
            ours: local.offer(host),
            state: State::AwaitHello,
            errand: None,
        }
    }

    /// The peer sent `bytes`. Whatever comes behind its last message is kept
    /// for [`into_leftover`](Self::into_leftover).
    pub fn handle_bytes(&mut self, bytes: &[u8]) {
        self.conversation.receive(bytes);
        while let Some(message) = self.conversation.next_message(self.step()) {
            self.handle_message(message);
        }
    }

    /// The stream ended, or failed with what `detail` says.
    pub fn handle_closed(&mut self, detail: Option<String>) {
        let step = self.step();
        self.conversation
            .fail(HandshakeError::Closed { step, detail });
    }

    /// The Unix socket is connected and the token accepted, or not and why.
    pub fn handle_unix(&mut self, outcome: Result<(), String>) {
        match (std::mem::replace(&mut self.state, State::Over), outcome) {
            (State::AwaitUnix(course), Ok(())) => self.become_ready(course),
            (State::AwaitUnix(course), Err(why)) => self.fall_back(course, why),
            // An answer to an errand that is off: the handshake has ended.
            (state, _) => self.state = state,
        }
    }

    /// The time is `now`; ends the handshake when its deadline is reached.
    pub fn handle_timeout(&mut self, now: Instant) {
        let step = self.step();
        self.conversation.handle_timeout(now, step);
    }

    /// When to call [`handle_timeout`](Self::handle_timeout); `None` once over.
    #[must_use]
    pub fn deadline(&self) -> Option<Instant> {
        self.conversation.deadline()
    }

    /// Bytes for the peer, in order. Drain after every `handle_*` call.
    #[must_use]
    pub fn poll_transmit(&mut self) -> Option<Vec<u8>> {
        self.conversation.poll_transmit()
    }

    /// What to act on. Drain after every `handle_*` call.
    #[must_use]
    pub fn poll_event(&mut self) -> Option<DialerEvent> {
        if let Some(error) = self.conversation.poll_failed() {
            return Some(DialerEvent::Failed(error));
        }
        if let Some(agreement) = self.conversation.poll_agreed() {
            return Some(DialerEvent::Agreed(agreement));
        }
        self.errand.take()
    }

    /// What this end waits for.
    pub fn step(&self) -> Step {
        match &self.state {
            State::AwaitHello => Step::Hello,
            State::AwaitOffer(_) => Step::Offer,
            State::AwaitEndpoint(_) => Step::Endpoint,
            State::AwaitUnix(_) => Step::UnixSocket,
            State::AwaitReady(_) => Step::Ready,
            State::Over => Step::Finished,
        }
    }

    /// What the peer sent behind its last message: the session's first bytes.
    pub fn into_leftover(self) -> Vec<u8> {
        self.conversation.into_leftover()
    }

    fn handle_message(&mut self, message: Message) {
        let step = self.step();
        match (std::mem::replace(&mut self.state, State::Over), message) {
            (State::AwaitHello, Message::Hello(theirs)) => {
                match self.conversation.settle_terms(&theirs) {
                    Ok(terms) => {
                        self.conversation.send(&Message::Offer(self.ours.clone()));
                        self.state = State::AwaitOffer(terms);
                    }
                    Err(error) => self.conversation.fail(error),
                }
            }
            (State::AwaitOffer(terms), Message::Offer(theirs)) => {
                self.choose(terms, theirs, Vec::new());
            }
            (State::AwaitEndpoint(course), Message::Endpoint(endpoint))
                if endpoint.fabric() == course.chosen.fabric =>
            {
                self.go_to(endpoint, course);
            }
            (State::AwaitEndpoint(course), Message::Unavailable(unavailable))
                if unavailable.fabric == course.chosen.fabric =>
            {
                self.fall_back(course, unavailable.reason.to_string());
            }
            (
                State::AwaitReady(course),
                Message::Ready(Ready {
                    session: Some(session),
                }),
            ) => {
                self.finish(course, session);
            }
            (_, message) => {
                let kind = message.kind();
                self.conversation
                    .fail(HandshakeError::OutOfTurn { step, kind });
            }
        }
    }

    /// Picks a fabric that was not tried yet and asks for its endpoint. Ends:
    /// `ruled_out` grows by one known fabric each time.
    fn choose(&mut self, terms: Terms, theirs: Offer, ruled_out: Vec<RuledOut>) {
        match negotiate::fabric(&self.ours, &theirs, &ruled_out) {
            Ok(chosen) => {
                self.conversation.send(&Message::Choice(Choice {
                    fabric: chosen.fabric,
                    reason: Text::new(&chosen.reason),
                }));
                self.state = State::AwaitEndpoint(Course {
                    terms,
                    theirs,
                    chosen,
                    ruled_out,
                });
            }
            Err(conflict) => self.conversation.fail(conflict.into()),
        }
    }

    fn fall_back(&mut self, mut course: Course, why: String) {
        course.ruled_out.push(RuledOut {
            fabric: course.chosen.fabric,
            why,
        });
        self.choose(course.terms, course.theirs, course.ruled_out);
    }

    fn go_to(&mut self, endpoint: Endpoint, course: Course) {
        match endpoint {
            Endpoint::Shm(endpoint) => {
                self.errand = Some(DialerEvent::ConnectUnix {
                    name: endpoint.name,
                    token: endpoint.token,
                });
                self.state = State::AwaitUnix(course);
            }
            Endpoint::Tcp => self.become_ready(course),
            Endpoint::Verbs(_) => {
                let why = format!("{} has no driver in this node", FabricKind::Verbs);
                self.fall_back(course, why);
            }
        }
    }

    fn become_ready(&mut self, course: Course) {
        self.conversation
            .send(&Message::Ready(Ready { session: None }));
        self.state = State::AwaitReady(course);
    }

    fn finish(&mut self, course: Course, session: SessionSecrets) {
        let prologue = self.conversation.prologue(true);
        self.conversation.agree(Agreement {
            peer: course.theirs,
            version: course.terms.version,
            features: course.terms.features,
            session_id: session.id,
            resume_secret: session.resume,
            fabric: course.chosen.fabric,
            reason: course.chosen.reason,
            prologue,
        });
    }
}
