//! Release cells: how a guard says that its message is done.
//!
//! A receiver has a block of cells, one for each message that it may have handed out at a time;
//! message *n* has cell *n* modulo the block's size. The guard of a message carries a `&'static` to
//! the block and touches nothing else of the channel when it is dropped, on whatever thread and
//! however late. That is why blocks are never unmapped: they come from a process-wide slab and
//! return to it. Their pages go back to the system while all cells are empty; fresh pages read as
//! empty cells too.
//!
//! A cell's life:
//!
//! ```text
//!                hold            settle               settle
//!   Empty --------------> Held --------> Detached -------------> Dropped
//!     ^                    |  settle                                or
//!     |                    +----------------------------------> Acknowledged
//!     +------------------------- `Advance`, in order <--------------+
//! ```
//!
//! Writers:
//!
//! 1. Empty -> Held: the receiver, which alone hands out.
//! 2. Held -> Detached, and these -> Dropped or Acknowledged: the owner of the
//!    guard, which is one value; a final state is its last word.
//! 3. Final -> Empty: the holder of the advance lock. A Detached cell is not
//!    final: its message may still be acknowledged, so it stays.
//! 4. After its last store a guard only reads `asked`, the bell and the orphan. By then the
//!    block may serve another channel; that costs one spurious ring, or one check of an orphan.
//! 5. `asked` becomes ORPHANED when the receiver's handle goes while messages are out, and stays so
//!    until the lease ends: no peer is notified any more. From then on each guard looks, after its last
//!    store, whether it was the last, and the last one frees the memory that the guards read. It
//!    becomes so, too, while the handle of a channel that is over waits for a cell.

use std::fmt;
use std::ops::Deref;
use std::ptr;
use std::sync::{MutexGuard, PoisonError};

use ibex_base::{
    fork,
    sync::{Arc, Asymmetry, AtomicPtr, AtomicU32, AtomicU64, Mutex, Ordering, lock},
};

use super::{
    pages::{NoMemory, Pages},
    parking::bell::{Bell, RungEnd},
};

/// The release cells of one receiver.
///
/// A guard reads all fields here when it is dropped and the receiver writes
/// one of them when a peer starts to wait, so they share a line; the cells lie
/// elsewhere.
#[repr(C, align(64))]
pub struct CellBlock {
    /// The state of the question for this channel's counters: one of the `ASKED_*`.
    asked: AtomicU32,
    asymmetry: Asymmetry,
    /// Always a `&'static Bell`; changes when the block is leased again.
    bell: AtomicPtr<Bell>,
    /// Their number is a power of two.
    cells: Pages<AtomicU32>,
    /// The receiver's session, and its end there, which guards name when they ring.
    session: AtomicU64,
    end: AtomicU32,
    /// Who is notified of guards once no engine has the receiver.
    orphan: Mutex<Option<Arc<dyn Orphan>>>,
}

/// Who is notified of each guard that settles at a receiver that no engine has any more.
///
/// While the handle waits for a cell, this wakes it. When the handle is gone, this is the memory of
/// the messages that are out: a guard is `'static` and has no reference count, so its bytes are kept
/// for it. Dropping the value frees all of them, and gives up the lease of the cells.
pub trait Orphan: Send + Sync {
    /// Notes that a guard has settled. Returns whether none is left to settle.
    fn is_settled(&self) -> bool;
}

// States of `asked`. A guard has something to do from `ASKED` on.
/// No sender waits.
const ASKED_NOT: u32 = 0;
/// A settled cell rang; the engine has not looked yet.
const ASKED_RUNG: u32 = 1;
/// The next settled cell must ring.
const ASKED: u32 = 2;
/// No engine has the receiver: an [`Orphan`] learns of each settled cell.
const ORPHANED: u32 = 3;

/// The state of a message, as its cell has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum CellState {
    /// The message was not handed out.
    Empty = 0,
    /// A guard reads the record in place.
    Held = 1,
    /// The message was copied out: its space is free, it may still be
    /// acknowledged.
    Detached = 2,
    /// The message is gone without acknowledgement.
    Dropped = 3,
    /// The application has acknowledged it.
    Acknowledged = 4,
}

/// The contents of a cell, as [`CellBlock::cell`] found it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cell {
    /// The state of the message.
    pub state: CellState,
    /// Bytes of the record, header and padding included.
    pub size: u64,
}

