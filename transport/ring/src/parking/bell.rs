//! Bells, by which a thread that owns nothing of an engine wakes it.
//!
//! A guard may be dropped long after its channel, its session and its node have ended, and the bell
//! that it rings must still exist. So bells are leaked: they come from a process-wide pool, go back
//! to it, and their eventfds are never closed. A late ring reaches the node that leases the bell
//! next, and costs that node's engine one needless look.

use std::fmt;
use std::io;
use std::mem;
use std::ops::Deref;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, Weak};

use rustix::event::{EventfdFlags, eventfd};
use rustix::io::{read, retry_on_intr, write};

use ibex_base::fork;

/// Wakes one engine: by an eventfd in its epoll set or, if the engine has no thread that waits, by
/// a turn on the ringing thread.
pub struct Bell {
    fd: OwnedFd,
    caller: Mutex<Option<WeakDrive>>,
    /// The ends whose guards rang since the engine last asked.
    rung: Mutex<Vec<RungEnd>>,
    /// True if there are some.
    has_rung: AtomicBool,
}

/// A receiving end, as the guards of its messages name it: the numbers of its session and of the
/// end there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RungEnd {
    /// The number of the session.
    pub session: u64,
    /// The number of the end in its session.
    pub end: u32,
}

/// An engine that runs on its callers' threads.
pub trait Drive {
    /// Runs one turn, or leaves it to the thread that runs one now. May be called
    /// from any drop on any thread, so it must not wait.
    fn drive(&self);
}

/// Weak: a bell outlives every engine.
type WeakDrive = Weak<dyn Drive + Send + Sync>;

impl Bell {
    /// Takes a bell from the pool, or makes one.
    ///
    /// # Errors
    ///
    /// The error of `eventfd`: the process has too many open files.
    pub fn lease() -> io::Result<BellLease> {
        let pooled = pool().pop();
        let bell = match pooled {
            Some(bell) => bell,
            None => Box::leak(Box::new(Self {
                fd: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
                caller: Mutex::new(None),
                rung: Mutex::default(),
                has_rung: AtomicBool::new(false),
            })),
        };
        Ok(BellLease { bell })
    }

    /// Tells the engine of an end, once for each question of the engine's, and wakes the engine, or
    /// drives it here if it has no thread.
    #[cold]
    pub fn ring(&self, end: RungEnd) {
        if fork::is_child() {
            return;
        }
        self.rung().push(end);
        // RANG, pairs with `take_rung`: the engine sees the cell that the guard settled. A swap
        // and not a store, which would overwrite the release of a guard that rang before.
        self.has_rung.swap(true, Ordering::Release);
        let caller = self.caller().as_ref().map(Weak::upgrade);
        match caller {
            Some(Some(engine)) => engine.drive(),
            // The engine is ending and looks for changes itself.
            Some(None) => {}
            None => self.wake(),
        }
    }

    /// Moves the ends whose guards rang since the last call to `into`, which is empty. Returns
    /// whether there are some.
    #[inline]
    pub fn take_rung(&self, into: &mut Vec<RungEnd>) -> bool {
        // RANG, pairs with `ring`.
        let any =
            self.has_rung.load(Ordering::Relaxed) && self.has_rung.swap(false, Ordering::Acquire);
        if any {
            mem::swap(into, &mut self.rung());
        }
        any
    }

    /// Makes the eventfd readable, whichever thread drives the engine.
    pub fn wake(&self) {
        if fork::is_child() {
            return;
        }
        // The only failure is a full counter, and then the eventfd is readable already.
        let _ = retry_on_intr(|| write(&self.fd, &1u64.to_ne_bytes()));
    }

    /// Makes each ring, until the lease ends, run a turn of `engine` instead of making the eventfd
    /// readable.
    pub fn set_caller(&self, engine: Weak<dyn Drive + Send + Sync>) {
        *self.caller() = Some(engine);
    }

