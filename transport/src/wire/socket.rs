//! The connection of a session, and its membership in the engine's epoll set, or in the watch of an
//! executor's reactor.
//!
//! Rules:
//!
//! 1. Every hot session joins the set, or has a watch, before any thread sleeps in the set or asks
//!    it for work. Cold sessions are always in it, or have a watch.
//! 2. While one turn follows another and each reads the socket anyway, membership only makes every
//!    arriving segment more expensive: by 4 % of a round trip over the loopback interface. So a
//!    session that is polled for long leaves the set.
//! 3. A connection that has ended beside a queue pair leaves the set for good, because it would
//!    stay readable as long as draining takes.
//! 4. A reactor reports changes, and only after it was armed again. So a watch is armed before the
//!    socket is read or written, never after. A socket with a watch is read until a read takes all
//!    that it has, and until its end if that was reported.

use std::{
    io, mem,
    net::{Shutdown, TcpStream},
    os::fd::OwnedFd,
};

use rustix::event::epoll::{self, EventData, EventFlags};

use super::{
    EpollToken, Tools,
    reactor::SessionWatch,
    stream::{Unanswered, unanswered},
};

/// The membership of a socket in the epoll set.
enum Membership {
    /// epoll does not report the socket until it joins.
    Out,
    In,
    /// The reactor reports the socket.
    Watched(SessionWatch),
    /// The socket will not join any more (rule 3).
    Parted,
}

/// A session's connection.
pub(crate) struct WireSocket {
    /// Dropped before the connection, as a reactor demands.
    membership: Membership,
    stream: TcpStream,
    session: u64,
    /// There may be bytes to read.
    pub(crate) readable: bool,
    /// There may be bytes, the end, or room for bytes, that a watch does not report again.
    may_have_more: bool,
    /// Turns since a thread last prepared to sleep in the epoll set.
    busy_turns: u32,
    /// The socket accepted less than it was given, and epoll reports when it accepts more.
    waits_for_writable: bool,
}

