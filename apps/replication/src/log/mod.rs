//! An append-only log of checksummed records in segments.
//!
//! 1. A record never straddles two segments, and a segment is followed by another only when the
//!    next record does not fit: equal records make equal segments.
//! 2. *Appended* records are in memory, *written* ones are with the kernel (they survive the
//!    process), and *durable* ones are safe as the [`Fsync`] policy promises. [`Log::commit`] takes
//!    a group of records from the first to the last with one write and one sync.
//! 3. A replica checks records before it appends them: a log never holds a record whose checksum
//!    does not follow from the one before it.
//! 4. After a crash the tail may be torn. [`Log::open`] reads everything, and cuts the log at the
//!    first record that is not valid. A replica gets the missing records from its primary.

mod record;
mod segment;

use std::{
    fs, io,
    path::PathBuf,
    time::{Duration, Instant},
};

use ibex_harness::clock;
use serde::{Deserialize, Serialize};

pub(crate) use self::record::{HEADER_BYTES, Invalid, Tip, begin_the_log, whole_records};
use self::segment::{Mapped, Segment};
pub(crate) use self::segment::{Piece, is_starved};

/// The time at which written records are made durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Fsync {
    /// Each record, before it is acknowledged.
    Record,
    /// Each group of records that came together, before any is acknowledged.
    Group,
    /// Once per interval. Records are acknowledged when the kernel has them: a killed process loses
    /// none, a machine that fails loses up to an interval.
    Interval(Duration),
}

/// Settings of a log.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct LogSettings {
    /// The directory of its segment files; `None` keeps the log in memory.
    pub(crate) directory: Option<PathBuf>,
    /// The time at which written records are made durable.
    pub(crate) fsync: Fsync,
    /// The most bytes of a segment, and therefore of a record with its header.
    pub(crate) segment_bytes: usize,
    /// Bytes of records for which a log in memory allocates at the start.
    pub(crate) expected_bytes: u64,
}

/// Times that a log spent, in ticks of the harness's clock.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Spent {
    /// Making and checking checksums.
    pub(crate) checksum: u64,
    /// Copying into the segment, and writing to the file.
    pub(crate) write: u64,
    /// Making records durable.
    pub(crate) sync: u64,
}

/// An append-only log of checksummed records.
#[derive(Debug)]
pub(crate) struct Log {
    settings: LogSettings,

    // Segments in order; the last one is the active one, and always exists.
    segments: Vec<Segment>,
    tip: Tip,
    durable: u64,
    synced_at: Instant,
    cut: u64,

    // Memory for new segments, the sealed file that is being read, and memory for reading back.
    spare: Vec<Vec<u8>>,
    mapped: Mapped,
    scratch: Vec<u8>,

    spent: Spent,
}

impl Log {
    /// Opens the log in the settings' directory, or creates one.
    pub(crate) fn open(settings: LogSettings) -> Result<Log, LogError> {
        let mut log = Log {
            segments: Vec::new(),
            tip: Tip::default(),
            durable: 0,
            synced_at: Instant::now(),
            cut: 0,
            spare: Vec::new(),
            mapped: None,
            scratch: Vec::new(),
            spent: Spent::default(),
            settings,
        };
        log.recover()
            .map_err(|source| log.failed("recovering", source))?;
        if log.segments.is_empty() {
            log.begin_segment()?;
        }
        if log.settings.directory.is_none() {
            // The kernel zeroes memory at the first touch, which is not part of a log's cost. Touch
            // it now.
            let bytes = log.settings.segment_bytes;
            let segments = log.settings.expected_bytes / bytes as u64;
            log.spare
                .resize_with(segments as usize, || vec![u8::MAX; bytes]);
        }
        Ok(log)
    }

    /// Returns the end of the log.
    pub(crate) fn tip(&self) -> Tip {
        self.tip
    }

    /// Returns the bytes that were cut off at opening because they were no valid records.
    pub(crate) fn cut(&self) -> u64 {
        self.cut
    }

