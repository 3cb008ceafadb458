//! Sessions over the fake provider: two nodes in one process, each with its own RDMA port, and a
//! connection between them in the state after the handshake.

mod abandoning;
mod carrying;
mod coming_and_going;
mod counted;
mod crowd;
mod eager_block;
mod early;
mod ending;
mod hostile;
mod limits;
mod masks;
mod parting;
mod partitions;
mod pulling;
mod rails;
mod reactions;
mod regions;
mod removal;
mod rendezvous;
mod resting;
mod resuming;
mod revoking;
mod undrained;
mod waiting;

use std::net::TcpStream;
use std::sync::Arc;
use std::{array, fs::File, io::Write as _, mem::MaybeUninit, ptr};

use ibex_protocol::format::{
    channel_window::{ChannelWindow, HALF_WINDOW},
    control::ChannelSpec,
};
use ibex_ring::{
    memory::{Region, RegionSlice},
    parking::Patience,
};
use ibex_verbs::{VerbsError, discovery::DeviceKind, provider::fake::FakeProvider};
use rustix::fs::{MemfdFlags, memfd_create};

use super::{DEVICE, choice, one_device, soft_roce};
use crate::{
    channel::{ChannelError, RawMessage, ReceiveHandle, SendHandle},
    engine::Admission,
    node::SessionShared,
    rdma::{PortSettings, PreparedPair, RdmaPort},
    runtime::{Driver, Runtime, RuntimeConfig},
    session::{EndCause, Fabric, PeerDescription, PeerNames, SessionStats},
    wire::{
        WireParts,
        tests::by_hand::{connection, spec_of_bytes},
    },
};

/// Two nodes and a session between them. Everything happens in [`settle`](Self::settle).
struct Stage {
    fake: FakeProvider,
    nodes: [Node; 2],
    queue_pairs: [u32; 2],
}

/// The objects of one end.
struct Node {
    // Fields in drop order.
    session: Arc<SessionShared>,
    runtime: Arc<Runtime>,
    rdma_port: Arc<RdmaPort>,
    /// A second handle of the connection, to break it.
    tcp: TcpStream,
}

/// Returns settings small enough for tests to reach the limits, and large enough for several
/// sessions.
fn settings() -> PortSettings {
    PortSettings {
        receive_buffers: 256,
        held_buffers: 256,
        max_sessions: 16,
        session_credit: 32,
        ..PortSettings::default()
    }
}

/// Returns settings for two nodes that read each other's large messages.
fn reading() -> PortSettings {
    PortSettings {
        reads_large: Some(true),
        ..settings()
    }
}

fn open_port(fake: &FakeProvider, settings: PortSettings) -> Arc<RdmaPort> {
    RdmaPort::open(&fake.provider(), &choice(DeviceKind::Software), settings).unwrap()
}

fn runtime(driver: Driver) -> Arc<Runtime> {
    Runtime::start(RuntimeConfig {
        node_credit_bytes: 64 << 20,
        memory_limit: 4 << 30,
        ..RuntimeConfig::of_test(driver)
    })
    .unwrap()
}

/// Prepares and connects both ends.
fn pairs(rdma_ports: [&Arc<RdmaPort>; 2]) -> Result<[PreparedPair; 2], VerbsError> {
    let [mut one, mut other] = [rdma_ports[0].prepare(true)?, rdma_ports[1].prepare(false)?];
    one.connect(&other.endpoint())?;
    other.connect(&one.endpoint())?;
    Ok([one, other])
}

fn admission(stream: TcpStream, pair: PreparedPair) -> Admission {
    stream.set_nodelay(true).unwrap();
    Admission {
        reconnect: None,
        peer: PeerDescription {
            names: PeerNames::default(),
            address: stream.peer_addr().unwrap().into(),
            identity: [0; 16],
            incarnation: 0,
            began: std::time::Instant::now(),
            pid: None,
            fabric: Fabric::Verbs,
            reason: "the test says so".to_owned(),
            known_to: None,
        },
        parts: WireParts {
            stream,
            leftover: Vec::new(),
            tls: None,
            rdma: Some(pair),
        },
        unix: None,
        max_channels: 64,
        payload_checksums: false,
        engine: None,
        place: Box::new(()),
    }
}

