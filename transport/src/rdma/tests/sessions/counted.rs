//! The messages whose instructions `cargo xtask bench` counts. Only their cost grows with their
//! number, so two runs with different numbers give the cost of one message.
//!
//! `IBEX_TEST_MESSAGES` is their number; the default takes a moment.

use std::env;

use super::*;

#[test]
fn counted_shared_frames() {
    carry(BURST);
}

#[test]
fn counted_own_frames() {
    carry(1);
}

/// Carries the messages, `messages_per_turn` in each turn of the sender.
fn carry(messages_per_turn: u64) {
    let stage = Stage::with(own_receives());
    let (mut sender, mut receiver) = stage.channel("stream", WINDOW);
    for _ in 0..messages() / BURST {
        for sent in 1..=BURST {
            try_send(&mut sender, &[7; 64]).unwrap();
            if sent % messages_per_turn == 0 {
                stage.nodes[0].runtime.poll_ready();
            }
        }
        for _ in 0..BURST {
            assert!(receiver.receive(Patience::None).is_ok());
        }
    }
}

/// Number of messages that fit into a few frames, far below the credit.
const BURST: u64 = 20;

fn messages() -> u64 {
    env::var("IBEX_TEST_MESSAGES").map_or(100, |count| count.parse().expect("a number"))
}

/// Returns the settings of the benchmark.
fn own_receives() -> PortSettings {
    PortSettings {
        shared_receives: false,
        ..settings()
    }
}
