//! Which of a peer's addresses is tried when: the policy of a dial, as pure state.
//!
//! Rules:
//!
//! - A peer that is not there yet is waited for: refusals and broken connections lead to another
//!   attempt, after a pause that grows.
//! - A wrong answer is final for its address, unless damaged bytes may have led to it. It does not
//!   keep the other addresses from being tried: `localhost` may be a foreign server on IPv6 and the
//!   peer on IPv4.
//! - The addresses of a name are tried beside each other, each [`STAGGER`] after the one before or
//!   as soon as that has failed, with IPv6 and IPv4 in turns: [RFC
//!   8305](https://www.rfc-editor.org/rfc/rfc8305). The first handshake that succeeds wins. An
//!   address that does not answer holds up no other one.
//! - A shortage of this process is no finding about the peer: the attempt waits for its end.
#![forbid(unsafe_code)]

use std::io;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use ibex_base::{Address, BackOff};

use super::address::{self, Destination};
use super::after;
use super::connect::NoConnection;
use super::dial_target::{AttemptFailure, DialTarget, TargetState};
use crate::error::{DialError, HandshakeError};
use crate::handshake::HandshakeStep;

/// A dial that is under way.
pub(super) struct Dial {
    address: String,
    tries_again: bool,
    handshake_timeout: Duration,

    // Time.
    began: Instant,
    deadline: Instant,
    /// The rounds that met nobody.
    rounds: u32,
    /// The earliest start of the next attempt.
    next_try: Instant,
    /// The time of the next round, once it is known that one is needed.
    next_round: Option<Instant>,

    // The addresses.
    lookup: Lookup,
    /// The addresses, in the order in which they are tried.
    targets: Vec<DialTarget>,

    // The findings.
    /// Connections that were tried, and lookups that failed.
    attempts: u32,
    /// The finding of the last attempt that met nobody, in words.
    last: Option<String>,
    unresolved: Option<io::Error>,
    shortage: Option<(&'static str, io::Error)>,
}

/// What is known of the name.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Lookup {
    /// The address is a literal, or its name was looked up for this round.
    Known,
    /// The name is to be looked up.
    Due,
    /// The resolver is asked.
    Asked,
}

/// What the owner of a dial has to do next.
pub(super) enum Action {
    /// Ask the resolver for the addresses of this name.
    LookUp,
    /// Try this address.
    Try(Address),
    /// Come again then, or with the next fact.
    Wait(Instant),
    /// The dial is over.
    End(DialError),
}

/// The reason why an attempt led to no session.
#[derive(Debug)]
pub(super) enum Missed {
    Connection(NoConnection),
    Handshake(HandshakeError),
}

impl Dial {
    /// Begins a dial of `host:port`, which ends after `timeout`. Unless it `tries_again`, each
    /// address is tried once.
    ///
    /// # Errors
    /// The text is no address, or has port 0.
    pub(super) fn begin(
        address: String,
        tries_again: bool,
        (timeout, handshake_timeout): (Duration, Duration),
        now: Instant,
    ) -> Result<Dial, DialError> {
        let invalid = |why| io::Error::new(io::ErrorKind::InvalidInput, why);
        let destination = match address::parse(&address) {
            Ok(_) if address::port_of(&address) == Some(0) => {
                let source = invalid(NO_PORT);
                return Err(DialError::InvalidAddress { address, source });
            }
            Ok(Destination::Literal(Address::Vsock {
                cid: Address::ANY_CID,
                ..
            })) => {
                let source = invalid(NO_CID);
                return Err(DialError::InvalidAddress { address, source });
            }
            Ok(destination) => destination,
            Err(source) => return Err(DialError::InvalidAddress { address, source }),
        };
        let mut dial = Dial {
            address,
            tries_again,
            handshake_timeout,
            began: now,
            deadline: after(now, timeout),
            rounds: 0,
            next_try: now,
            next_round: None,
            lookup: Lookup::Due,
            targets: Vec::new(),
            attempts: 0,
            last: None,
            unresolved: None,
            shortage: None,
        };
        if let Destination::Literal(literal) = destination {
            dial.lookup = Lookup::Known;
            dial.targets.push(DialTarget::new(literal));
        }
        Ok(dial)
    }