impl Stage {
    fn new() -> Self {
        Self::with(settings())
    }

    fn with(settings: PortSettings) -> Self {
        Self::on(one_device(), settings)
    }

    fn on(fake: FakeProvider, settings: PortSettings) -> Self {
        let stage = Self::driven(Driver::Caller, fake, settings);
        stage.settle();
        stage
    }

    fn driven(driver: Driver, fake: FakeProvider, settings: PortSettings) -> Self {
        Self::admitted(driver, fake, settings, |_, _| {})
    }

    /// Makes a stage whose ends change the admission that they make.
    fn admitted(
        driver: Driver,
        fake: FakeProvider,
        settings: PortSettings,
        change: impl Fn(usize, &mut Admission),
    ) -> Self {
        let rdma_ports = [open_port(&fake, settings), open_port(&fake, settings)];
        let pairs = pairs([&rdma_ports[0], &rdma_ports[1]]).unwrap();
        Self::over(driver, fake, rdma_ports, pairs, change)
    }

    /// Makes a stage over prepared pairs.
    fn over(
        driver: Driver,
        fake: FakeProvider,
        rdma_ports: [Arc<RdmaPort>; 2],
        pairs: [PreparedPair; 2],
        change: impl Fn(usize, &mut Admission),
    ) -> Self {
        let queue_pairs = [0, 1].map(|end| pairs[end].endpoint().pair.queue_pair);
        let mut parts = rdma_ports.into_iter().zip(pairs).zip(connection());
        let nodes = [0, 1].map(|end| {
            let ((rdma_port, pair), tcp) = parts.next().unwrap();
            let runtime = runtime(driver);
            let kept = tcp.try_clone().unwrap();
            let mut admission = admission(tcp, pair);
            change(end, &mut admission);
            Node {
                tcp: kept,
                session: runtime.admit(admission).unwrap(),
                runtime,
                rdma_port,
            }
        });
        Self {
            fake,
            nodes,
            queue_pairs,
        }
    }

    /// Turns both engines until nothing moves.
    fn settle(&self) {
        let turns = |node: &Node| node.runtime.poll_ready();
        for _ in 0..100_000 {
            let moved = self.nodes.each_ref().map(turns);
            if moved == [false; 2] {
                return;
            }
        }
        panic!("the two nodes never come to rest");
    }

    /// Turns one engine after the other until `has_come` is true, calls `then`, and settles.
    fn settle_until(&self, has_come: impl Fn() -> bool, then: impl FnOnce()) {
        for turn in 0..100_000 {
            if has_come() {
                then();
                return self.settle();
            }
            self.nodes[turn % 2].runtime.poll_ready();
        }
        panic!("it never comes");
    }

    /// Opens a channel from the first node to the second.
    fn channel(&self, name: &str, window: ChannelWindow) -> (SendHandle, ReceiveHandle) {
        let (sender, receiver) = self.open(0, name, window);
        self.settle();
        (sender, receiver)
    }

    /// Opens a channel from one of the two nodes, without settling.
    fn open(&self, from: usize, name: &str, window: ChannelWindow) -> (SendHandle, ReceiveHandle) {
        self.open_for(from, name, window, 64 << 20)
    }

    /// Opens a channel for messages of up to `longest` bytes.
    fn open_for(
        &self,
        from: usize,
        name: &str,
        window: ChannelWindow,
        longest: u64,
    ) -> (SendHandle, ReceiveHandle) {
        let (from, to) = (&self.nodes[from], &self.nodes[1 - from]);
        let spec = ChannelSpec {
            max_unreleased_bytes: window.bytes + (2 * longest).max(16 << 20),
            is_traced: false,
            ..spec_of_bytes(window, longest)
        };
        let timeout = std::time::Duration::from_secs(1);
        let (one, other) = (spec.clone(), spec);
        let sender = from.runtime.open_sender(&from.session, name, one, timeout);
        let receiver = to
            .runtime
            .open_receiver(&to.session, name, other, timeout, HALF_WINDOW);
        (sender.unwrap(), receiver.unwrap())
    }

