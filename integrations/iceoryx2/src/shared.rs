//! The state that the carrier, its channels, its monitors and its thread share.

use std::{
    collections::BTreeMap,
    fmt,
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
        mpsc,
    },
    task::{Wake, Waker},
    thread::Thread,
};

use ibex::{Fabric, PeerAt, PeerId};
use iceoryx2::service::service_hash::ServiceHash;
use iceoryx2_bb_elementary::generation::GenerationCounter;
use iceoryx2_link_backend::{WakeHandle, service_description::ServiceDescriptor};

use crate::ends::Ends;

/// A change by the carrier's user, which the thread reports to the peers.
pub(crate) enum Change {
    Offered(Box<ServiceDescriptor>),
    Withdrawn(ServiceHash),
    Opened(Arc<Ends>),
    Closed(u64),
    /// A wake was attached: every channel end is to get its waker.
    Attached,
    /// The carrier was dropped by its user.
    Stop,
}

pub(crate) struct Shared {
    // From the user to the thread.
    changes: mpsc::Sender<Change>,
    worker: OnceLock<Thread>,
    next_number: AtomicU64,
    channels: Mutex<BTreeMap<u64, Arc<Ends>>>,

    // From the thread to the user.
    peers: Mutex<BTreeMap<PeerId, KnownPeer>>,
    pub(crate) generation: GenerationCounter,
    is_closed: AtomicBool,
    wake: OnceLock<Attached>,
}

/// A peer that has completed the account of its offers.
pub(crate) struct KnownPeer {
    pub(crate) at: PeerAt,
    pub(crate) fabric: Fabric,
    pub(crate) offers: BTreeMap<ServiceHash, ServiceDescriptor>,
    pub(crate) channels: usize,
}

/// The link's wake, and the waker that signals it.
struct Attached {
    wake: Arc<LinkWake>,
    waker: Waker,
}

struct LinkWake(WakeHandle);

impl Wake for LinkWake {
    fn wake(self: Arc<Self>) {
        self.0.signal();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.0.signal();
    }
}

impl Shared {
    pub(crate) fn new() -> (Arc<Self>, mpsc::Receiver<Change>) {
        let (changes, receiver) = mpsc::channel();
        let shared = Self {
            changes,
            worker: OnceLock::new(),
            next_number: AtomicU64::new(1),
            channels: Mutex::default(),
            peers: Mutex::default(),
            generation: GenerationCounter::new(),
            is_closed: AtomicBool::new(false),
            wake: OnceLock::new(),
        };
        (Arc::new(shared), receiver)
    }

    /// Sets the thread that is to be woken for each change. Called once, before the first.
    pub(crate) fn set_worker(&self, thread: Thread) {
        let _ = self.worker.set(thread);
    }

    /// Hands a change to the thread, if it still runs.
    pub(crate) fn tell(&self, change: Change) {
        if self.changes.send(change).is_ok()
            && let Some(worker) = self.worker.get()
        {
            worker.unpark();
        }
    }

    /// Opens a channel with a number of its own.
    pub(crate) fn open(&self, descriptor: ServiceDescriptor) -> Arc<Ends> {
        let number = self.next_number.fetch_add(1, Ordering::Relaxed);
        let ends = Arc::new(Ends::new(number, descriptor));
        lock(&self.channels).insert(number, ends.clone());
        self.tell(Change::Opened(ends.clone()));
        ends
    }

    pub(crate) fn close(&self, ends: &Ends) {
        lock(&self.channels).remove(&ends.number);
        ends.close();
        self.tell(Change::Closed(ends.number));
    }

    /// Returns the open channels.
    pub(crate) fn channels(&self) -> Vec<Arc<Ends>> {
        lock(&self.channels).values().cloned().collect()
    }

    /// Returns the peers, and their offers.
    pub(crate) fn peers(&self) -> MutexGuard<'_, BTreeMap<PeerId, KnownPeer>> {
        lock(&self.peers)
    }

    /// Attaches the link's wake, for good.
    pub(crate) fn attach(&self, wake: WakeHandle) {
        let wake = Arc::new(LinkWake(wake));
        let waker = wake.clone().into();
        let _ = self.wake.set(Attached { wake, waker });
        self.tell(Change::Attached);
    }

    /// Returns the waker that signals the link, if its wake is attached.
    pub(crate) fn waker(&self) -> Option<&Waker> {
        self.wake.get().map(|attached| &attached.waker)
    }

    /// Signals the link, if its wake is attached.
    pub(crate) fn signal(&self) {
        if let Some(attached) = self.wake.get() {
            attached.wake.0.signal();
        }
    }

    /// Notes that the offers differ from those that the link has listed.
    pub(crate) fn offers_changed(&self) {
        self.generation.advance();
        self.signal();
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.is_closed.load(Ordering::Relaxed)
    }

    /// Notes that the thread has ended, and nothing is carried any more.
    pub(crate) fn set_closed(&self) {
        self.is_closed.store(true, Ordering::Relaxed);
        self.peers().clear();
        // A program that lists the offers now is notified of the end.
        self.offers_changed();
    }
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared")
            .field("peers", &self.peers().len())
            .field("channels", &self.channels().len())
            .finish_non_exhaustive()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
