//! The limit of replication over sockets: a loop over bare sockets that copies the same bytes in
//! pieces of the same size to the same number of processes, with the same number of pieces
//! unanswered.
//!
//! Without logs it only copies, out of an existing log into memory. With logs the sender appends
//! what it sends, and each receiver checks and appends. The difference between that and replication
//! is the cost of the interface to the transports.

use std::{
    io::{self, ErrorKind, Read, Write},
    net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream},
    thread,
    time::{Duration, Instant},
};

use ibex_harness::Error;
use rustix::event::{PollFd, PollFlags, poll};
use serde::{Deserialize, Serialize};

use crate::{
    load::{Load, Next},
    log::{self, Log, LogSettings},
    primary::Pace,
    processes::{Processes, Role},
    transport::Waiting,
};

/// Settings of a copy.
pub(crate) struct Copy {
    /// The number of receiving processes.
    pub(crate) replicas: usize,
    /// The size of pieces, and the number under way.
    pub(crate) pace: Pace,
    /// The way to wait.
    pub(crate) waiting: Waiting,
    /// Settings of the logs.
    pub(crate) log: LogSettings,
    /// Appends to logs on both sides if true.
    pub(crate) appends: bool,
}

/// The role of a receiving process.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Receive {
    address: SocketAddr,
    waiting: Waiting,
    bytes: u64,
    log: Option<LogSettings>,
}

impl Copy {
    /// Copies the log that `load` makes. Returns the time it took.
    pub(crate) fn measure(self, load: Load) -> Result<Duration, Error> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0));
        let listener = listener.map_err(Error::io("listening"))?;
        let source = Records::of(load, &self.log)?;
        let role = Role::RawCopy(Receive {
            address: listener.local_addr().map_err(Error::io("listening"))?,
            waiting: self.waiting,
            bytes: source.bytes.len() as u64,
            log: self.appends.then(|| self.log.clone()),
        });
        let log = self.appends.then(|| Log::open(self.log.clone()));
        let log = log.transpose().map_err(Error::subject)?;
        let processes = Processes::start(vec![role; self.replicas])?;
        let sockets = (0..self.replicas).map(|_| prepare(listener.accept()?.0));
        let sockets = sockets.collect::<io::Result<Vec<_>>>();
        let sockets = sockets.map_err(Error::io("accepting a process"))?;
        let elapsed = self.send(&source, log, sockets)?;
        processes.finish()?;
        Ok(elapsed)
    }

    fn send(
        &self,
        source: &Records,
        mut log: Option<Log>,
        mut sockets: Vec<TcpStream>,
    ) -> Result<Duration, Error> {
        let failed = Error::io::<io::Error>;
        let (mut sent, mut answered) = (vec![0; sockets.len()], vec![0; sockets.len()]);
        let (mut wanted, mut reached) = (0, 0);
        let begun = Instant::now();
        let mut elapsed = None;
        while answered.iter().any(|bytes| *bytes < source.bytes.len()) {
            for _ in 0..self.pace.group {
                let unanswered = wanted - source.ends.partition_point(|end| *end <= reached);
                if wanted == source.ends.len() || unanswered == self.pace.outstanding {
                    break;
                }
                if let Some(log) = &mut log {
                    log.append(source.payload(wanted)).map_err(Error::subject)?;
                }
                wanted += 1;
            }
            let end = wanted.checked_sub(1).map_or(0, |last| source.ends[last]);
            let mut has_moved = false;
            for (index, socket) in sockets.iter_mut().enumerate() {
                let piece = &source.bytes[sent[index]..end];
                if !piece.is_empty()
                    && let Some(count) = ready(socket.write(piece)).map_err(failed("copying"))?
                {
                    sent[index] += count;
                    has_moved = true;
                }
                let mut answer = [0; 512];
                let count = ready(socket.read(&mut answer)).map_err(failed("copying"))?;
                if let Some(last) = answer[..count.unwrap_or(0) / 8 * 8].last_chunk() {
                    answered[index] = u64::from_le_bytes(*last) as usize;
                    has_moved = true;
                }
            }
            let mut order = answered.clone();
            order.sort_unstable();
            // With the sender itself, half of the receivers are a majority.
            reached = order[order.len() / 2];
            if reached == source.bytes.len() {
                elapsed.get_or_insert_with(|| begun.elapsed());
            }
            if !has_moved {
                wait(self.waiting, &sockets);
            }
        }
        Ok(elapsed.unwrap_or_default())
    }
}

