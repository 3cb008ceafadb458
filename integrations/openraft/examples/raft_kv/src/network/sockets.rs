//! A network to compare with, over tokio's TCP: a connection for each client, requests ahead of
//! their answers, each message behind its length.

use std::{
    collections::VecDeque,
    future::Future,
    io::{self, Cursor},
    pin::pin,
    time::Duration,
};

use futures_util::{
    FutureExt, Stream, StreamExt,
    future::{self, BoxFuture},
    stream::{FuturesOrdered, unfold},
};
use openraft::{
    BasicNode, OptionalSend, RaftNetworkFactory, RaftNetworkV2, Snapshot,
    alias::{LogIdOf, SnapshotMetaOf, SnapshotOf, VoteOf},
    base::{BoxFuture as RaftFuture, BoxStream},
    error::{NetworkError, RPCError, ReplicationClosed, StreamingError, Unreachable},
    network::RPCOption,
    raft::{
        AppendEntriesRequest, AppendEntriesResponse, SnapshotResponse, StreamAppendResult,
        VoteRequest, VoteResponse,
    },
};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    time::timeout,
};

use crate::types::{Node, Types};

#[derive(Serialize, Deserialize)]
enum Ask {
    Append(AppendEntriesRequest<Types>),
    Vote(VoteRequest<Types>),
    Snapshot(VoteOf<Types>, SnapshotMetaOf<Types>, Vec<u8>),
}

/// A connection, and the bytes of an incomplete message.
struct Connection {
    stream: TcpStream,
    arrived: Vec<u8>,
}

impl Connection {
    fn new(stream: TcpStream) -> io::Result<Connection> {
        stream.set_nodelay(true)?;
        Ok(Connection {
            stream,
            arrived: Vec::new(),
        })
    }

    async fn send(&mut self, message: &impl Serialize) -> io::Result<()> {
        let bytes = postcard::to_allocvec(message).map_err(io::Error::other)?;
        let mut framed = Vec::with_capacity(4 + bytes.len());
        framed.extend((bytes.len() as u32).to_le_bytes());
        framed.extend(bytes);
        self.stream.write_all(&framed).await
    }

    /// Receives the next message; dropping the future loses nothing.
    async fn receive<T: DeserializeOwned>(&mut self) -> io::Result<T> {
        loop {
            if let Some((length, rest)) = self.arrived.split_first_chunk() {
                let length = u32::from_le_bytes(*length) as usize;
                if let Some(bytes) = rest.get(..length) {
                    let message = postcard::from_bytes(bytes).map_err(io::Error::other)?;
                    self.arrived.drain(..4 + length);
                    return Ok(message);
                }
            }
            if self.stream.read_buf(&mut self.arrived).await? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
    }
}

/// A factory of clients over tokio's TCP.
#[derive(Clone, Copy, Debug)]
pub struct Sockets;

impl RaftNetworkFactory<Types> for Sockets {
    type Network = Client;

    async fn new_client(&mut self, _: u64, node: &BasicNode) -> Client {
        Client {
            address: node.addr.clone(),
            connection: None,
        }
    }
}

/// A client of one node.
pub struct Client {
    address: String,
    connection: Option<Connection>,
}

type Failed = RPCError<Types>;
type Answer = Result<StreamAppendResult<Types>, Failed>;

fn broken(error: impl ToString) -> Failed {
    RPCError::Network(NetworkError::from_string(error))
}

impl Client {
    /// Takes the connection, or makes one. The client returns it when nothing is under way.
    async fn connection(&mut self, within: Duration) -> Result<Connection, Failed> {
        if let Some(connection) = self.connection.take() {
            return Ok(connection);
        }
        let unreachable = |why: String| RPCError::Unreachable(Unreachable::from_string(why));
        let connecting = timeout(within, TcpStream::connect(&self.address)).await;
        let stream = connecting.map_err(|error| unreachable(error.to_string()))?;
        let stream = stream.map_err(|error| unreachable(error.to_string()))?;
        Connection::new(stream).map_err(broken)
    }

    async fn ask<T: DeserializeOwned>(&mut self, ask: Ask, within: Duration) -> Result<T, Failed> {
        let mut connection = self.connection(within).await?;
        let exchange = async {
            connection.send(&ask).await?;
            connection.receive().await
        };
        let answered = timeout(within, exchange).await.map_err(broken)?;
        let answer = answered.map_err(broken)?;
        self.connection = Some(connection);
        Ok(answer)
    }
}

/// The log ids before a request's entries and of its last.
type Range = (Option<LogIdOf<Types>>, Option<LogIdOf<Types>>);

/// The appends of a stream, and those under way.
struct Pipeline<'s, S> {
    client: &'s mut Client,
    connection: Option<Connection>,
    input: Option<S>,
    ranges: VecDeque<Range>,
    within: Duration,
}

