//! The end that connected: it speaks first, chooses the fabric, and falls back
//! to another when the first cannot be reached.

use std::collections::VecDeque;
use std::time::Instant;

use super::conversation::Conversation;
use super::machine::{Handshake, Part};
use super::{Agreement, HandshakeStep};
use crate::error::HandshakeError;
use crate::fabric::{FabricKind, VerbsDevice};
use crate::identity::{HostHint, Secret};
use crate::local::Local;
use crate::message::{
    Endpoint, FabricChoice, HandshakeMessage, HostTags, Offer, Ready, SessionSecrets, ShmEndpoint,
    Text, VerbsEndpoint, Version,
};
use crate::negotiate::{self, Chosen, Party, RuledOut};
use crate::places::{Place, Places};

/// The dialer's side of one handshake.
pub type DialerHandshake = Handshake<DialerPart>;

/// The steps of a dialer.
pub struct DialerPart {
    host: HostHint,
    ours: Offer,
    places: Places,
    state: State,
    /// Set where this node may have an RDMA device.
    seeks_device: bool,
    /// Tasks for the driver about sockets and queue pairs, each told once, in order.
    deferred: VecDeque<DialerEvent>,
}

/// An event that a dialer's driver has to act on.
#[derive(Debug)]
pub enum DialerEvent {
    /// Connect a `SOCK_SEQPACKET` socket to this name, present the
    /// token, wait for the answer, and report to
    /// [`handle_unix`](DialerHandshake::handle_unix).
    ConnectUnix {
        /// The name.
        name: Vec<u8>,
        /// True if it is in the node's directory, false if it is abstract.
        in_directory: bool,
        /// The token to present there.
        token: Secret,
    },
    /// Ask for the RDMA device for this connection and report to
    /// [`handle_device`](DialerHandshake::handle_device).
    FindDevice,
    /// Make a queue pair and report to
    /// [`handle_prepared`](DialerHandshake::handle_prepared).
    PreparePair,
    /// Connect that queue pair and report to
    /// [`handle_connected`](DialerHandshake::handle_connected).
    ConnectPair(Box<VerbsEndpoint>),
    /// Another fabric is chosen: drop the queue pair.
    ClosePair,
    /// The handshake is over; write out what `poll_transmit` still has.
    Agreed(Box<Agreement>),
    /// The handshake is over; what `poll_transmit` still has tells the peer why.
    Failed(HandshakeError),
}

enum State {
    AwaitHello,
    AwaitBinding(Version),
    AwaitDevice(Version),
    AwaitOffer(Version),
    /// Awaits nothing more, since the two Hellos do not go together.
    AwaitEnd,
    AwaitEndpoint(ChosenTerms),
    AwaitUnix(ChosenTerms),
    /// Waits for this end's queue pair, to be connected with the peer's.
    AwaitPrepared(ChosenTerms, Box<VerbsEndpoint>),
    /// Waits until this end's queue pair, described here, is connected.
    AwaitConnected(ChosenTerms, Box<VerbsEndpoint>),
    AwaitReady(ChosenTerms),
    Over,
}

/// Everything known from the choice on.
struct ChosenTerms {
    version: Version,
    theirs: Offer,
    chosen: Chosen,
    ruled_out: Vec<RuledOut>,
    place: Place,
}

impl Handshake<DialerPart> {
    /// Creates a handshake that begins now and must be over by `deadline`. `nonce` is fresh random
    /// bytes.
    pub fn new(
        local: &Local,
        host: HostHint,
        nonce: [u8; 16],
        now: Instant,
        deadline: Instant,
    ) -> Handshake<DialerPart> {
        let hello = local.hello(nonce);
        let mut conversation = Conversation::new(Party::Dialer, hello, local, now, deadline);
        conversation.send_hello();
        let part = DialerPart {
            host,
            ours: local.offer(),
            places: local.places.clone(),
            state: State::AwaitHello,
            seeks_device: local.usable_devices().is_some(),
            deferred: VecDeque::new(),
        };
        Handshake { conversation, part }
    }

    /// Notes that the Unix socket is connected and the token accepted, or the reason why not.
    pub fn handle_unix(&mut self, outcome: Result<(), String>) {
        let (part, conversation) = (&mut self.part, &mut self.conversation);
        match (std::mem::replace(&mut part.state, State::Over), outcome) {
            (State::AwaitUnix(terms), Ok(())) => part.become_ready(conversation, terms),
            (State::AwaitUnix(terms), Err(why)) => part.fall_back(conversation, terms, why),
            // The handshake has ended meanwhile: nothing waits for the result of this work.
            (state, _) => part.state = state,
        }
    }

    /// Notes that this process, which may open `limit` files, can open too few for the Unix socket
    /// and the session behind it.
    pub fn handle_shortage(&mut self, limit: u32) {
        if let State::AwaitUnix(_) = self.part.state {
            self.part.state = State::Over;
            let end = Party::Dialer;
            self.conversation
                .fail(HandshakeError::Descriptors { end, limit });
        }
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
        // The peer's Offer usually came with its Hello.
        self.read_messages();
    }

