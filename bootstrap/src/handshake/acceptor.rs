//! The end that listened: it speaks second, provides the endpoint of whatever
//! fabric the dialer chooses, and draws the session's secrets.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use super::conversation::Conversation;
use super::machine::{Handshake, Part};
use super::proof::ResumptionClaim;
use super::{Agreement, HandshakeStep, ResumedSession};
use crate::error::HandshakeError;
use crate::fabric::{FabricKind, VerbsDevice};
use crate::identity::{HostHint, Incarnation, NodeIdentity, Secret};
use crate::local::Local;
use crate::message::{
    Endpoint, FabricChoice, GidType, HostTags, Message, MessageError, Offer, Ready, Resume,
    ResumeRefusal, Resumed, SessionSecrets, ShmEndpoint, Text, Unavailable, VerbsEndpoint, Version,
};
use crate::negotiate::{self, End};
use crate::places::{Place, Places};
use crate::resumption::ResumableSessions;

/// The acceptor's side of one handshake.
pub type AcceptorHandshake = Handshake<AcceptorPart>;

/// The steps of an acceptor.
pub struct AcceptorPart {
    host: HostHint,
    ours: Offer,
    places: Places,
    resumable: Option<Arc<dyn ResumableSessions>>,
    entropy: AcceptorEntropy,
    state: State,
    /// Set where this node may have an RDMA device.
    seeks_device: bool,
    /// The number of files that this process may open, where it can open too few for a session.
    shortage: Option<u32>,
    /// Tasks for the driver about sockets and queue pairs, each told once, in order.
    deferred: VecDeque<AcceptorEvent>,
    /// Fabrics that were chosen so far. Each may be chosen once, which bounds the number of the
    /// dialer's choices.
    tried: Vec<FabricKind>,
}

/// Everything random in an acceptor's handshake, drawn by its driver.
#[derive(Clone, Debug)]
pub struct AcceptorEntropy {
    /// The nonce of the Hello.
    pub nonce: [u8; 16],
    /// The token that the dialer presents at the Unix socket, whose name follows from it.
    pub token: Secret,
    /// The session's name.
    pub session_id: [u8; 16],
    /// The secret that will prove the right to resume the session.
    pub resume_secret: Secret,
}

/// An event that an acceptor's driver has to act on.
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
    /// Ask for the RDMA device for this connection and report to
    /// [`handle_device`](AcceptorHandshake::handle_device).
    FindDevice,
    /// Make a queue pair and report to
    /// [`handle_prepared`](AcceptorHandshake::handle_prepared).
    PreparePair,
    /// Connect that queue pair and report to
    /// [`handle_connected`](AcceptorHandshake::handle_connected).
    ConnectPair(Box<VerbsEndpoint>),
    /// Another fabric will be chosen: drop the queue pair.
    ClosePair,
    /// The handshake is over; write out what `poll_transmit` still has.
    Agreed(Box<Agreement>),
    /// Like `Agreed`, for a resumed session.
    Resumed(ResumedSession),
    /// The handshake is over; what `poll_transmit` still has tells the peer why.
    Failed(HandshakeError),
}

enum State {
    AwaitHello,
    AwaitBinding(Version),
    AwaitDevice(Version),
    AwaitOffer(Version),
    AwaitChoice(OfferedTerms),
    AwaitListening(OfferedTerms, FabricChoice),
    AwaitPrepared(OfferedTerms, FabricChoice),
    /// Waits for the dialer's queue pair; this end's has a GID of this type.
    AwaitPair(OfferedTerms, FabricChoice, GidType),
    AwaitReady {
        course: OfferedTerms,
        choice: FabricChoice,
        way: ReadyCondition,
    },
    /// Waits until this end's queue pair is connected; the dialer may have named its process.
    AwaitConnected(OfferedTerms, FabricChoice, Option<u32>),
    /// Waits for the dialer's queue pair, to resume a session.
    AwaitResumePair(ResumeAnswer),
    /// Waits for this end's queue pair, to resume a session.
    AwaitResumePrepared(ResumeAnswer, Box<VerbsEndpoint>),
    /// Waits until this end's queue pair, described here, is connected.
    AwaitResumeConnected(ResumeAnswer, Box<VerbsEndpoint>),
    AwaitResumeReady(ResumedSession),
    Over,
}

