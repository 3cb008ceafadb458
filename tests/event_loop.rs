//! Programs that sleep on a node's descriptor, in a loop of their own or in a reactor.
#![forbid(unsafe_code)]

use std::{future::Future, io::Read, net::TcpStream, sync::Arc, time::Duration};

use ibex::{Driver, Fabric, Node, NodeBuilder, Pod, Policy};
use rustix::event::{PollFd, PollFlags, poll};
use smol::Async;

fn builder() -> NodeBuilder {
    Node::builder().driver(Driver::Caller)
}

/// A stranger connects and says nothing. The node closes the connection when the handshake has
/// taken too long, and the loop that does so has no clock: the descriptor tells of the time.
#[test]
fn a_time_that_runs_out_makes_the_descriptor_readable() {
    let node = builder()
        .listen("127.0.0.1:0")
        .handshake_timeout(Duration::from_secs(1))
        .build()
        .expect("a node");
    let mut stranger =
        TcpStream::connect(node.local_addr().expect("it listens")).expect("a connection");
    stranger.set_nonblocking(true).expect("a mode");
    let mut bytes = [0; 1024];
    loop {
        let ready = PollFd::from_borrowed_fd(node.as_fd(), PollFlags::IN);
        while node.poll() {}
        // The node greets, and then ends the connection.
        match stranger.read(&mut bytes) {
            Ok(0) => break,
            Ok(_) => continue,
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
            Err(_) => break,
        }
        // Without a time-out: a node that did not tell would hang here, and so the test.
        poll(&mut [ready], None).expect("poll");
    }
}

async fn drive(node: Arc<Node>) {
    let descriptor = Async::new_nonblocking(node.clone()).expect("the reactor takes it");
    loop {
        while node.poll() {}
        descriptor.readable().await.expect("readable");
    }
}

async fn beside<T>(nodes: [&Arc<Node>; 2], task: impl Future<Output = T>) -> T {
    let driving = nodes.map(|node| smol::spawn(drive(node.clone())));
    let output = task.await;
    for driver in driving {
        driver.cancel().await;
    }
    output
}

#[test]
fn the_reactor_of_async_io_drives_nodes() {
    for fabric in [Fabric::Shm, Fabric::Tcp] {
        let builder = || builder().fabric(fabric, Policy::Require);
        let listener = Arc::new(builder().listen("127.0.0.1:0").build().expect("a node"));
        let client = Arc::new(builder().build().expect("a node"));
        let address = listener.local_addr().expect("it listens");
        smol::block_on(beside([&listener, &client], async {
            let there = client.connect_async(address).await.expect("a session");
            let here = listener.accept_async().await.expect("a session");
            let to = there.channel("a").codec::<Pod>().sender::<u64>();
            let from = here.channel("a").codec::<Pod>().receiver::<u64>();
            let back = here.channel("b").codec::<Pod>().sender::<u64>();
            let answers = there.channel("b").codec::<Pod>().receiver::<u64>();
            let (mut to, mut from) = (to.expect("an end"), from.expect("an end"));
            let (mut back, mut answers) = (back.expect("an end"), answers.expect("an end"));
            let echoing = smol::spawn(async move {
                while let Ok(message) = from.recv_async().await {
                    back.send_async(&message).await.expect("sent");
                }
            });
            for number in 0..1000 {
                to.send_async(&number).await.expect("sent");
                assert_eq!(*answers.recv_async().await.expect("an answer"), number);
            }
            drop(to);
            echoing.await;
        }));
    }
}
