//! Connecting to peers: the node's dialer as its engine turns it, and the calls that wait for it.

use std::{
    future::Future,
    mem,
    os::fd::BorrowedFd,
    pin::Pin,
    sync::{Arc, Mutex, atomic::AtomicBool},
    task::{Context, Poll, Waker},
    time::Instant,
};

use ibex_base::{fork, sync::lock};
use ibex_bootstrap::{
    DialDesk, DialError, DialOutcome, DialRequest, Dialer, Dialing, Established, ResumeError,
    ResumedConnection,
};
use ibex_ring::parking::{self, AtSlot, Ticket, WaitSlot, Wakers};
use ibex_transport::{
    connection::{RedialError, Redialed},
    engine::{Admission, ControlSource, Incoming},
    runtime::Runtime,
};

use crate::{
    ConnectError, ConnectErrorKind, Node, Peer, ToAddress, address,
    listener::admission,
    resuming::{self, Resuming},
};

/// The way to have a node dial.
pub(crate) type Desk = DialDesk<Owner>;

/// Whoever gets the outcome of an order.
pub(crate) enum Owner {
    Call(Arc<PendingDial>),
    /// A session that is to resume.
    Session {
        session: u64,
        epoch: u64,
        /// Set once a refusal was logged that another attempt is not likely to change.
        has_warned: Arc<AtomicBool>,
    },
}

/// The dialer of a node, as its engine turns it.
pub(crate) struct Dials {
    pub(crate) dialer: Dialer<Owner>,
    pub(crate) our_channels: u32,
    pub(crate) resuming: Resuming,
    /// Outcomes that came when the engine could not take them.
    pub(crate) late: Vec<Incoming>,
}

impl Dials {
    fn take_outcomes(&mut self, wakers: &mut Wakers) -> Vec<Incoming> {
        let mut incoming = mem::take(&mut self.late);
        while let Some((owner, outcome)) = self.dialer.poll_outcome() {
            match (owner, outcome) {
                (Owner::Call(call), DialOutcome::Dialed(outcome)) => {
                    let outcome = outcome.map(|established| self.admission(*established));
                    call.answer(outcome.map_err(ConnectError::from), wakers);
                }
                (
                    Owner::Session {
                        session,
                        epoch,
                        has_warned,
                    },
                    DialOutcome::Resumed(outcome),
                ) => incoming.push(Incoming::Redialed(Box::new(Redialed {
                    session,
                    epoch,
                    outcome: redialed(outcome, &has_warned),
                }))),
                // A call orders new sessions only, and a session orders none.
                (Owner::Call(_), DialOutcome::Resumed(_)) | (Owner::Session { .. }, _) => {}
            }
        }
        while let Some(unwanted) = self.dialer.poll_unwanted() {
            self.admission(unwanted).abandon();
        }
        incoming.extend(self.resuming.displaced());
        incoming
    }

    fn admission(&self, established: Established) -> Box<Admission> {
        Box::new(admission(established, self.our_channels, &self.resuming))
    }
}

impl ControlSource for Dials {
    fn fd(&self) -> BorrowedFd<'_> {
        self.dialer.as_fd()
    }

    fn turn(&mut self, now: Instant, wakers: &mut Wakers) -> Vec<Incoming> {
        self.dialer.turn(now);
        self.take_outcomes(wakers)
    }

    fn next_deadline(&self) -> Option<Instant> {
        self.dialer.next_deadline()
    }

    fn close(&mut self, wakers: &mut Wakers) {
        self.dialer.close(Instant::now());
        // Sessions that have resumed meanwhile are taken in the next turn.
        self.late = self.take_outcomes(wakers);
    }

    fn is_quiet(&self) -> bool {
        self.dialer.is_quiet()
    }
}

fn redialed(
    outcome: Result<Box<ResumedConnection>, ResumeError>,
    has_warned: &AtomicBool,
) -> Result<ibex_transport::connection::NewWire, RedialError> {
    match outcome {
        Ok(connection) => Ok(resuming::reconnection(*connection)),
        Err(error) if error.is_gone() => Err(RedialError::NoSession(error.to_string())),
        Err(error) if error.is_refused() => Err(RedialError::Refused(error.to_string())),
        Err(error) => {
            resuming::warn_of(&error, has_warned);
            Err(RedialError::NotYet(error.to_string()))
        }
    }
}

/// The state that a call shares with the dialer.
pub(crate) struct PendingDial {
    answer: Mutex<Answer>,
    waiters: WaitSlot,
}

enum Answer {
    Awaited,
    Here(Result<Box<Admission>, ConnectError>),
    /// It was taken, or nobody wants it any more.
    Gone,
}

