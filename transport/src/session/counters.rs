//! Counters of a session while it runs.
#![forbid(unsafe_code)]

use std::{sync::atomic::Ordering, time::Duration};

use ibex_base::sync::AtomicU64;

use super::SessionStats;
use crate::{counter::Counter, rdma::PortCounts, session::coarse_time::CoarseTime};

/// Counters of a session. The engine's holder writes them, and any thread reads them; every thread
/// writes `bells`.
#[derive(Debug, Default)]
pub(crate) struct SessionCounters {
    pub(crate) frames_sent: Counter,
    pub(crate) frames_received: Counter,
    pub(crate) bytes_sent: Counter,
    pub(crate) bytes_received: Counter,
    pub(crate) bytes_sealed: Counter,
    pub(crate) control_bytes_sent: Counter,
    pub(crate) control_bytes_received: Counter,
    pub(crate) bytes_copied: Counter,
    pub(crate) writes: Counter,
    pub(crate) reads: Counter,
    pub(crate) empty_reads: Counter,
    pub(crate) credit_stalls: Counter,
    /// Time at which sending began to wait for credit, in coarse nanoseconds; 0 if it does not
    /// wait.
    credit_stalled_since: AtomicU64,
    /// Total time for which sending waited for credit, in coarse nanoseconds.
    credit_stalled: Counter,
    pub(crate) queue_stalls: Counter,
    pub(crate) inline_sends: Counter,
    pub(crate) rdma_writes: Counter,
    pub(crate) rdma_bytes: Counter,
    pub(crate) landings_sent: Counter,
    pub(crate) landed: Counter,
    pub(crate) rendezvous_sent: Counter,
    pub(crate) rendezvous_received: Counter,
    pub(crate) work_requests: Counter,
    pub(crate) signaled: Counter,
    pub(crate) doorbells: Counter,
    pub(crate) completions: Counter,
    pub(crate) checksum_errors: Counter,
    pub(crate) checksum_errors_at_peer: Counter,
    pub(crate) suspensions: Counter,
    pub(crate) resumes: Counter,
    pub(crate) replayed: Counter,
    pub(crate) bells: AtomicU64,
}

impl SessionCounters {
    /// Notes that sending begins to wait for credit.
    #[cold]
    pub(crate) fn credit_is_out(&self) {
        self.credit_stalls.add(1);
        let now = CoarseTime::now().nanoseconds();
        self.credit_stalled_since.store(now, Ordering::Relaxed);
    }

    /// Notes that sending does not wait for credit any more.
    #[inline]
    pub(crate) fn credit_is_there(&self) {
        let since = self.credit_stalled_since.load(Ordering::Relaxed);
        if since != 0 {
            self.credit_came(since);
        }
    }

    #[cold]
    fn credit_came(&self, since: u64) {
        self.credit_stalled_since.store(0, Ordering::Relaxed);
        let waited = CoarseTime::now().nanoseconds().saturating_sub(since);
        self.credit_stalled.add(waited);
    }

    /// Returns for how long sending has waited for credit so far, the present wait included.
    pub(crate) fn credit_stalled(&self) -> Duration {
        let present = match self.credit_stalled_since.load(Ordering::Relaxed) {
            0 => 0,
            since => CoarseTime::now().nanoseconds().saturating_sub(since),
        };
        Duration::from_nanos(self.credit_stalled.get() + present)
    }

    /// Returns the counts so far, with those that the RDMA port keeps for all of its sessions.
    pub(crate) fn snapshot(&self, rdma_port: PortCounts) -> SessionStats {
        let inline_sends = self.inline_sends.get();
        let rdma_writes = self.rdma_writes.get();
        let work_requests = self.work_requests.get();
        SessionStats {
            frames_sent: self.frames_sent.get(),
            frames_received: self.frames_received.get(),
            bytes_sent: self.bytes_sent.get(),
            bytes_sealed: self.bytes_sealed.get(),
            control_bytes_sent: self.control_bytes_sent.get(),
            control_bytes_received: self.control_bytes_received.get(),
            bytes_received: self.bytes_received.get(),
            bytes_copied: self.bytes_copied.get(),
            writes: self.writes.get(),
            reads: self.reads.get(),
            empty_reads: self.empty_reads.get(),
            credit_stalls: self.credit_stalls.get(),
            credit_stalled: Duration::from_nanos(self.credit_stalled.get()),
            queue_stalls: self.queue_stalls.get(),
            inline_sends,
            eager_sends: work_requests.saturating_sub(inline_sends + rdma_writes),
            rdma_writes,
            rdma_bytes: self.rdma_bytes.get(),
            landings_sent: self.landings_sent.get(),
            landed: self.landed.get(),
            rendezvous_sent: self.rendezvous_sent.get(),
            rendezvous_received: self.rendezvous_received.get(),
            work_requests,
            signaled: self.signaled.get(),
            doorbells: self.doorbells.get(),
            completions: self.completions.get(),
            polls: rdma_port.polls,
            empty_polls: rdma_port.empty_polls,
            device_events: rdma_port.events,
            ignored_events: rdma_port.ignored_events,
            stray_completions: rdma_port.strays,
            bells: self.bells.load(Ordering::Relaxed),
            checksum_errors: self.checksum_errors.get(),
            checksum_errors_at_peer: self.checksum_errors_at_peer.get(),
            suspensions: self.suspensions.get(),
            resumes: self.resumes.get(),
            replayed: self.replayed.get(),
        }
    }
}
