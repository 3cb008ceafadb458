//! The part of a handshake that both ends have alike: bytes in and out, the deadline, the
//! Hello, the end.

use std::sync::Arc;
use std::time::Instant;

use hmac_sha256::Hash;
use ibex_base::tls::{AuthenticatedAs, TlsConnection, TlsCredentials, TlsError};

use super::inbox::{MessageReader, ReceivedMessage, Unreadable};
use super::{HandshakeEvent, HandshakeStep, Prologue};
use crate::error::{Garbling, HandshakeError};
use crate::local::Local;
use crate::message::{
    ALONE, Binding, HandshakeMessage, HandshakeRefusal, Hello, MAGIC, MessageError, Offer,
    RefusalCause, Text, Version,
};
use crate::negotiate;
use crate::party::Party;

/// An exchange as either end sees it.
pub(super) struct Conversation {
    // The wire.
    inbox: MessageReader,
    /// Bytes to be sent as they are.
    outbox: Vec<u8>,

    // TLS, behind the Hellos.
    credentials: Option<Arc<dyn TlsCredentials>>,
    /// The address of a dial, where the program may expect a certain peer.
    dialed: Option<Arc<str>>,
    tls: Option<Box<dyn TlsConnection>>,
    /// Messages to be sealed as soon as the peer is authenticated.
    unsealed: Vec<u8>,
    /// The error that ended TLS, until the messages before it are read.
    broken_tls: Option<TlsError>,

    // The clock.
    pub(super) started: Instant,
    deadline: Instant,

    // The Hellos.
    pub(super) side: Party,
    /// This end's Hello as it was put on the wire, magic included.
    hello_sent: Vec<u8>,
    /// The peer's Hello as it came, magic included; empty until then.
    hello_received: Vec<u8>,
    hello: Hello,
    /// The features that both Hellos have, once both are known.
    pub(super) common_features: u64,
    /// Set when the message that covers both Hellos was sent, and when the peer's came.
    has_vouched: bool,
    has_peer_vouched: bool,
    /// The conflict between the two Hellos. It is true if they are as they were sent, which the
    /// peer confirms when it sends nothing more than a Refusal.
    conflict: Option<HandshakeError>,

    // The end.
    end: Conclusion,
    /// Set once the peer may use the connection for a session: no Refusal is sent any more.
    pub(super) is_quiet: bool,
}

/// The end of a conversation, and whether it was reported.
enum Conclusion {
    Open,
    Well(Option<HandshakeEvent>),
    Failed(Option<HandshakeError>),
}

impl Conversation {
    pub(super) fn new(
        side: Party,
        hello: Hello,
        local: &Local,
        now: Instant,
        deadline: Instant,
    ) -> Conversation {
        let mut hello_sent = MAGIC.to_vec();
        HandshakeMessage::Hello(hello.clone()).write(&mut hello_sent);
        Conversation {
            inbox: MessageReader::default(),
            outbox: Vec::new(),
            credentials: local.credentials.clone(),
            dialed: local.dialed.clone(),
            tls: None,
            unsealed: Vec::new(),
            broken_tls: None,
            started: now,
            deadline,
            side,
            hello_sent,
            hello_received: Vec::new(),
            hello,
            common_features: 0,
            has_vouched: false,
            has_peer_vouched: false,
            conflict: None,
            end: Conclusion::Open,
            is_quiet: false,
        }
    }

    // The wire.

    pub(super) fn receive(&mut self, bytes: &[u8]) {
        if matches!(self.end, Conclusion::Failed(_)) {
            return;
        }
        match &mut self.tls {
            None => self.inbox.push(bytes),
            Some(tls) => {
                let inbox = &mut self.inbox;
                let received = tls.receive(bytes, &mut |plain| inbox.push(plain));
                self.broken_tls = received.err();
            }
        }
    }

