//! An incoming connection whose handshake is not finished.
#![forbid(unsafe_code)]

use std::collections::VecDeque;
use std::io;
use std::net::{IpAddr, TcpStream};
use std::time::Instant;

use ibex_base::Address;
use rustix::event::epoll::EventFlags;

use super::device_jobs::{DeviceJob, DeviceOutcome};
use super::epoll_set::EpollEntry;
use super::handshake_connection::HandshakeConnection;
use super::reserve::{self, Reserve};
use super::socket_name::{SocketName, UnixListener};
use super::tcp::{self, NO_RDMA};
use super::unix::{self, Datagram, SocketPurpose, UnixPair, UnixPeer};
use crate::error::{HandshakeError, Problem};
use crate::established::{Established, ResumedConnection, Sockets};
use crate::handshake::{
    AcceptorEntropy, AcceptorEvent, AcceptorHandshake, AcceptorPart, Agreement, HandshakeStep,
    ResumedSession,
};
use crate::identity::Secret;
use crate::local::Local;
use crate::party::Party;
use crate::unix_sockets::UnixSettings;
use crate::verbs::{PairRequest, VerbsPair};

/// A handshake and the sockets that it runs on, each in the acceptor's epoll set under the same
/// `key`. Whichever is ready, [`Pending::advance`] looks at all of them, since there are two or
/// three at most.
pub(super) struct Pending {
    connection: HandshakeConnection<AcceptorPart>,
    address: Address,
    /// The time at which the connection was accepted.
    began: Instant,

    // Unix.
    unix: UnixSettings,
    listener: Option<UnixListener>,
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
    /// This end's IP address on `stream`, by which a device is chosen; none over vsock.
    own_address: Option<IpAddr>,
    pair: Option<Box<dyn VerbsPair>>,
    /// Device jobs to be run off the turn; the results come to [`Pending::handle_outcome`].
    device_jobs: Vec<DeviceJob>,
}