    /// Returns what to do next. Call it again after each action but `Wait` and `End`, and after
    /// each fact. `random` is a random byte.
    pub(super) fn poll(&mut self, now: Instant, random: u8) -> Action {
        if now >= self.deadline {
            return Action::End(self.give_up(now));
        }
        if self.next_round.is_some_and(|at| at <= now) {
            self.begin_round();
        }
        match self.lookup {
            Lookup::Due => {
                self.lookup = Lookup::Asked;
                return Action::LookUp;
            }
            // Addresses that were found before may be tried still.
            Lookup::Asked | Lookup::Known => {}
        }
        let mut targets = self.targets.iter_mut();
        if let Some(next) = targets.find(|target| target.state == TargetState::Due) {
            if self.next_try > now {
                return Action::Wait(self.next_try.min(self.deadline));
            }
            next.state = TargetState::Trying;
            self.next_try = now + STAGGER;
            self.attempts += 1;
            return Action::Try(next.address);
        }
        let is_trying = self.is_in(TargetState::Trying);
        if self.lookup == Lookup::Asked {
            return Action::Wait(self.deadline);
        }
        if !is_trying && (self.is_in(TargetState::Wrong) || !self.tries_again) {
            return Action::End(self.give_up(now));
        }
        let some_tried = self.is_in(TargetState::Tried) || self.targets.is_empty();
        if some_tried && self.tries_again && self.next_round.is_none() {
            let left = self.deadline.saturating_duration_since(now);
            if left < LAST_ATTEMPT && !is_trying {
                return Action::End(self.give_up(now));
            }
            // The pause never passes the end, so a peer that starts late in the time given is still
            // found.
            self.rounds += 1;
            let pause = BACK_OFF.pause_by(self.rounds, random).min(left / 2);
            self.next_round = Some(now + pause);
        }
        Action::Wait(self.next_round.unwrap_or(self.deadline).min(self.deadline))
    }

    /// Takes the resolver's answer.
    pub(super) fn handle_looked_up(&mut self, found: io::Result<Vec<Address>>, now: Instant) {
        self.lookup = Lookup::Known;
        let found = match found {
            Ok(found) => in_turns(found),
            Err(error) => {
                self.attempts += 1;
                self.unresolved = Some(error);
                return self
                    .targets
                    .retain(|target| target.state == TargetState::Trying);
            }
        };
        self.unresolved = None;
        self.next_try = now;
        if found.is_empty() {
            self.last = Some("the name has no address".to_owned());
        }
        let mut before = std::mem::take(&mut self.targets);
        for address in found {
            match before.iter().position(|target| target.address == address) {
                Some(at) => {
                    let mut target = before.swap_remove(at);
                    if target.state == TargetState::Tried {
                        target.state = TargetState::Due;
                    }
                    self.targets.push(target);
                }
                None => self.targets.push(DialTarget::new(address)),
            }
        }
        // An attempt at an address that the name has no more goes on.
        before.retain(|target| target.state == TargetState::Trying);
        self.targets.extend(before);
    }

    /// Notes that an attempt has failed, and why.
    pub(super) fn handle_missed(&mut self, address: Address, missed: Missed, now: Instant) {
        let named = self.address == address.to_string();
        let mut targets = self.targets.iter_mut();
        let Some(target) = targets.find(|target| target.address == address) else {
            return;
        };
        self.next_try = self.next_try.min(now);
        let (why, is_refused) = match missed {
            Missed::Connection(NoConnection::Shortage(action, source)) => {
                target.state = match self.tries_again {
                    true => TargetState::Due,
                    false => TargetState::Tried,
                };
                self.attempts = self.attempts.saturating_sub(1);
                return self.handle_shortage(action, source, now);
            }
            Missed::Connection(NoConnection::Environment(action, source)) => {
                target.state = TargetState::Wrong;
                self.shortage = Some((action, source));
                return;
            }
            Missed::Connection(NoConnection::Peer(_)) if address::lacks_zone(&address) => {
                (address::LACKS_ZONE.to_owned(), false)
            }
            Missed::Connection(NoConnection::Peer(error)) => (
                error.to_string(),
                error.kind() == io::ErrorKind::ConnectionRefused,
            ),
            Missed::Handshake(
                error @ (HandshakeError::Closed {
                    step: HandshakeStep::Hello,
                    ..
                }
                | HandshakeError::Closing),
            ) => (error.to_string(), false),
            Missed::Handshake(error) => {
                target.handle_failed(error, self.handshake_timeout);
                self.shortage = None;
                if let Some(AttemptFailure::Absent { why, .. }) = &target.finding {
                    self.last = Some(located(why, address, named));
                }
                return;
            }
        };
        tracing::debug!(%address, why, "no node there takes a connection yet");
        self.shortage = None;
        self.last = Some(located(&why, address, named));
        target.state = TargetState::Tried;
        target.finding = Some(AttemptFailure::Absent { why, is_refused });
    }

    /// Notes that this process lacks something, so that an attempt waits for a while.
    pub(super) fn handle_shortage(
        &mut self,
        action: &'static str,
        source: io::Error,
        now: Instant,
    ) {
        self.shortage = Some((action, source));
        self.next_try = now + REST;
        if self.lookup == Lookup::Asked {
            self.lookup = Lookup::Known;
            self.next_round = Some(now + REST);
        }
    }

    pub(super) fn address(&self) -> &str {
        &self.address
    }

    pub(super) fn deadline(&self) -> Instant {
        self.deadline
    }

    /// Returns the error of a dial that its caller has ended.
    pub(super) fn cancelled(&self, now: Instant) -> DialError {
        DialError::Cancelled {
            address: self.address.clone(),
            waited: now.saturating_duration_since(self.began),
        }
    }

