//! The ibex side of a measurement: one channel each way, driven message by message through the
//! harness's [`Link`].
//!
//! Raw payloads are built in place, in the ring; the other codecs carry a struct around the same
//! payload. The payload is read where it arrived, or decoded by serde.

use ibex::{Codec, Peer, Raw, Receiver, Sender, serde_bytes};
use ibex_harness::{Error, check::Tally, job::Job, link::Link};
use serde::{Deserialize, Serialize};

/// The codec of a measurement's messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CodecName {
    /// The payload as it is.
    Raw,
    /// A struct with the payload in it, read in place.
    Rkyv,
    /// A struct with the payload in it, decoded by serde: an allocation and a copy of the payload.
    Serde,
}

impl CodecName {
    /// Returns the name as it stands in options and rows.
    pub fn name(self) -> &'static str {
        match self {
            CodecName::Raw => "raw",
            CodecName::Rkyv => "rkyv",
            CodecName::Serde => "serde",
        }
    }
}

/// The work done on each message, and how it is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Care {
    /// Every byte is written, and compared on arrival.
    Checked,
    /// Only the message's number is written and compared, to match programs that touch no byte.
    Marked,
    /// Like [`Marked`](Self::Marked), with each message transmitted before the next is written, so
    /// that no two share a frame.
    MarkedAlone,
}

/// The message of the rkyv and serde rows.
#[ibex::message]
#[derive(Serialize, Deserialize)]
pub struct Entry {
    sequence: u64,
    #[serde(with = "serde_bytes")]
    data: Vec<u8>,
}

/// The end of the pair that opens the channels.
#[derive(Clone, Copy)]
pub enum Side {
    /// Sends pings, receives pongs and streams.
    Measuring,
    /// Answers pings and receives streams.
    Answering,
}

/// The ends of both channels on one side.
struct Ends<T: ?Sized, C> {
    sender: Sender<T, C>,
    receiver: Receiver<T, C>,
}

impl<T: ?Sized, C: Codec<T>> Ends<T, C> {
    fn open(peer: &Peer, side: Side) -> Result<Self, Error> {
        let (ours, theirs) = match side {
            Side::Measuring => ("ping", "pong"),
            Side::Answering => ("pong", "ping"),
        };
        Ok(Ends {
            sender: peer
                .channel(ours)
                .codec::<C>()
                .max_message_bytes(Job::MAX_SIZE as u64)
                .sender::<T>()
                .map_err(Error::subject)?,
            receiver: peer
                .channel(theirs)
                .codec::<C>()
                .max_message_bytes(Job::MAX_SIZE as u64)
                .receiver::<T>()
                .map_err(Error::subject)?,
        })
    }
}

/// Channels of bytes.
pub struct RawChannels {
    job: Job,
    ends: Ends<[u8], Raw>,
}

impl RawChannels {
    /// Opens the ends of both channels on `side`.
    pub fn open(peer: &Peer, job: Job, side: Side) -> Result<Self, Error> {
        Ok(RawChannels {
            job,
            ends: Ends::open(peer, side)?,
        })
    }
}

impl Link for RawChannels {
    #[inline]
    fn send(&mut self, sequence: u64) -> Result<(), Error> {
        let mut slot = self
            .ends
            .sender
            .loan(self.job.size)
            .map_err(Error::subject)?;
        self.job.fill(sequence, 0, &mut slot);
        slot.send().map_err(Error::subject)?;
        Ok(())
    }

    #[inline]
    fn receive(&mut self, sequence: u64, tally: &mut Tally) -> Result<(), Error> {
        let message = self.ends.receiver.recv().map_err(Error::subject)?;
        tally.message(sequence, self.job.size, &message);
        Ok(())
    }

    fn finish(&mut self) -> Result<(), Error> {
        self.ends.sender.flush().map_err(Error::subject)
    }
}

/// Channels of bytes of which only the first eight, the message's number, are written and compared.
pub struct MarkedChannels<'a> {
    job: Job,
    ends: Ends<[u8], Raw>,
    peer: &'a Peer,
    is_alone: bool,
}