/// A session that is about to resume over a queue pair, with the proof that this end has it.
struct ResumeAnswer {
    session: ResumedSession,
    proof: [u8; 32],
}

/// Conditions of the dialer's *Ready*, before it counts.
enum ReadyCondition {
    /// The token is presented at the Unix socket.
    Unix { joined: bool },
    /// No condition.
    Tcp,
    /// This end's queue pair is connected with this one.
    Verbs(Box<VerbsEndpoint>),
}

impl ReadyCondition {
    /// Returns the work that undoes this preparation when another fabric is chosen.
    fn close(self) -> Option<AcceptorEvent> {
        match self {
            ReadyCondition::Unix { .. } => Some(AcceptorEvent::CloseUnix),
            ReadyCondition::Tcp => None,
            ReadyCondition::Verbs(_) => Some(AcceptorEvent::ClosePair),
        }
    }
}

/// Everything known from the peer's offer on.
struct OfferedTerms {
    version: Version,
    theirs: Offer,
    place: Place,
}

impl Handshake<AcceptorPart> {
    /// Creates a handshake that begins now and must be over by `deadline`.
    pub fn new(
        local: &Local,
        host: HostHint,
        entropy: AcceptorEntropy,
        now: Instant,
        deadline: Instant,
    ) -> Handshake<AcceptorPart> {
        let hello = local.hello(entropy.nonce);
        Handshake {
            conversation: Conversation::new(End::Acceptor, hello, local, now, deadline),
            part: AcceptorPart {
                host,
                ours: local.offer(),
                places: local.places.clone(),
                resumable: local.resumable.clone(),
                entropy,
                state: State::AwaitHello,
                seeks_device: local.usable_devices().is_some(),
                shortage: None,
                deferred: VecDeque::new(),
                tried: Vec::new(),
            },
        }
    }

    /// Notes that this process, which may open `limit` files, can open too few for a new session.
    /// The peer is told so once it asks for one, or now, if the Unix socket is what is lacking. A
    /// session that resumes needs no more than its connection.
    pub fn handle_shortage(&mut self, limit: u32) {
        let (part, conversation) = (&mut self.part, &mut self.conversation);
        part.shortage = Some(limit);
        if let State::AwaitListening(..) = part.state {
            part.state = State::Over;
            let end = End::Acceptor;
            conversation.fail(HandshakeError::Descriptors { end, limit });
        }
    }

    /// Takes the outcome of listening at the Unix socket, or the reason why it failed.
    pub fn handle_listening(&mut self, outcome: Result<(), String>) {
        let (part, conversation) = (&mut self.part, &mut self.conversation);
        match (std::mem::replace(&mut part.state, State::Over), outcome) {
            (State::AwaitListening(course, choice), Ok(())) => {
                let endpoint = Endpoint::Shm(ShmEndpoint {
                    token: part.entropy.token.clone(),
                });
                conversation.send(&Message::Endpoint(endpoint));
                part.state = State::AwaitReady {
                    course,
                    choice,
                    way: ReadyCondition::Unix { joined: false },
                };
            }
            (State::AwaitListening(course, choice), Err(why)) => {
                part.decline(conversation, course, choice.fabric, &why);
            }
            // The handshake has ended meanwhile: nothing waits for the result of this work.
            (state, _) => part.state = state,
        }
        self.read_messages();
    }

    /// Takes the RDMA device for this connection, or the reason why there is none.
    pub fn handle_device(&mut self, found: Result<VerbsDevice, String>) {
        let (part, conversation) = (&mut self.part, &mut self.conversation);
        match std::mem::replace(&mut part.state, State::Over) {
            State::AwaitDevice(version) => {
                part.ours.set_device(found);
                part.offer(conversation, version);
            }
            state => part.state = state,
        }
        self.read_messages();
    }

