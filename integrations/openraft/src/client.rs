//! A client for one node. Replication, heartbeats and elections have a client each.

use std::{fmt, future::Future, marker::PhantomData, sync::Arc, time::Duration};

use futures_util::{FutureExt, Stream, future};
use ibex::calls::{CallError, CallOptions};
use openraft::{
    OptionalSend, RaftNetworkV2, RaftTypeConfig,
    alias::{NodeIdOf, SnapshotOf, VoteOf},
    base::{BoxFuture, BoxStream},
    error::{RPCError, ReplicationClosed, StreamingError},
    network::{RPCOption, RPCTypes},
    raft::{
        AppendEntriesRequest, AppendEntriesResponse, SnapshotResponse, StreamAppendResult,
        TransferLeaderRequest, TransferLeaderResponse, VoteRequest, VoteResponse,
    },
};
use serde::de::DeserializeOwned;

use crate::{
    error::{Asked, ends_session, unreachable},
    link::{Lane, Link, Session},
    pipeline, sending,
    snapshot::SnapshotData,
    wire::{Ask, Request, decode, encode},
};

/// Sends a raft node's requests to another. Made by [`NetworkFactory`](crate::NetworkFactory).
///
/// Log entries, heartbeats with votes, and snapshots use channels of their own, and none waits for
/// another. Dropping the client ends its requests; the session lives as long as the factory's node.
pub struct Client<C: RaftTypeConfig, D> {
    link: Arc<Link>,
    target: NodeIdOf<C>,
    /// The service for its appends.
    lane: Lane,
    _snapshot: PhantomData<fn() -> D>,
}

/// A request in the form in which it is sent.
pub(crate) struct Encoded<C: RaftTypeConfig> {
    pub(crate) bytes: Vec<u8>,
    pub(crate) asked: Asked<C>,
}

impl<C: RaftTypeConfig, D> Client<C, D> {
    pub(crate) fn new(link: Arc<Link>, target: NodeIdOf<C>, lane: Lane) -> Self {
        Self {
            link,
            target,
            lane,
            _snapshot: PhantomData,
        }
    }

    /// Asks within the time that openraft leaves for it.
    async fn ask<T: DeserializeOwned>(
        &self,
        lane: Lane,
        request: Request<C>,
        option: &RPCOption,
    ) -> Result<T, RPCError<C>> {
        let within = option.soft_ttl();
        let start = tokio::time::Instant::now();
        let request = self.encode(request, within)?;
        let session = self.link.session(within).await?;
        let left = within.saturating_sub(start.elapsed());
        ask(&session, lane, left, &request).await
    }

    fn encode(&self, request: Request<C>, within: Duration) -> Result<Encoded<C>, RPCError<C>> {
        let (action, vote) = match &request {
            Request::Append(append) => (RPCTypes::AppendEntries, &append.vote),
            Request::Vote(vote) | Request::PreVote(vote) => (RPCTypes::Vote, &vote.vote),
            Request::TransferLeader(transfer) => (RPCTypes::TransferLeader, transfer.from_leader()),
        };
        let asked = Asked::new(action, vote, &self.target, within);
        let to = self.target.clone();
        let bytes = encode(&Ask { to, request }).map_err(unreachable)?;
        Ok(Encoded { bytes, asked })
    }
}

/// Asks in a session, and gives the session up if it is of no use any more.
async fn ask<C: RaftTypeConfig, T: DeserializeOwned>(
    session: &Session,
    lane: Lane,
    within: Duration,
    request: &Encoded<C>,
) -> Result<T, RPCError<C>> {
    let options = CallOptions::new().timeout(within);
    let caller = session.caller(lane, options);
    match caller.call_async(&request.bytes).await {
        Ok(reply) => decode(&reply).map_err(unreachable),
        Err(error) => Err(request.asked.failed(session, &error)),
    }
}

impl<C: RaftTypeConfig> Asked<C> {
    /// Returns the error of a call in a session, and gives the session up if it is of no use any
    /// more.
    pub(crate) fn failed(&self, session: &Session, error: &CallError) -> RPCError<C> {
        if ends_session(error) {
            session.give_up();
        }
        self.error(error)
    }
}

impl<C: RaftTypeConfig, D: SnapshotData> RaftNetworkV2<C> for Client<C, D> {
    type SnapshotData = D;

    async fn append_entries(
        &mut self,
        request: AppendEntriesRequest<C>,
        option: RPCOption,
    ) -> Result<AppendEntriesResponse<C>, RPCError<C>> {
        self.ask(self.lane, Request::Append(request), &option).await
    }

    /// Sends requests as they come, many ahead of the answers. The time that openraft allows is for
    /// each next answer.
    fn stream_append<'s, S>(
        &'s mut self,
        input: S,
        option: RPCOption,
    ) -> BoxFuture<'s, Result<BoxStream<'s, Result<StreamAppendResult<C>, RPCError<C>>>, RPCError<C>>>
    where
        S: Stream<Item = AppendEntriesRequest<C>> + OptionalSend + Unpin + 'static,
    {
        let within = option.soft_ttl();
        async move {
            let session = self.link.session(within).await?;
            let client = &*self;
            let encode = move |request| client.encode(Request::Append(request), within);
            let answers = pipeline::answers(session, client.lane, within, input, encode);
            Ok(Box::pin(answers) as BoxStream<'s, _>)
        }
        .boxed()
    }

    async fn vote(
        &mut self,
        request: VoteRequest<C>,
        option: RPCOption,
    ) -> Result<VoteResponse<C>, RPCError<C>> {
        self.ask(Lane::Control, Request::Vote(request), &option)
            .await
    }

    async fn pre_vote(
        &mut self,
        request: VoteRequest<C>,
        option: RPCOption,
    ) -> Result<VoteResponse<C>, RPCError<C>> {
        self.ask(Lane::Control, Request::PreVote(request), &option)
            .await
    }

    /// Sends a snapshot over a byte stream of its own. The time that openraft allows is for each
    /// piece, and for each sign of the other node that it is still installing.
    async fn full_snapshot(
        &mut self,
        vote: VoteOf<C>,
        snapshot: SnapshotOf<C, D>,
        cancel: impl Future<Output = ReplicationClosed> + OptionalSend + 'static,
        option: RPCOption,
    ) -> Result<SnapshotResponse<C>, StreamingError<C>> {
        let within = option.soft_ttl();
        let asked = Asked::new(RPCTypes::InstallSnapshot, &vote, &self.target, within);
        let sending = async {
            let session = self.link.session(within).await?;
            sending::send(&session.peer, &asked, vote, snapshot).await
        };
        let (sending, cancel) = (std::pin::pin!(sending), std::pin::pin!(cancel));
        match future::select(cancel, sending).await {
            future::Either::Left((closed, _)) => Err(StreamingError::Closed(closed)),
            future::Either::Right((answer, _)) => answer,
        }
    }

    async fn transfer_leader(
        &mut self,
        request: TransferLeaderRequest<C>,
        option: RPCOption,
    ) -> Result<TransferLeaderResponse<C>, RPCError<C>> {
        self.ask(Lane::Control, Request::TransferLeader(request), &option)
            .await
    }
}

impl<C: RaftTypeConfig, D> fmt::Debug for Client<C, D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client")
            .field("target", &self.target)
            .field("address", &self.link.address)
            .finish_non_exhaustive()
    }
}
