//! A session that floods its engine beside a quiet one. The tests count turns and frames, never
//! time.

mod fairness;

use std::{
    io::{ErrorKind, Write as _},
    net::TcpStream,
    sync::Arc,
};

use ibex_protocol::format::{control::Role, frame_check::CHECKED_HEADER_BYTES};
use ibex_ring::parking::Patience;
use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType, recv, socketpair};

use super::*;
use crate::{
    channel::ChannelError,
    node::SessionShared,
    runtime::{Driver, Runtime},
    shared_memory::{FdSocket, Outgoing, UnixWires, message::ShmMessage},
    wire::{
        stream::tls_ends,
        tests::by_hand::{
            admit, admit_sealed, channel, connection, control_frame, runtime, settle,
        },
    },
};

/// Returns an empty control frame that follows `number` others.
fn empty_frame(number: u64) -> Vec<u8> {
    control_frame(number, None)
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
            Err(ChannelError::WouldBlock) => turns += 1,
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

/// A peer that puts each byte into a TLS record of its own makes the engine open many records for a
/// frame.
#[test]
fn records_left_over_by_a_turns_share_are_opened_without_sleep() {
    let node = runtime(Driver::Threads);
    let [stream, mut peer] = connection();
    let [mut theirs, ours] = tls_ends();
    let session = admit_sealed(&node, stream, None, Some(ours));
    const FRAMES: u64 = 200;
    let sending = std::thread::spawn(move || {
        for byte in (0..FRAMES).flat_map(empty_frame) {
            theirs.seal(&[byte]).unwrap();
        }
        peer.write_all(theirs.outgoing()).unwrap();
        peer
    });
    while session.stats().frames_received < FRAMES {
        std::thread::yield_now();
    }
    sending.join().unwrap();
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
    let _session = admit(&node, stream, Some(UnixWires::new(unix, bells, true)));
    let peer = FdSocket::new(peer);
    let hello = ShmMessage::Hello { asymmetry: true };
    let greeted = peer.send(hello.encode().as_ref(), None);
    assert!(matches!(greeted, Ok(Outgoing::Sent)));
    let again = ShmMessage::End {
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
