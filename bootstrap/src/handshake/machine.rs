//! The part of the state machines that both ends have alike: facts in, bytes and events out, around
//! the steps that are one end's own.

use std::time::Instant;

use ibex_base::tls::TlsConnection;

use super::HandshakeStep;
use super::conversation::Conversation;
use crate::error::HandshakeError;
use crate::message::{HandshakeMessage, Offer};

/// A side of a handshake: [`DialerHandshake`](super::DialerHandshake),
/// [`ResumerHandshake`](super::ResumerHandshake) or
/// [`AcceptorHandshake`](super::AcceptorHandshake).
pub struct Handshake<P: Part> {
    pub(super) conversation: Conversation<P::Event>,
    /// The steps that are this end's own.
    pub(super) part: P,
}

/// The steps of one end. Each step reports its results to the conversation.
pub trait Part: Sized {
    /// An event that this end's driver has to act on.
    type Event;

    /// Returns the step that this end waits for.
    fn step(&self) -> HandshakeStep;

    /// Returns this end's own Offer, if it sends one.
    fn ours(&self) -> Option<&Offer>;

    /// Returns whether the next message may be taken now. It may not while the driver's answer to
    /// deferred work decides how the message is understood.
    fn takes_messages(&self) -> bool;

    /// Handles the peer's next message.
    fn handle_message(
        &mut self,
        conversation: &mut Conversation<Self::Event>,
        message: HandshakeMessage,
    );

    /// Returns the next work for the driver, each once.
    fn take_deferred(&mut self) -> Option<Self::Event>;

    /// Makes the event for a failed handshake.
    fn failed(error: HandshakeError) -> Self::Event;
}

impl<P: Part> Handshake<P> {
    /// Takes bytes that the peer sent. Bytes behind the peer's last message are kept for
    /// [`into_leftover`](Self::into_leftover).
    pub fn handle_bytes(&mut self, bytes: &[u8]) {
        self.conversation.receive(bytes);
        self.read_messages();
        let step = self.step();
        self.conversation.end_broken_tls(step);
        self.conversation.refuse_flood(step);
    }

    /// Notes that the stream ended, or failed as `detail` says.
    pub fn handle_closed(&mut self, detail: Option<String>) {
        let step = self.step();
        self.conversation
            .fail(HandshakeError::Closed { step, detail });
    }

    /// Notes the time; ends the handshake when its deadline is reached.
    pub fn handle_timeout(&mut self, now: Instant) {
        let step = self.step();
        self.conversation.handle_timeout(now, step);
    }

    /// Returns the time at which to call [`handle_timeout`](Self::handle_timeout); `None` once
    /// over.
    #[must_use]
    pub fn deadline(&self) -> Option<Instant> {
        self.conversation.deadline()
    }

    /// Returns bytes for the peer, in order. Drain after every `handle_*` call.
    #[must_use]
    pub fn poll_transmit(&mut self) -> Option<Vec<u8>> {
        self.conversation.poll_transmit()
    }

    /// Returns the next event to act on. Drain after every `handle_*` call.
    #[must_use]
    pub fn poll_event(&mut self) -> Option<P::Event> {
        if let Some(error) = self.conversation.poll_failed() {
            return Some(P::failed(error));
        }
        if let Some(event) = self.conversation.poll_succeeded() {
            return Some(event);
        }
        self.part.take_deferred()
    }

    /// Returns the step that this end waits for.
    pub fn step(&self) -> HandshakeStep {
        self.part.step()
    }

    /// Tells whether TLS has begun.
    pub fn is_sealed(&self) -> bool {
        self.conversation.is_sealed()
    }

    /// Tells whether the peer has sent what only an ibex node sends. A driver short of room first
    /// drops handshakes whose peers have not.
    pub fn has_hello(&self) -> bool {
        self.conversation.has_hello()
    }

    /// Takes the TLS of a connection that becomes a session's, once everything is transmitted.
    pub fn take_tls(&mut self) -> Option<Box<dyn TlsConnection>> {
        self.conversation.take_tls()
    }

    /// Returns the bytes that the peer sent behind its last message: the session's first.
    pub fn into_leftover(self) -> Vec<u8> {
        self.conversation.into_leftover()
    }

    /// Takes messages as long as none has to wait for the driver's answer.
    pub(super) fn read_messages(&mut self) {
        while self.part.takes_messages() {
            let Some(message) = self.conversation.next_message(self.part.step()) else {
                break;
            };
            let (step, ours) = (self.part.step(), self.part.ours());
            if self.conversation.admits(step, ours, &message) {
                self.part.handle_message(&mut self.conversation, message);
            }
        }
    }
}
