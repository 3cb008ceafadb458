//! A service without a thread of the node's: `Driver::Caller` on one thread of tokio, where
//! one task turns the engine and others serve.
//!
//! `cargo run --release --example tokio_caller`

use std::{io, net::SocketAddr, sync::Arc, thread, time::Duration};

use ibex::{Driver, Node, Peer, Raw, RecvError};
use tokio::{
    io::{Interest, unix::AsyncFd},
    time::timeout,
};

type Error = Box<dyn std::error::Error + Send + Sync>;

/// Turns the engine whenever the node's descriptor says that there is something to do, and
/// once a second for times that run out, which are in no descriptor.
async fn drive(node: Arc<Node>) -> io::Result<()> {
    // SAFETY: a node's descriptor is open, and always the same, while there is the node.
    let descriptor = unsafe { AsyncFd::register_with_interest(node.clone(), Interest::READABLE) }?;
    loop {
        while node.poll() {}
        if let Ok(ready) = timeout(Duration::from_secs(1), descriptor.readable()).await {
            // What comes from here on makes it ready anew.
            ready?.clear_ready();
        }
    }
}

/// Answers each request of one client with its length, until the client ends.
async fn serve(client: Peer) -> Result<(), Error> {
    let mut requests = client
        .channel("requests")
        .codec::<Raw>()
        .receiver::<[u8]>()?;
    let mut answers = client.channel("answers").codec::<Raw>().sender::<[u8]>()?;
    loop {
        let request = match requests.recv_async().await {
            Ok(request) => request,
            Err(RecvError::Ended) => return Ok(()),
            Err(error) => return Err(error.into()),
        };
        // It goes out in the next turn: of the receiving call that waits.
        let length = request.len() as u64;
        answers.send_async(&length.to_le_bytes()).await?;
    }
}

/// The other process, as it were: a thread with a node of its own.
fn ask(server: SocketAddr) -> Result<(), Error> {
    let node = Node::client()?;
    let peer = node.connect(server)?;
    let mut requests = peer.channel("requests").codec::<Raw>().sender::<[u8]>()?;
    let mut answers = peer.channel("answers").codec::<Raw>().receiver::<[u8]>()?;
    for length in 1..=REQUESTS {
        requests.send(&vec![7; length as usize])?;
        assert_eq!(*answers.recv()?, length.to_le_bytes());
    }
    println!("{REQUESTS} answers");
    Ok(())
}

fn main() -> Result<(), Error> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let node = Node::builder()
        .listen("127.0.0.1:0")
        .driver(Driver::Caller)
        .build()?;
    let server = node.local_addr().ok_or("it listens")?;
    let node = Arc::new(node);
    let clients: Vec<_> = (0..CLIENTS)
        .map(|_| thread::spawn(move || ask(server)))
        .collect();
    runtime.block_on(async {
        let driving = tokio::spawn(drive(node.clone()));
        let mut served = Vec::new();
        for _ in 0..CLIENTS {
            let client = node.accept_async().await?;
            served.push(tokio::spawn(serve(client)));
        }
        for task in served {
            task.await??;
        }
        driving.abort();
        Ok::<_, Error>(())
    })?;
    // The clients close their nodes, and wait for this one to say goodbye.
    drop((runtime, node));
    for client in clients {
        client.join().map_err(|_| "a client panicked")??;
    }
    Ok(())
}

const CLIENTS: usize = 2;
const REQUESTS: u64 = 1000;
