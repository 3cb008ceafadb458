//! Both ends of a resumption in memory, for tests: nodes, tickets, and all that the ends say.

use std::time::Instant;

use super::meeting::{ENTROPY, TIMEOUT, host, local};
use super::verbs_tests::endpoint;
use super::*;
use crate::error::HandshakeError;
use crate::identity::NodeIdentity;
use crate::local::Local;
use crate::message::{ALONE, HandshakeMessage, MAGIC, Resume, ResumeRefusal, VerbsEndpoint};
use crate::party::Party;
use crate::resumption::{Resumable, ResumeTicket};

/// Both ends of a resumption, and all that they say.
pub(super) struct Reunion {
    pub(super) dialer: Handshake,
    pub(super) acceptor: Handshake,
    pub(super) now: Instant,
    pub(super) chunk: usize,
    /// After this many bytes in both directions, everything is lost.
    pub(super) cut_after: usize,
    /// The end, the index and the mask of the byte that is changed on its way.
    pub(super) garbled: Option<(Party, usize, u8)>,
    pub(super) from_dialer: Vec<u8>,
    pub(super) from_acceptor: Vec<u8>,
    delivered: usize,
    /// The queue pairs of the dialer and the acceptor.
    pub(super) pairs: [Pair; 2],
    pub(super) dialer_end: Option<Result<ResumedSession, HandshakeError>>,
    pub(super) acceptor_end: Option<Result<ResumedSession, HandshakeError>>,
}

/// An end's queue pair, and the outcomes of making and connecting it.
pub(super) struct Pair {
    pub(super) prepares: Result<VerbsEndpoint, String>,
    pub(super) connects: Result<(), String>,
    /// The peers that it was connected to.
    pub(super) connected_to: Vec<VerbsEndpoint>,
}

impl Pair {
    fn of(identity: u8) -> Pair {
        Pair {
            prepares: Ok(endpoint(identity)),
            connects: Ok(()),
            connected_to: Vec::new(),
        }
    }

    fn connect(&mut self, theirs: VerbsEndpoint) -> Result<(), String> {
        self.connected_to.push(theirs);
        self.connects.clone()
    }
}

/// The epoch that the tests begin.
pub(super) const EPOCH: u64 = 0x0102;
/// Lengths of what goes over the wire: magic and Hello, Offer, Resume, Resumed.
pub(super) const HELLO: usize = 8 + 2 + 34;
pub(super) const OFFER: usize = 2 + 122 + 4;
pub(super) const RESUME: usize = 2 + 58 + 4;
pub(super) const RESUMED: usize = 2 + 33 + 4;

/// A node with the session in the epoch before [`EPOCH`].
pub(super) fn node(identity: u8) -> Local {
    node_in(identity, EPOCH - 1)
}

pub(super) fn node_in(identity: u8, epoch: u64) -> Local {
    let secret = ENTROPY.resume_secret;
    let node = local(identity);
    let session = Resumable {
        authenticated_as: None,
        secret,
        epoch,
        fabrics: Fabric::FASTEST_FIRST.to_vec(),
        reason: String::new(),
    };
    node.resumable.lock().insert(ENTROPY.session_id, session);
    node
}

/// Returns a ticket for the session with node 0x22.
pub(super) fn ticket(epoch: u64) -> ResumeTicket {
    ResumeTicket {
        authenticated_as: None,
        session_id: ENTROPY.session_id,
        secret: ENTROPY.resume_secret,
        peer: NodeIdentity([0x22; 16]),
        incarnation: 0x22,
        epoch,
        fabric: Fabric::Tcp,
    }
}

impl Reunion {
    pub(super) fn new(epoch: u64) -> Reunion {
        Reunion::between(&node(0x11), ticket(epoch), &node(0x22))
    }

    pub(super) fn between(dialer: &Local, ticket: ResumeTicket, acceptor: &Local) -> Reunion {
        let now = Instant::now();
        let deadline = now + TIMEOUT;
        Reunion {
            dialer: Handshake::resume(dialer, ticket, [0xd0; 16], now, deadline),
            acceptor: Handshake::accept(acceptor, host(1), ENTROPY, now, deadline),
            now,
            chunk: usize::MAX,
            cut_after: usize::MAX,
            garbled: None,
            from_dialer: Vec::new(),
            from_acceptor: Vec::new(),
            delivered: 0,
            pairs: [0x11, 0x22].map(Pair::of),
            dialer_end: None,
            acceptor_end: None,
        }
    }

    /// Runs until both have nothing more to say.
    pub(super) fn run(&mut self) {
        loop {
            let said = self.from_dialer.len() + self.from_acceptor.len();
            while let Some(bytes) = self.dialer.poll_transmit() {
                let arriving = self.on_its_way(Party::Dialer, bytes);
                for piece in arriving.chunks(self.chunk) {
                    self.acceptor.handle_bytes(piece);
                }
            }
            self.run_claimed();
            while let Some(bytes) = self.acceptor.poll_transmit() {
                let arriving = self.on_its_way(Party::Acceptor, bytes);
                for piece in arriving.chunks(self.chunk) {
                    self.dialer.handle_bytes(piece);
                }
            }
            self.run_claimed();
            if self.from_dialer.len() + self.from_acceptor.len() == said {
                return;
            }
        }
    }

    /// Returns `bytes` as they arrive, with the damage that the test wants.
    fn on_its_way(&mut self, by: Party, mut bytes: Vec<u8>) -> Vec<u8> {
        let record = match by {
            Party::Dialer => &mut self.from_dialer,
            Party::Acceptor => &mut self.from_acceptor,
        };
        let before = record.len();
        record.extend(&bytes);
        if let Some((whose, at, change)) = self.garbled
            && whose == by
            && (before..before + bytes.len()).contains(&at)
        {
            bytes[at - before] ^= change;
        }
        bytes.truncate(self.cut_after - self.delivered.min(self.cut_after));
        self.delivered += bytes.len();
        bytes
    }

