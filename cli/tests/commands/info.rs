//! `ibex info` on this machine and on machines that are folders.

use crate::machine::{Machine, code, ibex, page};

#[test]
fn this_machine_has_tcp_and_says_what_a_session_takes() {
    let output = ibex(&["info", "--to", "127.0.0.1"]);
    assert_eq!(code(&output), 0, "{output:?}");
    let text = page(&output);
    for part in [
        "Fabrics",
        "tcp    yes",
        "with a node of this host and user",
        "Route to 127.0.0.1",
    ] {
        assert!(text.contains(part), "no {part:?} in\n{text}");
    }
    let output = ibex(&["info", "--to", "127.0.0.1:7000"]);
    assert!(page(&output).contains("Route to 127.0.0.1\n"), "{output:?}");
    // A machine without RDMA has one reason for that.
    assert!(text.matches("RDMA cannot be used").count() <= 1, "{text}");
    let output = ibex(&["info", "--json"]);
    let info: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    // The session was real, whatever fabric this host gives it.
    let fabric = info["sessions"][0]["fabric"].as_str().expect("a fabric");
    assert!(["shm", "tcp"].contains(&fabric), "{info:#}");
}

#[test]
fn a_card_has_every_field() {
    let (code, info) = Machine::with_card().json(&["info"]);
    assert_eq!(code, 0);
    let device = &info["devices"][0];
    for (field, value) in [
        ("/name", "mlx5_0"),
        ("/node_guid", "506b:4b03:00ba:1234"),
        ("/firmware", "16.35.4030"),
        ("/driver", "mlx5_core"),
        ("/bus_address", "0000:3b:00.0"),
        ("/device_file", "/dev/infiniband/uverbs0"),
        ("/ports/0/state", "ACTIVE"),
        ("/ports/0/speed", "100 Gb/sec (4X EDR)"),
        ("/ports/0/link_layer", "Ethernet"),
        ("/ports/0/netdevs/0", "eth4"),
        ("/ports/0/gids/1/gid", "::ffff:192.0.2.7"),
        ("/ports/0/gids/1/type", "RoCE v2"),
        ("/ports/0/gids/1/netdev", "eth4"),
    ] {
        assert_eq!(
            device.pointer(field).and_then(|found| found.as_str()),
            Some(value),
            "{field}"
        );
    }
    assert_eq!(device["numa_node"], 1);
    assert_eq!(device["is_hardware"], true);
    assert_eq!(device["ports"][0]["mtu_bytes"], 4096);
    // The third entry of the table is unused.
    assert_eq!(device["ports"][0]["gids"].as_array().map(Vec::len), Some(2));
    let text = page(&Machine::with_card().run(&["info"]));
    assert!(
        text.contains("GID 1   ::ffff:192.0.2.7, RoCE v2, on eth4"),
        "{text}"
    );
}

#[test]
#[cfg(feature = "verbs")]
fn further_ports_of_hardware_are_told() {
    let machine = Machine::with_card();
    let more = "large messages may go over another (max_rails)";
    let text = page(&machine.run(&["info"]));
    assert!(!text.contains("large messages may go"), "{text}");
    let port = "sys/class/infiniband/mlx5_0/ports/2";
    machine.write(&format!("{port}/state"), "4: ACTIVE");
    let text = page(&machine.run(&["info"]))
        .split_whitespace()
        .collect::<Vec<_>>()
        .join(" ");
    assert!(text.contains(more), "{text}");
}

#[test]
fn a_vlan_has_the_device_below_it() {
    let machine = Machine::with_card();
    let output = machine.run(&["info", "--netdev", "vlan7", "--shell"]);
    assert_eq!(
        page(&output),
        "device_name=mlx5_0 ib_port=1 gid_index=1 mtu_index=5\n"
    );
    assert_eq!(code(&output), 0);
    let (_, info) = machine.json(&["info", "--netdev", "vlan7"]);
    assert_eq!(
        info["route"]["choice"]["reason"],
        "it belongs to vlan7 (which stands on eth4)"
    );

    machine.write("sys/class/infiniband/mlx5_0/ports/1/state", "1: DOWN");
    let (_, info) = machine.json(&["info", "--netdev", "eth4"]);
    assert_eq!(
        info["route"]["no_choice"],
        "mlx5_0 port 1 belongs to eth4 and is DOWN, not ACTIVE"
    );
    let output = machine.run(&["info", "--netdev", "eth4", "--shell"]);
    assert_eq!((code(&output), page(&output).as_str()), (4, ""));
}