    /// Takes the queue pair that was made, or the reason why there is none.
    pub fn handle_prepared(&mut self, outcome: Result<VerbsEndpoint, String>) {
        let (part, conversation) = (&mut self.part, &mut self.conversation);
        match (std::mem::replace(&mut part.state, State::Over), outcome) {
            (State::AwaitPrepared(course, choice), Ok(ours)) => {
                part.state = State::AwaitPair(course, choice, ours.gid_type);
                conversation.send(&Message::Endpoint(Endpoint::Verbs(ours)));
            }
            (State::AwaitPrepared(course, choice), Err(why)) => {
                let why = End::Acceptor.cannot_prepare(&why);
                part.decline(conversation, course, choice.fabric, &why);
            }
            (State::AwaitResumePrepared(answer, theirs), Ok(ours)) => {
                match negotiate::gid_types(theirs.gid_type, ours.gid_type) {
                    Ok(()) => {
                        part.deferred.push_back(AcceptorEvent::ConnectPair(theirs));
                        part.state = State::AwaitResumeConnected(answer, Box::new(ours));
                    }
                    Err(why) => conversation.fail(HandshakeError::not_over_verbs(&why)),
                }
            }
            (State::AwaitResumePrepared(..), Err(why)) => {
                let why = End::Acceptor.cannot_prepare(&why);
                conversation.fail(HandshakeError::not_over_verbs(&why));
            }
            (state, _) => part.state = state,
        }
        self.read_messages();
    }

    /// Notes that the queue pair is connected, or the reason why it is not.
    pub fn handle_connected(&mut self, outcome: Result<(), String>) {
        let (part, conversation) = (&mut self.part, &mut self.conversation);
        match (std::mem::replace(&mut part.state, State::Over), outcome) {
            (State::AwaitConnected(course, choice, process), Ok(())) => {
                part.finish(conversation, course, choice, process);
            }
            (State::AwaitConnected(course, choice, _), Err(why)) => {
                part.deferred.push_back(AcceptorEvent::ClosePair);
                let why = End::Acceptor.cannot_connect(&why);
                part.decline(conversation, course, choice.fabric, &why);
            }
            (State::AwaitResumeConnected(answer, ours), Ok(())) => {
                let ResumeAnswer { session, proof } = answer;
                conversation.send(&Message::Resumed(Resumed { proof }));
                conversation.send(&Message::Endpoint(Endpoint::Verbs(*ours)));
                part.state = State::AwaitResumeReady(session);
            }
            (State::AwaitResumeConnected(..), Err(why)) => {
                let why = End::Acceptor.cannot_connect(&why);
                conversation.fail(HandshakeError::not_over_verbs(&why));
            }
            (state, _) => part.state = state,
        }
        self.read_messages();
    }

    /// Returns whether a connection at the Unix socket that presents `bytes` may be part of the
    /// session: `bytes` are the token. The call does not use the token up.
    #[must_use]
    pub fn knows_token(&self, bytes: &[u8]) -> bool {
        let awaits = matches!(
            self.part.state,
            State::AwaitReady {
                way: ReadyCondition::Unix { joined: false },
                ..
            }
        );
        awaits && self.part.entropy.token.matches(bytes)
    }

    /// Handles what a connection of this user presents at the Unix socket. Returns true for the
    /// first one with the right token: keep it, and answer it. Otherwise, close that connection and
    /// go on listening.
    #[must_use]
    pub fn handle_token(&mut self, bytes: &[u8]) -> bool {
        match &mut self.part.state {
            State::AwaitReady {
                way: ReadyCondition::Unix { joined },
                ..
            } if !*joined && self.part.entropy.token.matches(bytes) => {
                *joined = true;
                true
            }
            _ => false,
        }
    }

