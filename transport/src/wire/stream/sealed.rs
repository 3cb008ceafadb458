//! Frames inside TLS: they are gathered into records, and sealed and opened in separate memory.
//!
//! Rules:
//!
//! 1. `write` returns the number of bytes that it has taken, not the number that the socket has
//!    accepted. Sealed bytes that the socket did not accept are a backlog. While there is a
//!    backlog, nothing more is sealed.
//! 2. An opened record may be longer than the reader's room. The rest is kept; epoll does not
//!    report it, but [`has_unread`](RecordLayer::has_unread) does.
//! 3. The next read returns an error that follows good bytes, whether or not more arrives:
//!    `has_unread` is true in that case too.
//! 4. A turn opens [`RECORDS_PER_TURN`] records at most, since opening one takes a processor as long
//!    as a frame, however short it is. `has_unread` is true while others are left.
//! 5. A read that brings no plaintext, but a key update or a part of a record, reads on. The end of
//!    the stream is valid only if the peer's TLS has announced it.

use std::{
    io::{self, ErrorKind, IoSlice, IoSliceMut},
    net::TcpStream,
    os::fd::AsFd,
};

use ibex_base::tls::{TlsConnection, TlsError};
use rustix::{
    io::retry_on_intr,
    net::{RecvFlags, SendFlags, recv, send},
};

use super::RecordLayer;
use crate::wire::turn_share::FRAMES_PER_TURN;

/// A TLS connection whose peer is authenticated.
#[derive(Debug)]
pub(crate) struct SealedLayer {
    tls: Box<dyn TlsConnection>,
    /// Pieces of frames that are shorter than a record, gathered into one.
    scratch: Vec<u8>,
    /// Plaintext for which the reader had no room (rule 2), from `unread_from` on.
    unread: Vec<u8>,
    unread_from: usize,
    /// Records that this turn may still open (rule 4).
    records_left: usize,
    /// True if records may be here whole that no turn has opened.
    is_cut_short: bool,
    /// The last read of the socket took all that it had.
    has_emptied: bool,
}

impl SealedLayer {
    /// Takes over a connection after its handshake.
    #[must_use]
    pub(crate) fn new(tls: Box<dyn TlsConnection>) -> Self {
        Self {
            tls,
            scratch: Vec::new(),
            unread: Vec::new(),
            unread_from: 0,
            records_left: RECORDS_PER_TURN,
            is_cut_short: false,
            has_emptied: false,
        }
    }

