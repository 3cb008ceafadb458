//! Connecting: resolve, connect, shake hands; again until somebody is there.
//!
//! Rules: whoever is not there yet is waited for, so refusals and connections
//! closed before a word was said are tried again; whoever answers wrongly is
//! wrong for good, so that is an error at once; no wait is longer than
//! [`GLANCE`] without a look at what else the thread has to do.
#![forbid(unsafe_code)]

use std::io;
use std::net::{IpAddr, SocketAddr, TcpStream, ToSocketAddrs};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use socket2::{Domain, Protocol, Socket, Type};

use super::back_off::BackOff;
use super::errands::{Errand, Outcome};
use super::tcp::Incoming;
use super::unix::UnixPeer;
use super::{after, host, tcp};
use crate::error::{DialError, HandshakeError};
use crate::established::{Established, Sockets};
use crate::handshake::{Agreement, DialerEvent, DialerHandshake, Step};
use crate::local::Local;
use crate::negotiate::End;
use crate::verbs::{VerbsPair, VerbsSite};

/// Connects to the node that listens at `address` (`host:port`) and shakes
/// hands with it. Blocks, for `timeout` at most.
///
/// All addresses of a host name are tried, over and over, with a growing pause
/// in between, until one of them gives a session: a peer that starts later is
/// found when it does. An answer that is not ibex, another protocol version,
/// policies that exclude each other, and a peer that accepts and falls silent
/// (for `handshake_timeout`) are errors at once. A peer that closes the
/// connection without a word is taken for one that is starting, ending or
/// crowded, and is tried again.
///
/// `meanwhile` is asked about every 20 ms whether the call is cancelled, which
/// ends it with [`DialError::Cancelled`], and turned whenever its descriptor is
/// readable. Resolving a name is up to the system's resolver: it is neither
/// cancelled nor bounded by `timeout`, and nothing is turned meanwhile.
///
/// The peer's acceptor has to be turned, by whoever has it or by `meanwhile`: so
/// a node that has one thread may dial itself.
pub fn dial(
    address: &str,
    local: &Local,
    timeout: Duration,
    meanwhile: &dyn Meanwhile,
) -> Result<Established, DialError> {
    let started = Instant::now();
    let patience = Patience {
        deadline: after(started, timeout),
        meanwhile,
    };
    let mut dial = Dial {
        address,
        local,
        patience,
        started,
        attempts: 0,
    };
    let mut back_off = BackOff::new();
    loop {
        let missing = match dial.round()? {
            Round::Established(established) => return Ok(*established),
            Round::Missing(missing) => missing,
        };
        let mut random = [0];
        random_bytes(&mut random).map_err(|source| dial.environment(RANDOM, source))?;
        let now = Instant::now();
        let left = dial.patience.deadline.saturating_duration_since(now);
        if left < LAST_ATTEMPT {
            return Err(dial.give_up(missing));
        }
        // Never past the end: a peer that starts late in the time given is
        // still found.
        let pause = back_off.next_delay(random[0]).min(left / 2);
        dial.patience
            .until(now + pause)
            .wait(&[])
            .map_err(|Cancelled| dial.cancelled())?;
    }
}

/// What else the thread that dials has to do.
///
/// A closure is the least of it: it only says whether the call is cancelled.
pub trait Meanwhile {
    /// True ends the call.
    fn is_cancelled(&self) -> bool;

    /// Readable when [`turn`](Self::turn) has something to do.
    fn fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// Does what can be done without waiting, and says whether there was anything.
    fn turn(&self) -> bool {
        false
    }
}

impl<F: Fn() -> bool> Meanwhile for F {
    fn is_cancelled(&self) -> bool {
        self()
    }
}

/// One call of [`dial`].
struct Dial<'a> {
    address: &'a str,
    local: &'a Local,
    patience: Patience<'a>,
    started: Instant,
    attempts: u32,
}

/// What came of trying every address once.
enum Round {
    Established(Box<Established>),
    Missing(Missing),
}

/// Why there is no session yet.
enum Missing {
    Name(io::Error),
    Peer(String),
}

/// What came of trying one address.
enum Attempt {
    Established(Box<Established>),
    /// Nobody is there, yet; in words.
    NotYet(String),
    Wrong(HandshakeError),
}

