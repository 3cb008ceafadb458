//! The choice of the way in which a completion queue is polled, and the self-test that decides it.
//!
//! A device that makes an extended queue may still not support it correctly: soft-RoCE's library
//! before rdma-core 55 finds completions that do not exist when a batch is drained as the manual
//! describes. So before a queue is trusted, a queue pair sends messages to itself, and a small
//! queue of that kind has to report exactly these messages.

use std::fmt;
use std::sync::{Arc, atomic::AtomicU8};
use std::thread;
use std::time::{Duration, Instant};

use crate::{
    AnonymousMemory, CompletionPolling, CompletionQueue, ConnectionSettings, Device, FirstSequence,
    LocalPort, MemoryRegion, Operation, ProtectionDomain, QueuePair, QueuePairBuilder,
    ReceiveRequest, RegionAccess, SendRequest, VerbsError, WorkCompletion, WorkId,
};

/// The choice of a way of polling, with its reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PollingChoice {
    /// The way of polling.
    pub polling: CompletionPolling,
    /// The completions have times.
    pub times: bool,
    /// The reason of the choice.
    pub reason: String,
}

/// The wishes for a completion queue.
#[derive(Clone, Copy, Debug)]
pub struct PollingWish {
    /// Poll this way and no other, without a self-test.
    pub forced: Option<CompletionPolling>,
    /// Give completions times, where the device has a clock.
    pub times: bool,
    /// The device is hardware: only that gains by another way than the plain one.
    pub is_hardware: bool,
}

/// Messages that a queue pair sends to itself, in each of the rounds.
const MESSAGES: u32 = 3;
const ROUNDS: u32 = 3;
/// Looks after each round that have to find nothing.
const EMPTY_POLLS: usize = 4;
/// A device sends to itself within microseconds; one that takes longer has its queue pair
/// elsewhere or broken.
const PATIENCE: Duration = Duration::from_secs(1);

impl PollingChoice {
    /// Decides for queues of a device, by the self-test if nothing else decides.
    ///
    /// The self-test makes a small completion queue and a queue pair at the port that `local`
    /// gives, connects it to itself and sends some messages. The test takes milliseconds, and up to
    /// a second for a queue that loses completions. If the queue fails the test or the test cannot
    /// be made, [`Plain`](CompletionPolling::Plain) is chosen, and the reason says why.
    pub fn make(
        domain: &ProtectionDomain,
        device: &Device,
        local: impl Fn() -> Result<LocalPort, VerbsError>,
        wish: PollingWish,
    ) -> Self {
        let chosen = |polling, times, reason: &str| Self {
            polling,
            times,
            reason: reason.to_owned(),
        };
        if let Some(forced) = wish.forced {
            return chosen(forced, wish.times, "the settings say so");
        }
        if !wish.is_hardware && !wish.times {
            let reason = "a software device only has more calls to make with another";
            return chosen(CompletionPolling::Plain, false, reason);
        }
        let polling = CompletionPolling::Extended;
        let test = |times| {
            let local = local()?;
            let access = [RegionAccess::RECEIVE, RegionAccess::SEND];
            let queue = TestQueue::make(domain, device, &local, polling, times, access);
            queue.and_then(|mut test| test.run(local))
        };
        let mut why = Vec::new();
        for times in [true, false] {
            if times && !wish.times {
                continue;
            }
            match test(times) {
                Ok(()) => {
                    let it = if why.is_empty() { "it" } else { "this" };
                    why.push(format!("{it} passed the self-test"));
                    return chosen(polling, times, &why.join("; "));
                }
                Err(reason) => {
                    let with = if times { " with times" } else { "" };
                    why.push(format!("{polling}{with}: {reason}"));
                }
            }
        }
        chosen(CompletionPolling::Plain, false, &why.join("; "))
    }
}

impl fmt::Display for PollingChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let times = if self.times { " with times" } else { "" };
        write!(f, "{}{times}: {}", self.polling, self.reason)
    }
}

/// The reason why a test of a device failed, or could not be made.
#[derive(Debug)]
pub struct ProbeFailure(String);

impl ProbeFailure {
    pub(crate) fn wrong(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    fn full() -> Self {
        Self::wrong("its queues are full")
    }

    pub(crate) fn refused() -> Self {
        Self::wrong("its queues take no requests")
    }
}

impl fmt::Display for ProbeFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for ProbeFailure {}

impl From<VerbsError> for ProbeFailure {
    fn from(error: VerbsError) -> Self {
        Self::wrong(error.to_string())
    }
}

/// A small queue and a queue pair that is connected to itself.
pub(crate) struct TestQueue {
    // The order of the fields is the order of their drops.
    pub(crate) pair: QueuePair,
    pub(crate) region: Arc<MemoryRegion<AnonymousMemory>>,
    pub(crate) queue: CompletionQueue,
}

impl TestQueue {
    /// Returns a byte of the memory, which the device may write. The offset is inside the memory.
    pub(crate) fn byte(&self, offset: usize) -> &AtomicU8 {
        // SAFETY: the region is longer than any offset here, stays mapped as long as the test lives,
        // and every reference into it is to an atomic.
        unsafe { self.region.base().add(offset).cast().as_ref() }
    }

