//! The replicated log under `kill -9` and worse. Replicas are killed in the middle of a load and
//! join again, and at the end every log, read back, equals the primary's. Under fire the primary is
//! killed as well, processes are stopped, and connections break.
#![forbid(unsafe_code)]

use std::{
    env, fs,
    io::{self, Read, Write},
    path::PathBuf,
    process::{Command, Stdio},
    thread,
    time::Duration,
};

use ibex_harness::process::Process;
use serde_json::Value;

#[test]
fn over_shm_in_files() {
    loses_nothing("--transport ibex --fabric shm --store files");
}

#[test]
fn over_tcp_in_files() {
    loses_nothing("--transport ibex --fabric tcp --store files");
}

#[test]
fn over_tcp_encrypted() {
    loses_nothing("--transport ibex --fabric tcp --tls --store memory");
}

#[test]
fn over_shm_with_a_shared_secret() {
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR"))
        .join(format!("cluster-{}.key", std::process::id()));
    let secret: [u8; 32] = std::array::from_fn(|at| (at as u8).wrapping_mul(37) ^ 0x5a);
    fs::write(&path, secret).expect("a file");
    let secret = path.to_str().expect("a path");
    loses_nothing(&format!("--transport ibex --fabric shm --secret {secret}"));
}

#[test]
fn over_sockets_in_files() {
    loses_nothing("--transport sockets --store files");
}

#[test]
fn over_tcp_under_threads_synced_now_and_then() {
    loses_nothing("--fabric tcp --driver threads --wait sleep --store files --fsync 5");
}

#[test]
fn from_where_it_was_over_shm() {
    keeps_what_was_acknowledged("--transport ibex --fabric shm --store files");
}

#[test]
fn from_where_it_was_over_tcp() {
    keeps_what_was_acknowledged("--transport ibex --fabric tcp --store files");
}

#[test]
fn from_where_it_was_over_sockets() {
    keeps_what_was_acknowledged("--transport sockets --store files");
}

#[test]
fn from_the_beginning_over_shm() {
    loses_nothing("--transport ibex --fabric shm --store memory");
}

#[test]
fn from_the_beginning_over_tcp() {
    loses_nothing("--transport ibex --fabric tcp --store memory");
}

#[test]
fn from_the_beginning_over_sockets() {
    loses_nothing("--transport sockets --store memory");
}

/// Replicates the same bytes from a file and from standard input: the records are the same, and the
/// last one is shorter.
#[test]
fn of_a_file_and_of_standard_input() {
    let input: Vec<u8> = (0..300_007u32).flat_map(u32::to_le_bytes).collect();
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR"))
        .join(format!("input-to-replicate-{}", std::process::id()));
    fs::write(&path, &input).expect("a file");
    let records = input.len().div_ceil(4096) as u64;

    let of_file = run_with("--fabric shm --replicas 2", |command| {
        command.arg("--input").arg(&path);
    });
    has_equal_logs(&of_file, 2, records);
    fs::remove_file(&path).expect("it is there");
    let bytes = input.len() as u64 + 16 * records;
    assert_eq!(of_file["tip"]["end"], bytes, "{of_file}");

    let (stdin, mut writer) = io::pipe().expect("a pipe");
    // The input is larger than a pipe, so the program reads it while it replicates.
    let writing = thread::spawn(move || writer.write_all(&input));
    let of_stdin = run_with("--fabric tcp --replicas 2 --input -", |command| {
        command.stdin(stdin);
    });
    writing.join().expect("it ends").expect("all was read");
    has_equal_logs(&of_stdin, 2, records);
    assert_eq!(of_stdin["tip"], of_file["tip"], "{of_stdin}");
}

#[test]
fn synced_for_each_record() {
    for transport in ["--fabric shm", "--fabric tcp", "--transport sockets"] {
        let outcome = run(&format!(
            "{transport} --replicas 2 --store files --fsync record --records 500"
        ));
        has_equal_logs(&outcome, 2, 500);
        // Each record goes by itself, so that none waits while the disk syncs others.
        assert_eq!(outcome["fsync"], "record", "{outcome}");
        assert_eq!(outcome["group"], 1, "{outcome}");
    }
}

#[test]
fn under_fire_over_shm() {
    survives("--fabric shm --fsync 5", 5);
}

#[test]
fn under_fire_over_tcp() {
    survives("--fabric tcp", 5);
}

#[test]
fn under_fire_over_tcp_in_threads() {
    survives("--fabric tcp --driver threads --wait sleep --replicas 3", 5);
}

#[test]
fn under_fire_over_sockets() {
    survives("--transport sockets", 3);
}

/// Runs over the RDMA device that `IBEX_TEST_DEVICE` names, if it is set. The program must be built
/// with the feature `verbs`.
#[test]
#[cfg(feature = "verbs")]
fn under_fire_over_verbs() {
    if let Some(device) = env::var_os("IBEX_TEST_DEVICE") {
        let over_device = |command: &mut Command| {
            command.env("IBEX_RDMA_DEVICE", device);
        };
        has_lost_nothing(&run_with("--fabric verbs --fire 10", over_device));
    }
}

