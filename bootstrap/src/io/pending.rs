//! An incoming connection whose handshake is not finished.
#![forbid(unsafe_code)]

use std::collections::VecDeque;
use std::io;
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::time::Instant;

use rustix::event::epoll::EventFlags;

use super::epoll_set::Watch;
use super::errands::{Errand, Outcome};
use super::line::Line;
use super::reserve::{self, Reserve};
use super::tcp;
use super::unix::{self, Datagram, Part, UnixPair, UnixPeer};
use crate::error::{HandshakeError, Problem};
use crate::established::{Established, Sockets};
use crate::handshake::{
    AcceptorEvent, AcceptorHandshake, AcceptorPart, Agreement, ResumedSession, Step,
};
use crate::negotiate::End;
use crate::resumption::ResumedConnection;
use crate::unix_sockets::{UnixClosing, UnixSocket};
use crate::verbs::{PairRequest, VerbsPair};

/// A handshake and the sockets that it runs on, each in the acceptor's epoll set under the same
/// `key`. Whichever is ready, [`Pending::advance`] looks at all of them, since there are two or
/// three at most.
pub(super) struct Pending {
    line: Line<AcceptorPart>,
    address: SocketAddr,
    /// The time at which the connection was accepted.
    began: Instant,

    // Unix.
    closing: UnixClosing,
    listener: Option<UnixSocket>,
    /// Connections that have presented nothing yet, oldest first.
    visitors: VecDeque<UnixPeer>,
    /// The connection with the token that will carry the bells, until the other connection comes.
    bells: Option<UnixPeer>,
    /// Both connections of the dialer.
    dialer: Option<UnixPair>,
    /// Descriptors for the Unix sockets that are not there yet.
    reserve: Reserve,
    /// It is known whether there are descriptors for a session.
    has_looked: bool,

    // RDMA.
    /// This end's address on `stream`, by which a device is chosen.
    own_address: IpAddr,
    pair: Option<Box<dyn VerbsPair>>,
    /// Errands to be run off the turn; the results come to [`Pending::handle_outcome`].
    errands: Vec<Errand>,
}

/// The progress of a handshake.
pub(super) enum Progress {
    Waiting,
    Agreed(Box<Agreement>),
    Resumed(ResumedSession),
    Failed(HandshakeError),
    /// The peer of a failed handshake has received the reason, or never will.
    Gone,
}

impl Pending {
    pub(super) fn new(
        machine: AcceptorHandshake,
        stream: TcpStream,
        address: SocketAddr,
        closing: UnixClosing,
        watch: Watch<'_>,
    ) -> io::Result<Pending> {
        let own_address = tcp::own_address(&stream)?;
        watch.add(&stream, EventFlags::IN)?;
        Ok(Pending {
            line: Line::new(machine, stream),
            address,
            began: Instant::now(),
            closing,
            listener: None,
            visitors: VecDeque::new(),
            bells: None,
            dialer: None,
            reserve: Reserve::default(),
            has_looked: false,
            own_address,
            pair: None,
            errands: Vec::new(),
        })
    }

    /// Does everything that can be done without waiting.
    pub(super) fn advance(&mut self, now: Instant, watch: Watch<'_>) -> Progress {
        if self.line.is_parting() {
            return match self.line.hear_out(now) {
                true => Progress::Waiting,
                false => Progress::Gone,
            };
        }
        self.look_for_descriptors();
        self.line.read();
        self.hear_visitors(watch);
        self.line.machine.handle_timeout(now);
        let progress = self.act(watch);
        self.line.write(watch);
        match progress {
            // The last message has to be written before the stream changes hands.
            Progress::Agreed(_) | Progress::Resumed(_) if !self.line.has_written() => {
                Progress::Failed(HandshakeError::takes_no_more())
            }
            progress => progress,
        }
    }

    /// Takes the errands to be run off the turn.
    pub(super) fn take_errands(&mut self) -> Vec<Errand> {
        std::mem::take(&mut self.errands)
    }

