//! The listening socket and the handshakes that came in through it.
//!
//! Rules:
//!
//! 1. Nothing here waits, and every pending handshake has a deadline.
//! 2. There are at most `max_pending` handshakes, and half as many from one address. A newcomer
//!    displaces the oldest handshake that has not even sent Hello: of its own address if that has
//!    its share, else of all. Silent connections can so delay an honest peer, which says Hello at
//!    once, but not keep it out.
//! 3. A turn advances and accepts a bounded number of handshakes. The bound is low while handshakes
//!    are inside TLS, which computes.
#![forbid(unsafe_code)]

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use ibex_base::Address;
use rustix::event::epoll::EventFlags;
use socket2::Socket;

use super::device_jobs::DeviceJobs;
use super::epoll_set::{EpollEntry, EpollSet};
use super::pending::{HandshakeProgress, PendingHandshake};
use super::reserve::Reserve;
use super::{after, connect, host, tcp};
use crate::error::{BindError, HandshakeFailure, Problem};
use crate::established::{Established, ResumedConnection};
use crate::handshake::{AcceptorEntropy, Handshake};
use crate::identity::{HostHint, Secret};
use crate::local::Local;

/// A listening socket with its unfinished handshakes.
///
/// Call [`turn`](Self::turn) when [`as_fd`](Self::as_fd) is readable and when
/// [`next_deadline`](Self::next_deadline) has come; afterwards drain
/// [`poll_established`](Self::poll_established),
/// [`poll_resumed`](Self::poll_resumed) and [`poll_failure`](Self::poll_failure) to `None`.
pub struct Acceptor {
    local: Local,

    // The sockets.
    /// None once a listener that was [given](Acceptor::listen_on) is left to the processes that
    /// share it.
    listener: Option<Socket>,
    is_given: bool,
    address: Address,
    /// Holds the listener under [`LISTENER`], the device jobs' bell under [`DEVICE_JOBS`]
    /// and each handshake under its key.
    epoll: EpollSet,
    /// Set while the process is out of descriptors. Until that time the listener is out of the
    /// epoll set; otherwise it would stay ready with nothing to be done.
    resting_until: Option<Instant>,
    /// Descriptors with which a connection is accepted and refused when the process may open no
    /// more.
    door: Reserve,

    // The handshakes.
    /// The pending handshakes by key; keys grow, so the first is the oldest.
    pending: BTreeMap<u64, PendingHandshake>,
    next_key: u64,
    /// The handshakes' work on RDMA devices, where this node may have one.
    device_jobs: Option<DeviceJobs>,

    // The results.
    established: VecDeque<Established>,
    resumed: VecDeque<ResumedConnection>,
    /// The latest failures, at most [`MAX_FAILURES`]: under a flood nobody reads them all.
    failures: VecDeque<HandshakeFailure>,
}

impl Acceptor {
    /// Listens at `address`; port 0 takes any free one. The unspecified IPv6 address takes IPv4
    /// connections as well, and [`Address::ANY_CID`] those to every CID of this machine.
    pub fn bind(address: Address, local: Local) -> Result<Acceptor, BindError> {
        let failed = |action| failed(address, action);
        let to_bind = connect::to_bind(address);
        let (socket, in_kernel) =
            connect::socket_for(to_bind).map_err(failed("making a socket"))?;
        // A listener that restarts need not wait for the connections of the
        // one before it to be forgotten (TIME-WAIT).
        socket
            .set_reuse_address(true)
            .map_err(failed("setting SO_REUSEADDR"))?;
        if let Address::Inet(SocketAddr::V6(address)) = address
            && address.ip().is_unspecified()
        {
            socket
                .set_only_v6(false)
                .map_err(failed("clearing IPV6_V6ONLY"))?;
        }
        socket.bind(&in_kernel).map_err(failed("binding"))?;
        socket.listen(BACKLOG).map_err(failed("listening"))?;
        Self::start(socket, false, local)
    }

