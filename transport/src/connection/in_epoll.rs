//! Membership of a link's socket in the engine's epoll set.
//!
//! Rules:
//!
//! 1. Nobody sleeps in the set, or asks it what there is to do, before every hot link has
//!    joined; cold links are in it always.
//! 2. While turn follows turn and each reads the socket anyway, all that membership does is
//!    make every segment that arrives dearer: by 4 % of a round trip over the loopback
//!    interface. So a link that is polled for long leaves.
//! 3. A connection that has ended under a queue pair parts for good: it would stay readable
//!    for as long as draining takes.

use std::{io, os::fd::OwnedFd};

use rustix::event::epoll::{self, EventData, EventFlags};

use super::{Link, Phase, Wires};
use crate::connection::{EpollToken, Tools};

/// What a link's socket is to the epoll set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Membership {
    /// epoll does not tell of it until it joins.
    Out,
    In,
    /// It will not join any more (rule 3).
    Parted,
}

impl Link {
    /// Has epoll tell of the socket: at once, if there is something to read already.
    pub(crate) fn join_epoll(&mut self, epoll: &OwnedFd) -> io::Result<()> {
        self.busy_turns = 0;
        if self.membership == Membership::Out {
            let (data, flags) = self.interest();
            epoll::add(epoll, &self.tcp, data, flags)?;
            self.membership = Membership::In;
        }
        Ok(())
    }

    fn leave_epoll(&mut self, epoll: &OwnedFd) {
        if self.membership == Membership::In {
            self.membership = Membership::Out;
            let _ = epoll::delete(epoll, &self.tcp);
        }
    }

    /// Leaves for good.
    pub(super) fn part_from_epoll(&mut self, epoll: &OwnedFd) {
        self.leave_epoll(epoll);
        self.membership = Membership::Parted;
    }

    /// Counts a turn that nobody slept before.
    pub(crate) fn stay_awake(&mut self, epoll: &OwnedFd) {
        self.busy_turns = self.busy_turns.saturating_add(1);
        if self.busy_turns == BUSY_TURNS && self.reads_every_turn() {
            self.leave_epoll(epoll);
        }
    }

    /// Whether its data comes over the socket, which is asked for it in every turn.
    #[inline]
    pub(super) fn reads_every_turn(&self) -> bool {
        self.local.is_none() && matches!(self.wires, Wires::Stream(_))
    }

    /// Has epoll tell when the socket takes more, as long as something waits for that.
    #[inline]
    pub(super) fn watch_writable(&mut self, tools: &Tools) {
        let Wires::Stream(stream) = &mut self.wires else {
            return;
        };
        let wants = !stream.is_written() && self.phase != Phase::Gone;
        if wants != stream.waits_for_writable {
            stream.waits_for_writable = wants;
            if self.membership == Membership::In {
                let (data, flags) = self.interest();
                let _ = epoll::modify(&tools.epoll, &self.tcp, data, flags);
            }
        }
    }

    /// Has epoll tell of something else in the socket's place, which has parted: the end of
    /// the peer's process.
    pub(super) fn watch_in_place(&self, instead: &OwnedFd, epoll: &OwnedFd) -> io::Result<()> {
        debug_assert_eq!(self.membership, Membership::Parted);
        let token = EventData::new_u64(EpollToken::Tcp.token(self.shared.id));
        Ok(epoll::add(epoll, instead, token, EventFlags::IN)?)
    }

    fn interest(&self) -> (EventData, EventFlags) {
        let token = EpollToken::Tcp.token(self.shared.id);
        let mut flags = EventFlags::IN | EventFlags::RDHUP;
        if let Wires::Stream(stream) = &self.wires {
            flags.set(EventFlags::OUT, stream.waits_for_writable);
        }
        (EventData::new_u64(token), flags)
    }
}

/// Ends [`watch_in_place`](Link::watch_in_place).
pub(super) fn leave(instead: &OwnedFd, epoll: &OwnedFd) {
    // It fails only for what is not in the set, which is the aim.
    let _ = epoll::delete(epoll, instead);
}

/// Turns without sleep after which the socket leaves the set: leaving and joining cost
/// about 2 us, which is nothing against so many turns.
const BUSY_TURNS: u32 = 1024;
