//! What both ends of a handshake do alike: bytes in and out, the deadline, the
//! Hello, the end.

use std::time::Instant;

use super::inbox::{Inbox, Received, Unreadable};
use super::{Prologue, Step};
use crate::error::{Garbling, HandshakeError};
use crate::message::{ALONE, Hello, MAGIC, Message, Refusal, RefusalCause, Text, Version};
use crate::negotiate::{self, End as Side};

/// One end's view of the exchange, whichever end it is, and whichever event tells of its good
/// end. Its module is private; `pub` lets [`Part`](super::machine::Part) speak of it.
pub struct Conversation<E> {
    // The wire.
    inbox: Inbox,
    outbox: Vec<u8>,

    // The clock.
    started: Instant,
    deadline: Instant,

    // The Hellos.
    side: Side,
    /// Our Hello as it was put on the wire, magic included.
    hello_sent: Vec<u8>,
    /// The peer's, likewise; empty until it came.
    hello_received: Vec<u8>,
    hello: Hello,
    /// Set when the message that covers both Hellos was sent, and when the peer's came.
    has_vouched: bool,
    has_peer_vouched: bool,
    /// The conflict between the two Hellos. It is true if they are as they were sent, which the
    /// peer confirms when it sends nothing more than a Refusal.
    conflict: Option<HandshakeError>,

    // The end.
    end: End<E>,
    /// The peer may have taken the connection for what it is to become: no Refusal goes
    /// there any more.
    is_quiet: bool,
}

/// How a conversation ended, and whether that was told.
enum End<E> {
    Open,
    Well(Option<E>),
    Failed(Option<HandshakeError>),
}

impl<E> Conversation<E> {
    pub(super) fn new(
        side: Side,
        hello: Hello,
        now: Instant,
        deadline: Instant,
    ) -> Conversation<E> {
        let mut hello_sent = MAGIC.to_vec();
        Message::Hello(hello.clone()).write(&mut hello_sent);
        Conversation {
            inbox: Inbox::default(),
            outbox: Vec::new(),
            started: now,
            deadline,
            side,
            hello_sent,
            hello_received: Vec::new(),
            hello,
            has_vouched: false,
            has_peer_vouched: false,
            conflict: None,
            end: End::Open,
            is_quiet: false,
        }
    }

    // The wire.

    pub(super) fn receive(&mut self, bytes: &[u8]) {
        if !matches!(self.end, End::Failed(_)) {
            self.inbox.push(bytes);
        }
    }

