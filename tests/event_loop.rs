//! Programs that sleep on a node's descriptor, in a loop of their own or in a reactor.
#![forbid(unsafe_code)]

use std::{future::Future, io::Read, net::TcpStream, time::Duration};

use ibex::{Driver, Fabric, Node, NodeBuilder, Pod, Policy};
use rustix::event::{PollFd, PollFlags, poll};
use smol::Async;

fn builder() -> NodeBuilder {
    Node::builder().driver(Driver::Caller)
}

/// A stranger connects and stays silent. The node closes the connection when the handshake has
/// taken too long. Its loop has no clock, so the descriptor must announce the time.
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
        // The node greets, then ends the connection.
        match stranger.read(&mut bytes) {
            Ok(0) => break,
            Ok(_) => continue,
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
            Err(_) => break,
        }
        // The poll has no time-out: a node that failed to announce would hang here, and so would
        // the test.
        poll(&mut [ready], None).expect("poll");
    }
}

/// Turns that other calls run consume events of the device, which is armed for the next one only by
/// `Node::poll`. The descriptor must make the loop call it.
#[cfg(feature = "fake-device")]
#[test]
fn the_descriptor_tells_of_what_comes_behind_a_flush_or_a_blocking_read() {
    use std::io::Write as _;

    use ibex::{io, rdma::RdmaSettings};
    use ibex_verbs::provider::fake::{FakeDevice, FakeProvider};

    // The address belongs to a network for documentation (RFC 5737).
    let device = FakeDevice::soft_roce("fake0", 0, [192, 0, 2, 1]);
    let provider = FakeProvider::new(vec![device]);
    let builder = || {
        let settings = RdmaSettings::new().device("fake0");
        builder()
            .fabric(Fabric::Verbs, Policy::Require)
            .rdma(settings.on_devices(provider.provider(), |_| ()))
    };
    let listener = builder().listen("127.0.0.1:0").build().expect("a node");
    let client = builder().build().expect("a node");
    let address = listener.local_addr().expect("it listens");
    let mut streams = io::Listener::bind(&listener, "bytes").expect("a name");
    let (mut theirs, mut ours) = smol::block_on(beside([&listener, &client], async {
        let peer = client.connect_async(address).await.expect("a session");
        let streams = smol::future::zip(
            streams.accept_async(),
            io::Stream::connect_async(&peer, "bytes"),
        );
        let (theirs, ours) = streams.await;
        (theirs.expect("a stream").0, ours.expect("a stream"))
    }));
    let is_readable = || {
        let mut descriptors = [PollFd::from_borrowed_fd(client.as_fd(), PollFlags::IN)];
        poll(&mut descriptors, Some(&Default::default())).expect("poll") > 0
    };
    let put = |stream: &mut io::Stream| {
        stream.write_all(b"x").expect("room");
        stream.flush().expect("it goes out");
    };
    // Only some turns ask for events; the loop makes each call do so at some point.
    for _ in 0..1000 {
        while client.poll() | listener.poll() {}
        put(&mut theirs);
        put(&mut ours);
        put(&mut theirs);
        assert!(is_readable(), "behind a flush");
        while client.poll() | listener.poll() {}
        put(&mut theirs);
        ours.read_exact(&mut [0; 3]).expect("they came");
        put(&mut theirs);
        assert!(is_readable(), "behind a read");
        ours.read_exact(&mut [0]).expect("it came");
        theirs.read_exact(&mut [0]).expect("it came");
    }
}

async fn drive(node: Node) {
    let descriptor = Async::new_nonblocking(node.clone()).expect("the reactor takes it");
    loop {
        while node.poll() {}
        descriptor.readable().await.expect("readable");
    }
}

async fn beside<T>(nodes: [&Node; 2], task: impl Future<Output = T>) -> T {
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
        let listener = builder().listen("127.0.0.1:0").build().expect("a node");
        let client = builder().build().expect("a node");
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
