//! Messages from and into memory that the program owns: waits for it, sends that wait, and devices.

#[path = "../common/over.rs"]
mod over;

#[cfg(feature = "fake-device")]
mod device;
mod receiving;
mod sending;
mod unreadable;
mod waiting;

use std::{env, fs, fs::File, path::PathBuf, process, sync::Arc, thread, time::Duration};

use ibex::{Driver, Fabric, Node, NodeBuilder, Peer, Raw, Receiver, Region, Sender};
use over::Over;

const LONG: Duration = Duration::from_secs(120);
/// A pause, after which the other node is turned.
const MOMENT: Duration = Duration::from_millis(1);
/// More than a peer takes that is not turned, and not whole pages.
const LENGTH: usize = (5 << 20) + 11;

/// A channel of bytes to a node that only this test's calls turn.
struct Pair {
    fabric: Fabric,
    here: Arc<Node>,
    sender: Sender<[u8], Raw>,
    receiver: Receiver<[u8], Raw>,
    there: Node,
    peers: [Peer; 2],
}

impl Pair {
    /// Makes a channel with room for `window` messages, and carries a short one.
    fn meet(over: &Over, window: u64) -> Self {
        Self::meet_with(over, window, |builder| builder)
    }

    /// Makes a channel to a node with other settings.
    fn meet_with(
        over: &Over,
        window: u64,
        settings: impl FnOnce(NodeBuilder) -> NodeBuilder,
    ) -> Self {
        let there = settings(over.builder(Driver::Caller).listen("127.0.0.1:0"));
        let there = there.build().expect("a node");
        let address = there.local_addr().expect("it listens");
        let here = over.builder(Driver::Threads).build().expect("a node");
        let peers = thread::scope(|scope| {
            let connecting = scope.spawn(|| here.connect(address).expect("a session"));
            let other = there.accept_timeout(LONG).expect("the same session");
            let peer = loop {
                there.poll();
                if connecting.is_finished() {
                    break connecting.join().expect("no panic");
                }
            };
            [peer, other]
        });
        let raw = peers[0]
            .channel("bytes")
            .codec::<Raw>()
            .window_messages(window);
        let sender = raw.sender::<[u8]>().expect("a sender");
        let raw = peers[1].channel("bytes").codec::<Raw>();
        let mut pair = Self {
            fabric: over.fabric,
            here: Arc::new(here),
            sender,
            receiver: raw.receiver::<[u8]>().expect("a receiver"),
            there,
            peers,
        };
        pair.carry_first();
        pair
    }

    fn carry_first(&mut self) {
        while let Err(late) = self.sender.opened(MOMENT) {
            assert!(late.is_transient(), "{late}");
            self.there.poll();
        }
        let first = self.sender.send(b"first").expect("sent");
        self.take(b"first");
        let mut acked = self.sender.clone();
        while let Err(late) = acked.wait_acked_timeout(first, MOMENT) {
            assert!(late.is_transient(), "{late}");
            assert!(self.receiver.try_recv().is_err(), "nothing more was sent");
        }
    }

    /// Receives and releases a message.
    fn take(&mut self, bytes: &[u8]) {
        let message = self.receiver.recv_timeout(LONG).expect("a message");
        assert!(message[..] == *bytes, "{} other bytes", message.len());
        message.ack();
    }

    /// Returns a region from which the fabric sends in place.
    fn region(&self, name: &str) -> Region {
        match self.fabric {
            Fabric::Verbs => mapped(name),
            Fabric::Shm => pages(),
            _ => Region::from(bytes()),
        }
    }
}

/// Bytes that say where they lie.
fn bytes() -> Vec<u8> {
    (0..LENGTH).map(|at| (at * 7 / 3) as u8).collect()
}

/// Makes pages of their own, with these bytes.
fn pages() -> Region {
    let mut region = Region::zeroed(LENGTH).expect("memory");
    let whole = region.get_mut().expect("nobody else has it");
    whole.copy_from_slice(&bytes());
    region
}

/// Returns the path of a file that this thread's test alone has.
fn path_of(name: &str) -> PathBuf {
    let (process, thread) = (process::id(), thread::current().id());
    env::temp_dir().join(format!("ibex-regions-{name}-{process}-{thread:?}"))
}

/// Maps the end of a file of its own, with these bytes.
fn mapped(name: &str) -> Region {
    let path = path_of(name);
    fs::write(&path, [&[0xee; BEFORE as usize][..], &bytes()].concat()).expect("a file");
    let file = File::open(&path).expect("it is there");
    fs::remove_file(&path).expect("it is there");
    // SAFETY: the file has no name any more, and nobody else has it open.
    unsafe { Region::map(&file, BEFORE..) }.expect("it is mapped")
}

/// The bytes of a file before those that are mapped: not whole pages.
const BEFORE: u64 = 5001;
