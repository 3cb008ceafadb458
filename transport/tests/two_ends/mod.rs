//! Two queue pairs of this machine's device, without the engine.

use std::sync::Arc;
use std::time::{Duration, Instant};
use std::{env, thread};

use ibex_verbs::{
    AnonymousMemory, AsyncEvents, CompletionPolling, CompletionQueue, CompletionWait,
    ConnectionSettings, Device, FirstSequence, LocalPort, MemoryRegion, Operation,
    ProtectionDomain, QueuePair, QueuePairBuilder, ReceiveQueue, ReceiveRequest, RegionAccess,
    Teardown, VerbsError, Verdict, WorkCompletion, WorkId,
    discovery::{Choice, Sysfs, Wish, discover},
    provider::{Libibverbs, Provider},
};

/// The time-out of waits. Nothing here takes long, but a guest under emulation may.
pub(crate) const PATIENCE: Duration = Duration::from_secs(120);

/// Returns the device to test on, or `None` if the machine has none and the error says so properly.
pub(crate) fn chosen() -> Option<(Arc<dyn Provider>, Choice)> {
    let wanted = env::var("IBEX_TEST_DEVICE").ok();
    let found = Libibverbs::load().and_then(|library| {
        let provider: Arc<dyn Provider> = Arc::new(library);
        let inventory = discover(&provider, &Sysfs::default())?;
        let first = inventory.devices[0].name.clone();
        let wish = Wish::Device {
            name: wanted.clone().unwrap_or(first),
            port: None,
            gid_index: None,
        };
        let choice = inventory.choose_among(&wish, &[])?;
        Ok((provider, choice))
    });
    match found {
        Ok(found) => Some(found),
        Err(error) => {
            assert_eq!(wanted, None, "{error}");
            assert!(error.is_absence(), "{error}");
            assert!(
                error.to_string().starts_with("RDMA cannot be used"),
                "{error}"
            );
            None
        }
    }
}

/// The settings of both ends.
pub(crate) struct Like {
    pub(crate) shared: bool,
    pub(crate) polling: CompletionPolling,
    pub(crate) connection: ConnectionSettings,
    /// Entries of the completion queue, before the device rounds up.
    pub(crate) completions: u32,
}

impl Default for Like {
    fn default() -> Self {
        Self {
            shared: true,
            polling: CompletionPolling::Plain,
            connection: ConnectionSettings::default(),
            completions: 256,
        }
    }
}

/// A queue pair and all that it needs.
pub(crate) struct End {
    pub(crate) device: Device,
    pub(crate) domain: ProtectionDomain,
    choice: Choice,
    pub(crate) completions: CompletionWait,
    pub(crate) shared: Option<ReceiveQueue>,
    pub(crate) memory: MemoryRegion<AnonymousMemory>,
    pub(crate) pair: QueuePair,
}

impl End {
    pub(crate) fn new(
        provider: &Arc<dyn Provider>,
        choice: &Choice,
        like: &Like,
    ) -> Result<Self, VerbsError> {
        let device = Device::open(provider, &choice.device)?;
        let domain = ProtectionDomain::new(&device)?;
        let queue = CompletionQueue::of_kind(&device, like.completions, 0, like.polling, false)?;
        let completions = CompletionWait::over(queue);
        let mut builder = QueuePairBuilder::new(&domain, completions.queue())
            .send_requests(32)
            .receives(32, 1)
            .remote_access(
                RegionAccess::REMOTE_WRITE
                    .and(RegionAccess::REMOTE_READ)
                    .and(RegionAccess::REMOTE_ATOMIC),
            );
        let shared = match like.shared {
            true => Some(ReceiveQueue::shared(&domain, 64, 1)?),
            false => None,
        };
        if let Some(shared) = &shared {
            builder = builder.shared_receive_queue(shared);
        }
        let memory = AnonymousMemory::new(64 << 10).unwrap();
        Ok(Self {
            pair: builder.build(choice.port, like.connection)?,
            memory: MemoryRegion::register(&domain, memory, RegionAccess::REMOTE_WRITE)?,
            choice: choice.clone(),
            shared,
            completions,
            device,
            domain,
        })
    }

