//! The opening of an RDMA port, in two steps that may run on two threads.
//!
//! The first step opens the device and tests how it works, which takes a second if the device does
//! not answer. The second step makes the queues and receive buffers. Memory belongs to the NUMA
//! node of the processor that touches it first, so that step runs on the thread of the engine that
//! polls the queues. It takes milliseconds, mostly for locking the buffers.

use std::sync::{
    Arc, Mutex,
    atomic::{AtomicBool, AtomicU32},
};

use ibex_protocol::transfer::rendezvous::LARGE_PER_CHANNEL;
use ibex_verbs::{
    AsyncEvents, CompletionPolling, CompletionQueue, CompletionWait, Device, MemoryWindow,
    PollingChoice, PollingWish, ProbeFailure, ProtectionDomain, QueuePairBuilder, ReceiveQueue,
    VerbsError, carries_immediate,
    discovery::{Choice, DeviceKind},
    provider::{Provider, WindowKind},
    reads_by_window,
};

use super::{Opened, RAIL_REQUESTS, RdmaPort, SEND_BATCH, Standing, new_number, port_of, refused};
use crate::rdma::{
    arrival_buffers::ArrivalBuffers,
    port_counters::RdmaPortCounters,
    port_queues::{PortQueues, SharedReceives},
    port_settings::PortSettings,
};

/// An open device port that has no queues yet.
#[derive(Debug)]
pub struct PortOpening {
    device: Device,
    domain: ProtectionDomain,
    choice: Choice,
    /// The settings; `shared_receives` is set only if the device supports it.
    settings: PortSettings,

    // Sizes.
    max_sessions: u32,
    completions: u32,
    /// Receive buffers that may be posted in place of lost ones.
    replaceable: u32,

    // Findings about the device.
    polling: PollingChoice,
    has_immediate: bool,
    reads_large: bool,
    windows: usize,
}

impl PortOpening {
    /// Opens the device that [discovery](ibex_verbs::discovery) chose, and tests how it works.
    ///
    /// # Errors
    /// [`VerbsError`] for a setting out of its range, or a limit of the device.
    pub fn begin(
        provider: &Arc<dyn Provider>,
        choice: &Choice,
        mut settings: PortSettings,
    ) -> Result<Self, VerbsError> {
        settings.check()?;
        let device = Device::open(provider, &choice.device)?;
        check_vector(&device, &settings)?;
        let limits = device.attributes();
        if settings.shared_receives && limits.max_shared_receive_queues == 0 {
            settings.shared_receives = false;
            settings.check()?;
        }
        let (for_all, per_session) = settings.completions();
        let completed = limits.max_completions.saturating_sub(for_all) / per_session;
        let covered = settings.sessions_covered();
        let max_sessions = covered.min(limits.max_queue_pairs).min(completed);
        if max_sessions == 0 {
            return Err(VerbsError::Limit {
                device: device.name().to_owned(),
                what: "a completion queue for the receive buffers and one session",
                asked: (for_all + per_session).into(),
                limit: limits.max_completions.into(),
                setting: match settings.shared_receives {
                    true => "receive_buffers or send_requests",
                    false => "session_credit or send_requests",
                },
            });
        }
        let completions = for_all + max_sessions * per_session;
        // If the device's completion queue is short, sessions have priority over replaceable
        // buffers.
        let replaceable = settings
            .replaceable_buffers()
            .min(limits.max_completions.saturating_sub(completions))
            .min(
                limits
                    .max_shared_receive_requests
                    .saturating_sub(settings.receive_buffers),
            );
        // A partition that the port is not in is reported before any object is made.
        device.partition(choice.port, choice.partition_key)?;
        let domain = ProtectionDomain::with_ordering(&device, settings.relaxed_ordering)?;
        let polling = choose_polling(&device, &domain, choice, &settings);
        tracing::info!(device = device.name(), %polling, "completion queue");
        let has_immediate = settings.immediate.unwrap_or_else(|| {
            settings.grants_memory && has_immediate(&device, &domain, choice, polling.polling)
        });
        let reads_large = settings.reads_large.unwrap_or_else(|| {
            choice.kind == DeviceKind::Hardware
                && reads_large(&device, &domain, choice, polling.polling)
        });
        let has_windows = reads_large && MemoryWindow::new(&domain, WindowKind::Two).is_ok();
        let windows = match has_windows {
            true => WINDOWS.min(limits.max_windows as usize),
            false => 0,
        };
        Ok(Self {
            device,
            domain,
            choice: choice.clone(),
            settings,
            max_sessions,
            completions: completions + replaceable,
            replaceable,
            polling,
            has_immediate,
            reads_large,
            windows,
        })
    }

