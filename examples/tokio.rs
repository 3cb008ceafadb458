//! Many clients served by tasks, on one thread of tokio: each request is answered in a task of
//! its client's, and a slow one delays nobody.
//!
//! `cargo run --release --example tokio`

use std::time::Duration;

use ibex::{Node, Peer, RecvError};

#[ibex::message]
struct Request {
    number: u64,
    pause_ms: u64,
}

#[ibex::message]
struct Answer {
    number: u64,
}

type Error = Box<dyn std::error::Error>;

/// Answers the requests of one client until it ends.
async fn serve(client: Peer) -> Result<(), Error> {
    let mut requests = client.receiver::<Request>("requests")?;
    let mut answers = client.sender::<Answer>("answers")?;
    loop {
        let request = match requests.recv_async().await {
            Ok(request) => request,
            Err(RecvError::Ended) => return Ok(()),
            Err(error) => return Err(error.into()),
        };
        tokio::time::sleep(Duration::from_millis(request.pause_ms.into())).await;
        let number = request.number.into();
        answers.send_async(&Answer { number }).await?;
    }
}

/// Asks `count` times, and checks that the answers are those.
async fn ask(server: std::net::SocketAddr, pause_ms: u64, count: u64) -> Result<(), Error> {
    let node = Node::client()?;
    let peer = node.connect_async(server).await?;
    let mut requests = peer.sender::<Request>("requests")?;
    let mut answers = peer.receiver::<Answer>("answers")?;
    for number in 0..count {
        requests.send_async(&Request { number, pause_ms }).await?;
        let answer = answers.recv_async().await?;
        assert_eq!(answer.number, number);
    }
    println!("{count} answers, each after {pause_ms} ms");
    Ok(())
}

fn main() -> Result<(), Error> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()?;
    let node = Node::listen("127.0.0.1:0")?;
    let server = node.local_addr().ok_or("it listens")?;
    runtime.block_on(async {
        let slow =
            tokio::spawn(async move { ask(server, 20, 10).await.map_err(|e| e.to_string()) });
        let quick =
            tokio::spawn(async move { ask(server, 0, 1000).await.map_err(|e| e.to_string()) });
        let mut served = Vec::new();
        for _ in 0..2 {
            let client = node.accept_async().await?;
            served.push(tokio::spawn(async move {
                serve(client).await.map_err(|error| error.to_string())
            }));
        }
        for task in [slow, quick].into_iter().chain(served) {
            task.await??;
        }
        Ok(())
    })
}