    /// Listens with a socket that the caller made, or was given by another process. The socket
    /// listens already, for TCP or vsock.
    ///
    /// Processes may share the socket. [`close`](Self::close) then leaves later connections to the
    /// other processes, and the socket listens for as long as any process has it. The call sets the
    /// socket to non-blocking mode, for all of them.
    ///
    /// # Errors
    /// The socket is neither one of TCP nor one of vsock, does not listen, or cannot be watched.
    pub fn listen_on(listener: TcpListener, local: Local) -> Result<Acceptor, BindError> {
        let listener = Socket::from(listener);
        let address = tcp::own_address(&listener);
        let address = address.map_err(failed(UNKNOWN, "asking a given socket for its address"))?;
        let listens = listener.is_listener();
        match listens.map_err(failed(address, "asking whether a given socket listens"))? {
            true => Self::start(listener, true, local),
            false => {
                let source = io::Error::other("the socket that was given does not listen");
                Err(failed(address, "taking a given socket")(source))
            }
        }
    }

    fn start(listener: Socket, is_given: bool, local: Local) -> Result<Acceptor, BindError> {
        let bound = tcp::own_address(&listener);
        let address = bound.as_ref().copied().unwrap_or(UNKNOWN);
        let failed = |action| failed(address, action);
        let bound = bound.map_err(failed("asking for the bound port"))?;
        listener
            .set_nonblocking(true)
            .map_err(failed("setting non-blocking mode"))?;
        let epoll = EpollSet::new().map_err(failed("making an epoll set"))?;
        epoll
            .watch(LISTENER)
            .add(&listener, EventFlags::IN)
            .map_err(failed("adding to an epoll set"))?;
        let device_jobs = local.usable_devices().map(|_| DeviceJobs::new(&local));
        let device_jobs = device_jobs
            .transpose()
            .map_err(failed("making an eventfd"))?;
        if let Some(device_jobs) = &device_jobs {
            epoll
                .watch(DEVICE_JOBS)
                .add(device_jobs.bell(), EventFlags::IN)
                .map_err(failed("adding to an epoll set"))?;
        }
        Ok(Acceptor {
            local,
            listener: Some(listener),
            is_given,
            address: bound,
            epoll,
            resting_until: None,
            door: Reserve::default(),
            pending: BTreeMap::new(),
            next_key: DEVICE_JOBS + 1,
            device_jobs,
            established: VecDeque::new(),
            resumed: VecDeque::new(),
            failures: VecDeque::new(),
        })
    }

    /// Returns the address at which the acceptor listens, with the port that was bound.
    pub fn local_addr(&self) -> Address {
        self.address
    }

