//! A session that floods its engine beside a quiet one. The tests count turns and frames, never
//! time.

use std::{
    io::{ErrorKind, Write as _},
    net::{TcpListener, TcpStream},
    sync::Arc,
    time::{Duration, Instant},
};

use ibex_protocol::format::{
    channel_window::{ChannelWindow, HALF_WINDOW},
    control::ChannelSpec,
    frame::{FrameHeader, FrameKind, HEADER_BYTES},
    frame_check::{CHECK_BYTES, CHECKED_HEADER_BYTES, Coverage, write_checks},
    message_version::MessageVersion,
};
use ibex_ring::parking::Patience;
use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType, recv, socketpair};

use super::*;
use crate::{
    channel::{ReceiveHandle, RecvFailure, SendHandle},
    engine::Admission,
    node::{SessionShared, Wait},
    runtime::{Driver, Runtime, RuntimeConfig},
    session::{Fabric, PeerDescription},
    shared_memory::{
        FdSocket, Outgoing, UnixWires,
        message::{Message, Role},
    },
    wire::WireParts,
};

/// Returns an empty control frame that follows `number` others.
fn empty_frame(number: u64) -> Vec<u8> {
    let header = FrameHeader {
        length: HEADER_BYTES as u32,
        channel: 0,
        kind: FrameKind::Control,
        extension: false,
        pad: 0,
        sequence: 0,
    };
    let mut bytes = vec![0; CHECK_BYTES];
    header.append_to(None, &mut bytes);
    write_checks(number, &mut bytes, None, Coverage::Whole);
    bytes
}

fn runtime(driver: Driver) -> Arc<Runtime> {
    Runtime::start(RuntimeConfig {
        driver,
        engines: 1,
        wait: Wait::Event,
        wait_engine: Wait::Event,
        cores: Vec::new(),
        session_credit_bytes: 4 << 20,
        node_credit_bytes: 64 << 20,
        memory_limit: 1 << 30,
        notice_timeout: Duration::from_secs(3),
        session_timeout: Duration::from_secs(30),
    })
    .unwrap()
}

fn connection() -> [TcpStream; 2] {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let dialed = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    [dialed, listener.accept().unwrap().0]
}

fn admit(runtime: &Arc<Runtime>, stream: TcpStream, unix: Option<UnixWires>) -> Arc<SessionShared> {
    let fabric = match unix {
        Some(_) => Fabric::Shm,
        None => Fabric::Tcp,
    };
    let admission = Admission {
        reconnect: None,
        peer: PeerDescription {
            authenticated_as: None,
            address: stream.peer_addr().unwrap(),
            identity: [0; 16],
            incarnation: 0,
            began: Instant::now(),
            pid: None,
            fabric,
            reason: "the test says so".to_owned(),
            known_to: None,
        },
        parts: WireParts {
            stream,
            leftover: Vec::new(),
            tls: None,
            rdma: None,
        },
        unix,
        payload_checksums: false,
        max_channels: 64,
        engine: None,
        place: Box::new(()),
    };
    runtime.admit(admission).unwrap()
}

/// Makes a session whose peer is the test, which has sent as many empty frames as the kernel
/// accepts. Returns their number as well.
fn flood(runtime: &Arc<Runtime>) -> (Arc<SessionShared>, TcpStream, usize) {
    let [stream, mut peer] = connection();
    let session = admit(runtime, stream, None);
    peer.set_nonblocking(true).unwrap();
    // The flood stays within what the session may have in flight.
    let flood: Vec<u8> = (0..24 << 10).flat_map(empty_frame).collect();
    let mut bytes = 0;
    while bytes < flood.len() {
        match peer.write(&flood[bytes..]) {
            Ok(written) => bytes += written,
            Err(error) if error.kind() == ErrorKind::WouldBlock => break,
            Err(error) => panic!("{error}"),
        }
    }
    (session, peer, bytes / CHECKED_HEADER_BYTES)
}

/// Opens a channel from the first session to the second.
fn channel(
    from: (&Arc<Runtime>, &Arc<SessionShared>),
    to: (&Arc<Runtime>, &Arc<SessionShared>),
) -> (SendHandle, ReceiveHandle) {
    let spec = ChannelSpec {
        newest: MessageVersion {
            fingerprint: [1; 16],
            schema: "bytes".to_owned(),
            alignment: 8,
        },
        older: Vec::new(),
        window: ChannelWindow {
            messages: 1 << 14,
            bytes: 1 << 20,
        },
        max_message_bytes: 1 << 20,
        max_unreleased_bytes: u64::MAX,
    };
    let timeout = Duration::from_secs(60);
    let sender = from.0.open_sender(from.1, "log", spec.clone(), timeout);
    let receiver = to.0.open_receiver(to.1, "log", spec, timeout, HALF_WINDOW);
    (sender.unwrap(), receiver.unwrap())
}