impl<'a> MarkedChannels<'a> {
    /// Opens the ends of both channels on `side`.
    pub fn open(
        peer: &'a Peer,
        job: Job,
        care: Care,
        side: Side,
    ) -> Result<MarkedChannels<'a>, Error> {
        if job.size < MARK_BYTES {
            return Err(Error::subject("a marked message has at least 8 bytes"));
        }
        Ok(MarkedChannels {
            job,
            ends: Ends::open(peer, side)?,
            peer,
            is_alone: care == Care::MarkedAlone,
        })
    }
}

impl Link for MarkedChannels<'_> {
    #[inline]
    fn send(&mut self, sequence: u64) -> Result<(), Error> {
        let sender = &mut self.ends.sender;
        let mut slot = sender.loan(self.job.size).map_err(Error::subject)?;
        slot[..MARK_BYTES].copy_from_slice(&sequence.to_le_bytes());
        if !self.is_alone {
            slot.send().map_err(Error::subject)?;
            return Ok(());
        }
        let frames = self.peer.stats().frames_sent;
        slot.send().map_err(Error::subject)?;
        while self.peer.stats().frames_sent == frames {
            // Nothing arrives on this channel; `try_recv` turns the engine.
            if let Err(error) = self.ends.receiver.try_recv()
                && !error.is_transient()
            {
                return Err(Error::subject(error));
            }
        }
        Ok(())
    }

    #[inline]
    fn receive(&mut self, sequence: u64, tally: &mut Tally) -> Result<(), Error> {
        let message = self.ends.receiver.recv().map_err(Error::subject)?;
        let is_right =
            message.len() == self.job.size && message[..MARK_BYTES] == sequence.to_le_bytes();
        if !is_right {
            tally.fault(&format_args!("another message came in place of {sequence}"));
        }
        Ok(())
    }

    fn finish(&mut self) -> Result<(), Error> {
        self.ends.sender.flush().map_err(Error::subject)
    }
}

const MARK_BYTES: usize = 8;

/// Channels of [`Entry`].
pub struct EntryChannels<C> {
    job: Job,
    ends: Ends<Entry, C>,
    outgoing: Entry,
}

impl<C: Codec<Entry>> EntryChannels<C> {
    /// Opens the ends of both channels on `side`.
    pub fn open(peer: &Peer, job: Job, side: Side) -> Result<Self, Error> {
        let outgoing = Entry {
            sequence: 0,
            data: vec![0; job.size],
        };
        Ok(EntryChannels {
            job,
            ends: Ends::open(peer, side)?,
            outgoing,
        })
    }
}

impl<C: Codec<Entry>> Link for EntryChannels<C>
where
    C::View: ReadEntry,
{
    #[inline]
    fn send(&mut self, sequence: u64) -> Result<(), Error> {
        self.outgoing.sequence = sequence;
        self.job.fill(sequence, 0, &mut self.outgoing.data);
        self.ends
            .sender
            .send(&self.outgoing)
            .map_err(Error::subject)?;
        Ok(())
    }

    #[inline]
    fn receive(&mut self, sequence: u64, tally: &mut Tally) -> Result<(), Error> {
        let message = self.ends.receiver.recv().map_err(Error::subject)?;
        let entry: &C::View = &message;
        if entry.sequence() != sequence {
            tally.fault(&format_args!(
                "message {} came in place of {sequence}",
                entry.sequence()
            ));
        }
        tally.message(sequence, self.job.size, entry.data());
        Ok(())
    }

    fn finish(&mut self) -> Result<(), Error> {
        self.ends.sender.flush().map_err(Error::subject)
    }
}

/// A received entry: archived by rkyv, or decoded by serde.
pub trait ReadEntry {
    /// Returns the number that the entry claims to have.
    fn sequence(&self) -> u64;
    /// Returns the payload.
    fn data(&self) -> &[u8];
}

impl ReadEntry for ArchivedEntry {
    #[inline]
    fn sequence(&self) -> u64 {
        self.sequence.to_native()
    }

    #[inline]
    fn data(&self) -> &[u8] {
        &self.data
    }
}

impl ReadEntry for Entry {
    #[inline]
    fn sequence(&self) -> u64 {
        self.sequence
    }

    #[inline]
    fn data(&self) -> &[u8] {
        &self.data
    }
}
