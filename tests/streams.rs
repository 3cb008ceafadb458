//! Byte streams within one process: the promise of each of their calls.
#![forbid(unsafe_code)]

mod pair;

use std::{
    future::Future,
    io::{self, BufRead, ErrorKind, IoSlice, Read, Write},
    pin::{Pin, pin},
    sync::mpsc,
    task::{Context, Poll, Waker},
    thread,
    time::{Duration, Instant},
};

use futures_util::{StreamExt, future::join};
use ibex::{
    Driver, Fabric, Node, Pod, Policy, RecvError, RecvErrorKind, SendError, SendErrorKind,
    io::{Listener, ReuniteError, Stream},
};
use ibex_harness::wakes::Wakes;
use pair::{FABRICS, Pair};
use smol::io::{AsyncRead, AsyncWrite};

/// Returns a stream's two ends: of the connecting node, and of the listening one.
fn stream(pair: &Pair) -> (Stream, Stream) {
    let mut listener = Listener::bind(&pair.nodes[1], "streams").expect("a name");
    let connecting = Stream::connect_async(&pair.peers[0], "streams");
    let (there, here) = smol::block_on(join(connecting, listener.accept_async()));
    let there = there.expect("connected");
    let (here, peer) = here.expect("accepted");
    assert_eq!(peer, pair.peers[1].at());
    (there, here)
}

/// Returns bytes that differ from their neighbours.
fn bytes(count: usize) -> Vec<u8> {
    (0..count).map(|number| (number * 7 / 3) as u8).collect()
}

/// More than any window holds.
const MUCH: usize = 5 << 20;

#[test]
fn threads_write_and_read_and_each_direction_ends_on_its_own() {
    for fabric in FABRICS {
        let pair = Pair::over(fabric);
        let (mut there, mut here) = stream(&pair);
        let sent = bytes(MUCH);
        thread::scope(|scope| {
            scope.spawn(|| {
                there.write_all(&sent).expect("written");
                there.finish();
                let mut answer = String::new();
                there.read_to_string(&mut answer).expect("read");
                assert_eq!(answer, "all of it");
            });
            let mut came = Vec::new();
            here.read_to_end(&mut came).expect("read");
            assert!(came == sent);
            // The other direction continues after the end of this one.
            assert_eq!(here.read(&mut [0]).expect("over"), 0);
            here.write_all(b"all of it").expect("written");
            drop(here);
        });
        assert_eq!(there.read(&mut [0]).expect("over"), 0);
        let after = there.write(b"more").expect_err("finished");
        assert_eq!(after.kind(), ErrorKind::BrokenPipe);
    }
}

#[test]
fn halves_go_to_threads_of_their_own_and_come_together_again() {
    let pair = Pair::over(Fabric::Shm);
    let (there, here) = stream(&pair);
    let (mut read, mut write) = there.into_split();
    let (from, to) = here.into_split();
    let echo = thread::spawn(move || {
        let (mut from, mut to) = (from, to);
        io::copy(&mut from, &mut to)
    });
    let sent = bytes(MUCH);
    let (write, read) = thread::scope(|scope| {
        let writing = scope.spawn(|| {
            write.write_all(&sent).expect("written");
            write.finish();
            write
        });
        let mut came = Vec::new();
        read.read_to_end(&mut came).expect("read");
        assert!(came == sent);
        (writing.join().expect("it ends"), read)
    });
    assert_eq!(echo.join().expect("it ends").expect("copied"), MUCH as u64);
    let (_, other) = stream(&pair).0.into_split();
    let ReuniteError(read, _other) = read.reunite(other).expect_err("of another stream");
    read.reunite(write).expect("of one stream");
}

#[test]
fn slices_go_in_one_piece_and_short_writes_come_together() {
    for fabric in FABRICS {
        let pair = Pair::over(fabric);
        let (mut there, mut here) = stream(&pair);
        let slices = [&b"one "[..], b"", b"two ", b"three"].map(IoSlice::new);
        assert_eq!(there.write_vectored(&slices).expect("written"), 13);
        for part in ["; ", "four", ""] {
            assert_eq!(there.write(part.as_bytes()).expect("written"), part.len());
        }
        there.finish();
        let mut came = String::new();
        here.read_to_string(&mut came).expect("read");
        assert_eq!(came, "one two three; four");
        // A write takes as much as one piece holds, and all of that.
        let (zeros, ones) = (vec![0; 40_000], vec![1; 40_000]);
        let long = [IoSlice::new(&zeros), IoSlice::new(&ones)];
        assert_eq!(here.write_vectored(&long).expect("written"), 64 << 10);
        let mut piece = vec![0; 64 << 10];
        there.read_exact(&mut piece).expect("read");
        assert!(piece[..40_000] == zeros[..] && piece[40_000..] == ones[..25_536]);
    }
}

