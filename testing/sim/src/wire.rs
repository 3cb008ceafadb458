//! A direction of a connection: an ordered pipe of bytes, like a socket pair's.
//!
//! Bytes arrive in order and none is lost, which is all that the pipe promises. A write takes any
//! part of its bytes, a read returns any part of those that have arrived, bytes are delayed, and
//! now and then nothing moves for a while.
#![forbid(unsafe_code)]

use std::collections::VecDeque;

use ibex_harness::draw::Draw;

use super::{Fault, Faults, options::SimOptions};

/// A pipe. Its clock is the simulation's step.
#[derive(Debug)]
pub(super) struct Wire {
    random: Draw,
    /// Bytes that were written and not read, with the step at which they arrive.
    pieces: VecDeque<(u64, Vec<u8>)>,
    /// Bytes in `pieces`.
    held: usize,
    /// Bytes that were read in all, and written.
    read: u64,
    written: u64,
    /// The step before which nothing can be read.
    stalled_until: u64,
    /// Broken, or closed by the writer: nothing comes behind the bytes in the pipe.
    is_cut: bool,

    // The faults.
    capacity: usize,
    longest_piece: usize,
    delay_steps: u64,
    stall_per_mille: u64,
    stall_steps: u64,
    pub(super) faults: Faults,
}

impl Wire {
    pub(super) fn new(options: &SimOptions, random: Draw) -> Self {
        Self {
            random,
            pieces: VecDeque::new(),
            held: 0,
            read: 0,
            written: 0,
            stalled_until: 0,
            is_cut: false,
            capacity: options.wire_bytes,
            longest_piece: options.piece_bytes,
            delay_steps: options.delay_steps,
            stall_per_mille: options.stall_per_mille,
            stall_steps: options.stall_steps,
            faults: Faults::default(),
        }
    }

    /// Ends delays, stalls and short pieces; bytes under way arrive now.
    pub(super) fn heal(&mut self) {
        (self.delay_steps, self.stall_per_mille, self.stalled_until) = (0, 0, 0);
        self.capacity = HEALTHY_BYTES;
        self.longest_piece = HEALTHY_BYTES;
        for (arrives, _) in &mut self.pieces {
            *arrives = 0;
        }
    }

    /// Breaks the wire, as when its writer dies: a random part of the written bytes arrives, up to
    /// any byte, at any time, and nothing that is written later. With `linger`, all of them arrive,
    /// after that many steps.
    pub(super) fn cut(&mut self, now: u64, linger: Option<u64>) {
        self.is_cut = true;
        let linger_steps = linger.unwrap_or(0);
        self.stalled_until = now + linger_steps + self.random.below(2 * self.delay_steps + 1);
        if linger.is_some() {
            return;
        }
        let kept = self.random.below(self.pieces.len() as u64 + 1) as usize;
        self.faults.count(Fault::Loss, kept < self.pieces.len());
        self.pieces.truncate(kept);
        if let Some((_, last)) = self.pieces.back_mut() {
            last.truncate(1 + self.random.below(last.len() as u64) as usize);
        }
        self.held = self.pieces.iter().map(|(_, bytes)| bytes.len()).sum();
    }

    /// Breaks the wire and loses all bytes on it.
    pub(super) fn lose(&mut self) {
        self.is_cut = true;
        self.faults.count(Fault::Loss, !self.pieces.is_empty());
        self.pieces.clear();
        self.held = 0;
    }

    /// Closes the wire: everything that was written arrives.
    pub(super) fn close(&mut self) {
        self.is_cut = true;
    }

    /// Holds bytes under way back until this step.
    pub(super) fn hold(&mut self, until: u64) {
        self.stalled_until = self.stalled_until.max(until);
    }

    /// Returns the number of bytes that have reached the other side, as far as the writer learns of
    /// that.
    pub(super) fn arrived(&self) -> u64 {
        if self.is_cut { 0 } else { self.read }
    }

    /// Returns the number of bytes written.
    pub(super) fn written(&self) -> u64 {
        self.written
    }

    /// Returns whether no byte is on its way.
    pub(super) fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }

    /// Takes a part of `bytes`. Returns its length.
    pub(super) fn write(&mut self, now: u64, bytes: &[u8]) -> usize {
        let room = (self.capacity - self.held).min(bytes.len());
        let taken = room.min(1 + self.random.below(self.longest_piece as u64) as usize);
        self.faults.count(Fault::Full, room == 0);
        self.faults
            .count(Fault::Cut, (1..bytes.len()).contains(&taken));
        self.faults.count(Fault::Void, taken > 0 && self.is_cut);
        if taken > 0 && !self.is_cut {
            let last = self.pieces.back().map_or(0, |&(arrives, _)| arrives);
            let arrives = (now + self.random.below(self.delay_steps + 1)).max(last);
            self.faults.count(Fault::Delay, arrives > now);
            self.pieces.push_back((arrives, bytes[..taken].to_vec()));
            self.held += taken;
        }
        self.written += taken as u64;
        taken
    }

    /// Takes as much of `bytes` as there is room for. Returns the length.
    pub(super) fn write_all(&mut self, now: u64, bytes: &[u8]) -> usize {
        let mut written = 0;
        while written < bytes.len() {
            match self.write(now, &bytes[written..]) {
                0 => break,
                taken => written += taken,
            }
        }
        written
    }

    /// Appends a part of what has arrived.
    pub(super) fn read(&mut self, now: u64, into: &mut Vec<u8>) {
        if now < self.stalled_until {
            return;
        }
        if self.random.chance(self.stall_per_mille) {
            self.stalled_until = now + self.random.below(self.stall_steps);
            self.faults.count(Fault::Stall, true);
            return;
        }
        let mut left = 1 + self.random.below(self.longest_piece as u64) as usize;
        while left > 0
            && let Some((arrives, bytes)) = self.pieces.front_mut()
            && *arrives <= now
        {
            let taken = left.min(bytes.len());
            into.extend(bytes.drain(..taken));
            left -= taken;
            self.held -= taken;
            self.read += taken as u64;
            if bytes.is_empty() {
                self.pieces.pop_front();
            }
        }
    }
}

/// Bytes that a direction without faults holds, and moves in a step.
const HEALTHY_BYTES: usize = 1 << 18;
