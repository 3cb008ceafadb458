//! The slot in which threads and tasks that wait for one end of a channel leave their wakers.
//!
//! ```text
//!   waiter                          thread that makes it come true
//!   register                        publish
//!   (heavy barrier inside)          (light barrier inside)
//!   look again: there?              is_waiting?
//!     no: sleep                       take the wakers; later, wake them
//! ```
//!
//! The slot survives this race: the condition comes true between the waiter's first check and its
//! registration. The barriers order both sides' writes before their reads, so either the second
//! look finds the condition true or `is_waiting` returns true. Model: loom_registered_or_seen.
//!
//! As with the [armed word](crate::doorbell), the heavy barrier is needed once: the first waiter also
//! sets a bit by which other threads know that they have to make a full fence and look again. From
//! then on waiters only fence, until nobody has waited for a while. Model:
//! loom_registered_again_or_seen.
//!
//! Each registration is an entry of its own, also where wakers are the same: futures of one task
//! share a waker, and a future that is done, or dropped, must not remove the entry of another. So a
//! waiter gets a ticket, by which it takes back its own entry and no other. A waiter that registers
//! again while its entry is there keeps the entry, so that there are no more entries than waiters.
//! The barriers of the first registration still hold.
//!
//! Wakers are foreign code, so an engine takes them under its lock and calls them after it. A waker
//! that panics is reported and wakes no thread or task; the wakers behind it are called
//! nevertheless.

use std::sync::PoisonError;
use std::task::Waker;
use std::{mem, num::NonZeroU64};

use ibex_base::fork;
use ibex_base::sync::{Asymmetry, AtomicU32, Mutex, MutexGuard, Ordering, fence};

use super::wakers::{self, Wakers};

/// A place to wait at, for threads and tasks alike.
#[derive(Debug)]
pub struct WaitSlot {
    /// [`WAITING`] while there are wakers, and [`FENCED`]; written under the lock of the entries.
    waiting: AtomicU32,
    /// Checks in vain since a waiter registered, for which there was a fence.
    in_vain: AtomicU32,
    asymmetry: Asymmetry,
    entries: Mutex<Entries>,
}

/// A waiter's claim to the entry it left in a slot. The claim has no effect in another slot, or
/// after the waker was taken.
#[derive(Debug)]
#[must_use = "by it the entry is taken back"]
pub struct Ticket(NonZeroU64);

const WAITING: u32 = 1;
/// Who looks for waiters makes a full fence and looks again.
const FENCED: u32 = 2;
/// After this many fences in vain, looks do without.
const MOST_IN_VAIN: u32 = 64;

#[derive(Debug)]
struct Entries {
    /// The ticket of the waiter that has set the bit [`FENCED`]; threads know of the bit after the next
    /// heavy barrier. [`KNOWN`] once there was one: then a waiter fences as well.
    fenced_by: Option<NonZeroU64>,
    /// The next ticket's number.
    next: NonZeroU64,
    /// The wakers, under the numbers of their tickets.
    wakers: Vec<(NonZeroU64, Waker)>,
}

/// A ticket that no waiter gets.
const KNOWN: NonZeroU64 = NonZeroU64::MAX;

impl Entries {
    /// Makes room for one more waker. Most ends have one waiter at most, and there are many ends.
    fn reserve(&mut self) {
        match self.wakers.capacity() {
            0 => self.wakers.reserve_exact(1),
            _ => self.wakers.reserve(1),
        }
    }
}

impl WaitSlot {
    /// Creates a slot without waiters.
    #[must_use]
    pub fn new() -> Self {
        Self::with_capacity(0)
    }

    #[cfg(test)]
    fn of(asymmetry: Asymmetry) -> Self {
        Self {
            asymmetry,
            ..Self::new()
        }
    }

    /// Creates a slot in which this many may wait without a call of the allocator.
    #[must_use]
    pub fn with_capacity(waiters: usize) -> Self {
        Self {
            waiting: AtomicU32::new(0),
            in_vain: AtomicU32::new(0),
            asymmetry: Asymmetry::of_process(),
            entries: Mutex::new(Entries {
                fenced_by: None,
                next: NonZeroU64::MIN,
                wakers: Vec::with_capacity(waiters),
            }),
        }
    }

