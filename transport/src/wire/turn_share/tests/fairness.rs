//! A session of an engine whose leader is never without work, because another session floods it
//! with frames of one kind. What handles leave for the engine is taken in all the same. The test
//! counts rounds of the leader, never time.

use std::{
    io::{ErrorKind, Write as _},
    mem::MaybeUninit,
    net::TcpStream,
    sync::Arc,
    time::Instant,
};

use ibex_protocol::format::control::{Ask, Control};
use ibex_ring::parking::{Patience, thread_waker};

use crate::{
    channel::{ChannelError, ReceiveHandle, SendHandle},
    node::SessionShared,
    runtime::{Driver, Runtime},
    wire::tests::by_hand::{admit, channel, connection, control_frame, runtime, settle},
};

/// A peer that sends as much as the kernel takes, again and again.
#[allow(clippy::large_enum_variant, reason = "a test makes few of them")]
enum Flood {
    /// Frames with this message, or with none.
    OfFrames {
        control: Option<Control>,
        peer: TcpStream,
        number: u64,
        /// The part of a frame that the kernel did not take.
        rest: Vec<u8>,
    },
    /// Messages of this length, which the other node takes at once.
    OfMessages {
        bytes: usize,
        node: Arc<Runtime>,
        sender: SendHandle,
        receiver: ReceiveHandle,
    },
}

impl Flood {
    fn of_frames(control: Option<Control>, victim: &Arc<Runtime>) -> (Self, Arc<SessionShared>) {
        let [stream, peer] = connection();
        peer.set_nonblocking(true).unwrap();
        let flood = Self::OfFrames {
            control,
            peer,
            number: 0,
            rest: Vec::new(),
        };
        (flood, admit(victim, stream, None))
    }

    fn of_messages(bytes: usize, victim: &Arc<Runtime>) -> (Self, Arc<SessionShared>) {
        let node = runtime(Driver::Caller);
        let [stream, peer] = connection();
        let (session, theirs) = (admit(victim, stream, None), admit(&node, peer, None));
        let (sender, receiver) = channel((&node, &theirs), (victim, &session));
        settle([&node, victim]);
        let flood = Self::OfMessages {
            bytes,
            node,
            sender,
            receiver,
        };
        (flood, session)
    }

    /// Sends as much as can be sent now, and takes what the victim has sent.
    fn go_on(&mut self) {
        match self {
            Self::OfFrames {
                control,
                peer,
                number,
                rest,
            } => {
                drain(peer);
                loop {
                    while rest.len() < 1 << 14 {
                        rest.extend(control_frame(*number, control.as_ref()));
                        *number += 1;
                    }
                    match peer.write(rest) {
                        Ok(written) => drop(rest.drain(..written)),
                        Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                        Err(error) => panic!("the flood of {control:?} ends: {error}"),
                    }
                }
            }
            Self::OfMessages {
                bytes,
                node,
                sender,
                receiver,
            } => {
                while receiver.receive(Patience::None).is_ok() {}
                while send(sender, *bytes) {}
                node.poll_ready();
            }
        }
    }
}

fn drain(mut peer: &TcpStream) {
    use std::io::Read as _;
    let mut bytes = [0; 1 << 14];
    while peer.read(&mut bytes).is_ok_and(|read| read > 0) {}
}

/// Publishes a message, if the window has room for it.
fn send(sender: &mut SendHandle, bytes: usize) -> bool {
    let encode = |slot: &mut [MaybeUninit<u8>]| {
        slot[..bytes].fill(MaybeUninit::new(7));
        Ok(bytes)
    };
    match sender.send(Some(bytes), Patience::None, encode) {
        Ok(_) => true,
        Err(ChannelError::WouldBlock) => false,
        Err(failure) => panic!("{failure:?}"),
    }
}

/// A node whose engine the test leads, and a session with another node, which has a channel each
/// way.
struct Stage {
    node: Arc<Runtime>,
    other: Arc<Runtime>,
    there: (SendHandle, ReceiveHandle),
    back: (SendHandle, ReceiveHandle),
}

impl Stage {
    fn new() -> Self {
        let [node, other] = [(); 2].map(|()| runtime(Driver::Caller));
        let [stream, theirs] = connection();
        let (ours, theirs) = (admit(&node, stream, None), admit(&other, theirs, None));
        let there = channel((&node, &ours), (&other, &theirs));
        let back = channel((&other, &theirs), (&node, &ours));
        settle([&node, &other]);
        Self {
            node,
            other,
            there,
            back,
        }
    }

