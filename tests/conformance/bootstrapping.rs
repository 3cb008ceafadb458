//! Peers that do not complete the handshake: of another version, or silent from some step on. Each
//! end's error names the peer, the problem and the remedy, and a listener continues to serve.
//!
//! The hand-made end drives the protocol's own state machine over a real socket and sends only the
//! first bytes of its half. Then it keeps the connection open and stays silent, like a stopped
//! process.

use std::{
    io::{Read, Write},
    net::{IpAddr, SocketAddr, TcpListener, TcpStream},
    os::fd::OwnedFd,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use ibex::{ConnectError, ConnectErrorKind, Node, NodeBuilder, Peer};
use ibex_bootstrap::{
    Acceptor, DialError, HandshakeError, HostHint, Local, NodeIdentity, PairRequest, Problem,
    Secret, VerbsDevice, VerbsDevices, VerbsPair, Version, VersionRange,
    handshake::{AcceptorEntropy, Handshake, HandshakeEvent, HandshakeStep},
    message::{GidKind, MAGIC, PairAbilities, QueuePairAddress, VerbsEndpoint},
};
use rustix::{
    event::{PollFd, PollFlags, poll},
    net::{
        AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketType, accept, bind, connect,
        listen, recv, send, socket,
    },
    rand::{GetRandomFlags, getrandom},
};

use crate::common::{
    device,
    log::Log,
    scenario::{Scenario, Side, Span},
    stage::{LONG, Stage, receiver, sender},
};
use crate::dialed::dial;

pub(crate) const SCENARIOS: &[Scenario] = &[
    Scenario::new("another_version", another_version).on(Span::EachDriver),
    Scenario::new("acceptor_falls_silent", acceptor_falls_silent),
    Scenario::new("dialer_falls_silent", dialer_falls_silent),
];

/// Both ends know the two versions and the one to update, whichever end detects the mismatch first.
fn another_version(stage: &mut Stage) {
    let newest = Version { major: 5, minor: 0 };
    let mut later = hand_made_node();
    later.versions = VersionRange {
        oldest: newest,
        newest,
    };
    let is_diagnosis = |error: &HandshakeError| {
        let said = error.to_string();
        matches!(error, HandshakeError::Version { .. })
            && said.contains("ibex protocol 5.0")
            && said.contains("update the older of the two")
    };
    match stage.side {
        Side::Dialer => {
            let node = stage.builder().build().expect("a node");
            let address = stage.hear_any();
            let error = node.connect(&address).expect_err("a later version");
            assert_eq!(error.kind(), ConnectErrorKind::Incompatible, "{error}");
            match error.dial_error() {
                Some(DialError::Handshake { peer, source, .. }) => {
                    assert_eq!(peer.to_string(), address);
                    assert!(is_diagnosis(source), "{source}");
                }
                _ => panic!("{error}"),
            }
            let address = stage.hear_any();
            match dial(&address, &later, LONG) {
                Err(DialError::Handshake {
                    source: HandshakeError::Version { ours, theirs },
                    ..
                }) => assert_eq!((ours, theirs), (later.versions, VersionRange::SUPPORTED)),
                other => panic!("{:?} with an earlier version", other.err()),
            }
            converse(stage, &node.connect(&address).expect("one that speaks"));
        }
        Side::Listener => {
            let log = Log::take_over();
            let mut acceptor =
                Acceptor::bind("127.0.0.1:0".parse().expect("an address"), later).expect("a port");
            stage.tell(&acceptor.local_addr().to_string());
            let failure = loop {
                acceptor.turn(Instant::now());
                if let Some(failure) = acceptor.poll_failure() {
                    break failure;
                }
                let mut fds = [PollFd::from_borrowed_fd(acceptor.as_fd(), PollFlags::IN)];
                poll(&mut fds, None).expect("poll");
            };
            assert!(
                matches!(
                    failure.problem,
                    Problem::Handshake(HandshakeError::Version { theirs, .. })
                        if theirs == VersionRange::SUPPORTED
                ),
                "{failure}"
            );
            drop(acceptor);

            let node = stage.listen();
            // The other connection had a later version; this one does not.
            serve_one(stage, &node);
            let failures = log.failures();
            assert_eq!(failures.len(), 1, "{failures:?}");
            assert!(is_diagnosis(&failures[0].error), "{}", failures[0].said);
            assert!(failures[0].said.contains(&failures[0].address.to_string()));
        }
    }
}

/// The dialing node reports the step at which the other fell silent, after the shorter of its two
/// time-outs. Afterwards it connects to a peer that speaks.
fn acceptor_falls_silent(stage: &mut Stage) {
    let silences = Silence::of_acceptors(stage.fabric());
    let bounds: [fn(NodeBuilder, Duration) -> NodeBuilder; 2] = [
        |builder, patience| builder.connect_timeout(patience),
        |builder, patience| builder.handshake_timeout(patience),
    ];
    for bound in bounds {
        match stage.side {
            Side::Dialer => {
                let addresses: Vec<String> = silences.iter().map(|_| stage.hear_any()).collect();
                let mut to_name: Vec<_> = addresses.iter().zip(&silences).collect();
                let mut patience = PATIENCE;
                let build = |patience| bound(stage.builder(), patience).build().expect("a node");
                let mut node = build(patience);
                loop {
                    // All run at the same time, so that the time-out passes once.
                    to_name = unnamed(&node, &to_name);
                    if to_name.is_empty() {
                        break;
                    }
                    patience = longer(patience);
                    node = build(patience);
                }
                stage.tell(EACH_IS_NAMED);
                let peer = loop {
                    let address = stage.hear_any();
                    match node.connect(&address) {
                        Ok(peer) => break peer,
                        Err(error) => assert!(is_too_short(&error), "{error}"),
                    }
                    stage.tell(AGAIN);
                    patience = longer(patience);
                    node = bound(stage.builder(), patience).build().expect("a node");
                };
                stage.tell(CONNECTED);
                converse(stage, &peer);
            }
            Side::Listener => {
                fall_silent(stage, &silences);
                loop {
                    let node = stage.listen();
                    if stage.hear_meanwhile(&node) == CONNECTED {
                        serve_one(stage, &node);
                        break;
                    }
                }
            }
        }
    }
}

/// Plays acceptors that fall silent, until the dialer has named the step of each.
fn fall_silent(stage: &mut Stage, silences: &[Silence]) {
    let listeners: Vec<TcpListener> = silences
        .iter()
        .map(|_| TcpListener::bind("127.0.0.1:0").expect("a port"))
        .collect();
    let address = |listener: &TcpListener| listener.local_addr().expect("its address");
    for listener in &listeners {
        stage.tell(&address(listener).to_string());
    }
    let is_over = &AtomicBool::new(false);
    thread::scope(|scope| {
        for (listener, silence) in listeners.iter().zip(silences) {
            scope.spawn(move || {
                for stream in listener.incoming() {
                    if is_over.load(Ordering::Relaxed) {
                        return;
                    }
                    let stream = stream.expect("a connection");
                    play(HandMadeAcceptor::new(silence, &stream), stream, silence);
                }
            });
        }
        assert_eq!(stage.hear_any(), EACH_IS_NAMED);
        is_over.store(true, Ordering::Relaxed);
        for listener in &listeners {
            drop(TcpStream::connect(address(listener)).expect("it still listens"));
        }
    });
}

/// Returns the silent acceptors whose step the node could not name because its time was over
/// before.
fn unnamed<'a>(
    node: &Node,
    silent: &[(&'a String, &'a Silence)],
) -> Vec<(&'a String, &'a Silence)> {
    thread::scope(|scope| {
        let threads: Vec<_> = silent
            .iter()
            .map(|&(address, silence)| scope.spawn(move || is_named(node, address, silence)))
            .collect();
        let is_named = threads
            .into_iter()
            .map(|thread| thread.join().expect("the step is named, or an earlier one"));
        let each = silent.iter().zip(is_named);
        each.filter_map(|(&silent, is_named)| (!is_named).then_some(silent))
            .collect()
    })
}

