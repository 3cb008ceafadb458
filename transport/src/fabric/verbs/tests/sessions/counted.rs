//! The messages whose instructions `cargo xtask bench` counts: nothing else here grows with
//! their number, so two runs with different numbers tell what one takes.
//!
//! `IBEX_TEST_MESSAGES` says how many; without it, as many as take a moment.

use std::env;

use super::*;

#[test]
fn counted_shared_frames() {
    let stage = Stage::with(own_receives());
    let (mut sender, mut receiver) = stage.channel("stream", WINDOW);
    for _ in 0..messages() / BURST {
        for _ in 0..BURST {
            try_send(&mut sender, &[7; 64]).unwrap();
        }
        turn(&stage, 0);
        for _ in 0..BURST {
            assert!(receiver.receive(Patience::None).is_ok());
        }
    }
}

#[test]
fn counted_own_frames() {
    let stage = Stage::with(own_receives());
    let (mut sender, mut receiver) = stage.channel("stream", WINDOW);
    for _ in 0..messages() / BURST {
        for _ in 0..BURST {
            try_send(&mut sender, &[7; 64]).unwrap();
            turn(&stage, 0);
        }
        for _ in 0..BURST {
            assert!(receiver.receive(Patience::None).is_ok());
        }
    }
}

/// As many as fit a few frames, and far fewer than their credit.
const BURST: u64 = 20;

fn messages() -> u64 {
    env::var("IBEX_TEST_MESSAGES").map_or(100, |count| count.parse().expect("a number"))
}

fn turn(stage: &Stage, node: usize) {
    stage.nodes[node].runtime.poll_ready();
}

/// As the benchmark has it.
fn own_receives() -> SiteSettings {
    SiteSettings {
        shared_receives: false,
        ..settings()
    }
}