    /// Leaves a waker. The caller must look again now, and may sleep only if its condition is still
    /// not true.
    pub fn register(&self, waker: &Waker) -> Ticket {
        let mut entries = self.entries();
        let number = entries.next;
        entries.next = number.saturating_add(1);
        entries.reserve();
        entries.wakers.push((number, waker.clone()));
        if self.asymmetry == Asymmetry::Membarrier {
            entries.fenced_by.get_or_insert(number);
        }
        self.state_waiting(&entries);
        self.in_vain.store(0, Ordering::Relaxed);
        let fenced_by = entries.fenced_by;
        drop(entries);
        if fenced_by == Some(KNOWN) {
            // WAITING, pairs with the fence in `is_waiting_behind_fence`.
            fence(Ordering::SeqCst);
            return Ticket(number);
        }
        // WAITING, pairs with the light half in `is_waiting`: either the other thread sees the waker,
        // or the check that follows sees what it did.
        self.asymmetry.heavy_here();
        if fenced_by.is_some() {
            self.make_known(number);
        }
        Ticket(number)
    }

    /// Notes that there was a heavy barrier behind the registration with this ticket.
    #[cold]
    fn make_known(&self, ticket: NonZeroU64) {
        let mut entries = self.entries();
        // A bit that was cleared and set again has a barrier of its own to come.
        if entries.fenced_by.is_some_and(|first| first <= ticket) {
            entries.fenced_by = Some(KNOWN);
        }
    }

    /// Writes the word for the entries as they are.
    fn state_waiting(&self, entries: &Entries) {
        let waiting = u32::from(!entries.wakers.is_empty()) * WAITING;
        let fenced = u32::from(entries.fenced_by.is_some()) * FENCED;
        self.waiting.store(waiting | fenced, Ordering::Relaxed);
    }

    /// Makes room for a waker, so that the first waiter does not call the allocator.
    pub fn prepare(&self) {
        self.entries().reserve();
    }

    /// Takes a waker back that is not needed any more. Returns whether it was still there. If not,
    /// it was called or is about to be.
    pub fn deregister(&self, ticket: Ticket) -> bool {
        let Ticket(mine) = ticket;
        let mut entries = self.entries();
        let index = entries
            .wakers
            .iter()
            .position(|&(number, _)| number == mine);
        let entry = index.map(|index| entries.wakers.swap_remove(index));
        self.state_waiting(&entries);
        drop(entries);
        // The drop of a waker is foreign code too.
        entry.is_some()
    }

    /// Takes back the waker that the ticket `held` stands for, if there is a ticket. Returns
    /// whether the waker was still there. In a fork of the process nobody uses the waker, and the
    /// list may be locked for ever, so the ticket is only dropped.
    pub fn leave(&self, held: &mut Option<Ticket>) -> bool {
        let ticket = held.take();
        ticket.is_some_and(|ticket| !fork::is_child() && self.deregister(ticket))
    }

    /// Registers in the place of the entry that the ticket `held` stands for, if there is a ticket.
    /// Returns whether the entry is a new one; an entry that no thread took stays, with this waker.
    ///
    /// An entry that stays needs no barrier: a thread that makes something true from now on has not
    /// looked for wakers yet, or looks under the lock, and finds this one.
    pub fn renew(&self, held: &mut Option<Ticket>, waker: &Waker) -> bool {
        let is_there = held
            .as_ref()
            .is_some_and(|ticket| self.replace(ticket, waker));
        if !is_there {
            *held = Some(self.register(waker));
        }
        !is_there
    }

    /// Puts a waker into the place of another. Returns whether the other was still there.
    fn replace(&self, &Ticket(mine): &Ticket, waker: &Waker) -> bool {
        let mut entries = self.entries();
        let mut wakers = entries.wakers.iter_mut();
        let Some((_, entry)) = wakers.find(|&&mut (number, _)| number == mine) else {
            return false;
        };
        let before = (!entry.will_wake(waker)).then(|| mem::replace(entry, waker.clone()));
        drop(entries);
        // The drop of a waker is foreign code too.
        drop(before);
        true
    }

