//! The limit of TCP: two processes, two plain sockets, or two that rustls encrypts.
//!
//! Both sockets are busy-polled, with TCP_NODELAY: sleeping costs up to a third of the rate. There
//! are no headers, since both ends know the length. (An empty message is one byte.) The limit with
//! blocking sockets is otherwise the same; it is for subjects that do not spin.
//!
//! *Latency*: one write and one read per message, and `PAUSES` between polls, when the kernel may
//! have the socket's lock: 3 % faster near than without, 1 % slower far.
//!
//! *Stream*: messages are packed back to back and written in frames of `FRAME` bytes; longer ones
//! take a write each. The receiver reads all that has arrived into a buffer of `READ` bytes, or of
//! one message if that is more, and checks it there while it is still in the cache.

#![forbid(unsafe_code)]

use std::io::{self, ErrorKind, Read, Write};
use std::{net::TcpStream, ops::Range};

use crate::{Error, check::Tally, job::Job, job::Mode, link::Link};

/// An end of the connection.
pub(crate) struct RawTcp<S = TcpStream> {
    job: Job,
    socket: S,
    frame: Vec<u8>,       // whole messages that wait for a write,
    queued: usize,        // and how many bytes that is
    buffer: Vec<u8>,      // what was read last,
    unread: Range<usize>, // and which bytes of it are not checked yet
}

impl RawTcp {
    pub(crate) fn new(job: Job, socket: TcpStream, blocks: bool) -> Result<RawTcp, Error> {
        let prepared = socket.set_nodelay(true);
        prepared
            .and_then(|()| socket.set_nonblocking(!blocks))
            .map_err(Error::io("preparing the socket"))?;
        Ok(RawTcp::over(job, socket))
    }
}

impl<S: Read + Write> RawTcp<S> {
    /// Makes an end over a stream that is ready.
    pub(crate) fn over(job: Job, socket: S) -> RawTcp<S> {
        RawTcp {
            job,
            socket,
            frame: vec![0; FRAME.max(job.size)],
            queued: 0,
            buffer: vec![0; READ.max(job.size)],
            unread: 0..0,
        }
    }

    /// Reads the bytes that have arrived, behind those that are still unread.
    fn read(&mut self) -> Result<(), Error> {
        if self.unread.is_empty() || self.unread.end == self.buffer.len() {
            self.buffer.copy_within(self.unread.clone(), 0);
            self.unread = 0..self.unread.len();
        }
        let space = &mut self.buffer[self.unread.end..];
        let pauses = PAUSES * u32::from(self.job.mode == Mode::Latency);
        let bytes = poll(pauses, || self.socket.read(space));
        self.unread.end += bytes.map_err(Error::io("reading the socket"))?;
        Ok(())
    }
}

impl<S: Read + Write> Link for RawTcp<S> {
    #[inline(always)]
    fn send(&mut self, sequence: u64) -> Result<(), Error> {
        let payload = &mut self.frame[self.queued..][..self.job.size];
        self.job.fill(sequence, 0, payload);
        self.queued += self.job.size.max(1);
        let full = self.queued + self.job.size.max(1) > FRAME;
        if full || self.job.mode == Mode::Latency {
            self.finish()?;
        }
        Ok(())
    }

    #[inline(always)]
    fn receive(&mut self, sequence: u64, tally: &mut Tally) -> Result<(), Error> {
        let (mut checked, size) = (0, self.job.size.max(1));
        while checked < size {
            while self.unread.len() < 8.min(size - checked) {
                self.read()?;
            }
            // Checks all the rest of the message, or whole words, so that the next part begins at a
            // word.
            let (rest, here) = (size - checked, self.unread.len());
            let length = if here < rest { here & !7 } else { rest };
            let part = &self.buffer[self.unread.start..][..length.min(self.job.size)];
            tally.part(sequence, checked, part);
            self.unread.start += length;
            checked += length;
        }
        Ok(())
    }

    fn finish(&mut self) -> Result<(), Error> {
        let mut frame = &self.frame[..self.queued];
        while !frame.is_empty() {
            let bytes = poll(0, || self.socket.write(frame));
            frame = &frame[bytes.map_err(Error::io("writing the socket"))?..];
        }
        self.queued = 0;
        Ok(())
    }
}

/// Repeats a call until it moves some bytes.
fn poll(pauses: u32, mut call: impl FnMut() -> io::Result<usize>) -> io::Result<usize> {
    loop {
        match call().map_err(|error| (error.kind(), error)) {
            Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
            Ok(bytes) => return Ok(bytes),
            Err((ErrorKind::WouldBlock | ErrorKind::Interrupted, _)) => {
                (0..pauses).for_each(|_| std::hint::spin_loop());
            }
            Err((_, error)) => return Err(error),
        }
    }
}

const FRAME: usize = 32 << 10;
const READ: usize = 256 << 10;
const PAUSES: u32 = 12;