impl Receive {
    /// Receives the whole log.
    pub(crate) fn run(self) -> Result<(), Error> {
        let log = self.log.map(Log::open).transpose();
        let mut log = log.map_err(Error::subject)?;
        // The memory is touched ahead, as that of a log is.
        let room = if log.is_some() { 1 << 20 } else { self.bytes };
        let mut buffer = vec![u8::MAX; room as usize];
        let (mut from, mut to, mut bytes) = (0, 0, 0);
        let socket = TcpStream::connect(self.address).and_then(prepare);
        let mut socket = socket.map_err(Error::io("connecting to the sender"))?;
        while bytes < self.bytes {
            let count = ready(socket.read(&mut buffer[to..]));
            let Some(count) = count.map_err(Error::io("receiving the copy"))? else {
                wait(self.waiting, std::slice::from_ref(&socket));
                continue;
            };
            if count == 0 {
                return Err(Error::subject("the sender closed the connection early"));
            }
            to += count;
            bytes += count as u64;
            if let Some(log) = &mut log {
                let whole = log::whole_records(&buffer[from..to], usize::MAX);
                log.append_records(log.tip().end, &buffer[from..from + whole])
                    .map_err(Error::subject)?;
                from += whole;
                if from == to || buffer.len() - to < 1 << 18 {
                    buffer.copy_within(from..to, 0);
                    (from, to) = (0, to - from);
                }
            }
            let answered = socket.write(&bytes.to_le_bytes());
            answered.map_err(Error::io("answering the sender"))?;
        }
        Ok(())
    }
}

/// The bytes of a log.
struct Records {
    bytes: Vec<u8>,
    /// The end of each record.
    ends: Vec<usize>,
}

impl Records {
    fn of(mut load: Load, settings: &LogSettings) -> Result<Records, Error> {
        let log = Log::open(LogSettings {
            directory: None,
            ..settings.clone()
        });
        let (mut log, mut ends) = (log.map_err(Error::subject)?, Vec::new());
        while let Next::Record(payload) = load.next()? {
            log.append(payload).map_err(Error::subject)?;
            ends.push(log.tip().end as usize);
        }
        let mut bytes = Vec::new();
        while (bytes.len() as u64) < log.tip().end {
            let records = log.records(bytes.len() as u64, usize::MAX);
            bytes.extend_from_slice(&records.map_err(Error::subject)?);
        }
        Ok(Records { bytes, ends })
    }

    fn payload(&self, index: usize) -> &[u8] {
        let before = index.checked_sub(1).map_or(0, |before| self.ends[before]);
        &self.bytes[before + log::HEADER_BYTES..self.ends[index]]
    }
}

fn prepare(socket: TcpStream) -> io::Result<TcpStream> {
    socket.set_nodelay(true)?;
    socket.set_nonblocking(true)?;
    Ok(socket)
}

fn ready(result: io::Result<usize>) -> io::Result<Option<usize>> {
    match result {
        Ok(count) => Ok(Some(count)),
        Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(None),
        Err(error) => Err(error),
    }
}

fn wait(waiting: Waiting, sockets: &[TcpStream]) {
    if waiting == Waiting::Poll {
        thread::yield_now();
        return;
    }
    let fds = sockets
        .iter()
        .map(|socket| PollFd::new(socket, PollFlags::IN));
    let _ = poll(&mut fds.collect::<Vec<_>>(), None);
}