    /// The next message while the conversation is open, or `None`. Ends the
    /// conversation on bytes that are no message or not what was sent, and on a Refusal.
    pub(super) fn next_message(&mut self, step: Step) -> Option<Message> {
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
            Ok(Some(Received {
                message: Message::Refusal(refusal),
                ..
            })) => {
                self.end_with(match refusal.cause {
                    Some(RefusalCause::Limit(end, limit)) => {
                        HandshakeError::TooManySessions { end, limit }
                    }
                    Some(RefusalCause::Resume(refusal)) => HandshakeError::NotResumed { refusal },
                    Some(RefusalCause::NotOverFabric) => HandshakeError::NotOverFabric {
                        why: refusal.reason,
                    },
                    Some(RefusalCause::Closing) => HandshakeError::Closing,
                    Some(RefusalCause::Garbled) => HandshakeError::Garbled {
                        step,
                        how: Garbling::AtPeer(refusal.reason),
                    },
                    None => HandshakeError::Refused {
                        step,
                        reason: refusal.reason,
                    },
                });
                return None;
            }
            Ok(Some(Received { message, bytes })) => {
                if self.has_hello() {
                    self.has_peer_vouched = true;
                } else if matches!(message, Message::Hello(_)) {
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

    pub(super) fn send_hello(&mut self) {
        self.outbox.extend_from_slice(&self.hello_sent);
    }

    /// Nothing once the conversation is over: an errand may be answered later.
    pub(super) fn send(&mut self, message: &Message) {
        if !self.is_open() {
            return;
        }
        let before = match self.has_vouched {
            false => in_order(self.side, &self.hello_sent, &self.hello_received),
            true => ALONE,
        };
        message.write_checked(before, &mut self.outbox);
        self.has_vouched = true;
    }

    pub(super) fn poll_transmit(&mut self) -> Option<Vec<u8>> {
        (!self.outbox.is_empty()).then(|| std::mem::take(&mut self.outbox))
    }

    /// Whether anything has come that is not taken.
    pub(super) fn has_more(&self) -> bool {
        self.inbox.has_more()
    }

    pub(super) fn into_leftover(self) -> Vec<u8> {
        self.inbox.into_rest()
    }

    // The Hellos.

    /// Whether anything that only an ibex node sends has come.
    pub(super) fn has_hello(&self) -> bool {
        !self.hello_received.is_empty()
    }

    /// The version that follows from the peer's Hello and ours.
    pub(super) fn settle(&self, theirs: &Hello) -> Result<Version, HandshakeError> {
        let ours = &self.hello;
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

    /// Notes that the acceptor's Hello does not go with ours, if it came as it was sent. An
    /// acceptor that finds the same refuses or hangs up. One that goes on has sent another Hello.
    pub(super) fn suspect(&mut self, conflict: HandshakeError) {
        self.conflict = Some(conflict);
    }

    /// Both Hellos as they were on the wire, the dialer's first.
    fn hellos(&self) -> [&[u8]; 2] {
        in_order(self.side, &self.hello_sent, &self.hello_received)
    }

    /// Both Hellos.
    pub(super) fn prologue(&self) -> Prologue {
        let [dialer, acceptor] = self.hellos().map(<[u8]>::to_vec);
        Prologue { dialer, acceptor }
    }

    // The clock.

    pub(super) fn deadline(&self) -> Option<Instant> {
        self.is_open().then_some(self.deadline)
    }

    pub(super) fn handle_timeout(&mut self, now: Instant, step: Step) {
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
        matches!(self.end, End::Open)
    }

    pub(super) fn succeed(&mut self, event: E) {
        if self.is_open() {
            self.end = End::Well(Some(event));
        }
    }

    /// With what was sent last the conversation may be over for the peer.
    pub(super) fn be_quiet(&mut self) {
        self.is_quiet = true;
    }

    /// It is not: the peer has answered.
    pub(super) fn speak_again(&mut self) {
        self.is_quiet = false;
    }

    /// Ends the conversation; the first reason counts. The peer is told, unless
    /// it has closed the connection.
    pub(super) fn fail(&mut self, error: HandshakeError) {
        let peer_knows = matches!(error, HandshakeError::Closed { .. });
        // Before both Hellos are known, the checksum of a Refusal is not.
        if self.has_hello() && !peer_knows && !self.is_quiet {
            self.send(&Message::Refusal(refusal_for(&error)));
        }
        self.end_with(error);
    }

    /// The same without a word to the peer, who said so itself.
    fn end_with(&mut self, error: HandshakeError) {
        if self.is_open() {
            let error = match self.conflict.take() {
                Some(conflict) if !self.has_said_otherwise(&error) => conflict,
                _ => error,
            };
            self.end = End::Failed(Some(error));
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

    pub(super) fn poll_succeeded(&mut self) -> Option<E> {
        match &mut self.end {
            End::Well(event) => event.take(),
            _ => None,
        }
    }

    pub(super) fn poll_failed(&mut self) -> Option<HandshakeError> {
        match &mut self.end {
            End::Failed(error) => error.take(),
            _ => None,
        }
    }
}

/// Puts what the two ends sent in order, the dialer's first, as `side` knows it.
fn in_order<'a>(side: Side, sent: &'a [u8], received: &'a [u8]) -> [&'a [u8]; 2] {
    match side {
        Side::Dialer => [sent, received],
        Side::Acceptor => [received, sent],
    }
}

/// What the peer is told.
fn refusal_for(error: &HandshakeError) -> Refusal {
    let cause = match error {
        HandshakeError::TooManySessions { end, limit } => Some(RefusalCause::Limit(*end, *limit)),
        HandshakeError::NotResumed { refusal } => Some(RefusalCause::Resume(*refusal)),
        HandshakeError::Closing => Some(RefusalCause::Closing),
        HandshakeError::NotOverFabric { why } => {
            return Refusal {
                reason: why.clone(),
                cause: Some(RefusalCause::NotOverFabric),
            };
        }
        _ if error.may_be_garbling() => Some(RefusalCause::Garbled),
        _ => None,
    };
    Refusal {
        reason: Text::new(&error.to_string()),
        cause,
    }
}
