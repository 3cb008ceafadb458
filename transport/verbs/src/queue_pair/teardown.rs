//! The end of a queue pair: ERR, drain, destroy.
//!
//! [`Teardown`] is pure except for the queue pair that it owns: completions, events and the time
//! come in, and it tells when the queue pair may be dropped. After that no completion of the queue
//! pair comes any more, its memory may be used again, and its number may come back.
//!
//! No single sign of "drained" works everywhere. A last request posted behind all others is flushed
//! last, which shows that the send queue, or the pair's own receive queue, is drained. For a shared
//! receive queue, the sign is `LAST_WQE_REACHED` and then one empty poll. But soft-RoCE flushes a
//! late receive only with the next activity, and devices have been seen to lose either sign
//! (spdk/spdk#1697, ceph/ceph#25447), so a time limit decides in the end.
#![forbid(unsafe_code)]

use std::time::{Duration, Instant};

use super::{AnyPair, Queue};
use crate::{AsyncEvent, QueuePair, QueuePairEvent, WorkCompletion, WorkId};

/// The time to wait for a queue pair to be drained, unless told otherwise. Flushing takes
/// microseconds; a device that has reported nothing for this long will not report anything.
pub const DEFAULT_DRAIN_TIMEOUT: Duration = Duration::from_secs(1);

/// A queue pair on its way out.
#[derive(Debug)]
pub struct Teardown {
    pair: AnyPair,
    generation: u32,
    deadline: Instant,
    /// The reason why no event will tell that the queue pair is drained.
    blind: Option<String>,
    sends_drained: bool,
    receives: ReceivesDrained,
}

/// The progress of the receives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ReceivesDrained {
    /// Receives may still complete.
    No,
    /// No more receives are taken from the shared queue; completions may still lie in the
    /// completion queue.
    LastReached,
    /// No receive will complete any more.
    Yes,
}

/// The next step for a queue pair that is on its way out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Go on polling.
    Draining,
    /// Every request has completed: drop the queue pair.
    Drained,
    /// The queue pair is not drained, and waiting longer does not help: drop it. Receives of a
    /// shared queue that were not seen again are replaced later.
    GaveUp(String),
}

impl Teardown {
    /// Moves a queue pair to ERR, so that its requests are flushed.
    ///
    /// See [`ibv_modify_qp(3)`](https://man7.org/linux/man-pages/man3/ibv_modify_qp.3.html).
    ///
    /// `generation` tells this teardown's last requests from those of an earlier queue
    /// pair with the same number.
    #[must_use]
    pub fn begin<K>(pair: QueuePair<K>, generation: u32, now: Instant, timeout: Duration) -> Self {
        let mut pair = pair.any;
        let generation = generation & WorkId::GENERATION_MASK;
        let begun = pair
            .fail()
            .map_err(|error| error.to_string())
            .and_then(|()| {
                let posted = pair.post_drain(generation);
                posted.map_err(|error| error.to_string())
            });
        let (blind, sends_drained) = match begun {
            Ok(is_awaited) => (None, !is_awaited),
            Err(reason) => (Some(reason), false),
        };
        let receives = match pair.receives() {
            true => ReceivesDrained::No,
            false => ReceivesDrained::Yes,
        };
        Self {
            pair,
            generation,
            deadline: now + timeout,
            blind,
            sends_drained,
            receives,
        }
    }

    /// The queue pair's number.
    #[must_use]
    pub fn queue_pair(&self) -> u32 {
        self.pair.state.number
    }

    /// Returns when to ask for a verdict at the latest.
    #[must_use]
    pub fn deadline(&self) -> Instant {
        self.deadline
    }

    /// Takes notice of a completion. Returns true if it is one of the last requests, which only the
    /// teardown handles. Handle all others as usual.
    pub fn handle_completion(&mut self, completion: &WorkCompletion) -> bool {
        let id = completion.id();
        if id == self.pair.drain_id(Queue::Send, self.generation) {
            self.sends_drained = true;
        } else if id == self.pair.drain_id(Queue::Receive, self.generation) {
            self.receives = ReceivesDrained::Yes;
        } else {
            return false;
        }
        true
    }

    /// Takes notice of an asynchronous event. Returns true if it is the event that the teardown
    /// waits for.
    pub fn handle_event(&mut self, event: &AsyncEvent) -> bool {
        let last =
            AsyncEvent::QueuePair(self.pair.state.number, QueuePairEvent::LastRequestReached);
        let is_awaited = *event == last && self.receives == ReceivesDrained::No;
        if is_awaited {
            self.receives = ReceivesDrained::LastReached;
        }
        is_awaited
    }

    /// Takes notice that a poll of the completion queue found nothing. Returns true if the teardown
    /// waited for that.
    pub fn handle_empty_poll(&mut self) -> bool {
        let is_awaited = self.receives == ReceivesDrained::LastReached;
        if is_awaited {
            self.receives = ReceivesDrained::Yes;
        }
        is_awaited
    }

    /// Returns the next step.
    #[must_use]
    pub fn verdict(&self, now: Instant) -> Verdict {
        if let Some(reason) = &self.blind {
            return Verdict::GaveUp(reason.clone());
        }
        let receives = self.receives == ReceivesDrained::Yes;
        if self.sends_drained && receives {
            return Verdict::Drained;
        }
        if now < self.deadline {
            return Verdict::Draining;
        }
        Verdict::GaveUp(format!(
            "queue pair {:#x} was not drained in time: last request {}, receives {}",
            self.pair.state.number,
            seen(self.sends_drained),
            seen(receives)
        ))
    }
}

fn seen(seen: bool) -> &'static str {
    if seen { "seen" } else { "not seen" }
}
