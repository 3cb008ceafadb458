//! Archives of a nested type, which are checked and then read as by a channel's receiver. An
//! accepted archive is read to the last leaf, where the sanitizer would notice a pointer that leads
//! out.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    hash::{BuildHasherDefault, DefaultHasher},
    mem::MaybeUninit,
    rc::Rc,
    sync::Arc,
};

use ibex_codec::{Codec, Rkyv, SlotWriter, rkyv::result::ArchivedResult};

use crate::Seed;

/// The names of the facade that the macro needs; the facade is not linked here.
mod ibex {
    pub(super) use ibex_codec::{self as codec, Schema, rkyv};
}

/// A type with everything that a check must follow: an inline struct, an enum, text, boxes, vectors
/// in vectors, strict alignment behind a pointer, shared pointers, hash tables and trees.
#[ibex_codec::message(crate = ibex)]
struct Page {
    number: u64,
    title: String,
    rows: Vec<Row>,
    next: Option<Box<Cell>>,
    shared: Shared,
    tables: Tables,
}

/// Several fields may point to one value. `last` has another type than the others, which a check must
/// not mix up.
#[ibex_codec::message(crate = ibex)]
struct Shared {
    cells: Vec<Rc<Cell>>,
    text: Arc<str>,
    same_text: Option<Arc<str>>,
    numbers: Arc<[u128]>,
    outcome: Result<Rc<Cell>, Arc<str>>,
    queue: VecDeque<Rc<Cell>>,
}

/// A hash table whose order is the same in each run, so that the seeds are.
type HashMap<K, V> = std::collections::HashMap<K, V, BuildHasherDefault<DefaultHasher>>;
type HashSet<K> = std::collections::HashSet<K, BuildHasherDefault<DefaultHasher>>;

/// Tables that a check must walk by their own marks: hash tables by control bytes, trees by nodes.
#[ibex_codec::message(crate = ibex)]
struct Tables {
    by_name: HashMap<String, Vec<u32>>,
    numbers: HashSet<u64>,
    /// Entries of another size and alignment than those above.
    wide: HashMap<u8, u128>,
    sorted: BTreeMap<u32, String>,
    names: BTreeSet<String>,
    nested: HashMap<u32, BTreeMap<u16, HashSet<u8>>>,
    /// A table without entries has no memory of its own.
    none: HashSet<String>,
}

#[ibex_codec::message(crate = ibex)]
struct Row {
    key: (u32, bool),
    cells: Vec<Cell>,
    wide: Vec<u128>,
}

#[ibex_codec::message(crate = ibex)]
#[derive(Clone)]
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

/// Returns an empty page, one with everything in it, and one with large tables.
pub(crate) fn seeds() -> Vec<Seed> {
    let empty = Page {
        number: 0,
        title: String::new(),
        rows: Vec::new(),
        next: None,
        shared: shared(&[]),
        tables: tables(0),
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
        shared: shared(&[Cell::Empty, Cell::Text("shared by several".to_string())]),
        tables: tables(5),
    };
    // More than one group of control bytes, and more than one node.
    let large = Page {
        number: 1,
        title: String::new(),
        rows: Vec::new(),
        next: None,
        shared: shared(&[Cell::Number(0.5)]),
        tables: tables(40),
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
        Seed {
            name: "tables",
            bytes: encoded(&large),
        },
    ]
}

/// Returns pointers to the cells, each of them twice.
fn shared(cells: &[Cell]) -> Shared {
    let cells: Vec<_> = cells.iter().map(|cell| Rc::new(cell.clone())).collect();
    let text: Arc<str> = "a text behind two pointers".into();
    Shared {
        same_text: (!cells.is_empty()).then(|| text.clone()),
        outcome: cells.first().cloned().ok_or_else(|| text.clone()),
        queue: cells.iter().rev().cloned().collect(),
        cells: [cells.clone(), cells].concat(),
        numbers: [3, u128::MAX].into(),
        text,
    }
}

