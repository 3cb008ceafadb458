//! The counters of a session: while it runs, and as users read them.
#![forbid(unsafe_code)]

use std::{sync::atomic::Ordering, time::Duration};

use ibex_base::sync::AtomicU64;

use crate::{counter::Counter, rdma::PortCounts, session::coarse_time::CoarseTime};

/// Makes [`SessionStats`] and the counters that it is a snapshot of, from rows.
///
/// A row of `counted` is counted by the session, one of `others` follows from what is counted, and
/// one of `of_port` is counted by the session's RDMA port for all of its sessions.
macro_rules! counters {
    (
        counted { $($(#[$about:meta])* $counted:ident,)+ }
        others |$counters:ident| { $($(#[$about_other:meta])* $other:ident = $value:expr,)+ }
        of_port { $($(#[$about_port:meta])* $of_port:ident = $of:ident,)+ }
    ) => {
        /// A snapshot of a session's counters.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        #[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
        pub struct SessionStats {
            $($(#[$about])* pub $counted: u64,)+
            /// Total time for which sending waited for credit, without the present wait; accurate to a few
            /// milliseconds for each wait.
            pub credit_stalled: Duration,
            $($(#[$about_other])* pub $other: u64,)+
            $($(#[$about_port])* pub $of_port: u64,)+
        }

        impl SessionStats {
            /// Returns all counts by their names, without `credit_stalled`, which is a time.
            pub fn numbers(&self) -> impl Iterator<Item = (&'static str, u64)> + use<> {
                let own = [
                    $((stringify!($counted), self.$counted),)+
                    $((stringify!($other), self.$other),)+
                ];
                own.into_iter().chain([$((stringify!($of_port), self.$of_port)),+])
            }

            /// Adds the counts of another session, but for those of a device port, which its
            /// sessions share: a sum over sessions would have them several times.
            pub(crate) fn add_own(&mut self, other: &SessionStats) {
                $(self.$counted += other.$counted;)+
                $(self.$other += other.$other;)+
                self.credit_stalled += other.credit_stalled;
            }
        }

        /// Counters of a session. The engine's holder writes them, and any thread reads them; every
        /// thread writes `bells`.
        #[derive(Debug, Default)]
        pub(crate) struct SessionCounters {
            $(pub(crate) $counted: Counter,)+
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
                let $counters = self;
                $(let $counted = self.$counted.get();)+
                SessionStats {
                    $($counted,)+
                    credit_stalled: Duration::from_nanos(self.credit_stalled.get()),
                    $($other: $value,)+
                    $($of_port: rdma_port.$of,)+
                }
            }
        }
    };
}

counters! {
    counted {
        /// Frames written to the socket, or sent over the queue pair. Over shared memory these are
        /// control frames, which carry no messages.
        frames_sent,
        /// Frames received in the same way.
        frames_received,
        /// All bytes written to the socket or queue pair, control included (tcp, verbs). 0 over shared
        /// memory, where `released_bytes` and `large_bytes` of the channels count the bytes that went
        /// through memory.
        bytes_sent,
        /// All bytes received in the same way.
        bytes_received,
        /// Bytes of frames that were encrypted before they were sent, control included. Over shared
        /// memory these are control frames only; over verbs the count is 0.
        #[cfg_attr(feature = "serde", serde(default))]
        bytes_sealed,
        /// Bytes sent over the connection beside shared memory, which carries no message.
        control_bytes_sent,
        /// Bytes received over that connection.
        control_bytes_received,
        /// Message bytes that were copied after they arrived: frames cut by the end of an arrival
        /// block, and small frames of a channel that holds old ones. Over verbs they also include large
        /// messages that came in chunks, and frames that arrived when messages held all
        /// spare receive buffers.
        bytes_copied,
        /// System calls that wrote bytes.
        writes,
        /// System calls that read bytes.
        reads,
        /// System calls that found nothing to read.
        empty_reads,
        /// Times that sending waited for the peer's arrival memory.
        credit_stalls,
        /// Times that sending waited for a place in the send queue (verbs).
        queue_stalls,
        /// Frames sent inline: copied into the request (verbs), or after their head (tcp).
        inline_sends,
        /// Writes into the peer's memory (verbs).
        rdma_writes,
        /// Bytes of those writes.
        rdma_bytes,
        /// Messages of medium size that were written into blocks that the peer had granted ahead
        /// (verbs).
        eager_blocks_sent,
        /// Messages that the peer wrote into blocks of this node, where they are read in place (verbs).
        landed,
        /// Large messages that were written into memory that the peer granted, or that the peer read from
        /// this node's memory (verbs).
        rendezvous_sent,
        /// Large messages that the peer wrote into memory of this node, or that this node read from the
        /// peer's memory. The program reads them in place (verbs).
        rendezvous_received,
        /// Pieces of the peer's large messages that this node read over other device ports than that of
        /// the session's queue pair (verbs).
        rail_reads,
        /// Requests posted to the send queue (verbs).
        work_requests,
        /// Requests that asked for a completion (verbs).
        signaled,
        /// Calls that posted requests (verbs).
        doorbells,
        /// Completions of sends and receives (verbs).
        completions,
        /// Times that this end found damage: the checksums of frames showed that bytes differed from
        /// those that the peer had sent (tcp, and the connection of shm). The bytes were not used, and
        /// the session lost its connection each time.
        checksum_errors,
        /// Times that the peer found damage in bytes that this end had sent, as the peer reported when
        /// the session continued.
        #[cfg_attr(feature = "serde", serde(default))]
        checksum_errors_at_peer,
        /// Times that the session lost its connection.
        suspensions,
        /// Times that the session continued over another connection.
        resumes,
        /// Messages that were sent again after a break, because they had not arrived.
        replayed,
    }
    others |counters| {
        /// Frames that the device read from registered memory (verbs).
        eager_sends = work_requests.saturating_sub(inline_sends + rdma_writes),
        /// Times that the peer process was woken (shm).
        bells = counters.bells.load(Ordering::Relaxed),
    }
    of_port {
        /// Polls for completions, of all sessions of the device port together (verbs).
        polls = polls,
        /// Polls that found nothing (verbs).
        empty_polls = empty_polls,
        /// Asynchronous events of the device, for all sessions of the device port together (verbs); see
        /// [ibv_get_async_event(3)](https://man7.org/linux/man-pages/man3/ibv_get_async_event.3.html).
        device_events = events,
        /// Events that needed no action (verbs). Examples are a connection that was known to be
        /// established, an empty send queue, another path or speed, and a work queue. Unknown events,
        /// and events of objects that are gone or unused here, count too.
        ignored_events = ignored_events,
        /// Completions of queue pairs that were gone, or that belong to no outstanding request, of all
        /// sessions of the device port together (verbs).
        stray_completions = strays,
    }
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
