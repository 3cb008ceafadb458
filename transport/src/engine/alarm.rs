//! The alarm of an epoll set that a program sleeps on: a timer in the set. The timer makes the set
//! readable at a deadline, so the program needs no clock of its own.

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

    /// Sets the alarm for `deadline`, unless it goes off earlier anyway. A sleeper that wakes up
    /// too early sets it again. So a deadline that moves with each message does not cost a system
    /// call for each.
    pub(crate) fn set(&mut self, now: Instant, deadline: Option<Instant>) {
        let Some(deadline) = deadline else {
            return;
        };
        if self.set_for.is_some_and(|set_for| set_for <= deadline) {
            return;
        }
        // Zero would disarm the timer; see timerfd_settime(2).
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

    /// Notes that the alarm has gone off.
    pub(crate) fn went_off(&mut self) {
        self.set_for = None;
        // The read fails if the timer was set again meanwhile, which does no harm.
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