/// Dials an acceptor that falls silent. Returns whether the node got to that step in time, and
/// checks that it then names the step.
fn is_named(node: &Node, address: &str, silence: &Silence) -> bool {
    let error = match node.connect(address) {
        Err(error) => error,
        other => panic!(
            "{other:?} with one that falls silent before {}",
            silence.awaited
        ),
    };
    let said = error.to_string();
    let is_named = matches!(
        error.dial_error(),
        Some(DialError::Handshake { peer, source: HandshakeError::Silent { step, .. }, .. })
            if peer.to_string() == address && *step == silence.awaited
    );
    if !is_named {
        let is_early = match error.dial_error() {
            Some(DialError::Handshake { source, .. }) => silence.is_before(source),
            _ => is_too_short(&error),
        };
        assert!(is_early, "{said}");
        return false;
    }
    for part in [
        address,
        "fell silent",
        &silence.awaited.to_string(),
        "see whether the peer's process runs",
    ] {
        assert!(said.contains(part), "no \"{part}\" in: {said}");
    }
    true
}

/// Returns whether the machine was too slow for the dialing node's time-out.
fn is_too_short(error: &ConnectError) -> bool {
    match error.dial_error() {
        Some(DialError::Nobody { .. }) => true,
        Some(DialError::Handshake { source, .. }) => matches!(
            source,
            HandshakeError::Silent { .. } | HandshakeError::Slow { .. }
        ),
        _ => false,
    }
}