impl CellBlock {
    /// Leases a block with cells for at least `messages` messages (at most
    /// [`MAX_CELLS`]), all empty. Guards that settle while a peer waits ring
    /// `bell`.
    ///
    /// # Errors
    /// The kernel gives no memory for a new one.
    pub fn lease(messages: usize, bell: &'static Bell) -> Result<CellLease, NoMemory> {
        let count = messages.clamp(MIN_CELLS, MAX_CELLS).next_power_of_two();
        let recycled = slab()[class(count)].pop();
        let block = recycled.map_or_else(|| Self::allocate(count), Ok)?;
        block.asked.store(ASKED_NOT, Ordering::Relaxed);
        // BELL, pairs with `bell`: a guard of an earlier channel (rule 4) may find this bell, and
        // nothing else orders the two.
        block
            .bell
            .store(ptr::from_ref(bell).cast_mut(), Ordering::Release);
        Ok(CellLease { block })
    }

    /// Returns how many messages may be handed out at a time.
    #[inline]
    #[must_use]
    pub fn capacity(&self) -> u64 {
        self.cells.len() as u64
    }

    /// The receiver hands out message `sequence`, whose record takes `size`
    /// bytes. [`Advance::last_cell`](super::Advance::last_cell) must have said
    /// that its cell is free.
    #[inline]
    pub fn hold(&self, sequence: u64, size: usize) {
        debug_assert_eq!(self.cell(sequence).state, CellState::Empty);
        // Relaxed: the guard that is made next reaches other threads only by means that order this
        // store before theirs. A thread that sums at the same time stops at Empty and at Held
        // alike.
        self.at(sequence as u32).store(
            CellState::Held as u32 | size_units(size) << SIZE_SHIFT,
            Ordering::Relaxed,
        );
    }

    /// Records the state that a guard gives its message, whose sequence has these low 32 bits and
    /// whose record takes `size_units` times 8 bytes. Rule 2 says which states may follow which.
    #[inline]
    pub fn settle(&'static self, sequence_low: u32, size_units: u32, state: CellState) {
        // SETTLE, pairs with `cell`: a thread that sees the state knows that the guard
        // has read its last byte. Model: loom_space_is_reused_after_settle.
        self.at(sequence_low)
            .store(state as u32 | size_units << SIZE_SHIFT, Ordering::Release);
        // ASK, pairs with `ask`: either we see the question here or the thread that
        // asked sees our cell. From here on the block may be another
        // channel's (rule 4). Model: loom_settled_while_asked.
        // It is the same with the orphan. Model: loom_a_guard_goes_beside_the_handle.
        self.asymmetry.light();
        if self.asked.load(Ordering::Relaxed) >= ASKED {
            self.answer();
        }
    }

    /// Returns the contents of the cell of message `sequence`.
    #[inline]
    #[must_use]
    pub fn cell(&self, sequence: u64) -> Cell {
        // SETTLE, pairs with `settle`.
        let word = self.at(sequence as u32).load(Ordering::Acquire);
        Cell {
            state: CellState::from_bits(word),
            size: u64::from(word >> SIZE_SHIFT) * SIZE_UNIT as u64,
        }
    }

    /// Empties the cell of message `sequence`, which is final; under the
    /// advance lock (rule 3).
    #[inline]
    pub(super) fn clear(&self, sequence: u64) {
        self.at(sequence as u32).store(0, Ordering::Relaxed);
    }

    /// Asks for this channel's counters: from now on the next guard that settles rings, once. The
    /// caller must sum the cells now, for guards that settled before they could know:
    /// [`Advance::ask`](super::Advance::ask) does both.
    pub(super) fn ask(&self) {
        // ASKED, pairs with `answer`: the guard that answers finds the bell and the name of this
        // receiver, and not those of an earlier one.
        self.asked.store(ASKED, Ordering::Release);
        self.asymmetry.heavy_here();
    }

    /// Ends the question: no sender waits any more.
    pub fn hush(&self) {
        self.asked.store(ASKED_NOT, Ordering::Relaxed);
    }

    /// Returns whether a sender waits for this channel's counters.
    #[must_use]
    pub fn is_asked(&self) -> bool {
        self.asked.load(Ordering::Relaxed) != ASKED_NOT
    }

