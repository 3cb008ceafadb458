//! The receiving end of a channel: the state that its handle, its guards and the engine share.
//!
//! Guards reach only their release cells. `ReceiveEnd::advance` sums the cells, frees the memory
//! that the prefix has passed, and tells the sender. The handle calls it each quarter window and
//! before it sleeps. The engine calls it when a thread or task waits.

use std::sync::atomic::Ordering;
use std::{
    collections::VecDeque,
    mem,
    ops::Deref,
    ptr::NonNull,
    sync::{Arc, MutexGuard, OnceLock, Weak},
};

use ibex_base::{
    fork,
    sync::{AtomicBool, AtomicU64, Mutex, lock},
};
use ibex_protocol::format::{counters::Counters, record::first_position};
use ibex_ring::{
    Advance, ArrivalReader, ArrivalRetirer, CellLease, Orphan, Prefix,
    end_status::{SenderWords, Words},
    memory::{LargeLease, MemoryClaim},
};

use super::{channel_end::ChannelEnd, receive_path::ReceivePath, receive_times::ReceiveTimes};
use crate::{
    counter::Counter,
    session::{ChannelError, Counts, FailureReason},
    shared_memory::{MessageSegment, MessageSlots, PassedFd, PassedSegment, RingSegment},
    wire::{ArrivalMemory, FrameMemory, GrantedBlock, ProvidedRegions},
};

/// The state that a receiving handle, its guards' cells and its engine share.
#[derive(Debug)]
pub struct ReceiveEnd {
    // Identity and state.
    common: ChannelEnd,

    /// The path of its messages.
    pub(crate) path: ReceivePath,
    /// The sending end's words: the peer's own, or the engine's copy.
    pub(crate) theirs: OnceLock<Words<SenderWords>>,

    // Arrivals.
    /// The source of records, which the handle takes over when it first looks: frames or a ring.
    pub(crate) source: Mutex<Option<SourceOffer>>,
    /// True once `source` is set. Relaxed: the lock of `source` orders the rest.
    pub(crate) has_source: AtomicBool,
    /// Large messages that have arrived whole, by their order.
    pub(crate) large: Mutex<VecDeque<LargeArrival>>,
    /// Memory of the program for large messages to come.
    pub(crate) provided: Arc<ProvidedRegions>,
    /// Bytes of released large messages that came over a wire. Written under the advance lock.
    pub(crate) large_released: Counter,
    /// Messages that arrived over a wire, as the engine counts them.
    pub(crate) arrived: AtomicU64,
    /// The times of messages, if the node is inspected.
    pub(crate) times: Option<Box<ReceiveTimes>>,
    /// A message waits because there is no room for it within the node's `memory_limit`. Relaxed,
    /// because the flag only serves error texts and statistics.
    pub(crate) lacks_room: AtomicBool,

    // Messages that were handed out.
    pub(crate) cells: CellLease,
    pub(crate) prefix: Advance,
    /// Memory that is freed when the prefix passes it.
    pub(crate) held: Mutex<Held>,
    /// Messages handed out, for readers other than the handle.
    pub(crate) handed_out: AtomicU64,
    /// Messages with memory of their own among those, as the handle counts them.
    pub(crate) large_messages: Counter,
    pub(crate) large_bytes: Counter,
    /// The count of released messages that the sender was last notified of, and the position from which
    /// the ring begins.
    notified_released: AtomicU64,
    notified_position: AtomicU64,
    /// Number of released messages after which the sender is notified at the latest.
    pub(crate) tell_every: u64,
    /// The sender must also learn of the release of this message, the last but one released that
    /// came in a block: it would otherwise run short of blocks.
    owed_eager_block: AtomicU64,
    /// The prefix that the session's engine was last asked to announce.
    pub(crate) marked_released: AtomicU64,
    /// The session's engine was asked to announce the prefix and has not done so yet.
    pub(crate) is_marked: AtomicBool,
}

/// The source in which the handle finds records.
#[derive(Debug)]
pub(crate) enum SourceOffer {
    /// Frames in arrival blocks.
    Frames(ArrivalReader<Frame>),
    /// The sender's ring, to be mapped by the handle's own thread.
    Ring {
        /// The ring's memory.
        fd: PassedFd,
        /// The ring's length.
        capacity: u64,
    },
}

/// Records of this channel in arrival memory, checked by the engine.
#[derive(Debug)]
pub(crate) struct Frame {
    /// The first record.
    pub(crate) base: NonNull<u8>,
    pub(crate) bytes: usize,
    pub(crate) last_sequence: u64,
    /// Time of arrival, in nanoseconds since 1970; 0 if it is unknown.
    pub(crate) time: u64,
    #[allow(dead_code, reason = "held for its drop")]
    pub(crate) memory: FrameMemory,
}

