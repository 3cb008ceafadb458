//! Waiting without a thread: a task leaves its waker, and asks and arms what a thread would
//! before it sleeps.
//!
//! ```text
//!   task is polled                who makes it come true
//!   take back what was left
//!   look: there?
//!   leave the waker; ask; arm     publish
//!   look again: there?            somebody waits? take the wakers; later, wake them
//!     no: pending
//! ```
//!
//! Order and barriers are those of a thread that sleeps (`ring::waiter`), so the same models
//! hold. Several futures of one task may wait at one place, with one waker, and each takes back
//! its own. A waker that was taken is used once; whoever is polled for another reason takes back
//! what it left, and so does a future that is dropped. One that is leaked leaves a waker that
//! is used once, and a question that is answered once.

use std::task::{Poll, Waker};

use super::{
    Abort, RawMessage, ReceiveHandle, RecvError, RecvFailure, SendError, SendFailure, SendHandle,
    WaitAckedError, send_end::Wish,
};
use crate::{
    driver::{Condition, Gathering, Patience, Runtime},
    engine::control::Ask,
    fork,
    ring::Ticket,
};

/// What a task left where it waits. Give it back to the same handle when the task ends.
#[derive(Debug, Default)]
pub struct TaskWait {
    /// Its waker at the end, or wherever it waits.
    ticket: Option<Ticket>,
    /// Its waker at the turnstile, where it wants to send.
    turn: Option<Ticket>,
    /// What the peer was asked by way of its memory (shm).
    pub(super) asked: Option<Wish>,
}

impl TaskWait {
    /// Whether a waker was left that was not taken back. It may have been used.
    pub(super) fn is_left(&self) -> bool {
        self.ticket.is_some()
    }
}

impl ReceiveHandle {
    /// The next message, for a task: pending until there is one, or the end. It is told, once,
    /// if the peer does not open its end for `open_timeout`.
    pub fn poll_receive(
        &mut self,
        wait: &mut TaskWait,
        waker: &Waker,
    ) -> Poll<Result<RawMessage, RecvError>> {
        let polled = self.poll_receive_unwatched(wait, waker);
        if polled.is_pending() {
            self.end().watch_open();
        }
        polled
    }

    /// The same where a peer may never open its end, and nobody has to be told.
    pub fn poll_receive_unwatched(
        &mut self,
        wait: &mut TaskWait,
        waker: &Waker,
    ) -> Poll<Result<RawMessage, RecvError>> {
        if fork::is_child() {
            return Poll::Ready(Err(self.used_after_fork()));
        }
        self.leave(wait);
        if let Some(found) = settled_receive(self.receive(Patience::None)) {
            return Poll::Ready(found);
        }
        self.register(wait, waker);
        match settled_receive(self.receive(Patience::None)) {
            Some(found) => {
                self.leave(wait);
                Poll::Ready(found)
            }
            None => Poll::Pending,
        }
    }

    /// Leaves a waker for the next message, or the end. A look follows.
    pub(super) fn register(&mut self, wait: &mut TaskWait, waker: &Waker) {
        self.end().waiters.renew(&mut wait.ticket, waker);
        self.arm();
    }

    /// Takes back what a task left that waits no more.
    pub fn leave(&mut self, wait: &mut TaskWait) {
        if fork::is_child() {
            // Nobody will use it.
            return *wait = TaskWait::default();
        }
        if self.end().waiters.leave(&mut wait.ticket) {
            self.disarm();
        }
    }
}

fn settled_receive(
    received: Result<RawMessage, RecvFailure>,
) -> Option<Result<RawMessage, RecvError>> {
    match received {
        Ok(message) => Some(Ok(message)),
        Err(RecvFailure::Failed(error)) => Some(Err(error)),
        Err(_) => None,
    }
}

impl SendHandle {
    /// Sends a message, for a task: pending while there is no room for it, or the peer has
    /// not opened its end. `size` and `encode` are as for [`send`](Self::send).
    pub fn poll_send(
        &mut self,
        wait: &mut TaskWait,
        waker: &Waker,
        size: Option<usize>,
        mut encode: impl FnMut(&mut [std::mem::MaybeUninit<u8>]) -> Result<usize, Abort>,
    ) -> Poll<Result<u64, SendError>> {
        if fork::is_child() {
            return Poll::Ready(Err(self.end().used_after_fork()));
        }
        self.leave(wait);
        if let Some(sent) = settled_send(self.send(size, Patience::None, &mut encode)) {
            return Poll::Ready(sent);
        }
        // Another handle may be inside, which no counter tells of.
        self.end().turnstile.waiters.renew(&mut wait.turn, waker);
        self.register_for_room(wait, waker);
        let sent = self.enter(Patience::None).and_then(|entered| {
            // Nobody else is inside, so the task waits for room. Leaving wakes who waits for its
            // turn, and would wake this task.
            entered.end.turnstile.waiters.leave(&mut wait.turn);
            entered.send(size, Patience::None, encode)
        });
        match settled_send(sent) {
            Some(sent) => {
                self.leave(wait);
                Poll::Ready(sent)
            }
            None => {
                // A thread would wake up to tell that it waits for long.
                self.end().session.watch_stalls();
                self.end().watch_open();
                Poll::Pending
            }
        }
    }

