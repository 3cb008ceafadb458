//! A log in memory, and a state machine that counts writes.

use std::{
    collections::BTreeMap,
    fmt::Debug,
    io,
    ops::RangeBounds,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use futures_util::{Stream, TryStreamExt};
use openraft::{
    EntryPayload, LogState, OptionalSend, RaftLogReader, RaftSnapshotBuilder,
    alias::{EntryOf, LogIdOf, SnapshotMetaOf, SnapshotOf, StoredMembershipOf, VoteOf},
    storage::{EntryResponder, IOFlushed, RaftLogStorage, RaftStateMachine},
};

use super::Types;

/// The log and the vote of a node; clones share them.
#[derive(Clone, Default)]
pub(crate) struct Log {
    kept: Arc<Mutex<Kept>>,
}

#[derive(Default)]
struct Kept {
    vote: Option<VoteOf<Types>>,
    entries: BTreeMap<u64, EntryOf<Types>>,
    purged: Option<LogIdOf<Types>>,
}

impl Log {
    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl RaftLogReader<Types> for Log {
    async fn try_get_log_entries<B: RangeBounds<u64> + Clone + Debug + OptionalSend>(
        &mut self,
        range: B,
    ) -> io::Result<Vec<EntryOf<Types>>> {
        let kept = self.kept();
        Ok(kept
            .entries
            .range(range)
            .map(|(_, entry)| entry.clone())
            .collect())
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
        self.kept().vote = Some(*vote);
        Ok(())
    }

    async fn append<I>(&mut self, entries: I, written: IOFlushed<Types>) -> io::Result<()>
    where
        I: IntoIterator<Item = EntryOf<Types>> + OptionalSend,
        I::IntoIter: OptionalSend,
    {
        let entries = entries
            .into_iter()
            .map(|entry| (entry.log_id.index(), entry));
        self.kept().entries.extend(entries);
        written.io_completed(Ok(()));
        Ok(())
    }

    async fn truncate_after(&mut self, last: Option<LogIdOf<Types>>) -> io::Result<()> {
        let first_gone = last.map_or(0, |last| last.index() + 1);
        self.kept().entries.split_off(&first_gone);
        Ok(())
    }

    async fn purge(&mut self, last: LogIdOf<Types>) -> io::Result<()> {
        let mut kept = self.kept();
        kept.entries = kept.entries.split_off(&(last.index() + 1));
        kept.purged = Some(last);
        Ok(())
    }
}

/// The state machine: each write is answered with its number.
#[derive(Default)]
pub(crate) struct Counter {
    writes: u64,
    applied: Option<LogIdOf<Types>>,
    membership: StoredMembershipOf<Types>,
}

impl RaftStateMachine<Types> for Counter {
    type SnapshotData = ();
    type SnapshotBuilder = NoSnapshots;

    async fn applied_state(
        &mut self,
    ) -> io::Result<(Option<LogIdOf<Types>>, StoredMembershipOf<Types>)> {
        Ok((self.applied, self.membership.clone()))
    }

    async fn apply<S>(&mut self, mut entries: S) -> io::Result<()>
    where
        S: Stream<Item = io::Result<EntryResponder<Types>>> + Unpin + OptionalSend,
    {
        while let Some((entry, responder)) = entries.try_next().await? {
            self.applied = Some(entry.log_id);
            match entry.payload {
                EntryPayload::Normal(_) => self.writes += 1,
                EntryPayload::Membership(members) => {
                    self.membership = StoredMembershipOf::<Types>::new(self.applied, members);
                }
                EntryPayload::Blank => {}
            }
            if let Some(responder) = responder {
                responder.send(self.writes);
            }
        }
        Ok(())
    }

    async fn get_snapshot_builder(&mut self) -> NoSnapshots {
        NoSnapshots
    }

    async fn install_snapshot(&mut self, _: &SnapshotMetaOf<Types>, (): ()) -> io::Result<()> {
        Err(no_snapshots())
    }

    async fn get_current_snapshot(&mut self) -> io::Result<Option<SnapshotOf<Types, ()>>> {
        Ok(None)
    }
}

/// Builds no snapshot: the policy never asks for one.
pub(crate) struct NoSnapshots;

impl RaftSnapshotBuilder<Types> for NoSnapshots {
    type SnapshotData = ();

    async fn build_snapshot(&mut self) -> io::Result<SnapshotOf<Types, ()>> {
        Err(no_snapshots())
    }
}

fn no_snapshots() -> io::Error {
    io::Error::new(io::ErrorKind::Unsupported, "the log is never cut")
}
