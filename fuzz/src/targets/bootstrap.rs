//! The handshake: its messages, and each end's state machine against a peer that sends anything.
//! The seeds are recordings of real handshakes.
//!
//! The input of a state machine begins with a byte that describes its environment: the lowest bit
//! says whether Unix sockets can be reached, the next whether there are RDMA devices, and the third
//! whether each message gets a correct checksum. The other bits give the number of bytes by which
//! the rest arrives at a time.
#![forbid(unsafe_code)]

use std::any::Any;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ibex_bootstrap::handshake::{AcceptorEntropy, Handshake, HandshakeEvent};
use ibex_bootstrap::message::{
    ALONE, CHECKSUM_BYTES, GidKind, MAGIC, PairAbilities, QueuePairAddress, VerbsEndpoint,
    VerbsRail, checksum,
};
use ibex_bootstrap::{
    Fabric, HostHint, Local, NodeIdentity, PairRequest, Resumable, ResumeTicket, Secret,
    VerbsDevice, VerbsDevices, VerbsPair, parse_message,
};
use ibex_tls::Credentials;

use crate::Seed;

/// Parses a message without its length prefix.
pub(crate) fn accepts_message(bytes: &[u8]) -> bool {
    parse_message(bytes).is_ok()
}

/// Feeds a dialer's half to an acceptor. Accepts it if they agree, or a session resumes.
pub(crate) fn acceptor_accepts(bytes: &[u8]) -> bool {
    let Some((&world, half)) = bytes.split_first() else {
        return false;
    };
    let mut acceptor = acceptor(host(9), has_devices(world));
    let half = match is_mended(world) {
        true => mended(half, |theirs| {
            [theirs, &ACCEPTORS_HELLO[..]].map(<[u8]>::to_vec)
        }),
        false => half.to_vec(),
    };
    for piece in half.chunks(arrives_by(world)) {
        acceptor.handle_bytes(piece);
        while acceptor.poll_transmit().is_some() {}
        while let Some(event) = acceptor.poll_event() {
            match event {
                HandshakeEvent::ListenUnix { .. } => {
                    acceptor.handle_unix(Ok(()));
                    if has_unix_sockets(world) {
                        // The token comes too late if the same piece already had the dialer's
                        // confirmation, or nonsense.
                        let _ = acceptor.handle_token(TOKEN.expose());
                    }
                }
                HandshakeEvent::CloseUnix | HandshakeEvent::ClosePair => {}
                HandshakeEvent::FindDevice => acceptor.handle_device(Ok(device())),
                HandshakeEvent::PreparePair => acceptor.handle_prepared(Ok(endpoint())),
                HandshakeEvent::ConnectPair(_) => acceptor.handle_connected(Ok(())),
                HandshakeEvent::Agreed(_) | HandshakeEvent::Resumed(_) => return true,
                HandshakeEvent::Failed(_) => return false,
                HandshakeEvent::ConnectUnix { .. } => unreachable!("an acceptor listens"),
            }
        }
    }
    false
}

/// Feeds an acceptor's half to a dialer. Accepts it if they agree.
pub(crate) fn dialer_accepts(bytes: &[u8]) -> bool {
    let Some((&world, half)) = bytes.split_first() else {
        return false;
    };
    let mut dialer = dialer(host(9), has_devices(world));
    let half = mended_for_dialer(world, half, dialer.poll_transmit());
    for piece in half.chunks(arrives_by(world)) {
        dialer.handle_bytes(piece);
        while dialer.poll_transmit().is_some() {}
        while let Some(event) = dialer.poll_event() {
            match event {
                HandshakeEvent::ConnectUnix { .. } => {
                    dialer.handle_unix(visit(has_unix_sockets(world)));
                }
                HandshakeEvent::FindDevice => dialer.handle_device(Ok(device())),
                HandshakeEvent::PreparePair => dialer.handle_prepared(Ok(endpoint())),
                HandshakeEvent::ConnectPair(_) => dialer.handle_connected(Ok(())),
                HandshakeEvent::ClosePair => {}
                HandshakeEvent::Agreed(_) => return true,
                HandshakeEvent::Failed(_) => return false,
                other => unreachable!("no event of a dialer: {other:?}"),
            }
        }
    }
    false
}

