//! Facts that processes report to the checker: records of one size in a pipe to which all of them
//! write and from which the checker alone reads.
//!
//! Rules:
//!
//! 1. A write has at most [`AT_ONCE`] records, which the kernel puts into the pipe together
//!    (`PIPE_BUF`, pipe(7)): a killed process has reported all of them or none.
//! 2. A message is reported before it is sent, and before it is acknowledged. The order in the pipe
//!    is therefore a possible order of events: no effect precedes its cause.
#![forbid(unsafe_code)]

use std::{
    io::{self, Read},
    os::fd::{AsFd, OwnedFd},
};

/// An event of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fact {
    /// A process has opened an end of a stream.
    Began {
        stream: u64,
        side: Side,
        process: u64,
    },
    /// A message is about to be sent.
    Sending {
        stream: u64,
        sequence: u64,
        checksum: u64,
    },
    /// A message was received, and is about to be acknowledged.
    Received {
        stream: u64,
        sequence: u64,
        checksum: u64,
    },
    /// The sender learned that the receiver acknowledged all messages up to `up_to`.
    Acknowledged { stream: u64, up_to: u64 },
    /// The sender closed in order, after everything was acknowledged.
    Closed { stream: u64, accepted: u64 },
    /// The sender got an error with these counters, after `accepted` messages.
    SendBroke {
        stream: u64,
        accepted: u64,
        sent: u64,
        received: u64,
        acknowledged: u64,
    },
    /// The receiver got the orderly end.
    Ended { stream: u64 },
    /// The receiver got an error that reports `received` messages.
    ReceiveBroke { stream: u64, received: u64 },
    /// A process was killed, and all its facts stand before this one.
    Died { process: u64 },
    /// A process was refused something by an error that says so, and continues.
    Refused { process: u64 },
    /// A session of a process was suspended.
    Suspended { process: u64 },
    /// A session of a process was resumed, and `replayed` messages were sent again.
    Resumed { process: u64, replayed: u64 },
}

/// An end of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    Sender,
    Receiver,
}

/// Bytes of a record.
pub(crate) const RECORD_BYTES: usize = 48;
/// Records that are written in one piece.
pub(crate) const AT_ONCE: usize = 4096 / RECORD_BYTES;

type Words = [u64; RECORD_BYTES / 8];

impl Fact {
    fn words(self) -> Words {
        match self {
            Fact::Began {
                stream,
                side,
                process,
            } => [1, stream, u64::from(side == Side::Receiver), process, 0, 0],
            Fact::Sending {
                stream,
                sequence,
                checksum,
            } => [2, stream, sequence, checksum, 0, 0],
            Fact::Received {
                stream,
                sequence,
                checksum,
            } => [3, stream, sequence, checksum, 0, 0],
            Fact::Acknowledged { stream, up_to } => [4, stream, up_to, 0, 0, 0],
            Fact::Closed { stream, accepted } => [5, stream, accepted, 0, 0, 0],
            Fact::SendBroke {
                stream,
                accepted,
                sent,
                received,
                acknowledged,
            } => [6, stream, accepted, sent, received, acknowledged],
            Fact::Ended { stream } => [7, stream, 0, 0, 0, 0],
            Fact::ReceiveBroke { stream, received } => [8, stream, received, 0, 0, 0],
            Fact::Died { process } => [9, process, 0, 0, 0, 0],
            Fact::Refused { process } => [12, process, 0, 0, 0, 0],
            Fact::Suspended { process } => [10, process, 0, 0, 0, 0],
            Fact::Resumed { process, replayed } => [11, process, replayed, 0, 0, 0],
        }
    }