    /// Takes the queue pair that was made, or the reason why there is none.
    pub fn handle_prepared(&mut self, outcome: Result<VerbsEndpoint, String>) {
        let (part, conversation) = (&mut self.part, &mut self.conversation);
        match (std::mem::replace(&mut part.state, State::Over), outcome) {
            (State::AwaitPrepared(terms, theirs), Ok(ours)) => {
                match negotiate::gid_types(ours.address.gid_type, theirs.address.gid_type) {
                    Ok(()) => {
                        part.deferred.push_back(DialerEvent::ConnectPair(theirs));
                        part.state = State::AwaitConnected(terms, Box::new(ours));
                    }
                    Err(why) => part.leave_verbs(conversation, terms, why),
                }
            }
            (State::AwaitPrepared(terms, _), Err(why)) => {
                let why = Party::Dialer.cannot_prepare(&why);
                part.fall_back(conversation, terms, why);
            }
            (state, _) => part.state = state,
        }
        self.read_messages();
    }

    /// Notes that the queue pair is connected, or the reason why it is not.
    pub fn handle_connected(&mut self, outcome: Result<(), String>) {
        let (part, conversation) = (&mut self.part, &mut self.conversation);
        match (std::mem::replace(&mut part.state, State::Over), outcome) {
            (State::AwaitConnected(terms, ours), Ok(())) => {
                conversation.send(&HandshakeMessage::Endpoint(Endpoint::Verbs(*ours)));
                part.become_ready(conversation, terms);
            }
            (State::AwaitConnected(terms, _), Err(why)) => {
                let why = Party::Dialer.cannot_connect(&why);
                part.leave_verbs(conversation, terms, why);
            }
            (state, _) => part.state = state,
        }
        self.read_messages();
    }
}

impl Part for DialerPart {
    type Event = DialerEvent;

    fn step(&self) -> HandshakeStep {
        match &self.state {
            State::AwaitHello => HandshakeStep::Hello,
            State::AwaitBinding(_) => HandshakeStep::Binding,
            State::AwaitDevice(_) => HandshakeStep::Device,
            State::AwaitOffer(_) | State::AwaitEnd => HandshakeStep::Offer,
            State::AwaitEndpoint(_) => HandshakeStep::Endpoint,
            State::AwaitUnix(_) => HandshakeStep::UnixSocket,
            State::AwaitPrepared(..) | State::AwaitConnected(..) => HandshakeStep::QueuePair,
            State::AwaitReady(_) => HandshakeStep::Ready,
            State::Over => HandshakeStep::Finished,
        }
    }

    fn ours(&self) -> Option<&Offer> {
        Some(&self.ours)
    }

    fn takes_messages(&self) -> bool {
        !self.step().is_ours()
    }

    fn take_deferred(&mut self) -> Option<DialerEvent> {
        self.deferred.pop_front()
    }

    fn failed(error: HandshakeError) -> DialerEvent {
        DialerEvent::Failed(error)
    }

    fn handle_message(
        &mut self,
        conversation: &mut Conversation<DialerEvent>,
        message: HandshakeMessage,
    ) {
        let step = self.step();
        match (std::mem::replace(&mut self.state, State::Over), message) {
            (State::AwaitHello, HandshakeMessage::Hello(theirs)) => match conversation
                .settle(&theirs)
            {
                Ok(version) if conversation.secure() => self.state = State::AwaitBinding(version),
                Ok(version) => self.go_on(conversation, version),
                Err(conflict) => {
                    conversation.suspect(conflict);
                    self.state = State::AwaitEnd;
                }
            },
            (State::AwaitBinding(version), HandshakeMessage::Binding(_)) => {
                self.go_on(conversation, version);
            }
            (State::AwaitOffer(version), HandshakeMessage::Offer(mut theirs)) => {
                let expected = HostTags::new(&self.host, Party::Acceptor, conversation.hellos());
                theirs.host = theirs.host.recognized(&self.ours.host, &expected);
                let proven = conversation.authenticated_as();
                let (peer, run) = (theirs.identity, theirs.incarnation);
                match self.places.take(peer, run, proven, conversation.started()) {
                    Ok(place) => self.choose(conversation, version, theirs, place, Vec::new()),
                    Err(limit) => {
                        let end = Party::Dialer;
                        conversation.fail(HandshakeError::TooManySessions { end, limit });
                    }
                }
            }
            (State::AwaitEndpoint(terms), HandshakeMessage::Endpoint(endpoint))
                if endpoint.fabric() == terms.chosen.fabric =>
            {
                self.go_to(conversation, endpoint, terms);
            }
            (State::AwaitEndpoint(terms), HandshakeMessage::Unavailable(unavailable))
                if unavailable.fabric == terms.chosen.fabric =>
            {
                self.fall_back(conversation, terms, unavailable.reason.to_string());
            }
            // The acceptor could not connect its queue pair with this end's.
            (State::AwaitReady(terms), HandshakeMessage::Unavailable(unavailable))
                if unavailable.fabric == FabricKind::Verbs
                    && terms.chosen.fabric == FabricKind::Verbs =>
            {
                self.leave_verbs(conversation, terms, unavailable.reason.to_string());
            }
            (
                State::AwaitReady(terms),
                HandshakeMessage::Ready(Ready {
                    process,
                    session: Some(session),
                }),
            ) => {
                self.finish(conversation, terms, process, session);
            }
            (_, message) => {
                let kind = message.kind();
                conversation.fail(HandshakeError::OutOfTurn { step, kind });
            }
        }
    }
}

