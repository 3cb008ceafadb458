//! Inputs and outputs of a session: records to send, bodies of frames, arrivals, events, and the
//! errors that a peer can make.
#![forbid(unsafe_code)]

use std::sync::Arc;

#[cfg(doc)]
use super::Session;
#[cfg(doc)]
use crate::format::record::LargeAnnouncement;
use crate::{
    credit::{
        reserved_buffer::ReserveOverrun,
        session::{BadSurrender, CONTROL_RESERVE_BYTES, CreditOverrun, CreditShrank},
    },
    format::{
        channel_window::ChannelWindow,
        control::{ChannelSpec, CloseReason, MalformedControl, Role},
        counters::{Counters, ImpossibleCounters},
        frame::MalformedFrame,
    },
    transfer::{
        eager_write::EagerBlockId,
        rendezvous::{Chunk, RemoteMemory},
    },
};

/// The published records that are not in a frame yet.
pub trait RecordSource {
    /// Takes the longest run of whole records of `end` that has at most `batch` bytes, or the first
    /// record alone if that has at most `single`; `None` if there is none.
    fn take_run(&mut self, end: u32, batch: usize, single: usize) -> Option<Run>;

    /// Returns whether a record waits.
    fn has_records(&mut self, end: u32) -> bool;

    /// Handles a record at `position`, which was taken and announces a message in a block that is
    /// the peer's again. The record is [made to say](LargeAnnouncement::forget_block) that the
    /// message goes by itself.
    fn forget_block(&mut self, end: u32, position: u64);
}

/// Whole records that stand one behind the other in a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// Ring position of the first.
    pub position: u64,
    /// The length of the records.
    pub bytes: usize,
    /// The number of records.
    pub records: u64,
    /// The length of the last record if it announces a large message, and 0 otherwise. No other
    /// record of a run announces one.
    pub announcement: usize,
}

/// The body behind the head of a frame that [`Session::poll_transmit`] built.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Body {
    /// No body: the frame is whole in `head`.
    Inline,
    /// Bytes of a sending end's ring.
    Records {
        /// The end whose ring it is.
        end: u32,
        /// The position of the first record.
        position: u64,
        /// The number of bytes.
        bytes: usize,
    },
    /// Bytes of a large message.
    Chunk {
        /// The end that sends the message.
        end: u32,
        /// The bytes of the message.
        chunk: Chunk,
    },
    /// Bytes of a large message, to be written into the peer's memory before any frame that is
    /// built after this: they are no frame, and have no head. Tell the session [when they have
    /// arrived](super::EndTable::writes_are_done).
    Write {
        /// The end that sends the message.
        end: u32,
        /// The bytes of the message.
        chunk: Chunk,
        /// The memory that the message goes to.
        memory: RemoteMemory,
    },
    /// A message of medium size, to be written into a block behind its head. Such a write is no
    /// frame either.
    EagerBlock {
        /// The end that sends the message.
        end: u32,
        /// The whole message.
        chunk: Chunk,
        /// The memory of the block.
        memory: RemoteMemory,
        /// The word to send as immediate data with the write, if there is one.
        word: Option<EagerBlockWord>,
    },
}

/// The head and the record that go with a message into its block: the head that was built like
/// that of a frame, and one record, which lies in the ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EagerBlockWord {
    /// The immediate data.
    pub immediate: u32,
    /// Ring position of the record.
    pub position: u64,
    /// The record's length.
    pub bytes: usize,
}

impl Body {
    /// Returns how many bytes follow the head.
    #[must_use]
    pub fn bytes(&self) -> usize {
        match self {
            Body::Inline => 0,
            Body::Records { bytes, .. } => *bytes,
            Body::Chunk { chunk, .. }
            | Body::Write { chunk, .. }
            | Body::EagerBlock { chunk, .. } => chunk.bytes,
        }
    }
}

