//! A state machine that counts writes.

use std::io;

use futures_util::{Stream, TryStreamExt};
use openraft::{
    EntryPayload, OptionalSend, RaftSnapshotBuilder,
    alias::{LogIdOf, SnapshotMetaOf, SnapshotOf, StoredMembershipOf},
    storage::{EntryResponder, RaftStateMachine},
};

use super::Types;

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
