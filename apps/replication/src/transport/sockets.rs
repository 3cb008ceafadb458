//! Replication over TCP sockets, tuned well: no delay, one vectored write for a batch from its
//! place in the log, one read for all that has arrived, and one answer of eight bytes for all of
//! that. A length of eight bytes, little-endian, goes before a batch.

use std::{
    io::{self, ErrorKind, IoSlice, Read, Write},
    net::{IpAddr, SocketAddr, TcpListener, TcpStream},
    ops::Range,
    thread,
    time::{Duration, Instant},
};

use ibex::RegionSlice;
use ibex_harness::Error;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::{Join, Lost, PrimaryLink, Received, Waiting};
use crate::{
    catch_up,
    log::{Log, Piece, is_starved},
};

/// The primary's listening socket.
pub(crate) struct SocketEndpoint {
    listener: TcpListener,
    address: SocketAddr,
    waiting: Waiting,
    /// Connected replicas whose join message is incomplete.
    joining: Vec<(TcpStream, Vec<u8>)>,
}

impl SocketEndpoint {
    /// Listens at any port of `address`.
    pub(crate) fn listen(waiting: Waiting, address: IpAddr) -> Result<SocketEndpoint, Error> {
        let prepare = || {
            let listener = TcpListener::bind((address, 0))?;
            listener.set_nonblocking(true)?;
            Ok((listener.local_addr()?, listener))
        };
        let (address, listener) = prepare().map_err(Error::io::<io::Error>("listening"))?;
        Ok(SocketEndpoint {
            listener,
            address,
            waiting,
            joining: Vec::new(),
        })
    }

    /// Returns the address to which replicas connect.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns a replica that has joined since the last call, if there is one. Never waits.
    pub(crate) fn poll_join(&mut self, log: &mut Log) -> Result<Option<SocketReplica>, Error> {
        while let Some((socket, _)) =
            accepted(self.listener.accept()).map_err(Error::io("accepting a replica"))?
        {
            if prepare(&socket).is_ok() {
                self.joining.push((socket, Vec::new()));
            }
        }
        let mut index = 0;
        while let Some((socket, said)) = self.joining.get_mut(index) {
            let mut bytes = [0; Join::BYTES];
            match ready(socket.read(&mut bytes[said.len()..])) {
                Ok(None) => {
                    index += 1;
                    continue;
                }
                Ok(Some(count)) if count > 0 => {
                    said.extend_from_slice(&bytes[said.len()..][..count]);
                }
                // The connection closed before the replica joined.
                _ => drop(self.joining.swap_remove(index)),
            }
            let Some((_, said)) = self.joining.get(index) else {
                break;
            };
            if let Ok(bytes) = said[..].try_into() {
                let (socket, _) = self.joining.swap_remove(index);
                let join = Join::from_bytes(bytes);
                let has = catch_up::position(&join, log).map_err(Error::subject)?;
                return Ok(Some(SocketReplica::new(socket, join.replica, has)));
            }
        }
        Ok(None)
    }

    /// Waits until one of `links` has something to read, or room for the rest of a batch, or for
    /// `limit`. May return early.
    pub(crate) fn wait<'a>(&self, links: impl Iterator<Item = &'a SocketReplica>, limit: Duration) {
        let sockets = links.map(|link| {
            let writable = if link.has_rest() {
                PollFlags::OUT
            } else {
                PollFlags::empty()
            };
            (&link.socket, PollFlags::IN | writable)
        });
        wait_for(self.waiting, limit, &mut sockets.collect::<Vec<_>>()[..]);
    }
}

/// A replica that has joined, as its primary sees it.
pub(crate) struct SocketReplica {
    socket: TcpStream,
    /// The offset up to which the log was sent.
    position: u64,
    /// The rest of a batch for which the socket had no room: a copy, and behind it what lies in a
    /// sealed segment.
    unsent: Vec<u8>,
    unsent_slice: Option<RegionSlice>,
    /// The beginning of an incomplete answer.
    answer: Vec<u8>,
    /// Index of the replica.
    pub(crate) replica: u32,
    /// The replica has the log up to here, at first its position at joining.
    pub(crate) has: u64,
}

impl SocketReplica {
    fn new(socket: TcpStream, replica: u32, position: u64) -> SocketReplica {
        SocketReplica {
            socket,
            position,
            unsent: Vec::new(),
            unsent_slice: None,
            answer: Vec::new(),
            replica,
            has: position,
        }
    }

    /// Returns whether a part of the last batch is not sent.
    fn has_rest(&self) -> bool {
        !self.unsent.is_empty() || self.unsent_slice.is_some()
    }

