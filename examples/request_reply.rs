//! Requests and replies: a channel each way, and a number that says which reply is whose. The
//! client has several requests under way, so that it does not wait for a round trip each time.
//!
//! `cargo run --release --example request_reply`

use std::{collections::HashMap, net::SocketAddr, thread};

use ibex::Node;

#[ibex::message]
struct Request {
    id: u64,
    key: String,
}

#[ibex::message]
struct Reply {
    id: u64,
    value: Option<u64>,
}

type Error = Box<dyn std::error::Error + Send + Sync>;

/// Looks keys up until the client is done.
fn serve(node: &Node) -> Result<(), Error> {
    let store: HashMap<String, u64> = (0..1000).map(|n| (format!("key {n}"), n)).collect();
    let client = node.accept()?;
    let mut requests = client.receiver::<Request>("requests")?;
    let mut replies = client.sender::<Reply>("replies")?;
    while let Some(request) = requests.next()? {
        let value = store.get(request.key.as_str()).copied();
        let id = request.id.into();
        replies.send(&Reply { id, value })?;
    }
    Ok(())
}

fn ask(server: SocketAddr) -> Result<(), Error> {
    let node = Node::client()?;
    let peer = node.connect(server)?;
    let mut requests = peer.sender::<Request>("requests")?;
    let mut replies = peer.receiver::<Reply>("replies")?;
    let (mut asked, mut answered, mut found) = (0, 0, 0);
    while answered < REQUESTS {
        while asked < REQUESTS && asked - answered < UNDER_WAY {
            let key = format!("key {}", asked % 1500);
            requests.send(&Request { id: asked, key })?;
            asked += 1;
        }
        let reply = replies.recv()?;
        // A channel keeps its order, and this server answers in turn; the number is for those
        // that do not.
        assert_eq!(reply.id, answered);
        found += u64::from(reply.value.is_some());
        answered += 1;
    }
    requests.close()?;
    assert_eq!(found, REQUESTS / 3 * 2);
    println!("{answered} answers, {found} keys found");
    Ok(())
}

fn main() -> Result<(), Error> {
    let node = Node::listen("127.0.0.1:0")?;
    let address = node.local_addr().ok_or("it listens")?;
    let asking = thread::spawn(move || ask(address));
    serve(&node)?;
    asking.join().map_err(|_| "the client panicked")??;
    Ok(())
}

const REQUESTS: u64 = 15_000;
const UNDER_WAY: u64 = 64;