    /// Returns a descriptor that is readable while [`turn`](Self::turn) has work; it can be put
    /// into another epoll set. Deadlines do not make it readable.
    pub fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }

    /// Does what can be done without waiting: advances the handshakes whose
    /// sockets are ready, accepts new ones, ends those whose time is over.
    ///
    /// The work of one call is bounded; `as_fd` stays readable if there is more.
    pub fn turn(&mut self, now: Instant) {
        self.end_rest(now);
        if self.door.len() < AT_DOOR {
            self.door = Reserve::keep(AT_DOOR, 0).unwrap_or_default();
        }
        let mut keys = self.epoll.ready(self.share_of_a_turn());
        let listener_ready = keys.first() == Some(&LISTENER);
        keys.retain(|key| *key != LISTENER);
        if keys.first() == Some(&DEVICE_JOBS) {
            self.take_device_jobs(now);
        }
        // Handshakes that are pending already go first, so that a Hello that has arrived counts
        // before newcomers ask for the place.
        for key in keys {
            self.advance(key, now);
        }
        self.expire(now);
        if listener_ready {
            self.accept(now);
        }
    }

    /// Refuses new sessions from now on. Sessions of [`Local::resumable`] go on as before, until
    /// the acceptor is dropped. A listener that was [given](Self::listen_on) is left to the
    /// processes that share it: they take all later connections, including those that resume a
    /// session.
    pub fn close(&mut self) {
        self.local.places.close();
        if self.is_given
            && let Some(listener) = self.listener.take()
            && self.resting_until.take().is_none()
        {
            self.listener_watch().remove(&listener);
        }
    }

    /// Returns the time at which to call [`turn`](Self::turn) even if `as_fd` is not readable.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Instant> {
        let deadlines = self.pending.values().filter_map(PendingHandshake::deadline);
        deadlines.chain(self.resting_until).min()
    }

    /// Returns the next finished handshake. Drain after every `turn`.
    #[must_use]
    pub fn poll_established(&mut self) -> Option<Established> {
        self.established.pop_front()
    }

    /// Returns the next connection over which a session of [`Local::resumable`] resumes. Drain
    /// after every `turn`.
    #[must_use]
    pub fn poll_resumed(&mut self) -> Option<ResumedConnection> {
        self.resumed.pop_front()
    }

    /// Returns the next connection that did not become a session. Drain after every `turn`; only
    /// the latest 64 are kept.
    #[must_use]
    pub fn poll_failure(&mut self) -> Option<HandshakeFailure> {
        self.failures.pop_front()
    }

    /// Goes on with the handshakes whose device jobs are done.
    fn take_device_jobs(&mut self, now: Instant) {
        let done = self.device_jobs.as_ref().map(|device_jobs| {
            device_jobs.bell().silence();
            device_jobs.take_done()
        });
        for (key, outcome) in done.unwrap_or_default() {
            if let Some(pending) = self.pending.get_mut(&key) {
                pending.handle_outcome(outcome);
                self.advance(key, now);
            }
        }
    }

    fn advance(&mut self, key: u64, now: Instant) {
        let watch = self.epoll.watch(key);
        let Some(pending) = self.pending.get_mut(&key) else {
            return;
        };
        match pending.advance(now, watch) {
            HandshakeProgress::Waiting => {
                let wanted = pending.take_device_jobs();
                if let (Some(device_jobs), Some(devices)) =
                    (&self.device_jobs, self.local.usable_devices())
                {
                    for job in wanted {
                        device_jobs.begin(key, devices, job);
                    }
                }
            }
            HandshakeProgress::Agreed(agreement) => {
                if let Some(pending) = self.pending.remove(&key) {
                    self.established
                        .push_back(pending.finish(*agreement, watch));
                }
            }
            HandshakeProgress::Resumed(session) => {
                if let Some(pending) = self.pending.remove(&key) {
                    self.resumed.push_back(pending.resume(session, watch));
                }
            }
            HandshakeProgress::Failed(error) => {
                let problem = pending.problem(error);
                if pending.begin_farewell(now, watch) {
                    let address = pending.address();
                    self.report(Some(address), problem);
                } else {
                    self.give_up(key, problem);
                }
            }
            HandshakeProgress::Gone => drop(self.take_out(key)),
        }
    }

    fn expire(&mut self, now: Instant) {
        let due =
            |pending: &PendingHandshake| pending.deadline().is_some_and(|deadline| deadline <= now);
        let keys: Vec<u64> = self
            .pending
            .iter()
            .filter(|(_, pending)| due(pending))
            .map(|(key, _)| *key)
            .collect();
        for key in keys {
            self.advance(key, now);
        }
    }

    fn accept(&mut self, now: Instant) {
        for _ in 0..self.share_of_a_turn() {
            let Some(listener) = &self.listener else {
                return;
            };
            match listener.accept() {
                Ok((socket, address)) => {
                    let address = tcp::address_of(&address);
                    let known = address.as_ref().ok().copied();
                    let welcomed =
                        address.and_then(|address| self.welcome(socket.into(), address, now));
                    if let Err(source) = welcomed {
                        let action = "set up the connection";
                        let problem = Problem::Environment { action, source };
                        self.report(known, problem);
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) if host::is_shortage(&error) && self.door.len() == AT_DOOR => {
                    self.door = Reserve::default();
                }
                // The connection stays in the backlog, and the listener stays ready.
                Err(error) if host::is_shortage(&error) => {
                    self.rest(now);
                    let problem = Problem::Environment {
                        action: "accept a connection, which stays queued for a moment",
                        source: error,
                    };
                    self.report(None, problem);
                    return;
                }
                // That one connection was aborted, or the call interrupted; accept(2) also returns
                // errors that the connection met meanwhile.
                Err(_) => {}
            }
        }
    }

    fn welcome(&mut self, stream: TcpStream, address: Address, now: Instant) -> io::Result<()> {
        tcp::configure(&stream)?;
        let entropy = draw_entropy()?;
        self.make_room(address);
        let key = self.next_key;
        self.next_key += 1;
        let deadline = after(now, self.local.handshake_timeout);
        let host = HostHint::read(&stream)?;
        let machine = Handshake::accept(&self.local, host, entropy, now, deadline);
        self.epoll.watch(key).add(&stream, EventFlags::IN)?;
        let pending = PendingHandshake::new(machine, stream, address, &self.local, Instant::now());
        self.pending.insert(key, pending);
        // The newcomer's Hello is usually here already.
        self.advance(key, now);
        Ok(())
    }

    /// Displaces handshakes until there is room for one more of this address, whatever its port.
    fn make_room(&mut self, address: Address) {
        let max_pending = self.local.max_pending.max(1);
        let of_address = |pending: &PendingHandshake| host::is_one_host(pending.address(), address);
        while self.pending.len() >= max_pending {
            self.displace_one(|_| true);
        }
        let count = self.pending.values().filter(|one| of_address(one)).count();
        for _ in max_pending.div_ceil(2)..count + 1 {
            self.displace_one(of_address);
        }
    }

    /// Drops one of the handshakes that `may_go`: the oldest that is over, else the oldest that has
    /// not sent Hello, else the oldest.
    fn displace_one(&mut self, may_go: impl Fn(&PendingHandshake) -> bool) {
        let candidates = || self.pending.iter().filter(|(_, pending)| may_go(pending));
        if let Some((&key, _)) = candidates().find(|(_, pending)| pending.is_parting()) {
            drop(self.take_out(key));
            return;
        }
        let silent = candidates().find(|(_, pending)| !pending.has_hello());
        let Some((&key, pending)) = silent.or_else(|| candidates().next()) else {
            return;
        };
        let (step, max_pending) = (pending.step(), self.local.max_pending);
        self.give_up(key, Problem::Crowded { step, max_pending });
    }

    /// Returns the most handshakes that a turn advances, and that it accepts.
    fn share_of_a_turn(&self) -> usize {
        match self.local.credentials {
            Some(_) => HANDSHAKES_PER_TURN,
            None => EVENTS_PER_TURN,
        }
    }

    fn give_up(&mut self, key: u64, problem: Problem) {
        if let Some(pending) = self.take_out(key) {
            self.report(Some(pending.address()), problem);
        }
    }

    fn take_out(&mut self, key: u64) -> Option<PendingHandshake> {
        let mut pending = self.pending.remove(&key)?;
        pending.unwatch(self.epoll.watch(key));
        Some(pending)
    }

    fn report(&mut self, address: Option<Address>, problem: Problem) {
        let failure = HandshakeFailure { address, problem };
        if self.failures.len() == MAX_FAILURES {
            self.failures.pop_front();
        }
        self.failures.push_back(failure);
    }

    /// Stops accepting for a while.
    fn rest(&mut self, now: Instant) {
        if let Some(listener) = &self.listener {
            self.listener_watch().remove(listener);
            self.resting_until = Some(now + REST);
        }
    }

    fn end_rest(&mut self, now: Instant) {
        if self.resting_until.is_none_or(|until| now < until) {
            return;
        }
        let Some(listener) = &self.listener else {
            return;
        };
        // Without memory to watch the listener, the pause continues.
        self.resting_until = match self.listener_watch().add(listener, EventFlags::IN) {
            Ok(()) => None,
            Err(_) => Some(now + REST),
        };
    }

    fn listener_watch(&self) -> EpollEntry<'_> {
        self.epoll.watch(LISTENER)
    }
}

