//! A cluster of processes is harmed for a few seconds, and its clients see nothing wrong.

use std::{path::PathBuf, time::Duration};

use raft_kv::{
    chaos::{self, Chaos},
    node::Wire,
};

fn harm(wire: Wire) {
    let chaos = Chaos {
        program: PathBuf::from(env!("CARGO_BIN_EXE_raft_kv")),
        directory: std::env::temp_dir(),
        wire,
        time: Duration::ZERO, // every fault once
        seed: 7,
    };
    // This is the only thread: the nodes end with the thread that started them.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let outcome = runtime.expect("a runtime").block_on(chaos::run(chaos));
    let outcome = outcome.expect("the cluster comes back each time");
    println!("{outcome}");
    assert!(outcome.is_good(), "{outcome}");
    assert!(outcome.acknowledged > 0 && outcome.reads > 0, "{outcome}");
}

#[test]
fn nothing_is_lost_and_all_is_linearizable_over_tcp() {
    harm(Wire::Tcp);
}

#[test]
fn nothing_is_lost_and_all_is_linearizable_over_shm() {
    harm(Wire::Shm);
}
