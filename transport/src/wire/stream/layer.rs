//! The record layer of a connection, of any kind.

use std::{
    io::{self, IoSlice, IoSliceMut},
    net::TcpStream,
};

use ibex_base::tls::TlsConnection;

use super::{Plain, RecordLayer, SealedLayer};
use crate::wire::Received;

/// A connection's record layer. In a build without TLS it can only be plain, and the compiler knows
/// that.
#[derive(Debug)]
pub(crate) enum Layer {
    /// Frames are sent as they are.
    Plain(Plain),
    /// Frames are sent inside TLS.
    Sealed(Box<SealedLayer>),
}

impl Default for Layer {
    fn default() -> Self {
        Self::Plain(Plain)
    }
}

impl Layer {
    /// Makes the layer that a handshake led to.
    pub(crate) fn new(tls: Option<Box<dyn TlsConnection>>) -> Self {
        match tls {
            None => Self::Plain(Plain),
            Some(tls) => Self::Sealed(Box::new(SealedLayer::new(tls))),
        }
    }

    /// Returns the meaning of the end of the stream. Inside TLS it was announced, which a node does
    /// at [`LastWord::Renewed`](crate::wire::LastWord::Renewed) alone.
    pub(crate) fn ended(&self) -> Received {
        match self {
            Self::Plain(_) => Received::Ended,
            Self::Sealed(_) => Received::Renewed,
        }
    }

    /// Returns whether frames are sent inside TLS.
    pub(crate) fn is_sealed(&self) -> bool {
        matches!(self, Self::Sealed(_))
    }
}

impl RecordLayer for Layer {
    #[inline]
    fn write(&mut self, socket: &TcpStream, frames: &[IoSlice<'_>]) -> io::Result<usize> {
        match self {
            Self::Plain(plain) => plain.write(socket, frames),
            Self::Sealed(sealed) => sealed.write(socket, frames),
        }
    }

    #[inline]
    fn read(&mut self, socket: &TcpStream, into: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        match self {
            Self::Plain(plain) => plain.read(socket, into),
            Self::Sealed(sealed) => sealed.read(socket, into),
        }
    }

    fn flush(&mut self, socket: &TcpStream) -> io::Result<bool> {
        match self {
            Self::Plain(plain) => plain.flush(socket),
            Self::Sealed(sealed) => sealed.flush(socket),
        }
    }

    #[inline]
    fn has_backlog(&self) -> bool {
        match self {
            Self::Plain(_) => false,
            Self::Sealed(sealed) => sealed.has_backlog(),
        }
    }

    #[inline]
    fn has_unread(&self) -> bool {
        match self {
            Self::Plain(_) => false,
            Self::Sealed(sealed) => sealed.has_unread(),
        }
    }

    #[inline]
    fn begin_turn(&mut self) {
        if let Self::Sealed(sealed) = self {
            sealed.begin_turn();
        }
    }

    #[inline]
    fn is_share_spent(&self) -> bool {
        match self {
            Self::Plain(_) => false,
            Self::Sealed(sealed) => sealed.is_share_spent(),
        }
    }

    fn part_bytes(&self) -> usize {
        match self {
            Self::Plain(_) => 0,
            Self::Sealed(sealed) => sealed.part_bytes(),
        }
    }

    fn end(&mut self, socket: &TcpStream) -> io::Result<()> {
        match self {
            Self::Plain(_) => Ok(()),
            Self::Sealed(sealed) => sealed.end(socket),
        }
    }

    fn rest(&mut self) {
        if let Self::Sealed(sealed) = self {
            sealed.rest();
        }
    }
}
