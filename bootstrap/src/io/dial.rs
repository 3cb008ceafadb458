//! Connecting: resolve, connect, shake hands, and try again until a peer is there.
//!
//! Rules:
//!
//! - A peer that is not there yet is waited for: refusals and broken connections lead to another
//!   attempt.
//! - A wrong answer is final, so it is an error at once, unless damaged bytes may have led to it.
//! - During every wait, the thread looks at its other work at short intervals.
#![forbid(unsafe_code)]

use std::io;
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use super::back_off::BackOff;
use super::connect::{Broken, RANDOM, connect, random_bytes};
use super::line::Line;
use super::own_pair::{OWN_ADDRESS, OwnPair};
use super::patience::{Cancelled, Meanwhile, Patience};
use super::unix::{UnixPair, UnixPeer};
use super::{after, host};
use crate::error::{DialError, HandshakeError, rounded};
use crate::established::{Established, Sockets};
use crate::handshake::{Agreement, DialerEvent, DialerHandshake, DialerPart, Step};
use crate::local::Local;
use crate::unix_sockets::UnixClosing;

/// Connects to the node that listens at `address` (`host:port`) and shakes
/// hands with it. Blocks, for `timeout` at most.
///
/// All addresses of a host name are tried over and over, with a growing pause in between, until one
/// of them gives a session. So a peer that starts later is found when it does. These answers are
/// treated as follows:
///
/// - Another protocol, another protocol version, or policies that exclude each other are errors at
///   once.
/// - A peer that closes the connection may be starting, ending or crowded, and is tried again. So
///   is a peer that says it is being closed, and one whose bytes changed on their way.
/// - A peer that accepts and falls silent (for `handshake_timeout`) is tried once more.
///
/// `meanwhile` is asked about every 20 ms whether the call is cancelled, which ends it with
/// [`DialError::Cancelled`]. It is turned whenever its descriptor is readable. The system's
/// resolver resolves names: that is neither cancelled nor bounded by `timeout`, and nothing is
/// turned meanwhile.
///
/// The peer's acceptor has to be turned, by its owner or by `meanwhile`, so a node with one thread
/// may dial itself.
pub fn dial(
    address: &str,
    local: &Local,
    timeout: Duration,
    meanwhile: &dyn Meanwhile,
) -> Result<Established, DialError> {
    dial_while(address, local, timeout, meanwhile, true)
}

/// Dials as [`dial`] does, and tries every address of a name once.
///
/// # Errors
///
/// Like [`dial`], but fails at once where no process listens.
pub fn dial_once(
    address: &str,
    local: &Local,
    timeout: Duration,
    meanwhile: &dyn Meanwhile,
) -> Result<Established, DialError> {
    dial_while(address, local, timeout, meanwhile, false)
}

fn dial_while(
    address: &str,
    local: &Local,
    timeout: Duration,
    meanwhile: &dyn Meanwhile,
    tries_again: bool,
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
    let mut before = None;
    loop {
        let missing = match dial.round() {
            Ok(Round::Established(established)) => return Ok(*established),
            Ok(Round::Missing(missing)) => missing,
            Err(error) => dial.is_worth_another(error, before)?,
        };
        let mut random = [0];
        random_bytes(&mut random).map_err(|source| dial.environment(RANDOM, source))?;
        let now = Instant::now();
        let left = dial.patience.deadline.saturating_duration_since(now);
        if left < LAST_ATTEMPT || !tries_again {
            return Err(dial.give_up(missing));
        }
        // The pause never passes the end, so a peer that starts late in the time given is still
        // found.
        let pause = back_off.next_delay(random[0]).min(left / 2);
        dial.patience
            .until(now + pause)
            .wait(&[])
            .map_err(|Cancelled| dial.cancelled())?;
        before = Some(missing);
    }
}

/// The state of a call of [`dial`].
struct Dial<'a> {
    address: &'a str,
    local: &'a Local,
    patience: Patience<'a>,
    started: Instant,
    attempts: u32,
}

/// The result of trying every address once.
enum Round {
    Established(Box<Established>),
    Missing(Missing),
}

/// The reason why there is no session yet.
enum Missing {
    Name(io::Error),
    Peer(Absent),
    /// The error of a handshake that may have been garbled.
    Handshake(DialError),
}

