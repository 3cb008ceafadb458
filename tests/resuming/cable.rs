//! A way to a listener that can be cut.

use std::{
    io::{Read, Write},
    net::{Shutdown, SocketAddr, TcpListener, TcpStream},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    thread,
};

/// A way to a listener that can be cut.
pub(crate) struct Cable {
    pub(crate) address: SocketAddr,
    inner: Arc<Inner>,
}

#[derive(Default)]
struct Inner {
    /// Both sides of each connection, and of those that lead nowhere the near one.
    ends: Mutex<Vec<TcpStream>>,
    is_cut: AtomicBool,
    /// Whoever dials while it is cut is connected, to nobody, and not sent away.
    is_silent: AtomicBool,
}

impl Cable {
    pub(crate) fn to(target: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let inner = Arc::<Inner>::default();
        let lines = inner.clone();
        thread::spawn(move || {
            for here in listener.incoming() {
                let here = here.unwrap();
                if lines.is_cut.load(Ordering::Acquire) {
                    let mut ends = lines.ends.lock().unwrap();
                    if lines.is_silent.load(Ordering::Acquire) {
                        ends.push(here);
                    }
                    continue;
                }
                let there = TcpStream::connect(target).unwrap();
                let mut ends = lines.ends.lock().unwrap();
                for (from, to) in [(&here, &there), (&there, &here)] {
                    let (from, to) = (from.try_clone().unwrap(), to.try_clone().unwrap());
                    thread::spawn(move || carry(from, to));
                }
                ends.extend([here, there]);
            }
        });
        Self { address, inner }
    }

    /// Breaks the connections that there are.
    pub(crate) fn cut(&self) {
        for end in self.inner.ends.lock().unwrap().drain(..) {
            let _ = end.shutdown(Shutdown::Both);
        }
    }

    /// And lets none through until it is mended.
    pub(crate) fn cut_for_good(&self) {
        self.inner.is_cut.store(true, Ordering::Release);
        self.cut();
    }

    /// The same, but whoever dials meanwhile waits for an answer.
    pub(crate) fn cut_and_be_silent(&self) {
        self.inner.is_silent.store(true, Ordering::Release);
        self.cut_for_good();
    }

    pub(crate) fn mend(&self) {
        self.inner.is_cut.store(false, Ordering::Release);
        if self.inner.is_silent.swap(false, Ordering::AcqRel) {
            // What waits in vain. Whoever has come since comes once more.
            self.cut();
        }
    }
}

fn carry(mut from: TcpStream, mut to: TcpStream) {
    let mut buffer = [0; 16 << 10];
    while let Ok(read @ 1..) = from.read(&mut buffer) {
        if to.write_all(&buffer[..read]).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Both);
    let _ = from.shutdown(Shutdown::Both);
}
