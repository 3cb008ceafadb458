//! Connecting to peers: the outcomes of the node's dialer, and the calls that wait for them.

use std::{
    mem,
    sync::{Arc, Mutex, atomic::AtomicBool},
    task::{Poll, Waker},
};

use ibex_base::sync::lock;
use ibex_bootstrap::{
    DialDesk, DialError, DialOutcome, DialRequest, Dialer, Dialing, ResumeError, ResumedConnection,
};
use ibex_ring::parking::{self, AtSlot, Ticket, WaitSlot, Wakers};
use ibex_transport::{
    connection::{RedialError, Redialed},
    engine::{Admission, Incoming},
    runtime::Runtime,
};

use crate::{
    ConnectError,
    meeting::{
        listener::admission,
        resuming::{self, Resuming},
    },
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

/// Hands the outcomes of a node's dialer out: those of calls to the calls, and those of sessions that
/// resume to `incoming`.
pub(super) fn take_outcomes(
    dialer: &mut Dialer<Owner>,
    resuming: &Resuming,
    incoming: &mut Vec<Incoming>,
    wakers: &mut Wakers,
) {
    while let Some((owner, outcome)) = dialer.poll_outcome() {
        match (owner, outcome) {
            (Owner::Call(call), DialOutcome::Dialed(outcome)) => {
                let outcome = outcome.map(|established| admission(*established, resuming));
                call.answer(outcome.map(Box::new).map_err(ConnectError::from), wakers);
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
    while let Some(unwanted) = dialer.poll_unwanted() {
        admission(unwanted, resuming).abandon();
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
    dialing: Dialing<Owner>,
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
    pub(crate) fn wait(&self, runtime: &Runtime) -> Option<Result<Box<Admission>, ConnectError>> {
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

/// Returns the error of a node that is closed.
pub(crate) fn closed(runtime: &Runtime, address: &str) -> ConnectError {
    let error = DialError::Cancelled {
        address: address.to_owned(),
        waited: std::time::Duration::ZERO,
    };
    closed_by(runtime, address, error.into())
}

/// Tells what has closed the node, if that was not the program.
pub(crate) fn closed_by(runtime: &Runtime, address: &str, error: ConnectError) -> ConnectError {
    match runtime.has_lost_driver() {
        true => ConnectError::lost_runtime(address),
        false => error,
    }
}
