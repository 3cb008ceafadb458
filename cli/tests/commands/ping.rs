//! `ibex ping` between two processes.

use std::{
    fs::{self, File},
    process::Command,
    thread,
};

use ibex::Node;
use serde_json::Value;

use crate::machine::{Listener, Machine, code, ibex, page};

const LISTEN: [&str; 3] = ["ping", "--listen", "127.0.0.1:0"];
const SAYS: &str = "answers pings at ";

#[test]
fn pings_come_back_over_every_fabric_that_both_ends_have() {
    let listener = Listener::new(&LISTEN, SAYS);
    for size in ["0", "64", "1000000"] {
        let arguments = [
            "--count",
            "3",
            "--interval-ms",
            "1",
            "--size-bytes",
            size,
            "--json",
        ];
        let output = ibex(&[&["ping", &listener.address][..], &arguments].concat());
        assert_eq!(code(&output), 0, "{output:?}");
        let tallies: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        let tcp = tally(&tallies, "tcp");
        assert_eq!(
            (&tcp["sent"], &tcp["lost"], &tcp["damaged"]),
            (&3.into(), &0.into(), &0.into())
        );
        let trips = &tcp["round_trip_us"];
        let [least, most] = ["least", "most"].map(|name| trips[name].as_f64().expect("a time"));
        assert!(0.0 < least && least <= most, "{trips}");
        assert!(
            tally(&tallies, "shm")["sent"] == 3 || tally(&tallies, "shm")["unusable"].is_string()
        );
    }
    let output = ibex(&["ping", &listener.address, "--count", "1"]);
    assert!(
        page(&output).contains("tcp   1 sent, 0 lost, 0 damaged; round trip"),
        "{output:?}"
    );
}

#[test]
fn who_does_not_answer_is_told() {
    let node = Node::listen("127.0.0.1:0").expect("a node without the service");
    let address = node.local_addr().expect("an address").to_string();
    let output = ibex(&["ping", &address, "--json"]);
    assert_eq!(code(&output), 3, "{output:?}");
    let tallies: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let why = tally(&tallies, "tcp")["unusable"]
        .as_str()
        .expect("a reason")
        .to_owned();
    assert!(why.contains("`ibex ping --listen` answers there"), "{why}");
    drop(node);
    let output = ibex(&["ping", &address]);
    assert_eq!(code(&output), 3, "{output:?}");
    assert!(page(&output).contains("ibex doctor --to"), "{output:?}");
    assert_eq!(
        page(&output).matches("Connection refused").count(),
        1,
        "{output:?}"
    );
    assert_eq!(code(&ibex(&["ping"])), 2);
    let output = ibex(&["ping", "localhost"]);
    assert_eq!(code(&output), 2, "{output:?}");
    let why = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        why.contains("the port is missing: give HOST:PORT, such as localhost:7000"),
        "{why}"
    );
}

#[test]
fn a_secret_keeps_strangers_out() {
    let machine = Machine::bare();
    let secret = machine.folder().join("cluster.key");
    let file = secret.to_str().expect("text");
    assert_eq!(code(&ibex(&["keygen", "secret", file])), 0);
    let log = machine.folder().join("log");
    let mut command = Command::new(env!("CARGO_BIN_EXE_ibex"));
    command.args(LISTEN).args(["--secret", file]);
    command.stderr(File::create(&log).expect("a new file"));
    let listener = Listener::of(&mut command, SAYS);
    let arguments = ["ping", &listener.address, "--count", "1"];
    assert_eq!(code(&ibex(&arguments)), 3);
    // The listener tells whom it refused, and why.
    let told = || fs::read_to_string(&log).expect("the log");
    while !told().contains('\n') {
        thread::yield_now();
    }
    let told = told();
    assert!(
        told.contains("a connection did not become a session; failure: ")
            && told.contains("secret"),
        "{told}"
    );
    let output = ibex(&[&arguments[..], &["--secret", file]].concat());
    assert_eq!(code(&output), 0, "{output:?}");
}

fn tally<'a>(tallies: &'a Value, fabric: &str) -> &'a Value {
    let mut tallies = tallies.as_array().expect("a list").iter();
    tallies
        .find(|tally| tally["fabric"] == fabric)
        .expect("the fabric")
}