/// The contents of a frame that the host has to place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrival {
    /// The frame was for the session itself.
    Nothing,
    /// Records lie at `offset..offset + bytes` of the frame, checked.
    Records {
        /// The receiving end.
        end: u32,
        /// The offset of the records in the frame.
        offset: usize,
        /// The length of the records.
        bytes: usize,
        /// The first one's sequence.
        first_sequence: u64,
        /// The number of records.
        records: u64,
    },
    /// The frame's body is for an end that is closed here: skip it.
    Unwanted,
    /// The chunk's bytes belong into granted memory.
    Chunk {
        /// The receiving end.
        end: u32,
        /// The place of the chunk in its message.
        chunk: Chunk,
        /// The chunk is the message's last.
        complete: bool,
    },
    /// The next large message of a receiving end lies whole in the memory that was granted
    /// for it.
    Written {
        /// The receiving end.
        end: u32,
        /// The message's sequence.
        sequence: u64,
    },
}

/// A message that was a frame of its own: its record lies at `offset..offset + bytes` of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoneRecord {
    /// The receiving end.
    pub end: u32,
    /// The offset of the record in the frame.
    pub offset: usize,
    /// The record's length.
    pub bytes: usize,
    /// The message's number.
    pub sequence: u64,
}

/// An event that the host must know of or act on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SessionEvent {
    /// The peer opened an end whose counterpart is not open here.
    PeerOpened {
        /// The channel's name.
        name: Arc<str>,
        /// The role of the end that the peer opened.
        role: Role,
    },
    /// Both ends of a channel are open.
    Opened {
        /// The number of our end.
        end: u32,
        /// The number of the peer's end.
        peer_end: u32,
        /// The terms that hold for both.
        agreed: Agreed,
    },
    /// Both ends are open and do not fit each other; the channel has ended.
    Mismatched {
        /// The number of our end.
        end: u32,
        /// The terms of the peer's end.
        theirs: Arc<ChannelSpec>,
    },
    /// A sending end has received changes from its receiver.
    Counted {
        /// The sending end.
        end: u32,
        /// The joined counters.
        counters: Counters,
    },
    /// The sender of a receiving end waits for its application.
    Asked {
        /// The receiving end.
        end: u32,
    },
    /// Changes of a receiving end are on their way.
    Notified {
        /// The receiving end.
        end: u32,
        /// The counters that were reported.
        counters: Counters,
    },
    /// The other end of a channel was closed.
    PeerClosed {
        /// The number of our end.
        end: u32,
        /// The reason of the close.
        reason: CloseReason,
        /// The sequence of the last message, for a receiving end.
        final_sequence: u64,
    },
    /// A large message was announced: memory is wanted, then [`Session::grant`],
    /// [`Session::grant_memory`] or [`Session::read_large`].
    LargeAnnounced {
        /// The receiving end.
        end: u32,
        /// The message's sequence.
        sequence: u64,
        /// The message's length.
        length: u64,
        /// The message may be read in the peer's memory.
        is_offered: bool,
    },
    /// The peer no longer needs a block that it was granted.
    EagerBlockReturned {
        /// The block's index.
        index: u16,
    },
    /// A local end was closed on both sides and nothing of it is left here.
    Forgotten {
        /// The number of our end.
        end: u32,
    },
    /// The peer closes the session.
    Goodbye {
        /// The words of the peer's program, if it ended this session alone; `None` if its whole node
        /// closes.
        reason: Option<Arc<str>>,
    },
    /// The peer has ended the session, and takes nothing more.
    Abandoned,
    /// The peer no longer begins calls that it serves.
    Draining {
        /// The peer has answered all calls that it had begun.
        is_done: bool,
    },
    /// Bytes that this end sent were damaged on their way, as the peer has found.
    Damaged {
        /// The total number of times.
        times: u64,
    },
    /// Asks the host to take records again: not all of a sending end's records arrived over the
    /// old wires. Before the next frame is asked for, the records behind message `received` have
    /// to be taken again.
    Replay {
        /// The sending end.
        end: u32,
        /// The last message that arrived.
        received: u64,
        /// The ring position behind its record.
        position: u64,
    },
    /// The session goes on over new wires.
    Resumed {
        /// The number of records that go out again.
        replayed: u64,
    },
}

