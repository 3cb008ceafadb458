//! The lock between a thread that drains a completion queue and a thread that destroys a queue pair
//! on it.
//!
//! An extended queue is made for one thread (`IBV_CREATE_CQ_ATTR_SINGLE_THREADED`), so its library
//! takes no lock for it. But `ibv_destroy_qp` takes a queue pair's completions out of its queues,
//! and the thread whose handshake failed destroys its queue pair, while another thread drains the
//! queue for other queue pairs (libmlx5: `mlx5_destroy_qp`, `__mlx5_cq_clean`).
//!
//! Draining is favoured and costs two stores a batch. Destroying a queue pair pays for the barrier.

use std::sync::{Mutex, PoisonError};
use std::thread;

use ibex_base::sync::{Asymmetry, BiasedLock};

/// See the [module](self).
#[derive(Debug, Default)]
pub(crate) struct DrainLock {
    draining: BiasedLock,
    /// The lock of the thread that destroys a queue pair, one at a time.
    destroying: Mutex<()>,
}

impl DrainLock {
    /// Runs `act` inside the lock, for the owner of the queue.
    #[inline]
    pub(crate) fn while_draining<T>(&self, act: impl FnOnce() -> T) -> T {
        while !self.draining.try_enter() {
            // The other thread destroys a queue pair, so the wait lasts as long as one call of the
            // kernel.
            thread::yield_now();
        }
        let outcome = act();
        self.draining.leave();
        outcome
    }

    /// Runs `act` while no thread drains the queue, for any thread but the owner.
    pub(crate) fn while_undrained<T>(&self, act: impl FnOnce() -> T) -> T {
        let one = self
            .destroying
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        self.draining.close();
        Asymmetry::of_process().heavy_here();
        while !self.draining.is_left() {
            thread::yield_now();
        }
        let outcome = act();
        self.draining.open();
        drop(one);
        outcome
    }
}