impl PendingDial {
    fn answer(&self, outcome: Result<Box<Admission>, ConnectError>, wakers: &mut Wakers) {
        let mut answer = lock(&self.answer);
        match (&*answer, outcome) {
            (Answer::Awaited, outcome) => *answer = Answer::Here(outcome),
            (_, Ok(unwanted)) => {
                drop(answer);
                unwanted.abandon();
                return;
            }
            (_, Err(_)) => return,
        }
        drop(answer);
        self.waiters.take(wakers);
    }

    fn take(&self) -> Option<Result<Box<Admission>, ConnectError>> {
        let mut answer = lock(&self.answer);
        match mem::replace(&mut *answer, Answer::Gone) {
            Answer::Here(outcome) => Some(outcome),
            before => {
                *answer = before;
                None
            }
        }
    }
}

/// A session on its way. Dropping it cancels the attempt, and abandons a session that is there
/// already: the peer would wait for this end.
pub struct Connecting {
    call: Arc<PendingDial>,
    held: Option<Ticket>,
    #[allow(dead_code, reason = "held for its drop")]
    dialing: Dialing,
}

impl Connecting {
    /// Begins to connect, unless the node is closed.
    pub(crate) fn begin(
        runtime: &Runtime,
        desk: &Desk,
        request: DialRequest,
    ) -> Result<Self, ConnectError> {
        let call = Arc::new(PendingDial {
            answer: Mutex::new(Answer::Awaited),
            waiters: WaitSlot::new(),
        });
        let address = request.address.clone();
        let dialing = desk.dial(Owner::Call(call.clone()), request);
        Ok(Self {
            call,
            held: None,
            dialing: dialing.map_err(|_| closed(runtime, &address))?,
        })
    }

    /// Waits on the calling thread.
    fn wait(&self, runtime: &Runtime) -> Option<Result<Box<Admission>, ConnectError>> {
        let call = &self.call;
        runtime.wait_at(&call.waiters, None, || call.take()).ok()
    }

    /// Returns the outcome, or has `waker` called when it comes. `turn` may bring it.
    pub fn poll(
        &mut self,
        waker: &Waker,
        turn: impl FnOnce(),
    ) -> Poll<Result<Box<Admission>, ConnectError>> {
        let (call, held) = (&self.call, &mut self.held);
        parking::poll(
            AtSlot::new(&call.waiters, held, || call.take()),
            waker,
            turn,
        )
    }
}

impl Drop for Connecting {
    fn drop(&mut self) {
        self.call.waiters.leave(&mut self.held);
        let answer = mem::replace(&mut *lock(&self.call.answer), Answer::Gone);
        if let Answer::Here(Ok(unwanted)) = answer {
            unwanted.abandon();
        }
    }
}

/// A task that connects. See [`Node::connect_async`].
pub(crate) struct ConnectAsync<'a> {
    node: &'a Node,
    address: String,
    engine: Option<usize>,
    state: State,
}

enum State {
    New,
    Connecting(Connecting),
    Done,
}

impl Node {
    /// Connects to the node that listens on `address`: `host:port`, `vsock:CID:PORT`, an
    /// [`Address`](crate::Address), or `(host, port)`; see [`ToAddress`].
    ///
    /// The addresses of a name are tried beside each other, a quarter of a second apart, and the
    /// first that gives a session wins. An IPv6 address may name its interface:
    /// `[fe80::1%eth0]:7000`.
    ///
    /// Waits for up to `connect_timeout` (default 10 s) for a node that starts later. Under
    /// [`Driver::Caller`](crate::Driver::Caller) it runs turns meanwhile: sessions go on and peers are let in, so a node
    /// may connect to itself, and two nodes to each other.
    ///
    /// # Errors
    ///
    /// [`ConnectError`]: no node answered in time; the program that answered is not ibex, or has
    /// another version or kind of security; or no fabric suits both nodes. A failed attempt leaves
    /// nothing behind.
    pub fn connect(&self, address: impl ToAddress) -> Result<Peer, ConnectError> {
        self.connect_to(&address::text_of(&address), None)
    }

    /// Connects like [`connect`](Self::connect), and places the session on one of the engines that
    /// [`io_threads`](crate::NodeBuilder::io_threads) gave the node, numbered from 0. It stays there for as
    /// long as it lasts, and over RDMA uses the queues of that engine. Without this call the session
    /// is on the engine with the fewest sessions.
    ///
    /// ```no_run
    /// use ibex::Node;
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let node = Node::builder().io_threads(2).build()?;
    /// // Two sessions with one peer, each on an engine of its own.
    /// let bulk = node.connect_on(0, "db:7000")?;
    /// let requests = node.connect_on(1, "db:7000")?;
    /// assert_ne!(bulk.engine(), requests.engine());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// The errors of [`connect`](Self::connect), and
    /// [`NoSuchEngine`](crate::ConnectErrorKind::NoSuchEngine).
    pub fn connect_on(&self, engine: usize, address: impl ToAddress) -> Result<Peer, ConnectError> {
        self.connect_to(&address::text_of(&address), Some(engine))
    }