/// The terms of a channel: the newest of the message types that both ends know, and the stricter
/// of their wishes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Agreed {
    /// Fingerprint of the message type: of several versions, the one that was
    /// [settled](crate::format::message_version) on.
    pub fingerprint: [u8; 16],
    /// Messages and bytes that may be out.
    pub window: ChannelWindow,
    /// Alignment of payloads.
    pub alignment: u32,
    /// The longest message.
    pub max_message_bytes: u64,
    /// This end's limit of the longest message, compared to the peer's.
    pub limit_here_to_there: std::cmp::Ordering,
    /// Payload bytes that may be out and not yet released.
    pub max_unreleased_bytes: u64,
    /// Messages may carry trace context.
    pub is_traced: bool,
}

impl Agreed {
    /// Limit of the bytes of all messages with memory of their own that were announced and not
    /// released. It is the part of `max_unreleased_bytes` beside the window, and at least as large
    /// as the window. One such message may be out whatever its length.
    #[must_use]
    pub fn large_bytes(&self) -> u64 {
        let beside_window = self.max_unreleased_bytes.saturating_sub(self.window.bytes);
        beside_window.max(self.window.bytes)
    }

    /// Returns the most bytes of segments for long messages that the receiver maps at a time. The
    /// sender's own, with what rounding adds, and its program's regions have less together.
    #[must_use]
    pub fn mapped_bytes(&self) -> u64 {
        self.large_bytes().saturating_mul(4)
    }

    /// Returns the most bytes of the program's regions that the sender has the receiver map at a time.
    #[must_use]
    pub fn region_bytes(&self) -> u64 {
        self.large_bytes().saturating_mul(2)
    }
}