// SAFETY: `base` points into `memory`, which is Send; a frame's bytes are only read.
unsafe impl Send for Frame {}

/// A large message that has arrived whole.
#[derive(Debug)]
pub(crate) struct LargeArrival {
    pub(crate) sequence: u64,
    pub(crate) length: usize,
    /// The time of arrival of its last piece; see [`Frame::time`].
    pub(crate) time: u64,
    pub(crate) place: LargePlace,
}

impl LargeArrival {
    /// Returns the length of the segment that came with the message, and that no slot has yet; 0 if
    /// none did.
    pub(crate) fn passed_bytes(&self) -> u64 {
        match self.place {
            LargePlace::Segment {
                capacity,
                passed: Some(_),
                ..
            } => capacity,
            _ => 0,
        }
    }
}

/// The place of a large message.
#[derive(Debug)]
pub(crate) enum LargePlace {
    /// In memory that this end granted.
    Granted(ArrivalMemory),
    /// In a block that this end granted ahead.
    Landed(Arc<GrantedBlock>),
    /// In a message segment of the sender.
    Segment {
        /// The segment's slot.
        slot: u32,
        /// The segment's length.
        capacity: u64,
        /// The segment's memory, unless the slot has it already.
        passed: Option<PassedSegment>,
    },
}

/// Memory that stays until the prefix has passed it.
#[derive(Debug, Default)]
pub(crate) struct Held {
    pub(crate) frames: Option<ArrivalRetirer<Frame>>,
    pub(crate) large: VecDeque<HeldLarge>,
    /// The ring itself, as long as any guard may read it. Shared memory only.
    pub(crate) ring: Option<RingSegment>,
    /// Segments in which large messages arrive. Shared memory only.
    pub(crate) slots: MessageSlots,
    /// The last message that came in a block and was released.
    pub(crate) last_landed: u64,
}

/// A large message that was handed out.
#[derive(Debug)]
pub(crate) struct HeldLarge {
    pub(crate) sequence: u64,
    pub(crate) length: usize,
    #[allow(dead_code, reason = "held for its drop")]
    pub(crate) memory: LargeMemory,
}

/// Memory of a large message that was handed out.
#[derive(Debug)]
#[allow(dead_code, reason = "held for its drop")]
pub(crate) enum LargeMemory {
    Granted(LargeLease),
    /// The message has it.
    Region,
    Landed(Arc<GrantedBlock>),
    /// In a segment, whose claim the messages in it share.
    Segment(Arc<MessageSegment>, Option<Arc<MemoryClaim>>),
    /// The message has a copy.
    Copied(Option<MemoryClaim>),
}

/// Gives access to the part that both ends have in common.
impl Deref for ReceiveEnd {
    type Target = ChannelEnd;

    #[inline]
    fn deref(&self) -> &ChannelEnd {
        &self.common
    }
}

impl ReceiveEnd {
    /// Makes an end whose guards settle in `cells`.
    pub(crate) fn new(
        common: ChannelEnd,
        path: ReceivePath,
        cells: CellLease,
        tell_every: u64,
    ) -> Self {
        Self {
            times: common.session.is_inspected().then(Box::default),
            common,
            path,
            theirs: OnceLock::new(),
            source: Mutex::default(),
            has_source: AtomicBool::new(false),
            large: Mutex::default(),
            provided: Arc::default(),
            large_released: Counter::default(),
            arrived: AtomicU64::new(0),
            lacks_room: AtomicBool::new(false),
            cells,
            prefix: Advance::default(),
            held: Mutex::default(),
            handed_out: AtomicU64::new(0),
            large_messages: Counter::default(),
            large_bytes: Counter::default(),
            notified_released: AtomicU64::new(0),
            notified_position: AtomicU64::new(0),
            tell_every,
            owed_eager_block: AtomicU64::new(0),
            marked_released: AtomicU64::new(0),
            is_marked: AtomicBool::new(false),
        }
    }

    /// Sums the cells, frees the memory that the prefix has passed, and tells the sender what it
    /// waits for.
    ///
    /// `idle` says that the handle is about to sleep: the sender then learns of any progress,
    /// however small.
    pub(crate) fn advance(&self, idle: bool) {
        let mut moved = false;
        self.prefix.run(&self.cells, |prefix| {
            self.passed(prefix);
            moved = true;
        });
        self.path.tell(self, idle, moved);
    }

