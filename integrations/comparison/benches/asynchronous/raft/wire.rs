//! Requests and replies of openraft as bytes, one at a time: over a socket, each behind its
//! length, or over two channels with the raw codec.

use std::{io, mem};

use ibex::{Raw, Receiver, RecvErrorKind, Sender};
use serde::{Serialize, de::DeserializeOwned};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

use crate::{
    end::{Link, Session},
    session::Failure,
};

/// An end of the connection between the leader and a follower.
pub(crate) enum Wire {
    Socket(TcpStream),
    Channels(Box<Channels>),
    /// A connection that this end has finished.
    Over,
}

pub(crate) struct Channels {
    sender: Sender<[u8], Raw>,
    receiver: Receiver<[u8], Raw>,
}

impl Wire {
    pub(crate) fn of_leader(link: Link) -> Result<Wire, Failure> {
        Wire::of(link, REQUESTS, REPLIES)
    }

    pub(crate) fn of_follower(link: Link) -> Result<Wire, Failure> {
        Wire::of(link, REPLIES, REQUESTS)
    }

    fn of(link: Link, sends: &str, receives: &str) -> Result<Wire, Failure> {
        Ok(match link {
            Link::Socket(stream) => Wire::Socket(stream),
            Link::Ibex(Session { peer, .. }) => Wire::Channels(Box::new(Channels {
                sender: peer.channel(sends).codec::<Raw>().sender()?,
                receiver: peer.channel(receives).codec::<Raw>().receiver()?,
            })),
        })
    }

    pub(crate) async fn send(&mut self, message: &impl Serialize) -> Result<(), Failure> {
        let bytes = postcard::to_allocvec(message)?;
        match self {
            Wire::Socket(stream) => {
                // Length and message go in one write: the length alone would cost a segment of its
                // own.
                let mut framed = Vec::with_capacity(4 + bytes.len());
                framed.extend((bytes.len() as u32).to_le_bytes());
                framed.extend(bytes);
                stream.write_all(&framed).await?;
            }
            Wire::Channels(channels) => {
                channels.sender.send_async(&bytes).await?;
            }
            Wire::Over => return Err(OVER.into()),
        }
        Ok(())
    }

    /// Receives the next message; returns `None` when the other end is gone.
    pub(crate) async fn receive<T: DeserializeOwned>(&mut self) -> Result<Option<T>, Failure> {
        match self {
            Wire::Socket(stream) => {
                let length = match stream.read_u32_le().await {
                    Ok(length) => length,
                    Err(end) if end.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
                    Err(error) => return Err(error.into()),
                };
                let mut bytes = vec![0; length as usize];
                stream.read_exact(&mut bytes).await?;
                Ok(Some(postcard::from_bytes(&bytes)?))
            }
            Wire::Channels(channels) => match channels.receiver.recv_async().await {
                Ok(message) => Ok(Some(postcard::from_bytes(&message)?)),
                Err(error) if error.kind() == RecvErrorKind::Ended => Ok(None),
                Err(error) => Err(error.into()),
            },
            Wire::Over => Err(OVER.into()),
        }
    }

    /// Ends the sending direction, and waits until the other end has ended its own. Replies that no
    /// request waits for any more are dropped.
    pub(crate) async fn finish(&mut self) -> Result<(), Failure> {
        match mem::replace(self, Wire::Over) {
            Wire::Socket(mut stream) => {
                stream.shutdown().await?;
                tokio::io::copy(&mut stream, &mut tokio::io::sink()).await?;
                Ok(())
            }
            Wire::Channels(channels) => {
                let Channels {
                    sender,
                    mut receiver,
                } = *channels;
                drop(sender);
                loop {
                    match receiver.recv_async().await {
                        Ok(_) => {}
                        Err(error) if error.kind() == RecvErrorKind::Ended => return Ok(()),
                        Err(error) => return Err(error.into()),
                    }
                }
            }
            Wire::Over => Ok(()),
        }
    }
}

const OVER: &str = "this end has finished";
const REQUESTS: &str = "raft requests";
const REPLIES: &str = "raft replies";