    /// Leads the engine for a round, which does not sleep.
    fn lead(&self) {
        let (_, parker) = thread_waker();
        self.node.first().lead(&parker, Some(Instant::now()));
    }

    /// Leads until nothing is left to do, so that every ring is armed.
    fn rest(&self) {
        while self.other.poll_ready() || self.node.hot_sessions() > 0 {
            self.lead();
        }
    }

    /// Returns the rounds until `is_done`, which is asked behind each.
    fn rounds(
        &mut self,
        flood: &mut Option<(Flood, Arc<SessionShared>)>,
        mut is_done: impl FnMut(&mut Self) -> bool,
    ) -> u64 {
        for rounds in 1..=MOST_ROUNDS {
            if let Some((flood, _)) = flood {
                flood.go_on();
            }
            self.lead();
            self.other.poll_ready();
            if is_done(self) {
                return rounds;
            }
        }
        panic!("what a handle left is not taken in within {MOST_ROUNDS} rounds");
    }

    /// Returns the rounds that events of each kind wait: a message in an armed ring, and room in a
    /// window that was full.
    fn waits(&mut self, flood: &mut Option<(Flood, Arc<SessionShared>)>) -> [u64; 2] {
        if flood.is_none() {
            self.rest();
        }
        assert!(send(&mut self.there.0, 1));
        let of_message = self.rounds(flood, |stage| stage.there.1.receive(Patience::None).is_ok());
        while send(&mut self.back.0, 1 << 10) {}
        let mut held = Vec::new();
        self.rounds(flood, |stage| {
            while let Ok(message) = stage.back.1.receive(Patience::None) {
                held.push(message);
            }
            held.len() as u64 * (1 << 10) > 900 << 10
        });
        drop(held);
        let of_release = self.rounds(flood, |stage| {
            // The call that finds no message publishes what was released.
            while stage.back.1.receive(Patience::None).is_ok() {}
            send(&mut stage.back.0, 1 << 10)
        });
        [of_message, of_release]
    }
}

/// More than a flood needs to be over, if it could be.
const MOST_ROUNDS: u64 = 2000;
const REPEATS: usize = 4;

/// Returns the longest waits of a session, beside a flood or alone.
fn longest_waits(
    flood: impl FnOnce(&Arc<Runtime>) -> Option<(Flood, Arc<SessionShared>)>,
) -> [u64; 2] {
    let mut stage = Stage::new();
    stage.rest();
    let mut flood = flood(&stage.node);
    if let Some((_, session)) = &flood {
        let session = session.clone();
        // The engine has found the flood, and no round from here on is without progress.
        stage.rounds(&mut flood, |_| session.stats().frames_received > 300);
    }
    let waits: Vec<_> = (0..REPEATS).map(|_| stage.waits(&mut flood)).collect();
    [0, 1].map(|kind| waits.iter().map(|waits| waits[kind]).max().expect("some"))
}

#[test]
fn what_handles_leave_is_taken_in_while_a_peer_floods_the_engine() {
    let alone = longest_waits(|_| None);
    let channel = u32::MAX;
    let ask = Ask::acknowledged(1);
    let controls = [
        None,
        Some(Control::Query),
        Some(Control::Ask { channel, ask }),
        Some(Control::Draining { is_done: false }),
        Some(Control::Want { granted: 0 }),
        Some(Control::Recall {
            credit: 0,
            must_ask: true,
        }),
        Some(Control::Surrender { credit: 0 }),
    ];
    let mut found = Vec::new();
    for control in controls {
        let waits = longest_waits(|node| Some(Flood::of_frames(control.clone(), node)));
        found.push((format!("{control:?}"), waits));
    }
    for bytes in [8, 20_000, 700_000] {
        let waits = longest_waits(|node| Some(Flood::of_messages(bytes, node)));
        found.push((format!("messages of {bytes} bytes"), waits));
    }
    for (flood, waits) in &found {
        for (wait, alone) in waits.iter().zip(alone) {
            assert!(*wait <= 10 * alone, "{flood}: {waits:?}, alone {alone:?}");
        }
    }
}
