//! Atomics and locks that record which engines write which cache lines (`--cfg record_writes`).
//!
//! An engine that writes a cache line which another engine writes too waits for the line at each
//! message. No type shows this, so this build records it: every write of a thread while it turns an
//! engine is noted with its line and its place in the source, between [`begin`] and [`end`]. Writes
//! that are not atomic are not seen; they are under a lock, or next to an atomic that is seen.

use std::{
    cell::Cell,
    collections::{BTreeMap, BTreeSet},
    fmt,
    panic::Location,
    sync::{
        self, LockResult, MutexGuard, PoisonError, TryLockResult,
        atomic::{self, Ordering},
    },
};

/// A cache line of x86 and most others. Pairs of lines, which some processors fetch together, are
/// not considered.
const LINE_BYTES: usize = 64;

/// Writes by line and engine: the places in the source.
type Writes = BTreeMap<usize, BTreeMap<usize, BTreeSet<String>>>;

/// Relaxed: what is recorded is under the lock of `WRITES`.
static IS_ON: atomic::AtomicBool = atomic::AtomicBool::new(false);
static ARRIVALS: atomic::AtomicU64 = atomic::AtomicU64::new(0);
static FOREIGN_ARRIVALS: atomic::AtomicU64 = atomic::AtomicU64::new(0);
static WRITES: sync::Mutex<Writes> = sync::Mutex::new(BTreeMap::new());

thread_local! {
    static ENGINE: Cell<Option<usize>> = const { Cell::new(None) };
}

/// The time in which a thread turns an engine, until dropped.
#[derive(Debug)]
#[must_use]
pub struct Turning {
    before: Option<usize>,
}

/// Notes that the calling thread turns `engine` from now on.
pub fn turning<E>(engine: &E) -> Turning {
    let before = ENGINE.replace(Some(std::ptr::from_ref(engine).addr()));
    Turning { before }
}

impl Drop for Turning {
    fn drop(&mut self) {
        ENGINE.set(self.before);
    }
}

/// Records writes from now on.
pub fn begin() {
    writes().clear();
    IS_ON.store(true, Ordering::Relaxed);
}

/// Stops recording. Returns how many lines engines wrote, and, for each line that several engines
/// wrote, the places in the source that write it.
pub fn end() -> (usize, Vec<BTreeSet<String>>) {
    IS_ON.store(false, Ordering::Relaxed);
    let writes = std::mem::take(&mut *writes());
    let lines = writes.len();
    let shared = writes.into_values().filter(|engines| engines.len() > 1);
    let places = shared.map(|engines| engines.into_values().flatten().collect());
    (lines, places.collect())
}

fn writes() -> MutexGuard<'static, Writes> {
    WRITES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Notes that bytes arrived at an address, in a call of the calling thread.
#[track_caller]
pub fn arrived(address: usize) {
    ARRIVALS.fetch_add(1, Ordering::Relaxed);
    if ENGINE.get().is_none() {
        FOREIGN_ARRIVALS.fetch_add(1, Ordering::Relaxed);
    }
    record_at(address);
}

/// Returns how often bytes arrived so far, and how often of these not in a call of an engine's own
/// thread.
pub fn arrivals() -> (u64, u64) {
    let of_all = ARRIVALS.load(Ordering::Relaxed);
    (of_all, FOREIGN_ARRIVALS.load(Ordering::Relaxed))
}

#[track_caller]
fn record<T: ?Sized>(written: &T) {
    record_at(std::ptr::from_ref(written).addr());
}

#[track_caller]
fn record_at(address: usize) {
    if IS_ON.load(Ordering::Relaxed)
        && let Some(engine) = ENGINE.get()
    {
        let line = address / LINE_BYTES;
        let place = Location::caller();
        let place = format!("{}:{}", place.file(), place.line());
        let mut writes = writes();
        let places = writes.entry(line).or_default().entry(engine).or_default();
        places.insert(place);
    }
}

