//! An RDMA port: the objects of one engine on one device port.
//!
//! An RDMA port has one protection domain, one completion queue with its channel, the receive
//! buffers, and one receive queue for all sessions (or one for each, if a device cannot share one).
//! Engines share no objects of a device: each opens the device for itself. Queue pairs are prepared
//! on any thread, while the engine that owns the RDMA port polls for the live ones.
//!
//! Its sizes follow from the settings, so that nothing can overflow: the completion queue holds the
//! completions of all possible sends and receives, and a session whose credit the receive buffers
//! do not cover is refused.

use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use ibex_base::sync::lock;
use ibex_protocol::credit::broker::CreditBroker;
use ibex_verbs::{
    Device, FirstSequence, GidEntry, LocalPort, PartitionKey, PollingChoice, PortState, PostError,
    ProtectionDomain, QueuePairBuilder, RegionAccess, VerbsError, discovery::Choice,
    provider::Provider,
};

mod memory;
mod opening;
mod session_permit;
mod standing;

pub use opening::PortOpening;
pub(crate) use session_permit::{DrainGuard, SessionPermit};
pub(crate) use standing::PortStanding;

use standing::Standing;

use super::{
    pending_pairs::PendingPairs,
    port_counters::{PortCounts, RdmaPortCounters},
    port_error::PortError,
    port_queues::PortQueues,
    port_settings::PortSettings,
    prepared_pair::PreparedPair,
    prepared_rail::{PreparedRail, ProbeMemory},
};

/// An engine's objects on one device port.
#[derive(Debug)]
pub struct RdmaPort {
    // The device.
    name: String,
    max_queue_pairs: u32,
    /// `None` once the device is closed, on whichever thread.
    opened: Mutex<Option<Opened>>,
    port: u8,
    gid: GidEntry,
    /// The partition of the RDMA port's queue pairs; `None` means that of the port's first key.
    partition_key: Option<PartitionKey>,
    /// The identifiers by which the RDMA port's sessions are reached and which the port can change.
    standing: Mutex<Standing>,
    /// True once the device, and so every object on it, has stopped working.
    is_lost: AtomicBool,
    /// The number under which memory is registered for this RDMA port.
    number: u64,
    polling: PollingChoice,

    // Settings and state of sessions.
    /// The settings; `shared_receives` is set only if the device supports it.
    settings: PortSettings,
    max_sessions: u32,
    sessions: AtomicU32,
    /// eager blocks that are granted or being read.
    pub(super) eager_blocks: AtomicU32,
    /// Writes of this RDMA port can carry immediate data.
    has_immediate: bool,
    /// Large messages are read, where the peer offers its memory.
    reads_large: bool,
    /// Windows of a session, through which its peer may read large messages.
    windows: usize,
    /// The memory by which rails are tested, once there is one.
    probe: Mutex<Option<Arc<ProbeMemory>>>,
    /// Queue pairs that wait for their last completion.
    draining_pairs: AtomicU32,
    /// True if a destroyed queue pair may have kept some of the shared receives.
    has_undrained: AtomicBool,
    /// Queue pairs that have no session yet.
    pending_pairs: Arc<PendingPairs>,

    /// The addresses of the shared receive buffers; empty if there are none.
    #[cfg(test)]
    arrival_memory: std::ops::Range<usize>,
    /// The queues that an engine polls, until an engine takes them over.
    queues: Mutex<Option<PortQueues>>,
    pub(crate) counters: RdmaPortCounters,
}

/// The objects that keep the device open.
#[derive(Clone, Debug)]
struct Opened {
    // Fields in drop order.
    builder: QueuePairBuilder,
    /// For rails, which post no receives.
    rail_builder: QueuePairBuilder,
    domain: ProtectionDomain,
    device: Device,
}

/// Pieces of one send: a head, and records that may lie over a ring's seam. If a device takes fewer
/// pieces, the bytes are first copied together.
pub(crate) const SEND_ENTRIES: u32 = 3;
/// Most reads of a session that are under way at a time, and most of the peer's: one that moves, and
/// those behind it, so that the wire never waits for this end.
pub(crate) const READS: u8 = 3;
/// Most requests of a rail that are under way: its test, its reads, and requests to bind and to
/// invalidate each of its windows.
pub(crate) const RAIL_REQUESTS: u32 = 16;
/// Most sends that are posted with one doorbell.
pub(crate) const SEND_BATCH: usize = 32;