fn settle(nodes: [&Arc<Runtime>; 2]) {
    while nodes.map(|node| node.poll_ready()) != [false; 2] {}
}

#[test]
fn a_quiet_session_is_heard_between_two_shares_of_one_that_floods() {
    let [node, other] = [(); 2].map(|()| runtime(Driver::Caller));
    let [here, there] = connection();
    let (ours, theirs) = (admit(&node, here, None), admit(&other, there, None));
    let (mut sender, mut receiver) = channel((&other, &theirs), (&node, &ours));
    settle([&node, &other]);
    // No turn looks at the quiet session any more before epoll reports it.
    for _ in 0..1000 {
        node.first().poll();
    }
    assert_eq!(node.hot_sessions(), 0);

    let (flooding, _peer, frames) = flood(&node);
    assert!(
        frames > 20 * FRAMES_PER_TURN,
        "{frames} frames are no flood"
    );
    let taken = || flooding.stats().frames_received as usize;
    // The flood's bytes have arrived, and the engine looks at its session.
    while taken() == 0 {
        node.poll_ready();
    }
    assert_eq!(taken(), FRAMES_PER_TURN, "in one turn");
    let encode = |slot: &mut [std::mem::MaybeUninit<u8>]| {
        slot[0].write(7);
        Ok(1)
    };
    sender.send(Some(1), Patience::None, encode).unwrap();
    other.poll_ready();

    // Now no caller asks epoll in each turn.
    let (mut turns, before) = (0, taken());
    loop {
        let reads = flooding.stats().reads;
        assert!(node.first().poll(), "more has arrived, so nobody may sleep");
        turns += 1;
        assert!(taken() - before <= turns * FRAMES_PER_TURN);
        assert_eq!(
            flooding.stats().reads,
            reads,
            "what has arrived needs no read"
        );
        // This call runs no turn if a message is present.
        match receiver.receive(Patience::None) {
            Ok(message) => break assert_eq!(message.bytes(), [7]),
            Err(RecvFailure::Empty) => turns += 1,
            Err(failure) => panic!("{failure:?}"),
        }
    }
    assert!(turns <= 4, "it waited for {turns} turns");

    // The rest arrives, one share in each turn, and no frame is lost.
    let mut before = taken();
    while taken() < frames {
        node.poll_ready();
        let now = taken();
        assert!(now - before <= FRAMES_PER_TURN);
        before = now;
    }
}

/// The leading thread continues by itself, because nothing outside causes the next turn.
#[test]
fn frames_left_over_by_a_turns_share_are_read_without_sleep() {
    let node = runtime(Driver::Threads);
    let (flooding, _peer, frames) = flood(&node);
    while (flooding.stats().frames_received as usize) < frames {
        std::thread::yield_now();
    }
}

/// Messages on the socket beside shared memory are counted as well.
#[test]
fn one_look_at_a_unix_socket_takes_a_share() {
    let node = runtime(Driver::Caller);
    let [stream, _tcp] = connection();
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let pair = || socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
    let ((unix, peer), (bells, _bells)) = (pair(), pair());
    let watched = unix.try_clone().unwrap();
    let _session = admit(&node, stream, Some(UnixWires::new(unix, bells)));
    let peer = FdSocket::new(peer);
    let hello = Message::Hello { asymmetry: true };
    let greeted = peer.send(hello.encode().as_ref(), None);
    assert!(matches!(greeted, Ok(Outgoing::Sent)));
    let again = Message::End {
        end: 1,
        role: Role::Sender,
        segment: 0,
        block: 0,
    };
    let mut passed = 1;
    while let Outgoing::Sent = peer.send(again.encode().as_ref(), None).unwrap() {
        passed += 1;
    }
    assert!(
        passed > 3 * PASSED_PER_TURN,
        "{passed} messages are no flood"
    );

    // This handles the events of epoll and a timer that is due at once.
    node.poll_ready();
    let mut taken = 0;
    while let Outgoing::Sent = peer.send(again.encode().as_ref(), None).unwrap() {
        taken += 1;
    }
    assert!(
        (1..=2 * PASSED_PER_TURN).contains(&taken),
        "{taken} in a turn"
    );
    for _ in 0..(passed + taken).div_ceil(PASSED_PER_TURN) {
        node.poll_ready();
    }
    let is_empty = recv(
        &watched,
        &mut [0_u8; 64],
        RecvFlags::PEEK | RecvFlags::DONTWAIT,
    );
    assert!(
        is_empty.is_err(),
        "something is left, and nobody looks again"
    );
}