    /// Sends the rest of the last batch. Returns whether that was all.
    fn send_rest(&mut self) -> Result<bool, Lost> {
        while self.has_rest() {
            let slice = self.unsent_slice.as_deref().unwrap_or_default();
            let parts = [IoSlice::new(&self.unsent), IoSlice::new(slice)];
            match ready(self.socket.write_vectored(&parts)).map_err(Lost::because)? {
                None => return Ok(false),
                Some(count) => self.wrote(count),
            }
        }
        Ok(true)
    }

    /// Takes the first `count` bytes from the rest.
    fn wrote(&mut self, count: usize) {
        let copied = count.min(self.unsent.len());
        self.unsent.drain(..copied);
        let slice = self.unsent_slice.take();
        let rest = slice.map(|slice| slice.slice(count - copied..));
        self.unsent_slice = rest.filter(|rest| !rest.is_empty());
    }

    /// Sends the next batch of `log` that the replica lacks. Returns false if there is none, or no
    /// room for it.
    pub(crate) fn try_send(&mut self, log: &mut Log) -> Result<bool, Lost> {
        if !self.send_rest()? || self.position == log.tip().end {
            return Ok(false);
        }
        let records = catch_up::next(log, self.position).map_err(Lost::because)?;
        let header = header(&records);
        let parts = [IoSlice::new(&header), IoSlice::new(&records)];
        let Some(count) = ready(self.socket.write_vectored(&parts)).map_err(Lost::because)? else {
            return Ok(false);
        };
        // There is rarely a rest: the socket's buffer holds more than is outstanding. Only a
        // replica that catches up fills it.
        let of_header = count.min(header.len());
        self.unsent.extend_from_slice(&header[of_header..]);
        let of_records = count - of_header;
        self.position += records.len() as u64;
        match records {
            Piece::Active(records) => self.unsent.extend_from_slice(&records[of_records..]),
            Piece::Sealed(records) if of_records < records.len() => {
                self.unsent_slice = Some(records.slice(of_records..));
            }
            Piece::Sealed(_) => {}
        }
        Ok(true)
    }

    /// Takes the acknowledgements that are there.
    pub(crate) fn take_acknowledged(&mut self) -> Result<(), Lost> {
        self.send_rest()?;
        let mut answers = [0; 512];
        while let Some(count) = ready(self.socket.read(&mut answers)).map_err(Lost::because)? {
            if count == 0 {
                return Err(Lost::because("it closed the connection"));
            }
            self.answer.extend_from_slice(&answers[..count]);
            let whole = self.answer.len() / ANSWER_BYTES * ANSWER_BYTES;
            // Each answer includes those before, so the last one counts.
            if let Some(last) = self.answer[..whole].last_chunk::<ANSWER_BYTES>() {
                self.has = u64::from_le_bytes(*last);
            }
            self.answer.drain(..whole);
            if count < answers.len() {
                break;
            }
        }
        Ok(())
    }

    /// Tells the replica that the log ends behind the batches sent.
    pub(crate) fn end(mut self) {
        // A batch without records ends the log. If it cannot be sent, the replica is lost and
        // knows.
        let _ = self.socket.set_nonblocking(false);
        let _ = self.send_rest();
        let _ = self.socket.write_all(&header(&[]));
    }
}

/// The primary, as a replica sees it over a socket.
pub(crate) struct SocketPrimary {
    socket: TcpStream,
    waiting: Waiting,
    /// Bytes that were read, and the range of them that is not handed out yet.
    buffer: Vec<u8>,
    unread: Range<usize>,
}

impl SocketPrimary {
    /// Connects to the primary at `address`, and tells it where this replica's log ends.
    pub(crate) fn connect(
        waiting: Waiting,
        address: SocketAddr,
        join: Join,
    ) -> Result<SocketPrimary, Error> {
        let connect = || {
            let mut socket = TcpStream::connect(address)?;
            socket.write_all(&join.to_bytes())?;
            prepare(&socket)?;
            Ok(socket)
        };
        Ok(SocketPrimary {
            socket: connect().map_err(Error::io::<io::Error>("connecting to the primary"))?,
            waiting,
            buffer: vec![0; BUFFER_BYTES],
            unread: 0..0,
        })
    }