    pub(crate) fn local(&self) -> LocalPort {
        let gid = self.choice.gid.gid;
        LocalPort::with_gid(&self.device, self.choice.port, |entry| entry.gid == gid).unwrap()
    }

    /// Receives of 1 KiB in slots 0 to `count`, in the first half of the memory.
    pub(crate) fn post_receives(&mut self, count: usize) {
        let queue = match &mut self.shared {
            Some(shared) => shared,
            None => self.pair.receive_queue().unwrap(),
        };
        let entries: Vec<_> = (0..count)
            .map(|slot| [self.memory.entry(slot * 1024..(slot + 1) * 1024)])
            .collect();
        let mut batch = queue.batch();
        for (slot, entries) in entries.iter().enumerate() {
            let id = WorkId::new(Operation::Receive, slot as u32, 1);
            batch.push(&ReceiveRequest::new(id, entries)).unwrap();
        }
        assert_eq!(batch.post(), Ok(count as u32));
    }

    /// Sleeps until `count` completions are there.
    pub(crate) fn wait(&mut self, count: usize) -> Vec<WorkCompletion> {
        let deadline = Instant::now() + PATIENCE;
        let mut found = Vec::new();
        while found.len() < count {
            assert!(
                Instant::now() < deadline,
                "{} of {count} completions",
                found.len()
            );
            let mut room = [WorkCompletion::EMPTY; 16];
            let waited = self.completions.wait(&mut room, Some(deadline));
            found.extend_from_slice(waited.unwrap());
        }
        found
    }

    pub(crate) fn receive_queue(&mut self) -> &mut ReceiveQueue {
        match &mut self.shared {
            Some(shared) => shared,
            None => self.pair.receive_queue().unwrap(),
        }
    }
}

/// Returns two ends that are connected to each other.
pub(crate) fn connected(provider: &Arc<dyn Provider>, choice: &Choice, like: &Like) -> (End, End) {
    let mut one = End::new(provider, choice, like).unwrap();
    let mut other = End::new(provider, choice, like).unwrap();
    let (local_one, local_other) = (one.local(), other.local());
    let psn = FirstSequence::from_random(std::process::id().wrapping_mul(0x9e37_79b9));
    let endpoint_one = one.pair.endpoint(psn, &local_one);
    let endpoint_other = other.pair.endpoint(psn, &local_other);
    one.pair.connect(psn, local_one, endpoint_other).unwrap();
    other.pair.connect(psn, local_other, endpoint_one).unwrap();
    (one, other)
}

/// Returns the id of the send in this slot.
pub(crate) fn id(slot: u32) -> WorkId {
    WorkId::new(Operation::Send, slot, 7)
}

/// Drains and destroys the end.
pub(crate) fn tear_down(end: End) {
    let End {
        device,
        domain: _until_the_end,
        mut completions,
        pair,
        ..
    } = end;
    let mut events = AsyncEvents::of(&device).unwrap().unwrap();
    let now = Instant::now();
    let mut teardown = Teardown::begin(pair, 1, now, PATIENCE);
    let verdict = loop {
        let mut room = [WorkCompletion::EMPTY; 16];
        let found = completions.poll(&mut room).unwrap();
        if found.is_empty() {
            teardown.handle_empty_poll();
        }
        for completion in found {
            teardown.handle_completion(completion);
        }
        while let Some(event) = events.take().unwrap() {
            teardown.handle_event(&event);
        }
        match teardown.verdict(Instant::now()) {
            Verdict::Draining => thread::yield_now(),
            verdict => break verdict,
        }
    };
    assert_eq!(verdict, Verdict::Drained);
}
