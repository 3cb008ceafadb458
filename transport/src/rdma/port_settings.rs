//! Settings for the resources that a node reserves on a device port.
#![forbid(unsafe_code)]

use ibex_protocol::{
    credit::{broker::BrokerSettings, reserved_buffer::reserved_buffers},
    framing::LEAST_BUFFER_BYTES,
};
use ibex_verbs::{CompletionPolling, ConnectionSettings, VerbsError};

use super::{arrival_buffers::REPOST_BATCH, rdma_port::SEND_ENTRIES};

/// The settings of an [`RdmaPort`](super::RdmaPort).
///
/// An RDMA port registers, and so locks, `(receive_buffers + held_buffers) * buffer_bytes`, which
/// is 36 MiB by default, and for each session 32 KiB and the rings of its senders.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortSettings {
    /// Buffers posted for arriving frames. Default: 4096. All sessions share them through a
    /// [broker](ibex_protocol::credit::broker). A session with a receive queue of its own takes
    /// `session_credit` of them and some more.
    pub receive_buffers: u32,
    /// Most sessions at a time. Default: 256. For each session one buffer is reserved for credit
    /// messages, and one for its peer while that has no other; a session that this side dialed
    /// counts as two. Each session also takes room for its sends in the completion queue.
    pub max_sessions: u32,
    /// Buffers beyond those posted. Default: 4096. Unreleased messages may hold this many frames
    /// without reducing the number of posted buffers; further frames are copied.
    pub held_buffers: u32,
    /// The length of a buffer, and so of the longest frame. Default: 4608, least: 4096; a multiple
    /// of 64. A frame of one small message takes a whole buffer.
    pub buffer_bytes: u32,
    /// Most buffers that one peer may fill before it receives from this node, while other peers do not
    /// need them. Default: 64, of 4.5 KiB each, which is more than 100 Gb/s can carry in the 20 µs
    /// that an answer takes.
    pub session_credit: u32,
    /// Most outstanding sends of one session. Default: 128.
    pub send_requests: u32,
    /// Length of inline sends to ask the device for, in bytes. Default: 220; the device may give
    /// less.
    pub inline_bytes: u32,
    /// Pieces of one send to ask the device for. Default and maximum: 3; the device may take fewer.
    /// Frames with more pieces than the device takes are copied before they are sent.
    pub send_entries: u32,
    /// The behaviour of queue pairs.
    pub connection: ConnectionSettings,
    /// Grants peers that support it memory to write large messages to, each the memory of its own
    /// messages. A peer whose queue pair is [made](super::RdmaPort::prepare_for) for an untrusted
    /// peer gets none. This is for trusted peers only: the holder of a key can write to the memory
    /// again, while a message is being read and when later messages lie there. Default: false.
    pub grants_memory: bool,
    /// Blocks that peers are granted ahead, each of 64 KiB and a head: 8 for a channel while it
    /// carries messages of medium size, and up to 128 for a session. A message without a block
    /// waits until memory is granted for it. Default: 1024.
    pub eager_blocks: u32,
    /// Writes carry immediate data. Default: the result of a test, which is made if memory is
    /// granted.
    pub immediate: Option<bool>,
    /// Large messages of peers that are granted no memory are read from the peer's memory, and theirs
    /// from this node's, if the devices can. Default: on hardware that passes a test. A peer that
    /// invalidates the window through which it may read can make a kernel with soft-RoCE panic.
    pub reads_large: Option<bool>,
    /// All sessions share one receive queue, if the device supports that. Otherwise each session
    /// has its own, which costs memory. Default: true.
    pub shared_receives: bool,
    /// The way in which completions are polled, without a test that it works. Default: the result
    /// of the [self-test](ibex_verbs::PollingChoice).
    pub completion_polling: Option<CompletionPolling>,
    /// The completion vector of the device, that is, the interrupt that wakes a thread which sleeps
    /// on the completion queue. Default: 0; must be less than the device's number of vectors.
    /// Engine number n uses the n-th vector after this one, modulo the number of vectors.
    pub completion_vector: u32,
    /// The number of the engine that has the RDMA port. Default: 0.
    pub engine: usize,
    /// Asks the device for relaxed ordering of its memory writes on the PCIe bus. Default: false.
    pub relaxed_ordering: bool,
    /// Messages carry the time of their completion, if the device has a clock. Default: false.
    pub completion_times: bool,
}

impl Default for PortSettings {
    fn default() -> Self {
        Self {
            receive_buffers: 4096,
            max_sessions: 256,
            held_buffers: 4096,
            buffer_bytes: 4608,
            session_credit: 64,
            send_requests: 128,
            inline_bytes: 220,
            send_entries: SEND_ENTRIES,
            connection: ConnectionSettings::default(),
            grants_memory: false,
            eager_blocks: 1024,
            immediate: None,
            reads_large: None,
            shared_receives: true,
            completion_polling: None,
            completion_vector: 0,
            engine: 0,
            relaxed_ordering: false,
            completion_times: false,
        }
    }
}

