//! RDMA reads and atomics: one end reads the other's memory, swaps a number there and adds to it.
//!
//! ```text
//! cargo run -p ibex-verbs --features fake --example read_atomic
//! cargo run -p ibex-verbs --features libibverbs --example read_atomic -- rxe0
//! ```

#[path = "common/mod.rs"]
mod common;

use std::env;
use std::sync::atomic::Ordering;

use common::Outcome;
use common::ends::{End, connected};
use ibex_verbs::{
    AtomicRequest, AtomicResults, ConnectionSettings, Device, Operation, ReadRequest, WorkId,
};

/// Places in the memory of an end.
const GRANTED: usize = 64;
const TARGET: usize = 128;

/// Reads the number that the other end grants.
fn read(one: &mut End, other: &End) -> Outcome<u64> {
    let targets = [one.memory.target(TARGET..TARGET + 8)];
    let id = WorkId::new(Operation::Read, 0, 0);
    let read = ReadRequest::new(id, &targets, other.memory.remote(GRANTED));
    let mut batch = one.pair.send_batch();
    batch.push_read(&read.signaled())?;
    batch.post()?;
    one.wait()?;
    one.pair.retire_sends(1);
    Ok(one.number(TARGET).load(Ordering::Relaxed))
}

/// Does an atomic at the other end; returns the number before it.
fn change(one: &mut End, results: &AtomicResults, request: &AtomicRequest) -> Outcome<u64> {
    let mut result = results.place().ok_or("no place for a result")?;
    let mut batch = one.pair.send_batch();
    batch.push_atomic(request, &mut result)?;
    batch.post()?;
    let completion = one.wait()?;
    one.pair.retire_sends(1);
    Ok(result.take(&completion)?.ok_or("another completion came")?)
}

/// Does all of it on a device.
pub(crate) fn run(device: &Device) -> Outcome {
    let [mut one, other] = connected(device, ConnectionSettings::default())?;
    let results = AtomicResults::new(&one.domain, 1)?;
    let (id, place) = (
        WorkId::new(Operation::Atomic, 0, 0),
        other.memory.remote(GRANTED),
    );

    other.number(GRANTED).store(40, Ordering::Relaxed);
    println!("read {}", expect(40, read(&mut one, &other)?)?);
    let add = AtomicRequest::fetch_and_add(id, place, 2);
    println!(
        "added 2 to {}",
        expect(40, change(&mut one, &results, &add)?)?
    );
    let swap = AtomicRequest::compare_and_swap(id, place, 42, 7);
    println!(
        "swapped {} for 7",
        expect(42, change(&mut one, &results, &swap)?)?
    );
    println!(
        "found {}, not 42",
        expect(7, change(&mut one, &results, &swap)?)?
    );
    println!("read {}", expect(7, read(&mut one, &other)?)?);
    Ok(())
}

fn expect(expected: u64, found: u64) -> Outcome<u64> {
    match found == expected {
        true => Ok(found),
        false => Err(format!("{found} in place of {expected}").into()),
    }
}

fn main() -> Outcome {
    let provider = common::provider()?;
    run(&common::open(&provider, env::args().nth(1).as_deref())?)
}
