//! The network of openraft: a leader that asks followers, and a follower that answers.

use std::{future::Future, sync::Arc};

use openraft::{
    AnyError, BasicNode, OptionalSend, Raft, RaftNetworkFactory, RaftNetworkV2,
    alias::{SnapshotOf, VoteOf},
    error::{NetworkError, RPCError, ReplicationClosed, StreamingError, Unreachable},
    network::RPCOption,
    raft::{
        AppendEntriesRequest, AppendEntriesResponse, SnapshotResponse, VoteRequest, VoteResponse,
    },
};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use tokio::sync::Mutex;

use super::{Types, counter::Counter, wire::Wire};
use crate::session::Failure;

/// A request to a follower.
#[derive(Serialize, Deserialize)]
enum Ask {
    Append(AppendEntriesRequest<Types>),
    Vote(VoteRequest<Types>),
}

/// The connections of a leader, the first of which is to node 1.
pub(crate) struct Followers {
    wires: Vec<Arc<Mutex<Wire>>>,
}

impl Followers {
    pub(crate) fn new(wires: Vec<Arc<Mutex<Wire>>>) -> Followers {
        Followers { wires }
    }
}

impl RaftNetworkFactory<Types> for Followers {
    type Network = Follower;

    async fn new_client(&mut self, target: u64, _: &BasicNode) -> Follower {
        let index = usize::try_from(target)
            .ok()
            .and_then(|number| number.checked_sub(1));
        Follower {
            wire: index.and_then(|index| self.wires.get(index).cloned()),
        }
    }
}

/// A follower, as replication or an election sees it.
pub(crate) struct Follower {
    /// `None` for a node to which this one is not connected; followers are not connected to each
    /// other.
    wire: Option<Arc<Mutex<Wire>>>,
}

impl Follower {
    async fn ask<T: DeserializeOwned + Send>(&self, ask: Ask) -> Result<T, RPCError<Types>> {
        let wire = self.wire.as_ref().ok_or_else(not_connected)?;
        let reply = exchange(&mut *wire.lock().await, &ask).await;
        reply.map_err(|error| {
            let error = AnyError::error(error.to_string());
            RPCError::Network(NetworkError::new(&error))
        })
    }
}

impl RaftNetworkV2<Types> for Follower {
    type SnapshotData = ();

    async fn append_entries(
        &mut self,
        request: AppendEntriesRequest<Types>,
        _: RPCOption,
    ) -> Result<AppendEntriesResponse<Types>, RPCError<Types>> {
        self.ask(Ask::Append(request)).await
    }

    async fn vote(
        &mut self,
        request: VoteRequest<Types>,
        _: RPCOption,
    ) -> Result<VoteResponse<Types>, RPCError<Types>> {
        self.ask(Ask::Vote(request)).await
    }

    /// Fails: logs are never cut, so no follower needs a snapshot.
    async fn full_snapshot(
        &mut self,
        _: VoteOf<Types>,
        _: SnapshotOf<Types, ()>,
        _: impl Future<Output = ReplicationClosed> + OptionalSend + 'static,
        _: RPCOption,
    ) -> Result<SnapshotResponse<Types>, StreamingError<Types>> {
        Err(StreamingError::Unreachable(unreachable("no snapshots")))
    }
}

/// Answers requests until the leader is gone.
pub(crate) async fn answer_leader(
    mut wire: Wire,
    raft: &Raft<Types, Counter>,
) -> Result<(), Failure> {
    while let Some(ask) = wire.receive().await? {
        match ask {
            Ask::Append(request) => wire.send(&raft.append_entries(request).await?).await?,
            Ask::Vote(request) => wire.send(&raft.vote(request).await?).await?,
        }
    }
    Ok(())
}

async fn exchange<T: DeserializeOwned + Send>(wire: &mut Wire, ask: &Ask) -> Result<T, Failure> {
    wire.send(ask).await?;
    Ok(wire.receive().await?.ok_or("the follower is gone")?)
}

fn not_connected() -> RPCError<Types> {
    RPCError::Unreachable(unreachable("not connected"))
}

fn unreachable(reason: &str) -> Unreachable<Types> {
    Unreachable::new(&AnyError::error(reason))
}