/// The progress of a handshake.
pub(super) enum HandshakeProgress {
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
        address: Address,
        local: &Local,
        watch: EpollEntry<'_>,
    ) -> io::Result<Pending> {
        let own_address = tcp::own_address(&stream)?.ip();
        watch.add(&stream, EventFlags::IN)?;
        Ok(Pending {
            connection: HandshakeConnection::new(machine, stream),
            address,
            began: Instant::now(),
            unix: local.unix.clone(),
            listener: None,
            visitors: VecDeque::new(),
            bells: None,
            dialer: None,
            reserve: Reserve::default(),
            has_looked: false,
            own_address,
            pair: None,
            device_jobs: Vec::new(),
        })
    }

    /// Does everything that can be done without waiting.
    pub(super) fn advance(&mut self, now: Instant, watch: EpollEntry<'_>) -> HandshakeProgress {
        if self.connection.is_parting() {
            return match self.connection.hear_out(now) {
                true => HandshakeProgress::Waiting,
                false => HandshakeProgress::Gone,
            };
        }
        self.look_for_descriptors();
        self.connection.read();
        self.hear_visitors(watch);
        self.connection.machine.handle_timeout(now);
        let progress = self.act(watch);
        self.connection.write(watch);
        match progress {
            // The last message has to be written before the stream changes hands.
            HandshakeProgress::Agreed(_) | HandshakeProgress::Resumed(_)
                if !self.connection.has_written() =>
            {
                HandshakeProgress::Failed(HandshakeError::takes_no_more())
            }
            progress => progress,
        }
    }

    /// Takes the device jobs to be run off the turn.
    pub(super) fn take_device_jobs(&mut self) -> Vec<DeviceJob> {
        std::mem::take(&mut self.device_jobs)
    }

    /// Takes the result of a job. [`Pending::advance`] is due afterwards.
    pub(super) fn handle_outcome(&mut self, outcome: DeviceOutcome) {
        match outcome {
            DeviceOutcome::Found(found) => self.connection.machine.handle_device(found),
            DeviceOutcome::Prepared(prepared) => {
                let endpoint = prepared.map(|pair| self.pair.insert(pair).endpoint());
                self.connection.machine.handle_prepared(endpoint);
            }
            DeviceOutcome::Connected(connected) => {
                let connected = connected.map(|pair| self.pair = Some(pair));
                self.connection.machine.handle_connected(connected);
            }
        }
    }

    pub(super) fn address(&self) -> Address {
        self.address
    }

    pub(super) fn step(&self) -> HandshakeStep {
        self.connection.machine.step()
    }

    /// Returns what to report of a handshake that failed.
    pub(super) fn problem(&self, error: HandshakeError) -> Problem {
        match error {
            HandshakeError::Closed { .. } if !self.connection.is_heard() => Problem::Unheard,
            error => error.into(),
        }
    }

    pub(super) fn has_hello(&self) -> bool {
        self.connection.machine.has_hello()
    }

    pub(super) fn deadline(&self) -> Option<Instant> {
        self.connection.deadline()
    }

    /// Begins to read the peer's remaining bytes, where TLS has sent the reason, which must not be
    /// lost. Returns whether it does.
    pub(super) fn begin_farewell(&mut self, now: Instant, watch: EpollEntry<'_>) -> bool {
        if !self.connection.begin_farewell(now) {
            return false;
        }
        self.close_unix(watch);
        self.pair = None;
        true
    }

    /// Tells whether the handshake is over without a session.
    pub(super) fn is_over(&self) -> bool {
        self.connection.is_parting()
    }

    /// Returns the agreed session, with its sockets out of the epoll set.
    pub(super) fn finish(mut self, agreement: Agreement, watch: EpollEntry<'_>) -> Established {
        self.unwatch(watch);
        Established::new(agreement, self.into_sockets(), false)
    }

    /// Returns the connection of a resumed session, with its sockets out of the epoll set.
    pub(super) fn resume(
        mut self,
        session: ResumedSession,
        watch: EpollEntry<'_>,
    ) -> ResumedConnection {
        self.unwatch(watch);
        ResumedConnection::new(session, self.into_sockets(), false)
    }

    fn into_sockets(mut self) -> Sockets {
        Sockets {
            tls: self.connection.machine.take_tls(),
            stream: self.connection.stream,
            leftover: self.connection.machine.into_leftover(),
            address: self.address,
            began: self.began,
            unix: self.dialer.map(UnixPair::into_parts),
            verbs: self.pair,
        }
    }

    /// Takes every socket out of the epoll set. Closing would do it, unless a forked child holds
    /// them open, and then they would stay ready forever.
    pub(super) fn unwatch(&mut self, watch: EpollEntry<'_>) {
        watch.remove(&self.connection.stream);
        self.close_unix(watch);
    }

    /// Accepts a few connections to the Unix socket, and shows the machine what is presented there.
    fn hear_visitors(&mut self, watch: EpollEntry<'_>) {
        let Some(listener) = &self.listener else {
            return;
        };
        self.reserve = Reserve::default();
        for _ in 0..VISITS_PER_TURN {
            let visitor = match unix::accept(listener, &self.unix) {
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
        let Some((purpose, token)) = unix::presented(datagram) else {
            return;
        };
        // Only both connections together use the token up.
        if purpose == SocketPurpose::Bells && self.connection.machine.knows_token(token) {
            self.bells = Some(visitor);
        } else if purpose == SocketPurpose::Control
            && self.bells.is_some()
            && self.connection.machine.handle_token(token)
        {
            visitor.welcome();
            self.dialer = self.bells.take().map(|bells| UnixPair {
                control: visitor,
                bells,
            });
        }
    }

    fn act(&mut self, watch: EpollEntry<'_>) -> HandshakeProgress {
        while let Some(event) = self.connection.machine.poll_event() {
            match event {
                AcceptorEvent::ListenUnix { name, in_directory } => {
                    // The socket that listens takes the place of one that stays free.
                    match Reserve::keep(reserve::OF_SESSION, reserve::FOR_CHANNELS) {
                        Ok(reserve) => self.reserve = reserve,
                        Err(limit) => {
                            self.connection.machine.handle_shortage(limit);
                            continue;
                        }
                    }
                    let name = SocketName::of(&name, in_directory, &self.unix);
                    let outcome = name
                        .map_err(io::Error::other)
                        .and_then(|name| self.listen_unix(name, watch));
                    self.connection.machine.handle_listening(
                        outcome.map_err(|error| format!("its Unix socket failed ({error})")),
                    );
                }
                AcceptorEvent::CloseUnix => {
                    self.close_unix(watch);
                    self.reserve = Reserve::default();
                }
                AcceptorEvent::FindDevice => match self.own_address {
                    Some(address) => self.device_jobs.push(DeviceJob::Find(address)),
                    None => self
                        .connection
                        .machine
                        .handle_device(Err(NO_RDMA.to_owned())),
                },
                AcceptorEvent::PreparePair => match self.own_address.zip(self.address.inet()) {
                    Some((local, peer)) => self.device_jobs.push(DeviceJob::Prepare(PairRequest {
                        local,
                        peer,
                        offered: self.connection.machine.offered(),
                        end: Party::Acceptor,
                        resumes: self.connection.machine.resumes(),
                    })),
                    None => self
                        .connection
                        .machine
                        .handle_prepared(Err(NO_RDMA.to_owned())),
                },
                AcceptorEvent::ConnectPair(theirs) => {
                    let pair = self.pair.take();
                    self.device_jobs
                        .extend(pair.map(|pair| DeviceJob::Connect(pair, theirs)));
                }
                AcceptorEvent::ClosePair => self.pair = None,
                AcceptorEvent::Agreed(agreement) => {
                    return HandshakeProgress::Agreed(agreement);
                }
                AcceptorEvent::Resumed(session) => {
                    return HandshakeProgress::Resumed(session);
                }
                AcceptorEvent::Failed(error) => {
                    return HandshakeProgress::Failed(error);
                }
            }
        }
        HandshakeProgress::Waiting
    }

    fn listen_unix(&mut self, name: SocketName, watch: EpollEntry<'_>) -> io::Result<()> {
        let listener = unix::listen_at(name, &self.unix)?;
        watch.add(&listener, EventFlags::IN)?;
        self.listener = Some(listener);
        Ok(())
    }

    fn close_unix(&mut self, watch: EpollEntry<'_>) {
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
            self.connection.machine.handle_shortage(limit);
        }
    }
}

/// Draws what a handshake of the acceptor needs of randomness.
pub(super) fn draw_entropy() -> io::Result<AcceptorEntropy> {
    fn draw<const N: usize>() -> io::Result<[u8; N]> {
        let mut bytes = [0; N];
        ibex_base::random::fill(&mut bytes)?;
        Ok(bytes)
    }
    Ok(AcceptorEntropy {
        nonce: draw()?,
        token: Secret::new(draw()?),
        session_id: draw()?,
        resume_secret: Secret::new(draw()?),
    })
}

/// The most connections to the Unix socket that a turn accepts, of whichever user: both connections
/// of a dialer. The socket stays ready while there are more.
const VISITS_PER_TURN: usize = 2;

/// The most connections of allowed users at the Unix socket that have presented no token yet.
const MAX_VISITORS: usize = 4;
