//! Byte streams over connections that break: they wait, and continue at the same byte.

use std::{
    io::{Read, Write},
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::Duration,
};

use ibex::{
    Fabric,
    io::{Listener, Stream},
};

use super::pair_over;

/// Returns a byte that differs from its neighbours, so that a lost or repeated one shows.
fn byte(index: usize) -> u8 {
    (index * 7 / 3) as u8
}

/// Writes until `is_enough`, which requires that both ends have resumed. Returns the number of
/// bytes.
fn write(mut to: impl Write, is_enough: impl Fn(usize) -> bool) -> usize {
    let mut written = 0;
    let mut buffer = vec![0; 50_000];
    while !is_enough(written) {
        for (offset, to) in buffer.iter_mut().enumerate() {
            *to = byte(written + offset);
        }
        to.write_all(&buffer).unwrap();
        written += buffer.len();
    }
    written
}

fn read(mut from: impl Read) -> usize {
    let mut came = 0;
    let mut buffer = vec![0; 70_000];
    loop {
        let bytes = from.read(&mut buffer).unwrap();
        if bytes == 0 {
            return came;
        }
        for (offset, is) in buffer[..bytes].iter().enumerate() {
            assert_eq!(*is, byte(came + offset), "byte {}", came + offset);
        }
        came += bytes;
    }
}

#[test]
fn a_stream_goes_on_over_another_connection_with_every_byte_once() {
    for fabric in [Fabric::Tcp, Fabric::Shm] {
        let (here, peer, proxy, there, other) = pair_over(fabric);
        let mut listener = Listener::bind(&there, "bytes").unwrap();
        let accepting = thread::spawn(move || listener.accept().unwrap().0);
        let stream = Stream::connect(&peer, "bytes").unwrap();
        let accepted = accepting.join().unwrap();
        let is_done = AtomicBool::new(false);
        let has_resumed = || peer.stats().resumes > 1 && other.stats().resumes > 1;
        let is_enough = |written| written >= 4 << 20 && has_resumed();
        thread::scope(|scope| {
            let both = |stream: Stream| {
                let (from, to) = stream.into_split();
                let writing = scope.spawn(move || write(to, is_enough));
                (writing, scope.spawn(move || read(from)))
            };
            let ends = [both(stream), both(accepted)];
            scope.spawn(|| {
                let mut pause = 3;
                while !is_done.load(Ordering::Acquire) {
                    thread::sleep(Duration::from_millis(pause));
                    if !peer.is_suspended() && !other.is_suspended() {
                        proxy.cut();
                    }
                    pause = (pause * 7) % 41;
                }
            });
            let [(write_here, read_here), (write_there, read_there)] = ends;
            let written = [write_here, write_there].map(|thread| thread.join().unwrap());
            let read = [read_there, read_here].map(|thread| thread.join().unwrap());
            is_done.store(true, Ordering::Release);
            assert_eq!(written, read);
        });
        drop((here, there));
    }
}

/// A connect that is on its way when the connection breaks is accepted over the next one.
#[test]
fn a_stream_is_connected_over_another_connection() {
    for fabric in [Fabric::Tcp, Fabric::Shm] {
        let (_here, peer, proxy, there, other) = pair_over(fabric);
        let mut listener = Listener::bind(&there, "bytes").unwrap();
        proxy.cut_off();
        super::wait_until(|| peer.is_suspended() && other.is_suspended());
        let connecting = thread::spawn(move || Stream::connect(&peer, "bytes").unwrap());
        let accepting = thread::spawn(move || listener.accept().unwrap().0);
        proxy.mend();
        let (mut from, mut to) = (connecting.join().unwrap(), accepting.join().unwrap());
        from.write_all(b"hello").unwrap();
        from.finish();
        let mut came = String::new();
        to.read_to_string(&mut came).unwrap();
        assert_eq!(came, "hello");
    }
}
