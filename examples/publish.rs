//! Prices by topic: one node publishes them, and others subscribe when they like. A subscriber that
//! comes late begins with the next price, and one that leaves is nobody's loss.
//!
//! `cargo run --release --example publish`

use std::{thread, time::Duration};

use ibex::{Address, Node, group::WhenFull};

#[ibex::message]
struct Price {
    number: u64,
    cents: u64,
}

type Error = Box<dyn std::error::Error + Send + Sync>;

/// Takes up to `most` prices, and returns the numbers of the first and the last.
fn watch(address: Address, most: usize) -> Result<(u64, u64), Error> {
    let node = Node::client()?;
    let mut prices = node.connect(address)?.receiver::<Price>("prices")?;
    let (mut first, mut last) = (None, 0);
    for price in prices.iter().take(most) {
        let price = price?;
        last = price.number.to_native();
        first.get_or_insert(last);
    }
    Ok((first.unwrap_or(last), last))
}

fn main() -> Result<(), Error> {
    let node = Node::listen("127.0.0.1:0")?;
    let address = node.local_addr().ok_or("it listens")?;
    // By default a subscriber that is full for 100 ms is dropped. These may pause for longer.
    let patience = WhenFull::DropAfter(Duration::from_secs(10));
    let mut prices = node.publisher::<Price>("prices")?.when_full(patience);
    let mut number = 0;
    let mut publish = || {
        number += 1;
        let cents = 100 + number % 7;
        // It returns at once if nobody subscribes.
        prices.send(&Price { number, cents })?;
        while let Some(lost) = prices.next_lost() {
            println!("{} has left at price {number}", lost.peer);
        }
        Ok::<_, Error>(())
    };

    // One subscriber takes a few prices and leaves. Another one comes after it.
    for most in [FEW, MANY] {
        let watching = thread::spawn(move || watch(address, most));
        while !watching.is_finished() {
            publish()?;
        }
        let (first, last) = watching.join().map_err(|_| "a subscriber panicked")??;
        println!("a subscriber got prices {first} to {last}");
    }
    println!("{number} prices were published");
    Ok(())
}

const FEW: usize = 100;
const MANY: usize = 10_000;
