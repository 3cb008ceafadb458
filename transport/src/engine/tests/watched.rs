//! Two nodes whose connections a reactor watches, which reports each change once: what one read does
//! not take has to be read all the same before the tasks park.

use std::{
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
    wire::{
        stream::tls_ends,
        tests::by_hand::{admit_sealed, connection, runtime, spec_of_bytes},
    },
};

struct Pair {
    nodes: [Arc<Runtime>; 2],
    tasks: [Tasks; 2],
    sender: SendHandle,
    receiver: ReceiveHandle,
    /// Another handle of the sender's connection.
    kept: TcpStream,
}

const SENDER: usize = 0;
const RECEIVER: usize = 1;
const PATIENCE: Duration = Duration::from_secs(120);

impl Pair {
    fn new(is_sealed: bool) -> Self {
        let nodes = [(); 2].map(|()| runtime(Driver::Tasks));
        let mut tasks = [0, 1].map(|at: usize| Tasks::of(nodes[at].first()));
        let [ours, theirs] = connection();
        // The sender meets a full socket.
        set_socket_send_buffer_size(&ours, 32 << 10).expect("it can be set");
        let kept = ours.try_clone().expect("a descriptor");
        let mut tls = match is_sealed {
            true => tls_ends().map(Some),
            false => [None, None],
        };
        let from = admit_sealed(&nodes[SENDER], ours, None, tls[SENDER].take());
        let to = admit_sealed(&nodes[RECEIVER], theirs, None, tls[RECEIVER].take());
        let sender = nodes[SENDER].open_sender(&from, "log", spec(), PATIENCE);
        let receiver = nodes[RECEIVER].open_receiver(&to, "log", spec(), PATIENCE, HALF_WINDOW);
        for _ in 0..2 {
            tasks.iter_mut().for_each(Tasks::rest);
        }
        Self {
            nodes,
            tasks,
            sender: sender.expect("a sender"),
            receiver: receiver.expect("a receiver"),
            kept,
        }
    }

    /// Sends a message for each of `lengths`, and lets the sender's tasks alone run until they park.
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

    /// Sends messages of `lengths` and receives them.
    fn exchange(&mut self, lengths: &[usize]) {
        self.send(lengths);
        let mut received = Vec::new();
        let began = Instant::now();
        // The kernel delays acknowledgements, and with them the room in the sender's socket.
        while received.len() < lengths.len() && began.elapsed() < PATIENCE {
            self.rest();
            received.extend(self.receive().0);
        }
        self.rest();
        assert_eq!(received, lengths);
    }

    /// Lets the tasks of both nodes run in turn until all of them park.
    fn rest(&mut self) {
        while self.tasks.iter().any(Tasks::is_woken) {
            self.tasks.iter_mut().for_each(Tasks::rest);
        }
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
    each(|pair| pair.exchange(&[32 << 10; 64]));
}

/// Reads end at each place of a block, and at each place of a message.
#[test]
fn short_reads_of_every_length_leave_nothing() {
    each(|pair| (1..700).for_each(|length| pair.exchange(&[length, 3 * length, 40 * length])));
}

/// The last read of a large message takes the header of what follows, and no more.
#[test]
fn a_small_message_behind_a_large_one_is_read() {
    each(|pair| {
        for behind in [1, 63, 64, 65, 500, 5000] {
            pair.exchange(&[(1 << 20) + behind, behind, 2 << 20, behind]);
        }
    });
}

/// The end of the connection was reported together with the bytes before it.
#[test]
fn the_end_behind_the_last_bytes_is_read() {
    let cut = |pair: &mut Pair| {
        pair.kept
            .shutdown(Shutdown::Write)
            .expect("it is connected")
    };
    let close = |pair: &mut Pair| {
        pair.nodes[SENDER].start_close(Duration::ZERO);
        pair.tasks[SENDER].rest();
        assert!(pair.tasks[SENDER].is_over);
    };
    for end in [&cut as &dyn Fn(&mut Pair), &close] {
        for messages in [1, 10] {
            each(|pair| {
                let lengths = vec![1000; messages];
                pair.send(&lengths);
                end(pair);
                pair.tasks[RECEIVER].rest();
                assert_eq!(pair.receive(), (lengths, true));
            });
        }
    }
}
