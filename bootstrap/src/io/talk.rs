//! A handshake of a dialing end, for a new session or to resume one, and the sockets that it runs on.
#![forbid(unsafe_code)]

use std::net::{IpAddr, TcpStream};
use std::time::Instant;

use ibex_base::Address;
use rustix::event::epoll::EventFlags;

use super::device_jobs::DeviceJob;
use super::epoll_set::EpollEntry;
use super::handshake_connection::HandshakeConnection;
use super::reserve::{self, Reserve};
use super::socket_name::SocketName;
use super::tcp::NO_RDMA;
use super::unix::{UnixPair, UnixPeer};
use crate::error::HandshakeError;
use crate::established::Sockets;
use crate::fabric::VerbsDevice;
use crate::handshake::{
    Agreement, DialerEvent, DialerHandshake, DialerPart, HandshakeStep, ResumedSession,
    ResumerEvent, ResumerHandshake, ResumerPart,
};
use crate::identity::Secret;
use crate::local::Local;
use crate::message::VerbsEndpoint;
use crate::party::Party;
use crate::resumption::ResumeTicket;
use crate::verbs::{PairRequest, VerbsPair};

/// A handshake and the sockets that it runs on.
pub(super) struct Talk {
    pub(super) connection: AnyConnection,
    began: Instant,
    /// Connected, from the moment when the machine asked for the socket. Only the machine knows
    /// whether the answer came.
    pub(super) unix: Option<UnixPair>,

    // RDMA.
    /// This end's IP address on the connection, by which a device is chosen; none over vsock.
    own_address: Option<IpAddr>,
    pub(super) pair: Option<Box<dyn VerbsPair>>,
    /// Device jobs to be run off the turn; the attempt takes the results.
    pub(super) device_jobs: Vec<DeviceJob>,
}

/// A new session's handshake, or the handshake of one that resumes.
#[allow(
    clippy::large_enum_variant,
    reason = "the talk around it is boxed as a whole"
)]
pub(super) enum AnyConnection {
    New(HandshakeConnection<DialerPart>),
    Resuming(HandshakeConnection<ResumerPart>),
}

/// An event of either machine.
pub(super) enum HandshakeEvent {
    ConnectUnix {
        name: Vec<u8>,
        in_directory: bool,
        token: Secret,
    },
    FindDevice,
    PreparePair,
    ConnectPair(Box<VerbsEndpoint>),
    ClosePair,
    Agreed(Box<Agreement>),
    Resumed(ResumedSession),
    Failed(HandshakeError),
}

/// Evaluates an expression with the connection of either kind.
macro_rules! with_connection {
    ($any:expr, $connection:ident => $value:expr) => {
        match $any {
            AnyConnection::New($connection) => $value,
            AnyConnection::Resuming($connection) => $value,
        }
    };
}

/// The parts of a talk, before it has the connection.
pub(super) struct TalkParts {
    pub(super) machine: Machine,
    pub(super) began: Instant,
    pub(super) own_address: Option<IpAddr>,
}

#[allow(
    clippy::large_enum_variant,
    reason = "it moves into the boxed talk at once"
)]
pub(super) enum Machine {
    New(DialerHandshake),
    Resuming(ResumerHandshake),
}

impl TalkParts {
    pub(super) fn on(self, stream: TcpStream) -> Talk {
        Talk {
            connection: match self.machine {
                Machine::New(machine) => {
                    AnyConnection::New(HandshakeConnection::new(machine, stream))
                }
                Machine::Resuming(machine) => {
                    AnyConnection::Resuming(HandshakeConnection::new(machine, stream))
                }
            },
            began: self.began,
            unix: None,
            own_address: self.own_address,
            pair: None,
            device_jobs: Vec::new(),
        }
    }
}

impl AnyConnection {
    pub(super) fn is_parting(&self) -> bool {
        with_connection!(self, connection => connection.is_parting())
    }

    fn poll_event(&mut self) -> Option<HandshakeEvent> {
        match self {
            AnyConnection::New(connection) => {
                connection.machine.poll_event().map(HandshakeEvent::from)
            }
            AnyConnection::Resuming(connection) => {
                connection.machine.poll_event().map(HandshakeEvent::from)
            }
        }
    }

    fn handle_unix(&mut self, outcome: Result<(), String>) {
        if let AnyConnection::New(connection) = self {
            connection.machine.handle_unix(outcome);
        }
    }

    pub(super) fn handle_device(&mut self, found: Result<VerbsDevice, String>) {
        if let AnyConnection::New(connection) = self {
            connection.machine.handle_device(found);
        }
    }

    fn handle_shortage(&mut self, limit: u32) {
        if let AnyConnection::New(connection) = self {
            connection.machine.handle_shortage(limit);
        }
    }
}

