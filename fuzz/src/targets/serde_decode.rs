//! Messages by serde, decoded as by a channel's receiver: owned, and borrowing from the payload,
//! where the sanitizer would notice a slice that leads out.

use std::collections::BTreeMap;
use std::mem::MaybeUninit;
use std::num::NonZeroU32;

use ibex_codec::serde::{Deserialize, Serialize};
use ibex_codec::{Codec, Schema, Serde, SerdeBorrowed, SlotWriter, serde_bytes};

use crate::Seed;

/// The names of the facade that the macros need; the facade is not linked here.
mod ibex {
    pub(super) use ibex_codec::{self as codec, serde};
}

/// A type with everything that decoding must follow: numbers of every width, text and bytes,
/// sequences that claim a length, recursion, and elements without bytes.
#[derive(Serialize, Deserialize, Schema)]
#[serde(crate = "ibex::serde")]
#[ibex(crate = ibex)]
struct Page {
    number: u64,
    title: String,
    #[serde(with = "serde_bytes")]
    data: Vec<u8>,
    rows: Vec<Row>,
    index: BTreeMap<u32, String>,
    nothing: Vec<()>,
    check: NonZeroU32,
}

#[derive(Serialize, Deserialize, Schema)]
#[serde(crate = "ibex::serde")]
#[ibex(crate = ibex)]
struct Row {
    key: (u32, bool, char),
    wide: [i128; 2],
    cells: Vec<Cell>,
}

#[derive(Serialize, Deserialize, Schema)]
#[serde(crate = "ibex::serde")]
#[ibex(crate = ibex)]
enum Cell {
    Empty,
    Number(f64),
    Text(String),
    Nested {
        before: Option<Box<Cell>>,
        cells: Vec<Cell>,
    },
}

/// The page with borrowed fields as far as possible.
#[derive(Serialize, Deserialize, Schema)]
#[serde(crate = "ibex::serde")]
#[ibex(crate = ibex)]
struct BorrowedPage<'a> {
    number: u64,
    title: &'a str,
    #[serde(with = "serde_bytes")]
    data: &'a [u8],
    rows: Vec<Row>,
    index: BTreeMap<u32, &'a str>,
    nothing: Vec<()>,
    check: NonZeroU32,
}

/// Decodes a payload in both ways: the results must agree, and so must their encodings.
pub(crate) fn accepts(bytes: &[u8]) -> bool {
    let owned = <Serde as Codec<Page>>::open(bytes);
    let borrowed = SerdeBorrowed::decode::<BorrowedPage<'static>>(bytes);
    assert_eq!(owned.is_ok(), borrowed.is_ok());
    let (Ok(owned), Ok(borrowed)) = (owned, borrowed) else {
        return false;
    };
    assert_eq!(
        encoded::<Serde, _>(&owned, bytes.len()),
        encoded::<SerdeBorrowed, _>(&borrowed, bytes.len())
    );
    true
}

/// Returns an empty page, and one with everything in it.
pub(crate) fn seeds() -> Vec<Seed> {
    let check = NonZeroU32::MAX;
    let empty = Page {
        number: 0,
        title: String::new(),
        data: Vec::new(),
        rows: Vec::new(),
        index: BTreeMap::new(),
        nothing: Vec::new(),
        check,
    };
    let row = Row {
        key: (7, true, 'x'),
        wide: [-1, i128::MAX],
        cells: vec![
            Cell::Empty,
            Cell::Number(2.5),
            Cell::Text("text".to_string()),
            Cell::Nested {
                before: Some(Box::new(Cell::Empty)),
                cells: vec![Cell::Number(0.5)],
            },
        ],
    };
    let full = Page {
        number: u64::MAX,
        title: "short".to_string(),
        data: vec![1, 2, 3],
        rows: vec![row],
        index: [(1, "one".to_string()), (300, "many".to_string())].into(),
        nothing: vec![(); 5],
        check,
    };
    vec![
        Seed {
            name: "empty",
            bytes: encoded::<Serde, _>(&empty, 0),
        },
        Seed {
            name: "full",
            bytes: encoded::<Serde, _>(&full, 0),
        },
    ]
}

/// Encodes with enough room for a value that was decoded from `length` bytes: a number may have
/// been encoded longer than necessary, never shorter.
fn encoded<C: Codec<T>, T>(value: &T, length: usize) -> Vec<u8> {
    let mut memory = vec![MaybeUninit::uninit(); length + 4096];
    let mut slot = SlotWriter::new(&mut memory);
    C::encode(value, &mut slot).expect("it was decoded from fewer bytes");
    slot.written().to_vec()
}
