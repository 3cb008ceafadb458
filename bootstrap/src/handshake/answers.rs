//! The driver's answers: what it has found, made and connected for the handshake.

use super::HandshakeEvent;
use super::acceptor::ReadyCondition;
use super::machine::{Handshake, HandshakeRole, State, Terms};
use crate::error::HandshakeError;
use crate::fabric::VerbsDevice;
use crate::message::{Endpoint, HandshakeMessage, VerbsEndpoint};
use crate::negotiate;
use crate::party::Party;

impl Handshake {
    /// Takes the RDMA device for this connection, or the reason why there is none.
    pub fn handle_device(&mut self, found: Result<VerbsDevice, String>) {
        match self.take_state() {
            State::Device(version) => {
                self.ours.set_device(found);
                self.offer(version);
            }
            // The handshake has ended meanwhile: nothing waits for the result of this work.
            state => self.state = state,
        }
        // The peer's next message may be here already.
        self.read_messages();
    }

    /// Notes that the Unix socket is there, or the reason why not: the dialer's is connected and its
    /// token accepted, the acceptor's listens.
    pub fn handle_unix(&mut self, outcome: Result<(), String>) {
        match (self.take_state(), outcome) {
            (State::UnixSocket(terms), Ok(())) => match &self.role {
                HandshakeRole::Acceptor(acceptance) => {
                    let endpoint = Endpoint::Shm(acceptance.endpoint());
                    self.send(HandshakeMessage::Endpoint(endpoint));
                    let condition = ReadyCondition::Unix { joined: false };
                    self.state = State::DialerReady(terms, condition);
                }
                _ => self.become_ready(terms),
            },
            (State::UnixSocket(terms), Err(why)) => self.rule_out(terms, why),
            (state, _) => self.state = state,
        }
        self.read_messages();
    }

    /// Notes that this process, which may open `limit` files, can open too few for a new session.
    /// The handshake ends if the Unix socket is what is lacking. Otherwise an acceptor's peer is told
    /// so once it asks for a new session; a session that resumes needs no more than its connection.
    pub fn handle_shortage(&mut self, limit: u32) {
        if let HandshakeRole::Acceptor(acceptance) = &mut self.role {
            acceptance.shortage = Some(limit);
        }
        if let State::UnixSocket(_) = self.state {
            self.state = State::Over;
            let end = self.side();
            self.fail(HandshakeError::Descriptors { end, limit });
        }
    }

    /// Takes the queue pair that was made, or the reason why there is none.
    pub fn handle_prepared(&mut self, outcome: Result<VerbsEndpoint, String>) {
        let outcome = outcome.map_err(|why| self.side().cannot_prepare(&why));
        match (self.take_state(), outcome) {
            (State::Prepared(terms, Some(theirs)), Ok(ours)) => {
                match self.agree_on_gids(&ours, &theirs) {
                    Ok(()) => {
                        self.connect_pair(theirs);
                        self.state = State::DialerConnected(terms, Box::new(ours));
                    }
                    Err(why) => self.leave_verbs(terms, why),
                }
            }
            (State::Prepared(terms, None), Ok(ours)) => {
                self.state = State::Pair(terms, ours.address.gid_type);
                self.send(HandshakeMessage::Endpoint(Endpoint::Verbs(ours)));
            }
            (State::Prepared(terms, _), Err(why)) => self.rule_out(terms, why),
            (State::AskerPrepared, Ok(ours)) => self.ask(Some(ours)),
            (State::AnswererPrepared(answer, theirs), Ok(ours)) => {
                match self.agree_on_gids(&ours, &theirs) {
                    Ok(()) => {
                        self.connect_pair(theirs);
                        self.state = State::AnswererConnected(answer, Box::new(ours));
                    }
                    Err(why) => self.fail(HandshakeError::not_over_verbs(&why)),
                }
            }
            (State::AskerPrepared | State::AnswererPrepared(..), Err(why)) => {
                self.fail(HandshakeError::not_over_verbs(&why));
            }
            (state, _) => self.state = state,
        }
        self.read_messages();
    }

    /// Notes that the queue pair is connected, or the reason why it is not.
    pub fn handle_connected(&mut self, outcome: Result<(), String>) {
        let outcome = outcome.map_err(|why| self.side().cannot_connect(&why));
        match (self.take_state(), outcome) {
            (State::DialerConnected(terms, ours), Ok(())) => {
                self.send(HandshakeMessage::Endpoint(Endpoint::Verbs(*ours)));
                self.become_ready(terms);
            }
            (State::AcceptorConnected(terms, process), Ok(())) => {
                self.accept_session(terms, process);
            }
            (State::DialerConnected(terms, _) | State::AcceptorConnected(terms, _), Err(why)) => {
                self.leave_verbs(terms, why);
            }
            (State::AskerConnected, Ok(())) => self.be_ready(),
            (State::AnswererConnected(answer, ours), Ok(())) => self.consent(answer, Some(*ours)),
            (State::AskerConnected | State::AnswererConnected(..), Err(why)) => {
                self.fail(HandshakeError::not_over_verbs(&why));
            }
            (state, _) => self.state = state,
        }
        self.read_messages();
    }

    /// Has the driver connect this end's queue pair with the peer's.
    pub(super) fn connect_pair(&mut self, theirs: Box<VerbsEndpoint>) {
        self.deferred.push_back(HandshakeEvent::ConnectPair(theirs));
    }

    fn agree_on_gids(&self, ours: &VerbsEndpoint, theirs: &VerbsEndpoint) -> Result<(), String> {
        let [dialer, acceptor] = match self.side() {
            Party::Dialer => [ours, theirs],
            Party::Acceptor => [theirs, ours],
        };
        negotiate::gid_types(dialer.address.gid_type, acceptor.address.gid_type)
    }

    /// Gives up a queue pair that was made, and with it the choice of verbs.
    pub(super) fn leave_verbs(&mut self, terms: Terms, why: String) {
        self.conversation.is_quiet = false;
        self.deferred.push_back(HandshakeEvent::ClosePair);
        self.rule_out(terms, why);
    }

    /// Gives up the fabric that was chosen, so that another one is.
    pub(super) fn rule_out(&mut self, terms: Terms, why: String) {
        match self.role {
            HandshakeRole::Acceptor(_) => self.decline(terms, &why),
            _ => self.fall_back(terms, why),
        }
    }
}
