//! The number of cells that run at a time. Two per processor, since each cell waits for half of its
//! time (for its processes to start, or for the other side); scenarios that mostly wait run beside
//! these. Cells of one process run eight times as many: they carry little, and wait for features
//! that their device lacks.

use std::{
    num::NonZero,
    sync::{Condvar, Mutex, MutexGuard, PoisonError},
    thread,
};

use libtest_mimic::Arguments;

/// Free seats for cells that do not wait.
pub(crate) struct Seats {
    free: Mutex<usize>,
    one_is_free: Condvar,
}

impl Seats {
    /// Returns seats for cells of two processes and for cells of one, and sets the threads for all
    /// of these and for `waiting` cells. If the command line sets the threads, it sets the seats,
    /// too.
    pub(crate) fn new(arguments: &mut Arguments, waiting: usize) -> [Self; 2] {
        let processors = thread::available_parallelism().map_or(1, NonZero::get);
        let seats = [2 * processors, 16 * processors];
        let all = seats.iter().sum::<usize>() + waiting;
        let threads = *arguments.test_threads.get_or_insert(all);
        seats.map(|seats| Self {
            free: Mutex::new(seats.min(threads)),
            one_is_free: Condvar::new(),
        })
    }

    /// Waits for a free seat.
    pub(crate) fn take(&self) -> Seat<'_> {
        let free = self.free();
        let taken = self.one_is_free.wait_while(free, |free| *free == 0);
        *taken.unwrap_or_else(PoisonError::into_inner) -= 1;
        Seat(self)
    }

    fn free(&self) -> MutexGuard<'_, usize> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A seat, taken until this is dropped.
pub(crate) struct Seat<'s>(&'s Seats);

impl Drop for Seat<'_> {
    fn drop(&mut self) {
        *self.0.free() += 1;
        self.0.one_is_free.notify_one();
    }
}
