//! The calls of one caller: those that wait for a place, those that wait for an answer, and the
//! answers that have come.
//!
//! This is pure state behind one short lock. Its methods return wakers, which are called after
//! unlocking.
//!
//! 1. A call has an entry from its first poll to its end, and a *number* while it is under way.
//!    There are as many numbers as calls may be under way. Calls without a number wait in a queue.
//! 2. The peer names a call by its number and the generation of its entry. A frame that names
//!    another generation is a stray, which is counted and dropped.
//! 3. Frames of a call lie in its entry; those of a stream up to its window.

#![forbid(unsafe_code)]

use std::{collections::VecDeque, mem, task::Waker, time::Instant};

use crate::{
    deadline_alarm::DeadlineAlarm,
    error::RepliesOver,
    frame::FrameBody,
    header::{CallId, Header, Kind},
};

/// Calls of one caller. See the module.
#[derive(Debug, Default)]
pub(crate) struct Slots {
    // Calls.
    entries: Vec<CallEntry>,
    vacant: Vec<u32>,
    generation: u32,

    // Calls under way.
    /// The entry that has each number.
    numbers: Vec<u32>,
    free_numbers: Vec<u32>,
    max_in_flight: u32,
    queue: VecDeque<CallKey>,
    /// Keys in the queue whose calls have left.
    stale: usize,

    // Waiting calls.
    /// Calls with wakers.
    waiting: usize,
    /// The call whose task is being polled: it takes in frames and then sees its own, so it needs no
    /// wake-up.
    polled: Option<CallKey>,
    alarm: DeadlineAlarm,
    /// No more answers come.
    over: Option<RepliesOver>,

    strays: u64,
}

#[derive(Debug, Default)]
struct CallEntry {
    generation: u32,
    is_taken: bool,
    number: Option<u32>,
    /// Items that may be there at a time, of a stream.
    window: u16,
    /// Items that were taken and not yet given back as credit.
    taken: u16,
    arrived: VecDeque<ArrivedFrame>,
    waker: Option<Waker>,
    deadline: Option<Instant>,
}

/// A call's entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CallKey {
    index: u32,
    pub(crate) generation: u32,
}

/// A frame that has come for a call.
#[derive(Debug)]
pub(crate) struct ArrivedFrame {
    pub(crate) header: Header,
    pub(crate) body: FrameBody,
}

/// The next frame of a call, or why none comes any more.
pub(crate) type NextFrame = Result<ArrivedFrame, RepliesOver>;

impl Slots {
    pub(crate) fn new(max_in_flight: u32) -> Self {
        Self {
            max_in_flight,
            ..Self::default()
        }
    }

    /// Makes an entry for a call. Returns its name, if it may be sent at once. `window` is that of
    /// a stream.
    pub(crate) fn claim(
        &mut self,
        deadline: Option<Instant>,
        window: u16,
    ) -> (CallKey, Option<CallId>) {
        let index = self.vacant.pop().unwrap_or_else(|| {
            self.entries.push(CallEntry::default());
            self.entries.len() as u32 - 1
        });
        self.generation = self.generation.wrapping_add(1);
        let generation = self.generation;
        let entry = &mut self.entries[index as usize];
        entry.generation = generation;
        entry.is_taken = true;
        entry.window = window;
        entry.taken = 0;
        entry.deadline = deadline;
        let key = CallKey { index, generation };
        if self.queue.is_empty()
            && let Some(number) = self.take_number(index)
        {
            self.entries[index as usize].number = Some(number);
            return (key, Some(CallId { number, generation }));
        }
        self.queue.push_back(key);
        (key, None)
    }

    fn take_number(&mut self, index: u32) -> Option<u32> {
        if let Some(number) = self.free_numbers.pop() {
            self.numbers[number as usize] = index;
            return Some(number);
        }
        let number = self.numbers.len() as u32;
        (number < self.max_in_flight).then(|| {
            self.numbers.push(index);
            number
        })
    }

    fn entry(&mut self, key: CallKey) -> Option<&mut CallEntry> {
        let entry = self.entries.get_mut(key.index as usize)?;
        (entry.is_taken && entry.generation == key.generation).then_some(entry)
    }