#[test]
fn lines_are_read_where_they_lie() {
    for fabric in FABRICS {
        let pair = Pair::over(fabric);
        let (mut there, mut here) = stream(&pair);
        there.write_all(b"one\ntwo\nth").expect("written");
        there.write_all(b"ree").expect("written");
        there.finish();
        assert_eq!(here.fill_buf().expect("read"), b"one\ntwo\nth");
        here.consume(4);
        assert_eq!(here.fill_buf().expect("read"), b"two\nth");
        let mut line = String::new();
        smol::block_on(smol::io::AsyncBufReadExt::read_line(&mut here, &mut line)).expect("read");
        assert_eq!(line, "two\n");
        let rest: Vec<_> = BufRead::lines(here)
            .map(|line| line.expect("read"))
            .collect();
        assert_eq!(rest, ["three"]);
    }
}

/// Fills the stream. Returns the number of bytes that it took.
fn fill(stream: &mut Stream, waker: &Waker) -> usize {
    let piece = bytes(10_000);
    let mut written = 0;
    while let Poll::Ready(bytes) = poll_write(stream, &piece, waker) {
        written += bytes.expect("written");
    }
    written
}

fn poll_write(stream: &mut Stream, from: &[u8], waker: &Waker) -> Poll<io::Result<usize>> {
    AsyncWrite::poll_write(Pin::new(stream), &mut Context::from_waker(waker), from)
}

fn poll_read(stream: &mut Stream, to: &mut [u8], waker: &Waker) -> Poll<io::Result<usize>> {
    AsyncRead::poll_read(Pin::new(stream), &mut Context::from_waker(waker), to)
}

fn poll_flush(stream: &mut Stream, waker: &Waker) -> Poll<io::Result<()>> {
    AsyncWrite::poll_flush(Pin::new(stream), &mut Context::from_waker(waker))
}

/// hyper's server does so: it flushes after a pending write, and sleeps if the flush is ready.
#[test]
fn a_flush_that_is_ready_takes_back_no_waker_of_a_write() {
    for fabric in FABRICS {
        let pair = Pair::over(fabric);
        let (mut there, mut here) = stream(&pair);
        let (written, write_waker) = Wakes::counted();
        let (read, read_waker) = Wakes::counted();
        let (_, flush_waker) = Wakes::counted();
        let sent = bytes(MUCH);
        let mut left = &sent[..];
        let mut sleeps = 0;
        thread::scope(|scope| {
            // The reader begins only after the writer has found no room.
            let (begin, begun) = mpsc::channel();
            let here = &mut here;
            let reading = scope.spawn(move || {
                begun.recv().expect("there is more than room for");
                let mut came = vec![0; MUCH];
                here.read_exact(&mut came).expect("read");
                here.write_all(b"!").expect("written");
                came
            });
            while !left.is_empty() {
                let before = written.get();
                match poll_write(&mut there, left, &write_waker) {
                    Poll::Ready(bytes) => left = &left[bytes.expect("written")..],
                    Poll::Pending => {
                        // A pending read with another waker does not release it either.
                        let nothing = poll_read(&mut there, &mut [0], &read_waker);
                        assert!(nothing.is_pending());
                        assert!(poll_flush(&mut there, &flush_waker).is_ready());
                        let _ = begin.send(());
                        written.wait_beyond(before);
                        sleeps += 1;
                    }
                }
            }
            assert!(sleeps > 0, "it had room all the time");
            loop {
                let before = read.get();
                match poll_read(&mut there, &mut [0; 2], &read_waker) {
                    Poll::Ready(read) => break assert_eq!(read.expect("read"), 1),
                    Poll::Pending => read.wait_beyond(before),
                }
            }
            assert!(reading.join().expect("it ends") == sent);
        });
    }
}