impl RdmaPort {
    /// Opens a device port, as [discovery](ibex_verbs::discovery) chose it, on the calling thread.
    ///
    /// # Errors
    /// As those of [`PortOpening`].
    pub fn open(
        provider: &Arc<dyn Provider>,
        choice: &Choice,
        settings: PortSettings,
    ) -> Result<Arc<Self>, VerbsError> {
        PortOpening::begin(provider, choice, settings)?.finish()
    }

    /// Returns the objects that keep the device open.
    fn opened(&self) -> Result<Opened, VerbsError> {
        let opened = lock(&self.opened);
        opened.clone().ok_or_else(|| VerbsError::Closed {
            device: self.name.clone(),
        })
    }

    /// Closes the device: first its queues, then the registrations, even of memory that handles
    /// still have. Queue pairs that have no session yet keep the device open until they are gone.
    pub(crate) fn close(&self, queues: PortQueues) {
        let opened = self.opened.lock();
        let opened = opened.unwrap_or_else(PoisonError::into_inner).take();
        if let Some(Opened {
            builder,
            rail_builder,
            domain,
            device,
        }) = opened
        {
            drop((builder, rail_builder, queues));
            domain.end_registrations();
            drop((domain, device));
        }
    }

    /// Returns whether the RDMA port was closed.
    #[cfg(test)]
    pub(crate) fn is_closed(&self) -> bool {
        self.opened().is_err()
    }

    /// Returns whether the machine still shows the device.
    pub(crate) fn is_shown(&self) -> bool {
        let opened = lock(&self.opened);
        opened
            .as_ref()
            .is_some_and(|opened| opened.device.is_shown())
    }

    /// Returns whether the machine still lists the device. This takes long and is done outside the
    /// turn.
    pub(crate) fn is_listed(&self) -> bool {
        self.opened().is_ok_and(|opened| opened.device.is_listed())
    }

