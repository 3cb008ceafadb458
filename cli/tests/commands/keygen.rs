//! `ibex keygen`: nodes authenticate each other with what it makes.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use crate::machine::{Machine, code, ibex};
use ibex::{ConnectError, ConnectErrorKind, Node, Security, SharedSecret};

#[test]
fn a_secret_joins_two_nodes_and_keeps_its_file() {
    let machine = Machine::bare();
    let [ours, theirs] = ["ours.key", "theirs.key"].map(|name| machine.folder().join(name));
    for file in [&ours, &theirs] {
        made(&["keygen", "secret", text(file)]);
        assert_eq!(mode(file), 0o600);
    }
    let security =
        |file: &Path| Security::shared_secret(SharedSecret::from_file(file).expect("the secret"));
    connect(security(&ours), security(&ours)).expect("one secret");
    let refused = connect(security(&ours), security(&theirs)).expect_err("another secret");
    assert_eq!(refused.kind(), ConnectErrorKind::Unauthenticated);

    let before = fs::read(&ours).expect("the secret");
    let output = ibex(&["keygen", "secret", text(&ours)]);
    assert_eq!(code(&output), 1);
    assert!(
        String::from_utf8_lossy(&output.stderr).contains("exists and is kept"),
        "{output:?}"
    );
    assert_eq!(fs::read(&ours).expect("the secret"), before);
    made(&["keygen", "secret", text(&ours), "--force"]);
    assert_ne!(fs::read(&ours).expect("the secret"), before);
}

#[test]
fn an_authority_joins_its_nodes_and_no_others() {
    let machine = Machine::bare();
    let [ours, theirs] = ["ours", "theirs"].map(|name| machine.folder().join(name));
    for folder in [&ours, &theirs] {
        made(&["keygen", "ca", "--folder", text(folder)]);
        for name in ["db1.example", "db2"] {
            made(&[
                "keygen",
                "node",
                name,
                "--folder",
                text(folder),
                "--days",
                "2",
            ]);
        }
        for file in ["ca.key", "ca.pem", "db2.key", "db2.pem"] {
            assert_eq!(mode(&folder.join(file)), 0o600, "{file}");
        }
    }
    let security = |folder: &Path, name: &str| {
        let file = |end: &str| folder.join(format!("{name}.{end}"));
        Security::certificates(file("pem"), file("key"), folder.join("ca.pem")).expect("the files")
    };
    connect(security(&ours, "db2"), security(&ours, "db1.example")).expect("one authority's");
    let refused = connect(security(&ours, "db2"), security(&theirs, "db1.example"));
    let refused = refused.expect_err("another authority's");
    assert_eq!(refused.kind(), ConnectErrorKind::Unauthenticated);
    // Authorities have names of their own, or a node could not say which one is missing.
    let told = refused.to_string();
    assert!(!told.contains("two authorities of one name"), "{told}");

    // The certificate and the key of different authorities sign nothing.
    fs::copy(theirs.join("ca.pem"), ours.join("ca.pem")).expect("a copy");
    let output = ibex(&["keygen", "node", "db3", "--folder", text(&ours)]);
    assert_eq!(code(&output), 1);
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(
        error.contains("is not the certificate of ca.key"),
        "{error}"
    );
}

#[test]
fn a_node_needs_an_authority_and_a_name() {
    let machine = Machine::bare();
    let output = ibex(&["keygen", "node", "db3", "--folder", text(machine.folder())]);
    assert_eq!(code(&output), 1);
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(
        error.contains("ca.pem") && error.contains("ibex keygen ca"),
        "{error}"
    );
    for name in ["../x", "", "ca", "a b", "192.0.2.1"] {
        let output = ibex(&["keygen", "node", name, "--folder", text(machine.folder())]);
        assert_eq!(code(&output), 2, "{name}: {output:?}");
    }
}

/// Connects two nodes.
fn connect(listens: Security, connects: Security) -> Result<(), ConnectError> {
    let listener = Node::builder()
        .listen("127.0.0.1:0")
        .security(listens)
        .build();
    let listener = listener.expect("a node that listens");
    let node = Node::builder().security(connects).build().expect("a node");
    let address = listener.local_addr().expect("an address");
    node.connect(address).map(|_| ())
}

/// Runs the command, which prints the files that it made.
fn made(arguments: &[&str]) {
    let output = ibex(&[arguments, &["--json"]].concat());
    assert_eq!(code(&output), 0, "{output:?}");
    let made: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    for file in made["files"].as_array().expect("files") {
        assert!(Path::new(file.as_str().expect("a path")).exists(), "{file}");
    }
}

fn mode(file: &Path) -> u32 {
    fs::metadata(file).expect("the file").permissions().mode() & 0o777
}

fn text(path: &Path) -> &str {
    path.to_str().expect("text")
}