#[test]
fn the_device_of_a_route_has_the_address_on_it() {
    let machine = Machine::with_card();
    // The loopback interface stands for the card's, since every machine has a route over it.
    machine.write(
        "sys/class/infiniband/mlx5_0/ports/1/gid_attrs/ndevs/0",
        "lo",
    );
    let (code, info) = machine.json(&["info", "--to", "127.0.0.1"]);
    assert_eq!(code, 0);
    assert_eq!(info["route"]["netdevs"][0], "lo");
    assert_eq!(info["route"]["choice"]["device"], "mlx5_0", "{info:#}");
    assert_eq!(info["route"]["is_this_host"], true);
}

#[test]
fn what_is_not_there_is_named() {
    let output = Machine::with_card().run(&["info", "--netdev", "eth9"]);
    assert_eq!(code(&output), 1);
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(
        error,
        "ibex: there is no network interface eth9; this machine has eth4, lo, vlan7\n"
    );
    let output = ibex(&["info", "--shell"]);
    assert_eq!(code(&output), 2, "{output:?}");
    let output = ibex(&["info", "--to", "no.such.host.invalid", "--json"]);
    assert_eq!((code(&output), output.stdout.len()), (1, 0), "{output:?}");
}

#[test]
fn a_variable_that_stops_every_node_is_told_by_all_who_know_it() {
    for (name, value, says) in [
        ("IBEX_FABRICS", "foo", "IBEX_FABRICS is \"foo\""),
        ("IBEX_FABRIC", "foo", "is IBEX_FABRICS meant?"),
    ] {
        let run = |arguments: &[&str]| {
            let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_ibex"));
            let output = command
                .args(arguments)
                .env_remove("IBEX_FABRICS")
                .env(name, value)
                .output();
            output.expect("the command runs")
        };
        let output = run(&["info"]);
        assert_eq!(code(&output), 3, "{output:?}");
        let text = page(&output);
        assert!(text.contains(says), "{text}");
        assert!(!text.contains("yes"), "{text}");
        let output = run(&["info", "--json"]);
        assert_eq!(code(&output), 3, "{output:?}");
        let info: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
        let fabrics = info["fabrics"].as_array().expect("a list");
        assert!(
            fabrics.iter().all(|fabric| fabric["is_usable"] == false),
            "{info:#}"
        );
        let output = run(&["doctor", "--json"]);
        assert_eq!(code(&output), 3, "{output:?}");
        let said: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
        let findings = said["findings"].as_array().expect("a list");
        let finding = findings
            .iter()
            .find(|finding| finding["check"] == "environment");
        let finding = finding.unwrap_or_else(|| panic!("no finding: {said:#}"));
        assert_eq!(finding["severity"], "problem");
        let seen = finding["seen"].as_str().expect("text");
        assert!(
            seen.contains(says) && seen.contains(name) && seen.contains(value),
            "{seen}"
        );
        let mend = finding["mend"].as_str().expect("text");
        assert!(
            mend.contains("IBEX_FABRICS may be fabrics (shm, tcp, verbs) with commas"),
            "{mend}"
        );
    }
}

#[test]
fn a_hidden_option_is_not_suggested() {
    let why = |option: &str| {
        let output = ibex(&["doctor", option]);
        assert_eq!(code(&output), 2, "{output:?}");
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    let text = why("--foo");
    assert!(
        text.contains("'--foo'") && !text.contains("--root"),
        "{text}"
    );
    assert!(why("--jsn").contains("'--json'"));
}

#[test]
fn help_names_the_exit_codes() {
    for command in [
        &["info"][..],
        &["doctor"],
        &["perf"],
        &["ping"],
        &["watch"],
        &["config", "explain"],
        &["keygen", "ca"],
        &["completions"],
        &["man"],
    ] {
        let output = ibex(&[command, &["--help"]].concat());
        assert!(page(&output).contains("Exit codes:\n  0  "), "{output:?}");
    }
}

#[test]
fn completions_and_manual_pages_are_made() {
    for shell in ["bash", "zsh", "fish"] {
        let script = page_of_any_width(&ibex(&["completions", shell]));
        assert!(
            script.contains("doctor") && script.contains("netdev"),
            "{script}"
        );
    }
    let manual = page_of_any_width(&ibex(&["man"]));
    assert!(manual.contains(".TH ibex 1"), "{manual}");
    let folder = Machine::bare();
    let pages = folder.folder().join("man");
    let output = ibex(&["man", "--folder", pages.to_str().expect("text")]);
    assert_eq!(code(&output), 0, "{output:?}");
    for name in ["ibex", "ibex-info", "ibex-doctor", "ibex-keygen-node"] {
        assert!(pages.join(format!("{name}.1")).exists(), "{name}");
    }
}

fn page_of_any_width(output: &std::process::Output) -> String {
    String::from_utf8(output.stdout.clone()).expect("text")
}
