//! The sending half of a queue pair: a batch of frames is planned and posted with one doorbell; a
//! lone record is posted at once.

use std::{collections::VecDeque, mem, ops::Range, ptr, slice};

use ibex_protocol::{
    format::frame::{BLOCK_ALIGNMENT, FrameHeader, HEAD_BYTES, HEADER_BYTES},
    framing::LEAST_BUFFER_BYTES,
    session::{Body, Session},
    signal_cadence::SignalCadence,
    transfer::{eager_write::EAGER_BLOCK_HEAD_BYTES, rendezvous::RemoteMemory},
};
use ibex_verbs::{MemoryRegion, PostError, QueuePair, RemoteAddress, ScatterEntry, SendRequest};

use super::{PairState, QueuePairWire};
use crate::{
    rdma::{DeviceMapping, SEND_BATCH, SEND_ENTRIES, SendSlots},
    session::SessionCounters,
    wire::{Frames, SendRingMemory},
};

/// The sending half of a queue pair.
pub(super) struct PairSending {
    heads: MemoryRegion<DeviceMapping>,
    pub(super) slots: SendSlots,
    cadence: SignalCadence,
    /// The numbers of writes that are not done.
    writes: VecDeque<u64>,
    /// A request has failed, so those behind it are not done, whatever their completions say.
    pub(super) has_failed: bool,
    /// Frames are due and cannot be sent before a completion comes: a send that frees a place in
    /// the queue, or a receive that brings credit.
    pub(super) is_blocked: bool,
    /// Heads of the batch that is being built, one after the other. The body of a short frame
    /// follows its head.
    head: Vec<u8>,
    planned: Vec<Planned>,
    /// Most pieces that the device takes in one send.
    max_entries: usize,
    /// The longest lone record, with its head, that is posted inline at once; 0 if it would take
    /// more pieces than the device allows.
    max_lone: usize,
    /// Bytes that have to be free in the head slab before a frame is taken out of the session.
    longest_stage: usize,
    /// The head of a lone frame; the bytes after its header are always zero.
    lone_head: [u8; LONE_HEAD_BYTES],
}

/// A frame of the batch that is being built.
struct Planned {
    place: FramePlacement,
    body: Body,
    is_signaled: bool,
    /// Position up to which the head slab is in use once the frame is posted.
    staged: u64,
}

/// The place of a frame's bytes.
enum FramePlacement {
    /// All bytes are in the list of heads, and the frame goes inline.
    Inline(Range<usize>),
    /// The head is in the head slab, the body stays in place.
    Staged(Range<usize>),
    /// All bytes are in the head slab, because the device takes fewer pieces than the frame has.
    Copied(Range<usize>),
    /// A write into the peer's memory instead of a frame.
    Write(RemoteAddress),
    /// A write of a block's head, from the head slab, and of the message after it.
    EagerBlock {
        head: Range<usize>,
        block: RemoteAddress,
        immediate: u32,
    },
}

impl FramePlacement {
    fn is_write(&self) -> bool {
        matches!(
            self,
            FramePlacement::Write(_) | FramePlacement::EagerBlock { .. }
        )
    }
}

/// The longest frame that goes inline, if the device takes that much.
const INLINE_BYTES: usize = 256;

impl PairSending {
    /// Makes room for `requests` outstanding requests on `pair`, each of up to `max_entries`
    /// pieces, and for frames of up to `frame_bytes`. `heads` holds the heads of frames that do not
    /// go inline.
    pub(super) fn new(
        requests: u32,
        pair: &QueuePair,
        max_entries: usize,
        heads: MemoryRegion<DeviceMapping>,
        frame_bytes: usize,
    ) -> Self {
        Self {
            max_entries,
            max_lone: match max_entries {
                0..LONE_ENTRIES => 0,
                _ => pair.max_inline_bytes() as usize,
            },
            longest_stage: match max_entries {
                0..MOST_ENTRIES => frame_bytes.max(LONGEST_HEAD),
                _ => LONGEST_HEAD,
            },
            slots: SendSlots::new(requests, heads.bytes()),
            heads,
            cadence: SignalCadence::default(),
            writes: VecDeque::new(),
            has_failed: false,
            is_blocked: false,
            head: Vec::with_capacity(SEND_BATCH * INLINE_BYTES + LONGEST_HEAD),
            planned: Vec::with_capacity(SEND_BATCH),
            lone_head: [0; LONE_HEAD_BYTES],
        }
    }