    fn of_words(words: Words) -> Option<Self> {
        let [kind, stream, a, b, c, d] = words;
        Some(match kind {
            1 => Fact::Began {
                stream,
                side: if a == 1 { Side::Receiver } else { Side::Sender },
                process: b,
            },
            2 => Fact::Sending {
                stream,
                sequence: a,
                checksum: b,
            },
            3 => Fact::Received {
                stream,
                sequence: a,
                checksum: b,
            },
            4 => Fact::Acknowledged { stream, up_to: a },
            5 => Fact::Closed {
                stream,
                accepted: a,
            },
            6 => Fact::SendBroke {
                stream,
                accepted: a,
                sent: b,
                received: c,
                acknowledged: d,
            },
            7 => Fact::Ended { stream },
            8 => Fact::ReceiveBroke {
                stream,
                received: a,
            },
            9 => Fact::Died { process: stream },
            12 => Fact::Refused { process: stream },
            10 => Fact::Suspended { process: stream },
            11 => Fact::Resumed {
                process: stream,
                replayed: a,
            },
            _ => return None,
        })
    }

    /// Reads the next record of the pipe; `None` at its end.
    pub(crate) fn read(pipe: &mut impl Read) -> io::Result<Option<Self>> {
        let mut record = [0; RECORD_BYTES];
        match pipe.read_exact(&mut record) {
            Ok(()) => {}
            Err(end) if end.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
            Err(error) => return Err(error),
        }
        let mut words = Words::default();
        for (word, bytes) in words.iter_mut().zip(record.chunks_exact(8)) {
            *word = u64::from_le_bytes(bytes.try_into().expect("eight of them"));
        }
        let fact = Self::of_words(words);
        fact.map(Some)
            .ok_or_else(|| io::Error::other(format!("no record: {words:?}")))
    }
}

/// The writing end of the checker's pipe.
#[derive(Debug)]
pub(crate) struct Feed {
    pipe: OwnedFd,
}

impl Feed {
    pub(crate) fn new(pipe: OwnedFd) -> Self {
        Self { pipe }
    }

    /// Wraps this process's standard output, which its supervisor has made the pipe.
    pub(crate) fn of_this_process() -> io::Result<Self> {
        Ok(Self::new(std::io::stdout().as_fd().try_clone_to_owned()?))
    }

    /// Returns the same end of the pipe, for another process.
    pub(crate) fn pipe(&self) -> io::Result<OwnedFd> {
        self.pipe.try_clone()
    }

    /// Reports a fact.
    ///
    /// # Panics
    /// If the checker is gone, since the run is worthless then.
    pub(crate) fn tell(&self, fact: Fact) {
        self.tell_all(&[fact]);
    }

    /// Reports several facts. If they are many, other processes' facts come in between.
    pub(crate) fn tell_all(&self, facts: &[Fact]) {
        for piece in facts.chunks(AT_ONCE) {
            let words = piece.iter().flat_map(|fact| fact.words());
            let bytes: Vec<u8> = words.flat_map(u64::to_le_bytes).collect();
            let written = rustix::io::retry_on_intr(|| rustix::io::write(&self.pipe, &bytes));
            assert_eq!(written.expect("the checker reads"), bytes.len());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_fact_comes_out_as_it_went_in() {
        let (stream, process) = (u64::MAX, 7);
        let facts = [
            Fact::Began {
                stream,
                side: Side::Sender,
                process,
            },
            Fact::Began {
                stream,
                side: Side::Receiver,
                process,
            },
            Fact::Sending {
                stream,
                sequence: 1,
                checksum: 2,
            },
            Fact::Received {
                stream,
                sequence: 1,
                checksum: 2,
            },
            Fact::Acknowledged { stream, up_to: 3 },
            Fact::Closed {
                stream,
                accepted: 4,
            },
            Fact::SendBroke {
                stream,
                accepted: 4,
                sent: 5,
                received: 6,
                acknowledged: 7,
            },
            Fact::Ended { stream },
            Fact::ReceiveBroke {
                stream,
                received: 8,
            },
            Fact::Died { process },
            Fact::Refused { process },
            Fact::Suspended { process },
            Fact::Resumed {
                process,
                replayed: 9,
            },
        ];
        let (reader, writer) = rustix::pipe::pipe().unwrap();
        let feed = Feed::new(writer);
        feed.tell_all(&facts);
        drop(feed);
        let mut reader = std::fs::File::from(reader);
        let read = std::iter::from_fn(|| Fact::read(&mut reader).unwrap());
        assert_eq!(read.collect::<Vec<_>>(), facts);
    }
}
