//! The end that connected: it speaks first, chooses the fabric, and falls back
//! to another when the first cannot be reached.

use std::time::Instant;

use super::conversation::{Conversation, Terms};
use super::machine::{Handshake, Part};
use super::{Agreement, Step};
use crate::error::HandshakeError;
use crate::fabric::FabricKind;
use crate::identity::{HostHint, Secret};
use crate::local::Local;
use crate::message::{Choice, Endpoint, Message, Offer, Ready, SessionSecrets, Text};
use crate::negotiate::{self, Chosen, RuledOut};

/// The dialer's side of one handshake.
pub type DialerHandshake = Handshake<DialerPart>;

/// The steps of a dialer.
pub struct DialerPart {
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

impl Handshake<DialerPart> {
    /// A handshake that begins now and must be over by `deadline`. `nonce` is
    /// fresh random bytes.
    pub fn new(
        local: &Local,
        host: HostHint,
        nonce: [u8; 16],
        now: Instant,
        deadline: Instant,
    ) -> Handshake<DialerPart> {
        let mut conversation = Conversation::new(local.hello(nonce), now, deadline);
        conversation.send_hello();
        let part = DialerPart {
            ours: local.offer(host),
            state: State::AwaitHello,
            errand: None,
        };
        Handshake { conversation, part }
    }

    /// The Unix socket is connected and the token accepted, or not and why.
    pub fn handle_unix(&mut self, outcome: Result<(), String>) {
        let (part, conversation) = (&mut self.part, &mut self.conversation);
        match (std::mem::replace(&mut part.state, State::Over), outcome) {
            (State::AwaitUnix(course), Ok(())) => part.become_ready(conversation, course),
            (State::AwaitUnix(course), Err(why)) => part.fall_back(conversation, course, why),
            // An answer to an errand that is off: the handshake has ended.
            (state, _) => part.state = state,
        }
    }
}

impl Part for DialerPart {
    type Event = DialerEvent;

    fn step(&self) -> Step {
        match &self.state {
            State::AwaitHello => Step::Hello,
            State::AwaitOffer(_) => Step::Offer,
            State::AwaitEndpoint(_) => Step::Endpoint,
            State::AwaitUnix(_) => Step::UnixSocket,
            State::AwaitReady(_) => Step::Ready,
            State::Over => Step::Finished,
        }
    }

    fn takes_messages(&self) -> bool {
        true
    }

    fn take_errand(&mut self) -> Option<DialerEvent> {
        self.errand.take()
    }

    fn agreed(agreement: Box<Agreement>) -> DialerEvent {
        DialerEvent::Agreed(agreement)
    }

    fn failed(error: HandshakeError) -> DialerEvent {
        DialerEvent::Failed(error)
    }

    fn handle_message(&mut self, conversation: &mut Conversation, message: Message) {
        let step = self.step();
        match (std::mem::replace(&mut self.state, State::Over), message) {
            (State::AwaitHello, Message::Hello(theirs)) => {
                match conversation.settle_terms(&theirs) {
                    Ok(terms) => {
                        conversation.send(&Message::Offer(self.ours.clone()));
                        self.state = State::AwaitOffer(terms);
                    }
                    Err(error) => conversation.fail(error),
                }
            }
            (State::AwaitOffer(terms), Message::Offer(theirs)) => {
                self.choose(conversation, terms, theirs, Vec::new());
            }
            (State::AwaitEndpoint(course), Message::Endpoint(endpoint))
                if endpoint.fabric() == course.chosen.fabric =>
            {
                self.go_to(conversation, endpoint, course);
            }
            (State::AwaitEndpoint(course), Message::Unavailable(unavailable))
                if unavailable.fabric == course.chosen.fabric =>
            {
                self.fall_back(conversation, course, unavailable.reason.to_string());
            }
            (
                State::AwaitReady(course),
                Message::Ready(Ready {
                    session: Some(session),
                }),
            ) => {
                self.finish(conversation, course, session);
            }
            (_, message) => {
                let kind = message.kind();
                conversation.fail(HandshakeError::OutOfTurn { step, kind });
            }
        }
    }
}

impl DialerPart {
    /// Picks a fabric that was not tried yet and asks for its endpoint. Ends:
    /// `ruled_out` grows by one known fabric each time.
    fn choose(
        &mut self,
        conversation: &mut Conversation,
        terms: Terms,
        theirs: Offer,
        ruled_out: Vec<RuledOut>,
    ) {
        match negotiate::fabric(&self.ours, &theirs, &ruled_out) {
            Ok(chosen) => {
                conversation.send(&Message::Choice(Choice {
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
            Err(conflict) => conversation.fail(conflict.into()),
        }
    }

    fn fall_back(&mut self, conversation: &mut Conversation, mut course: Course, why: String) {
        course.ruled_out.push(RuledOut {
            fabric: course.chosen.fabric,
            why,
        });
        self.choose(conversation, course.terms, course.theirs, course.ruled_out);
    }

    fn go_to(&mut self, conversation: &mut Conversation, endpoint: Endpoint, course: Course) {
        match endpoint {
            Endpoint::Shm(endpoint) => {
                self.errand = Some(DialerEvent::ConnectUnix {
                    name: endpoint.name,
                    token: endpoint.token,
                });
                self.state = State::AwaitUnix(course);
            }
            Endpoint::Tcp => self.become_ready(conversation, course),
            Endpoint::Verbs(_) => {
                let why = format!("{} has no driver in this node", FabricKind::Verbs);
                self.fall_back(conversation, course, why);
            }
        }
    }

    fn become_ready(&mut self, conversation: &mut Conversation, course: Course) {
        conversation.send(&Message::Ready(Ready { session: None }));
        self.state = State::AwaitReady(course);
    }

    fn finish(&mut self, conversation: &mut Conversation, course: Course, session: SessionSecrets) {
        let prologue = conversation.prologue(true);
        conversation.agree(Agreement {
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
