//! A server's connection.

use std::{
    io::{self, IoSlice},
    pin::Pin,
    task::{Context, Poll},
};

use ibex::{PeerAt, io::Stream};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tonic::transport::server::Connected;

/// A byte stream in the form that tonic's server takes.
#[derive(Debug)]
pub struct Connection {
    stream: Stream,
    peer: PeerAt,
}

/// The peer of a request's connection, in the request's extensions.
#[derive(Clone, Copy, Debug)]
pub struct CalledBy(
    /// The caller's identity and address.
    pub PeerAt,
);

impl Connection {
    pub(crate) fn new(stream: Stream, peer: PeerAt) -> Self {
        Self { stream, peer }
    }
}

impl Connected for Connection {
    type ConnectInfo = CalledBy;

    fn connect_info(&self) -> CalledBy {
        CalledBy(self.peer)
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        to: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, to)
    }
}

impl AsyncWrite for Connection {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        from: &[u8],
    ) -> Poll<io::Result<usize>> {
        AsyncWrite::poll_write(Pin::new(&mut self.stream), context, from)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        from: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        AsyncWrite::poll_write_vectored(Pin::new(&mut self.stream), context, from)
    }

    fn is_write_vectored(&self) -> bool {
        AsyncWrite::is_write_vectored(&self.stream)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        AsyncWrite::poll_flush(Pin::new(&mut self.stream), context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        AsyncWrite::poll_shutdown(Pin::new(&mut self.stream), context)
    }
}
