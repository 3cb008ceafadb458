//! What both ends of a handshake do alike: bytes in and out, the deadline, the
//! Hello, the end.

use std::time::Instant;

use super::inbox::{Inbox, Received, Unreadable};
use super::{Prologue, Step};
use crate::error::HandshakeError;
use crate::message::{Hello, MAGIC, Message, Refusal, RefusalCause, Text, Version, features};
use crate::negotiate;

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
    /// Our Hello as it was put on the wire, magic included.
    hello_sent: Vec<u8>,
    /// The peer's, likewise; empty until it came.
    hello_received: Vec<u8>,
    hello: Hello,
    /// Set when both Hellos agree; before that a Refusal could not be read by
    /// the peer, so none is sent.
    terms: Option<Terms>,

    // The end.
    end: End<E>,
    /// The peer may have taken the connection for what it is to become: no Refusal goes
    /// there any more.
    is_quiet: bool,
}

/// What the two Hellos settle.
#[derive(Clone, Copy)]
pub(super) struct Terms {
    pub(super) version: Version,
    pub(super) features: u64,
}

impl Terms {
    /// Whether a session may get a queue pair again.
    pub(super) fn resume_over_verbs(self) -> Result<(), HandshakeError> {
        match self.features & features::RESUME_VERBS {
            0 => {
                let why = "one of the two nodes speaks a version before 1.5";
                Err(HandshakeError::not_over_verbs(why))
            }
            _ => Ok(()),
        }
    }
}

/// How a conversation ended, and whether that was told.
enum End<E> {
    Open,
    Well(Option<E>),
    Failed(Option<HandshakeError>),
}

impl<E> Conversation<E> {
    pub(super) fn new(hello: Hello, now: Instant, deadline: Instant) -> Conversation<E> {
        let mut hello_sent = MAGIC.to_vec();
        Message::Hello(hello.clone()).write(&mut hello_sent);
        Conversation {
            inbox: Inbox::default(),
            outbox: Vec::new(),
            started: now,
            deadline,
            hello_sent,
            hello_received: Vec::new(),
            hello,
            terms: None,
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
    /// conversation on bytes that are no message, and on a Refusal.
    pub(super) fn next_message(&mut self, step: Step) -> Option<Message> {
        if !self.is_open() {
            return None;
        }
        let error = match self.inbox.next_message() {
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
                    None => HandshakeError::Refused {
                        step,
                        reason: refusal.reason,
                    },
                });
                return None;
            }
            Ok(Some(Received { message, bytes })) => {
                if matches!(message, Message::Hello(_)) && self.hello_received.is_empty() {
                    self.hello_received = [&MAGIC, bytes.as_slice()].concat();
                }
                return Some(message);
            }
            Err(Unreadable::Foreign(seen)) => HandshakeError::NotIbex { seen },
            Err(Unreadable::Message(problem)) => HandshakeError::Malformed { step, problem },
        };
        self.fail(error);
        None
    }

    pub(super) fn send_hello(&mut self) {
        self.outbox.extend_from_slice(&self.hello_sent);
    }

    /// Nothing once the conversation is over: an errand may be answered later.
    pub(super) fn send(&mut self, message: &Message) {
        if self.is_open() {
            message.write(&mut self.outbox);
        }
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

    /// What follows from the peer's Hello and ours.
    pub(super) fn settle_terms(&mut self, theirs: &Hello) -> Result<Terms, HandshakeError> {
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
        let terms = Terms {
            version,
            features: ours.features & theirs.features,
        };
        self.terms = Some(terms);
        Ok(terms)
    }

    /// Both Hellos, the dialer's first.
    pub(super) fn prologue(&self, is_dialer: bool) -> Prologue {
        let (sent, received) = (self.hello_sent.clone(), self.hello_received.clone());
        if is_dialer {
            Prologue {
                dialer: sent,
                acceptor: received,
            }
        } else {
            Prologue {
                dialer: received,
                acceptor: sent,
            }
        }
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
        if self.terms.is_some() && !peer_knows && !self.is_quiet {
            self.send(&Message::Refusal(refusal_for(&error)));
        }
        self.end_with(error);
    }

    /// The same without a word to the peer, who said so itself.
    fn end_with(&mut self, error: HandshakeError) {
        if self.is_open() {
            self.end = End::Failed(Some(error));
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
        _ => None,
    };
    Refusal {
        reason: Text::new(&error.to_string()),
        cause,
    }
}
