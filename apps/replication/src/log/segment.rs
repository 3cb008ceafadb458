//! A segment: a run of whole records, in memory and, if the log is kept in files, in a file whose
//! name is the log offset at which it begins.
//!
//! The last segment of a log is *active*: its bytes are in memory, so that appending is a copy, and
//! replicas that keep up are served without a read. [`write_out`] brings everything appended since
//! the last call to the file in one write; [`sync`] makes that durable.
//!
//! The other segments are *sealed*: nothing changes their bytes, so they are sent from where they
//! lie. Those of a log in memory are regions. The file of another one is mapped when it is read, and
//! only one at a time, since a log may have more of them than a process may map.
//!
//! [`write_out`]: Segment::write_out
//! [`sync`]: Segment::sync

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Write},
    mem,
    ops::Deref,
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

use ibex::{Region, RegionSlice};
use rustix::io::Errno;

use super::record;

/// A run of whole records.
#[derive(Debug)]
pub(crate) struct Segment {
    /// The log offset of the segment's first byte.
    base: u64,
    /// Bytes of records.
    used: usize,
    bytes: Bytes,
}

/// The place of a segment's bytes.
#[derive(Debug)]
enum Bytes {
    /// In memory, with room behind them, and in a file if there is one.
    Active(Vec<u8>, Option<SegmentFile>),
    /// Sealed, in memory.
    Sealed(Region),
    /// Sealed, in a file whose bytes nothing changes any more.
    InFile(PathBuf),
}

/// The file of an active segment.
#[derive(Debug)]
struct SegmentFile {
    path: PathBuf,
    open: File,
    /// Bytes handed to the kernel, and bytes that the kernel has made durable.
    written: usize,
    synced: usize,
}

/// Whole records, where they lie.
#[derive(Debug)]
pub(crate) enum Piece<'a> {
    /// In the active segment, which grows.
    Active(&'a [u8]),
    /// In a sealed segment, whose bytes stay as they are.
    Sealed(RegionSlice),
}

impl Deref for Piece<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Piece::Active(records) => records,
            Piece::Sealed(records) => records,
        }
    }
}