/// Feeds an acceptor's half to a dialer that resumes a session. Accepts it if the session resumes.
pub(crate) fn resumer_accepts(bytes: &[u8]) -> bool {
    let Some((&world, half)) = bytes.split_first() else {
        return false;
    };
    let mut resumer = resumer(EPOCH, has_devices(world));
    let half = mended_for_dialer(world, half, resumer.poll_transmit());
    for piece in half.chunks(arrives_by(world)) {
        resumer.handle_bytes(piece);
        while resumer.poll_transmit().is_some() {}
        while let Some(event) = resumer.poll_event() {
            match event {
                HandshakeEvent::PreparePair => resumer.handle_prepared(Ok(endpoint())),
                HandshakeEvent::ConnectPair(_) => resumer.handle_connected(Ok(())),
                HandshakeEvent::Resumed(_) => return true,
                HandshakeEvent::Failed(_) => return false,
                other => unreachable!("no event of a resumption: {other:?}"),
            }
        }
    }
    false
}

/// Returns messages of each kind: from handshakes over shared memory, with a fall-back from it,
/// over verbs, and from a resumption.
pub(crate) fn message_seeds() -> Vec<Seed> {
    let shm = Recording::over_shm();
    let fall_back = Recording::falling_back();
    let verbs = Recording::over_verbs();
    let resumed = Recording::of_a_resumption(EPOCH, false);
    let refused = Recording::of_a_resumption(EPOCH - 1, false);
    [
        ("hello", &shm.from_dialer, 0),
        ("offer", &shm.from_dialer, 1),
        ("choice", &shm.from_dialer, 2),
        ("endpoint", &shm.from_acceptor, 2),
        ("ready", &shm.from_acceptor, 3),
        ("unavailable", &fall_back.from_acceptor, 3),
        ("offer_verbs", &verbs.from_dialer, 1),
        ("endpoint_verbs", &verbs.from_dialer, 3),
        ("resume", &resumed.from_dialer, 1),
        ("resumed", &resumed.from_acceptor, 2),
        ("refusal", &refused.from_acceptor, 2),
    ]
    .map(|(name, half, place)| Seed {
        name,
        bytes: message(half, place),
    })
    .into()
}

/// Returns seeds of everything that a dialer sends.
pub(crate) fn acceptor_seeds() -> Vec<Seed> {
    let mut seeds = seeds(|recording| recording.from_dialer);
    seeds.extend(resumption_seeds(|recording| recording.from_dialer));
    seeds
}

/// Returns seeds of everything that an acceptor sends.
pub(crate) fn dialer_seeds() -> Vec<Seed> {
    seeds(|recording| recording.from_acceptor)
}

/// Returns seeds of everything that an acceptor sends to a resuming dialer.
pub(crate) fn resumer_seeds() -> Vec<Seed> {
    resumption_seeds(|recording| recording.from_acceptor)
}

fn resumption_seeds(half: fn(Recording) -> Vec<u8>) -> Vec<Seed> {
    [("resumption", false), ("resumption_verbs", true)]
        .map(|(name, has_devices)| {
            let world = world(false, has_devices, 1);
            let half = half(Recording::of_a_resumption(EPOCH, has_devices));
            let bytes = [&[world], half.as_slice()].concat();
            Seed { name, bytes }
        })
        .into()
}

/// Returns seeds of one half of each kind of handshake.
fn seeds(half: fn(Recording) -> Vec<u8>) -> Vec<Seed> {
    [
        ("shm", world(true, false, 1), Recording::over_shm()),
        (
            "fall_back",
            world(false, false, 1),
            Recording::falling_back(),
        ),
        (
            "tcp",
            world(false, false, LARGEST_PIECE),
            Recording::over_tcp(),
        ),
        ("verbs", world(false, true, 1), Recording::over_verbs()),
    ]
    .map(|(name, world, recording)| Seed {
        name,
        bytes: [&[world], half(recording).as_slice()].concat(),
    })
    .into()
}

/// The bytes of both ends in one handshake.
#[derive(Debug, Default)]
pub(crate) struct Recording {
    pub(crate) from_dialer: Vec<u8>,
    from_acceptor: Vec<u8>,
}

impl Recording {
    pub(crate) fn over_shm() -> Self {
        Self::new(host(9), true, false)
    }