/// Makes the error of a step of listening at `address`.
fn failed(address: Address, action: &'static str) -> impl FnOnce(io::Error) -> BindError {
    move |source| BindError {
        address,
        action,
        source,
    }
}

/// Draws what a handshake of the acceptor needs of randomness.
fn draw_entropy() -> io::Result<AcceptorEntropy> {
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

/// The listener's key in the epoll set.
const LISTENER: u64 = 0;
/// The device jobs' key in the epoll set.
const DEVICE_JOBS: u64 = 1;

/// Stands for the address of a socket that does not tell it.
const UNKNOWN: Address = Address::Inet(SocketAddr::V4(SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, 0)));

/// Length of the listener's backlog. The kernel cuts it to `net.core.somaxconn`, 4096 since Linux
/// 5.4.
const BACKLOG: i32 = 1024;

/// Most events of one turn, and most handshakes that it accepts, so that an engine with other work
/// gets to it. The bound is below the least useful `max_pending`: a newcomer is read at least once
/// more before the flood behind it can reach its place.
const EVENTS_PER_TURN: usize = 64;
/// Bound of one turn where handshakes are inside TLS: one end of it computes for some 80 µs.
const HANDSHAKES_PER_TURN: usize = 8;

/// Most failures kept until the owner polls them.
const MAX_FAILURES: usize = 64;

/// Descriptors that the acceptor keeps: for a connection, and for a file that tells about this host.
const AT_DOOR: usize = 2;

/// The time for which the listener stops accepting when descriptors are short.
const REST: Duration = Duration::from_millis(100);