macro_rules! recorded {
    ($name:ident, $of:ty, $value:ty) => {
        /// The atomic of this name, whose writes are recorded.
        #[derive(Default)]
        #[repr(transparent)]
        pub struct $name($of);

        #[allow(missing_docs, reason = "each method is that of std's atomic")]
        impl $name {
            pub const fn new(value: $value) -> Self {
                Self(<$of>::new(value))
            }

            pub fn load(&self, order: Ordering) -> $value {
                self.0.load(order)
            }

            #[track_caller]
            pub fn store(&self, value: $value, order: Ordering) {
                record(self);
                self.0.store(value, order);
            }

            #[track_caller]
            pub fn swap(&self, value: $value, order: Ordering) -> $value {
                record(self);
                self.0.swap(value, order)
            }

            #[track_caller]
            pub fn compare_exchange(
                &self,
                current: $value,
                new: $value,
                success: Ordering,
                failure: Ordering,
            ) -> Result<$value, $value> {
                record(self);
                self.0.compare_exchange(current, new, success, failure)
            }

            #[track_caller]
            pub fn compare_exchange_weak(
                &self,
                current: $value,
                new: $value,
                success: Ordering,
                failure: Ordering,
            ) -> Result<$value, $value> {
                record(self);
                self.0.compare_exchange_weak(current, new, success, failure)
            }

            #[track_caller]
            pub fn fetch_update(
                &self,
                set: Ordering,
                fetch: Ordering,
                update: impl FnMut($value) -> Option<$value>,
            ) -> Result<$value, $value> {
                record(self);
                self.0.fetch_update(set, fetch, update)
            }

            pub fn get_mut(&mut self) -> &mut $value {
                self.0.get_mut()
            }

            pub fn into_inner(self) -> $value {
                self.0.into_inner()
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

macro_rules! recorded_sums {
    ($name:ident, $value:ty, $($method:ident)*) => {
        #[allow(missing_docs, reason = "each method is that of std's atomic")]
        impl $name {
            $(
                #[track_caller]
                pub fn $method(&self, value: $value, order: Ordering) -> $value {
                    record(self);
                    self.0.$method(value, order)
                }
            )*
        }
    };
}

recorded!(AtomicBool, atomic::AtomicBool, bool);
recorded!(AtomicU32, atomic::AtomicU32, u32);
recorded!(AtomicU64, atomic::AtomicU64, u64);
recorded!(AtomicUsize, atomic::AtomicUsize, usize);
recorded_sums!(AtomicBool, bool, fetch_or fetch_and);
recorded_sums!(AtomicU32, u32, fetch_add fetch_sub fetch_or fetch_and fetch_max);
recorded_sums!(AtomicU64, u64, fetch_add fetch_sub fetch_or fetch_and fetch_max);
recorded_sums!(AtomicUsize, usize, fetch_add fetch_sub fetch_or fetch_and fetch_max);

/// std's mutex, whose locking is recorded as a write.
#[derive(Debug, Default)]
pub struct Mutex<T: ?Sized>(sync::Mutex<T>);

#[allow(missing_docs, reason = "each method is that of std's mutex")]
impl<T> Mutex<T> {
    pub const fn new(value: T) -> Self {
        Self(sync::Mutex::new(value))
    }

    #[track_caller]
    pub fn lock(&self) -> LockResult<MutexGuard<'_, T>> {
        record(self);
        self.0.lock()
    }

    #[track_caller]
    pub fn try_lock(&self) -> TryLockResult<MutexGuard<'_, T>> {
        record(self);
        self.0.try_lock()
    }

    pub fn into_inner(self) -> LockResult<T> {
        self.0.into_inner()
    }

    pub fn get_mut(&mut self) -> LockResult<&mut T> {
        self.0.get_mut()
    }

    pub fn is_poisoned(&self) -> bool {
        self.0.is_poisoned()
    }
}

/// A mutex of this module or of std.
pub trait Lock<T> {
    /// Waits for the lock.
    fn wait(&self) -> LockResult<MutexGuard<'_, T>>;
}

impl<T> Lock<T> for Mutex<T> {
    #[track_caller]
    fn wait(&self) -> LockResult<MutexGuard<'_, T>> {
        self.lock()
    }
}

impl<T> Lock<T> for sync::Mutex<T> {
    fn wait(&self) -> LockResult<MutexGuard<'_, T>> {
        self.lock()
    }
}

/// Locks a mutex, even if a thread that had it panicked.
#[track_caller]
pub fn lock<'a, T: 'a>(mutex: &'a impl Lock<T>) -> MutexGuard<'a, T> {
    mutex.wait().unwrap_or_else(PoisonError::into_inner)
}

impl<T, M: Lock<T>> Lock<T> for sync::Arc<M> {
    #[track_caller]
    fn wait(&self) -> LockResult<MutexGuard<'_, T>> {
        M::wait(self)
    }
}
