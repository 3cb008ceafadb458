//! The end that listened: it speaks second, provides the endpoint of whatever
//! fabric the dialer chooses, and draws the session's secrets.

use std::time::Instant;

use super::conversation::{Conversation, Terms};
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
pub struct AcceptorHandshake {
    conversation: Conversation,
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

impl AcceptorHandshake {
    /// A handshake that begins now and must be over by `deadline`.
    pub fn new(
        local: &Local,
        host: HostHint,
        entropy: AcceptorEntropy,
        now: Instant,
        deadline: Instant,
    ) -> AcceptorHandshake {
        AcceptorHandshake {
            conversation: Conversation::new(local.hello(entropy.nonce), now, deadline),
            ours: local.offer(host),
            entropy,
            state: State::AwaitHello,
            errand: None,
            tried: Vec::new(),
        }
    }

    /// The peer sent `bytes`. Whatever comes behind its last message is kept
    /// for [`into_leftover`](Self::into_leftover).
    pub fn handle_bytes(&mut self, bytes: &[u8]) {
        self.conversation.receive(bytes);
        self.read_messages();
    }

    /// The stream ended, or failed with what `detail` says.
    pub fn handle_closed(&mut self, detail: Option<String>) {
        let step = self.step();
        self.conversation
            .fail(HandshakeError::Closed { step, detail });
    }

    /// The Unix socket listens, or not and why.
    pub fn handle_listening(&mut self, outcome: Result<(), String>) {
        match (std::mem::replace(&mut self.state, State::Over), outcome) {
            (State::AwaitListening(course, choice), Ok(())) => {
                let endpoint = Endpoint::Shm(ShmEndpoint {
                    name: self.unix_name(),
                    token: self.entropy.token.clone(),
                });
                self.provide(endpoint, course, choice);
            }
            (State::AwaitListening(course, choice), Err(why)) => {
                self.decline(course, choice.fabric, &why);
            }
            // An answer to an errand that is off: the handshake has ended.
            (state, _) => self.state = state,
        }
        self.read_messages();
    }

    /// A connection of this user's at the Unix socket presents `bytes`. True
    /// for the first one with the right token: keep it, and answer it. False:
    /// close that connection and go on listening.
    #[must_use]
    pub fn handle_token(&mut self, bytes: &[u8]) -> bool {
        match &mut self.state {
            State::AwaitReady { choice, joined, .. }
                if choice.fabric == FabricKind::Shm
                    && !*joined
                    && self.entropy.token.matches(bytes) =>
            {
                *joined = true;
                true
            }
            _ => false,
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
    pub fn poll_event(&mut self) -> Option<AcceptorEvent> {
        if let Some(error) = self.conversation.poll_failed() {
            return Some(AcceptorEvent::Failed(error));
        }
        if let Some(agreement) = self.conversation.poll_agreed() {
            return Some(AcceptorEvent::Agreed(agreement));
        }
        self.errand.take()
    }

    /// What this end waits for.
    pub fn step(&self) -> Step {
        match &self.state {
            State::AwaitHello => Step::Hello,
            State::AwaitOffer(_) => Step::Offer,
            State::AwaitChoice(_) => Step::Choice,
            State::AwaitListening(..) => Step::UnixSocket,
            State::AwaitReady { .. } => Step::Ready,
            State::Over => Step::Finished,
        }
    }

    /// Whether the peer has said what only an ibex node says. A driver short of
    /// room drops those that have not first.
    pub fn has_hello(&self) -> bool {
        self.conversation.has_hello()
    }

    /// What the peer sent behind its last message: the session's first bytes.
    pub fn into_leftover(self) -> Vec<u8> {
        self.conversation.into_leftover()
    }

    /// Takes messages as long as none has to wait for the driver's answer.
    fn read_messages(&mut self) {
        while !matches!(self.state, State::AwaitListening(..)) {
            let Some(message) = self.conversation.next_message(self.step()) else {
                break;
            };
            self.handle_message(message);
        }
    }

    fn handle_message(&mut self, message: Message) {
        let step = self.step();
        match (std::mem::replace(&mut self.state, State::Over), message) {
            (State::AwaitHello, Message::Hello(theirs)) => {
                // Ours goes out even when the two do not match: it is what the
                // dialer needs for its own diagnosis.
                self.conversation.send_hello();
                match self.conversation.settle_terms(&theirs) {
                    Ok(terms) => {
                        self.conversation.send(&Message::Offer(self.ours.clone()));
                        self.state = State::AwaitOffer(terms);
                    }
                    Err(error) => self.conversation.fail(error),
                }
            }
            (State::AwaitOffer(terms), Message::Offer(theirs)) => {
                // The dialer computes the same; with this, both ends fail with
                // the same words and neither depends on the other's.
                match negotiate::fabric(&theirs, &self.ours, &[]) {
                    Ok(_) => self.state = State::AwaitChoice(Course { terms, theirs }),
                    Err(conflict) => self.conversation.fail(conflict.into()),
                }
            }
            (State::AwaitChoice(course), Message::Choice(choice)) => {
                self.follow(step, course, choice);
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
                self.follow(step, course, choice);
            }
            (
                State::AwaitReady {
                    course,
                    choice,
                    joined,
                },
                Message::Ready(Ready { session: None }),
            ) if joined || choice.fabric != FabricKind::Shm => self.finish(course, choice),
            (_, message) => {
                let kind = message.kind();
                self.conversation
                    .fail(HandshakeError::OutOfTurn { step, kind });
            }
        }
    }

    fn follow(&mut self, step: Step, course: Course, choice: Choice) {
        if self.tried.contains(&choice.fabric) {
            let problem = MessageError::Repeated {
                field: "choice of fabric",
            };
            self.conversation
                .fail(HandshakeError::Malformed { step, problem });
            return;
        }
        self.tried.push(choice.fabric);
        if let Err(conflict) = negotiate::permitted(&course.theirs, &self.ours, choice.fabric) {
            self.conversation.fail(conflict.into());
            return;
        }
        match choice.fabric {
            FabricKind::Shm => {
                self.errand = Some(AcceptorEvent::ListenUnix {
                    name: self.unix_name(),
                });
                self.state = State::AwaitListening(course, choice);
            }
            FabricKind::Tcp => self.provide(Endpoint::Tcp, course, choice),
            FabricKind::Verbs => {
                self.decline(course, choice.fabric, "verbs has no driver in this node");
            }
        }
    }

    fn provide(&mut self, endpoint: Endpoint, course: Course, choice: Choice) {
        self.conversation.send(&Message::Endpoint(endpoint));
        self.state = State::AwaitReady {
            course,
            choice,
            joined: false,
        };
    }

    fn decline(&mut self, course: Course, fabric: FabricKind, why: &str) {
        self.conversation.send(&Message::Unavailable(Unavailable {
            fabric,
            reason: Text::new(why),
        }));
        self.state = State::AwaitChoice(course);
    }

    fn finish(&mut self, course: Course, choice: Choice) {
        let session = SessionSecrets {
            id: self.entropy.session_id,
            resume: self.entropy.resume_secret.clone(),
        };
        self.conversation.send(&Message::Ready(Ready {
            session: Some(session),
        }));
        let prologue = self.conversation.prologue(false);
        self.conversation.agree(Agreement {
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
