//! What both ends of a handshake do alike: bytes in and out, the deadline, the
//! Hello, the end.

use std::time::Instant;

use super::inbox::{Inbox, Received, Unreadable};
use super::{Agreement, Prologue, Step};
use crate::error::HandshakeError;
use crate::message::{Hello, MAGIC, Message, Refusal, Text, Version};
use crate::negotiate;

/// One end's view of the exchange, whichever end it is. Its module is private; `pub` lets
/// [`Part`](super::machine::Part) speak of it.
pub struct Conversation {
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
    end: End,
}

/// What the two Hellos settle.
#[derive(Clone, Copy)]
pub(super) struct Terms {
    pub(super) version: Version,
    pub(super) features: u64,
}

/// How a conversation ended, and whether that was told.
enum End {
    Open,
    Agreed(Option<Box<Agreement>>),
    Failed(Option<HandshakeError>),
}

impl Conversation {
    pub(super) fn new(hello: Hello, now: Instant, deadline: Instant) -> Conversation {
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
                self.end_with(match refusal.limit {
                    Some((end, limit)) => HandshakeError::TooManySessions { end, limit },
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

    pub(super) fn agree(&mut self, agreement: Agreement) {
        if self.is_open() {
            self.end = End::Agreed(Some(Box::new(agreement)));
        }
    }

    /// Ends the conversation; the first reason counts. The peer is told, unless
    /// it has closed the connection.
    pub(super) fn fail(&mut self, error: HandshakeError) {
        let peer_knows = matches!(error, HandshakeError::Closed { .. });
        if self.terms.is_some() && !peer_knows {
            self.send(&Message::Refusal(Refusal {
                reason: Text::new(&error.to_string()),
                limit: match error {
                    HandshakeError::TooManySessions { end, limit } => Some((end, limit)),
                    _ => None,
                },
            }));
        }
        self.end_with(error);
    }

    /// The same without a word to the peer, who said so itself.
    fn end_with(&mut self, error: HandshakeError) {
        if self.is_open() {
            self.end = End::Failed(Some(error));
        }
    }

    pub(super) fn poll_agreed(&mut self) -> Option<Box<Agreement>> {
        match &mut self.end {
            End::Agreed(agreement) => agreement.take(),
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
