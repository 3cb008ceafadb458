//! Two releases of one program, side by side: the example `rolling_upgrade`.
//!
//! They are two builds with different types, and share no line. Each of them sends and receives, so
//! every pair talks in both directions.
//!
//! Both must be built: `cargo test` at the root does that, and `cargo build --examples` before
//! `cargo test --test rolling_upgrade`, with the same profile.
#![forbid(unsafe_code)]

use std::{
    env,
    path::PathBuf,
    process::{Command, Stdio},
};

use ibex_harness::process::Process;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Release {
    Old,
    New,
}

use Release::{New, Old};

#[test]
fn over_shm() {
    every_pair("shm");
}

#[test]
fn over_tcp() {
    every_pair("tcp");
}

fn every_pair(fabric: &str) {
    for (primary, replica) in [(Old, Old), (New, Old), (Old, New), (New, New)] {
        let mut receiving = start(replica, &["replica", fabric]);
        let address = receiving.hear("").expect("its address");
        let mut sending = start(primary, &["primary", fabric, &address]);
        let received = receiving.hear_out().expect("it succeeds");
        let reported = sending.hear_out().expect("it succeeds");
        let pair = format!("{primary:?} sends to {replica:?} over {fabric}");
        let expected = match (primary, replica) {
            (_, Old) => "1000 entries\n",
            (Old, New) => "1000 entries, 0 of them with a term\n",
            (New, New) => "1000 entries, 1000 of them with a term\n",
        };
        assert_eq!(received, expected, "{pair}");
        let expected = match (primary, replica) {
            (New, New) => "the replica has 1000 entries, 100000 bytes\n",
            _ => "the replica has 1000 entries\n",
        };
        assert_eq!(reported, expected, "{pair}");
    }
}

/// Wrong arguments print which of the programs to start first, and how.
#[test]
fn wrong_arguments_print_the_right_ones() {
    for release in [Old, New] {
        for arguments in [&[][..], &["replica"], &["replica", "udp"]] {
            let mut started = Command::new(program(release));
            let ended = started.args(arguments).output().expect("the example runs");
            let said = String::from_utf8(ended.stderr).expect("text");
            assert_eq!(ended.status.code(), Some(2), "{said}");
            let first = said.find("rolling_upgrade_old -- replica shm");
            let second = said.find("rolling_upgrade_new -- primary shm ADDRESS");
            assert!(first.is_some() && first < second, "{said}");
        }
    }
}

fn start(release: Release, arguments: &[&str]) -> Process {
    let mut command = Command::new(program(release));
    let command = command.args(arguments).stdin(Stdio::null());
    Process::start(name(release), command.stdout(Stdio::piped())).expect("the example runs")
}

/// Returns the path of a release. The build puts the example beside this test:
/// `target/PROFILE/deps/rolling_upgrade-…` has its examples in `target/PROFILE/examples`.
fn program(release: Release) -> PathBuf {
    let test = env::current_exe().expect("this program has a path");
    let profile = test.ancestors().nth(2).expect("it lies in a target folder");
    let program = profile.join("examples").join(name(release));
    assert!(
        program.exists(),
        "{} is not there: run `cargo build --examples` first, with the profile of this test",
        program.display()
    );
    program
}

fn name(release: Release) -> &'static str {
    match release {
        Old => "rolling_upgrade_old",
        New => "rolling_upgrade_new",
    }
}
