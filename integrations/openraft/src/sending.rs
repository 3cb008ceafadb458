//! The sending end of a snapshot.

use std::{future::Future, io};

use ibex::{Peer, io::Stream};
use openraft::{
    RaftTypeConfig, StorageError,
    alias::{SnapshotOf, VoteOf},
    error::{RPCError, StreamingError},
    raft::SnapshotResponse,
    type_config::TypeConfigExt,
};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWriteExt},
    time::timeout,
};

use crate::{
    error::{Asked, unreachable},
    snapshot::SnapshotData,
    wire::{SNAPSHOTS, SnapshotAnswer, SnapshotHeader, read_frame, write_frame},
};

/// Sends a snapshot, and waits until it is installed.
pub(crate) async fn send<C: RaftTypeConfig, D: SnapshotData>(
    peer: &Peer,
    asked: &Asked<C>,
    vote: VoteOf<C>,
    snapshot: SnapshotOf<C, D>,
) -> Result<SnapshotResponse<C>, StreamingError<C>> {
    let signature = snapshot.meta.signature();
    let unreadable = |error: io::Error| {
        let error = C::err_from_error(&error);
        StreamingError::StorageError(StorageError::read_snapshot(Some(signature.clone()), error))
    };
    let (bytes, mut from) = snapshot.snapshot.open().await.map_err(unreadable)?;
    let header = SnapshotHeader::<C> {
        to: asked.target.clone(),
        vote,
        meta: snapshot.meta,
        bytes,
        patience_ms: u64::try_from(asked.within.as_millis()).unwrap_or(u64::MAX),
    };
    let mut to = within(asked, ibex::io::Stream::connect_async(peer, SNAPSHOTS)).await?;
    within(asked, write_frame(&mut to, &header)).await?;
    let mut piece = vec![0; PIECE_BYTES];
    let mut left = bytes;
    while left > 0 {
        let most = usize::try_from(left).map_or(PIECE_BYTES, |left| left.min(PIECE_BYTES));
        let got = read_some(&mut from, &mut piece[..most])
            .await
            .map_err(unreadable)?;
        let is_taken = within(asked, write(&mut to, &piece[..got])).await?;
        if !is_taken {
            break;
        }
        left -= got as u64;
    }
    let answer = answer(&mut to, asked).await?;
    answer.map_err(|why| unreachable(why).into())
}

/// Writes a piece. Returns false if the other end accepts no more: its answer says why.
async fn write(to: &mut Stream, piece: &[u8]) -> io::Result<bool> {
    match to.write_all(piece).await {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(false),
        written => written.map(|()| true),
    }
}

async fn read_some(from: &mut (impl AsyncRead + Unpin), piece: &mut [u8]) -> io::Result<usize> {
    match from.read(piece).await? {
        0 => Err(io::Error::new(
            io::ErrorKind::UnexpectedEof,
            "the snapshot has fewer bytes than it said",
        )),
        got => Ok(got),
    }
}

async fn answer<C: RaftTypeConfig>(
    from: &mut Stream,
    asked: &Asked<C>,
) -> Result<SnapshotAnswer<C>, RPCError<C>> {
    loop {
        if let Some(answer) = within(asked, read_frame(from)).await? {
            return Ok(answer);
        }
    }
}

async fn within<C: RaftTypeConfig, T>(
    asked: &Asked<C>,
    step: impl Future<Output = io::Result<T>>,
) -> Result<T, RPCError<C>> {
    match timeout(asked.within, step).await {
        Ok(done) => done.map_err(|error| asked.stream_error(&error)),
        Err(_) => Err(asked.timeout().into()),
    }
}

/// Bytes that are read at a time: as many as a byte stream takes in one piece.
const PIECE_BYTES: usize = 64 << 10;