    /// Returns whether the RDMA port has stopped working. New sessions then need another RDMA port.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        // Relaxed, because a thread that reads the flag late gets an error.
        self.is_lost.load(Ordering::Relaxed)
    }

    pub(crate) fn lose(&self) {
        self.is_lost.store(true, Ordering::Relaxed);
    }

    /// Returns the number of the engine that has the RDMA port.
    #[must_use]
    pub fn engine(&self) -> usize {
        self.settings.engine
    }

    /// Returns the counts of all of the port's sessions together.
    pub(crate) fn counts(&self) -> PortCounts {
        self.counters.counts()
    }

    /// Returns the port's number.
    pub(crate) fn port(&self) -> u8 {
        self.port
    }

    /// Returns the present state of the port.
    pub(crate) fn port_state(&self) -> Result<PortState, VerbsError> {
        Ok(self.opened()?.device.query_port(self.port)?.state)
    }

    pub(crate) fn of_port(&self, what: &str) -> String {
        format!("RDMA device {} port {}: {what}", self.device(), self.port)
    }

    /// Returns whether a queue pair waits for its last completion.
    #[inline]
    pub(crate) fn is_left(&self) -> bool {
        self.draining_pairs.load(Ordering::Relaxed) > 0
    }

    /// Notes that a queue pair waits for its last completion, for the life of the returned value.
    pub(crate) fn leaves(self: &Arc<Self>) -> DrainGuard {
        self.draining_pairs.fetch_add(1, Ordering::Relaxed);
        DrainGuard(self.clone())
    }

    /// Returns whether a queue pair was destroyed before it was drained, since the last call.
    #[inline]
    pub(crate) fn takes_undrained(&self) -> bool {
        // Relaxed, because a check that sees the flag late covers later queue pairs as well.
        self.has_undrained.load(Ordering::Relaxed)
            && self.has_undrained.swap(false, Ordering::Relaxed)
    }

    /// Makes a queue pair that takes receives and is not connected. Needs no engine. `dialed` is
    /// true at exactly one of the two ends.
    ///
    /// # Errors
    /// [`VerbsError`] if the receive buffers cover no more sessions, the port is not active any
    /// more, or the device refuses.
    pub fn prepare(self: &Arc<Self>, dialed: bool) -> Result<PreparedPair, VerbsError> {
        self.prepare_for(dialed, true)
    }

    /// Like [`prepare`](Self::prepare), for a peer that may be untrusted. An untrusted peer is
    /// granted no memory, whatever the [settings](PortSettings::grants_memory) say, and its queue
    /// pair accepts no writes.
    ///
    /// # Errors
    /// As those of [`prepare`](Self::prepare).
    pub fn prepare_for(
        self: &Arc<Self>,
        dialed: bool,
        is_trusted: bool,
    ) -> Result<PreparedPair, VerbsError> {
        let grants_memory = is_trusted && self.settings.grants_memory;
        let permit = SessionPermit::take(self, dialed)?;
        let Opened {
            builder,
            domain,
            device,
            ..
        } = self.opened()?;
        let local = local_port(&device, self.port, &self.gid, self.partition_key)?;
        let mut access = RegionAccess::SEND;
        if grants_memory {
            access = access.and(RegionAccess::REMOTE_WRITE);
        }
        if self.windows > 0 {
            access = access.and(RegionAccess::REMOTE_READ);
        }
        let builder = builder
            .remote_access(access)
            .pkey_index(local.partition.index);
        let mut connection = self.settings.connection;
        if self.reads_large {
            connection = connection.read_depth(READS).read_resources(READS);
        }
        let pair = builder.build(self.port, connection)?;
        let first = FirstSequence::from_random(RandomState::new().hash_one(pair.number()) as u32);
        let ticket = self.pending_pairs.list(pair.number());
        let mut prepared = PreparedPair::new(permit, &domain, pair, ticket, first, local, dialed)?;
        prepared.grants_memory = grants_memory;
        Ok(prepared)
    }

    /// Makes the queue pair of a rail, which is not connected. Needs no engine.
    ///
    /// # Errors
    /// As those of [`prepare`](Self::prepare), and if the device cannot read large messages through
    /// windows.
    pub fn prepare_rail(self: &Arc<Self>, dialed: bool) -> Result<PreparedRail, VerbsError> {
        let has_requests = self.settings.send_requests >= RAIL_REQUESTS;
        if !self.reads_large || self.windows == 0 || !has_requests {
            let device = self.device().to_owned();
            return Err(PortError::NoReads { device }.into());
        }
        let mut permit = SessionPermit::take(self, dialed)?;
        // No receive of the port's can be lost with it.
        permit.was_drained();
        let Opened {
            rail_builder,
            domain,
            device,
            ..
        } = self.opened()?;
        let local = local_port(&device, self.port, &self.gid, self.partition_key)?;
        let probe = self.probe_memory(&domain)?;
        let connection = self.settings.connection;
        let pair = rail_builder
            .remote_access(RegionAccess::SEND.and(RegionAccess::REMOTE_READ))
            .pkey_index(local.partition.index)
            .build(
                self.port,
                connection.read_depth(READS).read_resources(READS),
            )?;
        Ok(PreparedRail::new(permit, probe, pair, local))
    }

    /// Returns the memory by which the RDMA port's rails are tested.
    fn probe_memory(&self, domain: &ProtectionDomain) -> Result<Arc<ProbeMemory>, VerbsError> {
        let mut probe = lock(&self.probe);
        if let Some(probe) = &*probe {
            return Ok(probe.clone());
        }
        Ok(probe
            .insert(Arc::new(ProbeMemory::register(domain)?))
            .clone())
    }

    /// Returns the device's name.
    #[must_use]
    pub fn device(&self) -> &str {
        &self.name
    }

    /// Returns the key of the queue pairs' partition, as of the last check of the port; `None` if
    /// the key is not known, or if the port is no longer in the partition.
    #[must_use]
    pub fn partition_key(&self) -> Option<PartitionKey> {
        let standing = lock(&self.standing);
        standing.partition.and_then(|partition| partition.key)
    }

    /// Returns the way in which completions are polled, and the reason for it.
    #[must_use]
    pub fn polling(&self) -> &PollingChoice {
        &self.polling
    }

    /// Returns the number of sessions that the RDMA port has room for.
    #[must_use]
    pub fn max_sessions(&self) -> u32 {
        self.max_sessions
    }

    /// Returns whether large messages are read, where the peer offers its memory.
    pub(super) fn reads_large(&self) -> bool {
        self.reads_large
    }

    /// Returns the number of windows that a session has, if the device makes that many.
    pub(super) fn windows(&self) -> usize {
        self.windows
    }

    /// Returns the number of sends that one session may have outstanding.
    pub(crate) fn send_requests(&self) -> u32 {
        self.settings.send_requests
    }

    /// Returns advice for too few places for sessions, which depends on the limiting resource.
    fn next_step_for_more(&self) -> &'static str {
        let settings = &self.settings;
        if self.max_sessions == self.max_queue_pairs {
            "the device has no more queue pairs: close sessions, or let others go over tcp"
        } else if self.max_sessions == settings.max_sessions {
            "raise max_sessions"
        } else if settings.shared_receives {
            "lower send_requests or receive_buffers: the device's completion queue holds no more"
        } else if self.max_sessions == settings.sessions_covered() {
            "raise receive_buffers, or lower session_credit: each session takes its own of them"
        } else {
            "lower send_requests or session_credit: the device's completion queue holds no more"
        }
    }

    pub(super) fn settings(&self) -> &PortSettings {
        &self.settings
    }

    pub(super) fn refused(&self, error: &PostError) -> VerbsError {
        refused(&self.name, error)
    }

    /// Returns the broker that divides the shared receive buffers between sessions; `None` if each
    /// session has its own.
    pub(crate) fn broker(&self) -> Option<CreditBroker> {
        self.settings
            .shared_receives
            .then(|| CreditBroker::new(self.settings.broker()))
    }

    /// Returns the queue pairs that have no session yet.
    pub(crate) fn pending_pairs(&self) -> &PendingPairs {
        &self.pending_pairs
    }

    /// Gives an engine the queues to poll, once.
    pub(crate) fn take_into_care(&self) -> Result<PortQueues, VerbsError> {
        let mut queues = lock(&self.queues);
        queues.take().ok_or_else(|| {
            PortError::Taken {
                device: self.device().to_owned(),
            }
            .into()
        })
    }

    /// Takes the queues back from an engine that cannot poll them after all. Another engine may try
    /// next.
    pub(crate) fn give_back(&self, queues: PortQueues) {
        let mut kept = lock(&self.queues);
        *kept = Some(queues);
    }

    /// Returns the addresses of the buffers of the shared receive queue.
    #[cfg(test)]
    pub(super) fn arrival_memory(&self) -> std::ops::Range<usize> {
        self.arrival_memory.clone()
    }
}

/// Returns a number that this process has not used before.
pub(super) fn new_number() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

fn port_of(device: &Device, choice: &Choice) -> Result<LocalPort, VerbsError> {
    local_port(device, choice.port, &choice.gid, choice.partition_key)
}

/// Returns the port with the present indices of its GID and partition, which can move. Several
/// interfaces may have the same GID, as a VLAN has its parent's link-local one. The GID is then
/// that of the same interface, unless the interface was recreated.
fn local_port(
    device: &Device,
    port: u8,
    gid: &GidEntry,
    key: Option<PartitionKey>,
) -> Result<LocalPort, VerbsError> {
    let is_same = |entry: &GidEntry| entry.gid == gid.gid && entry.gid_type == gid.gid_type;
    let is_there =
        |entry: &GidEntry| is_same(entry) && entry.interface_index == gid.interface_index;
    match LocalPort::in_partition(device, port, key, is_there) {
        Err(VerbsError::NoUsableGid { .. }) => LocalPort::in_partition(device, port, key, is_same),
        found => found,
    }
}

fn refused(device: &str, error: &PostError) -> VerbsError {
    VerbsError::Call {
        device: device.to_owned(),
        call: error.call,
        source: error.source,
        consequence: "nothing can be received",
    }
}