/// hyper's HTTP/2 does so: it abandons a read behind a pending write, repeats the write before it
/// sleeps, and relies on its waker to return to the read. If callers turn the engine, no turn comes
/// between the two, and over shared memory the write needs none.
#[test]
fn a_call_that_gets_through_wakes_the_call_that_waited_before_it() {
    let builder = || {
        let builder = Node::builder().driver(Driver::Caller);
        builder.fabric(Fabric::Shm, Policy::Require)
    };
    let listener = builder().listen("127.0.0.1:0").build().expect("a node");
    let client = builder().build().expect("a node");
    let address = listener.local_addr().expect("it listens");
    let peer = thread::scope(|scope| {
        let accepting = scope.spawn(|| listener.accept().expect("a session"));
        let peer = client.connect(address).expect("a session");
        accepting.join().expect("accepted");
        peer
    });
    let mut accepting = Listener::bind(&listener, "streams").expect("a name");
    let mut connecting = pin!(Stream::connect_async(&peer, "streams"));
    let (mut there, mut here) = (None, None);
    while there.is_none() || here.is_none() {
        if there.is_none()
            && let Poll::Ready(stream) = poll(connecting.as_mut(), Waker::noop())
        {
            there = Some(stream.expect("connected"));
        }
        if here.is_none()
            && let Poll::Ready(stream) = poll(pin!(accepting.accept_async()), Waker::noop())
        {
            here = Some(stream.expect("accepted").0);
        }
    }
    let (mut there, mut here) = (there.expect("it is"), here.expect("it is"));
    let (woken, waker) = Wakes::counted();
    let nobody = Waker::noop();

    // Both directions are open.
    let mut came = bytes(MUCH);
    let mut pass = |from: &mut Stream, to: &mut Stream| {
        while poll_write(from, b"!", nobody).is_pending() {}
        while poll_read(to, &mut came, nobody).is_pending() {}
    };
    pass(&mut there, &mut here);
    pass(&mut here, &mut there);

    let piece = bytes(MUCH);
    while poll_write(&mut there, &piece, &waker).is_ready() {}
    let before = woken.get();
    while poll_read(&mut here, &mut came, nobody).is_ready() {}
    assert!(poll_write(&mut there, b"!", &waker).is_ready());
    assert_eq!(woken.get() - before, 1, "of the write that was pending");

    assert!(poll_read(&mut there, &mut came, &waker).is_pending());
    let before = woken.get();
    assert!(poll_write(&mut here, b"!", nobody).is_ready());
    assert!(poll_read(&mut there, &mut came, &waker).is_ready());
    assert_eq!(woken.get() - before, 1, "of the read that was pending");
    // A call that did not wait is not woken.
    assert!(poll_write(&mut there, b"!", &waker).is_ready());
    assert_eq!(woken.get() - before, 1);
}

/// The calls of tasks, which have the same names as those of threads.
mod tasks {
    use smol::io::{AsyncReadExt, AsyncWriteExt};

    use std::{pin::pin, task::Waker};

    use futures_util::future::join;

    use super::{FABRICS, MUCH, Pair, bytes, fill, poll, stream};

    #[test]
    fn tasks_write_and_read_and_each_direction_ends_on_its_own() {
        for fabric in FABRICS {
            let pair = Pair::over(fabric);
            let (mut there, mut here) = stream(&pair);
            let sent = bytes(MUCH);
            let writing = async {
                there.write_all(&sent).await.expect("written");
                there.flush().await.expect("flushed");
                there.close().await.expect("closed");
                there.close().await.expect("and closed again");
                let mut answer = Vec::new();
                there.read_to_end(&mut answer).await.expect("read");
                assert_eq!(answer, b"all of it");
            };
            let reading = async {
                let mut came = Vec::new();
                here.read_to_end(&mut came).await.expect("read");
                assert!(came == sent);
                here.write_all(b"all of it").await.expect("written");
                here.close().await.expect("closed");
            };
            smol::block_on(join(writing, reading));
        }
    }

