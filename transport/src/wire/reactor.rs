//! The reactor of the executor whose tasks drive a node. It watches the connections of sessions in
//! place of the engine's epoll set, which the reactor would only watch in turn: with both, each
//! arrival passes two sets, and each is asked.

use std::{
    collections::VecDeque,
    io, mem,
    os::fd::{AsFd, BorrowedFd},
    sync::Arc,
    task::{Wake, Waker},
};

use ibex_base::{
    fork,
    sync::{Mutex, lock},
};

/// Has the reactor of an executor watch a connection until the returned [`Rearm`] is dropped, which
/// is before the connection is closed. Fails as epoll_ctl(2) does, and if the reactor was shut down.
///
/// The waker is called as [`Rearm`] says, and not before the first call of that.
pub type Watcher = Box<dyn Fn(BorrowedFd<'_>, Waker) -> io::Result<Rearm> + Send>;

/// Forgets the readiness that was reported, and has the waker called once when bytes arrive from
/// now on, or the connection ends. With `true`, also once when the socket takes more bytes. It may
/// be called at once instead, and more often. Returns whether the end of the connection was reported, after which the waker may not be called any more.
///
/// The caller then reads the socket, and writes to it, until it has nothing more, or calls again.
pub type Rearm = Box<dyn FnMut(bool) -> bool + Send>;

/// A reactor, and the place where its reports come in.
pub(crate) struct Reactor {
    pub(crate) watch: Watcher,
    pub(crate) reports: Arc<Reports>,
}

impl Reactor {
    /// Watches the connection of a session.
    pub(super) fn watch(&self, session: u64, connection: &impl AsFd) -> io::Result<SessionWatch> {
        let reports = self.reports.clone();
        let report = Waker::from(Arc::new(Report { reports, session }));
        let rearm = Some((self.watch)(connection.as_fd(), report.clone())?);
        let mut watch = SessionWatch {
            rearm,
            report,
            has_ended: false,
        };
        watch.rearm(false);
        Ok(watch)
    }
}

/// The watch over the connection of a session, until dropped.
pub(super) struct SessionWatch {
    /// There until this is dropped.
    rearm: Option<Rearm>,
    report: Waker,
    /// The reactor has reported the end of the connection. Bytes may come before it.
    pub(super) has_ended: bool,
}

impl SessionWatch {
    pub(super) fn rearm(&mut self, writable: bool) {
        self.has_ended = self.rearm.as_mut().is_some_and(|rearm| rearm(writable));
    }

    /// Reports the connection as if the reactor had.
    pub(super) fn report(&self) {
        self.report.wake_by_ref();
    }
}

impl Drop for SessionWatch {
    fn drop(&mut self) {
        // A fork of the process shares the reactor's epoll set with its parent, whose sessions live.
        if fork::is_child() {
            mem::forget(self.rearm.take());
        }
    }
}

/// The sessions whose connections a reactor has reported, and the task that turns them.
#[derive(Default)]
pub(crate) struct Reports(Mutex<Reported>);

#[derive(Default)]
struct Reported {
    /// Each some times at most: a watch reports each direction once until it is armed again, and a
    /// session reports itself when it begins to wait for room.
    sessions: VecDeque<u64>,
    driving_task: Option<Waker>,
}

impl Reports {
    /// Hands `take` the sessions that were reported, until it refuses one. The next report wakes
    /// the task of `waker`.
    pub(crate) fn take(&self, waker: &Waker, mut take: impl FnMut(u64) -> bool) {
        let mut reported = lock(&self.0);
        match &mut reported.driving_task {
            Some(known) => known.clone_from(waker),
            none => *none = Some(waker.clone()),
        }
        while let Some(&session) = reported.sessions.front()
            && take(session)
        {
            reported.sessions.pop_front();
        }
    }
}

/// The waker by which a reactor reports the connection of a session.
struct Report {
    reports: Arc<Reports>,
    session: u64,
}

impl Wake for Report {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        let mut reported = lock(&self.reports.0);
        reported.sessions.push_back(self.session);
        let waker = reported.driving_task.clone();
        drop(reported);
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}
