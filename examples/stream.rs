//! A line server over byte streams instead of sockets: tasks serve, and threads ask. The program
//! differs from one over `TcpStream` only in the lines that connect.
//!
//! `cargo run --release --example stream`

use std::{io, thread};

use ibex::{
    Address, Node,
    io::{Listener, Stream},
};

type Error = Box<dyn std::error::Error + Send + Sync>;

/// Sends each line back, reversed, until the client ends its direction.
async fn serve(stream: Stream) -> io::Result<u64> {
    use smol::io::{AsyncBufReadExt, AsyncWriteExt};

    // Lines are read where they arrived, so the reading half needs no buffer around it.
    let (mut from, mut to) = stream.into_split();
    let (mut line, mut lines) = (String::new(), 0);
    while from.read_line(&mut line).await? > 0 {
        let mut answer: String = line.trim_end().chars().rev().collect();
        answer.push('\n');
        to.write_all(answer.as_bytes()).await?;
        line.clear();
        lines += 1;
    }
    // Ends this direction, in order.
    to.close().await?;
    Ok(lines)
}

/// Accepts [`CLIENTS`] streams and serves each in a task of its own.
async fn serve_all(node: &Node) -> io::Result<u64> {
    let mut listener = Listener::bind(node, "lines")?;
    let mut serving = Vec::new();
    for _ in 0..CLIENTS {
        let (stream, _peer) = listener.accept_async().await?;
        serving.push(smol::spawn(serve(stream)));
    }
    let mut lines = 0;
    for task in serving {
        lines += task.await?;
    }
    Ok(lines)
}

/// A client without tasks: one thread sends all questions, and another reads the answers.
fn ask(server: Address) -> Result<(), Error> {
    use std::io::{BufRead, Read, Write};

    let node = Node::client()?;
    let stream = Stream::connect(&node.connect(server)?, "lines")?;
    let (from, mut to) = stream.into_split();
    thread::scope(|scope| {
        let asking = scope.spawn(move || -> io::Result<()> {
            for number in 0..LINES {
                writeln!(to, "line {number}")?;
            }
            to.finish();
            Ok(())
        });
        let mut answers = from.lines();
        for number in 0..LINES {
            let answer = answers.next().ok_or("an answer to each line")??;
            let reversed: String = answer.chars().rev().collect();
            assert_eq!(reversed, format!("line {number}"));
        }
        asking.join().map_err(|_| "the asking thread panicked")??;
        Ok::<_, Error>(())
    })?;
    // A megabyte goes over a stream of its own, to the end.
    let mut stream = Stream::connect(&node.connect(server)?, "lines")?;
    stream.write_all(&[b'x'; 1 << 20])?;
    stream.write_all(b"\n")?;
    stream.finish();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer)?;
    assert_eq!(answer.len(), (1 << 20) + 1);
    Ok(())
}

fn main() -> Result<(), Error> {
    let node = Node::listen("127.0.0.1:0")?;
    let server = node.local_addr().ok_or("it listens")?;
    let client = thread::spawn(move || ask(server));
    let lines = smol::block_on(serve_all(&node))?;
    client.join().map_err(|_| "the client panicked")??;
    println!("{lines} lines served");
    Ok(())
}

/// Number of the client's streams, one after the other.
const CLIENTS: usize = 2;
const LINES: u64 = 10_000;
