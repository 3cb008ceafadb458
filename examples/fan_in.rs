//! A collector for many workers: it receives each result as it arrives, from any worker, and learns
//! which workers join and leave. Workers come whenever they like.
//!
//! `cargo run --release --example fan_in`

use std::{collections::BTreeMap, thread};

use ibex::{Address, FanInEvent, Node};

#[ibex::message]
struct Found {
    prime: u64,
}

type Error = Box<dyn std::error::Error + Send + Sync>;

/// Looks for primes in its part of the numbers, and sends those that it finds.
fn work(collector: Address, part: u64) -> Result<(), Error> {
    let node = Node::client()?;
    let mut found = node.connect(collector)?.sender::<Found>("found")?;
    let each = LIMIT / WORKERS;
    for number in part * each..(part + 1) * each {
        let is_prime = number > 1
            && (2..)
                .take_while(|d| d * d <= number)
                .all(|d| number % d != 0);
        if is_prime {
            found.send(&Found { prime: number })?;
        }
    }
    found.close()?;
    Ok(())
}

fn main() -> Result<(), Error> {
    let node = Node::listen("127.0.0.1:0")?;
    let address = node.local_addr().ok_or("it listens")?;
    let mut found = node.fan_in::<Found>("found")?;
    let workers: Vec<_> = (0..WORKERS)
        .map(|part| thread::spawn(move || work(address, part)))
        .collect();

    let mut primes = BTreeMap::new();
    let mut done = 0;
    while done < WORKERS {
        let Some(event) = found.next() else { break };
        match event {
            FanInEvent::Joined(peer) => _ = primes.insert(peer, 0u64),
            FanInEvent::Message(peer, _found) => *primes.entry(peer).or_default() += 1,
            FanInEvent::Ended(peer) => {
                done += 1;
                println!("{peer} found {} primes", primes[&peer]);
            }
            FanInEvent::Lost(peer, error) => {
                done += 1;
                println!(
                    "{peer} is lost after {} primes: {error}",
                    primes.get(&peer).unwrap_or(&0)
                );
            }
        }
    }
    for worker in workers {
        worker.join().map_err(|_| "a worker panicked")??;
    }
    let total: u64 = primes.values().sum();
    assert_eq!(total, 9592);
    println!("{total} primes below {LIMIT}");
    Ok(())
}

const LIMIT: u64 = 100_000;
const WORKERS: u64 = 4;
