//! One connection of a dialing end, from the socket to the end of its handshake.
#![forbid(unsafe_code)]

use std::io;
use std::mem;
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Instant;

use rustix::event::epoll::EventFlags;

use super::connect::{self, NoConnection};
use super::dial::Missed;
use super::epoll_set::Watch;
use super::errands::{Errand, Outcome};
use super::line::Line;
use super::reserve::{self, Reserve};
use super::unix::{UnixPair, UnixPeer};
use super::{after, host, tcp};
use crate::error::HandshakeError;
use crate::established::{Established, Sockets};
use crate::handshake::{
    Agreement, DialerEvent, DialerHandshake, DialerPart, ResumedSession, ResumerEvent,
    ResumerHandshake, ResumerPart, Step,
};
use crate::identity::{HostHint, Secret};
use crate::local::Local;
use crate::message::VerbsEndpoint;
use crate::negotiate::End;
use crate::resumption::{ResumedConnection, Ticket};
use crate::verbs::{PairRequest, VerbsDevices, VerbsPair};

/// A connection that is being made, whose sockets are in the dialer's epoll set under one key.
pub(super) struct Attempt {
    address: SocketAddr,
    local: Arc<Local>,
    /// The session to resume, if it is not a new one.
    ticket: Option<Ticket>,
    /// The time at which the attempt ends in any case.
    deadline: Instant,
    stage: Stage,
}

enum Stage {
    /// The kernel connects the socket.
    Connecting(TcpStream),
    Talking(Box<Talk>),
    Over,
}

/// A handshake and the sockets that it runs on.
struct Talk {
    line: AnyLine,
    began: Instant,
    /// Connected, from the moment when the machine asked for the socket. Only the machine knows
    /// whether the answer came.
    unix: Option<UnixPair>,

    // RDMA.
    /// This end's address on the connection, by which a device is chosen.
    own_address: IpAddr,
    pair: Option<Box<dyn VerbsPair>>,
    /// Errands to be run off the turn; the results come to [`Attempt::handle_outcome`].
    errands: Vec<Errand>,
}

/// A new session's handshake, or the handshake of one that resumes.
#[allow(
    clippy::large_enum_variant,
    reason = "the talk around it is boxed as a whole"
)]
enum AnyLine {
    New(Line<DialerPart>),
    Resuming(Line<ResumerPart>),
}

/// The result of everything that could be done without waiting.
pub(super) enum Progress {
    Waiting,
    Established(Box<Established>),
    Resumed(Box<ResumedConnection>),
    Missed(Missed),
    /// The peer of a failed handshake has received the reason, or never will.
    Gone,
}

/// An event of either machine.
enum Event {
    ConnectUnix { name: Vec<u8>, token: Secret },
    FindDevice,
    PreparePair,
    ConnectPair(Box<VerbsEndpoint>),
    ClosePair,
    Agreed(Box<Agreement>),
    Resumed(ResumedSession),
    Failed(HandshakeError),
}

/// Evaluates an expression with the line of either kind.
macro_rules! with_line {
    ($any:expr, $line:ident => $value:expr) => {
        match $any {
            AnyLine::New($line) => $value,
            AnyLine::Resuming($line) => $value,
        }
    };
}

impl Attempt {
    /// Begins to connect. Without a `ticket`, the aim is a new session.
    pub(super) fn begin(
        address: SocketAddr,
        local: Arc<Local>,
        ticket: Option<Ticket>,
        deadline: Instant,
        watch: Watch<'_>,
    ) -> Result<Attempt, NoConnection> {
        let stream = connect::begin(address)?;
        // A socket that is connected already is writable too.
        watch
            .add(&stream, EventFlags::OUT)
            .map_err(|error| NoConnection::Shortage("watch a socket", error))?;
        Ok(Attempt {
            address,
            local,
            ticket,
            deadline,
            stage: Stage::Connecting(stream),
        })
    }

