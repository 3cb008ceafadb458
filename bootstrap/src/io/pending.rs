//! A handshake that is not finished, and what it runs on, without waiting. The acceptor and the
//! dialer have it alike.
#![forbid(unsafe_code)]

use std::net::{IpAddr, Shutdown, SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use ibex_base::Address;
use rustix::event::epoll::EventFlags;

use super::connect;
use super::device_jobs::{DeviceJob, DeviceOutcome};
use super::epoll_set::EpollEntry;
use super::reserve::{self, Reserve};
use super::tcp::{self, NO_RDMA, ReadOutcome};
use super::unix::UnixPair;
use super::unix_meeting::UnixMeeting;
use crate::error::{HandshakeError, Problem};
use crate::established::{Established, Finished, ResumedConnection};
use crate::fabric::Fabric;
use crate::handshake::{Agreement, Handshake, HandshakeEvent, HandshakeStep, ResumedSession};
use crate::local::Local;
use crate::party::Party;
use crate::verbs::{PairRequest, VerbsPair};

/// A handshake and the sockets that it runs on, each in its owner's epoll set under the same key.
/// Whichever is ready, [`advance`](Self::advance) looks at all of them, since there are two or three
/// at most.
pub(super) struct PendingHandshake {
    machine: Handshake,
    address: Address,
    /// The time at which this end had the connection.
    began: Instant,

    // The connection.
    stream: TcpStream,
    outbox: Vec<u8>,
    /// True once a byte of the peer has come.
    is_received: bool,
    /// True if the set reports when `stream` takes more.
    watching_writes: bool,
    /// Set once the handshake has failed and the peer is to learn why.
    farewell: Option<Farewell>,

    // Shared memory.
    unix: UnixMeeting,
    /// It is known whether there are descriptors for a session.
    has_polled: bool,

    // RDMA.
    pair: Option<Box<dyn VerbsPair>>,
    /// Device jobs to be run off the turn; the results come to
    /// [`handle_outcome`](Self::handle_outcome).
    device_jobs: Vec<DeviceJob>,
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
pub(super) enum HandshakeProgress {
    Waiting,
    Agreed(Box<Agreement>),
    Resumed(ResumedSession),
    Failed(HandshakeError),
    /// The peer of a failed handshake has received the reason, or never will.
    Gone,
}

impl PendingHandshake {
    /// Takes a connection, which the epoll set watches for reading, that this end had `now`.
    pub(super) fn new(
        machine: Handshake,
        stream: TcpStream,
        address: Address,
        local: &Local,
        now: Instant,
    ) -> PendingHandshake {
        PendingHandshake {
            // A dialer looks for descriptors before it connects.
            has_polled: machine.side() == Party::Dialer,
            machine,
            address,
            began: now,
            stream,
            outbox: Vec::new(),
            is_received: false,
            watching_writes: false,
            farewell: None,
            unix: UnixMeeting::new(&local.unix),
            pair: None,
            device_jobs: Vec::new(),
        }
    }

    /// Does everything that can be done without waiting.
    pub(super) fn advance(&mut self, now: Instant, watch: EpollEntry<'_>) -> HandshakeProgress {
        if self.is_parting() {
            return match self.hear_out(now) {
                true => HandshakeProgress::Waiting,
                false => HandshakeProgress::Gone,
            };
        }
        self.check_for_descriptors();
        self.read();
        self.hear_unix(watch);
        self.unix.hear_visitors(&mut self.machine, watch);
        self.machine.handle_timeout(now);
        let end = self.act(watch);
        self.write(watch);
        match end {
            None => HandshakeProgress::Waiting,
            Some(HandshakeEvent::Failed(error)) => HandshakeProgress::Failed(error),
            // The last message has to be written before the stream changes hands.
            Some(_) if !self.outbox.is_empty() => {
                HandshakeProgress::Failed(HandshakeError::takes_no_more())
            }
            Some(HandshakeEvent::Agreed(agreement)) => HandshakeProgress::Agreed(agreement),
            Some(HandshakeEvent::Resumed(session)) => HandshakeProgress::Resumed(session),
            Some(_) => HandshakeProgress::Gone,
        }
    }

    /// Acts on the machine's events. Returns the one that ends the handshake.
    fn act(&mut self, watch: EpollEntry<'_>) -> Option<HandshakeEvent> {
        while let Some(event) = self.machine.poll_event() {
            match event {
                HandshakeEvent::ConnectUnix {
                    name,
                    in_directory,
                    token,
                } => {
                    // Given back at once, for the sockets that are made now.
                    let has_room = self.keep_descriptors().is_some();
                    if has_room
                        && let Err(why) = self.unix.connect(&name, in_directory, &token, watch)
                    {
                        self.machine.handle_unix(Err(why));
                    }
                }
                HandshakeEvent::ListenUnix { name, in_directory } => {
                    if let Some(kept) = self.keep_descriptors() {
                        let listening = self.unix.listen(&name, in_directory, kept, watch);
                        self.machine.handle_unix(listening);
                    }
                }
                HandshakeEvent::CloseUnix => self.unix.close(watch),
                HandshakeEvent::FindDevice => match self.addresses() {
                    Ok((local, _)) => self.device_jobs.push(DeviceJob::Find(local)),
                    Err(why) => self.machine.handle_device(Err(why)),
                },
                HandshakeEvent::PreparePair => match self.addresses() {
                    Ok((local, peer)) => self.device_jobs.push(DeviceJob::Prepare(PairRequest {
                        local,
                        peer,
                        offered: self.machine.offered(),
                        end: self.machine.side(),
                        resumes: self.machine.resumes(),
                    })),
                    Err(why) => self.machine.handle_prepared(Err(why)),
                },
                HandshakeEvent::ConnectPair(theirs) => {
                    let pair = self.pair.take();
                    self.device_jobs
                        .extend(pair.map(|pair| DeviceJob::Connect(pair, theirs)));
                }
                HandshakeEvent::ClosePair => self.pair = None,
                end @ (HandshakeEvent::Agreed(_)
                | HandshakeEvent::Resumed(_)
                | HandshakeEvent::Failed(_)) => return Some(end),
            }
            // The answer may be here already.
            self.hear_unix(watch);
        }
        None
    }

    /// Shows the machine the acceptor's answer at the Unix socket, while it is outstanding.
    fn hear_unix(&mut self, watch: EpollEntry<'_>) {
        if self.step() == HandshakeStep::UnixSocket
            && let Some(answer) = self.unix.answer(watch)
        {
            self.machine.handle_unix(answer);
        }
    }

    /// Returns this end's IP address on the connection, by which a device is chosen, and the peer's.
    fn addresses(&self) -> Result<(IpAddr, SocketAddr), String> {
        let ours = tcp::own_address(&self.stream).map_err(|error| error.to_string())?;
        let both = ours.ip().zip(self.address.inet());
        both.ok_or_else(|| NO_RDMA.to_owned())
    }

    /// Takes the device jobs to be run off the turn.
    pub(super) fn take_device_jobs(&mut self) -> Vec<DeviceJob> {
        std::mem::take(&mut self.device_jobs)
    }

    /// Takes the result of a job. [`advance`](Self::advance) is due afterwards.
    pub(super) fn handle_outcome(&mut self, outcome: DeviceOutcome) {
        match outcome {
            DeviceOutcome::Found(found) => self.machine.handle_device(found),
            DeviceOutcome::Prepared(prepared) => {
                let endpoint = prepared.map(|pair| self.pair.insert(pair).endpoint());
                self.machine.handle_prepared(endpoint);
            }
            DeviceOutcome::Connected(connected) => {
                let connected = connected.map(|pair| self.pair = Some(pair));
                self.machine.handle_connected(connected);
            }
        }
    }

    pub(super) fn address(&self) -> Address {
        self.address
    }

    pub(super) fn step(&self) -> HandshakeStep {
        self.machine.step()
    }

    /// Returns what to report of a handshake that failed.
    pub(super) fn problem(&self, error: HandshakeError) -> Problem {
        match error {
            HandshakeError::Closed { .. } if !self.is_received => Problem::Unreceived,
            error => error.into(),
        }
    }

    pub(super) fn has_hello(&self) -> bool {
        self.machine.has_hello()
    }

    /// Returns whether the peer may have a session already, which it then keeps or gives up by this
    /// end's word.
    pub(super) fn may_be_session(&self) -> bool {
        self.machine.side() == Party::Dialer && self.step() == HandshakeStep::Ready
    }

    /// Returns the time at which there is something to do even if nothing arrives.
    pub(super) fn deadline(&self) -> Option<Instant> {
        match &self.farewell {
            Some(farewell) => Some(farewell.until),
            None => self.machine.deadline(),
        }
    }

    // ---- The end -----------------------------------------------------------------------

    /// Begins to read the peer's remaining bytes, where TLS has sent the reason, which must not be
    /// lost. Returns whether it does.
    pub(super) fn begin_farewell(&mut self, now: Instant, watch: EpollEntry<'_>) -> bool {
        if !self.machine.is_sealed() || !self.outbox.is_empty() {
            return false;
        }
        self.farewell = Some(Farewell {
            until: now + FAREWELL,
            left: FAREWELL_BYTES,
        });
        self.unix.close(watch);
        self.pair = None;
        self.stream.shutdown(Shutdown::Write).is_ok()
    }

    /// Tells whether the handshake is over, and the peer still has to learn why.
    pub(super) fn is_parting(&self) -> bool {
        self.farewell.is_some()
    }

    /// Reads on after [`begin_farewell`](Self::begin_farewell). Returns whether the peer may still
    /// be reading the reason.
    fn hear_out(&mut self, now: Instant) -> bool {
        let Some(farewell) = &mut self.farewell else {
            return false;
        };
        let mut buffer = [0; READ_BYTES];
        for _ in 0..READS_PER_TURN {
            match tcp::read(&self.stream, &mut buffer) {
                ReadOutcome::Bytes(bytes) if bytes.len() < farewell.left => {
                    farewell.left -= bytes.len();
                }
                ReadOutcome::Nothing => return now < farewell.until,
                _ => return false,
            }
        }
        true
    }

    /// Returns the connection of a new session, with its sockets out of the epoll set.
    pub(super) fn finish(self, mut agreed: Agreement, watch: EpollEntry<'_>) -> Established {
        // The choice of a fabric knows no address, and so not what carries the frames.
        if let (Address::Vsock { .. }, Some(why)) =
            (self.address, agreed.reason.strip_prefix("tcp:"))
        {
            agreed.reason = format!("vsock:{why}");
        }
        self.with(agreed.fabric, agreed, watch)
    }

    /// Returns the connection of a resumed session, with its sockets out of the epoll set.
    pub(super) fn resume(
        self,
        session: ResumedSession,
        watch: EpollEntry<'_>,
    ) -> ResumedConnection {
        self.with(session.fabric, session, watch)
    }

    fn with<A>(mut self, fabric: Fabric, agreed: A, watch: EpollEntry<'_>) -> Finished<A> {
        self.unwatch(watch);
        // Sockets and queue pairs of a fabric that was left again are not part of the session.
        let unix = self.unix.pair.filter(|_| fabric == Fabric::Shm);
        let (unix, pid) = unix.map(UnixPair::into_parts).unzip();
        Finished {
            is_dialer: self.machine.side() == Party::Dialer,
            tls: self.machine.take_tls(),
            stream: self.stream,
            leftover: self.machine.into_leftover(),
            unix,
            verbs: self.pair.filter(|_| fabric == Fabric::Verbs),
            address: self.address,
            pid: pid.flatten(),
            began: self.began,
            agreed,
        }
    }

    /// Takes every socket out of the epoll set. Closing would do it, unless a forked child holds
    /// them open, and then they would stay ready forever.
    pub(super) fn unwatch(&mut self, watch: EpollEntry<'_>) {
        watch.remove(&self.stream);
        self.unix.unwatch(watch);
    }

    /// Has the close of the connection send a reset, as to a peer that has no session.
    pub(super) fn reset_on_close(&self) {
        connect::reset_on_close(&self.stream);
    }

    // ---- The connection ----------------------------------------------------------------

    /// Hands the machine what has arrived.
    fn read(&mut self) {
        let mut buffer = [0; READ_BYTES];
        for _ in 0..READS_PER_TURN {
            match tcp::read(&self.stream, &mut buffer) {
                ReadOutcome::Bytes(bytes) => {
                    self.is_received = true;
                    self.machine.handle_bytes(bytes);
                    if bytes.len() < READ_BYTES {
                        break;
                    }
                }
                ReadOutcome::Nothing => break,
                ReadOutcome::Closed(detail) => {
                    self.machine.handle_closed(detail);
                    break;
                }
            }
        }
    }

    /// Writes what the machine has to say, as much as the socket takes.
    fn write(&mut self, watch: EpollEntry<'_>) {
        while let Some(bytes) = self.machine.poll_transmit() {
            self.outbox.extend(bytes);
        }
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

    /// Checks at an accepting end whether this process may open the files of one more session, once
    /// the peer has sent Hello: a stranger that says nothing costs less.
    fn check_for_descriptors(&mut self) {
        if !self.has_polled && self.has_hello() {
            self.has_polled = true;
            self.keep_descriptors();
        }
    }

    /// Keeps descriptors for a session over shared memory, or tells the machine that there are too
    /// few.
    fn keep_descriptors(&mut self) -> Option<Reserve> {
        let kept = Reserve::keep(reserve::OF_SESSION, reserve::FOR_CHANNELS);
        kept.map_err(|limit| self.machine.handle_shortage(limit))
            .ok()
    }
}

/// Length of one read, which is more than one end's half of any handshake of today.
const READ_BYTES: usize = 4096;

/// Most reads of one handshake before the next connection has its turn; unread bytes stay in the
/// socket.
const READS_PER_TURN: usize = 4;

/// The time for which a refused peer's bytes are read, and the most bytes. The peer closes as soon
/// as it has read the reason.
const FAREWELL: Duration = Duration::from_secs(1);
const FAREWELL_BYTES: usize = 64 << 10;