/// The sealed file that was read last: the base of its segment, and its bytes.
pub(crate) type Mapped = Option<(u64, Region)>;

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
            bytes: Bytes::Active(buffer, file),
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
        let file = SegmentFile {
            path: path.to_owned(),
            open: file,
            written: length,
            synced: 0,
        };
        Ok(Segment {
            base,
            used: length,
            bytes: Bytes::Active(buffer, Some(file)),
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
        match &self.bytes {
            Bytes::Active(buffer, _) => bytes <= buffer.len() - self.used,
            _ => false,
        }
    }

    /// Returns room for `bytes` more, which must fit.
    pub(crate) fn room(&mut self, bytes: usize) -> &mut [u8] {
        match &mut self.bytes {
            Bytes::Active(buffer, _) => &mut buffer[self.used..self.used + bytes],
            _ => &mut [],
        }
    }

    /// Counts the bytes written to [`room`](Self::room) as records.
    pub(crate) fn commit(&mut self, bytes: usize) {
        self.used += bytes;
    }

    /// Returns whole records from a log offset on: at most `limit` bytes, or one longer record.
    pub(crate) fn records(
        &self,
        from: u64,
        limit: usize,
        mapped: &mut Mapped,
    ) -> io::Result<Piece<'_>> {
        let at = (from - self.base) as usize;
        let whole = |bytes: &[u8]| at..at + record::whole_records(&bytes[at..self.used], limit);
        let region = match &self.bytes {
            Bytes::Active(buffer, _) => return Ok(Piece::Active(&buffer[whole(buffer)])),
            Bytes::Sealed(region) => region,
            Bytes::InFile(path) => match mapped {
                Some((base, region)) if *base == self.base => region,
                _ => &mapped.insert((self.base, map(path, self.used)?)).1,
            },
        };
        Ok(Piece::Sealed(region.slice(whole(region))))
    }

    /// Reads the whole segment back from its file, if it has one.
    pub(crate) fn read_back<'a>(&'a self, scratch: &'a mut Vec<u8>) -> io::Result<&'a [u8]> {
        match &self.bytes {
            Bytes::Active(buffer, None) => return Ok(&buffer[..self.used]),
            Bytes::Sealed(region) => return Ok(&region[..self.used]),
            Bytes::Active(_, Some(file)) => {
                scratch.resize(file.written, 0);
                file.open.read_exact_at(scratch, 0)?;
            }
            Bytes::InFile(path) => {
                scratch.resize(self.used, 0);
                opened(path)?.read_exact_at(scratch, 0)?;
            }
        }
        Ok(scratch)
    }

    /// Writes the bytes appended since the last call to the file.
    pub(crate) fn write_out(&mut self) -> io::Result<()> {
        if let Bytes::Active(buffer, Some(file)) = &mut self.bytes
            && file.written < self.used
        {
            let new = &buffer[file.written..self.used];
            file.open.write_all_at(new, file.written as u64)?;
            file.written = self.used;
        }
        Ok(())
    }

    /// Makes the written bytes durable.
    pub(crate) fn sync(&mut self) -> io::Result<()> {
        if let Bytes::Active(_, Some(file)) = &mut self.bytes
            && file.synced < file.written
        {
            file.open.sync_data()?;
            file.synced = file.written;
        }
        Ok(())
    }

    /// Writes and syncs the rest; nothing is appended afterwards. A segment with a file gives its
    /// memory back for the next one.
    pub(crate) fn seal(&mut self) -> io::Result<Option<Vec<u8>>> {
        self.write_out()?;
        self.sync()?;
        let Bytes::Active(buffer, file) = &mut self.bytes else {
            return Ok(None);
        };
        let buffer = mem::take(buffer);
        let (sealed, spare) = match file.take() {
            Some(file) => (Bytes::InFile(file.path), Some(buffer)),
            None => (Bytes::Sealed(Region::from(buffer)), None),
        };
        self.bytes = sealed;
        Ok(spare)
    }

    /// Cuts the segment at a log offset. The segment must be active.
    pub(crate) fn truncate(&mut self, end: u64) -> io::Result<()> {
        self.used = (end - self.base) as usize;
        if let Bytes::Active(_, Some(file)) = &mut self.bytes
            && file.written > self.used
        {
            file.open.set_len(self.used as u64)?;
            file.open.sync_data()?;
            (file.written, file.synced) = (self.used, self.used);
        }
        Ok(())
    }

    /// Removes the file, and returns the memory, if there is any.
    pub(crate) fn remove(self) -> io::Result<Option<Vec<u8>>> {
        let (path, memory) = match self.bytes {
            Bytes::Active(buffer, file) => (file.map(|file| file.path), Some(buffer)),
            // A replica may still be sent from the region, which then keeps its memory.
            Bytes::Sealed(region) => (None, region.into_vec().ok()),
            Bytes::InFile(path) => (Some(path), None),
        };
        path.map_or(Ok(()), fs::remove_file)?;
        Ok(memory)
    }

    /// Makes a sealed segment active again, in `buffer`. Returns `buffer` if it is not needed.
    pub(crate) fn reactivate(&mut self, mut buffer: Vec<u8>) -> io::Result<Option<Vec<u8>>> {
        let records = &mut buffer[..self.used];
        let file = match &self.bytes {
            Bytes::Active(..) => return Ok(Some(buffer)),
            Bytes::Sealed(region) => {
                records.copy_from_slice(&region[..self.used]);
                None
            }
            Bytes::InFile(path) => {
                opened(path)?.read_exact_at(records, 0)?;
                Some(SegmentFile::replace(path, records)?)
            }
        };
        self.bytes = Bytes::Active(buffer, file);
        Ok(None)
    }
}

impl SegmentFile {
    fn create(directory: &Path, base: u64) -> io::Result<SegmentFile> {
        let path = directory.join(format!("{base:020}.{EXTENSION}"));
        // The new name is durable only once the directory is synced.
        let directory = opened(directory)?;
        let open = once_there_is_a_descriptor(|| to_be_changed().create_new(true).open(&path))?;
        directory.sync_all()?;
        Ok(SegmentFile {
            path,
            open,
            written: 0,
            synced: 0,
        })
    }

    /// Puts another file with the same bytes in the place of a sealed one, which may be mapped and
    /// must not change.
    fn replace(path: &Path, bytes: &[u8]) -> io::Result<SegmentFile> {
        let new = path.with_extension("new");
        let new_file = || to_be_changed().create(true).truncate(true).open(&new);
        let mut open = once_there_is_a_descriptor(new_file)?;
        open.write_all(bytes)?;
        open.sync_data()?;
        fs::rename(&new, path)?;
        opened(path.parent().unwrap_or(path))?.sync_all()?;
        Ok(SegmentFile {
            path: path.to_owned(),
            open,
            written: bytes.len(),
            synced: bytes.len(),
        })
    }
}

/// Maps the file of a sealed segment.
fn map(path: &Path, bytes: usize) -> io::Result<Region> {
    let file = opened(path)?;
    // SAFETY: no code of this process changes the file of a sealed segment (`reactivate` replaces
    // it), and a log's directory is one process's alone. This process runs no code in a fork.
    let region = unsafe { Region::map(&file, ..) }?;
    match region.len() {
        length if length == bytes => Ok(region),
        length => Err(io::Error::other(format!(
            "{} has {length} bytes instead of {bytes}",
            path.display()
        ))),
    }
}

fn opened(path: &Path) -> io::Result<File> {
    once_there_is_a_descriptor(|| File::open(path))
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
