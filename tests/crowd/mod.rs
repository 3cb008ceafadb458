//! A crowd: many sessions between two nodes over an RDMA device, all of which have something to
//! send all the time.
//!
//! The receiving node lends 40 receive buffers and has places for 200. A session alone thus has 40
//! buffers to send to, and 200 sessions take turns, beside the one buffer that each is lent while it
//! has no other. Both nodes are in this process.
//! `tests/rdma_crowd.rs` checks how the sessions share, `benches/pingpong` measures how much they
//! carry.

use std::{
    env, thread,
    time::{Duration, Instant},
};

use ibex::{
    Fabric, Node, NodeBuilder, Peer, Policy, Raw, Receiver, RecvErrorKind, SendErrorKind, Sender,
    rdma::{RdmaSettings, Tuning},
};

/// Two nodes, and a channel over each session between them.
pub(crate) struct Crowd {
    // The senders stand in sending order.
    senders: Vec<Sender<[u8], Raw>>,
    receivers: Vec<Receiver<[u8], Raw>>,
    peers: Vec<Peer>,
    _nodes: [Node; 2],
    /// Messages that each session has carried.
    carried: u32,
}

/// Results of a run in which all sessions sent.
#[derive(Debug)]
pub(crate) struct Carried {
    /// Messages of each session that had arrived when all of one session's had.
    shares: Vec<u32>,
    /// Time that all of them took.
    took: Duration,
    /// Payload bytes of all of them.
    bytes: u64,
}

/// The time since which a repeatedly polled state has not moved.
pub(crate) struct Standstill(Instant);

/// A watchdog's time, which suffices in a guest under emulation, although nothing here takes long.
pub(crate) const PATIENCE: Duration = Duration::from_secs(120);
/// The most sessions that a crowd has.
pub(crate) const SESSIONS: usize = 200;
/// Receive buffers that are lent to them.
const LENT_BUFFERS: u32 = 40;
/// Length of a message. It fits a receive buffer once and not twice, so that a turn is four
/// messages, and one turn more or less hardly affects the shares.
const MESSAGE_BYTES: usize = 2400;
/// The most that each session may have under way.
const WINDOW_MESSAGES: u64 = 64;
const WINDOW_BYTES: u64 = 256 << 10;
/// Messages sent over one session before the next one's turn, so that all have something to send
/// all the time.
const AT_A_TIME: u32 = 4;
/// The pause between two polls in which nothing moved.
const PAUSE: Duration = Duration::from_micros(200);

impl Carried {
    /// Returns the bytes per second of all sessions together.
    pub(crate) fn bytes_per_second(&self) -> f64 {
        self.bytes as f64 / self.took.as_secs_f64()
    }

    /// Returns the ratio of the largest to the smallest share when the first session was done.
    /// Until then all have something to send, so only the division of credit makes a difference.
    pub(crate) fn spread(&self) -> f64 {
        let (most, least) = (self.shares.iter().max(), self.shares.iter().min());
        f64::from(*most.expect("many")) / f64::from(*least.expect("many")).max(1.0)
    }
}

impl Standstill {
    /// Starts now.
    pub(crate) fn new() -> Self {
        Self(Instant::now())
    }

    /// Notes the result of a poll, and pauses if nothing has moved.
    ///
    /// # Panics
    /// If nothing has moved for [`PATIENCE`].
    pub(crate) fn looked(&mut self, moved: bool, at: &str) {
        if moved {
            *self = Self::new();
            return;
        }
        assert!(self.0.elapsed() < PATIENCE, "{at}: it never comes");
        thread::sleep(PAUSE);
    }
}

