//! A ring that a hostile peer wrote, read like a receiver: record after record, every payload byte.

use std::cell::RefCell;
use std::ptr::NonNull;

use ibex_protocol::format::record::{
    HEADER_BYTES, Layout, RecordHeader, RecordKind, first_position, record_size,
};
use ibex_ring::memory::MirroredMapping;
use ibex_ring::{Consumer, Mapped};

use crate::Seed;
use crate::reader::Reader;

/// Feeds a byte that selects the channel's alignment, then the ring from its beginning.
///
/// Accepts records that end as a producer's do, with a word of 0, if the input contains all of them
/// and that word.
pub(crate) fn accepts(bytes: &[u8]) -> bool {
    let mut reader = Reader::new(bytes);
    let Some(alignment) = reader.byte().map(alignment) else {
        return false;
    };
    RING.with_borrow(|ring| read(ring, reader.rest(), alignment))
}

/// Returns records of several lengths, including an announcement, and a ring that is filled to its
/// last record.
pub(crate) fn seeds() -> Vec<Seed> {
    let records = [
        (RecordKind::Data, 64),
        (RecordKind::Large, 8),
        (RecordKind::Data, 300),
    ];
    let full = [(RecordKind::Data, 24); 127];
    vec![
        Seed {
            name: "aligned_to_8",
            bytes: ring(0, &records),
        },
        Seed {
            name: "aligned_to_64",
            bytes: ring(3, &records),
        },
        Seed {
            name: "full",
            bytes: ring(0, &full),
        },
    ]
}

/// Reads all records, in one walk and one by one: both must find the same.
fn read(ring: &MirroredMapping, content: &[u8], alignment: usize) -> bool {
    fill(ring, content);
    // SAFETY:
    // 1. `ring` is mapped twice, back to back, for as long as it lives; the
    //    consumer ends before it, in this function.
    // 2. and 3. No producer is made.
    let memory = unsafe { Mapped::new(ring.base(), ring.capacity()) };
    let mut consumer = Consumer::new(memory, Layout::packed(alignment));
    let walk = consumer.walk(ring.capacity());
    let (mut bytes, mut records) = (0, 0);
    // A record is at least 8 bytes long and its sequence counts up, so a record that is reached
    // again, a lap later, is not valid any more.
    let end = loop {
        match consumer.peek() {
            Ok(Some(record)) => {
                bytes += record.size;
                records += 1;
                // SAFETY: the consumer checked that `length` bytes from here lie in the two
                // windows, and no other thread writes to them.
                let payload = unsafe {
                    std::slice::from_raw_parts(consumer.payload_ptr(&record), record.length)
                };
                std::hint::black_box(payload.iter().fold(0_u8, |sum, byte| sum ^ byte));
                consumer.advance(&record);
            }
            Ok(None) => break Ok(()),
            Err(malformed) => break Err(malformed),
        }
    };
    if let Ok(run) = walk {
        assert!(run.bytes <= ring.capacity() && run.records <= records);
        assert!(run.bytes <= bytes);
    }
    let whole = first_position(alignment) as usize + bytes + HEADER_BYTES;
    end.is_ok() && records > 0 && whole <= content.len()
}

/// Makes `content` the beginning of the ring, and sets the rest to 0.
fn fill(ring: &MirroredMapping, content: &[u8]) {
    let length = content.len().min(ring.capacity());
    let base: NonNull<u8> = ring.base();
    // SAFETY: both ranges lie in the first window of a writable mapping that
    // this thread alone uses, and nothing refers to them; `content` lies
    // elsewhere.
    unsafe {
        base.copy_from_nonoverlapping(NonNull::from(content).cast(), length);
        base.add(length).write_bytes(0, ring.capacity() - length);
    }
}

/// Returns an input that is a ring of these records, with a recognizable payload.
fn ring(selector: u8, records: &[(RecordKind, u32)]) -> Vec<u8> {
    let alignment = alignment(selector);
    let mut ring = vec![0; first_position(alignment) as usize];
    for (sequence_low, &(kind, length)) in (1..).zip(records) {
        let end = ring.len() + record_size(length as usize, alignment);
        let header = RecordHeader {
            kind,
            length,
            sequence_low,
        };
        ring.extend_from_slice(&header.to_word().to_le_bytes());
        ring.extend((0..length).map(|at| at as u8));
        ring.resize(end, 0);
    }
    // The word of 0 stands at the place of the next record.
    ring.resize(ring.len() + HEADER_BYTES, 0);
    [&[selector], ring.as_slice()].concat()
}

/// Returns one of the four alignments that a channel may have.
fn alignment(selector: u8) -> usize {
    8 << (selector % 4)
}

thread_local! {
    /// The ring for all inputs, made once, since mapping costs more than reading.
    static RING: RefCell<MirroredMapping> = RefCell::new(
        MirroredMapping::create_private(CAPACITY).expect("memory for one small ring"),
    );
}

const CAPACITY: usize = 4096;