    pub(super) fn run_claimed(&mut self) {
        while let Some(event) = self.dialer.poll_event() {
            let [pair, _] = &mut self.pairs;
            match event {
                HandshakeEvent::PreparePair => self.dialer.handle_prepared(pair.prepares.clone()),
                HandshakeEvent::ConnectPair(theirs) => {
                    self.dialer.handle_connected(pair.connect(*theirs));
                }
                HandshakeEvent::Resumed(session) => self.dialer_end = Some(Ok(session)),
                HandshakeEvent::Failed(error) => self.dialer_end = Some(Err(error)),
                other => panic!("nothing that a resumption asks for: {other:?}"),
            }
        }
        while let Some(event) = self.acceptor.poll_event() {
            let [_, pair] = &mut self.pairs;
            match event {
                HandshakeEvent::PreparePair => self.acceptor.handle_prepared(pair.prepares.clone()),
                HandshakeEvent::ConnectPair(theirs) => {
                    self.acceptor.handle_connected(pair.connect(*theirs));
                }
                HandshakeEvent::Resumed(session) => self.acceptor_end = Some(Ok(session)),
                HandshakeEvent::Failed(error) => self.acceptor_end = Some(Err(error)),
                other => panic!("nothing that a resumption asks for: {other:?}"),
            }
        }
    }

    /// Says `message` to the acceptor in the dialer's place.
    pub(super) fn say_to_acceptor(&mut self, message: &HandshakeMessage) {
        let mut bytes = Vec::new();
        match self.acceptor.step() {
            HandshakeStep::Hello => message.write(&mut bytes),
            HandshakeStep::Offer => message.write_checked(self.hellos(), &mut bytes),
            _ => message.write_checked(ALONE, &mut bytes),
        }
        self.acceptor.handle_bytes(&bytes);
        self.run_claimed();
    }

    /// Says `message` to the dialer in the acceptor's place.
    pub(super) fn say_to_dialer(&mut self, message: &HandshakeMessage) {
        let mut bytes = Vec::new();
        match self.dialer.step() {
            HandshakeStep::Hello => {
                bytes.extend(MAGIC);
                message.write(&mut bytes);
            }
            HandshakeStep::Offer => message.write_checked(self.hellos(), &mut bytes),
            _ => message.write_checked(ALONE, &mut bytes),
        }
        self.dialer.handle_bytes(&bytes);
        self.run_claimed();
    }

    pub(super) fn hellos(&self) -> [&[u8]; 2] {
        [&self.from_dialer[..HELLO], &self.from_acceptor[..HELLO]]
    }

    pub(super) fn wait_for_ever(&mut self) {
        self.now += TIMEOUT;
        self.dialer.handle_timeout(self.now);
        self.acceptor.handle_timeout(self.now);
        self.run_claimed();
    }

    /// Lets the deadline of the acceptor alone pass.
    pub(super) fn wait_for_acceptor(&mut self) {
        self.acceptor.handle_timeout(self.now + TIMEOUT);
        self.run_claimed();
    }

    /// Runs the meeting, in which both ends must resume the same session. Returns that session.
    pub(super) fn goes_on(mut self) -> ResumedSession {
        self.run();
        let (dialer, acceptor) = self.ends();
        let session = dialer.expect("dialer");
        assert_eq!(acceptor, Ok(session.clone()));
        session
    }

    /// Runs the meeting, in which both ends must end with the same refusal. Returns the refusal.
    pub(super) fn refusal(mut self) -> ResumeRefusal {
        self.run();
        let (dialer, acceptor) = self.ends();
        assert_eq!(dialer, acceptor);
        match dialer {
            Err(HandshakeError::NotResumed { refusal }) => refusal,
            other => panic!("no refusal: {other:?}"),
        }
    }

    pub(super) fn ends(
        self,
    ) -> (
        Result<ResumedSession, HandshakeError>,
        Result<ResumedSession, HandshakeError>,
    ) {
        let ended = "the handshake has ended";
        (
            self.dialer_end.expect(ended),
            self.acceptor_end.expect(ended),
        )
    }
}

/// Returns the bytes of a message that is not the first of its end.
pub(super) fn bytes_of(message: &HandshakeMessage) -> Vec<u8> {
    let mut bytes = Vec::new();
    message.write_checked(ALONE, &mut bytes);
    bytes
}

/// Runs a meeting until the acceptor waits for the message behind the dialer's Hello. Returns it,
/// and the conversation of both Hellos.
pub(super) fn met(dialer: &Local, acceptor: &Local) -> (Reunion, Prologue) {
    let mut reunion = Reunion::between(dialer, ticket(EPOCH), acceptor);
    reunion.cut_after = HELLO;
    reunion.run();
    assert_eq!(reunion.acceptor.step(), HandshakeStep::Offer);
    let prologue = Prologue {
        dialer: reunion.from_dialer[..HELLO].to_vec(),
        acceptor: reunion.from_acceptor[..HELLO].to_vec(),
    };
    (reunion, prologue)
}

/// Returns a Resume with the proof that `by` would give in that conversation.
pub(super) fn resume_proven_by(by: Party, prologue: &Prologue) -> HandshakeMessage {
    let ResumeTicket {
        authenticated_as: _,
        session_id,
        secret,
        epoch,
        fabric,
        ..
    } = ticket(EPOCH);
    let session = ResumedSession {
        session_id,
        epoch,
        fabric,
    };
    let proof = session.proof(by, &secret, [&prologue.dialer, &prologue.acceptor]);
    HandshakeMessage::Resume(Resume { session, proof })
}
