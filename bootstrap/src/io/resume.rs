//! Connecting once more, to resume a session: one attempt, at the address of its peer.
#![forbid(unsafe_code)]

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use super::after;
use super::connect::{Broken, RANDOM, connect, random_bytes};
use super::line::Line;
use super::own_pair::{OWN_ADDRESS, OwnPair};
use super::patience::{Cancelled, Meanwhile, Patience};
use crate::error::{HandshakeError, ResumeError};
use crate::established::Sockets;
use crate::handshake::{ResumedSession, ResumerEvent, ResumerHandshake, ResumerPart};
use crate::local::Local;
use crate::resumption::{ResumedConnection, Ticket};

/// Connects to the node that listens at `address`, which has the other end of the session of
/// `ticket`, and agrees with it that the session resumes over that connection. Blocks for up to
/// `timeout`; the handshake takes no longer than `handshake_timeout` of it.
///
/// The call is one attempt. Its caller has suspended the session, and makes further attempts after
/// growing pauses, each with the next higher epoch, until the error
/// [`is_gone`](ResumeError::is_gone) or the time given to the session has passed.
///
/// `meanwhile` works as for [`dial`](crate::dial).
///
/// # Errors
/// The finding that was met instead of the session.
pub fn resume(
    address: SocketAddr,
    local: &Local,
    ticket: &Ticket,
    timeout: Duration,
    meanwhile: &dyn Meanwhile,
) -> Result<ResumedConnection, ResumeError> {
    let patience = Patience {
        deadline: after(Instant::now(), timeout),
        meanwhile,
    };
    match attempt(address, local, ticket, patience) {
        Ok(Ok(resumption)) => Ok(resumption),
        Ok(Err(missed)) => Err(missed.at(address, ticket)),
        Err(Broken::Cancelled) => Err(ResumeError::Cancelled { address }),
        Err(Broken::Environment(action, source)) => Err(ResumeError::Environment {
            address,
            action,
            source,
        }),
    }
}

/// The reason why there is no connection.
enum Missed {
    Peer(String),
    Session(HandshakeError),
}

impl Missed {
    fn at(self, address: SocketAddr, ticket: &Ticket) -> ResumeError {
        let not_yet = |why| ResumeError::NotYet { address, why };
        match self {
            Missed::Peer(why) => not_yet(why),
            // The peer may be starting, crowded, stopped, or cut off once more.
            Missed::Session(error) if error.may_be_garbling() => not_yet(error.to_string()),
            Missed::Session(HandshakeError::NotResumed { refusal }) => {
                ResumeError::Refused { address, refusal }
            }
            Missed::Session(HandshakeError::OtherNode {
                identity,
                incarnation,
            }) if identity == ticket.peer && incarnation != ticket.incarnation => {
                ResumeError::Restarted {
                    address,
                    incarnation,
                }
            }
            Missed::Session(HandshakeError::OtherNode { identity, .. }) => {
                ResumeError::OtherNode { address, identity }
            }
            Missed::Session(source) => ResumeError::Handshake { address, source },
        }
    }
}

fn attempt(
    address: SocketAddr,
    local: &Local,
    ticket: &Ticket,
    patience: Patience<'_>,
) -> Result<Result<ResumedConnection, Missed>, Broken> {
    let stream = match connect(address, &patience)? {
        Ok(stream) => stream,
        Err(error) => return Ok(Err(Missed::Peer(error.to_string()))),
    };
    let mut nonce = [0; 16];
    random_bytes(&mut nonce).map_err(|error| Broken::Environment(RANDOM, error))?;
    let now = Instant::now();
    let patience = patience.until(after(now, local.handshake_timeout));
    let deadline = patience.deadline;
    let pair = OwnPair::new(&stream, address, local, Some(ticket.session_id))
        .map_err(|error| Broken::Environment(OWN_ADDRESS, error))?;
    let machine = ResumerHandshake::new(local, ticket.clone(), nonce, now, deadline);
    let line = Line::new(machine, stream, patience);
    let reunion = Reunion {
        line,
        address,
        began: now,
        pair,
    };
    Ok(reunion.run()?.map_err(Missed::Session))
}

/// A handshake and the sockets that it runs on.
struct Reunion<'a> {
    line: Line<'a, ResumerPart>,
    address: SocketAddr,
    began: Instant,
    pair: OwnPair,
}

impl Reunion<'_> {
    fn run(mut self) -> Result<Result<ResumedConnection, HandshakeError>, Broken> {
        loop {
            while let Some(event) = self.line.machine.poll_event() {
                match event {
                    ResumerEvent::PreparePair => {
                        self.line.machine.handle_prepared(self.pair.prepare());
                    }
                    ResumerEvent::ConnectPair(theirs) => {
                        let connected = self.pair.connect(&theirs);
                        self.line.machine.handle_connected(connected);
                    }
                    ResumerEvent::Resumed(session) => {
                        self.line.transmit();
                        return Ok(self.finish(session));
                    }
                    ResumerEvent::Failed(error) => {
                        self.line.part();
                        return Ok(Err(error));
                    }
                }
            }
            self.line.transmit();
            self.line
                .wait(None)
                .map_err(|Cancelled| Broken::Cancelled)?;
            self.line.receive();
            self.line.machine.handle_timeout(Instant::now());
        }
    }

    /// Finishes once the last message is written, before the stream changes hands.
    fn finish(mut self, session: ResumedSession) -> Result<ResumedConnection, HandshakeError> {
        if !self.line.has_transmitted() {
            return Err(HandshakeError::takes_no_more());
        }
        let sockets = Sockets {
            stream: self.line.stream,
            tls: self.line.machine.take_tls(),
            leftover: self.line.machine.into_leftover(),
            address: self.address,
            began: self.began,
            unix: None,
            verbs: self.pair.into_pair(),
        };
        Ok(ResumedConnection::new(session, sockets, true))
    }
}