    /// Answers a sender that waits: sums the cells now, and makes the next settled guard ring.
    pub(crate) fn answer_ask(&self) {
        let mut moved = false;
        self.prefix.ask(&self.cells, |prefix| {
            self.passed(prefix);
            moved = true;
        });
        self.path.tell(self, true, moved);
    }

    /// Gives back the memory that messages took, if all messages that were handed out have settled.
    /// Returns whether they have.
    ///
    /// # Safety
    ///
    /// No message waits to be handed out, and none arrives during the call.
    pub(crate) unsafe fn rest(&self) -> bool {
        // HAND, pairs with `ReceiveHandle::hand_out`: a message that is counted has its cell.
        let handed_out = self.handed_out.load(Ordering::Acquire);
        let discard = || {
            // SAFETY: all messages have settled, and the caller guarantees that no other comes.
            // This runs under the advance lock.
            unsafe { self.cells.discard() };
        };
        let passed = |prefix: &Prefix| self.passed(prefix);
        self.prefix.rest(&self.cells, handed_out, discard, passed)
    }

    /// Gives up the ring in shared memory after the sender has. The sender may do so once every
    /// message in the ring is released.
    pub(crate) fn ring_rests(&self) -> Result<(), String> {
        // The lock waits for a thread that is mapping a ring at this moment.
        let mut source = lock(&self.source);
        if source.take().is_some() {
            self.has_source.store(false, Ordering::Relaxed);
            return Ok(());
        }
        let mut held = self.held();
        // HAND, pairs with `ReceiveHandle::hand_out`.
        let handed_out = self.handed_out.load(Ordering::Acquire);
        if self.prefix.prefix().released != handed_out {
            return Err("a ring is given up while its messages are held".to_owned());
        }
        held.slots = MessageSlots::default();
        if let Some(ring) = &held.ring {
            // If the kernel refuses, the mapping stays and holds no records, only zeros. Where the
            // sender is of another user and says this beside the truth, a message that is being
            // copied becomes zeros.
            if let Err(error) = ring.vacate() {
                tracing::debug!(%error, "a ring that rests keeps its memory");
            }
        }
        drop(held);
        // The cells keep their memory where the sender is not trusted: it may have left a record in
        // the ring, which the handle takes out at this moment.
        if !self.session.copies_messages() {
            // SAFETY: the ring is empty, and no message comes during this call, since a sender of
            // this process's user has retired its producer before it said so.
            unsafe { self.rest() };
        }
        Ok(())
    }

    /// Notes that no call waits for this end's counters any more.
    pub(crate) fn hush(&self) {
        self.cells.hush();
    }

    /// Returns the counters, with the cells that have settled since the last sum. No lock of this
    /// end is held.
    pub(crate) fn summed(&self) -> Counters {
        if !fork::is_child() {
            self.advance(false);
        }
        self.counters()
    }

    /// The counters as they stand.
    pub(crate) fn counters(&self) -> Counters {
        self.counters_of(&self.prefix.prefix())
    }

    pub(super) fn counters_of(&self, prefix: &Prefix) -> Counters {
        Counters {
            received: self.handed_out.load(Ordering::Relaxed).max(prefix.released),
            released: prefix.released,
            released_position: self.ring_start() + prefix.position,
            acknowledged: prefix.acknowledged,
            acknowledgement_ended: prefix.acknowledgement_ended,
        }
    }

    /// Returns the position at which the sender's ring begins. It is known once the ends have
    /// agreed on one of the offered versions; until then no message is handed out.
    fn ring_start(&self) -> u64 {
        let agreed = self.state.agreed();
        agreed.map_or(0, |agreed| first_position(agreed.alignment as usize))
    }

    /// Notes that the sender has been sent `counters`.
    pub(crate) fn notified(&self, counters: &Counters) {
        self.notified_released
            .store(counters.released, Ordering::Relaxed);
        let position = counters.released_position - self.ring_start();
        self.notified_position.store(position, Ordering::Relaxed);
    }

    /// Frees the memory that the prefix has passed, then publishes the prefix. Called under the
    /// advance lock.
    fn passed(&self, prefix: &Prefix) {
        let mut held = self.held();
        if let Some(frames) = &mut held.frames {
            frames.retire_while(|frame| frame.last_sequence <= prefix.released);
        }
        let is_over = |large: &HeldLarge| large.sequence <= prefix.released;
        while held.large.front().is_some_and(is_over)
            && let Some(large) = held.large.pop_front()
        {
            if matches!(large.memory, LargeMemory::Landed(_)) {
                // Blocks are limited separately from large messages in granted memory.
                let before = mem::replace(&mut held.last_landed, large.sequence);
                self.owed_eager_block.store(before, Ordering::Relaxed);
            } else {
                self.large_released.add(large.length as u64);
            }
        }
        drop(held);
        self.path.publish(self, prefix);
    }

