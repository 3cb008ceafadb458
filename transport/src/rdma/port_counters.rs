//! Counters of an RDMA port, for all of its sessions together.
#![forbid(unsafe_code)]

use crate::counter::Counter;

/// Counters of an RDMA port. The engine's holder writes them, and any thread reads them.
#[derive(Debug, Default)]
pub(crate) struct RdmaPortCounters {
    polls: Counter,
    empty_polls: Counter,
    events: Counter,
    ignored_events: Counter,
    strays: Counter,
}

/// Counts of an RDMA port so far.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct PortCounts {
    /// Polls for completions.
    pub(crate) polls: u64,
    /// Polls that found nothing.
    pub(crate) empty_polls: u64,
    /// Asynchronous events of the device.
    pub(crate) events: u64,
    /// Events that needed no action.
    pub(crate) ignored_events: u64,
    /// Completions that belong to no queue pair or request in use.
    pub(crate) strays: u64,
}

impl RdmaPortCounters {
    /// Counts a poll.
    pub(crate) fn polled(&self, found: usize) {
        self.polls.add(1);
        self.empty_polls.add(u64::from(found == 0));
    }

    /// Counts an event of the device, which needed action or not.
    pub(crate) fn said(&self, is_used: bool) {
        self.events.add(1);
        self.ignored_events.add(u64::from(!is_used));
    }

    /// Counts a completion of a queue pair that is gone, or of no request that the queue pair has.
    pub(crate) fn strayed(&self) {
        self.strays.add(1);
    }

    pub(crate) fn counts(&self) -> PortCounts {
        PortCounts {
            polls: self.polls.get(),
            empty_polls: self.empty_polls.get(),
            events: self.events.get(),
            ignored_events: self.ignored_events.get(),
            strays: self.strays.get(),
        }
    }
}