/// Kills and stops processes and breaks connections while records come: no acknowledged record is
/// lost. A replica over ibex that only loses its connection does not even join again.
fn survives(options: &str, seconds: u64) {
    let outcome = run(&format!("{options} --fire {seconds}"));
    has_lost_nothing(&outcome);
    if options.contains("sockets") {
        return;
    }
    let faults = |name: &str| outcome["faults"][name].as_u64().expect("a count");
    let replicas = outcome["tips"].as_array().expect("a list of logs").len() as u64 - 1;
    let primaries = 1 + faults("kill_primary") + faults("memory_files");
    let started = replicas * primaries + faults("kill_replica");
    assert!(outcome["joined"].as_u64() <= Some(started), "{outcome}");
}

fn has_lost_nothing(outcome: &Value) {
    let faults = outcome["faults"].as_object().expect("a count for each");
    let left_out = outcome["left_out"].as_object().expect("a reason for each");
    // These faults may be missing: those of a link (which may not exist, or lack the kernel's
    // netem), and those of memory that the transport does not use.
    let may_be_missing = |fault: &String| match outcome["carrier"].as_str() {
        Some("sockets") if fault == "memory_files" => true,
        Some("verbs") => fault.ends_with("_link"),
        _ => fault.ends_with("_link") || fault == "locked_memory",
    };
    assert!(left_out.keys().all(may_be_missing), "{outcome}");
    assert_eq!(faults.len() + left_out.len(), 14, "{outcome}");
    assert!(faults.values().all(|count| count.as_u64() > Some(0)));
    assert!(outcome["acknowledged"].as_u64() > Some(0), "{outcome}");
    assert_eq!(outcome["logs_equal"], true, "{outcome}");
    let logs = outcome["logs"].as_array().expect("a list of logs");
    for log in logs {
        for wrong in ["lost", "misplaced", "garbled"] {
            assert_eq!(log[wrong], 0, "{outcome}");
        }
    }
}

/// Kills one replica after the other, while the remaining one suffices for a majority. A replica
/// with files keeps its log and gets the rest; one in memory has lost everything.
fn loses_nothing(options: &str) {
    // In memory, thousands of records are through before the first kill is done, so the run needs
    // more of them; fewer, if each is encrypted.
    let records = match options {
        _ if options.contains("--tls") => 3 * RECORDS,
        _ if options.contains("memory") => 8 * RECORDS,
        _ => RECORDS,
    };
    let outcome = run(&format!(
        "{options} --replicas 2 --records {records} --kill 0@3000 --kill 1@6000"
    ));
    // The run may end before the primary has noticed the second loss.
    assert_eq!(outcome["replicas_killed"], 2, "{outcome}");
    has_equal_logs(&outcome, 2, records);
}

/// Kills the only replica, without which there is no majority. It must come back with every
/// acknowledged record.
fn keeps_what_was_acknowledged(options: &str) {
    let outcome = run(&format!(
        "{options} --replicas 1 --records {RECORDS} --kill 0@3000"
    ));
    has_equal_logs(&outcome, 1, RECORDS);
    let joined_at = outcome["replicas"][0]["joined_at"].as_u64();
    let record_bytes = 4096 + 16;
    assert!(joined_at >= Some(3000 * record_bytes), "{outcome}");
}

fn has_equal_logs(outcome: &Value, replicas: usize, records: u64) {
    assert_eq!(outcome["logs_equal"], true, "{outcome}");
    assert_eq!(outcome["tip"]["number"], records, "{outcome}");
    let reports = outcome["replicas"].as_array().expect("a list of replicas");
    assert_eq!(reports.len(), replicas);
    for report in reports {
        assert_eq!(report["tip"], outcome["tip"], "{outcome}");
    }
}

/// Runs the program and parses its standard output.
fn run(options: &str) -> Value {
    run_with(options, |_| {})
}

fn run_with(options: &str, prepare: impl FnOnce(&mut Command)) -> Value {
    let mut command = Command::new(program());
    command
        .args(options.split_whitespace())
        .arg("--json")
        .stdout(Stdio::piped());
    if !options.contains("--fire") {
        command.args(["--segment-bytes", "1000000"]);
    }
    prepare(&mut command);
    let mut process = Process::start(options, &mut command).expect("the program starts");
    let finished = process.finish_within(PATIENCE);
    let mut output = String::new();
    let read = process.stdout().read_to_string(&mut output);
    read.expect("it is text");
    finished.unwrap_or_else(|error| panic!("{error}: {output}"));
    serde_json::from_str(&output).unwrap_or_else(|error| panic!("{output:?}: {error}"))
}

/// Returns the path of the program: this test lies in `target/PROFILE/deps`, the program in
/// `target/PROFILE`. Cargo's own path would not do where a guest mounts the target folder.
fn program() -> PathBuf {
    let test = env::current_exe().expect("this program has a path");
    let profile = test.ancestors().nth(2).expect("it lies in a target folder");
    profile.join("replication")
}

/// Far longer than a run needs, in a debug build on a busy machine.
const PATIENCE: Duration = Duration::from_secs(900);
const RECORDS: u64 = 8000;