    /// Returns the next message while the conversation is open, or `None`. Ends the conversation on
    /// a Refusal, and on bytes that are no message or were damaged.
    pub(super) fn next_message(&mut self, step: HandshakeStep) -> Option<HandshakeMessage> {
        if !self.is_open() {
            return None;
        }
        let before = match (self.has_hello(), self.has_peer_vouched) {
            (false, _) => None,
            (true, false) => Some(in_order(self.side, &self.hello_sent, &self.hello_received)),
            (true, true) => Some(ALONE),
        };
        let error = match self.inbox.next_message(before) {
            Ok(None) => return None,
            Ok(Some(ReceivedMessage {
                message: HandshakeMessage::Refusal(refusal),
                ..
            })) => {
                self.end_with(match refusal.cause {
                    // An end refuses only once it has sent Hello, so this is another message, garbled.
                    _ if step == HandshakeStep::Hello => HandshakeError::Refused {
                        step,
                        reason: refusal.reason,
                    },
                    Some(RefusalCause::Limit(end, limit)) => {
                        HandshakeError::TooManySessions { end, limit }
                    }
                    Some(RefusalCause::Descriptors(end, limit)) => {
                        HandshakeError::Descriptors { end, limit }
                    }
                    // Before it is asked for a session, the other end has not shown that it is the
                    // peer, and nothing that it says of the session counts.
                    Some(RefusalCause::Resume(refusal))
                        if self.side == Party::Acceptor || step.is_after_resume() =>
                    {
                        HandshakeError::NotResumed { refusal }
                    }
                    Some(RefusalCause::NotOverFabric) => HandshakeError::NotOverFabric {
                        why: refusal.reason,
                    },
                    Some(RefusalCause::Closing) => HandshakeError::Closing,
                    Some(RefusalCause::Garbled) => HandshakeError::Garbled {
                        step,
                        how: Garbling::AtPeer(refusal.reason),
                    },
                    Some(RefusalCause::Resume(_)) | None => HandshakeError::Refused {
                        step,
                        reason: refusal.reason,
                    },
                });
                return None;
            }
            Ok(Some(ReceivedMessage { message, bytes })) => {
                if self.has_hello() {
                    self.has_peer_vouched = true;
                } else if matches!(message, HandshakeMessage::Hello(_)) {
                    self.hello_received = [&MAGIC, bytes.as_slice()].concat();
                }
                return Some(message);
            }
            Err(Unreadable::Foreign(seen)) => HandshakeError::NotIbex { seen },
            Err(Unreadable::Message(problem)) => HandshakeError::Malformed { step, problem },
            Err(Unreadable::Garbled { sent, computed }) => HandshakeError::Garbled {
                step,
                how: Garbling::Here { sent, computed },
            },
        };
        self.fail(error);
        None
    }

    /// Ends the conversation if unread bytes pile up because the peer goes on sending while this
    /// end waits for deferred work.
    pub(super) fn refuse_flood(&mut self, step: HandshakeStep) {
        let length = self.inbox.len();
        if self.is_open() && length > MOST_UNREAD_BYTES {
            self.inbox.take_rest();
            let problem = MessageError::Unasked { length };
            self.fail(HandshakeError::Malformed { step, problem });
        }
    }

    pub(super) fn send_hello(&mut self) {
        self.outbox.extend_from_slice(&self.hello_sent);
    }

    /// Sends a message, but none once the conversation is over: deferred work may end later.
    pub(super) fn send(&mut self, message: &HandshakeMessage) {
        if !self.is_open() {
            return;
        }
        let before = match self.has_vouched {
            false => in_order(self.side, &self.hello_sent, &self.hello_received),
            true => ALONE,
        };
        let outbox = match self.tls {
            None => &mut self.outbox,
            Some(_) => &mut self.unsealed,
        };
        message.write_checked(before, outbox);
        self.has_vouched = true;
    }

    pub(super) fn poll_transmit(&mut self) -> Option<Vec<u8>> {
        if let Some(tls) = &mut self.tls {
            if !tls.is_handshaking() && !self.unsealed.is_empty() {
                // TLS that is broken has notified the peer already.
                let _ = tls.seal(&self.unsealed);
                self.unsealed.clear();
            }
            let sealed = tls.outgoing();
            self.outbox.extend_from_slice(sealed);
            tls.sent(sealed.len());
        }
        (!self.outbox.is_empty()).then(|| std::mem::take(&mut self.outbox))
    }

