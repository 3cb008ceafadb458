//! How nodes meet: the listener and the dialer as the engine turns them, and sessions that resume.

pub(crate) mod connector;
pub(crate) mod dialing;
pub(crate) mod listener;
pub(crate) mod resuming;

use std::{mem, os::fd::BorrowedFd, time::Instant};

use ibex_bootstrap::Dialer;
use ibex_ring::parking::Wakers;
use ibex_transport::engine::{ControlSource, Incoming};

use self::{
    dialing::{Owner, take_outcomes},
    listener::PeerListener,
    resuming::Resuming,
};

/// The listener and the dialer of a node, as its engine turns them.
pub(crate) struct NewSessions {
    pub(crate) listener: Option<PeerListener>,
    pub(crate) dialer: Dialer<Owner>,
    pub(crate) resuming: Resuming,
    /// Outcomes that came when the engine could not take them.
    pub(crate) late: Vec<Incoming>,
}

impl ControlSource for NewSessions {
    fn fds(&self) -> Vec<BorrowedFd<'_>> {
        let listener = self.listener.iter();
        let listener = listener.map(|listener| listener.acceptor.as_fd());
        listener.chain([self.dialer.as_fd()]).collect()
    }

    fn turn(&mut self, now: Instant, wakers: &mut Wakers) -> Vec<Incoming> {
        let mut incoming = mem::take(&mut self.late);
        if let Some(listener) = &mut self.listener {
            listener.turn(now, &self.resuming, &mut incoming);
        }
        self.dialer.turn(now);
        take_outcomes(&mut self.dialer, &self.resuming, &mut incoming, wakers);
        incoming.extend(self.resuming.displaced());
        incoming
    }

    fn next_deadline(&self) -> Option<Instant> {
        let listener = self.listener.as_ref();
        let listener = listener.and_then(PeerListener::next_deadline);
        listener
            .into_iter()
            .chain(self.dialer.next_deadline())
            .min()
    }

    fn stop_accepting(&mut self) {
        if let Some(listener) = &mut self.listener {
            listener.close();
        }
    }

    fn close(&mut self, wakers: &mut Wakers) {
        self.stop_accepting();
        self.dialer.close(Instant::now());
        // Sessions that have resumed meanwhile are taken in the next turn.
        take_outcomes(&mut self.dialer, &self.resuming, &mut self.late, wakers);
    }

    fn is_quiet(&self) -> bool {
        self.dialer.is_quiet()
    }
}