impl<S: Stream<Item = AppendEntriesRequest<Types>> + Unpin> Pipeline<'_, S> {
    async fn next(&mut self) -> Option<Answer> {
        let mut connection = self.connection.take()?;
        loop {
            let has_room = self.input.is_some() && self.ranges.len() < 64;
            let input = self.input.as_mut();
            tokio::select! {
                biased;
                answer = timeout(self.within, connection.receive::<AppendEntriesResponse<Types>>()),
                    if !self.ranges.is_empty() =>
                {
                    let answer = match answer.map_err(broken).map(|answer| answer.map_err(broken)) {
                        Ok(Ok(answer)) => answer,
                        Ok(Err(error)) | Err(error) => return Some(Err(error)),
                    };
                    let (first, last) = self.ranges.pop_front()?;
                    let result = answer.into_stream_result(first, last);
                    if result.as_ref().is_ok_and(|matching| *matching == last) {
                        self.connection = Some(connection);
                    }
                    return Some(Ok(result));
                }
                request = async { input?.next().await }, if has_room => match request {
                    Some(request) => {
                        let last = request.entries.last().map(|entry| entry.log_id);
                        let range = (request.prev_log_id, last.or(request.prev_log_id));
                        self.ranges.push_back(range);
                        if let Err(error) = connection.send(&Ask::Append(request)).await {
                            return Some(Err(broken(error)));
                        }
                    }
                    None => self.input = None,
                },
                else => {
                    self.client.connection = Some(connection);
                    return None;
                }
            }
        }
    }
}

impl RaftNetworkV2<Types> for Client {
    type SnapshotData = Cursor<Vec<u8>>;

    async fn append_entries(
        &mut self,
        request: AppendEntriesRequest<Types>,
        option: RPCOption,
    ) -> Result<AppendEntriesResponse<Types>, Failed> {
        self.ask(Ask::Append(request), option.soft_ttl()).await
    }

    fn stream_append<'s, S>(
        &'s mut self,
        input: S,
        option: RPCOption,
    ) -> RaftFuture<'s, Result<BoxStream<'s, Answer>, Failed>>
    where
        S: Stream<Item = AppendEntriesRequest<Types>> + OptionalSend + Unpin + 'static,
    {
        async move {
            let within = option.soft_ttl();
            let connection = self.connection(within).await?;
            let pipeline = Pipeline {
                client: self,
                connection: Some(connection),
                input: Some(input),
                ranges: VecDeque::new(),
                within,
            };
            let answers = unfold(pipeline, async |mut pipeline| {
                let answer = pipeline.next().await?;
                Some((answer, pipeline))
            });
            Ok(Box::pin(answers) as BoxStream<'s, _>)
        }
        .boxed()
    }

    async fn vote(
        &mut self,
        request: VoteRequest<Types>,
        option: RPCOption,
    ) -> Result<VoteResponse<Types>, Failed> {
        self.ask(Ask::Vote(request), option.soft_ttl()).await
    }

    async fn full_snapshot(
        &mut self,
        vote: VoteOf<Types>,
        snapshot: SnapshotOf<Types, Cursor<Vec<u8>>>,
        cancel: impl Future<Output = ReplicationClosed> + OptionalSend + 'static,
        option: RPCOption,
    ) -> Result<SnapshotResponse<Types>, StreamingError<Types>> {
        let ask = Ask::Snapshot(vote, snapshot.meta, snapshot.snapshot.into_inner());
        let sending = pin!(self.ask(ask, option.soft_ttl()));
        match future::select(pin!(cancel), sending).await {
            future::Either::Left((closed, _)) => Err(StreamingError::Closed(closed)),
            future::Either::Right((answer, _)) => Ok(answer?),
        }
    }
}

/// Answers requests of such clients.
///
/// # Errors
///
/// The address cannot be listened on.
pub async fn answer_sockets(raft: Node, address: &str) -> io::Result<()> {
    let listener = TcpListener::bind(address).await?;
    loop {
        let (stream, _) = listener.accept().await?;
        let raft = raft.clone();
        tokio::spawn(async move {
            // The client makes a broken connection anew.
            let _ = answer(raft, Connection::new(stream)?).await;
            io::Result::Ok(())
        });
    }
}

type Encoded = io::Result<Vec<u8>>;

async fn answer(raft: Node, mut connection: Connection) -> io::Result<()> {
    let mut answering: FuturesOrdered<BoxFuture<'static, Encoded>> = FuturesOrdered::new();
    loop {
        tokio::select! {
            Some(bytes) = answering.next() => {
                let bytes = bytes?;
                let mut framed = (bytes.len() as u32).to_le_bytes().to_vec();
                framed.extend(bytes);
                connection.stream.write_all(&framed).await?;
            }
            ask = connection.receive::<Ask>() => {
                let mut answer = answer_one(raft.clone(), ask?).boxed();
                // The first poll hands the request to raft.
                match future::poll_immediate(&mut answer).await {
                    Some(done) => answering.push_back(future::ready(done).boxed()),
                    None => answering.push_back(answer),
                }
            }
        }
    }
}

async fn answer_one(raft: Node, ask: Ask) -> Encoded {
    match ask {
        Ask::Append(request) => encode(
            &raft
                .append_entries(request)
                .await
                .map_err(io::Error::other)?,
        ),
        Ask::Vote(request) => encode(&raft.vote(request).await.map_err(io::Error::other)?),
        Ask::Snapshot(vote, meta, bytes) => {
            let snapshot = Snapshot {
                meta,
                snapshot: Cursor::new(bytes),
            };
            let installed = raft.install_full_snapshot(vote, snapshot).await;
            encode(&installed.map_err(io::Error::other)?)
        }
    }
}

fn encode(answer: &impl Serialize) -> Encoded {
    postcard::to_allocvec(answer).map_err(io::Error::other)
}