    /// Tells whether anything has come that is not taken, be it a part of a TLS record.
    pub(super) fn has_more(&self) -> bool {
        let tls = self.tls.as_ref();
        self.inbox.has_more() || tls.is_some_and(|tls| tls.part_bytes() > 0)
    }

    pub(super) fn into_leftover(self) -> Vec<u8> {
        self.inbox.into_rest()
    }

    // TLS.

    /// Begins TLS, where this node authenticates its peers. Returns whether it did; the next
    /// message is *Binding* then, at both ends.
    pub(super) fn secure(&mut self) -> bool {
        let Some(credentials) = &self.credentials else {
            return false;
        };
        let tls = match self.side {
            Party::Dialer => credentials.dialer(self.dialed.clone()),
            Party::Acceptor => credentials.acceptor(),
        };
        match tls {
            Ok(tls) => self.tls = Some(tls),
            Err(error) => {
                self.broken_tls = Some(error);
                return true;
            }
        }
        let hellos = self.hash_of_hellos();
        self.send(&HandshakeMessage::Binding(Binding { hellos }));
        // Bytes that came behind the Hello are sealed already. The dialer's first flight goes out.
        let rest = self.inbox.take_rest();
        self.receive(&rest);
        true
    }

    /// Ends the conversation where TLS has, once the messages before that are read.
    pub(super) fn end_broken_tls(&mut self, step: HandshakeStep) {
        match self.broken_tls.take() {
            None => {}
            Some(TlsError::Refused(refusal)) => self.fail(refusal.into()),
            Some(problem) => self.fail(HandshakeError::Tls { step, problem }),
        }
    }

    /// Returns whether a message is from a peer that saw the same Hellos and is not this node. If
    /// not, that is the end.
    pub(super) fn admits(
        &mut self,
        step: HandshakeStep,
        ours: Option<&Offer>,
        message: &HandshakeMessage,
    ) -> bool {
        match (message, ours) {
            (HandshakeMessage::Binding(binding), _) if step == HandshakeStep::Binding => {
                self.is_bound(step, binding)
            }
            (HandshakeMessage::Offer(theirs), Some(ours))
                if self.is_sealed() && ours.is_of_run(theirs) =>
            {
                self.fail(HandshakeError::Oneself);
                false
            }
            _ => true,
        }
    }

    fn is_bound(&mut self, step: HandshakeStep, binding: &Binding) -> bool {
        let is_bound = binding.hellos == self.hash_of_hellos();
        if !is_bound {
            let how = Garbling::Hellos;
            self.fail(HandshakeError::Garbled { step, how });
        }
        is_bound
    }

    fn hash_of_hellos(&self) -> [u8; 32] {
        let mut hash = Hash::new();
        self.hellos().iter().for_each(|hello| hash.update(hello));
        hash.finalize()
    }

    pub(super) fn is_sealed(&self) -> bool {
        self.tls.is_some()
    }

    pub(super) fn authenticated_as(&self) -> Option<AuthenticatedAs> {
        self.tls.as_ref()?.authenticated_as()
    }

    pub(super) fn take_tls(&mut self) -> Option<Box<dyn TlsConnection>> {
        debug_assert!(self.unsealed.is_empty(), "everything is transmitted");
        self.tls.take()
    }

    // The Hellos.

    /// Tells whether anything that only an ibex node sends has come.
    pub(super) fn has_hello(&self) -> bool {
        !self.hello_received.is_empty()
    }

    /// Returns the version that follows from the peer's Hello and ours, and notes the features.
    pub(super) fn settle(&mut self, theirs: &Hello) -> Result<Version, HandshakeError> {
        let ours = &self.hello;
        self.common_features = ours.features & theirs.features;
        let version =
            negotiate::version(ours.versions, theirs.versions).ok_or(HandshakeError::Version {
                ours: ours.versions,
                theirs: theirs.versions,
            })?;
        if ours.security != theirs.security {
            return Err(HandshakeError::Security {
                ours: ours.security,
                theirs: theirs.security,
            });
        }
        Ok(version)
    }