    /// Reads the bytes that have arrived, as far as there is room. Returns whether there were any.
    fn read(&mut self) -> Result<bool, Lost> {
        let first = size_of_first(&self.buffer[self.unread.clone()]).unwrap_or_default();
        if first > self.buffer.len() {
            self.buffer.resize(first, 0);
        }
        let rest = self.buffer.len() - self.unread.end;
        if self.unread.is_empty() {
            self.unread = 0..0;
        } else if rest < SMALLEST_READ || self.unread.start + first > self.buffer.len() {
            self.buffer.copy_within(self.unread.clone(), 0);
            self.unread = 0..self.unread.len();
        }
        let read = ready(self.socket.read(&mut self.buffer[self.unread.end..]));
        match read.map_err(Lost::because)? {
            None => Ok(false),
            Some(0) => Err(Lost::because("it closed the connection early")),
            Some(count) => {
                self.unread.end += count;
                Ok(true)
            }
        }
    }
}

impl PrimaryLink for SocketPrimary {
    // Batches that were read together are acknowledged together, since each answer is a system
    // call.
    fn receive(
        &mut self,
        limit: Duration,
        _: bool,
        take: &mut dyn FnMut(&[u8]) -> Result<(), Error>,
    ) -> Result<Received, Error> {
        let begun = Instant::now();
        loop {
            let mut batches = 0;
            while let unread = &self.buffer[self.unread.clone()]
                && let Some(size) = size_of_first(unread)
                && let Some(bytes) = unread.get(..size)
            {
                let records = &bytes[HEADER_BYTES..];
                if records.is_empty() {
                    if batches > 0 {
                        break;
                    }
                    return Ok(Received::End);
                }
                take(records)?;
                self.unread.start += size;
                batches += 1;
            }
            if batches > 0 {
                return Ok(Received::Batches);
            }
            let has_read = match self.read() {
                Ok(has_read) => has_read,
                Err(lost) => return Ok(Received::Lost(lost)),
            };
            if !has_read {
                let Some(left) = limit.checked_sub(begun.elapsed()) else {
                    return Ok(Received::Nothing);
                };
                wait_for(self.waiting, left, &mut [(&self.socket, PollFlags::IN)]);
            }
        }
    }

    fn acknowledge(&mut self, end: u64) -> Result<(), Lost> {
        let answer = end.to_le_bytes();
        let mut said = 0;
        while said < answer.len() {
            match ready(self.socket.write(&answer[said..])) {
                Ok(Some(count)) => said += count,
                Ok(None) => thread::yield_now(),
                Err(error) => return Err(Lost::because(error)),
            }
        }
        Ok(())
    }
}

/// Returns what goes before a batch of these records.
fn header(records: &[u8]) -> [u8; HEADER_BYTES] {
    (records.len() as u64).to_le_bytes()
}

/// Returns the length of the batch at the beginning of `bytes`, with its header, once the header has
/// arrived.
fn size_of_first(bytes: &[u8]) -> Option<usize> {
    let length = u64::from_le_bytes(*bytes.first_chunk()?);
    HEADER_BYTES.checked_add(usize::try_from(length).ok()?)
}

/// Returns the result of accept(2); `None` if there is nothing to accept now. A connection for which
/// the process has no descriptor waits in the listener's queue, and one may end before it is
/// accepted.
fn accepted<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Err(error) if is_starved(&error) || error.kind() == ErrorKind::ConnectionAborted => {
            Ok(None)
        }
        result => ready(result),
    }
}

fn prepare(socket: &TcpStream) -> io::Result<()> {
    socket.set_nodelay(true)?;
    socket.set_nonblocking(true)
}

/// Returns the result of a call on a non-blocking socket; `None` if it would have had to wait.
fn ready<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

/// Waits until one of the sockets is ready, or for `limit`.
fn wait_for(waiting: Waiting, limit: Duration, sockets: &mut [(&TcpStream, PollFlags)]) {
    if waiting == Waiting::Poll {
        thread::yield_now();
        return;
    }
    let mut fds: Vec<PollFd<'_>> = sockets
        .iter()
        .map(|(socket, flags)| PollFd::new(*socket, *flags))
        .collect();
    let spin = waiting.spin().min(limit);
    let begun = Instant::now();
    while begun.elapsed() < spin {
        if poll(&mut fds, Some(&Timespec::default())).is_ok_and(|ready| ready > 0) {
            return;
        }
    }
    let left = Timespec::try_from(limit.saturating_sub(spin)).ok();
    // An interrupted poll is as good as a successful one.
    let _ = poll(&mut fds, left.as_ref());
}

/// Bytes before a batch: the length of its records.
const HEADER_BYTES: usize = 8;
/// Bytes of an answer: the log offset up to which everything is durable.
const ANSWER_BYTES: usize = 8;
/// The most bytes of a read; a longer batch enlarges the buffer.
const BUFFER_BYTES: usize = 1 << 20;
/// The least room for a read; with less, unread bytes move to the front.
const SMALLEST_READ: usize = 256 << 10;