/// The findings of the last attempts, at every address of a name.
struct Absent {
    /// The finding of the last attempt, in words.
    last: String,
    /// True if each attempt was refused, which is so where no process listens.
    is_refused: bool,
}

/// The result of trying one address.
enum Attempt {
    Established(Box<Established>),
    /// No process answers there yet.
    NotYet {
        why: String,
        is_refused: bool,
    },
    Wrong(HandshakeError),
}

impl Dial<'_> {
    /// Tries every address of the name once. A wrong answer does not keep the other addresses from
    /// being tried: `localhost` may be a foreign server on IPv6 and the peer on IPv4.
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
        let mut absent = Absent {
            last: "the name has no address".to_string(),
            is_refused: !addresses.is_empty(),
        };
        let mut wrong = None;
        for (index, &address) in addresses.iter().enumerate() {
            self.attempts += 1;
            let left = (addresses.len() - index) as u32;
            match self.attempt(address, left) {
                Ok(Attempt::Established(established)) => {
                    return Ok(Round::Established(established));
                }
                Ok(Attempt::NotYet { why, is_refused }) => {
                    absent.is_refused &= is_refused;
                    absent.last = match address.to_string() {
                        named if named == self.address => why,
                        resolved => format!("{resolved}: {why}"),
                    };
                }
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
            None => Ok(Round::Missing(Missing::Peer(absent))),
        }
    }

    /// Tries one address, within its share of the time when `left` are to be tried.
    fn attempt(&self, address: SocketAddr, left: u32) -> Result<Attempt, Broken> {
        let now = Instant::now();
        let share = self.patience.deadline.saturating_duration_since(now) / left;
        let patience = self.patience.until(now + share);
        let stream = match connect(address, &patience)? {
            Ok(stream) => stream,
            Err(error) => {
                tracing::debug!(%address, %error, "nobody listens there yet");
                return Ok(Attempt::NotYet {
                    why: error.to_string(),
                    is_refused: error.kind() == io::ErrorKind::ConnectionRefused,
                });
            }
        };
        let now = Instant::now();
        let patience = self
            .patience
            .until(after(now, self.local.handshake_timeout));
        match Conversation::new(stream, address, self.local, now, patience)?.run()? {
            Ok(established) => Ok(Attempt::Established(Box::new(established))),
            Err(
                error @ (HandshakeError::Closed {
                    step: Step::Hello, ..
                }
                | HandshakeError::Closing),
            ) => {
                tracing::debug!(%address, %error, "no node there takes this connection; trying again");
                Ok(Attempt::NotYet {
                    why: error.to_string(),
                    is_refused: false,
                })
            }
            Err(error) => Ok(Attempt::Wrong(error)),
        }
    }

    /// Decides whether to try again after an attempt that failed with `error`, where the attempt
    /// before it failed as `before` says. The error ends the call.
    fn is_worth_another(
        &self,
        error: DialError,
        before: Option<Missing>,
    ) -> Result<Missing, DialError> {
        let DialError::Handshake { source, .. } = &error else {
            return Err(error);
        };
        if !source.may_be_garbling() {
            return Err(error);
        }
        // An attempt that had no time for an answer shows nothing about the peer.
        let cut_short = match source {
            HandshakeError::Silent {
                step: Step::Hello,
                waited,
            } if *waited < self.local.handshake_timeout => Some(rounded(waited)),
            _ => None,
        };
        match (before, cut_short) {
            (Some(Missing::Peer(mut absent)), Some(waited)) => {
                let cut = format!("; one more was cut short after {waited:?}");
                absent.last.push_str(&cut);
                Ok(Missing::Peer(absent))
            }
            (Some(Missing::Handshake(first)), Some(_)) => Ok(Missing::Handshake(first)),
            // A finding that comes twice in a row is lasting, unless the error itself is transient.
            (Some(Missing::Handshake(first)), None) if is_lasting(&first) && is_lasting(&error) => {
                Err(first)
            }
            _ => Ok(Missing::Handshake(error)),
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
            Missing::Handshake(error) => error,
            Missing::Peer(Absent { last, is_refused }) if is_refused => DialError::Refused {
                address,
                waited,
                attempts,
                last,
            },
            Missing::Peer(Absent { last, .. }) => DialError::Nobody {
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

/// Returns whether the same failure in a second attempt shows that no garbled byte led to it.
fn is_lasting(error: &DialError) -> bool {
    !matches!(
        error,
        DialError::Handshake {
            source: HandshakeError::Garbled { .. } | HandshakeError::Closed { .. },
            ..
        }
    )
}

/// A handshake and the sockets that it runs on.
struct Conversation<'a> {
    line: Line<'a, DialerPart>,
    address: SocketAddr,
    began: Instant,
    /// Connected, from the moment when the machine asked for the socket. Only the machine knows
    /// whether the answer came.
    unix: Option<UnixPair>,
    closing: UnixClosing,
    pair: OwnPair,
}

impl<'a> Conversation<'a> {
    fn new(
        stream: TcpStream,
        address: SocketAddr,
        local: &Local,
        now: Instant,
        patience: Patience<'a>,
    ) -> Result<Conversation<'a>, Broken> {
        let mut nonce = [0; 16];
        random_bytes(&mut nonce).map_err(|error| Broken::Environment(RANDOM, error))?;
        let host = host::hint(&stream).map_err(|error| Broken::Environment(host::HINT, error))?;
        let machine = DialerHandshake::new(local, host, nonce, now, patience.deadline);
        let pair = OwnPair::new(&stream, address, local, None)
            .map_err(|error| Broken::Environment(OWN_ADDRESS, error))?;
        Ok(Conversation {
            line: Line::new(machine, stream, patience),
            address,
            began: now,
            unix: None,
            closing: local.unix_closing,
            pair,
        })
    }

    fn run(mut self) -> Result<Result<Established, HandshakeError>, Broken> {
        loop {
            while let Some(event) = self.line.machine.poll_event() {
                match event {
                    DialerEvent::ConnectUnix { name, token } => {
                        match UnixPair::connect(&name, &token, self.closing) {
                            Ok(unix) => self.unix = Some(unix),
                            Err(why) => self.line.machine.handle_unix(Err(why)),
                        }
                    }
                    DialerEvent::FindDevice => {
                        self.line.machine.handle_device(self.pair.find_device());
                    }
                    DialerEvent::PreparePair => {
                        self.line.machine.handle_prepared(self.pair.prepare());
                    }
                    DialerEvent::ConnectPair(theirs) => {
                        self.line
                            .machine
                            .handle_connected(self.pair.connect(&theirs));
                    }
                    DialerEvent::ClosePair => self.pair.close(),
                    DialerEvent::Agreed(agreement) => return Ok(Ok(self.finish(*agreement))),
                    DialerEvent::Failed(error) => {
                        self.line.part();
                        return Ok(Err(error));
                    }
                }
            }
            self.line.transmit();
            if self.line.machine.step() == Step::Ready && self.line.has_transmitted() {
                self.line.wait_out();
            } else {
                let unix = self.awaited_unix().map(AsFd::as_fd);
                self.line
                    .wait(unix)
                    .map_err(|Cancelled| Broken::Cancelled)?;
            }
            self.receive();
            self.line.machine.handle_timeout(Instant::now());
        }
    }

    fn receive(&mut self) {
        self.line.receive();
        if let Some(answer) = self.awaited_unix().and_then(UnixPeer::answer) {
            if answer.is_err() {
                self.unix = None;
            }
            self.line.machine.handle_unix(answer);
        }
    }

    /// The Unix socket while its answer is outstanding.
    fn awaited_unix(&self) -> Option<&UnixPeer> {
        self.unix
            .as_ref()
            .filter(|_| self.line.machine.step() == Step::UnixSocket)
            .map(|unix| &unix.control)
    }

    fn finish(mut self, agreement: Agreement) -> Established {
        let sockets = Sockets {
            stream: self.line.stream,
            tls: self.line.machine.take_tls(),
            leftover: self.line.machine.into_leftover(),
            address: self.address,
            began: self.began,
            unix: self.unix.map(UnixPair::into_parts),
            verbs: self.pair.into_pair(),
        };
        Established::new(agreement, sockets, true)
    }
}

/// The least time left with which another attempt is worth beginning.
const LAST_ATTEMPT: Duration = Duration::from_millis(10);