/// Returns tables with about `count` entries.
fn tables(count: u32) -> Tables {
    let name = |number: u32| format!("the name of entry {number}");
    let numbers = 0..count;
    let inner =
        |outer: u32| (0..outer % 3).map(move |key| (key as u16, (0..outer as u8 % 5).collect()));
    Tables {
        by_name: numbers
            .clone()
            .map(|at| (name(at), vec![at; at as usize % 3]))
            .collect(),
        numbers: numbers.clone().map(u64::from).collect(),
        wide: numbers
            .clone()
            .map(|at| (at as u8, u128::from(at)))
            .collect(),
        sorted: numbers.clone().map(|at| (at, name(at))).collect(),
        names: numbers.clone().map(name).collect(),
        nested: numbers
            .take(4)
            .map(|at| (at, inner(at).collect()))
            .collect(),
        none: HashSet::default(),
    }
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
        .wrapping_add(read_shared(&page.shared))
        .wrapping_add(read_tables(&page.tables))
}

fn read_shared(shared: &ArchivedShared) -> u64 {
    let text = |text: &str| read_bytes(text.as_bytes());
    let outcome = match &shared.outcome {
        ArchivedResult::Ok(cell) => read_cell(cell),
        ArchivedResult::Err(error) => text(error),
    };
    sum(shared.cells.iter().map(|cell| read_cell(cell)))
        .wrapping_add(sum(shared.queue.iter().map(|cell| read_cell(cell))))
        .wrapping_add(text(&shared.text))
        .wrapping_add(shared.same_text.as_ref().map_or(0, |same| text(same)))
        .wrapping_add(sum(shared.numbers.iter().map(|one| one.to_native() as u64)))
        .wrapping_add(outcome)
}

/// Reads all entries, and looks up each key, which follows the marks of the table.
fn read_tables(tables: &ArchivedTables) -> u64 {
    let by_name = tables.by_name.iter().map(|(name, numbers)| {
        let found = tables
            .by_name
            .get(name.as_str())
            .map_or(0, |found| found.len() as u64);
        let numbers = numbers.iter().map(|number| u64::from(number.to_native()));
        read_bytes(name.as_bytes())
            .wrapping_add(found)
            .wrapping_add(sum(numbers))
    });
    let wide = tables.wide.iter().map(|(key, value)| {
        let found = tables
            .wide
            .get(key)
            .map_or(0, |found| found.to_native() as u64);
        (value.to_native() as u64).wrapping_add(found)
    });
    let numbers = tables.numbers.iter().map(|number| {
        number
            .to_native()
            .wrapping_add(u64::from(tables.numbers.contains(number)))
    });
    let sorted = tables.sorted.iter().map(|(key, name)| {
        let found = tables.sorted.get(key).map_or(0, |found| found.len() as u64);
        read_bytes(name.as_bytes()).wrapping_add(found)
    });
    let nested = tables.nested.iter().flat_map(|(_, inner)| inner.iter());
    let nested = nested.map(|(key, set)| {
        u64::from(key.to_native()).wrapping_add(read_bytes_of(set.iter().copied()))
    });
    sum(by_name)
        .wrapping_add(sum(wide))
        .wrapping_add(sum(numbers))
        .wrapping_add(sum(sorted))
        .wrapping_add(sum(nested))
        .wrapping_add(sum(tables
            .names
            .iter()
            .map(|name| read_bytes(name.as_bytes()))))
        .wrapping_add(u64::from(tables.none.contains("a name")))
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
    read_bytes_of(bytes.iter().copied())
}

fn read_bytes_of(bytes: impl Iterator<Item = u8>) -> u64 {
    sum(bytes.map(u64::from))
}

fn sum(numbers: impl Iterator<Item = u64>) -> u64 {
    numbers.fold(0, u64::wrapping_add)
}

fn encoded(page: &Page) -> Vec<u8> {
    let mut memory = [MaybeUninit::uninit(); 32 << 10];
    let mut slot = SlotWriter::new(&mut memory);
    Rkyv::encode(page, &mut slot).expect("a small page fits 32 KiB");
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