/// Returns whether the machine was too slow for the listening node's own part.
fn is_too_short_there(error: &ConnectError) -> bool {
    error
        .to_string()
        .contains("allow more by handshake_timeout")
}

/// Returns the time-out of the next attempt, after the machine was too slow for this one.
fn longer(patience: Duration) -> Duration {
    assert!(patience < LONG, "no step takes that long");
    2 * patience
}

/// A listener serves others while some dialers fall silent, one at every step. It disconnects each
/// of these in time, names the step, and continues to serve.
fn dialer_falls_silent(stage: &mut Stage) {
    let silences = Silence::of_dialers(stage.fabric());
    let log = (!stage.is_dialer()).then(Log::take_over);
    let mut patience = PATIENCE;
    loop {
        let said = match &log {
            None => {
                be_silent(stage, &silences);
                stage.hear_any()
            }
            Some(log) => {
                let said = match hangs_up_on(stage, &silences, log, patience) {
                    true => EACH_IS_NAMED,
                    false => AGAIN,
                };
                stage.tell(said);
                said.to_owned()
            }
        };
        if said == EACH_IS_NAMED {
            return;
        }
        patience = longer(patience);
    }
}

/// Plays dialers that fall silent, and one that speaks, towards a listening node.
fn be_silent(stage: &mut Stage, silences: &[Silence]) {
    let node = stage.builder().build().expect("a node");
    let address = stage.hear_any();
    thread::scope(|scope| {
        for silence in silences {
            let stream = TcpStream::connect(&address).expect("a listener");
            stage.tell(&stream.local_addr().expect("our address").to_string());
            scope.spawn(move || play(HandMadeDialer::new(silence, &stream), stream, silence));
        }
        converse_in_time(stage, &node, &address);
    });
    // The listener has disconnected all silent dialers.
    converse_in_time(stage, &node, &address);
}

/// Exchanges a message over a session, unless the listener's time-out is too short for this
/// machine.
fn converse_in_time(stage: &mut Stage, node: &Node, address: &str) {
    match node.connect(address) {
        Ok(peer) => {
            stage.tell(CONNECTED);
            converse(stage, &peer);
        }
        Err(error) => {
            assert!(is_too_short_there(&error), "{error}");
            stage.tell(AGAIN);
        }
    }
}

/// Serves others while dialers fall silent. Returns whether the machine was fast enough for each of
/// them to reach its step.
fn hangs_up_on(stage: &mut Stage, silences: &[Silence], log: &Log, patience: Duration) -> bool {
    log.forget();
    let builder = stage.builder().handshake_timeout(patience);
    let node = builder.listen("127.0.0.1:0").build().expect("a node");
    stage.tell_address(&node);
    let mut addresses = Vec::new();
    for _ in silences {
        addresses.push(stage.hear_any().parse().expect("an address"));
    }
    let mut is_served = true;
    for _ in 0..2 {
        if stage.hear_meanwhile(&node) == CONNECTED {
            serve_one(stage, &node);
        } else {
            is_served = false;
        }
    }
    let each = addresses.into_iter().zip(silences);
    each.fold(is_served, |all, (address, silence)| {
        all & is_said(log, address, silence, patience)
    })
}

/// Returns whether the log names the step at which a dialer fell silent, rather than an earlier one
/// that was too slow.
fn is_said(log: &Log, address: SocketAddr, silence: &Silence, patience: Duration) -> bool {
    let failure = log.failure_from(address);
    let said = &failure.said;
    match failure.error {
        HandshakeError::Silent { step, waited } if step == silence.awaited => {
            assert!(waited >= patience, "{said}");
        }
        error => {
            assert!(silence.is_before(&error), "{said}");
            return false;
        }
    }
    for part in [
        &address.to_string(),
        "fell silent",
        &silence.awaited.to_string(),
    ] {
        assert!(said.contains(part), "no \"{part}\" in: {said}");
    }
    true
}