    /// Returns whether a thread or task waits. Ask after making the condition true.
    #[inline]
    #[must_use = "who waits must be woken"]
    pub fn is_waiting(&self) -> bool {
        // WAITING, pairs with the heavy half in `register`.
        self.asymmetry.light();
        match self.waiting.load(Ordering::Relaxed) {
            0 => false,
            FENCED => self.is_waiting_behind_fence(),
            _ => true,
        }
    }

    fn is_waiting_behind_fence(&self) -> bool {
        // WAITING, pairs with the fence in `register`.
        fence(Ordering::SeqCst);
        let is_waiting = self.waiting.load(Ordering::Relaxed) & WAITING != 0;
        if !is_waiting {
            // Threads that count at the same time may count one for two.
            let in_vain = self.in_vain.load(Ordering::Relaxed) + 1;
            self.in_vain.store(in_vain, Ordering::Relaxed);
            if in_vain >= MOST_IN_VAIN {
                self.do_without_fences();
            }
        }
        is_waiting
    }

    /// Clears the bit, unless somebody waits.
    #[cold]
    fn do_without_fences(&self) {
        let mut entries = self.entries();
        if entries.wakers.is_empty() {
            entries.fenced_by = None;
            self.state_waiting(&entries);
        }
    }

    /// Moves all wakers into `into`, to be woken when no lock is held. Make the condition true
    /// before the call.
    #[inline]
    pub fn take(&self, into: &mut Wakers) {
        if self.is_waiting() {
            self.take_all(into);
        }
    }

    fn take_all(&self, into: &mut Wakers) {
        let mut entries = self.entries();
        into.extend(entries.wakers.drain(..).map(|(_, waker)| waker));
        self.state_waiting(&entries);
    }

    /// Wakes all waiters, if there are any; for callers that hold no lock.
    pub fn wake_all(&self) {
        if !self.is_waiting() {
            return;
        }
        // Waiters that register again while they are woken are not woken twice.
        let count = self.entries().wakers.len();
        for _ in 0..count {
            self.wake_first();
        }
    }

    /// Wakes the waiter that has waited longest, if there is one; for callers that hold no lock.
    /// Returns whether there was one.
    pub fn wake_one(&self) -> bool {
        self.is_waiting() && self.wake_first()
    }

    fn wake_first(&self) -> bool {
        let mut entries = self.entries();
        let wakers = &mut entries.wakers;
        let first = (!wakers.is_empty()).then(|| wakers.remove(0));
        self.state_waiting(&entries);
        drop(entries);
        first.map(|(_, waker)| wakers::call(waker)).is_some()
    }

