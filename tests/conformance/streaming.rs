//! Byte streams deliver bytes in order and once, by threads and by tasks, to the end or to a kill.

use std::{
    io::{ErrorKind, Read, Write},
    thread,
};

use futures_util::future::join;
use ibex::{
    Node, RecvError, RecvErrorKind, Region,
    io::{Listener, Stream},
};

use crate::{
    common::{
        scenario::{Scenario, Side},
        stage::Stage,
        task,
    },
    regions::wait_free,
};

pub(crate) const SCENARIOS: &[Scenario] = &[
    Scenario::new("stream_by_threads", by_threads),
    Scenario::new("stream_by_tasks", by_tasks),
    Scenario::new("stream_from_regions", from_regions),
    Scenario::new("streams_one_after_the_other", one_after_the_other),
    Scenario::new("stream_writer_killed", writer_killed).kills(Side::Dialer),
    Scenario::new("stream_reader_killed", reader_killed).kills(Side::Listener),
];

/// Returns byte `index` of every stream.
fn byte(index: usize) -> u8 {
    (index * 7 / 3) as u8
}

/// Fills a buffer with the bytes from `index` on.
fn fill(index: usize, buffer: &mut [u8]) {
    for (offset, to) in buffer.iter_mut().enumerate() {
        *to = byte(index + offset);
    }
}

fn check(index: usize, bytes: &[u8]) {
    let wrong = (0..bytes.len()).find(|&offset| bytes[offset] != byte(index + offset));
    assert_eq!(wrong, None, "behind byte {index}");
}

/// Lengths of writes and of reads: short ones, and some longer than a piece.
const LENGTHS: [usize; 7] = [1, 100, 4096, 65_536, 200_000, 3, 65_537];

/// Writes `total` bytes in writes of every length, and ends the direction.
fn write(mut to: impl Write, total: usize) {
    let mut buffer = vec![0; 200_000];
    let mut written = 0;
    for length in LENGTHS.into_iter().cycle() {
        let buffer = &mut buffer[..length.min(total - written)];
        fill(written, buffer);
        to.write_all(buffer).expect("written");
        written += buffer.len();
        if written == total {
            return to.flush().expect("flushed");
        }
    }
}

/// Reads to the end, in reads of every length. Returns the number of bytes.
fn read(mut from: impl Read) -> usize {
    let mut buffer = vec![0; 200_000];
    let mut came = 0;
    for length in LENGTHS.into_iter().rev().cycle() {
        match from.read(&mut buffer[..length]).expect("read") {
            0 => break,
            bytes => {
                check(came, &buffer[..bytes]);
                came += bytes;
            }
        }
    }
    came
}

/// A stream in each direction at a time, by two threads at each end.
fn by_threads(stage: &mut Stage) {
    let (node, peer) = stage.meet();
    let total = stage.count(20_000_000) as usize;
    let stream = match stage.side {
        Side::Dialer => Stream::connect(&peer, "bytes").expect("accepted"),
        Side::Listener => accept(&node),
    };
    let (mut from, to) = stream.into_split();
    thread::scope(|scope| {
        scope.spawn(|| write(to, total));
        assert_eq!(read(&mut from), total);
    });
    assert_eq!(from.read(&mut [0]).expect("the end stays"), 0);
    stage.rendezvous("done", &node);
}

/// Slices of a region are written between other bytes, by threads and by tasks, and read as all
/// bytes are. Then the region is the program's again.
fn from_regions(stage: &mut Stage) {
    let (node, peer) = stage.meet();
    let driver = stage.driver();
    match stage.side {
        Side::Dialer => {
            let mut stream = Stream::connect(&peer, "bytes").expect("accepted");
            let mut bytes = vec![0; SLICED_BYTES.iter().sum()];
            fill(0, &mut bytes);
            let region = Region::from(bytes);
            let mut written = 0;
            for (turn, length) in SLICED_BYTES.into_iter().enumerate() {
                let slice = region.slice(written..written + length);
                match turn % 3 {
                    0 => stream.write_all(&slice),
                    1 => stream.write_region(&slice),
                    _ => task::run(&node, driver, stream.write_region_async(&slice)),
                }
                .expect("written");
                written += length;
            }
            stream.finish();
            let refused = stream
                .write_region(&region.slice(..1))
                .expect_err("finished");
            assert_eq!(refused.kind(), ErrorKind::BrokenPipe);
            assert_eq!(stream.read(&mut [0]).expect("the end"), 0);
            wait_free(&region, &node);
            check(0, &region.into_vec().expect("no slice is left"));
        }
        Side::Listener => {
            let mut stream = accept(&node);
            assert_eq!(read(&mut stream), SLICED_BYTES.iter().sum::<usize>());
        }
    }
}

/// Slices around the longest piece, mixed with short ones.
const SLICED_BYTES: [usize; 12] = [
    11,
    100,
    (3 << 20) + 5,
    70_000,
    1 << 20,
    0,
    1,
    (1 << 20) + 1,
    (128 << 10) + 1,
    200_000,
    0,
    2 << 20,
];

fn accept(node: &Node) -> Stream {
    let mut listener = Listener::bind(node, "bytes").expect("a name");
    listener.accept().expect("a stream").0
}