    /// Makes the queues and registers all receive buffers, whose memory the calling thread touches
    /// first. This takes milliseconds, so it must be called between turns.
    ///
    /// # Errors
    /// [`VerbsError`] for a limit of the device, or the limit on locked memory.
    pub fn finish(self) -> Result<Arc<RdmaPort>, VerbsError> {
        let (device, settings) = (&self.device, self.settings);
        let limits = device.attributes();
        let wait = CompletionWait::over(self.completion_queue()?);
        let mut builder = QueuePairBuilder::new(&self.domain, wait.queue())
            .send_requests(settings.send_requests)
            .send_entries(settings.send_entries.min(limits.max_entries).max(1))
            .inline_bytes(settings.inline_bytes)
            .receives(settings.own_buffers(), 1)
            .batch(SEND_BATCH);
        let rail_builder = QueuePairBuilder::new(&self.domain, wait.queue())
            .send_requests(RAIL_REQUESTS)
            .receives(1, 1);
        let mut shared = None;
        if settings.shared_receives {
            let receives = self.shared_receives()?;
            builder = builder.shared_receive_queue(&receives.queue);
            shared = Some(receives);
        }
        let events = AsyncEvents::of(device)?;
        let choice = &self.choice;
        let standing = Standing::of(device, choice.port, choice.partition_key)?;
        #[cfg(test)]
        let arrival_memory = shared.as_ref().map_or(0..0, |shared| {
            let slab = shared.buffers.slab();
            let start = slab.base().addr().get();
            start..start + slab.bytes()
        });
        let queues = PortQueues {
            wait,
            shared,
            events,
        };
        Ok(Arc::new(RdmaPort {
            port: choice.port,
            gid: choice.gid,
            partition_key: choice.partition_key,
            standing: Mutex::new(standing),
            is_lost: AtomicBool::new(false),
            number: new_number(),
            polling: self.polling,
            max_sessions: self.max_sessions,
            sessions: AtomicU32::new(0),
            eager_blocks: AtomicU32::new(0),
            has_immediate: self.has_immediate,
            reads_large: self.reads_large,
            windows: self.windows,
            probe: Mutex::new(None),
            draining_pairs: AtomicU32::new(0),
            has_undrained: AtomicBool::new(false),
            pending_pairs: Arc::default(),
            #[cfg(test)]
            arrival_memory,
            queues: Mutex::new(Some(queues)),
            counters: RdmaPortCounters::default(),
            settings,
            name: device.name().to_owned(),
            max_queue_pairs: limits.max_queue_pairs,
            opened: Mutex::new(Some(Opened {
                builder,
                rail_builder,
                domain: self.domain,
                device: self.device,
            })),
        }))
    }

    fn completion_queue(&self) -> Result<CompletionQueue, VerbsError> {
        let settings = &self.settings;
        let vectors = vectors(&self.device);
        let vector = (settings.completion_vector + settings.engine as u32) % vectors;
        let (kind, times) = (self.polling.polling, self.polling.times);
        CompletionQueue::of_kind(&self.device, self.completions, vector, kind, times)
    }

    /// Makes the receive queue of all sessions, and posts its buffers.
    fn shared_receives(&self) -> Result<SharedReceives, VerbsError> {
        let settings = &self.settings;
        let posted = settings.receive_buffers;
        let queue = ReceiveQueue::shared(&self.domain, posted + self.replaceable, 1)?;
        let buffers = ArrivalBuffers::register(
            &self.domain,
            posted,
            self.replaceable,
            settings.held_buffers,
            settings.buffer_bytes as usize,
        )?;
        let mut receives = SharedReceives::new(queue, buffers, posted);
        receives
            .refill()
            .map_err(|error| refused(self.device.name(), &error))?;
        Ok(receives)
    }
}

/// The windows of a session: enough for two channels that are always busy. The other messages go in
/// chunks.
const WINDOWS: usize = 2 * LARGE_PER_CHANNEL;

/// Returns the number of a device's completion vectors; 1 if the device does not report it.
fn vectors(device: &Device) -> u32 {
    device.attributes().completion_vectors.max(1)
}

fn check_vector(device: &Device, settings: &PortSettings) -> Result<(), VerbsError> {
    let vectors = vectors(device);
    if settings.completion_vector < vectors {
        return Ok(());
    }
    Err(VerbsError::Setting {
        setting: "completion_vector",
        given: settings.completion_vector.to_string(),
        allowed: format!(
            "0 to {}: RDMA device {} has {vectors}",
            vectors - 1,
            device.name()
        ),
    })
}

fn choose_polling(
    device: &Device,
    domain: &ProtectionDomain,
    choice: &Choice,
    settings: &PortSettings,
) -> PollingChoice {
    let wish = PollingWish {
        forced: settings.completion_polling,
        times: settings.completion_times,
        is_hardware: choice.kind == DeviceKind::Hardware,
    };
    let local = || port_of(device, choice);
    PollingChoice::make(domain, device, local, wish)
}

fn has_immediate(
    device: &Device,
    domain: &ProtectionDomain,
    choice: &Choice,
    polling: CompletionPolling,
) -> bool {
    let local = || port_of(device, choice);
    let tested = carries_immediate(domain, device, polling, local);
    has_passed(device, "immediate data", &tested)
}

fn reads_large(
    device: &Device,
    domain: &ProtectionDomain,
    choice: &Choice,
    polling: CompletionPolling,
) -> bool {
    let local = || port_of(device, choice);
    let tested = reads_by_window(domain, device, polling, local);
    has_passed(device, "reads of large messages", &tested)
}

/// Returns whether a device has passed a test of `what`, and logs why not.
fn has_passed(device: &Device, what: &str, tested: &Result<(), ProbeFailure>) -> bool {
    let why_not = tested.as_ref().err().map(ToString::to_string);
    tracing::info!(device = device.name(), why_not, "{what}");
    tested.is_ok()
}