impl Talk {
    /// Acts on the machine's events. Returns the one that ends the handshake.
    pub(super) fn act(
        &mut self,
        peer: Address,
        local: &Local,
        ticket: Option<&ResumeTicket>,
        watch: EpollEntry<'_>,
    ) -> Option<HandshakeEvent> {
        while let Some(event) = self.connection.poll_event() {
            match event {
                HandshakeEvent::ConnectUnix {
                    name,
                    in_directory,
                    token,
                } => {
                    if let Err(limit) = Reserve::keep(reserve::OF_SESSION, reserve::FOR_CHANNELS) {
                        self.connection.handle_shortage(limit);
                        continue;
                    }
                    let name = SocketName::of(&name, in_directory, &local.unix);
                    let connected =
                        name.and_then(|name| UnixPair::connect(&name, &token, &local.unix));
                    let watched = connected.and_then(|unix| {
                        let watched = watch.add(&unix.control, EventFlags::IN);
                        watched.map_err(|error| format!("its Unix socket failed ({error})"))?;
                        Ok(unix)
                    });
                    match watched {
                        Ok(unix) => self.unix = Some(unix),
                        Err(why) => self.connection.handle_unix(Err(why)),
                    }
                }
                HandshakeEvent::FindDevice => match self.own_address {
                    Some(address) => self.device_jobs.push(DeviceJob::Find(address)),
                    None => self.connection.handle_device(Err(NO_RDMA.to_owned())),
                },
                HandshakeEvent::PreparePair => match self.own_address.zip(peer.inet()) {
                    Some((local, peer)) => self.device_jobs.push(DeviceJob::Prepare(PairRequest {
                        local,
                        peer,
                        offered: None,
                        end: Party::Dialer,
                        resumes: ticket.map(|ticket| ticket.session_id),
                    })),
                    None => with_connection!(&mut self.connection, connection => {
                        connection.machine.handle_prepared(Err(NO_RDMA.to_owned()));
                    }),
                },
                HandshakeEvent::ConnectPair(theirs) => {
                    let pair = self.pair.take();
                    self.device_jobs
                        .extend(pair.map(|pair| DeviceJob::Connect(pair, theirs)));
                }
                HandshakeEvent::ClosePair => self.pair = None,
                over @ (HandshakeEvent::Agreed(_)
                | HandshakeEvent::Resumed(_)
                | HandshakeEvent::Failed(_)) => {
                    return Some(over);
                }
            }
            // The answer may be here already.
            self.hear_unix(watch);
        }
        None
    }

    pub(super) fn hear_unix(&mut self, watch: EpollEntry<'_>) {
        let Some(unix) = self.awaited_unix() else {
            return;
        };
        if let Some(answer) = unix.answer() {
            watch.remove(unix);
            if answer.is_err() {
                self.unix = None;
            }
            self.connection.handle_unix(answer);
        }
    }

    /// The Unix socket while its answer is outstanding.
    fn awaited_unix(&self) -> Option<&UnixPeer> {
        let step = with_connection!(&self.connection, connection => connection.machine.step());
        let unix = self
            .unix
            .as_ref()
            .filter(|_| step == HandshakeStep::UnixSocket);
        unix.map(|unix| &unix.control)
    }

    pub(super) fn into_sockets(self, address: Address) -> Sockets {
        let unix = self.unix.map(UnixPair::into_parts);
        let (began, verbs) = (self.began, self.pair);
        with_connection!(self.connection, connection => {
            let mut connection = connection;
            Sockets {
                tls: connection.machine.take_tls(),
                stream: connection.stream,
                leftover: connection.machine.into_leftover(),
                address,
                began,
                unix,
                verbs,
            }
        })
    }
}

impl From<DialerEvent> for HandshakeEvent {
    fn from(event: DialerEvent) -> HandshakeEvent {
        match event {
            DialerEvent::ConnectUnix {
                name,
                in_directory,
                token,
            } => HandshakeEvent::ConnectUnix {
                name,
                in_directory,
                token,
            },
            DialerEvent::FindDevice => HandshakeEvent::FindDevice,
            DialerEvent::PreparePair => HandshakeEvent::PreparePair,
            DialerEvent::ConnectPair(theirs) => HandshakeEvent::ConnectPair(theirs),
            DialerEvent::ClosePair => HandshakeEvent::ClosePair,
            DialerEvent::Agreed(agreement) => HandshakeEvent::Agreed(agreement),
            DialerEvent::Failed(error) => HandshakeEvent::Failed(error),
        }
    }
}

impl From<ResumerEvent> for HandshakeEvent {
    fn from(event: ResumerEvent) -> HandshakeEvent {
        match event {
            ResumerEvent::PreparePair => HandshakeEvent::PreparePair,
            ResumerEvent::ConnectPair(theirs) => HandshakeEvent::ConnectPair(theirs),
            ResumerEvent::Resumed(session) => HandshakeEvent::Resumed(session),
            ResumerEvent::Failed(error) => HandshakeEvent::Failed(error),
        }
    }
}

pub(super) use with_connection;
