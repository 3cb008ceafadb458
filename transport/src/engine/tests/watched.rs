//! Two nodes whose connections a reactor watches, which reports each change once: what one read does
//! not take has to be read all the same before the tasks park.

use std::{
    io::{ErrorKind, Read, Write},
    mem::MaybeUninit,
    net::{Shutdown, TcpStream},
    sync::Arc,
    time::{Duration, Instant},
};

use ibex_protocol::format::{
    channel_window::{ChannelWindow, HALF_WINDOW},
    control::ChannelSpec,
};
use ibex_ring::parking::Patience;
use rustix::net::sockopt::set_socket_send_buffer_size;

use super::tasks::Tasks;
use crate::{
    channel::{ChannelError, ReceiveHandle, SendHandle},
    runtime::{Driver, Runtime},
    session::EndCause,
    wire::{
        stream::tls_ends,
        tests::by_hand::{admit_sealed, connection, runtime, spec_of_bytes},
    },
};

/// A node that sends, one that receives, and the network between them.
struct Pair {
    nodes: [Arc<Runtime>; 2],
    tasks: [Tasks; 2],
    sender: SendHandle,
    receiver: ReceiveHandle,
    network: Network,
}

const SENDER: usize = 0;
const RECEIVER: usize = 1;
const PATIENCE: Duration = Duration::from_secs(120);

/// The far ends of the connections of both nodes.
struct Network {
    ends: [TcpStream; 2],
    /// Bytes on their way to the node of that number.
    to: [Vec<u8>; 2],
}

impl Network {
    /// Carries what was sent, but for the last `held` bytes to the receiver. Returns whether it
    /// carried anything, and ends a connection whose other end has ended.
    fn carry(&mut self, held: usize) -> bool {
        let mut moved = false;
        for (from, to) in [(SENDER, RECEIVER), (RECEIVER, SENDER)] {
            let bytes = &mut self.to[to];
            let before = bytes.len();
            let has_ended = self.ends[from].read_to_end(bytes).is_ok();
            moved |= bytes.len() > before;
            let held = if to == RECEIVER { held } else { 0 };
            let due = bytes.len().saturating_sub(held);
            match self.ends[to].write(&bytes[..due]) {
                Ok(written) => {
                    moved |= written > 0;
                    bytes.drain(..written);
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                // The node is closed.
                Err(_) => bytes.clear(),
            }
            if has_ended && bytes.is_empty() {
                let _ = self.ends[to].shutdown(Shutdown::Write);
            }
        }
        moved
    }
}

impl Pair {
    fn new(is_sealed: bool) -> Self {
        let nodes = [(); 2].map(|()| runtime(Driver::Tasks));
        let tasks = [0, 1].map(|at: usize| Tasks::of(nodes[at].first()));
        let [[ours, to_ours], [theirs, to_theirs]] = [connection(), connection()];
        // The sender meets a full socket.
        set_socket_send_buffer_size(&ours, 32 << 10).expect("it can be set");
        let ends = [to_ours, to_theirs];
        for end in &ends {
            end.set_nonblocking(true).expect("it can be set");
        }
        let network = Network {
            ends,
            to: Default::default(),
        };
        let mut tls = match is_sealed {
            true => tls_ends().map(Some),
            false => [None, None],
        };
        let from = admit_sealed(&nodes[SENDER], ours, None, tls[SENDER].take());
        let to = admit_sealed(&nodes[RECEIVER], theirs, None, tls[RECEIVER].take());
        let sender = nodes[SENDER].open_sender(&from, "log", spec(), PATIENCE);
        let receiver = nodes[RECEIVER].open_receiver(&to, "log", spec(), PATIENCE, HALF_WINDOW);
        let mut pair = Self {
            nodes,
            tasks,
            sender: sender.expect("a sender"),
            receiver: receiver.expect("a receiver"),
            network,
        };
        pair.rest(0);
        pair
    }

    /// Sends a message for each of `lengths`, and lets the sender's tasks run until they park.
    fn send(&mut self, lengths: &[usize]) {
        for &length in lengths {
            let sent = self.sender.send(Some(length), Patience::None, |slot| {
                slot[..length].fill(MaybeUninit::new(7));
                Ok(length)
            });
            sent.expect("there is room");
        }
        self.tasks[SENDER].rest();
    }