    /// Records a fall-back from shared memory to TCP, since no Unix socket can be reached.
    fn falling_back() -> Self {
        Self::new(host(9), false, false)
    }

    /// Records a handshake between two hosts.
    pub(crate) fn over_tcp() -> Self {
        Self::new(host(8), false, false)
    }

    /// Records a handshake between two hosts with RDMA devices.
    fn over_verbs() -> Self {
        Self::new(host(8), false, true)
    }

    /// Records the resumption of the session that every node has here, which the acceptor refuses
    /// if the epoch is old.
    fn of_a_resumption(epoch: u64, has_devices: bool) -> Self {
        let mut resumer = resumer(epoch, has_devices);
        let mut acceptor = acceptor(host(9), has_devices);
        let mut recording = Self::default();
        loop {
            let said = recording.from_dialer.len() + recording.from_acceptor.len();
            while let Some(bytes) = resumer.poll_transmit() {
                recording.from_dialer.extend(&bytes);
                acceptor.handle_bytes(&bytes);
            }
            while let Some(event) = acceptor.poll_event() {
                match event {
                    HandshakeEvent::FindDevice => acceptor.handle_device(Ok(device())),
                    HandshakeEvent::PreparePair => acceptor.handle_prepared(Ok(endpoint())),
                    HandshakeEvent::ConnectPair(_) => acceptor.handle_connected(Ok(())),
                    _ => {}
                }
            }
            while let Some(bytes) = acceptor.poll_transmit() {
                recording.from_acceptor.extend(&bytes);
                resumer.handle_bytes(&bytes);
            }
            while let Some(event) = resumer.poll_event() {
                match event {
                    HandshakeEvent::PreparePair => resumer.handle_prepared(Ok(endpoint())),
                    HandshakeEvent::ConnectPair(_) => resumer.handle_connected(Ok(())),
                    _ => {}
                }
            }
            if recording.from_dialer.len() + recording.from_acceptor.len() == said {
                return recording;
            }
        }
    }

    /// Lets a dialer and an acceptor talk until neither has more to say.
    fn new(acceptor_host: HostHint, has_unix_sockets: bool, has_devices: bool) -> Self {
        let mut dialer = dialer(host(9), has_devices);
        let mut acceptor = acceptor(acceptor_host, has_devices);
        let mut recording = Self::default();
        loop {
            let said = recording.from_dialer.len() + recording.from_acceptor.len();
            while let Some(bytes) = dialer.poll_transmit() {
                recording.from_dialer.extend(&bytes);
                acceptor.handle_bytes(&bytes);
            }
            while let Some(event) = acceptor.poll_event() {
                match event {
                    HandshakeEvent::ListenUnix { .. } => acceptor.handle_unix(Ok(())),
                    HandshakeEvent::FindDevice => acceptor.handle_device(Ok(device())),
                    HandshakeEvent::PreparePair => acceptor.handle_prepared(Ok(endpoint())),
                    HandshakeEvent::ConnectPair(_) => acceptor.handle_connected(Ok(())),
                    _ => {}
                }
            }
            while let Some(bytes) = acceptor.poll_transmit() {
                recording.from_acceptor.extend(&bytes);
                dialer.handle_bytes(&bytes);
            }
            while let Some(event) = dialer.poll_event() {
                match event {
                    HandshakeEvent::ConnectUnix { token, .. } => {
                        let joins = has_unix_sockets && acceptor.handle_token(token.expose());
                        dialer.handle_unix(visit(joins));
                    }
                    HandshakeEvent::FindDevice => dialer.handle_device(Ok(device())),
                    HandshakeEvent::PreparePair => dialer.handle_prepared(Ok(endpoint())),
                    HandshakeEvent::ConnectPair(_) => dialer.handle_connected(Ok(())),
                    _ => {}
                }
            }
            if recording.from_dialer.len() + recording.from_acceptor.len() == said {
                return recording;
            }
        }
    }
}

/// Returns the outcome of a dialer's visit to the Unix socket.
fn visit(joins: bool) -> Result<(), String> {
    if joins {
        Ok(())
    } else {
        Err("connection refused".to_string())
    }
}

/// Returns the device of a node that has one.
fn device() -> VerbsDevice {
    VerbsDevice {
        hardware: true,
        name: "mlx5_0".to_string(),
    }
}

