//! A common interface to the ends of the bootstrap's handshakes.
//!
//! The state machines differ in their inputs and outputs. Here they are alike: what they want of a
//! host is an [`Errand`], and they end with [`Met`] or an error.
#![forbid(unsafe_code)]

use std::time::Instant;

use ibex_base::tls::AuthenticatedAs;
use ibex_bootstrap::{
    FabricKind, HandshakeError, Incarnation, NodeIdentity, ResumeTicket, Secret, VerbsDevice,
    handshake::{
        AcceptorEvent, AcceptorPart, Agreement, DialerEvent, DialerPart, Handshake, HandshakeStep,
        Part, ResumedSession, ResumerEvent, ResumerPart,
    },
    message::VerbsEndpoint,
};

/// An end of a handshake.
pub(super) trait Machine {
    fn handle_bytes(&mut self, bytes: &[u8]);
    fn handle_closed(&mut self);
    fn handle_timeout(&mut self, now: Instant);
    /// Handles the result of an errand.
    fn handle_answer(&mut self, answer: Answer);
    /// Handles a token presented at the Unix socket. Returns whether it is the right one.
    fn handle_token(&mut self, token: &Secret) -> bool;
    fn poll_transmit(&mut self) -> Option<Vec<u8>>;
    fn poll_told(&mut self) -> Option<Told>;
    fn step(&self) -> HandshakeStep;
    fn is_sealed(&self) -> bool;
    fn into_leftover(self: Box<Self>) -> Vec<u8>;
}

/// An output of a machine to its host.
pub(super) enum Told {
    /// An errand, to which the machine expects an answer.
    Errand(Errand),
    /// An errand is to be undone, which the simulation ignores.
    Undo,
    /// The handshake succeeded, and the connection belongs to a session.
    Met(Met),
    /// The handshake failed.
    Failed(HandshakeError),
}

/// A task that a machine asks of its host.
#[derive(Debug)]
pub(super) enum Errand {
    FindDevice,
    PreparePair,
    ConnectPair(VerbsEndpoint),
    ListenUnix,
    /// Presents the token at the peer's Unix socket.
    ConnectUnix(Secret),
}

/// The result of an errand.
#[derive(Debug)]
pub(super) enum Answer {
    Device(Result<VerbsDevice, String>),
    Prepared(Result<VerbsEndpoint, String>),
    Connected(Result<(), String>),
    Listening(Result<(), String>),
    Unix(Result<(), String>),
}

/// The outcome of a handshake.
#[derive(Clone, Debug)]
pub(super) struct Met {
    pub(super) session: [u8; 16],
    /// The secret of a new session; `None` for a resumed one.
    pub(super) secret: Option<Secret>,
    /// The epoch; 0 for a new session.
    pub(super) epoch: u64,
    pub(super) fabric: FabricKind,
    /// The node that began the session with this one, and its incarnation.
    peer: Option<(NodeIdentity, Incarnation)>,
    /// The peer's proven identity, if nodes are authenticated.
    authenticated_as: Option<AuthenticatedAs>,
}

/// The part of the interface in which the machines differ.
trait OwnPart: Part {
    fn told(event: Self::Event) -> Told;

    fn answer(machine: &mut Handshake<Self>, answer: Answer);

    /// Only a listening end has a token to compare.
    fn shows_token(_: &mut Handshake<Self>, _: &Secret) -> bool {
        false
    }
}

impl<P: OwnPart> Machine for Handshake<P> {
    fn handle_bytes(&mut self, bytes: &[u8]) {
        Handshake::handle_bytes(self, bytes);
    }

    fn handle_closed(&mut self) {
        Handshake::handle_closed(self, None);
    }

    fn handle_timeout(&mut self, now: Instant) {
        Handshake::handle_timeout(self, now);
    }

    fn handle_answer(&mut self, answer: Answer) {
        P::answer(self, answer);
    }

    fn handle_token(&mut self, token: &Secret) -> bool {
        P::shows_token(self, token)
    }

    fn poll_transmit(&mut self) -> Option<Vec<u8>> {
        Handshake::poll_transmit(self)
    }

    fn poll_told(&mut self) -> Option<Told> {
        self.poll_event().map(P::told)
    }

    fn step(&self) -> HandshakeStep {
        Handshake::step(self)
    }

    fn is_sealed(&self) -> bool {
        Handshake::is_sealed(self)
    }

    fn into_leftover(self: Box<Self>) -> Vec<u8> {
        Handshake::into_leftover(*self)
    }
}