    /// Does everything that can be done without waiting.
    pub(super) fn advance(&mut self, now: Instant, watch: Watch<'_>) -> Progress {
        if let Stage::Connecting(_) = self.stage {
            match self.connect(now, watch) {
                Ok(true) => {}
                Ok(false) => return Progress::Waiting,
                Err(missed) => return Progress::Missed(missed),
            }
        }
        let Stage::Talking(talk) = &mut self.stage else {
            return Progress::Gone;
        };
        if talk.line.is_parting() {
            return match with_line!(&mut talk.line, line => line.hear_out(now)) {
                true => Progress::Waiting,
                false => Progress::Gone,
            };
        }
        with_line!(&mut talk.line, line => line.read());
        talk.hear_unix(watch);
        with_line!(&mut talk.line, line => line.machine.handle_timeout(now));
        let outcome = talk.act(self.address, &self.local, self.ticket.as_ref(), watch);
        with_line!(&mut talk.line, line => line.write(watch));
        match outcome {
            None => Progress::Waiting,
            Some(Event::Failed(error)) => Progress::Missed(Missed::Handshake(error)),
            // The last message has to be written before the stream changes hands.
            Some(_) if !with_line!(&talk.line, line => line.has_written()) => {
                Progress::Missed(Missed::Handshake(HandshakeError::takes_no_more()))
            }
            Some(over) => self.finish(over, watch),
        }
    }

    /// Takes the errands to be run off the turn, and the devices that they are for.
    pub(super) fn take_errands(&mut self) -> (Vec<Errand>, Option<&Arc<dyn VerbsDevices>>) {
        let errands = match &mut self.stage {
            Stage::Talking(talk) => mem::take(&mut talk.errands),
            _ => Vec::new(),
        };
        (errands, self.local.usable_devices())
    }

    /// Takes the result of an errand. [`Attempt::advance`] is due afterwards.
    pub(super) fn handle_outcome(&mut self, outcome: Outcome) {
        let Stage::Talking(talk) = &mut self.stage else {
            return;
        };
        match outcome {
            Outcome::Found(found) => {
                if let AnyLine::New(line) = &mut talk.line {
                    line.machine.handle_device(found);
                }
            }
            Outcome::Prepared(prepared) => {
                let endpoint = prepared.map(|pair| talk.pair.insert(pair).endpoint());
                with_line!(&mut talk.line, line => line.machine.handle_prepared(endpoint));
            }
            Outcome::Connected(connected) => {
                let connected = connected.map(|pair| talk.pair = Some(pair));
                with_line!(&mut talk.line, line => line.machine.handle_connected(connected));
            }
        }
    }

    /// Returns the address that is tried.
    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns the time at which [`advance`](Self::advance) is due even if no socket is ready.
    pub(super) fn deadline(&self) -> Option<Instant> {
        match &self.stage {
            Stage::Connecting(_) => Some(self.deadline),
            Stage::Talking(talk) => with_line!(&talk.line, line => line.deadline()),
            Stage::Over => None,
        }
    }

    /// Returns whether the peer may have a session already. It must then learn whether this end
    /// takes it.
    pub(super) fn may_be_session(&self) -> bool {
        match &self.stage {
            Stage::Talking(talk) => match &talk.line {
                AnyLine::New(line) => line.machine.step() == Step::Ready,
                AnyLine::Resuming(_) => false,
            },
            _ => false,
        }
    }

    /// Returns whether a node has answered at the address.
    pub(super) fn has_answer(&self) -> bool {
        match &self.stage {
            Stage::Connecting(_) => false,
            Stage::Talking(talk) => with_line!(&talk.line, line => line.machine.has_hello()),
            Stage::Over => true,
        }
    }

    /// Begins to read the peer's remaining bytes, where TLS has sent the reason, which must not be
    /// lost. Returns whether it does.
    pub(super) fn begin_farewell(&mut self, now: Instant, watch: Watch<'_>) -> bool {
        let Stage::Talking(talk) = &mut self.stage else {
            return false;
        };
        if let Some(unix) = talk.unix.take() {
            watch.remove(&unix.control);
        }
        talk.pair = None;
        with_line!(&mut talk.line, line => line.begin_farewell(now))
    }

    /// Takes every socket out of the epoll set. Closing would do it, unless a forked child holds
    /// them open, and then they would stay ready forever.
    pub(super) fn unwatch(&self, watch: Watch<'_>) {
        match &self.stage {
            Stage::Connecting(stream) => watch.remove(stream),
            Stage::Talking(talk) => {
                with_line!(&talk.line, line => watch.remove(&line.stream));
                if let Some(unix) = &talk.unix {
                    watch.remove(&unix.control);
                }
            }
            Stage::Over => {}
        }
    }

