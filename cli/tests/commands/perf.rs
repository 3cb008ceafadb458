//! `ibex perf` between two processes, of this machine and of two network namespaces.

use std::fs;
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};

use ibex_harness::cores;
use ibex_harness::draw::Draw;
use ibex_harness::network::{Medium, Network};
use serde_json::Value;

use crate::machine::{Listener, Machine, code, ibex, page};
use crate::namespace;

/// Few messages, since a build of the tests is not optimized.
const FEW: &[&str] = &["--size", "64", "--iters", "200"];

/// Runs `perf` and returns its rows.
fn rows(arguments: &[&str]) -> Vec<Value> {
    let output = ibex(&[&["perf", "--json"], arguments].concat());
    assert_eq!(code(&output), 0, "{output:?}");
    let text = String::from_utf8(output.stdout).expect("text");
    let rows = text
        .lines()
        .map(|row| serde_json::from_str(row).expect("JSON"));
    let rows: Vec<Value> = rows.collect();
    for row in &rows {
        assert_eq!(row["data_check"], "ok", "{row}");
        assert_eq!(row["bytes_touched"], true, "{row}");
    }
    rows
}

fn of<'a>(rows: &'a [Value], fabric: &str) -> &'a Value {
    let found = rows.iter().find(|row| row["fabric"] == fabric);
    found.unwrap_or_else(|| panic!("no row of {fabric}: {rows:?}"))
}

/// Returns the turn of a test that measures on this machine, since both ends poll; `None` if they
/// have not a core each.
fn turn() -> Option<MutexGuard<'static, ()>> {
    static TURN: Mutex<()> = Mutex::new(());
    cores::choose(None).ok()?;
    Some(TURN.lock().unwrap_or_else(PoisonError::into_inner))
}

#[test]
fn each_fabric_is_measured_beside_its_limit_and_sockets() {
    let Some(_turn) = turn() else { return };
    let rows = rows(&[FEW, &["--mode", "latency", "--codec", "serde"]].concat());
    for fabric in ["shm", "tcp"] {
        let row = of(&rows, fabric);
        assert!(row["raw_one_way_ns_p50"].as_u64() > Some(0), "{row}");
        assert_eq!(row["codec"], "serde");
    }
    for name in ["plain TCP", "TLS"] {
        assert!(of(&rows, name)["one_way_ns"]["p50"].as_u64() > Some(0));
    }
    let output = ibex(&[&["perf", "--fabric", "shm", "--mode", "stream"], FEW].concat());
    assert_eq!(code(&output), 0, "{output:?}");
    let page = page(&output);
    assert!(
        page.contains("stream         size") && page.contains("\nshm "),
        "{page}"
    );
}

#[test]
fn sessions_at_once_and_encrypted_ones_are_measured() {
    let Some(_turn) = turn() else { return };
    let several = ["--fabric", "tcp", "--pairs", "3", "--io-threads", "2"];
    let several = rows(&[FEW, &several].concat());
    assert_eq!(of(&several, "tcp")["pairs"]["count"], 3);
    let sealed = rows(&[FEW, &["--fabric", "tcp", "--tls"]].concat());
    assert_eq!(of(&sealed, "tcp")["driver"], "caller");
}

#[test]
fn damage_fails_the_run() {
    let Some(_turn) = turn() else { return };
    let output = ibex(&[&["perf", "--fabric", "shm", "--flip-byte"], FEW].concat());
    assert_eq!(code(&output), 3, "{output:?}");
    assert!(
        page(&output).contains("data: failed: 1 damaged"),
        "{output:?}"
    );
}

#[test]
fn results_are_saved_as_rows_distributions_and_plots() {
    let Some(_turn) = turn() else { return };
    let machine = Machine::bare();
    let folder = machine.folder().join("results");
    let folder = folder.to_str().expect("text");
    let sizes = [
        "--fabric", "shm", "--mode", "latency", "--size", "8", "--size", "64",
    ];
    let kept = ["--rate", "2000", "--iters", "100", "--save", folder];
    let rows = rows(&[&sizes[..], &kept].concat());
    assert_eq!(of(&rows, "shm")["rate_per_s"], 2000);
    let read = |name: &str| fs::read_to_string(format!("{folder}/{name}")).expect(name);
    assert!(read("shm-64.hgrm").contains("Total count    =          100]"));
    let saved: Vec<Value> = serde_json::from_str(&read("rows.json")).expect("JSON");
    assert_eq!(saved.len(), rows.len());
    for plot in ["latency_by_percentile.svg", "latency_by_size.svg"] {
        assert!(read(plot).contains("<polyline"), "{plot}");
    }
}

#[test]
fn a_listener_measures_with_each_visitor() {
    let Some(_turn) = turn() else { return };
    let machine = Machine::bare();
    let secret = machine.folder().join("cluster.key");
    let file = secret.to_str().expect("text");
    assert_eq!(code(&ibex(&["keygen", "secret", file])), 0);
    let secret = ["--secret", file];
    let listen = ["perf", "--listen", "127.0.0.1:0"];
    let listener = Listener::new(&[&listen[..], &secret].concat(), "measures at ");
    let visit = [&[listener.address.as_str()], FEW, &secret].concat();
    let found = rows(&visit);
    assert!(
        of(&found, "tcp")["raw_one_way_ns_p50"].as_u64() > Some(0),
        "{found:?}"
    );
    of(&found, "plain TCP");
    of(&found, "TLS");
    let several = rows(&[&visit[..], &["--fabric", "tcp", "--pairs", "2"]].concat());
    assert_eq!(of(&several, "tcp")["pairs"]["count"], 2);
    let stranger = ibex(&[&["perf", &listener.address], FEW].concat());
    assert_eq!(code(&stranger), 3, "{stranger:?}");
}

#[test]
fn who_does_not_listen_is_told() {
    let output = ibex(&["perf", "127.0.0.1:1"]);
    assert_eq!(code(&output), 1, "{output:?}");
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(text.contains("ibex doctor --to"), "{text}");
    assert_eq!(code(&ibex(&["perf", "--size", "x"])), 2);
}

#[test]
fn two_network_namespaces_measure_tcp_beside_sockets() {
    if !namespace::is_inside("perf::two_network_namespaces_measure_tcp_beside_sockets") {
        return;
    }
    let network = Network::of(Medium::Packets, &mut Draw::new(1)).expect("a link");
    let Some(namespace) = &network.far_namespace else {
        panic!("there is no link: {:?}", network.has_link());
    };
    let mut there = Command::new("nsenter");
    there
        .arg(format!("--net={}", namespace.display()))
        .arg(env!("CARGO_BIN_EXE_ibex"))
        .args(["perf", "--listen", &network.address.to_string()]);
    let listener = Listener::of(&mut there, "measures at ");
    let both_modes = ["--size", "64", "--iters", "200", "--fabric", "all"];
    let rows = rows(&[&[listener.address.as_str()], &both_modes[..]].concat());
    assert!(
        of(&rows, "tcp")["raw_one_way_ns_p50"].as_u64() > Some(0),
        "{rows:?}"
    );
    of(&rows, "plain TCP");
    of(&rows, "TLS");
    // The peer has memory of its own network, so none is shared.
    assert!(rows.iter().all(|row| row["fabric"] != "shm"), "{rows:?}");
}