    /// Takes the messages that have arrived. Returns their lengths, and whether the channel ended.
    fn receive(&mut self) -> (Vec<usize>, bool) {
        let mut lengths = Vec::new();
        loop {
            match self.receiver.poll() {
                Ok(Some(message)) => lengths.push(message.bytes().len()),
                Ok(None) => return (lengths, false),
                Err(ChannelError::Ended | ChannelError::Failed(_)) => return (lengths, true),
                Err(other) => panic!("{other:?}"),
            }
        }
    }

    /// Lets the tasks of both nodes run, and the network carry all but `held` bytes, until nothing
    /// is left to do.
    fn rest(&mut self, held: usize) {
        while self.network.carry(held) || self.tasks.iter().any(Tasks::is_woken) {
            self.tasks.iter_mut().for_each(Tasks::rest);
        }
    }

    /// Sends messages of `lengths` and receives them. Whenever nothing else is left to do, the last
    /// `held` bytes arrive together.
    fn exchange(&mut self, lengths: &[usize], held: usize) {
        self.send(lengths);
        let mut received = Vec::new();
        let began = Instant::now();
        // The kernel delays acknowledgements, and with them the room in the sender's socket.
        while received.len() < lengths.len() && began.elapsed() < PATIENCE {
            self.rest(held);
            self.network.carry(0);
            self.tasks[RECEIVER].rest();
            received.extend(self.receive().0);
        }
        self.rest(0);
        assert_eq!(received, lengths);
    }
}

fn spec() -> ChannelSpec {
    let window = ChannelWindow {
        messages: 1 << 14,
        bytes: 4 << 20,
    };
    spec_of_bytes(window, 4 << 20)
}

/// Plays a scenario over a plain connection and over TLS.
fn each(play: impl Fn(&mut Pair)) {
    for is_sealed in [false, true] {
        play(&mut Pair::new(is_sealed));
    }
}

/// A turn reads a limited share, and there is far more.
#[test]
fn bytes_beyond_the_share_of_a_turn_are_read() {
    each(|pair| pair.exchange(&[32 << 10; 64], 1 << 20));
}

/// Reads of a large message end at its end, and with the header of what follows.
#[test]
fn a_small_message_behind_a_large_one_is_read() {
    each(|pair| {
        for held in (0..4000).step_by(250) {
            pair.exchange(&[200 << 10, 200], held);
        }
    });
}

/// The end of the connection was reported together with the bytes before it.
#[test]
fn the_end_behind_the_last_bytes_is_read() {
    for is_cut in [true, false] {
        for messages in [1, 10] {
            each(|pair| {
                let lengths = vec![1000; messages];
                pair.send(&lengths);
                match is_cut {
                    true => pair.network.ends[SENDER]
                        .shutdown(Shutdown::Read)
                        .expect("a connection"),
                    false => {
                        pair.nodes[SENDER].start_close(Duration::ZERO);
                        pair.tasks[SENDER].rest();
                        assert!(pair.tasks[SENDER].is_over);
                    }
                }
                while pair.network.carry(0) {}
                pair.tasks[RECEIVER].rest();
                assert_eq!(pair.receive(), (lengths, true));
            });
        }
    }
}

/// The network works and nothing else happens, so that nothing but the node itself reports the end.
#[test]
fn a_connection_that_this_node_gives_up_ends_behind_what_has_arrived() {
    for lengths in [vec![], vec![100], vec![1000; 10]] {
        each(|pair| {
            pair.send(&lengths);
            while pair.network.carry(0) {}
            let event_loop = pair.nodes[RECEIVER].first();
            event_loop.with_engine(|engine, context| {
                engine.on_every_connection(context, |connection, _| {
                    connection.drain_then_end(EndCause::lost("its memory cannot be read"));
                });
            });
            pair.tasks[RECEIVER].rest();
            assert_eq!(pair.receive(), (lengths.clone(), true));
        });
    }
}