    /// Returns the identity that the peer of a new session has offered, and its run, while a
    /// queue pair is made.
    #[must_use]
    pub fn offered(&self) -> Option<(NodeIdentity, Incarnation)> {
        match &self.part.state {
            State::AwaitPrepared(course, _) => {
                Some((course.theirs.identity, course.theirs.incarnation))
            }
            _ => None,
        }
    }

    /// Returns the session to resume, while a queue pair is made for it.
    #[must_use]
    pub fn resumes(&self) -> Option<[u8; 16]> {
        match &self.part.state {
            State::AwaitResumePrepared(answer, _) => Some(answer.session.session_id),
            _ => None,
        }
    }
}

impl Part for AcceptorPart {
    type Event = AcceptorEvent;

    fn step(&self) -> HandshakeStep {
        match &self.state {
            State::AwaitHello => HandshakeStep::Hello,
            State::AwaitBinding(_) => HandshakeStep::Binding,
            State::AwaitDevice(_) => HandshakeStep::Device,
            State::AwaitOffer(_) => HandshakeStep::Offer,
            State::AwaitChoice(_) => HandshakeStep::Choice,
            State::AwaitListening(..) => HandshakeStep::UnixSocket,
            State::AwaitPrepared(..)
            | State::AwaitConnected(..)
            | State::AwaitResumePrepared(..)
            | State::AwaitResumeConnected(..) => HandshakeStep::QueuePair,
            State::AwaitPair(..) | State::AwaitResumePair(_) => HandshakeStep::Endpoint,
            State::AwaitReady { .. } | State::AwaitResumeReady(_) => HandshakeStep::Ready,
            State::Over => HandshakeStep::Finished,
        }
    }

    fn ours(&self) -> Option<&Offer> {
        Some(&self.ours)
    }

    fn takes_messages(&self) -> bool {
        let step = self.step();
        !step.is_ours() && step != HandshakeStep::UnixSocket
    }

    fn take_deferred(&mut self) -> Option<AcceptorEvent> {
        self.deferred.pop_front()
    }

    fn failed(error: HandshakeError) -> AcceptorEvent {
        AcceptorEvent::Failed(error)
    }

