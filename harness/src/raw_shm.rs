//! The limit of shared memory: two processes, one memfd, no library.
//!
//! *Latency*: two slots each way. A slot begins on a cache line with its header word,
//! and the payload follows in that line. Who sends fills the slot and stores the header,
//! release, nothing else: no fence, no index line, no credit (the answer is one). Who
//! receives polls the header without back-off and reads in place. Long payload becomes
//! visible every `PING_PART` bytes, so that both ends work on it at once.
//!
//! *Stream*: a ring of packed messages, two counters on lines of their own. *Published*
//! is stored every 16 messages or `STREAM_PART` bytes, whichever is less, *released*
//! every quarter ring; each is read only when the last value is used up. Who finds
//! nothing backs off for 100 pauses, so as not to pull back lines still being filled.

use std::sync::atomic::Ordering::Release;

use crate::job::{Job, Mode};
use crate::{Error, check::Tally, link::Link, mapping::Mapping};

/// One end. Positions count parts of messages (the last of a message may be short).
pub(crate) struct RawShm {
    job: Job,
    memory: Mapping,
    rings: [usize; 2], // where the payloads begin that this end fills, and reads
    stride: usize,     // from one message to the next, in bytes
    messages: u64,     // that a ring holds, a power of two
    done: u64,         // position up to which this end has filled, or read
    bound: u64,        // stream: where it stores its own counter next
    released: u64,     // stream: the reader's counter, as the sender last saw it
}

impl RawShm {
    pub(crate) fn memory_bytes(job: &Job) -> usize {
        DATA + STREAM_RING + 4 * (job.size + HEADER + LINE)
    }

    pub(crate) fn new(job: Job, memory: Mapping, peer: bool) -> RawShm {
        let (header, unit, ring, second) = match job.mode {
            Mode::Latency => (HEADER, LINE, 0, 2),
            Mode::Stream => (0, 8, STREAM_RING, 0),
        };
        let stride = (header + job.size.max(1)).next_multiple_of(unit);
        let messages = 1 << (ring / stride).max(2).ilog2();
        let mut rings = [DATA + header, DATA + header + second * stride];
        rings.rotate_left(usize::from(peer));
        RawShm {
            job,
            memory,
            rings,
            stride,
            messages,
            done: 0,
            bound: 0,
            released: 0,
        }
    }
}

impl Link for RawShm {
    fn send(&mut self, sequence: u64) -> Result<(), Error> {
        let slot = self.rings[0] + (sequence & (self.messages - 1)) as usize * self.stride;
        let ping = self.job.mode == Mode::Latency;
        let parts = self.job.parts(if ping { PING_PART } else { STREAM_PART });
        let capacity = self.messages * parts.len() as u64;
        for (part, header) in parts.zip(sequence << 32 | 1..) {
            if !ping && self.done == self.bound {
                self.finish()?;
                if self.done == self.released + capacity {
                    self.released = self.memory.above(RELEASED, self.released, BACK_OFF)?;
                }
                let batch = (STREAM_PART / self.stride).clamp(1, 16) as u64;
                self.bound = (self.released + capacity).min(self.done + batch);
            }
            // SAFETY: a ping's slot is ours since its last message was answered, a
            // stream's bytes were released; either until a word is stored below.
            let bytes = unsafe { self.memory.write(slot + part.start, part.len()) };
            self.job.fill(sequence, part.start, bytes);
            self.done += 1;
            if ping {
                self.memory.word(slot - HEADER).store(header, Release);
            }
        }
        Ok(())
    }

    fn receive(&mut self, sequence: u64, tally: &mut Tally) -> Result<(), Error> {
        let slot = self.rings[1] + (sequence & (self.messages - 1)) as usize * self.stride;
        let ping = self.job.mode == Mode::Latency;
        let parts = self.job.parts(if ping { PING_PART } else { STREAM_PART });
        let quarter = (self.messages * parts.len() as u64).div_ceil(4);
        for (part, before) in parts.zip(sequence << 32..) {
            if ping {
                self.memory.above(slot - HEADER, before, 1)?;
            } else if self.done == self.bound {
                self.memory.word(RELEASED).store(self.done, Release);
                let published = self.memory.above(PUBLISHED, self.done, BACK_OFF)?;
                self.bound = published.min(self.done + quarter);
            }
            // SAFETY: just published, and ours until we answer or store RELEASED.
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
const RELEASED: usize = 128; // CPUs prefetch lines in pairs
const DATA: usize = 256;
const PING_PART: usize = 8 << 10;
const STREAM_RING: usize = 256 << 10;
const STREAM_PART: usize = 64 << 10;
const BACK_OFF: u32 = 100;