    /// The time until which the caller waits.
    pub(crate) fn set_deadline(&mut self, key: CallKey, deadline: Option<Instant>) {
        if let Some(entry) = self.entry(key) {
            entry.deadline = deadline;
        }
    }

    /// Returns the id by which the peer names the call, once the call may be sent.
    pub(crate) fn id(&mut self, key: CallKey) -> Option<CallId> {
        let number = self.entry(key)?.number?;
        Some(CallId {
            number,
            generation: key.generation,
        })
    }

    /// Returns the reason why no more answers come, if they do not.
    pub(crate) fn over(&self) -> Option<&RepliesOver> {
        self.over.as_ref()
    }

    /// Has the call's task or thread woken at its next frame. Returns the waker that it had.
    #[must_use = "it is dropped outside of the lock"]
    pub(crate) fn set_waker(&mut self, key: CallKey, waker: Option<&Waker>) -> Option<Waker> {
        let entry = self.entry(key)?;
        let before = match (&entry.waker, waker) {
            (Some(had), Some(waker)) if had.will_wake(waker) => return None,
            (_, waker) => mem::replace(&mut entry.waker, waker.cloned()),
        };
        self.waiting += usize::from(waker.is_some());
        self.waiting -= usize::from(before.is_some());
        before
    }

    /// Begins the poll of a call's task, which ends with [`end_poll`](Self::end_poll).
    #[must_use = "it is dropped outside of the lock"]
    pub(crate) fn begin_poll(&mut self, key: CallKey, waker: &Waker) -> Option<Waker> {
        self.polled = Some(key);
        self.set_waker(key, Some(waker))
    }

    /// Returns what there is for a call whose task has just taken in frames itself.
    pub(crate) fn end_poll(&mut self, key: CallKey) -> Option<NextFrame> {
        if self.polled == Some(key) {
            self.polled = None;
        }
        self.next_frame(key)
    }

    /// Returns whether a task waits to be woken by an arriving frame.
    pub(crate) fn is_waited_for(&self) -> bool {
        self.waiting > 0
    }

    /// Returns the next frame that has come for a call, or why none comes any more. `None` while
    /// there is neither.
    pub(crate) fn next_frame(&mut self, key: CallKey) -> Option<NextFrame> {
        match self.entry(key)?.arrived.pop_front() {
            Some(arrived) => Some(Ok(arrived)),
            None => self.over.clone().map(Err),
        }
    }

    /// Counts an item of a stream that was taken. Returns how many more may come, once that is
    /// worth a frame.
    pub(crate) fn item_taken(&mut self, key: CallKey) -> Option<u16> {
        let entry = self.entry(key)?;
        entry.taken += 1;
        let is_due = entry.taken >= entry.window.div_ceil(2);
        is_due.then(|| mem::take(&mut entry.taken))
    }

    /// Takes in a frame that has arrived. Returns the waker of the call's task, which is woken or
    /// dropped outside of the lock, and whether the task is being polled, so that it needs no
    /// wake-up.
    pub(crate) fn deliver(&mut self, arrived: ArrivedFrame) -> (Option<Waker>, bool) {
        let CallId { number, generation } = arrived.header.id;
        let index = self.numbers.get(number as usize).copied();
        let key = index.map(|index| CallKey { index, generation });
        let entry = key.and_then(|key| self.entry(key));
        let entry = entry.filter(|entry| entry.number == Some(number));
        let is_item = arrived.header.kind == Kind::Item;
        // Beyond the window of items there is room for one more frame, the one that ends the call.
        let room = |entry: &CallEntry| match is_item {
            true => entry.arrived.len() < entry.window.into(),
            false => entry.arrived.len() <= entry.window.into(),
        };
        let Some(entry) = entry.filter(|entry| room(entry)) else {
            self.strays += 1;
            return (None, false);
        };
        entry.arrived.push_back(arrived);
        let waker = entry.waker.take();
        self.waiting -= usize::from(waker.is_some());
        (waker, key == self.polled)
    }