    /// Gives up an attempt whose peer has no session. The reset leaves no port in TIME-WAIT.
    pub(super) fn give_up(self, watch: Watch<'_>) {
        self.unwatch(watch);
        match &self.stage {
            Stage::Connecting(stream) => connect::reset_on_close(stream),
            Stage::Talking(talk) => {
                with_line!(&talk.line, line => connect::reset_on_close(&line.stream));
            }
            Stage::Over => {}
        }
    }

    /// Finishes to connect and begins to talk. Returns false if the kernel still connects.
    fn connect(&mut self, now: Instant, watch: Watch<'_>) -> Result<bool, Missed> {
        let Stage::Connecting(stream) = mem::replace(&mut self.stage, Stage::Over) else {
            return Ok(false);
        };
        if !is_writable(&stream) {
            if now >= self.deadline {
                watch.remove(&stream);
                let error = io::Error::from(io::ErrorKind::TimedOut);
                return Err(Missed::Connection(NoConnection::Peer(error)));
            }
            self.stage = Stage::Connecting(stream);
            return Ok(false);
        }
        let connected = connect::finish(&stream, self.address);
        match connected.and_then(|()| self.talk(&stream, now)) {
            Ok(talk) => {
                watch.modify(&stream, EventFlags::IN);
                self.stage = Stage::Talking(Box::new(talk.on(stream)));
                Ok(true)
            }
            Err(missed) => {
                watch.remove(&stream);
                Err(Missed::Connection(missed))
            }
        }
    }

    fn talk(&self, stream: &TcpStream, now: Instant) -> Result<Opening, NoConnection> {
        let failed = |action| move |error| connect::lacking(action, error);
        let mut nonce = [0; 16];
        ibex_base::random::fill(&mut nonce).map_err(failed(RANDOM))?;
        let own_address = tcp::own_address(stream).map_err(failed(OWN_ADDRESS))?;
        let deadline = self.deadline.min(after(now, self.local.handshake_timeout));
        let machine = match &self.ticket {
            None => {
                let host = HostHint::read(stream).map_err(failed(host::HINT))?;
                Machine::New(DialerHandshake::new(
                    &self.local,
                    host,
                    nonce,
                    now,
                    deadline,
                ))
            }
            Some(ticket) => Machine::Resuming(ResumerHandshake::new(
                &self.local,
                ticket.clone(),
                nonce,
                now,
                deadline,
            )),
        };
        Ok(Opening {
            machine,
            began: now,
            own_address,
        })
    }

    fn finish(&mut self, over: Event, watch: Watch<'_>) -> Progress {
        self.unwatch(watch);
        let Stage::Talking(talk) = mem::replace(&mut self.stage, Stage::Over) else {
            return Progress::Gone;
        };
        let sockets = talk.into_sockets(self.address);
        match over {
            Event::Agreed(agreement) => {
                let established = Established::new(*agreement, sockets, true);
                Progress::Established(Box::new(established))
            }
            Event::Resumed(session) => {
                let resumed = ResumedConnection::new(session, sockets, true);
                Progress::Resumed(Box::new(resumed))
            }
            _ => Progress::Gone,
        }
    }
}

/// The parts of a talk, before it has the connection.
struct Opening {
    machine: Machine,
    began: Instant,
    own_address: IpAddr,
}

#[allow(
    clippy::large_enum_variant,
    reason = "it moves into the boxed talk at once"
)]
enum Machine {
    New(DialerHandshake),
    Resuming(ResumerHandshake),
}

impl Opening {
    fn on(self, stream: TcpStream) -> Talk {
        Talk {
            line: match self.machine {
                Machine::New(machine) => AnyLine::New(Line::new(machine, stream)),
                Machine::Resuming(machine) => AnyLine::Resuming(Line::new(machine, stream)),
            },
            began: self.began,
            unix: None,
            own_address: self.own_address,
            pair: None,
            errands: Vec::new(),
        }
    }
}

impl AnyLine {
    fn is_parting(&self) -> bool {
        with_line!(self, line => line.is_parting())
    }

    fn poll_event(&mut self) -> Option<Event> {
        match self {
            AnyLine::New(line) => line.machine.poll_event().map(Event::from),
            AnyLine::Resuming(line) => line.machine.poll_event().map(Event::from),
        }
    }

    fn handle_unix(&mut self, outcome: Result<(), String>) {
        if let AnyLine::New(line) = self {
            line.machine.handle_unix(outcome);
        }
    }

    fn handle_shortage(&mut self, limit: u32) {
        if let AnyLine::New(line) = self {
            line.machine.handle_shortage(limit);
        }
    }
}