/// Exchanges a message over a session.
fn converse(stage: &Stage, peer: &Peer) {
    stage.check_peer(peer);
    let mut sender = sender(peer, "after");
    sender.send(b"still here").expect("sent");
    sender.wait_acked(1).expect("acknowledged");
}

fn serve_one(stage: &Stage, node: &Node) {
    let peer = node.accept().expect("one that speaks");
    stage.check_peer(&peer);
    let mut receiver = receiver(&peer, "after");
    let message = receiver.recv().expect("a message");
    assert_eq!(&message[..], b"still here");
    message.ack();
}

/// The point at which a peer falls silent.
struct Silence {
    /// Whole messages that it still sends.
    messages: usize,
    /// Bytes of the next message that it still sends.
    more_bytes: usize,
    /// Set if it does its part at the Unix socket.
    joins: bool,
    /// The step for which the other end then waits.
    awaited: HandshakeStep,
}

impl Silence {
    /// Returns the silences of an acceptor, which sends Hello, Offer, Endpoint and Ready. Between
    /// the last two, it answers a token over shm, and connects its queue pair over verbs.
    fn of_acceptors(fabric: ibex::Fabric) -> Vec<Self> {
        let mut silences = Self::at_messages(&[
            HandshakeStep::Hello,
            HandshakeStep::Offer,
            HandshakeStep::Endpoint,
        ]);
        if fabric == ibex::Fabric::Shm {
            silences.push(Self::new(3, 0, false, HandshakeStep::UnixSocket));
        }
        silences.push(Self::new(3, 0, true, HandshakeStep::Ready));
        silences.push(Self::new(3, FEW_BYTES, true, HandshakeStep::Ready));
        silences
    }

    /// Returns the silences of a dialer, which sends Hello, Offer, Choice and Ready. Between the
    /// last two, it presents a token over shm, and sends Endpoint over verbs.
    fn of_dialers(fabric: ibex::Fabric) -> Vec<Self> {
        let steps = [
            HandshakeStep::Hello,
            HandshakeStep::Offer,
            HandshakeStep::Choice,
            HandshakeStep::Endpoint,
        ];
        if fabric == ibex::Fabric::Verbs {
            let mut silences = Self::at_messages(&steps);
            silences.push(Self::new(4, 0, true, HandshakeStep::Ready));
            silences.push(Self::new(4, FEW_BYTES, true, HandshakeStep::Ready));
            return silences;
        }
        let mut silences = Self::at_messages(&steps[..3]);
        if fabric == ibex::Fabric::Shm {
            silences.push(Self::new(3, 0, false, HandshakeStep::Ready));
        }
        silences.push(Self::new(3, 0, true, HandshakeStep::Ready));
        silences.push(Self::new(3, FEW_BYTES, true, HandshakeStep::Ready));
        silences
    }

    /// Returns silences before each of these messages, and within it.
    fn at_messages(steps: &[HandshakeStep]) -> Vec<Self> {
        let numbered = steps.iter().enumerate();
        numbered
            .flat_map(|(index, &step)| {
                [0, FEW_BYTES].map(|more_bytes| Self::new(index, more_bytes, false, step))
            })
            .collect()
    }

    fn new(messages: usize, more_bytes: usize, joins: bool, awaited: HandshakeStep) -> Self {
        Self {
            messages,
            more_bytes,
            joins,
            awaited,
        }
    }

    /// Returns whether a handshake timed out at an earlier step.
    fn is_before(&self, error: &HandshakeError) -> bool {
        match error {
            HandshakeError::Silent { step, .. } => (*step as u8) < (self.awaited as u8),
            HandshakeError::Slow { .. } => true,
            _ => false,
        }
    }

    /// Returns how many bytes of `half`, the machine's output so far, are sent.
    fn of(&self, half: &[u8]) -> usize {
        let mut end = MAGIC.len();
        if self.messages == 0 {
            return self.more_bytes.min(half.len());
        }
        for _ in 0..self.messages {
            let Some(prefix) = half.get(end..end + 2) else {
                return half.len();
            };
            end += 2 + usize::from(u16::from_le_bytes([prefix[0], prefix[1]]));
        }
        (end + self.more_bytes).min(half.len())
    }
}

/// The state machine of one end, with the Unix sockets that it needs.
trait Half {
    fn hear(&mut self, bytes: &[u8]);
    fn speak(&mut self) -> Option<Vec<u8>>;
    /// Does what the machine asks for, after its output was sent over `stream`. Returns `None` if
    /// the other end has disconnected because this machine was too slow.
    fn act(&mut self, stream: &TcpStream) -> Option<()>;
}

