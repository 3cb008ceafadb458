//! The load: the payloads of the records.

use std::{
    fs::File,
    io::{self, BufReader, Read},
    path::PathBuf,
    sync::mpsc::{self, Receiver, TryRecvError},
    thread,
};

use ibex_harness::{Error, draw::Draw};

/// The source of the payloads.
#[derive(Clone, Debug)]
pub(crate) enum Source {
    /// Random bytes, for this number of records.
    Generated(u64),
    /// A file, cut into records.
    File(PathBuf),
    /// Standard input, cut into records at the pace at which it comes.
    Stdin,
}

/// Payloads, one after the other.
pub(crate) struct Load {
    record_bytes: usize,
    kind: Kind,
}

enum Kind {
    Generated {
        left: u64,
        random: Vec<u8>,
        at: usize,
    },
    File {
        file: BufReader<File>,
        record: Vec<u8>,
    },
    Stdin {
        records: Receiver<io::Result<Vec<u8>>>,
        record: Vec<u8>,
    },
}

/// The next payload, or the reason why there is none.
pub(crate) enum Next<'a> {
    /// The payload.
    Record(&'a [u8]),
    /// No payload now; there may be one later.
    NotYet,
    /// The load has ended.
    End,
}

impl Load {
    /// Opens a source of payloads of `record_bytes` each; the last one of a file may be shorter.
    pub(crate) fn open(source: &Source, record_bytes: usize) -> Result<Load, Error> {
        let kind = match source {
            Source::Generated(records) => Kind::Generated {
                left: *records,
                random: random(RANDOM_BYTES + record_bytes),
                at: 0,
            },
            Source::File(path) => Kind::File {
                file: BufReader::with_capacity(
                    READ_BYTES,
                    File::open(path).map_err(|error| {
                        Error::subject(format!("opening {}: {error}", path.display()))
                    })?,
                ),
                record: Vec::new(),
            },
            Source::Stdin => Kind::Stdin {
                records: read_stdin(record_bytes)?,
                record: Vec::new(),
            },
        };
        Ok(Load { record_bytes, kind })
    }

    /// Returns the next payload. Never waits for standard input.
    pub(crate) fn next(&mut self) -> Result<Next<'_>, Error> {
        match &mut self.kind {
            Kind::Generated { left: 0, .. } => Ok(Next::End),
            Kind::Generated { left, random, at } => {
                *left -= 1;
                // Pieces begin at different offsets, so that no two records are alike.
                *at = (*at + STEP) % RANDOM_BYTES;
                Ok(Next::Record(&random[*at..*at + self.record_bytes]))
            }
            Kind::File { file, record } => {
                read_record(file, self.record_bytes, record)
                    .map_err(Error::io("reading the input"))?;
                Ok(match record[..] {
                    [] => Next::End,
                    _ => Next::Record(record),
                })
            }
            Kind::Stdin { records, record } => match records.try_recv() {
                Ok(next) => {
                    *record = next.map_err(Error::io("reading standard input"))?;
                    Ok(Next::Record(record))
                }
                Err(TryRecvError::Empty) => Ok(Next::NotYet),
                Err(TryRecvError::Disconnected) => Ok(Next::End),
            },
        }
    }
}

impl Source {
    /// Returns the number of records of `record_bytes`, if it is known ahead.
    pub(crate) fn records(&self, record_bytes: usize) -> Option<u64> {
        match self {
            Source::Generated(records) => Some(*records),
            Source::File(path) => {
                let bytes = path.metadata().ok()?.len();
                Some(bytes.div_ceil(record_bytes as u64))
            }
            Source::Stdin => None,
        }
    }
}

/// Reads standard input on a thread, so that a quiet input does not delay acknowledgements.
fn read_stdin(record_bytes: usize) -> Result<Receiver<io::Result<Vec<u8>>>, Error> {
    let (sender, records) = mpsc::sync_channel(RECORDS_AHEAD);
    let read = move || {
        let mut input = io::stdin().lock();
        loop {
            let mut record = Vec::new();
            let result = read_record(&mut input, record_bytes, &mut record);
            if result.is_ok() && record.is_empty() {
                return;
            }
            let is_over = result.is_err();
            if sender.send(result.map(|()| record)).is_err() || is_over {
                return;
            }
        }
    };
    thread::Builder::new()
        .name("standard-input".into())
        .spawn(read)
        .map_err(Error::io("starting a thread"))?;
    Ok(records)
}

fn read_record(input: &mut impl Read, bytes: usize, record: &mut Vec<u8>) -> io::Result<()> {
    record.clear();
    input.take(bytes as u64).read_to_end(record).map(drop)
}

/// Generates bytes without a pattern, the same in every run.
fn random(bytes: usize) -> Vec<u8> {
    let mut random = vec![0; bytes];
    Draw::new(1).fill(&mut random);
    random
}

/// The random bytes fit a core's cache, since the source of payloads is not what is measured.
const RANDOM_BYTES: usize = 256 << 10;
/// Distance between the beginnings of successive payloads; coprime to `RANDOM_BYTES`.
const STEP: usize = 4161;
const READ_BYTES: usize = 1 << 20;
const RECORDS_AHEAD: usize = 64;

#[cfg(test)]
mod tests {
    use std::{env, fs, process};

    use super::*;

    fn all(load: &mut Load) -> Vec<Vec<u8>> {
        let mut records = Vec::new();
        while let Next::Record(record) = load.next().unwrap() {
            records.push(record.to_vec());
        }
        records
    }

    #[test]
    fn a_file_is_cut_and_nothing_is_lost() {
        let path = env::temp_dir().join(format!("ibex-replication-load-{}", process::id()));
        let bytes = random(1000);
        fs::write(&path, &bytes).unwrap();
        let source = Source::File(path.clone());
        let records = all(&mut Load::open(&source, 300).unwrap());
        fs::remove_file(&path).unwrap();
        let lengths: Vec<_> = records.iter().map(Vec::len).collect();
        assert_eq!(lengths, [300, 300, 300, 100]);
        assert_eq!(records.concat(), bytes);
    }

    #[test]
    fn generated_records_differ() {
        let mut load = Load::open(&Source::Generated(500), 64).unwrap();
        let mut records = all(&mut load);
        assert_eq!(records.len(), 500);
        records.sort();
        records.dedup();
        assert_eq!(records.len(), 500);
    }
}
