//! The cost of a KiB of bytes by serde: as a sequence of numbers, as bytes, and borrowed.
//!
//! `cargo bench -p ibex-codec --bench serde` prints the nanoseconds to encode and decode a
//! message: the median of 101 runs, in turns, with the quartiles.

use std::hint::black_box;
use std::mem::MaybeUninit;
use std::time::Instant;

use ibex_codec::{Codec, Schema, Serde, SerdeBorrowed, SlotWriter};
use serde::{Deserialize, Serialize};

/// The part of the facade that the derives need, which is not linked here.
mod ibex {
    pub(super) use ibex_codec as codec;
}

#[derive(Serialize, Deserialize, Schema)]
#[ibex(crate = ibex)]
struct Numbers {
    offset: u64,
    data: Vec<u8>,
}

#[derive(Serialize, Deserialize, Schema)]
#[ibex(crate = ibex)]
struct Bytes {
    offset: u64,
    #[serde(with = "serde_bytes")]
    data: Vec<u8>,
}

#[derive(Serialize, Deserialize, Schema)]
#[ibex(crate = ibex)]
struct Borrowed<'a> {
    offset: u64,
    #[serde(with = "serde_bytes")]
    data: &'a [u8],
}

/// The work on one message.
type Work<'a> = Box<dyn Fn() + 'a>;

const SIZE: usize = 1024;
const RUNS: usize = 101;
const MESSAGES_PER_RUN: u32 = 10_000;

fn main() {
    let (offset, data) = (1, vec![0xa5_u8; SIZE]);
    let numbers = Numbers { offset, data };
    let bytes = Bytes {
        offset,
        data: numbers.data.clone(),
    };
    let borrowed = Borrowed {
        offset,
        data: &numbers.data,
    };
    let payload = encoded::<Serde, _>(&bytes);
    let mut subjects: Vec<(&str, Work<'_>, Vec<f64>)> = vec![
        ("Vec<u8>, encode", encode::<Serde, _>(&numbers), vec![]),
        (
            "Vec<u8>, decode",
            decode::<Serde, Numbers>(&payload),
            vec![],
        ),
        ("bytes, encode", encode::<Serde, _>(&bytes), vec![]),
        ("bytes, decode", decode::<Serde, Bytes>(&payload), vec![]),
        (
            "borrowed, encode",
            encode::<SerdeBorrowed, _>(&borrowed),
            vec![],
        ),
        (
            "borrowed, check and decode",
            Box::new(|| {
                let payload = black_box(&payload);
                let checked = <SerdeBorrowed as Codec<Borrowed<'static>>>::open(payload);
                checked.expect("valid");
                let value = SerdeBorrowed::decode::<Borrowed<'static>>(payload);
                black_box(value.expect("valid"));
            }),
            vec![],
        ),
    ];
    for _ in 0..RUNS {
        for (_, work, times) in &mut subjects {
            let start = Instant::now();
            for _ in 0..MESSAGES_PER_RUN {
                work();
            }
            times.push(start.elapsed().as_nanos() as f64 / f64::from(MESSAGES_PER_RUN));
        }
    }
    println!("{SIZE} bytes, ns per message: median [quartiles]");
    for (name, _, mut times) in subjects {
        times.sort_by(f64::total_cmp);
        let [low, median, high] = [1, 2, 3].map(|quarter| times[RUNS * quarter / 4]);
        println!("{name:<27} {median:7.1} [{low:.1} .. {high:.1}]");
    }
}

fn encode<'a, C: Codec<T>, T>(value: &'a T) -> Work<'a> {
    Box::new(move || {
        let mut memory = [MaybeUninit::uninit(); 2 * SIZE];
        let mut slot = SlotWriter::new(&mut memory);
        C::encode(black_box(value), &mut slot).expect("room for one");
        black_box(slot.written());
    })
}

fn decode<'a, C: Codec<T>, T>(payload: &'a [u8]) -> Work<'a> {
    Box::new(move || {
        black_box(C::open(black_box(payload)).expect("valid"));
    })
}

fn encoded<C: Codec<T>, T>(value: &T) -> Vec<u8> {
    let mut memory = [MaybeUninit::uninit(); 2 * SIZE];
    let mut slot = SlotWriter::new(&mut memory);
    C::encode(value, &mut slot).expect("room for one");
    slot.written().to_vec()
}
