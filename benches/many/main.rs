//! What many sessions cost: connecting them, their memory, and messages over all of them in turn,
//! beside one session and beside as many plain sockets.
//!
//! `cargo bench --bench many` prints all rows; numbers of sessions behind `--` replace 1, 1,000 and
//! 10,000. The client is a process of its own. A row for which a process may
//! not open enough files is left out, with the reason.
#![forbid(unsafe_code)]

use std::{env, error::Error, io::BufRead, process::ExitCode, time::Duration};

use ibex_harness::process;

mod client;
mod sockets;
mod table;

/// The other half of a row: a process that connects, and sends when it is told to.
const CLIENT: &str = "client";

fn main() -> ExitCode {
    let words: Vec<_> = env::args()
        .skip(1)
        .filter(|word| word != "--bench")
        .collect();
    let words: Vec<_> = words.iter().map(String::as_str).collect();
    let done = match words[..] {
        [CLIENT, carrier, sessions, address] => be_client(carrier, sessions, address),
        _ => table::print(&words),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

/// Connects, and sends one round of messages for each line of standard input, which says how many
/// each session sends.
fn be_client(carrier: &str, sessions: &str, address: &str) -> Result<(), Box<dyn Error>> {
    process::stay_with_parent()?;
    let mut client = client::Client::connect(carrier, sessions.parse()?, address)?;
    println!("{CONNECTED}");
    for line in std::io::stdin().lock().lines() {
        client.send_round(line?.parse()?)?;
        println!("{SENT}");
    }
    Ok(())
}

const CONNECTED: &str = "connected";
const SENT: &str = "sent";
/// The length of a message.
const BYTES: usize = 64;
/// A watchdog's time, for what takes seconds.
const PATIENCE: Duration = Duration::from_secs(600);
