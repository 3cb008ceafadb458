//! A primary replicates entries to a replica in another process.
//!
//! Run it: `cargo run --release --example quickstart`. It starts the replica itself; to
//! see both ends, run `quickstart replica 127.0.0.1:7070` in one terminal and
//! `quickstart primary 127.0.0.1:7070` in another, in any order.

use std::{
    env,
    error::Error,
    fs::{self, File},
    io::{BufRead, BufReader, Write},
    path::Path,
    process::{self, Child, Command, ExitCode, Stdio},
};

use ibex::Node;

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

// [message]
#[ibex::message] // rkyv derives + schema fingerprint
struct Entry {
    offset: u64,
    data: Vec<u8>,
}
// [message]

// [primary]
fn primary(replica: &str, entries: impl Iterator<Item = Entry>) -> Result<u64> {
    let node = Node::client()?;
    let mut log = node.connect(replica)?.sender::<Entry>("wal")?; // waits for a replica that starts later
    let mut last = 0;
    for entry in entries {
        last = log.send(&entry)?;
    }
    log.wait_acked(last)?; // the replica's application said so
    log.close()?;
    Ok(last)
}
// [primary]

// [replica]
fn replica(addr: &str, mut file: File) -> Result<()> {
    let node = Node::listen(addr)?;
    if let Some(addr) = node.local_addr() {
        println!("listening on {addr}"); // port 0 is any that is free
    }
    let mut log = node.accept()?.receiver::<Entry>("wal")?;
    while let Some(entry) = log.next()? {
        // None: orderly end; Err: who, what, counts
        file.write_all(&entry.data)?; // read in place, nothing copied
        file.sync_data()?;
        entry.ack(); // a panic before this line is no ack
    }
    Ok(())
}
// [replica]

fn main() -> ExitCode {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let path = env::temp_dir().join(format!("ibex-quickstart-{}.log", process::id()));
    let result = match arguments[..] {
        [] => both(&path),
        ["primary", addr] => run_primary(addr),
        ["replica", addr] => {
            println!("writing to {}", path.display());
            run_replica(addr, &path)
        }
        ["replica", addr, path] => run_replica(addr, path.as_ref()),
        _ => {
            eprintln!("usage: quickstart [primary HOST:PORT | replica HOST:PORT [FILE]]");
            return ExitCode::from(2);
        }
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("quickstart: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Starts the replica in a process of its own, and runs the primary.
fn both(path: &Path) -> Result<()> {
    let mut other = Command::new(env::current_exe()?)
        .args(["replica", "127.0.0.1:0"])
        .arg(path)
        .stdout(Stdio::piped())
        .spawn()?;
    let result = announced(&mut other).and_then(|addr| run_primary(&addr));
    if result.is_err() {
        other.kill()?;
    }
    let status = other.wait()?;
    if result.is_ok() {
        let bytes = fs::metadata(path)?.len();
        println!("the replica, process {}, wrote {bytes} bytes", other.id());
    }
    // A replica that could not even create its file has reported that itself.
    let _ = fs::remove_file(path);
    if result.is_ok() && !status.success() {
        return Err(format!("the replica failed, {status}").into());
    }
    result
}

fn run_primary(addr: &str) -> Result<()> {
    let entries = (0..100).map(|offset| Entry {
        offset,
        data: vec![b'.'; 100],
    });
    let acknowledged = primary(addr, entries)?;
    println!("{acknowledged} entries sent, written and acknowledged");
    Ok(())
}

fn run_replica(addr: &str, path: &Path) -> Result<()> {
    let file = File::create(path).map_err(|error| format!("{}: {error}", path.display()))?;
    replica(addr, file)
}

/// Reads the address that the other process prints once it listens.
fn announced(replica: &mut Child) -> Result<String> {
    let mut line = String::new();
    if let Some(output) = replica.stdout.take() {
        BufReader::new(output).read_line(&mut line)?;
    }
    match line.trim_end().strip_prefix("listening on ") {
        Some(addr) => Ok(addr.to_owned()),
        None => Err("the replica ended before it listened; its own message is above".into()),
    }
}