    /// Connects in a task to the node that listens on `address`. Connecting begins with the first
    /// poll.
    ///
    /// Any number of tasks may connect at a time; a peer that does not answer holds up no other.
    /// Dropping the future ends the attempt at once: the peer may then have seen a session for a
    /// moment. Under [`Driver::Caller`](crate::Driver::Caller) each poll runs a turn, and the attempt
    /// goes on in the node's turns.
    ///
    /// # Errors
    ///
    /// The errors of [`connect`](Self::connect).
    ///
    /// # Panics
    ///
    /// If it is polled after it was ready.
    pub fn connect_async(
        &self,
        address: impl ToAddress,
    ) -> impl Future<Output = Result<Peer, ConnectError>> {
        ConnectAsync::new(self, address::text_of(&address), None)
    }

    /// Connects like [`connect_async`](Self::connect_async), and places the session on an engine as
    /// [`connect_on`](Self::connect_on) does.
    ///
    /// # Errors
    ///
    /// The errors of [`connect_on`](Self::connect_on).
    ///
    /// # Panics
    ///
    /// If it is polled after it was ready.
    pub fn connect_on_async(
        &self,
        engine: usize,
        address: impl ToAddress,
    ) -> impl Future<Output = Result<Peer, ConnectError>> {
        ConnectAsync::new(self, address::text_of(&address), Some(engine))
    }

    fn connect_to(&self, address: &str, engine: Option<usize>) -> Result<Peer, ConnectError> {
        self.check_fork()?;
        let connecting = self.begin_to_connect(address, engine)?;
        let outcome = connecting.wait(self.runtime());
        let outcome = outcome.unwrap_or_else(|| Err(closed(self.runtime(), address)));
        self.connected(address, engine, outcome)
    }

    fn begin_to_connect(
        &self,
        address: &str,
        engine: Option<usize>,
    ) -> Result<Connecting, ConnectError> {
        let request = DialRequest {
            address: address.to_owned(),
            local: self.local_for(address, engine)?,
            timeout: self.connect_timeout(),
            tries_again: true,
        };
        Connecting::begin(self.runtime(), self.desk(), request)
    }

    fn connected(
        &self,
        address: &str,
        engine: Option<usize>,
        outcome: Result<Box<Admission>, ConnectError>,
    ) -> Result<Peer, ConnectError> {
        match outcome {
            Ok(admission) => self.admit(address, engine, *admission),
            Err(error) if error.kind() == ConnectErrorKind::Closed => {
                Err(closed_by(self.runtime(), address, error))
            }
            Err(error) => Err(error),
        }
    }
}

/// Returns the error of a node that is closed.
fn closed(runtime: &Runtime, address: &str) -> ConnectError {
    let error = DialError::Cancelled {
        address: address.to_owned(),
        waited: std::time::Duration::ZERO,
    };
    closed_by(runtime, address, error.into())
}

/// Tells what has closed the node, if that was not the program.
fn closed_by(runtime: &Runtime, address: &str, error: ConnectError) -> ConnectError {
    match runtime.has_lost_driver() {
        true => ConnectError::lost_runtime(address.to_owned()),
        false => error,
    }
}

impl<'a> ConnectAsync<'a> {
    fn new(node: &'a Node, address: String, engine: Option<usize>) -> Self {
        Self {
            node,
            address,
            engine,
            state: State::New,
        }
    }
}

impl Future for ConnectAsync<'_> {
    type Output = Result<Peer, ConnectError>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        this.node.check_fork()?;
        let mut connecting = match mem::replace(&mut this.state, State::Done) {
            State::New => this.node.begin_to_connect(&this.address, this.engine)?,
            State::Connecting(connecting) => connecting,
            State::Done => panic!("polled after it was ready"),
        };
        match connecting.poll(context.waker(), || this.node.runtime().turn_for_caller()) {
            Poll::Ready(outcome) => {
                drop(connecting);
                let peer = this.node.connected(&this.address, this.engine, outcome);
                Poll::Ready(peer)
            }
            Poll::Pending => {
                this.state = State::Connecting(connecting);
                Poll::Pending
            }
        }
    }
}

impl Drop for ConnectAsync<'_> {
    fn drop(&mut self) {
        if fork::is_child() {
            // A forked child does not drop what its parent dialed.
            mem::forget(mem::replace(&mut self.state, State::Done));
        }
    }
}
