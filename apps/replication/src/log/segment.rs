//! A segment: a run of whole records, in memory and, if the log is kept in files, in a file whose
//! name is the log offset at which it begins.
//!
//! The last segment of a log is *active*: its bytes are in memory, so that appending is a copy, and
//! replicas that keep up are served without a read. [`write_out`] brings everything appended since
//! the last call to the file in one write; [`sync`] makes that durable. The files of the other
//! segments are opened for each read, since a log may have more of them than a process may have
//! open.
//!
//! [`write_out`]: Segment::write_out
//! [`sync`]: Segment::sync

use std::{
    fs::{self, File, OpenOptions},
    io, mem,
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

use rustix::io::Errno;

use super::record::{self, HEADER_BYTES};

/// A run of whole records.
#[derive(Debug)]
pub(crate) struct Segment {
    /// The log offset of the segment's first byte.
    base: u64,
    used: usize,
    /// The segment's bytes, of which `used` are records. Empty if they are only in the file.
    buffer: Vec<u8>,
    file: Option<SegmentFile>,
}

#[derive(Debug)]
struct SegmentFile {
    path: PathBuf,
    /// Open until the segment is sealed.
    open: Option<File>,
    /// Bytes handed to the kernel, and bytes that the kernel has made durable.
    written: usize,
    synced: usize,
}

impl Segment {
    /// Creates an empty segment in `buffer`, with a file in `directory` if one is given.
    pub(crate) fn create(
        base: u64,
        buffer: Vec<u8>,
        directory: Option<&Path>,
    ) -> io::Result<Segment> {
        let file = directory
            .map(|directory| SegmentFile::create(directory, base))
            .transpose()?;
        Ok(Segment {
            base,
            used: 0,
            buffer,
            file,
        })
    }

    /// Reads the segment of an existing file into `buffer`. Its bytes are not necessarily records.
    pub(crate) fn open(path: &Path, mut buffer: Vec<u8>) -> io::Result<Segment> {
        let base = base_of(path).ok_or_else(|| io::Error::other("not a segment's name"))?;
        let file = to_be_changed().open(path)?;
        let length = usize::try_from(file.metadata()?.len()).map_err(io::Error::other)?;
        if length > buffer.len() {
            return Err(io::Error::other(format!(
                "{length} bytes in a segment of at most {}",
                buffer.len()
            )));
        }
        file.read_exact_at(&mut buffer[..length], 0)?;
        Ok(Segment {
            base,
            used: length,
            buffer,
            file: Some(SegmentFile {
                path: path.to_owned(),
                open: Some(file),
                written: length,
                synced: 0,
            }),
        })
    }

    /// Returns the log offset at which the segment begins.
    pub(crate) fn base(&self) -> u64 {
        self.base
    }

    /// Returns the log offset at which the segment ends.
    pub(crate) fn end(&self) -> u64 {
        self.base + self.used as u64
    }

    /// Returns whether `bytes` more fit.
    pub(crate) fn has_room(&self, bytes: usize) -> bool {
        bytes <= self.buffer.len() - self.used
    }

    /// Returns room for `bytes` more, which must fit.
    pub(crate) fn room(&mut self, bytes: usize) -> &mut [u8] {
        &mut self.buffer[self.used..self.used + bytes]
    }

    /// Counts the bytes written to [`room`](Self::room) as records.
    pub(crate) fn commit(&mut self, bytes: usize) {
        self.used += bytes;
    }

    /// Returns whole records from a log offset on: at most `limit` bytes, or one longer record.
    /// Borrows them from memory, or reads them from the file into `scratch`.
    pub(crate) fn records<'a>(
        &'a self,
        from: u64,
        limit: usize,
        scratch: &'a mut Vec<u8>,
    ) -> io::Result<&'a [u8]> {
        let at = (from - self.base) as usize;
        let bytes = match &self.file {
            Some(file) if self.buffer.is_empty() => {
                file.read_with(|file| {
                    let mut header = [0; HEADER_BYTES];
                    file.read_exact_at(&mut header, at as u64)?;
                    let first = record::size_of_first(&header).unwrap_or_default();
                    scratch.resize(limit.max(first).min(self.used - at), 0);
                    file.read_exact_at(scratch, at as u64)
                })?;
                &scratch[..]
            }
            _ => &self.buffer[at..self.used],
        };
        Ok(&bytes[..record::whole_records(bytes, limit)])
    }

    /// Reads the whole segment back from its file, if it has one.
    pub(crate) fn read_back<'a>(&'a self, scratch: &'a mut Vec<u8>) -> io::Result<&'a [u8]> {
        match &self.file {
            Some(file) => {
                scratch.resize(file.written, 0);
                file.read_with(|file| file.read_exact_at(scratch, 0))?;
                Ok(scratch)
            }
            None => Ok(&self.buffer[..self.used]),
        }
    }

    /// Writes the bytes appended since the last call to the file.
    pub(crate) fn write_out(&mut self) -> io::Result<()> {
        if let Some(file) = &mut self.file
            && let Some(open) = &file.open
            && file.written < self.used
        {
            let new = &self.buffer[file.written..self.used];
            open.write_all_at(new, file.written as u64)?;
            file.written = self.used;
        }
        Ok(())
    }

    /// Makes the written bytes durable.
    pub(crate) fn sync(&mut self) -> io::Result<()> {
        if let Some(file) = &mut self.file
            && let Some(open) = &file.open
            && file.synced < file.written
        {
            open.sync_data()?;
            file.synced = file.written;
        }
        Ok(())
    }

    /// Writes and syncs the rest; nothing is appended afterwards. A segment with a file gives its
    /// memory back for the next one.
    pub(crate) fn seal(&mut self) -> io::Result<Option<Vec<u8>>> {
        self.write_out()?;
        self.sync()?;
        Ok(self.file.as_mut().map(|file| {
            file.open = None;
            mem::take(&mut self.buffer)
        }))
    }

    /// Cuts the segment at a log offset. The segment must be active.
    pub(crate) fn truncate(&mut self, end: u64) -> io::Result<()> {
        self.used = (end - self.base) as usize;
        if let Some(file) = &mut self.file
            && let Some(open) = &file.open
            && file.written > self.used
        {
            open.set_len(self.used as u64)?;
            open.sync_data()?;
            (file.written, file.synced) = (self.used, self.used);
        }
        Ok(())
    }

    /// Removes the file, and returns the memory, if there is any.
    pub(crate) fn remove(self) -> io::Result<Option<Vec<u8>>> {
        if let Some(file) = self.file {
            fs::remove_file(file.path)?;
        }
        Ok((!self.buffer.is_empty()).then_some(self.buffer))
    }

    /// Brings the bytes into memory, in `buffer`, so that records can be appended again. Returns
    /// `buffer` if it is not needed.
    pub(crate) fn reactivate(&mut self, mut buffer: Vec<u8>) -> io::Result<Option<Vec<u8>>> {
        match &mut self.file {
            Some(file) if self.buffer.is_empty() => {
                let opened = once_there_is_a_descriptor(|| to_be_changed().open(&file.path))?;
                opened.read_exact_at(&mut buffer[..self.used], 0)?;
                file.open = Some(opened);
                self.buffer = buffer;
                Ok(None)
            }
            _ => Ok(Some(buffer)),
        }
    }
}

