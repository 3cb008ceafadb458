//! A state machine in memory, which a test can hold up, and its types.

use std::{
    io,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use futures_util::{Stream, TryStreamExt};
use ibex_integrations_testing::RaftLog;
use ibex_openraft::SnapshotData;
use openraft::{
    EntryPayload, OptionalSend, RaftSnapshotBuilder,
    alias::{LogIdOf, SnapshotMetaOf, SnapshotOf, StoredMembershipOf},
    storage::{EntryResponder, RaftStateMachine},
};
use tokio::{
    io::{AsyncRead, AsyncReadExt},
    sync::Semaphore,
};

openraft::declare_raft_types!(
    /// Writes are texts, and their answers the number of writes so far.
    pub(crate) Types: D = String, R = u64,
);

/// The log of a node.
pub(crate) type Log = RaftLog<Types>;

/// A snapshot of the writes.
#[derive(Clone, Debug)]
pub(crate) struct Writes(pub(crate) Vec<u8>);

impl SnapshotData for Writes {
    type Reader = io::Cursor<Vec<u8>>;

    async fn open(self) -> io::Result<(u64, Self::Reader)> {
        Ok((self.0.len() as u64, io::Cursor::new(self.0)))
    }

    /// Waits for a permit in the middle of the bytes.
    async fn receive<R: AsyncRead + Send + Unpin>(mut from: R, bytes: u64) -> io::Result<Self> {
        let mut first = vec![0; usize::try_from(bytes / 2).map_err(io::Error::other)?];
        from.read_exact(&mut first).await?;
        HALF_TAKEN.add_permits(1);
        GO_ON.acquire().await.map_err(io::Error::other)?.forget();
        from.read_to_end(&mut first).await?;
        Ok(Writes(first))
    }
}

/// A permit for each snapshot of which half has come, in any node of this process.
pub(crate) static HALF_TAKEN: Semaphore = Semaphore::const_new(0);
/// A permit for each snapshot that may continue after its half.
pub(crate) static GO_ON: Semaphore = Semaphore::const_new(0);

/// The state machine: counts writes and keeps their bytes.
#[derive(Clone, Default)]
pub(crate) struct Machine {
    state: Arc<Mutex<State>>,
}

#[derive(Clone, Default)]
struct State {
    writes: u64,
    bytes: Vec<u8>,
    applied: Option<LogIdOf<Types>>,
    membership: StoredMembershipOf<Types>,
}

impl Machine {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns everything that was written.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        self.state().bytes.clone()
    }

    fn snapshot(&self) -> SnapshotOf<Types, Writes> {
        let state = self.state();
        SnapshotOf::<Types, Writes> {
            meta: SnapshotMetaOf::<Types> {
                last_log_id: state.applied,
                last_membership: state.membership.clone(),
            },
            snapshot: Writes(state.bytes.clone()),
        }
    }
}

impl RaftStateMachine<Types> for Machine {
    type SnapshotData = Writes;
    type SnapshotBuilder = Machine;

    async fn applied_state(
        &mut self,
    ) -> io::Result<(Option<LogIdOf<Types>>, StoredMembershipOf<Types>)> {
        let state = self.state();
        Ok((state.applied, state.membership.clone()))
    }

    async fn apply<S>(&mut self, mut entries: S) -> io::Result<()>
    where
        S: Stream<Item = io::Result<EntryResponder<Types>>> + Unpin + OptionalSend,
    {
        while let Some((entry, responder)) = entries.try_next().await? {
            let mut state = self.state();
            state.applied = Some(entry.log_id);
            match entry.payload {
                EntryPayload::Normal(text) => {
                    state.writes += 1;
                    state.bytes.extend(text.into_bytes());
                }
                EntryPayload::Membership(members) => {
                    state.membership = StoredMembershipOf::<Types>::new(state.applied, members);
                }
                EntryPayload::Blank => {}
            }
            if let Some(responder) = responder {
                responder.send(state.writes);
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
        snapshot: Writes,
    ) -> io::Result<()> {
        let mut state = self.state();
        state.applied = meta.last_log_id;
        state.membership = meta.last_membership.clone();
        state.bytes = snapshot.0;
        Ok(())
    }

    async fn get_current_snapshot(&mut self) -> io::Result<Option<SnapshotOf<Types, Writes>>> {
        Ok(Some(self.snapshot()))
    }
}

impl RaftSnapshotBuilder<Types> for Machine {
    type SnapshotData = Writes;

    async fn build_snapshot(&mut self) -> io::Result<SnapshotOf<Types, Writes>> {
        Ok(self.snapshot())
    }
}