    #[test]
    fn a_pending_read_or_write_that_is_given_up_has_done_nothing() {
        for fabric in FABRICS {
            let pair = Pair::over(fabric);
            let (mut there, mut here) = stream(&pair);
            let mut buffer = [0; 8];
            for number in 0..100_u8 {
                {
                    let mut reading = pin!(here.read(&mut buffer));
                    assert!(poll(reading.as_mut(), Waker::noop()).is_pending());
                }
                smol::block_on(there.write_all(&[number])).expect("written");
                let read = smol::block_on(here.read(&mut buffer));
                assert_eq!((read.expect("read"), buffer[0]), (1, number));
            }
            let filled = fill(&mut there, Waker::noop());
            for _ in 0..10 {
                let piece = [9; 10_000];
                let mut writing = pin!(there.write(&piece));
                assert!(poll(writing.as_mut(), Waker::noop()).is_pending());
            }
            there.finish();
            let mut came = Vec::new();
            smol::block_on(here.read_to_end(&mut came)).expect("read");
            assert_eq!(came.len(), filled);
        }
    }
}

#[test]
fn errors_have_the_kinds_of_a_socket_and_contain_the_channels_error() {
    for fabric in FABRICS {
        let pair = Pair::over(fabric);
        // The reader drops its end.
        let (mut there, here) = stream(&pair);
        drop(here);
        let error = until_error(|| there.write(&[0; 1000]).map(drop));
        assert_eq!(error.kind(), ErrorKind::BrokenPipe);
        let within = error.get_ref().and_then(|error| error.downcast_ref());
        assert!(
            matches!(within, Some(error) if SendError::kind(error) == SendErrorKind::Disconnected),
            "{error}"
        );
        assert_eq!(there.read(&mut [0]).expect("it ended in order"), 0);
        // The writer aborts.
        let (mut there, mut here) = stream(&pair);
        there.write_all(b"half").expect("written");
        there.abort();
        let mut came = Vec::new();
        let error = here.read_to_end(&mut came).expect_err("aborted");
        assert_eq!(
            (error.kind(), &came[..]),
            (ErrorKind::ConnectionReset, &b"half"[..])
        );
        let within = error.get_ref().and_then(|error| error.downcast_ref());
        assert!(
            matches!(within, Some(error) if RecvError::kind(error) == RecvErrorKind::Disconnected),
            "{error}"
        );
        // A panic of the writer has the same effect.
        let (there, mut here) = stream(&pair);
        let panicking = thread::spawn(move || {
            let _there = there;
            panic!("of the test");
        });
        panicking.join().expect_err("it panics");
        let error = here.read(&mut [0]).expect_err("broken off");
        assert_eq!(error.kind(), ErrorKind::ConnectionReset);
        // A time-out ends a read and a write.
        let (mut there, _here) = stream(&pair);
        there.set_read_timeout(Some(MOMENT));
        there.set_write_timeout(Some(MOMENT));
        let error = there.read(&mut [0]).expect_err("nothing comes");
        assert_eq!(error.kind(), ErrorKind::TimedOut);
        let error = until_error(|| there.write(&[0; 10_000]).map(drop));
        assert_eq!(error.kind(), ErrorKind::TimedOut);
        // The session ends.
        let (mut there, mut here) = stream(&pair);
        let [client, listener] = pair.nodes;
        let _ = client.close(Duration::ZERO);
        assert_eq!(here.read(&mut [0]).expect("closing a node ends it"), 0);
        let error = there.read(&mut [0]).expect_err("this node is closed");
        assert_eq!(error.kind(), ErrorKind::ConnectionAborted);
        let error = Stream::connect(&pair.peers[0], "streams").expect_err("this node is closed");
        assert_eq!(error.kind(), ErrorKind::ConnectionAborted);
        drop(listener);
    }
}

fn until_error(mut again: impl FnMut() -> io::Result<()>) -> io::Error {
    let begun = Instant::now();
    loop {
        match again() {
            Ok(()) => assert!(begun.elapsed() < LONG, "no error comes"),
            Err(error) => return error,
        }
    }
}