    /// Returns whether a guard has rung since the last question. The cells hold the answer; a
    /// sender that waits for more must ask again.
    #[must_use]
    pub fn has_rung(&self) -> bool {
        // RUNG, pairs with `answer`: the sum that follows counts the guard's cell.
        self.asked.load(Ordering::Acquire) == ASKED_RUNG
    }

    /// Leaves memory that guards read in their care: the last guard frees it, or this call does if
    /// the last is gone by now.
    ///
    /// The receiver's handle calls this when it is dropped. Nothing is handed out any more, and no
    /// engine asks.
    pub fn leave_to_guards(&self, orphan: Arc<dyn Orphan>) {
        self.report_to(orphan);
        self.look_at_orphan();
    }

    /// Has `orphan` learn of each guard that settles from here on, in the place of a peer and of the
    /// orphan before. The caller must sum the cells now, as after a question.
    pub fn report_to(&self, orphan: Arc<dyn Orphan>) {
        *lock(&self.orphan) = Some(orphan);
        // ASK, pairs with `settle`, as in `ask`: either a guard sees that it has to look, or its
        // cell is seen here. A guard that sees it finds the orphan, which was put there before.
        self.asked.store(ORPHANED, Ordering::Relaxed);
        self.asymmetry.heavy_here();
    }

    /// Frees the orphan if all of its messages have settled.
    ///
    /// The lock is not held while the orphan is looked at or dropped, because both run code of
    /// other modules.
    fn look_at_orphan(&self) {
        let orphan = lock(&self.orphan).clone();
        // Of two guards that settle at the same time, the one that comes here later sees both
        // cells. As long as either has the orphan, the block is leased to it and has no other.
        if orphan.as_ref().is_some_and(|orphan| orphan.is_settled()) {
            let kept = lock(&self.orphan).take();
            drop(kept);
        }
    }

    /// The bell that guards ring.
    #[must_use]
    pub fn bell(&self) -> &'static Bell {
        // BELL, pairs with `lease`.
        let bell = self.bell.load(Ordering::Acquire);
        // SAFETY: `allocate` leaves null here, but no one else has the block
        // before `lease` has stored a pointer made from a `&'static Bell`, and
        // nothing else is ever stored. The block got to us by means that order
        // that store before this load.
        unsafe { &*bell }
    }

    /// Empties all cells and gives their memory back until one is held.
    ///
    /// # Safety
    ///
    /// No cell is held or detached, none is held during the call, and no other thread writes a
    /// cell: under the advance lock, or after the end of the channel.
    pub unsafe fn discard(&self) {
        // SAFETY: the caller promises that no cell is in use. A thread that reads during the call
        // stops at a final state and at an empty one alike.
        unsafe { self.cells.discard() };
    }

    #[cold]
    fn answer(&self) {
        if self.asked.load(Ordering::Relaxed) == ORPHANED {
            // A fork of the process frees nothing.
            if !fork::is_child() {
                self.look_at_orphan();
            }
            return;
        }
        // Each question gets one ring: the first guard that answers makes it, and the engine that
        // asked sums all cells.
        // RUNG, pairs with `has_rung`. ASKED, pairs with `ask`.
        let first =
            self.asked
                .compare_exchange(ASKED, ASKED_RUNG, Ordering::AcqRel, Ordering::Relaxed);
        if first.is_ok() {
            self.bell().ring(RungEnd {
                session: self.session.load(Ordering::Relaxed),
                end: self.end.load(Ordering::Relaxed),
            });
        }
    }

    #[inline]
    fn at(&self, sequence_low: u32) -> &AtomicU32 {
        &self.cells[sequence_low as usize & (self.cells.len() - 1)]
    }

    fn allocate(count: usize) -> Result<&'static Self, NoMemory> {
        let cells = Pages::new(count)?;
        Ok(Box::leak(Box::new(Self {
            asked: AtomicU32::new(ASKED_NOT),
            asymmetry: Asymmetry::of_process(),
            bell: AtomicPtr::new(ptr::null_mut()),
            cells,
            session: AtomicU64::new(0),
            end: AtomicU32::new(0),
            orphan: Mutex::new(None),
        })))
    }
}