    /// Notes that the acceptor's Hello does not suit this end's, if it came as it was sent. An
    /// acceptor that finds the same refuses or hangs up. An acceptor that continues has sent
    /// another Hello.
    pub(super) fn suspect(&mut self, conflict: HandshakeError) {
        // An acceptor that waits for TLS continues with nothing but its answer to what is no TLS.
        // One that finds the same reads no more, so there are no words for it.
        self.send(&HandshakeMessage::Refusal(HandshakeRefusal {
            reason: Text::new(""),
            cause: Some(RefusalCause::Garbled),
        }));
        self.is_quiet = true;
        self.conflict = Some(conflict);
    }

    /// Returns both Hellos as they were on the wire, the dialer's first.
    pub(super) fn hellos(&self) -> [&[u8]; 2] {
        in_order(self.side, &self.hello_sent, &self.hello_received)
    }

    /// Returns both Hellos.
    pub(super) fn prologue(&self) -> Prologue {
        let [dialer, acceptor] = self.hellos().map(<[u8]>::to_vec);
        Prologue { dialer, acceptor }
    }

    // The clock.

    pub(super) fn deadline(&self) -> Option<Instant> {
        self.is_open().then_some(self.deadline)
    }

    pub(super) fn handle_timeout(&mut self, now: Instant, step: HandshakeStep) {
        if self.is_open() && now >= self.deadline {
            let waited = now.saturating_duration_since(self.started);
            self.fail(match step.is_ours() {
                true => HandshakeError::Slow { step, waited },
                false => HandshakeError::Silent { step, waited },
            });
        }
    }

    // The end.

    pub(super) fn is_open(&self) -> bool {
        matches!(self.end, Conclusion::Open)
    }

    pub(super) fn succeed(&mut self, event: HandshakeEvent) {
        if self.is_open() {
            self.end = Conclusion::Well(Some(event));
        }
    }

    /// Ends the conversation; the first reason counts. Tells the peer, unless it has closed the
    /// connection.
    pub(super) fn fail(&mut self, error: HandshakeError) {
        let peer_knows = matches!(error, HandshakeError::Closed { .. });
        // Until both Hellos are known, the checksum of a Refusal cannot be computed.
        if self.has_hello() && !peer_knows && !self.is_quiet {
            self.send(&HandshakeMessage::Refusal(error.refusal()));
        }
        self.end_with(error);
    }

    /// Ends the conversation without telling the peer, which knows the reason.
    fn end_with(&mut self, error: HandshakeError) {
        if self.is_open() {
            let error = match self.conflict.take() {
                Some(conflict) if !self.has_said_otherwise(&error) => conflict,
                _ => error,
            };
            if let (HandshakeError::Security { .. }, Some(with)) = (&error, &self.credentials) {
                with.note_other_mode();
            }
            self.end = Conclusion::Failed(Some(error));
        }
    }

    /// Returns whether the acceptor contradicts the conflict between the Hellos. A conversation
    /// that ends with `error` shows it: the acceptor sent more than a Refusal, or bytes that
    /// cannot be read.
    fn has_said_otherwise(&self, error: &HandshakeError) -> bool {
        match error {
            HandshakeError::Closed { .. } | HandshakeError::Silent { .. } => self.has_more(),
            error => error.may_be_garbling(),
        }
    }

    /// Returns how the conversation has ended, once.
    pub(super) fn poll_end(&mut self) -> Option<HandshakeEvent> {
        match &mut self.end {
            Conclusion::Open => None,
            Conclusion::Well(event) => event.take(),
            Conclusion::Failed(error) => error.take().map(HandshakeEvent::Failed),
        }
    }
}

/// Puts what the two ends sent in order, the dialer's first, as `side` knows it.
fn in_order<'a>(side: Party, sent: &'a [u8], received: &'a [u8]) -> [&'a [u8]; 2] {
    match side {
        Party::Dialer => [sent, received],
        Party::Acceptor => [received, sent],
    }
}

/// The most bytes that wait to be read as messages: far more than a peer sends before it waits for
/// an answer.
const MOST_UNREAD_BYTES: usize = 32 << 10;