#[test]
fn a_listener_that_goes_leaves_its_backlog_to_the_next() {
    for fabric in FABRICS {
        let pair = Pair::over(fabric);
        let mut listener = Listener::bind(&pair.nodes[1], "streams").expect("a name");
        let connect = || Stream::connect_async(&pair.peers[0], "streams");
        let (first, second, third) = (connect(), connect(), connect());
        let accepting = async {
            let (mut stream, _) = listener.accept_async().await.expect("accepted");
            drop(listener);
            // The accepted stream continues.
            smol::io::AsyncWriteExt::write_all(&mut stream, b"hello")
                .await
                .expect("written");
            drop(stream);
            let mut listener = Listener::bind(&pair.nodes[1], "streams").expect("a free name");
            for _ in 0..2 {
                let (mut stream, _) = listener.accept_async().await.expect("accepted");
                smol::io::AsyncWriteExt::write_all(&mut stream, b"again")
                    .await
                    .expect("written");
            }
        };
        let ends = smol::block_on(async {
            let ((), ends) = join(accepting, join(first, join(second, third))).await;
            ends
        });
        let (first, (second, third)) = ends;
        let mut said = [first, second, third].map(|accepted| {
            let mut said = String::new();
            let read = accepted.expect("accepted").read_to_string(&mut said);
            assert_eq!(read.expect("read"), 5);
            said
        });
        said.sort();
        assert_eq!(said, ["again", "again", "hello"]);
        // The same peer finds the next listener.
        stream(&pair);
        stream(&pair);
    }
}

/// The connecting end may not have learned that the first listener went.
#[test]
fn a_listener_that_is_bound_again_at_once_is_connected_to() {
    for fabric in FABRICS {
        let pair = Pair::over(fabric);
        for _ in 0..50 {
            stream(&pair);
        }
    }
}

#[test]
fn a_request_that_is_taken_back_is_not_accepted() {
    for fabric in FABRICS {
        let pair = Pair::over(fabric);
        let mut listener = Listener::bind(&pair.nodes[1], "streams").expect("a name");
        {
            // The listener learns of the peer, and the peer of it.
            let mut accepting = pin!(listener.accept_async());
            assert!(poll(accepting.as_mut(), Waker::noop()).is_pending());
            let mut taken_back = pin!(Stream::connect_async(&pair.peers[0], "streams"));
            let is_requested = || {
                let sessions = pair.nodes[0].stats().sessions;
                let mut channels = sessions.iter().flat_map(|session| &session.channels);
                channels.any(|channel| channel.name == "streams" && channel.sent == 1)
            };
            while !is_requested() {
                assert!(poll(taken_back.as_mut(), Waker::noop()).is_pending());
                thread::yield_now();
            }
        }
        let wanted = async {
            let mut stream = Stream::connect_async(&pair.peers[0], "streams")
                .await
                .expect("connected");
            smol::io::AsyncWriteExt::write_all(&mut stream, b"wanted")
                .await
                .expect("written");
        };
        let accepting = async {
            loop {
                // A request that was just withdrawn may appear as a stream at its end.
                let (mut stream, _) = listener.accept_async().await.expect("accepted");
                let mut came = String::new();
                smol::io::AsyncReadExt::read_to_string(&mut stream, &mut came)
                    .await
                    .expect("read");
                match &*came {
                    "wanted" => return,
                    came => assert_eq!(came, ""),
                }
            }
        };
        smol::block_on(join(wanted, accepting));
    }
}

#[test]
fn streams_of_all_peers_come_as_a_stream_until_the_node_is_closed() {
    let pair = Pair::over(Fabric::Tcp);
    let [_client, server] = &pair.nodes;
    let mut listener = Listener::bind(server, "streams").expect("a name");
    let address = server.local_addr().expect("it listens");
    let clients: Vec<_> = (0..3_u8)
        .map(|number| {
            thread::spawn(move || {
                let node = ibex::Node::client().expect("a node");
                let peer = node.connect(address).expect("a session");
                let mut stream = Stream::connect(&peer, "streams").expect("connected");
                stream.write_all(&[number]).expect("written");
                // The client's node sends goodbye.
                assert_eq!(stream.read(&mut [0]).expect("the end"), 0);
            })
        })
        .collect();
    let mut numbers: Vec<u8> = Vec::new();
    smol::block_on(async {
        while numbers.len() < clients.len() {
            let mut stream = listener.next().await.expect("open").expect("accepted");
            let mut number = [0];
            smol::io::AsyncReadExt::read_exact(&mut stream, &mut number)
                .await
                .expect("read");
            numbers.push(number[0]);
        }
    });
    numbers.sort_unstable();
    assert_eq!(numbers, [0, 1, 2]);
    for client in clients {
        client.join().expect("it ends well");
    }
    let Pair {
        nodes: [client, server],
        ..
    } = pair;
    drop(client);
    let _ = server.close(Duration::ZERO);
    assert!(smol::block_on(listener.next()).is_none());
    assert!(smol::block_on(listener.next()).is_none());
    let error = listener.accept().expect_err("the node is closed");
    assert_eq!(error.kind(), ErrorKind::ConnectionAborted);
}