/// The peer broke the protocol: its bytes cannot be trusted any more, the session ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say what each field is")]
pub enum PeerMisbehaved {
    #[error(transparent)]
    Frame(#[from] MalformedFrame),
    #[error(transparent)]
    Control(#[from] MalformedControl),
    #[error(transparent)]
    Credit(#[from] CreditOverrun),
    #[error("channel {channel}: {source}")]
    Counters {
        channel: u32,
        r#source: ImpossibleCounters,
    },
    #[error("a frame is for channel {channel}, which is not open")]
    UnknownChannel { channel: u32 },
    #[error("a frame has records or a chunk, which this session passes through shared memory")]
    DataFrameBesideMemory,
    #[error("record {expected} was due, one with the low bits {got} came")]
    OutOfOrder { expected: u64, got: u32 },
    #[error("a frame of records has none, {sequence} was due")]
    NoRecords { sequence: u64 },
    #[error("record {sequence} does not fit its frame")]
    RecordCut { sequence: u64 },
    #[error("record {sequence} is of no known kind")]
    RecordKind { sequence: u64 },
    #[error("the payload of a record is not aligned to {alignment}")]
    Misaligned { alignment: usize },
    #[error("a message of {length} bytes came, the channel's limit is {limit}")]
    TooLong { length: u64, limit: u64 },
    #[error("large message {sequence} was announced while two were under way")]
    TooManyLarge { sequence: u64 },
    #[error("a chunk has news on it, which no chunk on a stream has")]
    CountersOnChunk,
    #[error("a chunk came that was not granted")]
    UngrantedChunk,
    #[error("large message {sequence} was granted, which waits for no grant")]
    UnwantedGrant { sequence: u64 },
    #[error("memory was granted, which this session did not agree on")]
    UnknownGrant,
    #[error("large message {sequence} of {length} bytes was granted memory for {granted}")]
    GrantedLength {
        sequence: u64,
        length: u64,
        granted: u64,
    },
    #[error("a message was said to be written into memory that was not granted for it")]
    UngrantedWrite,
    #[error("an offer came for large message {sequence}, for which none is due")]
    UnwantedOffer { sequence: u64 },
    #[error("large message {sequence} of {length} bytes was offered in memory of {offered}")]
    OfferedLength {
        sequence: u64,
        length: u64,
        offered: u64,
    },
    #[error("large message {sequence} is said to be read, which was not offered or is not next")]
    UnofferedTaken { sequence: u64 },
    #[error("message {sequence} is said to be in a block that is not granted for it: {id:?}")]
    UngrantedEagerBlock { sequence: u64, id: EagerBlockId },
    #[error("a block is named that is not the peer's: {id:?}")]
    WrongEagerBlock { id: EagerBlockId },
    #[error("a message in {id:?} says that it is elsewhere")]
    LandedElsewhere { id: EagerBlockId },
    #[error("channel {channel} is granted a block twice, or more than it can have")]
    TooManyEagerBlocks { channel: u32 },
    #[error("{arrived} messages came although only {released} were released")]
    WindowOverrun { arrived: u64, released: u64 },
    #[error("a channel was closed behind message {last} when {received} had been received")]
    ClosedElsewhere { last: u64, received: u64 },
    #[error("more than {limit} ends were opened")]
    TooManyChannels { limit: usize },
    #[error("end {end} was opened twice")]
    OpenedTwice { end: u32 },
    #[error("a control frame is longer than {CONTROL_RESERVE_BYTES} bytes")]
    LongControl,
    #[error("a frame is longer than a receive buffer, which has {limit} bytes")]
    LongFrame { limit: usize },
    #[error("a message of {arrived} bytes has a frame of {length} in it")]
    CutFrame { arrived: u64, length: u32 },
    #[error(transparent)]
    Reserve(#[from] ReserveOverrun),
    #[error("a frame has taken a reserved buffer for something else than credit")]
    NoTalk,
    #[error(transparent)]
    CreditShrank(#[from] CreditShrank),
    #[error(transparent)]
    Surrender(#[from] BadSurrender),
    #[error("it tells what it knows of us, which it does over new wires alone")]
    NotResuming,
    #[error("it is wrong about end {end}, of which it tells what it knows")]
    KnowsWrongly { end: u32 },
    #[error("it asks for an answer over wires on which no frame is cut")]
    QueryOverBuffers,
    #[error("it waits for credit beyond {granted}, which it never was granted")]
    WantsUngranted { granted: u64 },
}

/// The number of entries in a session's tables and queues. No table or queue grows beyond its
/// bound, whatever a peer sends, as long as the host drains events.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Footprint {
    /// Local ends that are not gone on both sides: at most `max_channels`.
    pub ends: usize,
    /// The peer's ends that we know of: at most `max_channels`.
    pub peer_ends: usize,
    /// Control messages to send: for each local end its open, its close, one ask, and its
    /// grants, offers and words of what it read, of which the messages of a window are the bound.
    pub control: usize,
    /// Sending ends that may have something to send: each local end at most once.
    pub ready: usize,
    /// Receiving ends with changes: each local end at most once.
    pub changes: usize,
    /// Events that the host has not taken.
    pub events: usize,
}

/// A local end cannot be opened. The facade matches every case and has an error for each.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CannotOpen {
    /// A handle for this end lives already.
    #[error("this end is open already")]
    AlreadyOpen,
    /// The session has as many ends as its limit allows.
    #[error("the session has {limit} open ends, its limit")]
    TooMany {
        /// The limit of ends.
        limit: usize,
    },
    /// The session has ended, or is ending.
    #[error("the session has ended")]
    SessionOver,
    /// The peer has no memory for the end.
    #[error("{0}")]
    Memory(String),
}