/// A stream in each direction at a time, by a task at each end.
fn by_tasks(stage: &mut Stage) {
    use smol::io::{AsyncReadExt, AsyncWriteExt};

    let (node, peer) = stage.meet();
    let driver = stage.driver();
    let total = stage.count(20_000_000) as usize;
    let stream = match stage.side {
        Side::Dialer => {
            task::run(&node, driver, Stream::connect_async(&peer, "bytes")).expect("accepted")
        }
        Side::Listener => {
            let mut listener = Listener::bind(&node, "bytes").expect("a name");
            let accepted = task::run(&node, driver, listener.accept_async());
            accepted.expect("a stream").0
        }
    };
    let (mut from, mut to) = stream.into_split();
    let writing = async {
        let mut buffer = vec![0; 200_000];
        let mut written = 0;
        for length in LENGTHS.into_iter().cycle() {
            let buffer = &mut buffer[..length.min(total - written)];
            fill(written, buffer);
            AsyncWriteExt::write_all(&mut to, buffer)
                .await
                .expect("written");
            written += buffer.len();
            if written == total {
                break;
            }
        }
        AsyncWriteExt::close(&mut to).await.expect("closed");
    };
    let reading = async {
        let mut buffer = vec![0; 200_000];
        let mut came = 0;
        for length in LENGTHS.into_iter().rev().cycle() {
            match AsyncReadExt::read(&mut from, &mut buffer[..length])
                .await
                .expect("read")
            {
                0 => break,
                bytes => {
                    check(came, &buffer[..bytes]);
                    came += bytes;
                }
            }
        }
        assert_eq!(came, total);
    };
    task::run(&node, driver, join(writing, reading));
    stage.rendezvous("done", &node);
}

/// Streams are repeatedly connected, asked once and ended: none leaves an end behind, so the limit
/// on ends is never reached.
fn one_after_the_other(stage: &mut Stage) {
    let (node, peer) = stage.meet_as(|builder| builder.max_channels(64));
    let rounds = stage.count(3_000).max(100);
    match stage.side {
        Side::Dialer => {
            for number in 0..rounds {
                let mut stream = Stream::connect(&peer, "bytes").expect("accepted");
                stream.write_all(&number.to_le_bytes()).expect("written");
                stream.finish();
                let mut answer = Vec::new();
                stream.read_to_end(&mut answer).expect("answered");
                assert_eq!(answer, number.to_le_bytes());
            }
            stage.rendezvous("done", &node);
        }
        Side::Listener => {
            let mut listener = Listener::bind(&node, "bytes").expect("a name");
            for _ in 0..rounds {
                let (mut stream, who) = listener.accept().expect("a stream");
                assert_eq!(who, peer.at());
                let mut question = Vec::new();
                stream.read_to_end(&mut question).expect("asked");
                stream.write_all(&question).expect("answered");
            }
            stage.rendezvous("done", &node);
        }
    }
}

/// `kill -9` of the writer: everything that arrived is read, then an error, which is permanent.
fn writer_killed(stage: &mut Stage) {
    let (node, peer) = stage.meet();
    match stage.side {
        Side::Dialer => {
            let mut stream = Stream::connect(&peer, "bytes").expect("accepted");
            let (mut buffer, mut written) = (vec![0; 10_000], 0);
            loop {
                fill(written, &mut buffer);
                stream.write_all(&buffer).expect("written until killed");
                written += buffer.len();
            }
        }
        Side::Listener => {
            let mut stream = accept(&node);
            let (mut buffer, mut came) = (vec![0; 10_000], 0);
            let error = loop {
                let before = came;
                match stream.read(&mut buffer) {
                    Ok(0) => panic!("this is no end in order"),
                    Ok(bytes) => {
                        check(came, &buffer[..bytes]);
                        came += bytes;
                    }
                    Err(error) => break error,
                }
                if before < 1_000_000 && came >= 1_000_000 {
                    stage.kill_other();
                }
            };
            assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{error}");
            let within = error.get_ref().and_then(|error| error.downcast_ref());
            assert!(
                matches!(within, Some(error) if RecvError::kind(error) == RecvErrorKind::Disconnected)
            );
            let error = stream.read(&mut buffer).expect_err("and it stays so");
            assert_eq!(error.kind(), ErrorKind::ConnectionReset);
        }
    }
}

/// `kill -9` of the reader while the writer waits for room.
fn reader_killed(stage: &mut Stage) {
    let (node, peer) = stage.meet();
    match stage.side {
        Side::Dialer => {
            let mut stream = Stream::connect(&peer, "bytes").expect("accepted");
            stream.read_exact(&mut [0]).expect("it reads no more");
            let mut killing = Some(stage);
            let (buffer, mut written) = (vec![0; 65_536], 0);
            let error = loop {
                // The stream is far from full, so that the kill comes before a write blocks
                // forever. A write may be shorter than requested.
                if written >= 1 << 20
                    && let Some(stage) = killing.take()
                {
                    stage.kill_other();
                }
                match stream.write(&buffer) {
                    Ok(bytes) => written += bytes,
                    Err(error) => break error,
                }
            };
            assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{error}");
            let error = Stream::connect(&peer, "bytes").expect_err("nobody is there");
            assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{error}");
        }
        Side::Listener => {
            let mut stream = accept(&node);
            stream.write_all(&[1]).expect("written");
            // This process makes no further call that could send the bytes.
            stream.flush().expect("flushed");
            loop {
                thread::park();
            }
        }
    }
}
