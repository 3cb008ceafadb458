//! A primary replicates entries to a replica in another process.
//!
//! Run it: `cargo run -p quickstart`. It starts the replica itself; with `--kill` it also kills the
//! replica in the middle, restarts it and goes on. To see both ends, run
//! `quickstart replica 127.0.0.1:7070` in one terminal and `quickstart primary 127.0.0.1:7070` in
//! another, in any order.

use std::{
    env,
    error::Error,
    fs::{self, File},
    io::{BufRead, BufReader},
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    process::{self, Child, Command, ExitCode, Stdio},
    thread,
    time::Instant,
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
    let peer = node.connect(replica)?; // waits for a replica that starts later
    println!("{}", peer.fabric_reason()); // the fabric, and why not a faster one
    let mut log = peer.sender::<Entry>("wal")?;
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
fn replica(addr: &str, file: &File) -> Result<()> {
    let node = Node::listen(addr)?;
    if let Some(addr) = node.local_addr() {
        println!("listening on {addr}"); // port 0 is any that is free
    }
    let mut log = node.accept()?.receiver::<Entry>("wal")?;
    while let Some(entry) = log.next()? {
        // None: orderly end; Err: who, what, counts
        file.write_all_at(&entry.data, entry.offset.into())?; // read in place, nothing copied
        file.sync_data()?;
        entry.ack(); // a panic before this line is no ack
    }
    Ok(())
}
// [replica]

/// Entries of a run, and the length of each in the replica's file.
const ENTRIES: u64 = 1000;
const ENTRY_BYTES: usize = 100;

fn main() -> ExitCode {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let path = env::temp_dir().join(format!("ibex-quickstart-{}.log", process::id()));
    let result = match arguments[..] {
        [] => both(path, false),
        ["--kill"] => both(path, true),
        ["primary", addr] => run_primary(addr, entries_from(0)).map(|_| ()),
        ["replica", addr] => {
            println!("writing to {}", path.display());
            run_replica(addr, &path)
        }
        ["replica", addr, path] => run_replica(addr, path.as_ref()),
        _ => {
            eprintln!("usage: quickstart [--kill | primary HOST:PORT | replica HOST:PORT [FILE]]");
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
fn both(path: PathBuf, kills: bool) -> Result<()> {
    let mut other = Replica::start("127.0.0.1:0", path)?;
    let addr = other.addr.clone();
    match kills {
        false => drop(run_primary(&addr, entries_from(0))?),
        true => go_on_over_a_kill(&addr, &mut other)?,
    }
    other.end()?;
    println!(
        "next: {}",
        match kills {
            false => "cargo run -p quickstart -- --kill",
            true => "cargo run --release -p ibex-cli -- perf",
        }
    );
    Ok(())
}

/// Sends all entries. When half of them are written, kills the replica and starts another.
fn go_on_over_a_kill(addr: &str, other: &mut Replica) -> Result<()> {
    let (killed, sent) = thread::scope(|scope| {
        let killing = scope.spawn(|| other.kill_and_restart());
        let sent = run_primary(addr, entries_from(0));
        (killing.join().expect("no panic"), sent)
    });
    killed?;
    let kept = match sent {
        // The replica was done before it was killed. Its last entry is sent to the other one again.
        Ok(all) => all - 1,
        Err(error) => {
            println!("the primary is told: {error}");
            acknowledged(&*error).ok_or(error)?
        }
    };
    println!("{kept} entries are acknowledged, so they are on the disk; going on behind them");
    run_primary(addr, entries_from(kept))?;
    Ok(())
}

/// Returns how many entries were acknowledged, as an error of the channel reports it.
fn acknowledged(error: &(dyn Error + Send + Sync + 'static)) -> Option<u64> {
    let of_send = error.downcast_ref().and_then(ibex::SendError::counts);
    let counts = of_send.or_else(|| error.downcast_ref().and_then(ibex::WaitError::counts));
    Some(counts?.acknowledged)
}

fn run_primary(addr: &str, entries: impl Iterator<Item = Entry>) -> Result<u64> {
    let begun = Instant::now();
    let count = primary(addr, entries)?;
    let time = begun.elapsed();
    println!(
        "{count} entries sent, written and acknowledged in {time:.1?}: {:.1?} for each, the replica's \
         write to the disk included",
        time / (count as u32).max(1)
    );
    Ok(count)
}

fn run_replica(addr: &str, path: &Path) -> Result<()> {
    // A replica that was killed goes on with its file.
    let mut options = File::options();
    let file = options.create(true).truncate(false).write(true).open(path);
    let file = file.map_err(|error| format!("{}: {error}", path.display()))?;
    replica(addr, &file)
}

fn entries_from(first: u64) -> impl Iterator<Item = Entry> {
    (first..ENTRIES).map(|number| Entry {
        offset: number * ENTRY_BYTES as u64,
        data: data(number),
    })
}

/// Returns a line of text with its number.
fn data(number: u64) -> Vec<u8> {
    let width = ENTRY_BYTES - 1;
    format!("{number:.<width$}\n").into_bytes()
}

/// The replica's process and its file. Dropping it kills the process and removes the file.
struct Replica {
    process: Child,
    addr: String,
    path: PathBuf,
}

impl Replica {
    fn start(addr: &str, path: PathBuf) -> Result<Self> {
        let mut process = spawn(addr, &path)?;
        let addr = announced(&mut process)?;
        Ok(Self {
            process,
            addr,
            path,
        })
    }

    fn kill_and_restart(&mut self) -> Result<()> {
        while self.written()? < ENTRIES / 2 {
            thread::yield_now();
        }
        self.process.kill()?; // SIGKILL
        self.process.wait()?;
        let (written, id) = (self.written()?, self.process.id());
        println!("kill -9 {id}, the replica, when {written} entries are written");
        self.process = spawn(&self.addr, &self.path)?;
        announced(&mut self.process)?;
        Ok(())
    }

    fn written(&self) -> Result<u64> {
        Ok(fs::metadata(&self.path)?.len() / ENTRY_BYTES as u64)
    }

    /// Waits until the replica has ended by itself, and checks its file.
    fn end(mut self) -> Result<()> {
        let status = self.process.wait()?;
        if !status.success() {
            return Err(format!("the replica failed, {status}").into());
        }
        let expected: Vec<u8> = (0..ENTRIES).flat_map(data).collect();
        if fs::read(&self.path)? != expected {
            return Err("the replica's file has other entries than those that were sent".into());
        }
        println!("the replica's file has all {ENTRIES} entries, each once and in order");
        Ok(())
    }
}

impl Drop for Replica {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
        // A replica that could not even create its file has reported that itself.
        let _ = fs::remove_file(&self.path);
    }
}

fn spawn(addr: &str, path: &Path) -> Result<Child> {
    let mut replica = Command::new(env::current_exe()?);
    let replica = replica.args(["replica", addr]).arg(path);
    Ok(replica.stdout(Stdio::piped()).spawn()?)
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