    /// Waits until the peer has opened its end, for a task.
    pub fn poll_opened(&self, wait: &mut TaskWait, waker: &Waker) -> Poll<Result<(), SendError>> {
        if fork::is_child() {
            return Poll::Ready(Err(self.end().used_after_fork()));
        }
        self.leave(wait);
        if let Some(opened) = settled_send(self.end().opened(Patience::None)) {
            return Poll::Ready(opened);
        }
        self.register(wait, waker);
        match settled_send(self.end().opened(Patience::None)) {
            Some(opened) => {
                self.leave(wait);
                Poll::Ready(opened)
            }
            None => {
                self.end().watch_open();
                Poll::Pending
            }
        }
    }

    /// Waits until the peer's engine holds message `sequence`, for a task.
    pub fn poll_received(
        &self,
        wait: &mut TaskWait,
        waker: &Waker,
        sequence: u64,
    ) -> Poll<Result<(), WaitAckedError>> {
        if self.is_shm() {
            // Publishing is delivery: it answers at once.
            return Poll::Ready(self.wait_received(sequence, Patience::None));
        }
        let ask = Ask::received(sequence);
        self.poll_news(wait, waker, ask)
    }

    /// Waits until the peer's application has acknowledged message `sequence`, for a task.
    pub fn poll_acked(
        &self,
        wait: &mut TaskWait,
        waker: &Waker,
        sequence: u64,
    ) -> Poll<Result<(), WaitAckedError>> {
        let ask = Ask::acknowledged(sequence);
        self.poll_news(wait, waker, ask)
    }

    fn poll_news(
        &self,
        wait: &mut TaskWait,
        waker: &Waker,
        ask: Ask,
    ) -> Poll<Result<(), WaitAckedError>> {
        if fork::is_child() {
            return Poll::Ready(Err(self.end().used_after_fork().into()));
        }
        self.leave(wait);
        if ask == Ask::default() {
            return Poll::Ready(self.end().check_opened());
        }
        let end = self.end();
        if let Some(answer) = end.look_for(&ask) {
            return Poll::Ready(answer);
        }
        self.register(wait, waker);
        end.ask_for(&ask, &mut wait.asked);
        // Where callers turn the engine the answer may be here already.
        end.session.poll();
        match end.look_for(&ask) {
            Some(answer) => {
                self.leave(wait);
                Poll::Ready(answer)
            }
            None => Poll::Pending,
        }
    }

    /// Leaves a waker for room, or the end, and asks for room. A look follows.
    pub(super) fn register_for_room(&self, wait: &mut TaskWait, waker: &Waker) {
        self.register(wait, waker);
        self.end().ask_for_room(&mut wait.asked);
    }

    /// Leaves a waker for whatever the peer or the engine says. A look follows.
    pub(super) fn register(&self, wait: &mut TaskWait, waker: &Waker) {
        self.end().waiters.renew(&mut wait.ticket, waker);
    }

    /// Takes back what a task left that waits no more.
    pub fn leave(&self, wait: &mut TaskWait) {
        if fork::is_child() {
            // Nobody will use it.
            return *wait = TaskWait::default();
        }
        let end = self.end();
        end.waiters.leave(&mut wait.ticket);
        end.turnstile.waiters.leave(&mut wait.turn);
        if let Some(ours) = end.ours.get() {
            end.asking.give_up(ours, &mut wait.asked);
        }
    }
}

fn settled_send<T>(sent: Result<T, SendFailure>) -> Option<Result<T, SendError>> {
    match sent {
        Ok(done) => Some(Ok(done)),
        Err(SendFailure::Failed(error)) => Some(Err(error)),
        Err(_) => None,
    }
}

impl Runtime {
    /// The next session that a peer dialed, for a task; `None` when the node is closed.
    pub fn poll_accept(
        &self,
        wait: &mut TaskWait,
        waker: &Waker,
    ) -> Poll<Option<std::sync::Arc<crate::driver::SessionShared>>> {
        self.leave_accept(wait);
        let look = || match self.try_accept() {
            Some(session) => Poll::Ready(Some(session)),
            None if self.is_closed() => Poll::Ready(None),
            None => Poll::Pending,
        };
        let found = look();
        if found.is_ready() {
            return found;
        }
        self.accept_waiters().renew(&mut wait.ticket, waker);
        let found = look();
        if found.is_ready() {
            self.leave_accept(wait);
        }
        found
    }

    /// Takes back what a task left that waits no more.
    pub fn leave_accept(&self, wait: &mut TaskWait) {
        if fork::is_child() {
            // Nobody will use it.
            return *wait = TaskWait::default();
        }
        self.accept_waiters().leave(&mut wait.ticket);
    }
}

impl Gathering {
    /// What makes `condition` hold, for a task: pending until a member, a session or the node
    /// tells. Where callers turn the engine it runs a turn when nothing is there.
    pub fn poll_until<C: Condition>(
        &self,
        wait: &mut TaskWait,
        waker: &Waker,
        mut condition: C,
    ) -> Poll<C::Output> {
        self.leave(wait);
        if let Some(found) = condition.look() {
            return Poll::Ready(found);
        }
        self.register(wait, waker);
        self.poll();
        condition.arm();
        match condition.look() {
            Some(found) => {
                self.leave(wait);
                Poll::Ready(found)
            }
            None => Poll::Pending,
        }
    }

    /// Leaves a waker for what members, sessions and the node tell. A look follows.
    pub(super) fn register(&self, wait: &mut TaskWait, waker: &Waker) {
        self.slot().renew(&mut wait.ticket, waker);
    }

    /// Takes back what a task left that waits no more.
    pub fn leave(&self, wait: &mut TaskWait) {
        if fork::is_child() {
            // Nobody will use it.
            return *wait = TaskWait::default();
        }
        self.slot().leave(&mut wait.ticket);
    }
}
