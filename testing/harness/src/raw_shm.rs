//! The limit of shared memory: two processes, one memfd, no library.
//!
//! *Latency*: slots each way. A slot begins on a cache line with its header word; the payload
//! follows in that line. The sender fills the slot and stores the header, release, and does nothing
//! else. The receiver polls the header and reads in place. It first waits for as long as the last
//! replies took (`Mapping::reply`), because an early poll takes the line from a peer that is about
//! to write to it. Short messages have two slots. Long ones become visible part by part, in slots
//! for `RING` bytes, since lines that left both CPUs' own caches are faster to write.
//!
//! *Stream*: a ring of packed messages and two words on lines of their own: PUBLISHED, stored every
//! 16 messages or `STREAM_PART` bytes if that is less, and ROOM, stored every quarter ring. An end
//! reads the other's word when it stores its own, and backs off if there is no change.

use std::sync::atomic::Ordering::Release;

use crate::{Error, check::Tally, job::Job, job::Mode, link::Link, mapping::Mapping};

/// An end of the latency slots or of the stream's ring.
pub(crate) struct RawShm {
    job: Job,
    memory: Mapping,
    rings: [usize; 2], // where the payloads begin that this end fills, and reads
    stride: usize,     // from one message to the next, in bytes
    messages: u64,     // that a ring holds, a power of two
    done: u64,         // stream: parts of messages that this end has filled, or read
    next: u64,         // stream: when `done` comes here, the ends exchange their words
}

impl RawShm {
    pub(crate) fn memory_bytes(job: &Job) -> usize {
        DATA + 2 * (RING + 2 * (HEADER + job.size + LINE))
    }

    pub(crate) fn new(job: Job, memory: Mapping, peer: bool) -> RawShm {
        let ping = job.mode == Mode::Latency;
        let (header, unit) = if ping { (HEADER, LINE) } else { (0, 8) };
        let stride = (header + job.size.max(1)).next_multiple_of(unit);
        let short = ping && job.size <= PING_PART;
        let messages = 1 << (if short { 2 } else { RING / stride }).max(2).ilog2();
        let mut rings = [DATA + header; 2];
        rings[usize::from(!peer)] += usize::from(ping) * messages as usize * stride;
        RawShm {
            job,
            memory,
            rings,
            stride,
            messages,
            done: 0,
            next: 0,
        }
    }

    #[cold]
    fn exchange(&mut self, words: [usize; 2], told: u64, step: u64) -> Result<(), Error> {
        self.memory.word(words[0]).store(told, Release);
        let limit = self.memory.above(words[1], self.done, 100)?;
        self.next = limit.min(self.done + step);
        Ok(())
    }
}

impl Link for RawShm {
    #[inline(always)]
    fn send(&mut self, sequence: u64) -> Result<(), Error> {
        let slot = self.rings[0] + (sequence & (self.messages - 1)) as usize * self.stride;
        let ping = self.job.mode == Mode::Latency;
        let parts = self.job.parts(if ping { PING_PART } else { STREAM_PART });
        for (part, header) in parts.zip(sequence << 32 | 1..) {
            if !ping && self.done == self.next {
                let batch = (STREAM_PART / self.stride).clamp(1, 16) as u64;
                self.exchange([PUBLISHED, ROOM], self.done, batch)?;
            }
            // SAFETY: a ping's slot is ours since its last message was answered, a
            // stream's bytes are below ROOM; either until a word is stored.
            let bytes = unsafe { self.memory.write(slot + part.start, part.len()) };
            self.job.fill(sequence, part.start, bytes);
            self.done += 1;
            if ping {
                self.memory.word(slot - HEADER).store(header, Release);
            }
        }
        Ok(())
    }

    #[inline(always)]
    fn receive(&mut self, sequence: u64, tally: &mut Tally) -> Result<(), Error> {
        let slot = self.rings[1] + (sequence & (self.messages - 1)) as usize * self.stride;
        let ping = self.job.mode == Mode::Latency;
        let parts = self.job.parts(if ping { PING_PART } else { STREAM_PART });
        let capacity = self.messages * parts.len() as u64;
        for (part, before) in parts.zip(sequence << 32..) {
            if ping && part.start == 0 {
                self.memory.reply(slot - HEADER, before)?;
            } else if ping {
                self.memory.above(slot - HEADER, before, 1)?;
            } else if self.done == self.next {
                self.exchange([ROOM, PUBLISHED], self.done + capacity, capacity / 4 + 1)?;
            }
            // SAFETY: just published, and ours until we answer or store ROOM.
            let bytes = unsafe { self.memory.read(slot + part.start, part.len()) };
            tally.part(sequence, part.start, bytes);
            self.done += 1;
        }
        Ok(())
    }

    fn finish(&mut self) -> Result<(), Error> {
        self.memory.word(PUBLISHED).store(self.done, Release);
        Ok(())
    }
}

const LINE: usize = 64;
const HEADER: usize = 8;
const PUBLISHED: usize = 0;
const ROOM: usize = 128; // CPUs prefetch lines in pairs
const DATA: usize = 256;
const PING_PART: usize = 8 << 10;
const RING: usize = 4 << 20;
const STREAM_PART: usize = 64 << 10;