/// Returns a queue pair of that device, and a rail beside it.
fn endpoint() -> VerbsEndpoint {
    let address = QueuePairAddress {
        queue_pair: 17,
        packet_sequence: 0x12_3456,
        lid: 0,
        gid: [1; 16],
        gid_type: GidKind::RoceV2,
        mtu_bytes: 1024,
    };
    let rail = VerbsRail {
        address: QueuePairAddress {
            queue_pair: 18,
            gid: [2; 16],
            ..address
        },
        abilities: PairAbilities {
            immediate: false,
            read_depth: 3,
            read_resources: 3,
        },
        partition_key: 0xffff,
        probe_address: 0x7f00_0000_0000,
        probe_key: 0x1234,
    };
    VerbsEndpoint {
        address,
        max_inline_bytes: 220,
        max_send_sge: 30,
        max_receive_sge: 30,
        abilities: PairAbilities {
            immediate: true,
            read_depth: 3,
            read_resources: 3,
        },
        partition_key: 0xffff,
        rails: vec![rail],
        receive_buffer_bytes: 4096,
        credit: 64,
    }
}

/// The devices of a node that may have one; the machines are given the outcome of each request.
#[derive(Debug)]
struct Devices;

impl VerbsDevices for Devices {
    fn device(&self, _: IpAddr) -> Result<VerbsDevice, String> {
        Ok(device())
    }

    fn prepare(&self, _: &PairRequest) -> Result<Box<dyn VerbsPair>, String> {
        Ok(Box::new(Devices))
    }
}

impl VerbsPair for Devices {
    fn endpoint(&self) -> VerbsEndpoint {
        endpoint()
    }