    /// Returns the times spent so far.
    pub(crate) fn spent(&self) -> Spent {
        self.spent
    }

    // ---- Appending -------------------------------------------------------------------

    /// Appends a record with this payload.
    pub(crate) fn append(&mut self, payload: &[u8]) -> Result<(), LogError> {
        let begun = clock::ticks();
        let (size, before) = (HEADER_BYTES + payload.len(), self.tip);
        let record = self.room(size)?;
        record[HEADER_BYTES..].copy_from_slice(payload);
        let copied = clock::ticks();
        let tip = before.seal(record);
        self.active().commit(size);
        self.tip = tip;
        self.spent.write += copied - begun;
        self.spent.checksum += clock::ticks() - copied;
        self.commit_if_single()
    }

    /// Appends records of another log, from its offset `at` on. Stops with an error at the first
    /// record that is invalid. If this log extends beyond `at`, it is cut there first.
    pub(crate) fn append_records(&mut self, at: u64, records: &[u8]) -> Result<(), LogError> {
        if at != self.tip.end {
            self.truncate(at)?;
        }
        let mut rest = records;
        while !rest.is_empty() {
            let begun = clock::ticks();
            let (mut tip, mut size) = (self.tip, 0);
            while size < rest.len() && (size == 0 || self.may_follow(size, &rest[size..])) {
                tip = tip.check(&rest[size..]).map_err(LogError::Invalid)?;
                size = (tip.end - self.tip.end) as usize;
            }
            let (group, behind) = rest.split_at(size);
            let checked = clock::ticks();
            self.room(size)?.copy_from_slice(group);
            self.active().commit(size);
            self.tip = tip;
            self.spent.checksum += checked - begun;
            self.spent.write += clock::ticks() - checked;
            self.commit_if_single()?;
            rest = behind;
        }
        Ok(())
    }

    /// Returns whether the first record of `rest` may join a group of `size` bytes: not if each
    /// record is made durable by itself, and not across a segment's end.
    fn may_follow(&self, size: usize, rest: &[u8]) -> bool {
        let next = record::size_of_first(rest).unwrap_or_default();
        let active = self.segments.last();
        self.settings.fsync != Fsync::Record
            && active.is_some_and(|active| active.has_room(size.saturating_add(next)))
    }

    /// Commits the record just appended if each record is made durable by itself.
    fn commit_if_single(&mut self) -> Result<(), LogError> {
        if self.settings.fsync == Fsync::Record {
            self.commit()?;
        }
        Ok(())
    }

    /// Writes appended records, and makes them durable if the policy says so. Returns the offset up
    /// to which the log is durable.
    pub(crate) fn commit(&mut self) -> Result<u64, LogError> {
        if self.settings.directory.is_some() && self.durable < self.tip.end {
            let begun = clock::ticks();
            let written = self.active().write_out();
            written.map_err(|source| self.failed("writing", source))?;
            self.spent.write += clock::ticks() - begun;
            if self.sync_due() == Duration::ZERO {
                self.sync()?;
            }
        }
        self.durable = self.tip.end;
        Ok(self.durable)
    }

    /// Returns whether larger groups cost less per record because one sync makes a group durable.
    pub(crate) fn syncs_together(&self) -> bool {
        self.settings.directory.is_some() && self.settings.fsync == Fsync::Group
    }

    /// Returns the time left until written records must be made durable.
    pub(crate) fn sync_due(&self) -> Duration {
        match self.settings.fsync {
            Fsync::Record | Fsync::Group => Duration::ZERO,
            Fsync::Interval(interval) => interval.saturating_sub(self.synced_at.elapsed()),
        }
    }

    /// Makes written records durable.
    pub(crate) fn sync(&mut self) -> Result<(), LogError> {
        let begun = clock::ticks();
        let synced = self.active().sync();
        synced.map_err(|source| self.failed("syncing", source))?;
        self.synced_at = Instant::now();
        self.spent.sync += clock::ticks() - begun;
        Ok(())
    }