impl PortSettings {
    /// The maximum of `receive_buffers` and of `held_buffers`.
    pub const MOST_BUFFERS: u32 = 1 << 20;

    /// Returns the minimum of `receive_buffers` with the other settings. A shared queue needs the
    /// buffers of each session, those that wait to be posted again, and one to lend. Otherwise the
    /// minimum is the number of buffers of one session.
    #[must_use]
    pub fn least_receive_buffers(&self) -> u32 {
        match self.shared_receives {
            true => {
                let of_each = (RESERVE + SPARE) as u32;
                let of_sessions = self.max_sessions.saturating_mul(of_each);
                of_sessions.saturating_add(REPOST_BATCH + 1)
            }
            false => self.own_buffers(),
        }
    }

    pub(super) fn check(&self) -> Result<(), VerbsError> {
        let wrong = |setting, given: u32, allowed: &str| {
            Err(VerbsError::Setting {
                setting,
                given: given.to_string(),
                allowed: allowed.to_owned(),
            })
        };
        let bytes = self.buffer_bytes;
        if (bytes as usize) < LEAST_BUFFER_BYTES || bytes > 64 << 10 || !bytes.is_multiple_of(64) {
            return wrong("buffer_bytes", bytes, "a multiple of 64 from 4096 to 65536");
        }
        if !(2..=1 << 16).contains(&self.session_credit) {
            return wrong("session_credit", self.session_credit, "2 to 65536");
        }
        if !(1..=1 << 16).contains(&self.max_sessions) {
            return wrong("max_sessions", self.max_sessions, "1 to 65536");
        }
        if self.send_requests < LEAST_SEND_REQUESTS || self.send_requests > 1 << 15 {
            return wrong("send_requests", self.send_requests, "64 to 32768");
        }
        if !(1..=SEND_ENTRIES).contains(&self.send_entries) {
            return wrong("send_entries", self.send_entries, "1 to 3");
        }
        let (least, most) = (self.least_receive_buffers(), Self::MOST_BUFFERS);
        if !(least..=most).contains(&self.receive_buffers) {
            let allowed = match self.shared_receives {
                true => format!("{least} (two for each of max_sessions, and 17) to {most}"),
                false => format!("{least} (session_credit and 18, for one session) to {most}"),
            };
            return wrong("receive_buffers", self.receive_buffers, &allowed);
        }
        if self.held_buffers > most {
            return wrong("held_buffers", self.held_buffers, &format!("0 to {most}"));
        }
        Ok(())
    }

    /// Returns the number of buffers of a session's own receive queue. Up to [`REPOST_BATCH`] of
    /// them may be waiting to be posted again at any time.
    pub(super) fn own_buffers(&self) -> u32 {
        let beside_credit = reserved_buffers(true) as u32 + REPOST_BATCH;
        self.session_credit.saturating_add(beside_credit)
    }

    /// Returns the number of sessions that the receive buffers cover.
    pub(super) fn sessions_covered(&self) -> u32 {
        match self.shared_receives {
            true => self.max_sessions,
            false => (self.receive_buffers / self.own_buffers()).min(self.max_sessions),
        }
    }

    /// Returns the entries of the completion queue: those for all sessions together, and those for
    /// each session. The latter are its sends, the last request of each of its queues, and its own
    /// receives.
    pub(super) fn completions(&self) -> (u32, u32) {
        let sends = self.send_requests + 2;
        match self.shared_receives {
            true => (self.receive_buffers, sends),
            false => (0, sends + self.own_buffers()),
        }
    }

    /// Returns the most receives of a shared queue that may be replaced although the device may
    /// still complete them: half of the spare buffers, and at most the number posted. The queues
    /// have room for that many more.
    pub(super) fn replaceable_buffers(&self) -> u32 {
        match self.shared_receives {
            true => (self.held_buffers / 2).min(self.receive_buffers),
            false => 0,
        }
    }

    /// Returns the settings of the credit that sessions of a shared receive queue share.
    pub(super) fn broker(&self) -> BrokerSettings {
        BrokerSettings {
            capacity: (self.receive_buffers - REPOST_BATCH).into(),
            reserve: RESERVE,
            floor: 0,
            spare: SPARE,
            max_sessions: self.max_sessions.into(),
            grain: 1,
            most: self.session_credit.into(),
        }
    }
}

/// The buffer of each place for a session that credit messages take.
const RESERVE: u64 = 1;
/// The buffer of each place that its session is lent while it has no other, so that it can send
/// whatever others hold.
const SPARE: u64 = 1;

/// Minimum of `send_requests`: a send queue must hold more than one interval between two
/// completions, because it would otherwise wait for a completion that was never requested.
const LEAST_SEND_REQUESTS: u32 = 64;
const _: () = assert!(LEAST_SEND_REQUESTS >= 2 * ibex_protocol::signal_cadence::INTERVAL);