    fn connect(&mut self, _: &VerbsEndpoint) -> Result<(), String> {
        Ok(())
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any + Send> {
        self
    }
}

fn dialer(host: HostHint, has_devices: bool) -> Handshake {
    let (now, deadline) = clock();
    Handshake::dial(&node(1, has_devices), host, [0xd0; 16], now, deadline)
}

fn acceptor(host: HostHint, has_devices: bool) -> Handshake {
    let (now, deadline) = clock();
    Handshake::accept(&node(2, has_devices), host, entropy(), now, deadline)
}

fn entropy() -> AcceptorEntropy {
    AcceptorEntropy {
        nonce: [0xa0; 16],
        token: TOKEN,
        session_id: SESSION,
        resume_secret: SECRET,
    }
}

/// Creates an acceptor that authenticates its peers.
pub(crate) fn secured_acceptor(credentials: Arc<Credentials>) -> Handshake {
    let (now, deadline) = clock();
    let mut node = node(2, false);
    node.credentials = Some(credentials);
    Handshake::accept(&node, host(9), entropy(), now, deadline)
}

/// Returns the Hello of a dialer that authenticates its peers.
pub(crate) fn secured_hello(credentials: Arc<Credentials>) -> Vec<u8> {
    let (now, deadline) = clock();
    let mut node = node(1, false);
    node.credentials = Some(credentials);
    let mut dialer = Handshake::dial(&node, host(9), [0xd0; 16], now, deadline);
    dialer.poll_transmit().expect("it speaks first")
}

fn resumer(epoch: u64, has_devices: bool) -> Handshake {
    let (now, deadline) = clock();
    let ticket = ResumeTicket {
        authenticated_as: None,
        session_id: SESSION,
        secret: SECRET,
        peer: NodeIdentity([2; 16]),
        incarnation: 2,
        epoch,
        fabric: match has_devices {
            true => Fabric::Verbs,
            false => Fabric::Tcp,
        },
    };
    Handshake::resume(&node(1, has_devices), ticket, [0xd0; 16], now, deadline)
}

/// Enters the session that every node has here, one epoch before [`EPOCH`].
fn enter_session(node: &Local) {
    let session = Resumable {
        authenticated_as: None,
        secret: SECRET,
        epoch: EPOCH - 1,
        fabrics: Fabric::FASTEST_FIRST.to_vec(),
        reason: String::new(),
    };
    node.resumable.lock().insert(SESSION, session);
}

/// Returns the time of a handshake during which no time passes.
fn clock() -> (Instant, Instant) {
    let now = Instant::now();
    (now, now + Duration::from_secs(5))
}

/// Returns the first byte of an input.
fn world(has_unix_sockets: bool, has_devices: bool, piece: u8) -> u8 {
    u8::from(has_unix_sockets) | u8::from(has_devices) << 1 | MENDED | (piece - 1) << 3
}

fn has_unix_sockets(world: u8) -> bool {
    world & 1 == 1
}

fn has_devices(world: u8) -> bool {
    world & 2 == 2
}

fn is_mended(world: u8) -> bool {
    world & MENDED == MENDED
}

fn arrives_by(world: u8) -> usize {
    usize::from(world >> 3) + 1
}

/// Returns the bytes that a dialer receives after it has sent `hello`.
fn mended_for_dialer(world: u8, half: &[u8], hello: Option<Vec<u8>>) -> Vec<u8> {
    let hello = hello.expect("it speaks first");
    match is_mended(world) {
        true => mended(half, |theirs| [hello.clone(), theirs.to_vec()]),
        false => half.to_vec(),
    }
}

/// Returns the half with correct checksums, so that an input gets beyond them. Both Hellos follow
/// from that of the half.
pub(crate) fn mended(half: &[u8], hellos: impl Fn(&[u8]) -> [Vec<u8>; 2]) -> Vec<u8> {
    let mut mended = half.to_vec();
    let (mut start, mut before) = (MAGIC.len(), None);
    while let Some(prefix) = mended.get(start..).and_then(<[u8]>::first_chunk) {
        let end = start + 2 + usize::from(u16::from_le_bytes(*prefix));
        if end > mended.len() {
            break;
        }
        before = match before {
            None => Some(hellos(&mended[..end])),
            Some(before) if end - start >= 2 + CHECKSUM_BYTES => {
                let behind = end - CHECKSUM_BYTES;
                let before = [&before[0][..], &before[1]];
                let checksum = checksum(before, &mended[start..behind]);
                mended[behind..end].copy_from_slice(&checksum.to_le_bytes());
                Some(ALONE.map(<[u8]>::to_vec))
            }
            Some(before) => Some(before),
        };
        start = end;
    }
    mended
}

/// Returns a message of a half, without its length prefix and its checksum.
fn message(half: &[u8], index: usize) -> Vec<u8> {
    let mut rest = &half[MAGIC.len()..];
    for left in (0..=index).rev() {
        let (length, behind) = rest.split_first_chunk().expect("the half has this message");
        let (message, behind) = behind.split_at(usize::from(u16::from_le_bytes(*length)));
        if left == 0 {
            let behind = if index == 0 { 0 } else { CHECKSUM_BYTES };
            return message[..message.len() - behind].to_vec();
        }
        rest = behind;
    }
    unreachable!("the last round returns")
}

fn node(identity: u8, has_devices: bool) -> Local {
    let mut node = Local::new(NodeIdentity([identity; 16]), u64::from(identity));
    enter_session(&node);
    node.verbs_devices = has_devices.then(|| Arc::new(Devices) as Arc<dyn VerbsDevices>);
    node
}

fn host(boot: u8) -> HostHint {
    HostHint {
        boot_id: [boot; 16],
        pid: 4242,
        uid: 1000,
        pid_namespace: 0xf000_0001,
        network_namespace: 0xf000_0002,
    }
}

/// The token that the acceptor expects at its Unix socket.
pub(crate) const TOKEN: Secret = Secret::new([0xa2; 32]);

const SESSION: [u8; 16] = [0xa3; 16];
const SECRET: Secret = Secret::new([0xa4; 32]);
const EPOCH: u64 = 7;

/// The largest piece that [`world`] can encode.
const LARGEST_PIECE: u8 = 32;

/// The bit of [`world`] that requests correct checksums.
const MENDED: u8 = 4;

/// The acceptor's first bytes, including the magic.
const ACCEPTORS_HELLO: [u8; 44] =
    *b"\x89ibex\r\n\x1a\x22\0\x01\x04\0\0\0\x04\0\0\0\0\0\0\0\0\0\0\0\0\
    \xa0\xa0\xa0\xa0\xa0\xa0\xa0\xa0\xa0\xa0\xa0\xa0\xa0\xa0\xa0\xa0";
