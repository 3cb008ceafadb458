//! An incoming connection whose handshake is not finished.
#![forbid(unsafe_code)]

use std::collections::VecDeque;
use std::io;
use std::net::{IpAddr, Shutdown, SocketAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use rustix::event::epoll::{self, EventData, EventFlags};

use super::errands::{Errand, Outcome};
use super::tcp::{self, Incoming};
use super::unix::{self, Datagram, Part, UnixPair, UnixPeer};
use crate::error::HandshakeError;
use crate::established::{Established, Sockets};
use crate::handshake::{AcceptorEvent, AcceptorHandshake, Agreement, ResumedSession, Step};
use crate::negotiate::End;
use crate::resumption::ResumedConnection;
use crate::unix_sockets::{UnixClosing, UnixSocket};
use crate::verbs::{PairRequest, VerbsPair};

/// A handshake and the sockets that it runs on, each in the acceptor's epoll set under the same
/// `key`. Whichever is ready, [`Pending::advance`] looks at all of them, since there are two or
/// three at most.
pub(super) struct Pending {
    machine: AcceptorHandshake,
    address: SocketAddr,
    /// The time at which the connection was accepted.
    began: Instant,

    // TCP.
    stream: TcpStream,
    outbox: Vec<u8>,
    /// True if the set reports when `stream` takes more.
    watching_writes: bool,

    // Unix.
    closing: UnixClosing,
    listener: Option<UnixSocket>,
    /// Connections that have presented nothing yet, oldest first.
    visitors: VecDeque<UnixPeer>,
    /// The connection with the token that will carry the bells, until the other connection comes.
    bells: Option<UnixPeer>,
    /// Both connections of the dialer.
    dialer: Option<UnixPair>,

    // RDMA.
    /// This end's address on `stream`, by which a device is chosen.
    own_address: IpAddr,
    pair: Option<Box<dyn VerbsPair>>,
    /// Errands to be run off the turn; the results come to [`Pending::handle_outcome`].
    errands: Vec<Errand>,

    /// Set once the handshake has failed and the peer is to hear why.
    farewell: Option<Farewell>,
}

/// The end of a connection whose peer may still be sending. Closing it with bytes unread would have
/// the kernel send a reset, which takes the last words from the peer ([RFC 1122, section
/// 4.2.2.13](https://www.rfc-editor.org/rfc/rfc1122#section-4.2.2.13)).
struct Farewell {
    until: Instant,
    /// The number of bytes that may still be read.
    left: usize,
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

/// The acceptor's epoll set as one handshake sees it.
#[derive(Clone, Copy)]
pub(super) struct Watch<'a> {
    pub(super) epoll: BorrowedFd<'a>,
    pub(super) key: u64,
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
            machine,
            address,
            began: Instant::now(),
            stream,
            outbox: Vec::new(),
            watching_writes: false,
            closing,
            listener: None,
            visitors: VecDeque::new(),
            bells: None,
            dialer: None,
            own_address,
            pair: None,
            errands: Vec::new(),
            farewell: None,
        })
    }

    /// Does everything that can be done without waiting.
    pub(super) fn advance(&mut self, now: Instant, watch: Watch<'_>) -> Progress {
        if self.farewell.is_some() {
            return self.hear_out(now);
        }
        self.read();
        self.hear_visitors(watch);
        self.machine.handle_timeout(now);
        let progress = self.act(watch);
        self.write(watch);
        match progress {
            // The last message has to be written before the stream changes hands.
            Progress::Agreed(_) | Progress::Resumed(_) if !self.outbox.is_empty() => {
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
            Outcome::Found(found) => self.machine.handle_device(found),
            Outcome::Prepared(prepared) => {
                let endpoint = prepared.map(|pair| self.pair.insert(pair).endpoint());
                self.machine.handle_prepared(endpoint);
            }
            Outcome::Connected(connected) => {
                let connected = connected.map(|pair| self.pair = Some(pair));
                self.machine.handle_connected(connected);
            }
        }
    }

    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }

    pub(super) fn step(&self) -> Step {
        self.machine.step()
    }

    pub(super) fn has_hello(&self) -> bool {
        self.machine.has_hello()
    }

    pub(super) fn deadline(&self) -> Option<Instant> {
        match &self.farewell {
            Some(farewell) => Some(farewell.until),
            None => self.machine.deadline(),
        }
    }

    /// Begins to read the peer's remaining bytes, where TLS has sent the reason, which must not be
    /// lost. Returns whether it does.
    pub(super) fn begin_farewell(&mut self, now: Instant, watch: Watch<'_>) -> bool {
        if !self.machine.is_sealed() || !self.outbox.is_empty() {
            return false;
        }
        self.close_unix(watch);
        self.pair = None;
        self.farewell = Some(Farewell {
            until: now + FAREWELL,
            left: FAREWELL_BYTES,
        });
        self.stream.shutdown(Shutdown::Write).is_ok()
    }

    /// Tells whether the handshake is over without a session.
    pub(super) fn is_over(&self) -> bool {
        self.farewell.is_some()
    }

    fn hear_out(&mut self, now: Instant) -> Progress {
        let Some(farewell) = &mut self.farewell else {
            return Progress::Gone;
        };
        let mut buffer = [0; READ_BYTES];
        for _ in 0..READS_PER_TURN {
            match tcp::read(&self.stream, &mut buffer) {
                Incoming::Bytes(bytes) if bytes.len() < farewell.left => {
                    farewell.left -= bytes.len();
                }
                Incoming::Nothing if now < farewell.until => return Progress::Waiting,
                _ => return Progress::Gone,
            }
        }
        Progress::Waiting
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
            stream: self.stream,
            tls: self.machine.take_tls(),
            leftover: self.machine.into_leftover(),
            address: self.address,
            began: self.began,
            unix: self.dialer.map(UnixPair::into_parts),
            verbs: self.pair,
        }
    }

    /// Takes every socket out of the epoll set. Closing would do it, unless a forked child holds
    /// them open, and then they would stay ready forever.
    pub(super) fn unwatch(&mut self, watch: Watch<'_>) {
        watch.remove(&self.stream);
        self.close_unix(watch);
    }

    fn read(&mut self) {
        let mut buffer = [0; READ_BYTES];
        for _ in 0..READS_PER_TURN {
            match tcp::read(&self.stream, &mut buffer) {
                Incoming::Bytes(bytes) => {
                    self.machine.handle_bytes(bytes);
                    if bytes.len() < READ_BYTES {
                        break;
                    }
                }
                Incoming::Nothing => break,
                Incoming::Closed(detail) => {
                    self.machine.handle_closed(detail);
                    break;
                }
            }
        }
    }

    /// Accepts at the Unix socket, and shows the machine what is presented there.
    fn hear_visitors(&mut self, watch: Watch<'_>) {
        let Some(listener) = &self.listener else {
            return;
        };
        while let Some(visitor) = unix::accept(listener, self.closing) {
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
        if part == Part::Bells && self.machine.knows_token(token) {
            self.bells = Some(visitor);
        } else if part == Part::Control && self.bells.is_some() && self.machine.handle_token(token)
        {
            visitor.welcome();
            self.dialer = self.bells.take().map(|bells| UnixPair {
                control: visitor,
                bells,
            });
        }
    }

    fn act(&mut self, watch: Watch<'_>) -> Progress {
        while let Some(event) = self.machine.poll_event() {
            match event {
                AcceptorEvent::ListenUnix { name } => {
                    let outcome = self.listen_unix(&name, watch);
                    self.machine.handle_listening(
                        outcome.map_err(|error| format!("its Unix socket failed ({error})")),
                    );
                }
                AcceptorEvent::CloseUnix => self.close_unix(watch),
                AcceptorEvent::FindDevice => self.errands.push(Errand::Find(self.own_address)),
                AcceptorEvent::PreparePair => self.errands.push(Errand::Prepare(PairRequest {
                    local: self.own_address,
                    peer: self.address,
                    offered: self.machine.offered(),
                    end: End::Acceptor,
                    resumes: self.machine.resumes(),
                })),
                AcceptorEvent::ConnectPair(theirs) => {
                    let pair = self.pair.take();
                    self.errands
                        .extend(pair.map(|pair| Errand::Connect(pair, theirs)));
                }
                AcceptorEvent::ClosePair => self.pair = None,
                AcceptorEvent::Agreed(agreement) => {
                    self.queue_transmits();
                    return Progress::Agreed(agreement);
                }
                AcceptorEvent::Resumed(session) => {
                    self.queue_transmits();
                    return Progress::Resumed(session);
                }
                AcceptorEvent::Failed(error) => {
                    self.queue_transmits();
                    return Progress::Failed(error);
                }
            }
        }
        self.queue_transmits();
        Progress::Waiting
    }

    fn queue_transmits(&mut self) {
        while let Some(bytes) = self.machine.poll_transmit() {
            self.outbox.extend(bytes);
        }
    }

    fn write(&mut self, watch: Watch<'_>) {
        tcp::write(&self.stream, &mut self.outbox);
        let want_writes = !self.outbox.is_empty();
        if want_writes != self.watching_writes {
            let writes = if want_writes {
                EventFlags::OUT
            } else {
                EventFlags::empty()
            };
            watch.modify(&self.stream, EventFlags::IN | writes);
            self.watching_writes = want_writes;
        }
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
}

impl Watch<'_> {
    pub(super) fn add(&self, socket: impl AsFd, events: EventFlags) -> io::Result<()> {
        epoll::add(self.epoll, socket, EventData::new_u64(self.key), events)?;
        Ok(())
    }

    pub(super) fn remove(&self, socket: impl AsFd) {
        // The call fails only for a socket that is not in the set, which is the aim.
        let _ = epoll::delete(self.epoll, socket);
    }

    fn modify(&self, socket: impl AsFd, events: EventFlags) {
        // The call needs no memory, and the socket is in the set.
        let _ = epoll::modify(self.epoll, socket, EventData::new_u64(self.key), events);
    }
}

/// Length of one read, which is more than the dialer's half of any handshake of today.
const READ_BYTES: usize = 4096;

/// Most reads of one handshake before the next connection has its turn; unread bytes stay in the
/// socket.
const READS_PER_TURN: usize = 4;

/// The time for which a refused peer's bytes are read, and the most bytes. The peer closes as soon
/// as it has read the reason.
const FAREWELL: Duration = Duration::from_secs(1);
const FAREWELL_BYTES: usize = 64 << 10;

/// The most connections of this user at the Unix socket that have presented no token yet.
const MAX_VISITORS: usize = 4;