impl DialerPart {
    /// Begins to offer, now that the peer may hear of it.
    fn go_on(&mut self, conversation: &mut Conversation<DialerEvent>, version: Version) {
        if self.seeks_device {
            self.deferred.push_back(DialerEvent::FindDevice);
            self.state = State::AwaitDevice(version);
        } else {
            self.offer(conversation, version);
        }
    }

    fn offer(&mut self, conversation: &mut Conversation<DialerEvent>, version: Version) {
        self.ours.host = HostTags::new(&self.host, Party::Dialer, conversation.hellos());
        conversation.send(&HandshakeMessage::Offer(self.ours.clone()));
        self.state = State::AwaitOffer(version);
    }

    /// Picks a fabric that was not tried yet and asks for its endpoint. The choosing terminates,
    /// because `ruled_out` grows by one known fabric each time.
    fn choose(
        &mut self,
        conversation: &mut Conversation<DialerEvent>,
        version: Version,
        theirs: Offer,
        place: Place,
        ruled_out: Vec<RuledOut>,
    ) {
        match negotiate::fabric(&self.ours, &theirs, &ruled_out) {
            Ok(chosen) => {
                conversation.send(&HandshakeMessage::Choice(FabricChoice {
                    fabric: chosen.fabric,
                    reason: Text::new(&chosen.reason),
                }));
                self.state = State::AwaitEndpoint(ChosenTerms {
                    version,
                    theirs,
                    chosen,
                    ruled_out,
                    place,
                });
            }
            Err(conflict) => conversation.fail(conflict.into()),
        }
    }

    fn fall_back(
        &mut self,
        conversation: &mut Conversation<DialerEvent>,
        mut terms: ChosenTerms,
        why: String,
    ) {
        terms.ruled_out.push(RuledOut {
            fabric: terms.chosen.fabric,
            why,
        });
        let ChosenTerms {
            version,
            theirs,
            ruled_out,
            place,
            ..
        } = terms;
        self.choose(conversation, version, theirs, place, ruled_out);
    }

    /// Falls back from verbs when there is a queue pair already.
    fn leave_verbs(
        &mut self,
        conversation: &mut Conversation<DialerEvent>,
        terms: ChosenTerms,
        why: String,
    ) {
        conversation.speak_again();
        self.deferred.push_back(DialerEvent::ClosePair);
        self.fall_back(conversation, terms, why);
    }

    fn go_to(
        &mut self,
        conversation: &mut Conversation<DialerEvent>,
        endpoint: Endpoint,
        terms: ChosenTerms,
    ) {
        match endpoint {
            Endpoint::Shm(endpoint) => {
                self.deferred.push_back(DialerEvent::ConnectUnix {
                    name: ShmEndpoint::name(&endpoint.token),
                    in_directory: self.ours.meets_in_directory(&terms.theirs),
                    token: endpoint.token,
                });
                self.state = State::AwaitUnix(terms);
            }
            Endpoint::Tcp => self.become_ready(conversation, terms),
            Endpoint::Verbs(theirs) => {
                self.deferred.push_back(DialerEvent::PreparePair);
                self.state = State::AwaitPrepared(terms, Box::new(theirs));
            }
        }
    }

    fn become_ready(&mut self, conversation: &mut Conversation<DialerEvent>, terms: ChosenTerms) {
        let ready = self.ours.ready(&terms.theirs, self.host.pid, None);
        conversation.send(&HandshakeMessage::Ready(ready));
        // The acceptor's session may have begun with *Ready*, and would read more as a frame.
        conversation.be_quiet();
        self.state = State::AwaitReady(terms);
    }

    fn finish(
        &mut self,
        conversation: &mut Conversation<DialerEvent>,
        terms: ChosenTerms,
        process: Option<u32>,
        session: SessionSecrets,
    ) {
        let prologue = conversation.prologue();
        let agreement = Agreement {
            stated_pid: process.filter(|_| self.ours.host.share_pids(&terms.theirs.host)),
            no_tcp: negotiate::exclusion(&self.ours, &terms.theirs, FabricKind::Tcp),
            payload_checksums: negotiate::payload_checksums(
                &self.ours,
                &terms.theirs,
                conversation.is_sealed(),
            ),
            peer: terms.theirs,
            version: terms.version,
            features: conversation.common_features(),
            session_id: session.id,
            resume_secret: session.resume,
            fabric: terms.chosen.fabric,
            reason: terms.chosen.reason,
            prologue,
            authenticated_as: conversation.authenticated_as(),
            place: terms.place,
        };
        conversation.succeed(DialerEvent::Agreed(Box::new(agreement)));
    }
}
