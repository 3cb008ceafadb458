//! The log and the vote: in memory for reading, and on disk.
//!
//! A thread writes. It puts all changes since its last commit into one transaction, so that many
//! appends cost one `fsync`. A restarted node has everything that was reported as written.

use std::{
    collections::BTreeMap,
    fmt::Debug,
    io,
    ops::RangeBounds,
    sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc},
    thread,
};

use openraft::{
    LogState, OptionalSend, RaftLogReader,
    alias::{EntryOf, LogIdOf, VoteOf},
    storage::{IOFlushed, RaftLogStorage},
};
use redb::{Database, ReadableDatabase, ReadableTable, TableDefinition, WriteTransaction};
use tokio::sync::oneshot;

use super::{decode, encode, failed};
use crate::types::Types;

/// The log of a node; clones share it.
#[derive(Clone, Debug)]
pub struct Log {
    kept: Arc<Mutex<Kept>>,
    jobs: mpsc::Sender<Job>,
}

#[derive(Debug, Default)]
struct Kept {
    vote: Option<VoteOf<Types>>,
    entries: BTreeMap<u64, EntryOf<Types>>,
    purged: Option<LogIdOf<Types>>,
}

/// A change to write, and the receiver of its outcome.
struct Job {
    change: Change,
    done: Done,
}

enum Change {
    Append(Vec<(u64, Vec<u8>)>),
    Vote(Vec<u8>),
    TruncateFrom(u64),
    PurgeThrough(u64, Vec<u8>),
}

enum Done {
    Append(IOFlushed<Types>),
    Other(oneshot::Sender<io::Result<()>>),
}

impl Log {
    pub(super) fn open(database: Database) -> io::Result<Log> {
        let kept = read(&database).map_err(failed)?;
        let (jobs, of_writer) = mpsc::channel();
        let writer = thread::Builder::new().name("log".to_owned());
        writer.spawn(move || write(&database, &of_writer))?;
        Ok(Log {
            kept: Arc::new(Mutex::new(kept)),
            jobs,
        })
    }

    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn start(&self, change: Change, done: Done) -> io::Result<()> {
        let sent = self.jobs.send(Job { change, done });
        sent.map_err(|_| writer_is_gone())
    }

    async fn write(&self, change: Change) -> io::Result<()> {
        let (done, is_done) = oneshot::channel();
        self.start(change, Done::Other(done))?;
        is_done.await.map_err(|_| writer_is_gone())?
    }
}

impl RaftLogReader<Types> for Log {
    async fn try_get_log_entries<B: RangeBounds<u64> + Clone + Debug + OptionalSend>(
        &mut self,
        range: B,
    ) -> io::Result<Vec<EntryOf<Types>>> {
        let kept = self.kept();
        let entries = kept.entries.range(range);
        Ok(entries.map(|(_, entry)| entry.clone()).collect())
    }

    async fn read_vote(&mut self) -> io::Result<Option<VoteOf<Types>>> {
        Ok(self.kept().vote)
    }
}

impl RaftLogStorage<Types> for Log {
    type LogReader = Log;

    async fn get_log_state(&mut self) -> io::Result<LogState<Types>> {
        let kept = self.kept();
        let last = kept.entries.last_key_value().map(|(_, entry)| entry.log_id);
        Ok(LogState {
            last_purged_log_id: kept.purged,
            last_log_id: last.or(kept.purged),
        })
    }

    async fn get_log_reader(&mut self) -> Log {
        self.clone()
    }

    async fn save_vote(&mut self, vote: &VoteOf<Types>) -> io::Result<()> {
        self.write(Change::Vote(encode(vote)?)).await?;
        self.kept().vote = Some(*vote);
        Ok(())
    }

    /// Returns before the entries are on disk, which `written` reports.
    async fn append<I>(&mut self, entries: I, written: IOFlushed<Types>) -> io::Result<()>
    where
        I: IntoIterator<Item = EntryOf<Types>> + OptionalSend,
        I::IntoIter: OptionalSend,
    {
        let mut encoded = Vec::new();
        let mut kept = self.kept();
        for entry in entries {
            let index = entry.log_id.index();
            encoded.push((index, encode(&entry)?));
            kept.entries.insert(index, entry);
        }
        self.start(Change::Append(encoded), Done::Append(written))
    }