    /// The eventfd: readable after a ring, until [`drain`](Self::drain).
    #[must_use]
    pub fn fd(&'static self) -> BorrowedFd<'static> {
        self.fd.as_fd()
    }

    /// Forgets all rings so far. Drain first and look afterwards, or a ring in
    /// between is lost.
    pub fn drain(&self) {
        // An empty counter is no failure, and no other error can occur.
        let _ = retry_on_intr(|| read(&self.fd, &mut [0u8; 8]));
    }

    // No thread panics while it holds one of these locks, so poison would mean nothing.

    fn caller(&self) -> MutexGuard<'_, Option<WeakDrive>> {
        self.caller.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn rung(&self) -> MutexGuard<'_, Vec<RungEnd>> {
        self.rung.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Bell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Bell")
            .field("fd", &self.fd)
            .field("has_caller", &self.caller().is_some())
            .finish()
    }
}

/// The use of a bell until dropped. The bell itself is never freed.
#[derive(Debug)]
pub struct BellLease {
    bell: &'static Bell,
}

impl BellLease {
    /// The bell, for values that may outlive the lease.
    #[must_use]
    pub fn bell(&self) -> &'static Bell {
        self.bell
    }
}

impl Deref for BellLease {
    type Target = Bell;

    fn deref(&self) -> &Bell {
        self.bell
    }
}

impl Drop for BellLease {
    fn drop(&mut self) {
        if fork::is_child() {
            // The parent still sleeps on the bell.
            return;
        }
        let caller = self.bell.caller().take();
        // The drop happens outside of the lock, since this may be the last reference to a `Weak`.
        drop(caller);
        self.bell.drain();
        self.bell.rung().clear();
        pool().push(self.bell);
    }
}

fn pool() -> MutexGuard<'static, Vec<&'static Bell>> {
    static POOL: Mutex<Vec<&'static Bell>> = Mutex::new(Vec::new());
    POOL.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};

    use rustix::event::{PollFd, PollFlags, Timespec, poll};

    use super::*;

    fn is_readable(bell: &'static Bell) -> bool {
        let now = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        let mut fds = [PollFd::from_borrowed_fd(bell.fd(), PollFlags::IN)];
        poll(&mut fds, Some(&now)).unwrap() == 1
    }

    #[test]
    fn rings_are_readable_until_drained() {
        let bell = Bell::lease().unwrap();
        assert!(!is_readable(bell.bell()));
        let end = RungEnd { session: 7, end: 3 };
        bell.ring(end);
        bell.ring(end);
        assert!(is_readable(bell.bell()));
        bell.drain();
        assert!(!is_readable(bell.bell()));
        bell.drain();
        // Late rings on the bell are heard here as well.
        let mut rung = Vec::new();
        assert!(bell.take_rung(&mut rung));
        assert_eq!(rung.iter().filter(|&&rung| rung == end).count(), 2);
        rung.clear();
        bell.take_rung(&mut rung);
        assert!(!rung.contains(&end), "each ring is heard once");
    }

    #[test]
    fn a_caller_is_driven_where_the_bell_is_rung() {
        struct Turns(AtomicU32);
        impl Drive for Turns {
            fn drive(&self) {
                self.0.fetch_add(1, Ordering::Relaxed);
            }
        }
        let lease = Bell::lease().unwrap();
        let bell = lease.bell();
        let turns = Arc::new(Turns(AtomicU32::new(0)));
        let weak: Weak<Turns> = Arc::downgrade(&turns);
        lease.set_caller(weak);
        bell.ring(RungEnd::default());
        assert_eq!(turns.0.load(Ordering::Relaxed), 1);
        assert!(!is_readable(bell));

        drop(turns);
        bell.ring(RungEnd::default());

        // A late ring on a bell that was given back does no more than ring it.
        drop(lease);
        bell.ring(RungEnd::default());
        bell.drain();
    }
}
