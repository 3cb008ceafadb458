//! A log of numbers, what its far ends apply, and where they listen.

use std::{
    error::Error,
    net::{Ipv4Addr, SocketAddr, TcpListener},
    process,
    sync::{Arc, Mutex},
};

use ibex::{
    Message, Peer, Pod, Receiver, Sender,
    log::{LogAnswer, LogSent, LogSource, LogTurn},
};

pub(crate) type SourceResult<R> = Result<R, Box<dyn Error + Send + Sync>>;

/// A log of the numbers from 1 on, whose far end sends its position.
pub(crate) struct Numbers {
    pub(crate) end: u64,
}

pub(crate) fn numbers(peer: &Peer) -> SourceResult<Sender<u64, Pod>> {
    let channel = peer.channel("numbers").codec::<Pod>();
    Ok(channel.window_messages(256).sender()?)
}

impl LogSource<u64, Pod> for Numbers {
    fn end(&self) -> u64 {
        self.end
    }

    fn resume(&mut self, peer: Peer) -> LogAnswer<u64, Pod> {
        Box::pin(async move {
            let mut positions = peer.channel("position").codec::<Pod>().receiver::<u64>()?;
            let position = positions.recv_async().await?;
            Ok((numbers(&peer)?, *position))
        })
    }

    fn send_next(&mut self, position: u64, turn: LogTurn<'_, u64, Pod>) -> SourceResult<LogSent> {
        Ok(turn.send(&(position + 1), position + 1))
    }
}

/// The numbers that the far end has applied, in order; they outlive it.
#[derive(Clone, Default)]
pub(crate) struct Disk(Arc<Mutex<Vec<u64>>>);

impl Disk {
    pub(crate) fn position(&self) -> u64 {
        self.0.lock().expect("no panic").len() as u64
    }

    pub(crate) fn apply(&self, number: u64) {
        self.0.lock().expect("no panic").push(number);
    }

    /// Loses all numbers behind a position.
    #[allow(
        dead_code,
        reason = "not every test has a far end that loses something"
    )]
    pub(crate) fn cut(&self, position: u64) {
        let mut numbers = self.0.lock().expect("no panic");
        numbers.truncate(position as usize);
    }

    pub(crate) fn assert_has_each_once(&self, end: u64) {
        let numbers = self.0.lock().expect("no panic");
        assert!(numbers.iter().copied().eq(1..=end), "{numbers:?}");
    }
}

/// A log whose far end sends no position.
pub(crate) struct Answered<A> {
    pub(crate) numbers: Numbers,
    answer: A,
}

impl<A: FnMut() -> SourceResult<u64>> LogSource<u64, Pod> for Answered<A> {
    fn end(&self) -> u64 {
        self.numbers.end
    }

    fn resume(&mut self, peer: Peer) -> LogAnswer<u64, Pod> {
        let position = (self.answer)();
        Box::pin(async move {
            let position = position?;
            Ok((numbers(&peer)?, position))
        })
    }

    fn send_next(&mut self, position: u64, turn: LogTurn<'_, u64, Pod>) -> SourceResult<LogSent> {
        self.numbers.send_next(position, turn)
    }
}

pub(crate) fn answered<A: FnMut() -> SourceResult<u64>>(end: u64, answer: A) -> Answered<A> {
    let numbers = Numbers { end };
    Answered { numbers, answer }
}

/// Receives the next message, while another thread drives the log sender.
pub(crate) fn await_next(receiver: &mut Receiver<u64, Pod>) -> Message<u64, Pod> {
    receiver.next().expect("a message").expect("no end")
}

/// Returns an address at which nobody listens. It stays free while its far end is away: no other
/// process has this address of the loopback interface, connections come from 127.0.0.1, and no two
/// calls return the same.
pub(crate) fn free_address() -> SocketAddr {
    static RETURNED: Mutex<Vec<SocketAddr>> = Mutex::new(Vec::new());
    let [_, a, b, c] = process::id().to_be_bytes();
    let host = Ipv4Addr::new(127, 128 | a, b, c);
    let mut returned = RETURNED.lock().expect("no panic");
    loop {
        let socket = TcpListener::bind((host, 0)).expect("a port");
        let address = socket.local_addr().expect("it is bound");
        if !returned.contains(&address) {
            returned.push(address);
            return address;
        }
    }
}