    /// Seals some bytes of `frames`, and returns their number.
    fn seal(&mut self, frames: &[IoSlice<'_>]) -> io::Result<usize> {
        let mut taken = 0;
        for frame in frames {
            let mut rest: &[u8] = frame;
            while !rest.is_empty() {
                let room = RECORD_BYTES - self.scratch.len();
                if self.scratch.is_empty() && rest.len() >= RECORD_BYTES {
                    let (record, behind) = rest.split_at(RECORD_BYTES);
                    self.tls.seal(record).map_err(io::Error::other)?;
                    (taken, rest) = (taken + record.len(), behind);
                } else {
                    let (piece, behind) = rest.split_at(rest.len().min(room));
                    self.scratch.extend_from_slice(piece);
                    (taken, rest) = (taken + piece.len(), behind);
                    if self.scratch.len() == RECORD_BYTES {
                        self.seal_scratch()?;
                    }
                }
                if taken >= WRITE_BYTES {
                    self.seal_scratch()?;
                    return Ok(taken);
                }
            }
        }
        self.seal_scratch()?;
        Ok(taken)
    }

    fn seal_scratch(&mut self) -> io::Result<()> {
        if self.scratch.is_empty() {
            return Ok(());
        }
        let sealed = self.tls.seal(&self.scratch);
        self.scratch.clear();
        sealed.map_err(io::Error::other)
    }

    /// Hands out the kept bytes of a record.
    fn take_unread(&mut self, into: &mut [IoSliceMut<'_>]) -> usize {
        let mut space = Space::new(into);
        let unread = &self.unread[self.unread_from..];
        let taken = unread.len() - space.take(unread).len();
        self.unread_from += taken;
        if self.unread_from == self.unread.len() {
            self.unread.clear();
            self.unread_from = 0;
        }
        taken
    }

    /// Opens arrived records into `into`, as far as there is room. Returns the number of bytes in
    /// it.
    fn open(&mut self, into: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        let mut space = Space::new(into);
        let unread = &mut self.unread;
        let opened = self.tls.process_records(self.records_left, &mut |plain| {
            let rest = space.take(plain);
            unread.extend_from_slice(rest);
        });
        let filled = space.filled;
        match opened {
            Ok(records) => {
                self.records_left -= records;
                self.is_cut_short = self.records_left == 0;
                Ok(filled)
            }
            // The bytes before the error were valid, and the next read returns the error (rule 3).
            Err(_) if filled > 0 => Ok(filled),
            Err(error) => Err(io::Error::other(error)),
        }
    }
}

impl RecordLayer for SealedLayer {
    fn write(&mut self, socket: &TcpStream, frames: &[IoSlice<'_>]) -> io::Result<usize> {
        if !self.flush(socket)? {
            return Err(ErrorKind::WouldBlock.into());
        }
        let taken = self.seal(frames)?;
        self.flush(socket)?;
        Ok(taken)
    }

    fn read(&mut self, socket: &TcpStream, into: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        if self.has_unread() {
            if self.unread_from < self.unread.len() {
                return Ok(self.take_unread(into));
            }
            let opened = self.open(into)?;
            if opened > 0 {
                return Ok(opened);
            }
            if self.tls.is_ended() {
                return Ok(0);
            }
        }
        for _ in 0..READS {
            if self.is_share_spent() {
                break;
            }
            let room = self.tls.room(READ_BYTES);
            let asked = room.len();
            let read = retry_on_intr(|| recv(socket.as_fd(), &mut *room, RecvFlags::DONTWAIT));
            let (_, arrived) = read?;
            self.has_emptied = arrived < asked;
            if arrived == 0 {
                // The data read before shows whether the peer announced the end or the stream was
                // truncated.
                return match self.tls.is_ended() {
                    true => Ok(0),
                    false => Err(truncated()),
                };
            }
            self.tls.arrived(arrived);
            let opened = self.open(into)?;
            if opened > 0 {
                return Ok(opened);
            }
            if self.tls.is_ended() {
                return Ok(0);
            }
        }
        // The socket may have more, or the turn's share is spent: the next turn reads it.
        self.records_left = 0;
        Err(ErrorKind::WouldBlock.into())
    }

    fn is_all(&self, _bytes: usize, _asked: usize) -> bool {
        self.has_emptied
    }

    fn flush(&mut self, socket: &TcpStream) -> io::Result<bool> {
        while self.has_backlog() {
            let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
            match retry_on_intr(|| send(socket.as_fd(), self.tls.outgoing(), flags)) {
                Ok(sent) => self.tls.sent(sent),
                Err(rustix::io::Errno::WOULDBLOCK) => return Ok(false),
                Err(error) => return Err(error.into()),
            }
        }
        Ok(true)
    }

    fn has_backlog(&self) -> bool {
        !self.tls.outgoing().is_empty()
    }

    fn has_unread(&self) -> bool {
        let is_kept = self.unread_from < self.unread.len();
        is_kept || self.is_cut_short || self.tls.failed().is_some()
    }

    fn begin_turn(&mut self) {
        self.records_left = RECORDS_PER_TURN;
    }

    fn is_share_spent(&self) -> bool {
        self.records_left == 0
    }

    fn part_bytes(&self) -> usize {
        self.tls.part_bytes()
    }

    fn end(&mut self, socket: &TcpStream) -> io::Result<()> {
        if self.flush(socket)? {
            self.tls.end().map_err(io::Error::other)?;
            self.flush(socket)?;
        }
        Ok(())
    }

    fn rest(&mut self) {
        self.tls.rest();
        self.scratch = Vec::new();
        if !self.has_unread() {
            self.unread = Vec::new();
        }
    }
}

fn truncated() -> io::Error {
    io::Error::new(ErrorKind::UnexpectedEof, TlsError::Truncated)
}

/// Room for plaintext, in pieces.
struct Space<'a, 'b> {
    pieces: &'a mut [IoSliceMut<'b>],
    filled: usize,
}

impl<'a, 'b> Space<'a, 'b> {
    fn new(pieces: &'a mut [IoSliceMut<'b>]) -> Self {
        Self { pieces, filled: 0 }
    }

    /// Copies the bytes that fit after those in `into`, and returns the rest.
    fn take<'c>(&mut self, mut bytes: &'c [u8]) -> &'c [u8] {
        let mut skip = self.filled;
        for piece in &mut *self.pieces {
            let free = piece.get_mut(skip..).unwrap_or_default();
            let copied = free.len().min(bytes.len());
            free[..copied].copy_from_slice(&bytes[..copied]);
            bytes = &bytes[copied..];
            self.filled += copied;
            skip = skip.saturating_sub(piece.len());
        }
        bytes
    }
}

/// Most records that one turn opens: as many as a turn takes in frames.
const RECORDS_PER_TURN: usize = FRAMES_PER_TURN;
/// Plaintext of one record: [RFC 8446, section
/// 5.1](https://www.rfc-editor.org/rfc/rfc8446#section-5.1).
const RECORD_BYTES: usize = 16 << 10;
/// Most plaintext that one call seals, which bounds the backlog.
const WRITE_BYTES: usize = 64 << 10;
/// Sealed bytes that one read asks of the socket.
const READ_BYTES: usize = 64 << 10;
/// Most reads in one call, if none brings plaintext.
const READS: usize = 8;

#[cfg(test)]
pub(super) mod tests;
