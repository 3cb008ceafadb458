//! The record layer between frames and the socket.

use std::{
    io::{self, IoSlice, IoSliceMut},
    net::TcpStream,
    os::fd::AsFd,
};

use rustix::{
    io::{readv, retry_on_intr},
    net::{RecvFlags, SendAncillaryBuffer, SendFlags, recv, send, sendmsg},
};

/// Writes frames to a socket and reads them back, as they are or sealed.
pub(crate) trait RecordLayer {
    /// Writes as much as the socket takes; `WouldBlock` when that is nothing.
    fn write(&mut self, socket: &TcpStream, frames: &[IoSlice<'_>]) -> io::Result<usize>;

    /// Reads available bytes; 0 is the end of the stream.
    fn read(&mut self, socket: &TcpStream, into: &mut [IoSliceMut<'_>]) -> io::Result<usize>;

    /// Gives the socket what `write` has taken and the socket has not. Returns whether nothing of
    /// that is left.
    fn flush(&mut self, _socket: &TcpStream) -> io::Result<bool> {
        Ok(true)
    }

    /// Returns whether `write` has taken bytes that the socket has not.
    fn has_backlog(&self) -> bool {
        false
    }

    /// Tells whether bytes are to be read that the socket does not tell of.
    fn has_unread(&self) -> bool {
        false
    }

    /// Gives memory back that is not in use.
    fn rest(&mut self) {}
}

/// The bytes as they are: from ring memory to the socket, from the socket into arrival
/// memory.
#[derive(Debug, Default)]
pub(crate) struct Plain;

impl RecordLayer for Plain {
    fn write(&mut self, socket: &TcpStream, frames: &[IoSlice<'_>]) -> io::Result<usize> {
        // Neither `write` nor `writev`: a peer that is gone must not raise SIGPIPE in a
        // program that left its default.
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        let sent = retry_on_intr(|| match frames {
            [only] => send(socket.as_fd(), only, flags),
            _ => sendmsg(
                socket.as_fd(),
                frames,
                &mut SendAncillaryBuffer::default(),
                flags,
            ),
        })?;
        Ok(sent)
    }

    fn read(&mut self, socket: &TcpStream, into: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        // One buffer is the rule, and `recv` the shorter way through the kernel.
        let read = retry_on_intr(|| match into {
            [only] => {
                let (read, _) = recv(socket.as_fd(), &mut **only, RecvFlags::DONTWAIT)?;
                Ok(read)
            }
            _ => readv(socket.as_fd(), into),
        })?;
        Ok(read)
    }
}