impl OwnPart for DialerPart {
    fn told(event: DialerEvent) -> Told {
        match event {
            DialerEvent::FindDevice => Told::Errand(Errand::FindDevice),
            DialerEvent::PreparePair => Told::Errand(Errand::PreparePair),
            DialerEvent::ConnectPair(theirs) => Told::Errand(Errand::ConnectPair(*theirs)),
            DialerEvent::ConnectUnix { token, .. } => Told::Errand(Errand::ConnectUnix(token)),
            DialerEvent::ClosePair => Told::Undo,
            DialerEvent::Agreed(agreement) => Told::Met(Met::begins(&agreement)),
            DialerEvent::Failed(error) => Told::Failed(error),
        }
    }

    fn answer(machine: &mut Handshake<Self>, answer: Answer) {
        match answer {
            Answer::Device(found) => machine.handle_device(found),
            Answer::Prepared(outcome) => machine.handle_prepared(outcome),
            Answer::Connected(outcome) => machine.handle_connected(outcome),
            Answer::Unix(outcome) => machine.handle_unix(outcome),
            Answer::Listening(_) => unreachable!("who dials does not listen"),
        }
    }
}

impl OwnPart for ResumerPart {
    fn told(event: ResumerEvent) -> Told {
        match event {
            ResumerEvent::PreparePair => Told::Errand(Errand::PreparePair),
            ResumerEvent::ConnectPair(theirs) => Told::Errand(Errand::ConnectPair(*theirs)),
            ResumerEvent::Resumed(session) => Told::Met(Met::goes_on(&session)),
            ResumerEvent::Failed(error) => Told::Failed(error),
        }
    }

    fn answer(machine: &mut Handshake<Self>, answer: Answer) {
        match answer {
            Answer::Prepared(outcome) => machine.handle_prepared(outcome),
            Answer::Connected(outcome) => machine.handle_connected(outcome),
            other => unreachable!("a session that goes on asks for no {other:?}"),
        }
    }
}

impl OwnPart for AcceptorPart {
    fn told(event: AcceptorEvent) -> Told {
        match event {
            AcceptorEvent::FindDevice => Told::Errand(Errand::FindDevice),
            AcceptorEvent::PreparePair => Told::Errand(Errand::PreparePair),
            AcceptorEvent::ConnectPair(theirs) => Told::Errand(Errand::ConnectPair(*theirs)),
            AcceptorEvent::ListenUnix { .. } => Told::Errand(Errand::ListenUnix),
            AcceptorEvent::CloseUnix | AcceptorEvent::ClosePair => Told::Undo,
            AcceptorEvent::Agreed(agreement) => Told::Met(Met::begins(&agreement)),
            AcceptorEvent::Resumed(session) => Told::Met(Met::goes_on(&session)),
            AcceptorEvent::Failed(error) => Told::Failed(error),
        }
    }

    fn answer(machine: &mut Handshake<Self>, answer: Answer) {
        match answer {
            Answer::Device(found) => machine.handle_device(found),
            Answer::Prepared(outcome) => machine.handle_prepared(outcome),
            Answer::Connected(outcome) => machine.handle_connected(outcome),
            Answer::Listening(outcome) => machine.handle_listening(outcome),
            Answer::Unix(_) => unreachable!("who listens does not connect"),
        }
    }

    fn shows_token(machine: &mut Handshake<Self>, token: &Secret) -> bool {
        machine.handle_token(token.expose())
    }
}

impl Met {
    fn begins(agreement: &Agreement) -> Self {
        Self {
            session: agreement.session_id,
            secret: Some(agreement.resume_secret.clone()),
            epoch: 0,
            fabric: agreement.fabric,
            peer: Some((agreement.peer.identity, agreement.peer.incarnation)),
            authenticated_as: agreement.authenticated_as.clone(),
        }
    }

    fn goes_on(session: &ResumedSession) -> Self {
        Self {
            session: session.session_id,
            secret: None,
            epoch: session.epoch,
            fabric: session.fabric,
            peer: None,
            authenticated_as: None,
        }
    }

    /// Returns whether both ends of a handshake agree on the outcome.
    pub(super) fn agrees_with(&self, other: &Self) -> bool {
        self.session == other.session
            && self.secret == other.secret
            && self.epoch == other.epoch
            && self.fabric == other.fabric
    }

    /// Returns the ticket by which this side can resume a new session.
    pub(super) fn ticket(&self) -> Option<ResumeTicket> {
        let (peer, incarnation) = self.peer?;
        Some(ResumeTicket {
            authenticated_as: self.authenticated_as.clone(),
            session_id: self.session,
            secret: self.secret.clone()?,
            peer,
            incarnation,
            epoch: self.epoch,
            fabric: self.fabric,
        })
    }
}