impl Talk {
    /// Acts on the machine's events. Returns the one that ends the handshake.
    fn act(
        &mut self,
        peer: SocketAddr,
        local: &Local,
        ticket: Option<&Ticket>,
        watch: Watch<'_>,
    ) -> Option<Event> {
        while let Some(event) = self.line.poll_event() {
            match event {
                Event::ConnectUnix { name, token } => {
                    if let Err(limit) = Reserve::keep(reserve::OF_SESSION, reserve::FOR_CHANNELS) {
                        self.line.handle_shortage(limit);
                        continue;
                    }
                    let connected = UnixPair::connect(&name, &token, local.unix_closing);
                    let watched = connected.and_then(|unix| {
                        let watched = watch.add(&unix.control, EventFlags::IN);
                        watched.map_err(|error| format!("its Unix socket failed ({error})"))?;
                        Ok(unix)
                    });
                    match watched {
                        Ok(unix) => self.unix = Some(unix),
                        Err(why) => self.line.handle_unix(Err(why)),
                    }
                }
                Event::FindDevice => self.errands.push(Errand::Find(self.own_address)),
                Event::PreparePair => self.errands.push(Errand::Prepare(PairRequest {
                    local: self.own_address,
                    peer,
                    offered: None,
                    end: End::Dialer,
                    resumes: ticket.map(|ticket| ticket.session_id),
                })),
                Event::ConnectPair(theirs) => {
                    let pair = self.pair.take();
                    self.errands
                        .extend(pair.map(|pair| Errand::Connect(pair, theirs)));
                }
                Event::ClosePair => self.pair = None,
                over @ (Event::Agreed(_) | Event::Resumed(_) | Event::Failed(_)) => {
                    return Some(over);
                }
            }
            // The answer may be here already.
            self.hear_unix(watch);
        }
        None
    }

    fn hear_unix(&mut self, watch: Watch<'_>) {
        let Some(unix) = self.awaited_unix() else {
            return;
        };
        if let Some(answer) = unix.answer() {
            watch.remove(unix);
            if answer.is_err() {
                self.unix = None;
            }
            self.line.handle_unix(answer);
        }
    }

    /// The Unix socket while its answer is outstanding.
    fn awaited_unix(&self) -> Option<&UnixPeer> {
        let step = with_line!(&self.line, line => line.machine.step());
        let unix = self.unix.as_ref().filter(|_| step == Step::UnixSocket);
        unix.map(|unix| &unix.control)
    }

    fn into_sockets(self, address: SocketAddr) -> Sockets {
        let unix = self.unix.map(UnixPair::into_parts);
        let (began, verbs) = (self.began, self.pair);
        with_line!(self.line, line => {
            let mut line = line;
            Sockets {
                tls: line.machine.take_tls(),
                stream: line.stream,
                leftover: line.machine.into_leftover(),
                address,
                began,
                unix,
                verbs,
            }
        })
    }
}

impl From<DialerEvent> for Event {
    fn from(event: DialerEvent) -> Event {
        match event {
            DialerEvent::ConnectUnix { name, token } => Event::ConnectUnix { name, token },
            DialerEvent::FindDevice => Event::FindDevice,
            DialerEvent::PreparePair => Event::PreparePair,
            DialerEvent::ConnectPair(theirs) => Event::ConnectPair(theirs),
            DialerEvent::ClosePair => Event::ClosePair,
            DialerEvent::Agreed(agreement) => Event::Agreed(agreement),
            DialerEvent::Failed(error) => Event::Failed(error),
        }
    }
}

impl From<ResumerEvent> for Event {
    fn from(event: ResumerEvent) -> Event {
        match event {
            ResumerEvent::PreparePair => Event::PreparePair,
            ResumerEvent::ConnectPair(theirs) => Event::ConnectPair(theirs),
            ResumerEvent::Resumed(session) => Event::Resumed(session),
            ResumerEvent::Failed(error) => Event::Failed(error),
        }
    }
}

fn is_writable(stream: &TcpStream) -> bool {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};

    let mut descriptors = [PollFd::new(stream, PollFlags::OUT)];
    let no_wait = Timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // An error of poll is found again by whoever uses the socket.
    poll(&mut descriptors, Some(&no_wait)).is_ok_and(|ready| ready > 0)
}

const RANDOM: &str = "draw random bytes";
const OWN_ADDRESS: &str = "ask for its own address";