    /// Takes the result of an errand. [`Pending::advance`] is due afterwards.
    pub(super) fn handle_outcome(&mut self, outcome: Outcome) {
        match outcome {
            Outcome::Found(found) => self.line.machine.handle_device(found),
            Outcome::Prepared(prepared) => {
                let endpoint = prepared.map(|pair| self.pair.insert(pair).endpoint());
                self.line.machine.handle_prepared(endpoint);
            }
            Outcome::Connected(connected) => {
                let connected = connected.map(|pair| self.pair = Some(pair));
                self.line.machine.handle_connected(connected);
            }
        }
    }

    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }

    pub(super) fn step(&self) -> Step {
        self.line.machine.step()
    }

    /// Returns what to report of a handshake that failed.
    pub(super) fn problem(&self, error: HandshakeError) -> Problem {
        match error {
            HandshakeError::Closed { .. } if !self.line.is_heard() => Problem::Unheard,
            error => error.into(),
        }
    }

    pub(super) fn has_hello(&self) -> bool {
        self.line.machine.has_hello()
    }

    pub(super) fn deadline(&self) -> Option<Instant> {
        self.line.deadline()
    }

    /// Begins to read the peer's remaining bytes, where TLS has sent the reason, which must not be
    /// lost. Returns whether it does.
    pub(super) fn begin_farewell(&mut self, now: Instant, watch: Watch<'_>) -> bool {
        if !self.line.begin_farewell(now) {
            return false;
        }
        self.close_unix(watch);
        self.pair = None;
        true
    }

    /// Tells whether the handshake is over without a session.
    pub(super) fn is_over(&self) -> bool {
        self.line.is_parting()
    }

    /// Returns the agreed session, with its sockets out of the epoll set.
    pub(super) fn finish(mut self, agreement: Agreement, watch: Watch<'_>) -> Established {
        self.unwatch(watch);
        Established::new(agreement, self.into_sockets(), false)
    }

    /// Returns the connection of a resumed session, with its sockets out of the epoll set.
    pub(super) fn resume(mut self, session: ResumedSession, watch: Watch<'_>) -> ResumedConnection {
        self.unwatch(watch);
        ResumedConnection::new(session, self.into_sockets(), false)
    }

    fn into_sockets(mut self) -> Sockets {
        Sockets {
            tls: self.line.machine.take_tls(),
            stream: self.line.stream,
            leftover: self.line.machine.into_leftover(),
            address: self.address,
            began: self.began,
            unix: self.dialer.map(UnixPair::into_parts),
            verbs: self.pair,
        }
    }

    /// Takes every socket out of the epoll set. Closing would do it, unless a forked child holds
    /// them open, and then they would stay ready forever.
    pub(super) fn unwatch(&mut self, watch: Watch<'_>) {
        watch.remove(&self.line.stream);
        self.close_unix(watch);
    }

    /// Accepts a few connections to the Unix socket, and shows the machine what is presented there.
    fn hear_visitors(&mut self, watch: Watch<'_>) {
        let Some(listener) = &self.listener else {
            return;
        };
        self.reserve = Reserve::default();
        for _ in 0..VISITS_PER_TURN {
            let visitor = match unix::accept(listener, self.closing) {
                Some(Ok(visitor)) => visitor,
                Some(Err(why)) => {
                    tracing::debug!(%why, "a connection to the Unix socket was closed");
                    continue;
                }
                None => break,
            };
            if watch.add(&visitor, EventFlags::IN).is_err() {
                continue;
            }
            if self.visitors.len() == MAX_VISITORS
                && let Some(oldest) = self.visitors.pop_front()
            {
                watch.remove(&oldest);
            }
            self.visitors.push_back(visitor);
        }
        for _ in 0..self.visitors.len() {
            let Some(visitor) = self.visitors.pop_front() else {
                break;
            };
            // The buffer is longer than a token, so that a longer datagram is not cut to look like
            // one.
            let mut buffer = [0; 64];
            match visitor.receive(&mut buffer) {
                Datagram::Nothing => self.visitors.push_back(visitor),
                Datagram::Bytes(length) => {
                    watch.remove(&visitor);
                    self.take_in(visitor, &buffer[..length]);
                }
                Datagram::Closed => watch.remove(&visitor),
            }
        }
    }

    /// Handles what a connection at the Unix socket has presented. The dialer makes the bells'
    /// connection first, so it is here when the other comes.
    fn take_in(&mut self, visitor: UnixPeer, datagram: &[u8]) {
        let Some((part, token)) = unix::presented(datagram) else {
            return;
        };
        // Only both connections together use the token up.
        if part == Part::Bells && self.line.machine.knows_token(token) {
            self.bells = Some(visitor);
        } else if part == Part::Control
            && self.bells.is_some()
            && self.line.machine.handle_token(token)
        {
            visitor.welcome();
            self.dialer = self.bells.take().map(|bells| UnixPair {
                control: visitor,
                bells,
            });
        }
    }

    fn act(&mut self, watch: Watch<'_>) -> Progress {
        while let Some(event) = self.line.machine.poll_event() {
            match event {
                AcceptorEvent::ListenUnix { name } => {
                    // The socket that listens takes the place of one that stays free.
                    match Reserve::keep(reserve::OF_SESSION, reserve::FOR_CHANNELS) {
                        Ok(reserve) => self.reserve = reserve,
                        Err(limit) => {
                            self.line.machine.handle_shortage(limit);
                            continue;
                        }
                    }
                    let outcome = self.listen_unix(&name, watch);
                    self.line.machine.handle_listening(
                        outcome.map_err(|error| format!("its Unix socket failed ({error})")),
                    );
                }
                AcceptorEvent::CloseUnix => {
                    self.close_unix(watch);
                    self.reserve = Reserve::default();
                }
                AcceptorEvent::FindDevice => self.errands.push(Errand::Find(self.own_address)),
                AcceptorEvent::PreparePair => self.errands.push(Errand::Prepare(PairRequest {
                    local: self.own_address,
                    peer: self.address,
                    offered: self.line.machine.offered(),
                    end: End::Acceptor,
                    resumes: self.line.machine.resumes(),
                })),
                AcceptorEvent::ConnectPair(theirs) => {
                    let pair = self.pair.take();
                    self.errands
                        .extend(pair.map(|pair| Errand::Connect(pair, theirs)));
                }
                AcceptorEvent::ClosePair => self.pair = None,
                AcceptorEvent::Agreed(agreement) => {
                    return Progress::Agreed(agreement);
                }
                AcceptorEvent::Resumed(session) => {
                    return Progress::Resumed(session);
                }
                AcceptorEvent::Failed(error) => {
                    return Progress::Failed(error);
                }
            }
        }
        Progress::Waiting
    }

    fn listen_unix(&mut self, name: &[u8], watch: Watch<'_>) -> io::Result<()> {
        let listener = unix::listen_at(name, self.closing)?;
        watch.add(&listener, EventFlags::IN)?;
        self.listener = Some(listener);
        Ok(())
    }

    fn close_unix(&mut self, watch: Watch<'_>) {
        if let Some(listener) = self.listener.take() {
            watch.remove(&listener);
        }
        for visitor in self.visitors.drain(..) {
            watch.remove(&visitor);
        }
        self.bells = None;
    }

    /// Checks whether this process may open the files of one more session, once the peer has said
    /// Hello: a stranger that says nothing costs less.
    fn look_for_descriptors(&mut self) {
        if self.has_looked || !self.has_hello() {
            return;
        }
        self.has_looked = true;
        if let Err(limit) = Reserve::keep(reserve::OF_SESSION, reserve::FOR_CHANNELS) {
            self.line.machine.handle_shortage(limit);
        }
    }
}

/// The most connections to the Unix socket that a turn accepts, of whichever user: both connections
/// of a dialer. The socket stays ready while there are more.
const VISITS_PER_TURN: usize = 2;

/// The most connections of this user at the Unix socket that have presented no token yet.
const MAX_VISITORS: usize = 4;
