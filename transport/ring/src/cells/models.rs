//! Models of cells: the settling of messages in every order of events.

use super::*;
use crate::release::Advance;
use ibex_base::sync::{UnsafeCell, thread};

/// Bytes that guards read.
struct Bytes(UnsafeCell<()>);

// SAFETY: loom fails if two threads access the cell at the same time.
unsafe impl Send for Bytes {}
// SAFETY: as above.
unsafe impl Sync for Bytes {}

/// An end whose handle is gone, and the bytes that its guards read.
struct End {
    advance: Advance,
    cells: CellLease,
    bytes: Arc<Bytes>,
    freed: std::sync::Arc<std::sync::atomic::AtomicU32>,
}

impl Orphan for End {
    fn is_settled(&self) -> bool {
        self.advance.run(self.cells.block(), |_| ());
        self.advance.is_settled(2)
    }
}

impl Drop for End {
    fn drop(&mut self) {
        // loom fails if a guard may still read the bytes.
        self.bytes.0.with_mut(|_| ());
        self.freed.fetch_add(1, Ordering::Relaxed);
    }
}

/// Two cells, the bytes that the guards of their messages read, and the count of frees.
struct Channel {
    cells: &'static CellBlock,
    bytes: Arc<Bytes>,
    freed: std::sync::Arc<std::sync::atomic::AtomicU32>,
}

impl Channel {
    /// Hands out two messages. Returns the end without its handle.
    fn begin() -> (Self, Arc<dyn Orphan>) {
        let bell = Bell::lease().unwrap();
        let lease = CellBlock::lease(2, bell.bell()).expect("memory");
        let channel = Self {
            cells: lease.block(),
            bytes: Arc::new(Bytes(UnsafeCell::new(()))),
            freed: std::sync::Arc::default(),
        };
        channel.cells.hold(1, 8);
        channel.cells.hold(2, 8);
        let end = End {
            advance: Advance::default(),
            cells: lease,
            bytes: channel.bytes.clone(),
            freed: channel.freed.clone(),
        };
        (channel, Arc::from_std(std::sync::Arc::new(end)))
    }

    /// Starts a thread that reads a message and drops its guard.
    fn guard(&self, sequence: u32, state: CellState) -> thread::JoinHandle<()> {
        let (bytes, cells) = (self.bytes.clone(), self.cells);
        thread::spawn(move || {
            bytes.0.with(|_| ());
            drop(bytes);
            cells.settle(sequence, 1, state);
        })
    }

    fn assert_freed(&self) {
        assert_eq!(self.freed.load(Ordering::Relaxed), 1, "nobody frees it");
    }
}

/// Mutants: light_missing, heavy_missing, orphan_unlooked.
#[test]
fn loom_a_guard_goes_beside_the_handle() {
    loom::model(|| {
        let (channel, end) = Channel::begin();
        channel.cells.settle(1, 1, CellState::Acknowledged);
        let guard = channel.guard(2, CellState::Dropped);
        channel.cells.leave_to_guards(end);
        guard.join().unwrap();
        channel.assert_freed();
    });
}

/// Mutants: settle_relaxed, sum_relaxed.
#[test]
fn loom_the_last_guard_frees_the_orphan() {
    loom::model(|| {
        let (channel, end) = Channel::begin();
        channel.cells.leave_to_guards(end);
        let first = channel.guard(1, CellState::Dropped);
        let second = channel.guard(2, CellState::Acknowledged);
        first.join().unwrap();
        second.join().unwrap();
        channel.assert_freed();
    });
}
