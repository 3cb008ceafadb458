//! A path to a listener that can be cut.

use std::{
    io::{Read, Write},
    net::{Shutdown, SocketAddr, TcpListener, TcpStream},
    sync::{
        Arc, Condvar, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    thread,
};

/// A path to a listener that can be cut.
pub(crate) struct Cable {
    pub(crate) address: SocketAddr,
    inner: Arc<Inner>,
}

#[derive(Default)]
struct Inner {
    /// Both sides of each connection, and the near side of those that lead nowhere.
    ends: Mutex<Vec<TcpStream>>,
    is_cut: AtomicBool,
    /// Accepts connections while the cable is cut, and leads them nowhere, instead of refusing
    /// them.
    is_silent: AtomicBool,
    /// Accepts connections over which nothing passes.
    is_held: Mutex<bool>,
    is_let_go: Condvar,
}

impl Cable {
    pub(crate) fn to(target: SocketAddr) -> Self {
        Self::with(target, Inner::default())
    }

    /// Creates a cable that accepts connections, over which nothing passes until they are released.
    pub(crate) fn held(target: SocketAddr) -> Self {
        let inner = Inner {
            is_held: Mutex::new(true),
            ..Inner::default()
        };
        Self::with(target, inner)
    }

    fn with(target: SocketAddr, inner: Inner) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let inner = Arc::new(inner);
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
                    let lines = lines.clone();
                    thread::spawn(move || carry(from, to, &lines));
                }
                ends.extend([here, there]);
            }
        });
        Self { address, inner }
    }

    /// Returns whether there is a connection through the cable.
    pub(crate) fn is_connected(&self) -> bool {
        !self.inner.ends.lock().unwrap().is_empty()
    }

    pub(crate) fn let_go(&self) {
        *self.inner.is_held.lock().unwrap() = false;
        self.inner.is_let_go.notify_all();
    }

    /// Breaks the existing connections.
    pub(crate) fn cut(&self) {
        for end in self.inner.ends.lock().unwrap().drain(..) {
            let _ = end.shutdown(Shutdown::Both);
        }
    }

    /// Breaks the connections, and refuses others until the cable is mended.
    pub(crate) fn cut_for_good(&self) {
        self.inner.is_cut.store(true, Ordering::Release);
        self.cut();
    }

    /// Breaks the connections, and keeps later ones waiting for an answer.
    pub(crate) fn cut_and_be_silent(&self) {
        self.inner.is_silent.store(true, Ordering::Release);
        self.cut_for_good();
    }

    pub(crate) fn mend(&self) {
        self.inner.is_cut.store(false, Ordering::Release);
        if self.inner.is_silent.swap(false, Ordering::AcqRel) {
            // Ends the waiting connections; their nodes dial once more.
            self.cut();
        }
    }
}

fn carry(mut from: TcpStream, mut to: TcpStream, lines: &Inner) {
    let is_held = lines.is_held.lock().unwrap();
    drop(lines.is_let_go.wait_while(is_held, |is_held| *is_held));

    let mut buffer = [0; 16 << 10];
    while let Ok(read @ 1..) = from.read(&mut buffer) {
        if to.write_all(&buffer[..read]).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Both);
    let _ = from.shutdown(Shutdown::Both);
}
