//! The alarm of an epoll set that a program sleeps on: a timer in the set, so that the set is
//! readable when a time has come, and the program needs no clock of its own.

use std::{
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    time::{Duration, Instant},
};

use rustix::{
    io::{read, retry_on_intr},
    time::{
        Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
        timerfd_settime,
    },
};

/// A timer in an epoll set; see timerfd_create(2).
#[derive(Debug)]
pub(crate) struct Alarm {
    timer: OwnedFd,
    /// The time at which it goes off, unless that has passed.
    set_for: Option<Instant>,
}

impl Alarm {
    pub(crate) fn new() -> io::Result<Self> {
        let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        Ok(Self {
            timer: timerfd_create(TimerfdClockId::Monotonic, flags)?,
            set_for: None,
        })
    }

    /// Sets it for `deadline`, unless it goes off before that anyway: whoever wakes up too early
    /// sets it again, and a deadline that moves with each message costs no system call for each.
    pub(crate) fn set(&mut self, now: Instant, deadline: Option<Instant>) {
        let Some(deadline) = deadline else {
            return;
        };
        if self.set_for.is_some_and(|set_for| set_for <= deadline) {
            return;
        }
        // Zero would disarm it.
        let left = deadline
            .saturating_duration_since(now)
            .clamp(Duration::from_nanos(1), LONGEST);
        let value = Timespec {
            tv_sec: left.as_secs() as i64,
            tv_nsec: left.subsec_nanos().into(),
        };
        let once = Itimerspec {
            it_interval: Timespec::default(),
            it_value: value,
        };
        match timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &once) {
            Ok(_) => self.set_for = Some(now + left),
            Err(error) => tracing::error!(%error, "timerfd_settime failed"),
        }
    }

    /// Takes in that it has gone off.
    pub(crate) fn went_off(&mut self) {
        self.set_for = None;
        // It fails if the timer was set again meanwhile.
        let _ = retry_on_intr(|| read(&self.timer, &mut [0u8; 8]));
    }
}

impl AsFd for Alarm {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.timer.as_fd()
    }
}

/// The longest time that the timer is set for.
const LONGEST: Duration = Duration::from_secs(3600);