impl WireSocket {
    /// Takes over the connection of a session. The handshake has set the options that its kind of
    /// socket has, such as `TCP_NODELAY`.
    pub(crate) fn new(stream: TcpStream, session: u64) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        Ok(Self {
            membership: Membership::Out,
            stream,
            session,
            readable: true,
            may_have_more: false,
            busy_turns: 0,
            waits_for_writable: false,
        })
    }

    #[inline]
    pub(crate) fn stream(&self) -> &TcpStream {
        &self.stream
    }

    /// Returns whether nobody reads the connection any more.
    #[cfg(test)]
    pub(crate) fn is_parted(&self) -> bool {
        matches!(self.membership, Membership::Parted)
    }

    /// Returns what the peer's kernel has to answer; `None` if it has every byte.
    pub(crate) fn unanswered(&self) -> Option<Unanswered> {
        unanswered(&self.stream)
    }

    /// Ends both directions.
    pub(crate) fn close(&self) {
        let _ = self.stream.shutdown(Shutdown::Both);
    }

    /// Ends the connection for reading: behind the bytes that have arrived stands its end, which the
    /// kernel reports (`shutdown(2)`, `SHUT_RD`).
    pub(crate) fn end_reading(&self) {
        let _ = self.stream.shutdown(Shutdown::Read);
    }

    /// Joins the epoll set, or the reactor's watch. Either reports the socket at once if there are
    /// bytes to read.
    pub(crate) fn join(&mut self, tools: &Tools) -> io::Result<()> {
        self.busy_turns = 0;
        if !matches!(self.membership, Membership::Out) {
            return Ok(());
        }
        self.membership = if let Some(reactor) = &tools.reactor {
            let watch = reactor.watch(self.session, &self.stream)?;
            // The watch tells of what comes after it was armed.
            watch.report();
            Membership::Watched(watch)
        } else {
            let (data, flags) = self.interest();
            epoll::add(&tools.epoll, &self.stream, data, flags)?;
            Membership::In
        };
        Ok(())
    }

    /// Leaves the set, or the watch, until it joins again.
    pub(crate) fn leave(&mut self, epoll: &OwnedFd) {
        match mem::replace(&mut self.membership, Membership::Out) {
            Membership::In => {
                let _ = epoll::delete(epoll, &self.stream);
            }
            Membership::Parted => self.membership = Membership::Parted,
            Membership::Watched(_) | Membership::Out => {}
        }
    }

    /// Leaves the set for good.
    pub(crate) fn part(&mut self, epoll: &OwnedFd) {
        self.leave(epoll);
        self.membership = Membership::Parted;
    }

    /// Takes in a report of the epoll set or the reactor. The turn that follows reads and writes.
    pub(crate) fn is_reported(&mut self, readable: bool) {
        self.readable |= readable;
        if let Membership::Watched(watch) = &mut self.membership {
            watch.rearm(self.waits_for_writable);
            self.may_have_more = true;
        }
    }

    /// Notes that a read brought bytes, whether the next turn reads again, and whether the read took
    /// all that the socket had.
    #[inline]
    pub(crate) fn has_read(&mut self, reads_again: bool, is_all: bool) {
        let has_ended = matches!(&self.membership, Membership::Watched(watch) if watch.has_ended);
        self.may_have_more = !is_all || has_ended;
        self.readable = reads_again || self.may_be_unread();
    }

    /// Notes that a read found nothing.
    #[inline]
    pub(crate) fn is_drained(&mut self) {
        self.readable = false;
        self.may_have_more = false;
    }

    /// Notes that a turn read nothing and wrote nothing.
    #[inline]
    pub(crate) fn has_not_moved(&mut self) {
        self.may_have_more = false;
    }

    /// Returns whether there may be something that a watch does not report again. Then a turn has to
    /// look before the tasks park.
    #[inline]
    pub(crate) fn may_be_unread(&self) -> bool {
        self.may_have_more && matches!(self.membership, Membership::Watched(_))
    }

    /// Has the next turn read the socket once more if it [may be unread](Self::may_be_unread), and
    /// returns that.
    pub(crate) fn read_before_parking(&mut self) -> bool {
        let may_be_unread = self.may_be_unread();
        self.readable |= may_be_unread;
        may_be_unread
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
            match &self.membership {
                Membership::In => {
                    let (data, flags) = self.interest();
                    let _ = epoll::modify(epoll, &self.stream, data, flags);
                }
                // Rule 4: the socket may accept more already.
                Membership::Watched(watch) if is_wanted => watch.report(),
                _ => {}
            }
        }
    }

    /// Makes epoll report another descriptor, the end of the peer's process, in place of the
    /// socket, which has left the set.
    pub(crate) fn watch_in_place(&self, instead: &OwnedFd, epoll: &OwnedFd) -> io::Result<()> {
        debug_assert!(matches!(self.membership, Membership::Parted));
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

#[cfg(test)]
mod tests {
    use std::{
        net::TcpListener,
        sync::{Arc, atomic::Ordering},
        task::Waker,
    };

    use ibex_base::sync::{AtomicBool, Mutex, lock};
    use ibex_ring::memory::BlockPool;
    use rustix::event::epoll::CreateFlags;

    use super::{
        super::{Reactor, Reports},
        *,
    };

    /// Rule 4: room that came between the write and the question would be reported to nobody.
    #[test]
    fn a_watch_is_armed_before_the_socket_is_used_and_leaves_nothing_unread() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a socket");
        let stream = TcpStream::connect(listener.local_addr().expect("an address"));
        let mut socket = WireSocket::new(stream.expect("a connection"), 7).expect("a socket");
        let (reports, armed) = (
            Arc::<Reports>::default(),
            Arc::<Mutex<Vec<bool>>>::default(),
        );
        let has_ended = Arc::new(AtomicBool::new(false));
        let (arms, ends) = (armed.clone(), has_ended.clone());
        let tools = Tools {
            blocks: BlockPool::default(),
            compact_blocks: BlockPool::default(),
            lists: Default::default(),
            epoll: Arc::new(epoll::create(CreateFlags::CLOEXEC).expect("a descriptor")),
            reactor: Some(Reactor {
                watch: Box::new(move |_, _| {
                    let (arms, ends) = (arms.clone(), ends.clone());
                    Ok(Box::new(move |writable| {
                        lock(&arms).push(writable);
                        ends.load(Ordering::Relaxed)
                    }))
                }),
                reports: reports.clone(),
            }),
            share_is_spent: false,
        };
        let reported = || {
            let mut sessions = Vec::new();
            reports.take(Waker::noop(), |session| {
                sessions.push(session);
                true
            });
            sessions
        };
        let armed = || std::mem::take(&mut *lock(&armed));
        socket.join(&tools).expect("it is watched");
        assert_eq!((armed(), reported()), (vec![false], vec![7]));
        socket.is_reported(true);
        assert_eq!((armed(), reported()), (vec![false], vec![]));
        socket.watch_writable(true, &tools.epoll);
        assert_eq!((armed(), reported()), (vec![], vec![7]));
        socket.is_reported(true);
        assert_eq!((armed(), reported()), (vec![true], vec![]));
        // Turns that do not come to the session change nothing.
        assert!(socket.read_before_parking() && socket.read_before_parking());
        socket.watch_writable(false, &tools.epoll);
        // What a read leaves is read before the tasks park.
        socket.has_read(false, true);
        assert!(!socket.readable && !socket.read_before_parking());
        socket.has_read(false, false);
        assert!(socket.readable && socket.read_before_parking());
        socket.is_drained();
        assert!(!socket.read_before_parking() && !socket.readable);
        socket.has_read(false, false);
        socket.has_not_moved();
        assert!(!socket.read_before_parking());
        // Behind the last bytes is the end.
        has_ended.store(true, Ordering::Relaxed);
        socket.is_reported(true);
        assert_eq!(armed(), [false]);
        socket.has_read(false, true);
        assert!(socket.read_before_parking());
        socket.is_drained();
        socket.leave(&tools.epoll);
        socket.is_reported(true);
        assert_eq!((armed(), reported()), (vec![], vec![]));
    }
}
