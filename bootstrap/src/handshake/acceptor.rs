//! The end that listened: it speaks second, provides the endpoint of whatever
//! fabric the dialer chooses, and draws the session's secrets.

use std::time::Instant;

use super::conversation::{Conversation, Terms};
use super::machine::{Handshake, Part};
use super::{Agreement, Step};
use crate::error::HandshakeError;
use crate::fabric::FabricKind;
use crate::identity::{HostHint, Secret};
use crate::local::Local;
use crate::message::{
    Choice, Endpoint, Message, MessageError, Offer, Ready, SessionSecrets, ShmEndpoint, Text,
    Unavailable,
};
use crate::negotiate;

/// The acceptor's side of one handshake.
pub type AcceptorHandshake = Handshake<AcceptorPart>;

/// The steps of an acceptor.
pub struct AcceptorPart {
    ours: Offer,
    entropy: AcceptorEntropy,
    state: State,
    /// To be told once: what to do about the Unix socket.
    errand: Option<AcceptorEvent>,
    /// Fabrics that were chosen so far. Each may be chosen once, which bounds
    /// how long a dialer can go on choosing.
    tried: Vec<FabricKind>,
}

/// Everything random in an acceptor's handshake, drawn by its driver.
#[derive(Clone, Debug)]
pub struct AcceptorEntropy {
    /// For the Hello.
    pub nonce: [u8; 16],
    /// For the name of the Unix socket.
    pub unix_name: [u8; 16],
    /// To be presented at the Unix socket.
    pub token: Secret,
    /// The session's name.
    pub session_id: [u8; 16],
    /// What will prove the right to resume the session.
    pub resume_secret: Secret,
}

/// What an acceptor's driver has to act on.
#[derive(Debug)]
pub enum AcceptorEvent {
    /// Listen on a `SOCK_SEQPACKET` socket of this abstract name and report to
    /// [`handle_listening`](AcceptorHandshake::handle_listening); then show to
    /// [`handle_token`](AcceptorHandshake::handle_token) what connections of
    /// this user present.
    ListenUnix {
        /// The name, without the leading zero byte.
        name: Vec<u8>,
    },
    /// The dialer chose another fabric: close whatever `ListenUnix` opened.
    CloseUnix,
    /// The handshake is over; write out what `poll_transmit` still has.
    Agreed(Box<Agreement>),
    /// The handshake is over; what `poll_transmit` still has tells the peer why.
    Failed(HandshakeError),
}

enum State {
    AwaitHello,
    AwaitOffer(Terms),
    AwaitChoice(Course),
    AwaitListening(Course, Choice),
    AwaitReady {
        course: Course,
        choice: Choice,
        joined: bool,
    },
    Over,
}

/// Everything known from the peer's offer on.
struct Course {
    terms: Terms,
    theirs: Offer,
}

impl Handshake<AcceptorPart> {
    /// A handshake that begins now and must be over by `deadline`.
    pub fn new(
        local: &Local,
        host: HostHint,
        entropy: AcceptorEntropy,
        now: Instant,
        deadline: Instant,
    ) -> Handshake<AcceptorPart> {
        Handshake {
            conversation: Conversation::new(local.hello(entropy.nonce), now, deadline),
            part: AcceptorPart {
                ours: local.offer(host),
                entropy,
                state: State::AwaitHello,
                errand: None,
                tried: Vec::new(),
            },
        }
    }

    /// The Unix socket listens, or not and why.
    pub fn handle_listening(&mut self, outcome: Result<(), String>) {
        let (part, conversation) = (&mut self.part, &mut self.conversation);
        match (std::mem::replace(&mut part.state, State::Over), outcome) {
            (State::AwaitListening(course, choice), Ok(())) => {
                let endpoint = Endpoint::Shm(ShmEndpoint {
                    name: part.unix_name(),
                    token: part.entropy.token.clone(),
                });
                part.provide(conversation, endpoint, course, choice);
            }
            (State::AwaitListening(course, choice), Err(why)) => {
                part.decline(conversation, course, choice.fabric, &why);
            }
            // An answer to an errand that is off: the handshake has ended.
            (state, _) => part.state = state,
        }
        self.read_messages();
    }

    /// A connection of this user's at the Unix socket presents `bytes`. True
    /// for the first one with the right token: keep it, and answer it. False:
    /// close that connection and go on listening.
    #[must_use]
    pub fn handle_token(&mut self, bytes: &[u8]) -> bool {
        match &mut self.part.state {
            State::AwaitReady { choice, joined, .. }
                if choice.fabric == FabricKind::Shm
                    && !*joined
                    && self.part.entropy.token.matches(bytes) =>
            {
                *joined = true;
                true
            }
            _ => false,
        }
    }
}

impl Part for AcceptorPart {
    type Event = AcceptorEvent;

    fn step(&self) -> Step {
        match &self.state {
            State::AwaitHello => Step::Hello,
            State::AwaitOffer(_) => Step::Offer,
            State::AwaitChoice(_) => Step::Choice,
            State::AwaitListening(..) => Step::UnixSocket,
            State::AwaitReady { .. } => Step::Ready,
            State::Over => Step::Finished,
        }
    }