/// Why an attempt gave nothing to judge.
enum Broken {
    Cancelled,
    Environment(&'static str, io::Error),
}

impl Dial<'_> {
    /// Tries every address of the name once. One that answers wrongly does not
    /// keep the others from being tried: `localhost` may be a foreign server on
    /// IPv6 and the peer on IPv4.
    fn round(&mut self) -> Result<Round, DialError> {
        let addresses: Vec<SocketAddr> = match self.address.to_socket_addrs() {
            Ok(addresses) => addresses.collect(),
            Err(source) if source.kind() == io::ErrorKind::InvalidInput => {
                let address = self.address.to_string();
                return Err(DialError::InvalidAddress { address, source });
            }
            Err(error) => {
                self.attempts += 1;
                return Ok(Round::Missing(Missing::Name(error)));
            }
        };
        let mut last = "the name has no address".to_string();
        let mut wrong = None;
        for (index, &address) in addresses.iter().enumerate() {
            self.attempts += 1;
            let left = (addresses.len() - index) as u32;
            match self.attempt(address, left) {
                Ok(Attempt::Established(established)) => {
                    return Ok(Round::Established(established));
                }
                Ok(Attempt::NotYet(why)) => last = format!("{address}: {why}"),
                Ok(Attempt::Wrong(error)) => wrong = Some((address, error)),
                Err(Broken::Cancelled) => return Err(self.cancelled()),
                Err(Broken::Environment(action, source)) => {
                    return Err(self.environment(action, source));
                }
            }
        }
        match wrong {
            Some((peer, source)) => {
                let address = self.address.to_string();
                Err(DialError::Handshake {
                    address,
                    peer,
                    source,
                })
            }
            None => Ok(Round::Missing(Missing::Peer(last))),
        }
    }

    /// One address, within its share of the time when `left` are to be tried.
    fn attempt(&self, address: SocketAddr, left: u32) -> Result<Attempt, Broken> {
        let now = Instant::now();
        let share = self.patience.deadline.saturating_duration_since(now) / left;
        let patience = self.patience.until(now + share);
        let stream = match connect(address, &patience)? {
            Ok(stream) => stream,
            Err(error) => {
                tracing::debug!(%address, %error, "nobody there yet");
                return Ok(Attempt::NotYet(error.to_string()));
            }
        };
        let patience = self
            .patience
            .until(after(Instant::now(), self.local.handshake_timeout));
        match Conversation::new(stream, address, self.local, patience)?.run()? {
            Ok(established) => Ok(Attempt::Established(Box::new(established))),
            Err(
                error @ HandshakeError::Closed {
                    step: Step::Hello, ..
                },
            ) => {
                tracing::debug!(%address, %error, "closed without a word; trying again");
                Ok(Attempt::NotYet(error.to_string()))
            }
            Err(error) => Ok(Attempt::Wrong(error)),
        }
    }

    fn give_up(&self, missing: Missing) -> DialError {
        let (address, attempts) = (self.address.to_string(), self.attempts);
        let waited = self.started.elapsed();
        match missing {
            Missing::Name(source) => DialError::Unresolved {
                address,
                waited,
                attempts,
                source,
            },
            Missing::Peer(last) => DialError::Nobody {
                address,
                waited,
                attempts,
                last,
            },
        }
    }

    fn cancelled(&self) -> DialError {
        let waited = self.started.elapsed();
        DialError::Cancelled {
            address: self.address.to_string(),
            waited,
        }
    }

    fn environment(&self, action: &'static str, source: io::Error) -> DialError {
        let address = self.address.to_string();
        DialError::Environment {
            address,
            action,
            source,
        }
    }
}

/// A handshake and the sockets that it runs on.
struct Conversation<'a> {
    machine: DialerHandshake,
    stream: TcpStream,
    address: SocketAddr,
    outbox: Vec<u8>,
    /// Connected, from the moment when the machine asked for it; whether its
    /// answer came, the machine knows.
    unix: Option<UnixPeer>,
    /// Our address on `stream`, by which an RDMA device is chosen, of these.
    own_address: IpAddr,
    site: Option<Arc<dyn VerbsSite>>,
    pair: Option<Box<dyn VerbsPair>>,
    patience: Patience<'a>,
}