#[test]
fn names_are_checked_and_two_uses_of_one_are_told_apart() {
    let pair = Pair::over(Fabric::Shm);
    let [client, server] = &pair.nodes;
    for name in [String::new(), "x".repeat(229)] {
        let error = Listener::bind(server, &name).expect_err("no name");
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
        let error = Stream::connect(&pair.peers[0], &name).expect_err("no name");
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
    }
    let longest = "x".repeat(228);
    let mut listener = Listener::bind(server, &longest).expect("a name");
    let connecting = Stream::connect_async(&pair.peers[0], &longest);
    let (there, here) = smol::block_on(join(connecting, listener.accept_async()));
    there.and(here.map(drop)).expect("a stream");
    // A second listener cannot have the name.
    let error = Listener::bind(server, &longest).expect_err("the first has it");
    assert_eq!(error.kind(), ErrorKind::AddrInUse, "{error}");
    drop(listener);
    drop(Listener::bind(server, &longest).expect("the name is free"));
    // A channel of messages has the name.
    let messages = pair.peers[1].channel("messages").codec::<Pod>();
    let _messages = messages.receiver::<u64>().expect("a receiver");
    let mut second = Listener::bind(server, "messages").expect("it hears of peers later");
    let error = second.accept().expect_err("the receiver has the name");
    assert_eq!(error.kind(), ErrorKind::AddrInUse, "{error}");
    let error = Stream::connect(&pair.peers[0], "messages").expect_err("no listener");
    assert_eq!(error.kind(), ErrorKind::InvalidData, "{error}");
    // No listener has the name.
    drop((client, second));
    let impatient = ibex::Node::builder()
        .open_timeout(MOMENT)
        .build()
        .expect("a node");
    let address = server.local_addr().expect("it listens");
    let peer = impatient.connect(address).expect("a session");
    let error = Stream::connect(&peer, "nobody").expect_err("no listener");
    assert_eq!(error.kind(), ErrorKind::TimedOut, "{error}");
}

/// Both nodes have a listener with the same name, and connect to each other.
#[test]
fn both_nodes_listen_by_one_name_and_connect_to_each_other() {
    for fabric in FABRICS {
        let pair = Pair::over(fabric);
        let mut listeners =
            [0, 1].map(|node| Listener::bind(&pair.nodes[node], "streams").expect("a name"));
        let [left, right] = &mut listeners;
        let ends = async {
            let connecting = join(
                Stream::connect_async(&pair.peers[0], "streams"),
                Stream::connect_async(&pair.peers[1], "streams"),
            );
            join(connecting, join(left.accept_async(), right.accept_async())).await
        };
        let ((to_right, to_left), (at_left, at_right)) = smol::block_on(ends);
        let streams = [to_right, to_left].map(|stream| stream.expect("connected"));
        let accepted = [at_right, at_left].map(|stream| stream.expect("accepted").0);
        for (number, (mut from, mut to)) in streams.into_iter().zip(accepted).enumerate() {
            from.write_all(&[number as u8]).expect("written");
            let mut came = [9];
            to.read_exact(&mut came).expect("read");
            assert_eq!(came, [number as u8]);
        }
    }
}

#[test]
fn streams_and_their_futures_can_move_to_other_threads() {
    fn is_send<T: Send>(_: &T) {}
    let pair = Pair::over(Fabric::Shm);
    let (there, here) = stream(&pair);
    is_send(&there);
    let halves = here.into_split();
    is_send(&halves);
    let mut listener = Listener::bind(&pair.nodes[1], "others").expect("a name");
    is_send(&listener);
    is_send(&listener.accept_async());
    is_send(&Stream::connect_async(&pair.peers[0], "others"));
}

const MOMENT: Duration = Duration::from_millis(30);
/// A time-out that is longer than any call that ends.
const LONG: Duration = Duration::from_secs(120);

fn poll<F: Future>(future: Pin<&mut F>, waker: &Waker) -> Poll<F::Output> {
    future.poll(&mut Context::from_waker(waker))
}