    fn handle_message(&mut self, conversation: &mut Conversation<AcceptorEvent>, message: Message) {
        let step = self.step();
        match (std::mem::replace(&mut self.state, State::Over), message) {
            (State::AwaitHello, Message::Hello(theirs)) => {
                // The acceptor's Hello goes out even when the two do not match: the dialer needs it
                // for its own diagnosis.
                conversation.send_hello();
                match conversation.settle(&theirs) {
                    Ok(version) if conversation.secure() => {
                        self.state = State::AwaitBinding(version);
                    }
                    Ok(version) => self.go_on(conversation, version),
                    Err(error) => conversation.fail(error),
                }
            }
            (State::AwaitBinding(version), Message::Binding(_)) => {
                self.go_on(conversation, version);
            }
            (State::AwaitOffer(version), Message::Offer(mut theirs)) => {
                let expected = HostTags::new(&self.host, End::Dialer, conversation.hellos());
                theirs.host = theirs.host.recognized(&self.ours.host, &expected);
                // The dialer computes the same. With this check, both ends fail with the same
                // words, and neither depends on the other's check.
                if let Err(conflict) = negotiate::fabric(&theirs, &self.ours, &[]) {
                    conversation.fail(conflict.into());
                    return;
                }
                if self.places.are_closed() {
                    conversation.fail(HandshakeError::Closing);
                    return;
                }
                if let Some(limit) = self.shortage {
                    let end = End::Acceptor;
                    conversation.fail(HandshakeError::Descriptors { end, limit });
                    return;
                }
                let proven = conversation.authenticated_as();
                let (peer, run) = (theirs.identity, theirs.incarnation);
                match self.places.take(peer, run, proven, conversation.started()) {
                    Ok(place) => {
                        self.state = State::AwaitChoice(OfferedTerms {
                            version,
                            theirs,
                            place,
                        });
                    }
                    Err(limit) => {
                        let end = End::Acceptor;
                        conversation.fail(HandshakeError::TooManySessions { end, limit });
                    }
                }
            }
            (State::AwaitOffer(_), Message::Resume(resume)) => {
                self.resume(conversation, &resume);
            }
            (State::AwaitResumePair(answer), Message::Endpoint(Endpoint::Verbs(theirs))) => {
                self.deferred.push_back(AcceptorEvent::PreparePair);
                self.state = State::AwaitResumePrepared(answer, Box::new(theirs));
            }
            (State::AwaitResumeReady(session), Message::Ready(Ready { session: None, .. })) => {
                conversation.succeed(AcceptorEvent::Resumed(session));
            }
            (State::AwaitChoice(course), Message::Choice(choice)) => {
                self.follow(conversation, step, course, choice);
            }
            (State::AwaitReady { course, way, .. }, Message::Choice(choice)) => {
                self.deferred.extend(way.close());
                self.follow(conversation, step, course, choice);
            }
            (State::AwaitPair(course, ..), Message::Choice(choice)) => {
                self.deferred.push_back(AcceptorEvent::ClosePair);
                self.follow(conversation, step, course, choice);
            }
            (
                State::AwaitPair(course, choice, gid_type),
                Message::Endpoint(Endpoint::Verbs(theirs)),
            ) => match negotiate::gid_types(theirs.gid_type, gid_type) {
                Ok(()) => {
                    let way = ReadyCondition::Verbs(Box::new(theirs));
                    self.state = State::AwaitReady {
                        course,
                        choice,
                        way,
                    };
                }
                // The dialer knew the type of the acceptor's GID before it sent its own.
                Err(_) => {
                    let (field, value) = ("gid type", theirs.gid_type.to_wire().into());
                    let problem = MessageError::UnknownValue { field, value };
                    conversation.fail(HandshakeError::Malformed { step, problem });
                }
            },
            (
                State::AwaitReady {
                    course,
                    choice,
                    way: ReadyCondition::Verbs(theirs),
                },
                Message::Ready(Ready {
                    process,
                    session: None,
                }),
            ) => {
                self.deferred.push_back(AcceptorEvent::ConnectPair(theirs));
                self.state = State::AwaitConnected(course, choice, process);
            }
            (
                State::AwaitReady {
                    course,
                    choice,
                    way: ReadyCondition::Tcp | ReadyCondition::Unix { joined: true },
                },
                Message::Ready(Ready {
                    process,
                    session: None,
                }),
            ) => self.finish(conversation, course, choice, process),
            (_, message) => {
                let kind = message.kind();
                conversation.fail(HandshakeError::OutOfTurn { step, kind });
            }
        }
    }
}

impl AcceptorPart {
    /// Begins to offer, now that the peer may hear of it.
    fn go_on(&mut self, conversation: &mut Conversation<AcceptorEvent>, version: Version) {
        if self.seeks_device {
            self.deferred.push_back(AcceptorEvent::FindDevice);
            self.state = State::AwaitDevice(version);
        } else {
            self.offer(conversation, version);
        }
    }

    fn offer(&mut self, conversation: &mut Conversation<AcceptorEvent>, version: Version) {
        self.ours.host = HostTags::new(&self.host, End::Acceptor, conversation.hellos());
        conversation.send(&Message::Offer(self.ours.clone()));
        self.state = State::AwaitOffer(version);
    }

    fn resume(&mut self, conversation: &mut Conversation<AcceptorEvent>, resume: &Resume) {
        let answer = match self.answer(conversation, resume) {
            Ok(answer) => answer,
            Err(error) => return conversation.fail(error),
        };
        if resume.fabric == FabricKind::Verbs {
            self.state = State::AwaitResumePair(answer);
            return;
        }
        let ResumeAnswer { session, proof } = answer;
        conversation.send(&Message::Resumed(Resumed { proof }));
        conversation.succeed(AcceptorEvent::Resumed(session));
    }

