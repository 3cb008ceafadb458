//! How many cells are played at a time: two for each processor, since each waits for half of
//! its time (for its processes to start, or its two sides for each other), and those beside
//! them that do hardly anything but wait. Of those that one process plays it is eight times as
//! many: what they carry is little, and where a device lacks something they wait for it.

use std::{
    num::NonZero,
    sync::{Condvar, Mutex, MutexGuard, PoisonError},
    thread,
};

use libtest_mimic::Arguments;

/// What is left for cells that do not wait.
pub(crate) struct Seats {
    free: Mutex<usize>,
    one_is_free: Condvar,
}

impl Seats {
    /// For cells of two processes and for those of one, and threads for all of them and for so
    /// many cells that wait; or as many as the command line has threads, for all.
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

    /// Waits for one.
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

/// One of them, until this is dropped.
pub(crate) struct Seat<'s>(&'s Seats);

impl Drop for Seat<'_> {
    fn drop(&mut self) {
        *self.0.free() += 1;
        self.0.one_is_free.notify_one();
    }
}