    fn takes_messages(&self) -> bool {
        !matches!(self.state, State::AwaitListening(..))
    }

    fn take_errand(&mut self) -> Option<AcceptorEvent> {
        self.errand.take()
    }

    fn agreed(agreement: Box<Agreement>) -> AcceptorEvent {
        AcceptorEvent::Agreed(agreement)
    }

    fn failed(error: HandshakeError) -> AcceptorEvent {
        AcceptorEvent::Failed(error)
    }

    fn handle_message(&mut self, conversation: &mut Conversation, message: Message) {
        let step = self.step();
        match (std::mem::replace(&mut self.state, State::Over), message) {
            (State::AwaitHello, Message::Hello(theirs)) => {
                // Ours goes out even when the two do not match: it is what the
                // dialer needs for its own diagnosis.
                conversation.send_hello();
                match conversation.settle_terms(&theirs) {
                    Ok(terms) => {
                        conversation.send(&Message::Offer(self.ours.clone()));
                        self.state = State::AwaitOffer(terms);
                    }
                    Err(error) => conversation.fail(error),
                }
            }
            (State::AwaitOffer(terms), Message::Offer(theirs)) => {
                // The dialer computes the same; with this, both ends fail with
                // the same words and neither depends on the other's.
                match negotiate::fabric(&theirs, &self.ours, &[]) {
                    Ok(_) => self.state = State::AwaitChoice(Course { terms, theirs }),
                    Err(conflict) => conversation.fail(conflict.into()),
                }
            }
            (State::AwaitChoice(course), Message::Choice(choice)) => {
                self.follow(conversation, step, course, choice);
            }
            (
                State::AwaitReady {
                    course,
                    choice: previous,
                    ..
                },
                Message::Choice(choice),
            ) => {
                if previous.fabric == FabricKind::Shm {
                    self.errand = Some(AcceptorEvent::CloseUnix);
                }
                self.follow(conversation, step, course, choice);
            }
            (
                State::AwaitReady {
                    course,
                    choice,
                    joined,
                },
                Message::Ready(Ready { session: None }),
            ) if joined || choice.fabric != FabricKind::Shm => {
                self.finish(conversation, course, choice);
            }
            (_, message) => {
                let kind = message.kind();
                conversation.fail(HandshakeError::OutOfTurn { step, kind });
            }
        }
    }
}

impl AcceptorPart {
    fn follow(
        &mut self,
        conversation: &mut Conversation,
        step: Step,
        course: Course,
        choice: Choice,
    ) {
        if self.tried.contains(&choice.fabric) {
            let problem = MessageError::Repeated {
                field: "choice of fabric",
            };
            conversation.fail(HandshakeError::Malformed { step, problem });
            return;
        }
        self.tried.push(choice.fabric);
        if let Err(conflict) = negotiate::permitted(&course.theirs, &self.ours, choice.fabric) {
            conversation.fail(conflict.into());
            return;
        }
        match choice.fabric {
            FabricKind::Shm => {
                self.errand = Some(AcceptorEvent::ListenUnix {
                    name: self.unix_name(),
                });
                self.state = State::AwaitListening(course, choice);
            }
            FabricKind::Tcp => self.provide(conversation, Endpoint::Tcp, course, choice),
            FabricKind::Verbs => {
                self.decline(
                    conversation,
                    course,
                    choice.fabric,
                    "verbs has no driver in this node",
                );
            }
        }
    }

    fn provide(
        &mut self,
        conversation: &mut Conversation,
        endpoint: Endpoint,
        course: Course,
        choice: Choice,
    ) {
        conversation.send(&Message::Endpoint(endpoint));
        self.state = State::AwaitReady {
            course,
            choice,
            joined: false,
        };
    }

    fn decline(
        &mut self,
        conversation: &mut Conversation,
        course: Course,
        fabric: FabricKind,
        why: &str,
    ) {
        conversation.send(&Message::Unavailable(Unavailable {
            fabric,
            reason: Text::new(why),
        }));
        self.state = State::AwaitChoice(course);
    }

    fn finish(&mut self, conversation: &mut Conversation, course: Course, choice: Choice) {
        let session = SessionSecrets {
            id: self.entropy.session_id,
            resume: self.entropy.resume_secret.clone(),
        };
        conversation.send(&Message::Ready(Ready {
            session: Some(session),
        }));
        let prologue = conversation.prologue(false);
        conversation.agree(Agreement {
            peer: course.theirs,
            version: course.terms.version,
            features: course.terms.features,
            session_id: self.entropy.session_id,
            resume_secret: self.entropy.resume_secret.clone(),
            fabric: choice.fabric,
            reason: choice.reason.to_string(),
            prologue,
        });
    }

    /// Hex, since names of sockets appear in listings that people read.
    fn unix_name(&self) -> Vec<u8> {
        let random = self.entropy.unix_name.iter();
        let hex: String = random.map(|byte| format!("{byte:02x}")).collect();
        format!("ibex-{hex}").into_bytes()
    }
}
