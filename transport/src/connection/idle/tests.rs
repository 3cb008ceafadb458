//! Changes that are lost while a call waits for them. The test turns both nodes, carries the bytes between
//! them, and moves their clock.

use std::{
    io::{ErrorKind, Read as _, Write as _},
    net::TcpStream,
    sync::{Arc, atomic::AtomicBool},
    task::Wake,
};

use ibex_ring::parking::Patience;

use super::*;
use crate::{
    channel::{RawMessage, ReceiveHandle, SendHandle},
    clock::StoppedClock,
    node::{SessionShared, What},
    runtime::{Driver, Runtime},
    wire::tests::by_hand::{admit, channel, connection, runtime},
};

/// A node that sends, a node that receives, and the way between them.
struct Stage {
    nodes: [Arc<Runtime>; 2],
    sessions: [Arc<SessionShared>; 2],
    /// The far ends of the nodes' connections.
    way: [TcpStream; 2],
    clock: StoppedClock,
    /// Frames to the sender that were lost.
    lost: u64,
}

impl Stage {
    fn new() -> (Self, SendHandle, ReceiveHandle) {
        let clock = StoppedClock::stop();
        let nodes = [(); 2].map(|()| runtime(Driver::Caller));
        let [(here, to_here), (there, to_there)] = [(); 2].map(|()| {
            let [near, far] = connection();
            far.set_nonblocking(true).expect("a socket");
            (near, far)
        });
        let sessions = [admit(&nodes[0], here, None), admit(&nodes[1], there, None)];
        let [sending, receiving] = [0, 1].map(|at| (&nodes[at], &sessions[at]));
        let (sender, receiver) = channel(sending, receiving);
        let stage = Self {
            nodes,
            sessions,
            way: [to_here, to_there],
            clock,
            lost: 0,
        };
        stage.settle();
        (stage, sender, receiver)
    }

    /// Runs turns and carries bytes until each node has every frame that the other has sent, except
    /// those that the test lost, or until the sender's session has ended.
    fn settle(&self) {
        loop {
            let moved = [0, 1].map(|at| self.nodes[at].poll_ready());
            let [here, there] = &self.way;
            let carried = [carry(here, Some(there)), carry(there, Some(here))];
            let is_quiet = moved == [false; 2] && carried == [0; 2];
            let [ours, theirs] = [0, 1].map(|at| self.sessions[at].stats());
            let has_all = theirs.frames_received == ours.frames_sent
                && ours.frames_received + self.lost == theirs.frames_sent;
            if is_quiet && has_all || self.sessions[0].is_gone() {
                return;
            }
        }
    }

    /// Acknowledges a message, and loses the report of it.
    fn lose_changes_of(&mut self, message: RawMessage) {
        let sent = || self.sessions[1].stats().frames_sent;
        let before = sent();
        message.acknowledge();
        while self.nodes[1].poll_ready() {}
        self.lost = sent() - before;
        assert!(self.lost > 0, "the news is on its way");
        while carry(&self.way[1], None) == 0 {}
    }

    /// Moves the clock by this many seconds, one after the other. A task of `sender` waits meanwhile
    /// for the acknowledgement of its message, and polls when it is woken.
    fn wait(&self, sender: &mut SendHandle, seconds: u32) {
        let woken = Arc::new(Woken(AtomicBool::new(true)));
        let waker = woken.clone().into();
        for _ in 0..seconds {
            if woken.0.swap(false, Ordering::SeqCst) {
                let _ = sender.poll_acked(&waker, 1);
            }
            self.pass(1);
        }
    }

    /// Moves the clock by this many seconds, one after the other.
    fn pass(&self, seconds: u32) {
        for _ in 0..seconds {
            self.clock.advance(Duration::from_secs(1));
            self.settle();
        }
    }

    /// Sends a message, takes it at the other end, and waits for longer than checks miss changes.
    fn hold(&self, sender: &mut SendHandle, receiver: &mut ReceiveHandle) -> RawMessage {
        let encode = |slot: &mut [std::mem::MaybeUninit<u8>]| {
            slot[0].write(7);
            Ok(1)
        };
        sender.send(Some(1), Patience::None, encode).expect("sent");
        self.settle();
        let message = receiver.receive(Patience::None).expect("a message");
        self.wait(sender, 2 * CHECKS);
        message
    }
}

struct Woken(AtomicBool);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// Carries the bytes that have come, or loses them. Returns their number.
fn carry(mut from: &TcpStream, to: Option<&TcpStream>) -> usize {
    let mut bytes = [0; 1 << 16];
    match from.read(&mut bytes) {
        Ok(length) => {
            if let Some(mut to) = to {
                // A session that has ended takes no more.
                let _ = to.write_all(&bytes[..length]);
            }
            length
        }
        Err(error) if error.kind() == ErrorKind::WouldBlock => 0,
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn an_acknowledgement_that_comes_late_and_is_lost_is_noticed_while_a_call_waits_for_it() {
    let (mut stage, mut sender, mut receiver) = Stage::new();
    let message = stage.hold(&mut sender, &mut receiver);
    stage.lose_changes_of(message);
    stage.wait(&mut sender, BETWEEN_QUESTIONS.as_secs() as u32 + 1);
    assert!(
        stage.sessions[0].is_gone(),
        "the answer to a question shows the gap, and this session cannot resume"
    );
}

#[test]
fn a_call_that_waits_for_long_asks_seldom_and_one_that_has_left_not_at_all() {
    let (stage, mut sender, mut receiver) = Stage::new();
    let _held = stage.hold(&mut sender, &mut receiver);
    let heard = || stage.sessions[1].stats().frames_received;
    let period = BETWEEN_QUESTIONS.as_secs() as u32;
    stage.wait(&mut sender, period);
    let before = heard();
    stage.wait(&mut sender, 10 * period);
    let asked = heard() - before;
    assert!(
        (10..=11).contains(&asked),
        "{asked} questions in ten periods"
    );
    sender.leave_acked();
    let before = heard();
    stage.pass(10 * period);
    assert_eq!(heard(), before);
    assert!(!stage.sessions[0].is_gone());
}

/// A call may find the end not open yet, and ask once it is.
#[test]
fn a_sender_without_unreleased_messages_does_not_wait_for_a_release() {
    let (stage, mut sender, mut receiver) = Stage::new();
    sender.end.ask_for_room(&mut None);
    let _held = stage.hold(&mut sender, &mut receiver);
    stage.pass(5);
    while let Some(event) = stage.nodes[1].next_event(Patience::None) {
        assert!(!matches!(event.what, What::Stalled(_)), "{event:?}");
    }
    let before = stage.sessions[1].stats().frames_received;
    sender.end.ask_for_room(&mut None);
    stage.settle();
    let after = stage.sessions[1].stats().frames_received;
    assert_eq!(after, before + 1, "now there is a message to release");
}
