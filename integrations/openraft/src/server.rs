//! The answering end: requests of all nodes of the cluster.

use std::{collections::HashMap, fmt, io, task::Poll, time::Duration};

use futures_util::{
    FutureExt, StreamExt,
    future::{BoxFuture, poll_fn},
    stream::FuturesUnordered,
};
use ibex::prelude::*;
use ibex::{
    AuthenticatedAs, Node, PeerId, Raw,
    io::{Listener, Stream},
};
use ibex_core::extend::warn_limited;
use openraft::{Raft, RaftTypeConfig, Snapshot, alias::SnapshotDataOf, storage::RaftStateMachine};
use tokio::{io::AsyncReadExt, task::AbortHandle, time::interval};

use crate::{
    snapshot::SnapshotData,
    wire::{
        Ask, CONTROL, LOG, MAX_MESSAGE_BYTES, Request, SNAPSHOTS, SnapshotAnswer, SnapshotHeader,
        decode, encode, read_frame, write_frame, write_sign,
    },
};

/// Answers the requests of other nodes to a raft node.
pub struct Server<C: RaftTypeConfig, SM: RaftStateMachine<C>> {
    raft: Raft<C, SM>,
    max_snapshot_bytes: u64,
}

impl<C, SM> Server<C, SM>
where
    C: RaftTypeConfig,
    SM: RaftStateMachine<C>,
    SnapshotDataOf<C, SM>: SnapshotData,
{
    /// Creates a server for requests to `raft`.
    pub fn new(raft: Raft<C, SM>) -> Self {
        Self {
            raft,
            max_snapshot_bytes: 1 << 30,
        }
    }

    /// The longest accepted snapshot; a longer one is refused before it is read. Default: 1 GiB.
    /// With a larger limit, a peer can have that much stored here, in memory if the state machine's
    /// snapshots lie there: at most one snapshot for each peer at a time.
    #[must_use]
    pub fn max_snapshot_bytes(mut self, bytes: u64) -> Self {
        self.max_snapshot_bytes = bytes;
        self
    }

    /// Answers requests to `node`, which listens, until the node is closed or the future is
    /// dropped. The same node serves the raft node's [`NetworkFactory`](crate::NetworkFactory).
    ///
    /// # Errors
    ///
    /// The node is closed, or another server runs on it.
    pub async fn run(self, node: Node) -> io::Result<()> {
        let snapshots = Listener::bind(&node, SNAPSHOTS)?;
        tokio::try_join!(
            self.serve(&node, LOG),
            self.serve(&node, CONTROL),
            self.take_snapshots(snapshots),
        )?;
        Ok(())
    }

    /// Answers the requests of one service: raft gets them in the order in which they came, and
    /// each is answered when raft is done with it.
    async fn serve(&self, node: &Node, service: &str) -> io::Result<()> {
        let calls = node.channel(service).codec::<Raw>();
        let calls = calls.max_message_bytes(MAX_MESSAGE_BYTES);
        let mut requests = calls.service()?;
        let mut answering = FuturesUnordered::new();
        loop {
            tokio::select! {
                Some(()) = answering.next() => {}
                request = requests.next_async() => {
                    let request = request?;
                    let Some(request) = request else { return Ok(()) };
                    let mut answer = answer(self.raft.clone(), request).boxed();
                    // The first poll hands the request to raft.
                    if poll_once(&mut answer).await.is_none() {
                        answering.push(answer);
                    }
                }
            }
        }
    }

    async fn take_snapshots(&self, mut listener: Listener) -> io::Result<()> {
        let mut under_way = Transfers::default();
        loop {
            let (stream, peer) = listener.accept_async().await?;
            let (raft, most) = (self.raft.clone(), self.max_snapshot_bytes);
            let proven = stream.peer().authenticated_as().cloned();
            under_way.replace((peer.id, proven), async move {
                if let Err(error) = take_snapshot(raft, stream, most).await {
                    warn_limited!(error, %peer, %error, "a snapshot was not taken in");
                }
            });
        }
    }
}

/// The snapshots that are being received: one from each peer, since a leader sends one at a time
/// and gives it up before the next. A peer that claims the identity of another ends none of the
/// other's, where peers prove who they are.
#[derive(Default)]
struct Transfers(HashMap<Sending, AbortHandle>);

/// What a peer says that it is, and what it has proven.
type Sending = (PeerId, Option<AuthenticatedAs>);

impl Transfers {
    fn replace(&mut self, peer: Sending, transfer: impl Future<Output = ()> + Send + 'static) {
        self.0.retain(|_, transfer| !transfer.is_finished());
        if let Some(former) = self.0.remove(&peer) {
            former.abort();
        }
        self.0.insert(peer, tokio::spawn(transfer).abort_handle());
    }
}

impl Drop for Transfers {
    fn drop(&mut self) {
        for transfer in self.0.values() {
            transfer.abort();
        }
    }
}

