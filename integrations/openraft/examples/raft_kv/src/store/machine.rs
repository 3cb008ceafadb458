//! The state machine: keys, values, and the position up to which the log is applied.
//!
//! Applying commits without `fsync`: after a crash the log is applied again from the last state on
//! disk. A snapshot is on disk before the log may be cut up to it.

use std::{
    io::{self, Cursor},
    sync::Arc,
};

use futures_util::{Stream, TryStreamExt};
use openraft::{
    EntryPayload, OptionalSend, RaftSnapshotBuilder,
    alias::{LogIdOf, SnapshotMetaOf, SnapshotOf, StoredMembershipOf},
    storage::{EntryResponder, RaftStateMachine},
};
use redb::{
    Database, Durability, ReadTransaction, ReadableDatabase, ReadableTable, TableDefinition,
    WriteTransaction,
};

use super::{decode, encode, failed};
use crate::types::Types;

/// The keys and values of a node; clones share them.
#[derive(Clone, Debug)]
pub struct Machine {
    database: Arc<Database>,
}

type Snapshot = SnapshotOf<Types, Cursor<Vec<u8>>>;

impl Machine {
    pub(super) fn open(database: Database) -> io::Result<Machine> {
        let database = Arc::new(database);
        let machine = Machine { database };
        machine.write(Durability::Immediate, |transaction| {
            transaction.open_table(VALUES)?;
            transaction.open_table(MARKS)?;
            Ok(())
        })?;
        Ok(machine)
    }

    /// Returns the value of a key, as far as the log is applied here.
    ///
    /// # Errors
    ///
    /// The disk cannot be read.
    pub fn get(&self, key: &str) -> io::Result<Option<String>> {
        self.value(key).map_err(failed)
    }

    fn value(&self, key: &str) -> Result<Option<String>, redb::Error> {
        let values = self.database.begin_read()?.open_table(VALUES)?;
        let value = values.get(key)?;
        Ok(value.map(|value| value.value().to_owned()))
    }

    fn write(
        &self,
        durability: Durability,
        change: impl FnOnce(&WriteTransaction) -> Result<(), redb::Error>,
    ) -> io::Result<()> {
        let written = || -> Result<(), redb::Error> {
            let mut transaction = self.database.begin_write()?;
            transaction.set_durability(durability)?;
            change(&transaction)?;
            transaction.commit()?;
            Ok(())
        };
        written().map_err(failed)
    }

    fn marks(&self) -> Result<Marks, redb::Error> {
        marks_in(&self.database.begin_read()?)
    }

    /// Returns the present state in one transaction, since entries may be applied meanwhile.
    fn snapshot(&self) -> Result<Snapshot, redb::Error> {
        let transaction = self.database.begin_read()?;
        let (last_log_id, last_membership) = marks_in(&transaction)?;
        let mut pairs = Vec::new();
        for pair in transaction.open_table(VALUES)?.iter()? {
            let (key, value) = pair?;
            pairs.push((key.value().to_owned(), value.value().to_owned()));
        }
        Ok(Snapshot {
            meta: SnapshotMetaOf::<Types> {
                last_log_id,
                last_membership,
            },
            snapshot: Cursor::new(encode(&pairs).map_err(redb::Error::Io)?),
        })
    }
}

/// The last applied entry, and the members as of then.
type Marks = (Option<LogIdOf<Types>>, StoredMembershipOf<Types>);

fn marks_in(transaction: &ReadTransaction) -> Result<Marks, redb::Error> {
    let marks = transaction.open_table(MARKS)?;
    let applied = match marks.get(APPLIED)? {
        Some(bytes) => Some(decode(bytes.value()).map_err(redb::Error::Io)?),
        None => None,
    };
    let members = match marks.get(MEMBERS)? {
        Some(bytes) => decode(bytes.value()).map_err(redb::Error::Io)?,
        None => StoredMembershipOf::<Types>::default(),
    };
    Ok((applied, members))
}

impl RaftStateMachine<Types> for Machine {
    type SnapshotData = Cursor<Vec<u8>>;
    type SnapshotBuilder = Machine;

    async fn applied_state(
        &mut self,
    ) -> io::Result<(Option<LogIdOf<Types>>, StoredMembershipOf<Types>)> {
        self.marks().map_err(failed)
    }

    async fn apply<S>(&mut self, entries: S) -> io::Result<()>
    where
        S: Stream<Item = io::Result<EntryResponder<Types>>> + Unpin + OptionalSend,
    {
        let entries: Vec<EntryResponder<Types>> = entries.try_collect().await?;
        self.write(Durability::None, |transaction| {
            let mut values = transaction.open_table(VALUES)?;
            let mut marks = transaction.open_table(MARKS)?;
            for (entry, _) in &entries {
                match &entry.payload {
                    EntryPayload::Normal(put) => {
                        values.insert(put.key.as_str(), put.value.as_str())?;
                    }
                    EntryPayload::Membership(members) => {
                        let members =
                            StoredMembershipOf::<Types>::new(Some(entry.log_id), members.clone());
                        let bytes = encode(&members).map_err(redb::Error::Io)?;
                        marks.insert(MEMBERS, bytes.as_slice())?;
                    }
                    EntryPayload::Blank => {}
                }
            }
            if let Some((last, _)) = entries.last() {
                let bytes = encode(&last.log_id).map_err(redb::Error::Io)?;
                marks.insert(APPLIED, bytes.as_slice())?;
            }
            Ok(())
        })?;
        for (_, responder) in entries {
            if let Some(responder) = responder {
                responder.send(());
            }
        }
        Ok(())
    }

    async fn get_snapshot_builder(&mut self) -> Machine {
        self.clone()
    }

    async fn install_snapshot(
        &mut self,
        meta: &SnapshotMetaOf<Types>,
        snapshot: Cursor<Vec<u8>>,
    ) -> io::Result<()> {
        let pairs: Vec<(String, String)> = decode(snapshot.get_ref())?;
        let members = encode(&meta.last_membership)?;
        let applied = meta
            .last_log_id
            .map(|applied| encode(&applied))
            .transpose()?;
        self.write(Durability::Immediate, |transaction| {
            transaction.delete_table(VALUES)?;
            let mut values = transaction.open_table(VALUES)?;
            for (key, value) in &pairs {
                values.insert(key.as_str(), value.as_str())?;
            }
            let mut marks = transaction.open_table(MARKS)?;
            marks.insert(MEMBERS, members.as_slice())?;
            if let Some(applied) = &applied {
                marks.insert(APPLIED, applied.as_slice())?;
            }
            Ok(())
        })
    }

    async fn get_current_snapshot(&mut self) -> io::Result<Option<Snapshot>> {
        let snapshot = self.snapshot().map_err(failed)?;
        Ok(snapshot.meta.last_log_id.is_some().then_some(snapshot))
    }
}

impl RaftSnapshotBuilder<Types> for Machine {
    type SnapshotData = Cursor<Vec<u8>>;

    async fn build_snapshot(&mut self) -> io::Result<Snapshot> {
        let snapshot = self.snapshot().map_err(failed)?;
        // Earlier commits without `fsync` reach the disk with it.
        self.write(Durability::Immediate, |_| Ok(()))?;
        Ok(snapshot)
    }
}

const VALUES: TableDefinition<'_, &str, &str> = TableDefinition::new("values");
const MARKS: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("marks");
const APPLIED: &str = "applied";
const MEMBERS: &str = "members";
