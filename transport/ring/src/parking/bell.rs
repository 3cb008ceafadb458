//! Bells, by which a thread that owns nothing of an engine wakes it.
//!
//! A guard may be dropped long after its channel, its session and its node have ended, and the bell
//! that it rings must still exist. So bells are leaked: they come from a process-wide pool, go back
//! to it, and their eventfds are never closed. A late ring reaches the node that leases the bell
//! next, and costs that node's engine one needless look.

use std::fmt;
use std::io;
use std::ops::Deref;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Mutex, MutexGuard, PoisonError, Weak};

use rustix::event::{EventfdFlags, eventfd};
use rustix::io::{read, retry_on_intr, write};

use ibex_base::fork;

/// Wakes one engine: by an eventfd in its epoll set or, if the engine has no thread that waits, by
/// a turn on the ringing thread.
pub struct Bell {
    fd: OwnedFd,
    caller: Mutex<Option<WeakDrive>>,
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
            })),
        };
        Ok(BellLease { bell })
    }

    /// Wakes the engine, or drives it here if it has no thread.
    #[cold]
    pub fn ring(&self) {
        if fork::is_child() {
            return;
        }
        let caller = self.caller().as_ref().map(Weak::upgrade);
        match caller {
            Some(Some(engine)) => engine.drive(),
            // The engine is ending and looks for news itself.
            Some(None) => {}
            None => self.wake(),
        }
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

    fn caller(&self) -> MutexGuard<'_, Option<WeakDrive>> {
        // No thread panics while it holds this lock, so poison would mean nothing.
        self.caller.lock().unwrap_or_else(PoisonError::into_inner)
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
        bell.ring();
        bell.ring();
        assert!(is_readable(bell.bell()));
        bell.drain();
        assert!(!is_readable(bell.bell()));
        bell.drain();
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
        bell.ring();
        assert_eq!(turns.0.load(Ordering::Relaxed), 1);
        assert!(!is_readable(bell));

        drop(turns);
        bell.ring();

        // A late ring on a bell that was given back does no more than ring it.
        drop(lease);
        bell.ring();
        bell.drain();
    }
}
