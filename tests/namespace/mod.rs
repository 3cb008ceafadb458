//! Tests that run in a network namespace of their own.

use std::{env, process::Command};

/// The variable that the harness sets in the process with the namespace (`network.rs`).
const INSIDE: &str = "HARNESS_NAMESPACE";

/// Returns whether this process is in a namespace of its own; otherwise runs the test in such a
/// process.
pub(crate) fn is_inside(test: &str) -> bool {
    if env::var_os(INSIDE).is_some() {
        return true;
    }
    let as_user: &[&str] = match rustix::process::geteuid().is_root() {
        true => &["--net"],
        false => &["--net", "--user", "--map-root-user"],
    };
    let unshared = |program: &mut Command| program.status().is_ok_and(|status| status.success());
    if !unshared(Command::new("unshare").args(as_user).arg("true")) {
        let is_root = rustix::process::geteuid().is_root();
        assert!(
            !is_root,
            "root has network namespaces, by util-linux's unshare"
        );
        println!("no network namespace is to be had here, so nothing is tested");
        return false;
    }
    let mut inside = Command::new("unshare");
    inside.args(as_user).arg(env::current_exe().unwrap());
    inside
        .args([test, "--exact", "--nocapture"])
        .env(INSIDE, "1");
    assert!(unshared(&mut inside), "{test} failed in its namespace");
    false
}
