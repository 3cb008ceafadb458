//! The end that listened: it speaks second, provides the endpoint of whatever
//! fabric the dialer chooses, and draws the session's secrets.

mod answers;
mod resuming;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use super::acceptor_entropy::AcceptorEntropy;
use super::conversation::Conversation;
use super::machine::{Handshake, Part};
use super::{Agreement, HandshakeStep, ResumedSession};
use crate::error::HandshakeError;
use crate::fabric::FabricKind;
use crate::identity::HostHint;
use crate::local::Local;
use crate::message::{
    Endpoint, FabricChoice, GidKind, HandshakeMessage, HostTags, MessageError, Offer, Ready,
    SessionSecrets, ShmEndpoint, Text, Unavailable, VerbsEndpoint, Version,
};
use crate::negotiate;
use crate::party::Party;
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

/// An event that an acceptor's driver has to act on.
#[derive(Debug)]
pub enum AcceptorEvent {
    /// Listen on a `SOCK_SEQPACKET` socket of this name and report to
    /// [`handle_listening`](AcceptorHandshake::handle_listening); then show to
    /// [`handle_token`](AcceptorHandshake::handle_token) what connections of
    /// allowed users present.
    ListenUnix {
        /// The name.
        name: Vec<u8>,
        /// True if it is in the node's directory, false if it is abstract.
        in_directory: bool,
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
    AwaitPair(OfferedTerms, FabricChoice, GidKind),
    AwaitReady {
        terms: OfferedTerms,
        choice: FabricChoice,
        condition: ReadyCondition,
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
            conversation: Conversation::new(Party::Acceptor, hello, local, now, deadline),
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

    fn handle_message(
        &mut self,
        conversation: &mut Conversation<AcceptorEvent>,
        message: HandshakeMessage,
    ) {
        let step = self.step();
        match (std::mem::replace(&mut self.state, State::Over), message) {
            (State::AwaitHello, HandshakeMessage::Hello(theirs)) => {
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
            (State::AwaitBinding(version), HandshakeMessage::Binding(_)) => {
                self.go_on(conversation, version);
            }
            (State::AwaitOffer(version), HandshakeMessage::Offer(mut theirs)) => {
                let expected = HostTags::new(&self.host, Party::Dialer, conversation.hellos());
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
                    let end = Party::Acceptor;
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
                        let end = Party::Acceptor;
                        conversation.fail(HandshakeError::TooManySessions { end, limit });
                    }
                }
            }
            (State::AwaitOffer(_), HandshakeMessage::Resume(resume)) => {
                self.resume(conversation, &resume);
            }
            (
                State::AwaitResumePair(answer),
                HandshakeMessage::Endpoint(Endpoint::Verbs(theirs)),
            ) => {
                self.deferred.push_back(AcceptorEvent::PreparePair);
                self.state = State::AwaitResumePrepared(answer, Box::new(theirs));
            }
            (
                State::AwaitResumeReady(session),
                HandshakeMessage::Ready(Ready { session: None, .. }),
            ) => {
                conversation.succeed(AcceptorEvent::Resumed(session));
            }
            (State::AwaitChoice(terms), HandshakeMessage::Choice(choice)) => {
                self.follow(conversation, step, terms, choice);
            }
            (
                State::AwaitReady {
                    terms, condition, ..
                },
                HandshakeMessage::Choice(choice),
            ) => {
                self.deferred.extend(condition.close());
                self.follow(conversation, step, terms, choice);
            }
            (State::AwaitPair(terms, ..), HandshakeMessage::Choice(choice)) => {
                self.deferred.push_back(AcceptorEvent::ClosePair);
                self.follow(conversation, step, terms, choice);
            }
            (
                State::AwaitPair(terms, choice, gid_type),
                HandshakeMessage::Endpoint(Endpoint::Verbs(theirs)),
            ) => match negotiate::gid_types(theirs.address.gid_type, gid_type) {
                Ok(()) => {
                    let condition = ReadyCondition::Verbs(Box::new(theirs));
                    self.state = State::AwaitReady {
                        terms,
                        choice,
                        condition,
                    };
                }
                // The dialer knew the type of the acceptor's GID before it sent its own.
                Err(_) => {
                    let (field, value) = ("gid type", theirs.address.gid_type.to_wire().into());
                    let problem = MessageError::UnknownValue { field, value };
                    conversation.fail(HandshakeError::Malformed { step, problem });
                }
            },
            (
                State::AwaitReady {
                    terms,
                    choice,
                    condition: ReadyCondition::Verbs(theirs),
                },
                HandshakeMessage::Ready(Ready {
                    process,
                    session: None,
                }),
            ) => {
                self.deferred.push_back(AcceptorEvent::ConnectPair(theirs));
                self.state = State::AwaitConnected(terms, choice, process);
            }
            (
                State::AwaitReady {
                    terms,
                    choice,
                    condition: ReadyCondition::Tcp | ReadyCondition::Unix { joined: true },
                },
                HandshakeMessage::Ready(Ready {
                    process,
                    session: None,
                }),
            ) => self.finish(conversation, terms, choice, process),
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
        self.ours.host = HostTags::new(&self.host, Party::Acceptor, conversation.hellos());
        conversation.send(&HandshakeMessage::Offer(self.ours.clone()));
        self.state = State::AwaitOffer(version);
    }

    fn follow(
        &mut self,
        conversation: &mut Conversation<AcceptorEvent>,
        step: HandshakeStep,
        terms: OfferedTerms,
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
        if let Err(conflict) = negotiate::permitted(&terms.theirs, &self.ours, choice.fabric) {
            conversation.fail(conflict.into());
            return;
        }
        match choice.fabric {
            FabricKind::Shm => {
                let name = ShmEndpoint::name(&self.entropy.token);
                let in_directory = self.ours.meets_in_directory(&terms.theirs);
                self.deferred
                    .push_back(AcceptorEvent::ListenUnix { name, in_directory });
                self.state = State::AwaitListening(terms, choice);
            }
            FabricKind::Tcp => {
                conversation.send(&HandshakeMessage::Endpoint(Endpoint::Tcp));
                self.state = State::AwaitReady {
                    terms,
                    choice,
                    condition: ReadyCondition::Tcp,
                };
            }
            FabricKind::Verbs => {
                self.deferred.push_back(AcceptorEvent::PreparePair);
                self.state = State::AwaitPrepared(terms, choice);
            }
        }
    }

    fn decline(
        &mut self,
        conversation: &mut Conversation<AcceptorEvent>,
        terms: OfferedTerms,
        fabric: FabricKind,
        why: &str,
    ) {
        conversation.send(&HandshakeMessage::Unavailable(Unavailable {
            fabric,
            reason: Text::new(why),
        }));
        self.state = State::AwaitChoice(terms);
    }

    fn finish(
        &mut self,
        conversation: &mut Conversation<AcceptorEvent>,
        terms: OfferedTerms,
        choice: FabricChoice,
        process: Option<u32>,
    ) {
        let session = SessionSecrets {
            id: self.entropy.session_id,
            resume: self.entropy.resume_secret.clone(),
        };
        let ready = self.ours.ready(&terms.theirs, self.host.pid, Some(session));
        conversation.send(&HandshakeMessage::Ready(ready));
        let prologue = conversation.prologue();
        let lack = negotiate::own_lack(Party::Acceptor, &self.ours, &terms.theirs, choice.fabric);
        let agreement = Agreement {
            stated_pid: process.filter(|_| self.ours.host.share_pids(&terms.theirs.host)),
            no_tcp: negotiate::exclusion(&terms.theirs, &self.ours, FabricKind::Tcp),
            payload_checksums: negotiate::payload_checksums(
                &self.ours,
                &terms.theirs,
                conversation.is_sealed(),
            ),
            peer: terms.theirs,
            version: terms.version,
            features: conversation.common_features(),
            session_id: self.entropy.session_id,
            resume_secret: self.entropy.resume_secret.clone(),
            fabric: choice.fabric,
            reason: format!("{}{lack}", choice.reason),
            prologue,
            authenticated_as: conversation.authenticated_as(),
            place: terms.place,
        };
        conversation.succeed(AcceptorEvent::Agreed(Box::new(agreement)));
    }
}
