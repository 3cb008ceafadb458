//! A file of redb that may run out of space.

use std::{
    fs::{File, OpenOptions},
    io,
    ops::Bound,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use redb::{BackendError, StorageBackend, backends::FileBackend};

/// The space of a disk, which several files share. Clones belong to one disk.
#[derive(Clone, Debug, Default)]
pub struct Space {
    is_used_up: Arc<AtomicBool>,
}

impl Space {
    /// Makes every later write fail as on a full disk: half of its bytes are written.
    pub fn use_up(&self) {
        self.is_used_up.store(true, Ordering::Relaxed);
    }

    fn check(&self) -> io::Result<()> {
        match self.is_used_up.load(Ordering::Relaxed) {
            true => Err(io::ErrorKind::StorageFull.into()),
            false => Ok(()),
        }
    }
}

/// A file on such a disk.
#[derive(Debug)]
pub(super) struct Disk {
    file: FileBackend,
    space: Space,
}

impl Disk {
    pub(super) fn open(path: &Path, space: Space) -> io::Result<Disk> {
        let mut options = OpenOptions::new();
        let file: File = options
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(path)?;
        let file = FileBackend::new(file).map_err(io::Error::other)?;
        Ok(Disk { file, space })
    }
}

impl StorageBackend for Disk {
    fn len(&self) -> io::Result<u64> {
        self.file.len()
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.file.read(offset, out)
    }

    fn set_len(&self, length: u64) -> io::Result<()> {
        self.space.check()?;
        self.file.set_len(length)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.space.check()?;
        self.file.sync_data()
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        if let Err(full) = self.space.check() {
            self.file.write(offset, &data[..data.len() / 2])?;
            return Err(full);
        }
        self.file.write(offset, data)
    }

    fn close(&self) -> io::Result<()> {
        self.file.close()
    }

    fn try_lock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<bool, BackendError> {
        self.file.try_lock_range(start, end)
    }

    fn unlock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<(), BackendError> {
        self.file.unlock_range(start, end)
    }
}