impl fmt::Debug for CellBlock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let asked = match self.asked.load(Ordering::Relaxed) {
            ASKED_NOT => "no",
            ASKED_RUNG => "rung",
            ASKED => "yes",
            _ => "orphaned",
        };
        f.debug_struct("CellBlock")
            .field("capacity", &self.cells.len())
            .field("asked", &asked)
            .finish_non_exhaustive()
    }
}

impl CellState {
    #[inline]
    const fn from_bits(word: u32) -> Self {
        match word & STATE_MASK {
            0 => Self::Empty,
            1 => Self::Held,
            2 => Self::Detached,
            3 => Self::Dropped,
            4 => Self::Acknowledged,
            _ => unreachable!(),
        }
    }
}

/// The use of a block by one receiver.
///
/// Dropped while messages are held or detached, it does not give the block
/// back: their guards would settle cells of another channel. The block is lost
/// then, so code that ends a channel early
/// [leaves the lease to the guards](CellBlock::leave_to_guards).
#[derive(Debug)]
pub struct CellLease {
    block: &'static CellBlock,
}

impl CellLease {
    /// The block, for guards, which may outlive the lease.
    #[inline]
    #[must_use]
    pub fn block(&self) -> &'static CellBlock {
        self.block
    }

    /// Has guards that ring name this receiver, before a message is handed out.
    pub fn belong_to(&self, receiver: RungEnd) {
        self.block
            .session
            .store(receiver.session, Ordering::Relaxed);
        self.block.end.store(receiver.end, Ordering::Relaxed);
    }

    /// Returns whether no guard will touch its cell again. Stays true once nothing more is handed
    /// out.
    #[must_use]
    pub fn is_settled(&self) -> bool {
        self.block.cells.iter().all(|cell| {
            // SETTLE, pairs with `settle`: the memory that the guards read may be freed now.
            let word = cell.load(Ordering::Acquire);
            !matches!(
                CellState::from_bits(word),
                CellState::Held | CellState::Detached
            )
        })
    }
}

impl Deref for CellLease {
    type Target = CellBlock;

    #[inline]
    fn deref(&self) -> &CellBlock {
        self.block
    }
}

impl Drop for CellLease {
    fn drop(&mut self) {
        if fork::is_child() {
            return;
        }
        self.block.hush();
        // A handle that has waited for a cell has left one here.
        drop(lock(&self.block.orphan).take());
        // Under loom, an atomic belongs to one run of the model, so the block is not kept.
        if self.is_settled() && !cfg!(loom) {
            // SAFETY: the lease is the right to hold cells, and ends here; the advance of
            // the channel has ended before.
            unsafe { self.block.discard() };
            slab()[class(self.block.cells.len())].push(self.block);
        }
    }
}

/// The size of a record as cells and guards state it.
#[inline]
#[must_use]
pub const fn size_units(size: usize) -> u32 {
    debug_assert!(
        size.is_multiple_of(SIZE_UNIT) && size / SIZE_UNIT <= (u32::MAX >> SIZE_SHIFT) as usize
    );
    (size / SIZE_UNIT) as u32
}

/// Free blocks, by the binary logarithm of their size.
fn slab() -> MutexGuard<'static, [Vec<&'static CellBlock>; CLASSES]> {
    static SLAB: std::sync::Mutex<[Vec<&'static CellBlock>; CLASSES]> =
        std::sync::Mutex::new([const { Vec::new() }; CLASSES]);
    // No code panics between taking a block from the list and owning it.
    SLAB.lock().unwrap_or_else(PoisonError::into_inner)
}

const fn class(count: usize) -> usize {
    (count / MIN_CELLS).ilog2() as usize
}

/// The most messages that one channel can have handed out; 64 MiB of cells.
pub const MAX_CELLS: usize = 1 << 24;

/// Fewer would be less than a cache line.
const MIN_CELLS: usize = if cfg!(loom) { 2 } else { 16 };

const CLASSES: usize = class(MAX_CELLS) + 1;

// A cell's word: the state below, the record's size in units of 8 above.
const STATE_MASK: u32 = 0b111;
const SIZE_SHIFT: u32 = 3;
const SIZE_UNIT: usize = 8;

const _: () = assert!(
    crate::producer::MAX_CAPACITY / SIZE_UNIT <= (u32::MAX >> SIZE_SHIFT) as usize,
    "the size of every record fits its cell"
);

#[cfg(all(test, loom))]
mod models;
