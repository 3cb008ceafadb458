//! Round trips of many blocking threads, each over a byte stream or plain socket of its own, all
//! between two processes.

use std::{
    error::Error,
    io::{self, Read, Write},
    net::TcpListener,
    process::Stdio,
    sync::{
        Barrier,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use ibex::{
    Node, Peer, Policy,
    io::{Listener, Stream},
};
use ibex_harness::process::{self, Process};

use crate::{
    BYTES, CARRIERS, STREAMS,
    client::{dial, fabric},
};

/// Prints the rows for this many threads.
pub(crate) fn print(threads: usize) -> Result<(), Box<dyn Error>> {
    println!(
        "\n{:8} {:>8} {:>12} {:>13} {:>15}",
        "carrier", "threads", "reply bytes", "thousand/s", "least to most"
    );
    for reply in [BYTES, 64 << 10] {
        for carrier in CARRIERS {
            let mut rates = row(carrier, threads, reply)?;
            rates.sort_by(f64::total_cmp);
            let (least, most) = (rates[0], rates[rates.len() - 1]);
            println!(
                "{carrier:8} {threads:8} {reply:12} {:13.1} {:>15}",
                rates[rates.len() / 2],
                format!("{least:.1} to {most:.1}"),
            );
        }
    }
    Ok(())
}

/// Returns thousands of round trips in a second, for each round.
fn row(carrier: &str, threads: usize, reply: usize) -> Result<Vec<f64>, Box<dyn Error>> {
    let (address, _node) = serve(carrier, reply)?;
    let command = &mut process::again()?;
    let words = [STREAMS, carrier, &address];
    command
        .args(words)
        .args([threads.to_string(), reply.to_string()])
        .stdout(Stdio::piped());
    let mut client = Process::start(STREAMS, command)?;
    let mut rates = Vec::new();
    for _ in 0..ROUNDS {
        rates.push(client.hear(RATE)?.parse()?);
    }
    client.kill()?;
    Ok(rates)
}

/// Answers each request in a thread of its stream, until this process ends.
fn serve(carrier: &str, reply: usize) -> Result<(String, Option<Node>), Box<dyn Error>> {
    let Some(_) = fabric(carrier) else {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let address = listener.local_addr()?.to_string();
        thread::spawn(move || {
            for socket in listener.incoming().map_while(Result::ok) {
                socket.set_nodelay(true).expect("it is a TCP socket");
                thread::spawn(move || answer(socket, reply));
            }
        });
        return Ok((address, None));
    };
    let node = Node::listen("127.0.0.1:0")?;
    let mut listener = Listener::bind(&node, NAME)?;
    let address = node.local_addr().ok_or("it listens")?.to_string();
    thread::spawn(move || {
        while let Ok((stream, _)) = listener.accept() {
            thread::spawn(move || answer(stream, reply));
        }
    });
    Ok((address, Some(node)))
}

fn answer(mut stream: impl Read + Write, reply: usize) -> io::Result<()> {
    let (mut request, reply) = ([0; BYTES], vec![7; reply]);
    loop {
        stream.read_exact(&mut request)?;
        stream.write_all(&reply)?;
    }
}

/// Asks from this many threads, and prints the rate of each round.
pub(crate) fn ask(
    carrier: &str,
    address: &str,
    threads: &str,
    reply: &str,
) -> Result<(), Box<dyn Error>> {
    let (threads, reply): (usize, usize) = (threads.parse()?, reply.parse()?);
    let (ready, is_over, count) = (
        Barrier::new(threads + 1),
        AtomicBool::new(false),
        AtomicU64::new(0),
    );
    let dialer = match fabric(carrier) {
        None => Dialer::Sockets(address),
        Some(fabric) => {
            let node = Node::builder().fabric(fabric, Policy::Require).build()?;
            Dialer::Session(node.connect(address)?, node)
        }
    };
    thread::scope(|scope| {
        for _ in 0..threads {
            let mut stream = dialer.stream()?;
            let (ready, is_over, count) = (&ready, &is_over, &count);
            scope.spawn(move || {
                let mut answer = vec![0; reply];
                ready.wait();
                while !is_over.load(Ordering::Relaxed) {
                    stream.write_all(&[7; BYTES]).expect("the server reads");
                    stream.read_exact(&mut answer).expect("the server answers");
                    count.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        ready.wait();
        for _ in 0..ROUNDS {
            let (before, begin) = (count.load(Ordering::Relaxed), Instant::now());
            thread::sleep(ROUND);
            let trips = count.load(Ordering::Relaxed) - before;
            println!(
                "{RATE}{}",
                trips as f64 / begin.elapsed().as_secs_f64() / 1e3
            );
        }
        is_over.store(true, Ordering::Relaxed);
        Ok(())
    })
}

/// What the streams of a client go over.
enum Dialer<'a> {
    Session(
        Peer,
        #[expect(dead_code, reason = "kept as long as its session")] Node,
    ),
    Sockets(&'a str),
}

impl Dialer<'_> {
    fn stream(&self) -> Result<Box<dyn ReadWrite>, Box<dyn Error>> {
        match self {
            Self::Session(peer, _) => Ok(Box::new(Stream::connect(peer, NAME)?)),
            Self::Sockets(address) => Ok(Box::new(dial(address.parse()?)?)),
        }
    }
}

trait ReadWrite: Read + Write + Send {}

impl<T: Read + Write + Send> ReadWrite for T {}

const NAME: &str = "echo";
const RATE: &str = "rate ";
const ROUNDS: usize = 3;
const ROUND: Duration = Duration::from_secs(2);
