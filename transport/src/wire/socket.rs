//! The connection of a session, and its membership in the engine's epoll set.
//!
//! Rules:
//!
//! 1. Every hot session joins the set before any thread sleeps in it or asks it for work. Cold
//!    sessions are always in it.
//! 2. While one turn follows another and each reads the socket anyway, membership only makes every
//!    arriving segment more expensive: by 4 % of a round trip over the loopback interface. So a
//!    session that is polled for long leaves the set.
//! 3. A connection that has ended beside a queue pair leaves the set for good, because it would
//!    stay readable as long as draining takes.

use std::{
    io,
    net::{Shutdown, TcpStream},
    os::fd::OwnedFd,
};

use rustix::event::epoll::{self, EventData, EventFlags};

use super::{
    EpollToken,
    stream::{Unanswered, unanswered},
};

/// The membership of a socket in the epoll set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Membership {
    /// epoll does not report the socket until it joins.
    Out,
    In,
    /// The socket will not join any more (rule 3).
    Parted,
}

/// A session's connection.
#[derive(Debug)]
pub(crate) struct WireSocket {
    stream: TcpStream,
    session: u64,
    /// There may be bytes to read.
    pub(crate) readable: bool,
    membership: Membership,
    /// Turns since a thread last prepared to sleep in the epoll set.
    busy_turns: u32,
    /// The socket accepted less than it was given, and epoll reports when it accepts more.
    waits_for_writable: bool,
}

impl WireSocket {
    /// Takes over the connection of a session.
    pub(crate) fn new(stream: TcpStream, session: u64) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        stream.set_nodelay(true)?;
        Ok(Self {
            stream,
            session,
            readable: true,
            membership: Membership::Out,
            busy_turns: 0,
            waits_for_writable: false,
        })
    }

    #[inline]
    pub(crate) fn stream(&self) -> &TcpStream {
        &self.stream
    }

    /// Returns for how long the peer's kernel has not answered; `None` if it owes no answer.
    pub(crate) fn unanswered(&self) -> Option<Unanswered> {
        unanswered(&self.stream)
    }

    /// Ends both directions.
    pub(crate) fn close(&self) {
        let _ = self.stream.shutdown(Shutdown::Both);
    }

    /// Joins the epoll set, which reports the socket at once if there are bytes to read.
    pub(crate) fn join(&mut self, epoll: &OwnedFd) -> io::Result<()> {
        self.busy_turns = 0;
        if self.membership == Membership::Out {
            let (data, flags) = self.interest();
            epoll::add(epoll, &self.stream, data, flags)?;
            self.membership = Membership::In;
        }
        Ok(())
    }

    fn leave(&mut self, epoll: &OwnedFd) {
        if self.membership == Membership::In {
            self.membership = Membership::Out;
            let _ = epoll::delete(epoll, &self.stream);
        }
    }

    /// Leaves the set for good.
    pub(crate) fn part(&mut self, epoll: &OwnedFd) {
        self.leave(epoll);
        self.membership = Membership::Parted;
    }

    /// Counts a turn before which no thread slept.
    #[inline]
    pub(crate) fn stay_awake(&mut self, reads_every_turn: bool, epoll: &OwnedFd) {
        self.busy_turns = self.busy_turns.saturating_add(1);
        if self.busy_turns == BUSY_TURNS && reads_every_turn {
            self.leave(epoll);
        }
    }

    /// Makes epoll report when the socket accepts more, as long as data waits for that.
    #[inline]
    pub(crate) fn watch_writable(&mut self, is_wanted: bool, epoll: &OwnedFd) {
        if is_wanted != self.waits_for_writable {
            self.waits_for_writable = is_wanted;
            if self.membership == Membership::In {
                let (data, flags) = self.interest();
                let _ = epoll::modify(epoll, &self.stream, data, flags);
            }
        }
    }

    /// Makes epoll report another descriptor, the end of the peer's process, in place of the
    /// socket, which has left the set.
    pub(crate) fn watch_in_place(&self, instead: &OwnedFd, epoll: &OwnedFd) -> io::Result<()> {
        debug_assert_eq!(self.membership, Membership::Parted);
        let token = EventData::new_u64(EpollToken::Tcp.token(self.session));
        Ok(epoll::add(epoll, instead, token, EventFlags::IN)?)
    }

    /// Ends [`watch_in_place`](Self::watch_in_place).
    pub(crate) fn stop_watching(instead: &OwnedFd, epoll: &OwnedFd) {
        // This fails only if the descriptor is not in the set, which is the aim.
        let _ = epoll::delete(epoll, instead);
    }

    fn interest(&self) -> (EventData, EventFlags) {
        let token = EpollToken::Tcp.token(self.session);
        let mut flags = EventFlags::IN | EventFlags::RDHUP;
        flags.set(EventFlags::OUT, self.waits_for_writable);
        (EventData::new_u64(token), flags)
    }
}

/// Turns without sleep after which the socket leaves the set. Leaving and joining cost about 2 us,
/// which is negligible against that many turns.
const BUSY_TURNS: u32 = 1024;
