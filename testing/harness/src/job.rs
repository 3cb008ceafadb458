//! A measurement: its settings, and the figures that it gives.

#![forbid(unsafe_code)]

use std::{ops::Range, time::Duration};

use serde::{Deserialize, Serialize};

use crate::{
    Error,
    check::{Tally, fill_part},
    histogram::{Distribution, Percentiles},
};

/// The pattern of messages between the two processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// Ping and pong: one message under way at a time; the one-way time is half a round trip.
    Latency,
    /// The peer sends as fast as it may; this process receives and counts.
    Stream,
}

impl Mode {
    /// Returns the name used in options and rows.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Mode::Latency => "latency",
            Mode::Stream => "stream",
        }
    }
}

/// The settings of a measurement, equal in both processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Job {
    /// The pattern of messages.
    pub mode: Mode,
    /// Payload of a message, in bytes.
    pub size: usize,
    /// Round trips (latency) or messages (stream) that are timed.
    pub iters: u64,
    /// Makes the peer flip one byte of one message, to see the check fail.
    pub flip: bool,
    /// Round trips that begin per second, at fixed times. With `None` one begins when the last has
    /// ended.
    #[serde(default)]
    pub rate: Option<u64>,
}

impl Job {
    /// The longest payload. A limit holds up to four at a time, and a subject a few as well.
    pub const MAX_SIZE: usize = 64 << 20;

    /// The most messages. With the warm-up, sequence numbers stay within 32 bits, and
    /// the bytes of all messages within 64.
    pub const MAX_ITERS: u64 = 1_000_000_000;

    /// Checks that size and count are within their ranges, for a job from elsewhere.
    pub fn check(&self) -> Result<(), Error> {
        let (size, iters) = (self.size, self.iters);
        let has_sound_rate =
            self.rate != Some(0) && (self.rate.is_none() || self.mode == Mode::Latency);
        if size > Job::MAX_SIZE || !(1..=Job::MAX_ITERS).contains(&iters) || !has_sound_rate {
            return Err(Error::Job { size, iters });
        }
        Ok(())
    }

    /// Returns the sequence numbers of the warm-up and of the timed messages.
    ///
    /// The warm-up touches all memory and opens TCP's windows. It is checked like everything else,
    /// but not timed.
    #[must_use]
    pub fn split(&self) -> (Range<u64>, Range<u64>) {
        let warmup = (self.iters / 10).clamp(1, 20_000);
        (0..warmup, warmup..warmup + self.iters)
    }

    /// Returns the sequence numbers of all messages.
    #[inline]
    #[must_use]
    pub fn sequences(&self) -> Range<u64> {
        let (warmup, timed) = self.split();
        warmup.start..timed.end
    }

    /// Cuts a message into parts of at most `limit` bytes. An empty message has one empty part.
    #[inline]
    pub fn parts(&self, limit: usize) -> impl ExactSizeIterator<Item = Range<usize>> + use<> {
        let size = self.size;
        let parts = size.div_ceil(limit).max(1);
        (0..parts).map(move |index| index * limit..size.min((index + 1) * limit))
    }

    /// Writes a part of message `sequence` that begins at byte `offset`, a multiple of 8. With
    /// [`flip`](Job::flip), the middle byte of the last message is wrong, which only a check of all
    /// bytes finds.
    #[inline]
    pub fn fill(&self, sequence: u64, offset: usize, part: &mut [u8]) {
        fill_part(sequence, offset, part);
        if self.flip && sequence + 1 == self.sequences().end {
            let middle = (self.size / 2).checked_sub(offset);
            if let Some(byte) = middle.and_then(|index| part.get_mut(index)) {
                *byte ^= 0x10;
            }
        }
    }

    /// Returns the bytes that both processes together must have checked at the end.
    #[must_use]
    pub fn bytes_to_check(&self) -> u64 {
        let directions = match self.mode {
            Mode::Latency => 2,
            Mode::Stream => 1,
        };
        directions * self.sequences().end * self.size as u64
    }
}

/// Results of a measurement.
#[derive(Clone, Debug)]
pub struct Figures {
    /// The measurement's settings.
    pub job: Job,
    /// One-way times in nanoseconds; only in [`Mode::Latency`].
    pub one_way: Option<Percentiles>,
    /// All of these times.
    pub distribution: Option<Distribution>,
    /// Time from the end of the warm-up to the last message.
    pub elapsed: Duration,
    /// The checks of both processes.
    pub tally: Tally,
}

impl Figures {
    /// Returns the messages per second and direction.
    #[must_use]
    pub fn messages_per_second(&self) -> f64 {
        self.job.iters as f64 / self.elapsed.as_secs_f64()
    }

    /// Returns the payload bytes per second and direction.
    #[must_use]
    pub fn bytes_per_second(&self) -> f64 {
        self.messages_per_second() * self.job.size as f64
    }

    /// Returns whether every payload byte that was sent was read and compared.
    #[must_use]
    pub fn bytes_touched(&self) -> bool {
        self.tally.bytes == self.job.bytes_to_check()
    }

    /// Returns the ratio of this measurement to `limit`: of one-way times in latency mode (above 1
    /// is slower), of rates in stream mode (below 1 is slower).
    #[must_use]
    pub fn ratio_to(&self, limit: &Figures) -> f64 {
        match (&self.one_way, &limit.one_way) {
            (Some(ours), Some(limit)) => ours.p50 / limit.p50,
            _ => self.messages_per_second() / limit.messages_per_second(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::verify_part;

    #[test]
    fn parts_cover_a_message() {
        let parts = |size| {
            let job = Job {
                mode: Mode::Stream,
                size,
                iters: 1,
                flip: false,
                rate: None,
            };
            job.parts(64)
                .map(|part| (part.start, part.end))
                .collect::<Vec<_>>()
        };
        assert_eq!(parts(0), [(0, 0)]);
        assert_eq!(parts(64), [(0, 64)]);
        assert_eq!(parts(130), [(0, 64), (64, 128), (128, 130)]);
    }

    #[test]
    fn the_largest_job_overflows_nothing_and_one_beyond_is_refused() {
        let largest = Job {
            mode: Mode::Latency,
            size: Job::MAX_SIZE,
            iters: Job::MAX_ITERS,
            flip: false,
            rate: None,
        };
        largest.check().unwrap();
        assert!(largest.sequences().end < 1 << 32);
        let bytes = u128::from(largest.sequences().end) * Job::MAX_SIZE as u128;
        assert_eq!(u128::from(largest.bytes_to_check()), 2 * bytes);
        let refused = |size, iters| {
            let job = Job {
                size,
                iters,
                ..largest
            };
            job.check().unwrap_err().to_string()
        };
        assert!(refused(Job::MAX_SIZE + 1, 1).contains("at most 67108864"));
        assert!(refused(0, Job::MAX_ITERS + 1).contains("1 to 1000000000"));
        assert!(refused(0, 0).contains("1 to 1000000000"));
    }

    #[test]
    fn one_bit_of_one_message_is_flipped() {
        let job = Job {
            mode: Mode::Stream,
            size: 200,
            iters: 50,
            flip: true,
            rate: None,
        };
        let mut faults = Vec::new();
        for sequence in job.sequences() {
            for (index, part) in [0; 200].chunks_mut(64).enumerate() {
                job.fill(sequence, index * 64, part);
                faults.extend(verify_part(sequence, index * 64, part).err());
            }
        }
        assert_eq!(faults.len(), 1);
        assert_eq!((faults[0].sequence, faults[0].offset), (54, 100));
    }
}