    /// Returns the number of writes that were done since the last call, if any.
    #[inline]
    pub(super) fn take_done_writes(&mut self) -> Option<u32> {
        if self.writes.is_empty() {
            return None;
        }
        let done = self.slots.done();
        let writes = self.writes.partition_point(|number| *number <= done);
        self.writes.drain(..writes);
        (writes > 0).then_some(writes as u32)
    }
}

impl QueuePairWire {
    /// Posts frames in batches, with one doorbell for each. Returns whether there were any.
    pub(super) fn post_frames<F: Frames>(&mut self, frames: &mut F) -> Result<bool, PostError> {
        let mut progress = false;
        loop {
            let has_more = self.plan(frames);
            if self.sending.planned.is_empty() {
                self.note_blocked(frames);
                return Ok(progress);
            }
            self.post_planned(frames)?;
            progress = true;
            if !has_more {
                return Ok(true);
            }
        }
    }

    /// Takes frames of the session into `planned` as long as there is room. Returns whether the
    /// session may have more.
    #[inline]
    fn plan<F: Frames>(&mut self, frames: &mut F) -> bool {
        let (PairState::Live(queue_pair), sending) = (&self.state, &mut self.sending) else {
            return false;
        };
        let room = sending.slots.room().min(queue_pair.send_room() as usize);
        let room = room.min(SEND_BATCH);
        let max_inline = INLINE_BYTES.min(queue_pair.max_inline_bytes() as usize);
        let head = &mut sending.head;
        head.clear();
        while sending.planned.len() < room && sending.slots.has_stage(sending.longest_stage) {
            if frames.session().ends.has_offers() {
                // An offer goes right behind its announcement.
                return false;
            }
            let start = head.len();
            let Some(body) = frames.next(0, head) else {
                return false;
            };
            let ends_something = ends_something(&head[start..], body, frames);
            let place = if let Body::Write { chunk, memory, .. } = body {
                FramePlacement::Write(remote(memory, chunk.offset))
            } else if let Body::EagerBlock {
                end, memory, word, ..
            } = body
            {
                match word {
                    None => FramePlacement::Write(remote(memory, EAGER_BLOCK_HEAD_BYTES as u64)),
                    Some(word) => {
                        let (position, bytes) = (word.position, word.bytes);
                        let record = Body::Records {
                            end,
                            position,
                            bytes,
                        };
                        if let Some((base, length)) = frames.locate(record) {
                            // SAFETY: these are unreleased bytes of a ring, and no thread writes
                            // there.
                            let record = unsafe { slice::from_raw_parts(base.as_ptr(), length) };
                            head.extend_from_slice(record);
                        }
                        head.resize(start + EAGER_BLOCK_HEAD_BYTES, 0);
                        FramePlacement::EagerBlock {
                            head: stage(&mut sending.slots, &sending.heads, &head[start..]),
                            block: remote(memory, 0),
                            immediate: word.immediate,
                        }
                    }
                }
            } else if head.len() - start + body.bytes() <= max_inline {
                if let Some((base, length)) = frames.locate(body) {
                    // SAFETY: these are unreleased bytes of a ring or a message, and no thread
                    // writes there.
                    let body = unsafe { slice::from_raw_parts(base.as_ptr(), length) };
                    head.extend_from_slice(body);
                }
                FramePlacement::Inline(start..head.len())
            } else {
                let is_copied = sending.max_entries < MOST_ENTRIES
                    && 1 + pieces(frames, body).into_iter().flatten().count() > sending.max_entries;
                if is_copied && let Some((base, length)) = frames.locate(body) {
                    // SAFETY: as above.
                    let body = unsafe { slice::from_raw_parts(base.as_ptr(), length) };
                    head.extend_from_slice(body);
                }
                let staged = stage(&mut sending.slots, &sending.heads, &head[start..]);
                match is_copied {
                    true => FramePlacement::Copied(staged),
                    false => FramePlacement::Staged(staged),
                }
            };
            sending.planned.push(Planned {
                place,
                body,
                is_signaled: sending.cadence.is_due(ends_something),
                staged: sending.slots.staged(),
            });
        }
        true
    }