    fn entries(&self) -> MutexGuard<'_, Entries> {
        // Foreign code clones wakers under this lock. The list stays whole if that code panics.
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Default for WaitSlot {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::task::Wake;

    /// Counts its wake-ups.
    #[derive(Default)]
    pub(super) struct Count(pub(super) AtomicU32);

    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    impl Count {
        pub(super) fn get(&self) -> u32 {
            self.0.load(Ordering::Relaxed)
        }
    }

    #[cfg(not(loom))]
    #[test]
    fn each_registration_is_woken_once() {
        let slot = super::WaitSlot::new();
        let (one, two) = (Arc::new(Count::default()), Arc::new(Count::default()));
        let waker = one.clone().into();
        let _tickets = [
            slot.register(&waker),
            slot.register(&waker),
            slot.register(&two.clone().into()),
        ];
        assert!(slot.is_waiting());

        slot.wake_all();
        assert!(!slot.is_waiting());
        slot.wake_all();
        assert_eq!((one.get(), two.get()), (2, 1));
    }

    #[cfg(not(loom))]
    #[test]
    fn taken_wakers_are_the_takers_and_deregistered_ones_nobodys() {
        let slot = super::WaitSlot::new();
        let (one, two) = (Arc::new(Count::default()), Arc::new(Count::default()));
        let gone = slot.register(&one.clone().into());
        let _stays = slot.register(&two.clone().into());
        slot.deregister(gone);
        assert!(slot.is_waiting());

        let mut wakers = super::Wakers::new();
        slot.take(&mut wakers);
        assert!(!slot.is_waiting());
        wakers.wake();
        assert_eq!((one.get(), two.get()), (0, 1));
    }

    /// Both wakers were taken. One waiter waits again; the other does not, and has the older
    /// ticket.
    #[cfg(not(loom))]
    #[test]
    fn a_waiter_that_leaves_takes_back_its_own_of_equal_wakers() {
        let slot = super::WaitSlot::new();
        let count = Arc::new(Count::default());
        let waker = count.clone().into();
        let (mut one, mut two) = (None, None);
        slot.renew(&mut one, &waker);
        slot.renew(&mut two, &waker);
        slot.take(&mut super::Wakers::new());
        slot.renew(&mut one, &waker);
        // The second waiter's waker was used, and it has no new ticket.
        assert!(!slot.leave(&mut two));
        assert!(two.is_none());
        assert!(slot.is_waiting());
        // A waiter that is polled again is still one waiter.
        slot.renew(&mut one, &waker);
        slot.wake_all();
        assert_eq!(count.get(), 1);
        slot.renew(&mut one, &waker);
        assert!(slot.leave(&mut one));
        assert!(!slot.is_waiting());
    }

    #[cfg(not(loom))]
    #[test]
    fn a_waiter_that_registers_again_keeps_its_entry_with_the_newest_waker() {
        let slot = super::WaitSlot::new();
        let (one, two) = (Arc::new(Count::default()), Arc::new(Count::default()));
        let (first, second) = (one.clone().into(), two.clone().into());
        let mut ticket = None;
        assert!(slot.renew(&mut ticket, &first));
        assert!(!slot.renew(&mut ticket, &first));
        assert!(!slot.renew(&mut ticket, &second));
        drop(first);
        assert_eq!(Arc::strong_count(&one), 1);
        slot.wake_all();
        assert_eq!((one.get(), two.get()), (0, 1));
        // The entry was taken, so this registration makes a new one.
        assert!(slot.renew(&mut ticket, &second));
        assert!(slot.leave(&mut ticket));
        assert!(!slot.is_waiting());
    }

    #[cfg(not(loom))]
    #[test]
    fn looks_fence_for_a_while_after_a_wait() {
        use super::*;
        let slot = WaitSlot::of(Asymmetry::Membarrier);
        let waker = Arc::new(Count::default()).into();
        for _ in 0..2 {
            for _ in 0..2 {
                let ticket = slot.register(&waker);
                assert!(slot.is_waiting());
                assert!(slot.deregister(ticket));
                assert_eq!(slot.entries().fenced_by, Some(KNOWN));
                for _ in 1..MOST_IN_VAIN {
                    assert!(!slot.is_waiting());
                }
                assert_eq!(slot.waiting.load(Ordering::Relaxed), FENCED);
            }
            assert!(!slot.is_waiting());
            assert_eq!(slot.waiting.load(Ordering::Relaxed), 0);
            assert_eq!(slot.entries().fenced_by, None);
        }
    }

    #[cfg(not(loom))]
    #[test]
    fn a_waiter_that_registers_while_woken_waits_for_the_next_wake() {
        struct Again(super::WaitSlot, AtomicU32);
        impl Wake for Again {
            fn wake(self: Arc<Self>) {
                self.1.fetch_add(1, Ordering::Relaxed);
                let _ticket = self.0.register(&self.clone().into());
            }
        }
        let again = Arc::new(Again(super::WaitSlot::new(), AtomicU32::new(0)));
        let _ticket = again.0.register(&again.clone().into());
        again.0.wake_all();
        again.0.wake_all();
        assert_eq!(again.1.load(Ordering::Relaxed), 2);
        assert!(again.0.is_waiting());
        // The slot holds its own owner, so the circle has to be broken.
        again.0.take(&mut super::Wakers::new());
    }
}

#[cfg(all(test, loom))]
mod models;
