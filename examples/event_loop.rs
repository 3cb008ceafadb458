//! A program that has its own loop and wants no threads: `Driver::Caller`, and the node's
//! descriptor among the program's own.
//!
//! `cargo run --release --example event_loop`

use std::{net::SocketAddr, os::unix::net::UnixStream, thread};

use ibex::{Driver, Node, Raw, RecvErrorKind};
use rustix::event::{PollFd, PollFlags, poll};

type Error = Box<dyn std::error::Error + Send + Sync>;

/// Takes messages until the peer is done, and looks at `other` meanwhile.
fn serve(node: &Node, other: &UnixStream) -> Result<u64, Error> {
    let mut bytes = None;
    let mut received = 0;
    loop {
        // 1. Let the node do what it can.
        while node.poll() {}
        // 2. Take what is there, until nothing is.
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
        // 3. Sleep until there is more, here or elsewhere.
        let mut fds = [
            PollFd::from_borrowed_fd(node.as_fd(), PollFlags::IN),
            PollFd::new(other, PollFlags::IN),
        ];
        poll(&mut fds, None)?;
    }
}

/// The other process, as it were: a thread with a node of its own.
fn send(server: SocketAddr) -> Result<(), Error> {
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
    // The sender closes its node too, and waits for this one to say goodbye.
    drop(node);
    sending.join().map_err(|_| "the sender panicked")??;
    assert_eq!(received, MESSAGES * 1000);
    println!("{received} bytes, without a thread of the node's");
    Ok(())
}

const MESSAGES: u64 = 10_000;