    /// Notes whether due frames cannot be sent.
    fn note_blocked<F: Frames>(&mut self, frames: &mut F) {
        let sending = &mut self.sending;
        let is_blocked = frames.session().is_out_of_credit();
        let was_blocked = mem::replace(&mut sending.is_blocked, is_blocked);
        if sending.is_blocked && !was_blocked {
            let is_full =
                sending.slots.room() == 0 || !sending.slots.has_stage(sending.longest_stage);
            let counters = frames.counters();
            match is_full {
                true => counters.queue_stalls.add(1),
                false => counters.credit_is_out(),
            }
        }
    }

    /// Posts the planned requests, with one doorbell.
    fn post_planned<F: Frames>(&mut self, frames: &mut F) -> Result<(), PostError> {
        let (
            PairState::Live(queue_pair),
            PairSending {
                heads,
                slots,
                is_blocked,
                head,
                planned,
                writes: unfinished,
                ..
            },
        ) = (&mut self.state, &mut self.sending)
        else {
            return Ok(());
        };
        *is_blocked = false;
        frames.counters().credit_is_there();
        let (mut inline, mut signaled, mut bytes) = (0, 0, 0);
        let (mut writes, mut written) = (0, 0);
        let mut batch = queue_pair.send_batch();
        for frame in &*planned {
            let id = slots.post(frame.staged);
            let (mut entries, mut count) = ([ScatterEntry::EMPTY; MOST_ENTRIES], 1);
            let mut request = match &frame.place {
                FramePlacement::Inline(range) => {
                    entries[0] = ScatterEntry::unregistered(&head[range.clone()]);
                    inline += 1;
                    SendRequest::send(id, &entries[..1]).inline()
                }
                FramePlacement::Copied(range) => {
                    entries[0] = heads.entry(range.clone());
                    SendRequest::send(id, &entries[..1])
                }
                FramePlacement::Staged(range) => {
                    entries[0] = heads.entry(range.clone());
                    for piece in pieces(frames, frame.body).into_iter().flatten() {
                        entries[count] = piece;
                        count += 1;
                    }
                    SendRequest::send(id, &entries[..count])
                }
                FramePlacement::Write(remote) => {
                    if let [Some(piece), _] = pieces(frames, frame.body) {
                        entries[0] = piece;
                    }
                    SendRequest::write(id, &entries[..1], *remote)
                }
                FramePlacement::EagerBlock {
                    head,
                    block,
                    immediate,
                } => {
                    entries[0] = heads.entry(head.clone());
                    if let [Some(message), _] = pieces(frames, frame.body) {
                        entries[1] = message;
                    }
                    let write = SendRequest::write(id, &entries[..LONE_ENTRIES], *block);
                    write.with_immediate(*immediate)
                }
            };
            if frame.is_signaled {
                request = request.signaled();
                signaled += 1;
            }
            if frame.place.is_write() {
                writes += 1;
                written += request.bytes();
            } else {
                bytes += request.bytes();
            }
            // Room, number of pieces and inline bytes were checked before.
            batch.push(&request).expect("a planned frame fits");
        }
        let posted = batch.post();
        let requests = planned.len() as u64;
        let numbers = slots.posted() - requests + 1..;
        for (frame, number) in planned.drain(..).zip(numbers) {
            let (end, chunk) = match frame.body {
                Body::Chunk { end, chunk } => (end, chunk),
                Body::Write { end, chunk, .. } | Body::EagerBlock { end, chunk, .. } => {
                    unfinished.push_back(number);
                    (end, chunk)
                }
                Body::Inline | Body::Records { .. } => continue,
            };
            let is_last = frames.went(end, chunk, number);
            match frame.body {
                Body::Write { .. } => frames.counters().rendezvous_sent.add(is_last.into()),
                Body::EagerBlock { .. } => frames.counters().eager_blocks_sent.add(1),
                _ => {}
            }
        }
        let counters = frames.counters();
        if writes > 0 {
            counters.rdma_writes.add(writes);
            counters.rdma_bytes.add(written);
        }
        counters.frames_sent.add(requests - writes);
        counters.bytes_sent.add(bytes);
        counters.work_requests.add(requests);
        counters.inline_sends.add(inline);
        counters.signaled.add(signaled);
        counters.doorbells.add(1);
        posted.map(|_| ())
    }