    /// Begins another session between the two.
    fn another_session(&self) -> [Arc<SessionShared>; 2] {
        let pairs = pairs(self.nodes.each_ref().map(|node| &node.rdma_port)).unwrap();
        let mut ends = pairs.into_iter().zip(connection());
        let sessions = self.nodes.each_ref().map(|node| {
            let (pair, tcp) = ends.next().unwrap();
            node.runtime.admit(admission(tcp, pair)).unwrap()
        });
        self.settle();
        sessions
    }

    /// Returns the numbers of the two ends' queue pairs.
    fn queue_pairs(&self) -> [u32; 2] {
        self.queue_pairs
    }

    fn stats(&self) -> [SessionStats; 2] {
        self.nodes.each_ref().map(|node| node.session.stats())
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        // In every test, no message may have met an empty receive queue.
        if !std::thread::panicking() {
            assert_eq!(self.fake.rnr_naks(), 0);
            // A session keeps its runtime until it has ended.
            for node in &self.nodes {
                let _ = node.runtime.end_close();
            }
        }
    }
}

/// A window of 1 MiB, and of more messages than any test sends.
const WINDOW: ChannelWindow = ChannelWindow {
    messages: 1 << 14,
    bytes: 1 << 20,
};

/// Returns the content of message `number`.
fn payload(number: u64, length: usize) -> Vec<u8> {
    // A block of 256 bytes is repeated: made byte by byte, an unoptimised test would take minutes.
    let turn: [u8; 256] = array::from_fn(|at| (number as usize * 31 + at) as u8);
    let mut bytes = turn.repeat(length.div_ceil(turn.len()));
    bytes.truncate(length);
    bytes
}

/// Returns what ended the channel.
fn end_cause(error: &ChannelError) -> EndCause {
    match error.cause() {
        Some(cause) => cause.clone(),
        None => panic!("the channel has not broken: {error}"),
    }
}

fn try_send(sender: &mut SendHandle, bytes: &[u8]) -> Result<u64, ChannelError> {
    sender.send(Some(bytes.len()), Patience::None, |slot| fill(slot, bytes))
}

/// Maps a file of a message, and returns the part that it is.
fn mapped(message: &[u8]) -> RegionSlice {
    const BEFORE: &[u8] = &[0xee; 4099];
    let file = memfd_create("ibex-test", MemfdFlags::CLOEXEC).unwrap();
    let mut file = File::from(file);
    file.write_all(BEFORE).unwrap();
    file.write_all(message).unwrap();
    // SAFETY: the file has no name, and nobody else has it open.
    let region = unsafe { Region::map(&file, 100..) }.unwrap();
    region.slice(BEFORE.len() - 100..)
}

/// Encodes bytes that are encoded already.
fn fill<E>(slot: &mut [MaybeUninit<u8>], bytes: &[u8]) -> Result<usize, E> {
    assert!(slot.len() >= bytes.len());
    // SAFETY: the slot is long enough, and this function has it exclusively.
    unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), slot.as_mut_ptr().cast(), bytes.len()) };
    Ok(bytes.len())
}

fn send(sender: &mut SendHandle, number: u64, length: usize) {
    try_send(sender, &payload(number, length)).unwrap();
}

/// Takes every message that has arrived.
fn take(receiver: &mut ReceiveHandle) -> Result<Vec<RawMessage>, ChannelError> {
    let mut taken = Vec::new();
    while let Some(message) = receiver.poll()? {
        taken.push(message);
    }
    Ok(taken)
}

/// Takes every message that has arrived, and releases each before the next. Returns their number.
fn consume(receiver: &mut ReceiveHandle) -> u64 {
    let mut count = 0;
    while receiver.poll().unwrap().is_some() {
        count += 1;
    }
    count
}

/// Consumes messages until the channel is over, and returns their number.
fn consume_until_over(receiver: &mut ReceiveHandle) -> u64 {
    let mut count = 0;
    while let Ok(message) = receiver.poll() {
        assert!(message.is_some(), "the channel is not over");
        count += 1;
    }
    count
}