    // ---- Reading ---------------------------------------------------------------------

    /// Returns whole records from offset `from` on: at most `limit` bytes of one segment, or one
    /// longer record. Empty at the end of the log.
    pub(crate) fn records(&mut self, from: u64, limit: usize) -> Result<Piece<'_>, LogError> {
        let index = self.index_of(from);
        match self.segments[index].records(from, limit, &mut self.mapped) {
            Ok(records) => Ok(records),
            Err(source) => Err(LogError::Io {
                what: "reading",
                place: place(&self.settings),
                source,
            }),
        }
    }

    /// Passes every payload to `take`, in order.
    pub(crate) fn payloads(&mut self, mut take: impl FnMut(&[u8])) -> Result<(), LogError> {
        let mut at = 0;
        while at < self.tip.end {
            let records = self.records(at, usize::MAX)?;
            let mut rest = &records[..];
            at += rest.len() as u64;
            while let Some(size) = record::size_of_first(rest) {
                take(&rest[HEADER_BYTES..size]);
                rest = &rest[size..];
            }
        }
        Ok(())
    }

    /// Returns the tip of this log's prefix that ends at `end`, or `None` if no record ends there.
    pub(crate) fn tip_at(&mut self, end: u64) -> Result<Option<Tip>, LogError> {
        if end == 0 || end > self.tip.end {
            return Ok((end == 0).then(Tip::default));
        }
        // This is the segment of the last byte before `end`.
        let index = self.index_of(end - 1);
        let mut at = self.segments[index].base();
        let records = self.records(at, usize::MAX)?;
        let mut rest = &records[..];
        while let Some(size) = record::size_of_first(rest) {
            at += size as u64;
            if at == end {
                return Ok(Some(Tip {
                    end,
                    number: record::number_of_first(rest),
                    checksum: record::checksum_of_first(rest),
                }));
            }
            rest = &rest[size..];
        }
        Ok(None)
    }

    /// Reads the whole log back from its storage and checks every record. Returns the resulting
    /// tip, which must equal [`tip`](Self::tip).
    pub(crate) fn read_back(&mut self) -> Result<Tip, LogError> {
        let mut tip = Tip::default();
        for index in 0..self.segments.len() {
            let read = self.segments[index].read_back(&mut self.scratch);
            let mut rest = read.map_err(|source| LogError::Io {
                what: "reading it back",
                place: place(&self.settings),
                source,
            })?;
            while !rest.is_empty() {
                let next = tip.check(rest).map_err(LogError::Invalid)?;
                rest = &rest[(next.end - tip.end) as usize..];
                tip = next;
            }
        }
        Ok(tip)
    }

    // ---- Segments --------------------------------------------------------------------

    /// Reads the segments of the directory, up to the first invalid record.
    fn recover(&mut self) -> io::Result<()> {
        let Some(directory) = self.settings.directory.clone() else {
            return Ok(());
        };
        fs::create_dir_all(&directory)?;
        let mut is_cut = false;
        for path in segment::files_in(&directory)? {
            let buffer = self.buffer();
            let mut segment = Segment::open(&path, buffer)?;
            // Drop a segment that does not follow the one before, or that follows a cut.
            if is_cut || segment.base() != self.tip.end {
                self.cut += segment.end() - segment.base();
                self.spare.extend(segment.remove()?);
                continue;
            }
            let mut rest = segment.read_back(&mut self.scratch)?;
            while let Ok(tip) = self.tip.check(rest) {
                rest = &rest[(tip.end - self.tip.end) as usize..];
                self.tip = tip;
            }
            if !rest.is_empty() {
                is_cut = true;
                self.cut += rest.len() as u64;
                segment.truncate(self.tip.end)?;
            }
            self.seal_active()?;
            self.segments.push(segment);
        }
        self.durable = self.tip.end;
        Ok(())
    }

    /// Returns room behind the last record, in a new segment if the active one has too little.
    fn room(&mut self, bytes: usize) -> Result<&mut [u8], LogError> {
        if bytes > self.settings.segment_bytes {
            return Err(LogError::TooLong {
                bytes,
                limit: self.settings.segment_bytes,
            });
        }
        if !self.active().has_room(bytes) {
            self.begin_segment()?;
        }
        Ok(self.active().room(bytes))
    }

    /// Seals the active segment and begins the next.
    fn begin_segment(&mut self) -> Result<(), LogError> {
        let sealed = self.seal_active();
        sealed.map_err(|source| self.failed("sealing a segment", source))?;
        let buffer = self.buffer();
        let directory = self.settings.directory.as_deref();
        let segment = Segment::create(self.tip.end, buffer, directory);
        let segment = segment.map_err(|source| self.failed("beginning a segment", source))?;
        self.segments.push(segment);
        Ok(())
    }

    fn seal_active(&mut self) -> io::Result<()> {
        if let Some(active) = self.segments.last_mut() {
            self.spare.extend(active.seal()?);
        }
        Ok(())
    }

    /// Cuts the log at offset `end`, where a record ends.
    fn truncate(&mut self, end: u64) -> Result<(), LogError> {
        let tip = self.tip_at(end)?.ok_or(LogError::NoRecordEnds { end })?;
        let cut = self.cut_segments(end);
        cut.map_err(|source| self.failed("truncating", source))?;
        (self.tip, self.durable) = (tip, end);
        Ok(())
    }

    fn cut_segments(&mut self, end: u64) -> io::Result<()> {
        self.mapped = None;
        while self.segments.len() > 1 && self.active().base() >= end {
            if let Some(segment) = self.segments.pop() {
                self.spare.extend(segment.remove()?);
            }
        }
        let buffer = self.buffer();
        let active = self.active();
        let unused = active.reactivate(buffer)?;
        active.truncate(end)?;
        self.spare.extend(unused);
        Ok(())
    }

    fn buffer(&mut self) -> Vec<u8> {
        let bytes = self.settings.segment_bytes;
        self.spare.pop().unwrap_or_else(|| vec![0; bytes])
    }

    fn active(&mut self) -> &mut Segment {
        let last = self.segments.last_mut();
        last.expect("a log that is open has an active segment")
    }

    /// Returns the index of the segment that holds the byte at an offset, or would hold it.
    fn index_of(&self, at: u64) -> usize {
        let behind = self.segments.partition_point(|one| one.base() <= at);
        behind.saturating_sub(1)
    }

    #[cold]
    fn failed(&self, what: &'static str, source: io::Error) -> LogError {
        LogError::Io {
            what,
            place: place(&self.settings),
            source,
        }
    }
}

/// An error of a log.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LogError {
    /// The system refused an operation.
    #[error("the log in {place}: {what}: {source}")]
    Io {
        /// The operation.
        what: &'static str,
        /// The place of the log.
        place: String,
        /// The system's error.
        r#source: io::Error,
    },
    /// The records do not follow from those in the log.
    #[error("{0}, and it was not appended; the two logs have different pasts, or bytes changed")]
    Invalid(Invalid),
    /// The record is longer than a segment.
    #[error("a record of {bytes} bytes does not fit a segment of {limit}; raise --segment-bytes")]
    TooLong {
        /// Bytes of the record with its header.
        bytes: usize,
        /// Bytes of a segment.
        limit: usize,
    },
    /// The log cannot be cut in the middle of a record.
    #[error("no record ends at offset {end}, so the log cannot go on from there")]
    NoRecordEnds {
        /// The offset at which no record ends.
        end: u64,
    },
}

fn place(settings: &LogSettings) -> String {
    match &settings.directory {
        Some(directory) => directory.display().to_string(),
        None => "memory".to_owned(),
    }
}

#[cfg(test)]
mod tests;
