//! The answer of the epoll set: the wires, RDMA ports and listeners that are ready.

use std::{mem::MaybeUninit, os::fd::OwnedFd, slice, time::Duration};

use rustix::{
    event::{
        Timespec,
        epoll::{self, Event, EventData, EventFlags},
    },
    io::Errno,
};

use crate::wire::EpollToken;

/// The readiness of a wire, as epoll reports it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Readiness {
    pub(super) token: u64,
    pub(super) readable: bool,
}

/// A whole answer of epoll. It lies on the stack, so that sleeping allocates nothing.
pub(crate) struct ReadyWires {
    /// The first `count` are written.
    events: [MaybeUninit<Event>; READY_WIRES],
    count: usize,
}

/// Most wires that one call of epoll reports. The others wait for the next call.
const READY_WIRES: usize = 64;

impl ReadyWires {
    /// An answer without readiness, for turns that do not ask epoll.
    pub(crate) const NOTHING: Self = Self {
        events: [MaybeUninit::uninit(); READY_WIRES],
        count: 0,
    };

    pub(crate) fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Adds the connection of a session that a reactor has reported. Returns false if the answer is
    /// full.
    pub(crate) fn add_reported(&mut self, session: u64) -> bool {
        let free = self.events.get_mut(self.count);
        let has_room = free.is_some();
        if let Some(event) = free {
            event.write(Event {
                flags: EventFlags::IN,
                data: EventData::new_u64(EpollToken::Tcp.token(session)),
            });
            self.count += 1;
        }
        has_room
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = Readiness> {
        let written = &self.events[..self.count];
        // SAFETY: a slice of as many events, of the same layout, which are written.
        let written: &[Event] =
            unsafe { slice::from_raw_parts(written.as_ptr().cast(), self.count) };
        written.iter().map(|event| {
            let (flags, data) = (event.flags, event.data);
            let closed = EventFlags::HUP | EventFlags::ERR | EventFlags::RDHUP;
            Readiness {
                token: data.u64(),
                readable: flags.intersects(EventFlags::IN | closed),
            }
        })
    }
}

/// The low bits of an RDMA port's tokens.
pub(super) const PORT_WIRE: u64 = 3;

// Sessions count from 1, so their tokens begin at 4.
pub(super) const TOKEN_BELL: u64 = 0;
pub(super) const TOKEN_CONTROLS: u64 = 1;
pub(super) const TOKEN_ALARM: u64 = 2;

/// The longest sleep. A longer wait wakes up in vain once in a while. epoll_wait(2) counts
/// milliseconds in an `int`, and epoll_pwait2(2), which has no such limit, came with Linux 5.11.
const LONGEST_SLEEP: Duration = Duration::from_secs(3600);
/// Sleeps in the epoll set for up to `timeout`, and replaces `ready` by the readiness that came.
pub(crate) fn sleep(epoll: &OwnedFd, timeout: Option<Duration>, ready: &mut ReadyWires) {
    let timeout = timeout.map(|timeout| {
        let timeout = timeout.min(LONGEST_SLEEP);
        Timespec {
            tv_sec: timeout.as_secs() as i64,
            tv_nsec: timeout.subsec_nanos().into(),
        }
    });
    let mut wait = |timeout| {
        let (events, _) = epoll::wait(epoll, &mut ready.events[..], timeout)?;
        Ok(events.len())
    };
    let waited = match wait(timeout.as_ref()) {
        // A process that was stopped gets EINTR, even if events have come meanwhile; see signal(7).
        Err(Errno::INTR) => wait(Some(&AT_ONCE)),
        waited => waited,
    };
    ready.count = waited.unwrap_or_else(|error| {
        tracing::error!(%error, "epoll_wait failed");
        0
    });
}

const AT_ONCE: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 0,
};

#[cfg(test)]
mod tests {
    use std::{
        io,
        process::{self, Command},
    };

    use rustix::event::epoll::CreateFlags;

    use super::*;

    #[test]
    fn bytes_that_come_while_the_process_is_stopped_are_seen() {
        let (reader, writer) = io::pipe().expect("a pipe");
        let epoll = epoll::create(CreateFlags::CLOEXEC).expect("an epoll set");
        let token = EventData::new_u64(7);
        epoll::add(&epoll, &reader, token, EventFlags::IN).expect("it is watched");
        let mut stops = Command::new("sh");
        stops.args([
            "-c",
            "sleep 0.1; kill -STOP $0; sleep 0.1; echo; kill -CONT $0",
        ]);
        stops.arg(process::id().to_string()).stdout(writer);
        let mut stops = stops.spawn().expect("a shell");
        let mut ready = ReadyWires::NOTHING;
        sleep(&epoll, Some(Duration::from_secs(60)), &mut ready);
        let tokens: Vec<_> = ready.iter().map(|readiness| readiness.token).collect();
        assert_eq!(tokens, [7]);
        assert!(stops.wait().expect("it ran").success());
    }
}