impl<'a> Conversation<'a> {
    fn new(
        stream: TcpStream,
        address: SocketAddr,
        local: &Local,
        patience: Patience<'a>,
    ) -> Result<Conversation<'a>, Broken> {
        let mut nonce = [0; 16];
        random_bytes(&mut nonce).map_err(|error| Broken::Environment(RANDOM, error))?;
        let now = Instant::now();
        let machine = DialerHandshake::new(local, host::hint(), nonce, now, patience.deadline);
        let own_address = tcp::own_address(&stream)
            .map_err(|error| Broken::Environment("ask for its own address", error))?;
        let (outbox, unix, pair) = (Vec::new(), None, None);
        Ok(Conversation {
            machine,
            stream,
            address,
            outbox,
            unix,
            own_address,
            site: local.usable_site().cloned(),
            pair,
            patience,
        })
    }

    fn run(mut self) -> Result<Result<Established, HandshakeError>, Broken> {
        loop {
            while let Some(event) = self.machine.poll_event() {
                match event {
                    DialerEvent::ConnectUnix { name, token } => {
                        match UnixPeer::connect(&name, &token) {
                            Ok(unix) => self.unix = Some(unix),
                            Err(why) => self.machine.handle_unix(Err(why)),
                        }
                    }
                    DialerEvent::FindDevice => self.run_errand(Errand::Find(self.own_address)),
                    DialerEvent::PreparePair => {
                        self.run_errand(Errand::Prepare {
                            local: self.own_address,
                            peer: self.address.ip(),
                            end: End::Dialer,
                        });
                    }
                    DialerEvent::ConnectPair(theirs) => {
                        if let Some(pair) = self.pair.take() {
                            self.run_errand(Errand::Connect(pair, theirs));
                        }
                    }
                    DialerEvent::ClosePair => self.pair = None,
                    DialerEvent::Agreed(agreement) => return Ok(Ok(self.finish(*agreement))),
                    DialerEvent::Failed(error) => {
                        self.transmit();
                        return Ok(Err(error));
                    }
                }
            }
            self.transmit();
            self.wait().map_err(|Cancelled| Broken::Cancelled)?;
            self.receive();
            self.machine.handle_timeout(Instant::now());
        }
    }

    /// At once: whoever dials waits anyhow.
    fn run_errand(&mut self, errand: Errand) {
        let Some(site) = &self.site else { return };
        match errand.run(&**site) {
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

    fn transmit(&mut self) {
        while let Some(bytes) = self.machine.poll_transmit() {
            self.outbox.extend(bytes);
        }
        tcp::write(&self.stream, &mut self.outbox);
    }

    fn wait(&self) -> Result<(), Cancelled> {
        let mut wanted = PollFlags::IN;
        if !self.outbox.is_empty() {
            wanted |= PollFlags::OUT;
        }
        let stream = (self.stream.as_fd(), wanted);
        match self.awaited_unix() {
            Some(unix) => self.patience.wait(&[stream, (unix.as_fd(), PollFlags::IN)]),
            None => self.patience.wait(&[stream]),
        }
    }

    fn receive(&mut self) {
        let mut buffer = [0; READ_BYTES];
        match tcp::read(&self.stream, &mut buffer) {
            Incoming::Bytes(bytes) => self.machine.handle_bytes(bytes),
            Incoming::Nothing => {}
            Incoming::Closed(detail) => self.machine.handle_closed(detail),
        }
        if let Some(answer) = self.awaited_unix().and_then(UnixPeer::answer) {
            if answer.is_err() {
                self.unix = None;
            }
            self.machine.handle_unix(answer);
        }
    }

    /// The Unix socket while its answer is outstanding.
    fn awaited_unix(&self) -> Option<&UnixPeer> {
        self.unix
            .as_ref()
            .filter(|_| self.machine.step() == Step::UnixSocket)
    }

    fn finish(self, agreement: Agreement) -> Established {
        let sockets = Sockets {
            stream: self.stream,
            leftover: self.machine.into_leftover(),
            address: self.address,
            unix: self.unix.map(UnixPeer::into_parts),
            verbs: self.pair,
        };
        Established::new(agreement, sockets, true)
    }
}

/// How long to wait, who may end it earlier, and what goes on until then.
#[derive(Clone, Copy)]
struct Patience<'a> {
    deadline: Instant,
    meanwhile: &'a dyn Meanwhile,
}