    /// Makes the queue pair, with these rights of the device to the memory, and of the peer to it.
    pub(crate) fn make(
        domain: &ProtectionDomain,
        device: &Device,
        local: &LocalPort,
        polling: CompletionPolling,
        times: bool,
        [access, remote]: [RegionAccess; 2],
    ) -> Result<Self, ProbeFailure> {
        // The queue has a channel, like the real one.
        let queue = CompletionQueue::of_kind(device, 2 * MESSAGES + 2, 0, polling, times)?;
        let memory = AnonymousMemory::new(4096);
        let memory = memory.map_err(|error| VerbsError::Other(error.into()))?;
        let region = Arc::new(MemoryRegion::register(domain, memory, access)?);
        let builder = QueuePairBuilder::new(domain, &queue)
            .send_requests(MESSAGES)
            .send_entries(1)
            .inline_bytes(0)
            .receives(MESSAGES, 1)
            .pkey_index(local.partition.index)
            .remote_access(remote);
        let pair = builder.build(local.number, ConnectionSettings::default())?;
        Ok(Self {
            pair,
            region,
            queue,
        })
    }

    /// Connects the queue pair to itself.
    pub(crate) fn connect(&mut self, local: LocalPort) -> Result<(), ProbeFailure> {
        let first = FirstSequence::from_random(self.pair.number());
        let endpoint = self.pair.endpoint(first, &local);
        self.pair.connect(first, local, endpoint)?;
        Ok(())
    }

    fn run(&mut self, local: LocalPort) -> Result<(), ProbeFailure> {
        self.connect(local)?;
        for round in 0..ROUNDS {
            self.post(round)?;
            self.check(round)?;
        }
        Ok(())
    }

    /// Posts receives of 64 bytes, and sends a message of another length into each.
    fn post(&mut self, round: u32) -> Result<(), ProbeFailure> {
        for slot in 0..MESSAGES {
            self.post_receive(slot, round)?;
        }
        for slot in 0..MESSAGES {
            let entries = [self.region.entry(1024..1024 + length(slot) as usize)];
            let id = WorkId::new(Operation::Send, slot, round);
            post_send(&mut self.pair, &SendRequest::send(id, &entries).signaled())?;
        }
        Ok(())
    }

    pub(crate) fn post_receive(&mut self, slot: u32, round: u32) -> Result<(), ProbeFailure> {
        let at = 64 * slot as usize;
        let entries = [self.region.entry(at..at + 64)];
        let id = WorkId::new(Operation::Receive, slot, round);
        let mut batch = self.pair.receive_queue().expect("its own").batch();
        batch
            .push(&ReceiveRequest::new(id, &entries))
            .map_err(|_| ProbeFailure::full())?;
        batch.post().map_err(|_| ProbeFailure::refused())?;
        Ok(())
    }

    /// Checks that the queue shows all completions of a round, and nothing else.
    fn check(&mut self, round: u32) -> Result<(), ProbeFailure> {
        let wanted = 2 * MESSAGES as usize;
        let late = |count| format!("{count} of {wanted} completions came");
        let mut seen = self.completions(wanted, late)?;
        for _ in 0..EMPTY_POLLS {
            seen.extend(self.queue.poll(&mut [WorkCompletion::EMPTY; 4])?);
        }
        let mut ids: Vec<_> = seen.iter().map(|one| one.id().to_raw()).collect();
        ids.sort_unstable();
        ids.dedup();
        let are_expected = seen.iter().all(|one| self.is_expected(one, round));
        if !are_expected || seen.len() != wanted || ids.len() != wanted {
            return Err(ProbeFailure::wrong("it showed a completion of no request"));
        }
        self.pair.retire_sends(MESSAGES);
        self.pair.receive_queue().expect("its own").retire(MESSAGES);
        Ok(())
    }

    /// Waits for this many completions at least; `late` tells of a number that is too small.
    pub(crate) fn completions(
        &mut self,
        wanted: usize,
        late: impl FnOnce(usize) -> String,
    ) -> Result<Vec<WorkCompletion>, ProbeFailure> {
        let deadline = Instant::now() + PATIENCE;
        let mut seen = Vec::new();
        while seen.len() < wanted {
            if Instant::now() > deadline {
                return Err(ProbeFailure::wrong(late(seen.len())));
            }
            seen.extend(self.queue.poll(&mut [WorkCompletion::EMPTY; 4])?);
            thread::yield_now();
        }
        Ok(seen)
    }

    fn is_expected(&self, completion: &WorkCompletion, round: u32) -> bool {
        let id = completion.id();
        let bytes_fit = match id.operation() {
            Operation::Receive => completion.received() == Some(length(id.slot())),
            Operation::Send => completion.outcome().is_ok(),
            _ => false,
        };
        id.slot() < MESSAGES
            && id.generation() == round
            && completion.queue_pair() == self.pair.number()
            && bytes_fit
    }
}

pub(crate) fn post_send(
    pair: &mut QueuePair,
    request: &SendRequest<'_, '_>,
) -> Result<(), ProbeFailure> {
    let mut batch = pair.send_batch();
    batch.push(request).map_err(|_| ProbeFailure::full())?;
    batch.post().map_err(|_| ProbeFailure::refused())?;
    Ok(())
}

fn length(slot: u32) -> u32 {
    8 + slot
}