    /// Posts a frame of one short record, if nothing else is to be sent and there is room. Returns
    /// whether it did.
    #[inline(always)]
    pub(super) fn post_lone_record(
        &mut self,
        end: u32,
        record: &[u8],
        session: &mut Session,
        counters: &SessionCounters,
    ) -> Result<bool, PostError> {
        let (PairState::Live(queue_pair), sending) = (&mut self.state, &mut self.sending) else {
            return Ok(false);
        };
        let has_room = sending.slots.room() > 0 && queue_pair.send_room() > 0;
        let longest = LONE_HEAD_BYTES + record.len();
        if !has_room || longest > sending.max_lone || self.pulling.has_lost() {
            return Ok(false);
        }
        let Some(header) = session.poll_lone_record(end, record.len(), 0) else {
            return Ok(false);
        };
        sending.lone_head[..HEADER_BYTES].copy_from_slice(&header.to_bytes());
        let entries = [
            ScatterEntry::unregistered(&sending.lone_head[..header.body_offset()]),
            ScatterEntry::unregistered(record),
        ];
        let id = sending.slots.post(sending.slots.staged());
        let mut request = SendRequest::send(id, &entries).inline();
        if sending.cadence.is_due(false) {
            request = request.signaled();
            counters.signaled.add(1);
        }
        let mut batch = queue_pair.send_batch();
        // Room and inline bytes were checked before.
        batch.push(&request).expect("a short frame fits");
        batch.post()?;
        counters.frames_sent.add(1);
        counters.bytes_sent.add(u64::from(header.length));
        counters.work_requests.add(1);
        counters.inline_sends.add(1);
        counters.doorbells.add(1);
        sending.is_blocked = false;
        counters.credit_is_there();
        Ok(true)
    }
}

/// Returns whether memory or the session waits for the completion of a frame, such as a control
/// message or the last chunk of a large message.
fn ends_something<F: Frames>(head: &[u8], body: Body, frames: &F) -> bool {
    match body {
        Body::Inline => {
            matches!(FrameHeader::parse(head), Ok(Some(header)) if header.body_bytes() > 0)
        }
        Body::Records { .. } => false,
        // The next write may be sent when this one is done.
        Body::Write { .. } | Body::EagerBlock { .. } => true,
        Body::Chunk { end, chunk } => frames
            .message(end, chunk.sequence)
            .is_some_and(|message| message.ends_with(chunk)),
    }
}

/// Returns the address of a byte of memory that the peer granted.
fn remote(memory: RemoteMemory, offset: u64) -> RemoteAddress {
    RemoteAddress {
        address: memory.at(offset),
        rkey: memory.key(),
    }
}

/// Copies a head into the slab, where the device reads it.
fn stage(slots: &mut SendSlots, heads: &MemoryRegion<DeviceMapping>, head: &[u8]) -> Range<usize> {
    let at = slots.stage(head.len());
    // SAFETY: `stage` returned a range of the slab that no outstanding request uses, and only this
    // function writes the region.
    unsafe {
        ptr::copy_nonoverlapping(head.as_ptr(), heads.base().add(at).as_ptr(), head.len());
    }
    at..at + head.len()
}

/// Returns the pieces of memory in which a device finds a frame's body.
fn pieces<F: Frames>(frames: &F, body: Body) -> [Option<ScatterEntry<'_>>; 2] {
    let unregistered = "handles register what they send from before they say so";
    match body {
        Body::Inline => [None, None],
        Body::Records {
            end,
            position,
            bytes,
        } => {
            let registered = frames.ring(end).and_then(SendRingMemory::registered);
            registered.expect(unregistered).pieces(position, bytes)
        }
        Body::Chunk { end, chunk }
        | Body::Write { end, chunk, .. }
        | Body::EagerBlock { end, chunk, .. } => {
            let message = frames.message(end, chunk.sequence);
            let piece = message.and_then(|message| message.piece(chunk));
            [Some(piece.expect(unregistered)), None]
        }
    }
}

/// Most pieces of one frame: its head, and records on both sides of their ring's seam.
const MOST_ENTRIES: usize = SEND_ENTRIES as usize;
/// Pieces of a lone frame.
const LONE_ENTRIES: usize = 2;
/// The longest head of a lone frame.
const LONE_HEAD_BYTES: usize = HEADER_BYTES + BLOCK_ALIGNMENT;
/// The longest head: that of records or chunks, or a complete control message.
const LONGEST_HEAD: usize = if LEAST_BUFFER_BYTES > HEAD_BYTES {
    LEAST_BUFFER_BYTES
} else {
    HEAD_BYTES
};