    async fn truncate_after(&mut self, last: Option<LogIdOf<Types>>) -> io::Result<()> {
        let first_gone = last.map_or(0, |last| last.index() + 1);
        self.kept().entries.split_off(&first_gone);
        self.write(Change::TruncateFrom(first_gone)).await
    }

    async fn purge(&mut self, last: LogIdOf<Types>) -> io::Result<()> {
        {
            let mut kept = self.kept();
            kept.entries = kept.entries.split_off(&(last.index() + 1));
            kept.purged = Some(last);
        }
        let change = Change::PurgeThrough(last.index(), encode(&last)?);
        self.write(change).await
    }
}

fn read(database: &Database) -> Result<Kept, redb::Error> {
    let transaction = database.begin_write()?;
    {
        transaction.open_table(ENTRIES)?;
        transaction.open_table(MARKS)?;
    }
    transaction.commit()?;
    let mut kept = Kept::default();
    let transaction = database.begin_read()?;
    for entry in transaction.open_table(ENTRIES)?.iter()? {
        let (index, bytes) = entry?;
        kept.entries.insert(
            index.value(),
            decode(bytes.value()).map_err(redb::Error::Io)?,
        );
    }
    let marks = transaction.open_table(MARKS)?;
    if let Some(bytes) = marks.get(VOTE)? {
        kept.vote = Some(decode(bytes.value()).map_err(redb::Error::Io)?);
    }
    if let Some(bytes) = marks.get(PURGED)? {
        kept.purged = Some(decode(bytes.value()).map_err(redb::Error::Io)?);
    }
    Ok(kept)
}

/// Writes until the log is dropped.
fn write(database: &Database, jobs: &mpsc::Receiver<Job>) {
    while let Ok(first) = jobs.recv() {
        let batch: Vec<Job> = [first].into_iter().chain(jobs.try_iter()).collect();
        let written = commit(database, &batch).map_err(failed);
        for job in batch {
            let outcome = match &written {
                Ok(()) => Ok(()),
                Err(error) => Err(io::Error::new(error.kind(), error.to_string())),
            };
            match job.done {
                Done::Append(written) => written.io_completed(outcome),
                // The requester may be gone.
                Done::Other(done) => drop(done.send(outcome)),
            }
        }
    }
}

fn commit(database: &Database, batch: &[Job]) -> Result<(), redb::Error> {
    let transaction = database.begin_write()?;
    for job in batch {
        apply(&transaction, &job.change)?;
    }
    transaction.commit()?;
    Ok(())
}

fn apply(transaction: &WriteTransaction, change: &Change) -> Result<(), redb::Error> {
    match change {
        Change::Append(entries) => {
            let mut table = transaction.open_table(ENTRIES)?;
            for (index, bytes) in entries {
                table.insert(index, bytes.as_slice())?;
            }
        }
        Change::Vote(bytes) => {
            transaction
                .open_table(MARKS)?
                .insert(VOTE, bytes.as_slice())?;
        }
        Change::TruncateFrom(first) => {
            transaction
                .open_table(ENTRIES)?
                .retain_in(*first.., |_, _| false)?;
        }
        Change::PurgeThrough(last, bytes) => {
            transaction
                .open_table(ENTRIES)?
                .retain_in(..=*last, |_, _| false)?;
            transaction
                .open_table(MARKS)?
                .insert(PURGED, bytes.as_slice())?;
        }
    }
    Ok(())
}

fn writer_is_gone() -> io::Error {
    io::Error::other("the thread that writes the log has ended")
}

const ENTRIES: TableDefinition<'_, u64, &[u8]> = TableDefinition::new("entries");
const MARKS: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("marks");
const VOTE: &str = "vote";
const PURGED: &str = "purged";
