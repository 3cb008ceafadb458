//! Two ends of a reliable connection in one process.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use ibex_verbs::{
    AnonymousMemory, CompletionWait, ConnectionSettings, Device, FirstSequence, LocalPort,
    MemoryRegion, ProtectionDomain, QueuePair, QueuePairBuilder, RegionAccess, WorkCompletion,
};

use super::Outcome;

/// An end of a connection.
pub(crate) struct End {
    pub(crate) pair: QueuePair,
    pub(crate) completions: CompletionWait,
    pub(crate) memory: Arc<MemoryRegion<AnonymousMemory>>,
    pub(crate) domain: ProtectionDomain,
}

/// Makes two ends on a device, of which the peer may do everything, and connects them.
pub(crate) fn connected(device: &Device, settings: ConnectionSettings) -> Outcome<[End; 2]> {
    let mut ends = [End::new(device, settings)?, End::new(device, settings)?];
    let local = LocalPort::with_gid(device, PORT, |_| true)?;
    let first = FirstSequence::from_random(std::process::id());
    let endpoints = [0, 1].map(|end: usize| ends[end].pair.endpoint(first, &local));
    let limits = [0, 1].map(|end: usize| ends[end].pair.read_limits());
    for end in [0, 1] {
        let pair = &mut ends[end].pair;
        pair.set_peer_read_limits(limits[1 - end]);
        pair.connect(first, local, endpoints[1 - end])?;
    }
    Ok(ends)
}

impl End {
    fn new(device: &Device, settings: ConnectionSettings) -> Outcome<Self> {
        let domain = ProtectionDomain::new(device)?;
        let completions = CompletionWait::open(device, 16)?;
        let rights = RegionAccess::REMOTE_WRITE
            .and(RegionAccess::REMOTE_READ)
            .and(RegionAccess::REMOTE_ATOMIC)
            .and(RegionAccess::WINDOWS);
        let pair = QueuePairBuilder::new(&domain, completions.queue())
            .send_requests(4)
            .receives(4, 1)
            .remote_access(rights)
            .build(PORT, settings)?;
        let memory = AnonymousMemory::new(4096)?;
        Ok(Self {
            memory: Arc::new(MemoryRegion::register(&domain, memory, rights)?),
            pair,
            completions,
            domain,
        })
    }

    /// Returns the number at a place, which the device may write at any time.
    pub(crate) fn number(&self, place: usize) -> &AtomicU64 {
        assert!(place.is_multiple_of(8) && place < self.memory.bytes());
        // SAFETY: aligned, inside of the memory and zeroed at first, and every reference into it is
        // to an atomic.
        unsafe { self.memory.base().add(place).cast().as_ref() }
    }

    /// Sleeps until the one request that is outstanding has completed.
    pub(crate) fn wait(&mut self) -> Outcome<WorkCompletion> {
        loop {
            let mut room = [WorkCompletion::EMPTY; 1];
            if let [completion] = self.completions.wait(&mut room, None)? {
                completion.outcome()?;
                return Ok(*completion);
            }
        }
    }
}

const PORT: u8 = 1;
