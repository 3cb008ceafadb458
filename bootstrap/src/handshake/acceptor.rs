//! The steps of the end that listened, for a new session: it speaks second, provides the endpoint of
//! whatever fabric the dialer chooses, and draws the session's secrets.

use std::time::Instant;

use ibex_base::field::FieldError;

use super::HandshakeEvent;
use super::HandshakeStep;
use super::acceptor_entropy::AcceptorEntropy;
use super::machine::{Handshake, HandshakeRole, OfferedTerms, State, Terms};
use crate::error::HandshakeError;
use crate::fabric::Fabric;
use crate::identity::{HostHint, Incarnation, NodeIdentity};
use crate::local::Local;
use crate::message::{
    Endpoint, FabricChoice, GidKind, HandshakeMessage, SessionSecrets, ShmEndpoint, Text,
    Unavailable, VerbsEndpoint,
};
use crate::negotiate::{self, Chosen, RuledOut};
use crate::party::Party;
use crate::resumption::ResumableSessions;

/// What only an accepting end has.
pub(super) struct Acceptance {
    pub(super) resumable: ResumableSessions,
    entropy: AcceptorEntropy,
    /// The number of files that this process may open, where it can open too few for a session.
    pub(super) shortage: Option<u32>,
}

impl Acceptance {
    /// Returns the endpoint of shared memory.
    pub(super) fn endpoint(&self) -> ShmEndpoint {
        ShmEndpoint {
            token: self.entropy.token.clone(),
        }
    }
}

/// A condition of the dialer's *Ready*, before it counts.
pub(super) enum ReadyCondition {
    /// The token is presented at the Unix socket.
    Unix { joined: bool },
    /// No condition.
    Tcp,
    /// The dialer has described its queue pair, with which this end's is then connected.
    Verbs(Box<VerbsEndpoint>),
}

impl ReadyCondition {
    pub(super) fn is_met(&self) -> bool {
        !matches!(self, ReadyCondition::Unix { joined: false })
    }

    /// Returns the work that undoes this preparation when another fabric is chosen.
    pub(super) fn close(self) -> Option<HandshakeEvent> {
        match self {
            ReadyCondition::Unix { .. } => Some(HandshakeEvent::CloseUnix),
            ReadyCondition::Tcp => None,
            ReadyCondition::Verbs(_) => Some(HandshakeEvent::ClosePair),
        }
    }
}

impl Handshake {
    /// Creates the handshake of an end that listened. It begins now and must be over by `deadline`.
    pub fn accept(
        local: &Local,
        host: HostHint,
        entropy: AcceptorEntropy,
        now: Instant,
        deadline: Instant,
    ) -> Handshake {
        let nonce = entropy.nonce;
        let role = HandshakeRole::Acceptor(Box::new(Acceptance {
            resumable: local.resumable.clone(),
            entropy,
            shortage: None,
        }));
        Handshake::begin(role, local, host, nonce, (now, deadline))
    }

    /// Provides the endpoint of the fabric that the dialer has chosen.
    pub(super) fn follow(
        &mut self,
        step: HandshakeStep,
        mut offered: OfferedTerms,
        choice: FabricChoice,
    ) {
        let fabric = choice.fabric;
        if offered.ruled_out.iter().any(|tried| tried.fabric == fabric) {
            let field = "choice of fabric";
            let problem = FieldError::Repeated { field }.into();
            return self.fail(HandshakeError::Malformed { step, problem });
        }
        if let Err(conflict) = negotiate::permitted(&offered.theirs, &self.ours, fabric) {
            return self.fail(conflict);
        }
        let why = String::new();
        offered.ruled_out.push(RuledOut { fabric, why });
        let reason = choice.reason.to_string();
        let chosen = Chosen { fabric, reason };
        let terms = Terms { offered, chosen };
        match fabric {
            Fabric::Shm => {
                if let HandshakeRole::Acceptor(acceptance) = &self.role {
                    self.deferred.push_back(HandshakeEvent::ListenUnix {
                        name: ShmEndpoint::name(&acceptance.entropy.token),
                        in_directory: self.ours.meets_in_directory(&terms.offered.theirs),
                    });
                }
                self.state = State::UnixSocket(terms);
            }
            Fabric::Tcp => {
                self.send(HandshakeMessage::Endpoint(Endpoint::Tcp));
                self.state = State::DialerReady(terms, ReadyCondition::Tcp);
            }
            Fabric::Verbs => {
                self.deferred.push_back(HandshakeEvent::PreparePair);
                self.state = State::Prepared(terms, None);
            }
        }
    }

