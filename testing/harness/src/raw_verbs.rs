//! The limit of RDMA verbs: two processes, one RC queue pair each, SENDs, no library.
//!
//! Receive buffers have 4 KiB, like ibex's without their headers; a longer message takes several
//! frames. There are no headers, since both ends know the length. (An empty message is one byte.)
//! An empty frame says that its sender can take `QUARTER` frames more.
//!
//! *Latency*: one SEND per message, posted at once. An answer also says that its sender can take a
//! whole window, so frames for credit alone are sent only within long messages.
//!
//! *Stream*: messages are packed back to back, frames posted in batches with one doorbell.

#![forbid(unsafe_code)]

use std::ops::Range;

use crate::{
    Error,
    check::Tally,
    job::{Job, Mode},
    link::Link,
    queue_pair::{BATCH, FRAME, QueuePair, RECEIVES},
};

/// An end of the connection.
pub(crate) struct RawVerbs {
    job: Job,
    pair: QueuePair,
    list: usize,          // frames that are posted together
    filled: usize,        // bytes of the frame that is being filled
    credit: u64,          // frames that the peer can take
    unread: Range<usize>, // bytes of the last frame that are not checked yet
    owed: u64,            // frames that we have taken and not reported
}

impl RawVerbs {
    /// Creates an end. The peer connects first, and waits for credit.
    pub(crate) fn new(job: Job, pair: QueuePair, peer: bool) -> Result<RawVerbs, Error> {
        let ping = job.mode == Mode::Latency;
        let quarters = if peer { 0 } else { WINDOW / QUARTER };
        let mut this = RawVerbs {
            job,
            pair,
            list: if ping { PING_LIST } else { BATCH },
            filled: 0,
            credit: quarters * QUARTER,
            unread: 0..0,
            owed: 0,
        };
        for _ in 0..quarters {
            this.tell()?;
        }
        Ok(this)
    }

    /// Tells the peer that a quarter of the window is free.
    #[cold]
    fn tell(&mut self) -> Result<(), Error> {
        self.owed = 0;
        self.pair.space()?;
        self.pair.queue(0, false);
        self.pair.post()
    }

    /// Takes the next frame. Returns the number of bytes in it.
    #[inline]
    fn take(&mut self) -> Result<usize, Error> {
        let bytes = self.pair.arrival()?;
        match bytes {
            0 => self.credit += QUARTER,
            _ => self.owed += 1,
        }
        if self.owed == QUARTER {
            self.tell()?;
        }
        Ok(bytes)
    }

    #[inline]
    fn send_frame(&mut self, last: bool) -> Result<(), Error> {
        while self.credit == 0 {
            self.pair.post()?;
            if self.take()? != 0 {
                return Err(Error::subject("the peer sends while it should receive"));
            }
        }
        self.credit -= 1;
        self.pair.queue(self.filled, last);
        self.filled = 0;
        if self.pair.waiting() < self.list && !last {
            return Ok(());
        }
        self.pair.post()
    }
}

impl Link for RawVerbs {
    #[inline(always)]
    fn send(&mut self, sequence: u64) -> Result<(), Error> {
        for part in self.job.parts(FRAME) {
            if self.filled + part.len().max(1) > FRAME {
                self.send_frame(false)?;
            }
            let payload = &mut self.pair.space()?[self.filled..][..part.len()];
            self.job.fill(sequence, part.start, payload);
            self.filled += part.len().max(1);
        }
        if self.job.mode == Mode::Latency {
            self.owed = 0;
            self.send_frame(false)?;
            self.pair.post()?;
        }
        Ok(())
    }

    #[inline(always)]
    fn receive(&mut self, sequence: u64, tally: &mut Tally) -> Result<(), Error> {
        for part in self.job.parts(FRAME) {
            while self.unread.is_empty() {
                self.unread = 0..self.take()?;
            }
            let payload = &self.pair.frame()[self.unread.clone()];
            tally.part(
                sequence,
                part.start,
                &payload[..part.len().min(payload.len())],
            );
            self.unread.start += part.len().max(1);
        }
        if self.job.mode == Mode::Latency {
            self.credit = WINDOW;
        }
        Ok(())
    }

    fn finish(&mut self) -> Result<(), Error> {
        self.send_frame(true)?;
        self.pair.drain()
    }
}

const WINDOW: u64 = 16 * BATCH as u64;
const QUARTER: u64 = WINDOW / 4;
/// Frames of a long ping that are posted together; the peer checks earlier ones meanwhile.
const PING_LIST: usize = 4;
// Receives beyond the window: credit in both directions, and one list that waits to be reposted.
const _: () = assert!(RECEIVES as u64 >= WINDOW + 2 * (WINDOW / QUARTER) + 2 * BATCH as u64);
