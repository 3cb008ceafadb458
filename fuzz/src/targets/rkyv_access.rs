//! Archives of a nested type, which are checked and then read as by a channel's receiver. An
//! accepted archive is read to the last leaf, where the sanitizer would notice a pointer that leads
//! out.

use std::mem::MaybeUninit;

use ibex_codec::{Codec, Rkyv, SlotWriter};

use crate::Seed;

/// The names of the facade that the macro needs; the facade is not linked here.
mod ibex {
    pub(super) use ibex_codec::{self as codec, Schema, rkyv};
}

/// A type with everything that a check must follow: an inline struct, an enum, text, boxes, vectors
/// in vectors, and strict alignment behind a pointer.
#[ibex_codec::message(crate = ibex)]
struct Page {
    number: u64,
    title: String,
    rows: Vec<Row>,
    next: Option<Box<Cell>>,
}

#[ibex_codec::message(crate = ibex)]
struct Row {
    key: (u32, bool),
    cells: Vec<Cell>,
    wide: Vec<u128>,
}

#[ibex_codec::message(crate = ibex)]
enum Cell {
    Empty,
    Number(f64),
    Text(String),
    Bytes { offset: u64, data: Vec<u8> },
}

/// Feeds a payload at the place of a record's payload.
pub(crate) fn accepts(bytes: &[u8]) -> bool {
    let payload = Aligned::new(bytes);
    let payload = payload.bytes();
    let Ok(held) = <Rkyv as Codec<Page>>::open(payload) else {
        return false;
    };
    // SAFETY: `open` accepted this payload, at this address, and it is borrowed
    // and unchanged as long as the view lives.
    let page = unsafe { <Rkyv as Codec<Page>>::view(&held, payload) };
    let _ = std::hint::black_box(read(page));
    true
}

/// Returns an empty page, and one with everything in it.
pub(crate) fn seeds() -> Vec<Seed> {
    let empty = Page {
        number: 0,
        title: String::new(),
        rows: Vec::new(),
        next: None,
    };
    let row = Row {
        key: (7, true),
        cells: vec![
            Cell::Empty,
            Cell::Number(2.5),
            Cell::Text("text that is too long to be inline".to_string()),
            Cell::Bytes {
                offset: 9,
                data: vec![1, 2, 3],
            },
        ],
        wide: vec![1, u128::MAX],
    };
    let full = Page {
        number: u64::MAX,
        title: "short".to_string(),
        rows: vec![row],
        next: Some(Box::new(Cell::Text(
            "another long text, behind a box".to_string(),
        ))),
    };
    vec![
        Seed {
            name: "empty",
            bytes: encoded(&empty),
        },
        Seed {
            name: "full",
            bytes: encoded(&full),
        },
    ]
}

/// Adds up every leaf.
fn read(page: &ArchivedPage) -> u64 {
    let rows = page.rows.iter().map(|row| {
        let wide = row.wide.iter().map(|number| number.to_native() as u64);
        u64::from(row.key.0.to_native())
            .wrapping_add(u64::from(row.key.1))
            .wrapping_add(sum(row.cells.iter().map(read_cell)))
            .wrapping_add(sum(wide))
    });
    page.number
        .to_native()
        .wrapping_add(read_bytes(page.title.as_bytes()))
        .wrapping_add(sum(rows))
        .wrapping_add(page.next.as_ref().map_or(0, |cell| read_cell(cell)))
}

fn read_cell(cell: &ArchivedCell) -> u64 {
    match cell {
        ArchivedCell::Empty => 0,
        ArchivedCell::Number(number) => number.to_native().to_bits(),
        ArchivedCell::Text(text) => text.chars().count() as u64,
        ArchivedCell::Bytes { offset, data } => offset.to_native().wrapping_add(read_bytes(data)),
    }
}

fn read_bytes(bytes: &[u8]) -> u64 {
    sum(bytes.iter().copied().map(u64::from))
}

fn sum(numbers: impl Iterator<Item = u64>) -> u64 {
    numbers.fold(0, u64::wrapping_add)
}

fn encoded(page: &Page) -> Vec<u8> {
    let mut memory = [MaybeUninit::uninit(); 4096];
    let mut slot = SlotWriter::new(&mut memory);
    Rkyv::encode(page, &mut slot).expect("a small page fits 4 KiB");
    slot.written().to_vec()
}

/// Bytes that begin at a multiple of 16, as in rkyv's channels, and end where the heap block ends,
/// except for padding.
struct Aligned {
    words: Vec<u128>,
    length: usize,
}

impl Aligned {
    fn new(bytes: &[u8]) -> Self {
        let words = bytes.chunks(16).map(|chunk| {
            let mut word = [0; 16];
            word[..chunk.len()].copy_from_slice(chunk);
            u128::from_ne_bytes(word)
        });
        Self {
            words: words.collect(),
            length: bytes.len(),
        }
    }

    fn bytes(&self) -> &[u8] {
        // SAFETY: `words` has `length` bytes or up to 15 more, all initialized,
        // and is borrowed as long as the slice.
        unsafe { std::slice::from_raw_parts(self.words.as_ptr().cast(), self.length) }
    }
}
