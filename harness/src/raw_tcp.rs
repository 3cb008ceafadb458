//! The limit of TCP over the loopback interface: two processes, two plain sockets.
//!
//! *Latency*: one write and one read per message, TCP_NODELAY, both sockets
//! non-blocking and polled without back-off. There is no header: both ends know the
//! length. (An empty message travels as one byte, for want of anything shorter.)
//!
//! *Stream*: messages are packed back to back and written in frames of `FRAME` bytes,
//! longer ones with a write each. Who receives reads as much as has come into a buffer
//! of `READ` bytes, or of one message if that is more, and checks it where it lies,
//! while it is still in the cache.

#![forbid(unsafe_code)]

use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::ops::Range;

use crate::job::{Job, Mode};
use crate::{Error, check::Tally, link::Link};

/// One end of the connection.
pub(crate) struct RawTcp {
    job: Job,
    socket: TcpStream,
    unsent: Vec<u8>,      // whole messages that wait for a write
    buffer: Vec<u8>,      // what was read last,
    unread: Range<usize>, // and which bytes of it are not checked yet
}

impl RawTcp {
    pub(crate) fn new(job: Job, socket: TcpStream) -> Result<RawTcp, Error> {
        socket
            .set_nodelay(true)
            .and_then(|()| socket.set_nonblocking(true))
            .map_err(Error::io("preparing the socket"))?;
        let unsent = Vec::with_capacity(FRAME.max(job.size) + 1);
        let buffer = vec![0; READ.max(job.size + 1)];
        Ok(RawTcp {
            job,
            socket,
            unsent,
            buffer,
            unread: 0..0,
        })
    }

    /// Reads what has come behind the bytes that are still unread.
    fn read(&mut self) -> Result<(), Error> {
        if self.unread.is_empty() {
            self.unread = 0..0;
        } else if self.unread.end == self.buffer.len() {
            self.buffer.copy_within(self.unread.clone(), 0);
            self.unread = 0..self.unread.len();
        }
        let bytes = retry(
            || match self.socket.read(&mut self.buffer[self.unread.end..]) {
                Ok(0) => Err(ErrorKind::UnexpectedEof.into()),
                read => read,
            },
        );
        self.unread.end += bytes.map_err(Error::io("reading from the socket"))?;
        Ok(())
    }
}

impl Link for RawTcp {
    fn send(&mut self, sequence: u64) -> Result<(), Error> {
        let start = self.unsent.len();
        self.unsent.resize(start + self.job.size.max(1), 0);
        let payload = &mut self.unsent[start..][..self.job.size];
        self.job.fill(sequence, 0, payload);
        let full = self.unsent.len() + self.job.size > FRAME;
        if full || self.job.mode == Mode::Latency {
            self.finish()?;
        }
        Ok(())
    }

    fn receive(&mut self, sequence: u64, tally: &mut Tally) -> Result<(), Error> {
        let (mut checked, size) = (0, self.job.size.max(1));
        while checked < size {
            while self.unread.len() < 8.min(size - checked) {
                self.read()?;
            }
            // All the rest, or whole words, so that the next part begins at one.
            let here = self.unread.len().min(size - checked);
            let length = if checked + here < size {
                here & !7
            } else {
                here
            };
            let part = &self.buffer[self.unread.start..][..length.min(self.job.size)];
            tally.part(sequence, checked, part);
            self.unread.start += length;
            checked += length;
        }
        Ok(())
    }

    fn finish(&mut self) -> Result<(), Error> {
        let mut unsent = &self.unsent[..];
        while !unsent.is_empty() {
            let written = retry(|| self.socket.write(unsent));
            unsent = &unsent[written.map_err(Error::io("writing to the socket"))?..];
        }
        self.unsent.clear();
        Ok(())
    }
}

/// Polls a call until it does something.
fn retry(mut call: impl FnMut() -> io::Result<usize>) -> io::Result<usize> {
    loop {
        match call() {
            Err(error)
                if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
            done => return done,
        }
    }
}

const FRAME: usize = 32 << 10;
const READ: usize = 256 << 10;
