//! A primary replicates entries to a replica in another process.
//!
//! Run it: `cargo run --release --example quickstart`. It starts the replica itself; to
//! see both ends, run `quickstart replica 127.0.0.1:7070` in one terminal and
//! `quickstart primary 127.0.0.1:7070` in another, in any order.

use std::{env, error::Error, fs, io::Write, process::Command};

use ibex::Node;

// [message]
#[ibex::message] // rkyv derives + schema fingerprint
struct Entry {
    offset: u64,
    data: Vec<u8>,
}
// [message]

fn primary(
    replica: &str,
    entries: impl Iterator<Item = Entry>,
) -> Result<u64, Box<dyn Error + Send + Sync>> {
    // [primary]
    let node = Node::client()?;
    let mut log = node.connect(replica)?.sender::<Entry>("wal")?; // waits for a replica that starts later
    let mut last = 0;
    for entry in entries {
        last = log.send(&entry)?;
    }
    log.wait_acked(last)?; // the replica's application said so
    log.close()?;
    // [primary]
    Ok(last)
}

fn replica(addr: &str, mut file: fs::File) -> Result<(), Box<dyn Error + Send + Sync>> {
    // [replica]
    let node = Node::listen(addr)?;
    let mut log = node.accept()?.receiver::<Entry>("wal")?;
    while let Some(entry) = log.next()? {
        // None: orderly end; Err: who, what, counts
        file.write_all(&entry.data)?; // read in place, nothing copied
        file.sync_data()?;
        entry.ack(); // a panic before this line is no ack
    }
    // [replica]
    Ok(())
}

fn main() -> Result<(), Box<dyn Error + Send + Sync>> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let path = env::temp_dir().join(format!("ibex-quickstart-{}.log", std::process::id()));
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["replica", addr] => replica(addr, fs::File::create(path)?),
        ["replica", addr, path] => replica(addr, fs::File::create(path)?),
        ["primary", addr] => run_primary(addr),
        _ => {
            let addr = format!("127.0.0.1:{}", free_port()?);
            let mut other = Command::new(env::current_exe()?)
                .args(["replica", &addr])
                .arg(&path)
                .spawn()?;
            let result = run_primary(&addr);
            if result.is_err() {
                other.kill()?;
            }
            other.wait()?;
            println!(
                "the replica wrote {} bytes to {}",
                fs::metadata(&path)?.len(),
                path.display()
            );
            fs::remove_file(path)?;
            result
        }
    }
}

fn run_primary(addr: &str) -> Result<(), Box<dyn Error + Send + Sync>> {
    let entries = (0..100).map(|offset| Entry {
        offset,
        data: vec![b'.'; 100],
    });
    let acknowledged = primary(addr, entries)?;
    println!("{acknowledged} entries sent, written and acknowledged");
    Ok(())
}

/// A port that is free now; the replica binds it a moment later.
fn free_port() -> std::io::Result<u16> {
    Ok(std::net::TcpListener::bind("127.0.0.1:0")?
        .local_addr()?
        .port())
}