type Incoming = ibex::calls::Request<[u8], [u8], Raw>;

async fn answer<C: RaftTypeConfig, SM: RaftStateMachine<C>>(raft: Raft<C, SM>, asked: Incoming) {
    match answer_of(&raft, &asked).await {
        Ok(bytes) => {
            if let Err(error) = asked.reply_async(&bytes).await {
                tracing::debug!(%error, "an answer was not sent");
            }
        }
        Err((code, text)) => asked.fail(code, &text),
    }
}

async fn answer_of<C: RaftTypeConfig, SM: RaftStateMachine<C>>(
    raft: &Raft<C, SM>,
    bytes: &[u8],
) -> Result<Vec<u8>, (u32, String)> {
    let Ask { to, request } =
        decode::<Ask<C>>(bytes).map_err(|error| (NOT_VALID, error.to_string()))?;
    if to != *raft.node_id() {
        let here = raft.node_id();
        return Err((
            ANOTHER_NODE,
            format!("node {here} is here, and not node {to}"),
        ));
    }
    let answer = match request {
        Request::Append(request) => stopped(raft.append_entries(request).await).map(|a| encode(&a)),
        Request::Vote(request) => stopped(raft.vote(request).await).map(|a| encode(&a)),
        Request::PreVote(request) => stopped(raft.pre_vote(request).await).map(|a| encode(&a)),
        Request::TransferLeader(request) => {
            stopped(raft.handle_transfer_leader(request).await).map(|a| encode(&a))
        }
    };
    answer?.map_err(|error| (NOT_VALID, error.to_string()))
}

fn stopped<T, E: fmt::Display>(answer: Result<T, E>) -> Result<T, (u32, String)> {
    answer.map_err(|error| (STOPPED, error.to_string()))
}

async fn take_snapshot<C, SM>(raft: Raft<C, SM>, mut stream: Stream, most: u64) -> io::Result<()>
where
    C: RaftTypeConfig,
    SM: RaftStateMachine<C>,
    SnapshotDataOf<C, SM>: SnapshotData,
{
    let Some(header) = read_frame::<SnapshotHeader<C>>(&mut stream).await? else {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "no header came"));
    };
    let answer = match refusal(&raft, &header, most) {
        Some(why) => Err(why),
        None => {
            let mut from = (&mut stream).take(header.bytes);
            let data = SnapshotDataOf::<C, SM>::receive(&mut from, header.bytes).await?;
            if from.limit() > 0 {
                // The sender gave the snapshot up, or the state machine did not read all of it.
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            install(&raft, header, data, &mut stream).await?
        }
    };
    write_frame(&mut stream, &answer).await
}

fn refusal<C: RaftTypeConfig, SM: RaftStateMachine<C>>(
    raft: &Raft<C, SM>,
    header: &SnapshotHeader<C>,
    most: u64,
) -> Option<String> {
    let here = raft.node_id();
    if header.to != *here {
        return Some(format!("node {here} is here, and not node {}", header.to));
    }
    let bytes = header.bytes;
    (bytes > most).then(|| {
        format!("the snapshot has {bytes} B, and node {here} takes {most} B at most; see `max_snapshot_bytes`")
    })
}

/// Installs a snapshot, and sends the sender signs of progress meanwhile.
async fn install<C: RaftTypeConfig, SM: RaftStateMachine<C>>(
    raft: &Raft<C, SM>,
    header: SnapshotHeader<C>,
    snapshot: SnapshotDataOf<C, SM>,
    stream: &mut Stream,
) -> io::Result<SnapshotAnswer<C>> {
    let meta = header.meta;
    let mut installing =
        std::pin::pin!(raft.install_full_snapshot(header.vote, Snapshot { meta, snapshot }));
    let patience = Duration::from_millis(header.patience_ms);
    let mut signs = interval((patience / 4).max(SHORTEST_SIGN));
    loop {
        tokio::select! {
            installed = &mut installing => {
                return Ok(installed.map_err(|error| error.to_string()));
            }
            _ = signs.tick() => write_sign(stream).await?,
        }
    }
}

async fn poll_once<T>(future: &mut BoxFuture<'_, T>) -> Option<T> {
    poll_fn(|context| {
        Poll::Ready(match future.poll_unpin(context) {
            Poll::Ready(done) => Some(done),
            Poll::Pending => None,
        })
    })
    .await
}

impl<C: RaftTypeConfig, SM: RaftStateMachine<C>> fmt::Debug for Server<C, SM> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Server")
            .field("node", self.raft.node_id())
            .finish_non_exhaustive()
    }
}

const NOT_VALID: u32 = 1;
const ANOTHER_NODE: u32 = 2;
const STOPPED: u32 = 3;
const SHORTEST_SIGN: Duration = Duration::from_millis(5);
