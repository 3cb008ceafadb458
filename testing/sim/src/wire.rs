//! One direction of a connection: an ordered pipe of bytes, as a socket pair is one.
//!
//! Bytes arrive in order, none is lost, and that is all it promises: a write takes what
//! it likes of what it is given, a read gives what it likes of what has arrived, bytes
//! take their time, and now and then nothing moves for a while.
#![forbid(unsafe_code)]

use std::collections::VecDeque;

use super::{Fault, Faults, options::SimOptions, random::Random};

/// A pipe. Its clock is the simulation's step.
#[derive(Debug)]
pub(super) struct Wire {
    random: Random,
    /// What was written and not read, with the step at which it arrives.
    pieces: VecDeque<(u64, Vec<u8>)>,
    /// Bytes in `pieces`.
    held: usize,
    /// Bytes that were read in all, and written.
    read: u64,
    written: u64,
    /// Nothing can be read before this step.
    stalled_until: u64,
    /// Broken, or the writer is gone: what is in the pipe is all there will be.
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
    pub(super) fn new(options: &SimOptions, random: Random) -> Self {
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

    /// No more delays, stalls and short pieces; what is on its way arrives now.
    pub(super) fn heal(&mut self) {
        (self.delay_steps, self.stall_per_mille, self.stalled_until) = (0, 0, 0);
        self.capacity = HEALTHY_BYTES;
        self.longest_piece = HEALTHY_BYTES;
        for (arrives, _) in &mut self.pieces {
            *arrives = 0;
        }
    }

    /// The wire breaks, or its writer dies: of what it had written a part arrives, up to any
    /// byte, when it likes, and nothing that it writes from now on. What lingers comes as a
    /// whole, but not before so many steps.
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

    /// The wire breaks, and nothing comes of what is on it.
    pub(super) fn lose(&mut self) {
        self.is_cut = true;
        self.faults.count(Fault::Loss, !self.pieces.is_empty());
        self.pieces.clear();
        self.held = 0;
    }

    /// Its writer is done: what it had written arrives.
    pub(super) fn close(&mut self) {
        self.is_cut = true;
    }

    /// What is on its way comes at that step, and not before.
    pub(super) fn hold(&mut self, until: u64) {
        self.stalled_until = self.stalled_until.max(until);
    }

    /// How many bytes have come to the other side, as far as the writer hears of that.
    pub(super) fn arrived(&self) -> u64 {
        if self.is_cut { 0 } else { self.read }
    }

    /// How many bytes were written.
    pub(super) fn written(&self) -> u64 {
        self.written
    }

    /// Whether nothing is on its way.
    pub(super) fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }

    /// Takes a part of `bytes`; returns how much.
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

    /// Takes as much of `bytes` as it has room for; returns how much.
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

/// What a direction without faults holds and moves in a step.
const HEALTHY_BYTES: usize = 1 << 18;
