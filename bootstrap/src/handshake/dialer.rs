//! The steps of the end that connected for a new session: it speaks first, chooses the fabric, and
//! falls back to another when the first cannot be reached.

use std::time::Instant;

use super::HandshakeEvent;
use super::machine::{Handshake, HandshakeRole, OfferedTerms, State, Terms};
use crate::identity::HostHint;
use crate::local::Local;
use crate::message::{Endpoint, FabricChoice, HandshakeMessage, ShmEndpoint, Text};
use crate::negotiate::{self, RuledOut};

impl Handshake {
    /// Creates the handshake of an end that connected for a new session. It begins now and must be
    /// over by `deadline`. `nonce` is fresh random bytes.
    pub fn dial(
        local: &Local,
        host: HostHint,
        nonce: [u8; 16],
        now: Instant,
        deadline: Instant,
    ) -> Handshake {
        Handshake::begin(HandshakeRole::Dialer, local, host, nonce, (now, deadline))
    }

    /// Picks a fabric that was not tried yet and asks for its endpoint. The choosing terminates,
    /// because `ruled_out` grows by one known fabric each time.
    pub(super) fn choose(&mut self, offered: OfferedTerms) {
        match negotiate::fabric(&self.ours, &offered.theirs, &offered.ruled_out) {
            Ok(chosen) => {
                self.send(HandshakeMessage::Choice(FabricChoice {
                    fabric: chosen.fabric,
                    reason: Text::new(&chosen.reason),
                }));
                self.state = State::Endpoint(Terms { offered, chosen });
            }
            Err(conflict) => self.fail(conflict),
        }
    }

    pub(super) fn fall_back(&mut self, terms: Terms, why: String) {
        let Terms {
            mut offered,
            chosen,
        } = terms;
        offered.ruled_out.push(RuledOut {
            fabric: chosen.fabric,
            why,
        });
        self.choose(offered);
    }

    pub(super) fn go_to(&mut self, endpoint: Endpoint, terms: Terms) {
        match endpoint {
            Endpoint::Shm(endpoint) => {
                self.deferred.push_back(HandshakeEvent::ConnectUnix {
                    name: ShmEndpoint::name(&endpoint.token),
                    in_directory: self.ours.meets_in_directory(&terms.offered.theirs),
                    token: endpoint.token,
                });
                self.state = State::UnixSocket(terms);
            }
            Endpoint::Tcp => self.become_ready(terms),
            Endpoint::Verbs(theirs) => {
                self.deferred.push_back(HandshakeEvent::PreparePair);
                self.state = State::Prepared(terms, Some(Box::new(theirs)));
            }
        }
    }

    pub(super) fn become_ready(&mut self, terms: Terms) {
        self.send(self.ready(&terms, None));
        // The acceptor's session may have begun with *Ready*, and would read more as a frame.
        self.conversation.is_quiet = true;
        self.state = State::Ready(terms);
    }
}
