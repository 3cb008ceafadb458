//! A watch over work that may hang.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
        mpsc::{self, RecvTimeoutError},
    },
    thread,
    time::Duration,
};

/// Number of completed exchanges.
#[derive(Clone, Default)]
pub(crate) struct Progress(Arc<AtomicU64>);

impl Progress {
    /// Counts an exchange.
    pub(crate) fn made(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Watches work from another thread.
pub(crate) struct Watch {
    progress: Progress,
    count: u64,
}

impl Watch {
    pub(crate) fn of(count: u64) -> (Self, Progress) {
        let progress = Progress::default();
        let watch = Self {
            progress: progress.clone(),
            count,
        };
        (watch, progress)
    }

    /// Runs the work, and panics if it stands still, or ends before all is done.
    pub(crate) fn over(self, work: impl FnOnce() + Send + 'static) {
        let Self { progress, count } = self;
        let (done, is_done) = mpsc::channel();
        let worker = thread::spawn(move || {
            work();
            let _ = done.send(());
        });
        loop {
            let before = progress.get();
            match is_done.recv_timeout(STANDSTILL) {
                Err(RecvTimeoutError::Timeout) => {
                    let now = progress.get();
                    assert!(now > before, "it hangs behind exchange {now} of {count}");
                }
                Ok(()) | Err(RecvTimeoutError::Disconnected) => break,
            }
        }
        worker.join().expect("the work ends well");
        assert!(progress.get() >= count, "it ended before all was done");
    }
}

/// A time longer than any exchange takes, on any machine.
const STANDSTILL: Duration = Duration::from_secs(120);
