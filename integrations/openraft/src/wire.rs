//! Requests and answers as bytes, and the names of the services.

use std::io;

use openraft::{
    RaftTypeConfig,
    alias::{NodeIdOf, SnapshotMetaOf, VoteOf},
    raft::{AppendEntriesRequest, SnapshotResponse, TransferLeaderRequest, VoteRequest},
};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

/// A request, and the node that it is for, since another node may have the address by now.
#[derive(Serialize, Deserialize)]
#[serde(bound = "")]
pub(crate) struct Ask<C: RaftTypeConfig> {
    pub(crate) to: NodeIdOf<C>,
    pub(crate) request: Request<C>,
}

#[derive(Serialize, Deserialize)]
#[serde(bound = "")]
pub(crate) enum Request<C: RaftTypeConfig> {
    Append(AppendEntriesRequest<C>),
    Vote(VoteRequest<C>),
    PreVote(VoteRequest<C>),
    TransferLeader(TransferLeaderRequest<C>),
}

/// The header before the bytes of a snapshot.
#[derive(Serialize, Deserialize)]
#[serde(bound = "")]
pub(crate) struct SnapshotHeader<C: RaftTypeConfig> {
    pub(crate) to: NodeIdOf<C>,
    pub(crate) vote: VoteOf<C>,
    pub(crate) meta: SnapshotMetaOf<C>,
    pub(crate) bytes: u64,
    /// The time for which the sender waits for a sign that the snapshot is being installed.
    pub(crate) patience_ms: u64,
}

/// The answer after a snapshot: it was installed, or the reason why not.
pub(crate) type SnapshotAnswer<C> = Result<SnapshotResponse<C>, String>;

pub(crate) fn encode(message: &impl Serialize) -> Result<Vec<u8>, postcard::Error> {
    postcard::to_allocvec(message)
}

pub(crate) fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, postcard::Error> {
    postcard::from_bytes(bytes)
}

/// Writes a message of a stream behind its length.
pub(crate) async fn write_frame(
    to: &mut (impl AsyncWrite + Unpin),
    message: &impl Serialize,
) -> io::Result<()> {
    let bytes = encode(message).map_err(invalid)?;
    let length = u32::try_from(bytes.len()).map_err(invalid)?;
    let mut framed = length.to_le_bytes().to_vec();
    framed.extend(bytes);
    to.write_all(&framed).await
}

/// Reads the next message of a stream; `None` if it is the sign that more will come.
pub(crate) async fn read_frame<T: DeserializeOwned>(
    from: &mut (impl AsyncRead + Unpin),
) -> io::Result<Option<T>> {
    let length = from.read_u32_le().await?;
    if length == 0 {
        return Ok(None);
    }
    if length > MAX_FRAME_BYTES {
        return Err(invalid(format!(
            "a message of {length} B comes before or behind a snapshot; the most is {MAX_FRAME_BYTES}"
        )));
    }
    let mut bytes = vec![0; length as usize];
    from.read_exact(&mut bytes).await?;
    decode(&bytes).map(Some).map_err(invalid)
}

/// Writes the sign that more will come.
pub(crate) async fn write_sign(to: &mut (impl AsyncWrite + Unpin)) -> io::Result<()> {
    to.write_all(&0_u32.to_le_bytes()).await
}

fn invalid(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}

// The names contain the version, since other versions may write the same types differently.
/// The service of log entries.
pub(crate) const LOG: &str = "openraft 0.10.0-alpha.37, log";
/// The service of heartbeats, votes and transfers of leadership.
pub(crate) const CONTROL: &str = "openraft 0.10.0-alpha.37, control";
/// The listener of byte streams, each with a snapshot.
pub(crate) const SNAPSHOTS: &str = "openraft 0.10.0-alpha.37, snapshots";

/// The longest request: a batch of log entries. Memory is taken as messages come.
pub(crate) const MAX_MESSAGE_BYTES: u64 = 64 << 20;
/// The longest header of a snapshot, which holds its membership.
const MAX_FRAME_BYTES: u32 = 1 << 20;