    /// Answers a resumption. A peer without the secret learns nothing about epochs.
    fn answer(
        &self,
        conversation: &Conversation<AcceptorEvent>,
        resume: &Resume,
    ) -> Result<ResumeAnswer, HandshakeError> {
        let refused = |refusal| HandshakeError::NotResumed { refusal };
        let find = |sessions: &Arc<dyn ResumableSessions>| sessions.find(&resume.session_id);
        let session = self.resumable.as_ref().and_then(find);
        let session = session.ok_or(refused(ResumeRefusal::NoSuchSession))?;
        let prologue = conversation.prologue();
        let claim = ResumptionClaim {
            session_id: &resume.session_id,
            epoch: resume.epoch,
            fabric: resume.fabric,
            prologue: &prologue,
        };
        if !claim.is_proven(End::Dialer, &session.secret, &resume.proof) {
            return Err(refused(ResumeRefusal::WrongProof));
        }
        if conversation.authenticated_as() != session.authenticated_as {
            return Err(refused(ResumeRefusal::OtherIdentity));
        }
        if resume.epoch <= session.epoch {
            return Err(refused(ResumeRefusal::OldEpoch));
        }
        if let Some(why) = session.obstacle(resume.fabric) {
            let why = Text::new(&why);
            return Err(HandshakeError::NotOverFabric { why });
        }
        let proof = claim.proof(End::Acceptor, &session.secret);
        let session = ResumedSession {
            session_id: resume.session_id,
            epoch: resume.epoch,
            fabric: resume.fabric,
        };
        Ok(ResumeAnswer { session, proof })
    }

    fn follow(
        &mut self,
        conversation: &mut Conversation<AcceptorEvent>,
        step: HandshakeStep,
        course: OfferedTerms,
        choice: FabricChoice,
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
                let name = ShmEndpoint::name(&self.entropy.token);
                self.deferred.push_back(AcceptorEvent::ListenUnix { name });
                self.state = State::AwaitListening(course, choice);
            }
            FabricKind::Tcp => {
                conversation.send(&Message::Endpoint(Endpoint::Tcp));
                self.state = State::AwaitReady {
                    course,
                    choice,
                    way: ReadyCondition::Tcp,
                };
            }
            FabricKind::Verbs => {
                self.deferred.push_back(AcceptorEvent::PreparePair);
                self.state = State::AwaitPrepared(course, choice);
            }
        }
    }

    fn decline(
        &mut self,
        conversation: &mut Conversation<AcceptorEvent>,
        course: OfferedTerms,
        fabric: FabricKind,
        why: &str,
    ) {
        conversation.send(&Message::Unavailable(Unavailable {
            fabric,
            reason: Text::new(why),
        }));
        self.state = State::AwaitChoice(course);
    }

    fn finish(
        &mut self,
        conversation: &mut Conversation<AcceptorEvent>,
        course: OfferedTerms,
        choice: FabricChoice,
        process: Option<u32>,
    ) {
        let session = SessionSecrets {
            id: self.entropy.session_id,
            resume: self.entropy.resume_secret.clone(),
        };
        let ready = self
            .ours
            .ready(&course.theirs, self.host.pid, Some(session));
        conversation.send(&Message::Ready(ready));
        let prologue = conversation.prologue();
        let lack = negotiate::own_lack(End::Acceptor, &self.ours, &course.theirs, choice.fabric);
        let agreement = Agreement {
            stated_pid: process.filter(|_| self.ours.host.share_pids(&course.theirs.host)),
            no_tcp: negotiate::exclusion(&course.theirs, &self.ours, FabricKind::Tcp),
            payload_checksums: negotiate::payload_checksums(
                &self.ours,
                &course.theirs,
                conversation.is_sealed(),
            ),
            peer: course.theirs,
            version: course.version,
            features: conversation.common_features(),
            session_id: self.entropy.session_id,
            resume_secret: self.entropy.resume_secret.clone(),
            fabric: choice.fabric,
            reason: format!("{}{lack}", choice.reason),
            prologue,
            authenticated_as: conversation.authenticated_as(),
            place: course.place,
        };
        conversation.succeed(AcceptorEvent::Agreed(Box::new(agreement)));
    }
}