impl Crowd {
    /// Connects nodes with `sessions` sessions between them, at most [`SESSIONS`].
    pub(crate) fn gather(sessions: usize) -> Self {
        let server = builder(SESSIONS as u32)
            .listen("127.0.0.1:0")
            .fabric(Fabric::Verbs, Policy::Require)
            .build()
            .expect("a node");
        // A session takes two places of the dialing node.
        let places = 2 * sessions as u32;
        let client = builder(places).build().expect("a node");
        let address = server.local_addr().expect("it listens");
        let (mut peers, mut senders, mut receivers) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..sessions {
            let peer = client.connect(address).expect("a session");
            let theirs = server.accept_timeout(PATIENCE).expect("a peer");
            assert_eq!(theirs.fabric(), Fabric::Verbs, "{}", theirs.fabric_reason());
            let data = peer.channel("data").codec::<Raw>();
            let data = data
                .window_messages(WINDOW_MESSAGES)
                .window_bytes(WINDOW_BYTES);
            senders.push(data.sender::<[u8]>().expect("an end"));
            let data = theirs.channel("data").codec::<Raw>();
            receivers.push(data.receiver::<[u8]>().expect("an end"));
            peers.push(theirs);
        }
        for (sender, receiver) in senders.iter_mut().zip(&mut receivers) {
            sender.opened(PATIENCE).expect("it is opened there");
            receiver.opened(PATIENCE).expect("it is opened there");
        }
        Self {
            senders,
            receivers,
            peers,
            _nodes: [client, server],
            carried: 0,
        }
    }

    /// Lets every session carry `messages` messages, all at the same time.
    pub(crate) fn carry(&mut self, messages: u32) -> Carried {
        let (senders, receivers) = (&mut self.senders, &mut self.receivers);
        let from = self.carried;
        self.carried += messages;
        let until = self.carried;
        let began = Instant::now();
        let shares = thread::scope(|scope| {
            scope.spawn(|| send_all(senders, from, until));
            take_all(receivers, from, until)
        });
        let took = began.elapsed();
        let bytes = u64::from(messages) * self.peers.len() as u64 * MESSAGE_BYTES as u64;
        Carried {
            shares,
            took,
            bytes,
        }
    }
}

/// Returns a builder of a node with as few resources as possible.
pub(crate) fn builder(places: u32) -> NodeBuilder {
    let mut settings = RdmaSettings::new()
        .max_sessions(places)
        .receive_buffers(2 * places + 16 + LENT_BUFFERS)
        .held_buffers(64)
        .tuning(Tuning::new().send_requests(64));
    if let Ok(device) = env::var("IBEX_TEST_DEVICE") {
        settings = settings.device(device);
    }
    Node::builder()
        .fabric(Fabric::Shm, Policy::Forbid)
        .fabric(Fabric::Verbs, Policy::Prefer)
        .rdma(settings)
        .connect_timeout(PATIENCE)
        .handshake_timeout(PATIENCE)
        .open_timeout(PATIENCE)
}

/// Sends the messages with the numbers `from..until` over each session.
fn send_all(senders: &mut [Sender<[u8], Raw>], from: u32, until: u32) {
    let mut next = vec![from; senders.len()];
    let mut standstill = Standstill::new();
    while next.iter().any(|&next| next < until) {
        let before = next.clone();
        for (next, sender) in next.iter_mut().zip(&mut *senders) {
            send_some(sender, next, until);
        }
        standstill.looked(next != before, "room to send");
    }
}

/// Sends a few messages, as far as there is room.
fn send_some(sender: &mut Sender<[u8], Raw>, next: &mut u32, until: u32) {
    let mut message = [7; MESSAGE_BYTES];
    let until = until.min(*next + AT_A_TIME);
    while *next < until {
        message[..4].copy_from_slice(&next.to_le_bytes());
        match sender.try_send(&message) {
            Ok(_) => *next += 1,
            Err(error) if error.kind() == SendErrorKind::Full => return,
            Err(error) => panic!("{error}"),
        }
    }
}

/// Receives the messages with the numbers `from..until` of each session. Returns how many each had
/// when one had all.
fn take_all(receivers: &mut [Receiver<[u8], Raw>], from: u32, until: u32) -> Vec<u32> {
    let mut next = vec![from; receivers.len()];
    let mut shares = None;
    let mut standstill = Standstill::new();
    while next.iter().any(|&next| next < until) {
        let before = next.clone();
        for (next, receiver) in next.iter_mut().zip(&mut *receivers) {
            match receiver.try_recv() {
                Ok(message) => {
                    assert_eq!(message[..4], next.to_le_bytes());
                    assert_eq!(message.len(), MESSAGE_BYTES);
                    *next += 1;
                }
                Err(error) if error.kind() == RecvErrorKind::Empty => {}
                Err(error) => panic!("{error}: {before:?}"),
            }
        }
        if shares.is_none() && next.contains(&until) {
            shares = Some(next.iter().map(|next| next - from).collect());
        }
        standstill.looked(next != before, "messages");
    }
    shares.expect("one was the first")
}