struct Cancelled;

/// A descriptor, and what it is to be ready for.
type BorrowedWire<'a> = (BorrowedFd<'a>, PollFlags);

impl<'a> Patience<'a> {
    /// The same with an earlier deadline, if `deadline` is earlier.
    fn until(&self, deadline: Instant) -> Patience<'a> {
        Patience {
            deadline: self.deadline.min(deadline),
            meanwhile: self.meanwhile,
        }
    }

    /// Waits until one of the descriptors is ready or the deadline has passed.
    fn wait(&self, descriptors: &[BorrowedWire<'_>]) -> Result<(), Cancelled> {
        let mut all: Vec<PollFd<'_>> = descriptors
            .iter()
            .map(|&(fd, wanted)| PollFd::from_borrowed_fd(fd, wanted))
            .collect();
        if let Some(fd) = self.meanwhile.fd() {
            all.push(PollFd::from_borrowed_fd(fd, PollFlags::IN));
        }
        loop {
            if self.meanwhile.is_cancelled() {
                return Err(Cancelled);
            }
            let left = self.deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(());
            }
            // One turn between two looks at our own descriptors, however much
            // there is to do; what its descriptor does not tell of (a deadline,
            // say) is found every `GLANCE`.
            let slice = match self.meanwhile.turn() {
                true => Duration::ZERO,
                false => left.min(GLANCE),
            };
            let slice = Timespec {
                tv_sec: 0,
                tv_nsec: slice.subsec_nanos().into(),
            };
            match poll(&mut all, Some(&slice)) {
                Ok(0) | Err(Errno::INTR) => {}
                Ok(_) => {
                    let ours = &all[..descriptors.len()];
                    if ours.iter().any(|fd| !fd.revents().is_empty()) {
                        return Ok(());
                    }
                }
                // An error of poll itself cannot be waited out; the caller's
                // next read or write on the descriptor meets its cause.
                Err(_) => return Ok(()),
            }
        }
    }
}

/// A connected stream, or why there is none: the inner error means that nobody
/// is there yet.
fn connect(
    address: SocketAddr,
    patience: &Patience<'_>,
) -> Result<Result<TcpStream, io::Error>, Broken> {
    let environment = |error| Broken::Environment("make a socket", error);
    let domain = Domain::for_address(address);
    let socket = Socket::new(domain, Type::STREAM, Some(Protocol::TCP)).map_err(environment)?;
    socket.set_nonblocking(true).map_err(environment)?;
    match socket.connect(&address.into()) {
        Ok(()) => {}
        Err(error) if error.raw_os_error() == Some(Errno::INPROGRESS.raw_os_error()) => {
            if let Err(Cancelled) = patience.wait(&[(socket.as_fd(), PollFlags::OUT)]) {
                return Err(Broken::Cancelled);
            }
            match socket.take_error() {
                Ok(Some(error)) | Err(error) => return Ok(Err(error)),
                Ok(None) => {}
            }
        }
        Err(error) => return Ok(Err(error)),
    }
    let stream = TcpStream::from(socket);
    match (stream.peer_addr(), stream.local_addr()) {
        // A port of the ephemeral range with nobody on it, dialled from the
        // same host, can be the very port that the kernel gave to this socket,
        // which then connects to itself.
        (Ok(peer), Ok(ours)) if peer == ours => {
            return Ok(Err(io::Error::from(io::ErrorKind::ConnectionRefused)));
        }
        (Ok(_), _) => {}
        (Err(_), _) => return Ok(Err(io::Error::from(io::ErrorKind::TimedOut))),
    }
    tcp::configure(&stream).map_err(environment)?;
    Ok(Ok(stream))
}

fn random_bytes(bytes: &mut [u8]) -> io::Result<()> {
    getrandom::fill(bytes).map_err(io::Error::other)
}

const RANDOM: &str = "draw random bytes";

/// Longest wait without asking [`Meanwhile::is_cancelled`]. Dialing is rare and short, so the
/// wake-ups cost nothing, and a closing node is not kept waiting.
const GLANCE: Duration = Duration::from_millis(20);

/// With less time than this no further attempt is worth beginning.
const LAST_ATTEMPT: Duration = Duration::from_millis(10);

/// One read: more than the acceptor's half of any handshake.
const READ_BYTES: usize = 4096;
