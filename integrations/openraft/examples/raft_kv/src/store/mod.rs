//! Log and state machine on disk, each a database of redb.

mod disk;
mod log;
mod machine;

use std::{io, path::Path};

use redb::Database;

pub use self::{disk::Space, log::Log, machine::Machine};

/// Opens both databases of a node, or makes them.
///
/// # Errors
///
/// The files cannot be opened, or are no databases.
pub fn open(directory: &Path, space: &Space) -> io::Result<(Log, Machine)> {
    std::fs::create_dir_all(directory)?;
    let log = Log::open(database(&directory.join("log.redb"), space)?)?;
    let machine = Machine::open(database(&directory.join("machine.redb"), space)?)?;
    Ok((log, machine))
}

fn database(path: &Path, space: &Space) -> io::Result<Database> {
    let disk = disk::Disk::open(path, space.clone())?;
    let database = Database::builder().create_with_backend(disk);
    database.map_err(io::Error::other)
}

fn encode(value: &impl serde::Serialize) -> io::Result<Vec<u8>> {
    postcard::to_allocvec(value).map_err(io::Error::other)
}

fn decode<T: serde::de::DeserializeOwned>(bytes: &[u8]) -> io::Result<T> {
    postcard::from_bytes(bytes).map_err(io::Error::other)
}

/// Converts an error of redb to one with the kind that the disk gave.
fn failed(error: redb::Error) -> io::Error {
    match error {
        redb::Error::Io(error) => error,
        other => io::Error::other(other),
    }
}