impl SegmentFile {
    fn create(directory: &Path, base: u64) -> io::Result<SegmentFile> {
        let path = directory.join(format!("{base:020}.{EXTENSION}"));
        // The new name is durable only once the directory is synced.
        let directory = once_there_is_a_descriptor(|| File::open(directory))?;
        let file = once_there_is_a_descriptor(|| to_be_changed().create_new(true).open(&path))?;
        directory.sync_all()?;
        Ok(SegmentFile {
            path,
            open: Some(file),
            written: 0,
            synced: 0,
        })
    }

    fn read_with(&self, read: impl FnOnce(&File) -> io::Result<()>) -> io::Result<()> {
        match &self.open {
            Some(file) => read(file),
            None => read(&once_there_is_a_descriptor(|| File::open(&self.path))?),
        }
    }
}

fn to_be_changed() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.read(true).write(true);
    options
}

/// Opens a file. If the process or the system has no descriptor left, retries for a while: such a
/// shortage passes, and should not end a log.
fn once_there_is_a_descriptor(open: impl Fn() -> io::Result<File>) -> io::Result<File> {
    let patience = Instant::now() + PATIENCE;
    loop {
        match open() {
            Err(error) if is_starved(&error) && Instant::now() < patience => thread::sleep(PAUSE),
            opened => return opened,
        }
    }
}

/// Returns whether the process or the system has no descriptor left.
pub(crate) fn is_starved(error: &io::Error) -> bool {
    matches!(
        Errno::from_io_error(error),
        Some(Errno::MFILE | Errno::NFILE)
    )
}

/// Lists the segment files of a directory, in the order of the log.
pub(crate) fn files_in(directory: &Path) -> io::Result<Vec<PathBuf>> {
    let mut paths = Vec::new();
    for entry in fs::read_dir(directory)? {
        let path = entry?.path();
        if base_of(&path).is_some() {
            paths.push(path);
        }
    }
    paths.sort();
    Ok(paths)
}

/// Returns the log offset in a segment's file name.
fn base_of(path: &Path) -> Option<u64> {
    if path.extension()? != EXTENSION {
        return None;
    }
    path.file_stem()?.to_str()?.parse().ok()
}

/// The time to wait for a descriptor, and below it the pause between attempts.
const PATIENCE: Duration = Duration::from_secs(10);
const PAUSE: Duration = Duration::from_millis(5);
const EXTENSION: &str = "segment";