/// Plays a half up to its silence, and keeps the connection until the other end disconnects.
fn play(mut half: impl Half, mut stream: TcpStream, silence: &Silence) {
    let (mut wanted, mut said) = (Vec::new(), 0);
    let mut buffer = [0; 4096];
    loop {
        // An action may lead to output, which may lead to another action.
        for _ in 0..2 {
            if half.act(&stream).is_none() {
                return;
            }
            while let Some(bytes) = half.speak() {
                wanted.extend(bytes);
            }
            let until = silence.of(&wanted);
            if stream.write_all(&wanted[said..until]).is_err() {
                return;
            }
            said = until;
        }
        match stream.read(&mut buffer) {
            Ok(0) | Err(_) => return,
            Ok(length) => half.hear(&buffer[..length]),
        }
    }
}

struct HandMadeAcceptor {
    machine: Handshake,
    joins: bool,
    listener: Option<OwnedFd>,
    /// Kept open, since closing them would be noticed.
    joined: Vec<OwnedFd>,
}

impl HandMadeAcceptor {
    fn new(silence: &Silence, stream: &TcpStream) -> Self {
        let entropy = AcceptorEntropy {
            nonce: [1; 16],
            // The name of the Unix socket follows from it.
            token: Secret::new(unique_token()),
            session_id: [4; 16],
            resume_secret: Secret::new([5; 32]),
        };
        let now = Instant::now();
        let local = hand_made_node();
        let host = HostHint::read(stream).expect("this host");
        Self {
            machine: Handshake::accept(&local, host, entropy, now, now + LONG),
            joins: silence.joins,
            listener: None,
            joined: Vec::new(),
        }
    }
}

impl Half for HandMadeAcceptor {
    fn hear(&mut self, bytes: &[u8]) {
        self.machine.handle_bytes(bytes);
    }

    fn speak(&mut self) -> Option<Vec<u8>> {
        self.machine.poll_transmit()
    }

    fn act(&mut self, stream: &TcpStream) -> Option<()> {
        // The socket's name was sent in the turn before, so a dialer connects.
        if let Some(listener) = self.listener.as_ref().filter(|_| self.joins)
            && self.joined.is_empty()
        {
            // The dialer connects twice.
            let bells = accept_unless_over(listener, stream)?;
            let dialer = accept_unless_over(listener, stream)?;
            let mut token = [0; 64];
            let (_, length) = recv(&dialer, &mut token, RecvFlags::empty()).expect("its token");
            assert!(self.machine.handle_token(&token[..length - 1]));
            send(&dialer, b"+", SendFlags::NOSIGNAL).ok()?;
            self.joined = vec![bells, dialer];
        }
        while let Some(event) = self.machine.poll_event() {
            match event {
                HandshakeEvent::ListenUnix { name, .. } => {
                    let socket = unix_socket();
                    let address = SocketAddrUnix::new_abstract_name(&name).expect("a name");
                    bind(&socket, &address).expect("nobody has the name");
                    listen(&socket, 2).expect("it listens");
                    self.listener = Some(socket);
                    self.machine.handle_unix(Ok(()));
                }
                HandshakeEvent::FindDevice => self.machine.handle_device(Ok(hand_made_device())),
                HandshakeEvent::PreparePair => self.machine.handle_prepared(Ok(hand_made_pair())),
                _ => {}
            }
        }
        Some(())
    }
}

struct HandMadeDialer {
    machine: Handshake,
    joins: bool,
    joined: Vec<OwnedFd>,
}

impl HandMadeDialer {
    fn new(silence: &Silence, stream: &TcpStream) -> Self {
        let now = Instant::now();
        let local = hand_made_node();
        let host = HostHint::read(stream).expect("this host");
        Self {
            machine: Handshake::dial(&local, host, [6; 16], now, now + LONG),
            joins: silence.joins,
            joined: Vec::new(),
        }
    }
}

impl Half for HandMadeDialer {
    fn hear(&mut self, bytes: &[u8]) {
        self.machine.handle_bytes(bytes);
    }

    fn speak(&mut self) -> Option<Vec<u8>> {
        self.machine.poll_transmit()
    }

