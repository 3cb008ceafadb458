//! Many clients served by tasks of a tokio runtime, which also drives the nodes. Each client has a
//! task of its own, so a slow client delays no other.
//!
//! `cargo run --release --example tokio`

use std::time::Duration;

use ibex::{Address, Driver, Node, Peer, RecvErrorKind};

#[ibex::message]
struct Request {
    number: u64,
    pause_ms: u64,
}

#[ibex::message]
struct Answer {
    number: u64,
}

type Error = Box<dyn std::error::Error + Send + Sync>;

/// Answers the requests of one client until it ends.
async fn serve(client: Peer) -> Result<(), Error> {
    let mut requests = client.receiver::<Request>("requests")?;
    let mut answers = client.sender::<Answer>("answers")?;
    loop {
        let request = match requests.recv_async().await {
            Ok(request) => request,
            Err(error) if error.kind() == RecvErrorKind::Ended => return Ok(()),
            Err(error) => return Err(error.into()),
        };
        let pause_ms: u64 = request.pause_ms.into();
        if pause_ms > 0 {
            tokio::time::sleep(Duration::from_millis(pause_ms)).await;
        }
        let number = request.number.into();
        answers.send_async(&Answer { number }).await?;
    }
}

/// Asks `count` times, and checks each answer.
async fn ask(server: Address, pause_ms: u64, count: u64) -> Result<(), Error> {
    let node = Node::builder().driver(Driver::Tasks).build()?;
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

#[tokio::main]
async fn main() -> Result<(), Error> {
    let node = Node::builder()
        .driver(Driver::Tasks)
        .listen("127.0.0.1:0")
        .build()?;
    let server = node.local_addr().ok_or("it listens")?;
    // These tasks stand for other processes.
    let slow = tokio::spawn(ask(server, 20, 10));
    let quick = tokio::spawn(ask(server, 0, 1000));
    let mut served = Vec::new();
    for _ in 0..2 {
        let client = node.accept_async().await?;
        served.push(tokio::spawn(serve(client)));
    }
    for task in [slow, quick].into_iter().chain(served) {
        task.await??;
    }
    let report = node.close_async(Duration::from_secs(1)).await;
    println!("{report}");
    Ok(())
}
