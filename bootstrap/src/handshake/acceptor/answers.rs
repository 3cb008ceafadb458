//! The driver's answers to an acceptor: what it has found, made and received for the handshake.

use super::super::machine::Handshake;
use super::{AcceptorEvent, AcceptorPart, ReadyCondition, ResumeAnswer, State};
use crate::error::HandshakeError;
use crate::fabric::VerbsDevice;
use crate::identity::{Incarnation, NodeIdentity};
use crate::message::{Endpoint, HandshakeMessage, Resumed, ShmEndpoint, VerbsEndpoint};
use crate::negotiate;
use crate::party::Party;

impl Handshake<AcceptorPart> {
    /// Notes that this process, which may open `limit` files, can open too few for a new session.
    /// The peer is told so once it asks for one, or now, if the Unix socket is what is lacking. A
    /// session that resumes needs no more than its connection.
    pub fn handle_shortage(&mut self, limit: u32) {
        let (part, conversation) = (&mut self.part, &mut self.conversation);
        part.shortage = Some(limit);
        if let State::AwaitListening(..) = part.state {
            part.state = State::Over;
            let end = Party::Acceptor;
            conversation.fail(HandshakeError::Descriptors { end, limit });
        }
    }

    /// Takes the outcome of listening at the Unix socket, or the reason why it failed.
    pub fn handle_listening(&mut self, outcome: Result<(), String>) {
        let (part, conversation) = (&mut self.part, &mut self.conversation);
        match (std::mem::replace(&mut part.state, State::Over), outcome) {
            (State::AwaitListening(terms, choice), Ok(())) => {
                let endpoint = Endpoint::Shm(ShmEndpoint {
                    token: part.entropy.token.clone(),
                });
                conversation.send(&HandshakeMessage::Endpoint(endpoint));
                part.state = State::AwaitReady {
                    terms,
                    choice,
                    condition: ReadyCondition::Unix { joined: false },
                };
            }
            (State::AwaitListening(terms, choice), Err(why)) => {
                part.decline(conversation, terms, choice.fabric, &why);
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
            (State::AwaitPrepared(terms, choice), Ok(ours)) => {
                part.state = State::AwaitPair(terms, choice, ours.address.gid_type);
                conversation.send(&HandshakeMessage::Endpoint(Endpoint::Verbs(ours)));
            }
            (State::AwaitPrepared(terms, choice), Err(why)) => {
                let why = Party::Acceptor.cannot_prepare(&why);
                part.decline(conversation, terms, choice.fabric, &why);
            }
            (State::AwaitResumePrepared(answer, theirs), Ok(ours)) => {
                match negotiate::gid_types(theirs.address.gid_type, ours.address.gid_type) {
                    Ok(()) => {
                        part.deferred.push_back(AcceptorEvent::ConnectPair(theirs));
                        part.state = State::AwaitResumeConnected(answer, Box::new(ours));
                    }
                    Err(why) => conversation.fail(HandshakeError::not_over_verbs(&why)),
                }
            }
            (State::AwaitResumePrepared(..), Err(why)) => {
                let why = Party::Acceptor.cannot_prepare(&why);
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
            (State::AwaitConnected(terms, choice, process), Ok(())) => {
                part.finish(conversation, terms, choice, process);
            }
            (State::AwaitConnected(terms, choice, _), Err(why)) => {
                part.deferred.push_back(AcceptorEvent::ClosePair);
                let why = Party::Acceptor.cannot_connect(&why);
                part.decline(conversation, terms, choice.fabric, &why);
            }
            (State::AwaitResumeConnected(answer, ours), Ok(())) => {
                let ResumeAnswer { session, proof } = answer;
                conversation.send(&HandshakeMessage::Resumed(Resumed { proof }));
                conversation.send(&HandshakeMessage::Endpoint(Endpoint::Verbs(*ours)));
                part.state = State::AwaitResumeReady(session);
            }
            (State::AwaitResumeConnected(..), Err(why)) => {
                let why = Party::Acceptor.cannot_connect(&why);
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
                condition: ReadyCondition::Unix { joined: false },
                ..
            }
        );
        awaits && self.part.entropy.token.matches(bytes)
    }

    /// Handles what a connection of an allowed user presents at the Unix socket. Returns true for the
    /// first one with the right token: keep it, and answer it. Otherwise, close that connection and
    /// go on listening.
    #[must_use]
    pub fn handle_token(&mut self, bytes: &[u8]) -> bool {
        match &mut self.part.state {
            State::AwaitReady {
                condition: ReadyCondition::Unix { joined },
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
            State::AwaitPrepared(terms, _) => {
                Some((terms.theirs.identity, terms.theirs.incarnation))
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
