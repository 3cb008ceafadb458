//! The counters of a session, for users.
#![forbid(unsafe_code)]

use std::time::Duration;

/// A snapshot of a session's counters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct SessionStats {
    /// Frames written to the socket, or sent over the queue pair. Over shared memory these are
    /// control frames, which carry no messages.
    pub frames_sent: u64,
    /// Frames received in the same way.
    pub frames_received: u64,
    /// All bytes written to the socket or queue pair, control included (tcp, verbs). 0 over shared
    /// memory, where `released_bytes` and `large_bytes` of the channels count the bytes that went
    /// through memory.
    pub bytes_sent: u64,
    /// All bytes received in the same way.
    pub bytes_received: u64,
    /// Bytes of frames that were encrypted before they were sent, control included. Over shared
    /// memory these are control frames only; over verbs the count is 0.
    #[cfg_attr(feature = "serde", serde(default))]
    pub bytes_sealed: u64,
    /// Bytes sent over the connection beside shared memory, which carries no message.
    pub control_bytes_sent: u64,
    /// Bytes received over that connection.
    pub control_bytes_received: u64,
    /// Message bytes that were copied after they arrived: frames cut by the end of an arrival
    /// block, and small frames of a channel that holds old ones. Over verbs they also include large
    /// messages that came in chunks, and frames that arrived when messages held all
    /// spare receive buffers.
    pub bytes_copied: u64,
    /// System calls that wrote bytes.
    pub writes: u64,
    /// System calls that read bytes.
    pub reads: u64,
    /// System calls that found nothing to read.
    pub empty_reads: u64,
    /// Times that sending waited for the peer's arrival memory.
    pub credit_stalls: u64,
    /// Total time for which sending waited for credit, without the present wait; accurate to a few
    /// milliseconds for each wait.
    pub credit_stalled: Duration,
    /// Times that sending waited for a place in the send queue (verbs).
    pub queue_stalls: u64,
    /// Frames sent inline: copied into the request (verbs), or after their head (tcp).
    pub inline_sends: u64,
    /// Frames that the device read from registered memory (verbs).
    pub eager_sends: u64,
    /// Writes into the peer's memory (verbs).
    pub rdma_writes: u64,
    /// Bytes of those writes.
    pub rdma_bytes: u64,
    /// Messages of medium size that were written into blocks that the peer had granted ahead
    /// (verbs).
    pub eager_blocks_sent: u64,
    /// Messages that the peer wrote into blocks of this node, where they are read in place (verbs).
    pub landed: u64,
    /// Large messages that were written into memory that the peer granted, or that the peer read from
    /// this node's memory (verbs).
    pub rendezvous_sent: u64,
    /// Large messages that the peer wrote into memory of this node, or that this node read from the
    /// peer's memory. The program reads them in place (verbs).
    pub rendezvous_received: u64,
    /// Pieces of the peer's large messages that this node read over other device ports than that of
    /// the session's queue pair (verbs).
    pub rail_reads: u64,
    /// Requests posted to the send queue (verbs).
    pub work_requests: u64,
    /// Requests that asked for a completion (verbs).
    pub signaled: u64,
    /// Calls that posted requests (verbs).
    pub doorbells: u64,
    /// Completions of sends and receives (verbs).
    pub completions: u64,
    /// Polls for completions, of all sessions of the device port together (verbs).
    pub polls: u64,
    /// Polls that found nothing (verbs).
    pub empty_polls: u64,
    /// Asynchronous events of the device, for all sessions of the device port together (verbs); see
    /// [ibv_get_async_event(3)](https://man7.org/linux/man-pages/man3/ibv_get_async_event.3.html).
    pub device_events: u64,
    /// Events that needed no action (verbs). Examples are a connection that was known to be
    /// established, an empty send queue, another path or speed, and a work queue. Unknown events,
    /// and events of objects that are gone or unused here, count too.
    pub ignored_events: u64,
    /// Completions of queue pairs that were gone, or that belong to no outstanding request, of all
    /// sessions of the device port together (verbs).
    pub stray_completions: u64,
    /// Times that the peer process was woken (shm).
    pub bells: u64,
    /// Times that this end found damage: the checksums of frames showed that bytes differed from
    /// those that the peer had sent (tcp, and the connection of shm). The bytes were not used, and
    /// the session lost its connection each time.
    pub checksum_errors: u64,
    /// Times that the peer found damage in bytes that this end had sent, as the peer reported when
    /// the session continued.
    #[cfg_attr(feature = "serde", serde(default))]
    pub checksum_errors_at_peer: u64,
    /// Times that the session lost its connection.
    pub suspensions: u64,
    /// Times that the session continued over another connection.
    pub resumes: u64,
    /// Messages that were sent again after a break, because they had not arrived.
    pub replayed: u64,
}

/// Lists every count but `credit_stalled`: those of the session itself, and those that the sessions
/// of a device port share.
macro_rules! numbers {
    ($($own:ident)*; $($of_port:ident)*) => {
        impl SessionStats {
            /// Returns all counts by their names, without `credit_stalled`, which is a time.
            pub fn numbers(&self) -> impl Iterator<Item = (&'static str, u64)> + use<> {
                // Every field is named, so that none can be forgotten.
                let &Self { $($own,)* $($of_port,)* credit_stalled: _ } = self;
                let own = [$((stringify!($own), $own)),*];
                own.into_iter().chain([$((stringify!($of_port), $of_port)),*])
            }

            /// Adds the counts of another session, but for those of a device port, which its
            /// sessions share: a sum over sessions would have them several times.
            pub(crate) fn add_own(&mut self, other: &SessionStats) {
                $(self.$own += other.$own;)*
                self.credit_stalled += other.credit_stalled;
            }
        }
    };
}

numbers! {
    frames_sent frames_received bytes_sent bytes_sealed bytes_received control_bytes_sent
    control_bytes_received bytes_copied writes reads empty_reads credit_stalls queue_stalls
    inline_sends eager_sends rdma_writes rdma_bytes eager_blocks_sent landed rendezvous_sent
    rendezvous_received rail_reads work_requests signaled doorbells completions bells checksum_errors
    checksum_errors_at_peer suspensions resumes replayed;
    polls empty_polls device_events ignored_events stray_completions
}
