//! A program with an event loop of its own and no I/O threads: it uses `Driver::Caller` and polls
//! the node's descriptor among its own.
//!
//! `cargo run --release --example event_loop`

use std::{os::unix::net::UnixStream, thread};

use ibex::{Address, Driver, Node, Raw, RecvErrorKind};
use rustix::event::{PollFd, PollFlags, poll};

type Error = Box<dyn std::error::Error + Send + Sync>;

/// Receives messages until the peer's channel ends, and watches the socket `other` as well.
fn serve(node: &Node, other: &UnixStream) -> Result<u64, Error> {
    let mut bytes = None;
    let mut received = 0;
    loop {
        // 1. Turn the engine until it has nothing left to do.
        while node.poll() {}
        // 2. Take what has arrived.
        if bytes.is_none()
            && let Some(peer) = node.try_accept()?
        {
            bytes = Some(peer.channel("bytes").codec::<Raw>().receiver::<[u8]>()?);
        }
        if let Some(bytes) = &mut bytes {
            loop {
                match bytes.try_recv() {
                    Ok(message) => received += message.len() as u64,
                    Err(error) if error.kind() == RecvErrorKind::Ended => return Ok(received),
                    Err(error) if error.is_transient() => break,
                    Err(error) => return Err(error.into()),
                }
            }
        }
        // 3. Sleep until the node or the other socket is ready.
        let mut fds = [
            PollFd::from_borrowed_fd(node.as_fd(), PollFlags::IN),
            PollFd::new(other, PollFlags::IN),
        ];
        poll(&mut fds, None)?;
    }
}

/// Stands for the other process: a thread with a node of its own.
fn send(server: Address) -> Result<(), Error> {
    let node = Node::client()?;
    let bytes = node.connect(server)?.channel("bytes").codec::<Raw>();
    let mut bytes = bytes.sender::<[u8]>()?;
    for _ in 0..MESSAGES {
        bytes.send(&[7; 1000])?;
    }
    bytes.close()?;
    Ok(())
}

fn main() -> Result<(), Error> {
    let node = Node::builder()
        .listen("127.0.0.1:0")
        .driver(Driver::Caller)
        .build()?;
    let address = node.local_addr().ok_or("it listens")?;
    let (other, _peer) = UnixStream::pair()?;
    let sending = thread::spawn(move || send(address));
    let received = serve(&node, &other)?;
    // The sender closes its node too, and waits for this one to send goodbye.
    drop(node);
    sending.join().map_err(|_| "the sender panicked")??;
    assert_eq!(received, MESSAGES * 1000);
    println!("{received} bytes, without a thread of the node's");
    Ok(())
}

const MESSAGES: u64 = 10_000;
