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
    /// Writes as many bytes as the socket accepts; `WouldBlock` if it accepts none.
    fn write(&mut self, socket: &TcpStream, frames: &[IoSlice<'_>]) -> io::Result<usize>;

    /// Reads available bytes; 0 means the end of the stream.
    fn read(&mut self, socket: &TcpStream, into: &mut [IoSliceMut<'_>]) -> io::Result<usize>;

    /// Returns whether the last read, of `bytes` of the bytes that it asked for, took all that the
    /// socket had.
    fn is_all(&self, bytes: usize, asked: usize) -> bool {
        bytes < asked
    }

    /// Writes bytes to the socket that `write` has taken and the socket has not. Returns whether
    /// none of them are left.
    fn flush(&mut self, _socket: &TcpStream) -> io::Result<bool> {
        Ok(true)
    }

    /// Returns whether `write` has taken bytes that the socket has not.
    fn has_backlog(&self) -> bool {
        false
    }

    /// Returns whether bytes can be read that epoll does not report.
    fn has_unread(&self) -> bool {
        false
    }

    /// Begins a turn, which may open a share of records.
    fn begin_turn(&mut self) {}

    /// Returns whether this turn may open no more records.
    fn is_share_spent(&self) -> bool {
        false
    }

    /// Returns the number of bytes that have arrived of a record whose end is missing.
    fn part_bytes(&self) -> usize {
        0
    }

    /// Announces the end of the stream, if the layer can and the socket has room.
    fn end(&mut self, _socket: &TcpStream) -> io::Result<()> {
        Ok(())
    }

    /// Gives back memory that is not in use.
    fn rest(&mut self) {}
}

/// Passes the bytes through unchanged: from ring memory to the socket, and from the socket into
/// arrival memory.
#[derive(Debug, Default)]
pub(crate) struct Plain;

impl RecordLayer for Plain {
    fn write(&mut self, socket: &TcpStream, frames: &[IoSlice<'_>]) -> io::Result<usize> {
        // `write` and `writev` do not fit: writing to a closed connection must not raise SIGPIPE in
        // a program that kept the signal's default.
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
        // One buffer is the common case, and `recv` is the shorter way through the kernel.
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