    fn act(&mut self, _: &TcpStream) -> Option<()> {
        while let Some(event) = self.machine.poll_event() {
            match event {
                HandshakeEvent::ConnectUnix { name, token, .. } => {
                    let address = SocketAddrUnix::new_abstract_name(&name).expect("a name");
                    let show = |part: u8| {
                        let socket = unix_socket();
                        connect(&socket, &address).ok()?;
                        if self.joins {
                            let shown = [&token.expose()[..], &[part]].concat();
                            send(&socket, &shown, SendFlags::NOSIGNAL).ok()?;
                        }
                        Some(socket)
                    };
                    let (bells, socket) = (show(b'b')?, show(b'c')?);
                    if self.joins {
                        let mut answer = [0; 8];
                        let (_, length) = recv(&socket, &mut answer, RecvFlags::empty()).ok()?;
                        if length == 0 {
                            return None;
                        }
                        assert_eq!(length, 1, "the token is right");
                        self.machine.handle_unix(Ok(()));
                    }
                    self.joined = vec![bells, socket];
                }
                HandshakeEvent::FindDevice => self.machine.handle_device(Ok(hand_made_device())),
                HandshakeEvent::PreparePair => self.machine.handle_prepared(Ok(hand_made_pair())),
                // No queue pair exists that could be connected, and the other end does not notice.
                HandshakeEvent::ConnectPair(_) => self.machine.handle_connected(Ok(())),
                _ => {}
            }
        }
        Some(())
    }
}

/// Accepts a connection at `listener`, unless `stream` is closed first.
fn accept_unless_over(listener: &OwnedFd, stream: &TcpStream) -> Option<OwnedFd> {
    let mut fds = [
        PollFd::new(listener, PollFlags::IN),
        PollFd::new(stream, PollFlags::RDHUP),
    ];
    poll(&mut fds, None).expect("poll");
    let comes = !fds[0].revents().is_empty();
    comes.then(|| accept(listener).expect("the dialer comes"))
}

fn unix_socket() -> OwnedFd {
    socket(AddressFamily::UNIX, SocketType::SEQPACKET, None).expect("a socket")
}

/// Returns a token for a Unix socket that no other hand-made acceptor of this host uses.
fn unique_token() -> [u8; 32] {
    let mut token = [0; 32];
    getrandom(&mut token, GetRandomFlags::empty()).expect("random bytes");
    token
}

/// Returns a node without wishes, so that the other's policy decides.
fn hand_made_node() -> Local {
    let mut local = Local::new(NodeIdentity([7; 16]), 8);
    local.verbs_devices = Some(Arc::new(HandMadeDevices));
    local.handshake_timeout = LONG;
    local
}

/// States that there is a device; the hand-made end itself acts on its machine's requests.
#[derive(Debug)]
struct HandMadeDevices;

impl VerbsDevices for HandMadeDevices {
    fn device(&self, _: IpAddr) -> Result<VerbsDevice, String> {
        Ok(hand_made_device())
    }

    fn prepare(&self, _: &PairRequest) -> Result<Box<dyn VerbsPair>, String> {
        Err("a hand-made end says of itself what its queue pair is".to_owned())
    }
}

/// Returns a device that is chosen only if the other end requires it.
fn hand_made_device() -> VerbsDevice {
    VerbsDevice {
        hardware: false,
        name: "hand0".to_owned(),
    }
}

/// Returns an endpoint without a queue pair, on this cell's device, so that a node can connect to
/// it.
fn hand_made_pair() -> VerbsEndpoint {
    VerbsEndpoint {
        address: QueuePairAddress {
            queue_pair: 0x00ab_cdef,
            packet_sequence: 1,
            lid: 0,
            // Only a cell of verbs asks for the GID.
            gid: device::gid(),
            gid_type: GidKind::RoceV2,
            mtu_bytes: 1024,
        },
        max_inline_bytes: 0,
        max_send_sge: 1,
        max_receive_sge: 1,
        abilities: PairAbilities {
            immediate: false,
            read_depth: 0,
            read_resources: 0,
        },
        partition_key: 0,
        rails: Vec::new(),
        receive_buffer_bytes: 4096,
        credit: 0,
    }
}

/// The first time-out of a node: longer than all steps take on an idle machine. On a slower one, an
/// earlier step than the silent one times out.
const PATIENCE: Duration = Duration::from_secs(1);
/// The words for: every silent step was named.
const EACH_IS_NAMED: &str = "each is named";
/// The words for: a node's time-out was too short for this machine.
const AGAIN: &str = "again";
/// The words for: the time-out was long enough.
const CONNECTED: &str = "connected";
/// Fewer bytes than the shortest message has.
const FEW_BYTES: usize = 3;