    /// Begins another round over all addresses but those that are being tried still.
    fn begin_round(&mut self) {
        self.next_round = None;
        match address::parse(&self.address) {
            // The name may lead elsewhere by now.
            Ok(Destination::Name) => self.lookup = Lookup::Due,
            _ => {
                for target in &mut self.targets {
                    if target.state == TargetState::Tried {
                        target.state = TargetState::Due;
                    }
                }
            }
        }
    }

    fn is_in(&self, state: TargetState) -> bool {
        self.targets.iter().any(|target| target.state == state)
    }

    fn lacking(&mut self) -> Option<DialError> {
        let (action, source) = self.shortage.take()?;
        Some(DialError::Environment {
            address: self.address.clone(),
            action,
            source,
        })
    }

    /// Returns the error that says most about the peer.
    fn give_up(&mut self, now: Instant) -> DialError {
        let (address, attempts) = (self.address.clone(), self.attempts);
        let waited = now.saturating_duration_since(self.began);
        let is_worse = |target: &DialTarget| match target.state {
            TargetState::Wrong => 0,
            _ => 1,
        };
        self.targets.sort_by_key(is_worse);
        for target in &mut self.targets {
            if let Some(AttemptFailure::Handshake(_)) = target.finding
                && let Some(AttemptFailure::Handshake(source)) = target.finding.take()
            {
                let peer = target.address;
                return DialError::Handshake {
                    address,
                    peer,
                    source,
                };
            }
        }
        if let Some(error) = self.lacking() {
            return error;
        }
        if let Some(source) = self.unresolved.take() {
            return DialError::Unresolved {
                address,
                waited,
                attempts,
                source,
            };
        }
        if self.lookup == Lookup::Asked && self.targets.is_empty() {
            let source = io::Error::from(io::ErrorKind::TimedOut);
            return DialError::Unresolved {
                address,
                waited,
                attempts: attempts + 1,
                source,
            };
        }
        let is_refused = |target: &DialTarget| match target.finding {
            Some(AttemptFailure::Absent { is_refused, .. }) => is_refused,
            _ => false,
        };
        let all_refused = !self.targets.is_empty() && self.targets.iter().all(is_refused);
        let last = self.last.take();
        let last = last.unwrap_or_else(|| "it was still waited for".to_owned());
        match all_refused {
            true => DialError::Refused {
                address,
                waited,
                attempts,
                last,
            },
            false => DialError::Nobody {
                address,
                waited,
                attempts,
                last,
            },
        }
    }
}

/// Names the address where `why` was found, unless the caller gave it.
fn located(why: &str, address: Address, named: bool) -> String {
    match named {
        true => why.to_owned(),
        false => format!("{address}: {why}"),
    }
}

/// Returns the addresses with the two families in turns, beginning with the first one's.
fn in_turns(addresses: Vec<Address>) -> Vec<Address> {
    let is_ipv6 = |address: &Address| matches!(address, Address::Inet(SocketAddr::V6(_)));
    let is_first = addresses.first().is_some_and(is_ipv6);
    let (one, other): (Vec<_>, Vec<_>) = addresses
        .into_iter()
        .partition(|address| is_ipv6(address) == is_first);
    let mut mixed = Vec::with_capacity(one.len() + other.len());
    let (mut one, mut other) = (one.into_iter(), other.into_iter());
    loop {
        let pair = [one.next(), other.next()];
        if pair == [None, None] {
            return mixed;
        }
        for address in pair.into_iter().flatten() {
            // A resolver may name an address more than once.
            if !mixed.contains(&address) {
                mixed.push(address);
            }
        }
    }
}

/// The time after which the next address of a name is tried beside those before ([RFC 8305, section
/// 5](https://www.rfc-editor.org/rfc/rfc8305#section-5): 250 ms).
const STAGGER: Duration = Duration::from_millis(250);

/// The pauses between rounds. The first is so short that a peer started by the same script costs
/// nothing visible; with the longest, a thousand waiting nodes are no load to the node they wait for.
const BACK_OFF: BackOff = BackOff::new(Duration::from_millis(10), Duration::from_millis(500));

/// The pause of a dial for which this process has no descriptor, port or thread.
const REST: Duration = Duration::from_millis(100);

/// The reason why port 0 is no address to connect to.
const NO_PORT: &str = "port 0 has a listener take any free port; name the port that it took, which \
                       its local_addr tells";

/// The reason why the CID `any` is no address to connect to.
const NO_CID: &str = "a node listens at the CID `any`; to connect, name the machine: 2 is the host, 1 \
                      this machine, and a guest has the number that its guest-cid says";

/// The least time left with which another attempt is worth beginning.
const LAST_ATTEMPT: Duration = Duration::from_millis(10);

#[cfg(test)]
#[path = "dial_tests.rs"]
mod tests;
