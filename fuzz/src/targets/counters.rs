//! The counters that a peer's receiver reports for a channel, and the sender's reaction.
//!
//! The same words arrive in two ways: in frames, where the engine combines them before the producer
//! learns of them, and in a control block, from which the producer takes them unchanged. A sender
//! of either kind publishes all the time, as far as it is told that there is room.
#![forbid(unsafe_code)]

use std::cell::Cell;

use ibex_base::sync::Ordering;
use ibex_protocol::format::counters::Counters;
use ibex_protocol::format::frame::{EXTENSION_BYTES, Extension};
use ibex_protocol::format::record::{Layout, RecordKind, first_position, record_size};
use ibex_ring::{Producer, Released, RingMemory};

use crate::Seed;
use crate::reader::Reader;

/// Feeds consecutive changes as they stand in frames. Accepts them if both senders believe them and
/// they move something.
pub(crate) fn accepts(bytes: &[u8]) -> bool {
    let mut reader = Reader::new(bytes);
    let (mut over_frames, mut over_block) = (sender(), sender());
    let mut joined = Counters {
        released_position: over_frames.position(),
        ..Counters::default()
    };
    let mut moved = false;
    while let Some(extension) = reader.array::<EXTENSION_BYTES>() {
        let Some((_, changes)) = Extension::parse(&extension).counters else {
            return false;
        };
        let before = joined;
        let published = over_frames.sequence();
        match joined.join(&changes, published, over_frames.position()) {
            Ok(true) => moved = true,
            Ok(false) => assert_eq!(joined, before),
            Err(_) => {
                assert_eq!(
                    joined, before,
                    "news that are refused have changed something"
                );
                return false;
            }
        }
        assert!(joined.received >= before.received && joined.received <= published);
        assert!(joined.acknowledged >= before.acknowledged && joined.acknowledged <= published);
        let joined_release = released(&joined);
        assert_eq!(
            over_frames.refresh(joined_release),
            Ok(()),
            "joined, and yet impossible"
        );
        publish(&mut over_frames);

        if over_block.refresh(released(&changes)).is_err() {
            return false;
        }
        publish(&mut over_block);
    }
    reader.is_empty() && moved
}

/// Returns changes of a receiver that keeps up, and of one that lags and then ends acknowledgement.
pub(crate) fn seeds() -> Vec<Seed> {
    let counters = |received, released: u64, acknowledged| Counters {
        received,
        released,
        released_position: FIRST_POSITION + released * RECORD_BYTES,
        acknowledged,
        acknowledgement_ended: false,
    };
    let keeps_up = (1..20).map(|message| counters(message, message, message));
    let mut lags = vec![counters(1, 0, 0), counters(2, 0, 0), counters(2, 1, 1)];
    lags.push(Counters {
        acknowledgement_ended: true,
        ..counters(3, 2, 1)
    });
    vec![
        Seed {
            name: "keeps_up",
            bytes: encoded(keeps_up),
        },
        Seed {
            name: "lags",
            bytes: encoded(lags),
        },
    ]
}

/// Creates a sender that has published one message.
fn sender() -> Producer<Words> {
    let mut producer = Producer::new(Words::new(), Layout::packed(ALIGNMENT), WINDOW_MESSAGES);
    publish(&mut producer);
    producer
}

/// Publishes a message if the receiver left room for it.
fn publish(producer: &mut Producer<Words>) {
    assert!(producer.room() < CAPACITY);
    if producer.fits(MESSAGE_BYTES) {
        producer.publish(RecordKind::Data, MESSAGE_BYTES);
    }
    // Unreleased messages never exceed ring and window.
    let released = producer.released();
    assert!(producer.position() - released.position <= CAPACITY as u64);
    assert!(producer.sequence() - released.messages <= WINDOW_MESSAGES);
}

fn released(counters: &Counters) -> Released {
    Released {
        messages: counters.released,
        position: counters.released_position,
    }
}

fn encoded(changes: impl IntoIterator<Item = Counters>) -> Vec<u8> {
    let extension = |counters| Extension {
        counters: Some((1, counters)),
        credit: None,
        answer: None,
        waited: false,
        wants: false,
    };
    changes
        .into_iter()
        .flat_map(|counters| extension(counters).to_bytes())
        .collect()
}

/// A ring without a reader, in which the producer stores its headers.
#[derive(Debug)]
struct Words(Vec<Cell<u64>>);

impl Words {
    fn new() -> Self {
        Self(vec![Cell::new(0); CAPACITY / 8])
    }

    /// Returns the word at an offset in either of the two windows.
    fn word(&self, offset: usize) -> &Cell<u64> {
        &self.0[offset % CAPACITY / 8]
    }
}

impl RingMemory for Words {
    fn capacity(&self) -> usize {
        CAPACITY
    }

    fn load(&self, offset: usize, _: Ordering) -> u64 {
        self.word(offset).get()
    }

    fn store(&self, offset: usize, value: u64, _: Ordering) {
        self.word(offset).set(value);
    }
}

const CAPACITY: usize = 512;
const ALIGNMENT: usize = 16;
const WINDOW_MESSAGES: u64 = 12;
const MESSAGE_BYTES: usize = 24;
const RECORD_BYTES: u64 = record_size(MESSAGE_BYTES, ALIGNMENT) as u64;
const FIRST_POSITION: u64 = first_position(ALIGNMENT);
