//! Counters of a session while it runs.
#![forbid(unsafe_code)]

use std::{sync::atomic::Ordering, time::Duration};

use ibex_base::sync::AtomicU64;

use super::SessionStats;
use crate::{counter::Counter, rdma::PortCounts, session::coarse_time::CoarseTime};

/// Makes the counters of a session, which its stats have by the same names.
macro_rules! counters {
    ($($name:ident)*) => {
        /// Counters of a session. The engine's holder writes them, and any thread reads them; every
        /// thread writes `bells`.
        #[derive(Debug, Default)]
        pub(crate) struct SessionCounters {
            $(pub(crate) $name: Counter,)*
            /// Time at which sending began to wait for credit, in coarse nanoseconds; 0 if it does
            /// not wait.
            credit_stalled_since: AtomicU64,
            /// Total time for which sending waited for credit, in coarse nanoseconds.
            credit_stalled: Counter,
            pub(crate) bells: AtomicU64,
        }

        impl SessionCounters {
            /// Returns the counts so far, with those that the RDMA port keeps for all of its
            /// sessions.
            pub(crate) fn snapshot(&self, rdma_port: PortCounts) -> SessionStats {
                let mut stats = SessionStats {
                    $($name: self.$name.get(),)*
                    credit_stalled: Duration::from_nanos(self.credit_stalled.get()),
                    bells: self.bells.load(Ordering::Relaxed),
                    eager_sends: 0,
                    polls: rdma_port.polls,
                    empty_polls: rdma_port.empty_polls,
                    device_events: rdma_port.events,
                    ignored_events: rdma_port.ignored_events,
                    stray_completions: rdma_port.strays,
                };
                let others = stats.inline_sends + stats.rdma_writes;
                stats.eager_sends = stats.work_requests.saturating_sub(others);
                stats
            }
        }
    };
}

counters! {
    frames_sent frames_received bytes_sent bytes_received bytes_sealed control_bytes_sent
    control_bytes_received bytes_copied writes reads empty_reads credit_stalls queue_stalls
    inline_sends rdma_writes rdma_bytes eager_blocks_sent landed rendezvous_sent rendezvous_received
    rail_reads work_requests signaled doorbells completions checksum_errors checksum_errors_at_peer suspensions
    resumes replayed
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
}
