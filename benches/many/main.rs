//! What many sessions cost: connecting them, their memory, and messages over all of them in turn,
//! and round trips beside them; and the same of one session and of as many plain sockets.
//!
//! `cargo bench --bench many` prints all rows; `-- --help` names the options. The client is a
//! process of its own. A row for which a process may not open enough files is left out, with the
//! reason.
#![forbid(unsafe_code)]

use std::{env, error::Error, io::BufRead, process::ExitCode, time::Duration};

use clap::Parser;
use ibex_harness::process;

mod client;
mod ends;
mod sockets;
mod streams;
mod table;

/// The other half of a row: a process that connects, and sends when it is told to.
const CLIENT: &str = "client";
/// A process whose threads ask over streams.
const STREAMS: &str = "streams";

fn main() -> ExitCode {
    let words: Vec<_> = env::args()
        .skip(1)
        .filter(|word| word != "--bench")
        .collect();
    let words: Vec<_> = words.iter().map(String::as_str).collect();
    let done = match words[..] {
        [CLIENT, carrier, address] => be_client(carrier, address),
        [STREAMS, carrier, address, threads, reply] => {
            streams::ask(carrier, address, threads, reply)
        }
        _ => print(&Options::parse()),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

/// Measures what many sessions cost, and how fast many blocking threads ask over streams.
#[derive(Parser)]
#[command(name = "many")]
struct Options {
    /// Sessions in each row.
    #[arg(default_values_t = [1, 1_000, 10_000])]
    sessions: Vec<usize>,

    /// Print only the rows of this many threads that ask.
    #[arg(long)]
    threads: Option<usize>,

    /// Passed by Cargo.
    #[arg(long, hide = true)]
    bench: bool,
}

fn print(options: &Options) -> Result<(), Box<dyn Error>> {
    if options.threads.is_none() {
        table::print(&options.sessions)?;
    }
    streams::print(options.threads.unwrap_or(THREADS))
}

/// Connects once, and then does what lines of standard input say.
fn be_client(carrier: &str, address: &str) -> Result<(), Box<dyn Error>> {
    process::stay_with_parent()?;
    let mut client = client::Client::connect(carrier, address)?;
    for line in std::io::stdin().lock().lines() {
        let line = line?;
        match line.split_once(' ').unwrap_or((&line, "")) {
            (CONNECT, sessions) => client.connect_all(sessions.parse()?)?,
            (SEND, messages) => client.send_round(messages.parse()?)?,
            _ => {
                let [median, slow] = client.ping()?;
                println!("{PINGED}{median:.1} {slow:.1}");
                continue;
            }
        }
        println!("{DONE}");
    }
    Ok(())
}

// Orders to a client, and its answers.
const CONNECT: &str = "connect";
const SEND: &str = "send";
const PING: &str = "ping";
const PINGED: &str = "pinged ";
const DONE: &str = "done";
/// What rows go over.
const CARRIERS: [&str; 3] = ["shm", "tcp", SOCKETS];
const SOCKETS: &str = "sockets";
/// Threads that ask at a time.
const THREADS: usize = 50;
/// The length of a message.
const BYTES: usize = 64;
/// Round trips of one measurement.
const PINGS: usize = 20_000;
/// A watchdog's time, for what takes seconds.
const PATIENCE: Duration = Duration::from_secs(600);
