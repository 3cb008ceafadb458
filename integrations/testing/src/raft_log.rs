//! openraft's log in memory.

use std::{
    collections::BTreeMap,
    fmt::Debug,
    io,
    ops::RangeBounds,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use openraft::{
    LogState, OptionalSend, RaftLogReader, RaftTypeConfig,
    alias::{EntryOf, LogIdOf, VoteOf},
    entry::RaftEntry,
    storage::{IOFlushed, RaftLogStorage},
};

/// The log and the vote of a node of openraft, in memory; clones share them. A write is reported at
/// once, unless a test holds it up.
#[derive(Clone, Default)]
pub struct RaftLog<C: RaftTypeConfig> {
    kept: Arc<Mutex<Kept<C>>>,
}

#[derive(Default)]
struct Kept<C: RaftTypeConfig> {
    vote: Option<VoteOf<C>>,
    entries: BTreeMap<u64, EntryOf<C>>,
    purged: Option<LogIdOf<C>>,
    /// The number of entries that are written together, once all of them are there.
    group: usize,
    waiting: Vec<IOFlushed<C>>,
}

impl<C: RaftTypeConfig> RaftLog<C> {
    /// Returns a log that writes its first `group` entries together.
    #[must_use]
    pub fn in_groups_of(group: usize) -> Self {
        let log = Self::default();
        log.kept().group = group;
        log
    }

    fn kept(&self) -> MutexGuard<'_, Kept<C>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<C: RaftTypeConfig> RaftLogReader<C> for RaftLog<C>
where
    EntryOf<C>: Clone,
{
    async fn try_get_log_entries<B: RangeBounds<u64> + Clone + Debug + OptionalSend>(
        &mut self,
        range: B,
    ) -> io::Result<Vec<EntryOf<C>>> {
        let kept = self.kept();
        let entries = kept.entries.range(range);
        Ok(entries.map(|(_, entry)| entry.clone()).collect())
    }

    async fn read_vote(&mut self) -> io::Result<Option<VoteOf<C>>> {
        Ok(self.kept().vote.clone())
    }
}

impl<C: RaftTypeConfig> RaftLogStorage<C> for RaftLog<C>
where
    EntryOf<C>: Clone,
{
    type LogReader = Self;

    async fn get_log_state(&mut self) -> io::Result<LogState<C>> {
        let kept = self.kept();
        let last = kept
            .entries
            .last_key_value()
            .map(|(_, entry)| entry.log_id());
        Ok(LogState {
            last_purged_log_id: kept.purged.clone(),
            last_log_id: last.or_else(|| kept.purged.clone()),
        })
    }

    async fn get_log_reader(&mut self) -> Self {
        self.clone()
    }

    async fn save_vote(&mut self, vote: &VoteOf<C>) -> io::Result<()> {
        self.kept().vote = Some(vote.clone());
        Ok(())
    }

    async fn append<I>(&mut self, entries: I, written: IOFlushed<C>) -> io::Result<()>
    where
        I: IntoIterator<Item = EntryOf<C>> + OptionalSend,
        I::IntoIter: OptionalSend,
    {
        let mut kept = self.kept();
        for entry in entries {
            kept.entries.insert(entry.index(), entry);
        }
        kept.waiting.push(written);
        if kept.entries.len() >= kept.group {
            for written in kept.waiting.drain(..) {
                written.io_completed(Ok(()));
            }
        }
        Ok(())
    }

    async fn truncate_after(&mut self, last: Option<LogIdOf<C>>) -> io::Result<()> {
        let first_gone = last.map_or(0, |last| last.index() + 1);
        self.kept().entries.split_off(&first_gone);
        Ok(())
    }

    async fn purge(&mut self, last: LogIdOf<C>) -> io::Result<()> {
        let mut kept = self.kept();
        kept.entries = kept.entries.split_off(&(last.index() + 1));
        kept.purged = Some(last);
        Ok(())
    }
}
