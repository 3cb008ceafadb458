//! The announcement of a stream to a listener: its number, by which its two channels are named.

use std::{
    cell::RefCell,
    sync::atomic::{AtomicU64, Ordering},
};

use ibex_core::{
    OpenError, Peer, Receiver,
    codec::{Codec, EncodeError, Invalid, MIN_ALIGNMENT, Raw, SchemaInfo, SlotWriter},
    extend,
};

use super::{
    ReadHalf, Stream, WriteHalf,
    label::STREAM,
    side::{MOST_PIECE_BYTES, Side},
};

/// The codec of stream numbers. It has a schema of its own, so that a channel of messages and a
/// listener of the same name refuse each other.
#[derive(Debug)]
pub(super) enum Announcement {}

/// A stream that a connecting end announces. Encoding opens its ends, so they are opened once there
/// is room for the announcement, and no stream is open without being announced.
#[derive(Debug)]
pub(super) struct Announced {
    ends: RefCell<StreamEnds>,
    opened: RefCell<Option<Result<Stream, OpenError>>>,
}

impl Announced {
    pub(super) fn new(ends: StreamEnds) -> Self {
        Self {
            ends: RefCell::new(ends),
            opened: RefCell::new(None),
        }
    }

    /// Takes the stream, or the reason for which its ends could not be opened, if it was encoded.
    pub(super) fn take(&self) -> Option<Result<Stream, OpenError>> {
        self.opened.take()
    }
}

impl Codec<Announced> for Announcement {
    type View = u64;
    type Held = u64;

    fn alignment() -> usize {
        MIN_ALIGNMENT
    }

    fn schema() -> SchemaInfo {
        SchemaInfo::of::<u64>("byte stream", &[])
    }

    fn size(_: &Announced) -> Option<usize> {
        Some(size_of::<u64>())
    }

    fn encode(announced: &Announced, slot: &mut SlotWriter<'_>) -> Result<(), EncodeError> {
        let mut ends = announced.ends.borrow_mut();
        let mut opened = announced.opened.borrow_mut();
        match opened.get_or_insert_with(|| ends.open()) {
            Ok(_) => Ok(slot.write(&ends.number.to_le_bytes())?),
            Err(error) => Err(EncodeError::Failed(error.to_string().into())),
        }
    }

    fn open(payload: &[u8]) -> Result<u64, Invalid> {
        let bytes = payload.try_into().map_err(Invalid::new)?;
        Ok(u64::from_le_bytes(bytes))
    }

    unsafe fn view<'a>(number: &'a u64, _: &'a [u8]) -> &'a u64 {
        number
    }
}

/// Returns a number that no other stream of this process has, so that no name of a stream is used
/// again while the session lives.
pub(super) fn next_number() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// The ends of a stream, as far as they are open.
#[derive(Debug)]
pub(super) struct StreamEnds {
    peer: Peer,
    listener: String,
    number: u64,
    side: Side,
    receiver: Option<Receiver<[u8], Raw>>,
}

impl StreamEnds {
    pub(super) fn new(peer: Peer, listener: &str, number: u64, side: Side) -> Self {
        Self {
            peer,
            listener: listener.to_owned(),
            number,
            side,
            receiver: None,
        }
    }

    /// Returns the peer at the other end.
    pub(super) fn peer(&self) -> &Peer {
        &self.peer
    }

    /// Opens the ends that are not open yet. May be called again after an error.
    pub(super) fn open(&mut self) -> Result<Stream, OpenError> {
        // Both nodes may have a listener of this name, and number their streams alike: names say
        // which way the bytes go, as the connecting side sees it.
        let (inward, outward) = match self.side {
            Side::Connecting => ("back", "there"),
            Side::Listening => ("there", "back"),
        };
        let receiver = match self.receiver.take() {
            Some(receiver) => receiver,
            None => self.channel(inward).receiver()?,
        };
        let sender = match self.channel(outward).sender() {
            Ok(sender) => sender,
            Err(error) => {
                self.receiver = Some(receiver);
                return Err(error);
            }
        };
        let id = (self.side, self.number);
        Ok(Stream {
            read: ReadHalf::new(receiver, self.peer.clone(), id),
            write: WriteHalf::new(sender, self.peer.clone(), id),
        })
    }

    fn channel(&self, way: &str) -> ibex_core::ChannelBuilder<Raw> {
        let name = format!("{}/{}/{way}", self.listener, self.number);
        let channel = self.peer.channel(&name).codec::<Raw>();
        let channel = channel.max_message_bytes(MOST_PIECE_BYTES as u64);
        extend::with_label(channel, &STREAM)
    }
}

/// Returns whether a listener can have this name, so that its streams' channels have valid names.
pub(super) fn is_name(listener: &str) -> bool {
    (1..=MOST_NAME_BYTES).contains(&listener.len())
}

/// The longest name of a listener. A number of up to 20 digits and the direction follow it.
pub(super) const MOST_NAME_BYTES: usize = 255 - "/18446744073709551615/there".len();