    /// Marks the end, so that its engine tells the sender of its progress, if the sender waits for
    /// the changes or enough is owed.
    pub(super) fn mark_progress(&self, idle: bool, moved: bool) {
        let prefix = self.prefix.prefix();
        let notified = self.notified_released.load(Ordering::Relaxed);
        let messages = prefix.released - notified;
        let bytes = prefix
            .position
            .saturating_sub(self.notified_position.load(Ordering::Relaxed));
        let owes_window = self.state.agreed().is_some_and(|agreed| {
            // Below this amount the changes wait for the next frame that is sent anyway.
            agreed.window.owes_changes(messages, bytes, self.tell_every)
        });
        let owes = owes_window || self.owed_eager_block.load(Ordering::Relaxed) > notified;
        // The sender asked, and the engine may have found this thread summing and left the answer
        // to it.
        let asked = moved && self.cells.is_asked();
        // The engine is asked once for each prefix. A waiting receiver runs this code repeatedly,
        // and the changes may wait longer than that for a frame.
        let is_new = prefix.released > self.marked_released.load(Ordering::Relaxed);
        if asked || (is_new && (owes || idle)) {
            self.marked_released
                .fetch_max(prefix.released, Ordering::Relaxed);
            let urgent = owes || asked;
            // MARK, pairs with `Receivers::prefix_moved`: the engine that takes this mark sees the
            // prefix.
            let is_marked = self.is_marked.swap(true, Ordering::Release);
            // An earlier mark may have been set without waking the engine.
            if urgent || !is_marked {
                self.session.requests.mark_released(self.id, urgent);
            }
        }
    }

    /// Returns the end of the channel as an error of a receiving call.
    pub(crate) fn error(&self) -> ChannelError {
        self.over(self.counts())
    }

    /// Returns the error of a receiving call.
    #[cold]
    pub(crate) fn failed(&self, reason: FailureReason) -> ChannelError {
        self.failure(self.counts(), reason).into()
    }

    /// Returns the channel's counters, as far as this end knows them. Messages that arrived after
    /// an incomplete message do not count as received.
    pub(crate) fn counts(&self) -> Counts {
        self.summed().into()
    }

    pub(crate) fn held(&self) -> MutexGuard<'_, Held> {
        lock(&self.held)
    }

    pub(crate) fn large(&self) -> MutexGuard<'_, VecDeque<LargeArrival>> {
        lock(&self.large)
    }

    /// Returns whether this message is the first of the large ones that have arrived.
    pub(crate) fn is_first_of_large(&self, sequence: u64) -> bool {
        let large = self.large();
        large.front().is_some_and(|next| next.sequence == sequence)
    }

    /// Takes over a large message that has arrived. A message that was announced earlier may still
    /// be on its way.
    pub(crate) fn large_came(&self, arrival: LargeArrival) {
        if let Some(times) = &self.times {
            times.large_arrived(arrival.sequence);
        }
        let mut large = self.large();
        let behind = large.partition_point(|other| other.sequence < arrival.sequence);
        large.insert(behind, arrival);
    }

    /// Gives the handle its source.
    pub(crate) fn provide(&self, source: SourceOffer) {
        *lock(&self.source) = Some(source);
        self.has_source.store(true, Ordering::Relaxed);
    }
}

/// An end whose handle is gone while messages are out. Its cells keep it for their guards.
impl Orphan for ReceiveEnd {
    fn is_settled(&self) -> bool {
        self.prefix.run(&self.cells, |prefix| self.passed(prefix));
        let handed_out = self.handed_out.load(Ordering::Relaxed);
        self.prefix.is_settled(handed_out)
    }
}

/// The handle of a channel that is over, which waits for a cell: no engine may have the end, so the
/// guards themselves wake the handle.
#[derive(Debug)]
pub(crate) struct WaitsForCell(pub(crate) Weak<ReceiveEnd>);

impl Orphan for WaitsForCell {
    fn is_settled(&self) -> bool {
        if let Some(end) = self.0.upgrade() {
            end.waiters.wake_all();
            end.cells.bell().wake();
        }
        // The cells may be another channel's by now, with an orphan of its own.
        false
    }
}
