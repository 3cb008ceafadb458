//! Calls: a service that looks keys up, and clients that have many requests under way, from a
//! thread and from tasks.
//!
//! `cargo run --release --example calls`

use std::{collections::HashMap, thread, time::Duration};

use futures_util::future::join_all;
use ibex::prelude::*;
use ibex::{
    Address, Node, SendError,
    calls::{CallErrorKind, CallOptions, Caller, Request},
};

#[ibex::message]
struct Query {
    key: String,
    /// The number of consecutive values that are asked for, beginning at the key.
    count: u64,
}

type Error = Box<dyn std::error::Error + Send + Sync>;

/// Answers look-ups of all clients until the node is closed.
fn serve(node: &Node) -> Result<(), Error> {
    let store: HashMap<String, u64> = (0..1000).map(|n| (format!("key {n}"), n)).collect();
    let mut lookups = node.service::<Query, u64>("lookup")?;
    while let Some(request) = lookups.next()? {
        let Some(&value) = store.get(request.key.as_str()) else {
            request.fail(NOT_FOUND, "there is no such key");
            continue;
        };
        if !request.is_stream() {
            request.reply(&value)?;
        } else if let Err(error) = send_range(request, value) {
            println!("a stream ended early: {error}");
        }
    }
    Ok(())
}

/// Sends the values one after the other, no faster than the client takes them.
fn send_range(mut request: Request<Query, u64>, from: u64) -> Result<(), SendError> {
    let count: u64 = request.count.into();
    for value in from..from + count {
        request.send(&value)?;
    }
    request.end();
    Ok(())
}

fn query(number: u64, count: u64) -> Query {
    let key = format!("key {number}");
    Query { key, count }
}

/// Makes one call after the other. Each has a deadline, which travels with it to the service.
fn ask_from_a_thread(lookup: &Caller<Query, u64>) -> Result<u64, Error> {
    let soon = CallOptions::new().timeout(Duration::from_secs(10));
    let lookup = lookup.with(soon);
    let mut found = 0;
    for number in 0..CALLS {
        match lookup.call(&query(number % 1500, 1)) {
            Ok(value) => {
                assert_eq!(value.to_native(), number % 1500); // read where it arrived
                found += 1;
            }
            Err(error) if error.kind() == CallErrorKind::Failed => {
                assert!(error.failure().is_some_and(|(code, _)| code == NOT_FOUND));
            }
            Err(error) => return Err(error.into()),
        }
    }
    Ok(found)
}

/// Keeps many calls under way: a task for each call, or one task that waits for all of them.
async fn ask_from_tasks(lookup: Caller<Query, u64>) -> Result<u64, Error> {
    let mut found = 0;
    for batch in 0..CALLS / UNDER_WAY {
        let numbers = batch * UNDER_WAY..(batch + 1) * UNDER_WAY;
        let queries: Vec<_> = numbers.map(|number| query(number % 1500, 1)).collect();
        let calls = queries.iter().map(|query| lookup.call_async(query));
        for reply in join_all(calls).await {
            match reply {
                Ok(_) => found += 1,
                Err(error) if error.failure().is_some() => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
    // One request gets a stream of replies.
    let query = query(0, 10_000);
    let mut values = lookup.stream_async(&query).await?;
    let mut sum = 0;
    while let Some(value) = values.next_async().await? {
        sum += value.to_native();
    }
    assert_eq!(sum, (0..10_000u64).sum::<u64>());
    Ok(found)
}

fn ask(server: Address) -> Result<(), Error> {
    let node = Node::client()?;
    let lookup = node.connect(server)?.caller::<Query, u64>("lookup")?;
    let of_threads = ask_from_a_thread(&lookup)?;
    let runtime = tokio::runtime::Builder::new_current_thread().build()?;
    let of_tasks = runtime.block_on(ask_from_tasks(lookup))?;
    println!("{CALLS} calls of a thread found {of_threads} keys, as many of tasks {of_tasks}");
    Ok(())
}

fn main() -> Result<(), Error> {
    let node = Node::listen("127.0.0.1:0")?;
    let address = node.local_addr().ok_or("it listens")?;
    thread::scope(|scope| {
        let serving = scope.spawn(|| serve(&node));
        let asked = ask(address);
        let closing = node.close(Duration::from_secs(10));
        println!("{closing}");
        serving.join().map_err(|_| "the server panicked")??;
        asked
    })
}

const CALLS: u64 = 15_000;
const UNDER_WAY: u64 = 60;
const NOT_FOUND: u32 = 404;
