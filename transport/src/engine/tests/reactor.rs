//! A reactor with tokio's rules: edge-triggered, with the readiness of each connection kept until
//! the connection is armed again, and the end of a connection kept for ever.

use std::{
    collections::BTreeMap,
    io,
    os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd},
    sync::Arc,
    task::Waker,
};

use ibex_base::sync::{Mutex, lock};
use rustix::event::{
    Timespec,
    epoll::{self, CreateFlags, Event, EventData, EventFlags},
};

use crate::runtime::Rearm;

/// The reactor of one engine's executor.
#[derive(Clone)]
pub(super) struct TestReactor(Arc<Watched>);

struct Watched {
    set: OwnedFd,
    connections: Mutex<BTreeMap<u64, Readiness>>,
}

struct Readiness {
    waker: Waker,
    ready: EventFlags,
    /// What the waker is to be called for, once.
    armed: EventFlags,
}

impl TestReactor {
    pub(super) fn new() -> Self {
        let set = epoll::create(CreateFlags::CLOEXEC).expect("a descriptor");
        let connections = Mutex::default();
        Self(Arc::new(Watched { set, connections }))
    }

    /// Takes the edges that have come, and calls the wakers that wait for them.
    pub(super) fn drive(&self) {
        let nothing = Event {
            flags: EventFlags::empty(),
            data: EventData::new_u64(0),
        };
        let mut events = [nothing; 64];
        let count = epoll::wait(&self.0.set, &mut events[..], Some(&Timespec::default()));
        for event in &events[..count.expect("the set can be asked")] {
            let (flags, data) = (event.flags, event.data);
            let mut connections = lock(&self.0.connections);
            let Some(connection) = connections.get_mut(&data.u64()) else {
                continue;
            };
            connection.ready |= flags;
            let is_due = connection.armed.intersects(connection.ready);
            let waker = is_due.then(|| connection.waker.clone());
            if is_due {
                connection.armed = EventFlags::empty();
            }
            drop(connections);
            waker.iter().for_each(Waker::wake_by_ref);
        }
    }
}

impl TestReactor {
    pub(super) fn watch(&self, connection: BorrowedFd<'_>, waker: Waker) -> io::Result<Rearm> {
        let mut connections = lock(&self.0.connections);
        let number = connections.last_key_value().map_or(0, |(last, _)| last + 1);
        let flags = INPUT | OUTPUT | EventFlags::ET;
        epoll::add(&self.0.set, connection, EventData::new_u64(number), flags)?;
        let readiness = Readiness {
            waker,
            ready: EventFlags::empty(),
            armed: EventFlags::empty(),
        };
        connections.insert(number, readiness);
        let watch = TestWatch {
            reactor: self.clone(),
            number,
            connection: connection.as_raw_fd(),
        };
        Ok(Box::new(move |writable| watch.rearm(writable)))
    }
}

struct TestWatch {
    reactor: TestReactor,
    number: u64,
    connection: RawFd,
}

impl TestWatch {
    fn rearm(&self, writable: bool) -> bool {
        let mut connections = lock(&self.reactor.0.connections);
        let connection = connections.get_mut(&self.number).expect("it is watched");
        let has_ended = connection.ready.intersects(END);
        connection.ready.remove(EventFlags::IN);
        connection.armed = match has_ended {
            true => EventFlags::empty(),
            false => INPUT,
        };
        if writable {
            connection.armed |= OUTPUT;
            connection.ready.remove(OUTPUT);
        }
        has_ended
    }
}

impl Drop for TestWatch {
    fn drop(&mut self) {
        lock(&self.reactor.0.connections).remove(&self.number);
        // SAFETY: the connection is open until the watch is dropped, as `Watcher` says.
        let connection = unsafe { BorrowedFd::borrow_raw(self.connection) };
        epoll::delete(&self.reactor.0.set, connection).expect("it is watched");
    }
}

const END: EventFlags = EventFlags::RDHUP
    .union(EventFlags::HUP)
    .union(EventFlags::ERR);
const INPUT: EventFlags = EventFlags::IN.union(END);
const OUTPUT: EventFlags = EventFlags::OUT;