    /// Has the dialer choose another fabric.
    pub(super) fn decline(&mut self, terms: Terms, why: &str) {
        self.send(HandshakeMessage::Unavailable(Unavailable {
            fabric: terms.chosen.fabric,
            reason: Text::new(why),
        }));
        self.state = State::Choice(terms.offered);
    }

    /// Takes the description of the dialer's queue pair.
    pub(super) fn hear_pair(
        &mut self,
        step: HandshakeStep,
        terms: Terms,
        ours: GidKind,
        theirs: VerbsEndpoint,
    ) {
        let gid_type = theirs.address.gid_type;
        if negotiate::gid_types(gid_type, ours).is_ok() {
            let condition = ReadyCondition::Verbs(Box::new(theirs));
            self.state = State::DialerReady(terms, condition);
            return;
        }
        // The dialer knew the type of the acceptor's GID before it sent its own.
        let (field, value) = ("gid type", (gid_type as u8).into());
        let problem = FieldError::UnknownValue { field, value }.into();
        self.fail(HandshakeError::Malformed { step, problem });
    }

    /// Sends the session's secrets, with which it begins.
    pub(super) fn accept_session(&mut self, mut terms: Terms, process: Option<u32>) {
        let HandshakeRole::Acceptor(acceptance) = &self.role else {
            return;
        };
        let session = SessionSecrets {
            id: acceptance.entropy.session_id,
            resume: acceptance.entropy.resume_secret.clone(),
        };
        self.send(self.ready(&terms, Some(session.clone())));
        let theirs = &terms.offered.theirs;
        let fabric = terms.chosen.fabric;
        let lack = negotiate::own_lack(Party::Acceptor, &self.ours, theirs, fabric);
        terms.chosen.reason.push_str(&lack);
        self.agree(terms, process, session);
    }

    /// Returns whether a connection at the Unix socket that presents `bytes` may be part of the
    /// session: `bytes` are the token. The call does not use the token up.
    #[must_use]
    pub fn knows_token(&self, bytes: &[u8]) -> bool {
        match (&self.role, &self.state) {
            (HandshakeRole::Acceptor(acceptance), State::DialerReady(_, awaited))
                if !awaited.is_met() =>
            {
                acceptance.entropy.token.matches(bytes)
            }
            _ => false,
        }
    }

    /// Handles what a connection of an allowed user presents at the Unix socket. Returns true for the
    /// first one with the right token: keep it, and answer it. Otherwise, close that connection and
    /// go on listening.
    #[must_use]
    pub fn handle_token(&mut self, bytes: &[u8]) -> bool {
        let is_right = self.knows_token(bytes);
        if let State::DialerReady(_, condition) = &mut self.state
            && is_right
        {
            *condition = ReadyCondition::Unix { joined: true };
        }
        is_right
    }

    /// Returns the identity that the peer of a new session has offered, and its run, while a
    /// queue pair is made at the accepting end.
    #[must_use]
    pub fn offered(&self) -> Option<(NodeIdentity, Incarnation)> {
        match &self.state {
            State::Prepared(terms, None) => {
                let theirs = &terms.offered.theirs;
                Some((theirs.identity, theirs.incarnation))
            }
            _ => None,
        }
    }
}