    /// Ends a call and passes its number to the next call in the queue. Returns the waker of that
    /// call, and the ended call's own, which is dropped outside of the lock.
    pub(crate) fn leave(&mut self, key: CallKey) -> [Option<Waker>; 2] {
        let Some(entry) = self.entry(key) else {
            return [None, None];
        };
        entry.is_taken = false;
        entry.arrived.clear();
        entry.deadline = None;
        let own = entry.waker.take();
        let number = entry.number.take();
        self.waiting -= usize::from(own.is_some());
        self.vacant.push(key.index);
        let next = match number {
            Some(number) => self.pass_on(number),
            None => {
                self.leave_queue();
                None
            }
        };
        [next, own]
    }

    /// Counts a call that left the queue, and sweeps the queue once many have.
    fn leave_queue(&mut self) {
        self.stale += 1;
        if self.stale > MAX_STALE && 2 * self.stale > self.queue.len() {
            let mut queue = mem::take(&mut self.queue);
            queue.retain(|&key| self.entry(key).is_some());
            self.queue = queue;
            self.stale = 0;
        }
    }

    fn next_in_queue(&mut self) -> Option<CallKey> {
        loop {
            let next = self.queue.pop_front()?;
            if self.entry(next).is_some() {
                return Some(next);
            }
            self.stale -= 1;
        }
    }

    /// Gives a number to the call that has waited longest for one.
    fn pass_on(&mut self, number: u32) -> Option<Waker> {
        let Some(next) = self.next_in_queue() else {
            self.free_numbers.push(number);
            return None;
        };
        self.numbers[number as usize] = next.index;
        let entry = &mut self.entries[next.index as usize];
        entry.number = Some(number);
        let waker = entry.waker.take();
        self.waiting -= usize::from(waker.is_some());
        waker
    }

    /// No more answers come.
    pub(crate) fn end(&mut self, over: RepliesOver) -> Vec<Waker> {
        self.over.get_or_insert(over);
        self.waiting = 0;
        let wakers = self.entries.iter_mut().map(|entry| entry.waker.take());
        wakers.flatten().collect()
    }

    /// Takes the wakers of the calls that wait for their turn.
    pub(crate) fn unsent(&mut self) -> Vec<Waker> {
        let unsent = self
            .entries
            .iter_mut()
            .filter(|entry| entry.number.is_none());
        let wakers: Vec<_> = unsent.filter_map(|entry| entry.waker.take()).collect();
        self.waiting -= wakers.len();
        wakers
    }

    /// Copies out the replies that lie here in place, so that they do not stop later frames.
    pub(crate) fn copy_out(&mut self) {
        let arrived = self.entries.iter_mut().flat_map(|entry| &mut entry.arrived);
        arrived.for_each(|arrived| arrived.body.copy_out());
    }

    // ---- Time ------------------------------------------------------------------------

    /// Returns whether an alarm must be set for a call's deadline, because the present one is
    /// later.
    pub(crate) fn wants_alarm(&mut self, at: Instant) -> bool {
        self.alarm.wants(at)
    }

    /// Takes the wakers of the calls whose time is over, and returns when to check again.
    pub(crate) fn expire(&mut self, now: Instant) -> (Vec<Waker>, Option<Instant>) {
        let entries = self.entries.iter_mut();
        let calls = entries.map(|entry| (&mut entry.waker, entry.deadline));
        let (late, next) = self.alarm.expire(now, calls);
        self.waiting -= late.len();
        (late, next)
    }

    // ---- Counts ----------------------------------------------------------------------

    /// Calls that have a number.
    pub(crate) fn in_flight(&self) -> usize {
        self.numbers.len() - self.free_numbers.len()
    }

    /// Calls that wait for one.
    pub(crate) fn queued(&self) -> usize {
        self.queue.len() - self.stale
    }

    /// Frames that were for no call.
    pub(crate) fn strays(&self) -> u64 {
        self.strays
    }

    pub(crate) fn count_stray(&mut self) {
        self.strays += 1;
    }
}

/// Calls that may have left the queue before it is swept.
const MAX_STALE: usize = 64;
