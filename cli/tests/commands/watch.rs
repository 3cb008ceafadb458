//! `ibex watch` of a session.

use std::{
    process::{Command, Stdio},
    time::Duration,
};

use ibex::Node;
use ibex_harness::process::Process;
use serde_json::Value;

use crate::machine::{code, ibex};

#[test]
fn the_events_of_a_session_come_as_lines() {
    let node = Node::listen("127.0.0.1:0").expect("a node");
    let address = node.local_addr().expect("an address").to_string();
    let mut command = Command::new(env!("CARGO_BIN_EXE_ibex"));
    command.args(["watch", "--json", "--to", &address]);
    command.env_remove("IBEX_FABRICS").stdout(Stdio::piped());
    let mut process = Process::start("ibex watch", &mut command).expect("the command runs");
    let peer = loop {
        match node.accept_timeout(Duration::from_millis(100)) {
            Ok(peer) => break peer,
            Err(_) => process.check().expect("it connects"),
        }
    };
    drop(peer);
    drop(node);
    let mut text = String::new();
    let mut output = process.stdout();
    std::io::Read::read_to_string(&mut output, &mut text).expect("its output");
    assert!(process.wait().expect("its end").success());
    let lines = text
        .lines()
        .map(|line| serde_json::from_str(line).expect("JSON"));
    let lines: Vec<Value> = lines.collect();
    let says = |words: &str| {
        lines.iter().any(|line| {
            line["source"] == address.as_str()
                && line["event"]
                    .as_str()
                    .is_some_and(|event| event.contains(words))
        })
    };
    assert!(says("connected to") && says("is over"), "{lines:?}");
}

#[test]
fn nothing_to_watch_is_told() {
    if std::path::Path::new("/sys/class/infiniband").exists() {
        return;
    }
    let output = ibex(&["watch"]);
    assert_eq!(code(&output), 4, "{output:?}");
}
