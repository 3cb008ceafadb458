//! The rows, and the process that receives.

use std::{
    error::Error,
    net::TcpListener,
    process::Stdio,
    thread,
    time::{Duration, Instant},
};

use ibex::{FanIn, FanInEvent, Node, Raw};
use ibex_harness::process::{self, Process};

use crate::{
    BYTES, CARRIERS, CLIENT, CONNECT, DONE, PATIENCE, PING, PINGED, SEND, SOCKETS, ends::Pair,
    sockets::Sockets,
};

/// What accepts and receives.
enum Server {
    Node {
        node: Node,
        rows: Box<FanIn<[u8], Raw>>,
    },
    Sockets {
        listener: TcpListener,
        accepted: Option<Sockets>,
    },
}

impl Server {
    fn listen(carrier: &str) -> Result<(Self, String), Box<dyn Error>> {
        if carrier == SOCKETS {
            let listener = TcpListener::bind("127.0.0.1:0")?;
            let address = listener.local_addr()?.to_string();
            let accepted = None;
            return Ok((Self::Sockets { listener, accepted }, address));
        }
        let builder = Node::builder().listen("127.0.0.1:0");
        let node = builder
            .max_peer_sessions(MOST)
            .max_node_sessions(MOST)
            .build()?;
        let rows = Box::new(node.channel("rows").codec::<Raw>().fan_in()?);
        let address = node.local_addr().ok_or("it listens")?.to_string();
        Ok((Self::Node { node, rows }, address))
    }

    /// Accepts the connection for round trips, and answers there in a thread of its own.
    fn answer_pings(&self) -> Result<(), Box<dyn Error>> {
        let pair = match self {
            Self::Sockets { listener, .. } => {
                let (socket, _) = listener.accept()?;
                socket.set_nodelay(true)?;
                Pair::Socket(socket)
            }
            Self::Node { node, .. } => Pair::answering(&node.accept_timeout(PATIENCE)?)?,
        };
        thread::spawn(move || pair.answer());
        Ok(())
    }

    /// Accepts all that connect.
    fn accept(&mut self, count: usize) -> Result<(), Box<dyn Error>> {
        match self {
            Self::Sockets { listener, accepted } => {
                *accepted = Some(Sockets::accept(listener, count)?);
            }
            Self::Node { rows, .. } => {
                let mut joined = 0;
                while joined < count {
                    match rows.next_timeout(PATIENCE)? {
                        Some(FanInEvent::Joined(_)) => joined += 1,
                        Some(FanInEvent::Lost(peer, error)) => {
                            return Err(format!("{peer}: {error}").into());
                        }
                        _ => return Err("the node or a session has ended".into()),
                    }
                }
            }
        }
        Ok(())
    }

    /// Receives this many messages.
    fn receive(&mut self, messages: u64) -> Result<(), Box<dyn Error>> {
        match self {
            Self::Sockets { accepted, .. } => {
                accepted.as_mut().ok_or("none accepted")?.receive(messages)
            }
            Self::Node { rows, .. } => {
                let mut received = 0;
                while received < messages {
                    match rows.next_timeout(PATIENCE)? {
                        Some(FanInEvent::Message(_, message)) => {
                            received += u64::from(message.len() == BYTES);
                        }
                        Some(FanInEvent::Lost(peer, error)) => {
                            return Err(format!("{peer}: {error}").into());
                        }
                        _ => return Err("the node or a session has ended".into()),
                    }
                }
                Ok(())
            }
        }
    }
}

/// Prints the rows for these numbers of sessions.
pub(crate) fn print(sessions: &[usize]) -> Result<(), Box<dyn Error>> {
    println!(
        "{:8} {:>8} {:>11} {:>12} {:>12} {:>12} {:>9} {:>15} {:>12} {:>12}",
        "carrier",
        "sessions",
        "connected s",
        "idle KiB",
        "one KiB",
        "rested KiB",
        "M/s",
        "least to most",
        "p50 p99 µs",
        "beside idle"
    );
    for &sessions in sessions {
        for carrier in CARRIERS {
            if let Err(error) = row(carrier, sessions) {
                println!("{carrier:8} {sessions:8} left out: {error}");
            }
        }
    }
    Ok(())
}

fn row(carrier: &str, sessions: usize) -> Result<(), Box<dyn Error>> {
    let (mut server, address) = Server::listen(carrier)?;
    let ours = std::process::id();
    let before = resident_kib(ours)?;
    let command = &mut process::again()?;
    let words = [CLIENT, carrier, &address];
    command
        .args(words)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped());
    let mut client = Process::start(CLIENT, command)?;
    server.answer_pings()?;
    let alone = ping(&mut client)?;
    let begin = Instant::now();
    client.say(&format!("{CONNECT} {sessions}"))?;
    if let Err(error) = server.accept(sessions) {
        // What ended the client says more.
        client.close_stdin();
        return client.hear_out().map_err(Into::into).and(Err(error));
    }
    client.hear(DONE)?;
    let connected = begin.elapsed();
    let each = |pid: u32| -> Result<f64, Box<dyn Error>> {
        let all = resident_kib(ours)?.saturating_sub(before) + resident_kib(pid)?;
        Ok(all as f64 / sessions as f64)
    };
    let idle = each(client.id())?;
    let beside = ping(&mut client)?;
    client.say(&format!("{SEND} 1"))?;
    server.receive(sessions as u64)?;
    client.hear(DONE)?;
    let one = each(client.id())?;
    let messages = (MESSAGES / sessions as u64).max(1);
    let mut rates = Vec::new();
    for _ in 0..ROUNDS {
        let begin = Instant::now();
        client.say(&format!("{SEND} {messages}"))?;
        server.receive(messages * sessions as u64)?;
        client.hear(DONE)?;
        let took = begin.elapsed();
        rates.push((messages * sessions as u64) as f64 / took.as_secs_f64() / 1e6);
    }
    thread::sleep(REST);
    let rested = each(client.id())?;
    rates.sort_by(f64::total_cmp);
    println!(
        "{carrier:8} {sessions:8} {:11.2} {idle:12.1} {one:12.1} {rested:12.1} {:9.3} {:>15} {alone:>12} {beside:>12}",
        connected.as_secs_f64(),
        rates[rates.len() / 2],
        format!("{:.3} to {:.3}", rates[0], rates[rates.len() - 1]),
    );
    if let Server::Node { node, .. } = &server {
        let _ = node.close(Duration::ZERO);
    }
    client.kill()?;
    Ok(())
}

/// Returns the median and the 99th percentile of round trips.
fn ping(client: &mut Process) -> Result<String, Box<dyn Error>> {
    client.say(PING)?;
    Ok(client.hear(PINGED)?)
}

/// Returns the memory of a process: its proportional share of each page (`Pss` of
/// `/proc/PID/smaps_rollup`, proc_pid_smaps(5)).
fn resident_kib(pid: u32) -> Result<u64, Box<dyn Error>> {
    Ok(process::memory_kib(pid, "Pss")?)
}

/// Messages of all sessions together in a round.
const MESSAGES: u64 = 1_000_000;
/// More sessions than any row has.
pub(crate) const MOST: u32 = 1 << 16;
const ROUNDS: usize = 3;
/// A while in which silent sessions return their memory.
const REST: Duration = Duration::from_secs(4);
